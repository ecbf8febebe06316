"""Whose data this is: `meta.properties`, `partition.metadata`, and the lock on a data directory.

    meta.properties                                       partition.metadata
    version=1                                             version=1
    cluster.id=<32 hex>      missing until it is known    topic_id=<32 hex>
    node.id=1                                             crc=1a2b3c4d
    node.role=broker         ids of brokers and
    directory.id=<32 hex>    controllers are separate
    crc=1a2b3c4d             (`seal`)

What it keeps true (docs/STORAGE.md, 2):

* Nothing is written into a directory that is not ours: only an empty one is formatted, and a foreign one is
  refused before even the lock is made.
* The directory id is durable before anybody hears of it. The first election tells it to the other voters before
  the cluster has an id, so `meta.properties` is written at the first start, and once more, by
  `adopt_cluster`, when the cluster's id is known. Neither id changes after that.
* One process at a time: the lock is held for its life and tells its pid.
* A cut or changed byte is noticed. There is no fallback for an identity: a node that does not know who it is
  does not start, and a partition of an unknown topic is stray.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

from tidelog.protocol.errors import (
    CorruptCheckpoint,
    DirectoryLocked,
    NotADataDirectory,
    StorageError,
    UnsupportedFormat,
    WrongIdentity,
)
from tidelog.protocol.types import TopicId
from tidelog.storage.files import TEMPORARY, Directory, Lock, read_whole, write_whole
from tidelog.storage.seal import PROPERTIES

META: Final = "meta.properties"
LOCK: Final = ".lock"
PARTITION_METADATA: Final = "partition.metadata"
VERSION: Final = 1

_IN_AN_EMPTY_DIRECTORY: Final = frozenset({LOCK, META + TEMPORARY, "lost+found"})
"""What a start that crashed before it had formatted leaves, and what a fresh file system holds."""

Role = Literal["broker", "controller"]


@dataclass(frozen=True, slots=True)
class Identity:
    """Which node, and which disk of it, a data directory belongs to. Ids are 16 bytes."""

    role: Role
    node_id: int
    directory_id: bytes
    cluster_id: bytes | None = None
    """None until the node has heard from its cluster for the first time."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A data directory that this process owns until the lock is released or the process dies."""

    identity: Identity
    lock: Lock


def claim(
    directory: Directory,
    *,
    role: Role,
    node_id: int,
    cluster_id: bytes | None,
    new_directory_id: bytes,
    pid: int,
) -> Claim:
    """Lock the directory and make sure that it is this node's; an empty one becomes it.

    `cluster_id` is what the node knows of its cluster, None at a first start; `new_directory_id` is random
    and used only if the directory is empty.
    """
    _refuse_foreign(directory)
    lock = _lock(directory, pid)
    try:
        _refuse_foreign(directory)  # once more, now that nobody else can format it
        _remove_leftovers(directory)
        if not directory.exists(META):
            _write_identity(directory, Identity(role, node_id, new_directory_id, cluster_id))
        identity = read_identity(directory)
        _require(f"{directory.path} belongs to", "the", identity.role, role)
        _require(f"{directory.path} belongs to", role, identity.node_id, node_id)
        if cluster_id is not None:
            identity = adopt_cluster(directory, identity, cluster_id)
    except BaseException:
        lock.release()
        raise
    return Claim(identity, lock)


def adopt_cluster(directory: Directory, identity: Identity, cluster_id: bytes) -> Identity:
    """The node has heard which cluster it is in: remember it durably the first time, insist on it afterwards."""
    if identity.cluster_id is None:
        identity = replace(identity, cluster_id=cluster_id)
        _write_identity(directory, identity)
    _require(f"{directory.path} belongs to", "cluster", identity.cluster_id, cluster_id)
    return identity


def read_identity(directory: Directory) -> Identity:
    """What `meta.properties` says. Raises when it is missing, damaged or newer than this tidelog."""
    where = f"{directory.path}/{META}"
    if not directory.exists(META):
        raise NotADataDirectory(f"{where} is missing")
    try:
        content = read_whole(directory, META)
        values = _properties(content, where)
        identity = Identity(
            "controller" if values["node.role"] == "controller" else "broker",
            int(values["node.id"]),
            bytes.fromhex(values["directory.id"]),
            bytes.fromhex(values["cluster.id"]) if "cluster.id" in values else None,
        )
    except (OSError, CorruptCheckpoint, KeyError, ValueError) as error:
        raise NotADataDirectory(
            f"{where} cannot be read ({error}): restore it, or replace this node"
        ) from error
    if _identity_bytes(identity) != content:
        raise NotADataDirectory(f"{where} is not as tidelog writes it: restore it, or replace this node")
    return identity


