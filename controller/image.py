"""The cluster as the committed facts of the metadata log add up to it: who exists, and who has which partition.

A fold: `replay` takes a batch, and all of its facts hold from then on; the same on every node and after every
restart. Nothing else changes an image. What it holds (`PartitionState`, `BrokerState`) are values, replaced and
never changed: whoever holds one sees one moment. The image itself is of the last batch: look again after an await.

What it keeps true (design 4.1, 4.10; I-18, I-43, I-51), or InconsistentMetadata stops the node, because two
controllers have written or a replay has gone astray:

* A partition's epoch grows by one with every change; its leader epoch by one when the leader changes or a replica
  leaves, else it stays or grows by one.
* isr and elr share nobody and lie within the replicas, the leader lies in the isr, a full isr leaves no elr.
* Whoever is in an isr is registered and not fenced: a broker leaves every isr before it is fenced, registered
  anew or unregistered.
* A registration's epoch is the offset of its record, so it grows; no fact is about an older registration.
* The indexes are what `Indexes.of` computes from scratch.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec.structs import astuple

from tidelog.controller.facts import (
    NOBODY,
    BrokerChanged,
    BrokerRegistered,
    BrokerUnregistered,
    ClusterInitialized,
    ConfigChanged,
    Fact,
    FeatureChanged,
    LeaderElected,
    NothingHappened,
    PartitionChanged,
    PartitionCreated,
    PartitionFact,
    Place,
    ProducerIdsTaken,
    TopicCreated,
    TopicRemoved,
    Voter,
    VotersNamed,
    facts_in,
)
from tidelog.protocol.batch import read_header
from tidelog.protocol.errors import InconsistentMetadata, UnsupportedFormat
from tidelog.protocol.messages.shapes import ListenerEndpoint
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, BrokerId, Buffer, Epoch, Offset, TopicId

K = TypeVar("K")

ConfigKey: TypeAlias = tuple[str, str, str]
"""Of what kind of thing (`cluster`, `broker`, `topic`, `group`), of which one, and which setting."""


FACTS_PER_STEP: Final = 50
"""Facts that are added up before an event loop may breathe."""


class PartitionState(msgspec.Struct, frozen=True, gc=False):
    """What the cluster has decided about one partition; a struct, for they are made by the thousand.

    `leader_epoch` grows when the leader changes or a replica leaves; `partition_epoch` by one at every change.
    """

    topic_id: TopicId
    index: int
    replicas: tuple[BrokerId, ...]
    """In order of preference: the first leads when it can."""
    isr: tuple[BrokerId, ...]
    """Who must have a record before it is committed."""
    leader: BrokerId = NO_BROKER
    leader_epoch: Epoch = 0
    partition_epoch: Epoch = 0
    min_isr: int = 1
    """How many must be in sync for anything to be committed; clamped to the number of replicas."""
    elr: tuple[BrokerId, ...] = ()
    """Outside the ISR, but guaranteed to hold every committed record."""
    last_known_elr: tuple[BrokerId, ...] = ()
    """Whom to ask when nobody is guaranteed to hold everything (unclean recovery)."""
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    unclean_epoch: Epoch = NO_EPOCH
    """The leader epoch of the last unclean election: what older epochs committed may be lost."""
    recovering: bool = False
    """Elected uncleanly and not yet confirmed by its leader."""
    flush_group: bool = False
    """Whether a record counts only when it is on stable storage (`flush.mode=group`)."""

    @property
    def place(self) -> Place:
        """Which partition this is."""
        return self.topic_id, self.index

    def created(self) -> PartitionCreated:
        """The fact that begins with this state."""
        return PartitionCreated(*astuple(self))

    def changed(self) -> PartitionChanged:
        """The fact that leads to this state."""
        return PartitionChanged(*astuple(self))


assert PartitionState.__struct_fields__ == PartitionFact.__struct_fields__


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A registered broker."""

    id: BrokerId
    epoch: Epoch
    """This registration: the offset of its record."""
    incarnation_id: bytes
    """The process."""
    directory_id: bytes
    """Its disk, the first one of several."""
    host: str
    port: int
    rack: str = ""
    fenced: bool = True
    """It leads nothing and is in no ISR."""
    shutting_down: bool = False
    """It leads only where nobody else can, and joins no ISR."""
    offline: frozenset[Place] = frozenset()
    """Replicas that it cannot serve."""
    low_space: bool = False
    """It refuses records for want of room: others are preferred."""
    damaged: frozenset[Place] = frozenset()
    """Replicas that are damaged, and nobody else is in sync (ADR 105)."""
    start: int = 0
    """Which start of a process on its disk this is; an earlier one is never registered after it (ADR 74)."""
    listeners: tuple[ListenerEndpoint, ...] = ()
    """Its other listeners, as those who come in by them are told (ADR 102)."""
    directories: tuple[bytes, ...] = ()
    """All its disks; empty: it has said nothing of others than the one above (ADR 106)."""


