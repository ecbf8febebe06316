"""Compact one log by a plan: keep of every key the newest record, and write that beside the log.

    survey  the heads of the dirty part: its blocks, and which batches must stay
    judge   it, from the newest block back: a record stays if its key has not been seen (`KeySet`)
    map     instead, from the oldest block on, when the keys do not fit: where each stands last (`KeyMap`)
    write   what stays, from the log's first block on, one file for each group of segments in which anything changes:
            of the clean part those whose key is not in the dirty one. `swap` puts the files in place

Only sealed segments are read and only `.cleaned` files written, so all of this may go on in another process. What it
keeps true (docs/STORAGE.md, 10.9; replication/01-disk 1.12):

* Offsets, epochs, producers' numbers and times stay as they are; a batch of which all is kept stays byte for byte.
* Every batch that is judged has been verified; damage ends the compaction, and nothing is replaced. What was
  sent as something else than records is no damage: it stays as it is, and is judged as if it had no keys.
* The map may be full before the dirty part ends: what lies behind is kept as it is, for the next time (C2). A block
  of which the map knows that nothing stays is not read again.
* A tombstone stays until a pass that removed every older record of its key is `delete.retention.ms` old: the first
  such pass leaves that time in the batch (C5). Once one is gone, `purge_floor` says so (C7). None goes that somebody
  who copies the log has yet to see (`Plan.purge_below`).
* Batches stay without records where something rests on them (C6): what a producer's retry is known by, the first of
  each leader epoch, and the first and the last of each new segment, so that segments go on to abut.
* Nothing behind the first batch of a transaction is judged: nobody can say yet how transactions end.
"""

from array import array
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from tidelog.protocol.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    TRANSACTIONAL,
    BatchHeader,
    check_body,
    read_header,
)
from tidelog.protocol.errors import CorruptMessage, DamagedLog, InvalidRecord, MessageTooLarge
from tidelog.protocol.records import Columns, blanked, columns_of, decode, thinned
from tidelog.protocol.types import NO_EPOCH, NO_OFFSET, Buffer, Epoch, Offset
from tidelog.storage.cleaned_segment import Writer
from tidelog.storage.cleaning import Cleaned, Outcome, Plan, Said, Source
from tidelog.storage.config import MAX_BATCH_BYTES
from tidelog.storage.files import Directory, File
from tidelog.storage.key_map import KeyMap, KeySet, represented
from tidelog.storage.scan import Scan
from tidelog.storage.segment import segment_name

BLOCK = 256 << 10
"""Bytes of log that are read at once, and that a key's place is exact to."""
RECORDS_PER_STEP = 500
"""Keys that are looked at before somebody else gets a turn."""
_HEADS_PER_STEP: Final = 64
"""Batches whose heads alone are read: each of them may be a read of its own."""
_OF_A_TRANSACTION: Final = TRANSACTIONAL | CONTROL


class Block(NamedTuple):
    """Whole, verified batches that lie one behind the other."""

    position: int
    data: memoryview
    heads: list[tuple[int, BatchHeader]]
    """Where each batch begins in `data`, and its header."""

    @property
    def end(self) -> int:
        """The byte of the segment behind it."""
        return self.position + len(self.data)


class Reader:
    """A sealed segment, block by block."""

    def __init__(self, directory: Directory, source: Source) -> None:
        self.source = source
        self._name = segment_name(source.base_offset)
        self._path = f"{directory.path}/{self._name}"
        self._file: File = directory.open(self._name)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def heads(self, position: int) -> Scan:
        """The batches from that byte on, without their bodies."""
        return Scan(self._file, position, self.source.size, bodies=False)

    def damaged(self, position: int, problem: CorruptMessage) -> DamagedLog:
        """What stands at that byte is not what was written."""
        return DamagedLog(f"{self._path} at byte {position}: {problem}", self.source.base_offset)

    def block(self, position: int, end: int) -> Block:
        """The block that begins there; it does not reach beyond `end`, where a batch ends."""
        data = self._read(position, min(BLOCK, end - position))
        heads: list[tuple[int, BatchHeader]] = []
        at = 0
        try:
            while at + HEADER_SIZE <= len(data) or not heads:
                header = read_header(data, at)
                size = header.length + 12
                if at + size > len(data):
                    if heads:
                        break
                    if size > min(MAX_BATCH_BYTES, end - position):
                        raise CorruptMessage(f"a batch claims {size} bytes, {end - position} are there")
                    data = self._read(position, size)
                check_body(data, header, at)
                heads.append((at, header))
                at += size
        except CorruptMessage as problem:
            raise self.damaged(position + at, problem) from None
        return Block(position, data[:at], heads)

    def _read(self, position: int, length: int) -> memoryview:
        return memoryview(self._file.read_at(position, length))


