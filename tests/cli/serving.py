"""A cluster that serves command lines: it runs on a loop in a thread of its own, and they in the test's."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any, TypeVar

from tidelog.client import Client
from tidelog.client.admin import NewTopic
from tidelog.testing import Cluster

T = TypeVar("T")
DEADLINE_S = 30.0


class Serving:
    """A cluster inside this process, and what tests do to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, cluster: Cluster) -> None:
        self._loop = loop
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap
        self._names = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What that comes to, on the cluster's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def with_client(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """What that comes to, given a client."""

        async def run() -> T:
            async with self.cluster.client() as client:
                return await work(client)

        return self.run(run())

    def topic(self, partitions: int = 1, replication_factor: int = 0, **configs: str) -> str:
        """A new topic's name."""
        self._names += 1
        name = f"t{self._names}"
        settings = {key.replace("_", "."): value for key, value in configs.items()}

        async def make(client: Client) -> None:
            await client.admin.create_topics(NewTopic(name, partitions, replication_factor, settings))

        self.with_client(make)
        return name

    def write(self, topic: str, *values: bytes | None, **options: Any) -> None:
        """Write records, one after the other."""

        async def send(client: Client) -> None:
            async with client.producer() as producer:
                for value in values:
                    await producer.send(topic, value, **options)

        self.with_client(send)

    def write_many(self, topic: str, values: list[bytes | None]) -> None:
        """Write many records, in this order."""

        async def send(client: Client) -> None:
            async with client.producer() as producer:
                await producer.send_many(topic, values)

        self.with_client(send)


@contextmanager
def serving(brokers: int, **options: Any) -> Iterator[Serving]:
    """A cluster for as long as the block lasts."""
    cluster = Cluster(brokers=brokers, **options)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="cluster")
    thread.start()

    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(DEADLINE_S)

    try:
        run(cluster.__aenter__())
        try:
            yield Serving(loop, cluster)
        finally:
            run(cluster.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_S)
        loop.close()


def until(holds: Callable[[], Any], what: str) -> Any:
    """Wait until that is true, and return it."""
    deadline_s = monotonic() + DEADLINE_S
    while not (found := holds()):
        assert monotonic() < deadline_s, f"not in {DEADLINE_S:g} s: {what}"
        sleep(0.02)
    return found


@contextmanager
def running(
    bootstrap: str, *words: str, stdin: int = subprocess.DEVNULL
) -> Iterator["subprocess.Popen[bytes]"]:
    """`tidelog` as a process, killed at the end, or when it has run for too long: what reads its output then goes on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog", *words],
        bufsize=0,  # what `readline` has not taken is for `communicate`
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TIDELOG_BOOTSTRAP": bootstrap},
    )
    too_long = threading.Timer(DEADLINE_S, process.kill)
    too_long.start()
    try:
        yield process
    finally:
        too_long.cancel()
        process.kill()
        process.communicate()
