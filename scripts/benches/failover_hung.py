"""How long changes of metadata stop when the active controller does not die, but hangs.

As `failover` does it with SIGKILL, here with SIGSTOP: the connections stay, nobody is refused, and nothing answers. That
it is gone is shown by its silence only. Three brokers and three controllers as processes, default settings. Afterwards
it goes on. The next hang waits until every controller has all that was decided, and every broker takes writes.

The reference is the silence after which the other controllers stop waiting: a little less may do, since it began
before the SIGSTOP.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings
from scripts.benches.whole import quorum_has_all, until

from tidelog.client.admin import NewTopic
from tidelog.client.io.producer import Producer
from tidelog.protocol.settings import SETTINGS
from tidelog.testing.cluster import Cluster
from tidelog.testing.failover import percentile

BROKERS = 3
TOPIC = "led"
SILENCE_MS = float(SETTINGS["quorum.fetch.timeout.ms"].default or 0)


async def _hang(directory: Path, settings: Settings) -> Readings:
    taken: list[float] = []
    async with (
        Cluster(BROKERS, 3, processes=True, directory=directory) as cluster,
        cluster.client(client_id="failover-hung") as client,
        client.producer() as producer,
    ):
        await client.admin.create_topics(NewTopic(TOPIC, BROKERS, BROKERS))
        for number in range(settings.count(10, 1)):
            await until(lambda: quorum_has_all(client), "every controller has all that is committed")
            await _write(producer)
            active = (await client.admin.describe_quorum()).leader_id
            began = time.perf_counter()
            await cluster.pause(controller=active)
            await client.admin.create_topics(NewTopic(f"hung-{number}", 1, 1), wait=False)
            taken.append((time.perf_counter() - began) * 1000)
            await cluster.resume(controller=active)
    return {"hung": percentile(taken, 0.5), "hung 95": percentile(taken, 0.95), "silence": SILENCE_MS}


async def _write(producer: Producer) -> None:
    """A record to each of the brokers."""
    for partition in range(BROKERS):
        await producer.send(TOPIC, b".", partition=partition)


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    def take(number: int) -> Readings:
        return asyncio.run(_hang(settings.directory / f"failover-hung-{number}", settings))

    yield take


_BESIDE = "the silence that counts"
BENCH = Bench(
    "failover-hung",
    "SIGSTOP of the active controller until the next change of metadata is accepted (wall time)",
    (
        Row("controller hangs: next topic, median", "ms", "hung", "silence", _BESIDE),
        Row(
            "... 95 of 100 hangs",
            "ms",
            "hung 95",
            "silence",
            _BESIDE,
            Goal("figure", False, 3000, "GOALS C8"),
        ),
    ),
    _begin,
    rounds_max=5,
    also_runs=("tidelog.testing.node", "tidelog.cli.main"),
)
