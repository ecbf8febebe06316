"""Topics get more partitions, like those that they have (design 4.9; DECISIONS 10)."""

from typing import Any

import pytest

from tests.controller.book import OTHER, TOPIC, Book, ids, partition
from tests.controller.planted import Bug
from tests.controller.sentences import noticed
from tidelog.controller import partitions
from tidelog.controller.facts import ConfigChanged, TopicCreated
from tidelog.controller.image import PartitionState
from tidelog.controller.partitions import KEYS_MOVE, OLD_VALUES_STAY, create_partitions
from tidelog.controller.topics import OF_GROUPS, PARTITIONS_MAX, Replicas
from tidelog.protocol.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    PolicyViolation,
    TidelogError,
    UnknownTopicOrPartition,
)
from tidelog.protocol.messages import CreatedPartitions, CreatePartitions, NewPartitions, ReplicaPlaces
from tidelog.protocol.types import TopicId

asked: list[tuple[TopicId, int, int, int]] = []


def place(topic_id: TopicId, first: int, partitions: int, factor: int) -> list[Replicas]:
    asked[:] = [(topic_id, first, partitions, factor)]
    if factor > 4:
        raise InvalidReplicationFactor(f"{factor} replicas")
    return [ids(*range(1, factor + 1))] * partitions


def create(book: Book, *topics: NewPartitions, **more: Any) -> tuple[CreatedPartitions, ...]:
    answer = create_partitions(book.image, CreatePartitions(topics, **more), place)
    for facts in answer.batches:
        book.carry_out(facts)
    return answer.reply.topics


def last(book: Book) -> PartitionState:
    return book.image.partitions_of(TOPIC)[-1]


def places(*replicas: tuple[int, ...]) -> tuple[ReplicaPlaces, ...]:
    return tuple(ReplicaPlaces(ids(*each)) for each in replicas)


def test_new_partitions_follow_those_that_are_there() -> None:
    book = Book(partition((1, 2)), partition((1, 2), index=1))
    [entry] = create(book, NewPartitions("orders", 5))
    assert (entry.error, entry.partitions, asked) == (0, 5, [(TOPIC, 2, 3, 3)])
    assert [p.index for p in book.image.partitions_of(TOPIC)] == [0, 1, 2, 3, 4]
    p = last(book)
    assert (p.replicas, p.isr, p.leader, p.leader_epoch, p.min_isr) == ((1, 2, 3), (1, 2, 3), 1, 0, 2)


def test_keys_lie_in_other_partitions_from_then_on_and_the_answer_says_so() -> None:
    book = Book(partition((1, 2)))
    assert create(book, NewPartitions("orders", 2))[0].warning == KEYS_MOVE
    book.say(ConfigChanged("cluster", "", "cleanup.policy", "compact,delete"))
    assert create(book, NewPartitions("orders", 3))[0].warning == f"{KEYS_MOVE}; {OLD_VALUES_STAY}"


def test_new_partitions_clamp_min_isr_by_themselves() -> None:
    book = Book(partition((1, 2), replicas=(1, 2)))
    book.say(ConfigChanged("topic", "orders", "min.insync.replicas", "3"))
    create(book, NewPartitions("orders", 2))
    assert last(book).min_isr == 2


def test_new_partitions_do_not_wait_for_what_their_neighbours_wait_for() -> None:
    book = Book(partition((1,), replicas=(1, 2), adding=(2,), min_isr=1))
    create(book, NewPartitions("orders", 2))
    assert (last(book).replicas, last(book).min_isr) == ((1, 2), 2)


def test_new_partitions_are_flushed_as_the_topic_is_whatever_new_topics_are() -> None:
    """ADR 73: one topic, one promise."""
    for mode in (False, True):
        book = Book(partition((1, 2), flush_group=mode))
        book.say(ConfigChanged("cluster", "", "flush.mode", "async" if mode else "group"))
        create(book, NewPartitions("orders", 2))
        assert last(book).flush_group == mode


def test_new_partitions_have_as_many_replicas_as_a_move_will_leave() -> None:
    book = Book(partition((1, 2), replicas=(4, 1, 2), adding=(4,), removing=(1, 2)), live=(1, 2, 3, 4))
    create(book, NewPartitions("orders", 2))
    assert asked == [(TOPIC, 1, 1, 1)]


def test_an_operator_may_say_who_keeps_them() -> None:
    book = Book(partition((1, 2)))
    create(book, NewPartitions("orders", 2, places((3, 1, 2))))
    assert (last(book).replicas, last(book).leader) == ((3, 1, 2), 3)


