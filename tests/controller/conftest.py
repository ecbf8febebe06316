"""A controller on real sockets and a real disk, and members that follow it."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.controller.nodes import PATIENT, Ledger, Member, controller
from tests.protocol.io.peers import DEADLINE_S, until
from tidelog.controller.config import ControllerConfig
from tidelog.controller.controller import Controller
from tidelog.storage.io import open_directory
from tidelog.testing.ports import HeldPort


class Quorum:
    """One controller that may die and come back, and whoever follows it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: ControllerConfig = PATIENT
        self.node: Controller
        self.ledger = Ledger()
        self.members: list[Member] = []
        self._held = HeldPort()  # nobody takes its place while it is gone
        self.port = self._held.number
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor()
        asyncio.get_running_loop().set_default_executor(self._threads)

    async def start(self) -> Controller:
        ready = asyncio.get_running_loop().create_future()
        directory = open_directory(str(self.path), create=True)
        self.node = controller(directory, self.port, self.config)
        self._tasks["controller"] = asyncio.create_task(self.node.run(lambda: ready.set_result(None)))
        await asyncio.wait([ready, self._tasks["controller"]], return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await self._tasks["controller"]
        return self.node

    async def again(self, config: ControllerConfig) -> None:
        """The controller begins anew, with other settings."""
        await self.stop()
        self.config = config
        await self.start()

    async def stop(self, who: object = "controller") -> None:
        """The process ends; what it wrote stays."""
        task = self._tasks.pop(who)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if who == "controller":
            # As the death of a process does: its threads end with it, and its lock is free.
            threads, self._threads = self._threads, ThreadPoolExecutor()
            asyncio.get_running_loop().set_default_executor(self._threads)
            threads.shutdown(wait=True)
            self.node._claim.lock.release()

    def member(self, number: int, **more: Any) -> Member:
        """Somebody who follows."""
        member = Member(number, {1: ("127.0.0.1", self.port)}, self.ledger, **more)
        self.members.append(member)
        self.follow(member)
        return member

    def follow(self, member: Member) -> None:
        """A process of it begins to follow."""
        self._tasks[member] = asyncio.create_task(member.observer.run())

    async def outcome(self, member: Member) -> None:
        """Whatever ends its following."""
        await asyncio.wait_for(self._tasks[member], DEADLINE_S)

    async def all_know(self) -> None:
        """Until everybody has read all that there is."""
        await until(
            lambda: all(m.observer.caught_up_to >= self.node.log.end_offset for m in self.members),
            "everybody has caught up",
        )

    async def close(self) -> None:
        for who in list(self._tasks):
            await self.stop(who)
        self._held.close()


@pytest.fixture
async def quorum(tmp_path: Path) -> AsyncIterator[Quorum]:
    """A controller that serves."""
    quorum = Quorum(tmp_path / "controller-1")
    await quorum.start()
    yield quorum
    await quorum.close()
