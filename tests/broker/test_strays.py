"""Logs that the cluster does not place on a broker: which of them go, when, and which never (design 1.8, 4.9; ADR 107)."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.node import Node
from tests.simulation.cluster import QUICK
from tests.simulation.directed import Town
from tidelog.broker.requests.context import Clocks
from tidelog.broker.strays import KEEP, LOOK_S, Found, Strays
from tidelog.protocol.messages import DeleteTopics, DeleteTopicsReply
from tidelog.protocol.types import TopicPartition
from tidelog.storage.names import STRAY
from tidelog.storage.strays import Stray, strays
from tidelog.testing.simulation.world import World

ID = b"a" * 16
ORDERS = TopicPartition("orders", 3)
DELAY_MS = 100_000


class Yard:
    """A broker's strays as a machine: what is found, and what the cluster says of them."""

    def __init__(self) -> None:
        self.root = Node().disk.open_directory("/data")
        self.here: set[tuple[bytes, int]] = set()
        self.strays = Strays(
            list,
            Clocks(lambda: 0, lambda: 0, lambda: 0),
            is_here=lambda topic_id, index: (topic_id, index) in self.here,
            delay_ms=lambda: DELAY_MS,
        )

    def found(self, **what: Any) -> Found:
        fields: dict[str, Any] = {"name": "a", "partition": ORDERS, "topic_id": ID, "size": 5, **what}
        return Found(self.root, Stray(**fields))

    def due(self, now_ms: int, *found: Found, delay_ms: int = DELAY_MS) -> list[str]:
        return [each.stray.name for each in self.strays.due(found or (self.found(),), now_ms, delay_ms)]


@pytest.fixture
def yard() -> Yard:
    return Yard()


def test_a_stray_goes_when_its_delay_is_over(yard: Yard) -> None:
    assert yard.due(7) == []
    assert yard.due(7 + DELAY_MS - 1) == []
    assert yard.due(7 + DELAY_MS) == ["a"]


def test_what_the_cluster_places_here_stays(yard: Yard) -> None:
    """It may be the best copy that there is, if the one that took its place is lost."""
    yard.due(0)
    yard.here.add((ID, 3))
    assert yard.due(10 * DELAY_MS) == []
    yard.here.clear()
    assert yard.due(11 * DELAY_MS) == ["a"]


@pytest.mark.parametrize("unknown", [{"topic_id": None}, {"partition": None}])
def test_what_nobody_can_place_stays_for_an_operator(yard: Yard, unknown: dict[str, None]) -> None:
    yard.due(0, yard.found(**unknown))
    assert yard.due(10 * DELAY_MS, yard.found(**unknown)) == []


def test_without_a_delay_it_goes_at_the_next_look_and_with_minus_one_never(yard: Yard) -> None:
    assert yard.due(0, delay_ms=KEEP) == []
    assert yard.due(10 * DELAY_MS, delay_ms=KEEP) == []
    assert yard.due(10 * DELAY_MS, delay_ms=0) == ["a"]


def test_each_has_a_delay_of_its_own_and_what_is_gone_is_forgotten(yard: Yard) -> None:
    one, two = yard.found(), yard.found(name="b", size=7)
    yard.due(0, one)
    assert yard.due(DELAY_MS, one, two) == ["a"]
    assert (yard.strays.count, yard.strays.bytes) == (2, 12)
    yard.strays.due((), DELAY_MS + 1, DELAY_MS)
    assert yard.due(DELAY_MS + 2, one) == [], "another one by that name begins anew"


# ── on brokers ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def world() -> Iterator[World]:
    """A world that is running; errors that nobody caught fail the test."""
    with World(11).running() as world:
        yield world


def left_behind(world: World, **config: Any) -> tuple[Town, int]:
    """A broker that was away while its topic was deleted, and is back."""
    town = Town(world, config={**QUICK, **config})
    town.produce(20)
    away = town.others()[0]
    town.cluster.hosts[away].kill()
    leader = town.leader() or 0
    reply, _ = town.do(lambda client: client.ask(town.address(leader), DeleteTopics(("orders",))))
    assert isinstance(reply, DeleteTopicsReply)
    back(town, away)
    return town, away


def back(town: Town, number: int) -> None:
    before = town.cluster.brokers.get(number)
    town.cluster.start(number)
    town.cluster.until(
        lambda: (now := town.cluster.brokers.get(number)) not in {None, before} and now.serving, 20
    )


def kept(town: Town, number: int) -> list[Stray]:
    return strays(town.cluster.brokers[number].data.first.directory)


def test_a_topic_that_was_deleted_meanwhile_leaves_the_disk_after_the_delay(world: World) -> None:
    town, away = left_behind(world, stray_delete_delay_ms=DELAY_MS)
    [stray] = kept(town, away)
    assert stray.partition == TopicPartition("orders", 0)
    town.cluster.pass_time(DELAY_MS / 1000 - 1)
    assert kept(town, away) == [stray]
    broker = town.cluster.brokers[away]
    town.cluster.until(lambda: broker.strays.removed, LOOK_S + 2)
    assert broker.serving
    assert not [name for name in broker.data.first.directory.names() if name.startswith("orders")]


def test_a_restart_begins_the_delay_anew(world: World) -> None:
    town, away = left_behind(world, stray_delete_delay_ms=DELAY_MS)
    town.cluster.pass_time(DELAY_MS / 1000 - 1)
    town.cluster.hosts[away].kill()
    back(town, away)
    town.cluster.pass_time(DELAY_MS / 1000 - 1)
    [stray] = kept(town, away)
    assert stray.name.endswith(STRAY)
    town.cluster.until(lambda: not kept(town, away), LOOK_S + 2)


@pytest.mark.slow
def test_by_default_a_stray_is_there_for_a_day(world: World) -> None:
    town, away = left_behind(world)
    town.cluster.pass_time(10 * LOOK_S)
    assert len(kept(town, away)) == 1
    assert town.cluster.brokers[away].strays.count == 1
