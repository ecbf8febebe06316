"""The producer on real sockets: against real brokers, and against ones that do what real ones do too seldom."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.client.nodes import Cluster, until
from tests.client.scripted import Scripted
from tests.client.simulated import in_virtual_time
from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client
from tidelog.client.io.producer import Producer
from tidelog.client.partitioning import partition_of
from tidelog.client.records import RecordMetadata
from tidelog.client.sizes import RECORD_OVERHEAD
from tidelog.protocol.errors import (
    ClientClosed,
    DeliveryError,
    InvalidConfig,
    InvalidRecord,
    MessageTooLarge,
    NotEnoughReplicas,
    RequestTimedOut,
    TidelogError,
    UnknownTopicOrPartition,
    Unsupported,
)
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    EpochEndsReply,
    InitProducerId,
    InitProducerIdReply,
    PartitionProduced,
    Produce,
    ProduceReply,
)
from tidelog.protocol.records import Record
from tidelog.protocol.types import BrokerId

ONE = BrokerId(1)


@pytest.fixture
async def client(broker: Cluster) -> AsyncIterator[Client]:
    """A client of one real broker, with a topic `orders` of three partitions."""
    async with broker.client() as client:
        await client.admin.create_topics(NewTopic("orders", partitions=3, replication_factor=1))
        yield client


@pytest.fixture
async def scripted(nothing_left: None) -> AsyncIterator[Scripted]:  # noqa: ARG001 -- it ends after this
    """A broker that does as it is told, and until then gives identities and answers no Produce."""
    async with listless() as brokers:
        yield brokers


def listless() -> Scripted:
    """The same, not started yet."""
    brokers = Scripted()
    brokers.handler = lambda _, incoming: answers(brokers, incoming, None)
    return brokers


def answers(
    brokers: Scripted, incoming: Incoming, produced: Callable[[Produce], ProduceReply] | None
) -> None:
    """Give an identity, and answer Produce so; None: not at all."""
    if isinstance(incoming.message, InitProducerId):
        incoming.reply(InitProducerIdReply(producer_id=7, producer_epoch=0))
    elif produced is not None and isinstance(incoming.message, Produce):
        incoming.reply(produced(incoming.message))
    else:
        brokers.unanswered.append(incoming)


def written(request: Produce, error: int = 0) -> ProduceReply:
    """All of it is there, or nothing."""
    return ProduceReply(
        tuple(
            PartitionProduced(entry.topic_id, entry.index, error, "so it is", -1 if error else 10)
            for entry in request.partitions
        )
    )


async def everything(client: Client, topic: str = "orders") -> list[Record]:
    """All records that are there."""
    async with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        left = sum((await consumer.end_offsets(consumer.assignment())).values())
        return [await asyncio.wait_for(anext(consumer), 10) for _ in range(left)]


# ── real brokers ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_record_that_was_sent_can_be_read_as_it_was(client: Client) -> None:
    async with client.producer() as producer:
        metadata = await producer.send(
            "orders", b"v", key=b"k", headers=[("h", b"1"), ("h", None)], timestamp_ms=77
        )
    assert metadata == RecordMetadata("orders", partition_of(b"k", 3), 0, 77)
    [record] = await everything(client)
    assert record == Record("orders", metadata.partition, 0, 77, b"k", b"v", (("h", b"1"), ("h", None)))


async def test_no_request_is_larger_than_a_broker_takes_whatever_the_settings_say(client: Client) -> None:
    await client.admin.create_topics(NewTopic("wide", partitions=20, replication_factor=1))
    async with client.producer(max_request_size=2**31 - 1) as producer:
        value = b"x" * 900_000
        deliveries = [await producer.enqueue("wide", value, partition=at) for at in range(20)]
        assert [(await delivery).offset for delivery in deliveries] == [0] * 20, (
            "18 MB that were ready at once"
        )


async def test_what_is_accepted_is_acknowledged_when_it_is_awaited(client: Client) -> None:
    async with client.producer() as producer:
        deliveries = [await producer.enqueue("orders", b"%d" % at, partition=1) for at in range(2000)]
        offsets = [(await delivery).offset for delivery in deliveries]
        assert (await deliveries[0]).offset == 0, "it can be awaited as often as one likes"
    assert offsets == list(range(2000))
    assert [record.value for record in await everything(client)] == [b"%d" % at for at in range(2000)]


async def test_leaving_the_block_flushes(client: Client) -> None:
    async with client.producer() as producer:
        delivery = await producer.enqueue("orders", b"v")
    assert delivery.done
    assert delivery.result().offset == 0


@pytest.mark.slow
async def test_columns_are_written_and_each_record_is_known(client: Client) -> None:
    keys = [b"key-%d" % (at % 7) for at in range(5000)]
    async with client.producer() as producer:
        landed = await producer.send_many("orders", (b"%d" % at for at in range(5000)), keys)
        assert list(await producer.send_many("orders", [])) == []
    found = {(record.partition, record.offset): record for record in await everything(client)}
    assert len(landed) == len(found) == 5000
    for at, metadata in enumerate(landed):
        record = found[metadata.partition, metadata.offset]
        assert (record.key, record.value) == (keys[at], b"%d" % at)
        assert metadata.partition == partition_of(keys[at], 3)


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4", "zstd", "snappy"])
async def test_a_compressed_batch_is_read_like_any_other(client: Client, compression: str) -> None:
    async with client.producer(compression=compression) as producer:
        await producer.send_many("orders", [b"the same " * 20] * 300, partition=0)
    assert {record.value for record in await everything(client)} == {b"the same " * 20}


@pytest.mark.parametrize("acks", [0, 1, "all", -1])
async def test_who_acknowledges_is_a_choice(client: Client, acks: int | str) -> None:
    async with client.producer(acks=acks) as producer:
        metadata = await producer.send("orders", b"v", partition=0)
        assert metadata.offset == (-1 if acks == 0 else 0)
        consumer = client.consumer(auto_offset_reset="earliest")
        consumer.assign([("orders", 0)])
        assert (await asyncio.wait_for(consumer.getone(), 10)).value == b"v"


async def test_records_are_numbered_unless_acks_says_otherwise_and_both_at_once_are_refused(
    client: Client,
) -> None:
    assert client.producer().config.idempotent
    assert not client.producer(acks=1).config.idempotent
    assert not client.producer(enable_idempotence=False).config.idempotent
    with pytest.raises(InvalidConfig, match=r"acks=1: with enable.idempotence=true it must be all"):
        client.producer(acks=1, enable_idempotence=True)
    with pytest.raises(InvalidConfig, match="at most 5"):
        client.producer(max_in_flight=6)
    assert client.producer(config={"acks": "all", "compression.type": "lz4"}).config.codec == 3


@pytest.mark.slow
async def test_what_can_never_be_sent_is_refused_at_once_and_nothing_else_suffers(client: Client) -> None:
    async with client.producer() as producer:
        with pytest.raises(MessageTooLarge, match="a record of 1048577 bytes for orders"):
            _ = await producer.enqueue("orders", b"x" * (1048577 - RECORD_OVERHEAD))
        with pytest.raises(InvalidRecord):
            await producer.send("orders", "text")  # type: ignore[arg-type]
        with pytest.raises(UnknownTopicOrPartition, match="there is no partition 9"):
            await producer.send("orders", b"v", partition=9)
        with pytest.raises(UnknownTopicOrPartition, match="there is no topic 'nowhere'"):
            await producer.send("nowhere", b"v")
        assert (await producer.send("orders", b"v")).offset == 0
    assert len(await everything(client)) == 1


async def test_partitions_are_told_and_where_a_key_goes(client: Client) -> None:
    async with client.producer() as producer:
        assert [known.index for known in await producer.partitions_for("orders")] == [0, 1, 2]
        assert await producer.partition_for("orders", b"k") == partition_of(b"k", 3)
        where = await producer.partition_for("orders")
        assert (await producer.send("orders", b"v")).partition == where


async def test_when_a_leader_dies_records_go_to_the_next_one_once(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.admin.create_topics(NewTopic("orders", partitions=1, replication_factor=3))
        async with client.producer(batch_size=200) as producer:
            await producer.send("orders", b"first")
            [leader] = [each.leader for each in await producer.partitions_for("orders")]
            deliveries = [await producer.enqueue("orders", b"%03d" % at) for at in range(300)]
            await cluster.kill(leader)
            deliveries += [await producer.enqueue("orders", b"%03d" % at) for at in range(300, 400)]
            for delivery in deliveries:
                await delivery
        values = [record.value for record in await everything(client)]
        assert values == [b"first", *(b"%03d" % at for at in range(400))]


async def test_many_send_at_once_and_wait_for_room_in_the_order_of_coming(client: Client) -> None:
    async with client.producer(buffer_memory=2000, batch_size=500) as producer:
        await producer.partitions_for("orders")
        found = await asyncio.gather(
            *(producer.send("orders", b"%04d" % at + b"x" * 100, partition=0) for at in range(200))
        )
        assert [metadata.offset for metadata in found] == list(range(200))
        assert producer.metrics()["producer_buffered_bytes"] == 0


async def test_a_topic_that_takes_only_small_batches_is_sent_small_ones(client: Client) -> None:
    await client.admin.create_topics(
        NewTopic("small", partitions=2, replication_factor=1, configs={"max.message.bytes": 5_000})
    )
    async with client.producer() as producer:
        landed = await producer.send_many("small", [b"x" * 100] * 1000, [b"%d" % at for at in range(1000)])
        assert len(landed) == 1000
        assert producer.metrics()["producer_batches"] >= 24
        with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes"):
            await producer.send("small", b"x" * 5_000)


@in_virtual_time
async def test_a_topic_is_looked_for_as_long_as_a_producer_may_block() -> None:
    async with listless() as scripted, scripted.client() as client:
        scripted.mute = {ONE}
        producer, loop = client.producer(max_block_ms=100), asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TidelogError, match="is not known in time"):
            await producer.send("orders", b"v")
        assert 0.099 < loop.time() - began < 0.11
        await producer.close()


async def test_transactions_say_that_they_are_not_there_yet(scripted: Scripted) -> None:
    async with scripted.client() as client, client.producer() as producer:
        with pytest.raises(Unsupported, match="there are no transactions yet"):
            producer.transaction()
        with pytest.raises(Unsupported, match="there are no transactions yet"):
            await producer.send_offsets({("orders", 0): 1}, "group")


# ── bad times ─────────────────────────────────────────────────────────────────────────────────────────


@in_virtual_time
async def test_a_broker_that_never_answers_is_waited_for_no_longer_than_the_delivery_may_take() -> None:
    async with listless() as scripted, scripted.client() as client:
        producer = client.producer(delivery_timeout_ms=500, request_timeout_ms=150)
        with pytest.raises(
            RequestTimedOut, match=r"they may be written; last: REQUEST_TIMED_OUT: .* Produce"
        ):
            await producer.send("orders", b"v", partition=0)
        assert scripted.count(Produce) >= 2
        await producer.close()


@in_virtual_time
async def test_a_connection_that_drops_everything_is_replaced_before_the_record_is_given_up() -> None:
    brokers, first = Scripted(), list[object]()

    def handle(_broker: BrokerId, incoming: Incoming) -> None:
        if isinstance(incoming.message, Produce) and incoming.connection in (first or [incoming.connection]):
            first[:] = [incoming.connection]
        else:
            answers(brokers, incoming, written)

    brokers.handler = handle
    async with brokers, brokers.client(request_timeout_ms=200) as client:
        async with client.producer(request_timeout_ms=200, delivery_timeout_ms=5000) as producer:
            assert (await producer.send("orders", b"v", partition=0)).offset == 10
        assert brokers.count(Produce) == 2


@in_virtual_time
async def test_a_connection_by_which_others_are_answered_is_kept() -> None:
    async with Scripted() as scripted, scripted.client(request_timeout_ms=200) as client:
        before = await client.connection(ONE)
        producer = client.producer(request_timeout_ms=200, delivery_timeout_ms=700)
        sending = asyncio.ensure_future(producer.send("orders", b"v", partition=0))
        while not sending.done():
            await client.refresh(newer=True)
        with pytest.raises(RequestTimedOut):
            await sending
        assert await client.connection(ONE) is before
        await producer.close()


@in_virtual_time
async def test_a_broker_that_answers_something_else_is_not_believed() -> None:
    brokers = Scripted()

    def nonsense(_broker: BrokerId, incoming: Incoming) -> None:
        if isinstance(incoming.message, Produce):
            incoming.reply(EpochEndsReply())
        else:
            answers(brokers, incoming, None)

    brokers.handler = nonsense
    async with brokers, brokers.client() as client:
        producer = client.producer(delivery_timeout_ms=400)
        with pytest.raises(RequestTimedOut, match="last: CONNECTION_FAILED"):
            await producer.send("orders", b"v", partition=0)
        await producer.close()


@in_virtual_time
async def test_a_broker_that_gives_no_identity_is_named_as_the_cause() -> None:
    async with Scripted() as scripted, scripted.client() as client:
        scripted.handler = lambda _, incoming: incoming.reply(
            InitProducerIdReply(NotEnoughReplicas.code, "the controller is away")
        )
        producer = client.producer(delivery_timeout_ms=600, request_timeout_ms=200)
        with pytest.raises(RequestTimedOut, match="the controller is away"):
            await producer.send("orders", b"v", partition=0)
        await producer.close()


async def test_what_fails_and_nobody_waits_for_is_told_by_flush_or_close_and_only_once(
    scripted: Scripted,
) -> None:
    scripted.handler = lambda _, incoming: answers(
        scripted, incoming, lambda request: written(request, MessageTooLarge.code)
    )
    async with scripted.client() as client:
        producer = client.producer()
        for _ in range(3):
            _ = await producer.enqueue("orders", b"v", partition=0)
        with pytest.raises(
            DeliveryError, match="3 records were not acknowledged; the first: so it is"
        ) as caught:
            await producer.flush()
        assert caught.value.undelivered == 3
        told = await producer.enqueue("orders", b"v", partition=0)
        with pytest.raises(MessageTooLarge):
            await told
        await producer.flush()
        _ = await producer.enqueue("orders", b"v", partition=0)
        with pytest.raises(DeliveryError, match="1 records"):
            await producer.close()


async def test_closing_counts_what_was_not_delivered_and_tells_who_waits(scripted: Scripted) -> None:
    async with scripted.client() as client:
        producer = client.producer()
        waiting = asyncio.ensure_future(producer.send("orders", b"v", partition=0))
        for _ in range(4):
            _ = await producer.enqueue("orders", b"v", partition=1)
        with pytest.raises(DeliveryError, match="4 records were not acknowledged") as caught:
            await producer.close(timeout=0.1)
        assert caught.value.undelivered == 4
        with pytest.raises(ClientClosed):
            await waiting
        await producer.close()
        with pytest.raises(ClientClosed):
            await producer.send("orders", b"v")


async def test_an_error_in_the_block_is_not_hidden_by_what_was_not_delivered(scripted: Scripted) -> None:
    scripted.handler = lambda _, incoming: answers(
        scripted, incoming, lambda request: written(request, MessageTooLarge.code)
    )
    async with scripted.client() as client:

        async def block() -> None:
            async with client.producer() as producer:
                _ = await producer.enqueue("orders", b"v", partition=0)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as caught:
            await block()
        assert caught.value.__notes__ == [
            "and DELIVERY_ERROR: 1 records were not acknowledged; the first: so it is"
        ]


async def test_a_flush_that_takes_too_long_says_how_much_is_left(scripted: Scripted) -> None:
    async with scripted.client() as client:
        producer = client.producer(delivery_timeout_ms=1000)
        for _ in range(3):
            _ = await producer.enqueue("orders", b"v", partition=0)
        with pytest.raises(RequestTimedOut, match=r"3 records were not acknowledged in 0.05 s"):
            await producer.flush(timeout=0.05)
        with pytest.raises(DeliveryError):
            await producer.close(timeout=0)


async def test_who_is_cancelled_while_waiting_for_room_has_sent_nothing(scripted: Scripted) -> None:
    async with scripted.client() as client:
        producer = client.producer(buffer_memory=1000, batch_size=500)
        for _ in range(2):
            _ = await producer.enqueue("orders", b"x" * 480, partition=0)
        waiting = [
            asyncio.ensure_future(producer.enqueue("orders", b"%d" % at * 480, partition=0))
            for at in range(3)
        ]
        await until(lambda: producer._accumulator.waiting, "somebody waits for room")
        waiting[0].cancel()
        await asyncio.wait([waiting[0]])
        scripted.handler = lambda _, incoming: answers(scripted, incoming, written)
        answer_all(scripted)
        deliveries = [await asyncio.wait_for(each, 10) for each in waiting[1:]]
        await asyncio.wait_for(asyncio.gather(*deliveries), 10)
        assert producer.metrics()["producer_records"] == 4
        assert producer.metrics()["producer_buffered_bytes"] == 0


def answer_all(scripted: Scripted) -> None:
    """Answer what has waited until now."""
    for incoming in scripted.unanswered:
        if isinstance(incoming.message, Produce):
            incoming.reply(written(incoming.message))
    scripted.unanswered.clear()


async def begun(scripted: Scripted, producer: Producer) -> asyncio.Future[Any]:
    """A record is under way, and its sender waits."""
    waiting = asyncio.ensure_future(producer.send("orders", b"v", partition=0))
    await until(lambda: scripted.count(Produce), "it was sent")
    return waiting


async def test_a_record_is_written_though_its_sender_has_stopped_waiting(scripted: Scripted) -> None:
    async with scripted.client() as client:
        producer = client.producer()
        (await begun(scripted, producer)).cancel()
        answer_all(scripted)
        await producer.flush(timeout=10)
        assert producer.metrics()["producer_records"] == 1


@pytest.mark.parametrize("state", ["new", "looking", "connecting", "sending", "flushing", "full"])
async def test_it_can_be_closed_in_any_state_and_nothing_is_left(scripted: Scripted, state: str) -> None:
    async with scripted.client() as client:
        producer = client.producer(buffer_memory=300, batch_size=300, delivery_timeout_ms=5000)
        work: list[asyncio.Future[Any]] = []
        if state == "looking":
            scripted.mute.add(ONE)
            work = [asyncio.ensure_future(producer.send("another", b"v"))]
        elif state != "new":
            work = [await begun(scripted, producer)]
        if state == "flushing":
            work.append(asyncio.ensure_future(producer.flush()))
        if state == "full":
            work += [
                asyncio.ensure_future(producer.send("orders", b"x" * 250, partition=0)) for _ in range(3)
            ]
            await until(lambda: producer._accumulator.waiting, "somebody waits for room")
        closing = [asyncio.ensure_future(producer.close(timeout=0.05)) for _ in range(2)]
        await asyncio.wait(closing, timeout=5)
        assert all(task.done() for task in closing)
        if state == "looking":
            work[0].cancel()
        ended = await asyncio.wait_for(asyncio.gather(*work, return_exceptions=True), 5)
        allowed = (ClientClosed, DeliveryError, asyncio.CancelledError, type(None))
        assert all(isinstance(error, allowed) for error in ended), ended
        for task in closing:
            task.exception()


async def test_a_client_that_closes_ends_its_producers_first(broker: Cluster) -> None:
    async with broker.client() as client:
        await client.admin.create_topics(NewTopic("orders", partitions=3, replication_factor=1))
        producer = client.producer()
        deliveries = [await producer.enqueue("orders", b"v") for _ in range(100)]
    assert [delivery.result().offset >= 0 for delivery in deliveries] == [True] * 100
