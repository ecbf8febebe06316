"""Topics come whole or not at all (design 4.9; DECISIONS 10 and 19)."""

from typing import Any

import pytest

from tests.controller.book import OTHER, TOPIC, Book, ids, partition
from tidelog.controller.facts import Fact, TopicRemoved
from tidelog.controller.topics import PARTITIONS_MAX, Replicas, TopicDefaults, create_topic, remove_topic
from tidelog.protocol.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopic,
    TidelogError,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.protocol.messages import ConfigEntry, NewTopic, ReplicaPlaces


def place(partitions: int, factor: int) -> list[Replicas]:
    return [ids(*range(1, factor + 1))] * partitions


def create(book: Book, topic: NewTopic, **defaults: Any) -> list[Fact]:
    facts = create_topic(book.image, topic, OTHER, place, TopicDefaults(**defaults))
    book.carry_out(facts)
    return facts


def places(*replicas: tuple[int, ...]) -> tuple[ReplicaPlaces, ...]:
    return tuple(ReplicaPlaces(ids(*each)) for each in replicas)


def configs(**values: str) -> tuple[ConfigEntry, ...]:
    return tuple(ConfigEntry(key.replace("_", "."), value) for key, value in values.items())


def test_a_topic_that_says_nothing_has_the_defaults() -> None:
    book = Book()
    create(book, NewTopic("new"))
    (p,) = book.image.partitions_of(OTHER)
    assert (p.replicas, p.isr, p.leader, p.min_isr, p.flush_group) == ((1, 2, 3), (1, 2, 3), 1, 2, False)


def test_min_isr_is_at_most_the_number_of_replicas() -> None:
    book = Book()
    create(book, NewTopic("new", 2, 1, configs=configs(min_insync_replicas="3")))
    assert [p.min_isr for p in book.image.partitions_of(OTHER)] == [1, 1]
    assert book.image.configs["topic", "new", "min.insync.replicas"] == "3"


def test_the_flush_mode_stands_in_the_partition() -> None:
    book = Book()
    create(book, NewTopic("new", configs=configs(flush_mode="group")))
    assert book.image.partitions_of(OTHER)[0].flush_group


def test_who_is_fenced_is_a_replica_out_of_sync() -> None:
    book = Book(live=(2, 3), fenced=(1,))
    create(book, NewTopic("new", assignment=places((1, 2), (3, 1))))
    assert [(p.leader, p.isr) for p in book.image.partitions_of(OTHER)] == [(2, (2,)), (3, (3,))]


IMPOSSIBLE: dict[str, tuple[NewTopic, type[TidelogError], str]] = {
    "no name": (NewTopic(""), InvalidTopic, "'' cannot be the name of a topic: it must be 1 to 249 of letters, digits, '.', '_' and '-'"),
    "a path": (NewTopic("a/b"), InvalidTopic, "'a/b' cannot be .*: it must be 1 to 249 of letters"),
    "the folder above": (NewTopic(".."), InvalidTopic, r"'\.\.' cannot be .*: a directory could not have it"),
    "the metadata log": (NewTopic("__metadata"), InvalidTopic, "cannot be .*: it is that of the controllers' own log"),
    "a name that is taken": (NewTopic("orders"), TopicAlreadyExists, f"there is a topic orders already, with the id {TOPIC.hex()}"),
    "too many partitions": (NewTopic("new", PARTITIONS_MAX + 1), InvalidPartitions, "new: 5001 partitions, at most 5000 are made at once"),
    "more replicas than brokers": (NewTopic("new", 1, 4), InvalidReplicationFactor, "new: 4 replicas need as many brokers, 3 are registered"),
    "a number and an assignment": (NewTopic("new", 1, assignment=places((1,))), InvalidReplicaAssignment, "partitions=1 and replication_factor=0 must both be 0"),
    "an empty assignment": (NewTopic("new", assignment=places(())), InvalidReplicaAssignment, r"partition 0 is given to \[\]: it must be 1 distinct brokers of \[1, 2, 3, 4\]"),
    "a broker twice": (NewTopic("new", assignment=places((1, 1))), InvalidReplicaAssignment, r"partition 0 is given to \[1, 1\]: it must be 2 distinct"),
    "a stranger": (NewTopic("new", assignment=places((1, 9))), InvalidReplicaAssignment, r"given to \[1, 9\]: it must be 2 distinct brokers of \[1, 2, 3, 4\]"),
    "uneven replicas": (NewTopic("new", assignment=places((1, 2), (1,))), InvalidReplicaAssignment, r"partition 1 is given to \[1\]: it must be 2 .* as many as of partition 0"),
    "nobody alive": (NewTopic("new", assignment=places((4,))), InvalidReplicaAssignment, r"none of the brokers \[4\] of partition 0 is alive: it must be one of \[1, 2, 3\]"),
    "no number": (NewTopic("new", configs=configs(min_insync_replicas="two")), InvalidConfig, "min.insync.replicas=two: it must be a whole number from 1"),
    "nobody in sync": (NewTopic("new", configs=configs(min_insync_replicas="0")), InvalidConfig, "min.insync.replicas=0: it must be a whole number from 1"),
    "an unknown flush mode": (NewTopic("new", configs=configs(flush_mode="maybe")), InvalidConfig, "flush.mode=maybe: it must be"),
    "an unknown setting": (NewTopic("new", configs=configs(retentin_ms="1")), InvalidConfig, "retentin.ms: there is no such setting; the nearest is retention.ms"),
    "no time": (NewTopic("new", configs=configs(retention_ms="long")), InvalidConfig, "retention.ms=long: it must be"),
    "a setting twice": (NewTopic("new", configs=configs(flush_mode="async") * 2), InvalidConfig, "new: flush.mode is given twice"),
}  # fmt: skip


@pytest.mark.parametrize(("topic", "error", "told"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_is_not_possible_is_refused_and_says_what_is(
    topic: NewTopic, error: type[TidelogError], told: str
) -> None:
    book = Book(partition((1, 2)), live=(1, 2, 3), fenced=(4,))
    if topic.replication_factor == 4:
        book = Book(partition((1, 2)))
    with pytest.raises(error, match=told):
        create(book, topic)


def test_a_topic_is_removed_by_name_or_by_id() -> None:
    image = Book(partition((1, 2))).image
    assert remove_topic(image, "orders", None) == remove_topic(image, "", TOPIC) == [TopicRemoved(TOPIC)]


def test_what_is_not_there_cannot_be_removed() -> None:
    image = Book(partition((1, 2))).image
    with pytest.raises(UnknownTopicOrPartition):
        remove_topic(image, "invoices", None)
    with pytest.raises(UnknownTopicId):
        remove_topic(image, "orders", OTHER)


def test_a_topic_that_does_not_fit_into_one_batch_of_the_metadata_log_is_refused() -> None:
    """It is made as a whole or not at all; what is too large would end every controller that tried."""
    book = Book(live=tuple(range(1000, 1030)))
    wide = ReplicaPlaces(tuple(ids(*range(1000, 1030))))
    with pytest.raises(
        InvalidPartitions, match="new: 5001 partitions and settings are too much to be made at once"
    ):
        create(book, NewTopic("new", assignment=(wide,) * PARTITIONS_MAX))
