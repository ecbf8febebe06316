"""How much a broker is asked for at once: little where it is near, more where the way is long."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.client.consuming import Desk, batch
from tests.client.nodes import Cluster, until
from tidelog.client.admin import NewTopic
from tidelog.client.answers import LONG_MS, OFTEN, SHORT_MS, START_BYTES, AnswerSizes
from tidelog.client.hand import ONE_BY_ONE
from tidelog.client.io.client import Client
from tidelog.client.io.consumer import Consumer
from tidelog.protocol.types import BrokerId

NEAR, FAR = BrokerId(1), BrokerId(2)
LIMIT = 10 << 20
COUNT = 50_000


def told(
    sizes: AnswerSizes, took_ms: float, broker: BrokerId = FAR, *, times: int = 1, starving: bool = True
) -> int:
    """How much is asked for after full answers that took so long."""
    for _ in range(times):
        size = sizes.of(broker)
        sizes.answered(broker, size, size, took_ms, starving=starving)
    return sizes.of(broker)


def test_who_answers_soon_is_asked_for_little_at_a_time() -> None:
    sizes = AnswerSizes(LIMIT)
    assert sizes.of(NEAR) == START_BYTES
    assert told(sizes, SHORT_MS, NEAR) == START_BYTES


def test_who_is_far_away_is_asked_for_more_each_time_up_to_the_limit_and_nobody_else_is() -> None:
    sizes = AnswerSizes(LIMIT)
    assert [told(sizes, LONG_MS, times=OFTEN) for _ in range(5)] == [2 << 20, 4 << 20, 8 << 20, LIMIT, LIMIT]
    assert sizes.of(NEAR) == START_BYTES


def test_who_is_near_again_is_asked_for_less_each_time() -> None:
    sizes = AnswerSizes(LIMIT)
    told(sizes, LONG_MS, times=OFTEN * 2)
    assert [told(sizes, SHORT_MS) for _ in range(3)] == [2 << 20, START_BYTES, START_BYTES]


def test_a_reader_that_is_slow_itself_is_no_reason_to_ask_for_more() -> None:
    assert told(AnswerSizes(LIMIT), 1000, times=100, starving=False) == START_BYTES


def test_a_machine_that_is_busy_now_and_then_is_no_long_way() -> None:
    sizes = AnswerSizes(LIMIT)
    for _ in range(10):
        assert told(sizes, 1000, times=OFTEN - 1) == START_BYTES
        assert told(sizes, LONG_MS / 2) == START_BYTES


def test_an_answer_that_is_not_full_says_nothing() -> None:
    sizes = AnswerSizes(LIMIT)
    for _ in range(OFTEN):
        sizes.answered(FAR, START_BYTES, START_BYTES // 2, 500, starving=True)
    assert sizes.of(FAR) == START_BYTES


def test_never_is_more_asked_for_than_the_consumer_was_told() -> None:
    sizes = AnswerSizes(1000)
    assert sizes.of(FAR) == 1000
    assert told(sizes, LONG_MS, times=OFTEN) == 1000


def test_a_fetch_asks_a_far_broker_for_more_once_it_has_seen_how_far_it_is() -> None:
    desk = Desk()
    for number in range(OFTEN):
        asked = desk.asked()
        assert asked.request.max_bytes == START_BYTES
        desk.now_ms += LONG_MS
        desk.answer(asked, batch(number, 1, size=START_BYTES))
        assert desk.read() == [number]
    assert desk.asked().request.max_bytes == START_BYTES * 2


def test_what_lies_here_unread_keeps_fetches_small() -> None:
    desk = Desk()
    desk.answer(desk.asked(), batch(0, 1), index=1)
    for number in range(OFTEN):
        asked = desk.asked()
        desk.now_ms += LONG_MS
        desk.answer(asked, batch(number, 1, size=START_BYTES))
        assert desk.read() == [number]
    assert desk.asked().request.max_bytes == START_BYTES


# ── turns ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def client(broker: Cluster) -> AsyncIterator[Client]:
    async with broker.client() as client:
        await client.admin.create_topics(NewTopic("orders", partitions=1, replication_factor=1))
        async with client.producer() as producer:
            for _ in range(5):
                await producer.send_many("orders", [b"v"] * (COUNT // 5))
        yield client


async def one_by_one(consumer: Consumer) -> None:
    for _ in range(COUNT):
        await anext(consumer)


async def lists(consumer: Consumer) -> None:
    got = 0
    while got < COUNT:
        got += sum(map(len, (await consumer.getmany(timeout=5)).values()))


async def columns(consumer: Consumer) -> None:
    got = 0
    async for some in consumer.batches():
        got += len(some)
        if got == COUNT:
            return


@pytest.mark.parametrize("way", [one_by_one, lists, columns])
async def test_others_have_their_turns_while_a_reader_finds_all_that_it_asks_for(
    client: Client, way: object
) -> None:
    """Fifty thousand records are here: reading them has no need to wait, and must not keep the loop for itself."""
    turns = 0

    async def beside() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with client.consumer("orders", auto_offset_reset="earliest") as consumer:
        [reader] = consumer._fetching.readers.values()
        await until(lambda: reader.offset == COUNT, "all is here")
        other = asyncio.create_task(beside())
        await asyncio.sleep(0)
        before = turns
        await way(consumer)  # type: ignore[operator]
        other.cancel()
        assert turns - before >= (COUNT // ONE_BY_ONE - 1 if way is one_by_one else 2)
