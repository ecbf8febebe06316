"""The other controllers: calls to them, and whether a process is there at all (DECISIONS 3, 24)."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from tidelog.controller.following import Address
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import ConnectionFailed, RequestTimedOut, TidelogError
from tidelog.protocol.io import Connection, connect
from tidelog.protocol.messages import Hello, Reply, Request
from tidelog.protocol.types import BrokerId

logger = logging.getLogger(__name__)

PROBES: Final = 2
PROBES_MOST: Final = 6
PROBE_PAUSE_S: Final = 0.05
PROBE_TIMEOUT_MS: Final = 1000


class Peers:
    """A connection to each of them, made when it is needed and kept."""

    def __init__(self, addresses: Mapping[BrokerId, Address], hello: Hello, bounds: Bounds) -> None:
        self.hello = hello
        """How this controller introduces itself."""
        self._addresses = dict(addresses)
        self._bounds = bounds
        self._connections: dict[BrokerId, Connection] = {}

    async def call(self, to: BrokerId, request: Request, timeout_ms: float) -> Reply:
        """Its reply. Raises what it refused with, or why it could not be asked."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        connection = self._connections.get(to)
        if connection is None or connection.closed:
            host, port = self._addresses[to]
            connection = await connect(host, port, self.hello, bounds=self._bounds, timeout_ms=timeout_ms)
            replaced, self._connections[to] = self._connections.get(to), connection
            if replaced is not None:
                replaced.close()
        try:
            reply, _ = await connection.call(request, timeout_ms=max(deadline - loop.time(), 0) * 1000)
        except RequestTimedOut:
            # Perhaps only the way there is dead: the next call finds another one, or hears that there is none.
            connection.abort()
            raise
        return reply

    async def heard(self, to: BrokerId, request: Request, timeout_ms: float) -> Reply | None:
        """Its reply, if there is one."""
        try:
            return await self.call(to, request, timeout_ms)
        except TidelogError as error:
            logger.info("quorum.unheard id=%d error=%r", to, str(error))
            return None

    def close(self) -> None:
        """Hang up."""
        for connection in self._connections.values():
            connection.close()


async def is_gone(address: Address, is_wanted: Callable[[], bool], bounds: Bounds) -> bool:
    """Whether nobody listens there: connections are refused, twice.

    One that is answered, runs into its time-out or finds the host unreachable proves nothing, and is the last. One that
    is accepted and ended proves nothing either, but is asked about again: the kernel closes the sockets of a killed
    process one after the other, and the one that it listened on is among the last. Given up as soon as nobody wants to
    know any more.
    """
    host, port = address
    refusals = 0
    for attempt in range(PROBES_MOST):
        if attempt:
            await asyncio.sleep(PROBE_PAUSE_S)
        if not is_wanted():
            return False
        try:
            connection = await connect(host, port, bounds=bounds, timeout_ms=PROBE_TIMEOUT_MS)
        except ConnectionFailed as error:
            cause = error.__cause__
            if isinstance(cause, ConnectionRefusedError):
                refusals += 1
                if refusals == PROBES:
                    return is_wanted()
            elif cause is None or isinstance(cause, ConnectionError):
                refusals = 0
            else:
                return False
        except TidelogError:
            return False
        else:
            connection.close()
            return False
    return False
