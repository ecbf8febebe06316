"""Batches with right checksums that nobody can read: a compaction leaves them as they are, and is not ended by them."""

from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from tests.storage.compacted import MEMORY, Compacted
from tidelog.protocol.batch import DELETE_HORIZON, HEADER_SIZE, build, read_header, walk
from tidelog.protocol.errors import CorruptMessage
from tidelog.protocol.records import decode, encode
from tidelog.storage.cleaning import Outcome

A_FEW_KEYS = 400
"""Bytes for keys: no set of them fits, but a map does."""
UNREADABLE: dict[str, object] = {
    "values that are numbers, and a nil": [None, [b"a", b"b"], [7, None], None, None],
    "one time for two records": [[0], [b"a", b"b"], [b"x", b"y"], None, None],
    "a nil, and one time for two records": [[0], [b"a", b"b"], [None, b"y"], None, None],
    "keys that are numbers": [None, [1, 2], [b"x", b"y"], None, None],
    "one value for two records": [None, [b"a", b"b"], [b"x"], None, None],
    "one value for two records without keys": [None, None, [b"x"], None, None],
    "offsets that do not grow": [None, [b"a", b"b"], [b"x", b"y"], None, [1, 0]],
    "no columns": 7,
}


def batch_of(columns: object, base_timestamp: int = 0) -> bytearray:
    """Two records, as any client can pack them."""
    return build(
        msgspec.msgpack.encode(columns),
        last_offset_delta=1,
        record_count=2,
        base_timestamp=base_timestamp,
        max_timestamp=base_timestamp,
    )


def write(life: Compacted, batch: bytearray) -> bytes:
    """The batch as it stands in the log then."""
    life.log.append(batch, 0, life.now_ms)
    return bytes(batch)


def put(life: Compacted, key: bytes, value: bytes | None) -> None:
    write(life, encode([value], [key], now_ms=life.now_ms))


def stored(life: Compacted) -> list[bytes]:
    data = b"".join(bytes(life.log.read(s.base_offset, 1 << 20).data) for s in life.log.segments if s.size)
    return [data[at : at + header.size] for at, header in walk(data)]


def rows(batches: Sequence[bytes]) -> list[tuple[bytes | None, bytes | None]]:
    return [row for columns in map(decode, batches) for row in zip(columns.keys, columns.values, strict=True)]


def compacted(life: Compacted, memory_bytes: int) -> list[Outcome]:
    """What came of each pass, until there is nothing left to do."""
    outcomes = []
    while (outcome := life.compact(memory_bytes).outcome) is not None:
        outcomes.append(outcome)
        assert len(outcomes) < 50, "it comes no further"
    return outcomes


@pytest.mark.parametrize("memory_bytes", [MEMORY, A_FEW_KEYS])
@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_batch_that_nobody_can_read_stays_as_it_is_and_all_others_are_compacted(
    kind: str, memory_bytes: int
) -> None:
    life = Compacted(Random(1))
    for number in range(20):
        put(life, b"%d" % (number % 3), b"%d" % number)
    unreadable = write(life, batch_of(UNREADABLE[kind]))
    for number in range(20, 40):
        put(life, b"%d" % (number % 3), b"%d" % number)
    life.roll()
    outcomes = compacted(life, memory_bytes)
    found = stored(life)
    assert found.count(unreadable) == 1
    found.remove(unreadable)
    assert rows(found) == [(b"1", b"37"), (b"2", b"38"), (b"0", b"39")]
    first = read_header(unreadable).base_offset
    assert {(each.unreadable_batches, each.first_unreadable) for each in outcomes} <= {(0, -1), (1, first)}
    assert sum(each.unreadable_batches for each in outcomes) >= 1, "it is told"
    life.forget_caches()
    assert unreadable in stored(life)


@pytest.mark.parametrize("memory_bytes", [MEMORY, A_FEW_KEYS])
def test_what_is_older_than_a_batch_that_nobody_can_read_is_judged_without_it(memory_bytes: int) -> None:
    life = Compacted(Random(1))
    put(life, b"a", b"too old")
    put(life, b"a", b"readable")
    unreadable = write(life, batch_of([None, [b"a", b"a"], [7, None], None, None]))
    put(life, b"b", b"last")
    life.roll()
    compacted(life, memory_bytes)
    found = stored(life)
    assert found.pop(-2) == unreadable
    assert rows(found) == [(b"a", b"readable"), (b"b", b"last")]


