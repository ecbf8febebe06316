"""Real sockets on free ports of 127.0.0.1, under both loops, and nothing left behind."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.protocol.io.peers import Node, until


@pytest.hookimpl
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every test here runs under both."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def open_sockets() -> int:
    """How many sockets this process has open; 0 where the system does not tell."""
    folder = Path("/proc/self/fd")
    if not folder.exists():
        return 0
    links = []
    for name in os.listdir(folder):
        try:
            links.append(os.readlink(folder / name))
        except FileNotFoundError:
            continue
    return sum(link.startswith("socket:") for link in links)


@pytest.fixture(autouse=True)
async def nothing_is_left_behind() -> AsyncIterator[None]:
    """After each test: no task, no socket, no error that nobody saw."""
    unseen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unseen.append(context))
    tasks, sockets = len(asyncio.all_tasks()), open_sockets()
    yield
    await until(lambda: len(asyncio.all_tasks()) <= tasks, "all tasks have ended")
    await until(lambda: open_sockets() <= sockets, "all sockets are closed")
    assert unseen == []


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """A node that listens and answers what it is told to."""
    async with Node() as node:
        yield node
