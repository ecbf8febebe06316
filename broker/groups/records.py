"""What the log of groups can say: a key, and what holds under it from then on.

    [1, group]                    GroupState      the group's epochs
    [2, group, member]            MemberState     what a member has told of itself
    [3, group, member]            TargetState     what it is to have in the end
    [4, group, member]            CurrentState    what it has, and how far it has followed
    [5, group, topic id, index]   OffsetState     how far the group has come in a partition
    [6, group, topic id]          TopicState      how many partitions a topic had when the group began with it

What it keeps true:

* A record says what holds, whole; the last one of a key counts, and none (a tombstone) ends it. So the log may be
  compacted, and replaying it is all there is to loading.
* Every prefix of the records of one decision is safe by itself: the group's epoch grows before its members change, and
  the assignment's epoch follows when every target is written.
* Fields are only ever appended, with defaults. A kind that is not known here, or fields too many, were written by a
  newer tidelog: reading them ends in UnsupportedFormat, for whoever skips a record believes in another group.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from tidelog.protocol.errors import UnsupportedFormat
from tidelog.protocol.types import NO_EPOCH, NO_TIMESTAMP, Buffer, TopicId

GROUPS_TOPIC: Final = "__consumer_offsets"
"""The topic that holds the groups: compacted, flushed in groups, made on first need (DECISIONS 4, 19)."""

LEFT_FOR_A_WHILE: Final = -2
"""The epoch of a static member that has stopped, and of which another process is expected."""

Place: TypeAlias = tuple[TopicId, int]
"""A partition, by its topic's id and its number."""

Places: TypeAlias = frozenset[Place]

Spread: TypeAlias = tuple[tuple[TopicId, tuple[int, ...]], ...]
"""Partitions as they are written: by topic, ascending."""

NOWHERE: Final[Places] = frozenset()


def places_of(spread: Spread) -> Places:
    """The partitions, one by one."""
    return frozenset((topic, index) for topic, indexes in spread for index in indexes)


def spread_of(places: Iterable[Place]) -> Spread:
    """The partitions, as they are written: the same ones are always written alike."""
    by_topic: dict[TopicId, list[int]] = {}
    for topic, index in sorted(places):
        by_topic.setdefault(topic, []).append(index)
    return tuple((topic, tuple(indexes)) for topic, indexes in by_topic.items())


class Key(Struct, array_like=True, frozen=True, gc=False):
    """What a record is about."""

    group: str
    """The group."""


class GroupKey(Key, frozen=True, tag=1):
    """A group as a whole."""


class MemberKey(Key, frozen=True, tag=2):
    """What a member has told of itself; a tombstone ends its target and what it has as well."""

    member: str
    """The member."""


class TargetKey(Key, frozen=True, tag=3):
    """What a member is to have."""

    member: str
    """The member."""


class CurrentKey(Key, frozen=True, tag=4):
    """What a member has."""

    member: str
    """The member."""


class OffsetKey(Key, frozen=True, tag=5):
    """How far the group has come in one partition."""

    topic_id: bytes
    """The topic: offsets of a deleted one are not inherited by the next of its name."""

    index: int
    """The partition's number in the topic."""


class TopicKey(Key, frozen=True, tag=6):
    """How the group began with one topic."""

    topic_id: bytes
    """The topic."""


AnyKey: TypeAlias = GroupKey | MemberKey | TargetKey | CurrentKey | OffsetKey | TopicKey


class State(Struct, array_like=True, frozen=True, gc=False):
    """What holds under a key."""


class GroupState(State, frozen=True):
    """A group exists."""

    epoch: int
    """Grows when members come, go or want something else, and when their topics change."""

    assignment_epoch: int
    """The epoch for which partitions were shared out last."""

    digest: bytes = b""
    """Of the topics, and their sizes, that were shared out."""

    assignor: str = ""
    """Who shared them out."""

    empty_since_ms: int = NO_TIMESTAMP
    """Since when it has no members, by the time of day; -1: it has some."""


