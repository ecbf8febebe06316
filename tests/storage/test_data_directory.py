"""A data directory over many lives: what it opens, what it refuses to inherit, and what it tells."""

import errno
from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from typing import NoReturn

import pytest

from tests.storage.logs import SMALL, Halted, batch, contents
from tidelog.protocol.errors import InvalidTopic, StorageError
from tidelog.protocol.types import TopicPartition
from tidelog.storage import making
from tidelog.storage.checkpoints import HIGH_WATERMARKS, OFFSET_CHECKPOINTS, RECOVERY_POINTS
from tidelog.storage.crashes import CrashKind, Life
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.identity import claim
from tidelog.storage.names import parse_partition, partition_name
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.producers import Producers
from tidelog.storage.segment import Segment
from tidelog.storage.works import take_here
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.faults import Crash, Killed, PowerCut

ORDERS = TopicPartition("orders", 0)
EVENTS = TopicPartition("click-events", 12)
ID = b"0123456789abcdef"
OTHER_ID = b"fedcba9876543210"


class Node:
    """A node's disk, and the life it is in."""

    def __init__(self, seed: int = 0) -> None:
        self.disk = SimulatedDisk(Random(seed))
        self.boot = "boot 1"
        self.lives = 0
        self.start()

    def start(self) -> DataDirectory:
        self.lives += 1
        root = self.disk.open_directory("/data")
        claimed = claim(
            root, role="broker", node_id=1, cluster_id=b"c" * 16, new_directory_id=b"d" * 16, pid=self.lives
        )
        life = Life.begin(
            root,
            directory_id=claimed.identity.directory_id,
            incarnation_id=self.lives.to_bytes(16, "big"),
            boot_id=self.boot,
            has_partitions=any(parse_partition(name) for name in root.names()),
        )
        self.data = DataDirectory(root, life, SMALL, OpenSegments(), halt=halt, new_guard=nullcontext)
        with self.data.starting():
            take_here(self.data.open(now_ms=0))
        return self.data

    def kill_and_start(self) -> DataDirectory:
        self.disk.kill()
        return self.start()

    def cut_power_and_start(self) -> DataDirectory:
        self.disk.power_cut()
        self.boot = f"boot {self.lives}"
        return self.start()

    def stop_and_start(self, committed: int = 0) -> DataDirectory:
        self.data.close(dict.fromkeys(self.data.logs, committed))
        self.disk.kill()
        return self.start()

    def fill(self, partition: TopicPartition = ORDERS, count: int = 20) -> bytes:
        log = self.data.logs.get(partition) or self.data.create(partition, ID, now_ms=0)
        for _ in range(count):
            log.append(batch(2), 0, now_ms=0)
        return contents(log)


def halt(what: str, error: OSError) -> NoReturn:
    raise Halted(f"{what}: {error}")


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.mark.parametrize("name", ["orders-0", "click-events-12", "a.b_c-9", "x--1"])
def test_a_partition_is_named_by_topic_and_number(name: str) -> None:
    partition = parse_partition(name)
    assert partition is not None
    assert partition_name(partition) == name


@pytest.mark.parametrize(
    "name", ["orders", "orders-", "-1", "orders-01", "..-1", "o/x-1", "orders-0.00ff-delete"]
)
def test_other_names_are_no_partitions(name: str) -> None:
    assert parse_partition(name) is None


def test_a_topic_that_cannot_be_a_directory_is_refused(node: Node) -> None:
    with pytest.raises(InvalidTopic):
        node.data.create(TopicPartition("a/b", 0), ID, now_ms=0)


def test_every_log_is_there_again_after_every_kind_of_end(node: Node) -> None:
    written = {ORDERS: node.fill(ORDERS), EVENTS: node.fill(EVENTS, 3)}
    for again, kind in (
        (node.kill_and_start, CrashKind.PROCESS),
        (node.stop_and_start, CrashKind.CLEAN),
        (node.cut_power_and_start, CrashKind.HOST),
    ):
        data = again()
        assert {partition: contents(log) for partition, log in data.logs.items()} == written
        assert data.topic_ids == {ORDERS: ID, EVENTS: ID}
        assert data.life.last_end is kind
        assert data.report.problems == []


def test_a_new_log_is_there_after_the_loss_of_power(node: Node) -> None:
    node.data.create(ORDERS, ID, now_ms=0)
    assert list(node.cut_power_and_start().logs) == [ORDERS]


