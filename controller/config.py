"""What a controller may be told, by Kafka's names with underscores; validated once, at the start."""

from dataclasses import dataclass, field

from tidelog.controller.active import ActiveConfig
from tidelog.controller.following import FollowingConfig
from tidelog.controller.quorum import QuorumConfig
from tidelog.controller.snapshots import SnapshotConfig
from tidelog.protocol.errors import InvalidConfig
from tidelog.protocol.types import BrokerId
from tidelog.storage.config import LogConfig


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
    fast_fencing: bool = True
    """Fence a broker whose connection has ended and whose port refuses (`fast.fencing.enable`). Switch it off where
    brokers advertise an address that refuses for them."""
    quorum: QuorumConfig = field(default_factory=QuorumConfig)
    following: FollowingConfig = field(default_factory=FollowingConfig)
    active: ActiveConfig = field(default_factory=ActiveConfig)
    snapshots: SnapshotConfig = field(default_factory=SnapshotConfig)
    log: LogConfig = field(default_factory=lambda: LogConfig(segment_bytes=16 << 20))

    def __post_init__(self) -> None:
        ids = [number for number, _, _ in self.voters]
        if len(set(ids)) != len(ids) or self.node_id not in ids:
            raise InvalidConfig(
                f"quorum={sorted(ids)}: it must name every controller once, and controller {self.node_id} among them"
            )
