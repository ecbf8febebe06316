"""What a stream tells a group of its progress, asked of a cluster without Spark."""

import asyncio

import pytest

from tests.spark.conftest import World
from tidelog.client.io.client import Client
from tidelog.protocol.types import TopicPartition
from tidelog.spark.mirror import Mirror
from tidelog.spark.offsets import StreamOffset, stream_offset


def test_a_checkpoint_without_ids_tells_nothing_yet() -> None:
    unused = Client.__new__(Client)  # nobody may be asked
    asyncio.run(Mirror("lag").tell(unused, stream_offset({"orders": {"3": 7}})))


@pytest.mark.slow
def test_a_topic_without_an_id_keeps_no_other_from_being_told(world: World) -> None:
    old, new = world.topic(), world.topic()
    known = world.run(world.client.topic(new))
    at = StreamOffset({TopicPartition(old, 0): 0, TopicPartition(new, 0): 0}, {new: known.id})
    group = f"lag-{new}"
    world.run(Mirror(group).tell(world.client, at))
    committed = world.run(world.client.admin.committed_offsets(group))
    assert [tuple(name) for name in committed] == [(new, 0)]
