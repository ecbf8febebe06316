"""`tidelog log dump --verify`: every check is shown to fail on a fault that was planted for it."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Ran, Tidelog
from tests.cli.real_directory import RealNode, contents, flip
from tidelog.protocol.batch import HEADER_SIZE, MAGIC, build, read_header, stamp, walk
from tidelog.protocol.errors import CorruptMessage
from tidelog.protocol.records import encode
from tidelog.storage.index import OFFSETS, TIMES, SparseIndex
from tidelog.storage.io import open_directory

NAME = "00000000000000000000.log"


def placed(offset: int, epoch: int = 0, count: int = 1) -> bytearray:
    """A batch as it stands in a log."""
    batch = encode([b"v"] * count, now_ms=1000)
    stamp(batch, offset, epoch)
    return batch


def faults(tidelog: Tidelog, *paths: Path) -> list[str]:
    """The severity of every fault, which must have made it exit 1 and say something in each layout."""
    ran = tidelog("log", "dump", "--verify", *paths)
    found = [line.partition(":")[0] for line in ran.lines if not line.startswith("ok: ")]
    as_json = tidelog("log", "dump", "--verify", "-o", "json", *paths)
    objects = [json.loads(line) for line in as_json.lines]
    assert [each["severity"] for each in objects if each["type"] == "fault"] == found
    assert ran.code == as_json.code == (1 if found else 0)
    return found


def verify(tidelog: Tidelog, path: Path) -> Ran:
    return tidelog("log", "dump", "--verify", path)


def batches(path: Path) -> list[int]:
    """Where each batch begins."""
    return [at for at, _ in walk(path.read_bytes())]


# ── segments ──────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_whole_is_said_to_be_so(data: Path, orders: Path, tidelog: Tidelog) -> None:
    files = sorted(each for each in (*orders.iterdir(), *data.iterdir()) if each.is_file())
    ran = tidelog("log", "dump", "--verify", *files)
    assert ran.code == 0
    assert [line.partition(": ")[0] for line in ran.lines] == ["ok"] * len(files), (
        "a line per file, whatever it is"
    )
    assert f"ok: {orders / NAME}: 10 batches, 20 records, offsets 0 to 19" in ran.lines


@pytest.mark.slow
def test_a_flipped_bit_anywhere_is_found(first: Path, tidelog: Tidelog) -> None:
    whole = first.read_bytes()
    for position in range(len(whole)):
        flip(first, position, position % 8)
        assert verify(tidelog, first).code == 1, f"flipped in byte {position}"
        first.write_bytes(whole)


@pytest.mark.parametrize("within", [3, HEADER_SIZE + 5])
def test_damage_in_the_middle_is_no_torn_tail(first: Path, tidelog: Tidelog, within: int) -> None:
    """In a head, whose next batch must be searched for, and in a body, whose head says where that is."""
    position = batches(first)[5]
    flip(first, position + within)
    ran = verify(tidelog, first)
    assert ran.lines[0].startswith(f"damage: {first} at byte {position}: ")
    assert "bytes are no whole batch, with offsets 10 to 11; stop the broker" in ran.out
    assert len(ran.lines) == 1


def test_neighbouring_damage_is_one_fault(first: Path, tidelog: Tidelog) -> None:
    fifth, sixth = batches(first)[5:7]
    flip(first, fifth + 3)
    flip(first, sixth + 80)
    assert faults(tidelog, first) == ["damage"]


def test_a_torn_tail_is_called_normal_and_where_the_log_will_end_is_said(
    tmp_path: Path, tidelog: Tidelog
) -> None:
    path = tmp_path / NAME
    path.write_bytes(placed(0) + placed(1)[:-1])
    ran = verify(tidelog, path)
    assert ran.out.startswith(f"torn: {path} at byte {len(placed(0))}: ")
    assert "normal after a crash: the next start cuts the log at offset 1" in ran.out
    assert ran.code == 1


@pytest.mark.parametrize("tail", [bytes(5000), b"x" * 7, b"\x03" * 300, bytes(placed(1))[:40]])
def test_whatever_stands_at_the_end_is_torn_off(tmp_path: Path, tidelog: Tidelog, tail: bytes) -> None:
    path = tmp_path / NAME
    path.write_bytes(bytes(placed(0)) + tail)
    assert faults(tidelog, path) == ["torn"]


def test_a_tail_that_was_reported_as_flushed_is_damage(tmp_path: Path, tidelog: Tidelog) -> None:
    RealNode(tmp_path).fill(4).flush().kill()
    path = tmp_path / "orders-0" / NAME
    path.write_bytes(path.read_bytes()[:-1])
    assert faults(tidelog, path) == ["damage"]
    assert "everything below offset 8 was reported as flushed" in verify(tidelog, path).out


def test_a_tail_with_a_segment_behind_it_is_damage(first: Path, tidelog: Tidelog) -> None:
    (first.parent.parent / "recovery-point-offset-checkpoint").unlink()
    first.write_bytes(first.read_bytes()[:-1])
    assert faults(tidelog, first) == ["damage"]


@pytest.mark.parametrize(
    ("placed_batches", "what"),
    [
        ([placed(0), placed(3)], "offset 3 follows where 1 belongs: batches are missing"),
        ([placed(0, count=2), placed(1)], "offset 1 follows where 2 belongs: offsets go back"),
        ([placed(1)], "offset 1 follows where 0 belongs: batches are missing"),
        ([placed(0, 5), placed(1, 4)], "epoch 4 at offset 1 follows epoch 5: epochs go back"),
        (
            [build(b"\x91", last_offset_delta=0, record_count=1, base_timestamp=0, max_timestamp=0)],
            "cannot be read",
        ),
        (
            [build(b"", last_offset_delta=0, record_count=2, base_timestamp=0, max_timestamp=0)],
            "counts 2 records",
        ),
    ],
)
def test_batches_that_are_whole_may_still_be_wrong(
    tmp_path: Path, tidelog: Tidelog, placed_batches: list[bytearray], what: str
) -> None:
    path = tmp_path / NAME
    path.write_bytes(b"".join([*placed_batches, placed(9, 9)]))
    ran = verify(tidelog, path)
    assert what in ran.lines[0]
    assert ran.lines[0].startswith("damage: ")


def test_a_latest_time_that_is_not_the_latest_is_found(tmp_path: Path, tidelog: Tidelog) -> None:
    batch = encode([b"v"], now_ms=1000)
    payload = batch[HEADER_SIZE:]
    wrong = build(payload, last_offset_delta=0, record_count=1, base_timestamp=1000, max_timestamp=999)
    (tmp_path / NAME).write_bytes(wrong)
    assert "no record is later than 999, one is of 1000" in verify(tidelog, tmp_path / NAME).out


def test_a_newer_format_is_refused_by_name_and_is_no_damage(tmp_path: Path, tidelog: Tidelog) -> None:
    newer = placed(1)
    newer[16] = MAGIC + 1
    stamp(newer, 1, 0)
    path = tmp_path / NAME
    path.write_bytes(placed(0) + newer)
    for words in (["dump"], ["dump", "--verify"], ["dump", "-o", "json"]):
        ran = tidelog("log", *words, path)
        assert ran.code == 1
        assert f"error: {path} at byte 74: the batch at offset 1 has magic {MAGIC + 1}" in ran.err
        assert "upgrade" in ran.err


def test_a_segment_of_kafka_is_known_for_what_it_is(tmp_path: Path, tidelog: Tidelog) -> None:
    from crc32c import crc32c  # noqa: PLC0415

    body = bytes(40) + b"records"
    head = (
        bytes(8) + (9 + len(body)).to_bytes(4, "big") + bytes(4) + b"\x02" + crc32c(body).to_bytes(4, "big")
    )
    (tmp_path / NAME).write_bytes(head + body)
    assert "Kafka's own format (magic 2)" in verify(tidelog, tmp_path / NAME).out


def test_data_and_verify_together_show_and_check(first: Path, tidelog: Tidelog) -> None:
    flip(first, batches(first)[1] + 80)
    ran = tidelog("log", "dump", "--data", "--verify", first)
    assert ran.code == 1
    assert "'k': 'value 0'" in ran.out
    assert "DAMAGED" in ran.out
    assert f"damage: {first}" in ran.out


def test_a_batch_is_searched_for_across_the_pieces_that_a_file_is_read_in(
    tmp_path: Path, tidelog: Tidelog
) -> None:
    path = tmp_path / NAME
    for garbage in ((256 << 10) - 3, 256 << 10, (256 << 10) + 1, 300_000):
        path.write_bytes(bytes(placed(0)) + b"\x01" * garbage + bytes(placed(1)))
        ran = tidelog("log", "dump", path)
        assert ran.lines[-2].startswith("  1-1"), garbage


def test_what_looks_like_a_batch_within_a_torn_one_is_not_taken_for_one(
    tmp_path: Path, tidelog: Tidelog
) -> None:
    """A record may hold a copy of a segment: the head in front of it says how far its own batch goes."""
    outer = encode([bytes(placed(5)) * 3], now_ms=1)
    (tmp_path / NAME).write_bytes(outer[:-1])
    assert faults(tidelog, tmp_path / NAME) == ["torn"]


# ── indexes ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ending", [".index", ".timeindex", ".snapshot"])
def test_every_flipped_bit_of_a_cache_is_found(orders: Path, tidelog: Tidelog, ending: str) -> None:
    path = max(orders.glob(f"*{ending}"))
    whole = path.read_bytes()
    for position in range(len(whole)):
        flip(path, position, position % 8)
        assert set(faults(tidelog, path)) == {"cache"}, f"flipped in byte {position}"
        path.write_bytes(whole)


@pytest.mark.parametrize("ending", [".index", ".timeindex"])
def test_an_index_cut_short_is_found(orders: Path, tidelog: Tidelog, ending: str) -> None:
    path = orders / f"{0:020}{ending}"
    path.write_bytes(path.read_bytes()[:-1])
    assert faults(tidelog, path) == ["cache"]


def saved(directory: Path, kind: str, *entries: tuple[int, int], covered: int = 980) -> Path:
    """An index whose checksums are right, whatever it says."""
    index = SparseIndex(OFFSETS if kind == "index" else TIMES)
    for entry in entries:
        index.add(*entry)
    name = f"{0:020}.{kind}"
    (directory / name).unlink()
    index.save(open_directory(str(directory)), name, covered)
    return directory / name


@pytest.mark.parametrize(
    ("kind", "entry", "what"),
    [
        ("index", (5, 195), "a batch of 00000000000000000000.log begins at byte 195: none does"),
        ("index", (6, 194), "ends with offset 6, it ends with 5"),
        (
            "timeindex",
            (1, 5),
            "1 is the largest time up to offset 5 of 00000000000000000000.log, it is 170000000",
        ),
        ("timeindex", (1, 4), "names offset 4, no batch of 00000000000000000000.log ends with it"),
    ],
)
def test_an_index_that_lies_is_found(
    orders: Path, tidelog: Tidelog, kind: str, entry: tuple[int, int], what: str
) -> None:
    path = saved(orders, kind, entry)
    assert what in verify(tidelog, path).out
    assert faults(tidelog, path) == ["cache"]


def test_an_index_that_says_more_than_the_log_has_is_found(orders: Path, tidelog: Tidelog) -> None:
    path = saved(orders, "index", (1, 0), covered=981)
    assert "it describes 981 bytes of 00000000000000000000.log, which has 980" in verify(tidelog, path).out


def test_an_index_without_its_log_is_found(orders: Path, tidelog: Tidelog) -> None:
    (orders / NAME).unlink()
    assert faults(tidelog, orders / f"{0:020}.index") == ["cache"]


def test_a_damaged_log_is_not_blamed_on_its_index(first: Path, tidelog: Tidelog) -> None:
    flip(first, batches(first)[5])
    ran = verify(tidelog, first.with_suffix(".index"))
    assert len(ran.lines) == 1
    assert "holds no whole batch at byte 485: entries behind it were not checked" in ran.out


# ── the small files ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "severity", "way_out"),
    [
        ("recovery-point-offset-checkpoint", "cache", "every log is scanned from its start"),
        ("orders-0/leader-epoch-checkpoint", "cache", "rebuilt from the headers of all batches"),
        ("meta.properties", "damage", "restore it, or replace this node"),
        ("orders-0/partition.metadata", "damage", "stray"),
        (".clean_shutdown", "cache", "crash of the host"),
    ],
)
def test_small_files_say_what_happens_without_them(
    data: Path, tidelog: Tidelog, name: str, severity: str, way_out: str
) -> None:
    flip(data / name, 8)
    assert faults(tidelog, data / name) == [severity]
    assert way_out in verify(tidelog, data / name).out


def test_verifying_changes_nothing(data: Path, tidelog: Tidelog) -> None:
    flip(data / "orders-0" / NAME, 100)
    before = contents(data)
    tidelog("log", "dump", "--verify", *before)
    assert contents(data) == before


def test_the_planted_heads_are_whole_heads() -> None:
    """Otherwise the tests above would find something else than what they plant."""
    assert read_header(placed(3, 4, 2))[:3] == (3, len(placed(3, 4, 2)) - 12, 4)
    with pytest.raises(CorruptMessage):
        read_header(bytes(HEADER_SIZE))