_REGISTERED: Final = BrokerRegistered.__struct_fields__[2:]
"""What a registration says of a broker, besides which one it is and from when on."""


class TopicState(NamedTuple):
    """A topic; its partitions are numbered from 0 without gaps."""

    id: TopicId
    name: str
    partitions: int


class Changes(NamedTuple):
    """What a batch was about, each once, in the order of the facts; look up in the image what became of it."""

    partitions: tuple[Place, ...]
    """Created, changed or gone."""
    brokers: tuple[BrokerId, ...]
    topics: tuple[TopicId, ...]
    """Created or gone."""
    configs: tuple[ConfigKey, ...]


@dataclass(slots=True)
class Indexes:
    """Derived: which broker is where, so that fencing one does not look at every partition."""

    in_isr: dict[BrokerId, set[Place]] = field(default_factory=dict)
    in_elr: dict[BrokerId, set[Place]] = field(default_factory=dict)
    in_replicas: dict[BrokerId, set[Place]] = field(default_factory=dict)
    leaderless: set[Place] = field(default_factory=set)
    moving: set[Place] = field(default_factory=set)

    @classmethod
    def of(cls, partitions: Iterable[PartitionState]) -> "Indexes":
        """From scratch."""
        indexes = cls()
        for state in partitions:
            indexes.enter(state)
        return indexes

    def copy(self) -> "Indexes":
        """The same, to go on by itself."""
        isr, elr, replicas = (
            {broker: set(places) for broker, places in index.items()}
            for index in (self.in_isr, self.in_elr, self.in_replicas)
        )
        return Indexes(isr, elr, replicas, set(self.leaderless), set(self.moving))

    def enter(self, state: PartitionState) -> None:
        """A partition has this state."""
        place = state.place
        for index, brokers in self._of(state):
            for broker in brokers:
                _enter(index, broker, place)
        self._mark(state)

    def leave(self, state: PartitionState) -> None:
        """It had this state until now."""
        place = state.place
        for index, brokers in self._of(state):
            for broker in brokers:
                _leave(index, broker, place)
        self.leaderless.discard(place)
        self.moving.discard(place)

    def move(self, before: PartitionState, after: PartitionState) -> None:
        """It had one state until now and has another: where nothing differs, nothing is done."""
        place = after.place
        for (index, old), (_, new) in zip(self._of(before), self._of(after), strict=True):
            if old != new:
                for broker in old:
                    if broker not in new:
                        _leave(index, broker, place)
                for broker in new:
                    if broker not in old:
                        _enter(index, broker, place)
        self._mark(after)

    def _mark(self, state: PartitionState) -> None:
        place = state.place
        (self.leaderless.add if state.leader == NO_BROKER else self.leaderless.discard)(place)
        (self.moving.add if state.adding or state.removing else self.moving.discard)(place)

    def _of(
        self, state: PartitionState
    ) -> tuple[tuple[dict[BrokerId, set[Place]], tuple[BrokerId, ...]], ...]:
        return (self.in_isr, state.isr), (self.in_elr, state.elr), (self.in_replicas, state.replicas)


