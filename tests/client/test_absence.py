"""A topic that there is not: told soon, with the nearest that there is, or waited for aloud."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import tidelog.sync
from tests.client.nodes import Cluster, running, until
from tests.client.scripted import Scripted
from tests.client.test_groups import SETTINGS
from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client
from tidelog.protocol.errors import UnknownTopicOrPartition
from tidelog.protocol.messages import Metadata

NEAREST = "there is no topic 'ordrs'; the nearest is orders"


@pytest.fixture
async def cluster(nothing_left: None) -> AsyncIterator[Cluster]:  # noqa: ARG001 -- it ends after this
    """One real broker that coordinates groups, with the topics `orders` and `payments`."""
    async with running(1, groups=SETTINGS) as cluster, cluster.client() as client:
        await client.admin.create_topics(NewTopic("orders", 2, 1), NewTopic("payments", 2, 1))
        yield cluster


async def enter(client: Client) -> None:
    async with client.consumer("ordrs"):
        pass


async def subscribe(client: Client) -> None:
    async with client.consumer() as consumer:
        consumer.subscribe("ordrs")
        await anext(consumer)


async def assign(client: Client) -> None:
    async with client.consumer() as consumer:
        consumer.assign([("ordrs", 0)])
        await anext(consumer)


async def assign_with_a_group(client: Client) -> None:
    async with client.consumer(group="g") as consumer:
        consumer.assign([("ordrs", 0)])
        await anext(consumer)


async def ask(client: Client) -> None:
    async with client.consumer() as consumer:
        await consumer.end_offsets([("ordrs", 0)])


WAYS: list[Callable[[Client], Awaitable[object]]] = [
    lambda client: client.producer().send("ordrs", b"v"),
    lambda client: client.producer().enqueue("ordrs", b"v"),
    lambda client: client.producer().send_many("ordrs", [b"v"]),
    lambda client: client.producer().partitions_for("ordrs"),
    enter,
    subscribe,
    assign,
    assign_with_a_group,
    ask,
]


@pytest.mark.slow
async def test_a_mistyped_topic_is_told_soon_with_the_nearest_that_there_is(cluster: Cluster) -> None:
    async with cluster.client() as client:
        for way in WAYS:
            with pytest.raises(UnknownTopicOrPartition, match=NEAREST):
                await asyncio.wait_for(way(client), 10)


@pytest.mark.slow
async def test_a_blocking_program_is_told_the_same(cluster: Cluster) -> None:
    def work() -> None:
        with tidelog.sync.connect(cluster.bootstrap) as client:
            with pytest.raises(UnknownTopicOrPartition, match=NEAREST):
                client.producer().enqueue("ordrs", b"v")
            with pytest.raises(UnknownTopicOrPartition, match=NEAREST):
                next(client.consumer("ordrs"))

    await asyncio.to_thread(work)


@pytest.mark.slow
async def test_what_is_like_nothing_that_there_is_is_told_alone(cluster: Cluster) -> None:
    async with cluster.client() as client:
        with pytest.raises(UnknownTopicOrPartition, match=r"there is no topic 'xyz'$"):
            await client.topic("xyz")


@pytest.mark.slow
async def test_a_member_of_a_group_warns_of_a_topic_that_is_not_there_and_waits_for_it(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tidelog")
    async with (
        cluster.client() as client,
        client.consumer("ordrs", "orders", group="g", auto_offset_reset="earliest") as consumer,
    ):
        await until(lambda: f"{NEAREST}: it is waited for" in caplog.text, "it is warned of")
        await until(lambda: len(consumer.assignment()) == 2, "the other topic is read meanwhile")
        await client.admin.create_topics(NewTopic("ordrs", 1, 1))
        async with client.producer() as producer:
            await producer.send("ordrs", b"v")
        assert (await asyncio.wait_for(anext(consumer), 20)).topic == "ordrs"
    assert "'orders'" not in caplog.text


@pytest.mark.slow
async def test_many_mistakes_cost_one_question() -> None:
    async with Scripted() as brokers, brokers.client() as client:
        for _ in range(3):
            with pytest.raises(UnknownTopicOrPartition, match=NEAREST):
                await client.topic("ordrs")
        asked = [request for _, request in brokers.asked if isinstance(request, Metadata)]
        assert sum(request.all_topics for request in asked) == 1


@pytest.mark.slow
async def test_when_nobody_says_what_there_is_the_error_is_the_one_that_it_was() -> None:
    async with Scripted() as brokers, brokers.client() as client:
        answer = brokers.on_metadata

        def silent_about_all(number: int, incoming: object) -> None:
            if not incoming.message.all_topics:  # type: ignore[attr-defined]
                answer(number, incoming)  # type: ignore[arg-type]

        brokers.on_metadata = silent_about_all
        with pytest.raises(UnknownTopicOrPartition, match=r"there is no topic 'ordrs'$"):
            await asyncio.wait_for(client.topic("ordrs"), 10)