def test_the_high_watermark_is_within_what_there_is_of_the_log(node: Node) -> None:
    node.fill(count=5)
    node.data.write_high_watermarks({ORDERS: 6}).run()
    assert node.kill_and_start().high_watermark(ORDERS) == 6
    node.data.logs[ORDERS].truncate_to(4, now_ms=0)
    assert node.data.high_watermark(ORDERS) == 4
    node.data.logs[ORDERS].truncate_fully_and_start_at(9)
    assert node.data.high_watermark(ORDERS) == 9


def test_a_topic_made_again_inherits_nothing(node: Node) -> None:
    """KAFKA-1647, KIP-516: not the high watermark, not the recovery point, not a record (I-37)."""
    node.fill(count=20)
    node.stop_and_start(committed=40)
    node.data.destroy(node.data.remove(ORDERS))
    node.data.create(ORDERS, OTHER_ID, now_ms=0).append(batch(), 0, now_ms=0)
    data = node.cut_power_and_start()
    assert data.topic_ids == {ORDERS: OTHER_ID}
    assert data.high_watermark(ORDERS) == 0
    assert data.report.found[ORDERS].damage == []


def test_a_removed_log_stays_away_even_if_it_was_not_destroyed(node: Node) -> None:
    node.fill()
    node.data.remove(ORDERS)
    assert node.kill_and_start().logs == {}
    assert not any("orders" in name for name in node.data.directory.names())


def test_that_a_log_was_removed_is_durable_with_its_directory_or_the_next_log_of_that_name(
    node: Node,
) -> None:
    for again in (False, True):
        node.fill()
        node.data.remove(ORDERS)
        if again:
            node.data.create(ORDERS, OTHER_ID, now_ms=0)
        else:
            node.data.directory.flush()
        data = node.cut_power_and_start()
        assert data.topic_ids == ({ORDERS: OTHER_ID} if again else {})
        assert sum("orders" in name for name in data.directory.names()) == again


@pytest.mark.parametrize("crash", [Killed, PowerCut])
def test_a_crash_while_a_log_is_destroyed_leaves_nothing_of_it(crash: type[Crash]) -> None:
    nth = 0
    while True:
        nth += 1
        node = Node(nth)
        node.fill(ORDERS, 12)
        left = node.data.remove(ORDERS)
        node.data.directory.flush()
        node.disk.crash_at(nth, crash=crash)
        try:
            node.data.destroy(left)
        except Crash:
            node.boot = "boot 1" if crash is Killed else "boot 2"
            data = node.start()
            assert (data.logs, data.report.stray) == ({}, []), f"operation {nth}"
            assert not any("orders" in name for name in data.directory.names())
        else:
            break
    assert nth > 3


def test_a_directory_of_nobodys_topic_is_kept_and_not_served(node: Node) -> None:
    node.fill()
    node.data.directory.directory("orders-0").remove("partition.metadata")
    data = node.kill_and_start()
    assert data.logs == {}
    assert "-stray: " in data.report.stray[0]
    assert any(name.endswith("-stray") for name in data.directory.names())


def test_a_log_that_the_cluster_does_not_want_is_kept_and_not_served(node: Node) -> None:
    node.fill()
    node.data.stray(ORDERS)
    node.fill(count=3)
    node.data.stray(ORDERS)
    assert sum(name.endswith("-stray") for name in node.data.directory.names()) == 2
    assert node.kill_and_start().logs == {}


@pytest.mark.parametrize("name", OFFSET_CHECKPOINTS)
def test_a_checkpoint_harmed_at_every_byte_is_told_and_costs_no_record(name: str) -> None:
    for position in range(0, 70, 3):
        node = Node()
        written = node.fill(count=5)
        node.stop_and_start(committed=10)
        if position >= node.data.directory.size_of(name):
            return
        node.disk.rot(f"/data/{name}", position, position % 8)
        data = node.kill_and_start()
        assert contents(data.logs[ORDERS]) == written
        assert any(name in problem for problem in data.report.problems)
        assert data.high_watermark(ORDERS) == (0 if name == HIGH_WATERMARKS else 10)


def test_without_recovery_points_everything_is_verified(node: Node) -> None:
    written = node.fill()
    node.stop_and_start()
    node.data.directory.remove(RECOVERY_POINTS)
    data = node.kill_and_start()
    assert data.report.found[ORDERS].verified_bytes == len(written)


