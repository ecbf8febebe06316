"""Real sockets on free ports of 127.0.0.1, asyncio's debug mode, and nothing left behind."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
import uvloop

from tests.client.nodes import Cluster, running, until

BOTH_LOOPS: Final = ("test_connections.py", "test_session.py")
"""Where what a loop does with sockets and cancellation matters most."""


@pytest.hookimpl
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of asyncio, which finds mistakes in debug mode; and users' own."""
    if item.path.name in BOTH_LOOPS:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


def open_sockets() -> list[str]:
    """The sockets that this process has open; none where the system does not tell."""
    folder = Path("/proc/self/fd")
    links = []
    for name in os.listdir(folder) if folder.exists() else ():
        try:
            links.append(os.readlink(folder / name))
        except FileNotFoundError:
            continue
    return sorted(link for link in links if link.startswith("socket:"))


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    """After the test, and after what it has asked for later: no task, no socket, no error that nobody saw."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    unseen: list[object] = []
    loop.set_exception_handler(lambda _loop, context: unseen.append(context))
    tasks, sockets = len(asyncio.all_tasks()), open_sockets()
    yield
    await until(lambda: len(asyncio.all_tasks()) <= tasks, "all tasks have ended", 10)
    await until(lambda: len(open_sockets()) <= len(sockets), "all sockets are closed", 10)
    assert unseen == []


@pytest.fixture
async def cluster(nothing_left: None) -> AsyncIterator[Cluster]:  # noqa: ARG001 -- it ends after this
    """Three real brokers and a controller."""
    async with running(3) as cluster:
        yield cluster


@pytest.fixture
async def broker(nothing_left: None) -> AsyncIterator[Cluster]:  # noqa: ARG001 -- it ends after this
    """One real broker and a controller."""
    async with running(1) as cluster:
        yield cluster
