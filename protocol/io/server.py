"""The serving side: accept connections, hand each request to a handler, carry its answer back.

What it keeps true:

* Handlers are called synchronously from the protocol's callback, one request after the other; no task, no
  queue. A request may be answered during the call or at any later time, once.
* Each request that expects an answer gets one, or its connection ends: what a handler raises is answered.
* A connection is not read while it has too much unanswered, while its peer does not read, or while the node
  is full; frames that have arrived with others wait in the reader. So nothing here grows without a limit.
* Whatever arrives that is no request is answered with the reason where possible, and the connection closed.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast

from tidelog.protocol.bounds import Bounds
from tidelog.protocol.calls import ONE_WAY
from tidelog.protocol.errors import (
    ConnectionFailed,
    InvalidRequest,
    MalformedFrame,
    Throttled,
    TidelogError,
    UnknownServerError,
    UnsupportedVersion,
)
from tidelog.protocol.framing import GLIMPSE_BYTES, VERSION, Frame, FrameReader
from tidelog.protocol.io.outbox import BURST_FRAMES, Outbox
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import Hello, Refused, Reply, Request, decode_request, encode_head
from tidelog.protocol.patience import Patience, Sight
from tidelog.protocol.types import Buffer

logger = logging.getLogger(__name__)

_FOR_ANSWERS: Final = 1
_FOR_ROOM: Final = 2
_FOR_PEER: Final = 4
"""Why a connection is not read, as bits."""

_FLUSH_ABOVE_BYTES: Final = 512 * 1024


class Incoming:
    """A request that has arrived. `attachment` is valid only while the handler is being called."""

    __slots__ = ("_counted", "attachment", "connection", "correlation", "message", "owed")

    def __init__(
        self, connection: "ServerConnection", correlation: int, message: Request, attachment: memoryview
    ) -> None:
        self.connection = connection
        self.correlation = correlation
        self.message = message
        self.attachment = attachment
        self._counted = 0
        self.owed = correlation != ONE_WAY
        """Whether an answer is still expected."""

    @property
    def one_way(self) -> bool:
        """Whether no answer is expected; one that is given goes nowhere."""
        return self.correlation == ONE_WAY

    @property
    def closed(self) -> bool:
        """Whether nobody is there any more to be answered."""
        return self.connection.closed

    def reply(self, message: Reply, *attachments: Buffer) -> None:
        """Answer, now or later. Attachments from 64 KB on must not change any more (`Outbox.put`)."""
        if not self.owed:
            assert self.one_way, f"{self.message!r} was answered twice"
            return
        self.owed = False
        connection = self.connection
        if connection.closed:
            return
        outbox = connection.outbox
        outbox.put(encode_head(self.correlation, message), attachments)
        if (
            self._counted
            or not connection.consuming
            or outbox.frames >= BURST_FRAMES
            or outbox.unsent_bytes > _FLUSH_ABOVE_BYTES
        ):
            connection.answered(self._counted)

    def refuse(self, error: TidelogError) -> None:
        """Answer that the request as a whole was not served."""
        self.reply(Refused(error.code, str(error)))

    def count(self, size: int) -> None:
        """These bytes are held in the connection's share until the answer."""
        self._counted = size


Handler = Callable[[Incoming], None]
"""Serves a request; must not block."""


