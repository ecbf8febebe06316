"""The calling side: connect, send requests, bring each answer to whom it belongs.

What it keeps true:

* Each call ends once: with its reply, with the error that the peer refused it with, at its deadline, or with
  the connection; never later than its deadline. A late answer is dropped.
* The calls of a broken connection end with ConnectionFailed: their outcome is unknown.
* One timer per connection, whatever the number of calls.
* What waits unsent is bounded by `max_unsent_bytes`; beyond it requests are refused here, as THROTTLED.
"""

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable
from typing import TypeAlias, cast

from tidelog.protocol.bounds import Bounds
from tidelog.protocol.calls import ONE_WAY, Calls
from tidelog.protocol.errors import (
    ConnectionFailed,
    InvalidRequest,
    MalformedFrame,
    MessageTooLarge,
    RequestTimedOut,
    Throttled,
    TidelogError,
    UnsupportedVersion,
    error_of,
)
from tidelog.protocol.framing import NOTHING, Frame, FrameReader
from tidelog.protocol.io.outbox import BURST_FRAMES, Outbox
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import Hello, Refused, Reply, Request, Welcome, decode_reply, encode_head
from tidelog.protocol.types import Buffer

logger = logging.getLogger(__name__)

OnReply: TypeAlias = Callable[[Reply | TidelogError, memoryview], None]
"""Told how a request ended; the attachment is valid only during the call."""

_NO_TIMEOUT_MS = 30_000.0


_Waiter: TypeAlias = "asyncio.Future[tuple[Reply, Buffer]] | OnReply"

# Who waits, for the answer to what, for how long. One is made per request: a plain tuple costs a tenth.
_Call: TypeAlias = tuple[_Waiter, type[Request], float]


