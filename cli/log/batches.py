"""The batches of one segment file, past whatever is damaged, and what is wrong with them.

`storage.scan` stops at the first fault, because a log ends there. Here the rest is of interest too: behind a batch
whose head is whole the next one begins where the head says; behind anything else it is searched for. What this
keeps true: memory is bounded by the largest batch, whatever the size of the file; bytes are never called a batch
unless head and body match their checksums, or at least the head does (`Batch.problem` says that the body does not).
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tidelog.cli.log.items import RESTORE, Batch, Fault, Hole, Item, Note, Severity, Summary
from tidelog.protocol.batch import HEADER_SIZE, MAGIC, BatchHeader, check_body, read_header
from tidelog.protocol.checksums import crc32c
from tidelog.protocol.errors import CorruptMessage, UnsupportedFormat
from tidelog.protocol.records import decode
from tidelog.protocol.types import NO_EPOCH, Offset
from tidelog.storage.config import MAX_BATCH_BYTES
from tidelog.storage.files import File
from tidelog.storage.scan import SLICE, Scan
from tidelog.storage.segment import MAX_RELATIVE_OFFSET

_KAFKA_MAGIC: Final = 2
_MAGIC_AT: Final = 16


class Extent(NamedTuple):
    """Which bytes of which file, and where they belong."""

    path: str
    file: File
    size: int
    base_offset: Offset | None
    """Of the first batch; None where bytes were set aside and may begin anywhere."""


def walk(extent: Extent, *, records: bool) -> Iterator[Batch | Hole]:
    """Every batch and every stretch that is none, in the order of the file; decoded when `records`."""
    position, expected = 0, extent.base_offset or 0
    while position < extent.size:
        scan = Scan(extent.file, position, extent.size, bodies=True)
        try:
            for at, header, whole in scan:
                yield _decoded(at, header, whole) if records else Batch(at, header, None)
                expected = header.next_offset
        except UnsupportedFormat as error:
            raise UnsupportedFormat(f"{extent.path} at byte {scan.position}: {error}") from None
        if scan.problem is None:
            return
        found = _behind(extent, scan.position, expected, str(scan.problem))
        yield found
        position = found.position + (found.header.size if isinstance(found, Batch) else found.size)


def _decoded(position: int, header: BatchHeader, whole: memoryview) -> Batch:
    try:
        columns = decode(whole)
        _ = columns.headers  # verified when they are first asked for
    except CorruptMessage as error:
        return Batch(position, header, None, None, str(error))
    return Batch(position, header, None, columns)


def _behind(extent: Extent, position: int, expected: Offset, problem: str) -> Batch | Hole:
    """What stands at that byte, where no whole batch does."""
    try:
        header = read_header(extent.file.read_at(position, HEADER_SIZE))
    except CorruptMessage:
        end = _next_batch(extent, position + 1, expected)
        return Hole(position, end - position, _explained(extent, position), end == extent.size)
    if position + header.size > extent.size or header.size > MAX_BATCH_BYTES:
        return Hole(position, extent.size - position, problem, at_end=True)
    return Batch(position, header, problem)


def _next_batch(extent: Extent, start: int, expected: Offset) -> int:
    """The byte where the next whole batch begins at or behind `start`; the size when there is none.

    A segment spans less than 2^31 offsets, so the upper half of the next batch's offset is one of two.
    """
    halves = {(upper % 2**32).to_bytes(4, "big") for upper in (expected >> 32, (expected >> 32) + 1)}
    offset = b".{8}" if extent.base_offset is None else b"(?:%b).{4}" % b"|".join(map(re.escape, halves))
    # Our magic, and in front of it an offset, a length below 2^27 and an epoch that is not negative: zeros, of which a
    # crash leaves many, have no magic to look behind.
    magic = re.escape(bytes([MAGIC]))
    head = re.compile(rb"%b(?<=%b[\x00-\x07].{3}[\x00-\x7f].{3}%b)" % (magic, offset, magic), re.DOTALL)
    overlap = HEADER_SIZE - 1
    for at in range(start, extent.size, SLICE):
        piece = extent.file.read_at(at, SLICE + overlap)
        for match in head.finditer(piece):
            begin = match.start() - _MAGIC_AT
            if begin < SLICE and _is_batch(extent, at + begin, expected):
                return at + begin
    return extent.size


def _is_batch(extent: Extent, position: int, expected: Offset) -> bool:
    try:
        header = read_header(extent.file.read_at(position, HEADER_SIZE))
        if header.base_offset < expected or position + header.size > extent.size:
            return False
        check_body(extent.file.read_at(position, header.size), header)
    except (CorruptMessage, UnsupportedFormat):
        return False
    return True


def _explained(extent: Extent, position: int) -> str:
    """What may be said of bytes that do not begin with a batch's head."""
    piece = extent.file.read_at(position, min(SLICE, extent.size - position))
    if len(piece) >= 61 and piece[_MAGIC_AT] == _KAFKA_MAGIC:
        end = 12 + int.from_bytes(piece[8:12], "big")
        if 61 <= end <= len(piece) and crc32c(piece[21:end]) == int.from_bytes(piece[17:21], "big"):
            return "this is a batch of Kafka's own format (magic 2), which tidelog does not read"
    if not piece.strip(b"\0"):
        return "nothing but zeros, as a crash leaves them"
    if len(piece) < HEADER_SIZE:
        return f"{len(piece)} bytes are too few for a batch's head"
    return "the head of a batch does not match its checksum"


