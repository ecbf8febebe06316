"""Compacting a log of 100-byte records, next to reading and verifying the same bytes, and to a dict's own speed.

In a process of its own, as a broker may choose, so that its memory is its own: the log is judged and written, and
only the swap, a few renamings, is left out; so every round finds the same log. CPU time, the kernel's included: from the
page cache nothing waits; steps are timed by it as well. "A dict" is a bound for whatever looks keys up: the same keys put
into a dict that has them all, and nothing else. Where others have an event loop's turns between the steps, keys get
less memory, and steps have a goal.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import repeat
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
from scripts.benches.logs import NOW_MS, new_log
from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings

from tidelog.protocol.records import encode
from tidelog.storage.cleaning import (
    LOOP_MEMORY_BYTES,
    PROCESS_MEMORY_BYTES,
    Cleaned,
    Outcome,
    Plan,
    decode_plan,
    encode_plan,
    plan,
)
from tidelog.storage.compaction import Compactor, Reader
from tidelog.storage.config import LogConfig
from tidelog.storage.files import Directory
from tidelog.storage.io import open_directory

ROOT = Path(__file__).resolve().parents[2]


class Case(NamedTuple):
    """A log, and what its compaction may take."""

    distinct: int
    """Keys; 0: every record has another."""
    total: int
    memory_bytes: int = PROCESS_MEMORY_BYTES


CASES = {
    "5 GB, 1 M keys": Case(1_000_000, 5_000_000_000),
    "5 GB, 100 k keys": Case(100_000, 5_000_000_000),
    "0.5 GB, all different": Case(0, 500_000_000),
    "0.5 GB, 30 k keys, on a loop": Case(30_000, 500_000_000, LOOP_MEMORY_BYTES),
}
_PER_BATCH = 160
_RECORD = 98.5
"""Bytes of log that one takes."""
_SPEED = Goal("figure", True, 100, "issue 7")
_EXTRA = Goal("figure", False, 150, "issue 7")
_SLICE = Goal("figure", False, 2, "issue 7")


def _keys(rng: Random, distinct: int) -> Iterator[list[bytes]]:
    """A batch's keys, one batch after the other."""
    pool = [b"key-%010d" % number for number in range(distinct)]
    at = 0
    while True:
        if distinct:
            yield rng.choices(pool, k=_PER_BATCH)
        else:
            yield [b"key-%010d" % number for number in range(at, at + _PER_BATCH)]
        at += _PER_BATCH


