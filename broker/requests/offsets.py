"""ListOffsets and EpochEnds: where things are in a log (design 5.5)."""

from typing import cast

from tidelog.broker.partition import Partition
from tidelog.broker.requests.context import Context
from tidelog.protocol.errors import OffsetNotAvailable, TidelogError
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    EpochEndFound,
    EpochEnds,
    EpochEndsReply,
    EpochQuery,
    ListOffsets,
    ListOffsetsReply,
    OffsetFound,
    OffsetQuery,
)
from tidelog.protocol.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Epoch, Offset
from tidelog.storage.times import OffsetAndTime


def list_offsets(context: Context, incoming: Incoming) -> None:
    """Find offsets by time; replicas see the whole log, clients what is committed."""
    request = cast("ListOffsets", incoming.message)
    incoming.reply(ListOffsetsReply(tuple(_find(context, query, request) for query in request.partitions)))


def _find(context: Context, query: OffsetQuery, request: ListOffsets) -> OffsetFound:
    where = query.topic_id, query.index
    try:
        partition = context.replicas.at(*where) if request.replica else context.partition(*where)
        leadership = partition.led(query.current_leader_epoch, to_replica=request.replica)
        known = request.replica or leadership.known_high_watermark != NO_OFFSET
        limit = partition.log.end_offset if request.replica else partition.high_watermark
        found = _offset_for(partition, query.timestamp, limit, known=known)
    except TidelogError as error:
        hint = context.leader(*where)
        return OffsetFound(*where, error=error.code, message=str(error), current_leader=hint)
    return OffsetFound(
        *where,
        offset=found.offset,
        timestamp=found.timestamp_ms,
        leader_epoch=_epoch_at(partition, found.offset),
    )


def _epoch_at(partition: Partition, offset: Offset) -> Epoch:
    within = partition.log.log_start <= offset < partition.log.end_offset
    return partition.log.epochs.epoch_of(offset) if within else NO_EPOCH


def _offset_for(partition: Partition, timestamp: int, limit: Offset, *, known: bool) -> OffsetAndTime:
    if timestamp == EARLIEST:
        return OffsetAndTime(partition.log.log_start, NO_TIMESTAMP)
    if timestamp >= 0:
        found = partition.find_time(timestamp)
        if found is not None and found.offset < limit:
            return found
    if not known:  # KIP-207
        raise OffsetNotAvailable(f"{partition}: just elected, more may be committed than it can show yet")
    if timestamp == LATEST:
        return OffsetAndTime(limit, NO_TIMESTAMP)
    found = partition.find_largest_time(limit) if timestamp == MAX_TIMESTAMP else None
    return found or OffsetAndTime(NO_OFFSET, NO_TIMESTAMP)


def epoch_ends(context: Context, incoming: Incoming) -> None:
    """Where leader epochs end. Not capped at the high watermark: a stale one would report false truncations."""
    request = cast("EpochEnds", incoming.message)
    incoming.reply(EpochEndsReply(tuple(_end(context, query) for query in request.partitions)))


def _end(context: Context, query: EpochQuery) -> EpochEndFound:
    where = query.topic_id, query.index
    try:
        partition = context.partition(*where)
        partition.led(query.current_leader_epoch)
        found = partition.log.epochs.end_offset_for(query.epoch, partition.log.end_offset)
    except TidelogError as error:
        hint = context.leader(*where)
        return EpochEndFound(*where, error=error.code, message=str(error), current_leader=hint)
    return EpochEndFound(*where, epoch=found.epoch, end_offset=found.end)
