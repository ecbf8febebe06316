"""One replica of a partition on this broker: its log, and the role that the cluster gave it.

    NONE ──adopt──► LEADER ◄──adopt──► FOLLOWER          (any) ──go_offline──► OFFLINE until the process ends
                                                         (any) ──found_damage──► the same, and damaged (`damage`)

The rules are in `Leadership` and `Followership`; this carries them to the log and back, without an await: what
a request sees is one moment. Who may ask is checked in the order of docs/REPLICATION.md, and the first check
that fails decides the answer.

What it keeps true (I-5, I-9, I-19, I-22, I-38, I-75):

* log start <= high watermark <= end of the log, and the high watermark never goes back but by a permitted loss.
* Only a leader appends what clients send, only a follower what its leader sends, and only for the leadership
  that it was asked under.
* Nothing at or above the high watermark is handed to a consumer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from tidelog.broker.client_batch import check_client_batch, check_keyed, check_times
from tidelog.broker.damage import Damage, step_of_cut, with_damage
from tidelog.broker.leadership import Leadership, Surroundings
from tidelog.controller.image import PartitionState
from tidelog.protocol.batch import HEADER_SIZE, BatchHeader, read_header
from tidelog.protocol.errors import (
    DamagedLog,
    InvalidTimestamp,
    LeaderNotAvailable,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    ReplicaNotAvailable,
    StorageError,
    TidelogError,
)
from tidelog.protocol.messages import ACKS_ALL, EpochEnd, PartitionFetch
from tidelog.protocol.types import (
    NO_BROKER,
    NO_EPOCH,
    NO_OFFSET,
    BrokerId,
    Buffer,
    Epoch,
    Offset,
    TopicPartition,
)
from tidelog.replication.fetch import cannot_compare, check_leader_epoch, check_place
from tidelog.replication.followership import (
    Append,
    Followership,
    GoOffline,
    Leading,
    LogView,
    StartAt,
    Step,
    Truncate,
    Wait,
)
from tidelog.storage.log import Appended, Log
from tidelog.storage.producers import Duplicate
from tidelog.storage.room import Room
from tidelog.storage.times import OffsetAndTime

T = TypeVar("T")

EMPTY: Final = memoryview(b"")
FLUSH_MS: Final = 10
"""How soon to come again with what has to wait for a flush to end."""


class Readable(NamedTuple):
    """What a reader gets at one moment: every field is of the same state of the partition."""

    data: memoryview
    high_watermark: Offset
    log_start: Offset
    end_offset: Offset
    diverging: EpochEnd | None = None


class Noted(NamedTuple):
    """What came of a follower's fetch."""

    diverging: EpochEnd | None
    """Where its log parts from mine: then nothing was noted."""
    news: bool
    """More is committed, or deleted everywhere, than before: somebody may wait for it."""


@dataclass(slots=True)
class Loss:
    """Committed records that an unclean election took from this replica: told loudly."""

    first: Offset
    end: Offset