class MemberState(State, frozen=True):
    """What a member has told of itself."""

    topics: tuple[str, ...]
    """What it wants to consume, by name, ascending."""

    instance_id: str | None = None
    """Of a static member."""

    assignor: str = ""
    """Who is to share out partitions; empty: it does not care."""

    rack: str = ""
    """Where it stands."""

    rebalance_timeout_ms: int = 300_000
    """How long it may take to give up what it is asked for."""

    session_timeout_ms: int = 45_000
    """How long it may be silent."""

    client_id: str = ""
    """What its process calls itself."""

    host: str = ""
    """Where it called from."""


class TargetState(State, frozen=True):
    """What a member is to have in the end."""

    partitions: Spread = ()
    """As of the assignment's epoch."""


class CurrentState(State, frozen=True):
    """What a member has."""

    epoch: int = 0
    """How far it has followed: what it says in heartbeats and commits. 0: it has had no answer yet."""

    previous_epoch: int = NO_EPOCH
    """The epoch that it said when it was told this one: it may say it again if the answer was lost."""

    sequence: int = 0
    """Of the heartbeat that led to this: only a later one can confirm anything."""

    assigned: Spread = ()
    """What it may consume."""

    pending: Spread = ()
    """What it was asked to give up, and has not confirmed: nobody else may have it yet."""


class OffsetState(State, frozen=True):
    """How far the group has come in a partition."""

    offset: int
    """The next record to be consumed."""

    leader_epoch: int = NO_EPOCH
    """The epoch of the record before."""

    metadata: str = ""
    """What the consumer wanted to find again with it."""

    commit_ms: int = NO_TIMESTAMP
    """When it was committed, by the time of day."""

    timestamp: int = NO_TIMESTAMP
    """The time of the last record that was consumed."""

    member: str = ""
    """Who committed it; empty: no member."""

    sequence: int = 0
    """The number of the commit among those of that member."""


class TopicState(State, frozen=True):
    """A topic that the group consumes."""

    partitions: int
    """How many it had when the group began with it: later ones are read from their start (KAFKA-20539)."""


AnyState: TypeAlias = GroupState | MemberState | TargetState | CurrentState | OffsetState | TopicState


class Record(NamedTuple):
    """A line of the log of groups."""

    key: AnyKey
    value: AnyState | None
    """None: nothing holds under the key any more."""


STATES: Final[dict[type[Key], type[State]]] = {
    GroupKey: GroupState,
    MemberKey: MemberState,
    TargetKey: TargetState,
    CurrentKey: CurrentState,
    OffsetKey: OffsetState,
    TopicKey: TopicState,
}
"""What stands under which key."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_key: Final = msgspec.msgpack.Decoder(AnyKey).decode
_decoders: Final = {key: msgspec.msgpack.Decoder(state).decode for key, state in STATES.items()}
_items: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_BAD: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encoded(records: Sequence[Record]) -> tuple[list[bytes | None], list[bytes | None]]:
    """The columns of keys and of values."""
    return (
        [_encode(record.key) for record in records],
        [None if record.value is None else _encode(record.value) for record in records],
    )


def decoded(key: Buffer | None, value: Buffer | None, offset: int) -> Record:
    """One record; UnsupportedFormat when it says something that is not known here."""
    try:
        known = _decode_key(key or b"")
        _check_length(known, key or b"", offset, tagged=1)
        if value is None:
            return Record(known, None)
        state = _decoders[type(known)](value)
        _check_length(state, value, offset)
    except _BAD as error:
        raise UnsupportedFormat(f"offset {offset} of the log of groups is not known here: {error}") from error
    return Record(known, state)  # type: ignore[arg-type]  # the table says which


def _check_length(struct: Struct, data: Buffer, offset: int, tagged: int = 0) -> None:
    there, known = len(_items(data)) - tagged, len(struct.__struct_fields__)
    if there > known:
        raise UnsupportedFormat(
            f"offset {offset} of the log of groups: {type(struct).__name__} has {there} fields, {known} are known here"
        )
