"""Whether a process is there at all: refusals prove that it is not, and nothing else does (DECISIONS 3)."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tidelog.controller.peers import PROBES_MOST, is_gone
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.io import Incoming, listen
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import Welcome
from tidelog.testing.ports import HOST, HeldPort


class Door:
    """A port that accepts, and ends every connection at once, for so many times before it refuses."""

    def __init__(self, accepts: int) -> None:
        self.accepted = 0
        self.held = HeldPort()
        self._accepts = accepts
        self._server: asyncio.AbstractServer

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._met, HOST, self.held.number)

    async def _met(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.accepted == self._accepts:
            self.close()
        writer.transport.abort()

    def close(self) -> None:
        self._server.close()


@pytest.fixture
async def door_for() -> AsyncIterator[Callable[[int], Door]]:
    doors: list[Door] = []

    def made(accepts: int) -> Door:
        doors.append(Door(accepts))
        return doors[-1]

    yield made
    for door in doors:
        door.close()
        door.held.close()


async def asked(port: int) -> bool:
    return await is_gone((HOST, port), lambda: True, Bounds(DEFAULT))


async def test_who_refuses_is_gone() -> None:
    held = HeldPort()
    assert await asked(held.number)
    held.close()


async def test_a_process_whose_sockets_are_closed_one_after_the_other_is_gone(
    door_for: Callable[[int], Door],
) -> None:
    door = door_for(1)
    await door.open()
    assert await asked(door.held.number)
    assert door.accepted == 1


async def test_who_accepts_time_and_again_may_live(door_for: Callable[[int], Door]) -> None:
    door = door_for(1000)
    await door.open()
    assert not await asked(door.held.number)
    assert door.accepted == PROBES_MOST


async def test_who_answers_lives() -> None:
    def serve(incoming: Incoming) -> None:
        incoming.reply(Welcome())

    listener = await listen(HOST, 0, serve)
    assert not await asked(listener.port)
    listener.close()
    await listener.wait_closed()


async def test_nobody_is_asked_about_when_nobody_wants_to_know() -> None:
    held = HeldPort()
    assert not await is_gone((HOST, held.number), lambda: False, Bounds(DEFAULT))
    held.close()
