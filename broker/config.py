"""What a broker may be told, by Kafka's names with underscores; validated once, at the start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog.broker.fetcher import FetchSettings
from tidelog.broker.flusher import FlushSettings
from tidelog.broker.groups.settings import GroupSettings
from tidelog.broker.scrubbing import ScrubSettings
from tidelog.broker.upkeep import UpkeepSettings
from tidelog.controller.snapshots import SnapshotConfig
from tidelog.protocol.errors import InvalidConfig
from tidelog.protocol.limits import DEFAULT, Limits
from tidelog.protocol.messages.shapes import LISTENERS_MAX
from tidelog.protocol.types import BrokerId
from tidelog.storage.config import LogConfig
from tidelog.storage.reserve import RESERVE_BYTES


class OtherListener(NamedTuple):
    """Another address on which a broker listens, for those to whom the first one means nothing (ADR 102)."""

    name: str
    """A client that comes in by it is told where the listeners of this name are."""
    host: str
    """Where it listens."""
    port: int
    """Where it listens; 0 takes a free one."""
    advertise: tuple[str, int] | None = None
    """What it tells others of where it is; None: the address really bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """One broker's settings."""

    broker_id: BrokerId
    """Its number among brokers; another one's data directory is refused."""
    controllers: tuple[tuple[int, str, int], ...]
    """The controllers: id, host and port of each."""
    host: str = "127.0.0.1"
    """Where it listens."""
    port: int = 9092
    """Where it listens; 0 takes a free port."""
    advertise: tuple[str, int] | None = None
    """What it tells others of where it is; port 0: the one that it listens on. None: the address really bound."""
    other_listeners: tuple[OtherListener, ...] = ()
    """Where it listens as well; brokers use the first address."""
    rack: str = ""
    """Where it stands: replicas are spread over racks, and consumers read nearby."""
    broker_heartbeat_interval_ms: int = 2000
    """How often it tells the controller that it lives."""
    broker_session_timeout_ms: int = 9000
    """How long it may be silent before others take over. Three heartbeats must fit."""
    controlled_shutdown_max_ms: int = 30_000
    """How long a stop waits until others lead what this broker led. Less risks that they notice it by its silence."""
    replica_lag_time_max_ms: int = 10_000
    """How long a replica in sync may be behind before it leaves the ISR."""
    hwm_propagation_ms: int = 100
    """How soon followers hear what is committed while consumers read from them. Less makes those reads fresher, and
    fetches more frequent; without such reads it costs nothing."""
    replication_throttled_rate_bytes_s: int | None = None
    """What replicas that are being added may take from this broker in a second; replicas in sync are never throttled."""
    reserve_bytes: int = RESERVE_BYTES
    """What is kept free for the metadata log, markers and checkpoints, in each data directory."""
    stray_delete_delay_ms: int = 24 * 3_600_000
    """How long a log is kept that the cluster does not place here, for an operator who thinks otherwise; -1: until one
    removes it."""
    open_segments: int = 512
    """How many log files are open at once."""
    limits: Limits = DEFAULT
    """Of its connections."""
    fetch: FetchSettings = field(default_factory=FetchSettings)
    flush: FlushSettings = field(default_factory=FlushSettings)
    upkeep: UpkeepSettings = field(default_factory=UpkeepSettings)
    scrub: ScrubSettings = field(default_factory=ScrubSettings)
    groups: GroupSettings = field(default_factory=GroupSettings)
    log: LogConfig = field(default_factory=LogConfig)
    snapshots: SnapshotConfig = field(default_factory=SnapshotConfig)
    """Of the metadata log: a start reads one instead of all that has ever happened."""

    def __post_init__(self) -> None:
        if not self.controllers:
            raise InvalidConfig("controllers: at least one must be named")
        if len(self.other_listeners) > LISTENERS_MAX:
            raise InvalidConfig(
                f"listeners: {len(self.other_listeners)} besides the first, at most {LISTENERS_MAX} may be"
            )
        if self.broker_heartbeat_interval_ms * 3 > self.broker_session_timeout_ms:
            raise InvalidConfig(
                f"broker.heartbeat.interval.ms={self.broker_heartbeat_interval_ms}: three of them must fit into "
                f"broker.session.timeout.ms={self.broker_session_timeout_ms}"
            )
        if (
            self.replication_throttled_rate_bytes_s is not None
            and self.replication_throttled_rate_bytes_s < 1
        ):
            raise InvalidConfig(
                f"leader.replication.throttled.rate={self.replication_throttled_rate_bytes_s}: at least 1, or nothing "
                "at all for no limit"
            )
        if self.fetch.max_wait_ms * 4 > self.replica_lag_time_max_ms:
            raise InvalidConfig(
                f"replica.fetch.wait.max.ms={self.fetch.max_wait_ms}: four of them must fit into "
                f"replica.lag.time.max.ms={self.replica_lag_time_max_ms}"
            )


FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "broker.heartbeat.interval.ms": ("broker_heartbeat_interval_ms",),
    "broker.session.timeout.ms": ("broker_session_timeout_ms",),
    "controlled.shutdown.max.ms": ("controlled_shutdown_max_ms",),
    "flush.bytes": ("flush.flush_bytes",),
    "flush.ms": ("flush.flush_ms",),
    "group.consumer.heartbeat.interval.ms": ("groups.group_consumer_heartbeat_interval_ms",),
    "group.consumer.max.session.timeout.ms": ("groups.group_consumer_max_session_timeout_ms",),
    "group.consumer.min.session.timeout.ms": ("groups.group_consumer_min_session_timeout_ms",),
    "group.consumer.session.timeout.ms": ("groups.group_consumer_session_timeout_ms",),
    "group.max.size": ("groups.group_max_size",),
    "hwm.propagation.ms": ("hwm_propagation_ms",),
    "index.interval.bytes": ("log.index_interval_bytes",),
    "leader.replication.throttled.rate": ("replication_throttled_rate_bytes_s",),
    "log.flush.start.offset.checkpoint.interval.ms": ("flush.log_start_checkpoint_ms",),
    "log.cleaner.dedupe.buffer.size": ("upkeep.compaction_memory_bytes",),
    "log.cleaner.enable": ("upkeep.compaction_enable",),
    "log.cleaner.io.max.bytes.per.second": ("upkeep.compaction_bytes_s",),
    "log.retention.check.interval.ms": ("upkeep.check_interval_ms",),
    "log.scrubber.enable": ("scrub.enable",),
    "log.scrubber.interval.ms": ("scrub.interval_ms",),
    "log.scrubber.io.max.bytes.per.second": ("scrub.bytes_s",),
    "max.connections": ("limits.max_connections",),
    "max.message.bytes": ("log.max_message_bytes",),
    "metadata.log.max.record.bytes.between.snapshots": (
        "snapshots.metadata_log_max_record_bytes_between_snapshots",
    ),
    "metadata.log.max.snapshot.interval.ms": ("snapshots.metadata_log_max_snapshot_interval_ms",),
    "offset.metadata.max.bytes": ("groups.offset_metadata_max_bytes",),
    "offsets.retention.check.interval.ms": ("groups.offsets_retention_check_interval_ms",),
    "offsets.retention.minutes": ("groups.offsets_retention_minutes",),
    "offsets.topic.num.partitions": ("groups.offsets_topic_num_partitions",),
    "offsets.topic.replication.factor": ("groups.offsets_topic_replication_factor",),
    "open.segments": ("open_segments",),
    "replica.fetch.max.bytes": ("fetch.partition_max_bytes",),
    "replica.fetch.min.bytes": ("fetch.min_bytes",),
    "replica.fetch.response.max.bytes": ("fetch.max_bytes",),
    "replica.fetch.wait.max.ms": ("fetch.max_wait_ms",),
    "replica.high.watermark.checkpoint.interval.ms": ("flush.high_watermark_checkpoint_ms",),
    "replica.lag.time.max.ms": ("replica_lag_time_max_ms",),
    "replica.socket.timeout.ms": ("fetch.timeout_ms",),
    "segment.bytes": ("log.segment_bytes",),
    "segment.ms": ("log.segment_ms",),
    "stray.delete.delay.ms": ("stray_delete_delay_ms",),
    "storage.min.free.bytes": ("flush.min_free_bytes",),
    "storage.reserve.bytes": ("reserve_bytes",),
}
"""What a broker may be told when it starts, and which of its fields that is. Whatever is not here, it does not obey."""