class ServerConnection(asyncio.BufferedProtocol):
    """One peer that has connected to us."""

    def __init__(self, listener: "Listener", handler: Handler, bounds: Bounds, came_in_by: str = "") -> None:
        self._listener = listener
        self.came_in_by = came_in_by
        """The name of the address that it came to; empty: the first, which brokers use as well."""
        self._handler = handler
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self.outbox: Outbox
        self.share = bounds.share(self._room)
        """What it holds of the node's memory. Raise its `allowance` for peers that others wait for."""
        self._reader = FrameReader(bounds.receive_buffer, bounds.pool, bounds.limits, self.share.reserve)
        self._patience = Patience(bounds.limits, self._loop.time() * 1000)
        self._entered = False
        self._greeted = False
        self._met = False
        self.consuming = False
        """Whether requests are being served: what is answered now leaves when the last of them was."""
        self._flush_due = False
        self.ending = False
        """Whether its last words were said: nothing more is served."""
        self._not_reading = self._held_back = self._unsent = 0
        self._reads = self._frames = self._drains = self.unanswered = 0
        self.received_bytes = 0
        self._on_closed: list[Callable[[], None]] = []
        self.closed = False
        """Whether nothing can be sent to the peer any more."""
        self.peer = ""
        """The other side's address."""
        self.context: Any = None
        """Whatever the handler wants to know about this peer from one request to the next."""

    def on_closed(self, callback: Callable[[], None]) -> None:
        """Call this when the connection has ended, for whatever reason."""
        self._on_closed.append(callback)

    def close(self) -> None:
        """Send what was put, then close; a peer that does not read has `linger_ms`."""
        if not self.ending and not self.closed:
            self._end()
            self.outbox.close()

    def _linger(self) -> None:
        """Send what was put and wait for the peer to hang up, at most `linger_ms`.

        To close with bytes unread would turn our last words into a reset: they are read and dropped.
        """
        if not self.ending and not self.closed:
            self._end()
            self.outbox.flush()
            self._transport.resume_reading()

    def _end(self) -> None:
        self.ending = True
        self._reader.hold()
        self.share.close()
        self._listener.ends_soon()

    def abort(self, reason: str) -> None:
        """Cut the connection off."""
        if not self.closed:
            logger.warning("connection.aborted peer=%s reason=%r", self.peer, reason)
            self.closed = True
            self._reader.hold()
            self.outbox.drop()
            self._transport.abort()

    # ------------------------------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has connected."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self.outbox = Outbox(self._transport, self._bounds.limits)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        self._listener.connections[self] = None
        self._entered = self._bounds.enter()
        if self._listener.closed:
            self._transport.abort()
        elif not self._entered:
            self._turn_away()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Neither side will send or hear any more."""
        self.closed = True
        self._listener.lost(self)
        if self._entered:
            self._bounds.leave()
        self.outbox.drop()
        self._reader.close()
        self._count_unsent(0)
        self._count_held_back(0)
        if not self.ending:
            self.share.close()
        for callback in self._on_closed:
            callback()
        self._on_closed.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self.ending:
            return self._bounds.receive_buffer.view
        view = self._reader.get_buffer(sizehint)
        return view[:GLIMPSE_BYTES] if self._bounds.reads_little else view

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have arrived there."""
        self._reads += 1
        self.received_bytes += nbytes
        if not self.ending:
            self._consume(nbytes)

    def pause_writing(self) -> None:
        """The transport has enough to send."""
        self.outbox.pause()
        self._stop_reading(_FOR_PEER)

    def resume_writing(self) -> None:
        """The transport has sent most of it."""
        self._drains += 1
        self.outbox.resume()
        self._count_unsent(self.outbox.unsent_bytes if self.outbox.paused else 0)
        if not self.outbox.paused:
            self._may_read(_FOR_PEER)

    # ------------------------------------------------------------------------------------------- requests in

    def _consume(self, nbytes: int) -> None:
        """Serve the frames that so many bytes complete; -1: those that were held back."""
        reader = self._reader
        self.consuming = True
        try:
            for frame in reader.release() if nbytes < 0 else reader.received(nbytes):
                self._frames += 1
                self._serve(frame)
        except (MalformedFrame, UnsupportedVersion) as error:
            self._end_with(error, ONE_WAY)
        finally:
            self.consuming = False
        if reader.holding or reader.wanted or self._held_back:
            self._count_held_back(reader.held_bytes)
        if reader.wanted:
            self.share.wait(reader.wanted)
            self._stop_reading(_FOR_ROOM)
        if not self._greeted and reader.version is not None:
            self._greet()
        if not self.closed:
            self.outbox.flush()

    def _serve(self, frame: Frame) -> None:
        counted = len(frame.head) + len(frame.attachment) if frame.owned else 0
        try:
            correlation, message = decode_request(frame.head)
        except UnsupportedVersion as error:
            self._refuse_unknown(error, counted)
        except MalformedFrame as error:
            self._end_with(error, error.correlation)
        else:
            if self._met or self._meet(message, correlation):
                self._handle(Incoming(self, correlation, message, frame.attachment), frame, counted)
        if frame.owned:
            self._reader.recycle(frame)

    def _handle(self, request: Incoming, frame: Frame, counted: int) -> None:
        if counted:
            request.count(counted)
            self.unanswered += 1
        try:
            self._handler(request)
        except TidelogError as error:
            self._refuse_for(request, error)
        except Exception:
            logger.exception("request.failed peer=%s request=%s", self.peer, type(request.message).__name__)
            self._refuse_for(
                request, UnknownServerError(f"{type(request.message).__name__} met an error that has no name")
            )
        if request.owed:
            self._owe(request, frame, counted)
        elif counted and request.one_way:
            self.answered(counted)

    def _owe(self, request: Incoming, frame: Frame, counted: int) -> None:
        """The request will be answered later: it counts until then."""
        if self.closed or self.ending:
            return
        room = True
        if not counted:
            size = frame.size
            request.count(size)
            self.unanswered += 1
            room = self.share.add(size)
        if self.unanswered >= self._bounds.limits.max_requests_in_flight:
            self._stop_reading(_FOR_ANSWERS)
        if not room and not self._not_reading & _FOR_ROOM:
            self.share.wait()
            self._stop_reading(_FOR_ROOM)

    def _refuse_for(self, request: Incoming, error: TidelogError) -> None:
        if request.owed:
            request.refuse(error)

    def answered(self, counted: int) -> None:
        """An answer was put: what its request held is free. Called by `Incoming`."""
        if counted and not self.ending:
            self.unanswered -= 1
            self.share.free(counted)
            if self.unanswered <= self._bounds.limits.max_requests_in_flight // 2:
                self._may_read(_FOR_ANSWERS)
        outbox = self.outbox
        if outbox.frames >= BURST_FRAMES or outbox.unsent_bytes > _FLUSH_ABOVE_BYTES:
            outbox.flush()
        elif self.consuming:
            pass
        elif not self.unanswered:
            # Nothing else is owed, so nothing is worth waiting for.
            outbox.flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        if outbox.paused:
            self._check_unsent()

    def _check_unsent(self) -> None:
        """Answers that nobody reads are counted, and have their limits."""
        bounds, unsent = self._bounds, self.outbox.unsent_bytes
        self._count_unsent(unsent)
        if unsent > bounds.limits.max_unsent_bytes:
            self.abort(f"{unsent} bytes are unsent, the limit is {bounds.limits.max_unsent_bytes}")
        elif bounds.unsent_bytes > bounds.limits.max_node_unsent_bytes:
            limit = bounds.limits.max_node_unsent_bytes
            self.abort(f"{bounds.unsent_bytes} bytes are unsent to all peers, the limit is {limit}")

    def _count_unsent(self, unsent: int) -> None:
        self._bounds.unsent_bytes += unsent - self._unsent
        self._unsent = unsent

    def _count_held_back(self, held: int) -> None:
        self._bounds.hold_back(held - self._held_back)
        self._held_back = held

    def _flush(self) -> None:
        self._flush_due = False
        if not self.closed:
            self.outbox.flush()

    # -------------------------------------------------------------------------------------- reading or not

    def _stop_reading(self, reason: int) -> None:
        """Stop behind the frame that is being served; those behind it wait in the reader."""
        if not self._not_reading:
            self._transport.pause_reading()
        self._not_reading |= reason
        self._reader.hold()

    def _may_read(self, reason: int) -> None:
        """That reason is gone. Requests that wait in the reader are served by the loop, not by who answered."""
        if self._not_reading & reason:
            self._not_reading &= ~reason
            if not self._not_reading:
                self._loop.call_soon(self._read_on)

    def _room(self) -> None:
        """The node has room again, and what this connection waited for is counted."""
        if self._reader.wanted:
            self._reader.admit()
        self._may_read(_FOR_ROOM)

    def _may_go_on(self) -> bool:
        return not (self._not_reading or self.ending or self.closed)

    def _read_on(self) -> None:
        if not self._may_go_on():
            return
        self._consume(-1)
        # Serving them may have changed any of these.
        if self._may_go_on():
            self._transport.resume_reading()

    # ------------------------------------------------------------------------------------ beginning and end

    def _greet(self) -> None:
        self._greeted = True
        self.outbox.put_preamble()

    def _meet(self, message: Request, correlation: int) -> bool:
        """The first request has to be Hello."""
        if not self._greeted:
            self._greet()
        self._met = isinstance(message, Hello)
        if not self._met:
            name = type(message).__name__
            self._end_with(InvalidRequest(f"the connection begins with {name} instead of Hello"), correlation)
        return self._met

    def _refuse_unknown(self, error: UnsupportedVersion, counted: int) -> None:
        """A request that only a newer tidelog knows: the connection goes on."""
        if not self._greeted:
            self._greet()
        if counted:
            self.share.free(counted)
        if error.correlation != ONE_WAY:
            self.outbox.put(encode_head(error.correlation, Refused(error.code, str(error))))

    def _end_with(self, error: TidelogError, correlation: int) -> None:
        """Say why, if the peer can understand it, and close."""
        logger.info("connection.refused peer=%s error=%s reason=%r", self.peer, error.name(), str(error))
        version = self._reader.version
        if version is None:
            # Not our protocol: no answer of ours would mean anything.
            self.close()
            return
        if not self._greeted:
            self._greet()
        if version == VERSION:
            self.outbox.put(encode_head(correlation, Refused(error.code, str(error))))
        self._linger()

    def _turn_away(self) -> None:
        """One connection too many: say so, unless too many are being told already."""
        bounds = self._bounds
        if self._listener.lingering >= bounds.limits.max_lingering_connections:
            self._transport.abort()
            return
        self._listener.lingering += 1
        self.on_closed(self._listener.lingered)
        error = Throttled(
            f"{bounds.connections} connections are open, the limit is {bounds.limits.max_connections}"
        )
        self._greet()
        self.outbox.put(encode_head(ONE_WAY, Refused(error.code, str(error))))
        self._linger()

    def sweep(self, now_ms: float) -> None:
        """Give up on the peer if it has been waited for too long."""
        reason = self._patience.look(
            now_ms,
            Sight(
                closing=self.ending,
                not_reading=self._not_reading != 0,
                clogged=self.outbox.paused,
                drains=self._drains,
                frames=self._frames,
                in_frame=self._reader.in_frame,
                reads=self._reads,
                unanswered=self.unanswered,
            ),
        )
        if reason and self.ending:
            # Why it ends has been said and logged.
            self._transport.abort()
        elif reason:
            self.abort(reason)


