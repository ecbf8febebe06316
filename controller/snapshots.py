"""Snapshots of the metadata log: which ones a node has, how it takes, fetches, loads and forgets them (design 4.13).

    begin(image) ──► Writing.run ─────────────────┐                                 ┌─► log_start ─► remove_old
                                                  ├─► <name>.part ─► <name> ─► add ─┤
    receiving(id) ─► Receiving.take* ─► run ──────┘   checked, flushed, renamed     └─► load, where_to_begin

`run` may go on in a worker thread, or in the slices of `steps`; all else is for the event loop and returns at once.
An OSError from `run` that is not NoRoom ends the process, as every failed flush does.

What it keeps true (docs/STORAGE.md, 13; I-34, I-43, I-47):

* A file without `.part` is whole after any crash; one that is not, because it has rotted, is reported and removed when
  the directory is opened, and the one before it is used. What a newer tidelog wrote is refused and stays.
* Between the newest snapshot and the end of the log nothing is missing: the log begins at or before the newest one,
  and at the second newest if there are two, so that one of them may rot.
* A snapshot is of committed batches only, so none is ever wrong, only old: one that comes back after a loss of power
  is removed again when it is of no use.
* What the log says below its start is known by one number: the epoch of its last batch there, which is the epoch of
  the snapshot that ends where the log starts (`floor`; ADR 82).
"""

from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.controller import snapshot_file
from tidelog.controller.image import FACTS_PER_STEP, Image
from tidelog.controller.snapshot_file import SnapshotId, parse_name
from tidelog.protocol.errors import CorruptSnapshot, DamagedLog, InvalidRequest, SnapshotNotFound
from tidelog.protocol.types import NO_EPOCH, Buffer, Epoch, Offset
from tidelog.storage.epochs import EpochEnd, EpochEntry, LeaderEpochs
from tidelog.storage.files import FULL, Directory, File, NoRoom

PART: Final = ".part"
FETCHED: Final = ".fetched.part"
"""Another name than that of one being written, so that the two never meet in one file."""

