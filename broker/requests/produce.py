"""Produce: append batches, and answer when they are as safe as the client asked (docs/REPLICATION.md)."""

from dataclasses import dataclass
from typing import cast

from tidelog.broker.partition import Partition
from tidelog.broker.requests.context import Context
from tidelog.protocol.errors import (
    DuplicateSequenceNumber,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    TidelogError,
)
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    ACKS_ALL,
    Leader,
    PartitionProduce,
    PartitionProduced,
    Produce,
    ProduceReply,
    split_attachment,
)
from tidelog.protocol.types import NO_BROKER, Epoch, Offset


def produce(context: Context, incoming: Incoming) -> None:
    """Append each batch; with acks=all the answer waits for the high watermark."""
    request = cast("Produce", incoming.message)
    waiting = _Waiting(incoming, [None] * len(request.partitions), {})
    for at, (entry, batch) in enumerate(
        zip(request.partitions, split_attachment(incoming.attachment, request.partitions), strict=True)
    ):
        partition: Partition | None = None
        try:
            partition = context.replicas.at_with_lease(entry.topic_id, entry.index, context.clocks.boot_ms())
            appended = partition.produce(
                batch,
                request.acks,
                entry.leader_epoch,
                now_ms=context.clocks.now_ms(),
                wall_ms=context.clocks.wall_ms(),
            )
        except TidelogError as error:
            waiting.answers[at] = _refused(entry, error, partition)
            continue
        context.appended(partition, len(batch))
        context.replicas.touched((entry.topic_id, entry.index))
        owed = _Owed(entry, partition, partition.leader_epoch, appended.base_offset, appended.next_offset)
        if request.acks == ACKS_ALL:
            waiting.owed[at] = owed
        else:
            waiting.answers[at] = _written(owed)
    if request.acks == 0:
        return
    if waiting.try_complete():
        return
    keys = [(owed.entry.topic_id, owed.entry.index) for owed in waiting.owed.values()]
    context.replicas.delayed.wait(waiting, keys, context.clocks.now_ms() + request.timeout_ms)


@dataclass(frozen=True, slots=True)
class _Owed:
    """A batch that was appended (or was there already) and is not yet committed."""

    entry: PartitionProduce
    partition: Partition
    leader_epoch: Epoch
    base_offset: Offset
    next_offset: Offset


@dataclass(slots=True)
class _Waiting:
    """The answer to one request, batch by batch. A duplicate waits like the original did (I-22)."""

    incoming: Incoming
    answers: list[PartitionProduced | None]
    owed: dict[int, _Owed]

    def try_complete(self) -> bool:
        for at, owed in list(self.owed.items()):
            partition = owed.partition
            if partition.leader_epoch != owed.leader_epoch or partition.leadership is None:
                self._settle(
                    at, _refused(owed.entry, NotLeaderOrFollower(f"{partition}: another leads"), partition)
                )
            elif partition.leadership.high_watermark >= owed.next_offset:
                self._settle(at, _written(owed))
        if self.owed:
            return False
        self._answer()
        return True

    def give_up(self) -> None:
        for at, owed in list(self.owed.items()):
            leadership = owed.partition.leadership
            enough = leadership is None or leadership.has_enough_replicas
            error = RequestTimedOut if enough else NotEnoughReplicasAfterAppend
            fact = f"offset {owed.next_offset - 1} is written but not committed: {owed.partition}"
            self._settle(at, _refused(owed.entry, error(fact), owed.partition))
        self._answer()

    def _settle(self, at: int, answer: PartitionProduced) -> None:
        self.answers[at] = answer
        del self.owed[at]

    def _answer(self) -> None:
        self.incoming.reply(ProduceReply(tuple(answer for answer in self.answers if answer is not None)))


def _written(owed: _Owed) -> PartitionProduced:
    return PartitionProduced(
        owed.entry.topic_id,
        owed.entry.index,
        base_offset=owed.base_offset,
        log_start=owed.partition.log.log_start,
    )


def _refused(entry: PartitionProduce, error: TidelogError, partition: Partition | None) -> PartitionProduced:
    if isinstance(error, DuplicateSequenceNumber):
        # Written long ago, and so committed long ago or never to be told: success without an offset (5.3).
        return PartitionProduced(entry.topic_id, entry.index, error=error.code, message=str(error))
    hint = None
    if partition is not None and partition.leader != NO_BROKER:
        hint = Leader(partition.leader, partition.leader_epoch)
    return PartitionProduced(
        entry.topic_id, entry.index, error=error.code, message=str(error), current_leader=hint
    )
