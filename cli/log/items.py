"""What looking into files brings to light, as values; how they are printed is not known here."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from tidelog.protocol.batch import BatchHeader
from tidelog.protocol.records import Columns
from tidelog.protocol.types import Offset


class Severity(StrEnum):
    """How bad a fault is."""

    TORN = "torn"
    """The end of a log is not whole: what a crash leaves, and what the next start removes."""
    DAMAGE = "damage"
    """Batches are not what was written, or are missing."""
    CACHE = "cache"
    """An index, a snapshot or a checkpoint is of no use; nothing is lost, it is made anew."""


class Fault(NamedTuple):
    """Something that is not as it should be."""

    severity: Severity
    path: str
    position: int | None
    """The byte; None: the file, or all that is in the directory."""
    what: str
    way_out: str

    def __str__(self) -> str:
        place = self.path if self.position is None else f"{self.path} at byte {self.position}"
        return f"{self.severity}: {place}: {self.what}; {self.way_out}"


RESTORE: Final = (
    "stop the broker, remove this partition's directory and let it be copied from another replica"
)
REBUILT: Final = "it is rebuilt from the log: stop the broker, remove the file, start again"


class Batch(NamedTuple):
    """One batch of a segment."""

    position: int
    header: BatchHeader
    problem: str | None
    """Why its body is not what was written; its head is."""
    columns: Columns | None = None
    """Its records, where they were asked for and can be read."""
    undecodable: str | None = None
    """Why its records cannot be read, though they are the bytes that were written."""


class Hole(NamedTuple):
    """Bytes of a segment that are no batch."""

    position: int
    size: int
    problem: str
    at_end: bool
    """Whether nothing follows."""


class Block(NamedTuple):
    """One block of an index file."""

    position: int
    entries: int
    covered: int
    """The bytes of the log that are described up to here."""


class OffsetEntry(NamedTuple):
    """An entry of an offset index."""

    offset: Offset
    position: int


class TimeEntry(NamedTuple):
    """An entry of a time index."""

    timestamp_ms: int
    offset: Offset


Value: TypeAlias = bool | int | str | list[list[int]] | list[str] | None


class Row(NamedTuple):
    """One line of a small file: what it is, and its values by their names."""

    type: str
    values: Mapping[str, Value]


class Summary(NamedTuple):
    """What a file held, once its end is reached."""

    counts: Mapping[str, Value]


class Note(NamedTuple):
    """Something to know that is no fault."""

    text: str


Item: TypeAlias = Batch | Hole | Block | OffsetEntry | TimeEntry | Row | Fault | Note | Summary
