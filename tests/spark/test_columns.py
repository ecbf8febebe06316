from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from tests.protocol.test_records import batch_of
from tidelog.client.fetching import Decode
from tidelog.client.records import RecordBatch, batch_from
from tidelog.protocol.batch import LOG_APPEND_TIME, stamp
from tidelog.protocol.compression import CODECS, NONE
from tidelog.protocol.errors import CorruptMessage, InvalidConfig, InvalidRecord
from tidelog.protocol.records import decode, decode_packed, encode, thinned
from tidelog.spark import columns
from tidelog.spark.columns import ROWS, Rows, Shaper, bytes_of, check_schema, schema_of


def batch(data: bytearray, offset: int = 0, unpack: Decode = decode_packed) -> RecordBatch:
    stamp(data, offset, 0)
    found = batch_from("orders", 2, unpack(data, 0), offset)
    assert found is not None
    return found


def shaped(given: RecordBatch, key_equals: str | None = None) -> pa.RecordBatch:
    shaper = Shaper(schema_of(headers=True), key_equals)
    shaper.add(given)
    [made] = shaper.take()
    return made


def test_the_brokers_time_is_told_from_the_producers() -> None:
    theirs = shaped(batch(encode([b"v"], timestamps=[5])))
    ours = shaped(batch(encode([b"v"], timestamps=[5], attributes=LOG_APPEND_TIME)))
    assert (theirs["timestampType"].to_pylist(), ours["timestampType"].to_pylist()) == ([0], [1])


def test_gaps_that_compaction_left_keep_their_offsets() -> None:
    whole = encode([b"%d" % n for n in range(5)], [b"k"] * 5, [10, 11, 12, 13, 14])
    stamp(whole, 100, 0)
    kept = shaped(batch(thinned(decode(whole), [1, 4]), 100))
    assert kept["offset"].to_pylist() == [101, 104]
    assert kept["timestamp"].cast(pa.int64()).to_pylist() == [11_000, 14_000]


def test_headers_and_nulls_come_as_they_are() -> None:
    headers = [(), (("a", b"1"), ("a", None)), ()]
    made = shaped(batch(encode([None, b"", b"v"], [b"k", None, b""], headers=headers, now_ms=7)))
    assert made["value"].to_pylist() == [None, b"", b"v"]
    assert made["key"].to_pylist() == [b"k", None, b""]
    assert made["headers"].to_pylist() == [
        None,
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        None,
    ]


def test_a_key_is_looked_for_as_a_whole() -> None:
    given = batch(encode([b"1", b"2", b"3"], [b"k", b"kk", None], now_ms=7))
    assert shaped(given, "k")["value"].to_pylist() == [b"1"]


def test_batches_are_bounded_whatever_producers_send() -> None:
    shaper = Shaper(schema_of(headers=False))
    shaper.add(batch(encode([b"v"] * (3 * ROWS), now_ms=7)))
    made = shaper.take()
    assert sum(each.num_rows for each in made) == 3 * ROWS
    assert max(each.num_rows for each in made) == ROWS
    assert shaper.take() == []


def test_text_that_is_none_is_refused_with_its_place() -> None:
    shaper = Shaper(StructType([StructField("value", StringType())]))
    shaper.add(batch(encode([b"\xff"], now_ms=7), 9))
    with pytest.raises(InvalidRecord, match=r"orders-2 from offset 9: a value is no UTF-8 text"):
        shaper.take()


# ── entries of one length ─────────────────────────────────────────────────────────────────────────────

Given = tuple[list[bytes | None], list[bytes | None] | None, int]
"""Values, keys, and the codec of a batch."""


def entries(count: int) -> st.SearchStrategy[list[bytes | None]]:
    """Some of one length, some of any, some that are not there."""
    uniform: st.SearchStrategy[list[bytes | None]] = st.sampled_from([0, 1, 8, 255, 256]).flatmap(
        lambda length: st.lists(
            st.sampled_from([bytes([at]) * length for at in (0, 65, 0xC4)]), min_size=count, max_size=count
        )
    )
    return uniform | st.lists(st.none() | st.binary(max_size=3), min_size=count, max_size=count)


some_batches = st.lists(
    st.integers(1, 9).flatmap(
        lambda count: st.tuples(
            entries(count), st.none() | entries(count), st.sampled_from(list(CODECS.values()))
        )
    ),
    min_size=1,
    max_size=6,
)


