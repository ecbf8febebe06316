"""A log's first segment that is gone is missed after every kind of end, and what was removed on purpose is not."""

from collections.abc import Callable

import pytest

from tests.storage.logs import batch
from tests.storage.test_data_directory import EVENTS, ID, ORDERS, Node
from tidelog.protocol.types import TopicPartition
from tidelog.storage.checkpoints import LOG_STARTS, RECOVERY_POINTS
from tidelog.storage.crashes import CrashKind
from tidelog.storage.files import NoRoom, read_whole
from tidelog.storage.log import Log
from tidelog.testing.simulation.faults import Crash, Killed, PowerCut

ENDS: dict[str, Callable[[Node], object]] = {
    "killed": Node.kill_and_start,
    "stopped": Node.stop_and_start,
    "power cut": Node.cut_power_and_start,
}


def is_checkpointed(node: Node, partition: TopicPartition = ORDERS) -> Log:
    """It has several segments, and all that they hold is durable and known to be."""
    node.fill(partition)
    node.data.logs[partition].flush()
    node.data.write_recovery_points().run()
    return node.data.logs[partition]


def loses_its_first(node: Node) -> int:
    """Its oldest file vanishes; where the next one begins."""
    log = node.data.logs[ORDERS]
    directory = node.disk.open_directory("/data/orders-0")
    directory.remove(log.segments[0].name)
    directory.flush()
    return log.segments[1].base_offset


def deletes(node: Node, start: int) -> None:
    """As retention does: the log's start is durable before a file goes."""
    log = node.data.logs[ORDERS]
    log.raise_log_start(start)
    node.data.write_log_starts().run()
    log.delete_old_segments()


@pytest.mark.parametrize("segments", [0, 2])
@pytest.mark.parametrize("end", ENDS)
def test_a_first_segment_that_is_gone_is_missed(end: str, segments: int) -> None:
    """What readers from the beginning lack was committed: they got less without a word."""
    node = Node()
    log = is_checkpointed(node)
    is_checkpointed(node, EVENTS)
    deletes(node, start := log.segments[segments].base_offset)
    if end == "stopped":
        node.data.close({})
    first = loses_its_first(node)
    ENDS["killed" if end == "stopped" else end](node)
    damage = f"/data/orders-0: it begins at offset {first}, above its start {start}"
    assert node.data.report.found[ORDERS].damage == [damage]
    assert (node.data.logs[ORDERS].log_start, node.data.life.worst) == (first, CrashKind.DAMAGED)
    assert node.data.report.found[EVENTS].damage == []
    assert node.kill_and_start().report.found[ORDERS].damage == [], "it is said once"


@pytest.mark.parametrize("crash", [Killed, PowerCut])
def test_what_was_deleted_is_not_missed_wherever_a_crash_comes_between(crash: type[Crash]) -> None:
    """Neither what retention has removed, nor what went when the log was emptied and began anew further on."""
    for nth in range(1, 300):
        node = Node(nth)
        is_checkpointed(node)
        node.disk.crash_at(nth, crash=crash)
        try:
            deletes(node, 15)
            node.data.write_recovery_points().run()
            node.data.logs[ORDERS].truncate_fully_and_start_at(100)
            is_checkpointed(node)
        except Crash:
            node.boot = "boot 1" if crash is Killed else "boot 2"
            assert node.start().report.found[ORDERS].damage == [], f"operation {nth}"
        else:
            break
    else:
        raise AssertionError("it never ends")
    assert node.kill_and_start().report.found[ORDERS].damage == []


@pytest.mark.parametrize("crash", [Killed, PowerCut])
def test_a_log_that_began_anew_is_not_missed_where_the_checkpoints_are_written_for_another(
    crash: type[Crash],
) -> None:
    """Whatever writes recovery points down writes down before where the logs start."""
    others: list[Callable[[Node], object]] = [
        lambda node: node.data.logs[EVENTS].truncate_to(7, now_ms=0),
        lambda node: node.data.make_removals_durable(node.data.write_removals()),
        lambda node: node.data.create(TopicPartition("new", 0), ID, now_ms=0),
    ]
    for other in others:
        for nth in range(1, 60):
            node = Node(nth)
            is_checkpointed(node)
            is_checkpointed(node, EVENTS)
            node.data.logs[ORDERS].truncate_fully_and_start_at(100)
            node.fill()
            node.data.logs[ORDERS].flush()
            node.data.write_recovery_points()  # a worker thread has it, and has not come to it
            node.disk.crash_at(nth, crash=crash)
            try:
                other(node)
            except Crash:
                node.boot = "boot 1" if crash is Killed else "boot 2"
                assert node.start().report.found[ORDERS].damage == [], f"operation {nth}"
            else:
                break
        else:
            raise AssertionError("it never ends")


def test_no_recovery_point_is_written_where_there_is_no_room_for_the_log_starts() -> None:
    node = Node()
    log = is_checkpointed(node)
    log.truncate_fully_and_start_at(100)
    log.append(batch(), 0, now_ms=0)
    log.flush()
    points = read_whole(node.data.directory, RECOVERY_POINTS)
    starts = read_whole(node.data.directory, LOG_STARTS)
    node.disk.capacity = node.disk.medium.used
    with pytest.raises(NoRoom):
        node.data.write_recovery_points().run()
    assert read_whole(node.data.directory, RECOVERY_POINTS) == points
    assert read_whole(node.data.directory, LOG_STARTS) == starts
    assert node.kill_and_start().report.found[ORDERS].damage == []
