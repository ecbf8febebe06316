"""Attempts that come late, or know less than others: what the ledger says keeps them from writing a second time."""

import asyncio
from contextlib import suppress

import pytest

from tests.spark.conftest import World
from tests.spark.test_sink import NOW_MS, Attempt, once, place, rows, write
from tidelog.client import Client, connect
from tidelog.client.admin import NewTopic
from tidelog.client.cluster import Topic
from tidelog.protocol.errors import InvalidRequest, InvalidTopic, TopicAlreadyExists, UnknownTopicOrPartition
from tidelog.protocol.types import TopicPartition
from tidelog.spark.leaders import batches
from tidelog.spark.ledger import CHECKSUM, TOPIC, Done, Ledger, Place, _partition
from tidelog.spark.options import WriteOptions
from tidelog.spark.portal import Address
from tidelog.spark.writing import Writing

pytestmark = pytest.mark.slow

COUNT = 100


async def ended(world: World, task: Place, topic: str, *, job: bool) -> None:
    """Another attempt writes all, and the driver says so."""
    async with Attempt(world, task, topic) as writing:
        await writing.add(rows(COUNT))
        here = await writing.finish()
    done = None if job else Done(batch=task.batch, tasks={str(task.task): here}, checksum=CHECKSUM)
    await Ledger(world.client).finish(task.query, done)


async def entries(world: World, query: str) -> list[tuple[str, bool]]:
    """What was ever said of a query, in the order of the log: the key, and whether it says that there is nothing."""
    name = TopicPartition(TOPIC, _partition(query))
    [end] = (await world.client.admin.list_offsets([name])).values()
    known = await world.client.topic(TOPIC)
    return [
        (key.decode(), value is None)
        async for _, columns in batches(world.client, name, known.id, 0, end.offset)
        for key, value in zip(columns.keys, columns.values, strict=True)
        if key is not None and key.decode().split("/")[0] == query
    ]


@pytest.mark.parametrize("job", [False, True])
def test_an_attempt_with_its_first_row_after_the_drivers_word_writes_nothing(world: World, job: bool) -> None:
    topic, task = world.topic(), place()

    async def asleep() -> None:
        async with Attempt(world, task, topic) as sleeper:
            await ended(world, task, topic, job=job)
            with pytest.raises(InvalidRequest, match="is late: the driver has ended the batch"):
                await sleeper.add(rows(COUNT))

    world.run(asleep())
    once(world, topic, COUNT)
    *_, (last, removed) = world.run(entries(world, task.query))
    assert (last.count("/"), removed) == (5, True), "its intent stays for ever"


def test_a_task_of_a_job_that_is_at_its_end_is_not_begun_anew(world: World) -> None:
    topic, task = world.topic(), place()
    world.run(ended(world, task, topic, job=True))
    with pytest.raises(InvalidRequest, match="is late"):
        world.run(write(Attempt(world, task, topic), rows(COUNT)))
    once(world, topic, COUNT)


@pytest.mark.parametrize("job", [False, True])
def test_that_all_is_written_is_said_before_any_intent_goes(world: World, job: bool) -> None:
    topic, task = world.topic(), place()
    world.run(ended(world, task, topic, job=job))
    intent, word, removal = world.run(entries(world, task.query))
    assert word == (task.query, job)
    assert removal == (intent[0], True)


async def made_anew(world: World, topic: str) -> None:
    await world.client.admin.delete_topics(topic)
    async with asyncio.timeout(60):
        while True:
            with suppress(TopicAlreadyExists):
                await world.client.admin.create_topics(NewTopic(topic, 1, 3))
                return


async def by_a_reused_worker(world: World, task: Place, topic: str) -> None:
    """Of two attempts at a task of the new topic the second one is made where the older one is known."""
    async with await connect(world.bootstrap) as worker:
        await worker.topic(topic)
        await made_anew(world, topic)
        await write(Attempt(world, task, topic), rows(COUNT))
        writing = Writing(worker, Ledger(worker), task, WriteOptions(Address(world.bootstrap), topic))
        await writing.begin(NOW_MS)
        try:
            await writing.add(rows(COUNT))
            await writing.finish()
        finally:
            await writing.abort()


def test_a_worker_that_knows_an_older_topic_of_that_name_finds_what_is_in_the_new_one(world: World) -> None:
    topic, task = world.topic(), place()
    world.run(by_a_reused_worker(world, task, topic))
    world.run(write(Attempt(world, task, topic), rows(COUNT)))
    once(world, topic, COUNT)


def test_a_worker_that_is_told_of_the_older_topic_again_is_put_right_by_the_leader(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def as_known(client: Client, names: list[str]) -> list[Topic]:
        return [await client.topic(name) for name in names]  # what a broker says that lags behind

    monkeypatch.setattr("tidelog.spark.writing.topics_named", as_known)
    topic, task = world.topic(), place()
    with pytest.raises(InvalidTopic, match="was deleted and made anew: try again, nothing is written"):
        world.run(by_a_reused_worker(world, task, topic))
    world.run(write(Attempt(world, task, topic), rows(COUNT)))
    once(world, topic, COUNT)


def test_a_topic_that_is_deleted_while_a_task_writes_is_said_to_be(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.spark.leaders.DEADLINE_S", 2.0)
    topic, task = world.topic(), place()

    async def deleted() -> None:
        async with Attempt(world, task, topic) as writing:
            await writing.add(rows(COUNT))
            await world.client.admin.delete_topics(topic)
            await writing.finish()

    with pytest.raises(
        UnknownTopicOrPartition, match=f"{topic}: the topic was deleted while it was written to"
    ):
        world.run(deleted())
