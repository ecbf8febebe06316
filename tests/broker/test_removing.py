"""What is left of deleted topics leaves the disk beside all else: nobody waits for it, and no crash keeps it."""

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from tests.broker.node import PLACE, Node
from tests.broker.test_replicas import AGAIN
from tests.protocol.io.peers import until
from tests.simulation.cluster import QUICK
from tests.simulation.directed import Town
from tidelog.broker.upkeep import Upkeep
from tidelog.client.admin import NewTopic
from tidelog.protocol.errors import StorageError
from tidelog.protocol.messages import DeleteTopics, DeleteTopicsReply
from tidelog.protocol.types import TopicPartition
from tidelog.storage.names import DELETED
from tidelog.testing import Cluster
from tidelog.testing.simulation.world import World

PATIENCE_S = 30.0


async def test_a_disk_that_is_slow_to_remove_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers, client and test are on one loop: if that were held, nothing of this would happen before it ends."""
    removing, may_go_on = threading.Event(), threading.Event()
    really = shutil.rmtree

    def slow(path: str) -> None:
        if path.endswith(DELETED):
            removing.set()
            assert may_go_on.wait(PATIENCE_S), "the loop waits for the disk"
        really(path)

    monkeypatch.setattr(shutil, "rmtree", slow)
    directory = tmp_path / "broker-1"
    async with Cluster(1, directory=tmp_path) as cluster, cluster.client() as client:
        await client.admin.create_topics(NewTopic("t", 3, 1))
        await client.admin.delete_topics("t")
        await until(removing.is_set, "the first directory is being removed")
        await client.admin.create_topics(NewTopic("t", 3, 1))
        async with client.producer() as producer, client.consumer(auto_offset_reset="earliest") as consumer:
            await producer.send("t", b"new", partition=0)
            consumer.assign([TopicPartition("t", 0)])
            found = await consumer.getmany(timeout=PATIENCE_S)
            assert [record.value for records in found.values() for record in records] == [b"new"]
        assert len(list(directory.glob("*" + DELETED))) == 3
        may_go_on.set()
        await until(lambda: not list(directory.glob("*" + DELETED)), "all that was left is removed")
        assert len(list(directory.glob("t-*"))) == 3, "and what has the name now is not"


def test_a_kill_before_it_is_removed_leaves_nothing_behind_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    with World(11).running() as world:
        town = Town(world, config=QUICK)
        town.produce(5)
        leader = town.leader() or 0
        other = town.others()[0]
        root = town.cluster.brokers[other].data.first.directory
        with monkeypatch.context() as plant:
            plant.setattr(Upkeep, "_destroy", never)
            reply, _ = town.do(lambda client: client.ask(town.address(leader), DeleteTopics(("orders",))))
            assert isinstance(reply, DeleteTopicsReply)
            town.cluster.until(lambda: any(name.endswith(DELETED) for name in root.names()), 10)
            town.cluster.hosts[other].kill()
        before = town.cluster.brokers.get(other)
        town.cluster.start(other)
        town.cluster.until(
            lambda: (now := town.cluster.brokers.get(other)) not in {None, before} and now.serving, 20
        )
        after = town.cluster.brokers[other].data.first.directory
        assert not [name for name in after.names() if name.startswith("orders")]


def test_a_log_made_anew_has_nothing_to_do_with_the_one_that_is_being_removed() -> None:
    node = Node()
    node.lead()
    node.fill(3)
    told: list[bool] = []
    node.replicas.data.on_left = lambda: told.append(True)
    node.remove()
    node.lead(place=AGAIN)
    assert told
    taken = node.replicas.data.take_left(10)
    assert taken is not None
    data, (name,) = taken
    data.directory.flush()
    data.destroy(name)
    assert node.replicas.at(*AGAIN).log.end_offset == 0
    assert node.produce(place=AGAIN).waits
    assert node.replicas.data.take_left(10) is None
    assert PLACE not in node.replicas.partitions


def test_so_many_are_taken_at_once_and_none_of_a_disk_that_has_failed() -> None:
    node = Node()
    for index in range(5):
        node.lead(place=(PLACE[0], index))
    for index in range(5):
        node.remove((PLACE[0], index))
    left = node.replicas.data
    first = left.take_left(3)
    assert first is not None
    assert len(first[1]) == 3
    node.data.failure = StorageError("planted")
    assert left.take_left(3) is None
