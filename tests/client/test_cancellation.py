"""Whatever is awaited may be cancelled, whenever: nothing is lost, nothing stays behind, and what comes next works."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pytest

from tests.client.nodes import Cluster
from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client
from tidelog.client.io.consumer import Consumer
from tidelog.client.io.producer import Producer
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.types import TopicPartition

pytestmark = pytest.mark.slow

FIRST: Final = TopicPartition("orders", 0)
TURNS: Final = (0, 1, 2, 3, 5, 8, 13, 30)
"""After so many turns of the loop it is cancelled."""


class Scene(NamedTuple):
    """What there is to await."""

    client: Client
    producer: Producer
    consumer: Consumer
    member: Consumer


AWAITS: Final[dict[str, Callable[[Scene], Awaitable[Any]]]] = {
    "send": lambda on: on.producer.send("orders", b"v"),
    "enqueue": lambda on: on.producer.enqueue("orders", b"v"),
    "send_many": lambda on: on.producer.send_many("orders", [b"v"] * 100),
    "flush": lambda on: on.producer.flush(),
    "partitions_for": lambda on: on.producer.partitions_for("orders"),
    "partition_for": lambda on: on.producer.partition_for("orders", b"k"),
    "producer.close": lambda on: on.client.producer().close(),
    "getone": lambda on: on.consumer.getone(),
    "getmany": lambda on: on.consumer.getmany(timeout=5),
    "batches": lambda on: anext(on.consumer.batches()),
    "position": lambda on: on.consumer.position(FIRST),
    "positions": lambda on: on.consumer.positions(),
    "seek_to_beginning": lambda on: on.consumer.seek_to_beginning(),
    "seek_to_end": lambda on: on.consumer.seek_to_end(),
    "beginning_offsets": lambda on: on.consumer.beginning_offsets([FIRST]),
    "end_offsets": lambda on: on.consumer.end_offsets([FIRST]),
    "offsets_for_times": lambda on: on.consumer.offsets_for_times({FIRST: 0}),
    "commit": lambda on: on.member.commit({FIRST: 1}),
    "committed": lambda on: on.member.committed(FIRST),
    "consumer.close": lambda on: on.client.consumer("orders").close(),
    "create_topics": lambda on: on.client.admin.create_topics(NewTopic("bills", 1, 1)),
    "delete_topics": lambda on: on.client.admin.delete_topics("bills"),
    "list_topics": lambda on: on.client.admin.list_topics(),
    "describe_topics": lambda on: on.client.admin.describe_topics("orders"),
    "describe_configs": lambda on: on.client.admin.describe_configs("topic", "orders"),
    "describe_cluster": lambda on: on.client.admin.describe_cluster(),
    "describe_quorum": lambda on: on.client.admin.describe_quorum(),
    "describe_log_dirs": lambda on: on.client.admin.describe_log_dirs(),
    "list_offsets": lambda on: on.client.admin.list_offsets("orders"),
    "delete_records": lambda on: on.client.admin.delete_records({FIRST: 0}),
    "list_groups": lambda on: on.client.admin.list_groups(),
    "describe_groups": lambda on: on.client.admin.describe_groups("g"),
}


@pytest.fixture
async def scene(broker: Cluster) -> AsyncIterator[Scene]:
    """A client of one real broker with all that it makes."""
    async with broker.client() as client:
        await client.admin.create_topics(NewTopic("orders", partitions=1, replication_factor=1))
        async with (
            client.producer() as producer,
            client.consumer("orders", auto_offset_reset="earliest") as consumer,
        ):
            member = client.consumer(group="g")
            member.assign([FIRST])
            yield Scene(client, producer, consumer, member)


async def turned(count: int) -> None:
    """So many turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", AWAITS)
async def test_what_is_cancelled_leaves_everything_usable(scene: Scene, name: str) -> None:
    for turns in TURNS:
        task = asyncio.ensure_future(AWAITS[name](scene))
        await turned(turns)
        task.cancel()
        # It may have ended before, also with what the broker says: that there are no bills, or that there are some.
        with suppress(asyncio.CancelledError, TidelogError):
            await task
    client, producer, consumer, _ = scene
    async with asyncio.timeout(20):
        sent = await producer.send("orders", b"the last one")
        await producer.flush()
        assert client.metrics()["producer_buffered_bytes"] == 0
        consumer.seek(FIRST, sent.offset)
        assert (await consumer.getone()).value == b"the last one"
