"""The ways between hosts: how long they take, and which of them are cut.

What it keeps true: a host always reaches itself; a cut has a direction; what a test changes holds for everything
that is sent from then on.
"""

from dataclasses import dataclass
from typing import TypeAlias

from tidelog.testing.simulation.timeline import Timeline

Way: TypeAlias = tuple[str, str]
"""From which host to which, by their names."""


@dataclass(slots=True, kw_only=True)
class Conditions:
    """How the network of a world behaves. May be changed at any time."""

    latency_ms: tuple[float, float] = (0.05, 3.0)
    """Bounds of the time that a segment takes, unless its link is slow; most take little."""

    loopback_ms: tuple[float, float] = (0.01, 0.1)
    """The same within one host."""

    cut_probability: float = 0.1
    """How likely a segment is cut in two, its rest again, and likewise what one read returns."""

    send_buffer_bytes: tuple[int, ...] = (2 << 10, 16 << 10, 256 << 10)
    """What the sender's kernel may hold unacknowledged; each direction of each connection draws one."""

    receive_buffer_bytes: tuple[int, ...] = (4 << 10, 64 << 10, 256 << 10)
    """What the receiver's kernel may hold unread; drawn likewise."""

    give_up_s: tuple[float, float] = (10.0, 40.0)
    """After how long without an acknowledgement a sender fails with ETIMEDOUT."""

    retransmit_ms: tuple[float, float] = (0.0, 400.0)
    """How long after a cut has healed what was stalled arrives."""

    connect_give_up_s: float = 127.0
    """How long a connect without an answer is repeated, as by Linux with its six retries."""


class Links:
    """Which host reaches which, and how fast."""

    __slots__ = ("_slow", "_timeline", "conditions", "cuts")

    def __init__(self, timeline: Timeline, conditions: Conditions) -> None:
        self.conditions = conditions
        self.cuts: dict[Way, None] = {}
        """The ways on which nothing gets through."""
        self._timeline = timeline
        self._slow: dict[Way, tuple[tuple[float, float], float]] = {}

    def cut(self, way: Way) -> None:
        """From now on nothing gets through."""
        assert way[0] != way[1], f"{way[0]} always reaches itself"
        self.cuts[way] = None

    def mend(self, way: Way) -> None:
        """Undo `cut`."""
        self.cuts.pop(way, None)

    def slow(self, way: Way, latency_ms: tuple[float, float], bytes_per_s: float = float("inf")) -> None:
        """Let it take so long, and carry no more than that."""
        self._slow[way] = (latency_ms, bytes_per_s)

    def quicken(self, way: Way) -> None:
        """Undo `slow`."""
        self._slow.pop(way, None)

    def delay(self, way: Way, size: int = 0) -> tuple[float, float]:
        """How long the next segment is under way, and how long it occupies the way for the one behind it."""
        if self._slow and (slow := self._slow.get(way)):
            latency_ms, bytes_per_s = slow
            return self._timeline.skewed(latency_ms) / 1000, size / bytes_per_s
        conditions = self.conditions
        bounds = conditions.loopback_ms if way[0] == way[1] else conditions.latency_ms
        return self._timeline.skewed(bounds) / 1000, 0.0

    def retransmission(self) -> float:
        """How long after a cut has healed the next attempt comes."""
        return self._timeline.rng.uniform(*self.conditions.retransmit_ms) / 1000
