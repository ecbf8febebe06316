"""Records that count when they are on the disks of three brokers (`flush.mode=group`): one producer, and 64 at once.

Every producer sends one record, waits until it is acknowledged, and sends the next one. One alone waits for the disk each
time; many are made durable by the flushes that they share, so together they should be far more than one. Beside it
the same with `flush.mode=async`, where records count when brokers have them in memory, and what the disk itself takes
for one small write and its flush.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings

from tidelog.client import Client
from tidelog.client.admin import NewTopic
from tidelog.protocol.io.runner import fastest_loop
from tidelog.testing.cluster import Cluster

PRODUCERS = 64
VALUE = b"x" * 100
MODES = ("group", "async")


async def _rate(client: Client, topic: str, producers: int, seconds: float) -> float:
    """Records that are acknowledged in a second, of so many producers that wait for each."""
    async with AsyncExitStack() as stack:
        sending = [await stack.enter_async_context(client.producer()) for _ in range(producers)]
        await asyncio.gather(*(producer.send(topic, VALUE) for producer in sending))
        began, counts = time.perf_counter(), [0] * producers

        async def send(number: int) -> None:
            while time.perf_counter() - began < seconds:
                await sending[number].send(topic, VALUE)
                counts[number] += 1

        await asyncio.gather(*map(send, range(producers)))
        return sum(counts) / (time.perf_counter() - began)


def _disk(directory: Path, seconds: float) -> float:
    """Small writes with a flush behind each, in a second."""
    fd, done = os.open(directory / "flushed", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 0
    try:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            os.write(fd, VALUE * 2)
            os.fsync(fd)
            done += 1
        return done / (time.perf_counter() - began)
    finally:
        os.close(fd)


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    directory = settings.directory / "group-commit"
    directory.mkdir()
    seconds = settings.count(30, 1) / 10
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        stack = AsyncExitStack()
        try:
            client = runner.run(_open(stack, settings, directory))

            def take(number: int) -> Readings:
                readings = {"disk": _disk(directory, seconds / 3)}
                cases = [(mode, producers) for mode in MODES for producers in (1, PRODUCERS)]
                for mode, producers in cases if number % 2 == 0 else reversed(cases):
                    readings[f"{mode} {producers}"] = runner.run(_rate(client, mode, producers, seconds))
                return readings

            yield take
        finally:
            runner.run(stack.aclose())


async def _open(stack: AsyncExitStack, settings: Settings, directory: Path) -> Client:
    cluster = await stack.enter_async_context(Cluster(3, 1, processes=True, directory=directory))
    for node in cluster.nodes.values():
        settings.children.add(node.process.pid)  # type: ignore[attr-defined]
    client = await stack.enter_async_context(cluster.client())
    await client.admin.create_topics(*(NewTopic(mode, 1, 3, {"flush.mode": mode}) for mode in MODES))
    return client


def _rows() -> Iterator[Row]:
    for mode in MODES:
        goal = Goal("ratio", True, 10, "issue 7") if mode == "group" else None
        yield Row(
            f"flush.mode={mode}: {PRODUCERS} producers",
            "records/s",
            f"{mode} {PRODUCERS}",
            f"{mode} 1",
            "one",
            goal,
        )
    yield Row("flush.mode=group: one producer", "records/s", "group 1", "disk", "write and fsync")


BENCH = Bench(
    "group-commit",
    "Producers whose records count when three disks have them: one, and 64 (wall time)",
    tuple(_rows()),
    _begin,
    rounds_max=5,
    also_runs=("tidelog.testing.node", "tidelog.cli.main"),
)
