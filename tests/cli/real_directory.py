"""A data directory on the real disk, made and ended by the code that makes and ends them."""

from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

from tidelog.protocol.records import encode
from tidelog.protocol.types import TopicPartition
from tidelog.storage.config import LogConfig
from tidelog.storage.crashes import Life
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.identity import claim
from tidelog.storage.io import open_directory
from tidelog.storage.log import Log
from tidelog.storage.names import parse_partition
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.works import take_here

SMALL = LogConfig(segment_bytes=1024, index_interval_bytes=200)
ORDERS = TopicPartition("orders", 0)
TOPIC_ID = bytes(range(16))
TIME = 1_700_000_000_000
BOOT = "boot 1"


class RealNode:
    """A node without a network: a data directory with the log of orders-0 in it."""

    def __init__(self, path: Path, *, pid: int = 2**31 - 1, config: LogConfig = SMALL) -> None:
        root = open_directory(str(path), create=True)
        claimed = claim(
            root, role="broker", node_id=1, cluster_id=b"c" * 16, new_directory_id=b"d" * 16, pid=pid
        )
        self._lock = claimed.lock
        partitions = any(parse_partition(name) for name in root.names())
        life = Life.begin(
            root, directory_id=b"d" * 16, incarnation_id=b"i" * 16, boot_id=BOOT, has_partitions=partitions
        )
        self.data = DataDirectory(root, life, config, OpenSegments(8), halt=_halt, new_guard=nullcontext)
        take_here(self.data.open(now_ms=TIME))
        self.log: Log = self.data.logs.get(ORDERS) or self.data.create(ORDERS, TOPIC_ID, now_ms=TIME)

    def fill(self, batches: int = 20, *, codec: int = 0) -> "RealNode":
        """Batches of two records, four batches to an epoch, by one producer."""
        for number in range(batches):
            values = [b"value %d" % (2 * number + each) for each in range(2)]
            times = [TIME + 1000 * number, TIME + 1000 * number + 1]
            sequence = 2 * number
            batch = encode(
                values,
                [b"k", b"l"],
                times,
                codec=codec,
                producer_id=7,
                producer_epoch=0,
                base_sequence=sequence,
            )
            self.log.append(batch, number // 4, TIME)
        return self

    def flush(self) -> "RealNode":
        """Everything so far is durable, and the checkpoints say so."""
        self.log.flush()
        self.data.write_recovery_points().run()
        self.data.write_high_watermarks({ORDERS: self.log.end_offset}).run()
        return self

    def stop(self) -> "RealNode":
        """A clean stop."""
        self.data.close({ORDERS: self.log.end_offset})
        self._lock.release()
        return self

    def kill(self) -> "RealNode":
        """The files are let go of, and nothing is written."""
        self.log.segments[-1].forget_indexes()
        self.log.abandon()
        self._lock.release()
        return self


def _halt(what: str, error: OSError) -> NoReturn:
    raise AssertionError(f"{what}: {error}")


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def contents(path: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below the directory: its bytes and the time of its last change."""
    files = (each for each in path.rglob("*") if each.is_file())
    return {str(each): (each.read_bytes(), each.stat().st_mtime_ns) for each in files}
