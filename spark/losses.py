"""Data that was to be read and is not there: which of five things has happened, told from what leaders say.

    deleted       the log begins behind it: retention, or somebody has deleted records
    truncated     the log ends before it, though it was committed: an unclean election has cut it off
    re-created    there is a topic of that name, and it is another one
    gone          there is no such topic any more
    dropped       it is there, and the options ask for it no more: a stream would forget how far it was

A gap that compaction has left is none of these: what is not there was replaced by a newer record of its key.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from tidelog.client.io.client import Client
from tidelog.protocol.errors import (
    InvalidConfig,
    LogTruncated,
    OffsetOutOfRange,
    TidelogError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.protocol.types import Offset, TopicId, TopicPartition
from tidelog.spark.lookup import offsets_at, topic_if_any
from tidelog.spark.options import EARLIEST, LATEST

What: TypeAlias = Literal["deleted", "truncated", "recreated", "gone", "dropped"]

WAY_OUT: Final = "set failOnDataLoss=false to go on with what is there"

_CLASSES: Final[Mapping[What, type[TidelogError]]] = {
    "deleted": OffsetOutOfRange,
    "truncated": LogTruncated,
    "recreated": UnknownTopicId,
    "gone": UnknownTopicOrPartition,
    "dropped": InvalidConfig,
}


class Loss(NamedTuple):
    """What of a partition is lost."""

    name: TopicPartition
    what: What
    first: Offset
    """The first offset that cannot be read."""
    resume: Offset
    """Where what is there goes on (deleted), or ends (truncated); 0 in a topic that was re-created."""
    fact: str

    def error(self) -> TidelogError:
        """One sentence, and the way out."""
        return _CLASSES[self.what](f"{self.fact}: {WAY_OUT}")


def by_offsets(
    name: TopicPartition, position: Offset, end: Offset, earliest: Offset, latest: Offset
) -> Loss | None:
    """What of `position` up to `end`, which was committed, is lost in a log that has these bounds."""
    if position < earliest and position < end:
        fact = (
            f"{name}: offsets {position} to {min(earliest, end) - 1} were deleted, by retention or on demand, "
            f"before they were read; the log begins at {earliest}"
        )
        return Loss(name, "deleted", position, earliest, fact)
    if latest < end:
        fact = (
            f"{name}: offsets {max(latest, position)} to {end - 1} were committed and are cut off, by an unclean election; "
            f"the log ends at {latest}"
        )
        return Loss(name, "truncated", max(latest, position), latest, fact)
    return None


def by_topic(name: TopicPartition, position: Offset, had: TopicId, has: TopicId | None) -> Loss | None:
    """Whether the topic is another one than was planned with."""
    if has is None:
        fact = f"{name}: the topic was deleted before offset {position} was read"
        return Loss(name, "gone", position, position, fact)
    if had and had != has:
        fact = (
            f"{name}: the topic was deleted and made anew ({had.hex()[:8]} is {has.hex()[:8]} now) "
            f"before offset {position} was read; offsets of the old one mean nothing in the new one"
        )
        return Loss(name, "recreated", position, 0, fact)
    return None


def by_options(name: TopicPartition, position: Offset, *, asked: bool) -> Loss | None:
    """Whether the query asks no more for what it has been reading. Kafka's source says that it is gone, too."""
    if asked:
        return None
    fact = (
        f"{name}: it is not asked for any more, and the checkpoint has its place, offset {position}; that would be forgotten, "
        "and all of it be read again if it is asked for later"
    )
    return Loss(name, "dropped", position, position, fact)


async def ids_now(client: Client, topics: Iterable[str]) -> dict[str, TopicId | None]:
    """The ids of these topics; None: there is none."""
    ids: dict[str, TopicId | None] = {}
    for topic in dict.fromkeys(topics):
        found = await topic_if_any(client, topic)
        ids[topic] = found[0].id if found else None
    return ids


async def find_losses(
    client: Client,
    wanted: Mapping[TopicPartition, tuple[Offset, Offset]],
    ids: Mapping[str, TopicId],
    isolation: int,
) -> list[Loss]:
    """What is lost of these parts of partitions, asked of their leaders now."""
    now = await ids_now(client, (name.topic for name in wanted))
    losses: list[Loss] = []
    there = []
    for name, (position, _) in wanted.items():
        loss = by_topic(name, position, ids.get(name.topic, b""), now[name.topic])
        if loss is not None:
            losses.append(loss)
        else:
            there.append(name)
    earliest = await offsets_at(client, there, EARLIEST, isolation)
    latest = await offsets_at(client, there, LATEST, isolation)
    for name in there:
        loss = by_offsets(name, *wanted[name], earliest[name], latest[name])
        if loss is not None:
            losses.append(loss)
    return losses
