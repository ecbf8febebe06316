"""A simulated world: hosts, a network, one virtual time and one seed, in one thread.

    with World(seed=7).running() as world:
        host = Host("b1", world)
        host.start(main)
        world.run_until(lambda: ready, deadline=10)

What it keeps true:

* The world goes from one event to the next, whichever host's it is; the same seed gives the same run, and `digest`
  is a short name of it.
* An error that no code caught ends the run with its virtual time, unless it was expected.
* Waiting for what can never happen is found: nothing is due (`Deadlock`), or the deadline passes (`NotReached`).
"""

import asyncio
import gc
import math
import random
import re
from asyncio import _get_running_loop as get_running_loop
from asyncio import _set_running_loop as set_running_loop
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from zlib import crc32

from tidelog.testing.simulation.determinism import deterministic
from tidelog.testing.simulation.links import Conditions
from tidelog.testing.simulation.network import Network
from tidelog.testing.simulation.timeline import Timeline
from tidelog.testing.simulation.trace import Trace

T = TypeVar("T")

_FOLD_EVERY: Final = 1024
_PATIENCE_S: Final = 3600.0


class Inhabitant(Protocol):
    """What the world needs to know of a host."""

    def waiting(self) -> list[str]:
        """What each of its tasks waits for."""
        ...

    def forget_finished(self) -> None:
        """Let go of tasks that have ended, so that a failure that nobody asked about is noticed."""

    def bury(self) -> None:
        """The world has ended."""


class WorldError(NamedTuple):
    """An error that nobody caught."""

    time: float
    host: str
    message: str
    error: BaseException | None
    expected: bool

    def __str__(self) -> str:
        cause = "" if self.error is None else f": {type(self.error).__name__}: {self.error}"
        return f"at {self.time:.6f} s on {self.host or 'no host'}: {self.message}{cause}"


class Unexpected(AssertionError):
    """An error that nobody caught and no test expected."""


class Deadlock(AssertionError):
    """Nothing will ever happen again, and somebody waits: a wake-up was lost."""


class NotReached(AssertionError):
    """The deadline has passed."""


