"""What a member of a group has in hand: when it counts as done, and who waits for it."""

import asyncio
from collections.abc import Iterable

import pytest

from tests.client.nodes import Cluster, until
from tests.client.test_groups import PLACES, client, cluster, committed, fill, member, shared, take
from tidelog.client.io.client import Client
from tidelog.client.io.consumer import Consumer
from tidelog.client.io.groups import GroupMember
from tidelog.protocol.errors import FencedMemberEpoch
from tidelog.protocol.records import Record
from tidelog.protocol.types import TopicPartition

__all__ = ["client", "cluster"]


async def everything(consumer: Consumer) -> dict[TopicPartition, list[Record]]:
    """The 50 records of each partition, all in hand at once."""
    assert await consumer.getmany(timeout=0.01, max_records=1) is not None
    readers = consumer._fetching.readers
    await until(
        lambda: len(readers) == 4 and all(one.offset == 50 for one in readers.values()), "all is here"
    )
    await consumer.seek_to_beginning()
    await until(lambda: all(one.offset == 50 for one in readers.values()), "all is here again")
    found = await consumer.getmany(max_records=500)
    assert sum(map(len, found.values())) == 200
    return found


async def test_what_is_in_hand_is_not_committed_when_the_block_ends_with_an_error(client: Client) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 -- the block is what is tried
        async with member(client) as consumer:
            await shared(consumer)
            consumer.pause(*PLACES[1:])
            async for record in consumer:
                if record.offset == 7:
                    raise ZeroDivisionError
    assert (await committed(client))[0] == 7


async def test_lists_and_batches_count_as_done_when_more_is_asked_for(client: Client) -> None:
    consumer = member(client)
    await consumer.getmany(timeout=10, max_records=10)
    found = await consumer.getmany(timeout=10, max_records=5)
    await consumer.close()
    assert sum(offset or 0 for offset in await committed(client)) == 10, "five were in hand"
    [(name, records)] = found.items()
    async with member(client) as consumer:
        seen = [(record.partition, record.offset) for record in await take(consumer, 190)]
    assert (name.partition, records[0].offset) in seen
    assert len(set(seen)) == 190


async def test_what_the_application_commits_is_not_taken_back_by_itself(
    client: Client, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = 0
    commit_processed = GroupMember._commit_processed

    async def counted(self: GroupMember, names: Iterable[TopicPartition]) -> None:
        nonlocal rounds
        await commit_processed(self, names)
        rounds += 1

    monkeypatch.setattr(GroupMember, "_commit_processed", counted)
    async with member(client, enable_auto_commit=True, auto_commit_interval_ms=20) as first:
        await everything(first)
        await first.commit()
        seen = rounds
        await until(lambda: rounds >= seen + 3, "it was its turn to commit by itself")
        assert await committed(client) == [50] * 4
        async with cluster.client() as other, member(other) as second:
            await shared(first, second)
            assert await committed(client) == [50] * 4, "nor when they are given up"
        await shared(first)
        first.seek(PLACES[0], 20)
        async with asyncio.timeout(10):
            while (await committed(client))[0] != 20:
                pass
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 -- the block is what is tried
        async with member(client, enable_auto_commit=True) as consumer:
            for record in await take(consumer, 7):
                await consumer.commit(record)
            raise ZeroDivisionError
    assert await committed(client) == [27, 50, 50, 50]


async def test_what_is_in_hand_keeps_its_partition_until_it_is_done(client: Client, cluster: Cluster) -> None:
    events: list[str] = []
    async with member(client, on_revoked=lambda names: events.append(f"revoked {len(names)}")) as first:
        found = await everything(first)
        async with cluster.client() as client_of_second:
            second = member(client_of_second, instance_id="second", assignor="uniform")
            waiting = asyncio.create_task(second.getone())
            await until(lambda: first.state == "revoking", "it is to give up two")
            assert (events, first.assignment()) == ([], set(PLACES))
            await first.commit({name: records[-1].offset for name, records in found.items()})
            assert (events, first.assignment()) == ([], set(PLACES)), "one record of each is still in hand"
            for records in found.values():
                await first.commit(records[-1])
            await shared(first, second)
            assert events == ["revoked 2"]
            await fill(client, 1, 50)
            async with asyncio.timeout(10):
                assert (await waiting).offset == 50
            await second.close()


async def test_what_is_lost_while_it_is_to_be_given_up_is_told_as_lost(
    client: Client, cluster: Cluster
) -> None:
    told: list[tuple[str, list[TopicPartition]]] = []
    first = member(
        client,
        on_revoked=lambda names: told.append(("revoked", names)),
        on_lost=lambda names: told.append(("lost", names)),
    )
    await everything(first)
    async with cluster.client() as other, member(other):
        await until(lambda: len(first._hand._turn) == 2, "it is to give up two, and has them in hand")
        group = first._group
        assert group is not None
        group.membership._lose(FencedMemberEpoch("out"), 0)
        group._look()
        await until(lambda: told, "it hears that it is out")
        assert told == [("lost", PLACES)]
    await first.close()
