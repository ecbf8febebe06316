import os

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.protocol.compression import (
    CODECS,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    UNCOMPRESSED_MAX,
    ZSTD,
    compress,
    decompress,
)
from tidelog.protocol.errors import CorruptMessage, UnsupportedFormat

COMPRESSING = [GZIP, SNAPPY, LZ4, ZSTD]
every_codec = pytest.mark.parametrize("codec", COMPRESSING)
TEXT = b"the quick brown fox jumps over the lazy dog " * 20


def claim(codec: int, data: bytes, size: int) -> bytes:
    """The data compressed, with another size in front of it."""
    return size.to_bytes(4, "big") + compress(codec, data)[4:]


def test_codecs_have_kafkas_numbers() -> None:
    assert CODECS == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.mark.parametrize("codec", list(CODECS.values()))
@given(data=st.binary(max_size=300) | st.builds(bytes.__mul__, st.binary(max_size=9), st.integers(0, 500)))
def test_what_is_compressed_comes_back(codec: int, data: bytes) -> None:
    assert decompress(codec, memoryview(compress(codec, data))) == data


def test_without_a_codec_nothing_is_added_or_copied() -> None:
    data = memoryview(TEXT)
    assert compress(NONE, data) == TEXT
    assert decompress(NONE, data) is data


@every_codec
def test_a_size_that_is_wrong_is_refused(codec: int) -> None:
    for size in (0, 1, len(TEXT) - 1, len(TEXT) + 1, 2 * len(TEXT)):
        with pytest.raises(CorruptMessage):
            decompress(codec, claim(codec, TEXT, size))


@every_codec
def test_bytes_that_are_missing_or_left_over_are_refused(codec: int) -> None:
    whole = compress(codec, TEXT)
    for data in (*(whole[:size] for size in range(len(whole))), whole + b"more", whole + whole[4:]):
        with pytest.raises(CorruptMessage):
            decompress(codec, data)


@every_codec
@given(data=st.binary(max_size=200))
def test_garbage_is_refused_or_has_the_size_that_it_claims(codec: int, data: bytes) -> None:
    try:
        assert len(decompress(codec, len(TEXT).to_bytes(4, "big") + data)) == len(TEXT)
    except CorruptMessage as refused:
        assert refused.message.startswith("a payload ")  # noqa: PT017 -- either outcome is right


@every_codec
def test_a_claim_above_the_limit_is_refused_before_anything_is_allocated(codec: int) -> None:
    with pytest.raises(
        CorruptMessage, match=r"claims 4294967295 bytes uncompressed, at most 67108864 are taken"
    ):
        decompress(codec, claim(codec, TEXT, 2**32 - 1))
    with pytest.raises(CorruptMessage, match=f"claims {len(TEXT)} bytes .* at most {len(TEXT) - 1} "):
        decompress(codec, compress(codec, TEXT), limit=len(TEXT) - 1)


@every_codec
def test_a_bomb_that_claims_to_be_small_is_stopped_where_its_claim_ends(codec: int) -> None:
    with pytest.raises(CorruptMessage):
        decompress(codec, claim(codec, bytes(32 << 20), 1000))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_of_a_newer_format_is_named(codec: int) -> None:
    with pytest.raises(UnsupportedFormat, match=f"codec {codec} is newer"):
        decompress(codec, compress(ZSTD, TEXT))


def test_an_lz4_block_that_looks_like_one_behind_a_size_is_not_mistaken_for_it() -> None:
    # Its first four bytes are 240 as cramjam would write it, and what follows decompresses to 240 zeros.
    data = bytes.fromhex("00001f000100d570") + bytes(7)
    block = compress(LZ4, data)
    assert len(cramjam.lz4.decompress_block(block[4:])) == 240
    assert decompress(LZ4, block) == data


def test_lz4_is_not_the_slow_kind() -> None:
    fast = bytes(cramjam.lz4.compress_block(TEXT, mode="fast", acceleration=1, store_size=False))
    assert compress(LZ4, TEXT)[4:] == fast


def test_the_limit_leaves_room_for_any_batch_that_a_broker_takes() -> None:
    assert UNCOMPRESSED_MAX >= 64 * 2**20
    data = os.urandom(1 << 20)
    assert decompress(ZSTD, compress(ZSTD, data)) == data
