"""Give up answers when their time has come: one timer for all of them, set for the earliest.

Most are answered long before, and then the timer finds nothing and is set for the next one: rarely, and never by
polling (2.11, I-80).
"""

import asyncio

from tidelog.replication.delayed import Delayed


class Deadlines:
    """The deadlines of one node's waiting answers, on the time of the event loop."""

    def __init__(self, delayed: Delayed) -> None:
        self._delayed = delayed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def wake_at(self, deadline_ms: int) -> None:
        """Somebody waits until then."""
        if self._timer is not None:
            if self._at_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._at_ms = deadline_ms
        # Half a millisecond later the time in whole milliseconds has surely come.
        self._timer = self._loop.call_at((deadline_ms + 0.5) / 1000, self._expire)

    def stop(self) -> None:
        """Nobody is waited for any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        # That time has come, also where a float says that it is a moment before: else the loop would spin up to it.
        now_ms = max(int(self._loop.time() * 1000), self._at_ms)
        try:
            self._delayed.expire(now_ms)
        finally:
            deadline_ms = self._delayed.deadline_ms
            if deadline_ms is not None:
                self.wake_at(deadline_ms)
