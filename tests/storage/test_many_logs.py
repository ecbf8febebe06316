"""Two thousand logs on the real disk, in a process that may open a few hundred files."""

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import pytest

from tests.storage.logs import batch
from tidelog.protocol.batch import read_header
from tidelog.protocol.types import TopicPartition
from tidelog.storage.config import LogConfig
from tidelog.storage.crashes import Life
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.io import disk, open_directory
from tidelog.storage.names import parse_partition
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.works import take_here

LOGS = 2000
FILES = 256
OPEN = 64
CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=200)
PARTITIONS = [TopicPartition("orders", number) for number in range(LOGS)]

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _few_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for flush in ("_flush_data", "_flush_names"):  # 60,000 of them take minutes, and no power is lost here
        monkeypatch.setattr(disk, flush, lambda _: None)
    gc.collect()  # else what earlier tests have left open would be closed while this one counts
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Beside what other tests of this process have open.
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES + len(os.listdir("/dev/fd")), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _halt(what: str, error: OSError) -> NoReturn:
    raise AssertionError(what) from error


def start(path: Path) -> DataDirectory:
    root = open_directory(str(path), create=True)
    partitions = any(parse_partition(name) for name in root.names())
    life = Life.begin(
        root, directory_id=b"d" * 16, incarnation_id=b"i" * 16, boot_id="boot", has_partitions=partitions
    )
    data = DataDirectory(root, life, CONFIG, OpenSegments(OPEN), halt=_halt, new_guard=nullcontext)
    take_here(data.open(now_ms=0))
    return data


def descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/dev/fd"))


def test_two_thousand_logs_live_on_a_few_open_files(tmp_path: Path) -> None:
    """Appending, rolling, flushing, reading and opening again, each log in its turn."""
    before = descriptors()
    data = start(tmp_path)
    for partition in PARTITIONS:
        data.create(partition, partition.partition.to_bytes(16, "big"), now_ms=0)
    for time in range(3):
        for log in data.logs.values():
            log.append(batch(2, size=250, time=1000 + time), 0, now_ms=0)
        assert descriptors() - before <= OPEN + 8
    for log in data.logs.values():
        assert len(log.segments) == 3
        log.flush()
    assert descriptors() - before <= OPEN + 8
    for log in data.logs.values():
        assert read_header(log.read(3, 1).data).base_offset == 2
        assert log.offset_for_time(1002) == (3, 1002)
    data.close({})
    assert descriptors() == before
    data = start(tmp_path)
    assert descriptors() - before <= OPEN + 8
    assert {log.end_offset for log in data.logs.values()} == {6}
    assert (len(data.logs), data.report.problems) == (LOGS, [])
    for log in data.logs.values():
        log.abandon()
    assert descriptors() == before
