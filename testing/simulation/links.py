"""The ways between hosts: how long they take, and which of them are cut.

What it keeps true: a host always reaches itself; a cut has a direction; what a test changes holds for everything
that is sent from then on.
"""

from dataclasses import dataclass

from tidelog.testing.simulation.timeline import Timeline


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

    __slots__ = ("_cuts", "_slow", "_timeline", "conditions")

    def __init__(self, timeline: Timeline, conditions: Conditions) -> None:
        self.conditions = conditions
        self._timeline = timeline
        self._cuts: dict[tuple[str, str], None] = {}
        self._slow: dict[tuple[str, str], tuple[tuple[float, float], float]] = {}

    def cut(self, source: str, target: str) -> None:
        """From now on nothing gets from the one to the other."""
        self._cuts[source, target] = None

    def mend(self, source: str, target: str) -> None:
        """Undo `cut`."""
        self._cuts.pop((source, target), None)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets from the one to the other."""
        return bool(self._cuts) and source != target and (source, target) in self._cuts

    def cuts(self) -> list[tuple[str, str]]:
        """All that is cut, in the order of cutting."""
        return list(self._cuts)

    def slow(
        self, source: str, target: str, latency_ms: tuple[float, float], bytes_per_s: float = float("inf")
    ) -> None:
        """Let that direction take so long, and carry no more than that."""
        self._slow[source, target] = (latency_ms, bytes_per_s)

    def quicken(self, source: str, target: str) -> None:
        """Undo `slow`."""
        self._slow.pop((source, target), None)

    def delay(self, source: str, target: str, size: int = 0) -> tuple[float, float]:
        """How long the next segment is under way, and how long it occupies the way for the one behind it."""
        if self._slow and (slow := self._slow.get((source, target))):
            latency_ms, bytes_per_s = slow
            return self._timeline.skewed(latency_ms) / 1000, size / bytes_per_s
        bounds = self.conditions.loopback_ms if source == target else self.conditions.latency_ms
        return self._timeline.skewed(bounds) / 1000, 0.0

    def retransmission(self) -> float:
        """How long after a cut has healed the next attempt comes."""
        return self._timeline.rng.uniform(*self.conditions.retransmit_ms) / 1000
