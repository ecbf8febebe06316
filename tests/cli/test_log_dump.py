"""`tidelog log dump`: what is in a file, in three layouts (USERS.md 3.2 for Kafka's)."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Tidelog
from tests.cli.real_directory import TIME, RealNode, contents, flip
from tidelog.protocol.batch import (
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    build,
    stamp,
    walk,
)
from tidelog.protocol.compression import ZSTD
from tidelog.protocol.records import decode, encode, thinned

NAME = "00000000000000000000.log"


def log_of(directory: Path, *batches: bytes | bytearray) -> Path:
    """A segment file of these batches."""
    path = directory / NAME
    path.write_bytes(b"".join(batches))
    return path


def objects(out: str, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in out.splitlines()]
    return [each for each in found if each["type"] == kind]


# ── Kafka's layout ────────────────────────────────────────────────────────────────────────────────────


def small_log(directory: Path) -> Path:
    """Two batches: one of an idempotent producer with keys and headers, one of nobody."""
    headers = [[("h1", b"x"), ("h2", None)], [], []]
    times = [TIME, TIME + 1, TIME + 2]
    of_producer = encode(
        [b"hello", None, b""],
        [b"k1", b"k2", None],
        times,
        headers,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
    )
    stamp(of_producer, 0, 4)
    of_nobody = encode([b"v"], now_ms=TIME)
    stamp(of_nobody, 3, 5)
    return log_of(directory, of_producer, of_nobody)


KAFKA = """\
Dumping {path}
Log starting offset: 0
baseOffset: 0 lastOffset: 2 count: 3 baseSequence: 0 lastSequence: 2 producerId: 7 producerEpoch: 0 \
partitionLeaderEpoch: 4 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty \
position: 0 CreateTime: 1700000000002 size: 106 magic: 3 compresscodec: none crc: {crcs[0]} isvalid: true
| offset: 0 CreateTime: 1700000000000 keySize: 2 valueSize: 5 sequence: 0 headerKeys: [h1,h2] key: k1 payload: hello
| offset: 1 CreateTime: 1700000000001 keySize: 2 valueSize: -1 sequence: 1 headerKeys: [] key: k2
| offset: 2 CreateTime: 1700000000002 keySize: -1 valueSize: 0 sequence: 2 headerKeys: [] payload:\x20
baseOffset: 3 lastOffset: 3 count: 1 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1 \
partitionLeaderEpoch: 5 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty \
position: 106 CreateTime: 1700000000000 size: 74 magic: 3 compresscodec: none crc: {crcs[1]} isvalid: true
| offset: 3 CreateTime: 1700000000000 keySize: -1 valueSize: 1 sequence: -1 headerKeys: [] payload: v
"""


def test_the_kafka_layout_is_kafkas(tmp_path: Path, tidelog: Tidelog) -> None:
    path = small_log(tmp_path)
    crcs = [header.body_crc for _, header in walk(path.read_bytes())]
    assert tidelog("log", "dump", "--data", "-o", "kafka", path).out == KAFKA.format(path=path, crcs=crcs)


def test_without_data_the_kafka_layout_has_no_records(tmp_path: Path, tidelog: Tidelog) -> None:
    ran = tidelog("log", "dump", "-o", "kafka", small_log(tmp_path))
    assert len(ran.lines) == 4
    assert "| offset" not in ran.out


def test_a_torn_tail_is_counted_as_kafka_counts_it(tmp_path: Path, tidelog: Tidelog) -> None:
    path = small_log(tmp_path)
    path.write_bytes(path.read_bytes() + b"torn bytes of 17!")
    ran = tidelog("log", "dump", "-o", "kafka", path)
    assert ran.lines[-1] == f"Found 17 invalid bytes at the end of {NAME}"
    assert ran.code == 0


def test_a_batch_with_a_damaged_body_is_shown_as_invalid_and_the_next_is_read(
    tmp_path: Path, tidelog: Tidelog
) -> None:
    path = small_log(tmp_path)
    flip(path, 80)
    ran = tidelog("log", "dump", "-o", "kafka", path)
    assert [line[-5:] for line in ran.lines[2:]] == ["false", " true"]


def test_flags_times_and_horizons_are_named(tmp_path: Path, tidelog: Tidelog) -> None:
    attributes = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | DELETE_HORIZON
    batch = build(
        b"", last_offset_delta=0, record_count=0, base_timestamp=5, max_timestamp=9, attributes=attributes
    )
    out = tidelog("log", "dump", "-o", "kafka", log_of(tmp_path, batch)).out
    assert (
        "isTransactional: true isControl: true deleteHorizonMs: OptionalLong[5] position: 0 LogAppendTime: 9"
        in out
    )


def test_sequences_follow_the_offsets_that_compaction_left(tmp_path: Path, tidelog: Tidelog) -> None:
    batch = encode([b"a", b"b", b"c"], producer_id=7, producer_epoch=0, base_sequence=10)
    path = log_of(tmp_path, thinned(decode(batch), [0, 2]))
    out = tidelog("log", "dump", "--data", "-o", "json", path).out
    assert [(each["offset"], each["sequence"]) for each in objects(out, "record")] == [(0, 10), (2, 12)]


def test_indexes_print_as_kafkas(orders: Path, tidelog: Tidelog) -> None:
    stem = orders / "00000000000000000000"
    offsets = tidelog("log", "dump", "-o", "kafka", stem.with_suffix(".index")).lines
    times = tidelog("log", "dump", "-o", "kafka", stem.with_suffix(".timeindex")).lines
    assert offsets[1:3] == ["offset: 5 position: 194", "offset: 11 position: 485"]
    assert times[1:3] == [f"timestamp: {TIME + 2001} offset: 5", f"timestamp: {TIME + 5001} offset: 11"]


def test_a_producer_snapshot_prints_as_kafkas(orders: Path, tidelog: Tidelog) -> None:
    lines = tidelog("log", "dump", "-o", "kafka", orders / "00000000000000000040.snapshot").lines
    expected = (
        f"producerId: 7 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong.empty "
        f"lastTimestamp: {TIME} firstSequence: 38 lastSequence: 39 lastOffset: 39 offsetDelta: 1 "
        f"timestamp: {TIME + 19_001}"
    )
    assert lines[1:] == [expected]


def test_checkpoints_print_as_the_text_that_they_are(data: Path, tidelog: Tidelog) -> None:
    epochs = tidelog("log", "dump", "-o", "kafka", data / "orders-0" / "leader-epoch-checkpoint").lines
    points = tidelog("log", "dump", "-o", "kafka", data / "recovery-point-offset-checkpoint").lines
    assert epochs[1:] == ["0 0", "1 8", "2 16", "3 24", "4 32"]
    assert points[1:] == ["orders 0 40"]


# ── our own table ─────────────────────────────────────────────────────────────────────────────────────


def test_the_table_is_aligned_and_its_times_can_be_read(tmp_path: Path, tidelog: Tidelog) -> None:
    path = small_log(tmp_path)
    assert tidelog("log", "dump", "--data", path).out == (
        f"{path}: segment, 180 B\n"
        "  OFFSETS  COUNT  POSITION   SIZE  LATEST (UTC)  CODEC  EPOCH  PRODUCER\n"
        "  2023-11-14\n"
        "  0-2          3         0  106 B  22:13:20.002  none       4  7:0 seq 0-2\n"
        "    0  22:13:20.000  'k1': 'hello'  h1='x'  h2=null\n"
        "    1  22:13:20.001  'k2': null\n"
        "    2  22:13:20.002  null: ''\n"
        "  3-3          1       106   74 B  22:13:20.000  none       5\n"
        "    3  22:13:20.000  null: 'v'\n"
        "  2 batches, 4 records, offsets 0 to 3\n"
    )


def test_what_is_not_text_is_escaped_and_no_terminal_obeys_it(tmp_path: Path, tidelog: Tidelog) -> None:
    path = log_of(tmp_path, encode([b"\x1b[2J\xff\n'\\"], ["ü".encode()]))
    assert r"'ü': '\x1b[2J\xff\n\'\\'" in tidelog("log", "dump", "--data", path).out
    assert r"payload: \x1b[2J\xff\n" in tidelog("log", "dump", "--data", "-o", "kafka", path).out


def test_a_long_value_is_cut_for_people_only(tmp_path: Path, tidelog: Tidelog) -> None:
    path = log_of(tmp_path, encode([b"x" * 5000]))
    assert "x'... (4.9 KB)" in tidelog("log", "dump", "--data", path).out
    assert "x" * 5000 in tidelog("log", "dump", "--data", "-o", "kafka", path).out


def test_compressed_batches_are_read(tmp_path: Path, tidelog: Tidelog) -> None:
    RealNode(tmp_path / "data").fill(1, codec=ZSTD).stop()
    path = log_of(tmp_path, encode([b"a" * 500], codec=ZSTD))
    out = tidelog("log", "dump", "--data", path).out
    assert "zstd" in out
    assert "aaaa" in out


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta.properties", "  node.role     broker"),
        ("orders-0/partition.metadata", f"  topic_id  {bytes(range(16)).hex()}"),
        (".clean_shutdown", "  worst            new"),
        ("replication-offset-checkpoint", "  orders-0       40"),
        ("orders-0/leader-epoch-checkpoint", "      4           32"),
        ("orders-0/00000000000000000000.index", "      11       485"),
        ("orders-0/00000000000000000000.timeindex", "  2023-11-14 22:13:25.001      11"),
        (".lock", "  pid  2147483647"),
    ],
)
def test_every_file_of_a_data_directory_is_understood(
    data: Path, tidelog: Tidelog, name: str, expected: str
) -> None:
    ran = tidelog("log", "dump", data / name)
    assert (ran.code, ran.err) == (0, "")
    assert expected in ran.lines


def test_every_file_of_a_data_directory_is_dumped_in_every_layout(data: Path, tidelog: Tidelog) -> None:
    before = contents(data)
    for output in ("text", "json", "kafka"):
        ran = tidelog("-o", output, "log", "dump", "--data", "--verify", *before)
        assert (ran.code, ran.err) == (0, "")
    assert contents(data) == before


def test_bytes_that_were_set_aside_are_read_from_their_first_whole_batch_on(
    tmp_path: Path, tidelog: Tidelog
) -> None:
    content = small_log(tmp_path).read_bytes()
    path = tmp_path / "00000000000000000000.log.corrupt.2"
    path.write_bytes(content[30:])
    ran = tidelog("log", "dump", path)
    assert "set aside by recovery" in ran.lines[0]
    assert "76 bytes from byte 0 on are no batch" in ran.lines[2]
    assert ran.lines[4].startswith("  3-3")
    assert ran.lines[-1] == "  1 batch, 1 record, offsets 3 to 3"


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────


def test_json_is_one_object_per_line_as_documented(tmp_path: Path, tidelog: Tidelog) -> None:
    out = tidelog("log", "dump", "--data", "-o", "json", small_log(tmp_path)).out
    batch, record = objects(out, "batch")[0], objects(out, "record")[0]
    assert record == {
        "file": str(tmp_path / NAME),
        "type": "record",
        "offset": 0,
        "timestamp_ms": TIME,
        "key": "k1",
        "value": "hello",
        "headers": [{"name": "h1", "value": "x"}, {"name": "h2", "value": None}],
        "sequence": 0,
    }
    assert (batch["base_offset"], batch["last_offset"], batch["leader_epoch"], batch["is_valid"]) == (
        0,
        2,
        4,
        True,
    )
    assert [each["value"] for each in objects(out, "record")] == ["hello", None, "", "v"]


def test_bytes_that_are_no_text_are_base64_in_json(tmp_path: Path, tidelog: Tidelog) -> None:
    path = log_of(tmp_path, encode([b"\xff"], [b"k"]))
    (record,) = objects(tidelog("log", "dump", "--data", "-o", "json", path).out, "record")
    assert (record["value"], record["value_encoding"]) == ("/w==", "base64")
    assert "key_encoding" not in record


def test_the_output_option_stands_before_the_noun_or_behind_the_verb(first: Path, tidelog: Tidelog) -> None:
    before = tidelog("-o", "json", "log", "dump", first)
    behind = tidelog("log", "dump", first, "--output", "json")
    both = tidelog("-o", "kafka", "log", "dump", first, "-o", "json")
    assert before.out.startswith('{"file"')
    assert before == behind == both
