"""A controller's copy of the metadata log, and the two images that it adds up to (design 4.2).

    append ──► working: with what is not committed yet; decisions are made on it, and votes are counted by it
    commit ──► committed: what snapshots are of
    cut ─────► working begins again from what is committed, and replays what is left

What it keeps true (I-43, I-50):

* `working` is at the end of the log, and `committed` at what is known to be committed, whenever anybody looks. Both
  are folds of the same batches.
* Nobody waits for a fold: of what a commit brings a few steps are added up at once, the rest in the steps of `fold`,
  and what a leader had in those of `grow`, while others are served, or when somebody looks.
* What is decided is tried before it is written; a large batch by `appending`, in steps, on another image, so that
  others may decide meanwhile on what is in the log.
* An answer leaves when all that it may rest upon is committed, refusals included (KAFKA-14457): whoever is told
  that a topic exists finds it after any failover. If the leadership ends first, it is told that instead.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import Final

from tidelog.controller.archive import Archive
from tidelog.controller.facts import Fact, Voter, encode_facts
from tidelog.controller.image import Image
from tidelog.controller.quorum import LogEnd
from tidelog.protocol.batch import stamp, walk
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.types import BrokerId, Epoch, Offset

READ_BYTES: Final = 1 << 20
STEPS_AT_ONCE: Final = 3
"""Steps of `FACTS_PER_STEP` facts: what one more commit may hold up a loop, or a step of `appending`."""


class MetadataLog:
    """The log on this node's disk, and what it says."""

    def __init__(self, archive: Archive, committed: Image, high_watermark: Offset) -> None:
        """`committed` is an image of a snapshot, or an empty one; the log goes on from there."""
        log = archive.log
        assert log.log_start <= committed.end_offset, (log, committed)
        self.archive = archive
        self.log = log
        self.committed_end = min(max(high_watermark, committed.end_offset), log.end_offset)
        """How much is known to be committed."""
        self._committed = committed
        self._folding = self._fold()
        self._working = committed
        self._growing = self._grow()
        self._answers: deque[tuple[Offset, Callable[[bool], None]]] = deque()
        self.cut()

    def __repr__(self) -> str:
        return f"<{self.log} committed {self.committed_end}>"

    @property
    def committed(self) -> Image:
        """As far as it is known to be committed: what `fold` has left is added up now."""
        for _ in self.fold():
            pass
        return self._committed

    @property
    def working(self) -> Image:
        """As far as the log goes: what `grow` has left is added up now."""
        for _ in self.grow():
            pass
        return self._working

    @property
    def end(self) -> LogEnd:
        """What votes compare."""
        return LogEnd(self.archive.epochs.latest, self.log.end_offset)

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The voters with their disks, committed or not; none: no leader has named them yet."""
        return self.working.voters

    def append(self, facts: Sequence[Fact], epoch: Epoch, now_ms: int) -> Offset:
        """All of this holds for what is decided from now on. Where the first of them stands.

        It is tried on the image before it is written: what cannot be would stop every node, after every restart.
        """
        base = self.log.end_offset
        if facts:
            self.log.probe()  # there may be room again
            batch = encode_facts(facts, now_ms)
            stamp(batch, base, epoch)
            try:
                self.working.replay(batch)
                self.log.append(batch, epoch, now_ms)
            except TidelogError:
                self.cut()
                raise
        return base

    def appending(
        self, facts: Sequence[Fact], epoch: Epoch, now_ms: int
    ) -> Generator[None, None, Callable[[], None]]:
        """As `append`, tried in steps: its value writes it, unless anything else was appended since they began."""
        base, tried = self.log.end_offset, self.working.copy()
        self.log.probe()
        batch = encode_facts(facts, now_ms)
        stamp(batch, base, epoch)
        yield
        steps = tried.replaying(batch)
        while list(islice(steps, STEPS_AT_ONCE)):
            yield

        def write() -> None:
            assert self.log.end_offset == base, (self, base)
            self.log.append(batch, epoch, now_ms)
            self._works_on(tried)

        return write

    def grow(self) -> Iterator[None]:
        """Add up what a leader had and was appended, step by step; given up or begun anew, it goes on where it was."""
        while self.log.log_start <= self._working.end_offset < self.log.end_offset:
            next(self._growing)
            yield

    def cut(self) -> None:
        """The log ends where it ended before, or earlier: what is above what is committed is added up anew."""
        self._works_on(self.committed.copy())

    def _works_on(self, image: Image) -> None:
        self._working = image
        self._growing = self._grow()

    def installed(self, committed: Image) -> None:
        """A snapshot has taken the place of all that was here, or of the beginning of it."""
        self._committed, self.committed_end = committed, committed.end_offset
        self._folding = self._fold()
        self.cut()

    def commit(self, high_watermark: Offset) -> bool:
        """So much is committed: whoever waited for it is answered. Whether it is time for `fold`."""
        folds = self._committed.end_offset < self.committed_end
        assert high_watermark <= self.log.end_offset, (self, high_watermark)
        self.committed_end = max(self.committed_end, high_watermark)
        for _ in islice(self.fold(), STEPS_AT_ONCE):
            pass
        while self._answers and self._answers[0][0] <= high_watermark:
            self._answers.popleft()[1](True)
        return not folds and self._committed.end_offset < self.committed_end

    def fold(self) -> Iterator[None]:
        """Add up what is committed, step by step; given up or begun anew at any step, it goes on where it was.

        There is nothing to add where the log begins later already: a snapshot is about to be `installed`.
        """
        while self.log.log_start <= self._committed.end_offset < self.committed_end:
            next(self._folding)
            yield

    def when_committed(self, answer: Callable[[bool], None]) -> None:
        """Call with True when all that the log holds now is committed; with False if its leadership ends before."""
        if self.committed_end >= self.log.end_offset:
            answer(True)
        else:
            self._answers.append((self.log.end_offset, answer))

    def give_up(self) -> None:
        """The leadership is over: nobody here will know what becomes of what is not committed."""
        answers, self._answers = self._answers, deque()
        for _, answer in answers:
            answer(False)

    def directories(self) -> dict[BrokerId, bytes] | None:
        """The disks that vote; None: every voter's may, for no leader has named any."""
        return {voter.id: voter.directory_id for voter in self.voters} or None

    def _fold(self) -> Iterator[None]:
        """For ever; one for all of `fold`, so that nobody begins a batch that another one has begun."""
        image = self._committed
        while True:
            for batch in self._batches(image.end_offset, self.committed_end):
                yield from image.replaying(batch)
            yield

    def _grow(self) -> Iterator[None]:
        """As `_fold`, of the other image, which somebody else may append to."""
        image = self._working
        while True:
            for batch in self._batches(image.end_offset, self.log.end_offset):
                yield from image.replaying(batch)
            yield

    def _batches(self, offset: Offset, upto: Offset) -> Iterator[memoryview]:
        while offset < upto:
            data = self.log.read(offset, READ_BYTES, upto).data
            for at, header in walk(data):
                yield data[at : at + header.size]
                offset = header.next_offset
