"""What becomes of a replica whose log is damaged: others lead, and nobody counts on it (ADR 105; I-3, I-4)."""

from functools import partial
from typing import Any

import pytest

from tests.controller.book import OTHER, TOPIC, Book, ids, partition
from tests.controller.planted import Bug, fails, planted
from tests.controller.test_liveness import Beats
from tidelog.controller import election, liveness
from tidelog.controller.election import STEP
from tidelog.controller.facts import BrokerChanged
from tidelog.controller.image import PartitionState
from tidelog.protocol.messages import DamagedReplica
from tidelog.protocol.types import NO_BROKER

(ONE,) = ids(1)
PLACE = (TOPIC, 0)
EPOCH = 5


def told(module: Any, book: Book, epoch: int = EPOCH) -> PartitionState:
    """Broker 1 says, until nothing comes of it, that its replica is damaged."""
    for _ in range(3):
        facts = module.relieve_damaged(book.image, ONE, {PLACE: epoch})
        if not facts:
            return book.state()
        book.carry_out(facts)
    raise AssertionError(f"it never ends: {book.state()}")


CASES: dict[str, tuple[PartitionState, int, tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]] = {
    # what the partition is; who then leads, who is in sync, who is eligible, who may be worth asking, and whether it
    # is a new leader epoch
    "a follower in sync": (partition((2, 1, 3)), 2, (2, 3), (), (), True),
    "a leader": (partition((1, 2, 3)), 2, (2, 3), (), (), True),
    "a leader, and too few are left": (partition((1, 2)), 2, (2,), (), (1,), True),
    "a follower, and too few are left": (partition((2, 1)), 2, (2,), (), (1,), True),
    "a leader, and an eligible one is back": (partition((1,), (2,)), 2, (2,), (), (1,), True),
    "one that is eligible": (partition((2,), (1,)), 2, (2,), (), (1,), True),
    "one that is behind": (partition((2, 3)), 2, (2, 3), (), (), True),
    "the only one in sync": (partition((1,)), 1, (1,), (), (), False),
    "the only one there is": (partition((1,), replicas=(1,), min_isr=1), 1, (1,), (), (), False),
    "one that waits for another to lead": (partition((), (3, 1), leader=-1), -1, (), (3, 1), (), False),
}


def check(module: Any, name: str) -> None:
    before, leader, isr, elr, last_known, anew = CASES[name]
    after = told(module, Book(before, live=(1, 2), fenced=(3,)) if 3 in before.elr else Book(before))
    assert (after.leader, after.isr, after.elr, after.last_known_elr) == (leader, isr, elr, last_known)
    assert (after.leader_epoch, after.partition_epoch) == (EPOCH + anew, 9 + anew)


@pytest.mark.parametrize("name", CASES)
def test_who_is_damaged_is_counted_on_only_where_nobody_else_can_lead(name: str) -> None:
    check(election, name)


def what_it_said_of_another_leadership_is_no_news(module: Any) -> None:
    for epoch in (EPOCH - 1, EPOCH + 1):
        assert told(module, Book(partition((2, 1))), epoch).isr == (2, 1)


def a_fenced_one_leads_nothing_for_it(module: Any) -> None:
    book = Book(partition((1,), (2,)), live=(1,), fenced=(2, 3))
    assert told(module, book).leader == 1


def nothing_is_said_of_what_is_no_partition_of_it(module: Any) -> None:
    book = Book(partition((2, 3), replicas=(2, 3)))
    assert module.relieve_damaged(book.image, ONE, {PLACE: EPOCH, (OTHER, 7): EPOCH}) == []


def where_it_is_alone_everybody_knows_until_it_is_not(module: Any) -> None:
    book = Book(partition((1,), (2,)), live=(1,), fenced=(2,))
    told(module, book)
    assert book.image.brokers[ONE].damaged == {PLACE}
    book.say(book.unfenced(2))
    assert told(module, book).leader == 2
    book.carry_out(module.relieve_damaged(book.image, ONE, {}))
    assert book.image.brokers[ONE].damaged == frozenset()


