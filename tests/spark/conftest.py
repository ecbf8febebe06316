"""One Spark and one cluster of processes for all tests that want them.

PySpark is in the locked environment; where somebody runs the tests without it, this folder is left out as a whole.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.request import urlopen

import pytest

from tests.spark_home import without_archive
from tidelog.client import Client
from tidelog.client.admin import NewTopic
from tidelog.protocol.types import TopicPartition
from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

if find_spec("pyspark") is None:
    collect_ignore_glob = ["test_*.py"]


QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""No query of a test makes enough garbage for threads that collect it. What Spark makes of queries is as users have it."""


class World:
    """A cluster of real processes, on a loop in a thread of its own: Spark's calls block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._numbers = count()
        self.cluster = Cluster(3, processes=True, racks=["rack-1", "rack-2", "rack-3"])
        self.cluster._settings["b"]["http.listener"] = (
            "127.0.0.1:0"  # no setting of a node, but of its process
        )
        self.client: Client

    def begin(self) -> None:
        self.run(self.cluster.__aenter__())
        self.client = self.run(self._client())

    async def _client(self) -> Client:
        return await self.cluster.client().__aenter__()

    def end(self) -> None:
        self.run(self.client.close())
        self.run(self.cluster.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    def topic(self, partitions: int = 1, replicas: int = 3, **configs: Any) -> str:
        """A new topic."""
        name = f"topic-{next(self._numbers)}"
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        self.run(self.client.admin.create_topics(NewTopic(name, partitions, replicas, settings)))
        return name

    def produce(self, topic: str, values: list[bytes | None], partition: int = 0) -> None:
        """Write these, acknowledged."""
        self.run(self._produce(topic, values, partition))

    async def _produce(self, topic: str, values: list[bytes | None], partition: int) -> None:
        async with self.client.producer() as producer:
            await producer.send_many(topic, values, partition=partition)

    def values(self, topic: str) -> list[bytes | None]:
        """All that is in it."""
        return self.run(self._values(topic))

    async def _values(self, topic: str) -> list[bytes | None]:
        ends = await self.client.admin.list_offsets(topic)
        found: list[bytes | None] = []
        async with self.client.consumer(topic, auto_offset_reset="earliest") as consumer:
            left = {name for name, end in ends.items() if end.offset > 0}
            while left:
                for name, records in (await consumer.getmany(timeout=5, max_records=100_000)).items():
                    found += [record.value for record in records]
                    if records[-1].offset + 1 >= ends[name].offset:
                        left.discard(name)
        return found

    def codecs(self, topic: str) -> set[int]:
        """How its batches are compressed."""
        return self.run(self._codecs(topic))

    async def _codecs(self, topic: str) -> set[int]:
        from tidelog.spark.leaders import batches  # noqa: PLC0415 -- not in every environment

        known = await self.client.topic(topic)
        ends = await self.client.admin.list_offsets(topic)
        return {
            header.codec
            for name, end in ends.items()
            async for header, _ in batches(self.client, name, known.id, 0, end.offset)
        }

    def sent_bytes(self, broker: int) -> int:
        """What that broker has sent to those who connected to it, since it started."""
        http = self.cluster.nodes[f"b{broker}"].process.about["http"]  # type: ignore[attr-defined]
        with urlopen(f"http://{http}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        [line] = [line for line in lines if line.startswith("tidelog_broker_sent_bytes_total")]
        return int(float(line.split()[-1]))

    def trim(self, topic: str, before: int, partition: int = 0) -> None:
        """Delete what is below that offset."""
        self.run(self.client.admin.delete_records({TopicPartition(topic, partition): before}))


@pytest.fixture(scope="package")
def world() -> Iterator[World]:
    """The cluster; tests leave all of its nodes running."""
    world = World()
    world.begin()
    yield world
    _close_portals()
    world.end()


def _close_portals() -> None:
    """What a test has read in this process: its client would look for its cluster beside all tests that follow."""
    from tidelog.spark.portal import _portals  # noqa: PLC0415 -- not in every environment

    while _portals:
        left = _portals.pop()
        for client in left.clients.values():
            left.run(client.close())
        left.end()


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The session."""
    from tidelog.spark import local_session  # noqa: PLC0415 -- only who uses it pays for it

    settings = {
        "spark.sql.streaming.pollingDelay": "20ms",
        "spark.ui.showConsoleProgress": "false",
        **QUICK,
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPARK_HOME", without_archive(tmp_path_factory.mktemp("spark")))
        spark = local_session(2, "tests", settings=settings, quick=True)
        spark.sparkContext.setLogLevel("FATAL")
        gateway: Any = spark.sparkContext._gateway
        yield spark
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
