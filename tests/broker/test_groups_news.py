"""Heartbeats that wait at the broker: what wakes them, and which of them hears the news."""

import pytest

from tests.broker.test_groups_requests import ORDERS_ID, ready
from tidelog.broker.groups.shard import Shard
from tidelog.controller.image import Changes
from tidelog.protocol.errors import NotCoordinator


def test_a_heartbeat_waits_for_news_and_hears_it_at_once() -> None:
    desk = ready()
    desk.say("a", 0, "orders")
    waiting = desk.say("a", 1, max_wait_ms=5000)
    assert waiting.waits
    desk.say("b", 0, "orders")
    desk.turn()
    assert [entry.indexes for entry in waiting.answer.assignment] == [(0,)]
    assert waiting.answer.heartbeat_interval_ms < 100, "the broker is where it waits"


def test_a_heartbeat_that_waits_in_vain_is_answered_in_time() -> None:
    desk = ready()
    desk.say("a", 0, "orders")
    waiting = desk.say("a", 1, max_wait_ms=60_000)
    desk.wait(4999)
    assert waiting.waits
    desk.wait(1)
    assert (waiting.answer.error, waiting.answer.assignment) == (0, None)


def test_commits_of_others_do_not_wake_who_waits_for_news(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = ready()
    desk.say("a", 0, "orders")
    assert desk.say("a", 1, max_wait_ms=5000).waits
    asked: list[str] = []

    def has_news(_: Shard, group: str, __: str) -> bool:
        asked.append(group)
        return False

    monkeypatch.setattr(Shard, "has_news", has_news)
    for offset in range(9):
        desk.commit("a", 1, offset)
    assert not asked


def test_a_heartbeat_that_waits_is_told_when_another_broker_leads() -> None:
    desk = ready()
    desk.say("a", 0, "orders")
    waiting = desk.say("a", 1, max_wait_ms=5000)
    desk.lead_groups(epoch=1, leader=2)
    desk.turn()
    assert waiting.answer.error == NotCoordinator.code


def test_a_heartbeat_that_waits_is_not_heard_by_the_next_coordinator_on_the_same_broker() -> None:
    desk = ready()
    desk.say("a", 0, "orders")
    waiting = desk.say("a", 1, max_wait_ms=5000)
    desk.lead_groups(epoch=1)
    desk.load()
    desk.coordinator.tick()
    desk.turn()
    assert waiting.answer.error == NotCoordinator.code, "what came after it, only the last one has heard"


def test_a_heartbeat_that_its_member_has_given_up_takes_no_news_when_it_wakes() -> None:
    desk = ready()
    desk.say("a", 0, "orders")
    given_up = desk.say("a", 1, max_wait_ms=5000)
    newer = desk.say("a", 1, max_wait_ms=5000)
    desk.say("b", 0, "orders")
    desk.turn()
    assert given_up.answer.assignment is None
    assert [entry.indexes for entry in newer.answer.assignment] == [(0,)]


def test_a_topic_that_grows_is_news() -> None:
    desk = ready()
    desk.say("a", 0, "orders")
    waiting = desk.say("a", 1, max_wait_ms=5000)
    desk.lead(place=(ORDERS_ID, 2), replicas=(1,), isr=(1,), min_isr=1)
    desk.coordinator.adopt(Changes(((ORDERS_ID, 2),), (), (), ()))
    desk.turn()
    assert [entry.indexes for entry in waiting.answer.assignment] == [(0, 1, 2)]


def test_who_is_silent_is_put_out_by_time_alone_and_the_others_hear_it_at_once() -> None:
    desk = ready()
    desk.say("a", 0, "orders")
    desk.say("b", 0, "orders")
    asked = desk.say("b", 2, max_wait_ms=5000)
    for _ in range(50):
        desk.now_ms += 1000
        desk.coordinator.tick()
        desk.wait(0)
        if not asked.waits and asked.answer.assignment:
            break
        if not asked.waits:
            asked = desk.say("b", asked.answer.member_epoch, max_wait_ms=5000)
    assert [entry.indexes for entry in asked.answer.assignment] == [(0, 1)]