def what_is_known_of_it_outlives_other_changes(module: Any) -> None:
    book = Book(partition((1,)))
    told(module, book)
    book.carry_out(module.go_offline(book.image, ONE, [(TOPIC, 0)])[-1:])
    assert book.image.brokers[ONE].damaged == {PLACE}


def thousands_are_let_go_in_steps(module: Any) -> None:
    many = STEP + 2
    book = Book(*(partition((1, 2), index=index) for index in range(many)))
    damaged = {(TOPIC, index): EPOCH for index in range(many)}
    first = module.relieve_damaged(book.image, ONE, damaged)
    assert len(first) == STEP
    book.carry_out(first)
    assert len(module.relieve_damaged(book.image, ONE, damaged)) == 2


RULES = (
    what_it_said_of_another_leadership_is_no_news,
    a_fenced_one_leads_nothing_for_it,
    nothing_is_said_of_what_is_no_partition_of_it,
    where_it_is_alone_everybody_knows_until_it_is_not,
    what_is_known_of_it_outlives_other_changes,
    thousands_are_let_go_in_steps,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_of_damage(rule: Any) -> None:
    rule(election)


BUGS = (
    Bug("it stays eligible", "alive, loss=Loss(broker))\n        if then.leader", "alive)\n        if then.leader"),
    Bug("it stays in sync", "(r for r in p.isr if r != broker), alive, loss=Loss(broker))\n        if then.leader", "p.isr, alive)\n        if then.leader"),
    Bug("it leads on in the same epoch", 'epochs = {"leader_epoch": p.leader_epoch + 1, ', 'epochs = {"leader_epoch": then.leader_epoch, '),
    Bug("old news", "or p.leader_epoch != damaged[place]", ""),
    Bug("nobody leads", "        if then.leader == NO_BROKER:\n            alone.add(place)\n        elif", "        if"),
    Bug("nobody knows", "    if not facts and alone != known.damaged:", "    if False:"),
    Bug("all at once", "        elif len(facts) < STEP:\n            epochs", "        else:\n            epochs"),
    Bug("forgotten", "known.damaged if damaged is None else damaged", "damaged or ()"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    module = planted(election, bug)
    checks = [partial(check, module, name) for name in CASES]
    assert any(fails(one) for one in (*checks, *(partial(rule, module) for rule in RULES)))


# ── in heartbeats ─────────────────────────────────────────────────────────────────────────────────────


def damaged(epoch: int = EPOCH) -> tuple[DamagedReplica, ...]:
    return (DamagedReplica(TOPIC, 0, epoch),)


def test_a_heartbeat_that_says_so_makes_another_lead() -> None:
    beats = Beats(liveness, Book(partition((1, 2))))
    assert not beats.beat(damaged=damaged()).fenced
    assert (beats.book.state().leader, beats.book.state().leader_epoch) == (2, EPOCH + 1)
    assert beats.beat(damaged=damaged()).facts == []


def test_who_is_fenced_and_damaged_is_eligible_for_nothing_when_it_is_unfenced() -> None:
    beats = Beats(liveness, Book(partition((2,), (1,)), fenced=(1,), live=(2,)))
    assert beats.beat(damaged=damaged()).fenced
    assert not beats.beat(damaged=damaged()).fenced
    assert (beats.book.state().elr, beats.book.state().last_known_elr) == ((), (1,))


def test_a_heartbeat_without_damage_takes_it_back() -> None:
    beats = Beats(liveness, Book(partition((1,)), live=(1,)))
    beats.beat(damaged=damaged())
    assert beats.book.image.brokers[ONE].damaged == {PLACE}
    beats.beat()
    assert beats.book.image.brokers[ONE].damaged == frozenset()
    assert beats.book.state().leader != NO_BROKER


def test_an_image_from_facts_says_it_too() -> None:
    book = Book(partition((1,)), live=(1,))
    told(election, book)
    facts = [fact for fact in book.image.facts() if isinstance(fact, BrokerChanged)]
    assert [fact.damaged for fact in facts] == [(PLACE,)]
