"""How long writes stop when a broker is killed that leads a thousand partitions.

As `failover`, with a topic of 3,000 partitions on three brokers. Each has taken a record, so that its logs are there.
Before each kill every replica is in sync and the preferred ones lead, so that each broker leads about 1,000. One
producer writes to twelve of them all the time.

    one     from before the SIGKILL until a record is acknowledged that was sent after it, to one of the partitions
            that the broker led, picked by chance
    every   until each partition that it led has acknowledged one; these are sent when the first one is there
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings
from scripts.benches.whole import PATIENCE_S, in_sync, leads_as_preferred, until

from tidelog.client import Client
from tidelog.client.admin import NewTopic
from tidelog.client.io.producer import Producer
from tidelog.controller.peers import PROBE_PAUSE_S, PROBES
from tidelog.testing.cluster import Cluster
from tidelog.testing.failover import percentile

TOPIC = "many"
PARTITIONS = 3000
_LOADED = 12
_VALUE = b"." * 100


async def _kill(directory: Path, settings: Settings) -> Readings:
    count, kills = settings.count(PARTITIONS, 30), settings.count(4, 1)
    one: list[float] = []
    every: list[float] = []
    led = 0
    async with (
        Cluster(3, 3, processes=True, directory=directory) as cluster,
        cluster.client(client_id="failover-many") as client,
    ):
        await client.admin.create_topics(NewTopic(TOPIC, count, 3), timeout=120)
        async with client.producer() as producer, asyncio.TaskGroup() as group:
            await _write_to(producer, range(count))
            load = [group.create_task(_write(producer, partition)) for partition in range(_LOADED)]
            for number in range(kills):
                victim = number % 3 + 1
                lost = await _led_by(client, victim)
                led = len(lost)
                picked = Random().choice(lost)
                began = time.perf_counter()
                await cluster.kill(victim)
                await producer.send(TOPIC, _VALUE, partition=picked)
                one.append((time.perf_counter() - began) * 1000)
                await _write_to(producer, lost)
                every.append((time.perf_counter() - began) * 1000)
                await _restart(cluster, victim)
            for task in load:
                task.cancel()
    return {
        "one": percentile(one, 0.5),
        "one 95": percentile(one, 0.95),
        "every": percentile(every, 0.5),
        "every 95": percentile(every, 0.95),
        "led": led,
        "proof": PROBE_PAUSE_S * (PROBES - 1) * 1000,
    }


async def _led_by(client: Client, broker: int) -> list[int]:
    """The partitions that it leads, once all is as it was when the topic was made."""
    await until(lambda: in_sync(client, TOPIC), "every replica is in sync")
    await client.admin.elect_leaders(timeout=60)
    await until(lambda: leads_as_preferred(client, TOPIC), "the preferred replicas lead")
    (told,) = await client.admin.describe_topics(TOPIC)
    return [each.index for each in told.partitions if each.leader == broker]


async def _restart(cluster: Cluster, broker: int) -> None:
    """As `Cluster.restart`, with more patience: it opens 3,000 logs that nobody has closed."""
    node = cluster.nodes[f"b{broker}"]
    await node.start()
    await node.ready(PATIENCE_S)


async def _write_to(producer: Producer, partitions: Iterable[int]) -> None:
    """A record to each of them."""
    await asyncio.gather(*(producer.send(TOPIC, _VALUE, partition=each) for each in partitions))


async def _write(producer: Producer, partition: int) -> None:
    """One record after the other: the load that is there when the leader dies."""
    while True:
        await producer.send(TOPIC, _VALUE, partition=partition)
        await asyncio.sleep(0.001)


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    def take(number: int) -> Readings:
        return asyncio.run(_kill(settings.directory / f"failover-many-{number}", settings))

    yield take


_BESIDE = "the proof that it is gone"
BENCH = Bench(
    "failover-many",
    "SIGKILL of a broker that leads 1,000 partitions until the next acknowledgement (wall time)",
    (
        Row("leader of 1,000 killed: next write, median", "ms", "one", "proof", _BESIDE),
        Row(
            "... 95 of 100 kills",
            "ms",
            "one 95",
            "proof",
            _BESIDE,
            Goal("figure", False, 1500, "GOALS C7"),
        ),
        Row("... a write to every one of them, median", "ms", "every", "proof", _BESIDE),
        Row("... 95 of 100 kills, every one of them", "ms", "every 95", "proof", _BESIDE),
        Row("partitions that the last one led", "", "led"),
    ),
    _begin,
    rounds_max=5,
    also_runs=("tidelog.testing.node", "tidelog.cli.main"),
)
