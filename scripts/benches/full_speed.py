"""A producer at full speed, for as long as something else is measured: the work of `bytes 64K` (`client`).

Values of 1 KB as columns, in batches of 64 KB, acks=all; four calls of `send_many` are under way all the time.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidelog.client import Client
from tidelog.client.io.producer import Producer

VALUE_BYTES = 1024
_VALUES = [b"x" * VALUE_BYTES] * 1000
_AT_ONCE = 4
_BATCH_BYTES = 65_536
_REQUEST_BYTES = 4 << 20


class Load:
    """What goes on, and how much of it is acknowledged."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.written = 0
        """Bytes of values that every replica in sync has."""
        self._producer = producer
        self._topic = topic
        self._news = asyncio.Event()

    async def send(self) -> None:
        """One call after the other, without an end."""
        while True:
            await self._producer.send_many(self._topic, _VALUES)
            self.written += len(_VALUES) * VALUE_BYTES
            self._news.set()

    async def more(self, count: int) -> float:
        """Until so many bytes more are acknowledged: MB/s meanwhile."""
        before, began = self.written, time.perf_counter()
        while self.written < before + count:
            self._news.clear()
            await self._news.wait()
        return (self.written - before) / (time.perf_counter() - began) / 1e6


@asynccontextmanager
async def full_speed(client: Client, topic: str) -> AsyncIterator[Load]:
    """It goes on while the block runs; if it cannot go on, the block ends with its error."""
    config = {"batch_size": _BATCH_BYTES, "max_request_size": _REQUEST_BYTES}
    async with client.producer(config=config) as producer, asyncio.TaskGroup() as group:
        load = Load(producer, topic)
        sending = [group.create_task(load.send()) for _ in range(_AT_ONCE)]
        yield load
        for task in sending:
            task.cancel()