def test_damage_is_remembered_until_the_controller_knows(node: Node) -> None:
    """A kill right behind recovery must not make a damaged replica look whole (docs/STORAGE.md, 8)."""
    node.fill()
    node.stop_and_start()
    segment = node.data.logs[ORDERS].segments[1].name
    node.data.directory.directory("orders-0").remove(segment)
    assert node.kill_and_start().life.worst is CrashKind.DAMAGED
    assert node.kill_and_start().report.found[ORDERS].damage == []
    assert node.data.life.worst is CrashKind.DAMAGED
    node.data.life.registered(7)
    assert node.kill_and_start().life.worst is CrashKind.PROCESS


def test_a_log_below_its_committed_offset_is_damaged(node: Node) -> None:
    node.fill(count=5)
    node.data.write_high_watermarks({ORDERS: 10}).run()
    log = node.data.logs[ORDERS]
    log.segments[-1].file().truncate(log.segments[-1].size - 1)
    assert node.kill_and_start().life.worst is CrashKind.DAMAGED
    node.data.life.registered(3)  # who knows what is lost now: it is not missed a second time
    assert node.kill_and_start().life.worst is CrashKind.PROCESS


def test_a_log_that_cannot_be_opened_is_offline_and_the_others_serve(node: Node) -> None:
    node.fill(ORDERS)
    written = node.fill(EVENTS)
    node.disk.fail_reads("/data/orders-0/00000000000000000000.log", 0, 4000)
    data = node.kill_and_start()
    assert list(data.report.offline) == [ORDERS]
    assert contents(data.logs[EVENTS]) == written


@pytest.mark.parametrize("ending", [".index", ".timeindex", ".snapshot"])
def test_a_cache_that_cannot_be_read_takes_no_log_offline_and_is_no_damage(node: Node, ending: str) -> None:
    written = node.fill(ORDERS)
    log = node.data.logs[ORDERS]
    log.flush()
    node.data.write_recovery_points().run()
    name = [name for name in log.directory.names() if name.endswith(ending)][-1]
    node.disk.fail_reads(f"{log.directory.path}/{name}", 0, 1 << 16)
    data = node.kill_and_start()
    assert (data.report.offline, data.life.worst) == ({}, CrashKind.PROCESS)
    assert contents(data.logs[ORDERS]) == written


def test_no_stop_is_clean_while_a_log_is_offline(node: Node) -> None:
    """KAFKA-15375."""
    node.fill(ORDERS)
    node.disk.fail_reads("/data/orders-0/00000000000000000000.log", 0, 4000)
    node.kill_and_start()
    node.stop_and_start()
    assert node.data.life.last_end is not CrashKind.CLEAN


def test_a_log_that_could_not_be_opened_keeps_its_checkpoints(node: Node) -> None:
    """Else its recovery point would be 0 at the next start, and damage below it cut off in silence (I-36)."""
    node.fill(ORDERS)
    node.fill(EVENTS)
    node.data.logs[ORDERS].raise_log_start(5)
    node.stop_and_start(committed=40)
    path = "/data/orders-0/00000000000000000000.log"
    node.disk.fail_reads(path, 0, 4000)
    data = node.kill_and_start()
    data.write_high_watermarks({EVENTS: 40}).run()
    data.write_recovery_points().run()
    data.logs[EVENTS].truncate_to(7, now_ms=0)
    node.disk.medium.file_at(path).unreadable.clear()
    data = node.kill_and_start()
    assert (data.logs[ORDERS].log_start, data.high_watermark(ORDERS)) == (5, 40)
    assert data.report.found[ORDERS].verified_bytes == 0


def test_damage_is_reported_also_after_a_start_that_could_not_read_it(node: Node) -> None:
    node.fill(ORDERS)
    node.stop_and_start(committed=40)
    path = "/data/orders-0/00000000000000000000.log"
    node.disk.fail_reads(path, 0, 4000)
    node.kill_and_start().write_high_watermarks({}).run()
    node.disk.medium.file_at(path).unreadable.clear()
    node.disk.rot(path, len(batch(2)) + 3)
    node.data.directory.directory("orders-0").remove("00000000000000000000.index")
    assert node.kill_and_start().report.found[ORDERS].damage != []


def test_a_log_that_could_not_be_opened_is_not_made_anew(node: Node) -> None:
    node.fill(ORDERS)
    node.disk.fail_reads("/data/orders-0/00000000000000000000.log", 0, 4000)
    node.kill_and_start()
    with pytest.raises(StorageError, match="orders-0 could not be opened"):
        node.data.create(ORDERS, OTHER_ID, now_ms=0)


