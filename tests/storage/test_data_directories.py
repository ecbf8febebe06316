"""A broker's data directories, one disk each: what lies where, and what is left when one of them fails (ADR 106)."""

from contextlib import nullcontext
from random import Random
from typing import NoReturn

import pytest

from tests.storage.logs import SMALL, Halted, batch, contents
from tidelog.protocol.errors import NotADataDirectory, StorageError, WrongIdentity
from tidelog.protocol.types import TopicPartition
from tidelog.storage import making
from tidelog.storage.crashes import CrashKind
from tidelog.storage.data_directories import DataDirectories, take_all
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.environment import Environment, Taken, take_directory
from tidelog.storage.failures import FAILED_DIRECTORIES, read_failures, write_failures
from tidelog.storage.identity import adopt_cluster
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.works import take_here
from tidelog.testing.simulation.disk import SimulatedDisk

META = TopicPartition("__metadata", 0)
ID = b"0123456789abcdef"


def orders(number: int) -> TopicPartition:
    return TopicPartition("orders", number)


def halt(what: str, error: OSError) -> NoReturn:
    raise Halted(f"{what}: {error}")


def end(reason: str) -> NoReturn:
    raise Halted(reason)


class Clock:
    def wall_ms(self) -> int:
        return 0

    def boot_ms(self) -> float:
        return 0


class Node:
    """A broker's disks by name, and the life that it is in."""

    def __init__(self, *names: str) -> None:
        self.rng = Random(1)
        self.disks = {name: SimulatedDisk(self.rng) for name in names}
        self.boot = "boot 1"
        self.lives = 0
        self.broker_epoch = 0
        self.told: list[str] = []

    def start(self, *names: str, broker: int = 1) -> DataDirectories:
        """A life with these disks, or with all of them."""
        self.lives += 1
        for disk in self.disks.values():
            disk.kill()
        first, *others = [self.disks[name].open_directory(f"/{name}") for name in names or self.disks]
        env = Environment(
            first,
            Clock(),
            self.boot,
            self.lives,
            self.rng,
            lambda: self.rng.randbytes(16),
            nullcontext,
            end,
            other_directories=tuple(others),
        )
        incarnation = self.lives.to_bytes(16, "big")

        def take(env: Environment) -> Taken:
            return take_directory(env, "broker", broker, incarnation, SMALL, OpenSegments(), halt, 0)

        self.taken = take_all(env, META, take)
        self.data = DataDirectories([one.data for one in self.taken])
        self.data.on_failure = lambda data, _: self.told.append(data.directory.path)
        take_here(self.data.open(now_ms=0))
        if META not in self.data.logs:
            self.data.first.create(META, b"m" * 16, now_ms=0)
        return self.data

    def register(self) -> None:
        self.broker_epoch += 1
        for one in self.taken:
            one.life.registered(self.broker_epoch)

    def on(self, name: str) -> DataDirectory:
        return next(data for data in self.data.all if data.directory.path == f"/{name}")

    def make(self, *numbers: int) -> None:
        for number in numbers:
            log = self.data.create(orders(number), ID, now_ms=0)
            log.append(batch(2), 0, now_ms=0)
            log.flush()

    def lies(self) -> dict[str, list[int]]:
        """The numbers of the partitions on each disk."""
        return {
            data.directory.path[1:]: sorted(each.partition for each in data.logs if each != META)
            for data in self.data.all
        }


def two_disks() -> Node:
    """A broker that has registered."""
    node = Node("a", "b")
    node.start()
    node.register()
    return node


@pytest.fixture(name="node")
def _node() -> Node:
    return two_disks()


# ── what lies where ───────────────────────────────────────────────────────────────────────────────────


def test_a_new_log_goes_where_the_fewest_are(node: Node) -> None:
    node.make(0, 1, 2, 3, 4)
    assert node.lies() == {"a": [1, 3], "b": [0, 2, 4]}  # the metadata log counts


def test_many_logs_that_are_made_at_once_are_spread_as_well(node: Node) -> None:
    begun = [node.data.begin_making(orders(number), ID) for number in range(7)]
    for root, share in node.data.shares(begun, threads=2):
        making.run(root, share)
    for each in begun:
        assert each.error is None
        node.data.create(each.partition, ID, 0, made=True)
    assert sorted(map(len, node.lies().values())) == [3, 4]


def test_a_log_goes_where_there_is_room(node: Node) -> None:
    node.on("b").room.low = True
    node.make(0, 1, 2)
    assert node.lies() == {"a": [0, 1, 2], "b": []}


def test_a_log_is_found_where_it_lies_in_whichever_order_directories_are_named(node: Node) -> None:
    node.make(0, 1, 2)
    before = node.lies()
    written = {number: contents(node.data.logs[orders(number)]) for number in range(3)}
    node.start("b", "a")
    assert (node.lies(), node.data.first.directory.path) == (before, "/a")
    assert {n: contents(node.data.logs[orders(n)]) for n in range(3)} == written


def test_a_log_that_is_removed_is_removed_where_it_lies(node: Node) -> None:
    node.make(0, 1)
    node.data.remove(orders(0))
    assert node.lies() == {"a": [1], "b": []}
    assert node.start().report.found.keys() == {META, orders(1)}


