"""Handing out the metadata log: to the other controllers and to brokers, committed or not (design 4.12, 4.14).

Whoever follows gets all that the leader has, for it may have to cut off what is never committed; how much of it
is committed is told with it. A controller's answer waits until there is more of either, a broker's until more is
committed: what is not means nothing to it, and so it hears of a change once. Each has a deadline.
"""

from typing import Final

from tidelog.controller.description import who_leads
from tidelog.controller.facts import METADATA, METADATA_TOPIC_ID
from tidelog.controller.metadata_log import MetadataLog
from tidelog.controller.progress import Progress
from tidelog.controller.quorum import Quorum
from tidelog.controller.snapshot_file import SnapshotId
from tidelog.protocol.errors import (
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    TidelogError,
    UnknownLeaderEpoch,
    UnknownTopicId,
)
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    EpochEnd,
    Fetch,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    Leader,
    PartitionFetch,
    PartitionFetched,
)
from tidelog.protocol.types import NO_BROKER, NO_OFFSET, BrokerId, Epoch, Offset
from tidelog.replication.deadlines import Deadlines
from tidelog.replication.delayed import Delayed
from tidelog.replication.fetch import check_place

PIECE_BYTES_MAX: Final = 1 << 20
"""The most of a snapshot that is handed out at a time."""
OBSERVER_FORGOTTEN_MS: Final = 300_000
"""For how long it is known of whoever does not vote that it has fetched."""


class Readers:
    """Those that fetch, and those whose answers wait."""

    def __init__(self, metadata: MetadataLog, quorum: Quorum) -> None:
        self.delayed = Delayed()
        self._deadlines = Deadlines(self.delayed)
        self._observers: dict[tuple[BrokerId, bytes | None], Progress] = {}
        self._metadata = metadata
        self._quorum = quorum

    def fetch(self, request: Fetch, incoming: Incoming, now_ms: int, loop_ms: int) -> bool:
        """One fetch. Whether more is committed by it: a voter's tells what it has on stable storage.

        `loop_ms` is the time of the event loop, by which it waits.
        """
        if len(request.partitions) != 1 or request.partitions[0].topic_id != METADATA_TOPIC_ID:
            raise UnknownTopicId("a controller has the metadata log, and nothing else to fetch")
        asked, log = request.partitions[0], self._metadata.log
        try:
            self._check_epoch(asked.current_leader_epoch)
            snapshot = self._metadata.archive.snapshots.snapshot_for(
                asked.fetch_offset, asked.last_fetched_epoch, log.log_start
            )
            if snapshot is not None:
                self._hear(request.broker_id, request.directory_id, now_ms)
                entry = PartitionFetched(
                    METADATA_TOPIC_ID,
                    0,
                    log_start=log.log_start,
                    end_offset=log.end_offset,
                    snapshot=EpochEnd(snapshot.epoch, snapshot.end),
                )
                incoming.reply(FetchReply((entry,)))
                return False
            parts = check_place(log, asked.fetch_offset, asked.last_fetched_epoch)
        except TidelogError as error:
            incoming.reply(FetchReply((self._refusal(error),)))
            return False
        committed = False
        if parts is None:
            self._observe(request, asked.fetch_offset, log.end_offset, now_ms)
        if parts is None and request.directory_id is not None:
            committed = self._quorum.on_fetch(
                request.broker_id, request.directory_id, asked.fetch_offset, log.end_offset, now_ms
            )
        diverging = EpochEnd(*parts) if parts is not None else None
        early = request.directory_id is not None or asked.high_watermark == NO_OFFSET
        waiting = _Waiting(self._metadata, self._quorum, asked, incoming, diverging, early=early)
        deadline_ms = loop_ms + request.max_wait_ms
        if self.delayed.wait(waiting, (METADATA,), deadline_ms):
            self._deadlines.wake_at(deadline_ms)
        return committed

    def observers(self, now_ms: int) -> dict[tuple[BrokerId, bytes | None], Progress]:
        """Who reads and does not vote: brokers, and controllers on a disk that does not count."""
        for reader, progress in list(self._observers.items()):
            if progress.silent_ms(now_ms) > OBSERVER_FORGOTTEN_MS:
                del self._observers[reader]
        return self._observers

    def _observe(self, request: Fetch, fetch_offset: Offset, log_end: Offset, now_ms: int) -> None:
        reader = request.broker_id, request.directory_id
        votes = (self._quorum.directories or {}).get(request.broker_id) == request.directory_id is not None
        if votes or request.broker_id == NO_BROKER:
            return
        progress = self._observers.get(reader)
        if progress is None:
            progress = self.observers(now_ms)[reader] = Progress(now_ms)
        progress.fetched(fetch_offset, log_end, now_ms)

    def _hear(self, voter: BrokerId, directory_id: bytes | None, now_ms: int) -> None:
        """A voter is there, but nothing of what it has counts before it has loaded a snapshot."""
        if directory_id is not None:
            self._quorum.on_fetch(voter, directory_id, NO_OFFSET, self._metadata.log.end_offset, now_ms)

    def fetch_snapshot(self, request: FetchSnapshot, incoming: Incoming, now_ms: int) -> None:
        """A piece of a snapshot: any node that has it has the same bytes."""
        if request.current_leader_epoch == self._quorum.epoch:
            self._hear(request.node_id, request.directory_id, now_ms)
        wanted, quorum = SnapshotId(request.snapshot.end_offset, request.snapshot.epoch), self._quorum
        snapshots = self._metadata.archive.snapshots
        piece = snapshots.read_at(wanted, request.position, min(request.max_bytes, PIECE_BYTES_MAX))
        reply = FetchSnapshotReply(
            size=piece.size,
            position=request.position,
            quorum_epoch=quorum.epoch,
            leader_id=quorum.leader_id,
        )
        incoming.reply(reply, piece.data)

    def give_up(self) -> None:
        """The leadership is over: whoever waits is told who leads now, if that is known."""
        self._observers.clear()
        self.delayed.expire(1 << 62)

    def _refusal(self, error: TidelogError) -> PartitionFetched:
        return refusal(error, self._quorum, self._metadata)

    def _check_epoch(self, believed: Epoch) -> None:
        """As `check_leader_epoch`, but a fetch of the metadata log always says: so its sender learns the epoch."""
        epoch = self._quorum.epoch
        if believed < epoch:
            raise FencedLeaderEpoch(f"the quorum's epoch is {epoch}, the fetch names {believed}")
        if believed > epoch:
            raise UnknownLeaderEpoch(f"the fetch names epoch {believed}, this controller knows {epoch}")
        if not self._quorum.leads:
            raise NotLeaderOrFollower(
                f"controller {self._quorum.me} does not lead in epoch {epoch}, {who_leads(self._quorum)}"
            )


