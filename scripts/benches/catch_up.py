"""A broker that was away comes back: how fast it copies what it has missed, and what producers feel of it.

Three brokers as processes, 12 partitions with three replicas, acks=all; a producer goes at full speed all the time
(`full_speed`, the work of GOALS S3).

    before      what is produced while all three are there
    away        what is produced while one is stopped and two are in sync, until it has missed 400 MB
    copied      what the broker's own logs grow by in a second, from the moment that it is there again until every
                partition has it in sync: what it has missed, and what is new meanwhile, since it must copy both
    meanwhile   what is produced in that time
    after       what is produced when all three are in sync again, and two of them still lead everything: no more than
                this can be produced meanwhile, whatever copying costs

A broker that copies no faster than others write never catches up. It is watched until eight times as much as it
had missed is written meanwhile; then the figures are of that time, and a line says so.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.benches.full_speed import full_speed
from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings
from scripts.benches.whole import in_sync, is_so

from tidelog.client import Client
from tidelog.client.admin import NewTopic
from tidelog.protocol.io.runner import fastest_loop
from tidelog.protocol.types import BrokerId
from tidelog.testing.cluster import Cluster

TOPIC = "missed"
AWAY = 3
_MB = 1_000_000
_LOOK_S = 0.02
_TIMES = 8


async def _come_back(directory: Path, settings: Settings) -> Readings:
    missed = settings.count(400 * _MB, 4 * _MB)
    async with (
        Cluster(3, 1, processes=True, directory=directory) as cluster,
        cluster.client() as client,
    ):
        await client.admin.create_topics(NewTopic(TOPIC, 12, 3))
        async with full_speed(client, TOPIC) as load:
            await load.more(missed // 8)  # it warms up
            before = await load.more(missed)
            await cluster.stop(AWAY)
            away = await load.more(missed)
            await cluster.start(AWAY)
            await cluster.wait_ready()
            held, written, began = await _held(client), load.written, time.perf_counter()
            while True:
                back = await is_so(lambda: in_sync(client, TOPIC))
                if back or load.written - written > missed * _TIMES:
                    break
                await asyncio.sleep(_LOOK_S)
            seconds = time.perf_counter() - began
            meanwhile = (load.written - written) / seconds
            copied = (await _held(client) - held) / (time.perf_counter() - began)
            after = await load.more(missed)
    if not back:
        print(f"bench: catch-up: the broker was not in sync after {seconds:.0f} s", file=sys.stderr)
    return {
        "before": before,
        "away": away,
        "copied": copied / 1e6,
        "meanwhile": meanwhile / 1e6,
        "after": after,
        "seconds": seconds,
    }


async def _held(client: Client) -> int:
    """Bytes in the logs of the broker that was away."""
    directories = (await client.admin.describe_log_dirs(AWAY, topics=[TOPIC]))[BrokerId(AWAY)]
    return sum(replica.size for directory in directories for replica in directory.replicas)


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    def take(number: int) -> Readings:
        directory = settings.directory / f"catch-up-{number}"
        try:
            with asyncio.Runner(loop_factory=fastest_loop()) as runner:
                return runner.run(_come_back(directory, settings))
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    yield take


_BEFORE = "produced before"
BENCH = Bench(
    "catch-up",
    "A broker that has missed 400 MB comes back while a producer goes on at full speed (wall time)",
    (
        Row(
            "copied by the broker that was away",
            "MB/s",
            "copied",
            "before",
            _BEFORE,
            Goal("ratio", True, 0.7, "GOALS C9"),
        ),
        Row("... until it is in sync", "s", "seconds"),
        Row(
            "produced meanwhile",
            "MB/s",
            "meanwhile",
            "before",
            _BEFORE,
            Goal("ratio", True, 0.7, "GOALS C9"),
        ),
        Row("produced while it was away", "MB/s", "away", "before", _BEFORE),
        Row("produced when it is in sync again and leads nothing", "MB/s", "after", "before", _BEFORE),
    ),
    _begin,
    rounds_max=5,
    also_runs=("tidelog.testing.node", "tidelog.cli.main"),
)
