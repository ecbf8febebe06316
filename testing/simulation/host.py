"""A simulated machine and the process that it runs: its clocks, its disk, its lives and its deaths.

    start ──▶ alive ──▶ stop ⇄ resume
                │  main returned, exit, halt, kill: the disk keeps what is visible, peers hear of it
                └──▶ dead ──▶ start again
                │  power_cut: the disk keeps what was flushed, peers hear nothing
                └──▶ dark ──▶ boot ──▶ dead

What it keeps true:

* A crash that the disk was told to strike with ends this host at that instant, and no other.
* A dead process does nothing: what it was doing is kept unfinished until the world ends.
* The boot id and the boot clock change with a loss of power only; the wall clock is off by what a test likes.
"""

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar

from tidelog.storage.files import Directory
from tidelog.testing.simulation.determinism import EPOCH_MS
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.faults import Crash, PowerCut
from tidelog.testing.simulation.loop import SimulatedLoop
from tidelog.testing.simulation.timeline import Halted, Timeline
from tidelog.testing.simulation.world import World, where

T = TypeVar("T")

FATAL = 70
"""The exit code of a process that gave up, as a broker's after a failed flush."""


class Clock:
    """The clocks of a host that are injected into its process."""

    def __init__(self, timeline: Timeline, offset_ms: float, boot_offset_ms: float) -> None:
        self._timeline = timeline
        self.offset_ms = offset_ms
        """By how much the wall clock is wrong. May be changed at any time."""
        self._boot_offset_ms = boot_offset_ms

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as this host believes."""
        return round(EPOCH_MS + self._timeline.now * 1000 + self.offset_ms)

    def boot_ms(self) -> float:
        """Milliseconds since this host got power."""
        return self._timeline.now * 1000 + self._boot_offset_ms

    def jump(self, by_ms: float) -> None:
        """Set the wall clock forward or, if negative, back."""
        self.offset_ms += by_ms


@dataclass(frozen=True, slots=True)
class Environment:
    """What a process is given by its host."""

    name: str
    address: str
    directory: Directory
    """Its data directory."""
    open_directory: Callable[[str], Directory]
    """Further directories of the same disk, by their paths."""
    clock: Clock
    boot_id: str
    life: int
    """The how manieth process of this host it is."""
    halt: Callable[[str], NoReturn]
    """The action for fatal errors: the process ends, now."""
    other_directories: tuple[Directory, ...] = ()
    """One on each further disk."""


Main: TypeAlias = Callable[[Environment], Coroutine[Any, Any, object]]


class Host:
    """One machine of a world."""

    def __init__(self, name: str, world: World, *, disk: SimulatedDisk | None = None) -> None:
        assert name not in world.hosts, f"there is a host {name} already"
        self.name = name
        self.world = world
        self.machine = world.network.machine(name)
        self.disk = disk or SimulatedDisk(random.Random(world.rng.getrandbits(64)))
        self.disk.on_crash = self._on_crash
        self.more_disks: list[SimulatedDisk] = []
        """Further disks: they may fail alone, and each holds one directory."""
        self.disk_ms = (0.02, 5.0)
        """Bounds of how long a call in a worker thread waits, and again how long it takes."""
        self.loop: SimulatedLoop | None = None
        """The loop of the living process."""
        self.main: asyncio.Task[None] | None = None
        """The main task of the living process, or of the last one."""
        self.exit_code: int | None = None
        """How the last process ended itself; None if it lives or was killed."""
        self.stopped = False
        self.life = 0
        self._reason = "kill"
        self._buried: list[SimulatedLoop] = []
        # Other machines were started long ago, and their clocks have nothing in common.
        self.clock = Clock(world.timeline, world.rng.uniform(-50, 50), world.rng.randrange(1 << 32))
        self._started_s = float(world.rng.randrange(1 << 20))
        self.boot_id = self._draw_boot_id()
        world.hosts[name] = self

    def add_disk(self) -> SimulatedDisk:
        """One more, from the next start on."""
        self.more_disks.append(SimulatedDisk(random.Random(self.world.rng.getrandbits(64))))
        return self.more_disks[-1]

    # ── a process ──────────────────────────────────────────────────────────────────────────────────

    @property
    def alive(self) -> bool:
        """Whether a process runs, be it stopped."""
        return self.loop is not None

    @property
    def powered(self) -> bool:
        """Whether the machine has power."""
        return self.machine.powered

    def start(self, main: Main | None = None) -> None:
        """Start a process; without `main` one that only does what `create_task` gives it."""
        assert self.loop is None, f"{self.name} is running"
        assert self.powered, f"{self.name} has no power"
        self.life += 1
        self.exit_code = None
        self.loop = loop = SimulatedLoop(
            self,
            self.machine,
            self.world.timeline,
            self.world.network,
            self._started_s,
            partial(self.world.report, self.name),
        )
        loop.executor_ms = self.disk_ms
        loop.shuffle = self.world.shuffle
        self.world.timeline.note(self.name, "start", self.life)
        environment = Environment(
            self.name,
            self.machine.address,
            self.disk.open_directory(),
            partial(self._open_directory, loop),
            self.clock,
            self.boot_id,
            self.life,
            self.halt,
            tuple(disk.open_directory(f"/more-{at}") for at, disk in enumerate(self.more_disks, 1)),
        )
        self.main = loop.create_task(self._live(loop, main or _idle, environment), name=f"{self.name}-main")

    def create_task(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Let the process, which is started if there is none, run this as well."""
        if self.loop is None:
            self.start()
        assert self.loop is not None
        return self.loop.create_task(coroutine)

    def spawn(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """As `create_task`, where nobody waits for the end; a failure is an error of the world."""
        task = self.create_task(self._watch(coroutine))
        # The loop keeps it.
        del task

    async def _watch(self, coroutine: Coroutine[Any, Any, object]) -> None:
        try:
            await coroutine
        except Exception as error:  # noqa: BLE001 -- it is reported
            self.world.report(self.name, "a spawned task failed", error)

    async def _live(self, loop: SimulatedLoop, main: Main, environment: Environment) -> None:
        """What `asyncio.run` does: when main has ended, end all else, then exit."""
        failure: BaseException | None = None
        try:
            await main(environment)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- it is reported below
            failure = error
        others = [task for task in loop.unfinished() if task is not self.main]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if failure is not None and not isinstance(failure, asyncio.CancelledError):
            self.world.report(self.name, "main failed", failure)
        self.exit(1 if failure else 0)

    # ── its end ────────────────────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        """SIGKILL."""
        if self.alive:
            self._end("kill")

    def exit(self, code: int) -> None:
        """The process ends itself: its kernel closes what it left open."""
        if self.alive:
            self._end("exit")
            self.exit_code = code
            self.world.timeline.note(self.name, "exit code", code)

    def halt(self, reason: str) -> NoReturn:
        """The process has found that it must not go on, and ends itself at once."""
        self.world.trace.remark(self.world.now, self.name, "halt", reason)
        self.exit(FATAL)
        raise Halted(reason)

    def power_cut(self) -> None:
        """The machine loses power, whether a process runs or not."""
        if self.powered:
            self.disk.power_cut()

    def boot(self) -> None:
        """The machine has power again; nothing is started yet."""
        assert not self.powered, f"{self.name} has power"
        now = self.world.now
        self.clock = Clock(self.world.timeline, self.clock.offset_ms, -now * 1000)
        self._started_s = -now
        self.boot_id = self._draw_boot_id()
        self.world.timeline.note(self.name, "boot")
        self.world.network.regain_power(self.machine)

    def restart(self, main: Main | None = None) -> None:
        """Start again, after a kill if it lives and after a boot if it is dark."""
        self.kill()
        if not self.powered:
            self.boot()
        self.start(main)

    def _open_directory(self, loop: SimulatedLoop, path: str) -> Directory:
        if self.loop is not loop:
            # To mount begins the disk's next life, and that is not for the last one's dead.
            raise Halted(f"{self.name} is dead")
        return self.disk.open_directory(path)

    def _end(self, reason: str) -> None:
        self._reason = reason
        self.disk.kill()

    def _on_crash(self, crash: type[Crash]) -> None:
        """The disk knows first: by a planned crash, or because we told it."""
        dark = issubclass(crash, PowerCut)
        self.world.timeline.note(self.name, "power cut" if dark else self._reason)
        self._reason = "kill"
        for disk in self.more_disks:
            disk.power_cut() if dark else disk.kill()
        if self.loop is not None:
            self.loop.die()
            self._buried.append(self.loop)
            self.loop = None
        self.stopped = False
        if dark:
            self.machine.lose_power()
        else:
            self.machine.end_process()

    # ── stopping ───────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """SIGSTOP: the process does nothing, and its kernel goes on."""
        if self.loop is not None:
            self.stopped = True
            self.world.timeline.note(self.name, "stop")
            self.loop.pause()

    def resume(self) -> None:
        """SIGCONT."""
        if self.loop is not None:
            self.stopped = False
            self.world.timeline.note(self.name, "resume")
            self.loop.go_on()

    def slow_disk(self, bounds_ms: tuple[float, float]) -> None:
        """Let calls in worker threads take so long from now on, and in later lives."""
        self.disk_ms = bounds_ms
        if self.loop is not None:
            self.loop.executor_ms = bounds_ms

    # ── what the world asks ────────────────────────────────────────────────────────────────────────

    def wall_ms(self) -> float:
        """What `time.time` says here."""
        return self.clock.wall_ms()

    def monotonic(self) -> float:
        """What `time.monotonic` says here."""
        return self.world.now + self._started_s

    def waiting(self) -> list[str]:
        """What each task of the living process waits for."""
        return [f"{self.name}: {where(task)}" for task in self.loop.unfinished()] if self.loop else []

    def forget_finished(self) -> None:
        """Let go of tasks that have ended, so that a failure that nobody asked about is noticed."""
        if self.loop is not None:
            self.loop.forget_finished()

    def bury(self) -> None:
        """The world has ended."""
        for loop in [*self._buried, *([self.loop] if self.loop else [])]:
            loop.bury()
        self._buried.clear()
        self.loop = None

    def _draw_boot_id(self) -> str:
        return str(uuid.UUID(int=self.world.rng.getrandbits(128)))


async def _idle(_environment: Environment) -> None:
    await asyncio.get_running_loop().create_future()
