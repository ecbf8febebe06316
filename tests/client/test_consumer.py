"""The consumer on real sockets: against real brokers, and against ones that do what real ones do too seldom."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.client.answering import entry, fetched, offsets
from tests.client.consuming import batch
from tests.client.nodes import Cluster, running, until
from tests.client.scripted import Scripted
from tests.client.simulated import in_virtual_time
from tidelog.client.admin import NewTopic
from tidelog.client.fetching import Asked, Fetching
from tidelog.client.io.client import Client
from tidelog.client.io.consumer import Consumer, OffsetAndTimestamp
from tidelog.client.records import PartitionPosition
from tidelog.protocol.errors import (
    ClientClosed,
    CorruptMessage,
    InvalidConfig,
    InvalidRequest,
    OffsetOutOfRange,
    RequestTimedOut,
    TidelogError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from tidelog.protocol.messages import (
    EpochEndsReply,
    Fetch,
    FetchReply,
    ListOffsets,
)
from tidelog.protocol.records import Record
from tidelog.protocol.types import BrokerId, Buffer, TopicPartition

ONE = BrokerId(1)
FIRST, SECOND, THIRD = (TopicPartition("orders", index) for index in range(3))


@pytest.fixture
async def client(broker: Cluster) -> AsyncIterator[Client]:
    """A client of one real broker, with a topic `orders` of three partitions and 100 records in the first two."""
    async with broker.client() as client:
        await client.admin.create_topics(NewTopic("orders", partitions=3, replication_factor=1))
        async with client.producer(batch_size=300) as producer:
            for index in (0, 1):
                await producer.send_many("orders", [b"%d" % at for at in range(100)], partition=index)
        yield client


def earliest(client: Client, *topics: str, **options: Any) -> Consumer:
    """A consumer from the beginning."""
    return client.consumer(*(topics or ("orders",)), auto_offset_reset="earliest", **options)


async def take(consumer: Consumer, count: int) -> list[Record]:
    """So many records, one by one."""
    async with asyncio.timeout(20):
        return [await anext(consumer) for _ in range(count)]


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────


async def test_all_partitions_of_a_topic_are_read_each_in_order(client: Client) -> None:
    async with earliest(client) as consumer:
        assert consumer.assignment() == {FIRST, SECOND, THIRD}
        records = await take(consumer, 200)
    for index in (0, 1):
        mine = [record for record in records if record.partition == index]
        assert [record.offset for record in mine] == list(range(100))
        assert [record.value for record in mine] == [b"%d" % at for at in range(100)]


async def test_records_come_as_lists_by_partition_and_no_more_than_wanted(client: Client) -> None:
    async with earliest(client) as consumer:
        offsets: dict[TopicPartition, list[int]] = {FIRST: [], SECOND: []}
        while sum(map(len, offsets.values())) < 200:
            found = await consumer.getmany(timeout=10, max_records=30)
            assert 1 <= sum(map(len, found.values())) <= 30
            for name, records in found.items():
                offsets[name] += [record.offset for record in records]
        assert offsets == {FIRST: list(range(100)), SECOND: list(range(100))}
        assert await consumer.getmany() == {}


async def test_only_some_partitions_can_be_asked_for(client: Client) -> None:
    async with earliest(client) as consumer:
        found = await consumer.getmany(SECOND, timeout=10)
        assert list(found) == [SECOND]
        assert (await consumer.getmany(FIRST, timeout=10))[FIRST][0].offset == 0


async def test_records_come_as_columns_and_the_end_of_them_is_told_in_time(client: Client) -> None:
    async with earliest(client) as consumer:
        values: dict[int, list[bytes | None]] = {0: [], 1: []}
        async for found in consumer.batches(max_records=7, timeout=10):
            assert len(found) <= 7
            assert list(found.offsets) == list(range(found.offset, found.next_offset))
            values[found.partition] += found.values
            if sum(map(len, values.values())) == 200:
                break
        assert [found async for found in consumer.batches(timeout=0.1)] == []
        assert values == {index: [b"%d" % at for at in range(100)] for index in (0, 1)}


async def test_ways_of_reading_can_be_mixed_and_nothing_is_lost_or_read_twice(client: Client) -> None:
    async with earliest(client) as consumer:
        consumer.assign([FIRST])
        offsets = [record.offset for record in await take(consumer, 3)]
        for records in (await consumer.getmany(timeout=10, max_records=4)).values():
            offsets += [record.offset for record in records]
        offsets.append((await consumer.getone()).offset)
        async for found in consumer.batches(max_records=5):
            offsets += found.offsets
            if len(offsets) > 40:
                break
        offsets += [record.offset for record in await take(consumer, 100 - len(offsets))]
    assert offsets == list(range(100))


async def test_who_is_cancelled_while_waiting_loses_no_record(client: Client) -> None:
    async with earliest(client) as consumer:
        await take(consumer, 200)
        for _ in range(3):
            waiting = asyncio.ensure_future(consumer.getone())
            await until(lambda: client.connections.in_flight, "it waits")
            waiting.cancel()
            await asyncio.wait([waiting])
        async with client.producer() as producer:
            await producer.send("orders", b"late", partition=2)
        [record] = await take(consumer, 1)
        assert (record.value, record.partition) == (b"late", 2)


async def test_a_record_is_read_as_soon_as_it_is_written(client: Client) -> None:
    async with client.consumer("orders", fetch_max_wait_ms=60_000) as consumer, client.producer() as producer:
        await consumer.seek_to_end()
        for at in range(5):
            waiting = asyncio.ensure_future(consumer.getone())
            await producer.send("orders", b"%d" % at)
            record = await asyncio.wait_for(waiting, 10)  # a long poll is answered, not waited for
            assert record.value == b"%d" % at


# ── where ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_who_seeks_does_not_wait_for_the_end_of_a_poll(client: Client) -> None:
    async with earliest(client, fetch_max_wait_ms=20_000, request_timeout_ms=5_000) as consumer:
        consumer.assign([FIRST])
        await take(consumer, 100)
        for at in (50, 99, 0):
            waiting = asyncio.ensure_future(consumer.getone())
            await until(lambda: client.connections.in_flight, "a poll waits for the 101st record")
            consumer.seek(FIRST, at)
            assert (await asyncio.wait_for(waiting, 10)).offset == at
            await take(consumer, 99 - at)


async def test_a_partition_that_is_added_does_not_wait_for_the_end_of_a_poll(client: Client) -> None:
    async with earliest(client, fetch_max_wait_ms=20_000) as consumer:
        consumer.assign([THIRD])
        waiting = asyncio.ensure_future(consumer.getone())
        await consumer.position(THIRD)
        await until(lambda: client.connections.in_flight, "it polls")
        consumer.assign([THIRD, SECOND])
        assert (await asyncio.wait_for(waiting, 10)).partition == 1


async def test_consumers_of_one_client_end_their_polls_on_the_connection_that_they_share(
    client: Client,
) -> None:
    options = {"fetch_max_wait_ms": 20_000}
    async with earliest(client, **options) as first, earliest(client, **options) as second:
        for consumer in (first, second):
            consumer.assign([FIRST])
            await take(consumer, 100)
        for consumer in (first, second):
            waiting = [asyncio.ensure_future(one.getone()) for one in (first, second)]
            await until(lambda: client.connections.in_flight == 2, "both poll")
            consumer.seek(FIRST, 99)
            done, _ = await asyncio.wait(waiting, timeout=10, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result().offset for task in done] == [99]
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)


async def test_tasks_that_read_from_one_consumer_share_the_records(client: Client) -> None:
    async with earliest(client) as consumer:
        got: list[int] = []

        async def reading() -> None:
            async for record in consumer:
                got.append(record.offset)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(reading()) for _ in range(3)]
        await until(lambda: len(got) >= 200, "all are read")
        await consumer.close()
        await asyncio.gather(*tasks)
    assert sorted(got) == sorted([*range(100)] * 2)


async def test_without_a_position_reading_begins_where_the_policy_says(client: Client) -> None:
    async with client.consumer("orders", auto_offset_reset="latest") as consumer:
        assert await consumer.position(FIRST) == 100
    async with earliest(client) as consumer:
        assert await consumer.position(FIRST) == 0
    consumer = client.consumer("orders", auto_offset_reset="none")
    with pytest.raises(OffsetOutOfRange, match=r"orders-. has no position, and auto.offset.reset is none"):
        await asyncio.wait_for(consumer.getone(), 10)


async def test_one_can_go_anywhere(client: Client) -> None:
    async with earliest(client) as consumer:
        consumer.assign([FIRST])
        await take(consumer, 10)
        assert await consumer.position(FIRST) == 10
        consumer.seek(FIRST, 95)
        assert [record.offset for record in await take(consumer, 5)] == [95, 96, 97, 98, 99]
        await consumer.seek_to_beginning(FIRST)
        assert (await consumer.getone()).offset == 0
        await consumer.seek_to_end()
        assert await consumer.position(FIRST) == 100
        with pytest.raises(InvalidRequest, match="offset -1: offsets begin at 0"):
            consumer.seek(FIRST, -1)
        with pytest.raises(InvalidRequest, match="orders-1 is not assigned"):
            consumer.seek(SECOND, 5)


async def test_positions_tell_how_far_it_is_and_what_lies_ahead(client: Client) -> None:
    async with earliest(client) as consumer:
        consumer.assign([FIRST, THIRD])
        await take(consumer, 40)
        positions = await consumer.positions()
        assert positions[THIRD] == PartitionPosition(0, 0, 0, 0, 0.0)
        first = positions[FIRST]
        assert (first.position, first.high_watermark, first.log_end, first.lag) == (40, 100, 100, 60)
        assert first.lag_seconds is not None
        assert 0 < first.lag_seconds < 60


@pytest.mark.slow
async def test_ends_and_times_can_be_asked_for(client: Client) -> None:
    consumer = client.consumer()
    assert await consumer.beginning_offsets([FIRST, THIRD]) == {FIRST: 0, THIRD: 0}
    assert await consumer.end_offsets([("orders", 0), THIRD]) == {FIRST: 100, THIRD: 0}
    consumer.assign([FIRST])
    await consumer.seek_to_beginning()
    first = await consumer.getone()
    found = await consumer.offsets_for_times({FIRST: 0, SECOND: 1 << 50})
    assert found == {FIRST: OffsetAndTimestamp(0, first.timestamp_ms), SECOND: None}
    with pytest.raises(UnknownTopicOrPartition, match="nowhere"):
        await consumer.end_offsets([("nowhere", 0)])


async def test_what_is_paused_gives_nothing_until_it_is_resumed(client: Client) -> None:
    async with earliest(client) as consumer:
        await take(consumer, 1)
        consumer.pause()
        assert consumer.paused() == {FIRST, SECOND, THIRD}
        assert await consumer.getmany(timeout=0.1) == {}
        consumer.resume(SECOND)
        assert list(await consumer.getmany(timeout=10)) == [SECOND]
        consumer.resume()
        rest = await take(consumer, 99)
        assert {record.partition for record in rest} == {0}


async def test_a_deleted_beginning_is_left_for_what_is_there(client: Client) -> None:
    async with earliest(client) as consumer:
        consumer.assign([FIRST])
        consumer.seek(FIRST, 10)
        await client.admin.delete_records({FIRST: 50})
        assert (await take(consumer, 1))[0].offset == 50
        consumer.seek(FIRST, 1000)
        async with client.producer() as producer:
            await until(lambda: consumer._fetching.readers[FIRST].position == 100, "it goes on at the end")
            await producer.send("orders", b"new", partition=0)
        assert (await take(consumer, 1))[0].offset == 100


# ── which partitions ──────────────────────────────────────────────────────────────────────────────────


async def test_partitions_that_appear_later_are_read_from_their_beginning(client: Client) -> None:
    async with client.consumer("orders", auto_offset_reset="latest", topic_refresh_ms=100) as consumer:
        await consumer.positions()
        await client.admin.add_partitions("orders", 5)
        async with client.producer() as producer:
            await producer.send("orders", b"early", partition=4)
        [record] = await take(consumer, 1)
        assert (record.partition, record.offset, record.value) == (4, 0, b"early")


async def test_what_is_subscribed_to_can_change(client: Client) -> None:
    await client.admin.create_topics(NewTopic("bills", 1, 1))
    async with earliest(client) as consumer, client.producer() as producer:
        await producer.send("bills", b"b")
        await take(consumer, 5)
        consumer.subscribe("bills")
        [record] = await take(consumer, 1)
        assert record.topic == "bills"
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        with pytest.raises(InvalidRequest, match="nothing is read, so nothing will come"):
            await consumer.getmany(timeout=0.05)


@pytest.mark.slow
async def test_a_topic_that_is_not_there_is_told_to_who_reads(client: Client) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic 'nowhere'"):
        async with earliest(client, "nowhere"):
            raise AssertionError("there is nothing to read")
    consumer = earliest(client, "nowhere")
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic 'nowhere'"):
        await asyncio.wait_for(anext(consumer), 10)


async def test_a_partition_that_is_not_there_is_told_to_who_reads(client: Client) -> None:
    consumer = earliest(client)
    consumer.assign([("orders", 9)])
    with pytest.raises(UnknownTopicOrPartition, match="orders-9: the topic has 3 partitions"):
        await asyncio.wait_for(consumer.getone(), 10)


async def test_a_topic_that_is_deleted_is_told_to_who_reads(client: Client) -> None:
    async with earliest(client, topic_refresh_ms=100) as consumer:
        await take(consumer, 200)
        waiting = asyncio.ensure_future(consumer.getone())
        await client.admin.delete_topics("orders")
        with pytest.raises(UnknownTopicOrPartition, match="the topic does not exist"):
            await asyncio.wait_for(waiting, 20)


async def test_what_is_for_groups_is_refused_without_one(client: Client) -> None:
    async with earliest(client) as consumer:
        assert consumer.state == "reading"
        with pytest.raises(InvalidRequest, match="in no group; say which by group="):
            await consumer.commit()
        with pytest.raises(InvalidRequest, match="listeners are for members of a group"):
            consumer.subscribe("orders", on_lost=print)
    with pytest.raises(InvalidConfig, match="on_lost: it is for members of a group"):
        client.consumer("orders", on_lost=print)
    with pytest.raises(InvalidConfig, match="there is nothing to commit to without group="):
        client.consumer("orders", enable_auto_commit=True)


# ── leaders ───────────────────────────────────────────────────────────────────────────────────────────


async def test_when_a_leader_dies_reading_goes_on_with_the_next_one(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.admin.create_topics(NewTopic("orders", partitions=3, replication_factor=3))
        async with client.producer() as producer, earliest(client) as consumer:
            landed = await producer.send_many("orders", [b"%d" % at for at in range(30)], partition=0)
            assert len(landed) == 30
            await take(consumer, 30)
            await cluster.kill(client.cluster.leader("orders", 0))
            await producer.send_many("orders", [b"%d" % at for at in range(30, 60)], partition=0)
            assert [record.value for record in await take(consumer, 30)] == [
                b"%d" % at for at in range(30, 60)
            ]


async def test_a_replica_in_the_consumers_rack_is_read_from(
    nothing_left: None,  # noqa: ARG001 -- it ends after this
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(3) as cluster, cluster.client(rack="rack-2") as client:
        await client.admin.create_topics(NewTopic("orders", assignment=[[1, 2, 3]]))
        async with client.producer() as producer, earliest(client) as consumer:
            await producer.send("orders", b"v")
            assert (await take(consumer, 1))[0].value == b"v"
            await until(
                lambda: consumer._fetching.readers[FIRST].nearby == 2, "the leader has named the replica"
            )
            fetching, came_by = consumer._fetching, list[int]()

            def answered(asked: Asked, reply: FetchReply, data: Buffer, now_ms: float) -> bool:
                came_by.extend([asked.broker] * bool(data))
                return Fetching.answered(fetching, asked, reply, data, now_ms)

            monkeypatch.setattr(fetching, "answered", answered)
            await producer.send("orders", b"w")
            assert (await take(consumer, 1))[0].value == b"w"
            assert came_by == [2]


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
async def test_without_transactions_both_isolation_levels_read_the_same(client: Client, level: str) -> None:
    async with earliest(client, isolation_level=level) as consumer:
        assert len(await take(consumer, 200)) == 200
        ends = await consumer.end_offsets([FIRST, SECOND, THIRD])
    assert list(ends.values()) == [100, 100, 0]


OPTIONS = [
    ({"isolation_level": "read_committed"}, "isolation", 1),
    ({"isolation_level": "read_uncommitted"}, "isolation", 0),
    ({"fetch_min_bytes": 77}, "min_bytes", 77),
    ({"fetch_max_wait_ms": 7}, "max_wait_ms", 7),
]


@pytest.mark.parametrize(("options", "field", "value"), OPTIONS)
async def test_what_an_option_says_is_what_brokers_are_asked(
    nothing_left: None,  # noqa: ARG001 -- it ends after this
    options: dict[str, Any],
    field: str,
    value: int,
) -> None:
    async with Scripted() as brokers:
        fetched(brokers, entry(batch(0, 1)))
        async with brokers.client() as client, earliest(client, **options) as consumer:
            await take(consumer, 1)
        asked = [request for _, request in brokers.asked if isinstance(request, Fetch)]
        assert getattr(asked[0], field) == value


async def test_so_many_records_come_at_once_as_the_consumer_was_made_for(client: Client) -> None:
    async with earliest(client, max_poll_records=7) as consumer:
        found = await consumer.getmany(timeout=10)
        assert sum(map(len, found.values())) == 7


async def test_there_is_no_other_isolation_level(client: Client) -> None:
    with pytest.raises(InvalidConfig, match="dirty"):
        earliest(client, isolation_level="dirty")


# ── bad times ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def scripted(nothing_left: None) -> AsyncIterator[Scripted]:  # noqa: ARG001 -- it ends after this
    """A broker that knows where its empty partitions begin."""
    async with Scripted() as brokers:
        brokers.handler = lambda _, incoming: offsets(brokers, incoming)
        yield brokers


async def test_a_damaged_batch_is_an_error_with_its_place_and_the_batch_is_fetched_again(
    scripted: Scripted,
) -> None:
    damaged = bytearray(batch(2, 2))
    damaged[-1] ^= 1
    fetched(scripted, entry(batch(0, 2) + bytes(damaged)), entry(bytes(damaged)), entry(batch(2, 2)))
    async with scripted.client() as client, earliest(client) as consumer:
        assert [record.offset for record in await take(consumer, 2)] == [0, 1]
        for _ in range(2):
            with pytest.raises(
                CorruptMessage, match=r"orders-0 cannot be read at offset 2: .*seek beyond it"
            ):
                await asyncio.wait_for(anext(consumer), 10)
        assert [record.offset for record in await take(consumer, 2)] == [2, 3]


async def test_an_error_that_nothing_mends_reaches_the_loop(scripted: Scripted) -> None:
    fetched(scripted, entry(batch(0, 1)), entry(error=UnsupportedVersion.code, message="too old"))
    offsets_read: list[int] = []

    async def loop(consumer: Consumer) -> None:
        async for record in consumer:
            offsets_read.append(record.offset)  # noqa: PERF401 -- what comes before the error counts

    async with scripted.client() as client, earliest(client) as consumer:
        with pytest.raises(UnsupportedVersion, match="orders-0 at offset 1: too old"):
            await loop(consumer)
    assert offsets_read == [0]


async def test_a_bug_in_a_task_reaches_the_loop(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted.client() as client, earliest(client) as consumer:
        monkeypatch.setattr(consumer._fetching, "answered", None)
        fetched(scripted, entry(batch(0, 1)))
        for incoming in scripted.unanswered:
            incoming.reply(*entry(batch(0, 1)))
        with pytest.raises(TidelogError, match="the consumer has failed: TypeError"):
            await asyncio.wait_for(anext(consumer), 10)


@in_virtual_time
async def test_a_broker_that_never_answers_is_asked_again_and_positions_are_not_waited_for_for_ever() -> None:
    async with Scripted() as scripted, scripted.client() as client:
        consumer = earliest(client, request_timeout_ms=100, default_api_timeout_ms=500)
        why = (
            r"its position is not known after 500 ms; last: REQUEST_TIMED_OUT: .* did not answer ListOffsets"
        )
        with pytest.raises(RequestTimedOut, match=why):
            await consumer.position(FIRST)
        assert scripted.count(ListOffsets) >= 2
        assert await consumer.getmany(timeout=0.1) == {}


async def test_a_broker_that_answers_something_else_is_asked_again(scripted: Scripted) -> None:
    fetched(scripted, (EpochEndsReply(), b""), entry(batch(0, 2)[:70]), entry(batch(0, 2)))  # type: ignore[arg-type]
    async with scripted.client() as client, earliest(client) as consumer:
        with pytest.raises(CorruptMessage, match="orders-0: the answer at offset 0 holds no whole batch"):
            await take(consumer, 1)
        consumer.seek(FIRST, 0)
        assert [record.offset for record in await take(consumer, 2)] == [0, 1]


async def test_a_loop_ends_when_its_consumer_is_closed_and_other_waits_are_told(client: Client) -> None:
    consumer = earliest(client)
    await take(consumer, 200)

    async def loop() -> str:
        async for _ in consumer:
            raise AssertionError("there is nothing more")
        return "ended"

    async def columns() -> str:
        async for _ in consumer.batches():
            raise AssertionError("there is nothing more")
        return "ended"

    looping, getting = asyncio.ensure_future(loop()), asyncio.ensure_future(consumer.getone())
    reading = asyncio.ensure_future(columns())
    await until(lambda: client.connections.in_flight, "it waits")
    await asyncio.gather(consumer.close(), consumer.close())
    assert await asyncio.wait_for(looping, 5) == await asyncio.wait_for(reading, 5) == "ended"
    with pytest.raises(ClientClosed, match="the consumer is closed"):
        await getting
    with pytest.raises(ClientClosed):
        consumer.subscribe("orders")


@pytest.mark.parametrize("state", ["new", "looking", "asking", "fetching", "away"])
async def test_it_can_be_closed_in_any_state_and_nothing_is_left(scripted: Scripted, state: str) -> None:
    async with scripted.client() as client:
        consumer = earliest(client)
        if state == "looking":
            scripted.mute.add(ONE)
        if state == "asking":
            scripted.handler = lambda _, incoming: scripted.unanswered.append(incoming)
        waiting = [asyncio.ensure_future(consumer.getone())] if state != "new" else []
        if state in {"asking", "fetching"}:
            kind = ListOffsets if state == "asking" else Fetch
            await until(lambda: scripted.count(kind), "it waits for the broker")
        if state == "away":
            await until(lambda: scripted.count(Fetch), "it waits for the broker")
            await scripted.nodes[ONE].__aexit__(None, None, None)
        await asyncio.wait_for(consumer.close(), 5)
        for error in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5):
            assert isinstance(error, ClientClosed), error
