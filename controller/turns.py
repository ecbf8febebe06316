"""Long decisions in steps: one step in a turn of the event loop, however many of them go on at once."""

import asyncio
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """One node's. Whoever waits longest has the next step."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def carry_out(self, steps: Generator[None, None, T], lasts: Callable[[], bool]) -> T | None:
        """The value of the steps; None: it did not last until their end."""
        while True:
            async with self._turn:
                if not lasts():
                    return None
                try:
                    next(steps)
                except StopIteration as done:
                    value: T = done.value
                    return value
                await asyncio.sleep(0)
