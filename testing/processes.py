"""Real processes: a node of the product in each, started, watched, and ended by who started it.

    Process       one child: its log, when it serves, how it has ended
    ProcessNode   a node of a test cluster as such a child

What it keeps true:

* A process is signalled only while it is our child and was not waited for: its number cannot be somebody else's.
* A child is in a session of its own: Ctrl-C at the terminal of a test or of `tidelog up` is theirs to pass on.
* Whoever dies before it serves is reported with the last lines of its log.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Protocol

from tidelog.testing.nodes import DEATH_S, STOP_S, NodeFailed, NodeSpec, State
from tidelog.testing.ports import HOST

TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 16 << 10


class Process:
    """One child of this process, from `start` on."""

    def __init__(self, title: str, command: Sequence[str], log: Path) -> None:
        self.title = title
        self.log = log
        self.about: dict[str, Any] = {}
        """What it said of itself when it was ready."""
        self.on_end: Callable[[], None] = lambda: None
        """Called once when it has ended."""
        self._command = list(command)
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Any] = self._loop.create_future()
        self._ended: asyncio.Future[Any] = self._loop.create_future()
        self._child: subprocess.Popen[bytes]

    def start(self, *, environment: Mapping[str, str] | None = None, leashed: bool = True) -> None:
        """Begin. One that is not `leashed` does not notice when this process ends."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(  # noqa: S603 -- our own program
                self._command,
                stdin=subprocess.PIPE if leashed else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=dict(environment) if environment is not None else child_environment(),
            )
        threading.Thread(target=self._watch, name=f"watch {self.title}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended, as far as this loop has heard."""
        return not self._ended.done()

    @property
    def exit_code(self) -> int | None:
        """How it has ended; negative: the signal that ended it."""
        code: int | None = self._ended.result() if self._ended.done() else None
        return code

    def _watch(self) -> None:
        """In a thread: the line that says that it is ready, and the end."""
        stdout = self._child.stdout
        assert stdout is not None
        line = stdout.readline()
        if line.endswith(b"\n"):
            self._tell(self._on_ready, line)
        code = self._child.wait()
        for pipe in (self._child.stdin, stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._tell(self._on_end, code)

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody asks any more
            self._loop.call_soon_threadsafe(callback, *args)

    def _on_ready(self, line: bytes) -> None:
        with contextlib.suppress(ValueError):
            self.about = json.loads(line)
        if not self._ready.done():
            self._ready.set_result(None)

    def _on_end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)
        self.on_end()

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────

    async def ready(self, timeout: float) -> None:  # noqa: ASYNC109 -- a bound of the whole, told to the user
        """Until it says that it serves."""
        await asyncio.wait([self._ready, self._ended], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done() and self.alive:
            return
        what = f"has {self.how_it_ended()}" if not self.alive else f"does not serve after {timeout:g} s"
        raise NodeFailed(f"{self.title} {what}; the end of {self.log}:\n{self.last_lines()}")

    async def ended(self, timeout: float) -> bool:  # noqa: ASYNC109 -- as above
        """Until it has ended; whether it has in that time."""
        await asyncio.wait([self._ended], timeout=timeout)
        return not self.alive

    def how_it_ended(self) -> str:
        """In words."""
        code = self.exit_code
        if code is None:
            return "not ended"
        return f"ended with exit code {code}" if code >= 0 else f"been ended by {signal.Signals(-code).name}"

    def last_lines(self, lines: int = TAIL_LINES) -> str:
        """The end of its log."""
        return tail(self.log, lines)

    # ── signals ───────────────────────────────────────────────────────────────────────────────────

    def signal(self, number: signal.Signals) -> bool:
        """Send that; False: it has ended."""
        if self._child.poll() is not None:
            return False
        self._child.send_signal(number)
        return True

    async def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        if not await self.ended(DEATH_S):
            raise NodeFailed(f"{self.title} (pid {self.pid}) was killed {DEATH_S:g} s ago and is not gone")

    async def stop(self, patience_s: float = STOP_S) -> int:
        """Let it stop in order; its exit code."""
        self.signal(signal.SIGTERM)
        if not await self.ended(patience_s):
            raise NodeFailed(
                f"{self.title} (pid {self.pid}) was told to stop {patience_s:g} s ago and runs; the end of "
                f"{self.log}:\n{self.last_lines()}"
            )
        code = self.exit_code
        assert code is not None
        return code

    async def pause(self) -> None:
        """Freeze it, and wait until it is frozen."""
        self.signal(signal.SIGSTOP)
        waitid = getattr(os, "waitid", None)  # macOS has it from Python 3.13 on, and stops at once as well
        while waitid is not None and self.alive:
            if waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is not None:
                return
            await asyncio.sleep(0.001)

    def resume(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a file, as far as it can be read."""
    try:
        with path.open("rb") as file:
            _seek_back(file)
            text = file.read().decode("utf-8", "backslashreplace")
    except OSError as error:
        return f"({error.strerror})"
    return "\n".join(text.splitlines()[-lines:]) or "(nothing)"


def _seek_back(file: IO[bytes]) -> None:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))


# ── nodes ─────────────────────────────────────────────────────────────────────────────────────────────


def arguments(spec: NodeSpec, *more: str) -> list[str]:
    """What is typed behind `tidelog` for this node."""
    role = "broker" if spec.is_broker else "controller"
    voters = ",".join(f"{number}@{host}:{port}" for number, host, port in spec.controllers)
    words = [role, "start", "--id", str(spec.number), "--listen", f"{HOST}:{spec.port}"]
    words += ["--data", str(spec.directory), "--controllers" if spec.is_broker else "--quorum", voters]
    if spec.is_broker and spec.advertised != spec.port:
        words += ["--advertise", f"{HOST}:{spec.advertised}"]
    if spec.rack:
        words += ["--rack", spec.rack]
    for key, value in spec.settings.items():
        words += ["-X", f"{key}={value}"]
    return [*words, "-o", "json", "--log-format", "pretty", *more]


def child_environment(*, without_settings: bool = False) -> dict[str, str]:
    """This process's, in which a child finds the same tidelog; without what TIDELOG_... would tell a node."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not (without_settings and key.startswith("TIDELOG_"))
    }
    cache = _bytecode_cache()
    if cache is not None:
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(cache)
    root = str(Path(__file__).parent.parent.parent)
    if "site-packages" not in root and "dist-packages" not in root:
        paths = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, paths]))
    return environment


