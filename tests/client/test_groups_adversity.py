"""Groups when something of what they need is away: brokers, topics, answers, the place of a static member."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.client.nodes import Cluster, running, until
from tests.client.test_groups import PLACES, client, cluster, committed, fill, member, shared, take
from tidelog.broker.groups.settings import GroupSettings
from tidelog.client.admin import NewTopic, Offset, OffsetReset, Shift
from tidelog.client.io import groups
from tidelog.client.io.client import Client
from tidelog.client.io.group_offsets import GroupOffsets
from tidelog.protocol.errors import (
    ConnectionFailed,
    FencedMemberEpoch,
    LeaderNotAvailable,
    SeveralErrors,
    TidelogError,
    UnknownServerError,
)
from tidelog.protocol.messages import GroupHeartbeat, OffsetCommit, Request
from tidelog.protocol.types import NO_BROKER, TopicPartition

__all__ = ["client", "cluster"]


@pytest.mark.slow
async def test_what_cannot_be_committed_is_given_up_in_time_and_read_again(
    client: Client, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "CLOSE_COMMIT_S", 0.5)
    async with cluster.client() as others, member(client) as first:
        assert {record.offset for record in await take(first, 200)} == set(range(50))
        call = client.call

        async def commits_nothing(broker: Any, request: Request, *rest: Any, **options: Any) -> Any:
            if isinstance(request, OffsetCommit):
                raise ConnectionFailed("the coordinator is away, for commits")
            return await call(broker, request, *rest, **options)

        monkeypatch.setattr(client, "call", commits_nothing)
        async with member(others) as second:
            reading = asyncio.create_task(second.getone())
            await asyncio.sleep(0)
            _ = await first.getmany(timeout=0.2)
            async with asyncio.timeout(20):
                assert (await reading).offset == 0, "nothing was committed"
            assert len(first.assignment()) == len(second.assignment()) == 2
            assert (first.state, second.state) == ("stable", "stable")


async def test_a_commit_is_not_sent_again_for_what_went_away_and_came_back(
    client: Client, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with member(client, enable_auto_commit=False) as consumer:
        await shared(consumer)
        call, theirs = client.call, set[TopicPartition]()

        async def deaf(broker: Any, request: Request, *rest: Any, **options: Any) -> Any:
            if isinstance(request, OffsetCommit):
                monkeypatch.undo()
                async with cluster.client() as other, member(other) as second:
                    await shared(consumer, second)
                    theirs.update(second.assignment())
                    await second.commit(dict.fromkeys(theirs, 30))
                await shared(consumer)
                raise ConnectionFailed("the answer was lost")
            return await call(broker, request, *rest, **options)

        monkeypatch.setattr(client, "call", deaf)
        with pytest.raises(FencedMemberEpoch, match="is not this member's"):
            await consumer.commit(dict.fromkeys(PLACES, 5))
        assert await consumer.committed(*theirs) == dict.fromkeys(theirs, 30)


async def test_who_is_refused_what_is_committed_leaves_the_group_at_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise UnknownServerError("nobody knows why")

    monkeypatch.setattr(GroupOffsets, "fetch", refuse)
    consumer = member(client)
    with pytest.raises(UnknownServerError, match="nobody knows why"):
        await take(consumer, 1)
    await consumer.close()
    assert consumer.state == "left"
    [group] = await client.admin.describe_groups("g")
    assert not group.members


async def test_how_long_a_group_is_behind_is_known_of_whatever_was_committed(
    client: Client, cluster: Cluster
) -> None:
    [broker] = cluster.brokers.values()
    assert broker.groups is not None
    times: dict[TopicPartition, list[int]] = {}
    async with client.consumer("orders", auto_offset_reset="earliest") as reader:
        for record in await take(reader, 200):
            times.setdefault(TopicPartition("orders", record.partition), []).append(record.timestamp_ms)

    def told() -> dict[TopicPartition, tuple[int, int]]:
        group = broker.groups.coordinator.of_group("g").shard.committed.get("g")
        offsets = group.offsets.items() if group is not None else ()
        return {TopicPartition("orders", place[1]): (one.offset, one.timestamp) for place, one in offsets}

    def known() -> bool:
        """Whether every offset that is committed has the time of the record before it."""
        return all(
            not offset or time_ms == times[name][offset - 1] for name, (offset, time_ms) in told().items()
        )

    async with member(client, auto_commit_interval_ms=10) as consumer:
        for _ in range(9):
            await take(consumer, 7)  # one by one
            await until(lambda: sum(offset for offset, _ in told().values()) > 0, "it is committed")
            assert known(), told()
        found = await consumer.getmany(max_records=11, timeout=5)
        assert found
        found = await consumer.getmany(max_records=60, timeout=5)
        assert found
        await consumer.commit()
        assert known(), told()
    assert known(), told()
    assert any(offset for offset, _ in told().values())


async def test_offsets_of_a_topic_that_is_gone_are_in_nobodys_way(client: Client) -> None:
    admin = client.admin
    await admin.create_topics(NewTopic("doomed", partitions=3, replication_factor=1))
    await admin.reset_group_offsets("g", Offset(0), partitions=["doomed"], dry_run=False)
    await admin.reset_group_offsets("g", Offset(30), partitions=["orders"], dry_run=False)
    await admin.delete_topics("doomed")
    assert sorted(await admin.committed_offsets("g")) == PLACES
    moved = await admin.reset_group_offsets("g", Shift(5), dry_run=False)
    assert moved == [OffsetReset(each, 30, 35) for each in PLACES]
    [group] = await admin.describe_groups("g")
    assert {each.topic for each in group.offsets} <= {"orders", ""}, "it is forgotten sooner or later"
    # The next one of its name has other partitions, and nothing of what was committed.
    await admin.create_topics(NewTopic("doomed", partitions=1, replication_factor=1))
    assert sorted(await admin.committed_offsets("g")) == PLACES
    again = [OffsetReset(TopicPartition("doomed", 0), None, 0)]
    assert await admin.reset_group_offsets("g", "latest", partitions=["doomed"], dry_run=False) == again


@pytest.fixture
async def pair(nothing_left: None) -> AsyncIterator[Cluster]:  # noqa: ARG001 -- it ends after this
    """Two brokers; groups are in one log, which either has alone."""
    settings = GroupSettings(offsets_topic_replication_factor=1, offsets_topic_num_partitions=1)
    async with running(2, groups=settings) as cluster:
        yield cluster


@pytest.mark.slow
async def test_partitions_that_nobody_leads_are_named_and_the_others_can_be_set(pair: Cluster) -> None:
    async with pair.client(request_timeout_ms=2000) as client:
        admin = client.admin
        await admin.create_topics(NewTopic("orders", partitions=4, replication_factor=1))
        await fill(client, 10)
        await admin.reset_group_offsets("g", Offset(5), partitions=["orders"], dry_run=False)
        [offsets] = await admin.describe_topics("__consumer_offsets")
        alive = offsets.partitions[0].leader
        [orders] = await admin.describe_topics("orders")
        led = [TopicPartition("orders", each.index) for each in orders.partitions if each.leader == alive]
        assert 0 < len(led) < 4
        await pair.kill(3 - alive)
        image = pair.controller.working
        await until(lambda: image.brokers[3 - alive].fenced, "its broker is known to be gone")  # type: ignore[index]
        with pytest.raises(TidelogError) as refused:
            await admin.reset_group_offsets("g", "earliest", dry_run=False, timeout=2)
        assert isinstance(refused.value, SeveralErrors | LeaderNotAvailable | ConnectionFailed)
        assert all(f"orders-{each.partition}" not in str(refused.value) for each in led)
        told = await admin.committed_offsets("g")
        assert [told[each].offset for each in PLACES] == [5] * 4, "all or nothing"
        moved = await admin.reset_group_offsets("g", "earliest", partitions=led, dry_run=False)
        assert moved == [OffsetReset(each, 5, 0) for each in led]
        [group] = await admin.describe_groups("g")
        assert {each.index: each.lag for each in group.offsets} == {
            each.partition: 10 if each in led else -1 for each in PLACES
        }, "what is not known is not guessed"
        assert (await committed(client)).count(0) == len(led)


async def test_a_coordinator_that_a_commit_has_found_hears_everything_from_the_next_heartbeat(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "WAIT_MS", 100)
    async with member(client) as consumer:
        await shared(consumer)
        said: list[GroupHeartbeat] = []
        call = client.call

        async def listens(broker: Any, request: Request, *rest: Any, **options: Any) -> Any:
            if isinstance(request, GroupHeartbeat):
                said.append(request)
            return await call(broker, request, *rest, **options)

        monkeypatch.setattr(client, "call", listens)
        await until(lambda: len(said) > 2 and said[-1].owned is None, "nothing is new")
        said.clear()
        assert consumer._group is not None
        consumer._group._at.broker = NO_BROKER  # as who was told that it is none any more
        await until(
            lambda: any(each.owned and each.subscription for each in said), "it says what it has and wants"
        )
