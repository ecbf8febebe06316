"""Transports and servers: what asyncio's protocols see of simulated sockets.

What it keeps true, as asyncio's documentation promises and its socket transports do:

* connection_made, then data, then at most one eof_received, then connection_lost, once; nothing after that.
* A read happens in the host's own turn, when the loop tells of it; between get_buffer and buffer_updated nothing else
  runs, so that connections may share a buffer.
* What the kernel does not take is kept by reference, not copied, as Python 3.12 and uvloop do: who changes a buffer
  that was written changes what is sent.
* pause_writing above the high mark, resume_writing at the low mark, alternately.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, cast

from tidelog.testing.simulation.sockets import Endpoint, Listener

_READ_BYTES: Final = 256 * 1024
_HIGH_BYTES: Final = 64 * 1024


class IoLoop(Protocol):
    """What a transport needs of its loop."""

    def call_io(self, callback: Callable[..., object], *args: object) -> object:
        """Call back in the next turn, in this order, as for sockets that have become ready."""
        ...

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report what nobody caught."""
        ...


class SimulatedTransport(asyncio.Transport):
    """One end of a connection, for a Protocol or a BufferedProtocol."""

    def __init__(
        self,
        loop: IoLoop,
        endpoint: Endpoint,
        protocol: asyncio.BaseProtocol,
        on_lost: Callable[["SimulatedTransport"], None] | None = None,
    ) -> None:
        super().__init__({"peername": endpoint.peer, "sockname": endpoint.address, "socket": None})
        self._loop = loop
        self._endpoint = endpoint
        self._on_lost = on_lost
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._writing_paused = False
        self._write_due = False
        self._eof_written = False
        self._reading = False
        self._paused = False
        self._read_due = False
        self._eof_read = False
        self._closing = False
        self._lost = False
        self.set_protocol(protocol)

    def begin(self, waiter: "asyncio.Future[None] | None" = None) -> None:
        """Introduce the transport to its protocol, then read; then tell who waits for both."""
        self._endpoint.watcher = self
        self._loop.call_io(self._protocol.connection_made, self)
        self._loop.call_io(self._start_reading)
        if waiter is not None:
            self._loop.call_io(_finish, waiter)

    def __repr__(self) -> str:
        ends = f"{self._endpoint.address} to {self._endpoint.peer}"
        return f"<SimulatedTransport {ends}{' closing' if self._closing else ''}>"

    # ── asyncio.BaseTransport ──────────────────────────────────────────────────────────────────────

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Whom to tell from now on."""
        self._protocol = protocol
        self._buffered = protocol if isinstance(protocol, asyncio.BufferedProtocol) else None

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who is told."""
        return self._protocol

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._closing

    def close(self) -> None:
        """Read no more, send what was written, then close."""
        if self._closing:
            return
        self._closing = True
        if not self._unsent:
            self._loop.call_io(self._call_lost, None)

    # ── reading ────────────────────────────────────────────────────────────────────────────────────

    def is_reading(self) -> bool:
        """Whether data is handed to the protocol."""
        return self._reading and not self._paused and not self._closing

    def pause_reading(self) -> None:
        """Leave what arrives in the kernel."""
        if not self._closing:
            self._paused = True

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        if self._paused and not self._closing:
            self._paused = False
            self.on_readable()

    def on_readable(self) -> None:
        """The kernel has something for us."""
        if not self._read_due and self._may_read():
            self._read_due = True
            self._loop.call_io(self._read)

    def _may_read(self) -> bool:
        # Paused, a broken connection is not noticed; closing, only what was written counts.
        return (
            self._reading
            and not (self._paused or self._closing or self._eof_read)
            and self._endpoint.readable
        )

    def _start_reading(self) -> None:
        self._reading = True
        self.on_readable()

    def _read(self) -> None:
        self._read_due = False
        if not self._may_read():
            return
        what = "get_buffer"
        try:
            into = None
            if self._buffered is not None:
                into = memoryview(self._buffered.get_buffer(-1)).cast("B")
                if not len(into):
                    raise RuntimeError("get_buffer returned an empty buffer")
            what = "a read"
            data = self._endpoint.receive(_READ_BYTES if into is None else len(into))
            if not data:
                what = "eof_received"
                self._read_end()
            elif self._buffered is not None and into is not None:
                what = "buffer_updated"
                into[: len(data)] = data
                self._buffered.buffer_updated(len(data))
            else:
                what = "data_received"
                cast("asyncio.Protocol", self._protocol).data_received(bytes(data))
        except Exception as error:  # noqa: BLE001 -- a transport outlives no error of its protocol, whatever it is
            self._fail(error, what)
        else:
            self.on_readable()

    def _read_end(self) -> None:
        self._eof_read = True
        keep_open = cast("asyncio.Protocol", self._protocol).eof_received()
        if not keep_open:
            self.close()

    # ── writing ────────────────────────────────────────────────────────────────────────────────────

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When to pause and resume the protocol's writing."""
        if high is None:
            high = _HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}) must be >= 0")
        self._high, self._low = high, low
        self._pause_if_full()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """The low and the high mark."""
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        """What the kernel has not taken yet."""
        return self._unsent_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send this, now or when the kernel takes it."""
        if type(data) is not bytes or self._unsent or self._closing or self._eof_written or not data:
            self.writelines((data,))
            return
        try:
            taken = self._endpoint.send(memoryview(data))
        except OSError as error:
            self._fail(error, "a write")
            return
        if taken < len(data):
            self._unsent.append(memoryview(data)[taken:])
            self._unsent_bytes = len(data) - taken
            self._pause_if_full()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send these one behind the other."""
        views = []
        for data in list_of_data:
            if not isinstance(data, bytes | bytearray | memoryview):
                raise TypeError(f"data must be bytes, bytearray or memoryview, not {type(data).__name__}")
            views.append(memoryview(data).cast("B"))
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._lost or (self._closing and not self._unsent):
            return
        was_empty = not self._unsent
        for view in views:
            if len(view):
                self._unsent.append(view)
                self._unsent_bytes += len(view)
        if was_empty:
            self._send()
        self._pause_if_full()

    def can_write_eof(self) -> bool:
        """A connection may be closed by halves."""
        return True

    def write_eof(self) -> None:
        """Send the end behind what was written, and go on reading."""
        if self._closing or self._eof_written:
            return
        self._eof_written = True
        if not self._unsent:
            self._endpoint.shut_down()

    def abort(self) -> None:
        """Close without sending what the kernel has not taken."""
        self._force_close(None)

    def on_writable(self) -> None:
        """The kernel has room again."""
        if self._unsent and not self._write_due:
            self._write_due = True
            self._loop.call_io(self._write_on)

    def _send(self) -> None:
        """Hand over what the kernel takes."""
        try:
            while self._unsent:
                first = self._unsent[0]
                taken = self._endpoint.send(first)
                self._unsent_bytes -= taken
                if taken < len(first):
                    self._unsent[0] = first[taken:]
                    return
                self._unsent.popleft()
        except OSError as error:
            self._fail(error, "a write")

    def _write_on(self) -> None:
        self._write_due = False
        if self._lost or not self._unsent:
            return
        self._send()
        self._resume_if_drained()
        # The protocol may have written more when it was told to resume.
        if self._unsent or self._lost:
            return
        if self._closing:
            self._call_lost(None)
        elif self._eof_written:
            self._endpoint.shut_down()

    def _pause_if_full(self) -> None:
        if self._unsent_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            self._tell_protocol(self._protocol.pause_writing)

    def _resume_if_drained(self) -> None:
        if self._writing_paused and self._unsent_bytes <= self._low:
            self._writing_paused = False
            self._tell_protocol(self._protocol.resume_writing)

    def _tell_protocol(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 -- reported, as by asyncio
            self._report(error, f"protocol.{callback.__name__}() failed")

    # ── the end ────────────────────────────────────────────────────────────────────────────────────

    def on_death(self) -> None:
        """The process is gone, and nobody is left to be told."""
        self._closing = self._lost = True
        self._drop()

    def _fail(self, error: Exception, what: str) -> None:
        if not isinstance(error, OSError):
            self._report(error, f"Fatal error: {what} failed")
        self._force_close(error)

    def _force_close(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._drop()
        self._closing = self._lost = True
        self._loop.call_io(self._call_lost, error)

    def _drop(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0

    def _call_lost(self, error: Exception | None) -> None:
        if self._endpoint.watcher is None:
            return
        self._lost = True
        self._endpoint.watcher = None
        try:
            self._protocol.connection_lost(error)
        finally:
            self._endpoint.close()
            if self._on_lost is not None:
                self._on_lost(self)

    def _report(self, error: Exception, message: str) -> None:
        self._loop.call_exception_handler(
            {"message": message, "exception": error, "transport": self, "protocol": self._protocol}
        )


class SocketName:
    """As much of a listening socket as people ask a server for."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        """Where it listens."""
        return self._address


class SimulatedServer(asyncio.AbstractServer):
    """A listening port and the connections that came in by it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        io: IoLoop,
        factory: Callable[[], asyncio.BaseProtocol],
        listen: Callable[[Callable[[], None]], Listener],
        host: str,
    ) -> None:
        self._loop = loop
        self._io = io
        self._factory = factory
        self._host = host
        self._transports: dict[SimulatedTransport, None] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._forever: asyncio.Future[None] | None = None
        self._serving = False
        self._accept_due = False
        self._listener = listen(self._on_acceptable)

    @property
    def sockets(self) -> tuple[SocketName, ...]:
        """The listening socket, or none when closed."""
        return () if self._listener.closed else (SocketName((self._host, self._listener.port)),)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop it belongs to."""
        return self._loop

    def is_serving(self) -> bool:
        """Whether it accepts connections."""
        return self._serving and not self._listener.closed

    async def start_serving(self) -> None:
        """Accept from now on."""
        self.accept()

    def accept(self) -> None:
        """Accept from now on, and those who are waiting."""
        self._serving = True
        self._on_acceptable()

    async def serve_forever(self) -> None:
        """Accept until cancelled, then close."""
        self.accept()
        self._forever = self._loop.create_future()
        try:
            await self._forever
        finally:
            self._forever = None
            self.close()

    def close(self) -> None:
        """Accept nobody any more; open connections stay open."""
        self._listener.close()
        if self._forever is not None:
            self._forever.cancel()
        self._wake_if_over()

    def close_clients(self) -> None:
        """Close every connection that came in."""
        for transport in list(self._transports):
            transport.close()

    def abort_clients(self) -> None:
        """Cut every connection off that came in."""
        for transport in list(self._transports):
            transport.abort()

    async def wait_closed(self) -> None:
        """Until it is closed and all its connections have ended, as from Python 3.12 on."""
        if not self._listener.closed or self._transports:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def _on_acceptable(self) -> None:
        if self._serving and self._listener.backlog and not self._accept_due:
            self._accept_due = True
            self._io.call_io(self._accept)

    def _accept(self) -> None:
        self._accept_due = False
        while self._listener.backlog:
            endpoint = self._listener.backlog.popleft()
            try:
                protocol = self._factory()
            except Exception as error:  # noqa: BLE001 -- one bad connection must not end the listening
                endpoint.close()
                self._io.call_exception_handler({"message": "Error on accepting", "exception": error})
                continue
            transport = SimulatedTransport(self._io, endpoint, protocol, self._on_lost)
            self._transports[transport] = None
            transport.begin()

    def _on_lost(self, transport: SimulatedTransport) -> None:
        self._transports.pop(transport, None)
        self._wake_if_over()

    def _wake_if_over(self) -> None:
        if self._listener.closed and not self._transports:
            for waiter in self._waiters:
                _finish(waiter)
            self._waiters.clear()


def _finish(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
