"""Logs of 1 to 100 GB: opened after a SIGKILL and after a clean stop, read at the end, looked up by time.

Each has as many sealed segments of 1 GB as its size says: sparse files of batches with one record of 1 MB, whose zeros are
holes; heads, checksums and records are real, and times rise by a second from batch to batch. Behind them is a segment
that the product has written: 64 MiB that were flushed and 64 MiB that were not when the process "died" (as in
`opening`). What a size adds are segments, their files and their indexes. Pages are in the cache.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from scripts.benches.logs import NOW_MS
from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings
from scripts.benches.opening import Died, large, open_watched, rewrite

from tidelog.protocol.batch import stamp
from tidelog.protocol.records import encode
from tidelog.storage.log import Log
from tidelog.storage.recovery import Checkpointed
from tidelog.storage.segment import segment_name

SIZES = (1, 3, 10, 30, 100)
BATCH = 1 << 20
READ_BYTES = 64 << 10
KILLED = "{:,} GB: opened after SIGKILL"
STOPPED = "{:,} GB: opened after a clean stop"
END = "{:,} GB: 64 KB read at the end"
TIME = "{:,} GB: the offset of a time"
_PAGE = 4096


def _lay(directory: Path, base: int, size: int) -> int:
    """A segment of batches of 1 MB that take two pages each of the disk."""
    batches = size // BATCH
    fd = os.open(directory / segment_name(base), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        for number in range(batches):
            batch = encode([_ZEROS], now_ms=NOW_MS + (base + number) * 1000)
            stamp(batch, base + number, 0)
            at, end = number * BATCH, len(batch) - _PAGE
            os.pwrite(fd, memoryview(batch)[:_PAGE], at)
            os.pwrite(fd, memoryview(batch)[end:], at + end)
            assert len(batch) == BATCH
        os.ftruncate(fd, batches * BATCH)
    finally:
        os.close(fd)
    return base + batches


def _zeros() -> bytes:
    """The value of the record that fills a batch."""
    return bytes(2 * BATCH - len(encode([bytes(BATCH)], now_ms=NOW_MS)))


_ZEROS = _zeros()


def _end_us(log: Log, times: int) -> float:
    """Microseconds of one read, the median of many."""
    taken = []
    for _ in range(times):
        began = time.perf_counter_ns()
        found = log.read(log.end_offset - 1, READ_BYTES)
        taken.append((time.perf_counter_ns() - began) / 1000)
        assert found.data
    return median(taken)


def _time_us(log: Log, batches: int, times: int) -> float:
    """Microseconds of one look for a time anywhere in the sealed segments, the median of many."""
    rng, taken = Random(1), []
    for _ in range(times):
        wanted = rng.randrange(batches)
        began = time.perf_counter_ns()
        found = log.offset_for_time(NOW_MS + wanted * 1000)
        taken.append((time.perf_counter_ns() - began) / 1000)
        assert found is not None
        assert found.offset == wanted
    return median(taken)


def _pread_us(died: Died, times: int) -> float:
    """As many bytes from the end of the same file."""
    path = max(died.directory.glob("*.log"))
    fd, taken = os.open(path, os.O_RDONLY | os.O_CLOEXEC), []
    try:
        at = max(path.stat().st_size - READ_BYTES, 0)
        for _ in range(times):
            began = time.perf_counter_ns()
            os.pread(fd, READ_BYTES, at)
            taken.append((time.perf_counter_ns() - began) / 1000)
    finally:
        os.close(fd)
    return median(taken)


class _Sized(NamedTuple):
    """A log, and how many of its segments are sealed."""

    died: Died
    sealed: int


def _round(logs: dict[int, _Sized], directory: Path, settings: Settings) -> Readings:
    readings: Readings = {"rewrite": rewrite(directory / "rewrite", settings) * 1000}
    times = settings.count(200, 3)
    in_a_segment = settings.count(1 << 30, 1 << 20) // BATCH
    for size, (died, sealed) in logs.items():
        crashed = died.open()
        readings[f"killed {size}"] = crashed.opening_s * 1000
        end = crashed.log.end_offset
        crashed.log.close()
        clean = open_watched(died.directory, Checkpointed(end, 0, clean=True), died.config)
        readings[f"stopped {size}"] = clean.opening_s * 1000
        readings[f"end {size}"] = _end_us(clean.log, times)
        readings[f"time {size}"] = _time_us(clean.log, sealed * in_a_segment, times)
        readings[f"pread {size}"] = _pread_us(died, times)
        clean.log.abandon()
    return readings


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    directory = settings.directory / "growth-log"
    directory.mkdir()
    try:
        logs = {}
        for number, size in enumerate(SIZES, 1):
            path, sealed = directory / str(size), settings.count(size, number)
            logs[size] = _Sized(large(path, settings, sealed=sealed, lay=_lay, short=True), sealed)
        yield lambda _number: _round(logs, directory, settings)
    finally:
        shutil.rmtree(directory)


def _rows() -> Iterator[Row]:
    for size in SIZES:
        bounded = Goal("figure", False, 1000, "C6") if size <= 10 else None
        yield Row(KILLED.format(size), "ms", f"killed {size}", "rewrite", "tail written and flushed", bounded)
    for size in SIZES:
        bounded = Goal("figure", False, 200, "C6") if size <= 10 else None
        yield Row(STOPPED.format(size), "ms", f"stopped {size}", "stopped 1", "1 GB", bounded)
    for size in SIZES:
        yield Row(END.format(size), "us", f"end {size}", f"pread {size}", "pread")
    for size in SIZES:
        yield Row(TIME.format(size), "us", f"time {size}", "time 1", "1 GB")


BENCH = Bench(
    "growth-log",
    "logs of 1 to 100 GB, sparse: opened, read at the end, looked up by time (wall time)",
    tuple(_rows()),
    _begin,
    rounds_max=5,
    part_of="growth",
)