@contextmanager
def _log(path: Path, case: Case) -> Iterator[Path]:
    """A log of so many bytes, sealed and durable; and beside it the plan to compact it."""
    config = LogConfig(segment_bytes=min(1 << 30, case.total // 4), cleanup_policy="compact")
    values: list[bytes | None] = [bytes(80)] * _PER_BATCH
    with new_log(path, config) as log:
        for keys in _keys(Random(1), case.distinct):
            log.append(encode(values, keys, now_ms=NOW_MS), 0, NOW_MS)
            if log.size >= case.total:
                break
        log.roll()
        log.flush()
        log.recovery_point = log.durable_offset
        planned = plan(log, log.end_offset, NOW_MS, (), case.memory_bytes)
        assert planned is not None, "nothing is to be compacted"
        (path / "plan.tmp").write_bytes(encode_plan(planned))
        yield path


# ── in the other process ──────────────────────────────────────────────────────────────────────────────


def _memory_mb() -> float:
    """What it takes now; where the system does not tell, the most that it ever took."""
    now = Path("/proc/self/statm")
    if now.exists():
        return int(now.read_text("ascii").split()[1]) * resource.getpagesize() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def compact(directory: Directory, planned: Plan) -> Readings:
    """All of it, in as many passes as the memory makes necessary."""
    size = sum(source.size for group in planned.groups for source in group)
    before = peak = _memory_mb()
    wall, cpu = time.perf_counter(), time.process_time()
    steps, longest, over, passes = 0, 0, 0, 0
    while planned.first_dirty < planned.end:
        compactor = Compactor(directory, planned)
        began = time.thread_time_ns()
        for said in compactor.steps():
            ended = time.thread_time_ns()
            if steps % 500 == 0:
                peak = max(peak, _memory_mb())
            steps, longest, over = steps + 1, max(longest, ended - began), over + (ended - began > 2_000_000)
            if isinstance(said, Outcome):
                planned = msgspec.structs.replace(planned, first_dirty=said.clean_below)
            elif isinstance(said, Cleaned):
                directory.remove(f"{said.base_offset:020d}.log.cleaned")
            began = time.thread_time_ns()
        passes += 1
    return {
        "speed": size / 1e6 / (time.perf_counter() - wall),
        "cpu": size / 1e6 / (time.process_time() - cpu),
        "memory": peak - before,
        "longest": longest / 1e6,
        "over": 100 * over / steps,
        "passes": passes,
    }


def verify(directory: Directory, planned: Plan) -> float:
    """Read it and verify it, as the compaction reads it; MB a second."""
    done, began = 0, time.process_time()
    for group in planned.groups:
        for source in group:
            reader, position = Reader(directory, source), 0
            while position < source.size:
                position = reader.block(position, source.size).end
            reader.close()
            done += source.size
    return done / 1e6 / (time.process_time() - began)


def dict_alone(distinct: int, records: int) -> float:
    """Put the keys into a dict that has them all; MB of log a second."""
    known: dict[bytes, int] = dict.fromkeys([b"key-%010d" % number for number in range(distinct)], 0)
    batches = _keys(Random(1), distinct)
    spent, done = 0.0, 0
    while done < records:
        keys = next(batches)
        began = time.process_time()
        known.update(zip(keys, repeat(done)))
        spent += time.process_time() - began
        done += len(keys)
    return done * _RECORD / 1e6 / spent


def _child(path: Path, distinct: int, records: int) -> Readings:
    directory = open_directory(str(path))
    planned = decode_plan((path / "plan.tmp").read_bytes())
    readings = compact(directory, planned)
    readings["verify"] = verify(directory, planned)
    readings["dict"] = dict_alone(distinct, records) if distinct else 0.0
    return readings


# ── here ──────────────────────────────────────────────────────────────────────────────────────────────


def _measured(settings: Settings, path: Path, distinct: int) -> Readings:
    command = (
        sys.executable,
        "-m",
        "scripts.benches.compaction",
        path,
        distinct,
        settings.count(1_000_000, 1000),
    )
    with subprocess.Popen(
        tuple(map(str, command)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:
        settings.children.add(child.pid)
        try:
            out, _ = child.communicate()
        finally:
            child.kill()
            settings.children.discard(child.pid)
    if child.returncode:
        raise RuntimeError(f"the compacting process ended with status {child.returncode}")
    readings: Readings = json.loads(out)
    return readings


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    directory = settings.directory / "compaction"
    directory.mkdir()
    try:
        with ExitStack() as stack:
            logs = {
                name: stack.enter_context(
                    _log(directory / str(at), case._replace(total=settings.count(case.total, 2_000_000)))
                )
                for at, (name, case) in enumerate(CASES.items())
            }

            def take(number: int) -> Readings:
                readings: Readings = {}
                for name in list(CASES) if number % 2 == 0 else reversed(CASES):
                    taken = _measured(settings, logs[name], CASES[name].distinct)
                    readings |= {f"{name}: {what}": value for what, value in taken.items()}
                return readings

            yield take
    finally:
        shutil.rmtree(directory)


def _rows() -> Iterator[Row]:
    for name, case in CASES.items():
        on_loop = case.memory_bytes == LOOP_MEMORY_BYTES
        speed = _SPEED if name == "5 GB, 1 M keys" else None
        yield Row(f"{name} (CPU time)", "MB/s", f"{name}: cpu", f"{name}: verify", "read and verified", speed)
        if case.distinct:
            yield Row(
                f"... beside a dict: {name}", "MB/s", f"{name}: cpu", f"{name}: dict", "a dict of the keys"
            )
        yield Row(f"{name} (wall time)", "MB/s", f"{name}: speed", goal=speed)
        yield Row(f"{name}, more memory", "MB", f"{name}: memory", goal=_EXTRA)
        yield Row(f"{name}, passes", "", f"{name}: passes")
        yield Row(f"{name}, longest step", "ms", f"{name}: longest", goal=_SLICE if on_loop else None)
        yield Row(f"{name}, steps over 2 ms", "%", f"{name}: over")


BENCH = Bench(
    "compaction",
    "100-byte records compacted in another process",
    tuple(_rows()),
    _begin,
    rounds_max=5,
    also_runs=("scripts.benches.compaction",),
)

if __name__ == "__main__":
    print(json.dumps(_child(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
