"""How far groups are behind, as a broker's metrics tell it (issue: lag is right, and told where one looks)."""

from collections.abc import Callable, Mapping

import pytest

from tests.broker.groups_desk import IDS, Desk
from tests.broker.test_groups_on_brokers import Play
from tidelog.broker.groups.description import View
from tidelog.broker.groups.lag import Ends
from tidelog.broker.groups.records import Place
from tidelog.broker.groups.watch import EVERY_MS, FORGOTTEN_MS, LagWatch, TopicLag
from tidelog.broker.metrics import collect
from tidelog.testing.simulation.world import World

Heard = Callable[[Mapping[Place, Ends]], None]
ORDERS = IDS["orders"]


class Leaders:
    """They are asked, and answer when they are told to."""

    def __init__(self) -> None:
        self.asked: list[Heard] = []

    def __call__(self, heard: Heard) -> None:
        self.asked.append(heard)


def told(watch: LagWatch, desk: Desk) -> list[TopicLag]:
    group = desk.shard.committed.get("g")
    assert group is not None
    return list(watch.told(group, View(desk.topics, desk.wall_ms)))


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.say("a", 0, topics=["orders"])
    desk.commit("a", 1, {("orders", 0): 7, ("orders", 1): 5})
    return desk


def test_nobody_is_asked_before_somebody_looks() -> None:
    watch, leaders = LagWatch(), Leaders()
    for now_ms in range(0, 5 * EVERY_MS, 1000):
        watch.tick(now_ms, leaders)
    assert leaders.asked == []


def test_who_looks_is_told_what_leaders_have_said_and_of_how_many_partitions_it_is_not_known(
    desk: Desk,
) -> None:
    watch, leaders = LagWatch(), Leaders()
    watch.look(0)
    watch.tick(0, leaders)
    assert told(watch, desk) == []
    leaders.asked[0]({(ORDERS, 0): Ends(0, 10)})
    (orders,) = told(watch, desk)
    assert (orders.group, orders.topic, orders.lag.records, orders.unknown) == ("g", "orders", 3, 1)


def test_leaders_are_asked_again_after_a_while_and_not_before_they_have_answered(desk: Desk) -> None:
    watch, leaders = LagWatch(), Leaders()
    for now_ms in range(0, 3 * EVERY_MS, 1000):
        watch.look(now_ms)
        watch.tick(now_ms, leaders)
    assert len(leaders.asked) == 1
    leaders.asked[0]({})
    watch.tick(3 * EVERY_MS, leaders)
    assert len(leaders.asked) == 2
    leaders.asked[1]({(ORDERS, 0): Ends(0, 9), (ORDERS, 1): Ends(0, 5)})
    watch.tick(3 * EVERY_MS + 1, leaders)
    assert len(leaders.asked) == 2
    assert [(each.lag.records, each.unknown) for each in told(watch, desk)] == [(2, 0)]


@pytest.mark.parametrize("pause_ms", [15_000, 120_000, 300_000])
def test_who_looks_now_and_then_is_told_from_the_second_look_on(desk: Desk, pause_ms: int) -> None:
    watch, leaders, ticks = LagWatch(), Leaders(), 0
    for look in range(4):
        watch.look(look * pause_ms)
        assert len(told(watch, desk)) == (1 if look else 0)
        for now_ms in range(look * pause_ms, (look + 1) * pause_ms, 1000):
            watch.tick(now_ms, leaders)
            if len(leaders.asked) > ticks:
                ticks += 1
                leaders.asked[-1]({(ORDERS, 0): Ends(0, 10)})


def test_when_nobody_looks_any_more_nobody_is_asked_and_nothing_old_is_told(desk: Desk) -> None:
    watch, leaders = LagWatch(), Leaders()
    watch.look(0)
    watch.tick(0, leaders)
    leaders.asked[0]({(ORDERS, 0): Ends(0, 10)})
    watch.tick(FORGOTTEN_MS + 1, leaders)
    watch.tick(FORGOTTEN_MS + EVERY_MS, leaders)
    assert (len(leaders.asked), told(watch, desk)) == (1, [])


@pytest.mark.slow
def test_a_brokers_metrics_tell_the_lag_of_the_groups_that_it_coordinates() -> None:
    with World(7).running() as world:
        play = Play(world)
        play.join("a")
        play.until_content(20)

        def lags() -> dict[str, float]:
            broker = play.cluster.brokers[play.coordinator()]
            names = {
                "tidelog_group_members",
                "tidelog_group_lag_records",
                "tidelog_group_lag_seconds",
                "tidelog_group_lag_unknown_partitions",
            }
            return {each.metric.name: each.value for each in collect(broker) if each.metric.name in names}

        assert lags() == {"tidelog_group_members": 1}, "nobody had asked"
        play.cluster.until(lambda: len(lags()) == 4, 30)
        assert lags() == {
            "tidelog_group_members": 1,
            "tidelog_group_lag_records": 0,
            "tidelog_group_lag_seconds": 0,
            "tidelog_group_lag_unknown_partitions": 0,
        }
        node = play.cluster.brokers[play.coordinator()].groups
        assert node is not None
        wall_ms, watch = node.coordinator.context.clocks.wall_ms(), node.coordinator.watch
        ((group, _),) = node.coordinator.watched()
        ends = {place: Ends(0, each.offset + 5, wall_ms - 3000) for place, each in group.offsets.items()}
        watch._heard(ends)
        assert lags()["tidelog_group_lag_records"] == 5 * len(ends)
        assert lags()["tidelog_group_lag_seconds"] == 3
        watch._heard({place: Ends(0, each.offset + 5) for place, each in group.offsets.items()})
        assert lags()["tidelog_group_lag_records"] == 5 * len(ends)
        assert "tidelog_group_lag_seconds" not in lags(), (
            "its members have not said when the last one was written"
        )
