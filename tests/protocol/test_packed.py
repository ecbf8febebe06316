"""What is told to be of one length is exactly that, and who keeps columns packed reads what everybody reads."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.test_records import NIL2, batch_of, codecs, encode_rows, rows, rows_of
from tidelog.protocol import packed as packing
from tidelog.protocol.compression import ZSTD
from tidelog.protocol.errors import CorruptMessage
from tidelog.protocol.packed import entries_in, uniform_of
from tidelog.protocol.records import PackedColumns, decode, decode_packed, encode, thinned

Column = list[bytes | None]

pack = msgspec.msgpack.encode
unpack = msgspec.msgpack.Decoder(list[bytes | None]).decode

LENGTHS = [0, 1, 2, 100, 196, 255, 256, 65_535, 65_536]
"""196 is 0xc4: an entry's length looks like an entry's kind."""

uniform = st.integers(1, 20).flatmap(
    lambda count: st.sampled_from([0, 1, 2, 3, 196, 255, 256]).flatmap(
        lambda length: st.lists(st.binary(min_size=length, max_size=length), min_size=count, max_size=count)
    )
)


def entries_of(column: bytes, count: int) -> Column | None:
    """The entries, taken from where they are told to be."""
    found = uniform_of(column, count)
    if found is None:
        return None
    body, stride = bytes(found.body), found.stride
    return [body[at + len(found.head) : at + stride] for at in range(0, len(body), stride)]


# ---------------------------------------------------------------------------- one length


@pytest.mark.parametrize("count", [1, 2, 15, 16, 300])
@pytest.mark.parametrize("length", LENGTHS)
def test_entries_of_one_length_are_where_the_first_one_says(length: int, count: int) -> None:
    column = [bytes([at % 256]) * length for at in range(min(count, 3) if length > 1000 else count)]
    assert entries_of(pack(column), len(column)) == column


def test_more_entries_than_two_bytes_count() -> None:
    column = [b"%05d" % at for at in range(70_000)]
    assert entries_of(pack(column), len(column)) == column


@pytest.mark.parametrize(
    "column",
    [
        [],
        [None],
        [None, None],
        [b"a", None],
        [None, b"a"],
        [b"a", b""],
        [b"", b"a"],
        [b"aa", b"a", b"aaa"],
        [b"aa", b"xx\xc4", b"y"],  # where the third head would be, an entry looks like one
        [b"a" * 255, b"a" * 256],
        ["a", "b"],
        [1, 2],
        [[b"a"], [b"b"]],
    ],
)
def test_any_other_column_has_to_be_unpacked(column: list[Any]) -> None:
    assert uniform_of(pack(column), len(column)) is None


def test_the_same_length_said_in_another_way_has_to_be_unpacked() -> None:
    """Two entries of one byte each: four of length one with the first head would be as long."""
    column = b"\x92" + b"\xc4\x01a" + b"\xc5\x00\x01b"
    assert unpack(column) == [b"a", b"b"]
    assert uniform_of(column, 2) is None
    longer = b"\x92" + b"\xc5\x00\x01a" + b"\xc5\x00\x01b"
    assert entries_of(longer, 2) == unpack(longer) == [b"a", b"b"]


@pytest.mark.parametrize("length", [3, 256, 65_536])
def test_one_head_that_differs_anywhere_is_seen(length: int) -> None:
    column = pack([b"x" * length] * 4)
    head = 2 if length < 256 else 3 if length < 65_536 else 5
    for place in range(1, 4):
        for at in range(head):
            damaged = bytearray(column)
            damaged[1 + place * (head + length) + at] ^= 1
            assert uniform_of(bytes(damaged), 4) is None


@given(column=st.lists(st.none() | st.binary(max_size=3), max_size=12) | uniform, count=st.integers(-1, 2))
def test_whatever_is_told_to_be_of_one_length_is_what_msgpack_reads(column: Column, count: int) -> None:
    claimed = len(column) + count if count < 2 else len(column)
    found = entries_of(pack(column), claimed)
    assert found is None or found == unpack(pack(column))
    if claimed == len(column) and column and None not in column and len(set(map(len, column))) <= 1:  # type: ignore[arg-type]
        assert found == column


@given(column=uniform, data=st.data())
def test_a_damaged_column_is_never_read_as_something_else(column: Column, data: st.DataObject) -> None:
    damaged = bytearray(pack(column))
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=3)):
        damaged[at] = data.draw(st.sampled_from([0xC0, 0xC4, 0xC5, 0xC6, 0x91, 0xDC, 0, 1, 2, 3]))
    found = entries_of(bytes(damaged), len(column))
    assert found is None or found == unpack(damaged)


@pytest.mark.parametrize("column", [b"", b"\xdc", b"\xdc\x00", b"\x91", b"\x91\xc4", b"\x91\xc6\0", b"\xc0"])
def test_what_is_cut_off_has_to_be_unpacked(column: bytes) -> None:
    assert uniform_of(column, 1) is None


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
def test_a_column_tells_how_many_entries_it_has(count: int) -> None:
    assert entries_in(pack([b""] * count)) == count


def test_a_check_that_leaves_out_a_byte_of_the_head_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "range", lambda size: range(size - 1), raising=False)  # planted
    with pytest.raises(AssertionError):
        test_one_head_that_differs_anywhere_is_seen(3)
    with pytest.raises(AssertionError):
        test_any_other_column_has_to_be_unpacked([b"aa", b"xx\xc4", b"y"])


# ---------------------------------------------------------------------------- packed batches


@given(some=rows, codec=codecs)
def test_a_batch_that_was_kept_packed_has_the_same_records(some: Any, codec: int) -> None:
    batch = encode_rows(some, codec)
    packed = decode_packed(batch)
    assert isinstance(packed, PackedColumns)
    assert len(packed) == len(some)
    assert rows_of(packed) == rows_of(decode(batch)) == some
    assert list(packed.offsets) == list(decode(batch).offsets)


def test_a_packed_batch_can_be_thinned_and_has_its_gaps() -> None:
    whole = encode([b"a", b"b", b"c"], [b"k", None, b"k"])
    kept = decode_packed(thinned(decode_packed(whole), [0, 2]))
    assert (list(kept.offsets), kept.values, kept.keys) == ([0, 2], [b"a", b"c"], [b"k", b"k"])


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_packed_columns_keep_nothing_of_the_buffer_that_they_came_from(codec: int) -> None:
    buffer = encode([b"value"] * 90, [b"key"] * 90, headers=[[("name", b"header")]] * 90, codec=codec)
    packed = decode_packed(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    buffer.clear()  # which fails while somebody has a view
    assert rows_of(packed) == [(b"key", b"value", -1, [("name", b"header")])] * 90


def test_what_is_not_there_is_still_none() -> None:
    packed: Any = decode_packed(encode([b"v"]))
    assert packed.packed_keys is None
    with pytest.raises(AttributeError, match="nothing"):
        _ = packed.nothing


REFUSED = [
    ([None, None, [b"v"], None, None], "1 entries for 2 records"),
    ([None, None, [b"v", b"w", b"x"], None, None], "3 entries for 2 records"),
    ([None, [b"k"], [b"v", b"w"], None, None], "1 entries for 2 records"),
    ([[0], None, [b"v", b"w"], None, None], "1 entries for 2 records"),
    ([None, None, [b"v", b"w"], None, [0, 1, 2]], "3 entries for 2 records"),
    ([None, None, [b"v", b"w"], None, [1, 0]], "offsets do not grow"),
    ([None, None, None, None, None], "Expected `array`, got `None`"),
    ([None, None, 7, None, None], "Expected `array`, got `int`"),
    ([None, 7, [b"v", b"w"], None, None], r"Expected `array \| null`, got `int`"),
    (NIL2[:4], "Expected `array` of length 5, got 4"),
    ([*NIL2, None], "Expected `array` of length 5, got 6"),
    (b"", "truncated"),
    (pack(NIL2) + b"\0", "trailing"),
    (b"\x95\xc0\xc0\x92\xc4\x01a\xc4\xff", "truncated"),
]


def said(work: Any) -> str:
    with pytest.raises(CorruptMessage) as caught:
        work()
    return str(caught.value)


@pytest.mark.parametrize(("columns", "fact"), REFUSED)
def test_wrong_counts_are_refused_at_once_in_the_same_words(columns: object, fact: str) -> None:
    batch = batch_of(columns)
    words = said(lambda: decode_packed(batch))
    assert words == said(lambda: decode(batch))
    assert fact.replace("\\", "") in words


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ([None, None, [b"v", "w"], None, None], "values"),
        ([None, None, [b"v", [b"w"]], None, None], "values"),
        ([None, [b"k", 7], [b"v", b"w"], None, None], "keys"),
        ([None, ["k", "k"], [b"v", b"w"], None, None], "keys"),
    ],
)
def test_wrong_types_are_refused_when_they_are_asked_for_in_the_same_words(
    columns: object, name: str
) -> None:
    batch = batch_of(columns)
    packed = decode_packed(batch)
    for _ in range(2):  # again each time
        assert said(lambda: getattr(packed, name)) == said(lambda: decode(batch))
