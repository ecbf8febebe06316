"""A client in another event loop or thread than its own: refused at once, in words, and its own loop goes on with it."""

import asyncio
import gc
import re
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from threading import Event, Thread
from typing import Any, Final

import pytest

from tests.client.nodes import Cluster, until
from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client
from tidelog.client.io.consumer import Consumer
from tidelog.client.io.producer import Producer
from tidelog.protocol.errors import InvalidRequest
from tidelog.protocol.types import TopicPartition

SOON_S: Final = 5.0
FIRST: Final = TopicPartition("t", 0)
OUTSIDE = r"belongs to the event loop that it was started in.*run_coroutine_threadsafe, or use tidelog\.sync"
ENDED = r"the event loop that this client was started in is closed.*asyncio\.run makes a new loop each time"


async def elsewhere(work: Callable[[], Awaitable[object]]) -> object:
    """That in a thread of its own, by `asyncio.run`."""

    async def soon() -> object:
        async with asyncio.timeout(SOON_S):
            return await work()

    return await asyncio.to_thread(lambda: asyncio.run(soon()))


async def with_a_topic(client: Client) -> None:
    await client.start()
    await client.admin.create_topics(NewTopic("t", partitions=2, replication_factor=1))


CLIENT: Final[dict[str, Callable[[Client], Awaitable[Any]]]] = {
    "start": lambda client: client.start(),
    "close": lambda client: client.close(),
    "refresh": lambda client: client.refresh(),
    "topic": lambda client: client.topic("unknown"),
    "create_topics": lambda client: client.admin.create_topics("u"),
    "list_topics": lambda client: client.admin.list_topics(),
    "list_offsets": lambda client: client.admin.list_offsets("t"),
    "describe_groups": lambda client: client.admin.describe_groups("g", "h"),
    "describe_log_dirs": lambda client: client.admin.describe_log_dirs(),
    "committed_offsets": lambda client: client.admin.committed_offsets("g"),
    "reset_group_offsets": lambda client: client.admin.reset_group_offsets("g", "latest", partitions=["t"]),
}
PRODUCER: Final[dict[str, Callable[[Producer], Awaitable[Any]]]] = {
    "send": lambda producer: producer.send("t", b"v"),
    "enqueue": lambda producer: producer.enqueue("t", b"v"),
    "send to a topic that is not known": lambda producer: producer.send("unknown", b"v"),
    "send_many": lambda producer: producer.send_many("t", [b"v"]),
    "partition_for": lambda producer: producer.partition_for("t"),
    "partitions_for": lambda producer: producer.partitions_for("unknown"),
    "flush": lambda producer: producer.flush(),
    "close": lambda producer: producer.close(),
}


async def _done(call: Callable[[], object]) -> None:
    call()


async def _collect(consumer: Consumer) -> list[object]:
    return [batch async for batch in consumer.batches(timeout=1)]


CONSUMER: Final[dict[str, Callable[[Consumer], Awaitable[Any]]]] = {
    "getone": lambda consumer: consumer.getone(),
    "next": anext,
    "getmany": lambda consumer: consumer.getmany(timeout=1),
    "batches": _collect,
    "seek": lambda consumer: _done(lambda: consumer.seek(FIRST, 0)),
    "seek_to_end": lambda consumer: consumer.seek_to_end(),
    "position": lambda consumer: consumer.position(FIRST),
    "assign": lambda consumer: _done(lambda: consumer.assign([])),
    "pause": lambda consumer: _done(consumer.pause),
    "end_offsets": lambda consumer: consumer.end_offsets([FIRST]),
    "committed": lambda consumer: consumer.committed(FIRST),
    "close": lambda consumer: consumer.close(),
}


async def test_a_client_refuses_another_loop_and_goes_on_in_its_own(broker: Cluster) -> None:
    async with broker.client() as client:
        await with_a_topic(client)
        for name, call in CLIENT.items():
            with pytest.raises(InvalidRequest, match=OUTSIDE):
                await elsewhere(lambda call=call: call(client))  # type: ignore[misc]
            assert not client.closed, name
        assert [topic.name for topic in await client.admin.list_topics()] == ["t"]


