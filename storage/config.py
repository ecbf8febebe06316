"""What a log may be told: sizes, times and limits, validated once."""

from dataclasses import dataclass

from tidelog.protocol.batch import HEADER_SIZE
from tidelog.protocol.compression import CODECS, NONE
from tidelog.protocol.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one log, by Kafka's names with underscores."""

    segment_bytes: int = 1 << 30
    """A segment that would grow past this is closed and a new one begun. Less means more files, finer retention."""
    segment_ms: int = 7 * 24 * 3600 * 1000
    """A segment whose records span more time than this is closed, so that retention can reach old records."""
    index_interval_bytes: int = 4096
    """One index entry for at least this many bytes of log. Less means larger indexes and shorter scans."""
    max_message_bytes: int = 1 << 20
    """The largest batch a producer may send. Followers take larger ones: the limit may have been lowered since."""
    compression_type: str = "producer"
    """The codec that a leader writes batches in; `producer`: the one that they come in, at no cost."""
    message_timestamp_type: str = "CreateTime"
    """Whose time records have: `CreateTime` the producer's, `LogAppendTime` the leader's."""
    message_timestamp_before_max_ms: int = 2**63 - 1
    """How far a record's time may lie before its leader's, where records have their producers'."""
    message_timestamp_after_max_ms: int = 2**63 - 1
    """How far it may lie ahead of its leader's."""
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    """How long the sequence numbers of a producer are kept that has fallen silent: then a retry is not known again."""
    cleanup_policy: str = "delete"
    """`delete`: old segments go; `compact`: all but the newest record of each key go; or both, with a comma."""
    retention_ms: int = 7 * 24 * 3600 * 1000
    """How old records become before they are deleted; -1: time does not matter."""
    retention_bytes: int = -1
    """How large the log may be for its oldest segment to stay; -1: size does not matter."""
    file_delete_delay_ms: int = 60_000
    """How long a file that left the log stays on the disk, for whoever is still reading it."""
    delete_retention_ms: int = 24 * 3600 * 1000
    """How long compaction keeps the mark that a key was deleted: consumers that are further behind miss it."""
    min_compaction_lag_ms: int = 0
    """How long a record is safe from compaction."""
    max_compaction_lag_ms: int = 2**63 - 1
    """How long a record may wait for compaction, however little of the log is dirty."""
    min_cleanable_dirty_ratio: float = 0.5
    """How much of a log must be new since its last compaction for the next. Less means more reading and writing."""

    def __post_init__(self) -> None:
        _within("segment.bytes", self.segment_bytes, 1024, 2**31 - 1)
        _within("segment.ms", self.segment_ms, 1, 2**63 - 1)
        _within("index.interval.bytes", self.index_interval_bytes, 0, 2**31 - 1)
        _within("max.message.bytes", self.max_message_bytes, HEADER_SIZE, MAX_BATCH_BYTES)
        _one_of("compression.type", self.compression_type, ("producer", "uncompressed", *CODECS))
        _one_of("message.timestamp.type", self.message_timestamp_type, (_CREATE_TIME, _APPEND_TIME))
        _within("message.timestamp.before.max.ms", self.message_timestamp_before_max_ms, 0, 2**63 - 1)
        _within("message.timestamp.after.max.ms", self.message_timestamp_after_max_ms, 0, 2**63 - 1)
        _within("producer.id.expiration.ms", self.producer_id_expiration_ms, 1, 2**63 - 1)
        _within("retention.ms", self.retention_ms, -1, 2**63 - 1)
        _within("retention.bytes", self.retention_bytes, -1, 2**63 - 1)
        _within("file.delete.delay.ms", self.file_delete_delay_ms, 0, 2**63 - 1)
        _within("delete.retention.ms", self.delete_retention_ms, 0, 2**63 - 1)
        _within("min.compaction.lag.ms", self.min_compaction_lag_ms, 0, 2**63 - 1)
        _within("max.compaction.lag.ms", self.max_compaction_lag_ms, 1, 2**63 - 1)
        _within("min.cleanable.dirty.ratio", self.min_cleanable_dirty_ratio, 0, 1)
        if not self.cleanup_policy or set(self.cleanup_policy.split(",")) - {"delete", "compact"}:
            raise InvalidConfig(f"cleanup.policy={self.cleanup_policy}: it must be delete, compact or both")

    @property
    def codec(self) -> int | None:
        """What leaders compress by; None: batches stay as they come."""
        return None if self.compression_type == "producer" else CODECS.get(self.compression_type, NONE)

    @property
    def appends_time(self) -> bool:
        """Whether records have the leader's time."""
        return self.message_timestamp_type == _APPEND_TIME

    @property
    def dresses(self) -> bool:
        """Whether leaders change batches; else they keep the bytes that they come in."""
        return self.codec is not None or self.appends_time

    @property
    def takes_any_time(self) -> bool:
        """Whether producers may give records any time."""
        no_limit = 2**63 - 1
        return self.appends_time or (
            self.message_timestamp_before_max_ms == no_limit == self.message_timestamp_after_max_ms
        )

    @property
    def deletes(self) -> bool:
        """Whether old segments go."""
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        """Whether all but the newest record of each key go."""
        return "compact" in self.cleanup_policy


MAX_BATCH_BYTES = 64 << 20
"""No batch on any disk is larger: a size beyond it is damage, whatever the settings were."""


_CREATE_TIME = "CreateTime"
_APPEND_TIME = "LogAppendTime"


def _one_of(name: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        raise InvalidConfig(f"{name}={value}: it must be one of {', '.join(words)}")


def _within(name: str, value: float, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidConfig(f"{name}={value}: it must be between {low} and {high}")
