"""A batch as its topic wants it: in which codec, with whose time, and everything else as it came (ADR 107)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.logs import Host
from tidelog.protocol.batch import BatchHeader, check_body, read_header, walk
from tidelog.protocol.compression import CODECS, GZIP, LZ4, NONE, ZSTD
from tidelog.protocol.errors import InvalidConfig, MessageTooLarge
from tidelog.protocol.records import Columns, decode, encode
from tidelog.storage.config import LogConfig
from tidelog.storage.log import Log

NOW, THEN = 1_700_000_000_000, 1_600_000_000_000
ROOMY = LogConfig(segment_bytes=1 << 20)
TEXT = [b"a value that repeats itself, itself, itself, itself %d" % at for at in range(50)]


def batch(codec: int = NONE, **fields: Any) -> bytearray:
    keys = [b"k%d" % (at % 7) for at in range(len(TEXT))]
    times = [THEN + at for at in range(len(TEXT))]
    headers = [[("h", b"1")] if at % 3 else [] for at in range(len(TEXT))]
    return encode(TEXT, keys, times, headers, codec=codec, **fields)


def log_with(**settings: Any) -> Log:
    return Host(config=replace(ROOMY, **settings)).log


def stored(log: Log) -> Columns:
    return decode(bytes(log.read(0, 1 << 20, log.end_offset).data))


def rows(columns: Columns) -> list[tuple[Any, ...]]:
    return list(zip(columns.offsets, columns.keys, columns.values, columns.headers, strict=True))


# ── the codec ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("came", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("wanted", ["uncompressed", *CODECS])
def test_a_batch_is_written_in_the_codec_of_its_topic_with_all_that_it_holds(came: int, wanted: str) -> None:
    log = log_with(compression_type=wanted)
    sent = batch(came, producer_id=7, producer_epoch=3, base_sequence=0)
    before = decode(sent)
    assert log.append(sent, 5, NOW).next_offset == len(TEXT)
    after = stored(log)
    assert after.header.codec == CODECS.get(wanted, NONE)
    assert rows(after) == rows(before)
    assert after.timestamps == before.timestamps
    same = (
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "record_count",
        "base_timestamp",
        "max_timestamp",
    )
    assert [getattr(after.header, name) for name in same] == [getattr(before.header, name) for name in same]
    assert after.header.leader_epoch == 5


@pytest.mark.parametrize("came", CODECS.values(), ids=CODECS)
def test_by_default_not_a_byte_of_the_body_is_touched(came: int) -> None:
    log = log_with()
    sent = bytes(batch(came))
    log.append(sent, 0, NOW)
    assert bytes(log.read(0, 1 << 20, log.end_offset).data)[21:] == sent[21:]


def test_what_does_not_become_smaller_stays_uncompressed() -> None:
    log = log_with(compression_type="zstd")
    log.append(encode([b"x"], now_ms=THEN), 0, NOW)
    assert stored(log).header.codec == NONE


def test_a_batch_that_is_too_large_in_the_codec_of_its_topic_is_refused_and_nothing_is_written() -> None:
    sent = encode([b"x" * 4000], codec=ZSTD)
    log = log_with(compression_type="none", max_message_bytes=2000)
    with pytest.raises(MessageTooLarge, match=r"has 40\d\d with compression.type=none, 2000 is the most"):
        log.append(sent, 0, NOW)
    assert (log.end_offset, log.size) == (0, 0)


def test_a_change_of_the_codec_holds_from_the_next_batch_on() -> None:
    log = log_with()
    codecs = []
    for name in ("producer", "zstd", "lz4", "producer"):
        log.reconfigure(replace(log.config, compression_type=name))
        log.append(batch(GZIP), 0, NOW)
    for _, header in walk(bytes(log.read(0, 1 << 20, log.end_offset).data)):
        codecs.append(header.codec)
    assert codecs == [GZIP, ZSTD, LZ4, GZIP]


# ── the time ──────────────────────────────────────────────────────────────────────────────────────────


def test_with_append_time_every_record_has_the_leaders_time() -> None:
    log = log_with(message_timestamp_type="LogAppendTime")
    appended = log.append(batch(ZSTD), 0, NOW)
    assert appended.append_time == NOW
    after = stored(log)
    assert after.timestamps == [NOW] * len(TEXT)
    assert rows(after) == rows(decode(batch(ZSTD)))
    found = log.offset_for_time(THEN)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (0, NOW)
    assert log.offset_for_time(NOW + 1) is None


def test_with_create_time_the_leader_has_no_say() -> None:
    log = log_with()
    assert log.append(batch(), 0, NOW).append_time == -1
    assert stored(log).timestamps == [THEN + at for at in range(len(TEXT))]


def test_a_batch_that_comes_again_has_the_time_of_its_first_append() -> None:
    log = log_with(message_timestamp_type="LogAppendTime", compression_type="lz4")
    sent = bytes(batch(producer_id=7, producer_epoch=0, base_sequence=0))
    first = log.append(sent, 0, NOW)
    again = log.append(sent, 0, NOW + 5000)
    assert again.duplicate
    assert again[:2] == first[:2]
    assert again.append_time == first.append_time == NOW
    assert log.end_offset == len(TEXT)


# ── written once ──────────────────────────────────────────────────────────────────────────────────────


def test_a_follower_writes_what_the_leader_has_written_whatever_its_own_settings_say() -> None:
    leader = log_with(message_timestamp_type="LogAppendTime", compression_type="zstd")
    follower = log_with(compression_type="gzip")
    leader.append(batch(), 3, NOW)
    follower.append_as_follower(leader.read(0, 1 << 20, leader.end_offset).data, 3, NOW + 9999)
    assert bytes(follower.read(0, 1 << 20, follower.end_offset).data) == bytes(
        leader.read(0, 1 << 20, leader.end_offset).data
    )


def test_what_was_stamped_is_found_whole_after_a_loss_of_power() -> None:
    host = Host(config=replace(ROOMY, message_timestamp_type="LogAppendTime", compression_type="zstd"))
    host.log.append(batch(), 0, NOW)
    host.flush()
    host.cut_power_and_open()
    assert stored(host.log).timestamps == [NOW] * len(TEXT)


CONFIGS = st.builds(
    lambda kind, codec: replace(ROOMY, message_timestamp_type=kind, compression_type=codec),
    st.sampled_from(["CreateTime", "LogAppendTime"]),
    st.sampled_from(["producer", "uncompressed", *CODECS]),
)


@given(CONFIGS, st.lists(st.one_of(st.none(), st.binary(max_size=300)), min_size=1, max_size=20))
def test_whatever_is_sent_is_what_is_read_with_checksums_that_match(
    config: LogConfig, values: list[bytes | None]
) -> None:
    log = Host(config=config).log
    log.append(encode(values, now_ms=THEN, codec=GZIP), 0, NOW)
    data = bytes(log.read(0, 1 << 20, log.end_offset).data)
    header: BatchHeader = read_header(data)
    check_body(data, header)
    assert decode(data).values == values
    assert header.max_timestamp == (NOW if config.appends_time else THEN)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: LogConfig(compression_type="brotli"), "compression.type=brotli: it must be one of producer"),
        (
            lambda: LogConfig(message_timestamp_type="Now"),
            "message.timestamp.type=Now: it must be one of Create",
        ),
    ],
)
def test_a_word_that_means_nothing_is_refused(make: Callable[[], LogConfig], told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        make()
