"""What brokers and controllers tell of themselves, in a cluster to which things happen."""

from collections.abc import Coroutine
from typing import Any

import pytest

from tests.simulation.directed import Town
from tidelog.broker import metrics as of_brokers
from tidelog.broker.broker import Broker
from tidelog.broker.metrics import collect
from tidelog.controller import metrics as of_controllers
from tidelog.controller.metrics import collect as collect_of_controller
from tidelog.protocol.metrics import Metric, Sample, exposition
from tidelog.testing.simulation.world import World

Told = dict[tuple[Metric, tuple[str, ...]], float]


def told(samples: list[Sample]) -> Told:
    """Every sample once, by its metric and labels."""
    assert len({sample[::2] for sample in samples}) == len(samples)
    assert exposition(samples)
    return {(sample.metric, sample.labels): sample.value for sample in samples}


def of_broker(town: Town, number: int) -> Told:
    return told(list(collect(town.cluster.brokers[number])))


def of_controller(town: Town) -> Told:
    active = town.cluster.active
    assert active is not None
    return told(list(collect_of_controller(active[1], active[1]._now_ms())))


def test_a_leader_tells_who_has_left_and_come_back(world: World) -> None:
    town = Town(world)
    town.produce(20)
    town.cluster.pass_time(4)
    leader = town.leader() or 0
    gone = next(number for number in (1, 2, 3) if number != leader)
    before = of_broker(town, leader)
    assert (before[of_brokers.LED, ()], before[of_brokers.UNDER_REPLICATED, ()]) == (1, 0)
    assert before[of_brokers.LAG, (str(gone),)] == 0
    assert before[of_brokers.REQUESTS, ("Produce",)] > 0
    assert before[of_brokers.RECEIVED, ()] > 0
    assert before[of_brokers.SENT, ()] > 0

    town.cluster.hosts[gone].kill()
    town.cluster.until(lambda: of_broker(town, leader)[of_brokers.UNDER_REPLICATED, ()] == 1, 30)
    end = town.partition(leader).log.end_offset
    town.produce(5)
    alone = of_broker(town, leader)
    assert alone[of_brokers.LAG, (str(gone),)] == town.partition(leader).log.end_offset - end > 0
    assert alone[of_brokers.AT_MIN_ISR, ()] == 1
    cluster = of_controller(town)
    assert (cluster[of_controllers.ALIVE, ()], cluster[of_controllers.FENCED, ()]) == (2, 1)

    town.cluster.start(gone)
    town.cluster.until(lambda: of_broker(town, leader)[of_brokers.EXPANDS, ()] == 1, 30)
    back = of_broker(town, leader)
    assert (back[of_brokers.UNDER_REPLICATED, ()], back[of_brokers.LAG, (str(gone),)]) == (0, 0)
    assert of_broker(town, gone)[of_brokers.LAST_END, ()] == 2  # it was killed


def test_a_controller_tells_what_the_cluster_has(world: World) -> None:
    town = Town(world)
    cluster = of_controller(town)
    assert cluster[of_controllers.ROLE, ("leader",)] == 1
    assert cluster[of_controllers.ACTIVE, ()] == 1
    assert (cluster[of_controllers.TOPICS, ()], cluster[of_controllers.PARTITIONS, ()]) == (1, 1)
    assert (cluster[of_controllers.REGISTERED, ()], cluster[of_controllers.OFFLINE, ()]) == (3, 0)
    assert cluster[of_controllers.HIGH_WATERMARK, ()] <= cluster[of_controllers.LOG_END, ()]


def test_a_broker_that_has_not_joined_tells_what_it_can(world: World) -> None:
    town = Town(world)
    town.cluster.hosts[1].kill()
    town.cluster.controller.kill()
    town.cluster.start(1)
    town.cluster.until(lambda: hasattr(town.cluster.brokers.get(1), "listener"), 5)
    alone = of_broker(town, 1)
    assert (alone[of_brokers.CONNECTED, ()], alone[of_brokers.LEASE, ()]) == (0, 0)
    assert (of_brokers.LED, ()) not in alone


def test_a_broker_is_ready_when_it_is_counted_among_the_living(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, why_not = Broker.run, list[str | None]()

    def watched(self: Broker, _ready: object = None) -> Coroutine[Any, Any, None]:
        return run(self, lambda: why_not.append(self.not_ready()))

    monkeypatch.setattr(Broker, "run", watched)
    Town(world)
    assert why_not == [None, None, None]
