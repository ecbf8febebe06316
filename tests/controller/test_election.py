"""Who leads and who is in sync: the sentences of 4.6 to 4.8, one by one, and in random histories (KIP-966; I-3, I-4)."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.controller.book import TOPIC, Book, ids, partition
from tests.controller.changes import CASES, Case, check
from tests.controller.history import History
from tests.controller.planted import Bug, fails, planted
from tidelog.controller import election
from tidelog.controller.election import (
    Loss,
    begin_shutdown,
    change,
    elect_anyway,
    elect_preferred,
    fence,
    go_offline,
    lead_again,
    leave,
    new_partition,
    relieve,
    set_min_isr,
    unfence,
)
from tidelog.controller.facts import BrokerChanged, ConfigChanged, Fact, PartitionChanged, TopicRemoved
from tidelog.protocol.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidReplicaAssignment,
    PreferredLeaderNotAvailable,
)
from tidelog.protocol.types import NO_BROKER

ONE, TWO, THREE = ids(1, 2, 3)
PLACE = (TOPIC, 0)
SEEDS, STEPS = 60, 150


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_becomes_of_a_partition(case: Case) -> None:
    check(election, case)


def test_a_change_that_changes_nothing_is_the_partition_itself() -> None:
    before = partition((1, 2))
    assert change(before, (ONE, TWO), lambda _: True) is before


# ── brokers come and go ───────────────────────────────────────────────────────────────────────────────


def test_a_broker_leaves_every_isr_before_it_is_fenced() -> None:
    book = Book(partition((1, 2)), partition((2, 1), index=1))
    facts = fence(book.image, ONE)
    assert [type(fact) for fact in facts] == [PartitionChanged, PartitionChanged, BrokerChanged]
    book.carry_out(facts)
    assert [book.state(index).leader for index in (0, 1)] == [2, 2]
    assert [book.state(index).elr for index in (0, 1)] == [(1,), (1,)]


def test_every_prefix_of_a_fencing_is_possible() -> None:
    facts = fence(Book(partition((1, 2)), partition((1,), index=1)).image, ONE)
    for end in range(1, len(facts)):
        book = Book(partition((1, 2)), partition((1,), index=1))
        book.carry_out(facts[:end])
        book.carry_out(facts[end:])
        assert book.image.live_epoch(ONE) is None


def test_who_is_being_fenced_is_not_elected_from_the_elr_that_it_enters() -> None:
    book = Book(partition((1,)))
    book.carry_out(fence(book.image, ONE))
    assert (book.state().leader, book.state().isr, book.state().elr) == (NO_BROKER, (), (1,))


def test_who_comes_back_leads_what_waited_for_it() -> None:
    book = Book(partition((), (1,)), partition((2,), index=1), fenced=(1,), live=(2, 3))
    facts = unfence(book.image, ONE)
    assert isinstance(facts[0], BrokerChanged)
    book.carry_out(facts)
    assert (book.state().leader, book.state().isr, book.state(1).leader) == (1, (1,), 2)


def test_who_comes_back_without_a_claim_leads_nothing() -> None:
    book = Book(partition((), (2,)), fenced=(1, 2), live=(3,))
    book.carry_out(unfence(book.image, ONE))
    assert book.state().leader == NO_BROKER


def test_the_only_replica_leads_with_what_it_has_left() -> None:
    book = Book(partition((1,), replicas=(1,), min_isr=1))
    book.carry_out(leave(book.image, ONE, lambda _: Loss(ONE)))
    book.register(1)
    book.carry_out(unfence(book.image, ONE))
    p = book.state()
    assert (p.leader, p.isr, p.recovering, p.unclean_epoch) == (1, (1,), True, p.leader_epoch)


def test_the_only_replica_on_another_disk_waits_for_an_operator() -> None:
    book = Book(partition((1,), replicas=(1,), min_isr=1))
    book.carry_out(leave(book.image, ONE, lambda _: Loss(ONE, everything=True)))
    book.register(1)
    book.carry_out(unfence(book.image, ONE))
    assert book.state().leader == NO_BROKER
    book.carry_out(elect_anyway(book.image, PLACE))
    assert (book.state().leader, book.state().recovering) == (1, True)


def in_steps(book: Book, step: Callable[[], list[Fact]]) -> int:
    """Repeat a step until there is nothing left to do; how often it took."""
    steps = 0
    while facts := step():
        book.carry_out(facts)
        steps += 1
        if isinstance(facts[-1], BrokerChanged) and facts[-1].fenced:
            break
    return steps


def many(*partitions: tuple[tuple[int, ...], tuple[int, ...]]) -> Book:
    return Book(*(partition(isr, elr, index=index) for index, (isr, elr) in enumerate(partitions)))


def the_life_of_one_and_two(book: Book) -> list[int]:
    """Both stop and one comes back; how many steps each of it took."""
    image = book.image

    def shut_down() -> list[Fact]:
        return relieve(image, ONE) if image.brokers[ONE].shutting_down else begin_shutdown(image, ONE)

    def come_back() -> list[Fact]:
        return unfence(image, TWO) if image.brokers[TWO].fenced else lead_again(image, TWO)

    return [
        in_steps(book, shut_down),
        in_steps(book, lambda: fence(image, ONE)),
        in_steps(book, lambda: fence(image, TWO)),
        in_steps(book, come_back),
    ]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_what_is_done_in_steps_comes_to_the_same(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, in_several = (many(*[((1, 2), ())] * 3, ((1,), (2,))) for _ in range(2))
    assert the_life_of_one_and_two(at_once) == [1, 1, 1, 1]
    monkeypatch.setattr(election, "STEP", step)
    assert max(the_life_of_one_and_two(in_several)) > 1
    assert in_several.image.facts() == at_once.image.facts()


def the_only_replica_waits_for_an_operator_when_its_disk_is_replaced_after_a_crash(module: Any) -> None:
    """ADR 0077: the crash alone would have let it lead; an empty disk must not, for the old one may be repaired."""
    book = Book(partition((1,), replicas=(1,), min_isr=1))
    book.carry_out(module.leave(book.image, ONE, lambda _: module.Loss(ONE)))
    book.register(1)
    book.carry_out(module.leave(book.image, ONE, lambda _: module.Loss(ONE, everything=True)))
    book.register(1, disk="another")
    book.carry_out(module.unfence(book.image, ONE))
    assert (book.state().leader, book.state().last_known_elr) == (NO_BROKER, ())


def the_only_replica_leads_with_what_it_has_left_also_while_its_partition_moves(module: Any) -> None:
    """ADR 0077: who is still to come has nothing."""
    book = Book(partition((1,), replicas=(1, 2), adding=(2,), min_isr=1))
    book.carry_out(module.leave(book.image, ONE, lambda _: module.Loss(ONE)))
    book.register(1)
    book.carry_out(module.unfence(book.image, ONE))
    assert (book.state().leader, book.state().recovering) == (1, True)


def the_last_one_in_sync_leads_on_while_it_shuts_down_whatever_changes(module: Any) -> None:
    """ADR 0077: deposed by a setting it would leave nobody, and with unclean recovery its records would go."""
    book = Book(partition((1,), (2,)), fenced=(2,), live=(1, 3))
    book.carry_out(module.begin_shutdown(book.image, ONE))
    book.carry_out(module.leave(book.image, TWO, lambda _: module.Loss(TWO)))
    book.carry_out(module.set_min_isr(book.image, PLACE, 3))
    book.carry_out(module.set_flush_mode(book.image, PLACE, flush_group=True))
    assert (book.state().leader, book.state().isr) == (1, (1,))


def another_flush_mode_is_another_leader_epoch(module: Any) -> None:
    """ADR 0073: leader and followers must mean the same by what is safe."""
    book = Book(partition((1, 2)))
    book.carry_out(module.set_flush_mode(book.image, PLACE, flush_group=True))
    p = book.state()
    assert (p.flush_group, p.leader, p.leader_epoch, p.isr) == (True, 1, 6, (1, 2))
    assert module.set_flush_mode(book.image, PLACE, flush_group=True) == []


RULES = (
    the_only_replica_waits_for_an_operator_when_its_disk_is_replaced_after_a_crash,
    the_only_replica_leads_with_what_it_has_left_also_while_its_partition_moves,
    the_last_one_in_sync_leads_on_while_it_shuts_down_whatever_changes,
    another_flush_mode_is_another_leader_epoch,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_of_the_last_ones(rule: Callable[[Any], None]) -> None:
    rule(election)


def test_one_of_two_replicas_does_not_lead_with_what_it_has_left() -> None:
    book = Book(partition((1,), replicas=(1, 2), min_isr=1))
    book.carry_out(leave(book.image, ONE, lambda _: Loss(ONE)))
    book.register(1)
    book.carry_out(unfence(book.image, ONE))
    assert (book.state().leader, book.state().last_known_elr) == (NO_BROKER, (1,))


def test_who_lost_data_leaves_the_elr_of_partitions_that_others_lead() -> None:
    book = Book(partition((1,), (2,)), partition((1,), (2,), index=1, flush_group=True))
    book.carry_out(leave(book.image, TWO, lambda p: None if p.flush_group else Loss(TWO)))
    assert (book.state(0).elr, book.state(0).last_known_elr) == ((), (2,))
    assert book.state(1).elr == (2,)


def test_who_shuts_down_hands_over_where_somebody_else_is_in_sync() -> None:
    book = Book(partition((1, 2)), partition((1,), (2,), index=1))
    book.carry_out(begin_shutdown(book.image, ONE))
    assert (book.state(0).leader, book.state(0).isr, book.state(0).elr) == (2, (2,), (1,))
    assert (book.state(1).leader, book.state(1).isr) == (1, (1,))
    assert book.image.live_epoch(ONE) is None


def test_a_replica_that_cannot_be_served_leads_nothing_and_the_others_of_its_broker_go_on() -> None:
    book = Book(partition((1, 2)), partition((1, 2), index=1))
    book.carry_out(go_offline(book.image, ONE, [PLACE]))
    assert (book.state(0).leader, book.state(0).elr, book.state(1).leader) == (2, (1,), 1)
    book.carry_out(fence(book.image, TWO))
    assert book.state(0).leader == NO_BROKER


def test_what_is_served_again_may_lead_again() -> None:
    """A log that could be made or opened at last: it is named no more."""
    book = Book(partition((1,), replicas=(1,), min_isr=1), live=(1, 2))
    book.carry_out(go_offline(book.image, ONE, [PLACE]))
    assert (book.state().leader, book.image.can_lead(ONE, PLACE)) == (NO_BROKER, False)
    book.carry_out(go_offline(book.image, ONE, []))
    assert book.image.can_lead(ONE, PLACE)
    book.carry_out(lead_again(book.image, ONE))
    assert (book.state().leader, book.state().unclean_epoch) == (1, -1)


def test_the_only_replica_does_not_lead_with_a_log_that_cannot_be_served() -> None:
    book = Book(partition((), replicas=(1,), min_isr=1, last_known=(1,)), live=(1, 2))
    book.carry_out(go_offline(book.image, ONE, [PLACE]))
    assert lead_again(book.image, ONE) == []
    book.carry_out(go_offline(book.image, ONE, []))
    book.carry_out(lead_again(book.image, ONE))
    assert (book.state().leader, book.state().recovering) == (1, True)


def test_what_is_known_to_be_offline_is_no_news() -> None:
    book = Book(partition((1, 2)))
    book.carry_out(go_offline(book.image, ONE, [PLACE]))
    assert go_offline(book.image, ONE, [PLACE, (TOPIC, 7)]) == []


def test_what_is_not_named_any_more_may_lead_again() -> None:
    book = Book(partition((1,), replicas=(1,), min_isr=1), partition((1, 2), index=1))
    book.carry_out(go_offline(book.image, ONE, [PLACE, (TOPIC, 1)]))
    assert (book.state(0).leader, book.state(0).elr) == (NO_BROKER, (1,))
    book.carry_out(go_offline(book.image, ONE, [(TOPIC, 1)]))
    assert book.image.brokers[ONE].offline == {(TOPIC, 1)}
    book.carry_out(lead_again(book.image, ONE))
    assert (book.state(0).leader, book.state(1).leader, book.state(1).isr) == (1, 2, (2,))


def test_of_what_is_gone_nobody_knows_that_it_was_offline() -> None:
    book = Book(partition((1, 2)))
    book.carry_out(go_offline(book.image, ONE, [PLACE]))
    book.say(TopicRemoved(TOPIC))
    book.carry_out(go_offline(book.image, ONE, [PLACE]))
    assert book.image.brokers[ONE].offline == frozenset()


def test_thousands_of_replicas_go_offline_in_steps_and_the_broker_says_so_last() -> None:
    count = 2 * election.STEP + 1
    book = many(*[((1, 2), ())] * count)
    places = [(TOPIC, index) for index in range(count)]
    sizes = []
    while facts := go_offline(book.image, ONE, places):
        sizes.append(len(facts))
        assert book.image.brokers[ONE].offline == frozenset()
        book.carry_out(facts)
    assert sizes == [election.STEP, election.STEP, 2]
    assert book.image.brokers[ONE].offline == {*places}
    assert {p.leader for p in book.image.partitions.values()} == {TWO}


# ── operators and settings ────────────────────────────────────────────────────────────────────────────


def test_a_new_partition_begins_with_everybody_who_is_alive() -> None:
    p = new_partition(TOPIC, 0, ids(3, 1, 2), lambda broker: broker != THREE, 7, flush_group=True)
    assert (p.isr, p.leader, p.min_isr, p.flush_group) == ((1, 2), 1, 3, True)
    assert (p.leader_epoch, p.partition_epoch, p.elr) == (0, 0, ())


def test_a_new_partition_needs_somebody_who_is_alive() -> None:
    with pytest.raises(InvalidReplicaAssignment):
        new_partition(TOPIC, 0, ids(1), lambda _: False, 1, flush_group=False)


def test_another_min_isr_is_a_change_of_the_partition() -> None:
    book = Book(partition((1,), (2,)))
    book.carry_out(set_min_isr(book.image, PLACE, 1))
    assert (book.state().min_isr, book.state().elr, book.state().leader_epoch) == (1, (), 5)
    assert set_min_isr(book.image, PLACE, 1) == []


def test_replicas_that_have_come_raise_min_isr_to_what_is_configured() -> None:
    book = Book(partition((1,), replicas=(1, 2), adding=(2,), min_isr=1))
    book.say(ConfigChanged("topic", "orders", "min.insync.replicas", "2"))
    then = election.change_in(book.image, book.state(), ids(1, 2), lambda _: True)
    assert (then.replicas, then.adding, then.min_isr) == ((1, 2), (), 2)


@pytest.mark.parametrize(
    ("key", "expected"), [(("topic", "orders"), 3), (("cluster", ""), 3), (("broker", "1"), 2)]
)
def test_min_isr_is_configured_for_topics_and_for_the_cluster(key: tuple[str, str], expected: int) -> None:
    book = Book(partition((1, 2)))
    book.say(ConfigChanged(*key, "min.insync.replicas", "3"))
    assert election.configured_min_isr(book.image, book.state()) == expected


def test_an_operator_may_ask_for_the_preferred_leader() -> None:
    book = Book(partition((2, 1), leader=2))
    book.carry_out(elect_preferred(book.image, PLACE))
    assert book.state().leader == 1
    with pytest.raises(ElectionNotNeeded):
        elect_preferred(book.image, PLACE)


def test_the_preferred_leader_has_to_be_in_sync() -> None:
    with pytest.raises(PreferredLeaderNotAvailable):
        elect_preferred(Book(partition((2, 3), leader=2)).image, PLACE)


def test_an_operator_may_let_anybody_lead_and_everybody_knows_from_which_epoch_on() -> None:
    book = Book(partition((), (1,), last_known=(3,)), fenced=(1,), live=(2, 3))
    book.carry_out(elect_anyway(book.image, PLACE))
    p = book.state()
    assert (p.leader, p.isr, p.elr, p.leader_epoch, p.unclean_epoch) == (3, (3,), (), 6, 6)
    assert p.recovering


def test_what_replicas_were_found_to_hold_decides_among_them() -> None:
    book = Book(partition((), last_known=(1, 3)), live=(1, 2, 3))
    book.carry_out(elect_anyway(book.image, PLACE, ids(2, 1)))
    assert book.state().leader == 2


def test_an_unclean_election_is_not_held_while_a_clean_one_is_possible() -> None:
    book = Book(partition((), (2,)), fenced=(2,), live=(1, 3))
    book.say(book.unfenced(2))
    book.carry_out(elect_anyway(book.image, PLACE))
    assert (book.state().leader, book.state().recovering) == (2, False)
    with pytest.raises(ElectionNotNeeded):
        elect_anyway(book.image, PLACE)


def test_somebody_has_to_be_alive_to_lead_at_all() -> None:
    with pytest.raises(EligibleLeadersNotAvailable):
        elect_anyway(Book(partition((), (1,)), fenced=(1, 2, 3), live=(4,)).image, PLACE)


def test_a_decision_changes_nothing() -> None:
    book = Book(partition((1, 2)), partition((), (3,), index=1), fenced=(3,), live=(1, 2))
    before = book.image.to_bytes()
    for decide in (fence, unfence, begin_shutdown, leave):
        decide(book.image, ONE)
    unfence(book.image, THREE)
    set_min_isr(book.image, PLACE, 1)
    assert book.image.to_bytes() == before


# ── random histories, and bugs planted into the module ────────────────────────────────────────────────


def histories(module: Any, seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        history = History(module, seed)
        history.run(STEPS)
        seen["writes"] += history.writes
        seen["unclean"] += history.unclean
        seen["leader epochs"] += history.p.leader_epoch
    return seen


def test_no_history_loses_what_was_committed() -> None:
    seen = histories(election, range(SEEDS))
    assert min(seen["writes"], seen["leader epochs"]) > SEEDS * 5, seen
    assert seen["unclean"] > 5, seen


BUGS = (
    Bug("the elr keeps who lost data", "elr = tuple(r for r in complete if r != lost)", "elr = tuple(complete)"),
    Bug("the elr forgets who was in it", "if (r in p.elr or r in p.isr) and r", "if r in p.isr and r"),
    Bug("the elr forgets who leaves the isr", "if (r in p.elr or r in p.isr) and r", "if r in p.elr and r"),
    Bug("all replicas count as complete", "if (r in p.elr or r in p.isr) and r", "if r"),
    Bug("a full isr leaves an elr", "if len(isr) >= least:", "if len(isr) > least:"),
    Bug(
        "the elr is not looked at again after an election",
        "    if len(isr) >= least:",
        "    if len([r for r in isr if r in target_isr]) >= least:",
    ),
    Bug("the dead are elected from the elr", "next(filter(alive, elr), NO_BROKER)", "next(iter(elr), NO_BROKER)"),
    Bug("the dead are elected from the isr", "if r in isr and alive(r)), staying", "if r in isr), staying"),
    Bug("the elr goes before the isr", "if leader == NO_BROKER and not isr:", "if elr:"),
    Bug("anybody is elected", "next(filter(alive, elr), NO_BROKER)", "next(filter(alive, p.replicas), NO_BROKER)"),
    Bug("a new leader in the old epoch", "then.leader != p.leader\n        or not", "not"),
    Bug("a new epoch for another isr", "leader_epoch=p.leader_epoch + led_anew", "leader_epoch=p.leader_epoch + 1"),
    Bug("who is fenced is elected at once", "        alive = alive_for(image, place, but=broker)\n        isr", "        alive = alive_for(image, place)\n        isr"),
    Bug("another disk is worth asking", "indexes.in_elr.get(broker, set()) | waiting", "indexes.in_elr.get(broker, set())"),
    Bug("who comes is waited for", "_without(p.replicas, p.adding)", "p.replicas"),
    Bug("another flush mode in the old epoch", "        or then.flush_group != p.flush_group\n", ""),
    Bug("who shuts down is deposed", " alive(r)), staying)", " alive(r)), NO_BROKER)"),
    Bug("who lost data stays in an elr of others", "(broker in p.elr or (loss.everything", "((loss.everything"),
    Bug("unclean and not told", "        unclean_epoch=epoch,\n", ""),
    Bug("the elr survives an unclean election", "        isr=(leader,),\n        elr=(),", "        isr=(leader,),"),
    Bug("the preferred is elected dead", "and alive(replicas[0])", ""),
    Bug("the preferred is elected out of sync", "if preferred and replicas[0] in isr and", "if preferred and"),
    Bug("who waits in the elr is passed over", "(not p.isr and broker in p.elr)", "False"),
    Bug("min_isr above the replicas", "least = min(min_isr or p.min_isr, max(", "least = max(min_isr or p.min_isr, max("),
    Bug("who comes counts at once", "- len(assigned.adding)", ""),
    Bug("complete before all are in sync", "set(goal) <= set(left) and", ""),
    Bug("who goes stays in the isr", "return Assignment(goal), left", "return Assignment(goal), isr"),
    Bug("who shuts down is elected when it is back", "not known.shutting_down and place", "place"),
    Bug("the offline lead", " and place not in known.offline", ""),
    Bug("who shuts down stays in sync", "change_in(image, p, (r for r in p.isr if r != broker), alive))\n    return facts\n\n\ndef go_offline", "change_in(image, p, p.isr, alive))\n    return facts\n\n\ndef go_offline"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    module = planted(election, bug)
    found = any(fails(partial(check, module, case)) for case in CASES)
    found = found or any(fails(partial(rule, module)) for rule in RULES)
    assert found or any(fails(partial(histories, module, range(seed, seed + 1))) for seed in range(SEEDS))