def _enter(index: dict[BrokerId, set[Place]], broker: BrokerId, place: Place) -> None:
    places = index.get(broker)
    if places is None:
        places = index[broker] = set()
    places.add(place)


def _leave(index: dict[BrokerId, set[Place]], broker: BrokerId, place: Place) -> None:
    places = index[broker]
    places.remove(place)
    if not places:
        del index[broker]


class Image:
    """The cluster as of `end_offset` of the metadata log."""

    __slots__ = (
        "_seen",
        "brokers",
        "cluster_id",
        "configs",
        "created_ms",
        "end_offset",
        "features",
        "format",
        "indexes",
        "next_producer_id",
        "partitions",
        "topic_ids",
        "topics",
        "voters",
    )

    def __init__(self) -> None:
        self.end_offset: Offset = 0
        """Everything below it in the metadata log is in here."""
        self.cluster_id: bytes | None = None
        self.created_ms = 0
        self.format = 0
        self.brokers: dict[BrokerId, BrokerState] = {}
        self.topics: dict[TopicId, TopicState] = {}
        self.topic_ids: dict[str, TopicId] = {}
        """By name."""
        self.partitions: dict[Place, PartitionState] = {}
        self.configs: dict[ConfigKey, str] = {}
        self.features: dict[str, int] = {}
        self.next_producer_id = 0
        self.voters: tuple[Voter, ...] = ()
        """The quorum; empty in a cluster that has not been told of."""
        self.indexes = Indexes()
        self._seen = _Seen()

    def __repr__(self) -> str:
        return (
            f"<image up to {self.end_offset}: {len(self.brokers)} brokers, {len(self.partitions)} partitions>"
        )

    # ── what it says ──────────────────────────────────────────────────────────────────────────────

    def live_epoch(self, broker: BrokerId) -> Epoch | None:
        """The registration of a broker that may join an ISR: neither fenced nor shutting down; else None."""
        known = self.brokers.get(broker)
        return None if known is None or known.fenced or known.shutting_down else known.epoch

    def can_lead(self, broker: BrokerId, place: Place) -> bool:
        """Whether it is alive and its replica of that partition can be served (the specification's `alive`)."""
        return self.live_epoch(broker) is not None and place not in self.brokers[broker].offline

    def has_room(self, broker: BrokerId) -> bool:
        """Whether it takes records, for all that is known: who does not is elected and placed last (ADR 103)."""
        return broker not in self.brokers or not self.brokers[broker].low_space

    def partitions_of(self, topic_id: TopicId) -> list[PartitionState]:
        """A topic's partitions in order."""
        topic = self.topics.get(topic_id)
        return [self.partitions[topic_id, index] for index in range(topic.partitions if topic else 0)]

    # ── how it changes ────────────────────────────────────────────────────────────────────────────

    def replay(self, batch: Buffer) -> Changes:
        """The next batch of the metadata log, whole and verified: from now on all it says holds."""
        steps = self.replaying(batch)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                changes: Changes = done.value
                return changes

    def replaying(self, batch: Buffer) -> Generator[None, None, Changes]:
        """The same in steps: until they have come to their end, this is the image of no moment."""
        header = read_header(batch)
        if header.base_offset != self.end_offset:
            raise InconsistentMetadata(f"a batch at offset {header.base_offset} follows {self.end_offset}")
        for offset, fact in enumerate(facts_in(batch), header.base_offset):
            if isinstance(fact, BrokerRegistered) and fact.broker_epoch != offset:
                raise InconsistentMetadata(f"offset {offset} registers a broker as of {fact.broker_epoch}")
            _ADDING[type(fact)](self, fact)
            if offset % FACTS_PER_STEP == 0:
                yield
        self.end_offset = header.next_offset
        seen, self._seen = self._seen, _Seen()
        return seen.changes()

    @singledispatchmethod
    def apply(self, fact: Fact) -> None:
        """One fact of a batch: only within `replay`, or to load an image from facts."""
        raise UnsupportedFormat(f"{type(fact).__name__} is a fact that this tidelog cannot add up")

    def copy(self) -> "Image":
        """Another image that says the same, to try decisions on: it shares the values, which never change."""
        twin = Image()
        for name in ("end_offset", "cluster_id", "created_ms", "format", "next_producer_id", "voters"):
            setattr(twin, name, getattr(self, name))
        for name in ("brokers", "topics", "topic_ids", "partitions", "configs", "features"):
            setattr(twin, name, dict(getattr(self, name)))
        twin.indexes = self.indexes.copy()
        return twin

    def become(self, later: "Image") -> Changes:
        """Say from now on what another image says, and what is different by that."""
        pairs = ((getattr(self, name), getattr(later, name)) for name in Changes._fields)
        changes = Changes(*(tuple(_different(*pair)) for pair in pairs))
        twin = later.copy()
        for name in self.__slots__:
            setattr(self, name, getattr(twin, name))
        return changes

    def facts(self) -> list[Fact]:
        """The facts that add up to this image, in an order that depends on nothing else (what a snapshot holds)."""
        facts: list[Fact] = []
        if self.cluster_id is not None:
            facts.append(ClusterInitialized(self.cluster_id, self.created_ms, self.format))
        if self.voters:
            facts.append(VotersNamed(self.voters))
        for broker in sorted(self.brokers.values(), key=lambda broker: broker.epoch):
            facts.append(_registration(broker))
            if (change := _change(broker)) != BrokerChanged(broker.id, broker.epoch, fenced=True):
                facts.append(change)
        for topic_id in sorted(self.topics):
            facts.append(TopicCreated(topic_id, self.topics[topic_id].name))
            facts += [state.created() for state in self.partitions_of(topic_id)]
        facts += [ConfigChanged(*key, self.configs[key]) for key in sorted(self.configs)]
        facts += [FeatureChanged(name, self.features[name]) for name in sorted(self.features)]
        if self.next_producer_id:
            facts.append(ProducerIdsTaken(*NOBODY, self.next_producer_id))
        return facts

    def to_bytes(self) -> bytes:
        """The same for equal images, on every node."""
        return msgspec.msgpack.encode((self.end_offset, self.facts()))

    def check(self) -> None:
        """For tests: the indexes and the names are what a recomputation gives [I-43]."""
        assert self.indexes == Indexes.of(self.partitions.values()), self
        assert self.topic_ids == {topic.name: topic.id for topic in self.topics.values()}, self
        assert sum(topic.partitions for topic in self.topics.values()) == len(self.partitions), self

    # ── fact by fact ──────────────────────────────────────────────────────────────────────────────

    @apply.register
    def _cluster_initialized(self, fact: ClusterInitialized) -> None:
        _require(self.cluster_id is None, fact, f"the cluster is {(self.cluster_id or b'').hex()}")
        self.cluster_id, self.created_ms, self.format = fact.cluster_id, fact.created_ms, fact.format

    @apply.register
    def _broker_registered(self, fact: BrokerRegistered) -> None:
        newest = max((broker.epoch for broker in self.brokers.values()), default=NO_EPOCH)
        _require(fact.broker_epoch > newest, fact, f"epoch {newest} is registered")
        self._require_in_no_isr(fact.broker_id, fact)
        said = {name: getattr(fact, name) for name in _REGISTERED}
        self.brokers[fact.broker_id] = BrokerState(fact.broker_id, fact.broker_epoch, **said)
        self._seen.brokers.append(fact.broker_id)

    @apply.register
    def _broker_changed(self, fact: BrokerChanged) -> None:
        before = self._registered(fact)
        if fact.fenced:
            self._require_in_no_isr(fact.broker_id, fact)
        self.brokers[fact.broker_id] = replace(
            before,
            fenced=fact.fenced,
            shutting_down=fact.shutting_down,
            offline=frozenset(fact.offline),
            damaged=frozenset(fact.damaged),
            low_space=fact.low_space,
        )
        self._seen.brokers.append(fact.broker_id)

    @apply.register
    def _broker_unregistered(self, fact: BrokerUnregistered) -> None:
        self._registered(fact)
        self._require_in_no_isr(fact.broker_id, fact)
        del self.brokers[fact.broker_id]
        self._seen.brokers.append(fact.broker_id)

    def _registered(self, fact: BrokerChanged | BrokerUnregistered) -> BrokerState:
        known = self.brokers.get(fact.broker_id)
        if known is None or known.epoch != fact.broker_epoch:
            raise InconsistentMetadata(
                f"{fact} is about none of the registered brokers: {known} is registered"
            )
        return known

    def _require_in_no_isr(self, broker: BrokerId, fact: Fact) -> None:
        _require(broker not in self.indexes.in_isr, fact, f"broker {broker} is still in an ISR")

    @apply.register
    def _topic_created(self, fact: TopicCreated) -> None:
        _require(fact.topic_id not in self.topics, fact, "there is a topic of that id")
        _require(fact.name not in self.topic_ids, fact, "there is a topic of that name")
        self.topics[fact.topic_id] = TopicState(fact.topic_id, fact.name, 0)
        self.topic_ids[fact.name] = fact.topic_id
        self._seen.topics.append(fact.topic_id)

    @apply.register
    def _topic_removed(self, fact: TopicRemoved) -> None:
        _require(fact.topic_id in self.topics, fact, "there is no such topic")
        for state in self.partitions_of(fact.topic_id):
            self.indexes.leave(state)
            del self.partitions[state.place]
            self._seen.partitions.append(state.place)
        topic = self.topics.pop(fact.topic_id)
        del self.topic_ids[topic.name]
        # A topic that is created anew under the name begins with the cluster's settings.
        for key in [key for key in self.configs if key[:2] == ("topic", topic.name)]:
            del self.configs[key]
            self._seen.configs.append(key)
        self._seen.topics.append(fact.topic_id)

    @apply.register
    def _partition_created(self, fact: PartitionCreated) -> None:
        topic = self.topics.get(fact.topic_id)
        if topic is None or topic.partitions != fact.index:
            raise InconsistentMetadata(f"{fact} does not continue {topic}")
        state = self._state_of(fact)
        self.partitions[state.place] = state
        self.indexes.enter(state)
        self._seen.partitions.append(state.place)
        self.topics[fact.topic_id] = TopicState(topic.id, topic.name, fact.index + 1)

    @apply.register
    def _partition_changed(self, fact: PartitionChanged) -> None:
        before = self.partitions.get((fact.topic_id, fact.index))
        if before is None:
            raise InconsistentMetadata(f"{fact} is about none of the partitions")
        lost = fact.replicas != before.replicas and not set(before.replicas) <= set(fact.replicas)
        least = before.leader_epoch + (lost or fact.leader != before.leader)
        follows = fact.partition_epoch == before.partition_epoch + 1
        if not follows or not least <= fact.leader_epoch <= before.leader_epoch + 1:
            _require(False, fact, f"it follows {before}")
        state = self._state_of(fact)
        self.partitions[state.place] = state
        self.indexes.move(before, state)
        self._seen.partitions.append(state.place)

    def _state_of(self, fact: PartitionFact) -> PartitionState:
        """The state that a fact is about, if it can be. Ten thousand may come at once: words are made when needed."""
        state = PartitionState(*astuple(fact))
        flaw = flaw_of(state)
        _require(flaw is None, fact, flaw or "")
        for member in state.isr:
            known = self.brokers.get(member)
            if known is None or known.fenced:
                _require(False, fact, f"in the ISR is {known or member}")
        return state

    @apply.register
    def _config_changed(self, fact: ConfigChanged) -> None:
        key = (fact.resource_type, fact.resource_name, fact.key)
        if fact.value is None:
            self.configs.pop(key, None)
        else:
            self.configs[key] = fact.value
        self._seen.configs.append(key)

    @apply.register
    def _producer_ids_taken(self, fact: ProducerIdsTaken) -> None:
        _require(fact.next_producer_id > self.next_producer_id, fact, f"{self.next_producer_id} were taken")
        self.next_producer_id = fact.next_producer_id

    @apply.register
    def _feature_changed(self, fact: FeatureChanged) -> None:
        self.features[fact.name] = fact.level
        if not fact.level:
            del self.features[fact.name]

    @apply.register
    def _voters_named(self, fact: VotersNamed) -> None:
        ids = [voter.id for voter in fact.voters]
        _require(bool(ids) and ids == sorted(set(ids)), fact, "voters are named once each, by id")
        self.voters = fact.voters

    @apply.register
    def _leader_elected(self, fact: LeaderElected) -> None:
        """Its epoch is its batch's; that it stands there is all that it says."""

    @apply.register
    def _nothing_happened(self, fact: NothingHappened) -> None:
        """Its offset is all that it says."""


