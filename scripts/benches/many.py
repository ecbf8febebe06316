"""Ten thousand logs in one data directory, by a process that may have 1024 files open.

In a process of its own, so that memory and descriptors are its own: makes the logs, appends a batch to each
of them twice, stops cleanly, and opens all of them again, each through the product's `DataDirectory`. The
reference is what a new log costs at least, by hand: a directory, two files in it, everything durable.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NoReturn

from scripts.benches.logs import NOW_MS, record_batches
from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings

from tidelog.protocol.types import TopicPartition
from tidelog.storage.config import LogConfig
from tidelog.storage.crashes import Life
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.io import open_directory
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.works import take_here

ROOT = Path(__file__).resolve().parents[2]
LOGS = 10_000
FILES = 1024
_TURN = 500
_ID = bytes(range(16))


def _halt(what: str, error: OSError) -> NoReturn:
    raise RuntimeError(what) from error


def _life(path: Path, *, has_partitions: bool) -> DataDirectory:
    root = open_directory(str(path))
    life = Life.begin(
        root, directory_id=_ID, incarnation_id=_ID, boot_id="boot", has_partitions=has_partitions
    )
    return DataDirectory(root, life, LogConfig(), OpenSegments(), halt=_halt, new_guard=nullcontext)


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1]) if sys.platform == "linux" else 0
    return pages * resource.getpagesize() / 1e6


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0


def live(path: Path, count: int) -> Readings:
    """Two lives of a process with so many logs."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    readings = {"empty rss": _rss_mb()}
    data = _life(path, has_partitions=False)
    take_here(data.open(NOW_MS))
    partitions = [TopicPartition(f"topic-{n // 100}", n % 100) for n in range(count)]

    def timed(name: str, began: float) -> None:
        readings[name] = (time.perf_counter() - began) * 1e6 / count
        readings["descriptors"] = max(readings["descriptors"], _descriptors())

    made, by_hand = 0.0, list[float]()
    for at in range(0, count, _TURN):  # in turns: a disk does not stay as fast as it was for a minute
        began = time.perf_counter()
        for partition in partitions[at : at + _TURN]:
            data.create(partition, _ID, NOW_MS)
        made += time.perf_counter() - began
        by_hand.append(_by_hand(path.with_name("by-hand"), max(_TURN // 20, 1)))
    readings |= {"create": made * 1e6 / count, "by hand": sum(by_hand) / len(by_hand)}
    readings["descriptors"] = _descriptors()
    first, second = record_batches(2)
    for name, batch in (("append", first), ("append again", second)):
        began = time.perf_counter()
        for partition in partitions:
            data.logs[partition].append(batch, 0, NOW_MS)
        timed(name, began)
    readings["rss"] = _rss_mb()
    began = time.perf_counter()
    data.close({})
    timed("close", began)
    data = _life(path, has_partitions=True)
    began = time.perf_counter()
    take_here(data.open(NOW_MS))
    timed("reopen", began)
    assert not data.report.problems, data.report
    assert len(data.logs) == count
    assert all(log.end_offset == 2 for log in data.logs.values())
    return readings


def _by_hand(path: Path, count: int) -> float:
    """Microseconds for a directory with two durable files."""
    path.mkdir()
    began = time.perf_counter()
    for number in range(count):
        below = path / str(number)
        below.mkdir()
        for name in ("id", "log"):
            fd = os.open(below / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.write(fd, b"x" * 100)
            os.fdatasync(fd)
            os.close(fd)
        for directory in (below, path):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            os.fsync(fd)
            os.close(fd)
    taken = (time.perf_counter() - began) * 1e6 / count
    shutil.rmtree(path)
    return taken


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    directory = settings.directory / "many"
    directory.mkdir()

    def take(_number: int) -> Readings:
        path = directory / "data"
        path.mkdir()
        with subprocess.Popen(
            [sys.executable, "-m", "scripts.benches.many", path, str(settings.count(LOGS, 30))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        ) as process:
            try:
                out, _ = process.communicate(timeout=600)
            finally:
                process.kill()
        if process.returncode:
            raise RuntimeError(f"the process with many logs ended with {process.returncode}")
        shutil.rmtree(path)
        readings: Readings = json.loads(out)
        return readings

    try:
        yield take
    finally:
        shutil.rmtree(directory)


_HAND = "directory and two files, durable"
ROWS = (
    Row(
        "a log made",
        "us",
        "create",
        "by hand",
        _HAND,
        Goal("ratio", False, 3.0, "this bench: the disk decides"),
    ),
    Row("a first batch in every log", "us a log", "append"),
    Row("a second batch in every log", "us a log", "append again"),
    Row("a clean stop", "us a log", "close", "by hand", _HAND),
    Row("opened again", "us a log", "reopen", goal=Goal("figure", False, 500, "C7: 10,000 within 5 s")),
    Row("most descriptors", "", "descriptors", goal=Goal("figure", False, FILES, "C5: ulimit -n 1024")),
    Row(
        "memory with all of them", "MB", "rss", "empty rss", "none of them", Goal("figure", False, 150, "C3")
    ),
)
BENCH = Bench("many", "10,000 logs under ulimit -n 1024 (wall time)", ROWS, _begin, rounds_max=5)

if __name__ == "__main__":
    print(json.dumps(live(Path(sys.argv[1]), int(sys.argv[2]))))
