"""One timer for all deadlines: it rings when the first has come, and never for nothing."""

import asyncio
from collections.abc import Iterator

import pytest

from tidelog.protocol.errors import TidelogError
from tidelog.replication.deadlines import Deadlines
from tidelog.replication.delayed import Delayed
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with World(1).running() as world:
        yield world


class Waiting:
    """An answer that nobody can give; when it was given up."""

    def __init__(self) -> None:
        self.over = False
        self.given_up_ms: int | None = None

    def try_complete(self) -> bool:
        return self.over

    def give_up(self) -> None:
        self.given_up_ms = int(asyncio.get_running_loop().time() * 1000)

    def fail(self, error: TidelogError) -> None:
        raise error


async def wait_for(delayed: Delayed, deadlines: Deadlines, *after_ms: int) -> list[Waiting]:
    """Answers with these deadlines, in this order."""
    now_ms = int(asyncio.get_running_loop().time() * 1000)
    waiting = []
    for ms in after_ms:
        waiting.append(Waiting())
        delayed.wait(waiting[-1], ("key",), now_ms + ms)
        deadlines.wake_at(now_ms + ms)
    return waiting


def test_each_is_given_up_in_the_millisecond_that_was_said(world: World) -> None:
    late: list[int] = []

    async def check() -> None:
        delayed = Delayed()
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        after_ms = (500, 30, 700, 31, 500)
        waiting = await wait_for(delayed, Deadlines(delayed), *after_ms)
        await asyncio.sleep(1)
        late.extend((one.given_up_ms or 0) - now_ms - ms for one, ms in zip(waiting, after_ms, strict=True))

    Host("b1", world).spawn(check())
    world.run_until(lambda: late, 3)
    assert late == [0] * 5


def test_what_was_answered_in_time_rings_no_bell_again(world: World) -> None:
    done: list[object] = []

    async def check() -> None:
        delayed = Delayed()
        deadlines = Deadlines(delayed)
        (waiting,) = await wait_for(delayed, deadlines, 50)
        waiting.over = True
        delayed.touched("key")
        delayed.run()
        await asyncio.sleep(0.2)
        done.append((waiting.given_up_ms, deadlines._timer))

    Host("b1", world).spawn(check())
    world.run_until(lambda: done, 3)
    assert done == [(None, None)]
