"""The coordinator's tasks: it loads in pieces, tells the time, and asks other brokers how far their logs go.

Whoever runs the broker calls `begin` once its roles are taken, `adopt` after the replicas have taken over a batch of the
metadata log, and runs `run` beside its other work. `handlers` serve the requests.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from tidelog.broker.coordinator import Coordinator
from tidelog.broker.coordinator_ends import Heard
from tidelog.broker.groups.deadlines import LISTENS_MS
from tidelog.broker.groups.settings import GroupSettings
from tidelog.broker.requests.context import Context
from tidelog.broker.requests.groups import Handler, handlers
from tidelog.controller.image import Changes
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import ConnectionFailed, TidelogError
from tidelog.protocol.io import connect
from tidelog.protocol.messages import Hello, Request
from tidelog.protocol.types import BrokerId

SOON_MS: Final = 100
"""How often the coordinator is told the time at most, unless something becomes due before all else."""

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]
AddressOf: TypeAlias = Callable[[BrokerId], tuple[str, int] | None]


class GroupsNode:
    """See the module."""

    def __init__(
        self, context: Context, settings: GroupSettings, address_of: AddressOf, bounds: Bounds, spawn: Spawn
    ) -> None:
        self.coordinator = Coordinator(context, settings, self._ask)
        self.handlers: Mapping[type[Request], Handler] = handlers(self.coordinator)
        self._hello = Hello(client_id=f"broker-{context.replicas.around.me}")
        self._address_of = address_of
        self._bounds = bounds
        self._spawn = spawn
        self._to_do = asyncio.Event()
        """There is something to load, or something that needs to be told the time before `_next_ms`."""
        self._next_ms = 0
        self._now_ms = context.clocks.now_ms
        self.coordinator.sooner = self._sooner

    def begin(self) -> None:
        """The broker's roles are taken: groups that it leads already are loaded."""
        self.coordinator.begin()
        self._to_do.set()

    def adopt(self, changes: Changes) -> None:
        """The replicas have taken over a batch of the metadata log."""
        held_nothing = not self.coordinator.held
        if self.coordinator.adopt(changes) or (held_nothing and self.coordinator.held):
            self._to_do.set()

    async def run(self) -> None:
        """Load what is to be loaded, and tell the time."""
        while True:
            while self.coordinator.load_some():  # noqa: ASYNC110 -- others have their turn between two pieces
                await asyncio.sleep(0)
            self.coordinator.tick()
            self._to_do.clear()
            now_ms = self._now_ms()
            next_ms = self.coordinator.next_ms(now_ms + SOON_MS, now_ms + LISTENS_MS)
            self._next_ms = now_ms + LISTENS_MS if next_ms is None else next_ms
            with suppress(TimeoutError):
                async with asyncio.timeout(None if next_ms is None else (next_ms - now_ms) / 1000):
                    await self._to_do.wait()

    def _sooner(self, due_ms: int) -> None:
        if due_ms < self._next_ms:
            self._to_do.set()

    def _ask(self, broker: BrokerId, request: Request, timeout_ms: int, heard: Heard) -> None:
        address = self._address_of(broker)
        if address is None:
            heard(ConnectionFailed(f"nobody knows where broker {broker} is"), b"")
            return
        self._spawn(self._ask_at(address, request, timeout_ms, heard))

    async def _ask_at(
        self, address: tuple[str, int], request: Request, timeout_ms: int, heard: Heard
    ) -> None:
        try:
            connection = await connect(*address, self._hello, bounds=self._bounds, timeout_ms=timeout_ms)
            try:
                reply, attachment = await connection.call(request, timeout_ms=timeout_ms)
            finally:
                connection.close()
        except TidelogError as error:
            heard(error, b"")
            return
        heard(reply, attachment)
