"""What a log is given: who keeps the data directory that it lies in, and what recovery found of it."""

from dataclasses import dataclass
from typing import NoReturn, Protocol

from tidelog.protocol.types import Offset
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.files import Directory
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.producers import Producers
from tidelog.storage.segment import Segment


class Kept(Protocol):
    """What a keeper has to know of a log."""

    @property
    def directory(self) -> Directory:
        """Where it lies."""
        ...

    @property
    def log_start(self) -> Offset:
        """Where readers begin."""
        ...


class Keeper(Protocol):
    """What a log needs of the data directory that it lies in."""

    @property
    def open_segments(self) -> OpenSegments:
        """Where it takes turns with all other logs at having files open."""
        ...

    def lower_recovery_point(self, log: Kept, offset: Offset) -> None:
        """Write durably that nothing at and behind `offset` is to be trusted, or missed when it is gone.

        The point that was written may be lower already; it is never raised by this.
        `NoRoom` refuses the cut that this was for; anything else ends the process.
        """
        ...

    def report_damage(self, what: str) -> None:
        """Durable bytes are not what they were; said before anything is done about it."""
        ...

    def halt(self, what: str, error: OSError) -> NoReturn:
        """End the process at once, without any marker of a clean stop (`os._exit(70)` in the product)."""
        ...


class Compacting(Protocol):
    """What a log needs of its compaction."""

    @property
    def works(self) -> bool:
        """Whether it waits for the disk: then it cannot be ended."""
        ...

    def abort(self) -> None:
        """End it now: what it has not put in place is given up, what it is just putting in place is finished."""
        ...


@dataclass(slots=True)
class Contents:
    """What recovery found in a directory, and a log begins with."""

    segments: list[Segment]
    epochs: LeaderEpochs
    producers: Producers
    log_start: Offset
    durable: Offset
    """All below is; that is the end, unless the epochs could not be written for want of room."""
    epochs_saved: bool
