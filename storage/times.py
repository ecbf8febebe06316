"""Find a record by its time: by segment, by time index, by batch, and at last among a batch's own records."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidelog.protocol.records import decode
from tidelog.protocol.types import NO_TIMESTAMP, Offset
from tidelog.storage.segment import Segment


class OffsetAndTime(NamedTuple):
    """A record's offset and its timestamp."""

    offset: Offset
    timestamp_ms: int


def first_at_or_after(segments: Iterable[Segment], timestamp: int, log_start: Offset) -> OffsetAndTime | None:
    """The first record at or behind `log_start` with that timestamp or a later one.

    Timestamps may be out of order, so the nearest index entry is where the search begins, not its answer.
    """
    for segment in segments:
        if segment.max_timestamp < timestamp or segment.next_offset <= log_start:
            continue
        for batch in segment.batches_from_time(timestamp):
            columns = decode(batch)
            for offset, at in zip(columns.offsets, columns.timestamps, strict=True):
                if at >= timestamp and offset >= log_start:
                    return OffsetAndTime(offset, at)
    return None


def first_of_the_largest(
    segments: Sequence[Segment], log_start: Offset, below: Offset
) -> OffsetAndTime | None:
    """The first record with the largest timestamp of those from `log_start` up to `below`."""
    largest = NO_TIMESTAMP
    for segment in segments:
        if segment.base_offset >= below or segment.max_timestamp <= largest:
            continue
        if segment.base_offset >= log_start and segment.max_timestamp_offset < below:
            largest = segment.max_timestamp
            continue
        for _, header in segment.headers_from(segment.position_of(max(log_start, segment.base_offset))):
            if header.next_offset > below:
                break
            largest = max(largest, header.max_timestamp)
    if largest == NO_TIMESTAMP:
        return None
    found = first_at_or_after(segments, largest, log_start)
    if (
        found is None or found.offset >= below
    ):  # compaction has removed the record whose time its batch still has
        found = _first_of_the_largest_there_are(segments, log_start, below)
    return found if found is not None and found.offset < below else None


def _first_of_the_largest_there_are(
    segments: Sequence[Segment], log_start: Offset, below: Offset
) -> OffsetAndTime | None:
    """The same by the records themselves; batches are looked at from the largest time that one claims on."""
    best: OffsetAndTime | None = None
    for segment in sorted(segments, key=lambda segment: -segment.max_timestamp):
        if best is not None and segment.max_timestamp < best.timestamp_ms:
            break
        heads = sorted(segment.headers_from(0), key=lambda head: -head[1].max_timestamp)
        for position, header in heads:
            if best is not None and header.max_timestamp < best.timestamp_ms:
                break
            if header.last_offset < log_start or header.next_offset > below:
                continue
            columns = decode(segment.read_at(position, header.size))
            for offset, at in zip(columns.offsets, columns.timestamps, strict=True):
                if offset >= log_start and (
                    best is None or (-at, offset) < (-best.timestamp_ms, best.offset)
                ):
                    best = OffsetAndTime(offset, at)
    return best
