"""Appending to a log on the real disk, next to writing the same bytes to a file in the same directory.

CPU time, the kernel's included: all of it goes into the page cache. Every measurement begins with a new file,
and buffers are many, so that both sides pay for fresh pages and cold caches. Leaders check, stamp and note;
followers check and note batches that come stamped.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.benches.logs import NOW_MS, client_batches, new_log, record_batches
from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings, interleave

SIZES = {"16 KB": 16 << 10, "64 KB": 64 << 10, "1 MB": (1 << 20) - 4096}
_TOTAL = 48 << 20
_GROUP = 64 << 10

# What the prototype's parts leave possible: a write and a checksum, of which 70 % (PERFORMANCE 4 and 5).
_GOALS = {"16 KB": 0.3, "64 KB": 0.5, "1 MB": 0.5}
_ONE_RECORD = Goal("figure", True, 100, "room for S9's 80 k requests/s")


class _Appending:
    """Batches of one size, and three ways to bring them to the disk; each returns CPU microseconds a batch."""

    def __init__(self, directory: Path, batches: list[bytearray], grouped: bool) -> None:
        self._directory = directory
        self._batches = batches
        self._grouped = grouped
        self.size = sum(map(len, batches)) / len(batches)
        self.as_leader()  # stamps them, so that followers take them

    def as_leader(self) -> float:
        """One at a time through `Log.append`."""
        with new_log(self._directory / "leader") as log:
            began = time.process_time_ns()
            for batch in self._batches:
                log.append(batch, 0, NOW_MS)
            return self._each(began)

    def as_follower(self) -> float:
        """As they come in fetch answers: one at a time where they are large, else 64 KB together."""
        pieces = self._pieces()
        with new_log(self._directory / "follower") as log:
            began = time.process_time_ns()
            for piece in pieces:
                log.append_as_follower(piece, 0, NOW_MS)
            return self._each(began)

    def written(self) -> float:
        """The bytes alone, one at a time."""
        return self._write(self._batches)

    def written_grouped(self) -> float:
        """The bytes alone, in a follower's pieces."""
        return self._write(self._pieces())

    def _write(self, pieces: Sequence[bytearray | bytes]) -> float:
        path = self._directory / "raw"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            at, began = 0, time.process_time_ns()
            for piece in pieces:
                at += os.pwrite(fd, piece, at)
            return self._each(began)
        finally:
            os.close(fd)
            path.unlink()

    def _pieces(self) -> Sequence[bytearray | bytes]:
        if not self._grouped:
            return self._batches
        step = max(_GROUP // int(self.size), 1)
        return [b"".join(self._batches[at : at + step]) for at in range(0, len(self._batches), step)]

    def _each(self, began: int) -> float:
        return (time.process_time_ns() - began) / 1000 / len(self._batches)


def _probes(settings: Settings, directory: Path) -> dict[str, Callable[[], float]]:
    probes: dict[str, Callable[[], float]] = {}

    def add(name: str, take: Callable[[], float], amount: float) -> None:
        probes[name] = lambda: amount / take()

    for name, size in SIZES.items():
        count = settings.count(_TOTAL // size, 2)
        large = _Appending(directory, client_batches(count, size), grouped=False)
        # Bytes per microsecond are megabytes per second.
        add(f"leader {name}", large.as_leader, large.size)
        add(f"write {name}", large.written, large.size)
        add(f"follower {name}", large.as_follower, large.size)
    one = _Appending(directory, record_batches(settings.count(20_000, 50)), grouped=True)
    add("leader one", one.as_leader, 1000)
    add("write one", one.written, 1000)
    add("follower one", one.as_follower, 1000)
    add("write grouped", one.written_grouped, 1000)
    return probes


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    directory = settings.directory / "append"
    directory.mkdir()
    try:
        probes = _probes(settings, directory)

        def take(number: int) -> Readings:
            return interleave(number, probes)

        yield take
    finally:
        shutil.rmtree(directory)


def _rows() -> Iterator[Row]:
    for name, least in _GOALS.items():
        goal = Goal("ratio", True, least, "PERFORMANCE 4, 5: a write and a checksum")
        yield Row(f"leader appends {name}", "MB/s", f"leader {name}", f"write {name}", "pwrite", goal)
        yield Row(f"follower appends {name}", "MB/s", f"follower {name}", f"write {name}", "pwrite", goal)
    unit = "k batches/s"
    yield Row("leader appends 1 record", unit, "leader one", "write one", "pwrite", _ONE_RECORD)
    yield Row(
        "follower appends 1 record", unit, "follower one", "write grouped", "pwrite of 64 KB", _ONE_RECORD
    )


BENCH = Bench("append", "batches into a log, page cache (CPU time)", tuple(_rows()), _begin)