async def test_a_producer_refuses_another_loop_and_goes_on_in_its_own(broker: Cluster) -> None:
    async with broker.client() as client:
        await with_a_topic(client)
        async with client.producer() as producer:
            await producer.send("t", b"v", partition=0)
            for name, call in PRODUCER.items():
                with pytest.raises(InvalidRequest, match=OUTSIDE):
                    await elsewhere(lambda call=call: call(producer))  # type: ignore[misc]
                assert producer.metrics()["producer_batches_outstanding"] == 0, name
            assert (await producer.send("t", b"v", partition=0)).offset == 1


async def test_a_delivery_is_waited_for_in_its_own_loop_until_it_is_done(broker: Cluster) -> None:
    async with broker.client() as client, client.producer() as producer:
        await with_a_topic(client)
        await producer.partitions_for("t")
        delivery = await producer.enqueue("t", b"v", partition=0)

        async def wait() -> object:
            return await delivery

        thread = Thread(target=lambda: refusals.append(_refusal(wait)))
        refusals: list[str] = []
        thread.start()
        thread.join(2 * SOON_S)  # this loop stands still meanwhile: nothing is acknowledged
        assert re.search(OUTSIDE, refusals[0])
        assert (await delivery).offset == 0
        assert await elsewhere(wait) == await delivery, "what is known is told anywhere"


def _refusal(work: Callable[[], Coroutine[Any, Any, object]]) -> str:
    async def soon() -> object:
        async with asyncio.timeout(SOON_S):
            return await work()

    try:
        return f"{asyncio.run(soon())} was answered"
    except (InvalidRequest, TimeoutError) as error:
        return repr(error)


async def test_a_consumer_refuses_another_loop_and_goes_on_in_its_own(broker: Cluster) -> None:
    async with broker.client() as client:
        await with_a_topic(client)
        async with client.producer() as producer:
            await producer.send("t", b"v", partition=0)
        async with client.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([FIRST])
            for name, call in CONSUMER.items():
                with pytest.raises(InvalidRequest, match=OUTSIDE):
                    await elsewhere(lambda call=call: call(consumer))  # type: ignore[misc]
                assert consumer.state == "reading", name
            assert (await consumer.getone()).value == b"v"


async def test_a_thread_without_a_loop_is_refused_as_well(broker: Cluster) -> None:
    async with broker.client() as client:
        consumer = client.consumer()
        for call in (consumer.pause, consumer.unsubscribe, lambda: consumer.subscribe("u")):
            with pytest.raises(InvalidRequest, match=OUTSIDE):
                await asyncio.to_thread(call)


async def test_what_was_started_in_a_loop_that_is_closed_says_so(broker: Cluster) -> None:
    """`asyncio.run(client.start())`, and then `asyncio.run(producer.send(...))`."""
    await _use_what_is_left(broker.client())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # its sockets are nobody's: they go with it, as `nothing_left` sees


async def _use_what_is_left(client: Client) -> None:
    producer, consumer = client.producer(), client.consumer("t")
    deliveries = []
    brokers, ended = asyncio.get_running_loop(), Event()

    async def begin() -> None:
        await with_a_topic(client)
        await producer.partitions_for("t")
        await producer.send("t", b"v", partition=0)
        brokers.call_soon_threadsafe(ended.wait, 2 * SOON_S)  # from here on nothing is acknowledged
        deliveries.append(await producer.enqueue("t", b"v", partition=0))

    async def wait() -> object:
        return await deliveries[0]

    def there() -> None:
        try:
            asyncio.run(asyncio.wait_for(begin(), SOON_S))
        finally:
            ended.set()

    thread = Thread(target=there)
    thread.start()
    await until(ended.is_set, "the client's loop has ended", 2 * SOON_S)
    thread.join()  # or its frames hold the client a little longer
    works: list[Callable[[], Awaitable[object]]] = [
        wait,
        lambda: producer.enqueue("t", b"v", partition=0),
        lambda: producer.send("t", b"v", partition=0),
        producer.flush,
        consumer.getone,
        client.admin.list_topics,
        producer.close,
        consumer.close,
        client.close,
    ]
    for work in works:
        with pytest.raises(InvalidRequest, match=ENDED):
            async with asyncio.timeout(SOON_S):
                await work()


async def test_a_client_that_was_closed_in_its_loop_may_be_closed_again_in_another(broker: Cluster) -> None:
    client = broker.client()
    producer, consumer = client.producer(), client.consumer("t")
    await client.start()
    await client.close()
    for each in (client, producer, consumer):
        await elsewhere(each.close)
