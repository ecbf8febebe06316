"""How the last life of a node ended, and what it may have cost: the markers `.running` and `.clean_shutdown`.

    kind      the last life ...                                                decided by
    NEW       there was none                                                   neither marker, no partition
    CLEAN     ended in order, everything was flushed                           .clean_shutdown, and it is ours
    PROCESS   was killed; the machine went on, and kept what `write` took      .running: ours, this boot, no copy
    HOST      ended with its machine, or nobody knows: unflushed bytes gone    anything else
    DAMAGED   has lost what was reported as flushed                            recovery, whatever the markers say

What it keeps true (docs/STORAGE.md, 8):

* A loss of power is never taken for a kill, and no kill for a loss, wherever in a start or stop it strikes:
  `.running` is durable before `.clean_shutdown` goes, and that before any log is opened; at the end
  `.clean_shutdown` is durable before `.running` goes.
* What is reported to the controller is the worst kind since the last registration that is on record, not the
  last one: a host crash, then a kill during the next start, are a host crash.
* Starts are counted and named. The marker has the number of its start, which grows, and the names of all starts
  since the last registration that was answered, that one included: any of them may be registered unawares.
* A registration wipes the slate: the controller knows, and has drawn its conclusions.
* A full disk keeps nobody from starting or registering. What could not be written down makes the next start
  believe worse of this life, never better.

    begin ──► worsen(DAMAGED)* ──► registered(epoch)* ──► stop_cleanly
      │            before recovery removes the evidence          after all else is durable
      └── logs may be opened from here on, appended to after `registered`

Both markers are one JSON line of the same fields, sealed by its last one. One that cannot be read is no marker,
but it has been there: the directory is not new.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Literal

import msgspec

from tidelog.protocol.errors import UnsupportedFormat
from tidelog.protocol.types import NO_EPOCH, Epoch
from tidelog.storage.files import Directory, NoRoom, read_whole, write_whole
from tidelog.storage.identity import META
from tidelog.storage.seal import JSON

RUNNING: Final = ".running"
CLEAN_SHUTDOWN: Final = ".clean_shutdown"
VERSION: Final = 2
"""1 did not count starts."""

LIVES_KEPT: Final = 16
"""Names of earlier starts in a marker. The next start without an answer forgets the answered one: it counts as lossy."""


class CrashKind(IntEnum):
    """How a life ended, from the harmless to the worst."""

    NEW = 0
    CLEAN = 1
    PROCESS = 2
    HOST = 3
    DAMAGED = 4


@dataclass(frozen=True, slots=True)
class Place:
    """Where and when a life takes place."""

    directory_id: bytes
    boot_id: str
    """Drawn by the kernel at each boot; empty where it cannot be known, and then every crash is the host's."""
    whereabouts: int
    """Of `meta.properties`, which stays as it is; another number: this is a copy of a directory, and may lack anything."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What a life leaves behind for the next one."""

    place: Place
    incarnation_ids: tuple[bytes, ...]
    """The names of the starts since the last registration on record, oldest first; the last one wrote this."""
    broker_epoch: Epoch
    """Of that registration, -1 if there is none."""
    worst: CrashKind
    """Since that registration."""
    start: int = 0
    """Which start of this directory wrote it, counted from 1; 0: starts were not counted then."""


Unreadable = Literal["unreadable"]
Found = Marker | Unreadable | None
"""A marker, or one that was there and is none any more, or nothing."""


def classify(running: Found, clean: Found, here: Place, *, has_partitions: bool) -> CrashKind:
    """How the last life ended, by what it left; recovery may find worse."""
    if isinstance(clean, Marker) and clean.place.directory_id == here.directory_id:
        return CrashKind.CLEAN
    if isinstance(running, Marker) and running.place == here and here.boot_id:
        return CrashKind.PROCESS
    if running is None and clean is None and not has_partitions:
        return CrashKind.NEW
    return CrashKind.HOST


