"""How much memory brokers take while everybody writes and reads at full speed, and whether it grows.

Three brokers as processes, one topic of 12 partitions with three replicas. One producer (`full_speed`) and one consumer
that reads all of it go on for ten minutes. Partitions keep 64 MB in segments of 16 MB, and what is too much is looked
for every second: so the disk does not fill, and segments come and go all the time, as they do in a long life.

    largest   resident memory of the largest broker at its largest, of all looks
    early     the same, of the looks in the second fifth of the time: in the first one caches and buffers fill
    late      the same, of the looks in the last fifth

What leaks makes `late` larger than `early`. That it may be a tenth larger is this bench's own bound.
"""

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.benches.full_speed import VALUE_BYTES, full_speed
from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings

from tidelog.client import Client
from tidelog.client.admin import NewTopic
from tidelog.protocol.io.runner import fastest_loop
from tidelog.testing.cluster import Cluster

TOPIC = "full"
SECONDS = 600
_KEPT = {"retention.bytes": 64 << 20, "segment.bytes": 16 << 20, "file.delete.delay.ms": 1000}
_OFTEN = {"log.retention.check.interval.ms": 1000}
_PARTS = 5


class _Reading:
    """Reads all that comes, from the oldest record on."""

    def __init__(self) -> None:
        self.read = 0
        """Bytes of values."""

    async def go_on(self, client: Client) -> None:
        """Without an end."""
        async with client.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
            async for batch in consumer.batches():
                self.read += len(batch) * VALUE_BYTES


async def _under_load(directory: Path, settings: Settings) -> Readings:
    async with (
        Cluster(3, 1, processes=True, directory=directory, settings=_OFTEN) as cluster,
        cluster.client() as client,
    ):
        pids = [node.process.pid for name, node in cluster.nodes.items() if name[0] == "b"]  # type: ignore[attr-defined]
        await client.admin.create_topics(NewTopic(TOPIC, 12, 3, _KEPT))
        reading, idle, began = _Reading(), _largest_mb(pids), time.perf_counter()
        async with full_speed(client, TOPIC) as load, asyncio.TaskGroup() as group:
            task = group.create_task(reading.go_on(client))
            parts = [await _part(pids, settings) for _ in range(_PARTS)]
            task.cancel()
            wall = time.perf_counter() - began
    return {
        "idle": idle,
        "largest": max(parts),
        "early": parts[1],
        "late": parts[-1],
        "written": load.written / wall / 1e6,
        "read": reading.read / wall / 1e6,
    }


async def _part(pids: list[int], settings: Settings) -> float:
    """The largest that any of them is in a part of the time, in MB."""
    looks = [_largest_mb(pids)]
    over = time.monotonic() + settings.count(SECONDS, 2) / _PARTS
    while time.monotonic() < over:
        await asyncio.sleep(settings.count(50, 2) / 100)
        looks.append(_largest_mb(pids))
    return max(looks)


def _largest_mb(pids: list[int]) -> float:
    return max(map(_resident_kb, pids)) * 1024 / 1e6


def _resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    def take(number: int) -> Readings:
        directory = settings.directory / f"memory-{number}"
        try:
            with asyncio.Runner(loop_factory=fastest_loop()) as runner:
                return runner.run(_under_load(directory, settings))
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    yield take


BENCH = Bench(
    "memory",
    "Memory of brokers while a producer and a consumer go at full speed for ten minutes (Linux)",
    (
        Row(
            "full load: the largest broker, resident",
            "MB",
            "largest",
            "idle",
            "before the load",
            Goal("figure", False, 150, "GOALS C3"),
        ),
        Row(
            "... in the last fifth",
            "MB",
            "late",
            "early",
            "in the second fifth",
            Goal("ratio", False, 1.1, "GOALS C3: flat; the bound is this bench's"),
        ),
        Row("written meanwhile", "MB/s", "written"),
        Row("read meanwhile", "MB/s", "read", "written", "written"),
    ),
    _begin,
    rounds_max=1,
    also_runs=("tidelog.testing.node", "tidelog.cli.main"),
)
