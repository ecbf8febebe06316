"""Long work in small steps, so that an event loop breathes in between."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from tidelog.storage.works import Work

_SLICE_S: Final = 0.002
"""How long work may hold up the event loop at a time."""


async def breathing(
    steps: Iterator[Work | None], in_a_thread: Callable[[Work], Awaitable[None]] | None = None
) -> None:
    """Take steps to their end, and let others have their turn every few milliseconds.

    `in_a_thread`: where those that wait for the disk are done; None: there are none.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    for step in steps:
        if step is not None:
            assert in_a_thread is not None, f"{step} waits for the disk"
            await in_a_thread(step)
        elif loop.time() - began > _SLICE_S:
            await asyncio.sleep(0)
        else:
            continue
        began = loop.time()
