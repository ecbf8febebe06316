"""Groups and questions that are larger than one answer, asked by the client against a real broker."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.client.nodes import Cluster, running
from tests.client.test_groups import PLACES, SETTINGS, fill, member, take
from tidelog.broker.groups import pages
from tidelog.broker.groups.topics import Topic
from tidelog.client.admin import NewTopic, Offset, OffsetReset
from tidelog.client.io import coordinator, group_admin
from tidelog.client.io.client import Client
from tidelog.client.io.coordinator import AtCoordinator, pieces
from tidelog.protocol.errors import GroupIdNotFound, SeveralErrors
from tidelog.protocol.messages import OffsetCommit, OffsetCommitReply, OffsetToCommit, Request

WIDE_ID = b"wide------topic-"
WIDE = 100_000


@pytest.fixture
async def cluster(nothing_left: None) -> AsyncIterator[Cluster]:  # noqa: ARG001 -- it ends after this
    """One real broker that coordinates groups."""
    async with running(1, groups=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """A client, with a topic `orders` of four partitions and 20 records in each."""
    async with cluster.client() as client:
        await client.admin.create_topics(NewTopic("orders", partitions=4, replication_factor=1))
        await fill(client, 20)
        yield client


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three entries are all that a request or an answer holds."""
    for module in (pages, coordinator, group_admin):
        monkeypatch.setattr(module, "ENTRIES", 3)


@pytest.fixture
def asked(client: Client, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the client has asked for what."""
    counts: Counter[str] = Counter()
    call = client.call

    async def counted(broker: Any, request: Request, *rest: Any, **options: Any) -> Any:
        counts[type(request).__name__] += 1
        return await call(broker, request, *rest, **options)

    monkeypatch.setattr(client, "call", counted)
    return counts


@pytest.mark.usefixtures("narrow")
async def test_members_and_operators_do_not_notice_that_requests_and_answers_are_short(
    client: Client, asked: Counter[str]
) -> None:
    async with member(client) as consumer:
        await take(consumer, 40)
        await consumer.commit(dict.fromkeys(PLACES, (7, "seven")))
        assert asked["OffsetCommit"] == 2
        assert await consumer.committed(*PLACES) == dict.fromkeys(PLACES, 7)
        [group] = await client.admin.describe_groups("g")
        assert [len(each.indexes) for one in group.members for each in one.assigned] == [4]
        assert [(each.index, each.offset, each.metadata, each.lag) for each in group.offsets] == [
            (index, 7, "seven", 13) for index in range(4)
        ]
        assert asked["DescribeGroups"] == 2
    told = await client.admin.committed_offsets("g")
    assert sorted(told) == PLACES
    asked.clear()
    await client.admin.reset_group_offsets("g", Offset(3), dry_run=False)
    assert asked["OffsetCommit"] == 2
    assert [each.offset for each in (await client.admin.committed_offsets("g")).values()] == [3] * 4
    await client.admin.delete_group_offsets("g", PLACES)
    assert asked["DeleteGroupOffsets"] == 2
    assert await client.admin.committed_offsets("g") == {}


@pytest.mark.usefixtures("narrow")
async def test_many_groups_are_described_and_deleted_and_each_refusal_is_told(
    client: Client, asked: Counter[str]
) -> None:
    names = [f"g{number}" for number in range(8)]
    for name in names:
        await client.admin.reset_group_offsets(name, Offset(2), partitions=PLACES[:2], dry_run=False)
    asked.clear()
    found = await client.admin.describe_groups(*names)
    assert [(one.group_id, [each.lag for each in one.offsets]) for one in found] == [
        (name, [18, 18]) for name in names
    ]
    assert asked["DescribeGroups"] > len(names) / 2
    assert [one.group_id for one in await client.admin.list_groups(with_lag=True)] == names
    with pytest.raises(SeveralErrors) as refused:
        await client.admin.describe_groups("nobody", *names, "nothing")
    assert {name: type(error) for name, error in refused.value.errors.items()} == {
        "nobody": GroupIdNotFound,
        "nothing": GroupIdNotFound,
    }
    await client.admin.delete_groups(*names)
    assert asked["DeleteGroups"] >= 3
    assert await client.admin.list_groups() == []


@pytest.mark.slow
async def test_a_group_of_a_hundred_thousand_partitions_is_told_whole(
    cluster: Cluster, client: Client
) -> None:
    [broker] = cluster.brokers.values()
    assert broker.groups is not None
    await client.admin.reset_group_offsets("g", Offset(2), partitions=["orders"], dry_run=False)
    broker.groups.coordinator.topics.put(Topic(WIDE_ID, "wide", WIDE))  # as if the cluster had such a topic
    at = AtCoordinator(client, "g")
    deadline_ms = asyncio.get_running_loop().time() * 1000 + 60_000
    for some in pieces(range(WIDE)):
        commit = OffsetCommit("g", tuple(OffsetToCommit(WIDE_ID, index, index) for index in some))
        reply = await at.insist(lambda _, commit=commit: commit, OffsetCommitReply, deadline_ms)  # type: ignore[misc]
        assert not any(each.error for each in reply.partitions)
    told = await at.committed(None, deadline_ms)
    assert {each.index for each in told if each.topic_id == WIDE_ID} == set(range(WIDE))
    asked = [(WIDE_ID, index) for index in range(WIDE - 1, -1, -1)]
    assert [each.offset for each in await at.committed(asked, deadline_ms)] == [index for _, index in asked]
    [group] = await client.admin.describe_groups("g", timeout=60)
    assert len(group.offsets) == WIDE + 4
    assert [each.lag for each in group.offsets if each.topic == "orders"] == [18] * 4


def test_requests_hold_so_many_entries_and_so_much_text() -> None:
    assert list(pieces([])) == []
    assert [len(some) for some in pieces(range(25_000))] == [10_000, 10_000, 5_000]
    texts = ["x" * 100_000] * 5 + ["", "y" * 10**7, "z"]
    some = list(pieces(texts, lambda text: text))
    assert [len(each) for each in some] == [2, 2, 2, 1, 1]
    assert [text for each in some for text in each] == texts


async def test_a_dry_run_of_what_has_no_offsets_yet_names_every_partition(client: Client) -> None:
    would = await client.admin.reset_group_offsets("new", "earliest", partitions=["orders"])
    assert would == [OffsetReset(each, None, 0) for each in PLACES]
