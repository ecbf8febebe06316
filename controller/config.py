"""What a controller may be told, by Kafka's names with underscores; validated once, at the start."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tidelog.controller.active import ActiveConfig
from tidelog.controller.facts import BATCH_BYTES_MAX
from tidelog.controller.following import FollowingConfig
from tidelog.controller.quorum import QuorumConfig
from tidelog.controller.snapshots import SnapshotConfig
from tidelog.protocol.errors import InvalidConfig
from tidelog.protocol.limits import DEFAULT, Limits
from tidelog.protocol.settings import CLUSTER, Settings, configured, find
from tidelog.protocol.types import BrokerId
from tidelog.storage.config import LogConfig
from tidelog.storage.reserve import RESERVE_BYTES

FAST_FENCING: Final = "fast.fencing.enable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """One controller's settings."""

    node_id: BrokerId
    """Its number among controllers."""
    voters: tuple[tuple[int, str, int], ...]
    """The quorum, this one included: id, host and port of each."""
    host: str = "127.0.0.1"
    """Where it listens."""
    port: int = 9192
    """Where it listens; 0 takes a free port, which a quorum of one may."""
    idle_ms: int = 500
    """How often it writes that nothing happened."""
    checkpoint_ms: int = 5000
    """How often it writes down how far its log is committed, where a restart replays from, and takes a snapshot if one
    is due."""
    fast_fencing: bool = True
    """Fence a broker whose connection has ended and whose port refuses (`fast.fencing.enable`). Switch it off where
    brokers advertise an address that refuses for them."""
    reserve_bytes: int = RESERVE_BYTES
    """What is kept free for the metadata log and the quorum's promises: with it, a full disk keeps nobody from voting."""
    limits: Limits = DEFAULT
    """Of its connections."""
    quorum: QuorumConfig = field(default_factory=QuorumConfig)
    following: FollowingConfig = field(default_factory=FollowingConfig)
    active: ActiveConfig = field(default_factory=ActiveConfig)
    snapshots: SnapshotConfig = field(default_factory=SnapshotConfig)
    log: LogConfig = field(
        default_factory=lambda: LogConfig(segment_bytes=16 << 20, max_message_bytes=BATCH_BYTES_MAX)
    )

    def __post_init__(self) -> None:
        ids = [number for number, _, _ in self.voters]
        if len(set(ids)) != len(ids) or self.node_id not in ids:
            raise InvalidConfig(
                f"quorum={sorted(ids)}: it must name every controller once, and controller {self.node_id} among them"
            )

    def fences_fast(self, settings: Settings) -> bool:
        """Whether a refused connection is proof by now: what is set for the cluster, else what was said here."""
        own = {FAST_FENCING: "true" if self.fast_fencing else "false"}
        return find(settings, CLUSTER, "", FAST_FENCING, own).value == "true"


FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "broker.session.timeout.ms": ("active.liveness.session_timeout_ms",),
    "controlled.shutdown.max.ms": ("active.liveness.shutdown_patience_ms",),
    "default.replication.factor": ("active.topics.replication_factor",),
    FAST_FENCING: ("fast_fencing",),
    "flush.mode": ("active.topics.flush_mode",),
    "max.connections": ("limits.max_connections",),
    "metadata.log.max.record.bytes.between.snapshots": (
        "snapshots.metadata_log_max_record_bytes_between_snapshots",
    ),
    "metadata.log.max.snapshot.interval.ms": ("snapshots.metadata_log_max_snapshot_interval_ms",),
    "metadata.log.segment.bytes": ("log.segment_bytes",),
    "metadata.log.segment.ms": ("log.segment_ms",),
    "metadata.max.idle.interval.ms": ("idle_ms",),
    "num.partitions": ("active.topics.partitions",),
    "quorum.election.timeout.ms": ("quorum.election_timeout_ms",),
    "quorum.fetch.timeout.ms": (
        "quorum.fetch_timeout_ms",
        "following.fetch_timeout_ms",
        "active.liveness.quorum_fetch_timeout_ms",
    ),
    "storage.reserve.bytes": ("reserve_bytes",),
}
"""What a controller may be told when it starts, and which of its fields that is: it does not obey anything else."""


def told(config: ControllerConfig, said: Mapping[str, str]) -> ControllerConfig:
    """The config with what was said; what nobody says but follows from it is in proportion."""
    config = configured(config, FIELDS, said)
    following, timeout_ms = config.following, config.following.fetch_timeout_ms
    return replace(
        config,
        following=replace(
            following,
            fetch_max_wait_ms=min(following.fetch_max_wait_ms, timeout_ms // 4),
            connect_timeout_ms=min(following.connect_timeout_ms, timeout_ms // 2),
        ),
    )
