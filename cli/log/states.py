"""The small files: producer snapshots, checkpoints, identities and markers, as rows.

Each is read by the code that the broker reads it with; what that refuses is a fault here, with what the broker
will do about it. A file of a newer tidelog is refused (`UnsupportedFormat`), as everywhere.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from tidelog.cli.log.items import Fault, Item, Row, Severity, Summary
from tidelog.protocol.errors import CorruptCheckpoint, CorruptSnapshot, NotADataDirectory, UnsupportedFormat
from tidelog.storage import checkpoints
from tidelog.storage.checkpoints import decode_epochs, decode_offsets
from tidelog.storage.crashes import decode_marker
from tidelog.storage.files import Directory, read_whole
from tidelog.storage.identity import META, read_identity, read_topic_id
from tidelog.storage.producers import Producers

FALLBACKS: Final[Mapping[str, str]] = {
    checkpoints.HIGH_WATERMARKS: "the high watermark begins at the log start",
    checkpoints.RECOVERY_POINTS: "every log is scanned from its start",
    checkpoints.LOG_STARTS: "each log starts at its first segment",
    checkpoints.CLEANER_OFFSETS: "compacted logs are cleaned from their start",
    checkpoints.PURGE_FLOORS: "lagging followers copy afresh",
    checkpoints.LEADER_EPOCHS: "it is rebuilt from the headers of all batches",
}
"""What the next start does instead when the file cannot be read."""


def fallback(name: str) -> str:
    """The way out for a checkpoint that cannot be read."""
    return f"nothing needs to be done: at the next start {FALLBACKS[name]}"


def snapshot(directory: Directory, name: str) -> Iterator[Item]:
    """The producers of a `.snapshot`, and each one's last batches."""
    path = f"{directory.path}/{name}"
    try:
        producers = Producers.load(read_whole(directory, name))
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"{path}: {error}") from None
    except CorruptSnapshot as problem:
        yield Fault(Severity.CACHE, path, None, str(problem), "an older snapshot or the log is used instead")
        return
    for producer_id, entry in producers.items():
        yield Row(
            "producer",
            {
                "producer_id": producer_id,
                "producer_epoch": entry.epoch,
                "coordinator_epoch": entry.coordinator_epoch,
                "last_append_ms": entry.last_append_ms,
                "transaction_start": entry.transaction_start,
                "batches": [list(batch) for batch in entry.batches],
            },
        )
    yield Summary({"producers": len(producers)})


def epochs(directory: Directory, name: str) -> Iterator[Item]:
    """The entries of a `leader-epoch-checkpoint`."""
    path = f"{directory.path}/{name}"
    try:
        entries = decode_epochs(read_whole(directory, name), path)
    except CorruptCheckpoint as problem:
        yield unreadable(path, problem, checkpoints.LEADER_EPOCHS)
        return
    for entry in entries:
        yield Row("epoch", {"epoch": entry.epoch, "start_offset": entry.start})
    yield Summary({"entries": len(entries)})


def offsets(directory: Directory, name: str) -> Iterator[Item]:
    """The entries of one of the checkpoints of a data directory."""
    path = f"{directory.path}/{name}"
    try:
        entries = decode_offsets(read_whole(directory, name), path)
    except CorruptCheckpoint as problem:
        whole = next(known for known in checkpoints.OFFSET_CHECKPOINTS if name.startswith(known))
        yield unreadable(path, problem, whole)
        return
    for (topic, partition), offset in entries.items():
        yield Row("offset", {"topic": topic, "partition": partition, "offset": offset})
    yield Summary({"entries": len(entries)})


def unreadable(path: str, problem: CorruptCheckpoint, name: str) -> Fault:
    """A checkpoint of that name that cannot be read."""
    what = str(problem).removeprefix(path).lstrip(":, ")
    return Fault(Severity.CACHE, path, None, what, fallback(name))


def properties(directory: Directory, name: str) -> Iterator[Item]:
    """The keys and values of `meta.properties` or `partition.metadata`."""
    path = f"{directory.path}/{name}"
    problem: str | None = None
    way_out = "restore it, or replace this node"
    if name == META:
        try:
            read_identity(directory)
        except NotADataDirectory as error:
            problem, _, _ = str(error).partition(": restore it")
    elif (found := read_topic_id(directory)[1]) is not None:
        problem = str(found)
        way_out = "the next start takes the partition for a stray one and does not serve it"
    lines = read_whole(directory, name).decode("utf-8", "backslashreplace").splitlines()
    for line in lines:
        key, _, value = line.partition("=")
        yield Row("property", {"key": key, "value": value})
    if problem is not None:
        yield Fault(Severity.DAMAGE, path, None, problem.removeprefix(path).lstrip(": "), way_out)
    yield Summary({"entries": len(lines)})


def marker(directory: Directory, name: str) -> Iterator[Item]:
    """What `.running` or `.clean_shutdown` says."""
    path = f"{directory.path}/{name}"
    found = decode_marker(read_whole(directory, name), path)
    if found is None:
        way_out = "the next start takes the last end for a crash of the host and checks every log"
        yield Fault(Severity.CACHE, path, None, "the marker is not what was written", way_out)
        return
    yield Row(
        "marker",
        {
            "directory_id": found.place.directory_id.hex(),
            "boot_id": found.place.boot_id,
            "whereabouts": found.place.whereabouts,
            "incarnation_ids": [each.hex() for each in found.incarnation_ids],
            "broker_epoch": found.broker_epoch,
            "worst": found.worst.name.lower(),
            "start": found.start,
        },
    )
    yield Summary({"entries": 1})


def lock(directory: Directory, name: str) -> Iterator[Item]:
    """Who holds or held the lock."""
    yield Row("lock", {"pid": read_whole(directory, name).decode("latin-1").strip()})
    yield Summary({"entries": 1})
