"""Fetch: by followers and by consumers; answered at once, or when there is enough, or when time is up.

A follower's fetch tells the leader what it has: that is noted once, on arrival. What is answered is read anew
when the answer is made, all of it of one moment (docs/REPLICATION.md).

Two things make an answer come early without a byte in it: a replica that is nearer to the consumer (2.13), and, while
consumers do read from followers, a high watermark that a follower has not heard of for a while (2.11).
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, cast

from tidelog.broker.partition import Partition
from tidelog.broker.replicas import LOOKS
from tidelog.broker.requests.context import Context
from tidelog.protocol.errors import (
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    OffsetOutOfRange,
    TidelogError,
)
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import Fetch, FetchReply, PartitionFetch, PartitionFetched
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, NO_OFFSET, BrokerId, Epoch
from tidelog.replication.sessions import Place, Reader, Session, Told

FETCH_MAX_BYTES: Final = 10 << 20
"""An answer holds no more than this and one batch, whatever is asked for: it must fit into a frame (`Limits`)."""
NEARBY_MS: Final = 300_000
"""How long a consumer that was sent to a replica nearby may read there (`metadata.max.age.ms`)."""
WAIT_MAX_MS: Final = 60_000
"""For so long a fetch waits at most: until then that of a client that is gone is remembered."""
TOLD_WITHIN_MS: Final = 500
"""A follower that would wait for longer hears within this what is committed."""
NOTHING: Final = memoryview(b"")


def fetch(context: Context, incoming: Incoming) -> None:
    """Serve a fetch, or let it wait."""
    request = cast("Fetch", incoming.message)
    consumer = request.broker_id == NO_BROKER
    try:
        if not (
            consumer or context.replicas.hears(request.broker_id, request.broker_epoch, request.fetch_seq)
        ):
            raise InvalidFetchSessionEpoch(f"fetch {request.fetch_seq} comes after a later one")
        session = context.replicas.sessions.take(
            request.session_id,
            request.session_epoch,
            request.partitions,
            request.forget,
            context.clocks.now_ms(),
            reader=Reader(request.broker_id, request.broker_epoch, incoming.connection if consumer else None),
        )
    except (FetchSessionIdNotFound, InvalidFetchSessionEpoch) as error:
        incoming.reply(FetchReply(error=error.code, message=str(error)))
        return
    waiting = _Waiting(context, incoming, request, session)
    if consumer:
        session.look(context.clocks.now_ms(), 0)
        waiting.remember_epochs()
    else:
        waiting.take_note()
    context.replicas.sessions.begin_wait(session)
    if request.max_wait_ms == 0:
        waiting.give_up()
        return
    wait_ms = min(request.max_wait_ms, WAIT_MAX_MS)
    context.replicas.wait(waiting, waiting.keys(), context.clocks.now_ms() + wait_ms)
    if not waiting.answered:
        context.replicas.waiting_fetches.setdefault(incoming.connection, []).append(waiting.hurry)


def end_wait(context: Context, incoming: Incoming) -> None:
    """Whoever waits on this connection has something else to ask for: a partition that it did not follow before."""
    for hurry in context.replicas.waiting_fetches.get(incoming.connection, ()):
        hurry()


@dataclass(slots=True)
class _Waiting:
    """One fetch and its answer to be."""

    context: Context
    incoming: Incoming
    request: Fetch
    session: Session
    urgent: bool = field(default=False)
    """Something must be told at once: an error, or where the logs part."""
    answered: bool = field(default=False)
    reminded: bool = field(default=False)
    """Whether this answer is to come soon because of a high watermark that its follower does not know."""
    refused: set[Place] = field(default_factory=set)
    """Partitions of which nothing was noted: why, is told, also where nothing else is new."""
    nothing_new: bool = field(default=False)
    """In this very turn it was found that there is nothing to tell."""
    epochs: dict[Place, Epoch] = field(default_factory=dict)
    """A consumer's partitions that are here, and in which leadership they were when it asked."""

    # ── on arrival ────────────────────────────────────────────────────────────────────────────────

    def keys(self) -> list[Hashable]:
        """What it waits for: a replica for all that its session hears of, anybody else for what is committed."""
        places = self.session.partitions if self.request.broker_id == NO_BROKER else (self.session,)
        return [*places, self.incoming.connection]

    def remember_epochs(self) -> None:
        """Another leadership ends the waiting, also of a consumer that does not say in which it believes."""
        hosted = self.context.replicas.partitions
        self.epochs = {
            place: hosted[place].leader_epoch for place in self.session.partitions if place in hosted
        }

    def take_note(self) -> None:
        """The follower has told what it has: of those that have not moved that was noted before (ADR 115)."""
        now_ms, around = self.context.clocks.now_ms(), self.context.replicas.around
        # To an older process every partition says that it is; by one look at the image most are spared theirs.
        is_known = around.registered_epoch(self.request.broker_id) == self.request.broker_epoch
        self.session.look(now_ms, around.lag_max_ms // LOOKS if is_known else 0)
        nothing_new = is_known
        for asked in self.session.in_turn():
            place = asked.topic_id, asked.index
            if is_known and self._said_before(place, asked, now_ms):
                if self._says_nothing(asked):
                    self.session.settled(place)
                continue
            try:
                partition = self.context.replicas.at(*place)
                noted = partition.fetch_as_follower(
                    asked, self.request.broker_id, self.request.broker_epoch, now_ms
                )
            except TidelogError:
                self.refused.add(place)
                continue
            if noted.diverging is not None:
                self.refused.add(place)
            elif noted.news:
                self.context.replicas.committed(place, now_ms)
            self.context.replicas.look_at(partition)
            log = partition.log
            if asked.fetch_offset != log.end_offset or asked.log_start < log.log_start:
                nothing_new = False
        self.urgent = bool(self.refused)
        self.nothing_new = nothing_new and not self.urgent

    def _said_before(self, place: Place, asked: PartitionFetch, now_ms: int) -> bool:
        """Whether it has everything and says what it has said: most of what an idle cluster talks about, and cheap."""
        partition = self.context.replicas.partitions.get(place)
        leadership = partition.leadership if partition is not None else None
        if partition is None or leadership is None or asked.fetch_offset != leadership.high_watermark:
            return False
        log, at = partition.log, asked.fetch_offset
        last, latest = asked.last_fetched_epoch, log.epochs.latest
        return (
            (last == latest or (last == NO_EPOCH and at == log.log_start))
            and asked.current_leader_epoch == leadership.state.leader_epoch
            and asked.log_start == log.log_start
            and at >= log.purge_floor
            and leadership.heard_again(
                self.request.broker_id,
                broker_epoch=self.request.broker_epoch,
                fetch_offset=at,
                durable_offset=asked.durable_offset,
                log_start=asked.log_start,
                now_ms=now_ms,
            )
        )

    # ── while it waits ────────────────────────────────────────────────────────────────────────────

    def hurry(self) -> None:
        """Answer it soon, with what there is."""
        self.urgent = True
        self.context.replicas.touched(self.incoming.connection)

    def try_complete(self) -> bool:
        if self.incoming.closed:
            self._is_over()
            return True
        if not self.urgent and not self._enough():
            self._remind_of_commits()
            return False
        self.give_up()
        return True

    def _enough(self) -> bool:
        """Whether there are `min_bytes` to read, or something has happened that must be told."""
        if self.nothing_new:
            self.nothing_new = False  # the next look is in another turn
            return False
        wanted = max(self.request.min_bytes, 1)
        found = 0
        for asked in self.session.in_turn():
            try:
                news = self._readable(asked, wanted)
            except TidelogError:
                return True
            if news is None:
                return True
            found += news
            if found >= wanted:
                return True
        return False

    def _readable(self, asked: PartitionFetch, wanted: int) -> int | None:
        """How many bytes there are to read of it, up to its own limit; None: something else is to be told."""
        now_ms = self.context.clocks.now_ms()
        partition = self._partition(asked)
        if self.request.broker_id == NO_BROKER:
            if self.epochs.get((asked.topic_id, asked.index)) != partition.leader_epoch:
                return None
            if partition.check_consumer(asked, now_ms, nearby=bool(self.request.client_rack)) is not None:
                return None
            if self._nearer(partition, asked) != NO_BROKER:
                return None
            end = partition.high_watermark
        else:
            partition.led(asked.current_leader_epoch, to_replica=True)
            if self._throttled(partition) and self.context.throttle.room(now_ms) == 0:
                return 0
            told = self.session.told.get((asked.topic_id, asked.index))
            if told is not None and told.log_start < partition.log.log_start:
                return None  # a deletion waits for this follower
            end = partition.log.end_offset
        if end <= asked.fetch_offset:
            return 0
        if wanted == 1:
            return 1
        return min(partition.log.bytes_between(asked.fetch_offset, end), asked.max_bytes)

    def _remind_of_commits(self) -> None:
        """While consumers read from followers, tell those before long what is committed (2.11).

        And those that let this leader wait for long because there were no news: there are some now.
        """
        replicas, now_ms = self.context.replicas, self.context.clocks.now_ms()
        nearby, patient = now_ms < replicas.nearby_until_ms, self.request.max_wait_ms > TOLD_WITHIN_MS
        if self.reminded or self.request.broker_id == NO_BROKER or not (nearby or patient):
            return
        untold = False
        for place in self.session.moved:
            partition = replicas.partitions.get(place)
            if partition is None or partition.leadership is None:
                continue
            told = self.session.told.get(place, Told()).high_watermark
            if partition.leadership.known_high_watermark <= told:
                continue
            if now_ms < partition.nearby_until_ms:
                self._remind(now_ms + self.context.hwm_propagation_ms)
                return
            untold = True
        if patient and untold:
            self._remind(now_ms + TOLD_WITHIN_MS)

    def _remind(self, at_ms: int) -> None:
        self.reminded = True
        self.context.replicas.wait(_Reminder(self), (), at_ms)

    # ── the answer ────────────────────────────────────────────────────────────────────────────────

    def give_up(self) -> None:
        """Answer with what there is."""
        session = self.session
        self._is_over()
        left, served = min(self.request.max_bytes, FETCH_MAX_BYTES), list[Place]()
        entries: list[PartitionFetched] = []
        attachments: list[memoryview] = []
        to_follower = self.request.broker_id != NO_BROKER
        for asked in session.in_turn():
            if to_follower and self._says_nothing(asked):
                continue
            # The first batch is given whatever its size, so that an oversized one cannot stall its partition.
            room = min(asked.max_bytes, left) if attachments else max(min(asked.max_bytes, left), 1)
            entry, data = self._read(asked, room)
            if session.worth_telling(entry):
                entries.append(entry)
                if len(data):
                    attachments.append(data)
                    left -= len(data)
                    served.append((asked.topic_id, asked.index))
        session.served(served)
        self.incoming.reply(FetchReply(tuple(entries), session_id=session.session_id), *attachments)

    def fail(self, error: TidelogError) -> None:
        if not self.answered:
            self._is_over()
        self.incoming.refuse(error)

    def _says_nothing(self, asked: PartitionFetch) -> bool:
        """Whether a follower would be told what it knows: the end of most polls of an idle partition, and cheap."""
        place = asked.topic_id, asked.index
        if place in self.refused:
            return False
        told, partition = self.session.told.get(place), self.context.replicas.partitions.get(place)
        if told is None or partition is None:
            return False
        leadership, log = partition.leadership, partition.log
        return (
            leadership is not None
            and partition.offline is None
            and asked.current_leader_epoch == partition.leader_epoch
            and asked.fetch_offset == log.end_offset
            and told.high_watermark == leadership.known_high_watermark
            and told.log_start == log.log_start
            and told.purge_floor == log.purge_floor
        )

    def _is_over(self) -> None:
        self.answered = True
        self.context.replicas.sessions.end_wait(self.session)
        waiting, mine = self.context.replicas.waiting_fetches, self.incoming.connection
        if self.hurry in waiting.get(mine, ()):
            waiting[mine].remove(self.hurry)
            if not waiting[mine]:
                del waiting[mine]

    def _partition(self, asked: PartitionFetch) -> Partition:
        if self.request.broker_id != NO_BROKER:  # epochs protect a follower: no lease is needed
            return self.context.replicas.at(asked.topic_id, asked.index)
        return self.context.partition(asked.topic_id, asked.index)

    def _read(self, asked: PartitionFetch, room: int) -> tuple[PartitionFetched, memoryview]:
        where = asked.topic_id, asked.index
        try:
            if self.request.broker_id == NO_BROKER:
                return self._read_for_consumer(asked, room)
            return self._read_for_follower(asked, room)
        except TidelogError as error:
            hint = self.context.leader(*where)
            refetch_from = error.refetch_from if isinstance(error, OffsetOutOfRange) else NO_OFFSET
            refused = PartitionFetched(
                *where,
                error=error.code,
                message=str(error),
                refetch_from=refetch_from,
                current_leader=hint,
            )
            return refused, NOTHING

    def _read_for_consumer(self, asked: PartitionFetch, room: int) -> tuple[PartitionFetched, memoryview]:
        partition, now_ms = self._partition(asked), self.context.clocks.now_ms()
        nearby = bool(self.request.client_rack)
        nearer = self._nearer(partition, asked)
        if nearer != NO_BROKER:
            room = 0
            partition.nearby_until_ms = self.context.replicas.nearby_until_ms = now_ms + NEARBY_MS
        found = partition.read_for_consumer(asked, room, now_ms, nearby=nearby)
        entry = PartitionFetched(
            asked.topic_id,
            asked.index,
            records_size=len(found.data),
            high_watermark=found.high_watermark,
            last_stable_offset=found.high_watermark,
            log_start=found.log_start,
            diverging=found.diverging,
            preferred_read_replica=NO_BROKER if found.diverging is not None else nearer,
        )
        return entry, found.data

    def _read_for_follower(self, asked: PartitionFetch, room: int) -> tuple[PartitionFetched, memoryview]:
        partition, now_ms = self._partition(asked), self.context.clocks.now_ms()
        throttled = self._throttled(partition)
        if throttled:
            room = min(room, self.context.throttle.room(now_ms))
        found = partition.read_for_follower(asked, self.request.broker_id, self.request.broker_epoch, room)
        if throttled:
            self.context.throttle.spent(len(found.data))
        entry = PartitionFetched(
            asked.topic_id,
            asked.index,
            records_size=len(found.data),
            high_watermark=found.high_watermark,
            last_stable_offset=found.high_watermark,
            log_start=found.log_start,
            end_offset=found.end_offset,
            diverging=found.diverging,
            purge_floor=partition.log.purge_floor,
        )
        return entry, found.data

    def _throttled(self, partition: Partition) -> bool:
        """Whether this follower is being added and not in sync yet: nobody waits for what it lacks (4.11)."""
        state, follower = partition.state, self.request.broker_id
        return state is not None and follower in state.adding and follower not in state.isr

    def _nearer(self, partition: Partition, asked: PartitionFetch) -> BrokerId:
        """The replica in the consumer's rack that it should read from instead; -1: none, or it stands here (2.13)."""
        rack, brokers = self.request.client_rack, self.context.image.brokers
        leadership = partition.leadership
        if not rack or leadership is None or brokers[self.context.replicas.around.me].rack == rack:
            return NO_BROKER
        there = [
            member for member in leadership.state.isr if member in brokers and brokers[member].rack == rack
        ]
        return leadership.nearest(there, asked.fetch_offset)


@dataclass(frozen=True, slots=True)
class _Reminder:
    """A waiting follower is answered when this is due, so that it hears what is committed."""

    fetch: _Waiting

    def try_complete(self) -> bool:
        return self.fetch.answered

    def give_up(self) -> None:
        if not self.fetch.answered:
            self.fetch.hurry()

    def fail(self, error: TidelogError) -> None:
        """Nobody waits for it but the fetch, which has its own deadline."""
