"""Partitions chosen by hand, with a group that keeps how far they were read: `assign` with `group=`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.client.nodes import Cluster, until
from tests.client.test_groups import PLACES, client, cluster, committed, fill, take
from tests.client.test_groups import member as shared_member
from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client
from tidelog.client.io.consumer import Consumer
from tidelog.protocol.errors import (
    InvalidRequest,
    NonEmptyGroup,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.protocol.messages import OffsetCommit, OffsetCommitReply, Request
from tidelog.protocol.types import TopicPartition

__all__ = ["client", "cluster"]
FIRST, SECOND = PLACES[:2]


@pytest.fixture
async def chosen(client: Client) -> AsyncIterator[Consumer]:
    """A consumer of two partitions, with group `g`, that has read nothing."""
    async with alone(client) as consumer:
        consumer.assign([FIRST, SECOND])
        yield consumer


def alone(client: Client, **options: Any) -> Consumer:
    return client.consumer(group="g", **{"auto_offset_reset": "earliest", **options})


async def test_it_goes_on_where_the_group_has_committed(client: Client) -> None:
    async with alone(client) as consumer:
        consumer.assign([FIRST])
        assert [record.offset for record in await take(consumer, 7)] == list(range(7))
        await consumer.commit({FIRST: 5})
    async with alone(client) as consumer:
        consumer.assign([FIRST, SECOND])
        assert await consumer.position(FIRST) == 5
        assert await consumer.position(SECOND) == 0
        assert {name.partition for name in consumer.assignment()} == {0, 1}


async def test_how_far_it_is_is_committed_when_it_is_closed_unless_it_commits_itself(client: Client) -> None:
    async with alone(client) as consumer:
        consumer.assign([FIRST])
        await take(consumer, 7)
    assert (await committed(client))[0] == 7
    async with alone(client) as consumer:
        consumer.assign([FIRST])
        await consumer.commit(await anext(consumer))
        await take(consumer, 10)
    assert (await committed(client))[0] == 8


async def test_how_far_it_is_is_committed_now_and_then(client: Client) -> None:
    async with alone(client, auto_commit_interval_ms=20) as consumer:
        consumer.assign([FIRST])
        await take(consumer, 7)

        async def there() -> bool:
            return (await committed(client))[0] == 6  # the seventh is in hand

        async with asyncio.timeout(20):
            while not await there():
                pass


async def test_what_it_commits_is_not_taken_back_by_itself(client: Client) -> None:
    async with alone(client, enable_auto_commit=True) as consumer:
        consumer.assign([FIRST])
        assert await consumer.getmany(timeout=10, max_records=10)
        await consumer.commit()
        assert consumer._alone is not None
        await consumer._alone._commit_processed()
        assert (await committed(client))[0] == 10
        consumer.assign([SECOND])
        consumer.assign([FIRST])
        assert (await anext(consumer)).offset == 10, "nor is it read again"
        consumer.seek(FIRST, 3)
        await consumer._alone._commit_processed()
        assert (await committed(client))[0] == 3, "on purpose it goes back"


async def test_nothing_is_committed_that_it_has_in_hand_when_the_block_ends_with_an_error(
    client: Client,
) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 -- the block is what is tried
        async with alone(client) as consumer:
            consumer.assign([FIRST])
            async for record in consumer:
                if record.offset == 7:
                    raise ZeroDivisionError
    assert (await committed(client))[0] == 7


async def test_a_seek_counts_more_than_what_is_committed(client: Client) -> None:
    async with alone(client) as consumer:
        consumer.assign([FIRST])
        await consumer.commit({FIRST: 5})
    async with alone(client) as consumer:
        consumer.assign([FIRST])
        consumer.seek(FIRST, 40)
        assert [record.offset for record in await take(consumer, 2)] == [40, 41]


async def test_what_is_assigned_no_more_is_committed_all_the_same(client: Client) -> None:
    async with alone(client) as consumer:
        consumer.assign([FIRST])
        await take(consumer, 7)
        consumer.assign([SECOND])
        assert (await take(consumer, 1))[0].partition == 1
        consumer.assign([FIRST])
        assert (await anext(consumer)).offset == 6, "the seventh was in hand when it was taken away"
    assert (await committed(client))[:2] == [7, 0], "and so was the other's first"


async def test_without_a_committed_offset_and_with_none_it_is_told(client: Client) -> None:
    async with alone(client, auto_offset_reset="none") as consumer:
        consumer.assign([FIRST])
        with pytest.raises(OffsetOutOfRange, match=r"has no position, and auto\.offset\.reset is none"):
            await take(consumer, 1)


async def test_it_tells_what_is_committed_and_how_far_behind_it_is(chosen: Consumer) -> None:
    await chosen.commit({FIRST: (20, "by hand")})
    await take(chosen, 1)
    assert await chosen.committed() == {FIRST: 20, SECOND: None}
    assert await chosen.committed(PLACES[2]) == {PLACES[2]: None}
    positions = await chosen.positions()
    assert positions[FIRST].committed == 20
    assert positions[SECOND].committed is None
    assert chosen.state == "reading"


async def test_commits_that_overlap_end_in_the_order_in_which_they_began(chosen: Consumer) -> None:
    await asyncio.gather(*(chosen.commit({FIRST: at}) for at in range(1, 20)))
    assert (await chosen.committed(FIRST))[FIRST] == 19


async def test_a_group_with_members_takes_no_commits_of_who_is_none(client: Client, chosen: Consumer) -> None:
    async with shared_member(client) as consumer:
        await take(consumer, 1)
        with pytest.raises(NonEmptyGroup, match="g has 1 members: only they commit"):
            await chosen.commit({FIRST: 5})
    await chosen.commit({FIRST: 5})


async def test_who_leaves_commits_to_the_consumer_is_told_that_the_group_has_members(client: Client) -> None:
    async with alone(client, auto_commit_interval_ms=20) as consumer:
        consumer.assign([FIRST])
        await take(consumer, 7)
        async with shared_member(client) as other:
            await take(other, 1)
            with pytest.raises(NonEmptyGroup, match="only they commit"):
                await take(consumer, 1000)


async def test_what_cannot_be_committed_when_it_is_closed_is_said(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with shared_member(client) as other:
        await take(other, 1)
        async with alone(client) as consumer:
            consumer.assign([FIRST])
            await take(consumer, 7)
        assert "group.not_committed group=g partitions=1 reason=" in caplog.text
    assert "g has 1 members: only they commit" in caplog.text


async def made_anew(client: Client) -> None:
    """`orders` is deleted and made anew, with 50 other records in each partition, and the client knows it."""
    had = (await client.topic("orders")).id
    await client.admin.delete_topics("orders")
    await client.admin.create_topics(NewTopic("orders", partitions=4, replication_factor=1))
    async with asyncio.timeout(20):
        while "orders" not in client.cluster.topics or client.cluster.topics["orders"].id == had:
            await client.refresh(["orders"], newer=True)
    await fill(client, 50)


async def test_what_was_read_of_a_deleted_topic_is_not_committed_by_itself_into_the_new_one(
    client: Client,
) -> None:
    await client.admin.create_topics(NewTopic("bills", partitions=1, replication_factor=1))
    bills = TopicPartition("bills", 0)
    async with alone(client) as consumer:
        consumer.assign([FIRST])
        await take(consumer, 7)
        assert consumer._alone is not None
        await consumer._alone._commit_processed()
        await take(consumer, 1)
        await made_anew(client)
        consumer.assign([FIRST, bills])
        assert await consumer.position(bills) == 0
        await consumer._alone._commit_processed()
        assert await consumer.committed() == {FIRST: None, bills: 0}
        consumer.seek(FIRST, 6)
        await consumer._alone._commit_processed()
        assert (await committed(client))[0] == 6, "that is of the new one, as in the other"


async def test_a_topic_that_is_gone_keeps_nothing_else_from_being_committed(client: Client) -> None:
    await client.admin.create_topics(NewTopic("bills", partitions=1, replication_factor=1))
    bills = TopicPartition("bills", 0)
    async with alone(client) as consumer:
        consumer.assign([FIRST, bills])
        await take(consumer, 7)
        assert await consumer.position(bills) == 0
        await client.admin.delete_topics("orders")
        with pytest.raises(UnknownTopicOrPartition):
            await take(consumer, 50)
        await consumer.close()
    async with alone(client) as looking:
        assert await looking.committed(bills) == {bills: 0}


async def test_what_was_read_of_a_deleted_topic_is_not_taken_for_the_new_one(client: Client) -> None:
    async with alone(client) as consumer:
        consumer.assign([FIRST])
        record = await anext(consumer)
        await made_anew(client)
        with pytest.raises(UnknownTopicId, match=r"orders-0: .* that was deleted, and made anew since: seek"):
            await consumer.commit(record)
        assert await consumer.committed() == {FIRST: None}
        consumer.seek(FIRST, 5)
        await consumer.commit()
        assert await consumer.committed() == {FIRST: 5}


async def test_a_commit_is_of_the_topic_that_was_read_when_it_was_asked_for(client: Client) -> None:
    async with alone(client) as consumer:
        consumer.assign([FIRST])
        record = await anext(consumer)
        assert consumer._alone is not None
        async with consumer._alone._turn:  # another commit is under way
            waiting = asyncio.create_task(consumer.commit(record))
            await made_anew(client)
            consumer.seek(FIRST, 5)
        with pytest.raises(UnknownTopicId):
            await waiting
        assert await consumer.committed() == {FIRST: None}


async def test_what_is_assigned_again_is_not_read_on_in_a_topic_that_was_made_anew(client: Client) -> None:
    async with alone(client) as consumer:
        consumer.assign([FIRST])
        await take(consumer, 7)
        consumer.assign([SECOND])
        await made_anew(client)
        assert consumer._alone is not None
        await consumer._alone._commit_processed()
        with pytest.raises(UnknownTopicId, match="orders-0"):
            await consumer.commit({FIRST: 7})
        assert await consumer.committed(FIRST) == {FIRST: None}
        consumer.assign([FIRST])
        with pytest.raises(UnknownTopicId, match="was at offset 6 of a topic that was deleted"):
            await take(consumer, 1)


async def test_a_partition_that_is_not_there_is_told(client: Client) -> None:
    async with alone(client) as consumer:
        consumer.assign([TopicPartition("orders", 9)])
        with pytest.raises(UnknownTopicOrPartition, match="orders-9"):
            await take(consumer, 1)
    async with alone(client) as consumer:
        with pytest.raises(UnknownTopicOrPartition, match="there is no partition orders-9: orders has 4"):
            await consumer.committed(("orders", 9))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.consumer("orders", group="g").assign([FIRST]), "leave the topics out"),
        (lambda c: c.consumer(group="g", instance_id="i").assign([FIRST]), "instance_id: it is for members"),
        (lambda c: c.consumer(group="g", on_lost=print).assign([FIRST]), "on_lost: it is for members"),
    ],
)
async def test_who_shares_with_a_group_does_not_choose(
    client: Client, call: Callable[[Client], object], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        call(client)


async def test_who_has_chosen_does_not_share(client: Client, chosen: Consumer) -> None:
    with pytest.raises(InvalidRequest, match="another one may subscribe"):
        chosen.subscribe("orders")
    async with shared_member(client) as consumer:
        await take(consumer, 1)
        with pytest.raises(InvalidRequest, match="leave the topics out"):
            consumer.assign([FIRST])
        assert len(consumer.assignment()) == 4


@pytest.mark.slow
async def test_closing_while_nobody_coordinates_is_bounded(cluster: Cluster, client: Client) -> None:
    consumer = alone(client)
    consumer.assign([FIRST])
    await take(consumer, 7)
    await cluster.kill(1)
    async with asyncio.timeout(10):
        await consumer.close()
    await until(lambda: consumer.state == "closed", "it is closed")


async def test_a_commit_that_was_given_up_and_arrives_late_changes_nothing(
    client: Client, chosen: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    call = client.call

    async def noted(broker: Any, request: Request, *rest: Any, **options: Any) -> Any:
        if isinstance(request, OffsetCommit):
            sent.append((broker, request))
        return await call(broker, request, *rest, **options)

    monkeypatch.setattr(client, "call", noted)
    for offset in (10, 20):
        await chosen.commit({FIRST: offset})
    broker, first = sent[0]
    reply, _ = await call(broker, first)
    assert isinstance(reply, OffsetCommitReply)
    assert [each.error for each in reply.partitions] == [0]
    assert (await committed(client))[0] == 20
    await chosen.commit({FIRST: 5})
    assert (await committed(client))[0] == 5, "it went back on purpose"
