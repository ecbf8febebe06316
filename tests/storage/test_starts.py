"""Starts of a data directory that are refused, that find what is not theirs, or nothing; and names that are too long."""

import errno

import pytest

from tests.storage.logs import batch, contents
from tests.storage.test_data_directory import EVENTS, ID, ORDERS, Node
from tidelog.protocol.errors import DiskFull, StorageError, UnsupportedFormat
from tidelog.protocol.types import TopicPartition
from tidelog.storage import identity
from tidelog.storage.checkpoints import LEADER_EPOCHS
from tidelog.storage.crashes import CrashKind
from tidelog.storage.files import Directory, read_whole, write_whole
from tidelog.storage.identity import PARTITION_METADATA
from tidelog.storage.seal import CHECKPOINT
from tidelog.storage.strays import give_up, strays


@pytest.fixture
def node() -> Node:
    return Node()


# ── a start that is refused ───────────────────────────────────────────────────────────────────────────

NEWER = CHECKPOINT.seal(b"9\n0\n")


def refuse_and_start(node: Node) -> CrashKind:
    """A newer tidelog has written a file of orders-0, and is started again: how it finds the directory."""
    log = node.disk.open_directory("/data").directory("orders-0")
    mine = read_whole(log, LEADER_EPOCHS)
    write_whole(log, LEADER_EPOCHS, NEWER)
    node.disk.kill()
    with pytest.raises(UnsupportedFormat, match="orders-0/leader-epoch-checkpoint is of version 9"):
        node.start()
    node.disk.kill()
    write_whole(node.disk.open_directory("/data").directory("orders-0"), LEADER_EPOCHS, mine)
    node.start()
    return node.data.life.last_end


def test_a_start_that_is_refused_leaves_a_directory_in_order_as_it_was(node: Node) -> None:
    """click-events-12 is open by then."""
    written = {ORDERS: node.fill(ORDERS), EVENTS: node.fill(EVENTS, 3)}
    node.data.close({})
    assert refuse_and_start(node) is CrashKind.CLEAN
    assert {name: contents(log) for name, log in node.data.logs.items()} == written


def test_a_start_that_is_refused_makes_no_order_where_there_was_none(node: Node) -> None:
    node.fill(ORDERS)
    node.fill(EVENTS, 3)
    node.data.logs[ORDERS].flush()
    assert refuse_and_start(node) is CrashKind.PROCESS


@pytest.mark.parametrize("harm", ["rotten", "unreadable"])
def test_a_start_that_is_refused_hides_no_damage_that_it_has_found(node: Node, harm: str) -> None:
    node.fill(ORDERS)
    node.fill(EVENTS)
    node.data.close({EVENTS: 99} if harm == "rotten" else {})
    node.disk.kill()
    path = "/data/click-events-12/00000000000000000000.log"
    if harm == "rotten":
        node.disk.medium.truncate(node.disk.medium.file_at(path), len(batch(2)))
    else:
        node.disk.fail_reads(path, 0, 4000)
    assert refuse_and_start(node) is CrashKind.PROCESS
    assert node.data.life.worst is CrashKind.DAMAGED


