"""What a file in a data directory is, by its name alone."""

from enum import StrEnum
from typing import Final, NamedTuple

from tidelog.protocol.types import Offset
from tidelog.storage.checkpoints import LEADER_EPOCHS, OFFSET_CHECKPOINTS
from tidelog.storage.crashes import CLEAN_SHUTDOWN, RUNNING
from tidelog.storage.files import TEMPORARY
from tidelog.storage.identity import LOCK, META, PARTITION_METADATA
from tidelog.storage.producer_snapshots import SUFFIX
from tidelog.storage.recovery import SET_ASIDE
from tidelog.storage.segment import INDEX, LOG, TIME_INDEX


class Kind(StrEnum):
    """The kinds of files that `tidelog log dump` understands."""

    SEGMENT = "segment"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    SNAPSHOT = "producer snapshot"
    EPOCHS = "leader epochs"
    OFFSETS = "offset checkpoint"
    PROPERTIES = "properties"
    MARKER = "marker"
    LOCK = "lock"


class FileName(NamedTuple):
    """What a name says."""

    kind: Kind
    base_offset: Offset = 0
    """In the name, of files that belong to a segment or an offset."""
    set_aside: bool = False
    """Taken out of the log by recovery: it may begin anywhere."""


DIGITS: Final = 20
_ON_THE_WAY: Final = (TEMPORARY, ".part", ".deleted", ".cleaned", ".swap")
_BY_ENDING: Final = {
    LOG: Kind.SEGMENT,
    INDEX: Kind.OFFSET_INDEX,
    TIME_INDEX: Kind.TIME_INDEX,
    SUFFIX: Kind.SNAPSHOT,
}
_BY_NAME: Final = {
    **dict.fromkeys(OFFSET_CHECKPOINTS, Kind.OFFSETS),
    LEADER_EPOCHS: Kind.EPOCHS,
    META: Kind.PROPERTIES,
    PARTITION_METADATA: Kind.PROPERTIES,
    CLEAN_SHUTDOWN: Kind.MARKER,
    RUNNING: Kind.MARKER,
    LOCK: Kind.LOCK,
}

KNOWN: Final = ", ".join(
    (
        *(f"*{ending}" for ending in _BY_ENDING),
        "*-checkpoint",
        META,
        PARTITION_METADATA,
        CLEAN_SHUTDOWN,
        RUNNING,
    )
)
"""For messages."""


def file_name(name: str) -> FileName | None:
    """What the file is; None when no file of ours has such a name."""
    if name in _BY_NAME:
        return FileName(_BY_NAME[name])
    whole, set_aside, number = name.partition(SET_ASIDE)
    if number and not number.lstrip(".").isdecimal():
        return None
    for ending in _ON_THE_WAY:  # being written, cleaned or deleted: the same bytes under a passing name
        whole = whole.removesuffix(ending)
    stem, dot, ending = whole.rpartition(".")
    kind = _BY_ENDING.get(dot + ending)
    if kind is None or len(stem) != DIGITS or not (stem.isascii() and stem.isdecimal()):
        return None
    return FileName(kind, int(stem), bool(set_aside))
