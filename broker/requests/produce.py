"""Produce: append batches, and answer when they are as safe as the client asked (docs/REPLICATION.md)."""

from dataclasses import dataclass
from typing import cast

from tidelog.broker.groups.records import GROUPS_TOPIC
from tidelog.broker.partition import Partition
from tidelog.broker.requests.context import Context
from tidelog.protocol.errors import (
    InvalidRequest,
    InvalidTopic,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    TidelogError,
)
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    ACKS_ALL,
    PartitionProduce,
    PartitionProduced,
    Produce,
    ProduceReply,
    split_attachment,
)
from tidelog.protocol.types import Epoch, Offset


def produce(context: Context, incoming: Incoming) -> None:
    """Append each batch; with acks=all the answer waits for the high watermark."""
    request = cast("Produce", incoming.message)
    batches = split_attachment(incoming.attachment, request.partitions)
    _check(request, incoming)
    waiting = _Waiting(context, incoming, [None] * len(request.partitions), {})
    for at, (entry, batch) in enumerate(zip(request.partitions, batches, strict=True)):
        partition: Partition | None = None
        try:
            partition = context.partition(entry.topic_id, entry.index)
            if partition.name.topic == GROUPS_TOPIC:
                raise InvalidTopic(f"{GROUPS_TOPIC} is written by its coordinators alone")
            appended = partition.produce(
                batch,
                request.acks,
                entry.leader_epoch,
                now_ms=context.clocks.now_ms(),
                wall_ms=context.clocks.wall_ms(),
            )
        except TidelogError as error:
            waiting.answers[at] = waiting.refused(entry, error)
            if partition is not None and partition.offline is not None:
                context.replicas.touched(
                    (entry.topic_id, entry.index)
                )  # who waits for it need not wait longer
            continue
        context.appended(partition, len(batch))
        context.replicas.touched((entry.topic_id, entry.index))
        owed = _Owed(
            entry,
            partition,
            partition.leader_epoch,
            appended.base_offset,
            appended.next_offset,
            appended.append_time,
        )
        if request.acks == ACKS_ALL:
            waiting.owed[at] = owed
        else:
            waiting.answers[at] = _written(owed)
    if request.acks == 0:
        return
    if waiting.try_complete():
        return
    keys = [(owed.entry.topic_id, owed.entry.index) for owed in waiting.owed.values()]
    context.replicas.wait(waiting, keys, context.clocks.now_ms() + request.timeout_ms)


def _check(request: Produce, incoming: Incoming) -> None:
    """What is wrong with the request as a whole, before anything of it is written."""
    if len({(entry.topic_id, entry.index) for entry in request.partitions}) != len(request.partitions):
        raise InvalidRequest("a partition is named twice: one batch of each is appended at a time")
    if request.acks == 0 and not incoming.one_way:
        raise InvalidRequest("acks=0 is never answered: it is sent without a correlation")


@dataclass(frozen=True, slots=True)
class _Owed:
    """A batch that was appended (or was there already) and is not yet committed."""

    entry: PartitionProduce
    partition: Partition
    leader_epoch: Epoch
    base_offset: Offset
    next_offset: Offset
    append_time: int


@dataclass(slots=True)
class _Waiting:
    """The answer to one request, batch by batch. A duplicate waits like the original did (I-22)."""

    context: Context
    incoming: Incoming
    answers: list[PartitionProduced | None]
    owed: dict[int, _Owed]

    def try_complete(self) -> bool:
        for at, owed in list(self.owed.items()):
            partition = owed.partition
            if partition.leader_epoch != owed.leader_epoch or partition.leadership is None:
                self._settle(at, self.refused(owed.entry, NotLeaderOrFollower(f"{partition}: another leads")))
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
            self._settle(at, self.refused(owed.entry, error(fact)))
        self._answer()

    def refused(self, entry: PartitionProduce, error: TidelogError) -> PartitionProduced:
        """The answer that a batch was not written, or that nobody knows; with whom to ask instead.

        Only DUPLICATE_SEQUENCE_NUMBER means success: written long ago, the offset is not known any more (5.3).
        """
        where = entry.topic_id, entry.index
        return PartitionProduced(
            *where, error=error.code, message=str(error), current_leader=self.context.leader(*where)
        )

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
        append_time=owed.append_time,
        log_start=owed.partition.log.log_start,
    )
