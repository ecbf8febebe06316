"""Long work in small steps, so that an event loop breathes in between."""

import asyncio
from collections.abc import Iterator
from typing import Final

_SLICE_S: Final = 0.002
"""How long work may hold up the event loop at a time."""


async def breathing(steps: Iterator[object]) -> None:
    """Run steps to their end, and let others have their turn every few milliseconds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in steps:
        if loop.time() - began > _SLICE_S:
            await asyncio.sleep(0)
            began = loop.time()
