"""Producers that fall silent are forgotten everywhere, and write again as new ones (design 1.7)."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.broker.node import Node
from tests.client.simulated import Stage
from tidelog.broker.forgetting import LOOK_S, Forgetting
from tidelog.broker.requests.context import Clocks
from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client
from tidelog.testing.simulation.world import World

DAY = 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("wall_ms", "boot_ms", "now_ms"),
    [
        (1_000_000, 500, 1_000_000),
        (1_000_900, 1400, 1_000_900),
        (1_000_000 + DAY, 1400, 1_000_900),  # the clock was set forward: nobody is a day older
        (1_000_000 - DAY, 1400, 1_000_000 - DAY),  # and back: who has just written is not a day old
    ],
)
def test_a_clock_that_jumps_makes_nobody_older(wall_ms: int, boot_ms: int, now_ms: int) -> None:
    wall, boot = [1_000_000], [500]
    forgetting = Forgetting(Node().replicas, Clocks(lambda: 0, lambda: wall[0], lambda: boot[0]))
    wall[0], boot[0] = wall_ms, boot_ms
    assert forgetting.now_ms() == now_ms


@pytest.fixture
def stage() -> Iterator[Stage]:
    with World(3).running() as world:
        yield Stage(world)


def remembered(stage: Stage) -> list[int]:
    """How many producers each replica of `orders` knows."""
    return [len(p.log.producers) for p in stage.cluster.replicas().values() if p.name.topic == "orders"]


@pytest.mark.slow
def test_who_is_silent_is_forgotten_on_every_replica_and_goes_on_writing(stage: Stage) -> None:
    async def live(client: Client) -> list[bytes | None]:
        await client.admin.create_topics(NewTopic("orders", partitions=1, replication_factor=3))
        await client.admin.alter_configs("cluster", "", {"producer.id.expiration.ms": "30000"})
        async with client.producer() as producer:
            await producer.send("orders", b"one")
            await asyncio.sleep(20)
            assert remembered(stage) == [1, 1, 1], "it has not been silent for that long"
            await asyncio.sleep(30 + LOOK_S)
            assert remembered(stage) == [0, 0, 0]
            await producer.send("orders", b"two")
        async with client.consumer("orders", auto_offset_reset="earliest") as consumer:
            return [(await anext(consumer)).value for _ in range(2)]

    assert stage.run(live, 300) == [b"one", b"two"]
