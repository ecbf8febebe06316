"""Consumers that are members of a group, against real brokers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.client.nodes import Cluster, running, until
from tidelog.broker.groups.settings import GroupSettings
from tidelog.client.admin import Duration, NewTopic, Offset, OffsetReset, Shift, Time
from tidelog.client.io.client import Client
from tidelog.client.io.consumer import Consumer
from tidelog.client.io.coordinator import AtCoordinator
from tidelog.client.io.groups import GroupMember
from tidelog.client.membership import Assigned, Place
from tidelog.protocol.errors import (
    ConnectionFailed,
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    InvalidRequest,
    LogTruncated,
    NonEmptyGroup,
    OffsetOutOfRange,
    TidelogError,
    UnknownServerError,
)
from tidelog.protocol.messages import DeleteGroups, OffsetCommit, OffsetCommitReply, OffsetToCommit, Request
from tidelog.protocol.records import Record
from tidelog.protocol.types import TopicPartition

SETTINGS = GroupSettings(offsets_topic_replication_factor=1, offsets_topic_num_partitions=2)
PLACES = [TopicPartition("orders", index) for index in range(4)]


@pytest.fixture
async def cluster(nothing_left: None) -> AsyncIterator[Cluster]:  # noqa: ARG001 -- it ends after this
    """One real broker that coordinates groups."""
    async with running(1, groups=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """A client, with a topic `orders` of four partitions and 50 records in each."""
    async with cluster.client() as client:
        await client.admin.create_topics(NewTopic("orders", partitions=4, replication_factor=1))
        await fill(client, 50)
        yield client


async def fill(client: Client, count: int, first: int = 0, partitions: int = 4) -> None:
    async with client.producer() as producer:
        for index in range(partitions):
            values = [b"%d-%d" % (index, at) for at in range(first, first + count)]
            await producer.send_many("orders", values, partition=index)


def member(client: Client, *topics: str, **options: Any) -> Consumer:
    """A member of group `g` that begins where the topics begin."""
    return client.consumer(*(topics or ("orders",)), group="g", auto_offset_reset="earliest", **options)


async def take(consumer: Consumer, count: int) -> list[Record]:
    """So many records, one by one."""
    async with asyncio.timeout(20):
        return [await anext(consumer) for _ in range(count)]


async def committed(client: Client) -> list[int | None]:
    """What the group has committed, by partition."""
    async with client.consumer(group="g") as looking:
        found = await looking.committed(*PLACES)
    return [found[each] for each in PLACES]


# ── reading and committing ────────────────────────────────────────────────────────────────────────────


async def test_one_member_reads_everything_and_the_next_goes_on_where_it_ended(client: Client) -> None:
    async with member(client) as consumer:
        first = await take(consumer, 70)
        assert consumer.state == "stable"
    assert consumer.state == "left"
    async with member(client) as consumer:
        rest = await take(consumer, 130)
        assert consumer.assignment() == set(PLACES)
    assert len({(record.partition, record.offset) for record in first + rest}) == 200
    assert await committed(client) == [50] * 4


async def test_what_was_lost_since_it_was_committed_is_noticed_by_the_next_member(client: Client) -> None:
    async with member(client, "orders") as consumer:
        await take(consumer, 200)
    found = await client.admin.committed_offsets("g")
    assert {(each.offset, each.leader_epoch) for each in found.values()} == {(50, 0)}
    lost = OffsetToCommit((await client.topic("orders")).id, 1, 80, leader_epoch=0)
    deadline_ms = asyncio.get_running_loop().time() * 1000 + 10_000
    reply = await AtCoordinator(client, "g").insist(
        lambda _: OffsetCommit("g", (lost,), timeout_ms=5000), OffsetCommitReply, deadline_ms
    )
    assert not reply.partitions[0].error, "as if an unclean election had taken thirty records since"
    async with client.consumer("orders", group="g", auto_offset_reset="none") as consumer:
        with pytest.raises(LogTruncated, match="up to offset 80 were read, the log parts at 50"):
            await take(consumer, 1)


async def test_who_commits_itself_is_left_to_it(client: Client) -> None:
    async with member(client) as consumer:
        await shared(consumer)
        consumer.pause(*PLACES[1:])
        for record in await take(consumer, 20):
            if record.offset == 4:
                await consumer.commit(record)
        assert await consumer.committed() == {PLACES[0]: 5, **dict.fromkeys(PLACES[1:])}
        positions = await consumer.positions()
        assert (positions[PLACES[0]].committed, positions[PLACES[0]].position) == (5, 20)
        assert positions[PLACES[1]].committed is None
        await consumer.commit({PLACES[1]: 7, PLACES[2]: (8, "why")})
    assert await committed(client) == [5, 7, 8, None]
    async with member(client) as consumer:
        await take(consumer, 3)
        await consumer.commit()
        assert sum(offset or 0 for offset in await committed(client)) == 5 + 7 + 8 + 3


async def test_progress_is_committed_once_in_a_while(client: Client) -> None:
    async with member(client, auto_commit_interval_ms=50) as consumer:
        await take(consumer, 120)
        group = consumer._group
        assert group is not None
        await until(lambda: sum(group._committed.values()) == 119, "what is not in hand is committed")
    async with member(client, enable_auto_commit=False) as consumer:
        await take(consumer, 40)
    assert sum(offset or 0 for offset in await committed(client)) == 120


async def test_a_partition_that_appears_later_is_read_from_its_start(client: Client) -> None:
    async with client.consumer("orders", group="g") as consumer:  # from the end
        await shared(consumer)
        await consumer.seek_to_end()
        await client.admin.add_partitions("orders", 6)
        async with client.producer() as producer:
            await producer.send("orders", b"first", partition=5)
        async with asyncio.timeout(20):
            record = await anext(consumer)
        assert (record.partition, record.offset) == (5, 0)


async def test_without_a_commit_and_without_a_policy_the_reader_is_told(client: Client) -> None:
    async with client.consumer("orders", group="g", auto_offset_reset="none") as consumer:
        with pytest.raises(OffsetOutOfRange, match="has no position"):
            await take(consumer, 1)


# ── sharing ───────────────────────────────────────────────────────────────────────────────────────────


async def shared(*consumers: Consumer) -> None:
    """Until the four partitions are shared out evenly."""

    def even() -> bool:
        sizes = [len(consumer.assignment()) for consumer in consumers]
        return sum(sizes) == 4 and max(sizes) - min(sizes) <= 1

    await until(even, "they share the partitions", 10)


async def reading(consumer: Consumer, seen: list[tuple[int, int]]) -> None:
    async for record in consumer:
        seen.append((record.partition, record.offset))  # noqa: PERF401 -- others look at it meanwhile


async def test_members_share_and_nothing_is_read_twice_when_they_finish_what_they_have(
    client: Client, cluster: Cluster
) -> None:
    seen: list[tuple[int, int]] = []
    async with asyncio.timeout(30), member(client) as first, cluster.client() as other:
        tasks = [asyncio.create_task(reading(first, seen))]
        await until(lambda: len(seen) == 200, "the first reads all")
        async with member(other) as second:
            await shared(first, second)
            tasks.append(asyncio.create_task(reading(second, seen)))
            assert not first.assignment() & second.assignment()
            await fill(client, 50, 50)
            await until(lambda: len(seen) == 400, f"both read on: {len(seen)}")
        await shared(first)
        await fill(client, 50, 100)
        await until(lambda: len(seen) == 600, f"the first reads on: {len(seen)}")
        await first.close()
        await asyncio.gather(*tasks)
    assert len(set(seen)) == 600


@pytest.mark.slow
async def test_who_processes_for_longer_than_its_session_stays_a_member(
    client: Client, cluster: Cluster
) -> None:
    lost: list[list[TopicPartition]] = []
    async with member(client, session_timeout_ms=1000, on_lost=lost.append) as first:
        record = (await take(first, 1))[0]
        async with cluster.client() as other, member(other) as second:
            loop = asyncio.get_running_loop()
            until_s = loop.time() + 3
            await until(lambda: loop.time() > until_s, "three sessions are over")
            assert TopicPartition(record.topic, record.partition) in first.assignment()
            await first.commit(record)
            await shared(first, second)
    assert lost == []


async def test_the_application_is_told_and_may_seek_and_wait(client: Client, cluster: Cluster) -> None:
    events: list[tuple[str, int]] = []

    def told(which: str, consumer: list[Consumer]) -> Callable[[list[TopicPartition]], Awaitable[None]]:
        async def listener(names: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            events.append((which, len(names)))
            if which == "assigned":
                for name in names:
                    consumer[0].seek(name, 45)

        return listener

    box: list[Consumer] = []
    first = member(client, on_assigned=told("assigned", box), on_revoked=told("revoked", box))
    box.append(first)
    async with first:
        assert sorted(record.offset for record in await take(first, 20)) == sorted([*range(45, 50)] * 4)
        async with cluster.client() as other, member(other) as second:
            waiting = asyncio.create_task(first.getone())
            await shared(first, second)
            waiting.cancel()
            await asyncio.wait([waiting])
        await shared(first)
        await until(lambda: len(events) == 3, f"{events}")
    assert events == [("assigned", 4), ("revoked", 2), ("assigned", 2), ("revoked", 4)]


# ── what goes wrong ───────────────────────────────────────────────────────────────────────────────────


async def test_a_member_that_is_put_out_reads_nothing_more_and_joins_again(client: Client) -> None:
    lost: list[list[TopicPartition]] = []
    async with member(client, on_lost=lost.append) as consumer:
        await take(consumer, 10)
        group = consumer._group
        assert group is not None
        # The coordinator puts it out behind its back: the next answer tells.
        group.membership.epoch += 5
        group.membership._say(0)
        group._look()
        await until(lambda: lost, "it hears that it is out")
        assert lost == [PLACES]
        await until(lambda: consumer.state == "stable" and len(consumer.assignment()) == 4, "it is back")
        seen = await take(consumer, 200)
        assert len({(record.partition, record.offset) for record in seen}) == 200, "nothing was committed"


async def test_nothing_is_given_out_of_what_is_lost_while_the_listener_takes_its_time(client: Client) -> None:
    release = asyncio.Event()

    async def slow(_names: list[TopicPartition]) -> None:
        await release.wait()

    async with member(client, on_lost=slow, enable_auto_commit=False) as consumer:
        await take(consumer, 10)
        group = consumer._group
        assert group is not None
        group.membership._lose(FencedMemberEpoch("out"), 0)
        group._look()
        assert consumer.state == "losing"
        assert await consumer.getmany(timeout=0.2) == {}
        with pytest.raises(FencedMemberEpoch):
            await consumer.commit({PLACES[0]: 1})
        release.set()
        assert len(await take(consumer, 200)) == 200


@pytest.mark.slow
async def test_a_static_member_is_fenced_by_its_next_process_and_its_reader_is_told(
    client: Client, cluster: Cluster
) -> None:
    first = member(client, instance_id="one")
    await take(first, 3)
    await first.close()
    async with cluster.client() as other, member(other, instance_id="one") as second:
        assert len(await take(second, 10)) == 10
        old = member(client, instance_id="one", default_api_timeout_ms=1500)
        with pytest.raises(TidelogError, match="could not be joined in 1500 ms"):
            await old.getone()
        await old.close()
        assert len(await take(second, 10)) == 10
        group = second._group
        assert group is not None
        group.membership._fail(FencedInstanceId("another one is member as 'one'"))
        group._look()
        with pytest.raises(FencedInstanceId, match="another one"):
            await take(second, 200)
        assert second.state == "failed"


async def test_a_refusal_that_nothing_mends_is_told_to_who_reads_before_any_listener(client: Client) -> None:
    never = asyncio.Event()

    async def slow(_names: list[TopicPartition]) -> None:
        await never.wait()

    consumer = member(client, on_lost=slow)
    await take(consumer, 200)
    waiting = asyncio.create_task(consumer.getone())
    group = consumer._group
    assert group is not None

    async def refuse(*_: object) -> None:
        raise FencedInstanceId("another one is member as 'one'")

    group._at.ask = refuse  # type: ignore[assignment,method-assign]
    group.membership._say(0)
    group._look()
    with pytest.raises(FencedInstanceId, match="another one"):
        await asyncio.wait_for(waiting, 5)
    assert consumer.state == "failed"
    never.set()
    await consumer.close()


async def test_a_listener_that_fails_is_told_to_who_reads(client: Client) -> None:
    def broken(_names: list[TopicPartition]) -> None:
        raise ValueError("no such table")

    consumer = member(client, on_assigned=broken)
    with pytest.raises(UnknownServerError, match="on_assigned has failed: ValueError: no such table"):
        await take(consumer, 1000)
    await consumer.close()


async def test_other_topics_can_be_subscribed_to_and_none(client: Client) -> None:
    await client.admin.create_topics(NewTopic("other", partitions=2, replication_factor=1))
    async with member(client) as consumer:
        await until(lambda: len(consumer.assignment()) == 4, "it has its share")
        consumer.subscribe("other")
        await until(lambda: {each.topic for each in consumer.assignment()} == {"other"}, "it has the other")
        with pytest.raises(InvalidRequest, match="leave the topics out"):
            consumer.assign([PLACES[0]])
        consumer.unsubscribe()
        await until(lambda: not consumer.assignment(), "it has none")


async def test_a_topic_that_is_made_again_is_another_one(client: Client) -> None:
    async with member(client, auto_commit_interval_ms=50) as consumer:
        await take(consumer, 200)
        waiting = asyncio.create_task(consumer.getone())
        await until(lambda: client.connections.in_flight, "it waits")
        await client.admin.delete_topics("orders")
        await client.admin.create_topics(NewTopic("orders", partitions=4, replication_factor=1))
        await fill(client, 1)
        async with asyncio.timeout(20):
            record = await waiting
        assert record.offset == 0


async def test_a_topic_that_is_gone_before_its_partitions_are_known_holds_nothing_up(
    client: Client, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = GroupMember._known
    async with cluster.client() as other:
        await other.admin.create_topics(NewTopic("doomed", partitions=2, replication_factor=1))

        async def later(self: GroupMember, news: Assigned) -> dict[TopicPartition, Place]:
            monkeypatch.undo()
            await other.admin.delete_topics("doomed")
            return await known(self, news)

        monkeypatch.setattr(GroupMember, "_known", later)
        async with member(client, "orders", "doomed") as consumer:
            found = await take(consumer, 200)
            assert {record.topic for record in found} == {"orders"}
            await until(lambda: consumer.state == "stable", "it has given up what is gone")

            async def assigned() -> list[str]:
                [group] = await client.admin.describe_groups("g")
                return [each.topic for one in group.members for each in one.assigned]

            # The coordinator may hear of the deletion after the member, and names no topic that is gone.
            async with asyncio.timeout(10):
                while await assigned() != ["orders"]:  # noqa: ASYNC110 -- it is somebody else who says so
                    await asyncio.sleep(0.02)


# ── operators ─────────────────────────────────────────────────────────────────────────────────────────


async def test_groups_are_listed_and_described_with_their_lag(client: Client) -> None:
    assert await client.admin.list_groups() == []
    async with member(client) as consumer:
        await take(consumer, 60)
        await consumer.commit()
        [listed] = await client.admin.list_groups(with_lag=True)
        assert (listed.group_id, listed.state, listed.members, listed.lag) == ("g", "stable", 1, 140)
        [group] = await client.admin.describe_groups("g")
        [one] = group.members
        assert [each.indexes for each in one.assigned] == [(0, 1, 2, 3)]
        assert sum(each.lag for each in group.offsets) == 140
        with pytest.raises(NonEmptyGroup):
            await client.admin.delete_groups("g")
    assert [each.group_id for each in await client.admin.list_groups(states=["empty"])] == ["g"]
    assert await client.admin.list_groups(topic="other") == []
    with pytest.raises(GroupIdNotFound, match="there is no group 'nobody'"):
        await client.admin.describe_groups("nobody")


async def test_a_group_whose_deletion_was_not_answered_is_deleted_all_the_same(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.admin.reset_group_offsets("g", Offset(0), partitions=["orders"], dry_run=False)
    call, lost = client.call, 0

    async def deaf(broker: Any, request: Request, *rest: Any, **options: Any) -> Any:
        nonlocal lost
        reply = await call(broker, request, *rest, **options)
        if isinstance(request, DeleteGroups) and not lost:
            lost += 1
            raise ConnectionFailed("the answer was lost")
        return reply

    monkeypatch.setattr(client, "call", deaf)
    await client.admin.delete_groups("g")
    assert lost == 1
    with pytest.raises(GroupIdNotFound):
        await client.admin.delete_groups("g")


async def test_a_list_of_groups_with_gaps_is_asked_for_until_it_has_none(
    client: Client, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.admin.reset_group_offsets("g", Offset(0), partitions=["orders"], dry_run=False)
    [broker] = cluster.brokers.values()
    assert broker.groups is not None
    coordinator = broker.groups.coordinator
    monkeypatch.setattr(coordinator, "adopt", lambda _changes: False)
    (index,) = (each for each in coordinator.held if each != coordinator.of_group("g").index)
    held = coordinator.held.pop(index)  # as if its leader had died, and no other had been found yet
    asked = client.metrics()["refreshes"]
    listing = asyncio.create_task(client.admin.list_groups(timeout=20))
    await until(lambda: client.metrics()["refreshes"] > asked + 1, "what was told has gaps: it asks again")
    assert not listing.done()
    coordinator.held[index] = held
    assert [each.group_id for each in await listing] == ["g"]


async def test_offsets_are_set_where_an_operator_wants_them(client: Client) -> None:
    async with member(client) as consumer:
        await take(consumer, 200)
        await consumer.commit()
        with pytest.raises(NonEmptyGroup):
            await client.admin.reset_group_offsets("g", "earliest")
    admin = client.admin
    would = await admin.reset_group_offsets("g", "earliest")
    assert would == [OffsetReset(each, 50, 0) for each in PLACES]
    assert await committed(client) == [50] * 4, "a dry run changes nothing"
    await admin.reset_group_offsets("g", "earliest", partitions=[PLACES[0]], dry_run=False)
    assert await committed(client) == [0, 50, 50, 50]
    await admin.reset_group_offsets("g", Shift(-60), partitions=["orders"], dry_run=False)
    assert await committed(client) == [0, 0, 0, 0]
    await admin.reset_group_offsets("g", Offset(70), dry_run=False)
    assert await committed(client) == [50] * 4
    await admin.reset_group_offsets("g", Duration(3600), dry_run=False)
    assert await committed(client) == [0] * 4
    await admin.reset_group_offsets("g", Time(2**40 * 3), dry_run=False)
    assert await committed(client) == [50] * 4
    await admin.reset_group_offsets("g", Shift(-3), dry_run=False)
    async with member(client) as consumer:
        assert [record.offset for record in await take(consumer, 12)] == [47, 48, 49] * 4
    await admin.delete_group_offsets("g", [PLACES[1]])
    assert (await committed(client))[1] is None
    await admin.delete_groups("g")
    assert await admin.list_groups() == []


async def test_a_group_is_made_by_setting_its_offsets(client: Client) -> None:
    await client.admin.reset_group_offsets("g", Offset(20), partitions=["orders"], dry_run=False)
    async with member(client) as consumer:
        assert {record.offset for record in await take(consumer, 120)} == set(range(20, 50))
