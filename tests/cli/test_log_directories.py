"""`tidelog log segments` and `tidelog log checkpoints`: directories, listed and held against each other."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Tidelog
from tests.cli.real_directory import BOOT, ORDERS, TIME, RealNode, contents, flip
from tidelog.cli.local.identity import began
from tidelog.cli.log.nodes import inspect
from tidelog.cli.read_only import ReadOnlyDirectory
from tidelog.protocol.types import TopicPartition
from tidelog.storage.crashes import CrashKind

FIRST, SECOND, THIRD = (f"{offset:020}" for offset in (0, 20, 40))


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """The directory of a partition with three segments."""
    RealNode(tmp_path / "node").fill(24).stop()
    return tmp_path / "node" / "orders-0"


def objects(out: str, kind: str) -> list[dict[str, Any]]:
    return [each for each in map(json.loads, out.splitlines()) if each["type"] == kind]


def faults(tidelog: Tidelog, verb: str, directory: Path) -> list[str]:
    """`severity file: what`, of every fault; looking is no failure."""
    ran = tidelog("log", verb, directory, "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    found = objects(ran.out, "fault")
    text = tidelog("log", verb, directory).out
    assert all(each["what"] in text for each in found)
    return [f"{each['severity']} {Path(each['file']).name}: {each['what']}" for each in found]


# ── segments ──────────────────────────────────────────────────────────────────────────────────────────


def test_segments_are_a_table(three: Path, tidelog: Tidelog) -> None:
    assert tidelog("log", "segments", three).out == (
        f"{three}: 3 segments, 24 batches, 48 records, 2.3 KB, offsets 0 to 47\n"
        "  FROM  END   SIZE  BATCHES  RECORDS  EPOCH  INDEX  2023-11-14 (UTC)\n"
        "     0   20  980 B       10       20  0-2    all    22:13:20-22:13:29\n"
        "    20   40  990 B       10       20  2-4    all    22:13:30-22:13:39\n"
        "    40   48  396 B        4        8  5      all    22:13:40-22:13:43\n"
        f"  topic id {bytes(range(16)).hex()}\n"
        "  producer snapshots at offsets 20, 40, 48\n"
        "\n"
    )


def test_a_data_directory_is_all_its_partitions(three: Path, tidelog: Tidelog) -> None:
    shutil.copytree(three, three.parent / "orders-10")
    shutil.copytree(three, three.parent / "orders-2")
    lines = tidelog("log", "segments", three.parent).lines
    named = [line.partition(":")[0] for line in lines if ": 3 segments" in line]
    assert [Path(name).name for name in named if name != "total"] == ["orders-0", "orders-2", "orders-10"]
    assert lines[-1] == "total: 3 partitions, 9 segments, 72 batches, 144 records, 6.9 KB"


def test_segments_as_json_are_documented(three: Path, tidelog: Tidelog) -> None:
    out = tidelog("-o", "json", "log", "segments", three).out
    (partition,) = objects(out, "partition")
    assert (partition["start_offset"], partition["end_offset"], partition["size"]) == (0, 48, 2366)
    assert objects(out, "segment")[1] == {
        "directory": str(three),
        "type": "segment",
        "base_offset": 20,
        "end_offset": 40,
        "size": 990,
        "batches": 10,
        "records": 20,
        "first_timestamp_ms": TIME + 10_000,
        "max_timestamp_ms": TIME + 19_001,
        "first_epoch": 2,
        "last_epoch": 4,
        "index_covered": 990,
        "unread": 0,
        "problem": None,
    }


def test_a_directory_in_order_has_no_faults(three: Path, tidelog: Tidelog) -> None:
    assert faults(tidelog, "segments", three) == []
    assert faults(tidelog, "checkpoints", three.parent) == []


def test_a_log_that_is_being_written_has_no_faults(tmp_path: Path, tidelog: Tidelog) -> None:
    """The newest segment's index is not written yet, and that is no fault."""
    RealNode(tmp_path).fill(24).kill()
    assert faults(tidelog, "segments", tmp_path) == []
    assert tidelog("log", "segments", tmp_path).lines[4].split()[7] == "none"


def test_an_empty_log_is_listed(tmp_path: Path, tidelog: Tidelog) -> None:
    RealNode(tmp_path).stop()
    assert (
        "1 segment, 0 batches, 0 records, 0 B, no offsets from 0 on"
        in tidelog("log", "segments", tmp_path).out
    )


