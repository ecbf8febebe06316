"""Fetch: by followers and by consumers; answered at once, or when there is enough, or when time is up.

A follower's fetch tells the leader what it has: that is noted once, on arrival. What is answered is read anew
when the answer is made, all of it of one moment (docs/REPLICATION.md).
"""

from dataclasses import dataclass, field
from typing import cast

from tidelog.broker.partition import Partition, Readable
from tidelog.broker.requests.context import Context
from tidelog.protocol.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch, TidelogError
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import Fetch, FetchReply, Leader, PartitionFetch, PartitionFetched
from tidelog.protocol.types import NO_BROKER
from tidelog.replication.sessions import Session


def fetch(context: Context, incoming: Incoming) -> None:
    """Serve a fetch, or let it wait."""
    request = cast("Fetch", incoming.message)
    consumer = request.broker_id == NO_BROKER
    try:
        session = context.replicas.sessions.take(
            request.session_id,
            request.session_epoch,
            request.partitions,
            request.forget,
            context.clocks.now_ms(),
            reader=(request.broker_id, request.broker_epoch, incoming.connection if consumer else None),
        )
    except (FetchSessionIdNotFound, InvalidFetchSessionEpoch) as error:
        incoming.reply(FetchReply(error=error.code, message=str(error)))
        return
    waiting = _Waiting(context, incoming, request, session)
    if not consumer:
        waiting.take_note()
    if request.max_wait_ms == 0:
        waiting.give_up()
        return
    keys = list(session.partitions)
    context.replicas.delayed.wait(waiting, keys, context.clocks.now_ms() + request.max_wait_ms)


@dataclass(slots=True)
class _Waiting:
    """One fetch and its answer to be."""

    context: Context
    incoming: Incoming
    request: Fetch
    session: Session
    urgent: bool = field(default=False)
    """Something must be told at once: an error, or where the logs part."""

    def take_note(self) -> None:
        """The follower has told what it has."""
        now_ms = self.context.clocks.now_ms()
        for asked in self.session.partitions.values():
            try:
                partition = self.context.replicas.at(asked.topic_id, asked.index)
                before = partition.high_watermark
                diverges = partition.fetch_as_follower(
                    asked, self.request.broker_id, self.request.broker_epoch, now_ms
                )
            except TidelogError:
                self.urgent = True
                continue
            if diverges is not None:
                self.urgent = True
            elif partition.high_watermark > before:
                self.context.replicas.touched((asked.topic_id, asked.index))
            self.context.replicas.look_at(partition)

    def try_complete(self) -> bool:
        if self.incoming.closed:
            return True
        if not self.urgent and not self._enough():
            return False
        self.give_up()
        return True

    def give_up(self) -> None:
        """Answer with what there is."""
        request, session = self.request, self.session
        left, served = request.max_bytes, 0
        entries: list[PartitionFetched] = []
        attachments: list[memoryview] = []
        for asked in session.in_turn():
            # The first batch is given whatever its size, so that an oversized one cannot stall its partition.
            room = min(asked.max_bytes, left) if attachments else max(min(asked.max_bytes, left), 1)
            entry, data = self._read(asked, room)
            if session.worth_telling(entry):
                entries.append(entry)
                if len(data):
                    attachments.append(data)
                    left -= len(data)
                    served += 1
        session.stopped_before(served)
        self.incoming.reply(FetchReply(tuple(entries), session_id=session.session_id), *attachments)

    def _enough(self) -> bool:
        """Whether there are `min_bytes` to read, or something has gone wrong that must be told."""
        wanted = self.request.min_bytes
        found = 0
        for asked in self.session.partitions.values():
            try:
                partition = self._partition(asked)
                end = partition.high_watermark
                if self.request.broker_id != NO_BROKER:
                    partition.led(asked.current_leader_epoch, to_replica=True)
                    end = partition.log.end_offset
                if end > asked.fetch_offset:
                    if wanted <= 1:
                        return True
                    found += min(partition.log.bytes_between(asked.fetch_offset, end), asked.max_bytes)
            except TidelogError:
                return True
            if found >= max(wanted, 1):
                return True
        return False

    def _partition(self, asked: PartitionFetch) -> Partition:
        replicas = self.context.replicas
        if self.request.broker_id != NO_BROKER:
            return replicas.at(asked.topic_id, asked.index)  # epochs protect a follower: no lease is needed
        return self.context.partition(asked.topic_id, asked.index)

    def _read(self, asked: PartitionFetch, room: int) -> tuple[PartitionFetched, memoryview]:
        partition: Partition | None = None
        try:
            partition = self._partition(asked)
            if self.request.broker_id != NO_BROKER:
                partition.led(asked.current_leader_epoch, to_replica=True).check_replica(
                    self.request.broker_id, self.request.broker_epoch
                )
                found = partition.read_for_follower(asked, room)
            else:
                found = partition.read_for_consumer(asked, room, self.context.clocks.now_ms())
        except TidelogError as error:
            return _refused(asked, error, partition), memoryview(b"")
        return _answer(asked, found, to_replica=self.request.broker_id != NO_BROKER), found.data


def _answer(asked: PartitionFetch, found: Readable, *, to_replica: bool) -> PartitionFetched:
    return PartitionFetched(
        asked.topic_id,
        asked.index,
        records_size=len(found.data),
        high_watermark=found.high_watermark,
        last_stable_offset=found.high_watermark,
        log_start=found.log_start,
        end_offset=found.end_offset if to_replica else -1,
        diverging=found.diverging,
    )


def _refused(asked: PartitionFetch, error: TidelogError, partition: Partition | None) -> PartitionFetched:
    hint = None
    if partition is not None and partition.leader != NO_BROKER:
        hint = Leader(partition.leader, partition.leader_epoch)
    return PartitionFetched(
        asked.topic_id, asked.index, error=error.code, message=str(error), current_leader=hint
    )
