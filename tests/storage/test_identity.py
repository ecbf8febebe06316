"""Whose data this is (docs/STORAGE.md, 2)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import strategies as st

from tests.storage.planted import assert_caught
from tidelog.protocol.errors import (
    CorruptCheckpoint,
    DirectoryLocked,
    NotADataDirectory,
    UnsupportedFormat,
    WrongIdentity,
)
from tidelog.storage.files import Directory
from tidelog.storage.identity import (
    LOCK,
    META,
    PARTITION_METADATA,
    Claim,
    Identity,
    Role,
    adopt_cluster,
    claim,
    read_identity,
    read_topic_id,
    write_topic_id,
)
from tidelog.storage.io import open_directory
from tidelog.storage.seal import PROPERTIES
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.faults import WHENS, Crash, Killed, PowerCut

DISK, OTHER_DISK, CLUSTER, OTHER_CLUSTER, TOPIC = (bytes([n]) * 16 for n in (0xD1, 0xD2, 0xC1, 0xC2, 0x70))


def claimed(
    directory: Directory, role: Role = "broker", node_id: int = 1, cluster_id: bytes | None = None
) -> Claim:
    return claim(
        directory, role=role, node_id=node_id, cluster_id=cluster_id, new_directory_id=DISK, pid=4711
    )


def reclaimed(directory: Directory, **wanted: object) -> Identity:
    """Claim and let go: what the next process of that kind would find."""
    held = claimed(directory, **wanted)  # type: ignore[arg-type]  # what the test wants
    held.lock.release()
    return held.identity


def test_a_full_disk_keeps_nobody_from_claiming_what_is_his() -> None:
    disk = SimulatedDisk(Random(0))
    reclaimed(disk.open_directory())
    disk.capacity = disk.medium.used - 10
    held = claimed(disk.open_directory())
    with pytest.raises(DirectoryLocked, match="locked by another process"):
        claimed(disk.open_directory())
    held.lock.release()


# ── a first start ─────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_directory_becomes_this_nodes(tmp_path: Path) -> None:
    identity = reclaimed(open_directory(str(tmp_path)), cluster_id=CLUSTER)
    assert identity == Identity("broker", 1, DISK, CLUSTER)
    assert (tmp_path / META).read_text().splitlines()[:-1] == [
        "version=1",
        f"cluster.id={'c1' * 16}",
        "node.id=1",
        "node.role=broker",
        f"directory.id={'d1' * 16}",
    ]


def test_the_directory_id_is_kept_before_the_cluster_has_an_id(tmp_path: Path) -> None:
    """It is told to the other voters in the first election, and must not change after a crash."""
    directory = open_directory(str(tmp_path))
    reclaimed(directory)
    again = claim(
        directory, role="broker", node_id=1, cluster_id=None, new_directory_id=OTHER_DISK, pid=1
    ).identity
    assert again == Identity("broker", 1, DISK, None)


def test_the_cluster_id_is_remembered_when_it_is_first_heard(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    adopt_cluster(directory, reclaimed(directory), CLUSTER)
    assert read_identity(directory).cluster_id == CLUSTER
    assert reclaimed(directory).cluster_id == CLUSTER


def test_nothing_is_written_once_the_cluster_is_known(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    identity = reclaimed(directory, cluster_id=CLUSTER)
    before = (tmp_path / META).stat()
    adopt_cluster(directory, identity, CLUSTER)
    after = (tmp_path / META).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


# ── a directory that is not ours ──────────────────────────────────────────────────────────────────────


def test_a_directory_with_other_files_is_refused_by_their_names_and_left_alone(tmp_path: Path) -> None:
    for n in range(7):
        (tmp_path / f"photo-{n}").touch()
    with pytest.raises(NotADataDirectory, match=r"holds photo-0, photo-1, .*photo-4 and 2 more, but no meta"):
        claimed(open_directory(str(tmp_path)))
    assert len(list(tmp_path.iterdir())) == 7


def test_a_fresh_file_system_and_what_a_crashed_first_start_leaves_are_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    for name in (LOCK, META + ".tmp"):
        (tmp_path / name).write_bytes(b"half a li")
    assert reclaimed(open_directory(str(tmp_path))).directory_id == DISK
    assert not (tmp_path / (META + ".tmp")).exists()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"node_id": 2}, "belongs to broker 1, this is broker 2"),
        ({"role": "controller"}, "belongs to the broker, this is the controller"),
        ({"cluster_id": OTHER_CLUSTER}, f"cluster {'c1' * 16}, this is cluster {'c2' * 16}"),
    ],
)
def test_another_nodes_directory_is_refused_with_both_identities(
    tmp_path: Path, wanted: dict[str, object], message: str
) -> None:
    directory = open_directory(str(tmp_path))
    reclaimed(directory, cluster_id=CLUSTER)
    with pytest.raises(WrongIdentity, match=message):
        claimed(directory, **wanted)  # type: ignore[arg-type]  # what the test wants
    reclaimed(directory)  # and the lock was given back


def test_the_cluster_of_a_directory_never_changes(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    identity = reclaimed(directory, cluster_id=CLUSTER)
    with pytest.raises(WrongIdentity, match="this is cluster c2"):
        adopt_cluster(directory, identity, OTHER_CLUSTER)
    assert read_identity(directory).cluster_id == CLUSTER


def test_a_directory_of_a_newer_tidelog_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / META).write_bytes(PROPERTIES.seal(b"version=2\nsomething=else\n"))
    with pytest.raises(UnsupportedFormat, match=r"meta\.properties is of version 2, this tidelog reads 1"):
        claimed(open_directory(str(tmp_path)))


# ── the lock ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_process_is_refused_and_told_who_holds_the_directory(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    held = claimed(directory)
    with pytest.raises(DirectoryLocked, match="is locked by process 4711, this is process 99"):
        claim(directory, role="broker", node_id=1, cluster_id=None, new_directory_id=DISK, pid=99)
    held.lock.release()
    reclaimed(directory)


def test_a_lock_whose_holder_has_not_yet_written_its_pid_is_held_all_the_same() -> None:
    directory = SimulatedDisk(Random(0)).open_directory()
    directory.lock(LOCK, b"")
    with pytest.raises(DirectoryLocked, match="locked by another process"):
        claimed(directory)


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────


def changes(whole: bytes) -> Iterator[bytes]:
    """Every cut, every other value of every byte, and a byte too many."""
    yield from (whole[:at] for at in range(len(whole)))
    yield from (
        whole[:at] + bytes([v]) + whole[at + 1 :]
        for at in range(len(whole))
        for v in range(256)
        if v != whole[at]
    )
    yield whole + b"\n"


def test_every_cut_and_every_changed_byte_of_the_identity_is_noticed() -> None:
    directory = SimulatedDisk(Random(0)).open_directory()
    reclaimed(directory, cluster_id=CLUSTER)
    file = directory.open(META)
    for content in changes(file.read_at(0, 1000)):
        file.truncate(0)
        file.write_at(0, content)
        with pytest.raises(NotADataDirectory, match=r"meta\.properties cannot be read .*checksum"):
            read_identity(directory)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"version=1\n",
        b"version=1\nnode.id=1\nnode.role=broker\ndirectory.id=d1\nfurther=1\n",
        b"version=1\nnode.id=+1\nnode.role=broker\ndirectory.id=d1\n",
        b"version=1\nnode.id=1\nnode.role=cook\ndirectory.id=d1\n",
        b"version=1\nnode.id=1\nnode.role=broker\ndirectory.id=D1\n",
        b"version=1\nnode.id=1\nnode.role=broker\ndirectory.id=x\n",
        b"version=0\nnode.id=1\nnode.role=broker\ndirectory.id=d1\n",
    ],
)
def test_an_identity_that_tidelog_would_not_write_is_refused_though_its_checksum_is_right(
    tmp_path: Path, body: bytes
) -> None:
    (tmp_path / META).write_bytes(PROPERTIES.seal(body))
    with pytest.raises(NotADataDirectory, match=r"meta\.properties"):
        claimed(open_directory(str(tmp_path)))


def test_a_file_that_the_disk_cannot_read_is_no_identity() -> None:
    disk = SimulatedDisk(Random(0))
    reclaimed(disk.open_directory())
    disk.fail_reads(f"/data/{META}")
    with pytest.raises(NotADataDirectory, match="cannot be read"):
        claimed(disk.open_directory())


# ── a partition's topic ───────────────────────────────────────────────────────────────────────────────


def test_a_partition_knows_its_topic(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    write_topic_id(directory, TOPIC)
    assert read_topic_id(directory) == (TOPIC, None)
    lines = (tmp_path / PARTITION_METADATA).read_text().splitlines()
    assert lines[:2] == ["version=1", f"topic_id={'70' * 16}"]


def test_a_partition_without_its_file_is_stray(tmp_path: Path) -> None:
    topic_id, problem = read_topic_id(open_directory(str(tmp_path)))
    assert topic_id is None
    assert str(problem) == f"{tmp_path}/partition.metadata is missing"


def test_every_cut_and_every_changed_byte_of_a_partitions_file_makes_it_stray() -> None:
    directory = SimulatedDisk(Random(0)).open_directory()
    write_topic_id(directory, TOPIC)
    file = directory.open(PARTITION_METADATA)
    for content in changes(file.read_at(0, 1000)):
        file.truncate(0)
        file.write_at(0, content)
        topic_id, problem = read_topic_id(directory)
        assert topic_id is None
        assert isinstance(problem, CorruptCheckpoint)


@pytest.mark.parametrize(
    "body", [b"", b"version=1\n", b"version=1\ntopic_id=7 0\n", b"version=1\ntopic_id=x\n"]
)
def test_a_partitions_file_that_tidelog_would_not_write_makes_it_stray(tmp_path: Path, body: bytes) -> None:
    (tmp_path / PARTITION_METADATA).write_bytes(PROPERTIES.seal(body))
    topic_id, problem = read_topic_id(open_directory(str(tmp_path)))
    assert topic_id is None
    assert "partition.metadata" in str(problem)


# ── crashes ───────────────────────────────────────────────────────────────────────────────────────────


def start(directory: Directory, told: list[bytes]) -> None:
    """A first start up to the first use of what was durable: the directory id is told, the cluster's is heard."""
    held = claimed(directory)
    told.append(held.identity.directory_id)
    adopt_cluster(directory, held.identity, CLUSTER)
    told.append(CLUSTER)