def test_a_data_directory_without_partitions_is_listed(tmp_path: Path, tidelog: Tidelog) -> None:
    RealNode(tmp_path).stop()
    shutil.rmtree(tmp_path / "orders-0")
    assert tidelog("log", "segments", tmp_path).out.startswith("total: 0 partitions")


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (lambda d: (d / f"{SECOND}.log").unlink(), "damage node-orders: offsets 20 to 39 are in no file"),
        (lambda d: (d / f"{FIRST}.index").unlink(), f"cache {FIRST}.log: its offset index is missing"),
        (
            lambda d: flip(d / f"{FIRST}.index", 30),
            f"cache {FIRST}.log: its offset index reaches 0 of 980 bytes",
        ),
        (lambda d: flip(d / f"{SECOND}.log", 200), f"damage {SECOND}.log: no batch begins there"),
        (lambda d: _cut(d / f"{THIRD}.log"), f"damage {THIRD}.log: no batch begins there"),
        (lambda d: (d / f"{THIRD}.log").unlink(), f"cache {THIRD}.index: an index without its segment"),
        (
            lambda d: (d / f"{99:020}.snapshot").touch(),
            f"cache {99:020}.snapshot: producer state beyond the log",
        ),
        (lambda d: (d / f"{FIRST}.log.deleted").touch(), f"cache {FIRST}.log.deleted: left half-made"),
        (lambda d: (d / "notes.txt").touch(), "cache notes.txt: no file of a partition has this name"),
        (lambda d: (d / f"{SECOND}.log").rename(d / f"{21:020}.log"), "damage node-orders: "),
    ],
)
def test_what_looks_wrong_is_flagged(three: Path, tidelog: Tidelog, harm: Any, fault: str) -> None:
    harm(three)
    found = "\n".join(faults(tidelog, "segments", three))
    severity, _, what = fault.partition(" ")
    assert severity in found
    assert what.removeprefix("node-orders: ") in found


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_a_torn_tail_is_told_from_damage_by_the_recovery_point(tmp_path: Path, tidelog: Tidelog) -> None:
    RealNode(tmp_path).fill(4).kill()
    path = tmp_path / "orders-0" / f"{FIRST}.log"
    _cut(path)
    assert [fault.split()[0] for fault in faults(tidelog, "segments", tmp_path)] == ["torn"]


def test_bytes_that_were_set_aside_are_named(three: Path, tidelog: Tidelog) -> None:
    (three / f"{SECOND}.log").rename(three / f"{SECOND}.log.corrupt")
    assert f"  set aside by recovery: {SECOND}.log.corrupt, 990 B" in tidelog("log", "segments", three).lines


def test_a_newer_segment_is_refused_by_name(three: Path, tidelog: Tidelog) -> None:
    from tidelog.protocol.batch import MAGIC, stamp  # noqa: PLC0415

    path = three / f"{FIRST}.log"
    content = bytearray(path.read_bytes())
    content[16] = MAGIC + 1
    stamp(content, 0, 0)
    path.write_bytes(content)
    ran = tidelog("log", "segments", three)
    assert ran.code == 1
    assert f"{FIRST}.log at byte 0: the batch at offset 0 has magic {MAGIC + 1}" in ran.err


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────


def test_checkpoints_of_a_data_directory(three: Path, tidelog: Tidelog) -> None:
    node = three.parent
    assert tidelog("log", "checkpoints", node).out == (
        f"{node}\n"
        "  identity     broker 1\n"
        f"  directory id {(b'd' * 16).hex()}\n"
        f"  cluster id   {(b'c' * 16).hex()}\n"
        "  in use       no, last by process 2147483647\n"
        "  last end     clean: .clean_shutdown is there: everything was flushed\n"
        "  replication-offset-checkpoint    1 entry\n"
        "  log-start-offset-checkpoint      1 entry\n"
        "  recovery-point-offset-checkpoint 1 entry\n"
        "  cleaner-offset-checkpoint        0 entries\n"
        "  cleaner-purge-checkpoint         0 entries\n"
        "\n"
        "  PARTITION  START  HIGH WATERMARK  RECOVERY POINT  LOG END  EPOCHS@START\n"
        "  orders-0       0              48              48       48  3 older, 3@24, 4@32, 5@40\n"
    )


def test_checkpoints_as_json_are_documented(three: Path, tidelog: Tidelog) -> None:
    out = tidelog("log", "checkpoints", "-o", "json", three.parent).out
    (node,), (partition,) = objects(out, "node"), objects(out, "partition")
    assert (node["role"], node["node_id"], node["last_end"], node["in_use"]) == ("broker", 1, "clean", False)
    assert [each["entries"] for each in objects(out, "checkpoint")] == [1, 1, 1, 0, 0]
    assert (partition["name"], partition["high_watermark"], partition["recovery_point"]) == (
        "orders-0",
        48,
        48,
    )
    assert partition["epochs"] == [[epoch, 8 * epoch] for epoch in range(6)]


def test_a_partition_s_checkpoints_are_its_topic_and_its_epochs(three: Path, tidelog: Tidelog) -> None:
    out = tidelog("log", "checkpoints", three).out
    assert f"topic_id  {bytes(range(16)).hex()}" in out
    assert "\n      5           40\n" in out


