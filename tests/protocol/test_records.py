import random
from collections.abc import Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.damage import every_bit, every_cut, flipped, undetected
from tidelog.protocol.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, build, read_header, stamp
from tidelog.protocol.compression import CODECS, GZIP, LZ4, NONE, ZSTD, decompress
from tidelog.protocol.errors import CorruptMessage, InvalidRecord, MessageTooLarge, TidelogError
from tidelog.protocol.records import Columns, Record, columns_of, decode, encode, records, thinned

NOW = 1_700_000_000_000
Row = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]

maybe_bytes = st.none() | st.binary(max_size=12)
rows = st.lists(
    st.tuples(
        maybe_bytes,
        maybe_bytes,
        st.integers(-1, 2**63 - 1) | st.integers(NOW, NOW + 9),
        st.lists(st.tuples(st.text(max_size=4), maybe_bytes), max_size=3),
    ),
    min_size=1,
    max_size=20,
)
codecs = st.sampled_from(list(CODECS.values()))


def encode_rows(some: Sequence[Row], codec: int = NONE) -> bytearray:
    keys, values, timestamps, headers = map(list, zip(*some, strict=True))
    return encode(values, keys, timestamps, headers, codec=codec)


def rows_of(columns: Columns) -> list[Row]:
    headers = [list(each) for each in columns.headers]
    return list(zip(columns.keys, columns.values, columns.timestamps, headers, strict=True))


def batch_of(payload: object, count: int = 2, last: int | None = None) -> bytearray:
    """A batch around any payload, its checksums right: what a hostile or broken producer can send."""
    packed = payload if isinstance(payload, bytes) else msgspec.msgpack.encode(payload)
    last = count - 1 if last is None else last
    return build(packed, last_offset_delta=last, record_count=count, base_timestamp=NOW, max_timestamp=NOW)


# ---------------------------------------------------------------------------- what is written is read


@given(some=rows, codec=codecs)
def test_any_records_come_back_as_they_were(some: list[Row], codec: int) -> None:
    assert rows_of(decode(encode_rows(some, codec))) == some


def test_a_decoder_that_drops_null_keys_would_be_caught() -> None:
    some: list[Row] = [(None, b"1", NOW, []), (b"", b"2", NOW, [])]
    columns = decode(encode_rows(some))
    columns.keys = [key or None for key in columns.keys]  # planted: an empty key is not a missing one
    assert rows_of(columns) != some


@given(values=st.lists(maybe_bytes, min_size=1, max_size=9), now=st.integers(-1, 2**63 - 1))
def test_without_keys_times_and_headers_there_are_none(values: list[bytes | None], now: int) -> None:
    columns = decode(encode(values, now_ms=now))
    assert columns.values == values
    assert columns.keys == [None] * len(values)
    assert columns.timestamps == [now] * len(values)
    assert columns.headers == [()] * len(values)
    assert not columns.has_headers


def test_a_batch_counts_its_records_and_knows_its_newest() -> None:
    header = read_header(encode([b"a", b"b", b"c"], timestamps=[NOW, NOW + 7, NOW - 7], producer_id=9))
    assert (header.record_count, header.last_offset_delta) == (3, 2)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 7)
    assert header.producer_id == 9


@pytest.mark.parametrize("codec", list(CODECS.values()))
def test_attributes_pass_through_beside_the_codec(codec: int) -> None:
    header = read_header(encode([b"a" * 500], codec=codec, attributes=TRANSACTIONAL | CONTROL))
    assert header.codec == codec
    assert header.is_transactional
    assert header.is_control


def test_what_compression_does_not_shrink_stays_as_it_is() -> None:
    batch = encode([random.Random(1).randbytes(1000)], codec=ZSTD)
    assert read_header(batch).codec == NONE


def test_a_topic_with_append_time_has_the_leaders_time_for_every_record() -> None:
    columns = decode(encode([b"a", b"b"], timestamps=[NOW, NOW + 5], attributes=LOG_APPEND_TIME))
    assert columns.timestamps == [NOW + 5] * 2


# ---------------------------------------------------------------------------- the payload


def payload(batch: bytearray) -> bytes:
    return bytes(batch[65:])


def test_columns_that_say_nothing_are_nil() -> None:
    batch = encode([b"v", None], [None, None], [NOW, NOW], [[], []])
    assert payload(batch) == msgpack.packb([None, None, [b"v", None], None, None])


