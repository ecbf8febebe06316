"""Malformed conversations through reader, decoders and server, each checked (GOALS.md R6).

What has to hold for each conversation:

* No exception but MalformedFrame and UnsupportedVersion.
* What it makes a connection hold stays within the limits, and so does what decoding allocates (measured on
  every fiftieth).
* It is dealt with in bounded CPU time.
* The server says why where the peer can understand it, and ends the connection; otherwise it goes on.
"""

import asyncio
import contextlib
import signal
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

from tests.protocol.malformed import conversation
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import MalformedFrame, UnsupportedVersion
from tidelog.protocol.framing import PREAMBLE, FrameReader
from tidelog.protocol.io import Incoming, Listener, ServerConnection, connect, listen
from tidelog.protocol.limits import KIB, Limits
from tidelog.protocol.messages import (
    Hello,
    InitProducerId,
    InitProducerIdReply,
    Refused,
    Welcome,
    decode_reply,
    decode_request,
)

LIMITS: Final = Limits(
    max_frame_bytes=256 * KIB,
    max_head_bytes=64 * KIB,
    receive_buffer_bytes=64 * KIB,
    pooled_bytes=512 * KIB,
    linger_ms=40,
)
CPU_S_MAX = 1.0
"""For one conversation; the slowest takes a few milliseconds."""

ALLOCATED_BYTES_MAX: Final = 4 * 1024 * KIB
"""What a head of 64 KiB can become at most, and a frame's buffer beside it."""

SOCKET_S_MAX = 10.0
"""For one conversation with a real server, which ends a connection 40 ms after its last words."""

MEASURED_EVERY = 50
FINE, OTHER_PROTOCOL, OTHER_VERSION, NO_HELLO, MALFORMED = (
    "fine",
    "other protocol",
    "other version",
    "no hello",
    "malformed",
)


class Hang(Exception):
    """A conversation took too long."""


class Violation(AssertionError):
    """Something that has to hold did not."""


