"""How often which duration was seen, in a few kilobytes for any number of them. Pure.

A duration is counted in the bucket of its ten leading binary digits (the idea of HdrHistogram), so that what a percentile
says is off by less than 0.2 %. Mean, shortest and longest are exact.
"""

from math import ceil
from typing import Final

_DIGITS: Final = 10
"""Durations of fewer nanoseconds than 2 to this power are counted exactly."""


class Histogram:
    """Durations in milliseconds, by their number."""

    def __init__(self) -> None:
        self.count = 0
        self.shortest_ms = self.longest_ms = 0.0
        self._sum_ms = 0.0
        self._buckets: dict[int, int] = {}
        """By the largest number of nanoseconds that is counted there."""

    def add(self, ms: float) -> None:
        """One more."""
        assert ms >= 0, ms
        self.shortest_ms = min(self.shortest_ms, ms) if self.count else ms
        self.longest_ms = max(self.longest_ms, ms)
        self.count += 1
        self._sum_ms += ms
        top = _top_of(round(ms * 1e6))
        self._buckets[top] = self._buckets.get(top, 0) + 1

    @property
    def mean_ms(self) -> float:
        """Their mean; 0 when there are none."""
        return self._sum_ms / self.count if self.count else 0.0

    def percentile_ms(self, share: float) -> float:
        """The smallest that so many are not above; 0 when there are none."""
        left = max(ceil(share * self.count), 1)
        for top in sorted(self._buckets):
            left -= self._buckets[top]
            if left <= 0:
                return min(max(top / 1e6, self.shortest_ms), self.longest_ms)
        return 0.0


def _top_of(ns: int) -> int:
    """The largest number with the same leading digits."""
    shift = max(ns.bit_length() - _DIGITS, 0)
    return ns | ((1 << shift) - 1)
