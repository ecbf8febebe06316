"""The numbers and names of the domain, as types.

Offsets count records and ends are exclusive; epochs count leaderships; -1 means "none" everywhere.
"""

from typing import NamedTuple, NewType, TypeAlias

BrokerId = NewType("BrokerId", int)
TopicId: TypeAlias = bytes
"""16 random bytes, drawn when a topic is created: a re-created topic is another topic."""

Offset: TypeAlias = int
Epoch: TypeAlias = int
Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that somebody else may own: read them now, copy what must outlive the call."""

NO_BROKER = BrokerId(-1)
NO_OFFSET: Offset = -1
NO_EPOCH: Epoch = -1
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

SEQUENCES = 2**31
"""Sequence numbers run from 0 to 2^31 - 1 and start again at 0."""


class TopicPartition(NamedTuple):
    """One partition of a topic, by the topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndEpoch(NamedTuple):
    """A place in a log: an offset and the leader epoch it belongs to."""

    offset: Offset
    epoch: Epoch
