"""Reading a log, next to `os.pread` of the same bytes at the same places; and what verifying them costs.

CPU time, all of it from the page cache. Sequential reads go on where the last one ended, as consumers and
followers do; tail reads ask for one batch that was just appended. "Unverified" is planted here and only
here: the product has no way to hand out a batch that it has not checked.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from scripts.benches.logs import NOW_MS, client_batches, new_log, record_batches
from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings, interleave

from tidelog.protocol.batch import BatchHeader
from tidelog.protocol.types import Buffer
from tidelog.storage.log import Log

SLICES = {"64 KB": 64 << 10, "1 MB": 1 << 20}
_TOTAL = 64 << 20
_BATCH = 16 << 10

# PERFORMANCE 4 and 5: 32 us to read 1 MB, 62 us to check it: a third at best, of which 70 %.
_SEQUENTIAL = Goal("ratio", True, 0.24, "PERFORMANCE 4, 5: a read and a checksum")
_TAIL = Goal("figure", True, 100, "room for S9's 80 k requests/s")


def _unchecked(_buffer: Buffer, _header: BatchHeader, _at: int = 0) -> None:
    """Believe everything."""


class _Reading:
    """A full log, and ways to read it."""

    def __init__(self, log: Log, settings: Settings) -> None:
        self._log = log
        for batch in client_batches(settings.count(_TOTAL // _BATCH, 8), _BATCH):
            log.append(batch, 0, NOW_MS)
        self._end = log.end_offset
        self._tails = []
        for batch in record_batches(settings.count(5000, 20)):
            self._tails.append((log.append(batch, 0, NOW_MS).base_offset, log.size - len(batch), len(batch)))

    def sequential(self, max_bytes: int) -> float:
        """MB/s of CPU time."""
        offset, size, began = 0, 0, time.process_time_ns()
        while offset < self._end:
            piece = self._log.read(offset, max_bytes, self._end)
            size += len(piece.data)
            offset = piece.next_offset
        return size * 1000 / (time.process_time_ns() - began)

    def unverified(self, max_bytes: int) -> float:
        """The same without the bodies' checksums."""
        with patch("tidelog.storage.segment.check_body", _unchecked):
            return self.sequential(max_bytes)

    def raw(self, max_bytes: int) -> float:
        """The same bytes by `os.pread`."""
        fd, end = self._open(), self._tails[0][1]
        step = max_bytes // _BATCH * _BATCH
        try:
            at, began = 0, time.process_time_ns()
            while at < end:
                at += len(os.pread(fd, min(step, end - at), at))
            return at * 1000 / (time.process_time_ns() - began)
        finally:
            os.close(fd)

    def tails(self) -> float:
        """Thousands of small batches a second, each read by itself."""
        began = time.process_time_ns()
        for offset, _, _ in self._tails:
            self._log.read(offset, 1 << 20, offset + 1)
        return len(self._tails) * 1e6 / (time.process_time_ns() - began)

    def raw_tails(self) -> float:
        """The same bytes by `os.pread`."""
        fd = self._open()
        try:
            began = time.process_time_ns()
            for _, at, size in self._tails:
                os.pread(fd, size, at)
            return len(self._tails) * 1e6 / (time.process_time_ns() - began)
        finally:
            os.close(fd)

    def _open(self) -> int:
        path = Path(self._log.directory.path) / self._log.segments[0].name
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class _Tailing:
    """A follower at the end of a log: each append is read at once, from where the last read ended."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self._directory = directory
        self._batches = record_batches(settings.count(5000, 20))

    def take(self) -> float:
        """Thousands of reads a second; the appends between them are not timed."""
        with new_log(self._directory) as log:
            offset, spent = 0, 0
            for batch in self._batches:
                log.append(batch, 0, NOW_MS)
                began = time.perf_counter_ns()
                offset = log.read(offset, 1 << 20).next_offset
                spent += time.perf_counter_ns() - began
        return len(self._batches) * 1e6 / spent


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    directory = settings.directory / "read"
    directory.mkdir()
    try:
        with new_log(directory / "log") as log:
            reading = _Reading(log, settings)
            tailing = _Tailing(directory / "tailing", settings)
            probes: dict[str, Callable[[], float]] = {}
            for name, size in SLICES.items():
                probes[f"read {name}"] = lambda size=size: reading.sequential(size)  # type: ignore[misc]
                probes[f"raw {name}"] = lambda size=size: reading.raw(size)  # type: ignore[misc]
                probes[f"unverified {name}"] = lambda size=size: reading.unverified(size)  # type: ignore[misc]
            probes |= {"tails": reading.tails, "raw tails": reading.raw_tails, "tailing": tailing.take}

            def take(number: int) -> Readings:
                return interleave(number, probes)

            yield take
    finally:
        shutil.rmtree(directory)


def _rows() -> Iterator[Row]:
    for name in SLICES:
        yield Row(f"reads of {name}", "MB/s", f"read {name}", f"raw {name}", "pread", _SEQUENTIAL)
        yield Row(f"reads of {name}, unverified", "MB/s", f"unverified {name}", f"raw {name}", "pread")
    yield Row("a small batch anywhere", "k reads/s", "tails", "raw tails", "pread", None)
    yield Row("a small batch at the tail", "k reads/s", "tailing", "raw tails", "pread", _TAIL)


BENCH = Bench("read", "batches out of a log, page cache (CPU time)", tuple(_rows()), _begin)
