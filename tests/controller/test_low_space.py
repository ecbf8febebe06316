"""Brokers that are low on space: others lead and are placed where they can, and nobody is kept from what he must (ADR 103)."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from tests.controller.book import TOPIC, Book, ids, partition
from tests.controller.planted import Bug, fails, planted
from tests.controller.test_liveness import Beats
from tidelog.controller import election, liveness, rebalance
from tidelog.controller.election import elect_preferred, fence, hand_over, say_low_space
from tidelog.controller.facts import BrokerChanged, decode_facts
from tidelog.controller.placement import balance, drain, place_new
from tidelog.protocol.errors import PreferredLeaderNotAvailable
from tidelog.protocol.messages import PartitionIndex
from tidelog.protocol.types import BrokerId

PLACE = (TOPIC, 0)
ONE, TWO, THREE = ids(1, 2, 3)


def low(book: Book, *numbers: int) -> Book:
    """These say that they are low on space."""
    for number in numbers:
        book.carry_out(say_low_space(book.image, BrokerId(number), low_space=True))
    return book


def leads(book: Book) -> tuple[int, tuple[int, ...], int]:
    """Who leads, who is in sync, and in which leader epoch: 5 at the beginning."""
    state = book.state()
    return state.leader, state.isr, state.leader_epoch


def a_heartbeat_says_it_once_and_it_is_a_fact(module: Any) -> None:
    beats = Beats(module, Book(partition((1, 2, 3))))
    beats.beat(low_space=True)
    assert beats.book.image.brokers[ONE].low_space
    end = beats.book.image.end_offset
    beats.beat(low_space=True)
    assert beats.book.image.end_offset == end
    beats.beat()
    assert not beats.book.image.brokers[ONE].low_space


def who_has_no_room_hands_over_and_stays_in_sync(module: Any) -> None:
    beats = Beats(module, Book(partition((1, 2, 3))))
    beats.beat(low_space=True, unwritable=(PartitionIndex(*PLACE),))
    assert leads(beats.book) == (2, (1, 2, 3), 6)
    assert not beats.book.image.brokers[ONE].fenced


def its_lease_waits_until_it_has_read_who_leads_now(module: Any) -> None:
    beats = Beats(module, Book(partition((1, 2, 3))))
    told = beats.book.image.end_offset
    beats.beat(low_space=True, unwritable=(PartitionIndex(*PLACE),))
    assert not beats.renews(told)
    assert beats.renews(beats.book.image.end_offset)


def who_is_fenced_says_it_before_it_may_lead(module: Any) -> None:
    beats = Beats(module, low(Book(partition((), (1,), leader=-1), fenced=(1,), live=(2, 3)), 2))
    beats.beat(low_space=True)
    first = next(
        change
        for change in changes_of(beats.book)
        if change.broker_id == 1 and (change.low_space or not change.fenced)
    )
    assert first.low_space
    assert leads(beats.book)[0] == 1


def changes_of(book: Book) -> list[BrokerChanged]:
    return [fact for batch in book.batches for fact in decode_facts(batch) if isinstance(fact, BrokerChanged)]


BEATS: list[Callable[[Any], None]] = [
    a_heartbeat_says_it_once_and_it_is_a_fact,
    who_has_no_room_hands_over_and_stays_in_sync,
    its_lease_waits_until_it_has_read_who_leads_now,
    who_is_fenced_says_it_before_it_may_lead,
]


@pytest.mark.parametrize("rule", BEATS)
def test_of_heartbeats(rule: Callable[[Any], None]) -> None:
    rule(liveness)


@pytest.mark.parametrize(
    "bug",
    [
        Bug(
            "said and forgotten",
            "if said := say_low_space(image, broker, low_space=request.low_space):",
            "if said := []:",
        ),
        Bug("never handed over", "if request.unwritable and (moved", "if not request.unwritable and (moved"),
    ],
    ids=str,
)
def test_a_planted_bug_of_heartbeats_is_found(bug: Bug) -> None:
    module = planted(liveness, bug)
    assert any(fails(partial(rule, module)) for rule in BEATS)


# ── who leads ─────────────────────────────────────────────────────────────────────────────────────────


def test_it_hands_over_to_the_first_that_has_room() -> None:
    book = low(Book(partition((1, 2, 3))), 1, 2)
    book.carry_out(hand_over(book.image, ONE, [PLACE]))
    assert leads(book) == (3, (1, 2, 3), 6)
    assert hand_over(book.image, ONE, [PLACE]) == [], "it does not lead any more"


@pytest.mark.parametrize(
    "book",
    [
        low(Book(partition((1, 2, 3))), 1, 2, 3),
        low(Book(partition((1, 2))), 1, 2),
        low(Book(partition((1,), (2,))), 1),
    ],
    ids=["nobody has room", "who has room is not in sync", "nobody is in sync but the leader"],
)
def test_it_leads_on_where_nobody_else_both_can_and_has_room(book: Book) -> None:
    assert hand_over(book.image, ONE, [PLACE, (TOPIC, 9)]) == []
    assert leads(book)[0] == 1


def test_an_election_prefers_who_has_room() -> None:
    book = low(Book(partition((1, 2, 3))), 2)
    book.carry_out(fence(book.image, ONE))
    assert leads(book) == (3, (2, 3), 6)


def test_an_election_takes_one_without_room_before_it_leaves_a_partition_without_a_leader() -> None:
    book = low(Book(partition((1, 2))), 2, 3)
    book.carry_out(fence(book.image, ONE))
    assert leads(book) == (2, (2,), 6)


def test_room_makes_nobody_leader_who_is_not_in_sync() -> None:
    book = low(Book(partition((1, 2))), 1, 2)
    book.carry_out(fence(book.image, ONE))
    assert leads(book)[0] == 2, "3 has room, and may lack records"


def test_a_leader_without_room_is_not_deposed_by_what_happens_to_others() -> None:
    book = low(Book(partition((1, 2, 3))), 1)
    book.carry_out(fence(book.image, THREE))
    assert leads(book) == (1, (1, 2), 5)


def test_the_preferred_leader_leads_again_when_it_has_room() -> None:
    book = low(Book(partition((2, 1, 3), leader=2)), 1)
    with pytest.raises(PreferredLeaderNotAvailable, match="with room"):
        elect_preferred(book.image, PLACE)
    assert rebalance.rebalance(book.image, {ONE}) == []
    book.carry_out(say_low_space(book.image, ONE, low_space=False))
    book.carry_out(rebalance.rebalance(book.image, {ONE}))
    assert leads(book)[0] == 1


def test_many_partitions_are_handed_over_in_steps() -> None:
    book = low(Book(*(partition((1, 2, 3), index=index) for index in range(election.STEP + 7))), 1)
    places = [(TOPIC, index) for index in range(election.STEP + 7)]
    steps = []
    while facts := hand_over(book.image, ONE, places):
        steps.append(len(facts))
        book.carry_out(facts)
    assert steps == [election.STEP, 7]


def test_a_new_process_has_to_say_it_again() -> None:
    book = low(Book(), 1)
    assert book.image.brokers[ONE].low_space
    book.register(1, process="another")
    assert not book.image.brokers[ONE].low_space


# ── who is placed ─────────────────────────────────────────────────────────────────────────────────────


def test_new_partitions_go_where_there_is_room_if_that_is_enough() -> None:
    book = low(Book(live=(1, 2, 3, 4)), 4)
    placed = place_new(book.image.brokers.values(), 20, 3, Random(1))
    assert {broker for replicas in placed for broker in replicas} == {1, 2, 3}
    low(book, 3)
    placed = place_new(book.image.brokers.values(), 20, 3, Random(1))
    assert {broker for replicas in placed for broker in replicas} == {1, 2, 3, 4}


def test_nothing_is_moved_to_who_is_low_on_space_but_what_nobody_else_can_take() -> None:
    states = [partition((1, 2), replicas=(1, 2), index=index) for index in range(6)]
    book = low(Book(*states, live=(1, 2, 3, 4)), 3)
    assert {broker for replicas in balance(book.image).values() for broker in replicas} == {1, 2, 4}
    assert {broker for replicas in drain(book.image, ONE).values() for broker in replicas} == {2, 4}
    low(book, 4)
    assert {broker for replicas in drain(book.image, ONE).values() for broker in replicas} == {2, 3, 4}
