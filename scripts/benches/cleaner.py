"""How long a record takes to be acknowledged while brokers compact another topic, next to how long it takes without.

Three brokers, processes of their own. A topic is filled with records of 100 bytes with a million keys, and is not compacted;
when it is on the disks, records are sent to another one at a steady rate, each timed from when it was due. Then
`cleanup.policy=compact` lets every broker compact what it has of it, and the same is measured until all have done so.

What any work beside three brokers costs on this machine is a bound for that: the same is measured beside as many processes
that count and touch nothing else, as far back as the kernel lets them stand.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import IO

from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings

from tidelog.client import Client
from tidelog.client.admin import NewTopic
from tidelog.client.io.producer import Producer
from tidelog.protocol.io.runner import fastest_loop
from tidelog.testing.cluster import Cluster

BROKERS = 3
TOTAL = 600_000_000
"""Bytes that each broker has to compact."""
KEYS = 1_000_000
PER_S = 100
VALUE = b"x" * 80
COLUMN = 10_000
_BYTES_OF_A_RECORD = 98.5
_PATIENCE_S = 600.0
_COUNT = """
import os, sys
{}
print(flush=True)
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""
"""It says when it begins, and does not outlive who started it."""
_BACK = {"nice 19": "os.nice(19)"}
"""How a process that only counts stands back."""
if sys.platform == "linux":
    _BACK["idle class"] = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))"