KEPT: Final = 2
SNAPSHOT_BYTES_MAX: Final = 4 << 30
"""The largest that is fetched: more than any cluster needs, less than fills a disk because of one bad number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotConfig:
    """How often snapshots are taken."""

    metadata_log_max_record_bytes_between_snapshots: int = 20 << 20
    """After how many bytes of new log: what a start has to replay at most."""
    metadata_log_max_snapshot_interval_ms: int = 60 * 60 * 1000
    """After what time, if there is anything new; 0: time does not matter."""


def due(new_bytes: int, since_ms: float, config: SnapshotConfig) -> bool:
    """Whether to take one: what was committed since the last one, and how long ago that was (or the start)."""
    if new_bytes <= 0:
        return False
    interval_ms = config.metadata_log_max_snapshot_interval_ms
    too_long = interval_ms > 0 and since_ms >= interval_ms
    return too_long or new_bytes >= config.metadata_log_max_record_bytes_between_snapshots


class Piece(NamedTuple):
    """Some bytes of a snapshot, and how many it has."""

    size: int
    data: bytes


class Snapshots:
    """The snapshots in the directory of one metadata log. Run `open` to its end before anything else."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.problems: list[str] = []
        """What was found unreadable: to be reported."""
        self._sizes: dict[SnapshotId, int] = {}

    def __repr__(self) -> str:
        return f"<snapshots {self.directory.path} {[tuple(each) for each in self.ids]}>"

    def open(self) -> Iterator[None]:
        """Find out what is there, after the log was opened; yields now and then. What is not whole is removed."""
        for name in self.directory.names():
            if name.endswith((snapshot_file.SUFFIX + PART, snapshot_file.SUFFIX + FETCHED)):
                self.directory.remove(name)
            elif (snapshot := parse_name(name)) is not None:
                yield from self.examine(snapshot)

    def examine(self, snapshot: SnapshotId) -> Iterator[None]:
        """Look whether it is whole, again when somebody who has fetched it comes for it once more; yields."""
        where = f"{self.directory.path}/{snapshot.name}"
        try:
            with _Opened(self.directory, snapshot.name) as file:
                for _ in snapshot_file.batches(file, snapshot, where):
                    yield
                self._sizes[snapshot] = file.size()
        except CorruptSnapshot as problem:
            self.problems.append(f"{problem}; removed")
            self._sizes.pop(snapshot, None)
            self.directory.remove(snapshot.name)
        except OSError as error:  # the disk may answer another time
            self.problems.append(f"{where} could not be read: {error.strerror}")
            self._sizes.pop(snapshot, None)

    # ── what there is ─────────────────────────────────────────────────────────────────────────────

    @property
    def ids(self) -> tuple[SnapshotId, ...]:
        """Those that are whole, oldest first."""
        return tuple(sorted(self._sizes))

    @property
    def newest(self) -> SnapshotId | None:
        """The one to begin with."""
        return max(self._sizes, default=None)

    def load(self, snapshot: SnapshotId) -> "Loading":
        """Add it up to an image: run `steps` to the end, or `run`, then take `image`."""
        return Loading(self.directory, snapshot)

    def read_at(self, snapshot: SnapshotId, position: int, max_bytes: int) -> Piece:
        """A piece of one, for whoever fetches it: `max_bytes` of it, or what there is up to its end."""
        size = self._sizes.get(snapshot)
        if size is None:
            raise SnapshotNotFound(f"{snapshot.name} is not kept here, {self.newest or 'none'} is the newest")
        if not 0 <= position < size or max_bytes <= 0:
            raise InvalidRequest(
                f"{snapshot.name} has {size} bytes: {max_bytes} at {position} cannot be read"
            )
        with _Opened(self.directory, snapshot.name) as file:
            return Piece(size, file.read_at(position, min(max_bytes, size - position)))

    # ── new ones ──────────────────────────────────────────────────────────────────────────────────

    def begin(self, image: Image, epoch: Epoch) -> "Writing":
        """Take a snapshot of the committed image as it is now; `epoch` is that of its last batch (`epochs`)."""
        newest = self.newest
        assert image.end_offset > (newest.end if newest else 0), (image, newest)
        assert epoch >= (newest.epoch if newest else 0), (epoch, newest)
        return Writing(self.directory, image.copy(), epoch)

    def receiving(self, snapshot: SnapshotId) -> "Receiving":
        """Fetch that one from another node, from its first byte on."""
        if parse_name(snapshot.name) != snapshot:
            raise InvalidRequest(f"{tuple(snapshot)} cannot be a snapshot")
        return Receiving(self.directory, snapshot)

    def add(self, done: "Writing | Receiving") -> None:
        """It has been run to its end: it counts from now on."""
        assert done.size, done
        self._sizes[done.snapshot] = done.size

    # ── what follows for the log ──────────────────────────────────────────────────────────────────

    def where_to_begin(self, log_start: Offset, log_end: Offset, epochs: LeaderEpochs) -> Offset | None:
        """Where the log must begin anew, empty, to continue the newest snapshot; None: it does as it is.

        It does not when power was lost before the log was flushed and the snapshot was, or when a crash came
        between the installing of a snapshot and `truncate_fully_and_start_at`. Nothing is lost by beginning anew:
        the snapshot is of committed batches, and a log that has others in their place, or none, has no committed
        ones behind them. DamagedLog when batches are missing between the two.
        """
        newest = self.newest
        if (newest.end if newest else 0) < log_start:
            raise DamagedLog(
                f"{self.directory.path}: the log begins at offset {log_start}, "
                f"and {newest.name if newest else 'no snapshot'} is the newest to say what was before"
            )
        if newest is None or newest.end == log_start:
            return None
        continues = newest.end <= log_end and epochs.epoch_of(newest.end - 1) == newest.epoch
        return None if continues else newest.end

    def log_start(self, log_start: Offset, durable_offset: Offset) -> Offset:
        """Where the log may start from now on: at the end of the second newest (`Log.raise_log_start`)."""
        second = self.ids[-KEPT] if len(self._sizes) >= KEPT else None
        if second is None or second.end > durable_offset:
            return log_start
        return max(log_start, second.end)

    def remove_old(self, log_start: Offset) -> list[SnapshotId]:
        """Keep the two newest and the floor; remove the others, once that log start is checkpointed.

        What ends below the log's start does not lead up to it: with it goes all that an installed one replaces.
        """
        newest = self.ids[-KEPT:]
        old = [
            each
            for each in self.ids
            if each.end < log_start or (each not in newest and each.end != log_start)
        ]
        for each in old:
            del self._sizes[each]
            self.directory.remove(each.name)
        return old

    def floor(self, log_start: Offset) -> EpochEnd | None:
        """The epoch of the last batch below the log's start, and that start; None where nothing is below.

        None as well when the snapshot that knew it has rotted: then whoever is at the log's start cannot be
        checked, and gets a snapshot (`snapshot_for`).
        """
        return next((EpochEnd(epoch, end) for end, epoch in self._sizes if end == log_start), None)

    def epochs(self, epochs: LeaderEpochs, log_start: Offset) -> LeaderEpochs:
        """The log's epochs and what the floor knows: for votes, fetches and answers to fetches.

        The last record below the log's start is entered as if it were there: its epoch is known and no other's
        is. So an empty log has a last epoch, and a follower that is asked about an older epoch than the floor's
        is told an end below the log's start. A view for one moment: it is never stored, nor appended to.
        """
        floor = self.floor(log_start)
        if floor is None:
            return epochs
        below = EpochEntry(floor.epoch, floor.end - 1)
        return LeaderEpochs((below, *(entry for entry in epochs.entries if entry.epoch > floor.epoch)))

    def snapshot_for(
        self, fetch_offset: Offset, last_fetched_epoch: Epoch, log_start: Offset
    ) -> SnapshotId | None:
        """Which snapshot a follower must load that fetches there; None: the log itself can tell it what follows.

        Below the log's start there is nothing to fetch, an empty follower is faster with a snapshot (KAFKA-15078),
        and one whose last batch below our start is not ours cannot be told where it diverged.
        """
        if fetch_offset < log_start or last_fetched_epoch == NO_EPOCH:
            return self.newest
        if log_start == 0:
            return None
        floor = self.floor(log_start)
        known = NO_EPOCH if floor is None else floor.epoch
        diverges = last_fetched_epoch < known or (fetch_offset == log_start and last_fetched_epoch != known)
        return self.newest if diverges else None


