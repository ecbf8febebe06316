"""Unclean recovery: whom the controller asks, how long it waits, and whom it elects (design 4.8; KIP-966)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.controller.book import OTHER, TOPIC, Book, ids, partition
from tests.controller.planted import Bug
from tests.controller.sentences import noticed
from tidelog.controller import recovery
from tidelog.controller.facts import ConfigChanged, Place, TopicCreated
from tidelog.controller.recovery import (
    AGGRESSIVE_MS,
    ASK_AGAIN_MS,
    BALANCED_MS,
    Recovery,
    Todo,
    leader_epochs,
)
from tidelog.protocol.errors import StorageError
from tidelog.protocol.messages import GetReplicaLogInfoReply, ReplicaLogInfo
from tidelog.protocol.types import BrokerId

PLACE: Place = (TOPIC, 0)
ASKED = [PLACE]


class Stage:
    """A book, the machine, and a clock."""

    def __init__(self, how: str, *partitions: Any, live: tuple[int, ...] = (1, 2, 3), **more: Any) -> None:
        self.book = Book(*partitions, live=live, **more)
        self.book.say(ConfigChanged("topic", "orders", "unclean.recovery", how))
        self.recovery = Recovery()
        self.now_ms = 1000

    def look(self, after_ms: int = 0) -> Todo:
        self.now_ms += after_ms
        todo = self.recovery.look(self.book.image, self.now_ms)
        for facts in todo.elect:
            self.book.carry_out(facts)
        return todo

    def answer(
        self,
        broker: int,
        last_epoch: int,
        end_offset: int,
        *,
        error: int = 0,
        old: bool = False,
        asked_in: int | None = None,
    ) -> None:
        info = ReplicaLogInfo(*PLACE, error, None, last_epoch, end_offset)
        epoch = self.book.epoch(broker) - old
        reply = GetReplicaLogInfoReply(broker_epoch=epoch, partitions=(info,))
        now = leader_epochs(self.book.image, ASKED)
        self.recovery.answered(BrokerId(broker), reply, now if asked_in is None else {PLACE: asked_in})

    def led_for_a_while(self, leader: int) -> None:
        """Somebody leads, who may write, and then nobody does."""
        p, led_by = self.book.state(), BrokerId(leader)
        led = replace(p, leader=led_by, isr=(led_by,), last_known_elr=())
        for count, then in enumerate((led, p), 1):
            changed = replace(
                then, leader_epoch=p.leader_epoch + count, partition_epoch=p.partition_epoch + count
            )
            self.book.say(changed.changed())
            self.look(1)

    @property
    def leader(self) -> int:
        return self.book.state().leader


def test_none_asks_nobody() -> None:
    assert Stage("none", partition((), last_known=(1, 2))).look() == Todo({}, [], None)


def test_each_topic_has_its_own_rule() -> None:
    stage = Stage("balanced", partition((), last_known=(1, 2)))
    stage.book.say(TopicCreated(OTHER, "invoices"), partition((), last_known=(1, 3), topic=OTHER).created())
    assert stage.look().ask == {1: ASKED, 2: ASKED}


# ── balanced ──────────────────────────────────────────────────────────────────────────────────────────


def test_balanced_asks_the_last_known_elr_and_elects_the_one_with_most_when_all_have_answered() -> None:
    stage = Stage("balanced", partition((), last_known=(1, 2)))
    assert stage.look().ask == {1: ASKED, 2: ASKED}
    stage.answer(1, 4, 90)
    assert (stage.look(1).ask, stage.leader) == ({}, -1)
    stage.answer(2, 5, 10)
    stage.look()
    p = stage.book.state()
    assert (p.leader, p.isr, p.leader_epoch, p.unclean_epoch, p.recovering) == (2, (2,), 6, 6, True)


def test_balanced_waits_five_minutes_for_those_who_do_not_answer_and_not_longer() -> None:
    stage = Stage("balanced", partition((), last_known=(1, 2)), live=(1, 3), fenced=(2,))
    assert stage.look().ask == {1: ASKED}
    stage.answer(1, 4, 90)
    todo = stage.look(BALANCED_MS - 1)
    assert (stage.leader, todo.next_ms) == (-1, stage.now_ms + 1)
    stage.look(1)
    assert stage.leader == 1


def test_balanced_does_nothing_while_somebody_is_guaranteed_to_have_everything() -> None:
    stage = Stage("balanced", partition((), (1,), last_known=(2,)), live=(2, 3), fenced=(1,))
    assert stage.look() == Todo({}, [], None)


def test_balanced_asks_nobody_where_nobody_is_worth_asking() -> None:
    assert Stage("balanced", partition(())).look() == Todo({}, [], None)


# ── aggressive ────────────────────────────────────────────────────────────────────────────────────────


def test_aggressive_asks_all_that_are_alive_although_others_have_everything() -> None:
    stage = Stage("aggressive", partition((), (1,)), live=(2, 3), fenced=(1,))
    assert stage.look().ask == {2: ASKED, 3: ASKED}
    stage.answer(2, 5, 7)
    stage.answer(3, 5, 8)
    stage.look()
    assert stage.leader == 3


def test_aggressive_waits_five_seconds_for_those_who_do_not_answer() -> None:
    stage = Stage("aggressive", partition((), (1,)), live=(2, 3), fenced=(1,))
    stage.look()
    stage.answer(2, 5, 7)
    stage.look(AGGRESSIVE_MS - 1)
    assert stage.leader == -1
    stage.look(1)
    assert stage.leader == 2


def test_the_older_setting_of_kafka_is_aggressive() -> None:
    stage = Stage("none", partition((), (1,)), live=(2, 3), fenced=(1,))
    stage.book.say(ConfigChanged("topic", "orders", "unclean.recovery", None))
    stage.book.say(ConfigChanged("topic", "orders", "unclean.leader.election.enable", "true"))
    assert stage.look().ask == {2: ASKED, 3: ASKED}


# ── what counts ───────────────────────────────────────────────────────────────────────────────────────


def test_the_later_epoch_wins_then_the_longer_log_then_the_preferred() -> None:
    for one, two, then in (
        ((5, 7), (4, 99), 1),
        ((5, 7), (5, 8), 2),
        ((5, 7), (5, 7), 1),
        ((-1, 0), (0, 1), 2),
    ):
        stage = Stage("balanced", partition((), last_known=(1, 2)))
        stage.look()
        stage.answer(2, *two)
        stage.answer(1, *one)
        stage.look()
        assert stage.leader == then


def test_what_a_process_said_that_is_not_registered_any_more_counts_for_nothing() -> None:
    stage = Stage("balanced", partition((), last_known=(1,)))
    stage.look()
    stage.answer(1, 5, 9, old=True)
    stage.look()
    assert stage.leader == -1
    stage.answer(1, 5, 9)
    stage.book.register(1, process="another")
    stage.book.say(stage.book.unfenced(1))
    assert stage.look().ask == {1: ASKED}
    assert stage.leader == -1


def test_what_was_asked_before_somebody_led_counts_for_nothing() -> None:
    """Broker 2 has written since: its old answer would have the others look better."""
    stage = Stage("balanced", partition((), last_known=(1, 2)))
    asked_in = stage.book.state().leader_epoch
    assert stage.look().ask == {1: ASKED, 2: ASKED}
    stage.led_for_a_while(2)
    stage.answer(2, 5, 100, asked_in=asked_in)
    stage.answer(1, 5, 120)
    stage.look()
    assert stage.leader == -1
    stage.answer(2, 6, 200)
    stage.answer(2, 5, 100, asked_in=asked_in)
    stage.look()
    assert stage.leader == 2


def test_of_a_partition_that_nobody_asked_for_nothing_is_believed() -> None:
    stage = Stage("balanced", partition((), last_known=(1,)))
    stage.look()
    info = ReplicaLogInfo(*PLACE, 0, None, 5, 9)
    stage.recovery.answered(
        BrokerId(1), GetReplicaLogInfoReply(broker_epoch=stage.book.epoch(1), partitions=(info,)), {}
    )
    stage.look()
    assert stage.leader == -1


def test_who_is_not_alive_any_more_is_not_elected() -> None:
    stage = Stage("balanced", partition((), last_known=(1, 2)))
    stage.look()
    stage.answer(1, 5, 9)
    stage.answer(2, 5, 8)
    stage.book.say(stage.book.unfenced(1, shutting_down=True))
    stage.look()
    assert stage.leader == 2


def test_nobody_leads_who_has_not_answered() -> None:
    stage = Stage("balanced", partition((), last_known=(1,)))
    stage.look()
    stage.answer(1, 5, 9)
    stage.book.say(stage.book.unfenced(1, shutting_down=True))
    assert (stage.look().elect, stage.leader) == ([], -1)


def test_who_cannot_say_has_answered_and_is_not_elected() -> None:
    stage = Stage("balanced", partition((), last_known=(1,)))
    stage.look()
    stage.answer(1, -1, -1, error=StorageError.code)
    assert stage.look(BALANCED_MS) == Todo({}, [], None)
    assert stage.leader == -1


def test_whoever_does_not_answer_is_asked_again() -> None:
    stage = Stage("balanced", partition((), last_known=(1,)))
    assert stage.look().next_ms == stage.now_ms + ASK_AGAIN_MS
    assert stage.look(ASK_AGAIN_MS - 1).ask == {}
    assert stage.look(1).ask == {1: ASKED}


def test_what_was_found_is_forgotten_when_somebody_leads() -> None:
    stage = Stage("aggressive", partition((), (1,)), live=(2, 3), fenced=(1,))
    stage.look()
    stage.answer(2, 5, 7)
    stage.book.say(stage.book.unfenced(1))
    stage.look(AGGRESSIVE_MS)
    p = stage.book.state()
    assert (p.leader, p.unclean_epoch) == (1, -1)
    assert stage.recovery.best_first(stage.book.image, PLACE)[0] == 1, "it counts no more at once"
    stage.look()
    assert stage.recovery.best_first(stage.book.image, PLACE) == []


def test_an_operator_may_know_what_was_found() -> None:
    stage = Stage("balanced", partition((), last_known=(1, 2)))
    stage.look()
    stage.answer(2, 5, 8)
    assert stage.recovery.best_first(stage.book.image, PLACE) == list(ids(2, 1, 3))


# ── operators ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_operator_who_wants_a_leader_has_all_asked_that_are_alive_whatever_the_rule() -> None:
    stage = Stage("none", partition((), (1,)), live=(2, 3), fenced=(1,))
    stage.recovery.wish([PLACE], stage.now_ms + 5000)
    todo = stage.look()
    assert (todo.ask, todo.next_ms) == ({2: ASKED, 3: ASKED}, stage.now_ms + ASK_AGAIN_MS)
    assert not stage.recovery.is_known(stage.book.image, [PLACE])
    stage.answer(2, 5, 7)
    assert not stage.recovery.is_known(stage.book.image, [PLACE])
    stage.answer(3, 5, 8)
    assert stage.recovery.is_known(stage.book.image, [PLACE])
    assert (stage.look().elect, stage.leader) == ([], -1)
    assert stage.recovery.best_first(stage.book.image, PLACE) == list(ids(3, 2, 1))


def test_who_is_silent_is_asked_for_an_operator_as_long_as_that_waits_and_what_others_said_is_kept() -> None:
    stage = Stage("none", partition((), (1,)), live=(2, 3), fenced=(1,))
    stage.recovery.wish([PLACE], stage.now_ms + 1500)
    stage.look()
    stage.answer(2, 5, 7)
    todo = stage.look(ASK_AGAIN_MS)
    assert (todo.ask, todo.next_ms) == ({3: ASKED}, stage.now_ms + 500)
    assert stage.look(500) == Todo({}, [], None)
    assert stage.recovery.best_first(stage.book.image, PLACE) == list(ids(2, 1, 3))


def test_two_operators_wait_each_for_their_own_time() -> None:
    stage = Stage("none", partition((), (1,)), live=(2, 3), fenced=(1,))
    stage.recovery.wish([PLACE], stage.now_ms + 5000)
    stage.recovery.wish([PLACE], stage.now_ms + 10)
    stage.look()
    assert stage.look(ASK_AGAIN_MS).ask == {2: ASKED, 3: ASKED}


def test_who_cannot_say_what_it_has_is_taken_at_last_and_asked_again_by_the_next_operator() -> None:
    stage = Stage("none", partition((), (1,)), live=(2, 3), fenced=(1,))
    stage.recovery.wish([PLACE], stage.now_ms + 5000)
    stage.look()
    stage.answer(2, -1, -1, error=StorageError.code)
    assert stage.recovery.best_first(stage.book.image, PLACE) == list(ids(1, 3, 2))
    stage.answer(3, 5, 7)
    assert stage.recovery.best_first(stage.book.image, PLACE) == list(ids(3, 1, 2))
    assert stage.recovery.is_known(stage.book.image, [PLACE])
    stage.recovery.wish([PLACE], stage.now_ms + 5000)
    assert not stage.recovery.is_known(stage.book.image, [PLACE])
    assert stage.look().ask == {2: ASKED}


def test_an_operator_does_not_wait_for_what_somebody_leads_or_nobody_can() -> None:
    led, dead = partition((4, 5), replicas=(4, 5)), partition((), (1,), index=1)
    stage = Stage("none", led, dead, fenced=(1, 2, 3), live=(4, 5))
    assert stage.recovery.is_known(stage.book.image, [PLACE, (TOPIC, 1), (OTHER, 0)])


def test_an_operator_does_not_shorten_the_time_of_those_whose_logs_decide() -> None:
    """Broker 3 alone was asked; the last who had everything have their five minutes when one of them is there."""
    stage = Stage("balanced", partition((), last_known=(1, 2)), live=(3,), fenced=(1, 2))
    stage.recovery.wish([PLACE], stage.now_ms + 5000)
    assert stage.look().ask == {3: ASKED}
    stage.answer(3, 5, 9)
    assert stage.look(1000).ask == {}
    stage.book.say(stage.book.unfenced(1))
    assert stage.look(BALANCED_MS).ask == {1: ASKED}
    stage.answer(1, 5, 8)
    assert stage.look(BALANCED_MS - 1).elect == []
    stage.look(1)
    assert stage.leader == 1


def test_partitions_of_one_broker_are_asked_for_at_once() -> None:
    stage = Stage("balanced", partition((), last_known=(1,)), partition((), last_known=(1, 2), index=1))
    assert stage.look().ask == {1: [(TOPIC, 0), (TOPIC, 1)], 2: [(TOPIC, 1)]}


BUGS = (
    Bug("an older process counts", "and image.brokers[broker].epoch == said.broker_epoch", ""),
    Bug("what was asked before somebody led counts", "and p.leader_epoch == said.leader_epoch", ""),
    Bug("a late answer takes the place of a later one", "known.leader_epoch <= leader_epoch", "known"),
    Bug("the dead are elected", "and image.can_lead(broker, p.place)\n    ]", "\n    ]"),
    Bug("the shorter log", "sorted(alive, reverse=True)", "sorted(alive)"),
    Bug("the longer log of an older epoch", "Log(entry.last_epoch, entry.end_offset)", "Log(entry.end_offset, entry.last_epoch)"),
    Bug("who cannot say is elected", "None if entry.error else Log", "Log"),
    Bug("decided before all have answered", "if best and (not missing or over):", "if best:"),
    Bug("waits for ever", "if best and (not missing or over):", "if best and not missing:"),
    Bug("balanced over the elr", "if p.last_known_elr and not p.isr and not p.elr:", "if p.last_known_elr:"),
    Bug("asked without end", "or now_ms >= asked[1] + ASK_AGAIN_MS", ""),
    Bug("asked all the time", "now_ms >= asked[1] + ASK_AGAIN_MS", "True"),
    Bug("another process is not asked", "asked[0] != epoch or", ""),
    Bug("nothing is forgotten", "self._searches = {place: self._searches.get(place) or _Search() for place in places}", "self._searches |= {place: _Search() for place in places if place not in self._searches}"),
    Bug("who cannot say comes before who is silent", "(*best, *hopeful, *p.replicas)", "(*best, *p.replicas)"),
    Bug("the last operator's time is everybody's", "max(until_ms, self._wishes.get(place, until_ms))", "until_ms"),
    Bug("who could not say is never asked again", "if said.log is not None}\n                search.asked", "if True}\n                search.asked"),
    Bug("operators ask in vain", "for place, due_ms in self._wishes.items():", "for place, due_ms in ():"),
    Bug("operators ask for ever", "if now_ms < due_ms and (silent", "if (silent"),
    Bug("an operator's asking is that of the rule", "and not search.asked.keys().isdisjoint(whom)", "and search.asked"),
    Bug("nothing is known in time", "return not any(place in image", "return all(place in image"),
    Bug("what operators found is forgotten", "places = {**wanted, **self._wishes}", "places = wanted"),
    Bug("five minutes for all", "return (alive, AGGRESSIVE_MS)", "return (alive, BALANCED_MS)"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    assert noticed(globals(), recovery, bug, monkeypatch)
