"""So many bytes a second for replicas that are being added, so that moving data leaves room for work.

    room(now) ──► how many bytes may go now ──► spent(bytes)

What it keeps true (design 3.7, 4.11): over any stretch of time no more leaves than the rate allows, plus a second's
worth and one batch: a batch is given whole, and what it is too large is owed. Members of an ISR are never throttled:
that is for whoever uses it to see to.
"""

from typing import Final

UNLIMITED: Final = 1 << 31


class Throttle:
    """A bucket that fills with `rate_bytes_s` and holds a second's worth; full at first. None: all may go."""

    __slots__ = ("_at_ms", "_level", "rate_bytes_s")

    def __init__(self, rate_bytes_s: int | None = None) -> None:
        self.rate_bytes_s: int | None = None
        self._level = 0.0
        self._at_ms: int | None = None
        self.limit(rate_bytes_s)

    def limit(self, rate_bytes_s: int | None) -> None:
        """So much from now on. What is owed stays owed; where nothing was limited, the bucket is full."""
        assert rate_bytes_s is None or rate_bytes_s > 0, rate_bytes_s
        if rate_bytes_s is not None:
            self._level = rate_bytes_s if self.rate_bytes_s is None else min(self._level, rate_bytes_s)
        self.rate_bytes_s = rate_bytes_s

    def room(self, now_ms: int) -> int:
        """How many bytes may go at this moment; 0 while something is owed."""
        if self.rate_bytes_s is None:
            return UNLIMITED
        if self._at_ms is not None and now_ms > self._at_ms:
            self._level = min(
                self._level + self.rate_bytes_s * (now_ms - self._at_ms) / 1000, self.rate_bytes_s
            )
        self._at_ms = now_ms if self._at_ms is None else max(now_ms, self._at_ms)
        return max(int(self._level), 0)

    def spent(self, count: int) -> None:
        """So many bytes have gone."""
        if self.rate_bytes_s is not None:
            self._level -= count
