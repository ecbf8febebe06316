"""The replicas of a broker with two disks, when one of them fails under them (ADR 106)."""

from contextlib import nullcontext
from random import Random

import pytest

from tests.broker.node import TOPIC_ID, records
from tests.broker.test_making import PLACES, Maker
from tests.storage.logs import Halted
from tidelog.protocol.errors import StorageError
from tidelog.protocol.messages import ACKS_ALL
from tidelog.protocol.types import TopicPartition
from tidelog.storage import making
from tidelog.storage.config import LogConfig
from tidelog.storage.crashes import Life
from tidelog.storage.data_directories import DataDirectories
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.works import take_here
from tidelog.testing.simulation.disk import SimulatedDisk


def halt(what: str, error: OSError) -> None:
    raise Halted(f"{what}: {error}")


class TwoDisks(Maker):
    """Partitions with even numbers lie on the first disk."""

    def __init__(self) -> None:
        super().__init__()
        self.second = SimulatedDisk(Random(2))
        root = self.second.open_directory("/second")
        life = Life.begin(
            root, directory_id=b"e" * 16, incarnation_id=b"i" * 16, boot_id="boot", has_partitions=False
        )
        other = DataDirectory(root, life, LogConfig(), OpenSegments(), halt=halt, new_guard=nullcontext)  # type: ignore[arg-type]
        take_here(other.open(0))
        self.replicas.data = self.both = DataDirectories([self.data, other])
        self.both.on_failure = self.replicas.directory_failed

    def make(self, most: int = 100) -> int:
        begun = self.replicas.begin_making(most)
        for root, share in self.both.shares(begun, 2):
            making.run(root, share)
        for each in begun:
            self.replicas.made(each, self.now_ms, self.now_ms)
        return len(begun)

    def offline(self) -> list[int]:
        return sorted(index for _, index in self.replicas.offline())

    def fail_flush(self, index: int) -> None:
        log = self.replicas.partitions[PLACES[index]].log
        self.second.fail_flush()
        with pytest.raises(StorageError, match="the directory has failed"):
            log.flush()

    def send(self, index: int) -> None:
        self.replicas.at(*PLACES[index]).produce(
            records(1), ACKS_ALL, -1, now_ms=self.now_ms, wall_ms=self.now_ms
        )


def test_all_that_lies_on_a_failed_disk_is_offline_at_once_and_nothing_else() -> None:
    node = TwoDisks()
    node.place(4)
    node.send(1)
    node.fail_flush(1)
    assert node.offline() == [1, 3]
    with pytest.raises(StorageError, match="the directory has failed"):
        node.send(3)
    node.send(2)
    assert node.replicas.proposing.keys() <= {PLACES[0], PLACES[2]}


def test_what_leaves_a_failed_disk_and_comes_again_waits_for_a_restart() -> None:
    """The next start would find it twice."""
    node = TwoDisks()
    node.place(2)
    node.send(1)
    node.fail_flush(1)
    node.replicas.adopt({}, [PLACES[1]], 0, 0)
    assert node.offline() == []
    node.place(2)
    node.replicas.probe(node.now_ms, node.now_ms)
    assert node.offline() == [1]
    assert TopicPartition("orders", 1) not in node.both.logs


def test_logs_that_were_being_made_on_a_disk_that_dies_are_made_on_another() -> None:
    node = TwoDisks()
    node.place()
    begun = node.replicas.begin_making(100)
    shares = node.both.shares(begun, 2)
    node.second.broken = True
    for root, share in shares:
        making.run(root, share)
    for each in begun:
        node.replicas.made(each, node.now_ms, node.now_ms)
    lacking = node.offline()
    assert lacking == [index for index in range(len(PLACES)) if index % 2 == 1]
    node.replicas.probe(node.now_ms, node.now_ms)
    assert node.offline() == []
    assert {data.directory.path for data in map(node.both.of, node.both.logs)} == {"/data"}
    assert set(node.both.topic_ids.values()) == {TOPIC_ID}
