"""So many bytes a second for replicas that are being added, so that moving data leaves room for work.

    room(now) ──► how many bytes may go now ──► spent(bytes)

What it keeps true (design 3.7, 4.11): over any stretch of time no more leaves than the rate allows, plus a second's
worth and one batch: a batch is given whole, and what it is too large is owed. Members of an ISR are never throttled:
that is for whoever uses it to see to.
"""


class Throttle:
    """A bucket that fills with `rate_bytes_s` and holds a second's worth; full at first."""

    __slots__ = ("_at_ms", "_level", "rate_bytes_s")

    def __init__(self, rate_bytes_s: int) -> None:
        assert rate_bytes_s > 0, rate_bytes_s
        self.rate_bytes_s = rate_bytes_s
        self._level = float(rate_bytes_s)
        self._at_ms: int | None = None

    def room(self, now_ms: int) -> int:
        """How many bytes may go at this moment; 0 while something is owed."""
        if self._at_ms is not None and now_ms > self._at_ms:
            self._level = min(
                self._level + self.rate_bytes_s * (now_ms - self._at_ms) / 1000, self.rate_bytes_s
            )
        self._at_ms = now_ms if self._at_ms is None else max(now_ms, self._at_ms)
        return max(int(self._level), 0)

    def spent(self, count: int) -> None:
        """So many bytes have gone."""
        self._level -= count
