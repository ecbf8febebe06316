"""A loopback proxy in front of each node: who speaks to whom is heard from the first frame, and may be cut or late.

    python -m tidelog.testing.proxying        commands as JSON lines on stdin, an answer to each on stdout

    {"proxies": [["b1", 40001, 50001], ...]}  stand at the first port for the node at the second
    {"open": "b1"}, {"close": "b1"}           the node runs; it is gone, and the port refuses as its own would
    {"links": [["b1", "b2", "drop", 0.0]]}    all that is wrong, in the words of `links`

What it keeps true:

* Without faults bytes pass as they come, and an end or a reset of one side is one of the other.
* What a cut link loses waits and arrives when it is healed, as TCP would repeat it: a stream has no gaps.
* A port refuses exactly while its node's own does, and before the ends of the node's connections are passed on: a
  controller takes a refusal for death, and a port that accepts for life (DECISIONS 3).
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from tidelog.protocol.errors import TidelogError
from tidelog.protocol.framing import LENGTHS, MAGIC, PREAMBLE
from tidelog.protocol.io import run
from tidelog.protocol.messages import Hello, decode_request
from tidelog.testing.links import CLIENTS, Link, Links
from tidelog.testing.ports import HOST

_RESET = struct.pack("ii", 1, 0)
_QUEUE_BYTES = 1 << 20
_HELLO_BYTES = 64 << 10
_HELLO_S = 30.0
_ROLES = {"broker": "b", "controller": "c"}


def who_says(opening: bytes) -> str | None:
    """Who calls with these first bytes; None: it is not said yet."""
    if opening[: len(MAGIC)] != MAGIC[: len(opening)] or len(opening) > _HELLO_BYTES:
        return CLIENTS
    start = len(PREAMBLE)
    if len(opening) < start + LENGTHS.size:
        return None
    _, head_length = LENGTHS.unpack_from(opening, start)
    begin = start + LENGTHS.size
    if len(opening) < begin + head_length:
        return None if head_length <= _HELLO_BYTES else CLIENTS
    try:
        _, message = decode_request(memoryview(opening)[begin : begin + head_length])
    except TidelogError:
        return CLIENTS
    if not isinstance(message, Hello):
        return CLIENTS
    role, _, number = message.client_id.partition("-")
    return f"{_ROLES[role]}{number}" if role in _ROLES and number.isdecimal() else CLIENTS


class _Half(asyncio.Protocol):
    """One socket of a pair."""

    def __init__(self, arrived: Callable[[bytes], None], ended: Callable[[bool], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.full = False
        self.on_room: Callable[[], None] = lambda: None
        self._arrived = arrived
        self._ended = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast("asyncio.Transport", transport)
        its_socket = transport.get_extra_info("socket")
        if its_socket is not None:
            with contextlib.suppress(OSError):
                its_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Bytes."""
        self._arrived(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._ended(exc is not None)

    def pause_writing(self) -> None:
        """The other side does not read."""
        self.full = True
        self.on_room()

    def resume_writing(self) -> None:
        """It reads again."""
        self.full = False
        self.on_room()

    def let_go(self, *, reset: bool) -> None:
        """Hang up."""
        if self.transport is None or self.transport.is_closing():
            return
        if not reset:
            self.transport.close()
            return
        its_socket = self.transport.get_extra_info("socket")
        if its_socket is not None:
            with contextlib.suppress(OSError):
                its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()


class _Way:
    """One direction of a pair: what has arrived and may not go on yet."""

    def __init__(self, link: Callable[[], Link], source: _Half, sink: _Half) -> None:
        self._link = link
        self._source = source
        self._sink = sink
        self._waiting: deque[tuple[float, bytes | None, bool]] = deque()
        self._bytes = 0
        self._reads = True
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        sink.on_room = self.pump

    def put(self, data: bytes | None, *, reset: bool = False) -> None:
        """More of it; None: the end."""
        link = self._link()
        if (
            data is not None
            and not self._waiting
            and link.cut is None
            and not link.delay_s
            and self._may_write
        ):
            assert self._sink.transport is not None
            self._sink.transport.write(data)
            return
        self._waiting.append((self._loop.time() + link.delay_s, data, reset))
        self._bytes += len(data or b"")
        self.pump()

    @property
    def _may_write(self) -> bool:
        transport = self._sink.transport
        return transport is not None and not transport.is_closing() and not self._sink.full

    def pump(self) -> None:
        """Let go on what may."""
        while self._waiting and self._sink.transport is not None and not self._link().dropped:
            due, data, reset = self._waiting[0]
            if due > self._loop.time() + 0.0005:
                if self._timer is None:
                    self._timer = self._loop.call_at(due, self._wake)
                break
            if data is not None and self._sink.full:
                break
            self._waiting.popleft()
            self._bytes -= len(data or b"")
            if data is None:
                self._sink.let_go(reset=reset)
            elif not self._sink.transport.is_closing():
                self._sink.transport.write(data)
        self._read_or_not()

    def _wake(self) -> None:
        self._timer = None
        self.pump()

    def _read_or_not(self) -> None:
        transport = self._source.transport
        reads = not (self._link().dropped or self._sink.full or self._bytes > _QUEUE_BYTES)
        if transport is not None and reads != self._reads and not transport.is_closing():
            self._reads = reads
            (transport.resume_reading if reads else transport.pause_reading)()


class _Pair:
    """A caller's connection and the one to the node that belongs to it."""

    def __init__(self, proxy: "_Proxy") -> None:
        self._proxy = proxy
        self._name: str | None = None
        self._opening = b""
        self._called = False
        self.caller = _Half(self._from_caller, lambda reset: self._lost(self._in, reset=reset))
        self.node = _Half(self._from_node, self._node_has_ended)
        self._in = _Way(lambda: self._link(self._name or CLIENTS, proxy.name), self.caller, self.node)
        self._out = _Way(lambda: self._link(proxy.name, self._name or CLIENTS), self.node, self.caller)
        self._late = asyncio.get_running_loop().call_later(_HELLO_S, self._too_late)
        proxy.pairs.add(self)

    def _link(self, sender: str, receiver: str) -> Link:
        return self._proxy.links.between(sender, receiver)

    def _too_late(self) -> None:
        if self._name is None:
            self.tear_down()

    def _from_caller(self, data: bytes) -> None:
        if self._name is None:
            self._opening += data
            self._name = who_says(self._opening)
            if self._name is None:
                return
            self._late.cancel()
            data, self._opening = self._opening, b""
        self._in.put(data)
        self.sync()

    def _from_node(self, data: bytes) -> None:
        self._out.put(data)

    def _node_has_ended(self, reset: bool) -> None:
        self._proxy.spawn(self._pass_on_the_end(self._proxy.server, reset=reset))

    async def _pass_on_the_end(self, server: asyncio.AbstractServer | None, *, reset: bool) -> None:
        if server is not None:
            await self._proxy.close_if_gone(server)
        self._lost(self._out, reset=reset)

    def sync(self) -> None:
        """Something about the links has changed."""
        if self._name is None:
            return
        if self._proxy.links.are_reset(self._name, self._proxy.name):
            self.tear_down()
            return
        if not self._called and not self._link(self._name, self._proxy.name).dropped:
            self._called = True
            self._proxy.spawn(self._call())
        self._in.pump()
        self._out.pump()

    async def _call(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.node, HOST, self._proxy.target)
        except OSError:
            self.tear_down()
        else:
            if self not in self._proxy.pairs:  # the caller has gone meanwhile
                self.node.let_go(reset=True)
            self.sync()

    def _lost(self, way: _Way, *, reset: bool) -> None:
        way.put(None, reset=reset)
        ends = [half.transport for half in (self.caller, self.node)]
        if all(transport is None or transport.is_closing() for transport in ends):
            self._late.cancel()
            self._proxy.pairs.discard(self)

    def tear_down(self) -> None:
        """Both sides hear a reset."""
        self.caller.let_go(reset=True)
        self.node.let_go(reset=True)


class _Proxy:
    """The door of one node."""

    def __init__(self, name: str, port: int, target: int, links: Links) -> None:
        self.name = name
        self.target = target
        self.links = links
        self.pairs: set[_Pair] = set()
        self._port = port
        self.server: asyncio.AbstractServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        links.watch(self._changed)

    async def open(self) -> None:
        """The node runs."""
        if self.server is None:
            loop = asyncio.get_running_loop()
            self.server = await loop.create_server(lambda: _Pair(self).caller, HOST, self._port, backlog=1024)

    def close(self) -> None:
        """The node is gone."""
        server, self.server = self.server, None
        if server is not None:
            server.close()

    async def close_if_gone(self, server: asyncio.AbstractServer) -> None:
        """A connection of the node has ended: if its own port refuses, this one does before anybody hears of it.

        That is `server`, which was open then; one that was opened since for the next life stays.

        Whoever hears of the end asks here at once whether the node is dead, sooner than who has started it could say.
        """
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(
                asyncio.Protocol, HOST, self.target
            )
        except ConnectionRefusedError:
            if self.server is server:
                self.close()
        except OSError:
            return
        else:
            transport.abort()

    def spawn(self, work: Any) -> None:
        """Do that by the way."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _changed(self) -> None:
        for pair in list(self.pairs):
            pair.sync()


class Switchboard:
    """All proxies of a cluster, and what their commands mean."""

    def __init__(self) -> None:
        self.links = Links()
        self.proxies: dict[str, _Proxy] = {}

    async def obey(self, asked: dict[str, Any]) -> None:
        """One command."""
        for name, port, target in asked.get("proxies", ()):
            self.proxies[name] = _Proxy(name, port, target, self.links)
        if "open" in asked:
            await self.proxies[asked["open"]].open()
        if "close" in asked:
            self.proxies[asked["close"]].close()
        if "links" in asked:
            self.links.set_values(asked["links"])


async def _serve() -> None:
    """Command after command, until stdin ends: whoever has started this is gone then."""
    loop, board = asyncio.get_running_loop(), Switchboard()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        try:
            await board.obey(json.loads(line))
            answer: dict[str, Any] = {}
        except OSError as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run(_serve())
    sys.stdout.flush()
    os._exit(0)  # connections that are open are nobody's any more
