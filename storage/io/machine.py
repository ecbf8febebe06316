"""This machine: its clocks, which boot of it this is, and an `Environment` for a node that runs on it.

What it keeps true:

* Leases and elections go by a clock that also counts the time for which the machine was suspended (DECISIONS 16).
* Two boots never have the same id; where the id of a boot cannot be known it is empty, and then every crash counts as
  the machine's (`storage.crashes`).
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Final, NoReturn

from tidelog.storage.environment import Environment
from tidelog.storage.files import Directory

_LINUX_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_MACOS_BOOT_ID: Final = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
_SYSCTL_S: Final = 2.0


def _continuous_clock() -> int:
    """The clock that goes on while the machine sleeps. macOS: CLOCK_MONOTONIC is its continuous clock."""
    number: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    try:
        time.clock_gettime_ns(number)
    except OSError:  # a kernel, or a sandbox, that knows fewer clocks than Python does
        return time.CLOCK_MONOTONIC
    return number


class MachineClock:
    """The clocks of this machine."""

    __slots__ = ("_continuous",)

    def __init__(self) -> None:
        self._continuous = _continuous_clock()

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> float:
        """Milliseconds since the machine started, also while it is suspended."""
        return time.clock_gettime_ns(self._continuous) / 1_000_000


def boot_id() -> str:
    """Which boot of this machine this is; empty where nobody can say."""
    try:
        with open(_LINUX_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return _macos_boot_id() if sys.platform == "darwin" else ""


def _macos_boot_id() -> str:
    import subprocess  # noqa: PLC0415 -- a start on Linux does not pay for it

    try:
        asked = subprocess.run(  # noqa: S603 -- a program of the system, by its whole path
            _MACOS_BOOT_ID, capture_output=True, text=True, timeout=_SYSCTL_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout.strip()


def real_environment(directory: Directory, halt: Callable[[str], NoReturn]) -> Environment:
    """What a real process gives its node. `halt` ends the process at once (DECISIONS 12)."""
    return Environment(
        directory=directory,
        clock=MachineClock(),
        boot_id=boot_id(),
        pid=os.getpid(),
        rng=Random(),
        new_id=lambda: os.urandom(16),
        new_guard=threading.Lock,
        halt=halt,
    )
