"""Produce: append batches, and answer when they are as safe as the client asked (docs/REPLICATION.md)."""

from dataclasses import dataclass
from typing import NamedTuple, cast

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
from tidelog.storage.log import Appended


def produce(context: Context, incoming: Incoming) -> None:
    """Append each batch; with acks=all the answer waits for the high watermark."""
    request = cast("Produce", incoming.message)
    acks, entries = request.acks, request.partitions
    batches = split_attachment(incoming.attachment, entries)
    _check(request, incoming)
    replicas, now_ms, wall_ms = context.replicas, context.clocks.now_ms(), context.clocks.wall_ms()
    waiting = _Waiting(context, incoming, [None] * len(entries), {})
    for at, (entry, batch) in enumerate(zip(entries, batches, strict=True)):
        partition: Partition | None = None
        try:
            partition = context.partition(entry.topic_id, entry.index)
            if partition.name.topic == GROUPS_TOPIC:
                raise InvalidTopic(f"{GROUPS_TOPIC} is written by its coordinators alone")
            appended = partition.produce(batch, acks, entry.leader_epoch, now_ms=now_ms, wall_ms=wall_ms)
        except TidelogError as error:
            waiting.answers[at] = waiting.refused(entry, error)
            if partition is not None and partition.offline is not None:
                replicas.touched((entry.topic_id, entry.index))  # who waits for it need not wait longer
            continue
        context.appended(partition, len(batch))
        is_committed = partition.high_watermark >= appended.next_offset
        if is_committed:
            replicas.touched((entry.topic_id, entry.index))
        else:
            replicas.grown((entry.topic_id, entry.index))
        if acks == ACKS_ALL and not is_committed:
            waiting.owed[at] = _Owed(entry, partition, partition.leader_epoch, appended)
        else:
            waiting.answers[at] = _answer(entry, partition, appended)
    if acks == 0:
        return
    if not waiting.owed:
        waiting.answer()
        return
    keys = [(owed.entry.topic_id, owed.entry.index) for owed in waiting.owed.values()]
    # Of several the first may have changed while the last was written: its disk may have failed. So may the one of a lone
    # one, when it was looked for room behind the append.
    looked = len(entries) == 1 and all(
        owed.partition.leadership is not None for owed in waiting.owed.values()
    )
    replicas.wait(waiting, keys, now_ms + request.timeout_ms, looked=looked)


def _check(request: Produce, incoming: Incoming) -> None:
    """What is wrong with the request as a whole, before anything of it is written."""
    entries = request.partitions
    if len(entries) > 1 and len({(entry.topic_id, entry.index) for entry in entries}) != len(entries):
        raise InvalidRequest("a partition is named twice: one batch of each is appended at a time")
    if request.acks == 0 and not incoming.one_way:
        raise InvalidRequest("acks=0 is never answered: it is sent without a correlation")


class _Owed(NamedTuple):
    """A batch that was appended (or was there already) and is not yet committed."""

    entry: PartitionProduce
    partition: Partition
    leader_epoch: Epoch
    appended: Appended

    @property
    def next_offset(self) -> Offset:
        """Behind its last record."""
        return self.appended.next_offset


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
            leadership = partition.leadership
            if leadership is None or partition.leader_epoch != owed.leader_epoch:
                self._settle(at, self.refused(owed.entry, NotLeaderOrFollower(f"{partition}: another leads")))
            elif leadership.high_watermark >= owed.appended.next_offset:
                self._settle(at, _written(owed))
        if self.owed:
            return False
        self.answer()
        return True

    def give_up(self) -> None:
        for at, owed in list(self.owed.items()):
            leadership = owed.partition.leadership
            enough = leadership is None or leadership.has_enough_replicas
            error = RequestTimedOut if enough else NotEnoughReplicasAfterAppend
            fact = f"offset {owed.next_offset - 1} is written but not committed: {owed.partition}"
            self._settle(at, self.refused(owed.entry, error(fact)))
        self.answer()

    def fail(self, error: TidelogError) -> None:
        self.incoming.refuse(error)

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

    def answer(self) -> None:
        """Say what became of each batch, once that is known of all."""
        self.incoming.reply(ProduceReply(tuple(cast("list[PartitionProduced]", self.answers))))


def _written(owed: _Owed) -> PartitionProduced:
    return _answer(owed.entry, owed.partition, owed.appended)


def _answer(entry: PartitionProduce, partition: Partition, appended: Appended) -> PartitionProduced:
    return PartitionProduced(
        entry.topic_id,
        entry.index,
        base_offset=appended.base_offset,
        append_time=appended.append_time,
        log_start=partition.log.log_start,
    )