def full(node: Node, left: int = 0) -> None:
    node.disk.capacity = node.disk.capacity - node.data.directory.free_space() + left


@pytest.mark.parametrize("again", [Node.kill_and_start, Node.cut_power_and_start, Node.stop_and_start])
def test_a_node_starts_on_a_full_disk_and_gives_all_that_it_has(again: Callable[[Node], object]) -> None:
    node = Node()
    written = node.fill()
    if again is Node.stop_and_start:
        node.data.close({})
        again = Node.kill_and_start
    else:
        node.data.logs[ORDERS].flush()
    full(node)
    again(node)
    assert contents(node.data.logs[ORDERS]) == written
    assert node.data.report.offline == {}
    assert node.data.life.worst is not CrashKind.DAMAGED
    node.disk.capacity = 1 << 40
    node.fill(count=3)
    assert contents(node.kill_and_start().logs[ORDERS]).startswith(written)


@pytest.mark.parametrize("harm", ["a batch is rotten", "the end is missing"])
def test_a_log_that_a_full_disk_kept_from_opening_opens_when_there_is_room(node: Node, harm: str) -> None:
    """What is to be set aside or said before it may be served finds room; no restart is needed."""
    written = node.fill()
    node.data.logs[ORDERS].flush()
    node.data.write_recovery_points().run()
    path, kept = "/data/orders-0/00000000000000000000.log", len(batch(2))
    if harm == "a batch is rotten":
        node.disk.rot(path, kept + 3)
        node.data.directory.directory("orders-0").remove("00000000000000000000.index")
    else:
        node.disk.medium.truncate(node.disk.medium.file_at(path), kept)
    node.disk.kill()
    node.disk.capacity = node.disk.medium.used
    node.start()
    assert list(node.data.report.offline) == [ORDERS]
    assert not node.data.open_again(ORDERS, now_ms=0)
    # As for a log that could not be written: two segments, or less where that is enough to take records again.
    node.data.room.min_free = SMALL.segment_bytes
    full(node, left=node.data.room.enough - 1)
    assert not node.data.open_again(ORDERS, now_ms=0)
    full(node, left=node.data.room.enough)
    assert node.data.open_again(ORDERS, now_ms=0)
    node.disk.capacity = 1 << 40
    assert node.data.report.offline == {}
    assert contents(node.data.logs[ORDERS]) == written[:kept]
    assert node.data.life.worst is CrashKind.DAMAGED
    node.fill(count=3)
    node.data.logs[ORDERS].flush()
    node.stop_and_start()
    assert (node.data.life.last_end, node.data.logs[ORDERS].end_offset) == (CrashKind.CLEAN, 8)


def test_who_had_no_room_to_say_that_it_runs_stops_cleanly_all_the_same(node: Node) -> None:
    node.fill()
    node.stop_and_start()
    node.data.close({})
    full(node, left=-1000)
    node.disk.kill()
    node.start()
    assert not node.data.directory.exists(".running")
    node.disk.capacity = 1 << 40
    assert node.stop_and_start().life.last_end is CrashKind.CLEAN


def test_a_stop_that_the_disk_had_no_room_for_was_none(node: Node) -> None:
    written = node.fill()
    full(node)
    node.data.close({ORDERS: 40})
    node.disk.kill()
    assert node.start().life.last_end is CrashKind.PROCESS
    assert contents(node.data.logs[ORDERS]) == written


