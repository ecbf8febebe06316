"""The file of one snapshot of the metadata log: what stands in it, how it is made, and what proves it whole.

    00000000000000004711-0000000012.checkpoint    up to offset 4711 (exclusive), whose last batch is of epoch 12

    head      u16 version (1), i64 end, i32 epoch, u32 crc of these
    batches   the facts that add up to the image, in canonical order, as batches of the log itself
    foot      u64 number of facts, u32 crc of every byte before

Numbers are big-endian, checksums are CRC-32C. What it keeps true (design 4.13; docs/STORAGE.md, 13; I-47):

* The bytes depend on the image, its end and its epoch and on nothing else: not on the node, the clock, or how the
  image came about. So a fetch of one may go on at another node; if that is of another version, the foot tells.
* A file that is cut short, has another name, or has changed in any bit is refused (CorruptSnapshot) before anything
  in it is believed. Every version to come begins with the same 18 bytes, so that "written by a newer tidelog" is
  believed only of what one wrote.
* It is made and read in pieces of a few milliseconds, each of one batch: `FACTS_AT_ONCE` facts at most, and
  `BYTES_AT_ONCE` unless one fact alone is larger. Both are part of the format: other numbers are other bytes.
"""

import re
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from tidelog.controller.facts import BATCH_BYTES_MAX, FACTS_MAX, Fact, decode_facts, encode_facts
from tidelog.controller.image import Image
from tidelog.protocol.batch import HEADER_SIZE, check_body, read_header, stamp
from tidelog.protocol.checksums import crc32c
from tidelog.protocol.errors import CorruptMessage, CorruptSnapshot, UnsupportedFormat
from tidelog.protocol.types import Buffer, Epoch, Offset
from tidelog.storage.files import File

SUFFIX: Final = ".checkpoint"
VERSION: Final = 1
FACTS_AT_ONCE: Final = 250
BYTES_AT_ONCE: Final = 64 << 10
assert FACTS_AT_ONCE <= FACTS_MAX
assert BYTES_AT_ONCE <= BATCH_BYTES_MAX

_HEAD: Final = Struct(">HqiI")
_FOOT: Final = Struct(">QI")
_CRC_SIZE: Final = 4
_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_NO_TIME: Final = 0
"""The time of every batch: a clock would make other bytes on every node."""

_encode: Final = msgspec.msgpack.Encoder().encode


class SnapshotId(NamedTuple):
    """Which snapshot: those of one cluster that have the same id have the same bytes."""

    end: Offset
    """Everything below it is in there: exclusive, as in all our names (KAFKA-14618)."""
    epoch: Epoch
    """Of the last batch below `end`."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.end:020d}-{self.epoch:010d}{SUFFIX}"


def parse_name(name: str) -> SnapshotId | None:
    """The snapshot whose file has that name, if that is one."""
    found = _NAME.fullmatch(name)
    return None if found is None else SnapshotId(int(found[1]), int(found[2]))


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────


def pieces(image: Image, epoch: Epoch) -> Iterator[bytes | bytearray]:
    """The file, piece by piece. Nobody else may change the image meanwhile."""
    head = _head(image.end_offset, epoch)
    running, count = crc32c(head), 0
    yield head
    for group in _groups(image.facts()):
        batch = encode_facts(group, _NO_TIME)
        stamp(batch, count, epoch)
        running = crc32c(batch, running)
        count += len(group)
        yield batch
    foot = count.to_bytes(_FOOT.size - _CRC_SIZE, "big")
    yield foot + crc32c(foot, running).to_bytes(_CRC_SIZE, "big")


def _head(end: Offset, epoch: Epoch, version: int = VERSION) -> bytes:
    fields = _HEAD.pack(version, end, epoch, 0)[:-_CRC_SIZE]
    return fields + crc32c(fields).to_bytes(_CRC_SIZE, "big")


def _groups(facts: Iterable[Fact]) -> Iterator[list[Fact]]:
    """What goes into one batch, by rules that depend on the facts only."""
    group: list[Fact] = []
    size = 0
    for fact in facts:
        length = len(_encode(fact))
        if group and (len(group) == FACTS_AT_ONCE or size + length > BYTES_AT_ONCE):
            yield group
            group, size = [], 0
        group.append(fact)
        size += length
    if group:
        yield group


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────


def batches(file: File, snapshot: SnapshotId, where: str) -> Iterator[bytes]:
    """Each batch, its own checksum verified; whoever has come to the end knows that the whole file is right.

    Raises CorruptSnapshot, or UnsupportedFormat for a newer version; `where` is the file's path, for the message.
    """
    size = file.size()
    stop = size - _FOOT.size
    running = crc32c(_read_head(file, size, snapshot, where))
    at, count = _HEAD.size, 0
    while at < stop:
        batch = _read_batch(file, at, stop, where)
        header = read_header(batch)
        if header.base_offset != count or header.leader_epoch != snapshot.epoch:
            raise CorruptSnapshot(f"{where}: at byte {at} fact {count} is missing")
        running = crc32c(batch, running)
        at, count = at + header.size, count + header.record_count
        yield batch
    foot = file.read_at(stop, _FOOT.size)
    if len(foot) < _FOOT.size or _FOOT.unpack(foot) != (count, crc32c(foot[:-_CRC_SIZE], running)):
        raise CorruptSnapshot(f"{where}: its foot is not that of {count} facts in {size} bytes")


def _read_head(file: File, size: int, snapshot: SnapshotId, where: str) -> bytes:
    head = file.read_at(0, _HEAD.size)
    if len(head) < _HEAD.size or crc32c(head[:-_CRC_SIZE]) != _HEAD.unpack(head)[-1]:
        raise CorruptSnapshot(f"{where}: its head is not what was written")
    version, end, epoch, _ = _HEAD.unpack(head)
    if version > VERSION:
        raise UnsupportedFormat(f"{where} is of version {version}, this tidelog reads {VERSION}")
    if version != VERSION or (end, epoch) != snapshot:
        raise CorruptSnapshot(f"{where} says that it is version {version} of {SnapshotId(end, epoch).name}")
    if size < _HEAD.size + _FOOT.size:
        raise CorruptSnapshot(f"{where} ends after {size} bytes")
    return head


def _read_batch(file: File, at: int, stop: int, where: str) -> bytes:
    """The whole batch at that byte. Its size is believed only when its head is right: it may be rot."""
    try:
        header = read_header(file.read_at(at, min(HEADER_SIZE, stop - at)))
        if header.size > min(BATCH_BYTES_MAX, stop - at):
            raise CorruptSnapshot(f"{where}: at byte {at} a batch claims {header.size} bytes")
        batch = file.read_at(at, header.size)
        check_body(batch, header)
    except CorruptMessage as error:
        raise CorruptSnapshot(f"{where}: at byte {at}: {error}") from error
    except UnsupportedFormat as newer:
        raise UnsupportedFormat(f"{where}: {newer}") from newer
    return batch


def facts_in(batch: Buffer, where: str) -> list[Fact]:
    """The facts of a verified batch; UnsupportedFormat for those that only a newer tidelog knows."""
    try:
        return decode_facts(batch)
    except UnsupportedFormat as newer:
        raise UnsupportedFormat(f"{where}: {newer}") from newer
