"""What is sent to a topic right after it was created: brokers hear of it, and make its logs, at different moments."""

import asyncio

import pytest

from tests.client.simulated import Stage
from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client
from tidelog.testing.simulation.world import World

PARTITIONS = 12
SOON_S = 0.4


async def create_and_send(client: Client) -> float:
    """How long the last of one record to each partition took, in seconds."""
    loop = asyncio.get_running_loop()
    await client.admin.create_topics(NewTopic("orders", PARTITIONS, 3))
    began = loop.time()
    async with client.producer() as producer:
        await asyncio.gather(*(producer.send("orders", b"v", partition=at) for at in range(PARTITIONS)))
    return loop.time() - began


@pytest.mark.parametrize("slow", [1, 2, 3])
def test_a_record_for_a_topic_that_was_just_created_waits_for_no_more_than_its_logs(slow: int) -> None:
    """A follower that comes before the leader has its log comes again soon, and what it asks meanwhile ends for that."""
    for seed in range(5):
        with World(seed).running() as world:
            stage = Stage(world)
            stage.cluster.hosts[slow].slow_disk((20, 30))
            taken_s = stage.run(create_and_send)
            assert taken_s < SOON_S, f"seed {seed}, broker {slow} slow: {taken_s:.3f} s"