@dataclass(slots=True)
class Mapped:
    """The part of a segment that is in the map."""

    start: int
    """The byte where it begins; what lies before it is clean."""
    end: int
    first_number: int
    places: "array[int]" = field(default_factory=lambda: array("Q"))
    """Where its blocks begin, which are numbered one after the other."""

    def end_of(self, at: int) -> int:
        """Where the block with that place ends."""
        return self.places[at + 1] if at + 1 < len(self.places) else self.end


class Keys(NamedTuple):
    """What a block has for the map."""

    keys: list[bytes | None]
    size: int
    """Bytes of the block that they are of: it ends before the first batch of a transaction."""
    end: Offset


class Compactor:
    """Carries out one plan. `steps` says what is done; between two of them anybody may have a turn."""

    def __init__(self, directory: Directory, plan: Plan) -> None:
        self.read_bytes = self.written_bytes = self.dropped_records = 0
        self.judged_end = plan.first_dirty
        """Nothing at or behind it is judged."""
        self.purge_floor: Offset = NO_OFFSET
        self.unreadable_batches, self.first_unreadable = 0, NO_OFFSET
        self._directory = directory
        self._plan = plan
        self._seen: KeySet | None = KeySet(plan.memory_bytes)
        """The keys of the dirty part; None when they do not fit."""
        self._newest: dict[int, array[int]] = {}
        """By block: where in it the newest records of their keys stand; with `_seen` only."""
        self._map = KeyMap(plan.memory_bytes)
        """The last block of each key; without `_seen` only."""
        self._firsts = {group[0].base_offset for group in plan.groups}
        self._lasts = {group[-1].base_offset for group in plan.groups}
        self._mapped: dict[Offset, Mapped] = {}
        """By segment."""
        self._records = array("Q")
        """Of each block."""
        self._alive: set[int] = set()
        """The blocks of which something stays."""
        self._stays: set[Offset] = set()
        """Where batches of the dirty part begin that stay without records (C6)."""
        self._epoch: Epoch = NO_EPOCH
        self._reader: Reader | None = None
        self._writer: Writer | None = None

    @property
    def moved_bytes(self) -> int:
        """What was read and written so far: by this it is slowed down."""
        return self.read_bytes + self.written_bytes

    @property
    def pause_s(self) -> float:
        """Nobody needs to wait for it: each step does what it can."""
        return 0.0

    def flush(self) -> None:
        """Force what is written so far to the disk: the flush that decides has less to do then."""
        if self._writer is not None:
            self._writer.segment.file().flush()

    def steps(self) -> Iterator[Said]:
        """Do it. Whoever leaves it before the end calls `abandon`; after an error there is nothing to abandon."""
        try:
            yield from self._survey_dirty_part()
            fits = yield from self._judge_dirty_part()
            if not fits:
                self._forget()
                yield from self._map_dirty_part()
                for piece in self._map.blocks():
                    self._alive |= piece
                    yield None
            self._epoch = NO_EPOCH
            for group in self._plan.groups:
                if group[0].base_offset >= self.judged_end:
                    break
                yield from self._compact_group(group)
            yield Outcome(
                self.judged_end,
                self.read_bytes,
                self.written_bytes,
                self.dropped_records,
                self.unreadable_batches,
                self.first_unreadable,
            )
        except Exception:
            self.abandon()
            raise
        self._close_reader()

    def abandon(self) -> None:
        """Close what is open, and remove what is half-written."""
        self._close_reader()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.give_up()

    def _open(self, source: Source) -> Reader:
        self._close_reader()
        self._reader = Reader(self._directory, source)
        return self._reader

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _read(self, reader: Reader, position: int, end: int) -> Block:
        block = reader.block(position, end)
        self.read_bytes += len(block.data)
        return block

    # ── from the newest block back ────────────────────────────────────────────────────────────────

    def _survey_dirty_part(self) -> Iterator[Said]:
        for source in (source for group in self._plan.groups for source in group):
            if source.next_offset > self._plan.first_dirty:
                whole = yield from self._survey_segment(source)
                if not whole:
                    return
                self.judged_end = source.next_offset

    def _survey_segment(self, source: Source) -> Generator[Said, None, bool]:
        """Note its blocks; whether they go to its end and not only to a transaction."""
        reader = self._open(source)
        start = yield from self._dirty_start(reader)
        mapped = self._mapped[source.base_offset] = Mapped(start, start, len(self._records))
        scan = reader.heads(start)
        for number, (position, header, _) in enumerate(scan, 1):
            if header.attributes & _OF_A_TRANSACTION:
                self.judged_end = header.base_offset
                return False
            if not mapped.places or position + header.size - mapped.places[-1] > BLOCK:
                mapped.places.append(position)
                self._records.append(0)
            self._records[-1] += header.record_count
            if self._must_stay(source, position, header):
                self._stays.add(header.base_offset)
                self._alive.add(len(self._records) - 1)
            mapped.end = position + header.size
            if number % _HEADS_PER_STEP == 0:
                yield None
        if scan.problem is not None:
            raise reader.damaged(scan.position, scan.problem)
        return True

    def _judge_dirty_part(self) -> Generator[Said, None, bool]:
        """Find the newest record of every key; False when the keys do not fit."""
        seen = self._seen
        assert seen is not None
        for source in (source for group in reversed(self._plan.groups) for source in reversed(group)):
            mapped = self._mapped.get(source.base_offset)
            if mapped is None:
                continue
            reader = self._open(source)
            for at in range(len(mapped.places) - 1, -1, -1):
                block = self._read(reader, mapped.places[at], mapped.end_of(at))
                yield None
                keys, nils = yield from self._unpacked(block)
                if not seen.has_room(len(keys)):
                    return False
                number = mapped.first_number + at
                newest: list[int] = []
                for first in range(
                    (len(keys) - 1) // RECORDS_PER_STEP * RECORDS_PER_STEP, -1, -RECORDS_PER_STEP
                ):
                    newest[:0] = seen.newest(keys[first : first + RECORDS_PER_STEP], first)
                    yield None
                if newest or None in nils:
                    self._alive.add(number)
                    self._newest[number] = array("I", newest)
        return True

    def _forget(self) -> None:
        """The keys did not fit: begin again in the other way."""
        self._seen = None
        self.judged_end, self._epoch = self._plan.first_dirty, NO_EPOCH
        self._records = array("Q")
        for found in (self._mapped, self._newest, self._alive, self._stays):
            found.clear()

    # ── the map ───────────────────────────────────────────────────────────────────────────────────

    def _map_dirty_part(self) -> Iterator[Said]:
        for source in (source for group in self._plan.groups for source in group):
            if source.next_offset > self._plan.first_dirty:
                whole = yield from self._map_segment(source)
                if not whole:
                    return
                self.judged_end = source.next_offset

    def _map_segment(self, source: Source) -> Generator[Said, None, bool]:
        """Map its dirty part; whether all of that could be."""
        reader = self._open(source)
        start = yield from self._dirty_start(reader)
        mapped = self._mapped[source.base_offset] = Mapped(start, start, len(self._records))
        while mapped.end < source.size:
            block = self._read(reader, mapped.end, source.size)
            yield None
            number = len(self._records)
            found = yield from self._keys(source, block, number)
            if not found.size or not self._map.has_room(len(found.keys)):
                self.judged_end = block.heads[0][1].base_offset
                return False
            for at in range(0, len(found.keys), RECORDS_PER_STEP):
                if self._map.add(found.keys[at : at + RECORDS_PER_STEP], number):
                    self._alive.add(number)  # of records without a key all stay
                yield None
            mapped.places.append(mapped.end)
            self._records.append(len(found.keys))
            mapped.end += found.size
            self.judged_end = found.end
        return True

    def _dirty_start(self, reader: Reader) -> Generator[Said, None, int]:
        """Where the first batch begins that compaction has not seen."""
        source, dirty = reader.source, self._plan.first_dirty
        position = 0 if source.base_offset < dirty else source.size
        while position < source.size:
            block = self._read(reader, position, source.size)
            for at, header in block.heads:
                if header.last_offset >= dirty:
                    return position + at
            position = block.end
            yield None
        return 0

    def _keys(self, source: Source, block: Block, number: int) -> Generator[Said, None, Keys]:
        """The keys of a block up to its first batch of a transaction; notes which batches must stay."""
        keys: list[bytes | None] = []
        size, end, seen = 0, NO_OFFSET, 0
        for at, header in block.heads:
            if header.attributes & _OF_A_TRANSACTION:
                break
            if self._must_stay(source, block.position + at, header):
                self._stays.add(header.base_offset)
                self._alive.add(number)
            columns = _columns(block, header, at)
            if columns is None:
                self._alive.add(number)
            else:
                keys += represented(columns.keys)
            size, end = at + header.size, header.next_offset
            if len(keys) - seen >= RECORDS_PER_STEP:
                seen = len(keys)
                yield None
        return Keys(keys, size, end)

    def _must_stay(self, source: Source, position: int, header: BatchHeader) -> bool:
        """Whether something rests on this batch, whatever becomes of its records (C6). Asked in the log's order."""
        new_epoch = header.leader_epoch > self._epoch
        self._epoch = header.leader_epoch
        return (
            new_epoch
            or header.last_offset in self._plan.remembered
            or (not position and source.base_offset in self._firsts)
            or (position + header.size == source.size and source.base_offset in self._lasts)
        )

    # ── judging and writing ───────────────────────────────────────────────────────────────────────

    def _compact_group(self, group: Sequence[Source]) -> Iterator[Said]:
        if len(group) > 1:
            self._begin(group[0])
        for source in group:
            reader = self._open(source)
            mapped = self._mapped.get(source.base_offset)
            if mapped is None and source.base_offset >= self._plan.first_dirty:
                mapped = Mapped(0, 0, 0)  # the map was full before
            position, dirty = 0, source.size if mapped is None else mapped.start
            while position < dirty:
                block = self._read(reader, position, dirty)
                yield None
                stays = {
                    header.base_offset
                    for at, header in block.heads
                    if self._must_stay(source, position + at, header)
                }
                yield from self._compact_block(reader, block, None, stays)
                position = block.end
            if mapped is not None:
                yield from self._compact_mapped(reader, mapped)
        if self._writer is not None:
            known = self._writer.finish()
            self._writer = None
            yield Cleaned(tuple(source.base_offset for source in group), known, self.purge_floor)

    def _begin(self, source: Source) -> Writer:
        self._writer = Writer(self._directory, source.base_offset, self._plan.index_interval_bytes, BLOCK)
        return self._writer

    def _compact_mapped(self, reader: Reader, mapped: Mapped) -> Iterator[Said]:
        """The blocks that are in the map, then those that are not: these stay as they are."""
        for number, position in enumerate(mapped.places, mapped.first_number):
            end = mapped.end_of(number - mapped.first_number)
            if number in self._alive:
                block = self._read(reader, position, end)
                assert block.end == end, f"{block.end} is not {end}: a block was read in another way"
                yield None
                yield from self._compact_block(reader, block, number, self._stays)
                continue
            self.dropped_records += self._records[number]
            yield from self._write_up_to(reader, position)
        if self._writer is not None:
            yield from self._copy(reader, mapped.end, reader.source.size)

    def _write_up_to(self, reader: Reader, position: int) -> Generator[Said, None, Writer]:
        """Something changes at that byte: what stands before it is written, unless it has been."""
        if self._writer is None:
            self._begin(reader.source)
            yield from self._copy(reader, 0, position)
        assert self._writer is not None
        return self._writer

    def _copy(self, reader: Reader, position: int, end: int) -> Iterator[Said]:
        assert self._writer is not None
        while position < end:
            block = self._read(reader, position, end)
            yield None
            for at, header in block.heads:
                self._add(self._writer, header, block.data[at : at + header.size])
            position = block.end
            yield None

    def _add(self, writer: Writer, header: BatchHeader, batch: Buffer) -> None:
        writer.add(header, batch)
        self.written_bytes += header.size

    def _compact_block(
        self, reader: Reader, block: Block, number: int | None, stays: set[Offset]
    ) -> Iterator[Said]:
        """Judge the records of a block, and write what stays if anything of this segment changes."""
        keys, nils = yield from self._unpacked(block)
        kept: Sequence[int]
        if self._seen is None:
            kept = yield from self._kept(keys, number)
        elif number is not None:
            kept = self._newest.get(number, ())
        else:
            kept = yield from self._unseen(self._seen, keys)
        first, new = 0, 0
        results: list[tuple[BatchHeader, Buffer] | None] = []
        for (at, header), has_nil in zip(block.heads, nils, strict=True):
            batch = block.data[at : at + header.size]
            if has_nil is None:
                results.append((header, batch))
                if not self.unreadable_batches:
                    self.first_unreadable = header.base_offset
                self.unreadable_batches += 1
                continue
            behind = first + header.record_count
            keep = [place - first for place in kept[bisect_left(kept, first) : bisect_left(kept, behind)]]
            results.append(self._thinned(header, batch, keep, has_nil, header.base_offset in stays))
            new += results[-1] is None or results[-1][1] is not batch
            first = behind
            yield None
        if new or self._writer is not None:
            writer = yield from self._write_up_to(reader, block.position)
            for result in results:
                if result is not None:
                    self._add(writer, *result)
        yield None

    def _unpacked(self, block: Block) -> Generator[Said, None, tuple[list[bytes | None], list[bool | None]]]:
        """The keys of a block's records, and of each batch whether a value is nil; None: it has no records to be read."""
        keys: list[bytes | None] = []
        nils: list[bool | None] = []
        before = 0
        for at, header in block.heads:
            columns = _columns(block, header, at)
            nils.append(None if columns is None else None in columns.values)
            keys += represented(columns.keys) if columns is not None else ()
            if len(keys) - before >= RECORDS_PER_STEP:
                before = len(keys)
                yield None
        return keys, nils

    def _unseen(self, seen: KeySet, keys: list[bytes | None]) -> Generator[Said, None, list[int]]:
        """The places of the records of a clean block whose keys are not in the dirty part."""
        kept: list[int] = []
        for first in range(0, len(keys), RECORDS_PER_STEP):
            kept += seen.missing(keys[first : first + RECORDS_PER_STEP], first)
            yield None
        return kept

    def _kept(self, keys: list[bytes | None], number: int | None) -> Generator[Said, None, list[int]]:
        """The places of the records of which nothing newer is known, in a block with that number or in a clean one."""
        last: dict[bytes | None, int] = {}
        if number is not None:
            last.update(zip(keys, count()))
        once = number is None or len(last) == len(keys)
        kept: list[int] = []
        for at in range(0, len(keys), RECORDS_PER_STEP):
            found = self._map.find(keys[at : at + RECORDS_PER_STEP])
            if number in found or None in found:
                kept += [
                    place
                    for place, block in enumerate(found, at)
                    if block is None or (block == number and (once or last[keys[place]] == place))
                ]
            yield None
        return kept

    def _thinned(
        self, header: BatchHeader, batch: Buffer, keep: list[int], has_nil: bool, stays: bool
    ) -> tuple[BatchHeader, Buffer] | None:
        """The batch with these records and with its tombstones as they are due; None when nothing of it stays."""
        horizon = None
        if keep and has_nil:
            columns = decode(batch)
            gone = {
                place for place in keep if columns.values[place] is None and columns.keys[place] is not None
            }
            if gone and not header.attributes & DELETE_HORIZON:
                horizon = self._plan.now_ms + self._plan.delete_retention_ms
            elif (
                gone
                and header.base_timestamp <= self._plan.now_ms
                and header.next_offset <= self._plan.purge_below
            ):
                keep = [place for place in keep if place not in gone]
                self.purge_floor = max(self.purge_floor, columns.offsets[max(gone)] + 1)
        self.dropped_records += header.record_count - len(keep)
        if not keep and not stays:
            return None
        if len(keep) == header.record_count and horizon is None:
            return header, batch
        made = _written_anew(decode(batch), keep, horizon)
        return (header, batch) if made is None else (read_header(made), made)


def _written_anew(columns: Columns, keep: list[int], horizon: int | None) -> bytearray | None:
    """The batch with these records; None: it stays as it is, for all of them stay, and a horizon does not fit.

    Whatever is older than another record of its key goes, or that one's tombstone would go before it.
    """
    for due in dict.fromkeys((horizon, None)):  # with a horizon times are written anew, and these may be none
        if due is None and len(keep) == columns.header.record_count:
            return None
        with suppress(InvalidRecord, MessageTooLarge):
            made = thinned(columns, keep, due)
            if len(made) <= MAX_BATCH_BYTES:
                return made
    return blanked(columns, keep)


def _columns(block: Block, header: BatchHeader, at: int) -> Columns | None:
    """A batch's records; None: its checksums are right and nobody can read it, for so it was sent.

    To end the compaction for its sake would end that at every look: the log would grow for ever.
    """
    try:
        return columns_of(block.data, header, at)
    except CorruptMessage:
        return None
