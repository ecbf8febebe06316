"""Reading while brokers are away or silent: a clear error in bounded time, and no error while any of them answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.client.answering import entry, fetched
from tests.client.consuming import batch
from tests.client.scripted import Scripted
from tests.client.simulated import in_virtual_time
from tidelog.client.io.client import Client
from tidelog.client.io.consumer import Consumer
from tidelog.protocol.errors import ConnectionFailed, RequestTimedOut
from tidelog.protocol.types import BrokerId, TopicPartition

ONE = BrokerId(1)
FIRST = TopicPartition("orders", 0)


def earliest(client: Client, **options: Any) -> Consumer:
    """A consumer from the beginning."""
    return client.consumer("orders", auto_offset_reset="earliest", **options)


async def polled(consumer: Consumer) -> object:
    """What a program does that looks at something else as well."""
    while not (found := await consumer.getmany(timeout=0.05)):
        pass
    return found


READS: dict[str, Callable[[Consumer], Awaitable[object]]] = {
    "getone": lambda consumer: consumer.getone(),
    "for": anext,
    "batches": lambda consumer: anext(consumer.batches()),
    "short polls": polled,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("silent", [False, True], ids=["away", "silent"])
@in_virtual_time
async def test_who_reads_is_told_when_no_broker_answers_and_goes_on_when_one_does(
    read: Callable[[Consumer], Awaitable[object]],
    silent: bool,
) -> None:
    async with Scripted(2) as brokers:
        fetched(brokers)
        async with brokers.client(request_timeout_ms=100) as client:
            consumer = earliest(
                client, request_timeout_ms=100, default_api_timeout_ms=300, fetch_max_wait_ms=0
            )
            await consumer.position(FIRST)
            addresses = brokers.bootstrap.split(",")
            if silent:
                brokers.mute = set(brokers.nodes)
            else:
                for node in brokers.nodes.values():
                    await node.__aexit__(None, None, None)
            for _ in (1, 2):
                with pytest.raises(
                    (ConnectionFailed, RequestTimedOut), match="no broker has answered"
                ) as told:
                    await asyncio.wait_for(read(consumer), 5)
                assert all(address in str(told.value) for address in addresses)
            if silent:
                fetched(brokers, entry(batch(0, 1)))
                brokers.mute = set()
                await asyncio.wait_for(read(consumer), 20)
            await consumer.close()


@in_virtual_time
async def test_who_reads_waits_as_long_as_some_broker_answers() -> None:
    async with Scripted(2) as brokers:
        fetched(brokers)
        async with brokers.client() as client:
            consumer = earliest(client, default_api_timeout_ms=1000)
            await consumer.position(FIRST)
            await brokers.nodes[ONE].__aexit__(None, None, None)  # the leader
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.getone(), 2.2)
            await consumer.close()