@dataclass
class Report:
    """What came of the conversations, and what should not have."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    allocated_bytes: int = 0


class Recorder:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, data: list[bytes]) -> None:
        for part in data:
            self.written += part

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits here."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default


def answer(request: Incoming) -> None:
    """Hello is welcomed, the rest answered with what it brought."""
    if isinstance(request.message, Hello):
        request.reply(Welcome())
    else:
        request.reply(InitProducerIdReply(producer_id=1, producer_epoch=0), request.attachment)


class Fuzz:
    """Runs conversations against one node. Needs a running loop, as connections do."""

    def __init__(self) -> None:
        self.bounds = Bounds(LIMITS)
        self.listener = Listener(self.bounds)
        self.report = Report()

    def run(self, seed: int, begin: int, count: int) -> Report:
        """The conversations `begin` to `begin + count`."""
        with _alarm():
            for index in range(begin, begin + count):
                self._one(seed, index)
        return self.report

    def _one(self, seed: int, index: int) -> None:
        data, pieces = conversation(seed, index)
        measured = index % MEASURED_EVERY == 0
        if measured:
            tracemalloc.start()
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, 2 * CPU_S_MAX)
        try:
            verdict = self._read(data, pieces)
            self._serve(data, pieces, verdict)
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is the finding
            self.report.failures.append(f"seed {seed} index {index}: {type(error).__name__}: {error}")
            verdict = "failed"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        took_s = time.process_time() - began
        self.report.outcomes[verdict] += 1
        self.report.slowest_s = max(self.report.slowest_s, took_s)
        if measured:
            allocated = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            self.report.allocated_bytes = max(self.report.allocated_bytes, allocated)
            if allocated > ALLOCATED_BYTES_MAX:
                self.report.failures.append(f"seed {seed} index {index}: {allocated} bytes were allocated")
        elif took_s > CPU_S_MAX:
            self.report.failures.append(f"seed {seed} index {index}: took {took_s:.3f} s of CPU")

    def _read(self, data: bytes, pieces: list[int]) -> str:
        """Reader and decoders alone: what the server should make of it."""
        bounds = self.bounds
        reader = FrameReader(bounds.receive_buffer, bounds.pool, LIMITS)
        verdict, met = FINE, False
        try:
            for size in _received(reader, data, pieces):
                for frame in reader.received(size):
                    head = bytes(frame.head)
                    self._decode_reply(head)
                    try:
                        request = decode_request(head)[1]
                    except UnsupportedVersion:
                        self.report.outcomes["request from the future"] += 1
                    else:
                        self.report.outcomes["request"] += 1
                        if not met and not isinstance(request, Hello):
                            return NO_HELLO
                        met = True
                    if frame.owned:
                        reader.recycle(frame)
                _check(reader.buffered_bytes <= LIMITS.max_frame_bytes * 5 // 4, "a reader holds too much")
                _check(bounds.pool.pooled_bytes <= LIMITS.pooled_bytes, "the pool holds too much")
        except UnsupportedVersion:
            verdict = OTHER_VERSION
        except MalformedFrame:
            verdict = OTHER_PROTOCOL if reader.version is None else MALFORMED
        finally:
            reader.close()
        return verdict

    def _decode_reply(self, head: bytes) -> None:
        try:
            decode_reply(head)
        except (MalformedFrame, UnsupportedVersion):
            return
        self.report.outcomes["reply"] += 1

    def _serve(self, data: bytes, pieces: list[int], verdict: str) -> None:
        """A connection of the server, on a transport that only keeps what is written."""
        transport = Recorder()
        connection = ServerConnection(self.listener, answer, self.bounds)
        connection.connection_made(transport)  # type: ignore[arg-type]
        try:
            for size in _received(connection, data, pieces):
                connection.buffer_updated(size)
                if transport.closed:
                    break
            _check_words(bytes(transport.written), verdict)
            ended = transport.closed or connection.ending
            _check(
                ended == (verdict != FINE), f"{verdict}: the connection has {'' if ended else 'not '}ended"
            )
        finally:
            connection.connection_lost(None)
        _check(self.bounds.used_bytes == 0, "bytes are held for a connection that is gone")
        _check(self.bounds.connections == 0, "a connection is counted that is gone")


def _received(reader: FrameReader | ServerConnection, data: bytes, pieces: list[int]) -> Iterator[int]:
    """Put the pieces where the reader wants them, one after the other, as a loop does."""
    at = 0
    for piece in pieces:
        end = at + piece
        while at < end:
            view = reader.get_buffer(-1)
            size = min(len(view), end - at)
            view[:size] = data[at : at + size]
            at += size
            yield size


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


def _check_words(written: bytes, verdict: str) -> None:
    """What the server has said to a peer of that kind."""
    if verdict == OTHER_PROTOCOL:
        _check(not written, "another protocol was answered")
    elif verdict == OTHER_VERSION:
        _check(written == PREAMBLE, "another version was not answered with ours alone")
    elif verdict != FINE:
        last = _last_reply(written)
        _check(isinstance(last, Refused), f"{verdict}: the last word is {last!r} instead of Refused")


def _last_reply(written: bytes) -> object:
    at, last = len(PREAMBLE), None
    while at < len(written):
        length, head_length = int.from_bytes(written[at : at + 4]), int.from_bytes(written[at + 4 : at + 8])
        last = decode_reply(written[at + 8 : at + 8 + head_length])[1]
        at += 4 + length
    return last


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    """What takes too long is interrupted, so that a hang is a finding and not the end of the run."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise Hang(f"more than {2 * CPU_S_MAX} s of CPU")

    before = signal.signal(signal.SIGPROF, ring)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


async def fuzz_machines(seed: int, begin: int, count: int) -> Report:
    """Conversations without sockets, as many as there is time for."""
    return Fuzz().run(seed, begin, count)


async def fuzz_sockets(seed: int, begin: int, count: int) -> Report:
    """Conversations with a real server, eight at a time; afterwards it must serve as if nothing had been."""
    report = Report()
    listener = await listen("127.0.0.1", 0, answer, Bounds(LIMITS))
    reading = Fuzz()

    async def talk(indexes: range) -> None:
        for index in indexes:
            data, pieces = conversation(seed, index)
            verdict = reading._read(data, pieces)
            report.outcomes[verdict] += 1
            try:
                async with asyncio.timeout(SOCKET_S_MAX):
                    written = await _speak(listener.port, data, hang_up=verdict == FINE)
                    if written:
                        _check_words(written, verdict)
            except (Violation, TimeoutError) as error:
                report.failures.append(f"seed {seed} index {index}: {type(error).__name__}: {error}")

    await asyncio.gather(*(talk(range(begin + first, begin + count, 8)) for first in range(8)))
    connection = await connect("127.0.0.1", listener.port)
    await connection.call(InitProducerId())
    connection.close()
    listener.close()
    await listener.wait_closed()
    _check(listener.bounds.used_bytes == 0, "bytes are held for connections that are gone")
    return report


async def _speak(port: int, data: bytes, *, hang_up: bool) -> bytes:
    """Say it and hear what the server says until it closes; empty if a reset swallowed it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        if hang_up:
            writer.write_eof()
        return await reader.read(-1)
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()
