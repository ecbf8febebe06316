"""Topics get more partitions: what of a request is possible, and the facts that do it (design 4.9; DECISIONS 10).

What it keeps true: all that a request adds to a topic is in one batch; the new partitions are like those that the
topic has, in the number of replicas and in how records are flushed, and clamp `min.insync.replicas` by themselves;
every one begins with somebody in sync and a leader.

Where they go is not decided here, nor what a producer makes of the number: a key lies in another partition from
then on, which the answer says.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from tidelog.controller.batches import Answer, check_distinct, in_batches
from tidelog.controller.election import alive_for, configured_min_isr, new_partition
from tidelog.controller.facts import Fact
from tidelog.controller.image import Image, PartitionState
from tidelog.controller.topics import OF_GROUPS, PARTITIONS_MAX, Replicas
from tidelog.protocol.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    PolicyViolation,
    TidelogError,
    UnknownTopicOrPartition,
)
from tidelog.protocol.messages import (
    CreatedPartitions,
    CreatePartitions,
    CreatePartitionsReply,
    NewPartitions,
)
from tidelog.protocol.settings import CLEANUP_POLICY, TOPIC, find
from tidelog.protocol.types import TopicId

PlaceMore: TypeAlias = Callable[[TopicId, int, int, int], Sequence[Replicas]]
"""The replicas of a topic's partitions from a number on, so many, so many each; or InvalidReplicationFactor."""

KEYS_MOVE: Final = (
    "a key's new records go to another partition than those it has: its order is not kept across them"
)
OLD_VALUES_STAY: Final = "compaction keeps a key's last value in its old partition for ever"


def create_partitions(
    image: Image, request: CreatePartitions, place: PlaceMore
) -> Answer[CreatePartitionsReply]:
    """More partitions for some topics, each topic by itself."""
    check_distinct(topic.name for topic in request.topics)
    units: list[list[Fact]] = []
    entries = []
    for topic in request.topics:
        try:
            units.append(add_partitions(image, topic, place))
        except TidelogError as error:
            entries.append(CreatedPartitions(topic.name, error.code, str(error)))
        else:
            warning = _warning(image, topic.name)
            entries.append(CreatedPartitions(topic.name, partitions=topic.count, warning=warning))
    return Answer([] if request.validate_only else in_batches(units), CreatePartitionsReply(tuple(entries)))


def add_partitions(image: Image, topic: NewPartitions, place: PlaceMore) -> list[Fact]:
    """The facts of one topic's new partitions, all for one batch."""
    topic_id = image.topic_ids.get(topic.name)
    there = image.partitions_of(topic_id) if topic_id else []
    if topic_id is None or not there:
        raise UnknownTopicOrPartition(f"there is no topic {topic.name!r}")
    if topic.name == OF_GROUPS:
        raise PolicyViolation(
            f"{topic.name} keeps its {len(there)} partitions: with any other number groups would not be found again"
        )
    first = there[0]
    more = topic.count - len(there)
    if not 0 < more <= PARTITIONS_MAX:
        raise InvalidPartitions(
            f"{topic.name}: {topic.count} partitions: it has {len(there)}, so it must be from {len(there) + 1} to "
            f"{len(there) + PARTITIONS_MAX}"
        )
    factor = len(_goal(first))
    if topic.assignment:
        replicas = _given(image, topic, more, factor)
    else:
        replicas = place(topic_id, len(there), more, factor)
    min_isr = configured_min_isr(image, first)
    # What the topic's other partitions do, and not what is configured by now for topics that are to be made.
    flush_group = first.flush_group
    living = [b for b in sorted(image.brokers) if image.live_epoch(b) is not None]
    facts: list[Fact] = []
    for index, each in enumerate(replicas, len(there)):
        alive = alive_for(image, (topic_id, index))
        state = new_partition(topic_id, index, each, alive, min_isr, flush_group=flush_group, living=living)
        facts.append(state.created())
    if len(in_batches([facts])) > 1:
        raise InvalidPartitions(
            f"{topic.name}: {more} partitions of {factor} replicas are too many to be made at once"
        )
    return facts


def _goal(p: PartitionState) -> Replicas:
    """Who is to hold it when what goes on has ended."""
    return tuple(r for r in p.replicas if r not in p.removing)


def _given(image: Image, topic: NewPartitions, more: int, factor: int) -> Sequence[Replicas]:
    given = [entry.replicas for entry in topic.assignment]
    if len(given) != more:
        raise InvalidReplicaAssignment(
            f"{topic.name}: {len(given)} partitions are assigned, {more} are to be made"
        )
    for index, replicas in enumerate(given, topic.count - more):
        strangers = [broker for broker in replicas if broker not in image.brokers]
        if strangers or len(set(replicas)) != len(replicas) or len(replicas) != factor:
            raise InvalidReplicaAssignment(
                f"{topic.name}: partition {index} is given to {list(replicas)}: it must be {factor} distinct "
                f"brokers of {sorted(image.brokers)}"
            )
    return given


def _warning(image: Image, name: str) -> str:
    policy = find(image.configs, TOPIC, name, CLEANUP_POLICY).value or ""
    return f"{KEYS_MOVE}; {OLD_VALUES_STAY}" if "compact" in policy.split(",") else KEYS_MOVE
