"""What a client knows of the cluster: its brokers, and who leads what (design 5.2). A pure machine.

    adopt(reply)      a broker has described its view, which may be an old one
    hint(...)         a broker has said who leads instead of it

What it keeps true:

* It never goes back. Of two answers about a partition the one with the higher leader epoch wins, of two with the same
  the one that reflects more of the metadata log; brokers are those of the newest answer.
* A topic that was created anew has another id, and nothing that was known of the old one is said of it. A topic is
  gone only when an answer says so that is at least as new as the one that last showed it.
* What is asked per record (`leader`, `partitions`) is one or two lookups, whatever the number of partitions.
"""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from tidelog.protocol.errors import InconsistentClusterId, TidelogError, UnknownTopicOrPartition, error_of
from tidelog.protocol.messages import MetadataReply, PartitionMetadata, TopicMetadata
from tidelog.protocol.types import NO_BROKER, NO_OFFSET, BrokerId, Epoch, Offset, TopicId


class Broker(NamedTuple):
    """A broker that is alive."""

    id: BrokerId
    host: str
    port: int
    rack: str


class Partition(Struct, frozen=True, gc=False):
    """One partition, as the newest answer about it says."""

    index: int
    leader: BrokerId
    """-1: nobody leads."""
    leader_epoch: Epoch
    replicas: tuple[BrokerId, ...]
    """The preferred leader first."""
    isr: tuple[BrokerId, ...]
    offline: tuple[BrokerId, ...]
    """Those of the replicas that are not alive."""
    shown_at: Offset
    """How much of the metadata log the answer reflected that brought this; -1: only a hint has said who leads."""
    elr: tuple[BrokerId, ...] = ()
    """Those outside the ISR that have every committed record."""


class Topic(NamedTuple):
    """A topic. A new value takes its place whenever anything of it changes."""

    name: str
    id: TopicId
    partitions: tuple[Partition, ...]
    """In order: the partition `n` is the n-th."""
    internal: bool
    shown_at: Offset
    """How much of the metadata log the newest answer reflected that showed it."""
    batch_bytes_max: int = 0
    """The largest batch that its leaders take; 0: the broker did not say."""


class Absent(NamedTuple):
    """A topic that was asked for, and is not there."""

    error: TidelogError
    """What the broker said; make a new one of its class and message to raise it."""
    shown_at: Offset


class Changes(NamedTuple):
    """What an answer has changed."""

    brokers: bool
    topics: frozenset[str]
    """Those of which anything is different, the new, the re-created and the gone among them."""
    recreated: frozenset[str]
    """Those that have another id than before: offsets of the old one mean nothing."""
    gone: frozenset[str]

    def __bool__(self) -> bool:
        return self.brokers or bool(self.topics)


