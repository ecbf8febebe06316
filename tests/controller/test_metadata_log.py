"""The log on a controller's disk and its two images (design 4.2; I-43, I-50)."""

import asyncio
from collections.abc import Iterator
from itertools import islice

import pytest

from tests.controller.book import CLUSTER, NOW, TOPIC, ids
from tests.storage.logs import Host
from tidelog.controller.archive import Archive
from tidelog.controller.facts import (
    ClusterInitialized,
    NothingHappened,
    TopicCreated,
    TopicRemoved,
    Voter,
    VotersNamed,
)
from tidelog.controller.image import Image
from tidelog.controller.metadata_log import MetadataLog
from tidelog.controller.quorum import LogEnd
from tidelog.controller.snapshots import SnapshotConfig
from tidelog.protocol.errors import DiskFull, InconsistentMetadata
from tidelog.storage.config import LogConfig

EPOCH = 3
MUCH = [TopicCreated(number.to_bytes(16, "big"), f"topic-{number}") for number in range(1, 1001)]


class Node:
    """A metadata log, and who waits for it."""

    def __init__(self) -> None:
        self.host = Host(1, LogConfig(segment_bytes=4096))
        self.metadata = MetadataLog(Archive(self.host.log, SnapshotConfig(), _nothing), Image(), 0)
        self.told: list[bool] = []

    def says(self, *facts: object) -> int:
        return self.metadata.append(facts, EPOCH, NOW)  # type: ignore[arg-type]  # facts

    def fetches(self, leader: "Node") -> None:
        log = self.host.log
        while log.end_offset < leader.host.log.end_offset:
            data = leader.host.log.read(log.end_offset, 1 << 20).data
            log.append_as_follower(data, EPOCH, NOW)

    def waits(self) -> None:
        self.metadata.when_committed(self.told.append)


async def _nothing() -> None:
    await asyncio.sleep(0)


@pytest.fixture
def node() -> Node:
    node = Node()
    node.says(ClusterInitialized(CLUSTER, NOW))
    return node


def test_decisions_are_made_on_what_is_not_committed_and_nobody_is_told_of_it(node: Node) -> None:
    node.says(TopicCreated(TOPIC, "orders"))
    node.waits()
    assert "orders" in node.metadata.working.topic_ids
    assert (node.metadata.committed.topic_ids, node.told) == ({}, [])
    node.metadata.commit(node.host.log.end_offset)
    assert "orders" in node.metadata.committed.topic_ids
    assert node.told == [True]


def test_much_that_is_committed_at_once_keeps_nobody_waiting(node: Node) -> None:
    """It is told at once, and added up in steps, or when somebody looks."""
    node.says(*MUCH)
    node.waits()
    assert node.metadata.commit(node.host.log.end_offset), "it is time to fold"
    assert node.told == [True]
    node.says(NothingHappened())
    assert not node.metadata.commit(node.host.log.end_offset), "somebody folds already"
    assert len(list(islice(node.metadata.fold(), 3))) == 3
    assert node.metadata.committed.to_bytes() == node.metadata.working.to_bytes()
    assert list(node.metadata.fold()) == []


def test_much_that_a_leader_had_is_added_up_in_steps_or_when_somebody_looks(node: Node) -> None:
    leader, follower = node, Node()
    leader.says(*MUCH)
    follower.fetches(leader)
    assert len(list(islice(follower.metadata.grow(), 3))) == 3
    assert follower.metadata.working.to_bytes() == leader.metadata.working.to_bytes()
    assert list(follower.metadata.grow()) == []


def test_who_leads_now_adds_up_first_what_another_one_had(node: Node) -> None:
    follower = Node()
    follower.fetches(node)
    follower.says(TopicCreated(TOPIC, "orders"))
    assert follower.metadata.working.cluster_id == CLUSTER


def test_a_large_decision_is_tried_in_steps_and_nobody_sees_it_before_it_is_written(node: Node) -> None:
    end, before = node.host.log.end_offset, node.metadata.working.to_bytes()
    seen = []

    def trying() -> Iterator[None]:
        write = yield from node.metadata.appending(MUCH, EPOCH, NOW)
        write()

    for _ in trying():
        seen.append((node.host.log.end_offset, node.metadata.working.to_bytes()))  # noqa: PERF401 -- while it goes on
    assert len(seen) > 3
    assert set(seen) == {(end, before)}
    assert node.host.log.end_offset == end + len(MUCH)
    twin = Node()
    twin.says(ClusterInitialized(CLUSTER, NOW))
    twin.says(*MUCH)
    assert node.metadata.working.to_bytes() == twin.metadata.working.to_bytes()
    node.says(NothingHappened())


def test_a_large_decision_that_cannot_be_is_refused_while_it_is_tried(node: Node) -> None:
    end, before = node.host.log.end_offset, node.metadata.working.to_bytes()
    with pytest.raises(InconsistentMetadata, match="no such topic"):
        list(node.metadata.appending([*MUCH, TopicRemoved(bytes(16))], EPOCH, NOW))
    assert (node.host.log.end_offset, node.metadata.working.to_bytes()) == (end, before)


def test_an_answer_waits_for_all_that_was_there_when_it_was_made(node: Node) -> None:
    """KAFKA-14457: a refusal may rest on what is not committed yet."""
    node.waits()
    end = node.host.log.end_offset
    node.says(NothingHappened())
    node.metadata.commit(end)
    assert node.told == [True]
    node.waits()
    assert node.told == [True]


def test_who_waits_when_the_leadership_ends_is_told_so(node: Node) -> None:
    node.waits()
    node.metadata.give_up()
    node.metadata.commit(node.host.log.end_offset)
    assert node.told == [False]


def test_what_is_cut_off_is_not_in_the_image_any_more(node: Node) -> None:
    end = node.host.log.end_offset
    node.metadata.commit(end)
    node.says(TopicCreated(TOPIC, "orders"))
    node.host.log.truncate_to(end, NOW)
    node.metadata.cut()
    assert node.metadata.working.topic_ids == {}
    assert node.metadata.end == LogEnd(EPOCH, end)


def test_what_cannot_be_is_refused_before_it_is_written(node: Node) -> None:
    """A batch that no image takes would stop every node, after every restart."""
    end, before = node.host.log.end_offset, node.metadata.working.to_bytes()
    with pytest.raises(InconsistentMetadata, match="no such topic"):
        node.says(TopicCreated(TOPIC, "orders"), TopicRemoved(bytes(16)))
    assert node.host.log.end_offset == end
    assert node.metadata.working.to_bytes() == before
    node.says(TopicCreated(TOPIC, "orders"))


def test_a_full_disk_refuses_a_decision_and_leaves_no_trace_of_it(node: Node) -> None:
    before = node.metadata.working.to_bytes()
    node.host.disk.capacity = node.host.disk.medium.used
    with pytest.raises(DiskFull):
        node.says(TopicCreated(TOPIC, "orders"))
    assert node.metadata.working.to_bytes() == before
    node.host.disk.capacity = 1 << 40
    node.host.log.probe()
    node.says(TopicCreated(TOPIC, "orders"))
    assert "orders" in node.metadata.working.topic_ids


def test_the_voters_are_known_before_their_record_is_committed(node: Node) -> None:
    assert node.metadata.directories() is None
    voters = tuple(Voter(number, bytes([number]) * 16, "127.0.0.1", 9100) for number in ids(1, 2))
    node.says(VotersNamed(voters))
    assert node.metadata.directories() == {1: b"\x01" * 16, 2: b"\x02" * 16}
