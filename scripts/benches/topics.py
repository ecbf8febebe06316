"""Topics of a bench that go again: a disk takes much longer to write where it never has."""

import asyncio
import time
from pathlib import Path

PATIENCE_S = 600.0


async def until_gone(directory: Path, topic: str) -> None:
    """Nobody of the cluster in that directory has a file of it any more."""
    over = time.perf_counter() + PATIENCE_S
    while _is_there(directory, topic):
        if time.perf_counter() > over:
            raise RuntimeError(f"{topic} has not gone in {PATIENCE_S:g} s")
        await asyncio.sleep(0.2)


def _is_there(directory: Path, topic: str) -> bool:
    return any(directory.glob(f"*/{topic}-[0-9]*")) or any(directory.glob("*/*-delete"))
