"""ListOffsets, EpochEnds and DeleteRecords: where things are in a log, and where it is to begin."""

from dataclasses import dataclass
from typing import cast

from tidelog.broker.partition import Partition
from tidelog.broker.requests.context import Context
from tidelog.protocol.errors import InvalidRequest, OffsetNotAvailable, RequestTimedOut, TidelogError
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    EARLIEST,
    LATEST,
    Deleted,
    DeleteRecords,
    DeleteRecordsReply,
    EpochEndFound,
    EpochEnds,
    EpochEndsReply,
    EpochQuery,
    ListOffsets,
    ListOffsetsReply,
    OffsetFound,
    OffsetQuery,
)
from tidelog.protocol.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Offset
from tidelog.storage.times import OffsetAndTime


def list_offsets(context: Context, incoming: Incoming) -> None:
    """Find offsets by time; replicas see the whole log, clients what is committed."""
    request = cast("ListOffsets", incoming.message)
    incoming.reply(ListOffsetsReply(tuple(_find(context, query, request) for query in request.partitions)))


def _find(context: Context, query: OffsetQuery, request: ListOffsets) -> OffsetFound:
    try:
        if request.replica:
            partition = context.replicas.at(query.topic_id, query.index)
        else:
            partition = context.partition(query.topic_id, query.index)
        leadership = partition.led(query.current_leader_epoch, to_replica=request.replica)
        known = request.replica or leadership.known_high_watermark != NO_OFFSET
        limit = partition.log.end_offset if request.replica else partition.high_watermark
        found = _offset_for(partition, query.timestamp, limit, known=known)
    except TidelogError as error:
        return OffsetFound(query.topic_id, query.index, error=error.code, message=str(error))
    return OffsetFound(
        query.topic_id,
        query.index,
        offset=found.offset,
        timestamp=found.timestamp_ms,
        leader_epoch=partition.log.epochs.epoch_of(found.offset) if found.offset >= 0 else NO_EPOCH,
    )


def _offset_for(partition: Partition, timestamp: int, limit: Offset, *, known: bool) -> OffsetAndTime:
    if timestamp == EARLIEST:
        return OffsetAndTime(partition.log.log_start, NO_TIMESTAMP)
    if timestamp == LATEST:
        if not known:
            raise OffsetNotAvailable(
                f"{partition}: just elected, the high watermark is not known yet"
            )  # KIP-207
        return OffsetAndTime(limit, NO_TIMESTAMP)
    if timestamp < 0:
        raise InvalidRequest(f"a timestamp of {timestamp} has no meaning here")
    found = partition.log.offset_for_time(timestamp)
    if found is not None and found.offset < limit:
        return found
    if not known:
        raise OffsetNotAvailable(
            f"{partition}: just elected, records may be committed that it cannot show yet"
        )
    return OffsetAndTime(NO_OFFSET, NO_TIMESTAMP)


def epoch_ends(context: Context, incoming: Incoming) -> None:
    """Where leader epochs end. Not capped at the high watermark: a stale one would report false truncations."""
    request = cast("EpochEnds", incoming.message)
    incoming.reply(EpochEndsReply(tuple(_end(context, query) for query in request.partitions)))


def _end(context: Context, query: EpochQuery) -> EpochEndFound:
    try:
        partition = context.partition(query.topic_id, query.index)
        partition.led(query.current_leader_epoch)
        found = partition.log.epochs.end_offset_for(query.epoch, partition.log.end_offset)
    except TidelogError as error:
        return EpochEndFound(query.topic_id, query.index, error=error.code, message=str(error))
    return EpochEndFound(query.topic_id, query.index, epoch=found.epoch, end_offset=found.end)


def delete_records(context: Context, incoming: Incoming) -> None:
    """Raise log starts; answered when every live replica has raised its own."""
    request = cast("DeleteRecords", incoming.message)
    waiting = _Deleting(incoming, [])
    for entry in request.partitions:
        try:
            partition = context.partition(entry.topic_id, entry.index)
            partition.delete_before(entry.offset)
        except TidelogError as error:
            refused = Deleted(entry.topic_id, entry.index, error=error.code, message=str(error))
            waiting.parts.append((refused, None, 0))
            continue
        context.replicas.touched((entry.topic_id, entry.index))
        waiting.parts.append((Deleted(entry.topic_id, entry.index), partition, partition.log.log_start))
    keys = [(entry.topic_id, entry.index) for entry in request.partitions]

    def saved() -> None:
        waiting.saved = True
        for key in keys:
            context.replicas.touched(key)

    context.save_log_starts(saved)
    context.replicas.wait(waiting, keys, context.clocks.now_ms() + request.timeout_ms)


@dataclass(slots=True)
class _Deleting:
    incoming: Incoming
    parts: list[tuple[Deleted, Partition | None, Offset]]
    saved: bool = False
    """Whether the log starts are in their checkpoint: a restart must not bring back what was deleted."""

    def try_complete(self) -> bool:
        if not self.saved or any(
            partition is not None and low < wanted for _, partition, wanted, low in self._lows()
        ):
            return False
        self._answer(late=False)
        return True

    def give_up(self) -> None:
        self._answer(late=True)

    def _lows(self) -> list[tuple[Deleted, Partition | None, Offset, Offset]]:
        return [
            (deleted, partition, wanted, partition.low_watermark if partition is not None else 0)
            for deleted, partition, wanted in self.parts
        ]

    def _answer(self, *, late: bool) -> None:
        answers = []
        for deleted, partition, wanted, low in self._lows():
            if partition is None:
                answers.append(deleted)
            elif late and (low < wanted or not self.saved):
                fact = f"{partition}: a replica still starts at {low}"
                code = RequestTimedOut.code
                answers.append(Deleted(deleted.topic_id, deleted.index, error=code, message=fact))
            else:
                answers.append(Deleted(deleted.topic_id, deleted.index, low_watermark=low))
        self.incoming.reply(DeleteRecordsReply(tuple(answers)))
