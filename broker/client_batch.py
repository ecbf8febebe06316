"""What a client may send as a batch: judged by its head alone, before anything of its partition is asked; but for the
times of its records, where its topic limits them, and for all of them, where it is compacted.

The order of the checks is part of the rule: the first that fails decides the answer (docs/REPLICATION.md).
"""

from typing import Final

from tidelog.protocol.batch import (
    CODEC_BITS,
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
)
from tidelog.protocol.compression import CODECS
from tidelog.protocol.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTimestamp,
    UnsupportedFormat,
    UnsupportedVersion,
)
from tidelog.protocol.messages import ACKS_ALL
from tidelog.protocol.records import columns_of, decode
from tidelog.protocol.types import NO_PRODUCER_ID, NO_TIMESTAMP, Buffer, TopicPartition
from tidelog.storage.config import LogConfig

_ACKS: Final = frozenset((0, 1, ACKS_ALL))
_CODECS: Final = frozenset(CODECS.values())


def check_client_batch(batch: Buffer, acks: int) -> BatchHeader:
    """The head of a batch that a client may send with these `acks`; its body is not looked at."""
    if acks not in _ACKS:
        raise InvalidRequiredAcks(f"acks={acks}: it is 0, 1 or -1 (all)")
    try:
        header = read_header(batch)
    except UnsupportedFormat as error:
        raise UnsupportedVersion(str(error)) from error  # the other one is about our own disk
    if acks != ACKS_ALL and header.producer_id != NO_PRODUCER_ID:
        raise InvalidRequiredAcks(f"acks={acks} with a producer id: an idempotent producer needs all")
    attributes = header.attributes
    if attributes & CONTROL:
        raise InvalidRecord("a control batch is what a broker writes, no client")
    if attributes & LOG_APPEND_TIME:
        raise InvalidTimestamp("the batch says that it has its leader's time, which its leader says")
    if attributes & ~(CODEC_BITS | TRANSACTIONAL) or attributes & CODEC_BITS not in _CODECS:
        raise UnsupportedVersion(f"a client's batch has attributes {attributes:#x}")
    if header.base_timestamp < NO_TIMESTAMP or header.max_timestamp < NO_TIMESTAMP:
        raise InvalidTimestamp(
            f"the batch has the times {header.base_timestamp} and {header.max_timestamp}: "
            f"none is below {NO_TIMESTAMP}, which is no time"
        )
    return header


def check_keyed(batch: Buffer, header: BatchHeader, partition: TopicPartition) -> None:
    """Whether a compaction can judge each record of a batch whose checksums have been verified.

    Of headers it is not asked what they are: that takes ten times as long, and no record goes or stays by them.
    """
    try:
        keys = columns_of(batch, header).keys
    except CorruptMessage as error:  # no retry mends what was packed in this way
        raise InvalidRecord(f"{partition} is compacted: {error}") from error
    if None in keys:
        raise InvalidRecord(f"{partition} is compacted: every record needs a key")


def check_times(batch: Buffer, config: LogConfig, wall_ms: int) -> None:
    """Whether each record's time is as near to the leader's as its topic wants (`message.timestamp.*.max.ms`)."""
    for at, time_ms in enumerate(decode(batch).timestamps):
        ahead_ms = time_ms - wall_ms
        if -config.message_timestamp_before_max_ms <= ahead_ms <= config.message_timestamp_after_max_ms:
            continue
        side = "after" if ahead_ms > 0 else "before"
        limit_ms = (
            config.message_timestamp_after_max_ms if ahead_ms > 0 else config.message_timestamp_before_max_ms
        )
        raise InvalidTimestamp(
            f"record {at} has the time {time_ms}, {abs(ahead_ms)} ms {side} its leader's: "
            f"message.timestamp.{side}.max.ms is {limit_ms}"
        )
