"""A cluster in a thread of its own, for tests that block."""

import asyncio
import threading
from typing import Self

import uvloop

from tests.client.nodes import DEADLINE_S, Cluster, running
from tidelog.broker.groups.settings import GroupSettings

SETTINGS = GroupSettings(offsets_topic_replication_factor=1, offsets_topic_num_partitions=2)


class Served:
    """The cluster, of one broker."""

    def __init__(self) -> None:
        self.cluster: Cluster
        self.loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()), name="cluster")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(DEADLINE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _main(self) -> None:
        self._end, self.loop = asyncio.Event(), asyncio.get_running_loop()
        async with running(1, groups=SETTINGS) as self.cluster:
            self._ready.set()
            await self._end.wait()

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    def kill(self) -> None:
        asyncio.run_coroutine_threadsafe(self.cluster.kill(1), self.loop).result(DEADLINE_S)