class _Bench:
    """A cluster, and what one round takes of it."""

    def __init__(self, settings: Settings, directory: Path, client: Client) -> None:
        self._settings = settings
        self._directory = directory
        self._client = client
        self._seconds = settings.count(15, 1)

    async def take(self, number: int) -> Readings:
        """Fill a topic; without, with, and beside processes that only count."""
        topic = f"dirty-{number}"
        segment_bytes = self._settings.count(64 << 20, 64 << 10)
        fresh = {"segment.bytes": segment_bytes, "min.cleanable.dirty.ratio": 0, "file.delete.delay.ms": 0}
        await self._client.admin.create_topics(NewTopic(topic, 1, BROKERS, fresh))
        filled = await self._fill(topic)
        await self._until_durable(topic)
        async with self._client.producer() as producer:
            latencies = {"without": await self._timed(producer, self._over())}
            await self._client.admin.alter_configs("topic", topic, {"cleanup.policy": "compact"})
            began = time.perf_counter()
            latencies["with"] = await self._timed(producer, lambda: self._is_compacted(topic, filled))
            took_s = time.perf_counter() - began
            for back in list(_BACK) if number % 2 == 0 else reversed(_BACK):
                with _counting(back, self._settings.children):
                    latencies[back] = await self._timed(producer, self._over())
        readings: Readings = {"speed": filled / 1e6 / took_s}
        for name, taken in latencies.items():
            cuts = quantiles(taken, n=100)
            readings |= {f"{name} p50": cuts[49], f"{name} p99": cuts[98]}
        await self._client.admin.delete_topics(topic)
        return readings

    async def _fill(self, topic: str) -> int:
        rng, records = Random(1), int(self._settings.count(TOTAL, 3_000_000) / _BYTES_OF_A_RECORD)
        pool = [b"key-%010d" % number for number in range(self._settings.count(KEYS, 500))]
        async with self._client.producer() as producer:
            for _ in range(max(records // COLUMN, 1)):
                await producer.send_many(topic, [VALUE] * COLUMN, keys=rng.choices(pool, k=COLUMN))
        return self._size(topic, 1)

    def _files(self, topic: str, broker: int, ending: str) -> list[Path]:
        return sorted((self._directory / f"broker-{broker}" / f"{topic}-0").glob(f"*{ending}"))

    def _size(self, topic: str, broker: int) -> int:
        """Bytes of all sealed segments."""
        size = 0
        for file in self._files(topic, broker, ".log")[:-1]:
            with suppress(FileNotFoundError):  # another has come in its place
                size += file.stat().st_size
        return size

    async def _until_durable(self, topic: str) -> None:
        """What was written is on the disks, and the brokers know it: nothing else is going on."""
        deadline = time.perf_counter() + _PATIENCE_S
        for broker in range(1, BROKERS + 1):
            points = self._directory / f"broker-{broker}" / "recovery-point-offset-checkpoint"
            while not self._covers(points, topic, broker):
                if time.perf_counter() > deadline:
                    raise RuntimeError(f"{points} does not say that {topic} is durable: {points.read_text()}")
                await asyncio.sleep(0.1)

    def _covers(self, points: Path, topic: str, broker: int) -> bool:
        newest = int(self._files(topic, broker, ".log")[-1].stem)
        lines = points.read_text("ascii").splitlines() if points.exists() else []
        return any(line.startswith(f"{topic} 0 ") and int(line.split()[2]) >= newest for line in lines)

    def _is_compacted(self, topic: str, filled: int) -> bool:
        """Every broker has removed most of it, and writes nothing more."""
        return not any(
            self._size(topic, broker) > filled * 0.25 or self._files(topic, broker, ".cleaned")
            for broker in range(1, BROKERS + 1)
        )

    def _over(self) -> Callable[[], bool]:
        """Whether it has been measured long enough."""
        over = time.perf_counter() + self._seconds
        return lambda: time.perf_counter() > over

    async def _timed(self, producer: Producer, is_over: Callable[[], bool]) -> list[float]:
        """How long each record took from when it was due, in ms."""
        taken: list[float] = []
        began = time.perf_counter()
        for turn in count():
            due = began + turn / PER_S
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            await producer.send("one", VALUE)
            taken.append((time.perf_counter() - due) * 1000)
            if turn % 20 == 19 and is_over():
                return taken
            if due - began > _PATIENCE_S:
                raise RuntimeError(f"brokers have not compacted their logs in {_PATIENCE_S:g} s")
        raise AssertionError


@contextmanager
def _counting(back: str, children: set[int]) -> Iterator[None]:
    """As many processes as brokers that only count."""
    with ExitStack() as stack:
        for said in [stack.enter_context(_counter(back, children)) for _ in range(BROKERS)]:
            if not said.readline():
                raise RuntimeError(f"a process that should count in the {back} has ended; why, it says above")
        yield


@contextmanager
def _counter(back: str, children: set[int]) -> Iterator[IO[bytes]]:
    """One of them, and where it says that it counts.

    It stays in this session: where the kernel gives every session a share of its own, one that had its own would have
    all of that, however far it stood back.
    """
    command = (sys.executable, "-c", _COUNT.format(_BACK[back]), str(os.getpid()))
    with subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as process:
        children.add(process.pid)
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()
            process.wait()
            children.discard(process.pid)


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    directory = settings.directory / "cleaner"
    directory.mkdir()
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        stack = AsyncExitStack()
        try:
            bench = runner.run(_open(stack, settings, directory))
            yield lambda number: runner.run(bench.take(number))
        finally:
            runner.run(stack.aclose())


async def _open(stack: AsyncExitStack, settings: Settings, directory: Path) -> _Bench:
    told = {"flush.ms": 1000}
    cluster = await stack.enter_async_context(
        Cluster(BROKERS, 1, processes=True, directory=directory, settings=told)
    )
    for node in cluster.nodes.values():
        settings.children.add(node.process.pid)  # type: ignore[attr-defined]
    client = await stack.enter_async_context(cluster.client())
    await client.admin.create_topics(NewTopic("one", 1, BROKERS))
    return _Bench(settings, directory, client)


_GOAL = Goal("ratio", False, 1.5, "issue 7")


def _rows() -> Iterator[Row]:
    yield Row("send while three brokers compact, p99", "ms", "with p99", "without p99", "without", _GOAL)
    yield Row("... p50", "ms", "with p50", "without p50", "without")
    yield Row("compacted by each of the three at once", "MB/s", "speed")
    for number, back in enumerate(_BACK):
        name = "..." if number else "p99 beside three processes that only count"
        yield Row(f"{name} ({back})", "ms", f"{back} p99", "without p99", "without")


BENCH = Bench(
    "cleaner",
    "Records that are acknowledged while brokers compact another topic, and while they do not (wall time)",
    tuple(_rows()),
    _begin,
    rounds_max=5,
    also_runs=("tidelog.testing.node", "tidelog.cli.main", "tidelog.storage.io.compacting"),
)
