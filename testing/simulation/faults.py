"""What is to go wrong with a simulated disk, and when: crashes and failing flushes, told beforehand.

What it keeps true: every operation that changes something has a number; one crash at most is planned; a flush that
was told to fail fails once.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

When: TypeAlias = Literal["before", "within", "after"]
"""Where a crash strikes. Within a write, a prefix of its bytes is visible; within anything else is before it."""

WHENS: tuple[When, ...] = ("before", "within", "after")


class Operation(NamedTuple):
    """A line of the trace."""

    number: int
    what: str
    path: str
    details: tuple[int | str, ...]

    def __str__(self) -> str:
        return " ".join([f"{self.number:6}", self.what, self.path, *map(str, self.details)])


class Crash(BaseException):
    """The process that made this call is no more. Not an `Exception`: the dead handle no errors."""


class Killed(Crash):
    """The process died and the machine went on."""


class PowerCut(Crash):
    """The machine lost its power."""


class _CrashPoint(NamedTuple):
    number: int
    when: When
    crash: type[Crash]


class _FlushFailure:
    __slots__ = ("nth", "suffix")

    def __init__(self, nth: int, suffix: str) -> None:
        self.nth = nth
        self.suffix = suffix


class Faults:
    """The plan of one disk. `on_crash` is told of a planned crash before it is raised."""

    def __init__(self, on_crash: Callable[[type[Crash]], None]) -> None:
        self.operations = 0
        self.trace: list[Operation] | None = None
        self._on_crash = on_crash
        self._crash_point: _CrashPoint | None = None
        self._flush_failures: list[_FlushFailure] = []

    def crash_at(self, nth: int, when: When, crash: type[Crash]) -> None:
        """Plan a crash for the n-th operation from now on, instead of the one that was planned."""
        assert nth >= 1, nth
        self._crash_point = _CrashPoint(self.operations + nth, when, crash)

    def forget_crash(self) -> None:
        """There was another one before."""
        self._crash_point = None

    def fail_flush(self, nth: int, suffix: str) -> None:
        """Plan a failure for the n-th flush from now on of a path that ends in `suffix`."""
        assert nth >= 1, nth
        self._flush_failures.append(_FlushFailure(nth, suffix))

    def forget_flush_failures(self) -> None:
        """Let the flushes that have not come yet succeed."""
        self._flush_failures.clear()

    def begin(self, what: str, path: str, *details: int | str) -> None:
        """Number an operation, and crash before it if so planned."""
        self.operations += 1
        if self.trace is not None:
            self.trace.append(Operation(self.operations, what, path, details))
        if self._crash_point is not None:
            self._strike_if("before")
            if what != "write":
                self._strike_if("within")

    def within(self) -> bool:
        """Whether the write that has begun is to be cut short by a crash."""
        point = self._crash_point
        return point is not None and point.number == self.operations and point.when == "within"

    def end(self) -> None:
        """The operation that has begun is done: crash now if so planned."""
        if self._crash_point is not None:
            self._strike_if("within")
            self._strike_if("after")

    def flush_fails(self, path: str) -> bool:
        """Whether this flush is one that was told to fail."""
        fails = False
        for failure in self._flush_failures:
            if path.endswith(failure.suffix):
                failure.nth -= 1
                fails = fails or failure.nth == 0
        if fails:
            self._flush_failures = [failure for failure in self._flush_failures if failure.nth > 0]
        return fails

    def _strike_if(self, when: When) -> None:
        point = self._crash_point
        if point is None or point.number != self.operations or point.when != when:
            return
        self._on_crash(point.crash)
        raise point.crash(f"{point.when} operation {point.number}")
