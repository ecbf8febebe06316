"""What the metadata log can say: facts, in the past tense, and the batches that carry them.

    a batch of the log    one atomic change: every fact in it, or none
    a record's value      msgpack [type, field, field, ...]; the types are those of the specification's table

What it keeps true:

* A fact says what holds after it, whole: replaying needs no arithmetic, and can be checked.
* Fields are only ever appended, with defaults. A type that is not known here, or a fact with more fields than are
  known here, was written by a newer tidelog: reading it ends in UnsupportedFormat, which stops the node. Nothing
  is skipped, for a node that skips a fact believes in another cluster than the rest.
* A batch holds at most 10,000 facts in 1 MiB; a larger operation is split so that every prefix of it is safe.

Who leads the quorum and who votes are facts like all others, and what an elected controller writes first.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Union

import msgspec
from msgspec import Meta, Struct

from tidelog.protocol.batch import read_header
from tidelog.protocol.errors import UnsupportedFormat
from tidelog.protocol.messages.shapes import (
    LISTENERS,
    BrokerEpoch,
    BrokerId,
    Epoch,
    Flag,
    Index,
    ListenerEndpoint,
    Name,
    Number,
    Port,
    TopicId,
    TopicName,
    Uuid,
)
from tidelog.protocol.records import decode, encode
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, Buffer, TopicPartition

METADATA: Final = TopicPartition("__metadata", 0)
"""The metadata log among the logs: it is kept, fetched and truncated like any partition."""

METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"
"""Its topic's id, the same in every cluster: whoever joins must be able to ask for it."""

FACTS_MAX: Final = 10_000
"""The most facts in a batch."""

BATCH_BYTES: Final = 1 << 20
"""How large a batch of several facts becomes."""

BATCH_BYTES_MAX: Final = 6 << 20
"""The largest: it says of a broker that all the replicas are offline that one heartbeat can name and those that an
earlier one has named, and that all of a third one are damaged."""

Brokers = tuple[BrokerId, ...]
Place = tuple[TopicId, Index]
"""A partition, by its topic's id and its number."""

ResourceType = Annotated[str, Meta(pattern="^(cluster|broker|topic|group)$")]


