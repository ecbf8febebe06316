"""Preferred leaders lead again: the sentences of 4.9 about them, and in random states (DECISIONS 27; KAFKA-10149)."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controller.book import TOPIC, Book, ids, partition
from tests.controller.planted import Bug, fails, planted
from tidelog.controller import rebalance
from tidelog.controller.facts import BrokerChanged, PartitionChanged
from tidelog.controller.image import PartitionState
from tidelog.controller.rebalance import Imbalance, imbalance, overdue
from tidelog.protocol.types import NO_BROKER, BrokerId

ALL = (1, 2, 3)
ONE, TWO, THREE = ids(*ALL)


def led_by(leader: int, *, isr: tuple[int, ...] = ALL, index: int = 0, **more: Any) -> PartitionState:
    """A partition that 1 should lead."""
    return partition(isr, leader=leader, index=index, min_isr=1, **more)


def returned(module: Any, book: Book, brokers: tuple[int, ...] = ALL, **how: Any) -> list[int]:
    """Carry out a batch: the partitions whose leader it has changed."""
    facts = module.rebalance(book.image, ids(*brokers), **how)
    book.carry_out(facts)
    return [fact.index for fact in facts]


def states(seed: int) -> list[PartitionState]:
    """Partitions on four brokers, just as failures may have left them."""
    rng = Random(seed)
    found = []
    for index in range(rng.randint(1, 12)):
        replicas = tuple(rng.sample((1, 2, 3, 4), 3))
        isr = tuple(rng.sample(replicas, rng.randint(1, 3)))
        found.append(partition(isr, replicas=replicas, leader=rng.choice(isr), index=index, min_isr=1))
    return found


# ── who gets what back ────────────────────────────────────────────────────────────────────────────────


def who_is_alive_and_in_sync_leads_again(module: Any) -> None:
    book = Book(led_by(2), led_by(1, index=1), led_by(3, index=2))
    assert returned(module, book) == [0, 2]
    assert [book.state(index).leader for index in range(3)] == [1, 1, 1]


def who_is_behind_waits(module: Any) -> None:
    assert returned(module, Book(led_by(2, isr=(2, 3)))) == []


def who_cannot_serve_it_waits(module: Any) -> None:
    book = Book(led_by(2), led_by(2, index=1))
    book.say(BrokerChanged(ONE, book.epoch(1), False, False, ((TOPIC, 0),)))
    assert returned(module, book) == [1]


def who_shuts_down_gets_nothing(module: Any) -> None:
    book = Book(led_by(2))
    book.say(book.unfenced(1, shutting_down=True))
    assert returned(module, book) == []


def others_keep_what_they_lead(module: Any) -> None:
    book = Book(led_by(2), partition(ALL, replicas=(3, 1, 2), leader=1, index=1))
    assert returned(module, book, brokers=(3,)) == [1]


def only_leaders_change(module: Any) -> None:
    for seed in range(40):
        book = Book(*(before := states(seed)), live=(1, 2, 3, 4))
        returned(module, book, (1, 2, 3, 4))
        for p in before:
            then = book.state(p.index)
            assert (then.replicas, then.isr, then.elr, then.min_isr) == (p.replicas, p.isr, p.elr, p.min_isr)
            assert then.leader in (p.leader, p.replicas[0])
            moves = then.leader != p.leader
            assert (then.leader_epoch, then.partition_epoch) == (
                p.leader_epoch + moves,
                p.partition_epoch + moves,
            )
            assert then.leader == p.replicas[0] or p.replicas[0] not in p.isr


def once_is_enough(module: Any) -> None:
    for seed in range(40):
        book = Book(*states(seed), live=(1, 2, 3, 4))
        returned(module, book, (1, 2, 3, 4))
        assert returned(module, book, (1, 2, 3, 4)) == []


def a_reassignment_that_runs_goes_on(module: Any) -> None:
    """KAFKA-10149."""
    book = Book(led_by(2, isr=(1, 2), adding=(3,)))
    assert returned(module, book) == [0]
    assert (book.state().leader, book.state().adding, book.state().isr) == (1, (3,), (1, 2))


def who_is_still_to_come_does_not_lead(module: Any) -> None:
    assert returned(module, Book(partition((2, 3), leader=2, adding=(1,), min_isr=1))) == []


def who_goes_does_not_lead(module: Any) -> None:
    assert returned(module, Book(partition(ALL, leader=2, removing=(1,), min_isr=1))) == []


def a_batch_has_its_limit(module: Any) -> None:
    book = Book(*(led_by(2, index=index) for index in range(7)))
    assert [returned(module, book, most=3) for _ in range(4)] == [[0, 1, 2], [3, 4, 5], [6], []]


def the_order_is_that_of_the_partitions(module: Any) -> None:
    book = Book(*(led_by(2, index=index) for index in range(5)))
    image = book.image.copy()
    image.partitions = dict(reversed(image.partitions.items()))
    wanted = module.rebalance(book.image, ids(*ALL), 3)
    assert module.rebalance(image, ids(*ALL), 3) == wanted
    assert [fact.index for fact in wanted] == [0, 1, 2]


# ── how much is lacking ───────────────────────────────────────────────────────────────────────────────


def what_is_lacking_is_counted(module: Any) -> None:
    book = Book(
        led_by(2),
        led_by(1, index=1),
        led_by(2, isr=(2,), index=2),
        partition((2, 3), replicas=(2, 3), index=3),
    )
    assert [tuple(each) for each in module.imbalance(book.image)] == [
        (1, 3, 2, 1),
        (2, 1, 0, 0),
        (3, 0, 0, 0),
    ]
    assert [round(each.percentage) for each in module.imbalance(book.image)] == [67, 0, 0]


def leaderless_is_lacking(module: Any) -> None:
    book = Book(partition((), (1,)), live=(2, 3), fenced=(1,))
    assert book.state().leader == NO_BROKER
    assert tuple(module.imbalance(book.image)[0]) == (1, 1, 1, 0)


def a_small_share_is_let_be(module: Any) -> None:
    shares = [module.Imbalance(BrokerId(elsewhere), 10, elsewhere, elsewhere) for elsewhere in range(4)]
    assert module.overdue(shares) == {2, 3}
    assert module.overdue(shares, 0) == {1, 2, 3}
    assert module.overdue(shares, 30) == set()


def who_can_have_nothing_back_is_let_be(module: Any) -> None:
    assert module.overdue([module.Imbalance(ONE, 10, 10, 0)]) == set()


def the_dead_and_the_unknown_are_counted(module: Any) -> None:
    """A partition may name somebody first who is not registered any more."""
    image = Book(led_by(2, isr=(2, 3))).image
    del image.brokers[ONE]
    assert [each.broker for each in module.imbalance(image)] == [1, 2, 3]


def all_is_well_in_the_end(module: Any) -> None:
    """Whatever has happened: when everybody is alive and in sync, nothing is lacking after some batches."""
    for seed in range(40):
        rng = Random(seed)
        book = Book(live=(1, 2, 3, 4))
        placed = states(seed)
        book = Book(
            *(partition(p.replicas, replicas=p.replicas, leader=p.leader, index=p.index) for p in placed),
            live=(1, 2, 3, 4),
        )
        behind = module.overdue(module.imbalance(book.image), 0)
        batches = 0
        while facts := module.rebalance(book.image, behind, rng.randint(1, 3)):
            book.carry_out(facts)
            batches += 1
            assert batches <= len(placed)
        assert not any(each.elsewhere for each in module.imbalance(book.image))
        assert module.overdue(module.imbalance(book.image), 0) == set()


RULES: tuple[Callable[[Any], None], ...] = (
    who_is_alive_and_in_sync_leads_again,
    who_is_behind_waits,
    who_cannot_serve_it_waits,
    who_shuts_down_gets_nothing,
    others_keep_what_they_lead,
    only_leaders_change,
    once_is_enough,
    a_reassignment_that_runs_goes_on,
    who_is_still_to_come_does_not_lead,
    who_goes_does_not_lead,
    a_batch_has_its_limit,
    the_order_is_that_of_the_partitions,
    what_is_lacking_is_counted,
    leaderless_is_lacking,
    a_small_share_is_let_be,
    who_can_have_nothing_back_is_let_be,
    the_dead_and_the_unknown_are_counted,
    all_is_well_in_the_end,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_of_preferred_leaders(rule: Callable[[Any], None]) -> None:
    rule(rebalance)


def test_facts_say_everything() -> None:
    (fact,) = rebalance.rebalance(Book(led_by(2)).image, ids(1))
    assert isinstance(fact, PartitionChanged)
    assert (fact.leader, fact.leader_epoch, fact.partition_epoch, fact.isr) == (1, 6, 10, ALL)


@given(st.integers(0, 10**6), st.integers(0, 100))
def test_who_is_overdue_can_be_helped(seed: int, percentage: int) -> None:
    """A controller that asks again and again never does so for nothing."""
    image = Book(*states(seed), live=(1, 2, 3, 4)).image
    behind = overdue(imbalance(image), percentage)
    assert bool(behind) == bool(rebalance.rebalance(image, behind))


def test_the_share_of_who_should_lead_nothing_is_nothing() -> None:
    assert Imbalance(THREE, 0, 0, 0).percentage == 0


# ── bugs planted into the module ──────────────────────────────────────────────────────────────────────

BUGS = (
    Bug("the limit is not looked at", "nsmallest(most, waiting)", "sorted(waiting)"),
    Bug("any order", "nsmallest(most, waiting)", "[*waiting][:most]"),
    Bug("for everybody", " and p.replicas[0] in brokers and", " and"),
    Bug("out of sync", " and first in p.isr", ""),
    Bug("dead", " and image.can_lead(first, p.place)", ""),
    Bug("alive, but not for this one", "image.can_lead(first, p.place)", "image.live_epoch(first) is not None"),
    Bug("on its way out", " and first not in p.removing", ""),
    Bug("from the percentage on", "each.percentage > percentage", "each.percentage >= percentage"),
    Bug("nothing to gain", "if each.returnable and", "if"),
    Bug("a share of everything", "100 * self.elsewhere / self.preferred if", "1 * self.elsewhere / self.preferred if"),
    Bug("whoever leads leads on", "preferred=True", "preferred=False"),
    Bug("leaderless is well", "if p.leader != first:", "if p.leader not in (first, -1):"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    module = planted(rebalance, bug)
    assert any(fails(partial(rule, module)) for rule in RULES)