@given(some=rows)
def test_the_bytes_are_those_of_the_msgpack_package(some: list[Row]) -> None:
    found = payload(encode_rows(some))
    assert msgpack.packb(msgpack.unpackb(found, strict_map_key=False)) == found


def test_every_column_is_where_the_format_says() -> None:
    batch = encode([b"v", b"w"], [b"k", None], [NOW, NOW + 3], [[("é", b"1"), ("é", None)], []])
    assert msgpack.unpackb(payload(batch)) == [
        [0, 3],
        [b"k", None],
        [b"v", b"w"],
        [["é", b"1", "é", None], None],
        None,
    ]


# ---------------------------------------------------------------------------- rows


def test_records_know_where_they_stand() -> None:
    batch = encode([b"v", b"w"], [b"k", None], headers=[[], [("h", b"1")]], now_ms=NOW)
    stamp(batch, 40, 7)
    assert list(records(decode(batch), "orders", 3)) == [
        Record("orders", 3, 40, NOW, b"k", b"v"),
        Record("orders", 3, 41, NOW, None, b"w", (("h", b"1"),)),
    ]


@pytest.mark.parametrize(("from_offset", "left"), [(0, 3), (40, 3), (41, 2), (42, 1), (43, 0), (99, 0)])
def test_records_below_the_readers_position_are_left_out(from_offset: int, left: int) -> None:
    batch = encode([b"a", b"b", b"c"])
    stamp(batch, 40, 7)
    found = [record.value for record in records(decode(batch), "t", 0, from_offset)]
    assert found == [b"a", b"b", b"c"][3 - left :]


