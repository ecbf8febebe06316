"""Brokers of many partitions that are fenced in many steps, while those who lead with them go on."""

import asyncio
from types import SimpleNamespace

import pytest

from tests.simulation.cluster import with_config
from tests.simulation.test_admin import Office
from tidelog.controller import active, alterations, election, liveness, turns
from tidelog.protocol.types import BrokerId
from tidelog.testing.simulation.world import World

THREE = BrokerId(3)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few partitions are many, and each step of them takes as long as one of 200 does: leaders read it meanwhile."""
    for module in (active, alterations, election, liveness):
        monkeypatch.setattr(module, "STEP", 3)

    async def takes_time(_: float) -> None:
        await asyncio.sleep(0.005)

    monkeypatch.setattr(turns, "asyncio", SimpleNamespace(Lock=asyncio.Lock, sleep=takes_time))


@pytest.mark.usefixtures("small_steps")
def test_who_is_cut_off_from_the_controller_only_is_fenced_and_comes_back_when_the_cut_heals(
    world: World,
) -> None:
    """It follows everybody all the time, and they want it in sync."""
    office = Office(world, controllers=1, config=with_config(replica_lag_time_max_ms=10_000))
    places = office.create(*((1, 2, 3), (2, 1, 3), (3, 1, 2)) * 20)
    cluster = office.cluster
    world.network.partition("b3", "c1")
    cluster.until(lambda: THREE not in office.state(places[0]).isr, 5)
    assert not cluster.image.brokers[THREE].fenced
    world.network.heal("b3", "c1")
    cluster.until(lambda: cluster.image.brokers[THREE].fenced, 1)
    cluster.until(lambda: not cluster.brokers[3].not_ready(), 5)
    cluster.until(cluster.converged, 5)
