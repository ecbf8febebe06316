"""What a dead broker has left on its disk: compared with what it knew, and harmed before it comes back.

Harm is what the fallbacks of checkpoints are there for (design 1.5). Legal are:

    high watermarks, leader epochs   older, missing or flipped: the batches decide
    recovery points                  missing or flipped: all is verified; older only if no entry says more than now,
                                     and each is still where a batch begins
    log starts                       missing or flipped, never older: the first segment's base is taken, so that what
                                     was deleted may come back on that replica
"""

from collections.abc import Iterator
from random import Random

from tidelog.broker.broker import Broker
from tidelog.broker.partition import Partition
from tidelog.protocol.batch import HEADER_SIZE, read_header
from tidelog.protocol.errors import CorruptCheckpoint, TidelogError
from tidelog.protocol.types import Offset, TopicPartition
from tidelog.storage.checkpoints import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    RECOVERY_POINTS,
    decode_epochs,
    decode_offsets,
)
from tidelog.storage.crashes import CLEAN_SHUTDOWN
from tidelog.storage.epochs import EpochEntry, LeaderEpochs
from tidelog.storage.log import Log
from tidelog.storage.names import parse_partition, partition_name
from tidelog.storage.segment import LOG
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.medium import StoredFile

DATA = "/data"


# ── after a stop in order ─────────────────────────────────────────────────────────────────────────────


def check_clean_stop(host: Host, broker: Broker) -> bool:
    """What is stored is what the broker knew at its end; False if it left no marker, as on a full disk."""
    if _stored(host.disk, CLEAN_SHUTDOWN) is None:
        return False
    said = {}
    for name in (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS):
        content = _stored(host.disk, name)
        assert content is not None, f"{host.name} stopped in order and has no {name}"
        said[name] = decode_offsets(content, name)
    partitions: dict[TopicPartition, Partition] = {}
    if hasattr(broker, "replicas"):
        partitions = {each.name: each for each in broker.replicas.partitions.values()}
    for place, log in broker.data.logs.items():
        before = said[HIGH_WATERMARKS][place]
        committed = partitions[place].high_watermark if place in partitions else before
        epochs = _stored_epochs(host.disk, partition_name(place), log)
        found = before, said[RECOVERY_POINTS][place], said[LOG_STARTS][place], epochs
        known = committed, log.end_offset, log.log_start, log.epochs.entries
        assert found == known, f"{host.name} stopped in order: {log} knew {known}, its disk says {found}"
        assert log.log_start <= committed <= log.end_offset, f"{host.name}: {log} stopped at {committed}"
    return True


def _stored_epochs(disk: SimulatedDisk, directory: str, log: Log) -> tuple[EpochEntry, ...]:
    """As the next start reads them: what a raised log start cuts off need not be written (design 1.6)."""
    content = _stored(disk, f"{directory}/{LEADER_EPOCHS}")
    try:
        epochs = LeaderEpochs(decode_epochs(content, LEADER_EPOCHS) if content is not None else ())
    except CorruptCheckpoint:
        if log.epochs.entries:
            raise
        return ()  # harmed while nothing was in the log, and nothing has come since: there is nothing to know
    epochs.truncate_from_start(log.log_start, log.end_offset)
    return epochs.entries


def _stored(disk: SimulatedDisk, name: str) -> bytes | None:
    try:
        return disk.stored(f"{DATA}/{name}")
    except FileNotFoundError:
        return None


# ── before the next start ─────────────────────────────────────────────────────────────────────────────


class Harm:
    """What happens to the checkpoints of brokers that are down; it keeps old copies of them."""

    def __init__(self, rng: Random, hosts: dict[int, Host]) -> None:
        self._rng = rng
        self._hosts = hosts
        self._copies: dict[tuple[int, str], bytes] = {}

    def remember(self) -> None:
        """Keep a copy of some checkpoints as they are now."""
        for number, host in self._hosts.items():
            for name in _checkpoints(host.disk):
                if (number, name) not in self._copies or self._rng.random() < 0.2:
                    self._copies[number, name] = _visible(host.disk, name)

    def strike(self, number: int) -> str | None:
        """Harm one checkpoint of a broker that is down: how, and which; None if there is nothing to harm."""
        disk = self._hosts[number].disk
        names = list(_checkpoints(disk))
        if not names:
            return None
        name = self._rng.choice(names)
        kind = name.rpartition("/")[2]
        how = self._rng.choice(["stale", "missing", "flipped"])
        if how == "stale":
            copy = self._copies.get((number, name))
            if copy is None or copy == _visible(disk, name) or not _may_be_older(disk, name, copy):
                return None
            if not _put(disk, name, copy):
                return None
        elif how == "missing":
            directory, _, last = f"{DATA}/{name}".rpartition("/")
            disk.medium.change(disk.medium.directory_at(directory), (last, None))
        else:
            disk.rot(f"{DATA}/{name}", self._rng.randrange(len(_visible(disk, name))), self._rng.randrange(8))
        return f"{how} {kind}"


def _checkpoints(disk: SimulatedDisk) -> Iterator[str]:
    """The checkpoints that are there, as names below the data directory."""
    names = sorted(disk.medium.directory_at(DATA).entries)
    yield from (name for name in (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS) if name in names)
    for name in names:
        if parse_partition(name) and LEADER_EPOCHS in disk.medium.directory_at(f"{DATA}/{name}").entries:
            yield f"{name}/{LEADER_EPOCHS}"


def _visible(disk: SimulatedDisk, name: str) -> bytes:
    return bytes(disk.medium.file_at(f"{DATA}/{name}").visible)


def _put(disk: SimulatedDisk, name: str, content: bytes) -> bool:
    """Put a file in the place of that one, durably; whether there was room for it."""
    directory, _, last = f"{DATA}/{name}".rpartition("/")
    if disk.medium.capacity - disk.medium.used < len(content):
        return False
    file = StoredFile()
    disk.medium.write(file, 0, content)
    file.flush()
    disk.medium.change(disk.medium.directory_at(directory), (last, file))
    return True


def _may_be_older(disk: SimulatedDisk, name: str, copy: bytes) -> bool:
    """Whether the node may be expected to live with that copy."""
    if name == LOG_STARTS:
        return False
    if name != RECOVERY_POINTS:
        return True
    try:
        now = decode_offsets(_visible(disk, name), name)
        then = decode_offsets(copy, name)
    except TidelogError:  # it was flipped before
        return False
    return all(
        offset <= now.get(partition, 0) and _begins_batch(disk, partition, offset)
        for partition, offset in then.items()
    )


def _begins_batch(disk: SimulatedDisk, partition: TopicPartition, offset: Offset) -> bool:
    """Whether a batch, or nothing any more, begins at that offset: a cut since then may have moved them."""
    directory = f"{DATA}/{partition_name(partition)}"
    bases = [int(n.removesuffix(LOG)) for n in disk.medium.directory_at(directory).entries if n.endswith(LOG)]
    base = max((base for base in bases if base <= offset), default=None)
    if base is None:
        return offset == 0
    data = disk.medium.file_at(f"{directory}/{base:020}{LOG}").visible
    at, following = 0, base
    while following < offset and at + HEADER_SIZE <= len(data):
        header = read_header(data, at)
        at, following = at + header.size, header.next_offset
    return following == offset
