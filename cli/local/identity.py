"""Which process a number means: one that was written down may have ended, and its number may be another's by now.

What it keeps true: a process is signalled only if it is still the one that was meant. On Linux the kernel is asked for
a handle of it first, so that nothing can happen between looking and signalling.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SOCKETS = Path("/proc/net/tcp")
_PS_S = 2.0
_LISTENS = "0A"
_SHOWN = 80
"""So many characters of another's command line are told."""


class Incarnation(NamedTuple):
    """One process, and no other that has the same number before or after it."""

    pid: int
    began: str

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return began(self.pid) == self.began

    def signal(self, number: signal.Signals) -> bool:
        """Send it that; False: it has ended."""
        if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
            if self.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)
                    return True
            return False
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive:
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True


def began(pid: int) -> str | None:
    """When that process began, as something that no other with its number has; None: there is none, or it is dead."""
    if sys.platform != "linux":
        return _began_by_ps(pid)
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The name may hold blanks and brackets; behind its last bracket come the state and, 19 fields on, the start.
    state, *fields = status.rpartition(")")[2].split()
    if state in "ZX":
        return None
    with contextlib.suppress(OSError):
        return f"{fields[18]}@{_BOOT_ID.read_text(encoding='ascii').strip()}"
    return fields[18]


def _began_by_ps(pid: int) -> str | None:
    try:
        asked = subprocess.run(  # noqa: S603 -- a program of the system, by its whole path
            ("/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)),
            capture_output=True,
            text=True,
            timeout=_PS_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    state, _, started = asked.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def myself() -> Incarnation:
    """This process."""
    return Incarnation(os.getpid(), began(os.getpid()) or "")


def is_free(host: str, port: int) -> OSError | None:
    """Why nobody can listen there; None: it is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
            trial.listen(1)
        except OSError as error:
            return error
    return None


def who_listens(port: int) -> str | None:
    """Who has that port, as `pid 123 (redis-server)`; None: the system does not say."""
    try:
        lines = _SOCKETS.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return None
    inodes = {
        fields[9]
        for fields in map(str.split, lines)
        if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port
    }
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                target = os.readlink(descriptor)
                if target.startswith("socket:[") and target[8:-1] in inodes:
                    line = (process / "cmdline").read_bytes().decode("utf-8", "replace")
                    return f"pid {process.name} ({shortened(line.rstrip(chr(0)).split(chr(0)))})"
    return None


def shortened(words: Sequence[str]) -> str:
    """A command line as far as it fits, with `...` for the rest; an option stays with its value, or is left out."""
    shown = list(words)
    while len(shown) > 1 and len(" ".join(shown)) > _SHOWN:
        shown.pop()
    if len(shown) == len(words):
        return " ".join(shown)
    while len(shown) > 1 and shown[-1].startswith("-"):
        shown.pop()
    return " ".join((*shown, "..."))
