"""The requests in flight on a connection, and until when each may take: a pure machine.

What it keeps true:

* Correlations grow from 1 to 2^31 - 1 and begin again at 1, leaving out what is still in flight. 0 is the
  one-way correlation and never given.
* Each call ends exactly once: with its reply (`finish`), at its deadline (`expire`), by its caller
  (`forget`) or with the connection (`fail_all`). What comes for a call that has ended finds nothing.
* `wake_ms` is never after the earliest deadline. It may be before it: calls mostly end long before their
  deadline, so one timer per connection looks rarely instead of being set for each call.

A waiter is whatever the caller keeps per call; this machine only hands it back.
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T")

CORRELATION_MAX: Final = 2**31 - 1
ONE_WAY: Final = 0
"""The correlation of requests that expect no answer, and of a refusal of the whole connection."""


class Calls(Generic[T]):
    """Calls by correlation, see the module."""

    __slots__ = ("_in_flight", "_last", "wake_ms")

    def __init__(self) -> None:
        self._in_flight: dict[int, tuple[float, T]] = {}
        self._last = 0
        self.wake_ms: float | None = None
        """When to call `expire` next; None: nothing is in flight or nothing was when last looked."""

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def oldest(self) -> int | None:
        """The correlation of the call that has waited longest; None: there is none."""
        return next(iter(self._in_flight), None)

    def begin(self, waiter: T, deadline_ms: float) -> int:
        """A new call: its correlation."""
        correlation = self._last % CORRELATION_MAX + 1
        while correlation in self._in_flight:
            correlation = correlation % CORRELATION_MAX + 1
        self._last = correlation
        self._in_flight[correlation] = (deadline_ms, waiter)
        if self.wake_ms is None or deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms
        return correlation

    def finish(self, correlation: int) -> T | None:
        """The waiter of the call that was answered; None if it had ended before."""
        call = self._in_flight.pop(correlation, None)
        return None if call is None else call[1]

    def forget(self, correlation: int) -> None:
        """The caller does not wait any more."""
        self._in_flight.pop(correlation, None)

    def expire(self, now_ms: float) -> list[T]:
        """End the calls whose deadline has come, and find out when to look again."""
        late = [c for c, (deadline_ms, _) in self._in_flight.items() if deadline_ms <= now_ms]
        expired = [self._in_flight.pop(correlation)[1] for correlation in late]
        self.wake_ms = min((deadline_ms for deadline_ms, _ in self._in_flight.values()), default=None)
        return expired

    def fail_all(self) -> Iterator[T]:
        """End every call, in the order they began."""
        calls, self._in_flight, self.wake_ms = self._in_flight, {}, None
        return (waiter for _, waiter in calls.values())
