"""What producers and consumers of a run were told, and whether that can be true of one log (docs/CHAOS.md).

Every record says which stream it belongs to and which number it has there; a stream is one producer's records for
one partition, in the order in which they were sent. So millions of records need no more than a few bytes each, and
a record alone shows whether it is whole, in its place, and there for the first time.

    acknowledged   told that it is committed, and where
    unknown        sent, and never told: it may be there, once
    refused        told that it was not written: it must not be there (no run can tell of any yet: with every error that
                   a producer gives up with, some of what it was given may be written)
    unsafe         sent with acks=1, and so without numbers: it may be lost, unless somebody has read it, or be there
                   several times

What a `Ledger` protects, each a kind of `Verdict`: nothing acknowledged is lost (I-1), nothing is there twice (I-69),
order is kept within a stream (I-73), what was read stays as it was read, above all what was read too early (I-70).
"""

import struct
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

_RECORD: Final = struct.Struct(">4sHIQI")
_MAGIC: Final = b"tide"
_NUMBER_BITS: Final = 40

UNKNOWN: Final = -1
REFUSED: Final = -2
SOMEWHERE: Final = -3
"""Acknowledged, and nobody could say where: it must be there."""

LOST: Final = "lost"
TWICE: Final = "twice"
ORDER: Final = "out of order"
UNREAD: Final = "read, and gone"
CHANGED: Final = "read differently"
REFUSED_YET_THERE: Final = "refused, and there"
MISPLACED: Final = "not where it was acknowledged"
FOREIGN: Final = "not ours"

NAMED: Final = 20
"""Of each kind so many are named; the rest are counted."""


@dataclass(slots=True)
class Stream:
    """One producer's records for one partition."""

    number: int
    partition: int
    unsafe: bool
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    """Of each record: where it was acknowledged, or UNKNOWN, or REFUSED."""

    def next_value(self, size: int) -> bytes:
        """The next record, of so many bytes; it counts as sent from now on."""
        number = len(self.offsets)
        self.offsets.append(UNKNOWN)
        head = _RECORD.pack(
            _MAGIC, self.number, self.partition, number, crc32(b"%d:%d" % (self.number, number))
        )
        return head.ljust(size, b".")

    def acknowledged(self, first: int, base_offset: int, count: int) -> None:
        """Records `first` and following stand at `base_offset` and following; -1: nobody says where."""
        places = range(base_offset, base_offset + count) if base_offset >= 0 else [SOMEWHERE] * count
        self.offsets[first : first + count] = array("q", places)

    def refused(self, first: int, count: int) -> None:
        """They were not written, and never will be."""
        self.offsets[first : first + count] = array("q", [REFUSED]) * count


@dataclass(slots=True)
class Verdict:
    """What is wrong, by kind: how often, and some of it in words."""

    counts: "Counter[str]" = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)

    def condemn(self, kind: str, sentence: str) -> None:
        """One more."""
        self.counts[kind] += 1
        if self.counts[kind] <= NAMED:
            self.named.append(f"{kind}: {sentence}")

    @property
    def is_innocent(self) -> bool:
        """Nothing is wrong."""
        return not self.counts

    def __str__(self) -> str:
        if self.is_innocent:
            return "nothing lost, nothing twice, nothing out of order, nothing read that is not there"
        counts = ", ".join(f"{count} {kind}" for kind, count in self.counts.most_common())
        return "\n".join([counts, *self.named])


class Reads:
    """What one consumer was given of one partition."""

    def __init__(self, name: str, partition: int, verdict: Verdict) -> None:
        self.name = name
        self.partition = partition
        self.offsets = array("q")
        self.keys = array("q")
        self._verdict = verdict

    def saw(self, offset: int, value: bytes) -> None:
        """The next record; its offset is larger than that of the one before."""
        if self.offsets and offset <= self.offsets[-1]:
            self._verdict.condemn(
                TWICE, f"{self.name} was given offset {offset} of {self.partition} after {self.offsets[-1]}"
            )
            return
        key = _key_of(value, self.partition)
        if key is None:
            self._verdict.condemn(
                FOREIGN, f"{self.name} was given {value[:40]!r} at {self.partition}:{offset}"
            )
            return
        self.offsets.append(offset)
        self.keys.append(key)


