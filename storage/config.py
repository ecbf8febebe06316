"""What a log may be told: sizes, times and limits, validated once."""

from dataclasses import dataclass

from tidelog.protocol.batch import HEADER_SIZE
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

    def __post_init__(self) -> None:
        _within("segment.bytes", self.segment_bytes, 1024, 2**31 - 1)
        _within("segment.ms", self.segment_ms, 1, 2**63 - 1)
        _within("index.interval.bytes", self.index_interval_bytes, 0, 2**31 - 1)
        _within("max.message.bytes", self.max_message_bytes, HEADER_SIZE, MAX_BATCH_BYTES)


MAX_BATCH_BYTES = 64 << 20
"""No batch on any disk is larger: a size beyond it is damage, whatever the settings were."""


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidConfig(f"{name}={value}: it must be between {low} and {high}")
