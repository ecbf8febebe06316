"""What a process gives its node: files, clocks, chance and ids; and how a node takes its data directory.

Brokers and controllers begin alike: the directory is claimed, the end of the last life is looked up before anything
is changed, and only then are logs opened (docs/STORAGE.md, 2 and 8).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, NoReturn, Protocol

from tidelog.storage.config import LogConfig
from tidelog.storage.crashes import Life
from tidelog.storage.data_directory import DataDirectory, Halt
from tidelog.storage.files import Directory
from tidelog.storage.identity import Claim, Role, claim
from tidelog.storage.log_compaction import CompactsElsewhere
from tidelog.storage.names import parse_partition
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.reserve import Reserve, Reserved


class Clock(Protocol):
    """The clocks that are injected; time-outs are the event loop's."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    def boot_ms(self) -> float:
        """Milliseconds since the machine started, also while it is suspended: for leases."""
        ...


@dataclass(frozen=True, slots=True)
class Environment:
    """What a process gives its node: the world, as far as it needs it."""

    directory: Directory
    clock: Clock
    boot_id: str
    pid: int
    rng: Random
    new_id: Callable[[], bytes]
    """16 random bytes."""
    new_guard: Callable[[], AbstractContextManager[object]]
    """A lock for files that several threads write."""
    halt: Callable[[str], NoReturn]
    """End the process at once, leaving no marker of a clean stop."""
    compacts_elsewhere: CompactsElsewhere | None = None
    """Another process in which logs are compacted; None: that is done here, a little at a time."""
    other_directories: tuple[Directory, ...] = ()
    """More data directories, each on a disk of its own."""


class Taken(NamedTuple):
    """A data directory that is this process's; its logs are not open yet."""

    claim: Claim
    life: Life
    data: DataDirectory


def take_directory(
    env: Environment,
    role: Role,
    node_id: int,
    incarnation_id: bytes,
    log: LogConfig,
    segments: OpenSegments,
    halt: Halt,
    reserve_bytes: int,
) -> Taken:
    """Claim the directory, begin a life in it, and make ready to open its logs. All of it may use the reserve."""
    reserve = Reserve(env.directory, reserve_bytes, env.new_guard())
    directory = Reserved(env.directory, reserve)
    claimed = claim(
        directory, role=role, node_id=node_id, cluster_id=None, new_directory_id=env.new_id(), pid=env.pid
    )
    life = Life.begin(
        directory,
        directory_id=claimed.identity.directory_id,
        incarnation_id=incarnation_id,
        boot_id=env.boot_id,
        has_partitions=any(parse_partition(name) for name in directory.names()),
    )
    reserve.take_back()
    data = DataDirectory(directory, life, log, segments, halt=halt, new_guard=env.new_guard)
    data.reserve = reserve
    return Taken(claimed, life, data)