def inherit(running: Found, clean: Found, here: Place) -> Marker | None:
    """The marker whose registration and worst kind the next life carries on.

    Both are there when a crash struck between the writing of one and the removal of the other; no log was
    open then. At a start `.running` is the newer one and carries on the other; at a stop both say the same.
    """

    def age(marker: Marker) -> tuple[int, Epoch, int, CrashKind]:
        return marker.start, marker.broker_epoch, len(marker.incarnation_ids), marker.worst

    ours = [
        m for m in (running, clean) if isinstance(m, Marker) and m.place.directory_id == here.directory_id
    ]
    return max(ours, key=age, default=None)


class Life:
    """This process's life in a data directory that it has locked. Every step is durable when it returns."""

    __slots__ = ("_directory", "_marker", "_stopped", "last_end", "problems")

    def __init__(
        self,
        directory: Directory,
        marker: Marker,
        last_end: CrashKind,
        problems: tuple[str, ...],
        stopped: Marker | None = None,
    ) -> None:
        self._directory = directory
        self._marker = marker
        self._stopped = stopped
        """What the last life said of itself, if it ended in order."""
        self.last_end = last_end
        """How to open the logs: only CLEAN and NEW need no scan."""
        self.problems = problems
        """Markers that could not be read: to be reported."""

    @property
    def directory_id(self) -> bytes:
        """Of the directory that it takes place in."""
        return self._marker.place.directory_id

    @property
    def worst(self) -> CrashKind:
        """What to report to the controller."""
        return self._marker.worst

    @property
    def broker_epoch(self) -> Epoch:
        """Of the last registration on record, -1 if there is none."""
        return self._marker.broker_epoch

    @property
    def incarnation_ids(self) -> tuple[bytes, ...]:
        """Whose registration the controller may have: all since the last one on record; this one is the last."""
        return self._marker.incarnation_ids

    @property
    def start(self) -> int:
        """Which start of this directory it is."""
        return self._marker.start

    @classmethod
    def begin(
        cls,
        directory: Directory,
        *,
        directory_id: bytes,
        incarnation_id: bytes,
        boot_id: str,
        has_partitions: bool,
    ) -> "Life":
        """Find out how the last life ended, and be on record before any log is opened (KAFKA-10471)."""
        problems: list[str] = []
        running, clean = (_read(directory, name, problems) for name in (RUNNING, CLEAN_SHUTDOWN))
        here = Place(directory_id, boot_id, whereabouts_of(directory))
        last_end = classify(running, clean, here, has_partitions=has_partitions)
        last = inherit(running, clean, here) or Marker(here, (), NO_EPOCH, CrashKind.NEW)
        names = (*last.incarnation_ids[-LIVES_KEPT:], incarnation_id)
        marker = Marker(here, names, last.broker_epoch, max(last.worst, last_end), last.start + 1)
        stopped = clean if isinstance(clean, Marker) and last_end is CrashKind.CLEAN else None
        life = cls(directory, marker, last_end, tuple(problems), stopped)
        written = life._write_if_it_fits(marker)
        if clean is not None:
            directory.remove(CLEAN_SHUTDOWN)
            directory.flush()
            if not written:
                life._write_if_it_fits(marker)
        return life

    def worsen(self, kind: CrashKind) -> None:
        """Recovery has found this. Call it before recovery removes what it found: a kill may follow."""
        if kind > self.worst:
            self._write(RUNNING, replace(self._marker, worst=kind))

    def believe(self, kind: CrashKind) -> bool:
        """As `worsen`, of what was known of the last life elsewhere: a full disk keeps nobody from starting.

        Whether it is durable.
        """
        return kind <= self.worst or self._write_if_it_fits(replace(self._marker, worst=kind))

    def count_on(self, in_force: int) -> bool:
        """The controller knows a start of that number, so this one is the next; or False: it cannot be.

        Only where no registration is on record the count may have been lost with the marker. Elsewhere this is an
        older copy of a directory that goes on in another place.
        """
        if self.broker_epoch != NO_EPOCH or in_force < self.start:
            return False
        self._write_if_it_fits(replace(self._marker, start=in_force + 1))
        return True

    def registered(self, broker_epoch: Epoch) -> None:
        """The controller has accepted this life: a new slate, before the first append as leader or follower."""
        if broker_epoch == self.broker_epoch:
            return  # the same answer once more (KAFKA-16952)
        name = self._marker.incarnation_ids[-1:]
        self._write_if_it_fits(
            replace(self._marker, incarnation_ids=name, broker_epoch=broker_epoch, worst=CrashKind.CLEAN)
        )

    def joined(self) -> None:
        """`meta.properties` was written anew: it has a cluster now."""
        self._write_if_it_fits(self._marker)

    def stop_cleanly(self) -> None:
        """The last step of a stop in order, and only if every log was opened and closed without error.

        KAFKA-15375: a stop that had failed to load a log called itself clean.
        """
        self._end(self._marker)

    def withdraw(self) -> None:
        """Nothing was done in this life, and nobody has heard of it: where the last one ended in order, it still has."""
        if self._stopped is not None:
            self._end(replace(self._stopped, worst=max(self._stopped.worst, self.worst)))

    def _end(self, marker: Marker) -> None:
        self._write(CLEAN_SHUTDOWN, marker)
        self._directory.remove(RUNNING)
        self._directory.flush()

    def _write_if_it_fits(self, marker: Marker) -> bool:
        """A full disk keeps no node from starting: without this marker the next start believes worse of it."""
        try:
            self._write(RUNNING, marker)
        except NoRoom:
            self._marker = marker
            return False
        return True

    def _write(self, name: str, marker: Marker) -> None:
        here = replace(marker.place, whereabouts=whereabouts_of(self._directory))
        placed = replace(marker, place=here)
        write_whole(self._directory, name, encode_marker(placed))
        self._marker = placed