def test_a_stop_is_one_of_every_directory(node: Node) -> None:
    node.make(0, 1)
    node.data.close({orders(0): 2, orders(1): 2})
    node.start()
    assert [data.life.last_end for data in node.data.all] == [CrashKind.CLEAN, CrashKind.CLEAN]
    assert [node.data.high_watermark(orders(number)) for number in (0, 1)] == [2, 2]


def test_the_checkpoints_of_a_directory_are_of_its_own_logs(node: Node) -> None:
    node.make(0, 1)
    for data, pending in node.data.write_high_watermarks({orders(0): 1, orders(1): 2, META: 0}):
        pending.run()
        assert set(pending.offsets) == set(data.logs)


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────


def test_a_directory_of_another_broker_is_refused_and_no_lock_stays() -> None:
    node = Node("a", "b")
    node.start("b", broker=2)
    with pytest.raises(WrongIdentity, match="/b belongs to broker 2, this is broker 1"):
        node.start("a", "b")
    node.start("a")


def test_a_directory_of_another_cluster_is_refused(node: Node) -> None:
    for one, cluster in zip(node.taken, (b"c" * 16, b"d" * 16), strict=True):
        adopt_cluster(one.data.directory, one.claim.identity, cluster)
    with pytest.raises(WrongIdentity, match=r"/b belongs to cluster 6464.*, /a to cluster 6363"):
        node.start()


def test_a_copy_of_a_directory_is_refused(node: Node) -> None:
    directory = node.on("a").directory
    content = directory.open("meta.properties").read_at(0, 1000)
    file = node.on("b").directory.open("meta.properties")
    file.write_at(0, content)
    with pytest.raises(NotADataDirectory, match="/b is a copy of /a, or the same directory"):
        node.start()


def test_two_metadata_logs_are_refused(node: Node) -> None:
    node.on("b").create(META, b"m" * 16, now_ms=0)
    with pytest.raises(NotADataDirectory, match="__metadata-0 lies in /a and /b: one node has it once"):
        node.start()


def test_two_copies_of_a_log_are_refused_when_nothing_says_which_counts(node: Node) -> None:
    node.make(0)
    node.on("a").create(orders(0), ID, now_ms=0)
    with pytest.raises(
        NotADataDirectory, match="orders-0 lies in /a and in /b, and nothing says which counts"
    ):
        node.start()


def test_the_copy_counts_whose_directory_was_there_when_the_broker_registered_last(node: Node) -> None:
    node.make(0)
    node.start("a")
    node.register()
    node.make(0)
    written = contents(node.data.logs[orders(0)])
    data = node.start()
    assert (node.lies(), contents(data.logs[orders(0)])) == ({"a": [0], "b": []}, written)
    (stray,) = data.report.stray
    assert "/b/orders-0" in stray and "-stray: /a has been in use without it" in stray  # noqa: PT018


def test_a_start_that_is_refused_for_one_directory_leaves_the_others_in_order(node: Node) -> None:
    node.make(0, 1)
    node.data.close({})
    other = Node("c")
    other.start(broker=2)
    node.disks["c"] = other.disks["c"]
    with pytest.raises(WrongIdentity, match="broker 2"):
        node.start("a", "b", "c")
    node.start("a", "b")
    assert {data.life.last_end for data in node.data.all} == {CrashKind.CLEAN}


def test_two_copies_of_a_log_that_are_refused_leave_both_directories_in_order(node: Node) -> None:
    node.make(0)
    node.on("a").create(orders(0), ID, now_ms=0)
    node.data.close({})
    with pytest.raises(NotADataDirectory, match="nothing says which counts"):
        node.start()
    node.start("a")
    assert node.data.first.life.last_end is CrashKind.CLEAN


# ── a disk fails ──────────────────────────────────────────────────────────────────────────────────────


def flush_in_vain(node: Node, number: int) -> None:
    """A log's flush fails."""
    log = node.data.logs[orders(number)]
    log.append(batch(2), 0, now_ms=0)
    node.disks[node.data.of(orders(number)).directory.path[1:]].fail_flush()
    log.flush()


def test_a_flush_that_fails_takes_what_lies_there_and_nothing_else(node: Node) -> None:
    node.make(0, 1, 2)
    with pytest.raises(StorageError, match=r"/b: flush .* the directory has failed"):
        flush_in_vain(node, 0)
    assert node.told == ["/b"]
    assert list(node.data.offline) == [orders(0), orders(2)]
    assert node.data.logs.keys() == {META, orders(1)}
    node.data.logs[orders(1)].append(batch(2), 0, now_ms=0)
    node.data.logs[orders(1)].flush()


def test_the_first_directory_ends_the_process(node: Node) -> None:
    node.make(0, 1)
    with pytest.raises(Halted, match="/a: flush"):
        flush_in_vain(node, 1)