class Cluster:
    """See the module. Read its fields; change them by its methods only."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.controller_id = NO_BROKER
        """The active controller, an id among controllers; -1: unknown."""
        self.metadata_offset: Offset = NO_OFFSET
        """How much of the metadata log the newest answer reflected."""
        self.brokers: dict[BrokerId, Broker] = {}
        """Those that are alive."""
        self.topics: dict[str, Topic] = {}
        """Those that were asked for and exist."""
        self.absent: dict[str, Absent] = {}
        """Those that were asked for and do not."""
        self.names: dict[TopicId, str] = {}
        """The names of the topics, by id."""

    # ── asked per record ──────────────────────────────────────────────────────────────────────────

    def leader(self, topic: str, partition: int) -> BrokerId:
        """Who leads it; -1: nobody, or it is not known."""
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return NO_BROKER
        return known.partitions[partition].leader

    def partitions(self, topic: str) -> tuple[Partition, ...]:
        """The topic's partitions; empty: it is not known."""
        known = self.topics.get(topic)
        return () if known is None else known.partitions

    def partition(self, topic: str, partition: int) -> Partition | None:
        """One of them; None: it is not known."""
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return None
        return known.partitions[partition]

    def place(self, topic_id: TopicId, index: int) -> Partition | None:
        """A partition by its topic's id; None: that topic is gone, or was never asked for."""
        name = self.names.get(topic_id)
        return None if name is None else self.partition(name, index)

    # ── what is told ──────────────────────────────────────────────────────────────────────────────

    def adopt(self, reply: MetadataReply, *, all_topics: bool = False) -> Changes:
        """Take what is new in an answer; `all_topics`: it was asked for every topic, and others are gone.

        Raises InconsistentClusterId, and changes nothing, when it comes from another cluster.
        """
        if self.cluster_id and reply.cluster_id and reply.cluster_id != self.cluster_id:
            raise InconsistentClusterId(
                f"this client belongs to cluster {self.cluster_id}, the answer came from {reply.cluster_id}"
            )
        self.cluster_id = self.cluster_id or reply.cluster_id
        brokers = self._adopt_brokers(reply)
        changed: dict[str, None] = {}
        recreated: list[str] = []
        for told in reply.topics:
            name = told.name or (self.names.get(told.topic_id, "") if told.topic_id else "")
            if not name:
                continue
            before = self.topics.get(name)
            if told.error:
                self._adopt_absence(name, told, reply.metadata_offset)
            elif told.topic_id is not None:
                self._adopt_topic(name, told.topic_id, told, reply.metadata_offset)
            after = self.topics.get(name)
            if before is not None and after is not None and before.id != after.id:
                recreated.append(name)
            if not _same(before, after):
                changed[name] = None
        if all_topics:
            shown = {told.name for told in reply.topics}
            for name in self._gone_by(shown, reply.metadata_offset):
                changed[name] = None
        gone = frozenset(name for name in changed if name not in self.topics)
        return Changes(brokers, frozenset(changed), frozenset(recreated), gone)

    def hint(self, topic_id: TopicId, index: int, leader: BrokerId, leader_epoch: Epoch) -> bool:
        """A broker says that another one leads; whether that was news."""
        name = self.names.get(topic_id)
        topic = self.topics.get(name) if name is not None else None
        if topic is None or not 0 <= index < len(topic.partitions):
            return False
        known = topic.partitions[index]
        if leader_epoch <= known.leader_epoch:
            return False
        partition = replace(known, leader=leader, leader_epoch=leader_epoch, shown_at=NO_OFFSET)
        partitions = (*topic.partitions[:index], partition, *topic.partitions[index + 1 :])
        self.topics[topic.name] = topic._replace(partitions=partitions)
        return True

    def forget(self, names: Iterable[str]) -> None:
        """Nobody asks for these any more."""
        for name in names:
            self.absent.pop(name, None)
            self._drop(name)

    # ── how ───────────────────────────────────────────────────────────────────────────────────────

    def _adopt_brokers(self, reply: MetadataReply) -> bool:
        if reply.metadata_offset < self.metadata_offset:
            return False
        self.metadata_offset = reply.metadata_offset
        self.controller_id = reply.controller_id
        told = {one.id: Broker(one.id, one.host, one.port, one.rack) for one in reply.brokers}
        changed = told != self.brokers
        self.brokers = told
        return changed

    def _adopt_absence(self, name: str, told: TopicMetadata, offset: Offset) -> None:
        topic, absent = self.topics.get(name), self.absent.get(name)
        if offset < max(topic.shown_at if topic else NO_OFFSET, absent.shown_at if absent else NO_OFFSET):
            return
        self._drop(name)
        self.absent[name] = Absent(error_of(told.error, told.message or ""), offset)

    def _adopt_topic(self, name: str, topic_id: TopicId, told: TopicMetadata, offset: Offset) -> None:
        known, absent = self.topics.get(name), self.absent.get(name)
        if absent is not None and offset <= absent.shown_at:
            return
        if known is not None and known.id != topic_id:
            if offset <= known.shown_at:
                return
            self._drop(name)
            known = None
        self.absent.pop(name, None)
        before = known.partitions if known is not None else ()
        fresh = known is None or offset > known.shown_at
        pairs = zip(before, told.partitions, strict=False)
        partitions = [_newer(old, new, offset, fresh=fresh) for old, new in pairs]
        # An old answer may show fewer: partitions are only ever added.
        partitions += before[len(partitions) :]
        partitions += [_partition(new, offset) for new in told.partitions[len(partitions) :]]
        shown_at = max(offset, known.shown_at) if known is not None else offset
        self.names[topic_id] = name
        self.topics[name] = Topic(
            name, topic_id, tuple(partitions), told.internal, shown_at, told.batch_bytes_max
        )

    def _gone_by(self, shown: set[str], offset: Offset) -> list[str]:
        gone = [name for name, topic in self.topics.items() if name not in shown and topic.shown_at <= offset]
        for name in gone:
            self._drop(name)
            self.absent[name] = Absent(UnknownTopicOrPartition(f"there is no topic {name!r}"), offset)
        return gone

    def _drop(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        if topic is not None:
            del self.names[topic.id]


def topic_of(told: TopicMetadata, offset: Offset) -> Topic:
    """A topic as one answer shows it, whatever else is known."""
    partitions = tuple(_partition(one, offset) for one in told.partitions)
    return Topic(told.name, told.topic_id or b"", partitions, told.internal, offset, told.batch_bytes_max)


def _partition(told: PartitionMetadata, offset: Offset) -> Partition:
    return Partition(
        told.index, told.leader, told.leader_epoch, told.replicas, told.isr, told.offline, offset, told.elr
    )


def _newer(known: Partition, told: PartitionMetadata, offset: Offset, *, fresh: bool) -> Partition:
    """What holds of both; the same object where nothing is different: most of 5,000 are compared by that."""
    hinted = known.shown_at == NO_OFFSET
    if told.leader_epoch < known.leader_epoch:
        return known
    if told.leader_epoch == known.leader_epoch and not hinted:
        same = (
            told.isr == known.isr
            and told.leader == known.leader
            and told.replicas == known.replicas
            and told.offline == known.offline
            and told.elr == known.elr
        )
        if same or not fresh:
            return known
    return _partition(told, offset)


def _same(before: Topic | None, after: Topic | None) -> bool:
    """Whether anything is different besides how new the knowledge is."""
    if before is None or after is None:
        return before is after
    return before.id == after.id and before.partitions == after.partitions
