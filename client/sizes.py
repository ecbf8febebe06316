"""What a record is made of, and how many bytes it takes in a batch: bounds, for nothing is encoded to know it."""

from collections.abc import Collection, Sequence
from typing import Final

from tidelog.protocol.errors import InvalidRecord

RECORD_OVERHEAD: Final = 8
"""What a record takes in a batch besides its key, value and headers, at most but for long ones."""
_TIME_BYTES: Final = 8
"""What a time of its own takes besides."""

GivenHeaders = Sequence[tuple[str, bytes | None]]


def plain(column: object, what: str) -> tuple[bytes | None, int]:
    """A value that is no plain bytes, as bytes; refused where it is none at all."""
    if column is None:
        return None, RECORD_OVERHEAD
    if isinstance(column, bytes | bytearray | memoryview):
        plain = bytes(column)
        return plain, len(plain) + RECORD_OVERHEAD
    raise InvalidRecord(f"a record's {what} is bytes or None, not {type(column).__name__}")


def size_of(timestamp_ms: object, headers: object) -> int:
    """What they take; refused now, when only this record is refused with them."""
    if timestamp_ms is not None and not (type(timestamp_ms) is int and 0 <= timestamp_ms < 2**63):
        raise InvalidRecord(f"a record's time is milliseconds since 1970, not {timestamp_ms!r}")
    size = 0 if timestamp_ms is None else _TIME_BYTES
    if not isinstance(headers, Collection):  # they are read again, when the whole batch fails with them
        raise InvalidRecord(f"headers are a list of pairs, as [('name', b'value')], not {headers!r}")
    for header in headers:
        if (
            not isinstance(header, tuple | list)
            or len(header) != 2
            or not (isinstance(header[0], str) and is_text(header[0]))
            or not (header[1] is None or type(header[1]) is bytes)
        ):
            raise InvalidRecord(f"a header is a pair of text, and bytes or None, not {header!r}")
        size += len(header[0]) + len(header[1] or b"") + RECORD_OVERHEAD
    return size


def is_text(name: str) -> bool:
    """Whether it can be written: a half of a surrogate pair cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
