"""How long it takes to see how far a thousand groups are behind, with ten partitions each.

Three brokers as processes; each group has committed something of every partition, and is behind in all of them. Beside
the list with lag stands the same list without: the command's own start is in both. The command runs from bytecode, as
one that is installed does, whatever the environment says of that; and because others may share the machine, how much
of a processor it takes stands beside how long it took.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings

from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client
from tidelog.client.io.coordinator import AtCoordinator
from tidelog.protocol.messages import OffsetCommit, OffsetCommitReply, OffsetToCommit
from tidelog.testing.cluster import Cluster

TOPIC = "orders"
PARTITIONS = 10
BEHIND = 5


async def _commit(client: Client, group: str, topic_id: bytes) -> None:
    """As a consumer that has read nothing yet."""
    entries = tuple(OffsetToCommit(topic_id, index, 0) for index in range(PARTITIONS))
    commit = OffsetCommit(group, entries, timeout_ms=10_000)
    deadline_ms = asyncio.get_running_loop().time() * 1000 + 30_000
    reply = await AtCoordinator(client, group).insist(lambda _: commit, OffsetCommitReply, deadline_ms)
    assert not any(entry.error for entry in reply.partitions), reply


async def _look(directory: Path, groups: int) -> Readings:
    async with Cluster(3, processes=True, directory=directory) as cluster, cluster.client() as client:
        await client.admin.create_topics(NewTopic(TOPIC, PARTITIONS, 3))
        async with client.producer() as producer:
            for partition in range(PARTITIONS):
                await producer.send_many(TOPIC, [b"."] * BEHIND, partition=partition)
        topic_id = (await client.topic(TOPIC)).id
        for begin in range(0, groups, 50):
            names = [f"group-{number}" for number in range(begin, min(begin + 50, groups))]
            await asyncio.gather(*(_commit(client, name, topic_id) for name in names))
        began = time.perf_counter()
        listed = await client.admin.list_groups(with_lag=True)
        call_s = time.perf_counter() - began
        assert len(listed) == groups
        assert {each.lag for each in listed} == {PARTITIONS * BEHIND}
        bytecode = directory / "bytecode"
        await asyncio.to_thread(_listed, bytecode, cluster.bootstrap)  # writes it
        lag_s, processor_s = await asyncio.to_thread(_listed, bytecode, cluster.bootstrap, "--with-lag")
        plain_s, _ = await asyncio.to_thread(_listed, bytecode, cluster.bootstrap)
        return {"call": call_s, "lag": lag_s, "processor": processor_s, "plain": plain_s}


def _listed(bytecode: Path, bootstrap: str, *options: str) -> tuple[float, float]:
    """How long the command takes, and how much of a processor."""
    command = (sys.executable, "-m", "tidelog", "group", "list", *options, "--bootstrap", bootstrap)
    around = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    around["PYTHONPYCACHEPREFIX"] = str(bytecode)
    before, began = _used_s(), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, env=around, check=True, timeout=60)
    return time.perf_counter() - began, _used_s() - before


def _used_s() -> float:
    """The processor time of the commands that have ended."""
    used = os.times()
    return used.children_user + used.children_system


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    def take(number: int) -> Readings:
        return asyncio.run(_look(settings.directory / f"groups-{number}", settings.count(1000, 20)))

    yield take


BENCH = Bench(
    "groups",
    "1,000 groups x 10 partitions, each of them behind (wall time)",
    (
        Row(
            "`tidelog group list --with-lag`",
            "s",
            "lag",
            "plain",
            "without lag",
            Goal("figure", False, 1, "the issue"),
        ),
        Row("... of a processor", "s", "processor"),
        Row("... the client's call alone", "s", "call"),
    ),
    _begin,
    rounds_max=5,
    also_runs=("tidelog.testing.node", "tidelog.cli.main"),
)