def test_records_keep_nothing_of_the_buffer_that_they_came_from() -> None:
    buffer = encode([b"value"], [b"key"], headers=[[("name", b"header")]])
    columns = decode(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert rows_of(columns) == [(b"key", b"value", -1, [("name", b"header")])]


def test_a_batch_is_found_in_the_middle_of_a_buffer() -> None:
    batch = encode([b"value"])
    assert decode(b"before" + batch + b"behind", 6).values == [b"value"]


# ---------------------------------------------------------------------------- gaps


@given(some=rows, codec=codecs, data=st.data())
def test_compaction_keeps_some_records_and_all_of_their_offsets(
    some: list[Row], codec: int, data: st.DataObject
) -> None:
    keep = sorted(data.draw(st.sets(st.sampled_from(range(len(some))))))
    batch = encode_rows(some, codec)
    stamp(batch, 100, 3)
    kept = decode(thinned(decode(batch), keep))
    assert list(kept.offsets) == [100 + at for at in keep]
    assert rows_of(kept) == [some[at] for at in keep]


def test_a_thinned_batch_keeps_its_place_and_its_producer() -> None:
    batch = encode([b"a", b"b", b"c"], producer_id=5, producer_epoch=6, base_sequence=7, now_ms=NOW)
    stamp(batch, 100, 3)
    before, after = read_header(batch), read_header(thinned(decode(batch), []))
    same = {"length": 0, "head_crc": 0, "body_crc": 0, "record_count": 0}
    assert after._replace(**same) == before._replace(**same)
    assert (after.record_count, after.next_offset) == (0, 103)


def test_a_batch_can_be_thinned_twice() -> None:
    once = thinned(decode(encode([b"a", b"b", b"c", b"d"])), [1, 3])
    twice = decode(thinned(decode(once), [1]))
    assert (list(twice.offsets), twice.values) == ([3], [b"d"])


# ---------------------------------------------------------------------------- damage and malice


SMALL = bytes(encode([b"v", None], [b"k", b""], [NOW, NOW + 1], [[("h", b"1")], []]))


@pytest.mark.parametrize("codec", list(CODECS.values()))
def test_one_flipped_bit_anywhere_is_detected(codec: int) -> None:
    batch = bytes(encode([b"value" * 9] * 3, codec=codec))
    assert undetected(decode, every_bit(batch)) == 0


@settings(max_examples=50)
@given(some=rows, codec=codecs, data=st.data())
def test_one_flipped_bit_in_any_batch_is_detected(some: list[Row], codec: int, data: st.DataObject) -> None:
    batch = bytes(encode_rows(some, codec))
    bits = data.draw(st.lists(st.integers(0, len(batch) * 8 - 1), max_size=20))
    assert undetected(decode, (flipped(batch, bit) for bit in bits)) == 0


def test_a_batch_that_is_cut_off_at_any_byte_is_refused() -> None:
    assert undetected(decode, every_cut(SMALL)) == 0


def test_a_decoder_without_checksums_would_be_caught() -> None:
    def planted(batch: bytes) -> None:
        try:
            msgspec.msgpack.decode(batch[65:], type=tuple[Any, Any, list[bytes | None], Any, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptMessage from error

    assert undetected(planted, every_bit(SMALL)) > 65 * 8


NIL2 = [None, None, [b"v", b"w"], None, None]


@pytest.mark.parametrize(
    ("columns", "fact"),
    [
        ([None, None, [b"v"], None, None], "1 entries for 2 records"),
        ([None, None, [], None, None], "0 entries for 2 records"),
        ([None, [b"k"], [b"v", b"w"], None, None], "1 entries for 2 records"),
        ([[0], None, [b"v", b"w"], None, None], "1 entries for 2 records"),
        ([None, None, [b"v", b"w"], None, [0, 1, 2]], "3 entries for 2 records"),
        ([None, None, [b"v", "w"], None, None], r"Expected `bytes \| null`, got `str`"),
        ([None, [b"k", 7], [b"v", b"w"], None, None], r"Expected `bytes \| null`, got `int`"),
        ([[0, 0.5], None, [b"v", b"w"], None, None], "Expected `int`, got `float`"),
        ([None, None, None, None, None], "Expected `array`, got `None`"),
        ([None, None, [b"v", b"w"], None, ["0", 1]], "Expected `int`, got `str`"),
        (NIL2[:4], "Expected `array` of length 5, got 4"),
        ([*NIL2, None], "Expected `array` of length 5, got 6"),
        ({"values": [b"v", b"w"]}, "Expected `array`, got `object`"),
        (b"", "truncated"),
        (msgspec.msgpack.encode(NIL2) + b"\0", "trailing"),
        (b"\x95\xc0\xc0\xdd\xff\xff\xff\xff", "truncated"),
        (b"\x95\xc0\xc0\x92\xc0\xc0" + b"\x91" * 100_000, "recursion"),
    ],
)
def test_columns_that_contradict_the_header_or_the_format_are_refused(columns: object, fact: str) -> None:
    with pytest.raises(
        CorruptMessage, match=rf"^the payload of the batch at offset 0 cannot be read: .*{fact}"
    ):
        decode(batch_of(columns))


@given(
    columns=st.tuples(
        *[st.none() | st.lists(st.none() | st.integers(-1, 2) | st.binary(max_size=2), max_size=3)] * 5
    )
)
def test_a_batch_that_was_verified_is_read_or_refused_by_no_other_error(columns: tuple[object, ...]) -> None:
    batch = batch_of(columns)
    try:
        found = columns_of(batch, read_header(batch))
    except CorruptMessage:
        return
    assert len(found.keys) == len(found.values) == len(found.timestamps) == len(found.offsets) == 2


def test_a_batch_that_counts_many_records_and_has_one_takes_no_memory_for_them() -> None:
    batch = batch_of([None, None, [b"v"], None, None], count=5_000_000)
    with pytest.raises(CorruptMessage, match="1 entries for 5000000 records"):
        columns_of(batch, read_header(batch))


def test_a_batch_with_headers_that_nobody_can_read_is_thinned_and_nobody_can_read_them_then() -> None:
    once = decode(batch_of([None, None, [b"v", b"w"], [["h", b"1"]], None]))
    left = decode(thinned(once, [1]))
    assert left.values == [b"w"]
    with pytest.raises(CorruptMessage, match="headers for 0 of 1 records"):
        _ = left.headers


def test_times_too_far_from_a_horizon_are_not_written() -> None:
    columns = decode(batch_of([[-(2**63), 0], None, [b"v", b"w"], None, None]))
    with pytest.raises(InvalidRecord, match="a time is too far"):
        thinned(columns, [0], NOW + 1000)


@pytest.mark.parametrize("gaps", [[0, 0], [1, 0], [-1, 0], [3, 5], [0, 2**64 - 1], [4, 3]])
def test_offsets_that_do_not_grow_or_leave_the_batch_are_refused(gaps: list[int]) -> None:
    with pytest.raises(CorruptMessage, match="do not grow from 0 to 4"):
        decode(batch_of([None, None, [b"v", b"w"], None, gaps], last=4))


@pytest.mark.parametrize("gaps", [[0, 1], [0, 4], [3, 4]])
def test_offsets_that_grow_within_the_batch_are_read(gaps: list[int]) -> None:
    assert list(decode(batch_of([None, None, [b"v", b"w"], None, gaps], last=4)).offsets) == gaps


@pytest.mark.parametrize(
    "headers",
    [
        [None],
        [["h"], None],
        [["h", b"1", "i"], None],
        [[b"h", b"1"], None],
        [["h", "1"], None],
        [["h", ["1"]], None],
        ["h", None],
        {"h": b"1"},
    ],
)
def test_headers_that_are_no_pairs_are_refused_when_they_are_asked_for(headers: object) -> None:
    columns = decode(batch_of([None, None, [b"v", b"w"], headers, None]))
    with pytest.raises(CorruptMessage, match="header"):
        _ = columns.headers


def test_a_header_name_that_is_no_text_is_refused() -> None:
    packed = msgspec.msgpack.encode([None, None, [b"v"], [["nm", None]], None])
    with pytest.raises(CorruptMessage, match="utf-8"):
        _ = decode(batch_of(packed.replace(b"nm", b"\xff\xff"), count=1)).headers


@given(data=st.binary(max_size=40) | st.builds(bytes.__add__, st.just(b"\x95"), st.binary(max_size=40)))
def test_a_payload_of_garbage_is_records_or_is_refused(data: bytes) -> None:
    for count in range(3):
        try:
            assert len(list(records(decode(batch_of(data, count, last=3)), "t", 0))) == count
        except TidelogError as refused:
            assert isinstance(refused, CorruptMessage)  # noqa: PT017 -- either outcome is right


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_records_that_unpack_to_more_than_the_limit_are_refused(codec: int) -> None:
    batch = encode([bytes(100_000)], codec=codec)
    with pytest.raises(CorruptMessage, match="at most 10000 are taken"):
        decode(batch, limit=10_000)


# ---------------------------------------------------------------------------- what is never written


@pytest.mark.parametrize("value", ["text", 5, [b"list"], 1.5])
def test_what_nobody_could_read_is_not_written(value: Any) -> None:
    with pytest.raises(InvalidRecord, match=r"^values\[1\] cannot be written: Expected `bytes"):
        encode([b"fine", value])
    with pytest.raises(InvalidRecord, match=r"^keys\[1\] cannot be written: Expected `bytes"):
        encode([b"fine", b"fine"], [None, value])


def test_whatever_holds_bytes_may_be_written() -> None:
    views: list[Any] = [bytearray(b"v"), memoryview(b"w"), type("Bytes", (bytes,), {})(b"x")]
    assert decode(encode(views)).values == [b"v", b"w", b"x"]


@pytest.mark.parametrize("header", [("h",), ("h", b"1", b"2"), (b"h", b"1"), ("h", "1"), ("h", 5)])
def test_headers_that_are_no_pairs_are_not_written(header: Any) -> None:
    with pytest.raises(InvalidRecord, match="a header is a pair"):
        encode([b"v"], headers=[[header]])


def test_a_header_name_that_is_half_a_character_is_not_written() -> None:
    with pytest.raises(InvalidRecord, match="a header's name is not text"):
        encode([b"v"], headers=[[("\ud800", b"1")]])


@pytest.mark.parametrize("timestamp", [-2, 2**63, 1.5, None, "now"])
def test_timestamps_that_are_none_are_not_written(timestamp: Any) -> None:
    with pytest.raises(InvalidRecord, match=r"^timestamps\[0\] cannot be written: Expected `int`"):
        encode([b"v"], timestamps=[timestamp])


def test_more_than_can_be_read_again_is_not_written() -> None:
    with pytest.raises(MessageTooLarge, match="at most 67108864"):
        encode([bytes(64 << 20)], codec=ZSTD)


def test_an_empty_batch_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError):
        encode([])


def test_columns_of_different_lengths_are_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError):
        encode([b"v"], [b"k", b"l"])


def test_every_codec_is_really_used() -> None:
    for codec in CODECS.values():
        batch = encode([b"value" * 100], codec=codec)
        assert decompress(read_header(batch).codec, payload(batch)).__len__() > 500