# `singledispatch` finds out in the time that many a fact takes.
_ADDING: Final[Mapping[type, Callable[[Image, Fact], None]]] = Image.__dict__["apply"].dispatcher.registry

_SHARED: Final = "isr, elr and last_known_elr share nobody, adding and removing neither"


def flaw_of(state: PartitionState) -> str | None:
    """What contradicts itself in the state of a partition, by the rules that hold at every moment."""
    replicas, isr, elr = set(state.replicas), set(state.isr), set(state.elr)
    if not replicas or len(replicas) != len(state.replicas):
        return "replicas are distinct, and there is one"
    if len(isr) != len(state.isr) or len(elr) != len(state.elr):
        return "isr and elr name nobody twice"
    others = (*state.last_known_elr, *state.adding, *state.removing)
    if not (isr <= replicas and elr <= replicas and replicas.issuperset(others)):
        return "all are replicas"
    if elr and isr & elr:
        return _SHARED
    if others and (set(state.last_known_elr) & (isr | elr) or set(state.adding) & set(state.removing)):
        return _SHARED
    if state.leader != NO_BROKER and state.leader not in isr:
        return "the leader is in the isr"
    if not 1 <= state.min_isr <= len(replicas):
        return "min_isr lies between 1 and the number of replicas"
    if len(isr) >= state.min_isr and (elr or state.last_known_elr):
        return "a full isr leaves no elr"
    return None


