"""Virtual time: what is going to happen, in the order in which it will.

What it keeps true:

* Time never goes back, and stands still while something happens.
* At one moment, events of the network and of worker threads come first, in the order in which they were planned;
  then the turns of hosts, in an order that chance decides. So a turn sees all that has arrived by then.
* All chance of a world comes from one generator.
"""

import math
import random
from asyncio import _set_running_loop as set_running_loop
from collections.abc import Callable
from heapq import heappush
from itertools import count
from typing import Any, Protocol, TypeAlias

from tidelog.testing.simulation.trace import Detail, Trace

_Planned: TypeAlias = tuple[float, float, int, Callable[..., object], tuple[Any, ...]]


class Halted(BaseException):
    """The process that raised this has ended itself. Not an `Exception`: the dead handle no errors."""


class Process(Protocol):
    """Whose code is running: what patched clocks and logs need to know of it."""

    @property
    def name(self) -> str:
        """The host's name."""
        ...

    def wall_ms(self) -> float:
        """The host's wall clock."""
        ...

    def monotonic(self) -> float:
        """The host's monotonic clock, in seconds."""
        ...

    def exit(self, code: int) -> None:
        """The process ends itself."""
        ...


class Timeline:
    """The clock, the chance and the agenda of a world."""

    __slots__ = (
        "_count",
        "current",
        "heap",
        "horizon",
        "now",
        "rng",
        "running",
        "steps",
        "trace",
        "turned",
        "watch",
    )

    def __init__(self, rng: random.Random, trace: Trace) -> None:
        self.now = 0.0
        """Virtual seconds since the beginning."""
        self.rng = rng
        self.trace = trace
        self.current: Process | None = None
        """The process whose code is running, if it is any's."""
        self.turned: Process | None = None
        """Whose turn was the last one."""
        self.running: object = None
        """The loop that asyncio believes to run, be its turn over: to tell it of each end as well costs system calls."""
        self.watch: Callable[[], object] | None = None
        """Called after each turn of whomever: who watches all processes looks at the one that has `turned`."""
        self.steps = 0
        """Events and turns so far."""
        self.horizon = -math.inf
        """Up to when a host may take one turn after the other, while nothing else is due and nobody looks in between."""
        self.heap: list[_Planned] = []
        """What is planned: its first is what happens next. The world takes it."""
        self._count = count()

    def at(self, when: float, action: Callable[..., object], *args: object) -> None:
        """Let this happen then, or now if then is past."""
        heappush(self.heap, (max(self.now, when), 0.0, next(self._count), action, args))

    def turn_at(self, when: float, turn: Callable[[], object]) -> None:
        """Let a host have its turn then. Of several at one moment, chance picks the first."""
        assert when >= self.now, f"a turn at {when}, and it is {self.now} already"
        heappush(self.heap, (when, self.rng.random(), next(self._count), turn, ()))

    def leave_loop(self) -> None:
        """Whatever runs now runs in no loop."""
        if self.running is not None:
            self.running = None
            set_running_loop(None)

    def note(self, host: str, what: str, *details: Detail) -> None:
        """Write an event down."""
        self.trace.note(self.now, host, what, *details)

    def skewed(self, bounds: tuple[float, float]) -> float:
        """A number between the bounds, mostly near the lower one, as latencies are."""
        low, high = bounds
        return low + (high - low) * self.rng.random() ** 3