def test_nothing_is_written_to_a_directory_that_has_failed(node: Node) -> None:
    node.make(0, 1, 2)
    failed, log = node.on("b"), node.data.logs[orders(2)]
    with pytest.raises(StorageError):
        flush_in_vain(node, 0)
    node.disks["b"].broken = True
    assert [data.directory.path for data, _ in node.data.write_recovery_points()] == ["/a"]
    with pytest.raises(StorageError, match="has failed"):
        failed.write_purge_floors()
    node.data.remove(orders(2))
    node.make(3, 5)
    assert node.lies()["a"] == [1, 3, 5]
    assert not node.data.open_again(orders(0), now_ms=0)
    node.data.close({})
    assert log.end_offset == 2


def test_a_name_that_lies_on_a_failed_disk_is_made_nowhere_else(node: Node) -> None:
    """The next life would find both."""
    node.make(0)
    with pytest.raises(StorageError):
        flush_in_vain(node, 0)
    assert orders(0) in node.data.offline


@pytest.mark.parametrize("step", ["create", "begin", "make", "discard", "remove", "stray"])
def test_whatever_finds_out_that_a_disk_has_died_the_broker_goes_on_without_it(node: Node, step: str) -> None:
    node.make(0, 1)
    begun = node.data.begin_making(orders(3), ID) if step in {"make", "discard"} else None
    node.disks["b"].broken = True
    finds = pytest.raises(StorageError, match="has failed")
    with finds if step in {"create", "begin"} else nullcontext():
        if step == "create":
            node.data.create(orders(3), ID, now_ms=0)
        elif step == "discard" and begun is not None:
            node.data.discard(begun)
        elif step in {"begin", "make"}:
            begun = begun or node.data.begin_making(orders(3), ID)
            ((root, share),) = node.data.shares([begun], 1)
            making.run(root, share)
            assert begun.error is not None
            with pytest.raises(StorageError, match="has failed"):
                node.data.could_not_make(begun, begun.error)
        else:
            getattr(node.data, step)(orders(0))
    assert node.told == ["/b"]
    node.make(4)
    assert node.lies()["a"] == [1, 4]


def test_what_a_failed_flush_may_have_cost_is_taken_for_lost_by_the_next_life(node: Node) -> None:
    node.make(0, 1)
    with pytest.raises(StorageError):
        flush_in_vain(node, 0)
    node.data.close({orders(1): 2})
    node.start()
    kinds = {data.directory.path: (data.life.last_end, data.life.worst) for data in node.data.all}
    assert kinds["/a"] == (CrashKind.CLEAN, CrashKind.CLEAN)
    assert kinds["/b"] == (CrashKind.PROCESS, CrashKind.HOST)
    assert not node.on("a").directory.exists(FAILED_DIRECTORIES)


def test_a_failure_is_remembered_until_the_disk_is_back(node: Node) -> None:
    node.make(0, 1)
    with pytest.raises(StorageError):
        flush_in_vain(node, 0)
    node.start("a")  # and killed before it could register
    node.start()
    assert node.on("b").life.worst is CrashKind.HOST


def test_a_failure_that_nobody_can_read_may_be_anybodys(node: Node) -> None:
    node.make(0)
    with pytest.raises(StorageError):
        flush_in_vain(node, 0)
    node.disks["a"].kill()
    directory = node.disks["a"].open_directory("/a")
    directory.open(FAILED_DIRECTORIES).write_at(
        20, b"f" if directory.open(FAILED_DIRECTORIES).read_at(20, 1) != b"f" else b"e"
    )
    assert read_failures(directory) is None
    node.start()
    assert node.on("b").life.worst is CrashKind.HOST


def test_a_failure_that_cannot_be_noted_ends_the_process(node: Node) -> None:
    node.make(0)
    node.disks["a"].broken = True
    with pytest.raises(Halted, match="/a: note that a directory has failed"):
        flush_in_vain(node, 0)


def test_the_copy_on_a_disk_that_has_failed_does_not_count(node: Node) -> None:
    node.make(0)
    node.on("a").create(orders(0), ID, now_ms=0)
    write_failures(node.on("a").directory, frozenset({node.on("b").life.directory_id}))
    node.start()
    assert node.lies() == {"a": [0], "b": []}


def test_a_new_disk_begins_with_nothing(node: Node) -> None:
    node.make(0, 1)
    known = node.on("b").life.directory_id
    node.disks["b"] = SimulatedDisk(Random(2))
    node.start()
    assert node.lies() == {"a": [1], "b": []}
    assert (node.on("b").life.directory_id == known, node.on("b").life.worst) == (False, CrashKind.NEW)


def test_what_lies_on_a_disk_is_known_also_where_it_cannot_be_opened(node: Node) -> None:
    node.make(0, 1, 2)
    node.disks["b"].fail_reads("/b/orders-2/00000000000000000000.log")
    node.start()
    assert list(node.data.offline) == [orders(2)]
    assert sorted(node.on("b").lie_here()) == [(ID, 0), (ID, 2)]


def test_a_disk_that_is_dead_at_the_start_keeps_the_broker_from_starting(node: Node) -> None:
    """To go on without it is for an operator to say, by leaving it out."""
    node.make(0)
    node.disks["b"].broken = True
    with pytest.raises(OSError, match="/b"):
        node.start()
    assert node.start("a").offline == {}