def test_the_last_end_is_what_the_next_start_will_say(tmp_path: Path) -> None:
    directory = ReadOnlyDirectory(str(tmp_path))
    node = RealNode(tmp_path).fill(4)
    node.kill()
    assert inspect(directory, BOOT).last_end is CrashKind.PROCESS
    assert inspect(directory, "boot 2").last_end is CrashKind.HOST
    assert "of an earlier boot" in inspect(directory, "boot 2").evidence
    assert "another disk" not in inspect(directory, BOOT).evidence
    RealNode(tmp_path).stop()
    assert inspect(directory, "boot 2").last_end is CrashKind.CLEAN
    (tmp_path / ".clean_shutdown").unlink()
    assert inspect(directory, BOOT).last_end is CrashKind.HOST


def test_a_process_that_is_dead_and_not_yet_buried_uses_nothing(tmp_path: Path, tidelog: Tidelog) -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as dead:
        assert dead.stdout is not None
        dead.stdout.read()
        deadline = time.monotonic() + 30
        while began(dead.pid) is not None:  # it has let go of its pipe, and is about to end
            assert time.monotonic() < deadline
            time.sleep(0.01)
        node = RealNode(tmp_path, pid=dead.pid).fill(4)
        lines = tidelog("log", "checkpoints", tmp_path).lines
        node.stop()
    assert f"  in use       no, last by process {dead.pid}" in lines


def test_a_directory_in_use_says_by_whom(tmp_path: Path, tidelog: Tidelog) -> None:

    node = RealNode(tmp_path, pid=os.getpid()).fill(4)
    before = contents(tmp_path)
    lines = tidelog("log", "checkpoints", tmp_path).lines
    assert f"  in use       yes, by process {os.getpid()}" in lines
    assert any(line.startswith("  if killed    ") for line in lines)
    assert contents(tmp_path) == before
    node.stop()


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (lambda d: (d / "meta.properties").unlink(), "damage meta.properties: is missing"),
        (lambda d: flip(d / "meta.properties", 3), "damage meta.properties: cannot be read"),
        (
            lambda d: (d / "log-start-offset-checkpoint").unlink(),
            "cache log-start-offset-checkpoint: it is missing",
        ),
        (
            lambda d: flip(d / "cleaner-purge-checkpoint", 0),
            "cache cleaner-purge-checkpoint: line 1: expected version",
        ),
        (
            lambda d: flip(d / ".clean_shutdown", 9),
            "cache .clean_shutdown: the marker is not what was written",
        ),
        (
            lambda d: shutil.rmtree(d / "orders-0"),
            "damage orders-0: there is no such directory, but entries in repl",
        ),
        (
            lambda d: (d / "orders-0").rename(d / "orders-7"),
            "cache orders-7: no checkpoint has an entry for it",
        ),
        (
            lambda d: (d / "orders-0" / f"{THIRD}.log").unlink(),
            "damage orders-0: it ends at offset 40, but up to 48",
        ),
        (lambda d: (d / "orders-0" / "partition.metadata").unlink(), "damage partition.metadata: is missing"),
        (
            lambda d: flip(d / "orders-0" / "leader-epoch-checkpoint", 5),
            "cache leader-epoch-checkpoint: line",
        ),
        (
            lambda d: (d / "orders-0" / "leader-epoch-checkpoint").unlink(),
            "cache leader-epoch-checkpoint: is missing",
        ),
        (lambda d: (d / f"old-3.{7:032x}-stray").mkdir(), f"cache old-3.{7:032x}-stray: not placed here"),
        (
            lambda d: (d / f"old-3.{7:032x}-delete").mkdir(),
            f"cache old-3.{7:032x}-delete: deleted, and not yet",
        ),
    ],
)
def test_what_checkpoints_and_directories_disagree_about_is_flagged(
    three: Path, tidelog: Tidelog, harm: Any, fault: str
) -> None:
    harm(three.parent)
    assert any(each.startswith(fault) for each in faults(tidelog, "checkpoints", three.parent))


def test_a_log_that_was_never_flushed_lacks_no_epochs(tmp_path: Path, tidelog: Tidelog) -> None:
    node = RealNode(tmp_path / "data").fill(3)
    inside = tmp_path / "data" / "orders-0"
    assert not (inside / "leader-epoch-checkpoint").exists()
    assert [each for each in faults(tidelog, "checkpoints", tmp_path / "data") if "epoch" in each] == []
    node.stop()


def test_looking_at_harm_changes_nothing(three: Path, tidelog: Tidelog) -> None:
    _cut(three / f"{THIRD}.log")
    (three / f"{FIRST}.index").unlink()
    (three / f"{FIRST}.log.deleted").touch()
    before = contents(three.parent)
    for verb in ("segments", "checkpoints"):
        faults(tidelog, verb, three.parent)
        tidelog("log", verb, three)
    assert contents(three.parent) == before


def test_other_topics_are_sorted_by_name_and_number(tmp_path: Path, tidelog: Tidelog) -> None:
    node = RealNode(tmp_path)
    for which in (TopicPartition("a-topic", 10), TopicPartition("a-topic", 9)):
        node.data.create(which, b"t" * 16, now_ms=0)
    node.stop()
    names = [line.split()[0] for line in tidelog("log", "checkpoints", tmp_path).lines[-3:]]
    assert names == ["a-topic-9", "a-topic-10", str(ORDERS)]
