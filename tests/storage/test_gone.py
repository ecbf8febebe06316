"""A partition's directory that is gone as a whole is missed, and one that was removed on purpose is not (ADR 120)."""

from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pytest

from tests.storage.test_data_directories import Node as TwoDisks
from tests.storage.test_data_directories import orders, two_disks
from tests.storage.test_data_directory import EVENTS, ID, ORDERS, OTHER_ID, Node
from tidelog.protocol.types import TopicPartition
from tidelog.storage import making
from tidelog.storage.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS
from tidelog.storage.crashes import CrashKind
from tidelog.testing.simulation.faults import Crash, Killed, PowerCut

ENDS: dict[str, Callable[[Node], object]] = {
    "killed": Node.kill_and_start,
    "stopped": Node.stop_and_start,
    "power cut": Node.cut_power_and_start,
}


def is_checkpointed(node: Node) -> Node:
    node.fill(ORDERS)
    node.fill(EVENTS)
    node.data.write_high_watermarks({ORDERS: 40}).run()
    node.data.write_recovery_points().run()
    return node


def loses(node: Node, partition: str = "orders-0") -> Node:
    node.disk.open_directory("/data").remove_directory(partition)
    node.disk.open_directory("/data").flush()
    return node


@pytest.mark.parametrize("end", ENDS)
def test_a_directory_that_is_gone_is_missed(end: str) -> None:
    node = is_checkpointed(Node())
    if end == "stopped":
        node.data.close({})
    ENDS["killed" if end == "stopped" else end](loses(node))
    assert node.data.gone == [ORDERS]
    assert node.data.report.problems == ["/data/orders-0 is gone, with all that it held"]
    assert (list(node.data.logs), node.data.life.worst is CrashKind.DAMAGED) == ([EVENTS], False)


def test_a_directory_of_an_empty_log_is_missed_too() -> None:
    """What the checkpoints say is up to some seconds old: nobody knows that it was empty."""
    node = Node()
    node.data.create(ORDERS, ID, now_ms=0)
    node.data.write_recovery_points().run()
    assert loses(node).kill_and_start().gone == [ORDERS]


@pytest.mark.parametrize("name", [HIGH_WATERMARKS, RECOVERY_POINTS])
def test_either_checkpoint_tells_it(name: str) -> None:
    node = loses(is_checkpointed(Node()))
    node.data.directory.remove(name)
    assert node.kill_and_start().gone == [ORDERS]


def test_without_checkpoints_nothing_is_missed() -> None:
    node = loses(is_checkpointed(Node()))
    for name in (HIGH_WATERMARKS, RECOVERY_POINTS):
        node.data.directory.remove(name)
    assert node.kill_and_start().gone == []


def test_what_was_never_made_is_not_missed() -> None:
    node = Node()
    node.data.begin_making(ORDERS, ID)
    node.data.write_recovery_points().run()
    assert node.kill_and_start().gone == []


@pytest.mark.parametrize("end", ENDS)
def test_it_is_missed_until_the_controller_knows(end: str) -> None:
    node = loses(is_checkpointed(Node()))
    node.kill_and_start()
    ENDS[end](node)
    assert node.data.gone == [ORDERS]
    node.data.life.registered(7)
    node.data.registered()
    assert node.data.gone == []
    node.data.write_recovery_points().run()
    node.data.write_high_watermarks({}).run()
    ENDS[end](node)
    assert node.data.gone == []


def test_what_is_made_in_its_place_is_missed_when_that_is_gone_and_only_then() -> None:
    node = loses(is_checkpointed(Node()))
    node.kill_and_start()
    node.data.registered()
    node.data.create(ORDERS, OTHER_ID, now_ms=0)
    assert node.kill_and_start().gone == []
    assert node.data.high_watermark(ORDERS) == 0
    assert loses(node).kill_and_start().gone == [ORDERS]


@pytest.mark.parametrize("length", [6, 249])
@pytest.mark.parametrize("crash", [Killed, PowerCut])
def test_what_was_removed_on_purpose_is_not_missed_wherever_a_crash_comes_between(
    crash: type[Crash], length: int
) -> None:
    """Neither by this start nor by the next one, which a crash may end as well."""
    partition = TopicPartition("t" * length, 0)
    for nth in count(1):
        node = Node(nth)
        node.fill(partition, 12)
        node.data.write_high_watermarks({partition: 24}).run()
        node.data.write_recovery_points().run()
        node.disk.crash_at(nth, crash=crash)
        try:
            left, removals = node.data.remove(partition), node.data.write_removals()
            node.data.make_removals_durable(removals)
            node.data.destroy(left)
        except Crash:
            starts_in_the_end(node, crash)
            assert node.data.gone == [], f"operation {nth}"
        else:
            assert nth > 20
            assert node.kill_and_start().gone == []
            return


def starts_in_the_end(node: Node, crash: type[Crash]) -> None:
    """Each start comes one operation further than the one before."""
    for nth in count(1):
        node.boot = "boot 1" if crash is Killed else f"boot {nth + 1}"
        node.disk.crash_at(nth, crash=crash)
        with suppress(Crash):
            node.start()
            return


def make(node: Node) -> None:
    node.data.create(ORDERS, OTHER_ID, now_ms=0)


def make_among_many(node: Node) -> None:
    made = node.data.begin_making(ORDERS, OTHER_ID)
    making.run(node.data.directory, [made])
    node.data.create(ORDERS, OTHER_ID, now_ms=0, made=True)


@pytest.mark.parametrize("make", [make, make_among_many])
def test_what_is_made_anew_before_a_removal_is_durable_does_not_lack_what_was_removed(
    make: Callable[[Node], None],
) -> None:
    """All that lies on the disk would lose its standing for it."""
    node = is_checkpointed(Node())
    node.data.remove(ORDERS)
    node.data.write_removals()  # a worker thread has them, and has not come to them
    make(node)
    node.kill_and_start()
    assert (node.data.life.worst, node.data.report.problems) == (CrashKind.PROCESS, [])
    assert node.data.high_watermark(ORDERS) == 0


def test_an_empty_directory_of_which_checkpoints_know_is_no_new_one() -> None:
    node = Node()
    node.data.create(ORDERS, ID, now_ms=0)
    node.data.write_recovery_points().run()
    directory = node.disk.open_directory("/data/orders-0")
    for name in directory.names():
        directory.remove(name)
    assert node.kill_and_start().gone == [ORDERS]


def test_a_full_disk_keeps_nothing_from_being_removed() -> None:
    node = is_checkpointed(Node())
    left, removals = node.data.remove(ORDERS), node.data.write_removals()
    node.disk.capacity = node.disk.medium.used
    node.data.make_removals_durable(removals)
    node.data.destroy(left)
    assert not any(name.startswith("orders") for name in node.data.directory.names())


def test_what_somebody_moved_to_another_disk_is_not_gone() -> None:
    node: TwoDisks = two_disks()
    node.make(0, 1, 2)
    number = node.lies()["b"][0]
    node.data.write_recovery_points()
    for write in node.data.write_recovery_points():
        write.pending.run()
    one, other = (node.disks[name].open_directory(f"/{name}") for name in "ab")
    name = f"orders-{number}"
    moved = one.directory(name, create=True)
    for file in other.directory(name).names():
        source = other.directory(name).open(file)
        moved.open(file, create=True).write_at(0, source.read_at(0, source.size()))
    other.remove_directory(name)
    node.start()
    assert [data.gone for data in node.data.all] == [[], []]
    node.disks["a"].open_directory("/a").remove_directory(name)
    node.start()
    assert [data.gone for data in node.data.all] == [[orders(number)], []]