class Partition:
    """A replica, and what it is now."""

    __slots__ = (
        "_flush_first",
        "_follower_hwm",
        "_heard_from_leader_ms",
        "_lag_max_ms",
        "begun_anew",
        "damage",
        "followership",
        "leadership",
        "log",
        "losses",
        "name",
        "nearby_until_ms",
        "offline",
        "repairs",
        "room",
        "saved_log_start",
        "state",
        "tell_damage",
        "tell_offline",
    )

    def __init__(
        self, name: TopicPartition, log: Log, high_watermark: Offset, room: Room | None = None
    ) -> None:
        self.name = name
        self.log = log
        self.room = room or Room(log.directory.path)
        """Of the data directory that its log lies in."""
        self.state: PartitionState | None = None
        self.leadership: Leadership | None = None
        self.followership: Followership | None = None
        self.offline: str | None = None
        self.damage: Damage | None = None
        """What is wrong with the log; it is mended when the cluster no longer counts on it (ADR 105)."""
        self.tell_damage: Callable[[], None] = lambda: None
        self.tell_offline: Callable[[], None] = lambda: None
        """Called when something more is found to be wrong."""
        self.repairs = 0
        """How often the log was cut for damage."""
        self.losses: list[Loss] = []
        self.nearby_until_ms = -1
        """Until when consumers may read from my followers because I have sent them there."""
        self.saved_log_start = log.log_start
        """The log start as it is on stable storage: what a follower reports, and a leader counts on (ADR 0079)."""
        self.begun_anew = 0
        """How often the log began anew: what was being saved before is not saved then."""
        self._flush_first: Offset = 0
        """Nothing is served as leader before the log is durable up to here."""
        self._follower_hwm = high_watermark
        self._heard_from_leader_ms: int | None = None
        self._lag_max_ms = 0

    def __repr__(self) -> str:
        role = self.offline or self.leadership or self.followership or "no role"
        return f"<{self.name} {role} {self.log.log_start}..{self.high_watermark}..{self.log.end_offset}>"

    # ── what it is ────────────────────────────────────────────────────────────────────────────────

    @property
    def high_watermark(self) -> Offset:
        """Everything below it is committed, as far as this replica knows."""
        return self.leadership.high_watermark if self.leadership is not None else self._follower_hwm

    @property
    def leader_epoch(self) -> Epoch:
        """Of the leadership that was adopted last; -1 before the first."""
        return self.state.leader_epoch if self.state is not None else -1

    @property
    def leader(self) -> BrokerId:
        """Who leads, as far as is known here."""
        return self.state.leader if self.state is not None else NO_BROKER

    def adopt(self, state: PartitionState, around: Surroundings, now_ms: int) -> bool:
        """The cluster has decided. Whether the role or the leader epoch changed (waiting answers must be tried)."""
        if self.state is not None and state.partition_epoch <= self.state.partition_epoch:
            assert state.partition_epoch < self.state.partition_epoch or state == self.state, (
                self.state,
                state,
            )
            return False
        before, self.state = self.state, state
        self._lag_max_ms = around.lag_max_ms
        if self.offline is not None:
            return False
        same = before is not None and (before.leader, before.leader_epoch) == (
            state.leader,
            state.leader_epoch,
        )
        if state.leader == around.me:
            if same and self.leadership is not None:
                self.leadership.adopt(state, now_ms)
            else:
                self._lead(state, around, now_ms)
        elif same and self.followership is not None:
            self.followership.adopt(_leading(state))
        else:
            self._follow(state)
        return not same

    def _lead(self, state: PartitionState, around: Surroundings, now_ms: int) -> None:
        self.leadership = Leadership(
            around,
            state,
            log_start=self.log.log_start,
            end_offset=self.log.end_offset,
            durable_offset=self.log.durable_offset,
            high_watermark=self.high_watermark,
            now_ms=now_ms,
        )
        self.followership = None
        # Its high watermark it earned as a follower, which need not have flushed (ADR 0073).
        unclean = state.unclean_epoch == state.leader_epoch
        self._flush_first = self.log.end_offset if unclean and state.flush_group else 0

    def _follow(self, state: PartitionState) -> None:
        """Nothing is cut here: where the logs part, the leader will say (2.16)."""
        self._follower_hwm = self.high_watermark
        self.leadership = None
        self.followership = Followership(_leading(state)) if state.leader != NO_BROKER else None
        self._heard_from_leader_ms = None

    def go_offline(self, why: str) -> None:
        """The log is not to be trusted or cannot be written: serve nothing of it."""
        self._follower_hwm = self.high_watermark
        self.leadership = self.followership = None
        self.offline = why
        self.tell_offline()

    def found_damage(self, found: DamagedLog) -> None:
        """Bytes of the log are not what was written: from now on nothing more is fetched for it (ADR 105)."""
        if self.offline is None:
            before = self.damage
            self.damage = with_damage(before, self.log, self.leader_epoch, found)
            if self.damage != before:
                self.tell_damage()

    def cut_damaged(self, wall_ms: int) -> bool:
        """Give up all from the damaged segment on, a few segments at a time; whether that is done.

        Only where nobody counts on it any more (`damage.may_be_cut`).
        """
        assert self.damage is not None, self
        assert self.leadership is None, self
        offset = step_of_cut(self.damage, self.log)
        if offset > self.log.log_start:
            self.log.truncate_to(offset, wall_ms)
        else:
            self._begin_at(self.log.log_start)
        self._follower_hwm = min(self._follower_hwm, self.log.end_offset)
        if offset > self.damage.base_offset:
            return False
        self.damage = None
        self.repairs += 1
        return True

    # ── leading ───────────────────────────────────────────────────────────────────────────────────

    def led(self, believed_epoch: Epoch, *, to_replica: bool = False) -> Leadership:
        """My leadership, for a request made in that leader epoch; a client may leave it open by -1."""
        if self.offline is not None:
            raise StorageError(f"{self.name} is offline on this broker: {self.offline}")
        if self.state is not None:
            check_leader_epoch(believed_epoch, self.state.leader_epoch, must_say=to_replica)
        if self.leadership is None:
            raise NotLeaderOrFollower(self._who_leads())
        if self.log.durable_offset < self._flush_first:
            raise LeaderNotAvailable(f"{self.name}: this leader was elected uncleanly and flushes first")
        return self.leadership

    def _who_leads(self) -> str:
        if self.leader == NO_BROKER:
            return f"{self.name} has no leader in epoch {self.leader_epoch}"
        return f"broker {self.leader} leads {self.name} since epoch {self.leader_epoch}, this is another one"

    def produce(
        self, batch: Buffer, acks: int, believed_epoch: Epoch, *, now_ms: int, wall_ms: int
    ) -> Appended:
        """Append a client's batch; with acks=all the caller waits until `high_watermark` has passed its end."""
        if self.leadership is None and self.offline is None:
            # A client that asks the wrong broker is told so first, whatever epoch it believes in (2.5, 1 and 2).
            raise NotLeaderOrFollower(self._who_leads())
        leadership = self.led(believed_epoch)
        header = check_client_batch(batch, acks)
        if self.log.config.compacts:
            check_keyed(batch, self.log.check_new(batch, header), self.name)
        if not self.log.config.takes_any_time:
            self._check_times(batch, header, wall_ms)
        if acks == ACKS_ALL and not leadership.has_enough_replicas:
            self.log.check_new(batch, header)  # what no retry can mend is told before what one can
            raise NotEnoughReplicas(
                f"{self.name} has {len(leadership.state.isr)} replicas in sync, "
                f"min.insync.replicas is {leadership.state.min_isr}"
            )
        self._check_room(batch)
        try:
            appended = self.log.append(batch, leadership.state.leader_epoch, wall_ms, header)
        except DamagedLog as error:  # met before anything was written: another one leads as soon as it can
            self.found_damage(error)
            raise StorageError(str(error)) from error
        except StorageError as error:
            self.go_offline(str(error))
            raise
        leadership.appended(self.log.end_offset, now_ms)
        return appended

    def _check_room(self, batch: Buffer) -> None:
        """Below the low-space mark nothing new is taken, but what brokers write for groups: who reads goes on."""
        if self.room.low and not self.name.topic.startswith("__") and not self._is_repetition(batch):
            self.room.check()

    def _check_times(self, batch: Buffer, header: BatchHeader, wall_ms: int) -> None:
        """No record may be too old or too new; a repetition is not new, however old it has become."""
        self.log.check_new(batch, header)
        try:
            check_times(batch, self.log.config, wall_ms)
        except InvalidTimestamp:
            if not self._is_repetition(batch, header):
                raise

    def _is_repetition(self, batch: Buffer, header: BatchHeader | None = None) -> bool:
        """Whether it is in the log already: that it cannot be written now is no news of it."""
        return isinstance(self.log.producers.check(self.log.check_new(batch, header)), Duplicate)

    def fetch_as_follower(
        self, fetch: PartitionFetch, follower: BrokerId, broker_epoch: Epoch, now_ms: int
    ) -> Noted:
        """Take note of a follower's fetch, unless its log parts from mine."""
        leadership = self.led(fetch.current_leader_epoch, to_replica=True)
        parts = self._check_follower(leadership, fetch, follower, broker_epoch)
        if parts is not None:
            return Noted(parts, news=False)
        began = leadership.followers[follower].log_start
        moved = leadership.on_fetch(
            follower,
            broker_epoch=broker_epoch,
            fetch_offset=fetch.fetch_offset,
            durable_offset=fetch.durable_offset,
            log_start=fetch.log_start,
            now_ms=now_ms,
        )
        return Noted(None, news=moved or fetch.log_start != began)

    def _check_follower(
        self, leadership: Leadership, fetch: PartitionFetch, follower: BrokerId, broker_epoch: Epoch
    ) -> EpochEnd | None:
        leadership.check_replica(follower, broker_epoch)
        if cannot_compare(self.log, fetch.fetch_offset, fetch.last_fetched_epoch):
            leadership.check_beginning(follower, broker_epoch)
        self._check_purged(leadership, fetch, follower, broker_epoch)
        parts = check_place(self.log, fetch.fetch_offset, fetch.last_fetched_epoch)
        return EpochEnd(*parts) if parts is not None else None

    def _check_purged(
        self, leadership: Leadership, fetch: PartitionFetch, follower: BrokerId, broker_epoch: Epoch
    ) -> None:
        """Who ends below the purge floor may keep what a tombstone deleted that is gone by now: it begins anew (C7).

        Unless it is on its way from the log's start, with the very floor of today.
        """
        log, at = self.log, fetch.fetch_offset
        if at >= log.purge_floor:
            return
        if at <= log.log_start:
            leadership.copying[follower] = broker_epoch, log.purge_floor
        elif leadership.copying.get(follower) != (broker_epoch, log.purge_floor):
            raise OffsetOutOfRange(
                f"{self.name}: tombstones below {log.purge_floor} are gone, a replica that ends at {at} begins anew",
                log.log_start,
            )

    def read_for_follower(
        self, fetch: PartitionFetch, follower: BrokerId, broker_epoch: Epoch, max_bytes: int
    ) -> Readable:
        """Everything there is from its offset on, as much as fits; all checks anew, for time has passed."""
        leadership = self.led(fetch.current_leader_epoch, to_replica=True)
        parts = self._check_follower(leadership, fetch, follower, broker_epoch)
        if parts is not None:
            return Readable(EMPTY, NO_OFFSET, self.log.log_start, self.log.end_offset, parts)
        data = self._read(fetch.fetch_offset, max_bytes, self.log.end_offset)
        return Readable(data, leadership.known_high_watermark, self.log.log_start, self.log.end_offset)

    # ── serving consumers ─────────────────────────────────────────────────────────────────────────

    def check_consumer(self, fetch: PartitionFetch, now_ms: int, *, nearby: bool) -> EpochEnd | None:
        """Whether a consumer may read here from its offset; an answer is where its records part from this log.

        From a follower only if it wants what is `nearby`: whoever took this broker for the leader is told.
        """
        if nearby and self.leadership is None and self.followership is not None:
            self._check_as_follower(fetch, now_ms)
            return None
        self.led(fetch.current_leader_epoch)
        parts = check_place(self.log, fetch.fetch_offset, fetch.last_fetched_epoch)
        return EpochEnd(*parts) if parts is not None else None

    def _check_as_follower(self, fetch: PartitionFetch, now_ms: int) -> None:
        check_leader_epoch(fetch.current_leader_epoch, self.leader_epoch, must_say=True)
        heard = self._heard_from_leader_ms
        if heard is None or now_ms - heard > self._lag_max_ms:
            raise ReplicaNotAvailable(f"{self.name}: this replica has not heard from its leader of late")
        if fetch.fetch_offset > self.log.end_offset:
            # Not out of range: this replica may just be behind.
            raise OffsetNotAvailable(f"{self.name}: this replica ends at {self.log.end_offset}")
        check_place(self.log, fetch.fetch_offset, NO_EPOCH)

    def read_for_consumer(
        self, fetch: PartitionFetch, max_bytes: int, now_ms: int, *, nearby: bool = False
    ) -> Readable:
        """Committed records from its offset on, from the leader or, where the reader asked for it, a follower."""
        parts = self.check_consumer(fetch, now_ms, nearby=nearby)
        if parts is not None:
            return Readable(EMPTY, NO_OFFSET, self.log.log_start, self.log.end_offset, parts)
        data = self._committed(fetch.fetch_offset, max_bytes)
        leading = self.leadership
        committed = leading.known_high_watermark if leading is not None else self.high_watermark
        return Readable(data, committed, self.log.log_start, self.log.end_offset)

    def _committed(self, offset: Offset, max_bytes: int) -> memoryview:
        return self._read(offset, max_bytes, self.high_watermark)

    def _read(self, offset: Offset, max_bytes: int, below: Offset) -> memoryview:
        if offset >= below or max_bytes <= 0:
            return EMPTY
        return self._reading(lambda: self.log.read(offset, max_bytes, below).data)

    def _reading(self, read: Callable[[], T]) -> T:
        """A batch that should be there and cannot be read: others have it (1.9)."""
        try:
            return read()
        except DamagedLog as error:
            self.found_damage(error)
            raise StorageError(str(error)) from error
        except StorageError as error:
            self.go_offline(str(error))
            raise

    def find_time(self, timestamp: int) -> OffsetAndTime | None:
        """The first record with that timestamp or a later one, committed or not."""
        return self._reading(lambda: self.log.offset_for_time(timestamp))

    def find_largest_time(self, below: Offset) -> OffsetAndTime | None:
        """The first record with the largest timestamp of those below an offset."""
        return self._reading(lambda: self.log.largest_time(below))

    # ── following ─────────────────────────────────────────────────────────────────────────────────

    def fetches_from(self, leader: BrokerId) -> bool:
        """Whether it is to be fetched from that broker: not for a damaged log, which would say that it has it."""
        following = self.followership
        return following is not None and following.leading.leader == leader and self.damage is None

    def view(self) -> LogView:
        """The log as the follower's rules see it."""
        return LogView(self.log.log_start, self.log.end_offset, self._follower_hwm, self.log.epochs)

    def heard_from_leader(self, now_ms: int) -> None:
        """The leader has answered, be it that there is nothing new: what is here may be read by consumers."""
        self._heard_from_leader_ms = now_ms

    def carry_out(self, step: Step, data: Buffer, wall_ms: int) -> Step:
        """Carry out what an answer meant; the answer is the step that is left for the fetcher to take.

        Nothing is cut while a thread is busy with the log: that is for later.
        """
        assert self.followership is not None
        if self.damage is not None:  # asked for before that was known
            return Wait(FLUSH_MS)
        if isinstance(step, Append) and self._lies_below(step, data):
            step = StartAt(step.log_start)
        if self.log.is_in_use and (isinstance(step, Truncate | StartAt) or self._begins_within(step, data)):
            self.followership.not_cut()
            return Wait(FLUSH_MS)
        try:
            if isinstance(step, Append):
                self._append(step, data, wall_ms)
            elif isinstance(step, Truncate):
                self._truncate(step, wall_ms)
            elif isinstance(step, StartAt):
                self._start_at(step)
            elif isinstance(step, GoOffline):
                self.go_offline(step.why)
        except StorageError as error:
            self.go_offline(str(error))
            return GoOffline(str(error))
        except DamagedLog as error:
            self.found_damage(error)
            return Wait(FLUSH_MS)
        except TidelogError as error:  # the disk is full, or the batches do not continue this log
            self.followership.not_cut()
            return self.followership.on_bad_bytes(str(error))
        return step

    def _append(self, step: Append, data: Buffer, wall_ms: int) -> None:
        followership = self.followership
        assert followership is not None
        if len(data):
            self._append_to_log(step, data, followership.leading.leader_epoch, wall_ms)
        self._follower_hwm = followership.new_high_watermark(step, self.view())
        self.log.raise_log_start(followership.new_log_start(step.log_start, self.view()))

    def _begins_within(self, step: Step, data: Buffer) -> bool:
        """Whether these are batches for an empty log that begins within the first of them (3.3)."""
        if not isinstance(step, Append) or len(data) < HEADER_SIZE or not self.log.is_empty:
            return False
        first = read_header(data)
        return first.base_offset < self.log.log_start < first.next_offset

    def _lies_below(self, step: Append, data: Buffer) -> bool:
        """Whether the leader has deleted all that I have, and my log ends within a batch of its.

        Then its last records are of another history; their epochs cannot tell, for the leader has deleted its own
        there. As with any log that ends below its leader's start, nothing here is of use (3.6).
        """
        if step.log_start < self.log.end_offset or len(data) < HEADER_SIZE or self.log.is_empty:
            return False
        return read_header(data).base_offset < self.log.end_offset

    def _append_to_log(self, step: Append, data: Buffer, leader_epoch: Epoch, wall_ms: int) -> None:
        """Append; into an empty log that begins within the first batch, from that batch's beginning (3.3)."""
        if not self._begins_within(step, data):
            self.log.append_as_follower(data, leader_epoch, wall_ms, gaps=step.gaps)
            return
        start = self.log.log_start
        self._begin_at(read_header(data).base_offset)
        try:
            self.log.append_as_follower(data, leader_epoch, wall_ms, gaps=step.gaps)
        except TidelogError:
            self._begin_at(start)
            raise
        self.log.raise_log_start(start)

    def _start_at(self, step: StartAt) -> None:
        committed = self._follower_hwm
        self._begin_at(step.offset)
        self._follower_hwm = step.offset
        if step.loses_committed:
            self.losses.append(Loss(step.offset, committed))

    def _begin_at(self, offset: Offset) -> None:
        self.begun_anew += 1
        self.log.truncate_fully_and_start_at(offset)
        self.saved_log_start = offset  # the name of its first segment says so

    def log_start_saved(self, offset: Offset, begun_anew: int) -> None:
        """That log start is on stable storage, unless the log began anew since it was read."""
        if begun_anew == self.begun_anew:
            self.saved_log_start = max(self.saved_log_start, offset)

    def _truncate(self, step: Truncate, wall_ms: int) -> None:
        committed = self._follower_hwm
        self.log.truncate_to(step.offset, wall_ms)
        self._follower_hwm = min(committed, self.log.end_offset)
        if step.loses_committed:
            self.losses.append(Loss(step.offset, committed))

    # ── both ──────────────────────────────────────────────────────────────────────────────────────

    def flushed(self, now_ms: int) -> bool:
        """The log's durable offset has moved. Whether the high watermark did."""
        return self.leadership is not None and self.leadership.flushed(self.log.durable_offset, now_ms)

    @property
    def low_watermark(self) -> Offset:
        """As leader: the log start that all have reached durably who may lead without an unclean election (ADR 0079).

        Whoever of them has not fetched in this leader epoch may begin anywhere: then it is -1, as where I do not
        lead. Who joins them later has deleted as much (`Leadership`).
        """
        leadership = self.leadership
        if leadership is None:
            return NO_OFFSET
        needed = leadership.maximal_isr | set(leadership.state.elr)
        starts = [known.log_start for replica, known in leadership.followers.items() if replica in needed]
        return min([self.log.log_start, *starts])

    def delete_before(self, offset: Offset) -> None:
        """As leader: records below `offset` are no longer wanted; -1 means everything committed."""
        leadership = self.led(NO_EPOCH)
        wanted = self.high_watermark if offset == NO_OFFSET else offset
        if not 0 <= wanted <= self.high_watermark:
            raise OffsetOutOfRange(f"{self.name} is committed up to {self.high_watermark}, not {wanted}")
        self.log.raise_log_start(wanted)
        leadership.raise_log_start(self.log.log_start)


def _leading(state: PartitionState) -> Leading:
    return Leading(state.leader, state.leader_epoch, state.unclean_epoch)
