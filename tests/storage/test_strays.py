"""Strays on a disk: what is found of them, and how they go (design 1.1, 1.8)."""

from random import Random

import pytest

from tidelog.protocol.types import TopicPartition
from tidelog.storage.files import Directory
from tidelog.storage.identity import write_topic_id
from tidelog.storage.names import DELETED, STRAY, parse_parted
from tidelog.storage.strays import give_up, strays
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.faults import Crash, Killed, PowerCut

ID = b"a" * 16
NAME = f"orders-3.{7:032x}{STRAY}"


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(Random(1))


def stray_in(root: Directory, name: str = NAME, *, topic_id: bytes | None = ID) -> None:
    inside = root.directory(name, create=True)
    if topic_id is not None:
        write_topic_id(inside, topic_id)
    log = inside.open("00000000000000000000.log", create=True)
    log.write_at(0, b"x" * 1000)
    log.flush()
    inside.flush()
    root.flush()


def test_a_stray_says_what_it_was_and_how_large_it_is(disk: SimulatedDisk) -> None:
    root = disk.open_directory("/data")
    stray_in(root)
    root.directory("orders-4", create=True)
    [stray] = strays(root)
    assert (stray.name, stray.partition, stray.topic_id) == (NAME, TopicPartition("orders", 3), ID)
    assert 1000 < stray.size < 1200


def test_of_a_stray_without_an_id_nobody_says_whose_it_is(disk: SimulatedDisk) -> None:
    root = disk.open_directory("/data")
    stray_in(root, topic_id=None)
    [stray] = strays(root)
    assert stray.topic_id is None


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        (NAME, TopicPartition("orders", 3)),
        (f"a-b.c-0.{1:032x}{STRAY}", TopicPartition("a-b.c", 0)),
        (f"orders-3{STRAY}", None),
        (f"orders.{7:032x}{STRAY}", None),
        (f"orders-3.{7:032x}{DELETED}", None),
        (f"orders-3.{7:031x}{STRAY}", None),
        ("orders-3", None),
    ],
)
def test_its_name_says_of_which_partition_it_was(name: str, partition: TopicPartition | None) -> None:
    assert parse_parted(name, STRAY) == partition


def test_a_stray_that_is_given_up_is_gone_and_nothing_else(disk: SimulatedDisk) -> None:
    root = disk.open_directory("/data")
    other = f"orders-3.{8:032x}{STRAY}"
    stray_in(root)
    stray_in(root, other)
    root.directory("orders-3", create=True)
    give_up(root, next(stray for stray in strays(root) if stray.name == NAME))
    assert sorted(root.names()) == ["orders-3", other]


@pytest.mark.parametrize("crash", [Killed, PowerCut])
def test_a_crash_while_it_is_removed_leaves_it_whole_or_by_a_name_that_the_next_start_removes(
    crash: type[Crash],
) -> None:
    for nth in range(1, 40):
        disk = SimulatedDisk(Random(nth))
        root = disk.open_directory("/data")
        stray_in(root)
        [stray] = strays(root)
        disk.crash_at(nth, crash=crash)
        try:
            give_up(root, stray)
        except Crash:
            root = disk.open_directory("/data")
            assert all(name.endswith(DELETED) or strays(root) == [stray] for name in root.names()), nth
        else:
            assert nth > 3
            return
    raise AssertionError("it never ends")
