"""What to do about an error, and how long to wait before another attempt.

What it keeps true: no wait is longer than its bound or than the time that is left; who waits does so for a random
part of the bound, so that clients that failed together do not come back together; an error that trying again cannot
mend is never tried again.
"""

from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Final

from tidelog.protocol.errors import (
    ConnectionFailed,
    DiskFull,
    FencedLeaderEpoch,
    InconsistentTopicId,
    LeaderNotAvailable,
    NotLeaderOrFollower,
    ReplicaNotAvailable,
    RequestTimedOut,
    StorageError,
    TidelogError,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)


class Advice(Enum):
    """What to do about an error."""

    AGAIN = "again"
    """Wait, and ask the same broker again."""
    REFRESH = "refresh"
    """Wait, learn who leads now, and ask that one."""
    FATAL = "fatal"
    """Tell who waits: another attempt would end the same way."""


_REFRESH: Final = frozenset(
    {
        UnknownTopicOrPartition,
        UnknownTopicId,
        InconsistentTopicId,
        LeaderNotAvailable,
        NotLeaderOrFollower,
        ReplicaNotAvailable,
        FencedLeaderEpoch,
        UnknownLeaderEpoch,
        ConnectionFailed,
        RequestTimedOut,
        StorageError,
        DiskFull,
    }
)
"""What another broker may do, or what the metadata at hand is too old for."""


def advice(error: BaseException) -> Advice:
    """Whether to try again, and whether to look at the cluster first."""
    if type(error) in _REFRESH:
        return Advice.REFRESH
    return Advice.AGAIN if isinstance(error, TidelogError) and error.retriable else Advice.FATAL


class Backoff:
    """The waits between attempts at one thing: each bound is twice the one before, up to `max_ms`.

    `deadline_ms` is on the clock that `wait_ms` is told; None: the caller ends it.
    """

    __slots__ = ("_bound_ms", "_first_ms", "_max_ms", "_rng", "attempts", "deadline_ms")

    def __init__(self, rng: Random, first_ms: float, max_ms: float, deadline_ms: float | None = None) -> None:
        assert 0 < first_ms <= max_ms, f"waits from {first_ms} to {max_ms} ms"
        self._rng = rng
        self._first_ms = first_ms
        self._bound_ms = first_ms
        self._max_ms = max_ms
        self.deadline_ms = deadline_ms
        self.attempts = 0
        """How many attempts have failed since the beginning or the last success."""

    def wait_ms(self, now_ms: float) -> float | None:
        """An attempt has failed: how long to wait before the next one; None: the time is up."""
        self.attempts += 1
        if self.deadline_ms is not None and now_ms >= self.deadline_ms:
            return None
        # Full jitter: any part of the bound (design 5.1).
        wait = self._rng.uniform(0, self._bound_ms)
        self._bound_ms = min(self._bound_ms * 2, self._max_ms)
        return wait if self.deadline_ms is None else min(wait, self.deadline_ms - now_ms)

    def left_ms(self, now_ms: float) -> float:
        """How much time is left; infinity without a deadline."""
        return float("inf") if self.deadline_ms is None else max(self.deadline_ms - now_ms, 0.0)

    def succeeded(self) -> None:
        """An attempt has not failed: the next wait is a short one again."""
        self._bound_ms = self._first_ms
        self.attempts = 0


NewBackoff = Callable[[float | None], Backoff]
"""Makes the waits of one task, until a deadline or for ever."""
