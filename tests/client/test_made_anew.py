"""Topics that somebody deletes and makes anew, under who has read nothing of them yet, and under members of a group."""

import asyncio
from typing import Any

import pytest

from tests.client.consuming import Desk, batch
from tests.client.nodes import Cluster
from tests.client.test_alone import alone, made_anew
from tests.client.test_groups import PLACES, client, cluster, member, take
from tidelog.client.hand import Hand
from tidelog.client.io.client import Client
from tidelog.client.io.coordinator import AtCoordinator
from tidelog.protocol.errors import OffsetOutOfRange, UnknownTopicId
from tidelog.protocol.messages import EARLIEST, GroupHeartbeat
from tidelog.protocol.types import NO_OFFSET

__all__ = ["client", "cluster"]
FIRST, SECOND = PLACES[:2]
ANOTHER = b"another-another-"


def test_what_was_read_nowhere_begins_in_the_new_topic() -> None:
    desk = Desk(leaders=(1,), start=None)
    late = desk.question()
    desk.lead(1, topic_id=ANOTHER)
    question = desk.question()
    assert question.timestamp == EARLIEST
    desk.found(late, 42)
    desk.found(question, 3)
    [entry] = desk.asked().request.partitions
    assert (entry.topic_id, entry.fetch_offset) == (ANOTHER, 3)


def test_who_has_to_seek_has_to_in_the_new_topic() -> None:
    desk = Desk(leaders=(1,), start=None, auto_offset_reset="none")
    desk.lead(1, topic_id=ANOTHER)
    with pytest.raises(OffsetOutOfRange, match="orders-0 has no position"):
        desk.read()


async def test_a_new_consumer_of_a_client_that_knows_the_old_topic_reads_the_new_one(
    client: Client, cluster: Cluster
) -> None:
    async with cluster.client() as other:
        await made_anew(other)
        anew = await other.topic("orders")
    assert client.cluster.topics["orders"].id != anew.id, "nobody has told it"
    async with client.consumer("orders", auto_offset_reset="earliest") as consumer:
        assert len(await take(consumer, 200)) == 200


async def test_what_the_group_has_committed_of_the_new_topic_counts_and_where_somebody_sought(
    client: Client, cluster: Cluster
) -> None:
    async with cluster.client() as other, alone(other) as before:
        await made_anew(other)
        before.assign([FIRST, SECOND])
        await before.commit({FIRST: 30, SECOND: 30})
    async with alone(client) as consumer:
        consumer.assign([FIRST, SECOND])
        await consumer.seek_to_beginning(SECOND)
        assert [await consumer.position(each) for each in (FIRST, SECOND)] == [30, 0]


async def test_what_the_group_has_committed_of_the_old_topic_is_not_where_the_new_one_begins(
    client: Client, cluster: Cluster
) -> None:
    async with alone(client) as before:
        before.assign([FIRST])
        await take(before, 7)
    async with cluster.client() as other:
        await made_anew(other)
    async with alone(client) as consumer:
        consumer.assign([FIRST])
        assert [record.offset for record in await take(consumer, 1)] == [0]


def test_what_was_committed_of_the_old_topic_says_nothing_of_what_is_in_hand_of_the_new_one() -> None:
    desk = Desk(leaders=(1,), start=7)
    hand = Hand(desk.fetching)
    hand.begin([FIRST])
    desk.first.begins = 7
    hand.say(FIRST, 20)
    desk.lead(1, topic_id=ANOTHER)
    desk.first.seek(0)
    desk.answer(desk.asked(), batch(0, 50))
    assert hand.give() is not None
    assert hand.done(FIRST) == 0, "who goes on there must not begin at 20"


def test_who_has_sought_is_told_also_where_its_group_began() -> None:
    desk = Desk(leaders=(1,), start=7)
    desk.first.begins = 7
    desk.first.seek(7)
    desk.lead(1, topic_id=ANOTHER)
    with pytest.raises(UnknownTopicId, match="was at offset 7 of a topic that was deleted"):
        desk.read()


def test_what_stands_where_its_group_began_and_cannot_be_read_is_told_of_the_new_topic() -> None:
    desk = Desk(leaders=(1,), start=7)
    desk.first.begins = 7
    desk.first.fail(OffsetOutOfRange("nothing is there"))
    desk.lead(1, topic_id=ANOTHER)
    assert desk.first.position == NO_OFFSET, "nobody may commit 7 of the new one"
    with pytest.raises(UnknownTopicId, match="was at offset 7 of a topic that was deleted"):
        desk.read()


async def test_a_member_reads_the_new_topic_once_its_coordinator_has_said_so(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, told = AtCoordinator.ask, asyncio.Event()
    told.set()

    async def held_back(self: AtCoordinator, request: Any, *rest: Any) -> Any:
        reply = await ask(self, request, *rest)
        if isinstance(request, GroupHeartbeat):
            await told.wait()
        return reply

    monkeypatch.setattr(AtCoordinator, "ask", held_back)
    async with member(client) as consumer:
        await take(consumer, 200)
        told.clear()
        await made_anew(client)
        assert await consumer.getmany(timeout=0.2) == {}, "another member may have it by now"
        told.set()
        assert {record.offset for record in await take(consumer, 200)} == set(range(50))
