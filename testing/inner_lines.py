"""The connections of a node inside a test's process, each with whatever is wrong between its two ends.

Bytes go straight from the outer transport to the node and back as long as nothing is wrong. Else they wait here or in
the kernel until they may be heard; what is said to a client waits at the node's own end.
"""

import asyncio
import contextlib
import socket
import struct
from asyncio import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

from tidelog.testing.links import CLIENTS, GOOD, Link, Links

_SCRATCH_BYTES = 64 << 10
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing tears the connection down."""


class Halted(BaseException):
    """The node has ended itself, and is dead already. Not an `Exception`: the dead handle no errors."""


class Net:
    """What the nodes of one cluster have in common: the links between them, and who is at which end of a socket."""

    def __init__(self) -> None:
        self.links = Links()
        self.ports: dict[int, str] = {}
        """Which node listens where."""
        self.callers: dict[tuple[Any, ...], str] = {}
        """Which node has called from where."""


class Owner(Protocol):
    """The loop of the node that holds a line."""

    name: str
    net: Net
    outer: asyncio.AbstractEventLoop
    paused: bool
    dead: bool
    lines: "set[Line]"

    def entered(self) -> AbstractContextManager[None]:
        """Code of this node runs."""
        ...

    def time(self) -> float:
        """The time."""
        ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        """In the node's next turn."""
        ...

    def create_future(self) -> "asyncio.Future[Any]":
        """A future of this loop."""
        ...


