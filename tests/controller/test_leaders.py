"""Operators let somebody lead: the preferred replica, or anybody at all (design 4.8)."""

from typing import Any

import pytest

from tests.controller.book import TOPIC, Book, ids, partition
from tests.controller.planted import Bug
from tests.controller.sentences import noticed
from tidelog.controller import leaders
from tidelog.controller.facts import ConfigChanged
from tidelog.controller.leaders import elect_leaders, in_question
from tidelog.protocol.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidRequest,
    PreferredLeaderNotAvailable,
    UnknownTopicId,
)
from tidelog.protocol.messages import ElectLeaders, PartitionElected, PartitionIndex


def of(*partitions: int) -> tuple[PartitionIndex, ...]:
    return tuple(PartitionIndex(TOPIC, index) for index in partitions)


def elect(
    book: Book, partitions: tuple[PartitionIndex, ...] | None = None, best: Any = None, **how: bool
) -> tuple[PartitionElected, ...]:
    answer = elect_leaders(book.image, ElectLeaders(partitions, **how), best)
    for facts in answer.batches:
        book.carry_out(facts)
    return answer.reply.partitions


def three() -> Book:
    """Led by its preferred replica, by another one, and by another one while the preferred is not in sync."""
    return Book(
        partition((1, 2)), partition((1, 2), leader=2, index=1), partition((2, 3), index=2), live=(1, 2, 3)
    )


def test_the_preferred_leads_where_it_can_and_each_partition_is_answered() -> None:
    book = three()
    entries = elect(book, of(0, 1, 2, 7))
    errors = (ElectionNotNeeded, None, PreferredLeaderNotAvailable, UnknownTopicId)
    assert [entry.error for entry in entries] == [error.code if error else 0 for error in errors]
    assert (entries[1].leader, entries[1].leader_epoch, entries[1].unclean) == (1, 6, False)
    assert entries[0].message == "broker 1 leads already"
    assert [book.state(index).leader for index in (0, 1, 2)] == [1, 1, 2]


def test_of_all_partitions_those_are_answered_where_something_is_to_be_done() -> None:
    assert [entry.index for entry in elect(three())] == [1, 2]
    assert elect(three(), unclean=True) == ()


def test_somebody_leads_although_records_may_be_lost_because_an_operator_says_so() -> None:
    """4.8: whatever `unclean.recovery` says."""
    book = Book(partition((), (1,)), partition((2,), index=1), fenced=(1,), live=(2, 3))
    book.say(ConfigChanged("topic", "orders", "unclean.recovery", "none"))
    [entry] = elect(book, unclean=True)
    assert (entry.index, entry.leader, entry.unclean, entry.leader_epoch) == (0, 2, True, 6)
    assert (book.state().leader, book.state().unclean_epoch, book.state().recovering) == (2, 6, True)


def test_what_replicas_were_found_to_hold_decides_who_leads() -> None:
    book = Book(partition((), (1,)), fenced=(1,), live=(2, 3))
    assert elect(book, unclean=True, best={(TOPIC, 0): ids(3, 2)})[0].leader == 3


def test_only_of_partitions_without_a_leader_it_must_be_known_who_has_most() -> None:
    book = Book(
        partition((), (1,)), partition((2,), index=1), partition((), (1,), index=2), fenced=(1,), live=(2, 3)
    )
    assert in_question(book.image, ElectLeaders(None, unclean=True)) == [(TOPIC, 0), (TOPIC, 2)]
    assert in_question(book.image, ElectLeaders(of(2, 1, 7), unclean=True)) == [(TOPIC, 2)]


def test_an_election_that_costs_nothing_is_not_called_unclean() -> None:
    book = Book(partition((), (2,)), fenced=(2,), live=(1, 3))
    book.say(book.unfenced(2))
    assert [(entry.leader, entry.unclean) for entry in elect(book, unclean=True)] == [(2, False)]


def test_who_leads_is_not_replaced_by_an_unclean_election() -> None:
    assert elect(three(), of(0), unclean=True)[0].error == ElectionNotNeeded.code


def test_where_nobody_is_alive_nobody_leads() -> None:
    book = Book(partition((), (1,)), fenced=(1, 2, 3), live=(4,))
    [entry] = elect(book, of(0), unclean=True)
    assert (entry.error, entry.message) == (
        EligibleLeadersNotAvailable.code,
        "none of the replicas [1, 2, 3] is alive",
    )


def test_what_is_only_validated_is_told_and_not_done() -> None:
    book = three()
    assert elect(book, of(1), validate_only=True)[0].leader == 1
    assert book.state(1).leader == 2


def test_a_partition_is_named_once() -> None:
    with pytest.raises(InvalidRequest, match="orders-1 is named twice: once is accepted"):
        elect(three(), of(1, 1))


BUGS = (
    Bug("unclean and not told", "then.unclean_epoch != image.partitions[place].unclean_epoch", "False"),
    Bug("what was found does not count", "(best_first or {}).get(place, ())", "()"),
    Bug("of those with a leader as well", "return sorted(leaderless.intersection(", "return sorted(set("),
    Bug("validated and done", "[] if request.validate_only else in_batches(units)", "in_batches(units)"),
    Bug("all are answered", "if p.leader != p.replicas[0])", ")"),
    Bug("the preferred, where anybody was meant", "elect_anyway(image, place, best_first) if unclean else elect_preferred(image, place)", "elect_preferred(image, place)"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    assert noticed(globals(), leaders, bug, monkeypatch)
