"""The controller's way to worker threads: blocking disk work, and nothing else, leaves the event loop."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_a_thread(work: Callable[[], T]) -> T:
    """What `work` returns, done in a worker thread. It touches files and its own arguments only."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