def test_each_topic_gets_all_or_nothing_by_itself() -> None:
    book = Book(partition((1, 2)))
    book.say(
        TopicCreated(OTHER, "invoices"), partition((1,), replicas=(1,), min_isr=1, topic=OTHER).created()
    )
    refused = NewPartitions("orders", 3, places((1, 2, 3), (1, 2, 9)))
    assert [e.error for e in create(book, refused, NewPartitions("invoices", 3))] == [
        InvalidReplicaAssignment.code,
        0,
    ]
    assert [book.image.topics[topic].partitions for topic in (TOPIC, OTHER)] == [1, 3]


def test_what_is_only_validated_is_told_and_not_done() -> None:
    book = Book(partition((1, 2)))
    assert create(book, NewPartitions("orders", 7), validate_only=True)[0].partitions == 7
    assert book.image.topics[TOPIC].partitions == 1


def test_the_log_of_groups_keeps_its_partitions_or_groups_would_not_be_found_again() -> None:
    book = Book(partition((1, 2)))
    book.say(TopicCreated(OTHER, OF_GROUPS), partition((1, 2), topic=OTHER).created())
    groups, orders = create(book, NewPartitions(OF_GROUPS, 2), NewPartitions("orders", 2))
    assert groups.error == PolicyViolation.code
    assert "keeps its 1 partitions" in (groups.message or "")
    assert (orders.error, book.image.topics[OTHER].partitions) == (0, 1)


def test_a_topic_is_named_once() -> None:
    with pytest.raises(InvalidRequest, match="orders is named twice: once is accepted"):
        create(Book(partition((1, 2))), NewPartitions("orders", 2), NewPartitions("orders", 3))


IMPOSSIBLE: dict[str, tuple[NewPartitions, type[TidelogError], str]] = {
    "no topic": (NewPartitions("nobody", 3), UnknownTopicOrPartition, "no topic 'nobody'"),
    "as many as there are": (NewPartitions("orders", 1), InvalidPartitions, "orders: 1 partitions: it has 1, so it must be from 2 to 5001"),
    "fewer": (NewPartitions("orders", 0), InvalidPartitions, "it must be from 2"),
    "too many": (NewPartitions("orders", PARTITIONS_MAX + 2), InvalidPartitions, "to 5001"),
    "too few places": (NewPartitions("orders", 3, places((1, 2, 3))), InvalidReplicaAssignment, "1 partitions are assigned, 2 are to be made"),
    "another factor": (NewPartitions("orders", 2, places((1, 2))), InvalidReplicaAssignment, "[1, 2]: it must be 3 distinct brokers of [1, 2, 3, 4]"),
    "a broker twice": (NewPartitions("orders", 2, places((1, 2, 2))), InvalidReplicaAssignment, "3 distinct brokers"),
    "a stranger": (NewPartitions("orders", 2, places((1, 2, 9))), InvalidReplicaAssignment, "of [1, 2, 3, 4]"),
}  # fmt: skip


@pytest.mark.parametrize(("topic", "error", "told"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_is_not_possible_is_refused(topic: NewPartitions, error: type[TidelogError], told: str) -> None:
    book = Book(partition((1, 2)), live=(1, 2, 3), fenced=(4,))
    [entry] = create(book, topic)
    assert (entry.error, book.image.topics[TOPIC].partitions) == (error.code, 1)
    assert told in (entry.message or "")


def test_nobody_alive_among_those_named_is_refused() -> None:
    book = Book(partition((1,), replicas=(1,), min_isr=1), live=(1,), fenced=(4,))
    [entry] = create(book, NewPartitions("orders", 2, places((4,))))
    assert entry.error == InvalidReplicaAssignment.code


def test_what_cannot_be_placed_is_refused_by_who_places() -> None:
    book = Book(partition((1, 2), replicas=(1, 2, 3, 4, 5)), live=(1, 2, 3, 4, 5))
    assert create(book, NewPartitions("orders", 2))[0].error == InvalidReplicationFactor.code


BUGS = (
    Bug("min_isr of the neighbour", "min_isr = configured_min_isr(image, first)", "min_isr = first.min_isr"),
    Bug("flushed as new topics are", "flush_group = first.flush_group", "flush_group = not first.flush_group"),
    Bug("as many replicas as a move has", "if r not in p.removing", "if True"),
    Bug("placed as if they were the first", "place(topic_id, len(there), more, factor)", "place(topic_id, 0, more, factor)"),
    Bug("validated and done", "[] if request.validate_only else in_batches(units)", "in_batches(units)"),
    Bug("nobody is told of the keys", "warning = _warning(image, topic.name)", "warning = None"),
    Bug("strangers hold it", "if strangers or len", "if len"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    assert noticed(globals(), partitions, bug, monkeypatch)