class World:
    """Everything that one seed decides."""

    def __init__(
        self, seed: int, *, conditions: Conditions | None = None, shuffle: bool = False, keep: int = 200
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.shuffle = shuffle
        """Whether hosts run the callbacks of a turn in any order."""
        self.trace = Trace(keep)
        self.timeline = Timeline(self.rng, self.trace)
        self.network = Network(self.timeline, conditions or Conditions())
        self.hosts: dict[str, Inhabitant] = {}
        self.errors: list[WorldError] = []
        self.counts: Counter[str] = Counter()
        """Whatever a scenario counts, to show that it did something."""
        self._expected: list[tuple[type[BaseException], re.Pattern[str]]] = []
        self._failure: WorldError | None = None
        self._digest: str | None = None

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self.timeline.now

    @property
    def steps(self) -> int:
        """Events and turns so far."""
        return self.timeline.steps

    def digest(self) -> str:
        """A short name of all that has happened, and of what chance would have brought next."""
        if self._digest is not None:
            return self._digest
        chance = crc32(repr(self.rng.getstate()).encode())
        return f"{self.trace.digest()}-{chance:08x}"

    @contextmanager
    def running(self) -> Iterator["World"]:
        """Run within this; at its end every host is cleared away, and errors that came up fail."""
        assert self._digest is None, "a world runs once"
        with deterministic(self.timeline):
            try:
                yield self
                # A task that failed unheard of is noticed when it is collected, at the latest now.
                for host in self.hosts.values():
                    host.forget_finished()
                gc.collect()
                self._fail_if_unexpected()
            finally:
                self._digest = self.digest()
                for host in self.hosts.values():
                    host.bury()

    # ── running ────────────────────────────────────────────────────────────────────────────────────

    def run(self, until: float) -> None:
        """Let everything happen up to that time."""
        self._advance(until, None)

    def run_for(self, seconds: float) -> None:
        """Let everything happen for so long."""
        self.run(self.now + seconds)

    def run_until(
        self, condition: Callable[[], object], deadline: float | None = None, *, every_s: float = 0.0
    ) -> None:
        """Let things happen until the condition holds, which is looked at after each of them, or only so often.

        The deadline is a time; by default it is in an hour, since a heartbeat keeps a world alive for ever.
        """
        deadline = self.now + _PATIENCE_S if deadline is None else deadline
        while every_s and self.now < deadline and self.timeline.heap and not condition():
            self._advance(min(deadline, self.now + every_s), None)
        if self._advance(deadline, condition):
            return
        waiting = "\n  ".join(line for host in self.hosts.values() for line in host.waiting())
        if self.timeline.heap:
            raise NotReached(f"seed {self.seed}: not reached by {deadline} s; waiting:\n  {waiting}")
        raise Deadlock(f"seed {self.seed}: nothing is due at {self.now:.6f} s; waiting:\n  {waiting}")

    def result(self, task: "asyncio.Future[T]", deadline: float | None = None) -> T:
        """What the task returns or raises."""
        self.run_until(task.done, deadline)
        return task.result()

    def _advance(self, until: float, condition: Callable[[], object] | None) -> bool:
        timeline = self.timeline
        heap = timeline.heap
        outer = get_running_loop()
        set_running_loop(None)
        timeline.horizon = until if condition is None else -math.inf
        fold_at = timeline.steps + _FOLD_EVERY
        try:
            while True:
                if condition is not None and condition():
                    return True
                if not heap or heap[0][0] > until:
                    break
                timeline.now, _, _, action, args = heappop(heap)
                action(*args)
                timeline.steps += 1
                if timeline.steps >= fold_at:
                    self.trace.fold()
                    fold_at = timeline.steps + _FOLD_EVERY
                if self._failure is not None:
                    self._fail_if_unexpected()
        finally:
            timeline.horizon = -math.inf
            timeline.running = None
            set_running_loop(outer)
        if condition is None or heap:
            timeline.now = max(until, timeline.now)
        return False

    # ── errors ─────────────────────────────────────────────────────────────────────────────────────

    def expect(self, kind: type[BaseException], match: str = "") -> None:
        """Errors of this kind whose message contains that pattern are part of the scenario."""
        self._expected.append((kind, re.compile(match)))

    def report(self, host: str, message: str, error: BaseException | None = None) -> None:
        """Somebody failed and nobody caught it; a checker may call this too, from wherever it looks."""
        expected = error is not None and any(
            isinstance(error, kind) and pattern.search(str(error)) for kind, pattern in self._expected
        )
        entry = WorldError(self.now, host, message, error, expected)
        self.errors.append(entry)
        self.timeline.note(host, "error", type(error).__name__)
        self.trace.remark(self.now, host, "error", str(entry))
        if not expected and self._failure is None:
            self._failure = entry
            self.timeline.horizon = -math.inf  # it ends the run now

    def _fail_if_unexpected(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise Unexpected(f"seed {self.seed}: {failure}") from failure.error

    def chosen(self, options: dict[T, float]) -> T:
        """One of them, by their weights: for scenarios that draw what to do next."""
        return self.rng.choices(list(options), list(options.values()))[0]


def where(task: "asyncio.Task[Any]") -> str:
    """In which line of code a task waits: the innermost, so that it says for what."""
    coroutine: Any = task.get_coro()
    frame = None
    while coroutine is not None and getattr(coroutine, "cr_frame", None) is not None:
        frame = coroutine.cr_frame
        coroutine = coroutine.cr_await
    place = f"{frame.f_code.co_qualname}, line {frame.f_lineno}" if frame is not None else "nowhere"
    return f"{task.get_name()} in {place}"
