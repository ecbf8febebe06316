"""A sink's task that is repeated after brokers have really forgotten its producer: a simulated cluster in simulated time."""

import asyncio
from collections import Counter

import pyarrow as pa
import pytest

from tests.client.simulated import Stage
from tidelog.broker.forgetting import LOOK_S
from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client
from tidelog.spark.ledger import Ledger, Place
from tidelog.spark.options import WriteOptions
from tidelog.spark.portal import Address
from tidelog.spark.writing import BATCH_ROWS, Writing
from tidelog.testing.simulation.world import World

pytestmark = pytest.mark.slow

ROWS = 2 * BATCH_ROWS + 100
PLACE = Place("query", 0, 0)


def attempt(client: Client, stage: Stage) -> Writing:
    return Writing(client, Ledger(client), PLACE, WriteOptions(Address(stage.bootstrap), "orders"))


def remembered(stage: Stage) -> list[int]:
    """How many producers each replica of `orders` knows."""
    return [len(p.log.producers) for p in stage.cluster.replicas().values() if p.name.topic == "orders"]


def test_a_task_is_resumed_though_its_producer_has_expired() -> None:
    rows = pa.record_batch({"value": [b"%d" % number for number in range(ROWS)]})

    async def live(client: Client) -> Counter[bytes | None]:
        await client.admin.create_topics(NewTopic("orders", partitions=1, replication_factor=3))
        await client.admin.alter_configs("cluster", "", {"producer.id.expiration.ms": "30000"})
        killed = attempt(client, stage)
        await killed.begin(1234)
        await killed.add(rows.slice(0, BATCH_ROWS + 10))
        async with asyncio.timeout(60):
            while remembered(stage) != [1, 1, 1]:  # noqa: ASYNC110 -- a replica tells nobody
                await asyncio.sleep(0.1)
        await killed.abort()
        await asyncio.sleep(30 + 2 * LOOK_S)
        assert remembered(stage) == [0, 0, 0]
        repeated = attempt(client, stage)
        await repeated.begin(1234)
        await repeated.add(rows)
        await repeated.finish()
        intent = repeated._targets["orders"].intent
        assert (intent.generation, intent.lanes[0].already) == (1, BATCH_ROWS)
        async with client.consumer("orders", auto_offset_reset="earliest") as consumer:
            return Counter([(await anext(consumer)).value for _ in range(ROWS)])

    with World(3).running() as world:
        stage = Stage(world, controllers=1)
        assert stage.run(live, 600) == Counter(rows["value"].to_pylist())
