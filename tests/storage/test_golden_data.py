"""The committed data directories open for ever, with what was written into them; newer ones are refused."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.storage.golden_data import (
    BATCHES,
    CLICKS,
    GOLDEN,
    KILLED,
    NAMES,
    ORDERS,
    STOPPED,
    TOPIC_IDS,
    TORN,
    Node,
    load,
    make,
    rows,
)
from tidelog.protocol.batch import MAGIC, read_header
from tidelog.protocol.errors import DamagedLog, UnsupportedFormat
from tidelog.storage.checkpoints import LEADER_EPOCHS, OFFSET_CHECKPOINTS
from tidelog.storage.crashes import CrashKind
from tidelog.storage.io import open_directory
from tidelog.storage.producers import StoredBatch
from tidelog.storage.seal import CHECKPOINT, JSON, PROPERTIES
from tidelog.testing.simulation.disk import SimulatedDisk

SEGMENTS = [0, 22, 46]


def check(node: Node, batches: int) -> None:
    """What is in both directories."""
    data = node.data
    assert data.topic_ids == TOPIC_IDS
    assert [segment.base_offset for segment in data.logs[ORDERS].segments] == SEGMENTS
    assert rows(data.logs[ORDERS]) == [row for made in BATCHES[:batches] for row in made.rows]
    assert [tuple(entry) for entry in data.logs[ORDERS].epochs.entries] == [(0, 0), (1, 20), (2, 40)]
    assert [(row.offset, row.value) for row in rows(data.logs[CLICKS])] == [
        (offset, b"click %d" % offset) for offset in range(2, 6)
    ]
    assert [tuple(entry) for entry in data.logs[CLICKS].epochs.entries] == [(4, 2)]
    assert data.life.broker_epoch == 9
    producer = data.logs[ORDERS].producers.entry(7)
    assert producer is not None
    last = [made for made in BATCHES[:batches] if made.producer_id == 7][-1]
    time = last.rows[1].timestamp_ms
    assert producer.batches[-1] == StoredBatch(
        last.sequence, last.sequence + 1, 2 * last.number, 2 * last.number + 1, time
    )


@pytest.mark.parametrize("name", STOPPED)
def test_a_directory_that_was_stopped_opens_with_all_that_was_in_it(tmp_path: Path, name: str) -> None:
    shutil.copytree(GOLDEN / name, tmp_path / "data")
    node = Node(open_directory(str(tmp_path / "data")))
    check(node, 30)
    assert node.data.life.last_end is CrashKind.CLEAN
    assert node.data.high_watermark(ORDERS) == 60
    assert (node.data.report.problems, node.data.report.found[ORDERS].verified_bytes) == ([], 0)


@pytest.mark.parametrize("name", KILLED)
def test_a_directory_that_was_killed_opens_up_to_its_torn_batch(name: str) -> None:
    """On a disk with the same number: the kill is known as one."""
    node = Node(load(name).open_directory("/data"))
    check(node, 29)
    found = node.data.report.found[ORDERS]
    torn = len(make_batch(29)) - TORN
    assert (node.data.life.last_end, found.torn_bytes, found.damage) == (CrashKind.PROCESS, torn, [])
    assert node.data.high_watermark(ORDERS) == 48


def make_batch(number: int) -> bytearray:
    return BATCHES[number].encoded()


@pytest.mark.parametrize(
    ("name", "start"), [("stopped", 1), ("killed", 1), ("stopped-2", 2), ("killed-2", 2)]
)
def test_starts_are_counted_from_the_first_version_on_that_does(name: str, start: int) -> None:
    life = Node(load(name).open_directory("/data"), lives=2).data.life
    assert (life.start, len(life.incarnation_ids), life.problems) == (start, 2, ())


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_directory_that_was_copied_is_believed_less(tmp_path: Path, name: str) -> None:
    shutil.copytree(GOLDEN / name, tmp_path / "data")
    node = Node(open_directory(str(tmp_path / "data")), boot="another boot")
    check(node, 29)
    assert node.data.life.last_end is CrashKind.HOST


def test_appends_go_on_where_a_golden_log_ends(tmp_path: Path) -> None:
    for name, end in zip(NAMES, (60, 60, 58, 58), strict=True):
        shutil.copytree(GOLDEN / name, tmp_path / name)
        log = Node(open_directory(str(tmp_path / name))).data.logs[ORDERS]
        assert log.append(make_batch(1), 3, now_ms=0).base_offset == end
        assert log.append(make_batch(28), 3, now_ms=0).duplicate


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_today_holds_the_same_records(name: str) -> None:
    """Bytes may differ where a compressor changed; what a reader finds may not."""
    check(Node(make(name).open_directory("/data")), 30 if name in STOPPED else 29)


# ── newer versions ────────────────────────────────────────────────────────────────────────────────


def _checkpoint(content: bytes) -> bytes:
    body = CHECKPOINT.unseal(content)
    assert body is not None
    return CHECKPOINT.seal(b"2" + body[1:])


def _properties(content: bytes) -> bytes:
    body = PROPERTIES.unseal(content)
    assert body is not None
    return PROPERTIES.seal(body.replace(b"version=1", b"version=2"))


def _marker(content: bytes) -> bytes:
    body = JSON.unseal(content)
    assert body is not None
    return JSON.seal(body.replace(b'"version":1', b'"version":3'))


def _snapshot(content: bytes) -> bytes:
    version = (int.from_bytes(content[:2], "big") + 1).to_bytes(2, "big")
    return version + crc32c(content[6:], crc32c(version)).to_bytes(4, "big") + content[6:]


def _segment(content: bytes) -> bytes:
    """The magic of the last batch."""
    at = 0
    while at + read_header(content, at).size < len(content):
        at += read_header(content, at).size
    head = content[at : at + 16] + bytes([MAGIC + 1])
    return content[:at] + head + crc32c(head).to_bytes(4, "big") + content[at + 21 :]


@pytest.mark.parametrize(
    ("path", "newer"),
    [
        ("meta.properties", _properties),
        (".clean_shutdown", _marker),
        *((name, _checkpoint) for name in OFFSET_CHECKPOINTS),
        ("orders-0/partition.metadata", _properties),
        (f"orders-0/{LEADER_EPOCHS}", _checkpoint),
        ("orders-0/00000000000000000060.snapshot", _snapshot),
        ("orders-0/00000000000000000046.log", _segment),
    ],
)
def test_a_directory_of_a_newer_version_is_refused_by_the_name_of_the_file(
    path: str, newer: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    shutil.copytree(GOLDEN / "stopped", tmp_path / "data")
    file = tmp_path / "data" / path
    file.write_bytes(newer(file.read_bytes()))
    before = file.read_bytes()
    with pytest.raises(UnsupportedFormat, match=path.replace(".", r"\.")):
        Node(open_directory(str(tmp_path / "data")))
    assert file.read_bytes() == before


def test_a_running_marker_of_a_newer_version_is_refused_by_its_name() -> None:
    disk = load("killed")
    directory = disk.open_directory("/data")
    file = directory.open(".running")
    content = _marker(file.read_at(0, file.size()))
    file.truncate(0)
    file.write_at(0, content)
    with pytest.raises(UnsupportedFormat, match=r"\.running is of version 3"):
        Node(directory)


def test_indexes_of_a_newer_version_are_made_anew() -> None:
    """They only lead to batches: nothing is lost with them."""
    disk: SimulatedDisk = load("stopped")
    directory = disk.open_directory("/data").directory("orders-0")
    for name in directory.names():
        if name.endswith("index"):
            directory.open(name).write_at(0, (2).to_bytes(2, "big"))
    check(Node(disk.open_directory("/data")), 30)


def test_no_bit_of_a_golden_directory_changes_a_record() -> None:
    """Whatever rots, what is read is what was written, or it is an error (I-35, I-36)."""
    rng = random.Random(5)
    whole = [row for made in BATCHES for row in made.rows]
    paths = sorted((GOLDEN / "stopped" / "orders-0").iterdir())
    for _ in range(60):
        path = rng.choice(paths)
        disk = load("stopped")
        disk.rot(f"/data/orders-0/{path.name}", rng.randrange(path.stat().st_size), rng.randrange(8))
        try:
            log = Node(disk.open_directory("/data")).data.logs.get(ORDERS)
            found = [] if log is None else rows(log)
        except (UnsupportedFormat, DamagedLog):
            continue
        assert found == whole[: len(found)]
