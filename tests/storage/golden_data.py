"""Data directories of each version of this format, and what must be read from them for ever.

`stopped` ended in order, `killed` in the middle of a write; a number behind the name is the version of the markers,
which are 1 without it. They are made on a simulated disk, so that markers
name a device that every test can have; scripts/golden_data.py writes them to tests/golden/data/.
"""

from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, NoReturn

from tidelog.protocol.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from tidelog.protocol.records import Headers, decode, encode
from tidelog.protocol.types import TopicPartition
from tidelog.storage.config import LogConfig
from tidelog.storage.crashes import Life
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.files import Directory
from tidelog.storage.identity import claim
from tidelog.storage.log import Log
from tidelog.storage.names import parse_partition
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.works import take_here
from tidelog.testing.simulation.disk import SimulatedDisk

GOLDEN: Final = Path(__file__).parent.parent / "golden" / "data"
STOPPED: Final = ("stopped", "stopped-2")
KILLED: Final = ("killed", "killed-2")
NAMES: Final = (*STOPPED, *KILLED)
ORDERS: Final = TopicPartition("orders", 0)
CLICKS: Final = TopicPartition("click-events", 12)
TOPIC_IDS: Final = {ORDERS: bytes(range(16)), CLICKS: bytes(range(16, 32))}
DIRECTORY_ID: Final = b"golden directory"
TIME: Final = 1_700_000_000_000
CONFIG: Final = LogConfig(segment_bytes=2048, index_interval_bytes=300)
TORN: Final = 10
"""Bytes that are missing of the last batch of orders-0 in `killed`."""


class Row(NamedTuple):
    """One record, as it is read again."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Made(NamedTuple):
    """One batch of orders-0: two records."""

    number: int
    epoch: int
    producer_id: int
    sequence: int
    codec: int

    @property
    def rows(self) -> list[Row]:
        """Its records."""
        first, time = 2 * self.number, TIME + 1000 * self.number
        text = b"record %d of an order, " % first * 8
        return [
            Row(first, time, b"key %d" % self.number, text, (("n", b"%d" % self.number), ("none", None))),
            Row(first + 1, time + 7, None, None, ()),
        ]

    def encoded(self) -> bytearray:
        """The batch as a client sends it."""
        rows = self.rows
        return encode(
            [row.value for row in rows],
            [row.key for row in rows],
            [row.timestamp_ms for row in rows],
            [row.headers for row in rows],
            codec=self.codec,
            producer_id=self.producer_id,
            producer_epoch=0 if self.producer_id >= 0 else -1,
            base_sequence=self.sequence,
        )


_CODECS: Final = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
BATCHES: Final = [
    Made(number, number // 10, *((7, number) if number % 2 == 0 else (-1, -1)), _CODECS[number % 5])
    for number in range(30)
]
"""Three epochs; producer 7 writes every second batch, so that its sequences are the batches' numbers."""


class Node:
    """A node on that root."""

    def __init__(self, root: Directory, *, lives: int = 1, boot: str = "boot 1") -> None:
        claimed = claim(
            root, role="broker", node_id=1, cluster_id=b"c" * 16, new_directory_id=DIRECTORY_ID, pid=lives
        )
        self.lock = claimed.lock
        life = Life.begin(
            root,
            directory_id=claimed.identity.directory_id,
            incarnation_id=lives.to_bytes(16, "big"),
            boot_id=boot,
            has_partitions=any(parse_partition(name) for name in root.names()),
        )
        self.data = DataDirectory(root, life, CONFIG, OpenSegments(8), halt=_halt, new_guard=nullcontext)
        take_here(self.data.open(now_ms=TIME))


def _halt(what: str, error: OSError) -> NoReturn:
    raise AssertionError(what) from error


def make(name: str) -> SimulatedDisk:
    """The disk with that directory at /data."""
    disk = SimulatedDisk(Random(1))
    node = Node(disk.open_directory("/data"))
    logs = {each: node.data.create(each, topic_id, TIME) for each, topic_id in TOPIC_IDS.items()}
    for number in range(6):
        logs[CLICKS].append(encode([b"click %d" % number], timestamps=[TIME - number]), 4, TIME)
    logs[CLICKS].raise_log_start(2)
    for made in BATCHES[:25]:
        logs[ORDERS].append(made.encoded(), made.epoch, TIME)
    node.data.life.registered(9)
    for log in logs.values():
        log.flush()
    node.data.write_recovery_points().run()
    node.data.write_log_starts().run()
    node.data.write_high_watermarks({ORDERS: 48, CLICKS: 6}).run()
    for made in BATCHES[25:]:
        logs[ORDERS].append(made.encoded(), made.epoch, TIME)
    if name in STOPPED:
        node.data.close({ORDERS: 60, CLICKS: 6})
        disk.kill()
        return disk
    for log in logs.values():
        log.abandon()  # writes indexes, as taking turns does
    tail = logs[ORDERS].segments[-1]
    disk.open_directory("/data").directory("orders-0").open(tail.name).truncate(tail.size - TORN)
    disk.kill()
    return disk


def export(disk: SimulatedDisk, to: Path) -> None:
    """Write the directory to real files."""
    _export(disk.open_directory("/data"), to)


def _export(directory: Directory, to: Path) -> None:
    to.mkdir(parents=True)
    for name in directory.names():
        if directory.is_directory(name):
            _export(directory.directory(name), to / name)
        else:
            file = directory.open(name)
            (to / name).write_bytes(file.read_at(0, file.size()))
            file.close()


def load(name: str) -> SimulatedDisk:
    """A simulated disk with the committed directory at /data."""
    disk = SimulatedDisk(Random(1))
    _load(GOLDEN / name, disk.open_directory("/data"))
    return disk


def _load(source: Path, into: Directory) -> None:
    for path in sorted(source.iterdir()):
        if path.is_dir():
            _load(path, into.directory(path.name, create=True))
        else:
            file = into.open(path.name, create=True)
            file.write_at(0, path.read_bytes())
            file.flush()
            file.close()
    into.flush()


def rows(log: Log) -> list[Row]:
    """Every record that readers get."""
    found: list[Row] = []
    offset = log.log_start
    while offset < log.end_offset:
        piece = log.read(offset, 1)
        columns = decode(piece.data)
        found += [
            Row(*row)
            for row in zip(
                columns.offsets,
                columns.timestamps,
                columns.keys,
                columns.values,
                columns.headers,
                strict=True,
            )
            if row[0] >= offset
        ]
        offset = piece.next_offset
    return found