def made_of(given: Sequence[Given], cuts: Sequence[tuple[int, int]], unpack: Decode, **wanted: Any) -> Any:
    """These batches, of each only what is between its cuts, as a task hands them over; and what Python makes of them."""
    shaper = Shaper(schema_of(headers=False), **wanted)
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    offsets, at = [], 0
    for (some, some_keys, codec), (left, right) in zip(given, cuts, strict=True):
        part = batch(encode(some, some_keys, now_ms=at, codec=codec), at, unpack)
        first = left % len(part)
        _, rest = part.split(first) if first else (None, part)
        assert rest is not None
        part, _ = rest.split(right % len(rest) + 1)
        shaper.add(part)
        keys, values = keys + part.keys, values + part.values
        offsets += list(part.offsets)
        at += len(some)
    made = shaper.take()
    return pa.Table.from_batches(made, shaper.schema), keys, values, offsets


@given(some=some_batches, data=st.data())
def test_packed_batches_become_the_same_columns_as_unpacked_ones(
    some: list[Given], data: st.DataObject
) -> None:
    two = st.tuples(st.integers(0, 9), st.integers(0, 9))
    cuts = data.draw(st.lists(two, min_size=len(some), max_size=len(some)))
    packed, keys, values, offsets = made_of(some, cuts, decode_packed)
    ordinary, *_ = made_of(some, cuts, decode)
    packed.validate(full=True)
    assert packed.equals(ordinary)
    assert (packed["key"].to_pylist(), packed["value"].to_pylist()) == (keys, values)
    assert packed["offset"].to_pylist() == offsets


@given(some=some_batches, key=st.sampled_from(["", "A", "A" * 8, "nobody"]))
def test_a_key_is_found_in_packed_batches_as_well(some: list[Given], key: str) -> None:
    whole = [(0, 8)] * len(some)
    packed, keys, values, _ = made_of(some, whole, decode_packed, key_equals=key)
    assert packed["value"].to_pylist() == [
        value for value, each in zip(values, keys, strict=True) if each == key.encode()
    ]


