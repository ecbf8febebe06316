"""The producers' state as of an offset: their newest snapshot, and the batches from there on; never guessed."""

from collections.abc import Iterator

from tidelog.protocol.types import Offset
from tidelog.storage import producer_snapshots
from tidelog.storage.files import Directory
from tidelog.storage.scan import BATCHES_PER_STEP
from tidelog.storage.segment import Segment


class ProducerReplay:
    """Replay them: then `producers` has it."""

    def __init__(self, directory: Directory, segments: list[Segment], log_start: Offset, end: Offset) -> None:
        loaded = producer_snapshots.load_at(directory, end, log_start)
        self.producers = loaded.producers
        self.problems = loaded.problems
        self._from = loaded.offset
        self._end = end
        self._segments = segments

    def steps(self, now_ms: int) -> Iterator[None]:
        """Replay; yields now and then, so that an event loop can breathe."""
        for segment in self._segments:
            if segment.next_offset <= self._from:
                continue
            if segment.base_offset >= self._end:
                return  # not even looked at: it may be about to be cut off for its damage
            start = segment.position_of(self._from)
            for count, (_, header) in enumerate(segment.headers_from(start)):
                if header.base_offset >= self._end:
                    return
                self.producers.apply(header, now_ms)
                if count % BATCHES_PER_STEP == 0:
                    yield
