"""The frame reader keeps what protocol/framing.py promises."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.frames import SMALL_LIMITS, feed, reader_of, wire
from tidelog.protocol.errors import MalformedFrame, UnsupportedVersion
from tidelog.protocol.framing import (
    JOIN_BELOW_BYTES,
    LENGTHS,
    PREAMBLE,
    SMALL_BYTES,
    encode_frame,
    gather,
)

LARGE = b"x" * 100_000
bodies = st.sampled_from([b"", b"a", b"b" * 300, b"c" * SMALL_BYTES, b"d" * 70_000])
frames_of = st.lists(st.tuples(st.binary(max_size=40), bodies), max_size=6)


@given(frames_of, st.integers(1, 100_000), st.booleans())
def test_frames_arrive_as_they_were_sent_however_the_bytes_are_cut(
    frames: list[tuple[bytes, bytes]], chunk: int, preamble: bool
) -> None:
    reader = reader_of(preamble=preamble, receive_buffer_bytes=8192)
    chunk = max(chunk, sum(len(body) for _, body in frames) // 200)
    assert feed(reader, wire(frames, preamble=preamble), chunk) == frames
    assert not reader.in_frame


def test_frames_arrive_byte_by_byte() -> None:
    frames = [(b"head", b"body"), (b"", b""), (b"h" * 300, b"b" * 300)]
    assert feed(reader_of(preamble=True), wire(frames, preamble=True), 1) == frames


def test_an_idle_reader_holds_no_memory() -> None:
    reader = reader_of()
    feed(reader, wire([(b"head", LARGE)]))
    assert reader.buffered_bytes == 0


def test_small_frames_are_views_of_the_shared_buffer() -> None:
    reader = reader_of()
    view = reader.get_buffer()
    data = wire([(b"head", b"body")])
    view[: len(data)] = data
    frame = next(reader.received(len(data)))
    assert not frame.owned
    assert frame.attachment.obj is view.obj


def test_a_large_frame_is_received_right_into_its_own_buffer() -> None:
    reader = reader_of()
    data = wire([(b"head", LARGE)])
    first = reader.get_buffer()
    first[:100] = data[:100]
    assert list(reader.received(100)) == []
    rest = reader.get_buffer()
    assert len(rest) == len(data) - 100
    rest[:] = data[100:]
    (frame,) = reader.received(len(rest))
    assert frame.owned
    assert frame.attachment.obj is rest.obj
    assert frame.attachment == LARGE


def test_after_a_large_frame_little_is_read_until_the_next_header_is_known() -> None:
    reader = reader_of()
    feed(reader, wire([(b"", LARGE)]))
    assert len(reader.get_buffer()) < SMALL_BYTES
    feed(reader, wire([(b"", b"small")]))
    assert len(reader.get_buffer()) == 65_536


def test_asking_for_a_buffer_twice_loses_nothing() -> None:
    reader = reader_of()
    data = wire([(b"head", b"body")])
    feed(reader, data[:10])
    reader.get_buffer()
    assert feed(reader, data[10:]) == [(b"head", b"body")]


@pytest.mark.parametrize(
    ("length", "head_length"), [(1_000_000, 4), (2**32 - 1, 0), (100, 97), (3, 0), (50_000, 10_001)]
)
def test_wrong_lengths_are_refused_before_anything_is_buffered(length: int, head_length: int) -> None:
    reader = reader_of()
    with pytest.raises(MalformedFrame, match="bytes"):
        feed(reader, LENGTHS.pack(length, head_length))
    assert reader.buffered_bytes == 0


def test_frames_before_a_wrong_length_are_still_handed_out() -> None:
    reader = reader_of()
    data = wire([(b"good", b"")]) + b"\xff" * 8
    view = reader.get_buffer()
    view[: len(data)] = data
    arriving = reader.received(len(data))
    assert bytes(next(arriving).head) == b"good"
    with pytest.raises(MalformedFrame, match="limit of 1000000"):
        next(arriving)


def test_the_largest_frame_is_accepted() -> None:
    body = b"x" * (SMALL_LIMITS.max_frame_bytes - LENGTHS.size)
    assert feed(reader_of(), wire([(b"", body)])) == [(b"", body)]


@pytest.mark.parametrize("opening", [b"G", b"TIDF", b"\0\0\0\x20", b"T\0"])
def test_a_connection_that_does_not_begin_with_tide_is_refused_at_once(opening: bytes) -> None:
    with pytest.raises(MalformedFrame, match="instead of b'TIDE'"):
        feed(reader_of(preamble=True), opening)


def test_an_answer_in_http_is_called_that_with_the_way_out() -> None:
    with pytest.raises(MalformedFrame, match=r"HTTP is spoken there, .*; give the node's own address"):
        feed(reader_of(preamble=True), b"HTTP/1.1 400 Bad Request\r\n")


def test_another_version_is_refused_with_both_numbers() -> None:
    with pytest.raises(UnsupportedVersion, match=r"version 9 .* version 1"):
        feed(reader_of(preamble=True), b"TIDE\x09")


def test_the_preamble_may_come_alone() -> None:
    reader = reader_of(preamble=True)
    assert feed(reader, PREAMBLE[:3]) == []
    assert reader.version is None
    assert feed(reader, PREAMBLE[3:]) == []
    assert reader.version == 1


def test_nothing_large_is_buffered_before_it_was_granted() -> None:
    reader = reader_of(reserve=lambda _size: False)
    data = wire([(b"head", LARGE)])
    feed(reader, data[:1000])
    assert reader.wanted == len(LARGE) + len(b"head")
    assert reader.buffered_bytes < 1000
    reader.admit()
    assert feed(reader, data[1000:]) == [(b"head", LARGE)]


def test_frames_behind_a_held_one_wait_until_they_are_released() -> None:
    reader = reader_of()
    data = wire([(b"one", b""), (b"two", b""), (b"three", b"")])[:-2]
    view = reader.get_buffer()
    view[: len(data)] = data
    seen = []
    for frame in reader.received(len(data)):
        seen.append(bytes(frame.head))
        reader.hold()
    view[:] = bytes(len(view))
    seen += [bytes(frame.head) for frame in reader.release()]
    assert seen == [b"one", b"two"]
    assert feed(reader, b"ee") == [(b"three", b"")]


def test_releasing_a_reader_that_held_nothing_loses_nothing() -> None:
    reader = reader_of()
    data = wire([(b"head", b"body")])
    feed(reader, data[:10])
    reader.hold()
    assert list(reader.release()) == []
    assert feed(reader, data[10:]) == [(b"head", b"body")]


def test_a_closed_reader_gives_its_buffer_back() -> None:
    reader = reader_of()
    feed(reader, wire([(b"head", LARGE)])[:1000])
    reader.close()
    assert reader.buffered_bytes == 0
    assert reader._pool.pooled_bytes >= len(LARGE)


def test_small_frames_are_joined_and_large_attachments_are_left_where_they_are() -> None:
    assert len(encode_frame(b"head", b"a", b"b")) == 1
    large = bytes(JOIN_BELOW_BYTES)
    start, attachment = encode_frame(b"head", large)
    assert attachment is large
    assert feed(reader_of(), bytes(start) + large) == [(b"head", large)]


@given(st.lists(st.sampled_from([b"", b"a", b"bc", bytes(JOIN_BELOW_BYTES)])))
def test_gathering_keeps_the_bytes_and_leaves_no_small_neighbours(parts: list[bytes]) -> None:
    gathered = gather(parts)
    assert b"".join(gathered) == b"".join(parts)
    small = [len(part) < JOIN_BELOW_BYTES for part in gathered]
    assert not any(one and next_one for one, next_one in pairwise(small))