@pytest.mark.parametrize("length", [0, 1, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("count", [1, 3])
def test_entries_of_one_length_need_no_object_each(
    length: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something was unpacked")

    monkeypatch.setattr("tidelog.protocol.records.PackedColumns._column", refuse)
    values = [bytes([at]) * length for at in range(count)]
    shaper = Shaper(schema_of(headers=True))
    for at in range(2):
        shaper.add(batch(encode(values, values, now_ms=7), at * count))
        shaper.add(batch(encode(values, None, now_ms=7), at * count))
    [made] = shaper.take()
    assert made["value"].to_pylist() == values * 4
    assert made["key"].to_pylist() == (values + [None] * count) * 2


def test_texts_of_one_length_are_verified_like_all_others() -> None:
    schema = StructType([StructField("key", StringType()), StructField("value", StringType())])
    shaper = Shaper(schema)
    shaper.add(batch(encode(["é1".encode(), "é2".encode()], [b"a", b"b"], now_ms=7)))
    [made] = shaper.take()
    assert made.to_pydict() == {"key": ["a", "b"], "value": ["é1", "é2"]}
    shaper.add(batch(encode([b"ok", b"\xff\xff"], now_ms=7), 9))
    with pytest.raises(InvalidRecord, match=r"orders-2 from offset 9: a value is no UTF-8 text"):
        shaper.take()


def test_what_cannot_be_unpacked_is_named_with_its_place() -> None:
    shaper = Shaper(schema_of(headers=False))
    shaper.add(batch(batch_of([None, None, [b"v", 7], None, None]), 5))
    with pytest.raises(CorruptMessage, match=r"orders-2 cannot be read at offset 5: .*got `int` - at"):
        shaper.take()


def test_a_packed_batch_is_counted_by_its_bytes_and_each_part_by_its_share() -> None:
    whole = batch(encode([b"v" * 100] * 50, [b"k" * 8] * 50))
    assert bytes_of(whole) == 2 * 3 + 50 * (102 + 10)
    part, rest = whole.split(20)
    assert rest is not None
    assert 0 <= bytes_of(whole) - bytes_of(part) - bytes_of(rest) <= 1
    nearly = bytes_of(batch(encode([b"v" * 100] * 50, [b"k" * 8] * 50), unpack=decode))
    assert nearly == 50 * 108


def test_joining_what_has_different_heads_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    some: list[Given] = [([b"1"], None, NONE), ([b"22"], None, NONE)]
    monkeypatch.setattr(columns, "groupby", lambda rows, _: [(b"\xc4\x01", list(rows))])  # planted
    made = columns._values([batch(encode(values, now_ms=7)) for values, _, _ in some])
    assert made.to_pylist() != [b"1", b"22"]


def test_times_of_batches_and_times_of_records_stand_side_by_side() -> None:
    shaper = Shaper(schema_of(headers=False))
    for at, times in enumerate([[5, 5], [6, 6], [7, 9], [9, 7], [8, 8]]):
        shaper.add(batch(encode([b"v", b"v"], timestamps=times), 10 * at))
    shaper.add(batch(encode([b"v", b"v"], timestamps=[1, 3], attributes=LOG_APPEND_TIME), 52))
    [made] = shaper.take()
    assert made["timestamp"].cast(pa.int64()).to_pylist() == [
        1000 * each for each in (5, 5, 6, 6, 7, 9, 9, 7, 8, 8, 3, 3)
    ]
    assert made["offset"].to_pylist() == [0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 52, 53]
    assert made["timestampType"].to_pylist() == [0] * 10 + [1] * 2


def test_a_schema_that_names_a_column_twice_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="schema: column value is there 2 times; name each once"):
        check_schema(StructType([StructField("value", StringType())] * 2))


# ── the other way ─────────────────────────────────────────────────────────────────────────────────────


def test_rows_become_records_with_times_in_milliseconds() -> None:
    times = pa.array([1_999, -1, None], pa.timestamp("us", tz="UTC"))
    given = pa.record_batch({"value": ["a", None, "c"], "timestamp": times})
    rows = Rows(given)
    assert rows.values == [b"a", None, b"c"]
    assert rows.timestamps_ms == [1, -1, None]


def test_times_in_the_hour_when_clocks_go_back_are_those_that_were_meant() -> None:
    twice = [1_793_511_000_000_999, 1_793_514_600_000_999, None]
    times = pa.array(twice, pa.timestamp("us", tz="America/New_York"))  # 2026-11-01, 1:30 and 1:30
    made = Rows(pa.record_batch({"value": ["a", "b", "c"], "timestamp": times}))
    assert made.timestamps_ms == [1_793_511_000_000, 1_793_514_600_000, None]


@pytest.mark.parametrize("time_us", [-1001, -(1 << 63)])
def test_a_time_before_1970_is_refused_with_its_row(time_us: int) -> None:
    times = pa.array([7, None, time_us], pa.timestamp("us", tz="UTC"))
    with pytest.raises(
        InvalidRecord, match=rf"row 12 of the task: timestamp is {time_us} microseconds from 1970"
    ):
        Rows(pa.record_batch({"value": ["a", "b", "c"], "timestamp": times}), first=10)


def test_a_record_without_a_time_and_one_from_before_1970_are_read_as_what_they_are() -> None:
    made = shaped(batch(encode([b"v", b"w"], timestamps=[-1, 5])))
    assert made["timestamp"].cast(pa.int64()).to_pylist() == [-1000, 5000]
    assert shaped(batch(encode([b"v"], now_ms=-1500)))["timestamp"].cast(pa.int64()).to_pylist() == [
        -1_500_000
    ]
    again = Rows(pa.record_batch({"value": made["value"], "timestamp": made["timestamp"]}))
    assert again.timestamps_ms == [-1, 5]


@pytest.mark.parametrize(("header", "fact"), [(None, "null"), ({"key": None, "value": b"v"}, "a value with")])
def test_a_header_that_is_none_is_refused_with_its_row(header: object, fact: str) -> None:
    headers = pa.array([None, [{"key": "k", "value": None}, header]], columns._ARROW_HEADERS)
    with pytest.raises(InvalidRecord, match=rf"row 11 of the task: headers\[1\] is {fact}"):
        Rows(pa.record_batch({"value": ["a", "b"], "headers": headers}), first=10)


@pytest.mark.parametrize("times", [[7, 1_700_000_000_000_000_000], [1_700_000_000_000_000_000] * 2])
def test_a_time_that_spark_has_no_microseconds_for_is_null(times: list[int]) -> None:
    made = shaped(batch(encode([b"v", b"w"], timestamps=times)))
    assert made["timestamp"].cast(pa.int64()).to_pylist() == [7000 if each == 7 else None for each in times]


def test_a_time_beyond_64_bits_is_null() -> None:
    """Another client's batch can say it: a time, and how much later a record is."""
    assert columns._micros([7, 1 << 63, -(1 << 63) - 1]).to_pylist() == [7000, None, None]
