"""Payloads made smaller, by codecs with Kafka's numbers.

A compressed payload is preceded by its uncompressed size (u32), which is checked against a limit before
anything is allocated.

What it keeps true: decompressing yields exactly the bytes that were compressed or raises CorruptMessage, and
never takes more memory for them than the limit allows, whatever the compressed bytes claim.

Why these forms and levels, with figures: docs/adr/0031-codecs.md.
"""

from collections.abc import Callable
from typing import Final

import cramjam

from tidelog.protocol.errors import CorruptMessage, UnsupportedFormat
from tidelog.protocol.types import Buffer

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODECS: Final = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
"""Each codec by its name in configurations (`compression.type`)."""

UNCOMPRESSED_MAX: Final = 64 << 20
"""The largest uncompressed payload that is written or read."""

_SIZE: Final = 4


def _lz4_into(data: Buffer, into: bytearray) -> int:
    # Without output_len cramjam first takes the block's own first bytes for a size.
    return cramjam.lz4.decompress_block_into(data, into, output_len=len(into))


_COMPRESS: Final[dict[int, Callable[[Buffer], cramjam.Buffer]]] = {
    GZIP: lambda data: cramjam.gzip.compress(data, level=1),
    SNAPPY: cramjam.snappy.compress_raw,
    LZ4: lambda data: cramjam.lz4.compress_block(data, store_size=False),
    ZSTD: lambda data: cramjam.zstd.compress(data, level=1),
}

_DECOMPRESS_INTO: Final[dict[int, Callable[[Buffer, bytearray], int]]] = {
    GZIP: cramjam.gzip.decompress_into,
    SNAPPY: cramjam.snappy.decompress_raw_into,
    LZ4: _lz4_into,
    ZSTD: cramjam.zstd.decompress_into,
}


def compress(codec: int, data: Buffer) -> bytes:
    """The size of the data and the data compressed; with no codec the data alone."""
    if codec == NONE:
        return bytes(data)
    assert codec in _COMPRESS, f"there is no codec {codec}"
    return b"".join((len(data).to_bytes(_SIZE, "big"), _COMPRESS[codec](data)))


def decompress(codec: int, data: Buffer, limit: int = UNCOMPRESSED_MAX) -> Buffer:
    """What was compressed, if that is at most `limit` bytes; with no codec the data itself."""
    if codec == NONE:
        return data
    into_of = _DECOMPRESS_INTO.get(codec)
    if into_of is None:
        raise UnsupportedFormat(f"codec {codec} is newer than this tidelog, which knows 0 to {ZSTD}")
    if len(data) < _SIZE:
        raise CorruptMessage(f"a compressed payload begins with {_SIZE} bytes of size, {len(data)} are there")
    size = int.from_bytes(data[:_SIZE], "big")
    if size > limit:
        raise CorruptMessage(f"a payload claims {size} bytes uncompressed, at most {limit} are taken")
    into = bytearray(size)
    try:
        found = into_of(memoryview(data)[_SIZE:], into)
    except cramjam.DecompressionError as error:
        raise CorruptMessage(f"a payload of codec {codec} cannot be decompressed: {error}") from error
    if found != size:
        raise CorruptMessage(f"a payload claims {size} bytes uncompressed and has {found}")
    return into