def test_a_log_that_cannot_be_opened_for_want_of_files_is_offline_and_not_damaged(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fill()

    monkeypatch.setattr(Segment, "file", too_many_files)
    data = node.kill_and_start()
    assert list(data.report.offline) == [ORDERS]
    assert data.life.worst is CrashKind.PROCESS


def test_a_log_that_went_offline_is_not_stopped_cleanly(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it knows of its producers is not what its batches say: no snapshot may tell it (KAFKA-15375)."""
    node.fill(count=3)
    monkeypatch.setattr(Producers, "apply", too_little_memory)
    with pytest.raises(StorageError, match="offline"):
        node.data.logs[ORDERS].append(batch(producer=7), 0, now_ms=0)
    monkeypatch.undo()
    node.stop_and_start()
    assert node.data.life.last_end is CrashKind.PROCESS
    assert node.data.logs[ORDERS].append(batch(producer=7), 0, now_ms=0).duplicate


def too_many_files(*_: object) -> NoReturn:
    raise OSError(errno.EMFILE, "Too many open files")


def too_little_memory(*_: object) -> NoReturn:
    raise MemoryError


# ── cuts, and what the checkpoints say of what was cut ────────────────────────────────────────────


@pytest.mark.parametrize("crash", [Killed, PowerCut])
def test_what_was_cut_off_on_purpose_is_not_missed(crash: type[Crash]) -> None:
    """A log that was cut below its high watermark, or emptied, is not damaged, wherever a crash strikes."""
    for nth in range(1, 200):
        node = Node(nth)
        node.fill(count=20)
        node.data.logs[ORDERS].raise_log_start(15)
        node.stop_and_start(committed=40)
        node.disk.crash_at(nth, crash=crash)
        try:
            node.data.logs[ORDERS].truncate_to(20, now_ms=0)
            node.data.logs[ORDERS].truncate_fully_and_start_at(7)
            node.fill(count=1)
        except Crash:
            node.boot = "boot 1" if crash is Killed else "boot 2"
            assert node.start().report.found[ORDERS].damage == [], f"operation {nth}"
        else:
            break
    else:
        raise AssertionError("it never ends")
    assert node.kill_and_start().report.found[ORDERS].damage == []
    assert node.data.logs[ORDERS].log_start == 7


def test_a_cut_above_the_recovery_point_does_not_raise_it(node: Node) -> None:
    node.fill(count=20)
    node.data.logs[ORDERS].truncate_to(30, now_ms=0)
    assert node.kill_and_start().report.found[ORDERS].verified_bytes == len(contents(node.data.logs[ORDERS]))


@pytest.mark.parametrize("crash", [Killed, PowerCut])
def test_a_crash_anywhere_in_a_life_leaves_a_directory_that_opens(crash: type[Crash]) -> None:
    """I-34: making, filling, cutting, removing and stopping, interrupted before every effect."""
    nth = 0
    while True:
        nth += 1
        node = Node(nth)
        node.disk.crash_at(nth, crash=crash)
        try:
            node.fill(ORDERS, 12)
            node.fill(EVENTS, 3)
            for log in node.data.logs.values():
                log.flush()
            node.data.write_recovery_points().run()
            node.data.logs[ORDERS].truncate_to(11, now_ms=0)
            node.data.remove(EVENTS)
            node.data.close({ORDERS: 10})
        except Crash:
            node.boot = "boot 1" if crash is Killed else "boot 2"
            data = node.start()
            assert data.report.offline == {}
            assert data.report.stray == []
            assert all(found.damage == [] for found in data.report.found.values()), f"operation {nth}"
            node.fill(ORDERS, 1)
        else:
            break
    assert nth > 60


@pytest.mark.parametrize("crash", [Killed, PowerCut])
def test_a_crash_while_many_logs_are_made_leaves_whole_ones_and_none(crash: type[Crash]) -> None:
    """Each is there with its topic id and can be served, or its directory goes: nothing is ever a stray."""
    nth = 0
    wanted = {TopicPartition("many", index): ID for index in range(3)}
    while True:
        nth += 1
        node = Node(nth)
        node.fill(ORDERS, 3)
        node.disk.crash_at(nth, crash=crash)
        try:
            begun = [node.data.begin_making(partition, topic_id) for partition, topic_id in wanted.items()]
            making.run(node.data.directory, begun)
            for each in begun:
                assert each.error is None
                log = node.data.create(each.partition, each.topic_id, 0, made=True)
                log.append(batch(), 0, now_ms=0)
        except Crash:
            node.boot = "boot 1" if crash is Killed else "boot 2"
            data = node.start()
            assert (data.report.stray, data.report.offline) == ([], {}), f"operation {nth}"
            assert all(found.damage == [] for found in data.report.found.values()), f"operation {nth}"
            for partition, topic_id in wanted.items():
                assert data.topic_ids.get(partition, topic_id) == topic_id
                if partition not in data.logs:
                    data.create(partition, topic_id, now_ms=0)
        else:
            break
    assert nth > 15


def test_a_made_log_inherits_nothing_of_an_earlier_one(node: Node) -> None:
    node.fill(ORDERS, 12)
    node.data.logs[ORDERS].flush()
    node.data.write_recovery_points().run()
    node.data.destroy(node.data.remove(ORDERS))
    begun = [node.data.begin_making(ORDERS, OTHER_ID)]
    making.run(node.data.directory, begun)
    node.kill_and_start()
    assert node.data.report.found[ORDERS].damage == []
    assert node.data.topic_ids[ORDERS] == OTHER_ID
    assert node.data.logs[ORDERS].end_offset == 0