# ── the markers ───────────────────────────────────────────────────────────────────────────────────────


class _Uncounted(msgspec.Struct, forbid_unknown_fields=True):
    """Version 1."""

    version: int
    directory_id: str
    incarnation_ids: list[str]
    broker_epoch: int
    boot_id: str
    dev: int
    worst: str


class _Counted(_Uncounted, forbid_unknown_fields=True):
    """Version 2: fields are appended, and each version has exactly its own."""

    start: int


class _Version(msgspec.Struct):
    version: int


_READ: Final[dict[int, type[_Uncounted]]] = {1: _Uncounted, VERSION: _Counted}


def encode_marker(marker: Marker, version: int = VERSION) -> bytes:
    """The file that says this; older versions only to compare with."""
    said = {
        "version": version,
        "directory_id": marker.place.directory_id.hex(),
        "incarnation_ids": [incarnation.hex() for incarnation in marker.incarnation_ids],
        "broker_epoch": marker.broker_epoch,
        "boot_id": marker.place.boot_id,
        "dev": marker.place.whereabouts,
        "worst": marker.worst.name.lower(),
    }
    fields = _Uncounted(**said) if version == 1 else _Counted(**said, start=marker.start)  # type: ignore[arg-type]  # each by its name
    return JSON.seal(msgspec.json.encode(fields)[:-1])  # without its closing brace: the seal has it


def decode_marker(content: bytes, where: str) -> Marker | None:
    """What the file says; None when it is not what was written. A newer tidelog's is refused."""
    body = JSON.unseal(content)
    if body is None:
        return None
    try:
        version = msgspec.json.decode(body + b"}", type=_Version).version
        if version > VERSION:
            raise UnsupportedFormat(f"{where} is of version {version}, this tidelog reads {VERSION}")
        fields = msgspec.json.decode(body + b"}", type=_READ[version])
        marker = Marker(
            Place(bytes.fromhex(fields.directory_id), fields.boot_id, fields.dev),
            tuple(bytes.fromhex(incarnation) for incarnation in fields.incarnation_ids),
            fields.broker_epoch,
            CrashKind[fields.worst.upper()],
            fields.start if isinstance(fields, _Counted) else 0,
        )
    except (msgspec.MsgspecError, ValueError, KeyError):
        return None
    return marker if encode_marker(marker, version) == content else None


def whereabouts_of(directory: Directory) -> int:
    """Which directory this is, however it is called: a copy of it is another one."""
    return directory.whereabouts(META) if directory.exists(META) else 0


def _read(directory: Directory, name: str, problems: list[str]) -> Found:
    where = f"{directory.path}/{name}"
    try:
        content = read_whole(directory, name)
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{where}: {error}")
        return "unreadable"
    marker = decode_marker(content, where)
    if marker is None:
        problems.append(f"{where} is not what was written")
        return "unreadable"
    return marker