def write_topic_id(directory: Directory, topic_id: TopicId) -> None:
    """Say durably which topic a partition's directory belongs to: before its first segment is made.

    The name of the directory itself is durable only after a flush of the one above, which is the caller's.
    """
    write_whole(directory, PARTITION_METADATA, _topic_id_bytes(topic_id))


def read_topic_id(directory: Directory) -> tuple[TopicId | None, CorruptCheckpoint | StorageError | None]:
    """Which topic it belongs to; or None, and why: such a directory is never served.

    `StorageError`: the disk did not give it now, and it may be as good as ever. Otherwise the directory is stray for good.
    """
    where = f"{directory.path}/{PARTITION_METADATA}"
    try:
        content = read_whole(directory, PARTITION_METADATA)
        topic_id = bytes.fromhex(_properties(content, where).get("topic_id", ""))
    except FileNotFoundError:
        return None, CorruptCheckpoint(f"{where} is missing")
    except CorruptCheckpoint as problem:
        return None, problem
    except OSError as error:
        return None, StorageError(f"{where}: {error.strerror}")
    except ValueError as error:
        return None, CorruptCheckpoint(f"{where}: {error}")
    if _topic_id_bytes(topic_id) != content:
        return None, CorruptCheckpoint(f"{where} is not as tidelog writes it")
    return topic_id, None


# ── the steps of a claim ──────────────────────────────────────────────────────────────────────────────


def _refuse_foreign(directory: Directory) -> None:
    names = directory.names()
    foreign = [name for name in names if name not in _IN_AN_EMPTY_DIRECTORY]
    if META not in names and foreign:
        shown = ", ".join(foreign[:5]) + (f" and {len(foreign) - 5} more" if len(foreign) > 5 else "")
        raise NotADataDirectory(f"{directory.path} holds {shown}, but no {META}")


def _lock(directory: Directory, pid: int) -> Lock:
    try:
        return directory.lock(LOCK, f"{pid}\n".encode())
    except BlockingIOError as error:
        holder = read_whole(directory, LOCK).decode("latin-1").strip()
        by = f"process {holder}" if holder.isdecimal() else "another process"
        raise DirectoryLocked(f"{directory.path} is locked by {by}, this is process {pid}") from error


def _remove_leftovers(directory: Directory) -> None:
    """Files that were being written when a process died; their old versions are in place."""
    for name in directory.names():
        if name.endswith(TEMPORARY) and not directory.is_directory(name):
            directory.remove(name)


def _require(fact: str, what: str, found: str | int | bytes | None, wanted: str | int | bytes) -> None:
    if found != wanted:
        shown = [value.hex() if isinstance(value, bytes) else value for value in (found, wanted)]
        raise WrongIdentity(f"{fact} {what} {shown[0]}, this is {what} {shown[1]}")


# ── the files ─────────────────────────────────────────────────────────────────────────────────────────


def _write_identity(directory: Directory, identity: Identity) -> None:
    write_whole(directory, META, _identity_bytes(identity))


def _identity_bytes(identity: Identity) -> bytes:
    cluster = [] if identity.cluster_id is None else [f"cluster.id={identity.cluster_id.hex()}"]
    return _seal(
        *cluster,
        f"node.id={identity.node_id}",
        f"node.role={identity.role}",
        f"directory.id={identity.directory_id.hex()}",
    )


def _topic_id_bytes(topic_id: TopicId) -> bytes:
    return _seal(f"topic_id={topic_id.hex()}")


def _seal(*lines: str) -> bytes:
    return PROPERTIES.seal("".join(f"{line}\n" for line in (f"version={VERSION}", *lines)).encode("ascii"))


def _properties(content: bytes, where: str) -> dict[str, str]:
    """The keys and values of a sealed file."""
    body = PROPERTIES.unseal(content)
    if body is None:
        raise CorruptCheckpoint(f"{where} does not end with the checksum of what stands in it")
    values = dict(line.partition("=")[::2] for line in body.decode("latin-1").splitlines())
    version = values.get("version", "")
    if version.isdecimal() and int(version) > VERSION:
        raise UnsupportedFormat(f"{where} is of version {version}, this tidelog reads {VERSION}")
    return values
