"""Long work lets the loop have its turns, and waits for the disk elsewhere."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from tidelog.replication.breathing import breathing
from tidelog.storage.works import Work


async def test_what_waits_for_the_disk_is_done_elsewhere_before_the_next_step() -> None:
    said: list[str] = []

    def steps() -> Iterator[Work | None]:
        said.append("checked")
        yield lambda: said.append("flushed")
        said.append("went on")

    async def elsewhere(work: Work) -> None:
        said.append("handed over")
        await asyncio.sleep(0)
        work()

    await breathing(steps(), elsewhere)
    assert said == ["checked", "handed over", "flushed", "went on"]


async def test_others_have_their_turns_while_the_disk_is_waited_for_and_between_long_steps() -> None:
    turns: list[str] = []

    def steps() -> Iterator[Work | None]:
        for _ in range(3):
            time.sleep(0.003)
            yield None
        turns.append("all but the disk")
        yield lambda: None

    async def other() -> None:
        while True:
            turns.append("other")
            await asyncio.sleep(0)

    async def elsewhere(work: Work) -> None:
        await asyncio.sleep(0)
        work()

    task = asyncio.create_task(other())
    await breathing(steps(), elsewhere)
    task.cancel()
    assert turns == ["other"] * 3 + ["all but the disk", "other"]


async def test_work_for_the_disk_is_never_left_out() -> None:
    def steps() -> Iterator[Work | None]:
        yield lambda: None

    with pytest.raises(AssertionError, match="waits for the disk"):
        await breathing(steps())
