"""Opening a log of ten segments after a SIGKILL and after a clean stop: how long, and what the loop suffers.

The log: nine full segments and one that is being written. The nine are sparse files: each batch has a real
head, checksums and all, and a body of zeros that is a hole; opening reads nothing of the bodies but each
segment's last. Their indexes, and everything else there is beside a log, the product has made itself. The
tenth is appended through the product with a flush every 64 MiB (DECISIONS 26) or 65,536 batches, and the process
"dies" with the largest tail that this allows: nothing is closed, nothing is saved. Pages are in the cache, as they are
after a SIGKILL, those of the tail not yet on the disk.

A log is opened as a node does it: one step after the other, those that wait for the disk in a worker thread, and the
loop gets its turn when 2 ms are used up.
The longest stall is what the product's `StallMeter` saw on that loop.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.benches.logs import NOW_MS, Keeper, client_batches, opened, record_batches
from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings

from tidelog.broker.flusher import BATCHES_MAX
from tidelog.protocol.batch import HEADER_SIZE, build, stamp
from tidelog.protocol.io import StallMeter
from tidelog.protocol.io.runner import fastest_loop
from tidelog.storage.config import LogConfig
from tidelog.storage.io import open_directory
from tidelog.storage.log import Log
from tidelog.storage.recovery import Checkpointed, Opening
from tidelog.storage.segment import LOG, segment_name

SLICE_S = 0.002
BATCH = 64 << 10
FLUSH_EVERY = 64 << 20
_SEALED = 9

Lay = Callable[[Path, int, int], int]
"""Makes a segment in that directory, from that offset, of that many bytes; the offset behind it."""


class _Watched:
    """One opening of a log, watched."""

    def __init__(self, log: Log, opening_s: float, stall_ms: float, step_ms: float) -> None:
        self.log = log
        self.opening_s = opening_s
        self.stall_ms = stall_ms
        self.step_ms = step_ms


async def _watch(directory: Path, said: Checkpointed, config: LogConfig) -> _Watched:
    """Open it on a loop that somebody else needs as well."""
    opening = Opening(open_directory(str(directory)), config, Keeper(), said)
    meter = StallMeter(every_ms=1)
    meter.start()
    await asyncio.sleep(0)
    began = turn = before = time.perf_counter()
    step_s = 0.0
    for step in opening.steps(NOW_MS):
        if step is not None:
            step_s = max(step_s, time.perf_counter() - before)
            await asyncio.get_running_loop().run_in_executor(None, step)
            turn = before = time.perf_counter()
        now = time.perf_counter()
        step_s, before = max(step_s, now - before), now
        if now - turn > SLICE_S:
            await asyncio.sleep(0)
            turn = before = time.perf_counter()
    ended = time.perf_counter()
    await asyncio.sleep(0.002)  # a stall is seen by the timer behind it
    meter.stop()
    return _Watched(opening.log, ended - began, meter.longest_ms, max(step_s, ended - before) * 1000)


def open_watched(directory: Path, said: Checkpointed, config: LogConfig) -> _Watched:
    """Open it on a fresh loop."""
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(_watch(directory, said, config))


def lay_segment(directory: Path, base: int, batches: int, size: int) -> int:
    """A segment of such batches with holes for bodies; the offset behind it."""
    records = size // 120
    batch = build(
        bytes(size - HEADER_SIZE),
        last_offset_delta=records - 1,
        record_count=records,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS,
    )
    fd = os.open(directory / segment_name(base), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        for number in range(batches):
            stamp(batch, base + number * records, 0)
            os.pwrite(fd, memoryview(batch)[:HEADER_SIZE], number * size)
        os.ftruncate(fd, batches * size)
    finally:
        os.close(fd)
    return base + batches * records


class Died:
    """A log as a killed process left it, to be opened again and again."""

    def __init__(self, directory: Path, config: LogConfig) -> None:
        self.directory = directory
        self.config = config
        self.recovery_point = 0
        self._beside: dict[str, bytes] = {}
        self._tail = 0

    def live(self, log: Log, batches: list[bytearray], flushed: int, unflushed: int) -> None:
        """Append so many bytes with flushes, then so many without, and die."""
        at = 0
        for total, flushing in ((flushed, True), (unflushed, False)):
            size = since = count = 0
            while size < total:
                batch = batches[at]
                log.append(batch, 0, NOW_MS)
                at += 1
                size += len(batch)
                since += len(batch)
                count += 1
                if flushing and (since >= FLUSH_EVERY or count >= BATCHES_MAX or size >= total):
                    since = count = 0
                    log.flush()
                    log.recovery_point = log.durable_offset
        self.recovery_point = log.recovery_point
        self._tail = unflushed
        self._keep()

    def _keep(self) -> None:
        self._beside = {
            path.name: path.read_bytes() for path in self.directory.iterdir() if path.suffix != LOG
        }

    def restore(self) -> None:
        """Everything beside the batches as it was at the death, and the tail as little on the disk as then."""
        for path in self.directory.iterdir():
            if path.suffix != LOG and path.name not in self._beside:
                path.unlink()
        for name, content in self._beside.items():
            (self.directory / name).write_bytes(content)
        with max(self.directory.glob(f"*{LOG}")).open("r+b") as last:
            begin = max(last.seek(0, os.SEEK_END) - self._tail, 0)
            last.seek(begin)
            tail = last.read()
            last.seek(begin)
            last.write(tail)

    def open(self) -> _Watched:
        """After the death."""
        self.restore()
        return open_watched(self.directory, Checkpointed(self.recovery_point, 0), self.config)

    def forget(self) -> _Watched:
        """The same with nothing left beside the batches: indexes, epochs and producers come from them."""
        for path in self.directory.iterdir():
            if path.suffix != LOG:
                path.unlink()
        return open_watched(self.directory, Checkpointed(self.recovery_point, 0), self.config)


def _lay(directory: Path, base: int, size: int) -> int:
    return lay_segment(directory, base, size // BATCH, BATCH)


def large(
    directory: Path, settings: Settings, *, sealed: int = _SEALED, lay: Lay = _lay, short: bool = False
) -> Died:
    """So many segments of 1 GB in sparse files and a real one with a tail of 64 MiB; `short`: with as much before it."""
    config = LogConfig(segment_bytes=settings.count(1 << 30, 1 << 20))
    died, end = Died(directory, config), 0
    directory.mkdir()
    for _ in range(sealed):
        end = lay(directory, end, config.segment_bytes)
    log = opened(open_directory(str(directory)), Checkpointed(end, 0), config)
    log.close()
    log = opened(open_directory(str(directory)), Checkpointed(end, 0, clean=True), config)
    tail = settings.count(FLUSH_EVERY, BATCH * 2)
    whole = tail * 2 if short else config.segment_bytes - BATCH
    batches = client_batches(whole // (BATCH - 4096) + 2, BATCH - 1024)
    died.live(log, batches, whole - tail - (0 if short else BATCH), tail)
    return died


def _small(directory: Path, settings: Settings) -> Died:
    """One segment of 128 MiB with one record of 100 bytes a batch, a tail of as many as are not flushed."""
    config = LogConfig()
    died = Died(directory, config)
    log = opened(open_directory(str(directory), create=True), Checkpointed(), config)
    size = settings.count(2 * FLUSH_EVERY, 128 << 10)
    batches = record_batches(size // 170 + 2)
    tail = min(BATCHES_MAX * len(batches[0]), size // 2)
    died.live(log, batches, size - tail, tail)
    return died


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    directory = settings.directory / "opening"
    directory.mkdir()
    try:
        ten, small = large(directory / "large", settings), _small(directory / "small", settings)

        def take(_number: int) -> Readings:
            readings: Readings = {}

            def note(name: str, watched: _Watched) -> None:
                readings[name] = watched.opening_s
                readings[f"{name} stall"] = watched.stall_ms
                readings[f"{name} step"] = watched.step_ms

            crashed = ten.open()
            note("killed", crashed)
            crashed.log.close()
            end = crashed.log.end_offset
            clean = open_watched(ten.directory, Checkpointed(end, 0, clean=True), ten.config)
            note("stopped", clean)
            clean.log.abandon()
            forgotten = ten.forget()
            note("rebuilt", forgotten)
            forgotten.log.abandon()
            crashed = small.open()
            note("small", crashed)
            crashed.log.abandon()
            readings["rewrite"] = rewrite(directory / "rewrite", settings)
            return readings

        yield take
    finally:
        shutil.rmtree(directory)


def rewrite(path: Path, settings: Settings) -> float:
    """Seconds to write a tail's bytes and force them to the disk: what recovery cannot do without."""
    piece = bytes(1 << 20)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        began = time.perf_counter()
        for number in range(settings.count(FLUSH_EVERY >> 20, 1)):
            os.pwrite(fd, piece, number << 20)
        os.fdatasync(fd)
        return time.perf_counter() - began
    finally:
        os.close(fd)
        path.unlink()


