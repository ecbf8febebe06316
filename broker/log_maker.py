"""The logs of many new partitions, made in worker threads; a broker's loop goes on meanwhile.

What can be served is: each log as soon as its share of the flushes has ended (`storage.making`), and not when all have.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from tidelog.broker.io import in_a_thread
from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests.context import Clocks
from tidelog.storage import making

_AT_ONCE: Final = 64
_MAKERS: Final = 4
"""Threads that make new logs: flushes that are asked for together cost little more than one."""


class LogMaker:
    """Makes what `Replicas` lets wait. `run` is a task of the node."""

    def __init__(self, *, hosted: Callable[[Partition], None], adopted: Callable[[], None]) -> None:
        self._hosted = hosted
        self._adopted = adopted
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There are logs to be made."""
        self._woken.set()

    async def run(self, replicas: Replicas, clocks: Clocks) -> None:
        """Make them whenever there are."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            while begun := replicas.begin_making(_AT_ONCE):
                shares = replicas.data.shares(begun, _MAKERS)
                await asyncio.gather(*(in_a_thread(partial(making.run, *share)) for share in shares))
                for each in begun:
                    partition = replicas.made(each, clocks.now_ms(), clocks.wall_ms())
                    if partition is not None:
                        self._hosted(partition)
                    await asyncio.sleep(0)
                self._adopted()