class Ledger:
    """One run's."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.reads: list[Reads] = []
        self.verdict = Verdict()

    def stream(self, partition: int, *, unsafe: bool = False) -> Stream:
        """One more producer for a partition."""
        self.streams.append(Stream(len(self.streams), partition, unsafe))
        return self.streams[-1]

    def reader(self, name: str, partition: int) -> Reads:
        """One more consumer of a partition."""
        self.reads.append(Reads(name, partition, self.verdict))
        return self.reads[-1]

    @property
    def acknowledged(self) -> int:
        """Records that must be there."""
        return sum(_acknowledged(stream) for stream in self.streams if not stream.unsafe)

    @property
    def unknown(self) -> int:
        """Records that nobody knows of whether they are."""
        return sum(stream.offsets.count(UNKNOWN) for stream in self.streams)

    @property
    def seen(self) -> int:
        """Records that consumers were given."""
        return sum(len(reads.offsets) for reads in self.reads)

    def judge(self, partition: int, final: Iterable[tuple[int, bytes]]) -> int:
        """Compare everything with what is there at the end, offset by offset. How many records that are."""
        there = array("q")
        offsets = array("q")
        for offset, value in final:
            key = _key_of(value, partition)
            if key is None or key >> _NUMBER_BITS >= len(self.streams):
                self.verdict.condemn(FOREIGN, f"{value[:40]!r} stands at {partition}:{offset}")
                continue
            offsets.append(offset)
            there.append(key)
        self._judge_streams(partition, offsets, there)
        self._judge_reads(partition, dict(zip(offsets, there, strict=True)))
        return len(offsets)

    def _judge_streams(self, partition: int, offsets: "array[int]", there: "array[int]") -> None:
        streams = {stream.number: stream for stream in self.streams if stream.partition == partition}
        found = {number: array("q", [UNKNOWN]) * len(stream.offsets) for number, stream in streams.items()}
        last = dict.fromkeys(streams, -1)
        for offset, key in zip(offsets, there, strict=True):
            number, record = key >> _NUMBER_BITS, key & ((1 << _NUMBER_BITS) - 1)
            places = found.get(number)
            if places is None or record >= len(places):
                self.verdict.condemn(FOREIGN, f"record {record} of stream {number} at {partition}:{offset}")
            elif streams[number].unsafe:
                places[record] = offset
            elif places[record] != UNKNOWN:
                self.verdict.condemn(
                    TWICE, f"record {record} of stream {number} at {partition}:{places[record]} and {offset}"
                )
            else:
                if record < last[number]:
                    self.verdict.condemn(
                        ORDER,
                        f"record {record} of stream {number} at {partition}:{offset}, after {last[number]}",
                    )
                last[number] = record
                places[record] = offset
        for number, stream in streams.items():
            self._judge_stream(stream, found[number])

    def _judge_stream(self, stream: Stream, found: "array[int]") -> None:
        for record, (told, place) in enumerate(zip(stream.offsets, found, strict=True)):
            if told in (place, UNKNOWN):
                continue
            what = f"record {record} of stream {stream.number}, partition {stream.partition}"
            if told == REFUSED:
                if place != UNKNOWN:
                    self.verdict.condemn(REFUSED_YET_THERE, f"{what}, at {place}")
            elif place != UNKNOWN and (stream.unsafe or told == SOMEWHERE):
                continue
            elif place != UNKNOWN:
                self.verdict.condemn(MISPLACED, f"{what}: told {told}, is at {place}")
            elif not stream.unsafe:
                where = "" if told == SOMEWHERE else f" at {told}"
                self.verdict.condemn(LOST, f"{what}, acknowledged{where}")

    def _judge_reads(self, partition: int, final: dict[int, int]) -> None:
        for reads in self.reads:
            if reads.partition != partition:
                continue
            for offset, key in zip(reads.offsets, reads.keys, strict=True):
                there = final.get(offset)
                if there != key:
                    kind = UNREAD if there is None else CHANGED
                    number, record = key >> _NUMBER_BITS, key & ((1 << _NUMBER_BITS) - 1)
                    self.verdict.condemn(
                        kind, f"{reads.name} read record {record} of stream {number} at {partition}:{offset}"
                    )


def _acknowledged(stream: Stream) -> int:
    return len(stream.offsets) - stream.offsets.count(UNKNOWN) - stream.offsets.count(REFUSED)


def _key_of(value: bytes, partition: int) -> int | None:
    """Stream and number of a record in one; None: it is not whole, or not of this partition."""
    try:
        magic, stream, at, number, check = _RECORD.unpack_from(value)
    except struct.error:
        return None
    if magic != _MAGIC or at != partition or check != crc32(b"%d:%d" % (stream, number)):
        return None
    return int(stream << _NUMBER_BITS | number)
