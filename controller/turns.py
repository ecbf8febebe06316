"""Long decisions in steps: one step in a turn of the event loop, however many of them go on at once.

yield         others have their steps, and are served
yield HOLDS   others are served, but nobody else has a step before the next one: what was looked at will mostly
              still be so, and need not be looked at again
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, None, T]
"""They yield nothing or `HOLDS`; their value is what was to be found out."""

HOLDS: Final = True
"""What steps yield that want to go on before others do."""


def holding(steps: Generator[None, None, T]) -> Steps[T]:
    """The same steps, with nobody else's between them."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value
        yield HOLDS


def at_once(steps: Generator[object, None, T]) -> T:
    """All of them, and nobody else's between."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value


async def failing(error: Exception) -> None:
    """As a task, what a request has met and its answer would end nobody with."""
    raise error


class Turns:
    """One node's. Whoever waits longest has the next step."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def carry_out(self, steps: Steps[T], lasts: Callable[[], bool]) -> T | None:
        """The value of the steps; None: it did not last until their end."""
        while True:
            async with self._turn:
                holds: object = HOLDS
                while holds:
                    if not lasts():
                        return None
                    try:
                        holds = next(steps)
                    except StopIteration as done:
                        value: T = done.value
                        return value
                    await asyncio.sleep(0)