@pytest.mark.parametrize("memory_bytes", [MEMORY, A_FEW_KEYS])
def test_a_block_with_nothing_else_that_stays_is_read_for_the_batch_that_nobody_can_read(
    monkeypatch: pytest.MonkeyPatch, memory_bytes: int
) -> None:
    monkeypatch.setattr("tidelog.storage.compaction.BLOCK", 100)
    life = Compacted(Random(1))
    for number in range(9):
        put(life, b"a", b"%d" % number)
    unreadable = write(life, batch_of(7))
    for number in range(9):
        put(life, b"a", b"%d" % number)
    life.roll()
    (outcome,) = compacted(life, memory_bytes)
    assert outcome.dropped_records >= 16
    assert unreadable in stored(life)


def test_where_nobody_can_read_the_headers_records_go_and_the_headers_stay_unreadable() -> None:
    life = Compacted(Random(1))
    put(life, b"first", b"")
    write(life, batch_of([None, [b"a", b"b"], [b"x", b"y"], [["name"], ["name"]], None]))
    put(life, b"a", b"new")
    life.roll()
    compacted(life, MEMORY)
    found = stored(life)
    assert rows(found) == [(b"first", b""), (b"b", b"y"), (b"a", b"new")]
    with pytest.raises(CorruptMessage, match="headers for 0 of 1 records"):
        _ = decode(found[1]).headers


def test_a_tombstone_whose_times_cannot_be_written_anew_stays_without_a_horizon_and_older_records_go() -> (
    None
):
    life = Compacted(Random(1))
    put(life, b"first", b"")
    put(life, b"a", b"deleted")
    write(life, batch_of([[-(2**63), 0], [b"a", b"b"], [None, b"y"], None, None]))
    put(life, b"b", b"new")
    life.roll()
    compacted(life, MEMORY)
    found = stored(life)
    assert rows(found) == [(b"first", b""), (b"a", None), (b"b", b"new")]
    assert not any(read_header(batch).attributes & DELETE_HORIZON for batch in found)


def test_a_batch_of_which_all_stays_and_whose_times_cannot_be_written_anew_is_not_written_at_every_pass() -> (
    None
):
    life = Compacted(Random(1))
    write(life, batch_of([[-(2**63), 0], [b"a", b"b"], [None, b"y"], None, None]))
    life.roll()
    (outcome,) = compacted(life, MEMORY)
    assert outcome.written_bytes == 0


# ── batches that become too large ─────────────────────────────────────────────────────────────────────


def write_full(life: Compacted, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """A batch of 40 records as large as any may be: without one of them it has to say which are left, and is larger."""
    full = encode([b"", *[b"v"] * 39], [b"a", *[b"k%d" % number for number in range(39)]], now_ms=0)
    size = len(full) if limit.endswith("MAX_BATCH_BYTES") else len(full) - HEADER_SIZE
    monkeypatch.setattr(limit, size)
    write(life, full)


@pytest.mark.parametrize(
    "limit", ["tidelog.protocol.records.UNCOMPRESSED_MAX", "tidelog.storage.compaction.MAX_BATCH_BYTES"]
)
def test_a_batch_that_would_become_too_large_without_some_records_keeps_them_without_their_values(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """As it was, it would bring a key back: the tombstone goes that was to go when nothing older of its key is left."""
    life = Compacted(Random(1))
    put(life, b"first", b"")
    write_full(life, monkeypatch, limit)
    put(life, b"a", None)
    put(life, b"b", b"last")
    life.roll()
    compacted(life, MEMORY)
    _, full, _, _ = stored(life)
    assert rows([full]) == [(b"a", None), *[(b"k%d" % number, b"v") for number in range(39)]]
    assert decode(full).offsets == range(1, 41)
    life.now_ms += 2 * life.config.delete_retention_ms
    put(life, b"k3", b"new")
    put(life, b"b", b"newest")
    life.roll()
    compacted(life, MEMORY)
    left = dict(rows(stored(life)))
    assert (left.get(b"a"), left[b"k2"], left[b"k3"]) == (None, b"v", b"new")
    assert (b"k3", b"v") not in rows(stored(life))
