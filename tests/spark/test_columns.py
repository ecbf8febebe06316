import pyarrow as pa
import pytest

from tidelog.client.records import RecordBatch, batch_from
from tidelog.protocol.batch import LOG_APPEND_TIME, stamp
from tidelog.protocol.errors import InvalidRecord
from tidelog.protocol.records import decode, encode, thinned
from tidelog.spark.columns import ROWS, Rows, Shaper, schema_of


def batch(data: bytearray, offset: int = 0) -> RecordBatch:
    stamp(data, offset, 0)
    found = batch_from("orders", 2, decode(data), offset)
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
    from pyspark.sql.types import StringType, StructField, StructType  # noqa: PLC0415

    shaper = Shaper(StructType([StructField("value", StringType())]))
    shaper.add(batch(encode([b"\xff"], now_ms=7), 9))
    with pytest.raises(InvalidRecord, match=r"orders-2 from offset 9: a value is no UTF-8 text"):
        shaper.take()


def test_rows_become_records_with_times_in_milliseconds() -> None:
    times = pa.array([1_999, -1, None], pa.timestamp("us", tz="UTC"))
    given = pa.record_batch({"value": ["a", None, "c"], "timestamp": times})
    rows = Rows(given)
    assert rows.values == [b"a", None, b"c"]
    assert rows.timestamps_ms == [1, -1, None]
