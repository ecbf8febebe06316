"""All replicas on this broker, and the answers that wait for them.

The broker's node tells it what the cluster has decided; requests and fetchers ask it for partitions. No asyncio
here: whoever changes a partition says `touched`, `grown` or `committed`, which the sessions of its followers hear (ADR 115), and the
node runs the waiting answers once per burst. Where something else is to be fetched than before, `asks_anew` is told.

What it keeps true (docs/REPLICATION.md; D8, D9, I-26, I-37):

* No role before this broker has replayed its own registration: an older image may name it leader of what it lost.
* Without a lease from the controller nothing is answered from state that another broker may have moved on from.
* A partition that the cluster no longer places here is not served, and its log is gone or kept aside.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from tidelog.broker.damage import may_be_cut
from tidelog.broker.leadership import Surroundings
from tidelog.broker.partition import Partition
from tidelog.controller.image import PartitionState
from tidelog.protocol.errors import DiskFull, NotLeaderOrFollower, StorageError, UnknownTopicId
from tidelog.protocol.types import NO_EPOCH, BrokerId, Epoch, TopicId, TopicPartition
from tidelog.replication.delayed import Delayed, Operation
from tidelog.replication.sessions import FetchSessions, Place, Session
from tidelog.storage.config import LogConfig
from tidelog.storage.data_directories import DataDirectories
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.files import NoRoom
from tidelog.storage.log import Log
from tidelog.storage.making import Making

States: TypeAlias = Mapping[Place, tuple[str, PartitionState]]
"""Partitions as the cluster has decided on them, with their topics' names."""


@dataclass(slots=True)
class Missing:
    """A replica that the cluster has placed here, and that has no log."""

    topic: str
    state: PartitionState
    why: str
    for_good: bool = False
    """Only a restart can mend it."""
    soon: bool = False
    """It waits for no more than some flushes: not worth telling the controller."""
    making: Making | None = None
    """Its log is being made, beside others."""


LOOKS: Final = 4
"""How often, within the lag that is allowed, leader and follower look at all that is followed; else at what has moved."""
AT_ONCE: Final = 4
"""So many logs are made where they are needed; of more, all are made in a worker thread."""