class Line(asyncio.BufferedProtocol, asyncio.Transport):
    """One end of a connection, held by a node: the outer transport's protocol, and the node's transport.

    `peer` is who is at the other end; a node that was called finds out with the first bytes.
    """

    def __init__(self, loop: Owner, factory: Callable[[], Any], peer: str | None) -> None:
        super().__init__()
        self.made = loop.create_future()
        """When the node has been told."""
        self._loop = loop
        self._factory = factory
        self._protocol: Any = None
        self._peer = peer
        self._real: Any = None
        self._name: tuple[Any, ...] = ()
        self._view = memoryview(b"")
        self._scratch: bytearray | None = None
        self._arrived: deque[tuple[float, bytes | None, Exception | None]] = deque()
        """What waits to be told: when it may be, and what; None: the end, and why."""
        self._leaving: deque[tuple[float, bytes]] = deque()
        """What waits to be sent to a client: from nodes it is their own end that holds it back."""
        self._timer: asyncio.TimerHandle | None = None
        self._wanted = True
        self._reads = True
        self._hung_up = False
        self._full = self._kept_full = False
        self._ended = False

    # ── what is wrong with it ─────────────────────────────────────────────────────────────────────

    def _incoming(self) -> Link:
        return self._loop.net.links.between(self._peer or CLIENTS, self._loop.name)

    def _outgoing(self) -> Link:
        return self._loop.net.links.between(self._loop.name, CLIENTS)

    def _meet(self) -> str:
        """Whoever calls has said its name to `Net` before its first byte."""
        if self._peer is None:
            self._peer = self._loop.net.callers.get(self._real.get_extra_info("peername"), CLIENTS)
        return self._peer

    def sync(self) -> None:
        """Do what may be done by now."""
        if self._real is None or self._ended:
            self._tell()
            return
        if self._peer is not None and self._loop.net.links.are_reset(self._loop.name, self._peer):
            self.tear_down()
            return
        self._tell()
        self._send()
        self._read_or_not()

    def _read_or_not(self) -> None:
        reads = self._wanted and not (
            self._loop.paused or self._incoming().dropped or len(self._arrived) > 64
        )
        if reads != self._reads and not self._real.is_closing():
            self._reads = reads
            self._unless_closed(self._real.resume_reading if reads else self._real.pause_reading)

    @staticmethod
    def _unless_closed(action: Callable[[], object]) -> None:
        """A transport may have ended before anybody was told: uvloop's says then that it cannot do anything."""
        with contextlib.suppress(RuntimeError):
            action()

    def tear_down(self) -> None:
        """At once, and the other side hears it."""
        if self._real is not None and not self._real.is_closing():
            its_socket = self._real.get_extra_info("socket")
            if its_socket is not None:
                with contextlib.suppress(OSError):
                    its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._hung_up = True
            self._real.abort()

    # ── what the outer loop tells ─────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._real = transport
        self._loop.lines.add(self)
        if self._peer is not None:
            self._name = transport.get_extra_info("sockname")
            self._loop.net.callers[self._name] = self._loop.name
        if self._loop.dead:
            self.tear_down()
            return
        if self._loop.paused:
            self._read_or_not()
            self._loop.call_soon(self._made)
        else:
            with self._loop.entered():
                self._made()

    def _made(self) -> None:
        self._protocol = self._factory()
        self._protocol.connection_made(self)
        if not self.made.done():
            self.made.set_result(None)
        self.sync()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: right to the node, unless they must wait."""
        if self._protocol is None or self._arrived or not self._wanted or self._incoming() is not GOOD:
            self._scratch = self._scratch or bytearray(_SCRATCH_BYTES)
            self._view = memoryview(self._scratch)
        else:
            self._view = self._protocol.get_buffer(sizehint)
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have arrived."""
        loop = self._loop
        if loop.dead:
            return
        if self._peer is None and loop.net.links.are_reset(loop.name, self._meet()):
            self.tear_down()
            return
        link = self._incoming()
        straight = not (self._scratch is not None and self._view.obj is self._scratch)
        if straight and link is GOOD and not loop.paused:
            before = _get_running_loop()
            _set_running_loop(cast("asyncio.AbstractEventLoop", loop))
            try:
                self._protocol.buffer_updated(nbytes)
            except Halted:
                pass
            finally:
                _set_running_loop(before)
            return
        self._arrived.append((loop.time() + link.delay_s, bytes(self._view[:nbytes]), None))
        self.sync()

    def eof_received(self) -> bool:
        """The other side has said all; ours are closed then."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over; the node is told when it may hear of it."""
        self._ended = True
        self._loop.net.callers.pop(self._name, None)
        if self._hung_up or exc is not None:
            self._arrived.clear()  # as a kernel does with what nobody has read by then
        due = self._loop.time() + (0.0 if self._hung_up else self._incoming().delay_s)
        self._arrived.append((due, None, exc))
        self._tell()

    def pause_writing(self) -> None:
        """The kernel has enough."""
        self._full = True
        if not self._kept_full:
            self._say(self._protocol.pause_writing)

    def resume_writing(self) -> None:
        """The kernel takes more."""
        self._full = False
        if not self._kept_full:
            self._say(self._protocol.resume_writing)

    def _say(self, words: Callable[[], None]) -> None:
        if self._loop.paused:
            self._loop.call_soon(words)
        else:
            with self._loop.entered():
                words()

    def _tell(self) -> None:
        """What has arrived and may be heard by now."""
        loop = self._loop
        while self._arrived and not loop.paused and (self._protocol is not None or loop.dead):
            due, data, error = self._arrived[0]
            mine = self._hung_up and data is None
            if not (mine or loop.dead):
                if self._incoming().dropped or (data is not None and not self._wanted):
                    return
                if due > loop.time() + 0.0005:
                    self._wake_at(due)
                    return
            self._arrived.popleft()
            if self._protocol is None:
                continue
            with loop.entered():
                if data is None:
                    loop.lines.discard(self)
                    self._protocol.connection_lost(error)
                elif not loop.dead:
                    self._hand_over(memoryview(data))
        if self._ended and not self._arrived:
            loop.lines.discard(self)
        elif self._real is not None and not self._ended:
            self._read_or_not()

    def _hand_over(self, data: memoryview) -> None:
        while data:
            view = self._protocol.get_buffer(-1)
            size = min(len(view), len(data))
            view[:size] = data[:size]
            self._protocol.buffer_updated(size)
            data = data[size:]
            if data and not self._wanted:
                self._arrived.appendleft((0.0, bytes(data), None))
                return

    def _wake_at(self, when: float) -> None:
        if self._timer is None:
            self._timer = self._loop.outer.call_at(when, self._wake)

    def _wake(self) -> None:
        self._timer = None
        if self._ended:
            self._tell()
        else:
            self.sync()

    # ── what the node does ────────────────────────────────────────────────────────────────────────

    def write(self, data: Any) -> None:
        """Send."""
        if self._loop.dead:
            return
        if self._peer_is_client() and (self._leaving or self._outgoing() is not GOOD):
            self._leaving.append((self._loop.time() + self._outgoing().delay_s, bytes(data)))
            if not self._kept_full and not self._full:
                self._loop.call_soon(self._keep_full)
            self._send()
            return
        self._real.write(data)

    def writelines(self, list_of_data: Any) -> None:
        """Send several."""
        if self._loop.dead:
            return
        if self._peer_is_client() and (self._leaving or self._outgoing() is not GOOD):
            self.write(b"".join(list_of_data))
            return
        self._real.writelines(list_of_data)

    def _peer_is_client(self) -> bool:
        return self._peer in {None, CLIENTS}

    def _keep_full(self) -> None:
        if self._leaving and not self._kept_full and not self._full and not self._ended:
            self._kept_full = True
            self._protocol.pause_writing()

    def _send(self) -> None:
        """To a client, what may leave by now."""
        while self._leaving and not self._ended and not self._loop.paused:
            due, data = self._leaving[0]
            if self._outgoing().dropped:
                return
            if due > self._loop.time() + 0.0005:
                self._wake_at(due)
                return
            self._leaving.popleft()
            if not self._real.is_closing():
                self._real.write(data)
        if self._kept_full and not self._leaving and not self._ended:
            self._kept_full = False
            if not self._full:
                self._say(self._protocol.resume_writing)

    def close(self) -> None:
        """Send what was written, then close."""
        self._hung_up = True
        self._real.close()

    def abort(self) -> None:
        """Close now."""
        self._hung_up = True
        self._real.abort()

    def is_closing(self) -> bool:
        """Whether it is over."""
        return self._loop.dead or cast("bool", self._real.is_closing())

    def pause_reading(self) -> None:
        """The node has enough."""
        self._wanted = False
        self._read_or_not()

    def resume_reading(self) -> None:
        """The node takes more."""
        self._wanted = True
        if self._arrived:
            self._loop.call_soon(self.sync)
        else:
            self._read_or_not()

    def is_reading(self) -> bool:
        """Whether the node wants bytes."""
        return self._wanted

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the outer transport has it."""
        return self._real.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When there is enough to send."""
        self._unless_closed(lambda: self._real.set_write_buffer_limits(high=high, low=low))

    def get_write_buffer_size(self) -> int:
        """What is not sent yet."""
        unsent = (
            0 if self._ended or self._real.is_closing() else cast("int", self._real.get_write_buffer_size())
        )
        return unsent + sum(len(data) for _, data in self._leaving)

    def can_write_eof(self) -> bool:
        """Nobody here does."""
        return False
