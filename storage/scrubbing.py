"""Read again what lies on the disk for months: one segment, piece by piece, every checksum of every batch.

    scrub.wanted ──► the owner reads those bytes, where it holds nobody up ──► scrub.check ──► ... ──► None

A `Scrub` looks at the bytes of one moment: the owner gives it up when the segment was cut or replaced meanwhile, and
believes damage when a second look has found it as well. What it keeps true (docs/STORAGE.md, 10.11; ADR 105):

* All that a reader or an opening may ask of the segment is checked: heads and bodies, that offsets and epochs do not go
  back, and that the batches end where the segment ends. Indexes are caches, and are not looked at.
* A step takes less than two milliseconds: whoever serves others has its turn after each. (A single batch is checked
  at once, at 10 GB/s and more.)
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, NamedTuple, TypeVar

from tidelog.protocol.batch import HEADER_SIZE, check_body, read_header
from tidelog.protocol.errors import CorruptMessage, DamagedLog, UnsupportedFormat
from tidelog.protocol.types import Offset
from tidelog.storage.config import MAX_BATCH_BYTES
from tidelog.storage.readable import Readable
from tidelog.storage.scan import BATCHES_PER_STEP, SLICE
from tidelog.storage.segment import Segment

T = TypeVar("T")

_COST_OF_A_LOOK: Final = 4096
"""In bytes: ten thousand small segments are not to be opened at once."""
_LEAST_COST_OF_A_BATCH: Final = 512
"""In bytes: small ones take more of the processor than of the disk."""


class Wanted(NamedTuple):
    """Bytes that are to be read next."""

    position: int
    length: int


class Scrub:
    """The look at one segment, up to where it ended when the look began."""

    __slots__ = (
        "_base",
        "_epoch",
        "_expected",
        "_missing",
        "cost",
        "next_offset",
        "position",
        "problem",
        "size",
    )

    def __init__(self, segment: Segment) -> None:
        self.size = segment.size
        self.next_offset = segment.next_offset
        self.position = 0
        """All before it is whole."""
        self.problem: CorruptMessage | UnsupportedFormat | None = None
        """What is wrong at `position`."""
        self._base = self._expected = segment.base_offset
        self._epoch = 0
        self.cost = _COST_OF_A_LOOK
        """Of what was looked at so far, in bytes of a disk: the pace is kept by it."""
        self._missing = 0
        """How long the next batch is said to be, where a piece ended within it."""

    @property
    def wanted(self) -> Wanted | None:
        """What to read next; None: it is over."""
        left = self.size - self.position
        if self.problem is not None or not left:
            return None
        return Wanted(self.position, min(left, max(SLICE, self._missing)))

    def damage(self, where: str) -> DamagedLog:
        """What is wrong, as readers of that file are told."""
        return DamagedLog(f"{where} at byte {self.position} of {self.size}: {self.problem}", self._base)

    def check(self, piece: bytes) -> Iterator[None]:
        """Check the whole batches in what was `wanted`; yields now and then."""
        wanted = self.wanted
        assert wanted is not None, "nothing more was wanted"
        data, begins, stepped = memoryview(piece), self.position, 0
        try:
            if len(data) < wanted.length:
                raise CorruptMessage(f"the file ends at byte {begins + len(data)}, at {self.size} before")
            count = 0
            while (at := self.position - begins) < len(data):
                if not self._check_one(data, at):
                    break
                count += 1
                if count % BATCHES_PER_STEP == 0 or self.position - stepped > SLICE:
                    stepped = self.position
                    yield
            if self.position == self.size and self._expected != self.next_offset:
                raise CorruptMessage(
                    f"the last batch ends at offset {self._expected}, not {self.next_offset}"
                )
        except (CorruptMessage, UnsupportedFormat) as problem:  # the opening has refused newer formats
            self.problem = problem

    def _check_one(self, data: memoryview, at: int) -> bool:
        """Whether the batch there was in this piece as a whole; raises where it is not what was written."""
        left = self.size - self.position
        if left < HEADER_SIZE:
            raise CorruptMessage(f"{left} bytes are left, a batch has more")
        if len(data) - at < HEADER_SIZE:
            self._missing = HEADER_SIZE
            return False
        header = read_header(data, at)
        if header.size > min(left, MAX_BATCH_BYTES):
            raise CorruptMessage(f"a batch claims {header.size} bytes, {left} are left")
        if header.size > len(data) - at:
            self._missing = header.size
            return False
        check_body(data, header, at)
        if header.base_offset < self._expected or header.leader_epoch < self._epoch:
            raise CorruptMessage(
                f"offset {header.base_offset} of epoch {header.leader_epoch} follows offset {self._expected} of "
                f"epoch {self._epoch}"
            )
        self._missing, self._expected, self._epoch = 0, header.next_offset, header.leader_epoch
        self.position += header.size
        self.cost += max(header.size, _LEAST_COST_OF_A_BATCH)
        return True


def in_turn(all_of_them: Sequence[T], rng: Random) -> list[T]:
    """Everybody once, from anywhere on: where rounds are interrupted again and again, nobody is always the last."""
    first = rng.randrange(len(all_of_them)) if all_of_them else 0
    return [*all_of_them[first:], *all_of_them[:first]]


def after(log: Readable, offset: Offset) -> Segment | None:
    """The next segment to look at, behind the one with that base: the log may have become another one meanwhile.

    What lies below the log's start nobody reads, and is about to leave.
    """
    return next(
        (each for each in log.segments if each.base_offset > offset and each.next_offset > log.log_start),
        None,
    )
