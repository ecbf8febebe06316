"""A leader proposes, the controller compares: AlterPartition check by check, in their order (design 4.7, D3; I-15, I-16)."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from tests.controller.book import OTHER, TOPIC, Book, ids, named, partition
from tests.controller.planted import Bug, fails, planted
from tidelog.controller import alterations
from tidelog.controller.facts import BrokerChanged, TopicCreated, TopicRemoved
from tidelog.controller.image import PartitionState
from tidelog.protocol.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NewLeaderElected,
    NotController,
    StaleBrokerEpoch,
    TidelogError,
    UnknownTopicId,
)
from tidelog.protocol.messages import AlterPartition, IsrMember, PartitionAlter
from tidelog.protocol.types import BrokerId

ONE = BrokerId(1)
MINE = -2
"""The registered epoch of whoever it stands for."""


class World:
    """A cluster in which broker 1 leads with 2 in sync; 3 could join, 4 is fenced and 5 shuts down."""

    def __init__(self, module: Any = alterations, before: PartitionState | None = None) -> None:
        p = before or partition((1, 2), replicas=(1, 2, 3, 4, 5))
        self.book = Book(p, partition((2, 1), index=1), live=(1, 2, 3, 5), fenced=(4,))
        self.book.say(self.book.unfenced(5, shutting_down=True))
        self.alterations = module.Alterations()

    def request(self, *alters: PartitionAlter, sender: int = 1, epoch: int = MINE) -> AlterPartition:
        mine = self.book.epoch(sender) if epoch == MINE else epoch
        return AlterPartition(BrokerId(sender), mine, 1, alters)

    def alter(
        self, *members: int, seq: int = 1, leader: int = 5, version: int = 9, **more: Any
    ) -> PartitionAlter:
        epochs = more.pop("epochs", {})
        isr = tuple(IsrMember(BrokerId(m), epochs.get(m, MINE)) for m in members)
        known = tuple(
            IsrMember(m.broker_id, self._epoch(m.broker_id) if m.broker_epoch == MINE else m.broker_epoch)
            for m in isr
        )
        return PartitionAlter(
            more.pop("topic", TOPIC),
            more.pop("index", 0),
            leader,
            version,
            seq,
            known,
            more.pop("recovered", False),
        )

    def _epoch(self, broker: BrokerId) -> int:
        known = self.book.image.brokers.get(broker)
        return known.epoch if known else 7

    def decide(self, *members: int, sender: int = 1, **more: Any) -> Any:
        """The only decision about a request for one partition, while these brokers are being taken from its ISR."""
        going = {(BrokerId(broker), (TOPIC, 0)) for broker in more.pop("going", ())}
        request = self.request(self.alter(*members, **more), sender=sender)
        (decision,) = self.alterations.decide(self.book.image, request, 0, lambda *who: who in going)
        return decision


class Case(NamedTuple):
    sentence: str
    members: tuple[int, ...]
    expected: type[TidelogError] | None
    more: dict[str, Any] = {}  # noqa: RUF012 -- a table's rows are not changed

    def __str__(self) -> str:
        return self.sentence.replace(" ", "_")


CASES = (
    Case("somebody joins", (1, 2, 3), None),
    Case("somebody leaves", (1,), None),
    Case("an unknown topic", (1, 2, 3), UnknownTopicId, {"topic": OTHER}),
    Case("an unknown partition", (1, 2, 3), UnknownTopicId, {"index": 9}),
    Case("a leader epoch from the future", (1, 2, 3), NotController, {"leader": 6}),
    Case("a partition epoch from the future", (1, 2, 3), NotController, {"version": 10}),
    Case(
        "a partition epoch from the future in an old leader epoch",
        (1, 2),
        NotController,
        {"version": 10, "leader": 4},
    ),
    Case("an old leader epoch", (1, 2, 3), FencedLeaderEpoch, {"leader": 4}),
    Case("an old leader epoch of another broker", (1, 2, 3), FencedLeaderEpoch, {"leader": 4, "sender": 2}),
    Case("not the leader", (1, 2, 3), InvalidRequest, {"sender": 2}),
    Case("not the leader in an old state", (1, 2, 3), InvalidRequest, {"sender": 2, "version": 8}),
    Case("an old state", (1, 2, 3), InvalidUpdateVersion, {"version": 8}),
    Case("an old state and nobody in sync", (), InvalidUpdateVersion, {"version": 8}),
    Case("nobody in sync", (), InvalidRequest),
    Case("somebody twice", (1, 2, 2), InvalidRequest),
    Case("somebody who is no replica", (1, 6), InvalidRequest),
    Case("without the leader", (2, 3), InvalidRequest),
    Case("without the leader and with somebody fenced", (2, 4), InvalidRequest),
    Case("somebody fenced", (1, 2, 4), IneligibleReplica),
    Case("somebody who shuts down", (1, 2, 5), IneligibleReplica),
    Case("somebody registered anew", (1, 2, 3), IneligibleReplica, {"epochs": {3: 1}}),
    Case("somebody in sync registered anew", (1, 2, 3), IneligibleReplica, {"epochs": {2: 1}}),
    Case("somebody who has not fetched joins", (1, 2, 3), IneligibleReplica, {"epochs": {3: -1}}),
    Case("somebody in sync has not fetched yet", (1, 2), None, {"epochs": {2: -1}}),
    Case("somebody joins who is being taken out", (1, 2, 3), IneligibleReplica, {"going": (3,)}),
    Case("somebody joins while others are about to be taken out", (1, 2, 3), None, {"going": (1, 2)}),
    Case("somebody leaves who is about to be taken out", (1,), None, {"going": (2,)}),
    Case("somebody leaves whose leader is about to be taken out", (1,), None, {"going": (1,)}),
)


def check(module: Any, case: Case) -> None:
    decision = World(module).decide(*case.members, **case.more)
    assert type(decision.error) is (case.expected or type(None)), f"{case.sentence}: {decision}"
    if decision.error is None:
        expected = None if case.members == (1, 2) else ids(*case.members)
        assert (decision.state and decision.state.isr) == expected


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_proposal_and_its_answer(case: Case) -> None:
    check(alterations, case)


# ── numbers (D3) ──────────────────────────────────────────────────────────────────────────────────────


def another_leader(p: PartitionState) -> PartitionState:
    return replace(p, isr=ids(2), elr=ids(1), leader=BrokerId(2), leader_epoch=6, partition_epoch=10)


def deleted_topics(world: World, numbers: range) -> None:
    """They come, are proposed for, and go."""
    for number in numbers:
        topic = named(f"{number}")
        world.book.say(TopicCreated(topic, "new"), partition((1,), topic=topic).created())
        assert world.decide(1, topic=topic).error is None
        world.book.say(TopicRemoved(topic))


def a_number_is_decided_once(module: Any) -> None:
    world = World(module)
    world.decide(1, 2, 3, seq=5)
    assert type(world.decide(1, 2, 3, seq=5).error) is InvalidUpdateVersion
    assert type(world.decide(1, 2, 3, seq=4).error) is InvalidUpdateVersion
    assert world.decide(1, 2, 3, seq=6).error is None


def a_refused_number_counts_as_seen(module: Any) -> None:
    world = World(module)
    assert type(world.decide(1, 2, 4, seq=5).error) is IneligibleReplica
    world.book.say(world.book.unfenced(4))
    assert type(world.decide(1, 2, 4, seq=5).error) is InvalidUpdateVersion


def a_number_of_an_older_state_is_not_seen(module: Any) -> None:
    world = World(module)
    assert type(world.decide(1, 2, 3, seq=5, version=8).error) is InvalidUpdateVersion
    assert world.decide(1, 2, 3, seq=5).error is None


def a_new_leadership_begins_to_count_anew(module: Any) -> None:
    world = World(module)
    world.decide(1, 2, 3, seq=5)
    world.book.say(another_leader(world.book.state()).changed())
    world.book.say(replace(world.book.state(), isr=ids(2, 1), elr=(), partition_epoch=11).changed())
    assert world.decide(2, 1, 3, seq=1, leader=6, version=11, sender=2).error is None


def partitions_count_apart(module: Any) -> None:
    world = World(module)
    world.decide(1, 2, 3, seq=5)
    assert world.decide(2, 1, 3, seq=1, index=1, sender=2).error is None


def a_replica_that_cannot_be_served_does_not_join(module: Any) -> None:
    world = World(module)
    world.book.say(BrokerChanged(BrokerId(3), world.book.epoch(3), False, False, ((TOPIC, 0),)))
    assert type(world.decide(1, 2, 3).error) is IneligibleReplica


def who_is_being_taken_out_of_one_partition_joins_others(module: Any) -> None:
    world = World(module)
    assert world.decide(2, 1, 3, index=1, sender=2, going=(3,)).error is None


def what_can_be_heard_again_is_not_forgotten(module: Any) -> None:
    world = World(module)
    world.decide(1, 2, 4, seq=5)
    deleted_topics(world, range(20))
    assert type(world.decide(1, 2, 3, seq=5).error) is InvalidUpdateVersion


def what_cannot_be_heard_again_is_forgotten(module: Any) -> None:
    world = World(module)
    deleted_topics(world, range(20))
    assert len(world.alterations._seen) <= 2 * len(world.book.image.partitions)
    world.decide(1, 2, 4, seq=5)
    world.book.say(another_leader(world.book.state()).changed())
    deleted_topics(world, range(20, 40))
    assert (TOPIC, 0) not in world.alterations._seen


RULES: tuple[Callable[[Any], None], ...] = (
    a_number_is_decided_once,
    a_refused_number_counts_as_seen,
    a_number_of_an_older_state_is_not_seen,
    a_new_leadership_begins_to_count_anew,
    partitions_count_apart,
    what_can_be_heard_again_is_not_forgotten,
    what_cannot_be_heard_again_is_forgotten,
    a_replica_that_cannot_be_served_does_not_join,
    who_is_being_taken_out_of_one_partition_joins_others,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_what_one_proposal_does_not_show(rule: Callable[[Any], None]) -> None:
    rule(alterations)


# ── the request as a whole ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("epoch", [0, 10_000])
def test_another_registration_of_the_sender_is_refused_as_a_whole(epoch: int) -> None:
    world = World()
    with pytest.raises(StaleBrokerEpoch):
        world.alterations.decide(world.book.image, world.request(world.alter(1), epoch=epoch))


def test_a_stranger_is_refused_as_a_whole() -> None:
    world = World()
    with pytest.raises(StaleBrokerEpoch):
        world.alterations.decide(world.book.image, world.request(world.alter(1), sender=9, epoch=3))


def test_two_proposals_for_one_partition_are_refused_as_a_whole() -> None:
    world = World()
    with pytest.raises(InvalidRequest, match="-0 is named twice: once is accepted"):
        world.alterations.decide(world.book.image, world.request(world.alter(1), world.alter(1, 2, seq=2)))


def test_partitions_are_decided_one_by_one() -> None:
    world = World()
    request = world.request(world.alter(1), world.alter(2, 1, index=1))
    first, second = world.alterations.decide(world.book.image, request)
    assert first.error is None
    assert type(second.error) is InvalidRequest


def test_the_end_of_a_reassignment_may_bring_another_leader() -> None:
    world = World(before=partition((1, 2), replicas=(1, 2, 3), removing=(1,)))
    decision = world.decide(1, 2, 3)
    assert type(decision.error) is NewLeaderElected
    assert (decision.state.leader, decision.state.replicas) == (2, (2, 3))


def test_a_leader_confirms_that_it_is_up_after_an_unclean_election() -> None:
    world = World(before=partition((1,), recovering=True))
    assert world.decide(1, recovered=True).state.recovering is False


def test_a_decision_changes_no_image() -> None:
    world = World()
    before = world.book.image.to_bytes()
    world.decide(1, 2, 3)
    assert world.book.image.to_bytes() == before


# ── bugs planted into the module ──────────────────────────────────────────────────────────────────────

BUGS = (
    Bug("the future is believed", "alter.leader_epoch > p.leader_epoch or alter.partition_epoch > p.partition_epoch", "False"),
    Bug("only the leader epoch may be from the future", " or alter.partition_epoch > p.partition_epoch", ""),
    Bug("an old leader proposes", "if alter.leader_epoch < p.leader_epoch:", "if False:"),
    Bug("anybody proposes", "if sender != p.leader:", "if False:"),
    Bug("an old state is followed", "if alter.partition_epoch < p.partition_epoch:", "if False:"),
    Bug("numbers are not looked at", "alter.alter_seq <= highest", "False"),
    Bug("a number counts twice", "alter.alter_seq <= highest", "alter.alter_seq < highest"),
    Bug("numbers outlive their leadership", "if epoch == alter.leader_epoch and", "if"),
    Bug("numbers are never forgotten", "if len(self._seen) >", "if False and len(self._seen) >"),
    Bug("numbers of deleted partitions are kept", "if place in known and seen[0] ==", "if place not in known or seen[0] =="),
    Bug("numbers of older leaderships are kept", " and seen[0] == known[place].leader_epoch", ""),
    Bug("all numbers are forgotten", "if place in known and", "if False and"),
    Bug("numbers of all partitions are one", "self._seen[p.place] = (alter.leader_epoch", "self._seen[p.topic_id, 1] = self._seen[p.place] = (alter.leader_epoch"),
    Bug("a number is seen too early", "        self._check_epochs(p, sender, alter)\n        self._check_number(p, alter)", "        self._check_number(p, alter)\n        self._check_epochs(p, sender, alter)"),
    Bug("a refused number is forgotten", "        self._check_number(p, alter)\n        self._check_members(image, p, alter, is_going)", "        self._check_members(image, p, alter, is_going)\n        self._check_number(p, alter)"),
    Bug("somebody twice", "len(set(proposed)) != len(proposed)\n            or", ""),
    Bug("strangers", "or not set(proposed) <= set(p.replicas)", ""),
    Bug("no leader", "or p.leader not in proposed", ""),
    Bug("the dead join", "if not image.can_lead(member.broker_id, p.place):", "if False:"),
    Bug("an older registration joins", "return member.broker_epoch == image.live_epoch(member.broker_id)", "return True"),
    Bug("who has not fetched joins", "return member.broker_id in p.isr", "return True"),
    Bug("who has not fetched yet is thrown out", "return member.broker_id in p.isr", "return False"),
    Bug("who is being taken out comes back", "is_going(member.broker_id, p.place)", "False"),
    Bug("others wait until somebody has been taken out", "member.broker_id not in p.isr and ", ""),
    Bug("who leaves one partition leaves all", "is_going(member.broker_id, p.place)", "is_going(member.broker_id, (p.topic_id, 0))"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    module = planted(alterations, bug)
    found = any(fails(partial(check, module, case)) for case in CASES)
    assert found or any(fails(partial(rule, module)) for rule in RULES)
