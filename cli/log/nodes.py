"""What a data directory says of itself: whose it is, how its last life ended, how far each log got."""

from typing import NamedTuple

from tidelog.cli.local.identity import began
from tidelog.cli.log import states
from tidelog.cli.log.items import Fault, Severity
from tidelog.cli.log.places import parted_in, partitions_in
from tidelog.cli.log.segments import bases, survey_segment
from tidelog.cli.read_only import ReadOnlyDirectory
from tidelog.protocol.errors import CorruptCheckpoint, NotADataDirectory, StorageError, UnsupportedFormat
from tidelog.protocol.types import Offset, TopicPartition
from tidelog.storage.checkpoints import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINTS,
    decode_offsets,
    read_leader_epochs,
)
from tidelog.storage.crashes import (
    CLEAN_SHUTDOWN,
    RUNNING,
    CrashKind,
    Found,
    Place,
    classify,
    decode_marker,
    whereabouts_of,
)
from tidelog.storage.epochs import EpochEntry
from tidelog.storage.files import read_whole
from tidelog.storage.identity import LOCK, META, PARTITION_METADATA, Identity, read_identity, read_topic_id
from tidelog.storage.names import STRAY, parse_partition

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class CheckpointFile(NamedTuple):
    """One of the five files."""

    name: str
    entries: int | None
    """None: it is missing or cannot be read."""


class PartitionState(NamedTuple):
    """What is known of one partition, by its directory and by the checkpoints; None where nobody says."""

    name: str
    topic_id: str | None
    log_start: Offset | None
    high_watermark: Offset | None
    recovery_point: Offset | None
    end_offset: Offset | None
    """Behind the last whole batch on the disk; None: there is no directory."""
    epochs: tuple[EpochEntry, ...] | None


class NodeState(NamedTuple):
    """What a data directory says."""

    path: str
    identity: Identity | None
    last_end: CrashKind
    evidence: str
    """What that was told by."""
    pid: int | None
    """Who holds the lock, or held it last."""
    in_use: bool
    """Whether that process is alive."""
    files: list[CheckpointFile]
    partitions: list[PartitionState]
    faults: list[Fault]


def inspect(directory: ReadOnlyDirectory, boot_id: str | None = None) -> NodeState:
    """Read everything there is to read."""
    faults: list[Fault] = []
    identity = _identity(directory, faults)
    last_end, evidence = _last_end(directory, identity, _boot_id() if boot_id is None else boot_id, faults)
    files, offsets = [], {}
    for name in OFFSET_CHECKPOINTS:
        found = _offsets(directory, name, faults)
        files.append(CheckpointFile(name, None if found is None else len(found)))
        offsets[name] = found or {}
    names = partitions_in(directory)
    here = {which: name for name in names if (which := parse_partition(name)) is not None}
    named = sorted({*here, *(which for found in offsets.values() for which in found)})
    partitions = [_partition(directory, which, here.get(which), offsets, faults) for which in named]
    for name in parted_in(directory):
        stray = name.endswith(STRAY)
        what = "not placed here, or of a topic that nobody knows" if stray else "deleted, and not yet removed"
        way_out = (
            "never served, and removed after stray.delete.delay.ms where its topic is known"
            if stray
            else "the next start removes it"
        )
        faults.append(Fault(Severity.CACHE, f"{directory.path}/{name}", None, what, way_out))
    pid = _pid(directory)
    in_use = pid is not None and _is_alive(pid)
    return NodeState(directory.path, identity, last_end, evidence, pid, in_use, files, partitions, faults)


def _identity(directory: ReadOnlyDirectory, faults: list[Fault]) -> Identity | None:
    try:
        return read_identity(directory)
    except NotADataDirectory as problem:
        what, _, way_out = str(problem).partition(": ")
        path = f"{directory.path}/{META}"
        faults.append(
            Fault(
                Severity.DAMAGE,
                path,
                None,
                what.removeprefix(path).lstrip(": "),
                way_out or "restore it, or replace this node",
            )
        )
        return None


def _boot_id() -> str:
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _last_end(
    directory: ReadOnlyDirectory, identity: Identity | None, boot_id: str, faults: list[Fault]
) -> tuple[CrashKind, str]:
    """How the next start will classify the last end, and by what."""
    running, clean = _marker(directory, RUNNING, faults), _marker(directory, CLEAN_SHUTDOWN, faults)
    here = Place(identity.directory_id if identity else b"", boot_id, whereabouts_of(directory))
    kind = classify(running, clean, here, has_partitions=bool(partitions_in(directory)))
    if kind is CrashKind.NEW:
        return kind, "no marker and no partition"
    if kind is CrashKind.CLEAN:
        return kind, f"{CLEAN_SHUTDOWN} is there: everything was flushed"
    if kind is CrashKind.PROCESS:
        return kind, f"{RUNNING} is of this boot, and here: nothing is lost"
    return kind, f"{_why_host(running, here)}: what was not flushed may be gone"