class Fact(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A line of the metadata log."""


class ClusterInitialized(Fact, frozen=True, tag=1):
    """A cluster has begun."""

    cluster_id: Uuid
    """Drawn at random by the first controller that was ever elected."""

    created_ms: Number
    """When, in milliseconds since 1970."""

    format: Number = 1
    """The version of what the metadata log may say."""


class BrokerRegistered(Fact, frozen=True, tag=2):
    """A broker's process has introduced itself; it is fenced until it has caught up."""

    broker_id: BrokerId
    """The broker."""

    broker_epoch: BrokerEpoch
    """This registration: the offset of this very record."""

    incarnation_id: Uuid
    """Drawn by the process when it started."""

    directory_id: Uuid
    """The disk that it has come with."""

    host: Name
    """The host that it advertises to brokers, and to clients that come in where brokers do."""

    port: Port
    """The port that it advertises to them."""

    rack: Name = ""
    """Where it stands; empty: it does not say."""

    start: Number = 0
    """Which start of a process on that disk it is, counted from 1; 0: it does not count."""

    listeners: Annotated[tuple[ListenerEndpoint, ...], LISTENERS] = ()
    """Where those are told to find it who come in by its other listeners."""

    directories: tuple[Uuid, ...] = ()
    """All the disks that it has come with; empty: it has said nothing of others than the one above."""


class BrokerChanged(Fact, frozen=True, tag=3):
    """A registered broker may be used otherwise than before."""

    broker_id: BrokerId
    """The broker."""

    broker_epoch: BrokerEpoch
    """Its registration."""

    fenced: Flag
    """Whether it leads nothing and is in no ISR, because it is not heard or has not caught up."""

    shutting_down: Flag = False
    """Whether it is being relieved of everything, to stop in order."""

    offline: tuple[Place, ...] = ()
    """Replicas that it has and cannot serve, because their disk or their log is not to be trusted."""

    low_space: Flag = False
    """Whether it refuses records for want of room: others lead where they can."""

    damaged: tuple[Place, ...] = ()
    """Replicas whose log is damaged, and on which the cluster has to count all the same: nobody else is in sync."""


class BrokerUnregistered(Fact, frozen=True, tag=4):
    """A broker is not part of the cluster any more."""

    broker_id: BrokerId
    """The broker."""

    broker_epoch: BrokerEpoch
    """Its last registration."""


class TopicCreated(Fact, frozen=True, tag=5):
    """A topic exists; its partitions follow."""

    topic_id: TopicId
    """Drawn at random: a topic that is created anew is another one."""

    name: TopicName
    """What users call it."""


class PartitionFact(Fact, frozen=True):
    """All that the cluster has decided about one partition, as it is from then on."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    replicas: Brokers
    """Who holds it, in order of preference: the first leads when it can."""

    isr: Brokers
    """Who must have a record before it is committed."""

    leader: BrokerId
    """Who takes records and hands them out; -1: nobody."""

    leader_epoch: Epoch
    """Grows by one when the leader changes or a replica leaves."""

    partition_epoch: Epoch
    """Grows by one with every change."""

    min_isr: Number
    """How many must be in sync for anything to be committed; at most as many as there are replicas."""

    elr: Brokers
    """Outside the ISR, but guaranteed to hold every committed record."""

    last_known_elr: Brokers
    """Whom to ask when nobody is guaranteed to hold everything."""

    adding: Brokers
    """Replicas that a reassignment brings."""

    removing: Brokers
    """Replicas that a reassignment takes away."""

    unclean_epoch: Epoch
    """The leader epoch of the last unclean election; -1: there was none."""

    recovering: Flag
    """Elected uncleanly and not yet confirmed by its leader."""

    flush_group: Flag
    """Whether a record counts only when it is on stable storage (`flush.mode=group`)."""


class PartitionCreated(PartitionFact, frozen=True, tag=6):
    """A partition exists."""


class PartitionChanged(PartitionFact, frozen=True, tag=7):
    """Something about a partition has been decided anew."""


class TopicRemoved(Fact, frozen=True, tag=8):
    """A topic, its partitions and its configuration are gone."""

    topic_id: TopicId
    """The topic."""


class ConfigChanged(Fact, frozen=True, tag=9):
    """A setting has another value."""

    resource_type: ResourceType
    """What it is a setting of: `cluster`, `broker`, `topic` or `group`."""

    resource_name: Name
    """Which broker, topic or group; empty for the cluster."""

    key: Name
    """The setting's name, with dots."""

    value: str | None
    """Its value; nil: it is not set here any more."""


class ProducerIdsTaken(Fact, frozen=True, tag=10):
    """A broker has been given a block of producer ids."""

    broker_id: BrokerId
    """The broker."""

    broker_epoch: BrokerEpoch
    """Its registration."""

    next_producer_id: Number
    """The first id that nobody has been given."""


class NothingHappened(Fact, frozen=True, tag=11):
    """Time has passed: written while idle, so that one can see how far behind a node is."""


class FeatureChanged(Fact, frozen=True, tag=12):
    """The cluster as a whole may use a feature, up to a level."""

    name: Name
    """The feature."""

    level: Number
    """Its level; 0: it is not used."""


class LeaderElected(Fact, frozen=True, tag=20):
    """A controller leads the metadata log: the first thing that it writes."""

    leader_id: BrokerId
    """The controller, by its id among controllers."""

    epoch: Epoch
    """The quorum's epoch that it leads."""

    granted_by: Brokers = ()
    """Who has voted for it, itself included."""


class Voter(Struct, array_like=True, frozen=True, gc=False):
    """A controller that votes, with the disk on which it remembers what it has promised."""

    id: BrokerId
    """Its id among controllers."""

    directory_id: Uuid
    """Its disk."""

    host: Name
    """Where the others reach it."""

    port: Port
    """Its port."""


class VotersNamed(Fact, frozen=True, tag=23):
    """Whose votes and whose logs count from now on: with another disk a controller is not one of them."""

    voters: tuple[Voter, ...]
    """Every voter, by id."""


FACTS: Final[tuple[type[Fact], ...]] = (
    ClusterInitialized,
    BrokerRegistered,
    BrokerChanged,
    BrokerUnregistered,
    TopicCreated,
    PartitionCreated,
    PartitionChanged,
    TopicRemoved,
    ConfigChanged,
    ProducerIdsTaken,
    NothingHappened,
    FeatureChanged,
    LeaderElected,
    VotersNamed,
)
"""Every fact there is."""

_any_fact: Any = Union[FACTS]  # noqa: UP007 -- built from a table
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_any_fact).decode
_items: Final = msgspec.msgpack.Decoder(list[Any]).decode
_BY_TAG: Final = {fact.__struct_config__.tag: fact for fact in FACTS}
_NO_FACT: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode_facts(facts: Sequence[Fact], now_ms: int) -> bytearray:
    """The batch that says all of this at once, at offset 0 until a leader stamps it."""
    assert 0 < len(facts) <= FACTS_MAX, f"{len(facts)} facts in a batch"
    values = [_encode(fact) for fact in facts]
    # What cannot be read again would stop every node, now and after every restart.
    assert [_fact(value, at) for at, value in enumerate(values)] == list(facts), facts
    batch = encode(values, now_ms=now_ms)
    assert len(batch) <= BATCH_BYTES_MAX, f"{len(facts)} facts in {len(batch)} bytes"
    return batch


def decode_facts(batch: Buffer) -> list[Fact]:
    """The facts of a whole, verified batch; UnsupportedFormat when it says something that is not known here."""
    return list(facts_in(batch))


def facts_in(batch: Buffer) -> Iterator[Fact]:
    """The same one by one: thousands take their time."""
    if not read_header(batch).is_control:
        columns = decode(batch)
        for value, at in zip(columns.values, columns.offsets, strict=True):
            yield _fact(value, at)


def _fact(value: bytes | None, offset: int) -> Fact:
    try:
        fact: Fact = _decode(value or b"")
    except _NO_FACT as error:
        raise UnsupportedFormat(f"offset {offset} of the metadata log{_flaw(value, error)}") from error
    return fact


def _flaw(value: bytes | None, error: Exception) -> str:
    """Why that is no fact: perhaps because it says more than is known here."""
    try:
        tag, *fields = _items(value or b"")
        known = _BY_TAG[tag]
    except (*_NO_FACT, KeyError, TypeError, ValueError):
        return f" is no fact known here: {error}"
    if len(fields) <= len(known.__struct_fields__):
        return f" is no fact known here: {error}"
    return f": {known.__name__} has {len(fields)} fields, {len(known.__struct_fields__)} are known here"


NOBODY: Final = (NO_BROKER, NO_EPOCH)
"""In place of a broker and its epoch, where a snapshot says how many producer ids are taken."""
