"""All replicas of a broker: what comes, what goes, and what cannot be."""

from typing import Any

import pytest

from tests.broker.node import PLACE, TOPIC_ID, Node
from tidelog.protocol.errors import DiskFull, NotLeaderOrFollower, StorageError, UnknownTopicId
from tidelog.protocol.types import BrokerId, TopicPartition
from tidelog.storage.data_directory import DataDirectory

NAME = TopicPartition("orders", 0)
AGAIN = (b"orders-again----", 0)


@pytest.fixture
def node() -> Node:
    node = Node()
    node.lead()
    return node


def test_a_partition_that_is_placed_elsewhere_leaves_with_its_log(node: Node) -> None:
    node.adopt(replicas=(2, 3), isr=(2, 3), leader=2)
    assert NAME not in node.data.logs
    with pytest.raises(UnknownTopicId):
        node.replicas.at(*PLACE)


def test_a_topic_made_anew_inherits_nothing(node: Node) -> None:
    node.fill(3)
    node.remove()
    node.lead(place=AGAIN)
    partition = node.replicas.at(*AGAIN)
    assert (partition.log.end_offset, partition.high_watermark) == (0, 0)


def test_a_log_of_another_topic_is_kept_aside(node: Node) -> None:
    node.fill(3)
    del node.replicas.partitions[PLACE]  # as after a restart: the log is there, and nobody has a role
    node.lead(place=AGAIN)
    assert node.replicas.at(*AGAIN).log.end_offset == 0
    assert len(node.data.report.stray) == 1


def test_what_is_removed_while_it_is_flushed_goes_when_that_is_over(node: Node) -> None:
    node.fill()
    partition = node.partition
    flush = partition.log.begin_flush()
    assert flush is not None
    node.remove()
    node.lead(place=AGAIN)
    assert node.produce(place=AGAIN).error == NotLeaderOrFollower.code
    assert node.replicas.offline() == [], "it is a matter of milliseconds"
    flush.run()
    partition.log.end_flush(flush)
    node.replicas.flush_ended(partition)
    node.replicas.probe(node.now_ms, node.now_ms)
    assert node.replicas.at(*AGAIN).leadership is not None
    assert node.data.topic_ids[NAME] == AGAIN[0]


def test_a_log_that_could_not_be_opened_is_offline_and_not_made_anew() -> None:
    node = Node()
    node.data.report.offline[NAME] = StorageError("planted")
    node.lead()
    assert node.produce().error == StorageError.code
    assert node.replicas.offline() == [PLACE]
    node.replicas.probe(node.now_ms, node.now_ms)
    assert node.replicas.offline() == [PLACE]


def test_a_replica_that_finds_no_room_is_made_when_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()

    def full(*_: Any, **__: Any) -> None:
        raise DiskFull("planted")

    with monkeypatch.context() as plant:
        plant.setattr(DataDirectory, "create", full)
        node.lead()
        node.replicas.probe(node.now_ms, node.now_ms)
        assert node.replicas.offline() == [PLACE]
    node.adopt(isr=(1, 2))
    assert node.replicas.offline() == []
    assert node.partition.leadership is not None


def test_a_topic_that_goes_before_its_replica_could_be_made_is_forgotten() -> None:
    node = Node()
    node.data.report.offline[NAME] = StorageError("planted")
    node.lead()
    node.remove()
    assert node.replicas.offline() == []
    with pytest.raises(UnknownTopicId):
        node.replicas.at(TOPIC_ID, 0)


def test_a_full_disk_serves_again_when_there_is_room(node: Node) -> None:
    node.disk.capacity = node.disk.medium.used + 10
    assert node.produce().error == DiskFull.code
    node.replicas.probe(node.now_ms, node.now_ms)
    assert node.produce().error == DiskFull.code
    node.disk.capacity = 1 << 40
    node.replicas.probe(node.now_ms, node.now_ms)
    assert node.produce().waits


def test_leaders_are_those_that_something_is_fetched_from(node: Node) -> None:
    node.follow(2)
    node.adopt(place=(TOPIC_ID, 1), leader=3)
    node.adopt(place=(TOPIC_ID, 2))
    assert node.replicas.leaders() == {2, 3}
    assert list(node.replicas.followed(BrokerId(3))) == [(TOPIC_ID, 1)]


def test_a_proposal_is_announced_once(node: Node) -> None:
    node.adopt(isr=(1, 2))
    for _ in range(3):
        node.fetched(3, 0)
    assert node.proposals == 1