class Loading:
    """An image that is being added up from a snapshot; there is none before all of the file was found right."""

    def __init__(self, directory: Directory, snapshot: SnapshotId) -> None:
        self.snapshot = snapshot
        self._directory = directory
        self._image: Image | None = None

    @property
    def image(self) -> Image:
        """The image, once the steps are done."""
        assert self._image is not None, self.snapshot
        return self._image

    def run(self) -> Image:
        """All at once."""
        for _ in self.steps():
            pass
        return self.image

    def steps(self) -> Iterator[None]:
        """Load it; yields every few milliseconds."""
        image = Image()
        apply = image.apply
        where = f"{self._directory.path}/{self.snapshot.name}"
        with _Opened(self._directory, self.snapshot.name) as file:
            for batch in snapshot_file.batches(file, self.snapshot, where):
                for count, fact in enumerate(snapshot_file.facts_in(batch, where), 1):
                    apply(fact)
                    if count % FACTS_PER_STEP == 0:
                        yield
                yield
        image.end_offset = self.snapshot.end
        self._image = image.copy()  # which has not seen what is in it as changes of the next batch


class Writing:
    """A snapshot that is being taken: the image is a copy that nobody else has, so the work may go on anywhere."""

    def __init__(self, directory: Directory, image: Image, epoch: Epoch) -> None:
        self.snapshot = SnapshotId(image.end_offset, epoch)
        self.size = 0
        """Of the whole file, once the steps are done."""
        self._directory = directory
        self._image = image

    def run(self) -> None:
        """All at once: in a worker thread."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Write it; yields between pieces. NoRoom: nothing has changed, another time perhaps."""
        part = self.snapshot.name + PART
        size = 0
        with _Opened(self._directory, part, create=True) as file:
            _write(self._directory, part, file, 0, b"")
            for piece in snapshot_file.pieces(self._image, self.snapshot.epoch):
                _write(self._directory, part, file, size, piece)
                size += len(piece)
                yield
            yield from _make_durable(self._directory, file, part, self.snapshot.name)
        self.size = size