class Connection(asyncio.BufferedProtocol):
    """A connection to a node. Made by `connect`."""

    def __init__(self, host: str, port: int, bounds: Bounds) -> None:
        self.host = host
        self.port = port
        self.welcome = Welcome()
        """What the node said about itself."""
        self.closed = False
        """Whether no request can be sent any more."""
        self.on_closed: Callable[[TidelogError], None] | None = None
        """Told once when the connection has ended, and why."""
        self.silent_since_ms: float | None = None
        """When the first request was sent that nothing at all has been heard since; None: no answer is owed."""
        self._bounds = bounds
        self._limits = bounds.limits
        self._max_frame_bytes = bounds.limits.max_frame_bytes
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(bounds.receive_buffer, bounds.pool, bounds.limits)
        self._calls: Calls[_Call] = Calls()
        self._transport: asyncio.Transport
        self._outbox: Outbox
        self._reason: TidelogError | None = None
        self._lost = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0.0
        self._consuming = False
        self._flush_due = False

    @property
    def in_flight(self) -> int:
        """Calls that have not ended."""
        return len(self._calls)

    @property
    def oldest(self) -> int | None:
        """The number of the call that has waited longest: while it is the same, no answer to it has come."""
        return self._calls.oldest

    @property
    def writable(self) -> bool:
        """Whether what is sent now leaves at once, because the peer reads."""
        return not self.closed and not self._outbox.paused

    async def call(
        self, request: Request, *attachments: Buffer, timeout_ms: float = _NO_TIMEOUT_MS
    ) -> tuple[Reply, Buffer]:
        """The reply and its attachment, which belongs to the caller. Raises what the peer refused with.

        Attachments from 64 KB on must not change until the call has ended.
        """
        future: asyncio.Future[tuple[Reply, Buffer]] = self._loop.create_future()
        correlation = self._begin(future, request, attachments, timeout_ms)
        try:
            return await future
        except asyncio.CancelledError:
            # Whatever comes is nobody's.
            self._calls.forget(correlation)
            raise

    def send(
        self,
        request: Request,
        *attachments: Buffer,
        on_reply: OnReply | None = None,
        timeout_ms: float = _NO_TIMEOUT_MS,
    ) -> None:
        """Send without a future per request. Without `on_reply` the request is one-way: nothing answers it."""
        if on_reply is not None:
            self._begin(on_reply, request, attachments, timeout_ms)
            return
        self._check(attachments)
        self._put(encode_head(ONE_WAY, request), attachments, alone=not self._calls)

    async def say_hello(self, hello: Hello, timeout_ms: float) -> None:
        """The first request; its answer tells what the node takes."""
        if self._reason is not None:
            # Turned away before a word was said.
            raise self._reason
        welcome, _ = await self.call(hello, timeout_ms=timeout_ms)
        if not isinstance(welcome, Welcome):
            raise ConnectionFailed(f"{self.host}:{self.port} answered Hello with {type(welcome).__name__}")
        self.welcome = welcome
        if welcome.frame_bytes_max:
            self._max_frame_bytes = min(self._max_frame_bytes, welcome.frame_bytes_max)

    def close(self) -> None:
        """Send what was put, then close; calls in flight end with ConnectionFailed."""
        if self.closed:
            return
        self._end(ConnectionFailed(f"the connection to {self.host}:{self.port} was closed by this side"))
        self._outbox.close()
        if not self._lost.done():
            self._timer = self._loop.call_later(self._limits.linger_ms / 1000, self._transport.abort)

    def abort(self) -> None:
        """Close at once; calls in flight end with ConnectionFailed."""
        self._break(ConnectionFailed(f"the connection to {self.host}:{self.port} was cut off by this side"))

    async def wait_closed(self) -> None:
        """Until the socket is gone."""
        await asyncio.shield(self._lost)

    # ------------------------------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected: what is sent first waits for Hello, to leave with it."""
        self._transport = cast("asyncio.Transport", transport)
        self._outbox = Outbox(self._transport, self._limits)
        self._outbox.put_preamble()

    def connection_lost(self, exc: Exception | None) -> None:
        """Neither side will send or hear any more."""
        cause = f": {exc}" if exc else ""
        error = ConnectionFailed(f"{self.host}:{self.port} ended the connection{cause}")
        error.__cause__ = exc
        self._end(error)
        self._cancel_timer()
        self._outbox.drop()
        self._reader.close()
        if not self._lost.done():
            self._lost.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._bounds.receive_buffer.view if self.closed else self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have arrived there."""
        if self.closed:
            return
        self.silent_since_ms = None
        self._consuming = True
        try:
            for frame in self._reader.received(nbytes):
                if not self.closed:
                    self._deliver(frame)
        except MalformedFrame as error:
            self._break(
                ConnectionFailed(f"{self.host}:{self.port} does not speak tidelog's protocol: {error}")
            )
        except UnsupportedVersion as error:
            self._break(UnsupportedVersion(f"{self.host}:{self.port}: {error}"))
        finally:
            self._consuming = False
        if not self.closed:
            self._outbox.flush()

    def pause_writing(self) -> None:
        """The transport has enough to send."""
        self._outbox.pause()

    def resume_writing(self) -> None:
        """The transport has sent most of it."""
        self._outbox.resume()

    # ----------------------------------------------------------------------------------------- requests out

    def _begin(
        self,
        waiter: _Waiter,
        request: Request,
        attachments: tuple[Buffer, ...],
        timeout_ms: float,
    ) -> int:
        self._check(attachments)
        now_ms = self._loop.time() * 1000
        deadline_ms = now_ms + timeout_ms
        correlation = self._calls.begin((waiter, type(request), timeout_ms), deadline_ms)
        try:
            head = encode_head(correlation, request)
        except (UnicodeEncodeError, OverflowError, TypeError) as error:
            self._calls.forget(correlation)
            raise InvalidRequest(f"{type(request).__name__} cannot be written: {error}") from error
        if self.silent_since_ms is None:
            self.silent_since_ms = now_ms
        if self._timer is None or deadline_ms < self._timer_ms:
            self._set_timer(deadline_ms)
        self._put(head, attachments, alone=len(self._calls) == 1)
        return correlation

    def _check(self, attachments: tuple[Buffer, ...]) -> None:
        """Refuse here what could not be sent."""
        if self.closed:
            raise ConnectionFailed(f"the connection to {self.host}:{self.port} is closed: {self._reason}")
        if self._outbox.unsent_bytes > self._limits.max_unsent_bytes:
            raise Throttled(
                f"{self._outbox.unsent_bytes} bytes to {self.host}:{self.port} are unsent, "
                f"the limit is {self._limits.max_unsent_bytes}"
            )
        if attachments and (size := sum(map(len, attachments))) > self._max_frame_bytes:
            raise MessageTooLarge(
                f"a request with {size} bytes, {self.host}:{self.port} takes {self._max_frame_bytes}"
            )

    def _put(self, head: bytes, attachments: tuple[Buffer, ...], *, alone: bool) -> None:
        outbox = self._outbox
        outbox.put(head, attachments)
        if outbox.frames >= BURST_FRAMES:
            outbox.flush()
            return
        if self._consuming or self._flush_due:
            return
        if alone:
            # No other request is on its way, so none is likely to follow at once: do not wait for one.
            outbox.flush()
        else:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if not self.closed:
            self._outbox.flush()

    # ------------------------------------------------------------------------------------------- answers in

    def _deliver(self, frame: Frame) -> None:
        reply: Reply | TidelogError
        try:
            correlation, reply = decode_reply(frame.head)
        except UnsupportedVersion as error:
            correlation, reply = error.correlation, error
        call = self._calls.finish(correlation)
        if type(reply) is Refused:
            reply = error_of(reply.error, reply.message)
        if call is None:
            if correlation == ONE_WAY and isinstance(reply, TidelogError):
                # The peer refuses the connection as a whole.
                self._break(reply)
        elif isinstance(waiter := call[0], asyncio.Future):
            self._resolve(waiter, reply, frame)
            return
        else:
            self._tell(waiter, reply, frame.attachment)
        if frame.owned:
            self._reader.recycle(frame)

    def _resolve(
        self, future: "asyncio.Future[tuple[Reply, Buffer]]", reply: Reply | TidelogError, frame: Frame
    ) -> None:
        """The caller may keep the attachment: a large one is given away, a small one copied."""
        if future.done():
            return
        if isinstance(reply, TidelogError):
            future.set_exception(reply)
        else:
            future.set_result((reply, frame.attachment if frame.owned else bytes(frame.attachment)))

    def _tell(self, on_reply: OnReply, reply: Reply | TidelogError, attachment: memoryview) -> None:
        try:
            on_reply(reply, attachment)
        except Exception:
            logger.exception("reply.failed peer=%s:%d reply=%s", self.host, self.port, type(reply).__name__)

    def _fail(self, waiter: _Waiter, error: TidelogError) -> None:
        if not isinstance(waiter, asyncio.Future):
            self._tell(waiter, error, NOTHING)
        elif not waiter.done():
            waiter.set_exception(error)

    # --------------------------------------------------------------------------------------------- deadlines

    def _set_timer(self, deadline_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_at(deadline_ms / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for waiter, request, timeout_ms in self._calls.expire(self._loop.time() * 1000):
            fact = f"{self.host}:{self.port} did not answer {request.__name__} in {timeout_ms:.0f} ms"
            self._fail(waiter, RequestTimedOut(fact))
        if self._calls.wake_ms is not None and not self.closed:
            self._set_timer(self._calls.wake_ms)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --------------------------------------------------------------------------------------------------- end

    def _break(self, error: TidelogError) -> None:
        """The peer said something that ends the connection."""
        self._end(error)
        self._transport.abort()

    def _end(self, error: TidelogError) -> None:
        """Nothing more is sent or heard; whoever waits is told why."""
        if self.closed:
            return
        self.closed = True
        self._reason = error
        self._cancel_timer()
        for waiter, _, _ in self._calls.fail_all():
            self._fail(waiter, error.anew())
        if self.on_closed is not None:
            self.on_closed(error)


async def connect(
    host: str,
    port: int,
    hello: Hello | None = None,
    *,
    bounds: Bounds | None = None,
    timeout_ms: float = 10_000,
) -> Connection:
    """A connection on which Hello was said and answered, in one round trip.

    Raises ConnectionFailed (its `__cause__` is the OSError, as ConnectionRefusedError), UnsupportedVersion,
    or what the node refused Hello with. Connections of one loop should share one `Bounds`.
    """
    loop = asyncio.get_running_loop()
    shared = bounds or Bounds(DEFAULT)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            try:
                _, connection = await loop.create_connection(
                    lambda: Connection(host, port, shared), host, port
                )
            except (ValueError, OverflowError) as error:  # what a peer has told may be none (`is_host`)
                raise ConnectionFailed(f"{host!r}:{port} is no address: {error}") from error
            try:
                await connection.say_hello(hello or Hello(), timeout_ms)
            except BaseException:
                connection.abort()
                raise
    except OSError as error:
        cause = _one(error)
        raise ConnectionFailed(f"{host}:{port}: {_words(cause, timeout_ms)}") from cause
    return connection


def _one(error: OSError) -> OSError:
    """What all that a name means have in common: asyncio has tried each, and lists their errors in one without number."""
    numbers = {int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))}
    if error.errno or len(numbers) != 1:
        return error
    number = numbers.pop()
    return OSError(number, os.strerror(number))  # of the class that belongs to it, as ConnectionRefusedError


def _words(error: OSError, timeout_ms: float) -> str:
    """What is wrong, in the words of the system."""
    if isinstance(error, socket.gaierror):
        return f"the host is not known: {error.strerror}"
    if error.errno:  # TimeoutError is both the system's (with a number) and asyncio's
        return os.strerror(error.errno)
    return str(error) or f"no answer in {timeout_ms:.0f} ms"
