"""Which broker is on which connection, and whether one that has hung up is dead (DECISIONS 3).

A process that dies is noticed by its closed connection: when its port refuses as well, nobody is there. A port that
accepts or says nothing proves nothing, and the broker is fenced by its silence.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeAlias

from tidelog.controller.active import Active
from tidelog.controller.peers import is_gone
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.io import Incoming, ServerConnection
from tidelog.protocol.types import BrokerId, Epoch

Drive: TypeAlias = Callable[[Generator[None, None, None]], Awaitable[None]]
"""Carries out steps as long as the leadership lasts."""


class Contacts:
    """The brokers that are connected to this controller, as long as one leadership lasts.

    `fenced` says how often each was fenced because its port refused: this counts on.
    """

    def __init__(
        self,
        active: Active,
        is_active: Callable[[], bool],
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        drive: Drive,
        fenced: dict[BrokerId, int],
        bounds: Bounds,
    ) -> None:
        self._active = active
        self._is_active = is_active
        self._spawn = spawn
        self._drive = drive
        self._fenced = fenced
        self._bounds = bounds
        self._connections: dict[BrokerId, ServerConnection] = {}

    def heard_on(self, broker: BrokerId, incoming: Incoming) -> None:
        """A registration or a heartbeat of it came on that connection."""
        connection = incoming.connection
        if self._connections.get(broker) is not connection:
            self._connections[broker] = connection
            if connection.closed:
                self._lost(broker, connection)
            else:
                connection.on_closed(lambda: self._lost(broker, connection))

    def suspect_all(self) -> None:
        """At the beginning nobody is connected: whoever counts as alive is looked for."""
        for broker, state in self._active.image.brokers.items():
            if not state.fenced:
                self._suspect(broker, state.epoch)

    def _lost(self, broker: BrokerId, connection: ServerConnection) -> None:
        if self._connections.get(broker) is connection:
            del self._connections[broker]
            known = self._active.image.brokers.get(broker)
            if self._is_active() and known is not None and not known.fenced:
                self._suspect(broker, known.epoch)

    def _suspect(self, broker: BrokerId, epoch: Epoch) -> None:
        self._spawn(self._probe(broker, epoch))

    async def _probe(self, broker: BrokerId, epoch: Epoch) -> None:
        known = self._active.image.brokers.get(broker)
        if known is None:
            return

        def is_wanted() -> bool:
            now = self._active.image.brokers.get(broker)
            counts_as_alive = now is not None and now.epoch == epoch and not now.fenced
            return self._is_active() and counts_as_alive and broker not in self._connections

        if await is_gone((known.host, known.port), is_wanted, self._bounds):
            self._fenced[broker] = self._fenced.get(broker, 0) + 1
            await self._drive(self._active.fence(broker, epoch))
