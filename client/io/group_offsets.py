"""How far a group is: what is committed of it, as its coordinator says, and what is to be committed."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tidelog.client.admin import Refusals
from tidelog.client.arguments import offset_of, partition_of
from tidelog.client.fetch_sessions import Place
from tidelog.client.io.coordinator import AtCoordinator
from tidelog.client.io.session import until
from tidelog.client.records import Record
from tidelog.protocol.errors import InvalidRequest, RequestTimedOut, UnknownTopicOrPartition
from tidelog.protocol.messages import CommittedPartition, OffsetToCommit
from tidelog.protocol.types import NO_EPOCH, NO_TIMESTAMP, Epoch, Offset, TopicPartition

if TYPE_CHECKING:
    from tidelog.client.io.session import Session

CLOSE_COMMIT_S = 5.0
"""How long a commit may take that nobody waits for."""


@dataclass(frozen=True, slots=True)
class Commit:
    """How far one partition was consumed."""

    offset: Offset
    metadata: str = ""
    timestamp_ms: int = NO_TIMESTAMP
    """Of the last record that was consumed."""
    leader_epoch: Epoch = NO_EPOCH
    """In which it was written: by it a log is known that has lost it since."""


ToCommit: TypeAlias = Record | Mapping[TopicPartition, int | tuple[int, str]] | None
"""What may be committed: all before the next record, or offsets, with metadata if wanted."""


def commits(what: object) -> dict[TopicPartition, Commit]:
    """As they are sent."""
    if isinstance(what, Record):
        return {TopicPartition(what.topic, what.partition): Commit(what.offset + 1, "", what.timestamp_ms)}
    if not isinstance(what, Mapping):
        raise InvalidRequest(
            f"commit takes a record, or offsets by partition, as {{('orders', 0): 7}}, not {what!r}"
        )
    found = {}
    for each, given in what.items():
        name = partition_of(each)
        offset, metadata = given if isinstance(given, tuple) and len(given) == 2 else (given, "")
        if not isinstance(metadata, str):
            raise InvalidRequest(f"{name}: what is said with an offset is text, not {metadata!r}")
        found[name] = Commit(offset_of(name, offset), metadata)
    return found


def to_commit(places: Mapping[Place, Commit]) -> tuple[OffsetToCommit, ...]:
    """The entries of a request."""
    return tuple(
        OffsetToCommit(*place, each.offset, each.leader_epoch, each.metadata, each.timestamp_ms)
        for place, each in sorted(places.items(), key=lambda item: item[0])
    )


class GroupOffsets:
    """See the module."""

    def __init__(self, client: "Session", group: str) -> None:
        self.at = AtCoordinator(client, group)
        """Who knows."""
        self._client = client
        self._group = group

    async def committed(
        self, names: Iterable[TopicPartition], known: Mapping[TopicPartition, Place], deadline_ms: float
    ) -> dict[TopicPartition, CommittedPartition]:
        """What the group has committed of these; of some of them the place is `known`."""
        places = {name: known.get(name) or await self.place(name, deadline_ms) for name in names}
        found = await self.fetch(list(places.values()), deadline_ms) if places else {}
        refusals = Refusals()
        for name, place in places.items():
            refusals.look(str(name), found[place].error, found[place].message)
        refusals.raise_any(len(places))
        return {name: found[place] for name, place in places.items()}

    async def fetch(self, places: Iterable[Place], deadline_ms: float) -> dict[Place, CommittedPartition]:
        """What the group has committed of these, errors and all."""
        late = RequestTimedOut(f"what group {self._group!r} has committed was not told in time")
        async with until(deadline_ms, late):
            found = await self.at.committed(list(places), deadline_ms)
        return {(entry.topic_id, entry.index): entry for entry in found}

    async def place(self, name: TopicPartition, deadline_ms: float) -> Place:
        """A partition as brokers name it. Raises UnknownTopicOrPartition when there is none."""
        left_s = max(deadline_ms - asyncio.get_running_loop().time() * 1000, 1.0) / 1000
        topic = await self._client.topic(name.topic, timeout=left_s)
        if name.partition >= len(topic.partitions):
            await self._client.refresh([name.topic], newer=True)  # it may just have been added
            topic = await self._client.topic(name.topic, timeout=left_s)
        if name.partition >= len(topic.partitions):
            fact = f"there is no partition {name}: {name.topic} has {len(topic.partitions)}"
            raise UnknownTopicOrPartition(fact)
        return topic.id, name.partition
