"""The header against replication/01-disk P1 to P6, and what damage it detects."""

import random
from struct import pack_into

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.damage import every_bit, every_cut, flipped, undetected
from tidelog.protocol.batch import HEADER_SIZE, build, check_body, read_header, stamp, walk
from tidelog.protocol.errors import CorruptMessage, UnsupportedFormat
from tidelog.protocol.types import Buffer

SMALL = bytes(build(b"payload", last_offset_delta=4, record_count=3, base_timestamp=10, max_timestamp=20))
LARGE = bytes(
    build(
        random.Random(1).randbytes(20_000),
        last_offset_delta=9,
        record_count=10,
        base_timestamp=1,
        max_timestamp=2,
    )
)


def verify(batch: Buffer) -> None:
    """What every reader of a batch does."""
    header = read_header(batch)
    check_body(batch, header)
    assert header.size == len(batch)


# ---------------------------------------------------------------------------- damage


def test_every_single_flipped_bit_of_a_small_batch_is_detected() -> None:
    assert undetected(verify, every_bit(SMALL)) == 0


def test_flipped_bits_of_a_large_batch_are_detected() -> None:
    bits = [*range(HEADER_SIZE * 8), *random.Random(2).sample(range(len(LARGE) * 8), 1000)]
    assert undetected(verify, (flipped(LARGE, bit) for bit in bits)) == 0


def test_a_batch_that_is_cut_off_at_any_byte_is_detected() -> None:
    assert undetected(verify, every_cut(SMALL)) == 0


@given(size=st.integers(0, len(LARGE) - 1))
def test_a_large_batch_that_is_cut_off_is_detected(size: int) -> None:
    with pytest.raises(CorruptMessage, match="are there"):
        verify(LARGE[:size])


def test_zero_bytes_are_no_batch() -> None:
    with pytest.raises(CorruptMessage):
        read_header(bytes(1000))


def test_a_reader_that_skips_the_bodys_checksum_is_caught() -> None:
    planted = undetected(read_header, every_bit(SMALL))
    assert planted == (len(SMALL) - 21) * 8  # body_crc and everything behind it


def test_a_reader_that_skips_the_heads_checksum_is_caught() -> None:
    def planted(batch: bytes) -> None:
        if crc32c(batch[25:]) != int.from_bytes(batch[21:25], "big"):
            raise CorruptMessage

    assert undetected(planted, every_bit(SMALL)) == 21 * 8  # all that a leader may change


# ---------------------------------------------------------------------------- what a header says


i64, i32, i16 = (
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**15), 2**15 - 1),
)


@given(
    data=st.fixed_dictionaries(
        {
            "attributes": st.integers(0, 2**16 - 1),
            "base_timestamp": i64,
            "max_timestamp": i64,
            "base_offset": i64,
            "leader_epoch": i32,
            "producer_id": i64,
            "producer_epoch": i16,
            "base_sequence": i32,
            "last_offset_delta": i32,
            "record_count": i32,
        }
    ),
    payload=st.binary(max_size=50),
)
def test_a_header_says_what_was_built(data: dict[str, int], payload: bytes) -> None:
    header = read_header(build(payload, **data))
    assert {name: getattr(header, name) for name in data} == data
    assert header.size == HEADER_SIZE + len(payload)


def test_the_header_has_65_bytes_in_the_order_of_the_table() -> None:
    fields = {"attributes": 7, "last_offset_delta": 8, "base_timestamp": 9, "max_timestamp": 10}
    producer = {"producer_id": 11, "producer_epoch": 12, "base_sequence": 13, "record_count": 14}
    batch = build(b"", base_offset=1, leader_epoch=3, **fields, **producer)
    assert batch[:17].hex(" ", -4) == "00000000 00000001 00000035 00000003 03"
    body = "0007 00000008 0000000000000009 000000000000000a 000000000000000b 000c 0000000d 0000000e"
    assert batch[25:] == bytes.fromhex(body)
    assert len(batch) == HEADER_SIZE == 65


def test_the_bodys_checksum_covers_attributes_to_payload_as_kafkas_does() -> None:
    assert read_header(SMALL).body_crc == crc32c(SMALL[25:])


def test_a_batch_of_a_newer_format_is_refused_by_name() -> None:
    newer = bytearray(SMALL)
    newer[16] = 4
    pack_into(">I", newer, 17, crc32c(newer[:17]))
    with pytest.raises(UnsupportedFormat, match="magic 4, this tidelog reads 3"):
        read_header(newer)


def test_a_leader_stamps_offset_and_epoch_and_leaves_the_body() -> None:
    batch = bytearray(b"before" + SMALL)
    stamp(batch, 2**40, 7, at=6)
    header = read_header(batch, 6)
    check_body(batch, header, 6)
    assert (header.base_offset, header.leader_epoch, header.last_offset) == (2**40, 7, 2**40 + 4)
    assert batch[6 + 21 :] == SMALL[21:]


def test_offsets_go_on_behind_a_batch_that_lost_records() -> None:
    header = read_header(SMALL)
    assert (header.record_count, header.last_offset, header.next_offset) == (3, 4, 5)


@pytest.mark.parametrize(("record_count", "last_offset_delta"), [(-1, 4), (6, 4), (1, -1)])
def test_a_batch_with_more_records_than_offsets_is_refused(record_count: int, last_offset_delta: int) -> None:
    batch = build(
        b"", last_offset_delta=last_offset_delta, record_count=record_count, base_timestamp=0, max_timestamp=0
    )
    with pytest.raises(
        CorruptMessage, match=f"counts {record_count} records in {last_offset_delta + 1} offsets"
    ):
        check_body(batch, read_header(batch))


@pytest.mark.parametrize(
    ("base_sequence", "last"), [(-1, -1), (0, 4), (2**31 - 1, 3), (2**31 - 5, 2**31 - 1), (2**31 - 4, 0)]
)
def test_sequence_numbers_wrap_to_zero(base_sequence: int, last: int) -> None:
    header = read_header(SMALL)._replace(base_sequence=base_sequence)
    assert header.last_sequence == last


def test_walking_leaves_out_a_batch_that_is_cut_off() -> None:
    whole = [at for at, _ in walk(SMALL + LARGE + SMALL[:-1])]
    assert whole == [0, len(SMALL)]


def test_walking_begins_where_it_is_told() -> None:
    assert [at for at, _ in walk(b"x" * 9 + SMALL + SMALL, 9)] == [9, 9 + len(SMALL)]


def test_walking_into_damage_is_noticed() -> None:
    with pytest.raises(CorruptMessage):
        list(walk(SMALL + flipped(SMALL, 5)))
