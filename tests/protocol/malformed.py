"""Bytes that do not follow the protocol: valid conversations, damaged in every way we could think of.

One number makes one conversation, so that a finding is a seed and an index.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
import msgspec
from msgspec.inspect import (
    BoolType,
    BytesType,
    FloatType,
    IntType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from tidelog.protocol.framing import LENGTHS, PREAMBLE
from tidelog.protocol.messages import REPLIES, REQUESTS, Hello, encode_head

HUGE: Final = (
    b"\xdd\xff\xff\xff\xff",  # an array of four billion
    b"\xdf\xff\xff\xff\xff",  # a map of four billion
    b"\xdb\xff\xff\xff\xff",  # a text of 4 GB
    b"\xc6\xff\xff\xff\xff",  # bytes of 4 GB
    b"\xc9\xff\xff\xff\xff\x05",  # an extension of 4 GB
    b"\xdc\xff\xff",
    b"\xde\xff\xff",
)
STRANGE: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 1, 127, 2**31, 2**32, 2**63 - 1, 2**64 - 1, -(2**63), 1.5, float("nan"), float("inf"),
    "", "x" * 300, b"", b"\xff" * 300, [], {}, [[]], {1: 2}, {"a": []}, msgpack.ExtType(5, b"x"),
    msgpack.Timestamp(1, 1), [0] * 70_000,
)  # fmt: skip
NUMBERS: Final = (0, 1, 3, 4, 5, 8, 255, 256, 65_535, 65_536, 2**24, 2**31 - 1, 2**31, 2**32 - 5, 2**32 - 1)


def plausible(kind: Type, random: Random) -> Any:
    """A value that a field of this type accepts, as msgpack sees it."""
    match kind:
        case BoolType():
            return random.random() < 0.5
        case IntType():
            low, high = (
                kind.ge if kind.ge is not None else -(2**63),
                kind.le if kind.le is not None else 2**63 - 1,
            )
            return random.choice((low, high, random.randint(max(low, -2), min(high, 1000))))
        case FloatType():
            return random.random()
        case StrType():
            return "name"[: kind.max_length]
        case BytesType():
            return random.randbytes(kind.min_length or 4)
        case VarTupleType():
            return [plausible(kind.item_type, random) for _ in range(random.randint(0, 3))]
        case UnionType():
            return plausible(random.choice(kind.types), random)
        case StructType():
            fields = [plausible(field.type, random) for field in kind.fields]
            return fields if kind.tag is None else [kind.tag, *fields]
    return None


MESSAGES: Final[tuple[Type, ...]] = tuple(
    type_info(message) for message in (*REQUESTS.values(), *REQUESTS.values(), *REPLIES.values())
)
_HELLO: Final = encode_head(1, Hello())


def frame(head: bytes, attachment: bytes = b"") -> bytes:
    return LENGTHS.pack(4 + len(head) + len(attachment), len(head)) + head + attachment


def valid_head(random: Random) -> list[Any]:
    """Correlation and message."""
    return [random.randint(0, 1000), plausible(random.choice(MESSAGES), random)]


def _valid(random: Random) -> bytes:
    return msgspec.msgpack.encode(valid_head(random))


def _odd_values(random: Random) -> bytes:
    """Well-formed msgpack in which something is not what it should be."""
    head = valid_head(random)
    place: Any = head
    while True:
        at = random.randrange(len(place))
        if not isinstance(place[at], list) or not place[at] or random.random() < 0.3:
            break
        place = place[at]
    change = random.random()
    if change < 0.6:
        place[at] = random.choice(STRANGE)
    elif change < 0.8:
        del place[at]
    else:
        place.insert(at, random.choice(STRANGE))
    return bytes(msgpack.packb(head))


def _deep(random: Random) -> bytes:
    depth = random.choice((10, 500, 1000, 1100, 5000, 15_000))
    opening = random.choice((b"\x91", b"\x81\x01", b"\x92\x01", b"\xdc\x00\x01"))
    return random.choice((b"", b"\x92\x01", b"\x92\x01\x9f\x10", b"\x92\x01\x95\x01")) + opening * depth


def _huge_counts(random: Random) -> bytes:
    head = _valid(random)
    at = random.randrange(len(head) + 1)
    return head[:at] + random.choice(HUGE) * random.randint(1, 4) + head[at + random.randrange(9) :]


def _bit_flips(random: Random) -> bytes:
    head = bytearray(_valid(random))
    for _ in range(random.randint(1, 4)):
        head[random.randrange(len(head))] ^= 1 << random.randrange(8)
    return bytes(head)


def _cut_or_doubled(random: Random) -> bytes:
    head = _valid(random)
    at = random.randrange(len(head) + 1)
    return head[:at] if random.random() < 0.5 else head + head[at:]


def _random_bytes(random: Random) -> bytes:
    return random.randbytes(random.choice((0, 1, 2, 7, 30, 300)))


HEADS: Final[tuple[Callable[[Random], bytes], ...]] = (
    _valid, _valid, _odd_values, _odd_values, _deep, _huge_counts, _bit_flips, _cut_or_doubled, _random_bytes,
)  # fmt: skip


def _framed(random: Random) -> bytes:
    attachment = bytes(random.choice((0, 0, 0, 10, 300, 70_000)))
    return frame(random.choice(HEADS)(random), attachment)


def _wrong_lengths(random: Random) -> bytes:
    whole = bytearray(_framed(random))
    at = random.choice((0, 4))
    whole[at : at + 4] = random.choice(NUMBERS).to_bytes(4, "big")
    return bytes(whole)


def _damaged_anywhere(random: Random) -> bytes:
    whole = bytearray(_framed(random) + _framed(random))
    change = random.randrange(4)
    at = random.randrange(len(whole))
    if change == 0:
        whole[at] ^= 1 << random.randrange(8)
    elif change == 1:
        del whole[at:]
    elif change == 2:
        del whole[at : at + random.randint(1, 9)]
    else:
        whole[at:at] = random.randbytes(random.randint(1, 9))
    return bytes(whole)


def conversation(seed: int, index: int) -> tuple[bytes, list[int]]:
    """What one peer sends, and in which pieces it arrives."""
    random = Random(f"{seed}:{index}")
    opening = random.random()
    if opening < 0.02:
        data = random.randbytes(random.randint(1, 60))
    elif opening < 0.04:
        data = b"TIDE" + random.randbytes(random.randint(0, 40))
    elif opening < 0.06:
        data = PREAMBLE + _framed(random)
    else:
        kind = random.choice((_framed, _framed, _framed, _wrong_lengths, _damaged_anywhere))
        data = PREAMBLE + frame(_HELLO) + kind(random)
    return data, _pieces(random, len(data))


def _pieces(random: Random, size: int) -> list[int]:
    if random.random() < 0.5:
        return [size]
    largest = max(size // 20, random.choice((1, 5, 100, 10_000)))
    pieces = []
    while size > 0:
        pieces.append(min(size, random.randint(1, largest)))
        size -= pieces[-1]
    return pieces
