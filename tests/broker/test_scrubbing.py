"""A byte is changed on the disk of a running broker: it is found, and mended where there is another copy (ADR 105)."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tidelog.cli.cluster.problems import Found, Kind, problems
from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client
from tidelog.protocol.types import TopicPartition
from tidelog.testing import Cluster

DEADLINE_S = 60.0
PLACE = TopicPartition("t", 0)
SETTINGS = {
    "log.scrubber.interval.ms": 200,
    "log.scrubber.io.max.bytes.per.second": 64 << 20,
    "flush.ms": 100,
}
COUNT = 300


async def until(look: Callable[[], Awaitable[object]], what: str) -> None:
    """Until nothing is in its way any more; a test that waits in vain says what was seen last."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while (seen := await look()) is not None:
        assert loop.time() < deadline, f"waited {DEADLINE_S:g} s in vain until {what}: {seen!r}"
        await asyncio.sleep(0.05)


async def fill(client: Client) -> None:
    async with client.producer() as producer:
        for number in range(COUNT):
            _ = await producer.enqueue("t", b"%05d" % number + b"." * 100)
            if number % 10 == 9:
                await producer.flush()


async def read(client: Client, offset: int = 0) -> list[int]:
    """The numbers from that offset to the end."""
    found: list[int] = []
    async with client.consumer() as consumer:
        consumer.assign([PLACE])
        consumer.seek(PLACE, offset)
        while not found or found[-1] < COUNT - 1:
            for records in (await consumer.getmany(timeout=1.0)).values():
                found += [int((record.value or b"")[:5]) for record in records]
    return found


async def leader(client: Client) -> int:
    [topic] = await client.admin.list_topics()
    return int(topic.partitions[0].leader)


async def in_sync(client: Client) -> int:
    [topic] = await client.admin.list_topics()
    return len(topic.partitions[0].isr)


def first_segment(directory: Path, broker: int) -> Path:
    return directory / f"broker-{broker}" / "t-0" / f"{0:020}.log"


def flip(file: Path) -> bytes:
    """Change one byte in the middle, as a disk does that rots; the bytes as they were."""
    before = file.read_bytes()
    at = len(before) // 2
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(bytes([before[at] ^ 0x10]))
    return before


async def harm(file: Path, before: bytes) -> object:
    """How that file is not what it was."""
    with suppress(FileNotFoundError):
        now = await asyncio.to_thread(file.read_bytes)
        return None if now.startswith(before) else f"{len(now)} bytes, {len(before)} were right"
    return "it is not there"


@pytest.mark.slow
async def test_a_byte_that_changes_on_a_disk_is_found_and_mended(tmp_path: Path) -> None:
    async with (
        Cluster(3, directory=tmp_path, settings=SETTINGS, processes=True) as cluster,
        cluster.client() as client,
    ):
        await client.admin.create_topics(NewTopic("t", 1, 3, {"segment.bytes": 4096}))
        await fill(client)
        await until(lambda: _not(in_sync(client), 3), "all are in sync")
        led = await leader(client)
        follower = next(number for number in (1, 2, 3) if number != led)
        for number in (follower, led):
            file = first_segment(tmp_path, number)
            before = flip(file)

            await until(partial(harm, file, before), f"the log of broker {number} is what it was")
            await until(lambda: _not(in_sync(client), 3), "all are in sync again")
        assert "log.damaged partition=t-0 leads=True" in cluster.nodes[f"b{led}"].logs()
        assert "log.mended partition=t-0" in cluster.nodes[f"b{follower}"].logs()
        assert await read(client) == list(range(COUNT))


async def _not(found: Awaitable[int], wanted: int) -> object:
    seen = await found
    return None if seen == wanted else seen


@pytest.mark.slow
async def test_who_is_alone_keeps_what_is_damaged_and_serves_the_rest(tmp_path: Path) -> None:
    async with (
        Cluster(1, directory=tmp_path, settings=SETTINGS, processes=True) as cluster,
        cluster.client() as client,
    ):
        await client.admin.create_topics(NewTopic("t", 1, 1, {"segment.bytes": 4096}))
        await fill(client)
        file = first_segment(tmp_path, 1)
        size = len(flip(file))

        async def unknown() -> object:
            known = await client.admin.describe_cluster()
            return None if [one.damaged for one in known.brokers] == [1] else known

        await until(unknown, "the cluster knows")
        assert len(await asyncio.to_thread(file.read_bytes)) == size, "not one byte is given up"
        assert await read(client, COUNT // 2) == list(range(COUNT // 2, COUNT))
        known = await client.admin.describe_cluster()
        told = problems(Found(known.brokers, [], {}, None))
        assert Kind.REPLICA_DAMAGED in [one.kind for one in told]

        await client.admin.delete_records({PLACE: COUNT // 2})

        async def still_known() -> object:
            known = await client.admin.describe_cluster()
            return None if [one.damaged for one in known.brokers] == [0] else known

        await until(still_known, "what was damaged is deleted")