def _bytecode_cache() -> Path | None:
    """Where children keep bytecode, if this process is to leave none beside the sources; None: nowhere else.

    To compile all of tidelog takes a node longer than all the rest of its start.
    """
    if not sys.dont_write_bytecode or sys.pycache_prefix is not None:
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tidelog" / "bytecode"
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):  # a home that cannot be written, or none at all
        return None
    return cache if os.access(cache, os.W_OK) and cache.stat().st_uid == os.geteuid() else None


class Doors(Protocol):
    """What lets others reach a node, or not."""

    async def open(self, spec: NodeSpec) -> None:
        """It runs."""
        ...

    async def close(self, spec: NodeSpec) -> None:
        """It is gone."""
        ...


class ProcessNode:
    """One node of a test cluster, in a process of its own."""

    program: tuple[str, ...] = ("tidelog.testing.node",)
    """The module that is run, and its first arguments."""

    def __init__(self, spec: NodeSpec, doors: Doors) -> None:
        self.spec = spec
        self.process: Process | None = None
        """The process of the last life."""
        self._doors = doors
        self._paused = False
        self._log = spec.directory.parent / f"{spec.title}.log"
        self._full = spec.directory.parent / f"{spec.title}.full"
        self._closing: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        """Whether it runs."""
        if self.process is None or not self.process.alive:
            return "absent"
        return "paused" if self._paused else "running"

    async def start(self) -> None:
        """Begin."""
        assert self.state == "absent", f"{self.spec.title} is {self.state}"
        await self._closed()
        await self._doors.open(self.spec)
        program = [*self.program, "--full-while", str(self._full)]
        command = [sys.executable, "-m", *program, *arguments(self.spec)]
        self._paused = False
        self.process = Process(self.spec.title, command, self._log)
        self.process.on_end = self._on_end
        self.process.start(environment=child_environment(without_settings=True))

    def _on_end(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self._doors.close(self.spec))

    async def _closed(self) -> None:
        """Until nobody reaches it any more."""
        closing, self._closing = self._closing, None
        if closing is not None:
            await closing

    def _there(self) -> Process:
        assert self.process is not None, f"{self.spec.title} was never started"
        return self.process

    async def ready(self, timeout: float) -> None:  # noqa: ASYNC109 -- as Node says
        """Until it serves."""
        await self._there().ready(timeout)
        # What has ended late of its last life may have closed the door while nobody listened behind it.
        await self._doors.open(self.spec)

    async def stop(self) -> None:
        """Stop in order."""
        process = self._there()
        code = await process.stop()
        await self._closed()
        if code:
            raise NodeFailed(
                f"{self.spec.title} was told to stop and has {process.how_it_ended()}; the end of "
                f"{process.log}:\n{process.last_lines()}"
            )

    async def kill(self) -> None:
        """End at once."""
        await self._there().kill()
        await self._closed()

    async def pause(self) -> None:
        """Freeze."""
        self._paused = True
        await self._there().pause()

    async def resume(self) -> None:
        """Go on."""
        self._paused = False
        self._there().resume()

    async def fill_disk(self) -> None:
        """No room any more."""
        self._set_full(b"\1")

    async def free_disk(self) -> None:
        """Room again."""
        self._set_full(b"\0")

    def _set_full(self, marker: bytes) -> None:
        """In place: the node has that byte mapped (`node`)."""
        fd = os.open(self._full, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(fd, marker, 0)
        finally:
            os.close(fd)

    def logs(self) -> str:
        """All of its log."""
        return self._log.read_text(encoding="utf-8", errors="backslashreplace") if self._log.exists() else ""
