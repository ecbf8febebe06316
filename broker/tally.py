"""What a broker counts while it works, where nothing else would remember it: whole numbers, never looked at."""

from collections import defaultdict

from tidelog.controller.image import PartitionState
from tidelog.protocol.messages import Request
from tidelog.protocol.types import BrokerId


class Tally:
    """The counts of one process."""

    def __init__(self, me: BrokerId) -> None:
        self._me = me
        self.requests: defaultdict[type[Request], int] = defaultdict(int)
        """Requests that were served, by what they asked for."""
        self.refused: defaultdict[type[Request], int] = defaultdict(int)
        """Those that were refused as a whole."""
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.leaderships_begun = 0
        self.leaderships_ended = 0

    def changed(self, before: PartitionState | None, after: PartitionState) -> None:
        """A partition with a replica here has another state."""
        led, leads = before is not None and before.leader == self._me, after.leader == self._me
        if leads and not led:
            self.leaderships_begun += 1
        elif led and not leads:
            self.leaderships_ended += 1
        if leads and before is not None:
            self.isr_shrinks += not {*before.isr} <= {*after.isr}
            self.isr_expands += not {*after.isr} <= {*before.isr}
