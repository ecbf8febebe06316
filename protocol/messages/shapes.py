"""What messages are made of: requests, replies, entries, and what a field may hold.

What it keeps true: every message is a frozen array whose fields are only ever appended, with defaults, so
that an older peer's shorter array and a newer peer's longer one both decode; a value that could hurt whoever
takes it (a negative size, an id of the wrong length, a list without end) is refused while it is decoded.
"""

from typing import Annotated, ClassVar, Final, TypeAlias

from msgspec import Meta, Struct

from tidelog.protocol.types import BrokerId as PlainBrokerId

ENTRIES_MAX: Final = 65_536
"""No list in a message is longer."""

_I16 = 2**15 - 1
_I32 = 2**31 - 1
_I64 = 2**63 - 1

Correlation: TypeAlias = Annotated[int, Meta(ge=0, le=_I32)]
"""Which request of the connection this is, or answers: 0 to 2^31 - 1."""

TopicId: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""A topic's id: 16 bytes."""

Uuid: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""An id that was drawn at random, of a process or a disk: 16 bytes."""

TOPIC_NAME_MAX: Final = 249

TopicName: TypeAlias = Annotated[str, Meta(max_length=TOPIC_NAME_MAX)]
"""A topic's name: text of at most 249 characters."""

Name: TypeAlias = Annotated[str, Meta(max_length=1024)]
"""An id or name other than a topic's, or an address: text of at most 1024 characters."""

Text: TypeAlias = str
"""Text for people."""

Index: TypeAlias = Annotated[int, Meta(ge=0, le=_I32)]
"""A partition's number in its topic, from 0: i32."""

Offset: TypeAlias = Annotated[int, Meta(ge=-1, le=_I64)]
"""A record's number, or the end of a range of them (exclusive); -1 is none: i64."""

Epoch: TypeAlias = Annotated[int, Meta(ge=-1, le=_I32)]
"""A leadership, of a partition or of the quorum, or a partition's version; -1 is none: i32."""

BrokerId: TypeAlias = Annotated[PlainBrokerId, Meta(ge=-1, le=_I32)]
"""A broker's id; -1 is none: i32."""

BrokerEpoch: TypeAlias = Annotated[int, Meta(ge=-1, le=_I64)]
"""One lifetime of a broker's process (the offset of its registration); -1 is none: i64."""

Timestamp: TypeAlias = Annotated[int, Meta(ge=-1, le=_I64)]
"""Milliseconds since 1970; -1 is none: i64."""

WhichOffset: TypeAlias = Annotated[int, Meta(ge=-3, le=_I64)]
"""Milliseconds since 1970, or a negative number with a meaning of its own: i64."""

Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=_I32)]
"""A span of time: i32, not negative."""

Size: TypeAlias = Annotated[int, Meta(ge=0, le=_I32)]
"""A number of bytes: i32, not negative."""

Number: TypeAlias = Annotated[int, Meta(ge=0, le=_I64)]
"""A number that counts something: i64, not negative."""

Port: TypeAlias = Annotated[int, Meta(ge=0, le=2**16 - 1)]
"""A TCP port: u16."""

Flag: TypeAlias = bool
"""True or false."""

ErrorCode: TypeAlias = Annotated[int, Meta(ge=-1, le=_I16)]
"""An error by its code, 0 is none (see the table of errors): i16."""

ProducerId: TypeAlias = Annotated[int, Meta(ge=-1, le=_I64)]
"""An idempotent producer; -1 is none: i64."""

ProducerEpoch: TypeAlias = Annotated[int, Meta(ge=-1, le=_I16)]
"""One lifetime of an idempotent producer; -1 is none: i16."""

Acks: TypeAlias = Annotated[int, Meta(ge=-_I16 - 1, le=_I16)]
"""How many replicas must have a batch: 0, 1 or -1 for all in sync: i16."""

Isolation: TypeAlias = Annotated[int, Meta(ge=0, le=1)]
"""Which records a reader sees: 0 or 1."""

CrashCode: TypeAlias = Annotated[int, Meta(ge=0, le=_I16)]
"""How a process ended: 0 there was none, 1 in order, 2 it died, 3 its machine died, 4 data was lost."""

MemberEpoch: TypeAlias = Annotated[int, Meta(ge=-2, le=_I32)]
"""How far a member of a group has followed it; 0 and below have meanings of their own: i32."""

Sequence: TypeAlias = Annotated[int, Meta(ge=0, le=_I64)]
"""The number of a request among those of its sender: i64, not negative."""

SessionEpoch: TypeAlias = Annotated[int, Meta(ge=-1, le=_I32)]
"""The number of a request within its fetch session; after 2^31 - 1 comes 1; -1 is no session: i32."""

ENTRIES: Final = Meta(max_length=ENTRIES_MAX)
"""`Annotated[tuple[X, ...], ENTRIES]`: a list of at most 65,536."""


# gc=False: frozen values that hold only values of their kind cannot form a cycle for a collector to find.
class Reply(Struct, array_like=True, frozen=True, gc=False):
    """What answers a request. Its tag is the request's."""


class Request(Struct, array_like=True, frozen=True, gc=False):
    """What one side asks of the other."""

    reply: ClassVar[type[Reply] | None] = None
    """What answers it; None: nothing does, it is one-way."""


class Entry(Struct, array_like=True, frozen=True, gc=False):
    """A part of a message, usually one partition's."""


class PartitionIndex(Entry, frozen=True):
    """One partition, by its topic's id."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""


LISTENERS_MAX: Final = 16


class ListenerEndpoint(Entry, frozen=True):
    """Where a broker is reached by those who come in by a listener of that name."""

    listener: Name
    """The listener."""

    host: Name
    """The host that is advertised to them."""

    port: Port
    """The port that is advertised to them."""


LISTENERS: Final = Meta(max_length=LISTENERS_MAX)
"""`Annotated[tuple[ListenerEndpoint, ...], LISTENERS]`: a list of at most 16."""


class EpochEnd(Entry, frozen=True):
    """Where an epoch ends in a log."""

    epoch: Epoch
    """The largest epoch in the log that is not above the one asked for."""

    end_offset: Offset
    """The offset behind its last record."""


class Leader(Entry, frozen=True):
    """A hint where to turn: who leads the partition as far as the answering broker knows."""

    id: BrokerId
    """The leader."""

    leader_epoch: Epoch
    """Since which epoch; a hint older than what the client knows is ignored."""
