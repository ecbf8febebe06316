"""A frame's attachment: the records of all entries, one behind the other.

What it keeps true: the entries' sizes add up to exactly what is there, or the frame is refused as a whole; a
part is a view, so nothing is copied.
"""

from collections.abc import Iterable
from typing import Protocol

from tidelog.protocol.errors import MalformedFrame
from tidelog.protocol.types import Buffer


class HasRecords(Protocol):
    """An entry of a message that says how much of the attachment is its own."""

    @property
    def records_size(self) -> int:
        """How many bytes."""
        ...


def split_attachment(attachment: Buffer, entries: Iterable[HasRecords]) -> list[memoryview]:
    """Each entry's part of the attachment, in the entries' order."""
    view = memoryview(attachment)
    parts, end = [], 0
    for entry in entries:
        begin, end = end, end + entry.records_size
        parts.append(view[begin:end])
    if end != len(view):
        raise MalformedFrame(f"{len(parts)} entries claim {end} bytes of records, {len(view)} are attached")
    return parts
