"""The way from Spark's blocking calls to the client, which is asynchronous: one loop in one thread per process.

    portal().run(client.admin.list_offsets("orders"))
    await connected(address)           the process's client of that cluster, started

What it keeps true: Spark's reused workers keep their client from task to task, and so connections and what is known of
the cluster; a process that was forked has a loop and clients of its own; whoever is interrupted cancels what it waits
for.
"""

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from tidelog.client.io.client import Client, connect
from tidelog.protocol.io.runner import fastest_loop, tune_malloc

T = TypeVar("T")

CLIENT_ID: Final = "tidelog-spark"
_END_S: Final = 5.0
"""How long the thread has to end."""


class Address(NamedTuple):
    """A cluster, and how to speak to it."""

    bootstrap: str
    rack: str = ""
    config: tuple[tuple[str, str], ...] = ()
    """Further settings of the client, by Kafka's names."""


class Portal:
    """A loop in a thread of its own."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.clients: dict[Address, Client] = {}
        tune_malloc()  # a fetch is a large block, again and again
        self._loop = fastest_loop()()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tidelog-spark", daemon=True)
        self._thread.start()
        atexit.register(self.end)

    def end(self) -> None:
        """Cancel what is under way and end the thread, in bounded time: none may run while the interpreter ends."""
        if self.process != os.getpid() or not self._thread.is_alive():
            return  # a fork has the object, and no thread
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop)
        self._thread.join(_END_S)

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_END_S / 2)
        self._loop.call_soon(self._loop.stop)

    def submit(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Begin it; the future has its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for it."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_portals: list[Portal] = []


def portal() -> Portal:
    """This process's."""
    if not _portals or _portals[0].process != os.getpid():
        _portals[:] = [Portal()]
    return _portals[0]


async def connected(address: Address) -> Client:
    """This process's client of that cluster; call it on the portal's loop."""
    clients = portal().clients
    client = clients.get(address)
    if client is None or client.closed:
        config = {"client.id": CLIENT_ID, **dict(address.config)}
        client = clients[address] = connect(address.bootstrap, rack=address.rack, config=config)
    try:
        await client.start()
    except BaseException:
        if clients.get(address) is client:
            del clients[address]
        raise
    return client
