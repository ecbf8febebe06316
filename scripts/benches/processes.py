"""A cluster of real processes: how soon it takes writes, and what it costs while nothing happens.

    ready     `tidelog up --detach`, from the start of the command to its end, and behind it the first topic with as many
              replicas as brokers and the first write with acks=all: that it is ready is tried, not believed
    idle      resident memory, and CPU time in some seconds, of a broker without topics, and of a cluster with 3 x 500
              partitions; no client is there

The reference of a start is as many bare interpreters, started at once, that import asyncio: what Python itself takes.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings

from tidelog.client import connect
from tidelog.client.admin import NewTopic
from tidelog.testing.cluster import Cluster

SHAPES = ((1, 1), (3, 1), (3, 3))
IDLE_PARTITIONS = 500
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


def _up(directory: Path, brokers: int, controllers: int) -> Readings:
    """One `tidelog up`, used at once, and `tidelog down`."""
    name = f"{brokers}+{controllers}"
    words = [sys.executable, "-m", "tidelog"]
    data = ["--data", str(directory / f"up-{name}")]
    began = time.perf_counter()
    up = subprocess.run(
        [
            *words,
            *("up", "-n", str(brokers), "--controllers", str(controllers), "--port", str(_low_port())),
            *(*data, "--detach", "-o", "json"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")},
    )
    if up.returncode:
        raise RuntimeError(f"`tidelog up` failed: {up.stderr}")
    ready_s = time.perf_counter() - began
    try:
        told = [json.loads(line) for line in up.stdout.splitlines()]
        bootstrap = next(line["bootstrap"] for line in told if line["type"] == "ready")
        used_s = asyncio.run(_use(bootstrap, brokers))
    finally:
        subprocess.run([*words, "down", *data], capture_output=True, check=True)
    return {
        f"ready {name}": ready_s,
        f"used {name}": used_s,
        f"bare {name}": _bare(brokers + controllers + 1),
    }


async def _use(bootstrap: str, replicas: int) -> float:
    """The first topic and the first write."""
    began = time.perf_counter()
    async with connect(bootstrap) as client:
        await client.admin.create_topics(NewTopic("first", 1, replicas), wait=False)
        async with client.producer() as producer:
            await producer.send("first", b"v")
            return time.perf_counter() - began


def _bare(count: int) -> float:
    """So many interpreters at once."""
    began = time.perf_counter()
    started = [subprocess.Popen([sys.executable, "-c", "import asyncio"]) for _ in range(count)]
    for process in started:
        process.wait()
    return time.perf_counter() - began


def _low_port() -> int:
    """Below those that systems give to connections: its neighbours are likely to be free as well."""
    return 20_000 + os.getpid() % 10_000


async def _in_process() -> Readings:
    """A test's cluster, all nodes in one process."""
    readings: Readings = {}
    for brokers, controllers in SHAPES:
        async with Cluster(brokers, controllers) as cluster:
            readings[f"inside {brokers}+{controllers}"] = cluster.ready_s
    return readings


async def _idle(directory: Path, settings: Settings) -> Readings:
    """What brokers cost while nobody asks them anything."""
    seconds = settings.count(10, 1)
    readings: Readings = {}
    async with Cluster(3, 1, processes=True, directory=directory / "idle") as cluster:
        pids = {name: node.process.pid for name, node in cluster.nodes.items()}  # type: ignore[attr-defined]
        await asyncio.sleep(settings.count(3, 0))
        readings |= await _cost(pids, seconds, "empty")
        async with cluster.client() as client:
            count = settings.count(IDLE_PARTITIONS, 5)
            await client.admin.create_topics(NewTopic("idle", count, 3), timeout=60)
        await asyncio.sleep(settings.count(5, 0))
        readings |= await _cost(pids, seconds, "full")
    return readings


async def _cost(pids: dict[str, int], seconds: float, name: str) -> Readings:
    brokers = [pid for node, pid in pids.items() if node[0] == "b"]
    before, began = {pid: cpu_s(pid) for pid in pids.values()}, time.perf_counter()
    await asyncio.sleep(seconds)
    wall = time.perf_counter() - began
    spent = {pid: (cpu_s(pid) - before[pid]) / wall * 100 for pid in before}
    return {
        f"{name} rss": max(_rss(pid) for pid in brokers) / 1e6,
        f"{name} broker": max(spent[pid] for pid in brokers),
        f"{name} all": sum(spent.values()),
    }


def cpu_s(pid: int) -> float:
    """CPU time that it has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    def take(number: int) -> Readings:
        directory = settings.directory / f"processes-{number}"
        directory.mkdir()
        readings: Readings = {}
        for brokers, controllers in SHAPES:
            readings |= _up(directory, brokers, controllers)
        readings |= asyncio.run(_in_process())
        return readings | asyncio.run(_idle(directory, settings))

    yield take


_READY_S = {(1, 1): 0.5, (3, 1): 1.5, (3, 3): 2.0}


def _rows() -> Iterator[Row]:
    for (brokers, controllers), bound in _READY_S.items():
        name = f"{brokers}+{controllers}"
        beside = f"{brokers + controllers + 1} bare interpreters"
        goal = Goal("figure", False, bound, "issue, GOALS C1")
        yield Row(
            f"`tidelog up`, {name} processes: ready", "s", f"ready {name}", f"bare {name}", beside, goal
        )
        yield Row("... first topic and first write behind it", "s", f"used {name}")
    for brokers, controllers in SHAPES:
        inside = {(1, 1): 0.3, (3, 1): 0.5, (3, 3): 1.0}[brokers, controllers]
        yield Row(
            f"`testing.Cluster`, {brokers}+{controllers} nodes inside one process: ready",
            "s",
            f"inside {brokers}+{controllers}",
            goal=Goal("figure", False, inside, "EXPERIENCE 2, GOALS C1"),
        )
    yield Row("idle broker, resident", "MB", "empty rss", goal=Goal("figure", False, 60, "GOALS C2"))
    yield Row("... of a core", "%", "empty broker", goal=Goal("figure", False, 1.0, "GOALS C2"))
    yield Row("3 x 500 partitions, idle: broker, resident", "MB", "full rss")
    yield Row(
        "... all four processes, of a core", "%", "full all", goal=Goal("figure", False, 5.0, "the issue")
    )


BENCH = Bench(
    "processes",
    "A cluster of real processes until it is ready, and while nothing happens (wall time; Linux)",
    tuple(_rows()),
    _begin,
    rounds_max=5,
    also_runs=("tidelog.testing.node", "tidelog.cli.main"),
)