@dataclass(slots=True)
class _Seen:
    """What the facts of a batch were about, so far."""

    partitions: list[Place] = field(default_factory=list)
    brokers: list[BrokerId] = field(default_factory=list)
    topics: list[TopicId] = field(default_factory=list)
    configs: list[ConfigKey] = field(default_factory=list)

    def changes(self) -> Changes:
        return Changes(
            tuple(dict.fromkeys(self.partitions)),
            tuple(dict.fromkeys(self.brokers)),
            tuple(dict.fromkeys(self.topics)),
            tuple(dict.fromkeys(self.configs)),
        )


def _registration(broker: BrokerState) -> BrokerRegistered:
    return BrokerRegistered(broker.id, broker.epoch, *(getattr(broker, name) for name in _REGISTERED))


def _change(broker: BrokerState) -> BrokerChanged:
    offline, damaged = tuple(sorted(broker.offline)), tuple(sorted(broker.damaged))
    said = broker.fenced, broker.shutting_down, offline, broker.low_space, damaged
    return BrokerChanged(broker.id, broker.epoch, *said)


def _different(before: Mapping[K, object], after: Mapping[K, object]) -> list[K]:
    return [key for key in {**before, **after} if before.get(key) != after.get(key)]


def _require(holds: bool, fact: Fact, otherwise: str) -> None:
    if not holds:
        raise InconsistentMetadata(f"{fact} cannot be: {otherwise}")