_BESIDE = "tail written and flushed"
_STALL = Goal("figure", False, 10, "a step is 10 ms at most")
ROWS = (
    Row("10 GB after SIGKILL", "s", "killed", "rewrite", _BESIDE, Goal("figure", False, 1.0, "C6")),
    Row("... longest stall of the loop", "ms", "killed stall", goal=_STALL),
    Row("... longest step", "ms", "killed step"),
    Row("10 GB after a clean stop", "s", "stopped", goal=Goal("figure", False, 0.2, "C6")),
    Row("... longest stall of the loop", "ms", "stopped stall", goal=_STALL),
    Row("10 GB, indexes and all rebuilt", "s", "rebuilt", "rewrite", _BESIDE),
    Row("... longest stall of the loop", "ms", "rebuilt stall", goal=_STALL),
    Row("... longest step", "ms", "rebuilt step"),
    Row(
        "128 MiB of one-record batches, SIGKILL",
        "s",
        "small",
        "rewrite",
        _BESIDE,
        Goal("figure", False, 1.0, "C6"),
    ),
    Row("... longest stall of the loop", "ms", "small stall", goal=_STALL),
    Row("... longest step", "ms", "small step"),
)
BENCH = Bench("opening", "opening a log after its process ended (wall time)", ROWS, _begin, rounds_max=5)