def refusal(error: TidelogError, quorum: Quorum, metadata: MetadataLog) -> PartitionFetched:
    """Why there is nothing to read here, and who leads as far as this node knows."""
    return PartitionFetched(
        METADATA_TOPIC_ID,
        0,
        error.code,
        str(error),
        log_start=metadata.log.log_start,
        current_leader=Leader(quorum.leader_id, quorum.epoch),
    )


class _Waiting:
    """A fetch that waits for something to tell: records, or more of them committed."""

    def __init__(
        self,
        metadata: MetadataLog,
        quorum: Quorum,
        asked: PartitionFetch,
        incoming: Incoming,
        diverging: EpochEnd | None,
        *,
        early: bool,
    ) -> None:
        self._metadata = metadata
        self._quorum = quorum
        self._asked = asked
        self._incoming = incoming
        self._diverging = diverging
        self._early = early
        """Whether what is not committed is news."""

    def try_complete(self) -> bool:
        asked, log = self._asked, self._metadata.log
        committed = self._quorum.high_watermark
        more_committed = NO_OFFSET != asked.high_watermark < committed
        news = (log.end_offset if self._early else committed) > asked.fetch_offset or more_committed
        if not (news or self._diverging or self._incoming.closed):
            return False
        self.give_up()
        return True

    def give_up(self) -> None:
        asked, quorum, log = self._asked, self._quorum, self._metadata.log
        if not quorum.leads or quorum.epoch != asked.current_leader_epoch:
            error = FencedLeaderEpoch(f"epoch {asked.current_leader_epoch} is over, this is {quorum.epoch}")
            self._incoming.reply(FetchReply((refusal(error, quorum, self._metadata),)))
            return
        empty = self._diverging is not None or log.end_offset <= asked.fetch_offset
        data = memoryview(b"") if empty else log.read(asked.fetch_offset, asked.max_bytes).data
        entry = PartitionFetched(
            METADATA_TOPIC_ID,
            0,
            records_size=len(data),
            high_watermark=NO_OFFSET if self._diverging else quorum.high_watermark,
            log_start=log.log_start,
            end_offset=log.end_offset,
            diverging=self._diverging,
        )
        self._incoming.reply(FetchReply((entry,)), data)

    def fail(self, error: TidelogError) -> None:
        self._incoming.refuse(error)
