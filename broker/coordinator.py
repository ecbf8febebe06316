"""The groups that this broker coordinates: one shard for each partition of `__consumer_offsets` that it leads.

    leads, epoch E ──adopt──► LOADING ──load_some … up to the end──► loaded ──high watermark passes that end──► ACTIVE
         another leader, another epoch, or gone ──adopt──► thrown away: who waits is told NOT_COORDINATOR

What it keeps true (I-60; D9, D14):

* A group belongs to the partition crc32(its name) mod their number, for ever: the number is fixed at creation.
* A log that is not understood to its end is not served in part; reading it begins anew a second later. Where the log
  cannot be read another replica is to lead.
* Decisions are written in the epoch in which their shard was loaded, and with acks=all; what the log refuses has not
  happened, what it has taken may yet be committed, whatever its client was told.
* Without a lease nothing is answered: another broker may coordinate by now.

No asyncio here: the broker's node calls `adopt`, `load_some` and `tick`, and hands requests on.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias
from zlib import crc32

from tidelog.broker.coordinator_ends import AskBroker, gather_ends
from tidelog.broker.groups.description import View
from tidelog.broker.groups.draft import Decision
from tidelog.broker.groups.image import Group
from tidelog.broker.groups.lag import Ends
from tidelog.broker.groups.records import GROUPS_TOPIC, OffsetKey, Record, TargetKey, decoded, encoded
from tidelog.broker.groups.settings import GroupSettings
from tidelog.broker.groups.shard import Shard
from tidelog.broker.groups.topics import Topic, Topics
from tidelog.broker.groups.watch import EVERY_MS, LagWatch, TopicLag
from tidelog.broker.partition import Partition
from tidelog.broker.requests.context import Context
from tidelog.controller.image import Changes
from tidelog.protocol.batch import walk
from tidelog.protocol.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    CorruptMessage,
    DamagedLog,
    DiskFull,
    FencedLeaderEpoch,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    StorageError,
    TidelogError,
    UnsupportedFormat,
)
from tidelog.protocol.messages import ACKS_ALL, Reply
from tidelog.protocol.records import decode, encode
from tidelog.protocol.types import NO_OFFSET, Epoch, Offset, TopicId
from tidelog.replication.sessions import Place

logger = logging.getLogger(__name__)

LOAD_BYTES: Final = 64 * 1024
"""How much of a log is read at once; an event loop may breathe between two reads."""
BATCH_BYTES: Final = 512 * 1024
"""Decisions that are larger are cut, where it is safe."""
RELOAD_MS: Final = 1000
"""When a log is read anew that could not be read."""

Answer: TypeAlias = Callable[[Reply | TidelogError], None]
"""Takes the reply, or why there is none."""


def partition_of(group_id: str, partitions: int) -> int:
    """Which partition of the log of groups holds that group."""
    return crc32(group_id.encode("utf-8", "surrogatepass")) % partitions


@dataclass(slots=True)
class Held:
    """A shard, and where it is carried."""

    index: int
    place: Place
    partition: Partition
    leader_epoch: Epoch
    shard: Shard
    next_offset: Offset
    """What is to be loaded next."""
    end: Offset
    """Where the log ended when it began to be led: what is below must be loaded, and committed, before it serves."""
    not_before_ms: int = 0
    """When loading may go on, after it has failed."""
    why: str = ""
    """Why it has failed."""
    expire_ms: int = 0
    """When it is looked for offsets that are too old; each shard in its own turn."""

    @property
    def gone(self) -> tuple[str, int]:
        """What those wait for who need to know only that it is served here no more; its place is touched too often."""
        return GROUPS_TOPIC, self.index

    @property
    def is_loaded(self) -> bool:
        """Whether everything was read."""
        return self.next_offset >= self.end

    @property
    def is_led(self) -> bool:
        """Whether this broker leads still, in that epoch."""
        leads = self.partition.leadership is not None and self.partition.offline is None
        return leads and self.partition.leader_epoch == self.leader_epoch


class Coordinator:
    """See the module."""

    def __init__(
        self, context: Context, settings: GroupSettings, ask_broker: AskBroker | None = None
    ) -> None:
        self.context = context
        self.settings = settings
        self.ask_broker = ask_broker
        """How other brokers are asked how far their logs go; None: nobody is asked, and what they lead is unknown."""
        self.topics = Topics()
        self.held: dict[int, Held] = {}
        self.watch = LagWatch()
        self.sooner: Callable[[int], None] = lambda _: None
        """Told that time is to be told by then, which may be before `next_ms` has said."""

    # ── roles ─────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Take over the image as it is: what `adopt` is not told of because it has been there before."""
        for topic_id in self.context.image.topics:
            self._look_at_topic(topic_id)
        self._look_at_roles()

    def adopt(self, changes: Changes) -> bool:
        """Take over what a batch of the metadata log has changed, after the replicas have; whether there is to load."""
        version = self.topics.version
        for topic_id in dict.fromkeys((*changes.topics, *(place[0] for place in changes.partitions))):
            self._look_at_topic(topic_id)
        self._look_at_roles()
        if self.topics.version != version:
            for held in self._active():
                for group_id in held.shard.current.by_id:
                    self.context.replicas.touched((GROUPS_TOPIC, group_id))
        return self.has_to_load

    def _look_at_topic(self, topic_id: TopicId) -> None:
        image = self.context.image
        known = image.topics.get(topic_id)
        if known is None:
            self.topics.remove(topic_id)
            return
        racks = {broker.id: broker.rack for broker in image.brokers.values() if broker.rack}
        where: tuple[frozenset[str], ...] = ()
        if racks:
            states = [image.partitions[topic_id, index] for index in range(known.partitions)]
            where = tuple(
                frozenset(racks[each] for each in state.replicas if each in racks) for state in states
            )
        self.topics.put(Topic(topic_id, known.name, known.partitions, where))

    def _look_at_roles(self) -> None:
        for held in list(self.held.values()):
            if not held.is_led or self.context.replicas.partitions.get(held.place) is not held.partition:
                del self.held[held.index]
                self.context.replicas.touched(held.place)
                self.context.replicas.touched(held.gone)
                logger.info("groups.unloaded partition=%d epoch=%d", held.index, held.leader_epoch)
        topic_id = self.context.image.topic_ids.get(GROUPS_TOPIC)
        if topic_id is None:
            return
        for index in range(self.context.image.topics[topic_id].partitions):
            partition = self.context.replicas.partitions.get((topic_id, index))
            if partition is None or index in self.held:
                continue
            if partition.leadership is not None and partition.offline is None:
                self.held[index] = self._begin(index, (topic_id, index), partition)

    def _begin(self, index: int, place: Place, partition: Partition) -> Held:
        log, shard = partition.log, Shard(self.settings, self.topics)
        shard.deadlines.sooner = self.sooner
        return Held(index, place, partition, partition.leader_epoch, shard, log.log_start, log.end_offset)

    # ── to load ───────────────────────────────────────────────────────────────────────────────────

    @property
    def has_to_load(self) -> bool:
        """Whether `load_some` has something to do, now or when a log can be read again."""
        return any(not held.is_loaded for held in self.held.values())

    def load_some(self) -> bool:
        """Read a piece of a log that is to be loaded; whether there is more to read at once."""
        now_ms = self.context.clocks.now_ms()
        ready = [held for held in self.held.values() if not held.is_loaded and held.not_before_ms <= now_ms]
        if not ready:
            return False
        held = ready[0]
        try:
            self._load_slice(held)
            if held.is_loaded:
                held.shard.check_loaded()
        except DamagedLog as error:  # another one leads as soon as it can
            held.partition.found_damage(error)
            held.not_before_ms, held.why = now_ms + RELOAD_MS, str(error)
        except StorageError as error:
            held.partition.go_offline(
                str(error)
            )  # others have it, and lead as soon as the controller hears of it
            self._look_at_roles()
        except (UnsupportedFormat, CorruptMessage) as error:
            logger.error("groups.not_loaded partition=%d: %s", held.index, error)  # noqa: TRY400 -- it says it all
            anew = self._begin(held.index, held.place, held.partition)
            anew.end = held.end
            anew.not_before_ms, anew.why = now_ms + RELOAD_MS, str(error)
            self.held[held.index] = anew
        else:
            if held.is_loaded:
                logger.info(
                    "groups.loaded partition=%d groups=%d", held.index, len(held.shard.committed.by_id)
                )
                self._look_at(held)
        return any(not each.is_loaded and each.not_before_ms <= now_ms for each in self.held.values())

    @staticmethod
    def _load_slice(held: Held) -> None:
        read = held.partition.log.read(held.next_offset, LOAD_BYTES, held.end)
        for at, header in walk(read.data):
            if header.is_control:
                continue
            columns = decode(read.data, at)
            held.shard.load(
                decoded(key, value, offset)
                for key, value, offset in zip(columns.keys, columns.values, columns.offsets, strict=True)
            )
        # Where compaction has left nothing up to the end, a read returns nothing (KAFKA-9065).
        held.next_offset = max(read.next_offset, held.next_offset) if len(read.data) else held.end

    def _look_at(self, held: Held) -> None:
        """It serves when all that it has loaded is committed; and learns how far the rest is."""
        leadership = held.partition.leadership
        if leadership is None or leadership.known_high_watermark == NO_OFFSET:
            return
        if held.shard.is_active:
            held.shard.commit_to(leadership.high_watermark)
        elif held.is_loaded and leadership.high_watermark >= held.end:
            now_ms = self.context.clocks.now_ms()
            held.shard.activate(now_ms)
            held.expire_ms = now_ms + self.settings.offsets_retention_check_interval_ms + held.index * 1000

    def _active(self) -> Iterator[Held]:
        return (held for held in self.held.values() if held.shard.is_active and held.is_led)

    # ── whose it is ───────────────────────────────────────────────────────────────────────────────

    def place_of(self, group_id: str) -> Place | None:
        """The partition that holds the group; None: there is no such topic yet."""
        topic_id = self.context.image.topic_ids.get(GROUPS_TOPIC)
        if topic_id is None:
            return None
        return topic_id, partition_of(group_id, self.context.image.topics[topic_id].partitions)

    def of_group(self, group_id: str) -> Held:
        """The active shard that the group belongs to, or why it cannot be served here and now."""
        place = self.place_of(group_id)
        if place is None:
            raise CoordinatorNotAvailable(
                f"there is no topic {GROUPS_TOPIC} yet: ask who coordinates the group"
            )
        return self.at(place[1], group_id)

    def at(self, index: int, what: str) -> Held:
        """The active shard of that partition."""
        if not self.context.replicas.has_lease(self.context.clocks.boot_ms()):
            raise NotCoordinator("this broker has not heard from its controller for longer than its lease")
        held = self.held.get(index)
        if held is None and self._is_to_lead(index):
            raise CoordinatorLoadInProgress(
                f"{GROUPS_TOPIC}-{index}: this broker is to lead it, and is not ready to"
            )
        if held is None or not held.is_led:
            raise NotCoordinator(
                f"{what} is coordinated by the leader of {GROUPS_TOPIC}-{index}, not by this broker"
            )
        self._look_at(held)
        if not held.shard.is_active:
            raise CoordinatorLoadInProgress(
                held.why
                or f"{GROUPS_TOPIC}-{index}: loaded up to {held.next_offset} of {held.end}, or not committed"
            )
        return held

    @property
    def partition_count(self) -> int:
        """Into how many partitions groups are divided; 0: their topic is not made yet."""
        topic_id = self.context.image.topic_ids.get(GROUPS_TOPIC)
        return self.context.image.topics[topic_id].partitions if topic_id is not None else 0

    def _is_to_lead(self, index: int) -> bool:
        """Whether the cluster has decided that this broker leads that partition: its log may still be made."""
        place = self.context.image.topic_ids.get(GROUPS_TOPIC, b""), index
        known = self.context.image.partitions.get(place)
        replica = self.context.replicas.partitions.get(place)
        mine = known is not None and known.leader == self.context.replicas.around.me
        return mine and (replica is None or replica.offline is None)

    def served(self) -> tuple[list[Group], list[int]]:
        """Every group that is served here, as far as it is committed; and the partitions that are not loaded yet."""
        if not self.context.replicas.has_lease(self.context.clocks.boot_ms()):
            raise NotCoordinator("this broker has not heard from its controller for longer than its lease")
        groups: list[Group] = []
        missing = []
        for held in self.held.values():
            self._look_at(held)
            if held.shard.is_active and held.is_led:
                groups += held.shard.committed.by_id.values()
            else:
                missing.append(held.index)
        return groups, missing

    # ── to carry ──────────────────────────────────────────────────────────────────────────────────

    def carry(self, held: Held, decision: Decision, answer: Answer, timeout_ms: int) -> None:
        """Write what was decided, and answer when it is committed with all that it rests on."""
        try:
            self._write(held, decision)
        except TidelogError as error:
            self.context.replicas.touched(held.place)  # who waits for it may have to hear that it is over
            answer(refusal_of(error))
            return
        if decision.reply is None:
            return
        waiting = _Waiting(self, held, held.shard.rests_on(decision.group_id), decision.reply, answer)
        self.context.replicas.wait(waiting, (held.place,), self.context.clocks.now_ms() + timeout_ms)

    def _write(self, held: Held, decision: Decision) -> None:
        clocks, shard = self.context.clocks, held.shard
        for records in cut(decision.records):
            keys, values = encoded(records)
            wall_ms = clocks.wall_ms()
            batch = encode(values, keys, now_ms=wall_ms)
            appended = held.partition.produce(
                batch, ACKS_ALL, held.leader_epoch, now_ms=clocks.now_ms(), wall_ms=wall_ms
            )
            shard.written(Decision(decision.group_id, None, records), appended.next_offset, clocks.now_ms())
            self.context.appended(held.partition, len(batch))
        if decision.records:
            self.context.replicas.touched(held.place)
        if any(not isinstance(record.key, OffsetKey) for record in decision.records):
            self.context.replicas.touched((GROUPS_TOPIC, decision.group_id))

    def next_ms(self, soon_ms: int, late_ms: int) -> int | None:
        """When time is to be told next, between these two; None: nothing here needs it."""
        if not self.held:
            return None
        if not all(held.shard.is_active for held in self.held.values()):
            return soon_ms
        known = (held.shard.deadlines.deadline_ms for held in self.held.values())
        return max(soon_ms, min([late_ms, *(due_ms for due_ms in known if due_ms is not None)]))

    def tick(self) -> None:
        """Time has passed: to be told at least once a second."""
        clocks = self.context.clocks
        if not self.context.replicas.has_lease(clocks.boot_ms()):
            return
        now_ms = clocks.now_ms()
        if not all(held.is_led for held in self.held.values()):
            self._look_at_roles()  # a disk has failed, say: no decision of the cluster tells of that
        for held in list(self.held.values()):
            self._look_at(held)
            if held.shard.is_active and held.is_led:
                self._carry_all(held, held.shard.tick(now_ms, clocks.wall_ms()))
                if now_ms >= held.expire_ms:
                    held.expire_ms = now_ms + self.settings.offsets_retention_check_interval_ms
                    self._carry_all(held, held.shard.expire(clocks.wall_ms()))

        self.watch.tick(now_ms, self._ask_ends)

    def _ask_ends(self, heard: Callable[[dict[Place, Ends]], None]) -> None:
        groups = (group for held in self._active() for group in held.shard.committed.by_id.values())
        places = dict.fromkeys((place for group in groups for place in group.offsets), NO_OFFSET)
        gather_ends(self.context, self.ask_broker, places, EVERY_MS, heard, with_times=False)

    def watched(self) -> Iterator[tuple[Group, list[TopicLag]]]:
        """Every group that is served here, and how far it is behind; asking for it is what keeps that up to date."""
        clocks = self.context.clocks
        if self.watch.look(clocks.now_ms()):
            self.sooner(clocks.now_ms())
        view = View(self.topics, clocks.wall_ms())
        for held in self._active():
            for group in held.shard.committed.by_id.values():
                yield group, list(self.watch.told(group, view))

    def _carry_all(self, held: Held, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            try:
                self._write(held, decision)
            except TidelogError as error:
                # It has not happened, and is decided again: nobody waits for it.
                logger.warning("groups.not_written partition=%d: %s", held.index, error)


@dataclass(slots=True)
class _Waiting:
    """An answer that rests on what is not committed yet."""

    coordinator: Coordinator
    held: Held
    rests_on: Offset
    reply: Reply
    answer: Answer

    def try_complete(self) -> bool:
        held = self.held
        if self.coordinator.held.get(held.index) is not held or not held.is_led:
            self.answer(NotCoordinator(f"{GROUPS_TOPIC}-{held.index} is led by another broker now"))
            return True
        if held.partition.high_watermark < self.rests_on:
            return False
        held.shard.commit_to(held.partition.high_watermark)
        self.answer(self.reply)
        return True

    def give_up(self) -> None:
        held = self.held
        self.answer(
            CoordinatorNotAvailable(
                f"{GROUPS_TOPIC}-{held.index}: offset {self.rests_on - 1} is written but not committed yet"
            )
        )

    def fail(self, error: TidelogError) -> None:
        self.answer(error)


def cut(records: Sequence[Record]) -> Iterator[tuple[Record, ...]]:
    """The batches of a decision: one, unless it is too large; then cut behind targets and offsets, wherever what
    follows would make it so.
    """
    begin = size = 0
    for at, record in enumerate(records):
        more = _size(record)
        if size + more > BATCH_BYTES and at and isinstance(records[at - 1].key, TargetKey | OffsetKey):
            yield tuple(records[begin:at])
            begin, size = at, 0
        size += more
    if begin < len(records):
        yield tuple(records[begin:])


def _size(record: Record) -> int:
    keys, values = encoded((record,))
    return len(keys[0] or b"") + len(values[0] or b"") + 16


def refusal_of(error: TidelogError) -> TidelogError:
    """What a client is told when the log has refused a decision (5.6)."""
    if isinstance(error, NotLeaderOrFollower | FencedLeaderEpoch | StorageError):
        return NotCoordinator(str(error))
    if isinstance(error, NotEnoughReplicas | DiskFull) or error.retriable:
        return CoordinatorNotAvailable(str(error))
    return error


def gathered(count: int, done: Callable[[list[Reply | TidelogError]], None]) -> list[Answer]:
    """As many takers of answers, and what is called when each has got one."""
    found: list[Reply | TidelogError | None] = [None] * count
    left = count

    def take(at: int, answer: Reply | TidelogError) -> None:
        nonlocal left
        assert found[at] is None, "answered twice"
        found[at] = answer
        left -= 1
        if not left:
            done([each for each in found if each is not None])

    return [partial(take, at) for at in range(count)]