def _why_host(running: Found, here: Place) -> str:
    if running is None:
        return "no marker"
    if running == "unreadable":
        return f"{RUNNING} cannot be read"
    if running.place.directory_id != here.directory_id:
        return f"{RUNNING} is of another directory"
    if running.place.whereabouts != here.whereabouts:
        return f"{RUNNING} is of another disk, or this is a copy"
    return f"{RUNNING} is of an earlier boot" if here.boot_id else "the boot cannot be told here"


def _marker(directory: ReadOnlyDirectory, name: str, faults: list[Fault]) -> Found:
    try:
        found = decode_marker(read_whole(directory, name), f"{directory.path}/{name}")
    except FileNotFoundError:
        return None
    except OSError:
        found = None
    if found is None:
        faults.extend(item for item in states.marker(directory, name) if isinstance(item, Fault))
        return "unreadable"
    return found


def _pid(directory: ReadOnlyDirectory) -> int | None:
    try:
        content = read_whole(directory, LOCK).decode("latin-1").strip()
    except OSError:
        return None
    return int(content) if content.isascii() and content.isdecimal() and 0 < int(content) < 2**31 else None


def _is_alive(pid: int) -> bool:
    """Whether such a process runs; the lock itself is not tried, because trying it would take it."""
    return began(pid) is not None  # a dead one keeps its number until its parent has looked


def _offsets(
    directory: ReadOnlyDirectory, name: str, faults: list[Fault]
) -> dict[TopicPartition, Offset] | None:
    path = f"{directory.path}/{name}"
    try:
        return decode_offsets(read_whole(directory, name), path)
    except FileNotFoundError:
        what = "it is missing"
    except CorruptCheckpoint as problem:
        what = str(problem).removeprefix(path).lstrip(":, ")
    except UnsupportedFormat as error:
        faults.append(Fault(Severity.DAMAGE, path, None, str(error), UnsupportedFormat.way_out()))
        return None
    faults.append(Fault(Severity.CACHE, path, None, what, states.fallback(name)))
    return None


def _partition(
    directory: ReadOnlyDirectory,
    which: TopicPartition,
    name: str | None,
    offsets: dict[str, dict[TopicPartition, Offset]],
    faults: list[Fault],
) -> PartitionState:
    start, high, durable = (
        offsets[file].get(which) for file in (LOG_STARTS, HIGH_WATERMARKS, RECOVERY_POINTS)
    )
    path = f"{directory.path}/{which}"
    if name is None:
        files = ", ".join(file for file in OFFSET_CHECKPOINTS if which in offsets[file])
        what = f"there is no such directory, but entries in {files}"
        faults.append(
            Fault(Severity.DAMAGE, path, None, what, "was it removed by hand? copy it from a replica")
        )
        return PartitionState(str(which), None, start, high, durable, None, None)
    inside = directory.directory(name)
    if not any(which in found for found in offsets.values()):
        what = "no checkpoint has an entry for it"
        faults.append(Fault(Severity.CACHE, path, None, what, "the next start scans it as a whole"))
    topic_id, problem = read_topic_id(inside)
    if problem is not None:
        what = str(problem).removeprefix(f"{inside.path}/{PARTITION_METADATA}").lstrip(": ")
        becomes = "leaves it offline" if isinstance(problem, StorageError) else "takes it for a stray one"
        way_out = f"the next start {becomes} and does not serve it"
        faults.append(Fault(Severity.DAMAGE, f"{inside.path}/{PARTITION_METADATA}", None, what, way_out))
    segments = bases(inside)
    end = survey_segment(inside, segments[-1]).end_offset if segments else 0
    for said, what in ((durable, "everything was flushed"), (high, "everything was committed")):
        if said is not None and said > end:
            fault = f"it ends at offset {end}, but up to {said} {what}"
            faults.append(Fault(Severity.DAMAGE, path, None, fault, "copy it from another replica"))
    entries, unread = read_leader_epochs(inside)
    # It is written with the first flush: before that there is none, and nothing is wrong.
    expected = bool(durable) or inside.exists(LEADER_EPOCHS)
    if unread is not None and end and expected:
        faults.append(states.unreadable(f"{inside.path}/{LEADER_EPOCHS}", unread, LEADER_EPOCHS))
    begin = start if start is not None else (segments[0] if segments else 0)
    return PartitionState(name, topic_id.hex() if topic_id else None, begin, high, durable, end, entries)
