"""How far somebody who follows the metadata log is, as its leader knows (KIP-595, KIP-836).

    fetch ──► where it begins: so much it has       where the log ended then: so much it is about to get

What it keeps true: who keeps up is said to, however much is written meanwhile. A log that grows all the time is at its
end in nobody else's copy at any moment; but who has fetched from where it ended at the fetch before had everything at
that time.
"""

from dataclasses import dataclass
from math import inf

from tidelog.protocol.types import NO_OFFSET, Offset


@dataclass(slots=True)
class Progress:
    """Of one of them. Time is in milliseconds of a monotonic clock."""

    heard_ms: float
    """When it fetched last; before it has, when the epoch began."""
    followed_ms: float = -inf
    """When it followed for sure. A fetch may have lain unread while others were elected; whoever sends the next one has
    been answered, or was told who leads, so it followed still when the one before came."""
    end_offset: Offset = NO_OFFSET
    """What it has, a voter on stable storage; -1: it has not fetched in this epoch."""
    complete_ms: float = -inf
    """When it had everything; before it has, when it was first heard or the epoch began."""
    log_end: Offset = 1 << 62
    """Where the log ended when it fetched last."""

    def __post_init__(self) -> None:
        """What it has before it was ever heard is not known: it is behind at least since then."""
        self.complete_ms = max(self.complete_ms, self.heard_ms)

    def fetched(self, fetch_offset: Offset, log_end: Offset, now_ms: float) -> None:
        """It has everything below `fetch_offset`; the log ends at `log_end`."""
        if fetch_offset >= log_end:
            self.complete_ms = now_ms
        elif fetch_offset >= self.log_end:
            self.complete_ms = max(self.complete_ms, self.heard_ms)
        self.followed_ms, self.heard_ms = self.heard_ms, now_ms
        self.end_offset, self.log_end = fetch_offset, log_end

    def silent_ms(self, now_ms: float) -> int:
        """For how long nothing was heard of it."""
        return max(int(now_ms - self.heard_ms), 0)

    def behind_ms(self, log_end: Offset, now_ms: float) -> int:
        """How long ago it had everything; 0 while nothing was written since."""
        return 0 if self.end_offset >= log_end else max(int(now_ms - self.complete_ms), 0)
