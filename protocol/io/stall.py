"""How long the event loop was kept from its work: the figure behind every latency that is hard to explain.

A timer that should run every `every_ms` sees by how much it is late: a longer stall is seen but for at most
that much of it, a shorter one only if it lies on a tick, so that the longest of many comes close. Waking an
idle process cost 0.1 ms where it was measured: 0.55 % of a core at 20 ms, 0.04 % at the default. Benches,
which are not idle, measure finer.
"""

import asyncio


class StallMeter:
    """Measures the loop that it was started on."""

    def __init__(self, every_ms: float = 250) -> None:
        self._every = every_ms / 1000
        self._due = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.longest_ms = 0.0
        """The longest stall since the start or the last `reset`."""

    def start(self) -> None:
        """Begin to measure the running loop."""
        if self._timer is None:
            self._loop = asyncio.get_running_loop()
            self._wait(self._loop)

    def stop(self) -> None:
        """Measure no more; what was measured stays readable."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reset(self) -> float:
        """The longest stall so far, and begin anew."""
        longest, self.longest_ms = self.longest_ms, 0.0
        return longest

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + self._every
        self._timer = loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        assert self._loop is not None
        self.longest_ms = max(self.longest_ms, (self._loop.time() - self._due) * 1000)
        self._wait(self._loop)