class Listener:
    """An open port, or several, and the connections that came in by them."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.host = ""
        self.port = 0
        self.connections: dict[ServerConnection, None] = {}
        self.lingering = 0
        self._received_bytes = self._sent_bytes = 0
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._handler: Handler
        self._servers: list[asyncio.AbstractServer] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sweep_s = 0.0
        self._empty: asyncio.Future[None] | None = None

    async def open(self, host: str, port: int, handler: Handler) -> None:
        """Begin to listen; port 0 takes a free one."""
        self._handler = handler
        self.host, self.port = await self.also("", host, port)
        self._sweep()

    async def also(self, name: str, host: str, port: int) -> tuple[str, int]:
        """Listen there as well: connections know the name that they came in by. Answers what was really bound."""
        try:
            server = await self._loop.create_server(
                lambda: ServerConnection(self, self._handler, self.bounds, name), host, port
            )
        except OSError as error:
            raise ConnectionFailed(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self._servers.append(server)
        bound_host, bound_port = server.sockets[0].getsockname()[:2]
        return bound_host, bound_port

    def close(self) -> None:
        """Accept nobody any more, and end the connections once what was answered has been sent."""
        if self.closed:
            return
        self.closed = True
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.close()
        self._end_if_empty()

    async def wait_closed(self) -> None:
        """Until the last connection has ended, at most `linger_ms` after `close`."""
        if self.connections or not self.closed:
            self._empty = self._empty or self._loop.create_future()
            await asyncio.shield(self._empty)

    @property
    def received_bytes(self) -> int:
        """All that has come in by these ports."""
        return self._received_bytes + sum(connection.received_bytes for connection in self.connections)

    @property
    def sent_bytes(self) -> int:
        """All that was handed to the kernel to go out by them."""
        return self._sent_bytes + sum(connection.outbox.sent_bytes for connection in self.connections)

    def lost(self, connection: ServerConnection) -> None:
        """A connection has ended."""
        if self.connections.pop(connection, self) is not self:
            self._received_bytes += connection.received_bytes
            self._sent_bytes += connection.outbox.sent_bytes
        self._end_if_empty()

    def lingered(self) -> None:
        """A connection that was turned away has gone."""
        self.lingering -= 1

    def _end_if_empty(self) -> None:
        if not self.closed or self.connections:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def ends_soon(self) -> None:
        """A connection says its last words, for which it has less time than others have for theirs."""
        if self._timer is not None and self._sweep_s > self.bounds.limits.sweep_last_words_ms / 1000:
            self._timer.cancel()
            self._sweep_in(self.bounds.limits.sweep_last_words_ms)

    def _sweep(self) -> None:
        """One timer for all time limits of all connections."""
        now_ms, ending = self._loop.time() * 1000, False
        for connection in list(self.connections):
            connection.sweep(now_ms)
            ending |= connection.ending
        limits = self.bounds.limits
        self._sweep_in(limits.sweep_last_words_ms if ending else limits.sweep_ms)

    def _sweep_in(self, ms: float) -> None:
        self._sweep_s = ms / 1000
        self._timer = self._loop.call_later(self._sweep_s, self._sweep)


async def listen(host: str, port: int, handler: Handler, bounds: Bounds | None = None) -> Listener:
    """Serve requests at that address; port 0 takes a free one, `Listener.port` tells which.

    All listeners of a node share one `Bounds`.
    """
    listener = Listener(bounds or Bounds(DEFAULT))
    await listener.open(host, port, handler)
    return listener