class Receiving:
    """A snapshot that is being fetched, from whoever has it: all nodes have the same bytes.

    Ask for the bytes at `position` and give them to `take`, until `complete`; then `run`. After an interruption
    go on at `position`; after a CorruptSnapshot that is 0 again.
    """

    def __init__(self, directory: Directory, snapshot: SnapshotId) -> None:
        self.snapshot = snapshot
        self.position = 0
        """From which byte on to ask."""
        self.size = 0
        """Of the whole file, as the answers have it; 0: not known yet."""
        self._directory = directory
        self._part = snapshot.name + FETCHED

    @property
    def complete(self) -> bool:
        """Whether every byte is here."""
        return 0 < self.size == self.position

    def take(self, position: int, size: int, data: Buffer) -> None:
        """A piece has come. NoRoom: it does not fit, ask for it again later, or `abandon`."""
        fits = position == self.position and position + len(data) <= size <= SNAPSHOT_BYTES_MAX
        if not fits or not len(data) or self.size not in {0, size}:
            expected = f"{self.size or 'some'} bytes at {self.position}"
            self.abandon()
            raise CorruptSnapshot(
                f"{self.snapshot.name}: {len(data)} of {size} bytes at {position} came in place of {expected}"
            )
        with _Opened(self._directory, self._part, create=True) as file:
            _write(self._directory, self._part, file, position, data, keep=True)
        self.position, self.size = position + len(data), size

    def abandon(self) -> None:
        """Forget what has come."""
        self.position = self.size = 0
        with suppress(FileNotFoundError):
            self._directory.remove(self._part)

    def run(self) -> None:
        """Check and install it, all at once: in a worker thread."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Check and install it; yields now and then. CorruptSnapshot: it is forgotten, and to be fetched anew."""
        assert self.complete, self.snapshot
        try:
            with _Opened(self._directory, self._part) as file:
                for _ in snapshot_file.batches(file, self.snapshot, f"{self._directory.path}/{self._part}"):
                    yield
                yield from _make_durable(self._directory, file, self._part, self.snapshot.name)
        except CorruptSnapshot:
            self.abandon()
            raise


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────


class _Opened:
    """A file that is open as long as a block lasts; without room for a new one, `NoRoom`."""

    def __init__(self, directory: Directory, name: str, *, create: bool = False) -> None:
        try:
            self._file = directory.open(name, create=create)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise NoRoom(error.errno, "no room for a file", f"{directory.path}/{name}") from error

    def __enter__(self) -> File:
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _write(
    directory: Directory, name: str, file: File, position: int, data: Buffer, *, keep: bool = False
) -> None:
    """Let the file end with these bytes from `position` on; without room for them, `NoRoom`."""
    try:
        file.truncate(position)
        file.write_at(position, data)
    except OSError as error:
        if error.errno not in FULL:
            raise
        if not keep:
            directory.remove(name)
        where = f"{directory.path}/{name}"
        raise NoRoom(error.errno, f"no room for {len(data)} bytes at {position}", where) from error


def _make_durable(directory: Directory, file: File, part: str, name: str) -> Generator[None, None, None]:
    """In this order: a name that survives without its bytes would be a snapshot that says less than it should."""
    file.flush()
    yield
    directory.rename(part, name)
    directory.flush()