# ── checking ──────────────────────────────────────────────────────────────────────────────────────────


class Surroundings(NamedTuple):
    """What is known beside the file, to tell a torn tail from damage."""

    next_segment: str | None = None
    """A file of the same log that begins behind this one."""
    recovery_point: Offset | None = None
    """Everything below was reported as flushed; None: nobody says."""


class Verification:
    """Checks one batch after the other: `check` gives what is to be shown and the faults between, `end` the last.

    Whether bytes that are no batch are a torn tail or damage is known only when a whole batch follows, or none.
    """

    def __init__(self, extent: Extent, around: Surroundings) -> None:
        self._extent = extent
        self._around = around
        self._expected = extent.base_offset
        self._first = extent.base_offset or 0
        self._epoch = NO_EPOCH
        self._bad: tuple[int, int, str] | None = None
        self._begun = extent.base_offset is not None
        self.batches = self.records = 0
        self.next_offset = self._first

    def check(self, item: Batch | Hole) -> Iterator[Fault]:
        """The faults that this batch or hole brings to light."""
        if isinstance(item, Hole) or item.problem is not None:
            self._note_bad(item)
            return
        header = item.header
        yield from self._what_was_bad(header.base_offset)
        yield from self._order(item.position, header)
        if item.undecodable is not None:
            yield self._damage(item.position, item.undecodable)
        elif item.columns is not None:
            newest = max(item.columns.timestamps, default=header.max_timestamp)
            if newest > header.max_timestamp:
                what = (
                    f"its header says that no record is later than {header.max_timestamp}, one is of {newest}"
                )
                yield self._damage(item.position, f"the batch at offset {header.base_offset}: {what}")
        if not self.batches and not self._begun:
            self._first = header.base_offset
        self.batches += 1
        self.records += header.record_count
        self._expected = self.next_offset = header.next_offset
        self._epoch = header.leader_epoch

    def end(self) -> Iterator[Fault | Note | Summary]:
        """No batch follows."""
        if self._bad is not None and self._extent.file.size() != self._extent.size:
            yield Note(f"the file is being written: what stands behind byte {self._bad[0]} was left out")
        elif self._bad is not None:
            yield self._tail(*self._bad)
        counts = {"batches": self.batches, "records": self.records, "first_offset": self._first}
        yield Summary({**counts, "end_offset": self.next_offset, "size": self._extent.size})

    def _note_bad(self, item: Batch | Hole) -> None:
        size = item.size if isinstance(item, Hole) else item.header.size
        if self._bad is None:
            self._bad = item.position, item.position + size, item.problem or ""
        else:
            self._bad = self._bad[0], item.position + size, self._bad[2]

    def _what_was_bad(self, base_offset: Offset) -> Iterator[Fault]:
        """A whole batch follows what was no batch: so that was damage, and how far it went is known."""
        if self._bad is None:
            return
        start, end, problem = self._bad
        self._bad = None
        if self._begun or self.batches:
            lost = (
                f", with offsets {self.next_offset} to {base_offset - 1}"
                if base_offset > self.next_offset
                else ""
            )
            yield self._damage(start, f"{problem}: {end - start} bytes are no whole batch{lost}")
        self._expected = None  # said already

    def _order(self, position: int, header: BatchHeader) -> Iterator[Fault]:
        expected, base = self._expected, header.base_offset
        if expected is not None and base > expected:
            yield self._damage(
                position, f"offset {base} follows where {expected} belongs: batches are missing"
            )
        elif expected is not None and base < expected:
            yield self._damage(position, f"offset {base} follows where {expected} belongs: offsets go back")
        if header.leader_epoch < self._epoch:
            what = f"epoch {header.leader_epoch} at offset {base} follows epoch {self._epoch}: epochs go back"
            yield self._damage(position, what)
        if self._begun and header.last_offset - (self._extent.base_offset or 0) > MAX_RELATIVE_OFFSET:
            yield self._damage(position, f"offset {header.last_offset} is too far from the segment's base")

    def _tail(self, start: int, end: int, problem: str) -> Fault:
        what = f"{problem}: {end - start} bytes at the end are no whole batch"
        durable = self._around.recovery_point
        if durable is not None and durable > self.next_offset:
            return self._damage(
                start, f"{what}, and everything below offset {durable} was reported as flushed"
            )
        if self._around.next_segment is not None:
            return self._damage(start, f"{what}, and {self._around.next_segment} goes on behind them")
        if not self._begun:
            return self._damage(start, what)
        way_out = f"normal after a crash: the next start cuts the log at offset {self.next_offset}"
        return Fault(Severity.TORN, self._extent.path, start, what, way_out)

    def _damage(self, position: int, what: str) -> Fault:
        return Fault(Severity.DAMAGE, self._extent.path, position, what, RESTORE)


def listed(
    extent: Extent, around: Surroundings, *, show: bool, records: bool, verify: bool
) -> Iterator[Item]:
    """The batches of a file for `dump`: shown, checked, or both."""
    verification = Verification(extent, around)
    for item in walk(extent, records=records or verify):
        faults = list(verification.check(item))
        if verify:
            yield from faults
        if show:
            yield item if records or isinstance(item, Hole) else item._replace(columns=None)
    for last in verification.end():
        if verify or not isinstance(last, Fault):
            yield last
