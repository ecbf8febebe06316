"""Damage to bytes, and how much of it a check lets pass."""

from collections.abc import Callable, Iterable

from tidelog.protocol.errors import TidelogError


def flipped(data: bytes, bit: int) -> bytes:
    """The data with one bit turned over."""
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def every_bit(data: bytes) -> list[bytes]:
    """The data as often as it has bits, another one turned over each time."""
    return [flipped(data, bit) for bit in range(len(data) * 8)]


def every_cut(data: bytes) -> list[bytes]:
    """The data cut off at every byte."""
    return [data[:size] for size in range(len(data))]


def undetected(check: Callable[[bytes], object], damaged: Iterable[bytes]) -> int:
    """How many of these the check lets pass; one that it refuses must be refused with an error of ours."""
    passed = 0
    for data in damaged:
        try:
            check(data)
        except TidelogError:
            continue
        passed += 1
    return passed