# ── whose it is ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("harm", ["lost", "rotten"])
def test_a_log_of_which_nobody_knows_whose_it_is_counts_as_gone(node: Node, harm: str) -> None:
    """It is set aside, and a new one would be made: an empty replica that counts as one with every record."""
    node.fill()
    node.data.close({ORDERS: 40})
    node.disk.kill()
    log = node.disk.open_directory("/data").directory("orders-0")
    if harm == "lost":
        log.remove("partition.metadata")
    else:
        write_whole(log, "partition.metadata", b"rotten")
    node.disk.kill()
    node.start()
    assert (node.data.life.worst, node.data.gone) == (CrashKind.CLEAN, [ORDERS])
    assert (node.data.logs, len(node.data.report.stray)) == ({}, 1)
    assert node.kill_and_start().gone == [ORDERS], "until it is told"
    node.data.registered()
    node.data.write_recovery_points().run()
    node.data.write_high_watermarks({}).run()
    assert node.kill_and_start().gone == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_a_log_of_which_it_cannot_be_read_whose_it_is_stays_as_it_is(
    node: Node, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be whole: the start after a new cable, or with more descriptors, opens it."""
    written = {ORDERS: node.fill(ORDERS), EVENTS: node.fill(EVENTS)}
    node.data.close({ORDERS: 40})

    def refuses(directory: Directory, name: str) -> bytes:
        if (directory.path, name) == ("/data/orders-0", PARTITION_METADATA):
            raise OSError(number, "no")
        return read_whole(directory, name)

    monkeypatch.setattr(identity, "read_whole", refuses)
    data = node.kill_and_start()
    assert (list(data.report.offline), data.report.stray, data.gone) == ([ORDERS], [], [])
    assert data.life.worst is CrashKind.CLEAN
    data.close({})
    monkeypatch.undo()
    data = node.kill_and_start()
    assert {name: contents(log) for name, log in data.logs.items()} == written
    assert (data.high_watermark(ORDERS), data.report.found[ORDERS].verified_bytes) == (40, 0)


def test_who_cannot_say_whose_a_log_is_lets_nobody_count_upon_it_after_a_loss_of_power(node: Node) -> None:
    """With several disks the controller judges what is not named by how the first one has fared."""
    node.fill()
    node.data.write_high_watermarks({ORDERS: 40}).run()
    node.disk.fail_reads("/data/orders-0/partition.metadata", 0, 4000)
    node.kill_and_start()
    data = node.cut_power_and_start()
    assert (list(data.report.offline), data.gone) == ([ORDERS], [ORDERS])
    data.registered()
    data.write_high_watermarks({}).run()
    node.disk.medium.file_at("/data/orders-0/partition.metadata").unreadable.clear()
    assert node.kill_and_start().report.found[ORDERS].damage, "what was said of it is not forgotten"


def test_a_log_of_which_nothing_is_left_counts_as_gone(node: Node) -> None:
    node.fill()
    node.data.close({ORDERS: 40})
    node.disk.kill()
    log = node.disk.open_directory("/data").directory("orders-0")
    for name in list(log.names()):
        log.remove(name)
    node.disk.kill()
    assert node.start().gone == [ORDERS]


def test_a_log_of_which_neither_it_nor_a_checkpoint_says_whose_it_is_counts_as_damaged(node: Node) -> None:
    node.fill()
    node.data.directory.directory("orders-0").remove(PARTITION_METADATA)
    data = node.kill_and_start()
    assert (data.life.worst, data.gone) == (CrashKind.DAMAGED, [ORDERS])


def test_what_was_just_being_made_is_no_damage(node: Node) -> None:
    node.data.directory.directory("orders-0", create=True)
    assert node.kill_and_start().life.worst is CrashKind.PROCESS
    assert "orders-0" not in node.data.directory.names()


def test_a_log_of_which_nobody_knows_whose_it_is_stays_where_that_cannot_be_noted(node: Node) -> None:
    node.fill()
    node.disk.open_directory("/data").directory("orders-0").remove("partition.metadata")
    node.disk.capacity = node.disk.medium.used
    node.disk.kill()
    node.start()
    assert isinstance(node.data.report.offline[ORDERS], DiskFull)
    assert "orders-0" in node.data.directory.names()
    node.disk.capacity = 1 << 40
    node.kill_and_start()
    assert (node.data.life.worst, len(node.data.report.stray)) == (CrashKind.DAMAGED, 1)


# ── what is left of a log ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [errno.EIO, errno.EPERM, errno.ENOTDIR])
def test_what_cannot_be_removed_of_a_log_stays_and_is_told(
    node: Node, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every start was refused for it, though nobody needs it to be gone."""
    node.fill(ORDERS)
    written = node.fill(EVENTS)
    left = node.data.remove(ORDERS)
    node.data.make_removals_durable(node.data.write_removals())

    def refuses(_: object, name: str) -> None:
        raise OSError(number, "no", name)

    monkeypatch.setattr(type(node.data.directory), "remove_directory", refuses)
    data = node.kill_and_start()
    assert data.report.problems == [f"/data/{left} could not be removed: no"]
    assert (contents(data.logs[EVENTS]), data.gone, data.report.offline) == (written, [], {})
    assert (data.life.worst, left in data.directory.names()) == (CrashKind.PROCESS, True)
    node.stop_and_start()
    assert node.data.life.last_end is CrashKind.CLEAN
    monkeypatch.undo()
    assert left not in node.kill_and_start().directory.names()


# ── names ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [0, 54321])
@pytest.mark.parametrize("length", [213, 214, 249])
def test_a_log_with_a_long_name_is_removed_and_set_aside_as_any(node: Node, length: int, number: int) -> None:
    """What is left of it has a longer name than its directory, and no name has more than 255 bytes."""
    partition = TopicPartition("t" * length, number)
    node.data.create(partition, ID, now_ms=0)
    node.data.destroy(node.data.remove(partition))
    node.fill(partition)
    node.data.stray(partition)
    root = node.data.directory
    (stray,) = strays(root)
    assert (stray.topic_id, stray.partition and stray.partition.partition) == (ID, number)
    node.kill_and_start()
    assert node.data.logs == {}
    give_up(root := node.data.directory, strays(root)[0])
    assert [name for name in root.names() if name.startswith("t")] == []


def test_no_log_is_made_where_another_ones_records_are(node: Node) -> None:
    """As on a disk that takes Orders-0 and orders-0 for one name."""
    there = node.data.directory.directory("orders-0", create=True)
    for made in (node.data.create, lambda *names, **_: node.data.begin_making(*names)):
        there.open("00000000000000000000.log", create=True).write_at(0, b"a record")
        with pytest.raises(StorageError, match="/data/orders-0 has records of another log"):
            made(ORDERS, ID, now_ms=0)
    there.remove("00000000000000000000.log")
    there.open("00000000000000000000.log", create=True).close()  # left by an attempt that ended here
    assert node.data.create(ORDERS, ID, now_ms=0).end_offset == 0
