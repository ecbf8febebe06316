"""Batches of 1000 records to bytes and back, next to msgpack on the same lists and to copying the same bytes.

CPU time. Keys of 16 bytes, values of 100 bytes that look like JSON. The reference for a compressed batch is
`msgpack.packb` and the same compressor, one after the other, by hand.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import cramjam
import msgpack  # type: ignore[import-untyped]
from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings, cpu_us, interleave

from tidelog.protocol.compression import LZ4, NONE, ZSTD
from tidelog.protocol.records import decode, encode, records

COUNT = 1000
CODECS = {"none": NONE, "lz4": LZ4, "zstd": ZSTD}

# PERFORMANCE 1 has msgpack at 28.3 M/s encoding: 20 M/s is 0.7 of it. Decoding: 0.7 of 32.3 M/s beside 37.0.
_ENCODE = Goal("ratio", True, 0.7, "PERFORMANCE 1: 20 M/s")
_DECODE = Goal("ratio", True, 0.6, "PERFORMANCE 1, 70 %")
_OBJECTS = Goal("ratio", True, 0.21, "PERFORMANCE 1, 70 %")


def values_like_json(count: int, size: int, random: Random) -> list[bytes]:
    """Values of that many bytes: the same names over and over, other numbers."""
    made = []
    for _ in range(count):
        text = f'{{"user":"u{random.randrange(10**6)}","page":"/p/{random.randrange(500)}","ms":{random.randrange(10**4)},'
        made.append(
            f'{text}"ok":true,"tag":"{random.randbytes(size // 4).hex()}'.encode()[: size - 2] + b'"}'
        )
    return made


def _lists() -> tuple[list[bytes], list[bytes]]:
    random = Random(1)
    return values_like_json(COUNT, 100, random), [random.randbytes(8).hex().encode() for _ in range(COUNT)]


_BY_HAND: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes, int], bytes]]] = {
    "none": (bytes, lambda data, _: data),
    "lz4": (
        lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False)),
        lambda data, size: bytes(cramjam.lz4.decompress_block(data, output_len=size)),
    ),
    "zstd": (
        lambda data: bytes(cramjam.zstd.compress(data, level=1)),
        lambda data, _: bytes(cramjam.zstd.decompress(data)),
    ),
}


def _probes(times: int) -> dict[str, Callable[[], float]]:
    """Each in millions of records per second of CPU time."""
    values, keys = _lists()
    columns = [None, keys, values, None, None]
    packed: bytes = msgpack.packb(columns)
    target = bytearray(len(packed))
    probes: dict[str, Callable[[], float]] = {}

    def add(name: str, work: Callable[[], object], per: int = times) -> None:
        probes[name] = lambda: COUNT / cpu_us(work, per)

    def copy() -> None:
        target[:] = packed

    add("memcpy", copy, times * 10)
    for name, codec in CODECS.items():
        squeeze, unsqueeze = _BY_HAND[name]
        batch = bytes(encode(values, keys, codec=codec, now_ms=1))
        squeezed = squeeze(packed)
        add(f"encode {name}", lambda codec=codec: encode(values, keys, codec=codec, now_ms=1))  # type: ignore[misc]
        add(f"pack {name}", lambda squeeze=squeeze: squeeze(msgpack.packb(columns)))  # type: ignore[misc]
        add(f"decode {name}", lambda batch=batch: decode(batch))  # type: ignore[misc]
        add(
            f"unpack {name}",
            lambda unsqueeze=unsqueeze, squeezed=squeezed: msgpack.unpackb(unsqueeze(squeezed, len(packed))),  # type: ignore[misc]
        )
    plain = bytes(encode(values, keys, now_ms=1))
    add("records", lambda: list(records(decode(plain), "orders", 0)))
    return probes


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    probes = _probes(settings.count(400, 3))

    def take(number: int) -> Readings:
        return interleave(number, probes)

    yield take


def _rows() -> Iterator[Row]:
    unit = "M records/s"
    for name in CODECS:
        also = "" if name == "none" else f" + {name}"
        yield Row(f"encode, {name}", unit, f"encode {name}", f"pack {name}", f"packb{also}", _ENCODE)
        yield Row(f"decode, {name}", unit, f"decode {name}", f"unpack {name}", f"unpackb{also}", _DECODE)
    yield Row("decode to records", unit, "records", "unpack none", "unpackb", _OBJECTS)
    yield Row("encode, none", unit, "encode none", "memcpy", "memcpy")
    yield Row("decode, none", unit, "decode none", "memcpy", "memcpy")


BENCH = Bench("codec", "batches of 1000 records to bytes and back (CPU time)", tuple(_rows()), _begin)