class Replicas:
    """The partitions of one broker, by topic id and number."""

    def __init__(
        self,
        data: DataDirectories,
        around: Surroundings,
        *,
        run_soon: Callable[[], None],
        propose_soon: Callable[[], None],
        wake_at: Callable[[int], None],
        make_soon: Callable[[], None] | None = None,
        config_of: Callable[[str], LogConfig] | None = None,
    ) -> None:
        self.data = data
        self.around = around
        self.partitions: dict[Place, Partition] = {}
        self.missing: dict[Place, Missing] = {}
        """Placed here, and not here yet."""
        self._leaving: dict[TopicPartition, Partition] = {}
        """Not placed here any more, and being flushed: removed when that is over."""
        self.delayed = Delayed()
        self.sessions = FetchSessions()
        self.waiting_fetches: dict[object, list[Callable[[], None]]] = {}
        """By the connection on which fetches wait, those of several consumers perhaps: how each is answered at once."""
        self.lease_until_ms = -1
        """On the clock that goes on while the machine sleeps; compared when a request is handled (2.14)."""
        self.fetches_sent = 0
        """By all fetchers of this process: each fetch has a number of its own."""
        self._fetches_heard: dict[BrokerId, tuple[Epoch, int]] = {}
        """The last fetch of each follower: its process, and its number."""
        self.proposing: dict[Place, Partition] = {}
        """Where a leader wants another ISR and has not been answered."""
        self.nearby_until_ms = -1
        """Until when consumers may read from followers because this broker has sent them there."""
        self.damage_found: Callable[[Partition], None] = lambda _: None
        """Told when something is wrong with a log: the controller is to hear of it."""
        self.asks_anew: Callable[[Place], None] = lambda _: None
        """Told where something else is to be fetched, or said of what is here, than before."""
        self._run_soon = run_soon
        self._wake_at = wake_at
        self._propose_soon = propose_soon
        self._make_soon = make_soon
        self._config_of = config_of
        self._to_make: dict[TopicPartition, Place] = {}
        """Logs that `begin_making` takes next."""
        self._being_made: set[TopicPartition] = set()
        """Names that a worker thread is busy with."""

    # ── what the cluster decides ──────────────────────────────────────────────────────────────────

    def adopt(self, changed: States, gone: Iterable[Place], now_ms: int, wall_ms: int) -> None:
        """Take over what one committed batch of the metadata log has changed: removed first, then led, followed."""
        for place in gone:
            self._leave(place)
        mine = {place: known for place, known in changed.items() if self.around.me in known[1].replicas}
        for place in changed:
            if place not in mine:
                self._leave(place)
        if self._make_soon is not None:
            new = [place for place in mine if self._needs_a_log(place, mine[place][0])]
            for place in new if len(new) > AT_ONCE else ():
                self._make_later(place, *mine.pop(place))
            if self._to_make:
                self._make_soon()
        for leading in (True, False):
            for place, (topic, state) in mine.items():
                if (state.leader == self.around.me) is leading:
                    self._adopt_one(place, topic, state, now_ms, wall_ms)

    def _adopt_one(self, place: Place, topic: str, state: PartitionState, now_ms: int, wall_ms: int) -> None:
        partition = self.partitions.get(place)
        if partition is None:
            if self._is_being_made(place):
                self.missing[place].state = state
                return
            self.missing[place] = Missing(topic, state, "its log is being made")
            partition = self._host(place, TopicPartition(topic, state.index), wall_ms)
            if partition is None:
                return
            self.partitions[place] = partition
            del self.missing[place]
        if self._config_of is not None:
            partition.log.reconfigure(self._config_of(topic))
        partition.tell_damage = lambda: self._is_damaged(place, partition)
        partition.tell_offline = lambda: self._is_offline(place)
        partition.adopt(state, self.around, now_ms)
        self.proposing.pop(place, None)
        self.look_at(partition)
        self.touched(place)
        self.asks_anew(place)

    def _host(self, place: Place, name: TopicPartition, wall_ms: int) -> Partition | None:
        """The partition with the log that is there, or with a new one; None: it is missing, and why is noted.

        A log of another topic is set aside; one that is on its way out goes first.
        """
        missing = self.missing[place]
        if name in self._leaving or name in self._being_made:
            missing.why, missing.soon = "the log that had its name is being flushed", True
            return None
        try:
            if name in self.data.offline and not self.data.open_again(name, wall_ms):
                error = self.data.offline[name]
                missing.why, missing.for_good = str(error), not isinstance(error, DiskFull)
                return None
            if name in self.data.logs and self.data.topic_ids[name] != place[0]:
                self.data.stray(name)
            log = self.data.logs.get(name) or self.data.create(name, place[0], wall_ms)
        except (DiskFull, NoRoom) as error:
            missing.why = f"its log could not be made: {error}"
            return None
        except StorageError as error:
            missing.why, missing.for_good = str(error), name in self.data.offline
            return None
        return self._partition(name, log)

    def _partition(self, name: TopicPartition, log: Log) -> Partition:
        return Partition(name, log, self.data.high_watermark(name), self.data.of(name).room)

    # ── many new logs ─────────────────────────────────────────────────────────────────────────────

    def _needs_a_log(self, place: Place, topic: str) -> bool:
        name = TopicPartition(topic, place[1])
        here = place in self.partitions or name in self.data.logs or name in self.data.offline
        return not here

    def _is_being_made(self, place: Place) -> bool:
        missing = self.missing.get(place)
        if missing is None:
            return False
        return missing.making is not None or TopicPartition(missing.topic, place[1]) in self._to_make

    def _make_later(self, place: Place, topic: str, state: PartitionState) -> None:
        name = TopicPartition(topic, place[1])
        if self._is_being_made(place):
            self.missing[place].state = state
            return
        self.missing[place] = Missing(topic, state, "its log is being made", soon=True)
        self._to_make[name] = place

    def begin_making(self, most: int) -> list[Making]:
        """The next logs to be made (`making.run`), with nothing in their way: others are left to `probe`."""
        begun: list[Making] = []
        while self._to_make and len(begun) < most:
            name, place = next(iter(self._to_make.items()))
            del self._to_make[name]
            missing = self.missing.get(place)
            if missing is None:
                continue
            in_the_way = (self.data.logs, self.data.offline, self._leaving, self._being_made)
            if any(name in others for others in in_the_way):
                continue
            try:
                missing.making = self.data.begin_making(name, place[0])
            except (NoRoom, StorageError) as error:
                missing.why, missing.soon = f"its log could not be made: {error}", False
                continue
            self._being_made.add(name)
            begun.append(missing.making)
        return begun

    def made(self, making: Making, now_ms: int, wall_ms: int) -> Partition | None:
        """That directory is there, or why it is not is known. The partition, if it is served from now on."""
        place = making.topic_id, making.partition.partition
        self._being_made.discard(making.partition)
        missing = self.missing.get(place)
        if missing is None or missing.making is not making:
            self.data.discard(making)  # it has left meanwhile
            return None
        missing.making = None
        try:
            if isinstance(making.error, NoRoom):
                self.data.discard(making)
                raise making.error
            if making.error is not None:
                self.data.could_not_make(making, making.error)
            log = self.data.create(making.partition, making.topic_id, wall_ms, made=True)
        except (NoRoom, StorageError) as error:
            missing.why, missing.soon = f"its log could not be made: {error}", False
            return None
        self.partitions[place] = self._partition(making.partition, log)
        del self.missing[place]
        self._adopt_one(place, missing.topic, missing.state, now_ms, wall_ms)
        return self.partitions[place]

    def _leave(self, place: Place) -> None:
        self.missing.pop(place, None)
        partition = self.partitions.pop(place, None)
        if partition is None:
            return
        self.proposing.pop(place, None)
        partition.go_offline("it is not placed on this broker any more")
        if partition.log.is_in_use:
            self._leaving[partition.name] = partition
        else:
            self._remove(partition)

    def _remove(self, partition: Partition) -> None:
        if partition.name in self.data.logs:
            self.data.remove(partition.name)

    def flush_ended(self, partition: Partition) -> None:
        """Now its log can be removed, if that waited for it; what takes its place comes with the next `probe`."""
        if self._leaving.get(partition.name) is partition and not partition.log.is_in_use:
            del self._leaving[partition.name]
            self._remove(partition)

    def reconfigure(self) -> None:
        """Settings of topics have changed."""
        if self._config_of is not None:
            for partition in self.partitions.values():
                partition.log.reconfigure(self._config_of(partition.name.topic))

    def batch_bytes_max(self, topic: str) -> int:
        """The largest batch that this broker takes for a topic as it leads it; 0: nobody has said."""
        return self._config_of(topic).max_message_bytes if self._config_of is not None else 0

    def probe(self, now_ms: int, wall_ms: int) -> list[Partition]:
        """Look whether a disk that was full has room again, and make what could not be made; once a second.

        The partitions that are served from now on.
        """
        # Of those that are offline as well: as long as one is full nobody writes to its disk.
        full = [each for each in self.partitions.values() if each.log.is_full]
        for partition in full:
            try:
                partition.log.probe(partition.room)
            except OSError as error:
                with suppress(StorageError):
                    partition.log.halt("look for room", error)
        hosted: list[Partition] = []
        for place, missing in list(self.missing.items()):
            if not missing.for_good and not self._is_being_made(place):
                self._adopt_one(place, missing.topic, missing.state, now_ms, wall_ms)
                hosted += [self.partitions[place]] if place in self.partitions else []
        return hosted

    def directory_failed(self, data: DataDirectory, why: str) -> None:
        """Nothing that lies there is served any more, nor made elsewhere: the next start looks what is left of it."""
        for place, partition in self.partitions.items():
            if partition.name in data.logs and partition.offline is None:
                self.proposing.pop(place, None)
                partition.go_offline(why)

    def log_start_saved(self, place: Place) -> None:
        """Its log starts higher, durably: those that fetch it are told, and those that it is fetched from."""
        self._sessions_hear(place, wake=False)
        self.asks_anew(place)

    def _is_offline(self, place: Place) -> None:
        self.touched(place)
        self.asks_anew(place)

    def _is_damaged(self, place: Place, partition: Partition) -> None:
        self.asks_anew(place)
        self.damage_found(partition)

    def offline(self) -> list[Place]:
        """The replicas that should be here and cannot be served."""
        broken = [place for place, partition in self.partitions.items() if partition.offline is not None]
        return broken + [place for place, missing in self.missing.items() if not missing.soon]

    @property
    def low_space(self) -> bool:
        """Whether records are refused for want of room in some directory, be there any now or not."""
        return any(data.room.low for data in self.data.serving)

    def unwritable(self) -> list[Place]:
        """What it leads and has no room for, where somebody else is in sync and may have."""
        return [
            place
            for place, partition in self.partitions.items()
            if partition.room.low
            and partition.leadership is not None
            and len(partition.leadership.state.isr) > 1
        ]

    def damaged(self) -> dict[Place, Epoch]:
        """The replicas on which nobody may count, and the leader epoch that each knows of.

        Not those that wait to be cut: of them the cluster has heard.
        """
        return {
            place: partition.leader_epoch
            for place, partition in self.partitions.items()
            if partition.damage is not None
            and partition.offline is None
            and not may_be_cut(partition.damage, partition.state, self.around.me)
        }

    def image_changed(self, now_ms: int) -> None:
        """Who is alive has changed: leaders look again who may join."""
        for place, partition in self.partitions.items():
            if partition.leadership is not None:
                partition.leadership.image_changed(now_ms)
                self.touched(place)  # deletions wait for the living, producers for the high watermark
                self.look_at(partition)

    def tick(self, now_ms: int) -> None:
        """Leaders look who has fallen behind; every half of the lag allowed."""
        for place, partition in self.partitions.items():
            if partition.leadership is not None:
                if partition.leadership.tick(now_ms):
                    self.touched(place)
                self.look_at(partition)

    def hears(self, follower: BrokerId, broker_epoch: Epoch, fetch_seq: int) -> bool:
        """Whether this is the latest fetch of that process; an older one was held back by a connection given up.

        It may say that the follower has what it has given up since, by beginning anew (ADR 0071).
        """
        process, latest = self._fetches_heard.get(follower, (NO_EPOCH, 0))
        if process == broker_epoch and 0 < fetch_seq <= latest:
            return False
        if fetch_seq and process <= broker_epoch:  # an older process is told so, partition by partition
            self._fetches_heard[follower] = broker_epoch, fetch_seq
        return True

    # ── what requests ask for ─────────────────────────────────────────────────────────────────────

    def has_lease(self, boot_ms: int) -> bool:
        """Whether the controller has vouched for this broker of late."""
        return boot_ms < self.lease_until_ms

    def at(self, topic_id: TopicId, index: int) -> Partition:
        """The replica of that partition."""
        partition = self.partitions.get((topic_id, index))
        if partition is None:
            missing = self.missing.get((topic_id, index))
            if missing is not None and missing.soon:  # who hears of its disk asks a second later
                raise NotLeaderOrFollower(f"{missing.topic}-{index} is not served here yet: {missing.why}")
            if missing is not None:
                raise StorageError(f"{missing.topic}-{index} is not served here: {missing.why}")
            raise UnknownTopicId(f"this broker has no partition {index} of topic {topic_id.hex()}")
        return partition

    def followed(self, leader: BrokerId) -> dict[Place, Partition]:
        """The partitions to fetch from that broker."""
        return {place: each for place, each in self.partitions.items() if each.fetches_from(leader)}

    def leaders(self) -> set[BrokerId]:
        """The brokers that something is to be fetched from."""
        return {p.followership.leading.leader for p in self.partitions.values() if p.followership is not None}

    def look_at(self, partition: Partition) -> None:
        """Something happened to a leader: if it wants another ISR, the controller is asked soon."""
        leadership = partition.leadership
        if leadership is not None and leadership.is_proposing:
            place = leadership.state.topic_id, leadership.state.index
            if place not in self.proposing:
                self.proposing[place] = partition
                self._propose_soon()

    # ── answers that wait ─────────────────────────────────────────────────────────────────────────

    def wait(
        self, operation: Operation, keys: Iterable[Hashable], deadline_ms: int, *, looked: bool = False
    ) -> None:
        """Let an answer wait for these places (or what else), unless it can be given now; it has a deadline.

        `looked`: it was seen in this very turn, after the last change, that it cannot.
        """
        if self.delayed.wait(operation, keys, deadline_ms, looked=looked):
            self._wake_at(deadline_ms)

    def touched(self, key: Hashable) -> None:
        """Something about that place has changed: answers that wait for it are tried soon, once per burst."""
        if self.delayed.touched(key):
            self._run_soon()
        self._sessions_hear(cast("Place", key))  # what is no place is followed by nobody

    def grown(self, place: Place) -> None:
        """Its log has more that is not committed: only replicas may have that, and they wait by their sessions.

        Whoever waits for the place is spared a look, and of producers there may be as many as there are requests.
        """
        self._sessions_hear(place)

    def committed(self, place: Place, now_ms: int) -> None:
        """More is committed there, or deleted everywhere: nothing that replicas wait for, unless consumers read there."""
        if now_ms < self.nearby_until_ms:
            self.touched(place)
            return
        self._sessions_hear(place, wake=False)
        if self.delayed.touched(place):
            self._run_soon()

    def _sessions_hear(self, place: Place, *, wake: bool = True) -> None:
        """Those who follow it look at it again, and those who wait for it at once."""
        for session in self.sessions.watching(place):
            if session.stirs(place):
                self._had_everything(place, session)
            if wake and self.delayed.touched(session):
                self._run_soon()

    def _had_everything(self, place: Place, session: Session) -> None:
        """What was not noted while it stood still: who falls behind from now on was in sync until its last fetch."""
        partition = self.partitions.get(place)
        if partition is not None and partition.leadership is not None:
            reader = session.reader
            partition.leadership.heard_until(reader.broker_id, reader.broker_epoch, session.used_ms)
