"""The topics that groups may consume, as the broker's copy of the metadata has them.

What it keeps true: `version` grows whenever a topic comes, goes or grows, and only then; so a group that has seen the
version has nothing to look at.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from tidelog.protocol.types import TopicId

DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic."""

    topic_id: TopicId
    name: str
    partitions: int
    """They are numbered from 0."""
    racks: tuple[frozenset[str], ...] = ()
    """Of each partition: where its replicas stand; empty: nobody says."""


class Topics:
    """All topics, by name and by id."""

    __slots__ = ("by_id", "by_name", "version")

    def __init__(self, topics: Iterable[Topic] = ()) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[TopicId, Topic] = {}
        self.version = 0
        for topic in topics:
            self.put(topic)

    def put(self, topic: Topic) -> None:
        """The topic is there, as it is now; it takes the place of another one of its name."""
        before = self.by_name.get(topic.name)
        if before == topic:
            return
        if before is not None and before.topic_id != topic.topic_id:
            del self.by_id[before.topic_id]
        if before is None or (before.topic_id, before.partitions) != (topic.topic_id, topic.partitions):
            self.version += 1
        self.by_name[topic.name] = self.by_id[topic.topic_id] = topic

    def remove(self, topic_id: TopicId) -> None:
        """The topic is gone."""
        topic = self.by_id.pop(topic_id, None)
        if topic is not None:
            del self.by_name[topic.name]
            self.version += 1

    def name(self, topic_id: TopicId) -> str:
        """What users call it; empty: it is gone."""
        topic = self.by_id.get(topic_id)
        return topic.name if topic is not None else ""

    def has(self, topic_id: TopicId, index: int) -> bool:
        """Whether there is such a partition."""
        topic = self.by_id.get(topic_id)
        return topic is not None and 0 <= index < topic.partitions

    def wanted(self, names: Iterable[str]) -> dict[TopicId, Topic]:
        """Those of these topics that exist."""
        found = (self.by_name.get(name) for name in names)
        return {topic.topic_id: topic for topic in found if topic is not None}


def digest_of(topics: Mapping[TopicId, Topic]) -> bytes:
    """What stands for these topics and their sizes: another one when any of them changes."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for topic_id in sorted(topics):
        digest.update(topic_id + topics[topic_id].partitions.to_bytes(4, "big"))
    return digest.digest()
