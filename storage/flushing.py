"""One flush of one log: what to force to the disk, and in which order.

A value made on the event loop, run anywhere, and handed back. The order is the promise: segments oldest
first, since bytes behind a gap count for nothing; then what recovery needs to believe them.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tidelog.protocol.types import Offset
from tidelog.storage.checkpoints import write_leader_epochs
from tidelog.storage.epochs import EpochEntry
from tidelog.storage.files import Directory, File, NoRoom, write_whole
from tidelog.storage.producer_snapshots import remove_unneeded, snapshot_name
from tidelog.storage.segment import Segment

SEGMENTS_AT_ONCE: Final = 32
"""Their files are open together while they are flushed, whatever the limit of open files."""


@dataclass(slots=True, eq=False)
class Flush:
    """All that must be on stable storage before a log is durable up to `upto`."""

    directory: Directory
    upto: Offset
    cuts: int
    """How often files had been shortened when this began."""
    segments: tuple[Segment, ...]
    newest: Segment
    """The one that was written when this began; where there are too many before it, not among `segments`."""
    names: bool
    """Whether files have been made or removed."""
    snapshots: tuple[tuple[Offset, bytes], ...]
    bases: tuple[Offset, ...]
    """Where segments begin: older snapshots than the newest stay there only."""
    epochs: tuple[EpochEntry, ...] | None
    """What leader-epoch-checkpoint has to say, if it does not already."""
    changes: int
    """Of the epochs, when this began."""
    error: OSError | None = None
    """Something may not be on the disk that looks as if it were."""
    refused: NoRoom | None = None
    """The epochs did not fit: nothing is lost, and nothing is durable that was not."""
    snapshots_written: int = 0
    """Those that did not fit are for the next flush; they only save time."""
    _files: list[File] = field(default_factory=list)

    def pin(self) -> None:
        """Keep the files open until `unpin`: a worker thread is going to use them."""
        try:
            for segment in self.segments:
                self._files.append(segment.pin())
        except OSError:
            self.unpin()
            raise

    def unpin(self) -> None:
        """The worker thread is done with the files."""
        for segment, file in zip(self.segments, self._files, strict=False):
            segment.unpin(file)
        self._files.clear()

    def run(self) -> None:
        """Do it. What went wrong is in `error`: the log decides, on the event loop, what that means."""
        try:
            for file in self._files:
                file.flush()
            self._write_snapshots()
            if self.epochs is not None:
                write_leader_epochs(self.directory, self.epochs)
            if self.names:
                self.directory.flush()
        except NoRoom as refused:
            self.refused = refused
        except OSError as error:
            self.error = error

    def _write_snapshots(self) -> None:
        with suppress(NoRoom):
            for offset, content in self.snapshots:
                write_whole(self.directory, snapshot_name(offset), content)
                self.snapshots_written += 1
            if self.snapshots:
                remove_unneeded(self.directory, self.bases)
