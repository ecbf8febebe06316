"""A client's batch as its topic wants it: in its codec and, where it says so, with the leader's time (ADR 107).

What it keeps true: this is done once, by the leader, between the check of what came and the write; followers,
readers and recovery see one body with one checksum. A batch that a topic has nothing to say about keeps its bytes.
"""

from tidelog.protocol.batch import BatchHeader, read_header, stamp_time
from tidelog.protocol.errors import MessageTooLarge
from tidelog.protocol.records import recompressed
from tidelog.protocol.types import Buffer
from tidelog.storage.config import LogConfig


def as_configured(
    batch: Buffer, header: BatchHeader, config: LogConfig, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """The bytes to be written, which may be changed, and their header; MessageTooLarge if they have become too many."""
    codec = config.codec
    if codec is not None and codec != header.codec:
        batch = recompressed(batch, header, codec)
        came, header = header, read_header(batch)
        if header.size > config.max_message_bytes:
            raise MessageTooLarge(
                f"a batch of {came.size} bytes has {header.size} with compression.type={config.compression_type}, "
                f"{config.max_message_bytes} is the most"
            )
    writable = memoryview(batch)
    if writable.readonly:
        writable = memoryview(bytearray(batch))
    return writable, stamp_time(writable, header, now_ms) if config.appends_time else header
