"""Topics are made and removed: what of a request is possible, and the facts that do it (design 4.9; DECISIONS 10, 19).

What it keeps true: a topic comes with all of its partitions in one batch, or not at all; every partition begins
with somebody in sync and a leader; a name means one topic at a time, an id means one for ever.

Where new partitions go is not decided here: `Place` is `placement`'s.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tidelog.controller.batches import in_batches
from tidelog.controller.election import MIN_ISR, MIN_ISR_DEFAULT, alive_for, new_partition
from tidelog.controller.facts import FACTS_MAX, METADATA, ConfigChanged, Fact, TopicCreated, TopicRemoved
from tidelog.controller.image import Image
from tidelog.protocol.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.protocol.messages import NewTopic
from tidelog.protocol.settings import TOPIC, checked
from tidelog.protocol.types import BrokerId, TopicId

Replicas: TypeAlias = tuple[BrokerId, ...]
PlaceNew: TypeAlias = Callable[[int, int], Sequence[Replicas]]
"""The replicas of so many partitions, so many each; or InvalidReplicationFactor."""

FLUSH_MODE: Final = "flush.mode"
OF_GROUPS: Final = "__consumer_offsets"
"""Which of its partitions holds a group follows from the group's name and their number, and every record counts: neither
the number nor that it is compacted can be changed without losing groups."""
PARTITIONS_MAX: Final = FACTS_MAX // 2
"""Partitions of a topic that is created at once: they fit into one batch with its settings."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TAKEN: Final = {
    ".": "a directory could not have it",
    "..": "a directory could not have it",
    METADATA.topic: "it is that of the controllers' own log",
}
"""Names that the rule would allow, and why they cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """What a topic has that does not say (DECISIONS 19)."""

    partitions: int = 1
    """`num.partitions`."""
    replication_factor: int = 3
    """`default.replication.factor`: one broker may be lost with its disk while another one is down."""
    min_isr: int = MIN_ISR_DEFAULT
    """`min.insync.replicas`, at most the number of replicas."""
    flush_mode: str = "async"
    """`flush.mode`: `group` survives the loss of power on all replicas at once."""

    def by_key(self) -> dict[str, str]:
        """The same as settings."""
        return {
            "num.partitions": str(self.partitions),
            "default.replication.factor": str(self.replication_factor),
            MIN_ISR: str(self.min_isr),
            FLUSH_MODE: self.flush_mode,
        }


def create_topic(
    image: Image, topic: NewTopic, topic_id: TopicId, place: PlaceNew, defaults: TopicDefaults
) -> list[Fact]:
    """The facts of a new topic, all for one batch."""
    _check_name(image, topic.name)
    configs = _configs(topic)
    min_isr = int(configs.get(MIN_ISR) or image.configs.get(("cluster", "", MIN_ISR)) or defaults.min_isr)
    flush_mode = (
        configs.get(FLUSH_MODE) or image.configs.get(("cluster", "", FLUSH_MODE)) or defaults.flush_mode
    )
    facts: list[Fact] = [TopicCreated(topic_id, topic.name)]
    living = [b for b in sorted(image.brokers) if image.live_epoch(b) is not None]
    facts += [ConfigChanged("topic", topic.name, key, value) for key, value in configs.items()]
    for index, replicas in enumerate(_assignment(image, topic, place, defaults)):
        alive = alive_for(image, (topic_id, index))
        group = flush_mode == "group"
        state = new_partition(topic_id, index, replicas, alive, min_isr, flush_group=group, living=living)
        facts.append(state.created())
    if len(in_batches([facts])) > 1:
        raise InvalidPartitions(
            f"{topic.name}: {len(facts)} partitions and settings are too much to be made at once: make it with fewer "
            "partitions, and add the others"
        )
    return facts


def _check_name(image: Image, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidTopic(
            f"{name!r} cannot be the name of a topic: it must be 1 to 249 of letters, digits, '.', '_' and '-'"
        )
    if name in _TAKEN:
        raise InvalidTopic(f"{name!r} cannot be the name of a topic: {_TAKEN[name]}")
    if name in image.topic_ids:
        raise TopicAlreadyExists(
            f"there is a topic {name} already, with the id {image.topic_ids[name].hex()}"
        )


def remove_topic(image: Image, name: str, topic_id: TopicId | None) -> list[Fact]:
    """The fact that a topic is gone, by its id if there is one."""
    if topic_id is None:
        topic_id = image.topic_ids.get(name)
        if topic_id is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
    if topic_id not in image.topics:
        raise UnknownTopicId(f"there is no topic with the id {topic_id.hex()}")
    return [TopicRemoved(topic_id)]


def _assignment(
    image: Image, topic: NewTopic, place: PlaceNew, defaults: TopicDefaults
) -> Sequence[Replicas]:
    if topic.assignment:
        if topic.partitions or topic.replication_factor:
            raise InvalidReplicaAssignment(
                f"{topic.name}: an assignment says how many there are: with it partitions={topic.partitions} and "
                f"replication_factor={topic.replication_factor} must both be 0"
            )
        given = [entry.replicas for entry in topic.assignment]
        _check_count(topic, len(given))
        _check_assignment(image, topic, given)
        return given
    partitions = topic.partitions or defaults.partitions
    factor = topic.replication_factor or defaults.replication_factor
    _check_count(topic, partitions)
    if factor > len(image.brokers):
        raise InvalidReplicationFactor(
            f"{topic.name}: {factor} replicas need as many brokers, {len(image.brokers)} are registered"
        )
    return place(partitions, factor)


def _check_count(topic: NewTopic, partitions: int) -> None:
    if partitions > PARTITIONS_MAX:
        raise InvalidPartitions(
            f"{topic.name}: {partitions} partitions, at most {PARTITIONS_MAX} are made at once"
        )


def _check_assignment(image: Image, topic: NewTopic, given: Sequence[Replicas]) -> None:
    for index, replicas in enumerate(given):
        strangers = [broker for broker in replicas if broker not in image.brokers]
        if not replicas or strangers or len(set(replicas)) != len(replicas) or len(replicas) != len(given[0]):
            raise InvalidReplicaAssignment(
                f"{topic.name}: partition {index} is given to {list(replicas)}: it must be "
                f"{max(len(given[0]), 1)} distinct brokers of {sorted(image.brokers)}, as many as of partition 0"
            )


def _configs(topic: NewTopic) -> dict[str, str]:
    """Its settings, in the one spelling that is kept, checked as when they are altered."""
    configs: dict[str, str] = {}
    for entry in topic.configs:
        key, value = checked(TOPIC, entry.key, entry.value)
        if key in configs:
            raise InvalidConfig(f"{topic.name}: {key} is given twice")
        configs[key] = value
    return configs