def check_first_starts(nth: int, when: str, crash: type[Crash], begin: Callable[..., None] = start) -> bool:
    """A crash anywhere in a first start leaves a directory that starts, and that has what it has told."""
    disk, told = SimulatedDisk(Random(nth)), list[bytes]()
    disk.crash_at(nth, when=when, crash=crash)  # type: ignore[arg-type]  # one of WHENS
    try:
        begin(disk.open_directory(), told)
    except crash:
        crashed = True
    else:
        crashed = False
        disk.power_cut()
    found = claim(
        disk.open_directory(), role="broker", node_id=1, cluster_id=None, new_directory_id=OTHER_DISK, pid=1
    ).identity
    assert found.directory_id == DISK or DISK not in told
    assert found.cluster_id == CLUSTER or CLUSTER not in told
    return crashed


@pytest.mark.parametrize("crash", [Killed, PowerCut])
@pytest.mark.parametrize("when", WHENS)
def test_a_crash_at_any_operation_of_a_first_start_leaves_a_directory_that_starts(
    when: str, crash: type[Crash]
) -> None:
    nth = 1
    while check_first_starts(nth, when, crash):
        nth += 1
    assert nth > 12


def test_an_identity_that_is_not_flushed_before_it_is_told_is_caught() -> None:
    def unflushed(directory: Directory, told: list[bytes]) -> None:
        start(Unflushed(directory), told)  # type: ignore[arg-type]  # the rest is passed on

    def check(nth: int) -> None:
        check_first_starts(nth, "before", PowerCut, unflushed)

    assert_caught(check, st.integers(1, 99))


class Unflushed:
    """A directory whose names are not forced to the disk."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def __getattr__(self, name: str) -> object:
        return getattr(self._directory, name)

    def flush(self) -> None:
        pass
