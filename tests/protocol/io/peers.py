"""Both ends of a connection for tests: a node that does as it is told, and a peer that speaks raw bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from tidelog.protocol.bounds import Bounds
from tidelog.protocol.framing import PREAMBLE, encode_frame
from tidelog.protocol.io import Connection, Incoming, Listener, connect, listen
from tidelog.protocol.limits import Limits
from tidelog.protocol.messages import (
    Hello,
    InitProducerId,
    InitProducerIdReply,
    Refused,
    Reply,
    Request,
    Welcome,
    decode_reply,
    encode_head,
)

ASK = InitProducerId()
ANSWER = InitProducerIdReply(producer_id=7, producer_epoch=0)
DEADLINE_S = 10


async def until(condition: Callable[[], object], what: str) -> None:
    """Let the loop work until the condition holds; a test that waits in vain says what for."""
    loop = asyncio.get_running_loop()
    end = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < end, f"waited {DEADLINE_S} s in vain: {what}"
        tick = loop.create_future()
        loop.call_later(0.001, tick.set_result, None)
        await tick


class Node:
    """Listens; answers Hello by itself, and everything else by `handler`, which a test may replace."""

    def __init__(self, limits: Limits | None = None, *, welcome: Welcome | None = None) -> None:
        self.bounds = Bounds(limits or Limits())
        self.welcome = welcome or Welcome(node_id=1)  # type: ignore[arg-type]
        self.waiting: list[Incoming] = []
        """Requests that the default handler leaves unanswered."""
        self.handler: Callable[[Incoming], None] = self.waiting.append
        self.listener: Listener
        self.connections: list[Connection] = []

    async def __aenter__(self) -> Self:
        self.listener = await listen("127.0.0.1", 0, self._handle, self.bounds)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self.connections:
            connection.close()
            await connection.wait_closed()
        self.listener.close()
        await self.listener.wait_closed()
        assert self.bounds.connections == 0
        assert self.bounds.used_bytes == self.bounds.held_back_bytes == self.bounds.unsent_bytes == 0
        assert not self.bounds.waiters

    @property
    def port(self) -> int:
        return self.listener.port

    async def connect(self, limits: Limits | None = None, hello: Hello | None = None) -> Connection:
        """A client's connection, closed at the end of the test."""
        bounds = None if limits is None else Bounds(limits)
        connection = await connect("127.0.0.1", self.port, hello, bounds=bounds)
        self.connections.append(connection)
        return connection

    def _handle(self, request: Incoming) -> None:
        if isinstance(request.message, Hello):
            request.reply(self.welcome)
        else:
            self.handler(request)


class RawPeer:
    """A peer that sends whatever bytes the test likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, port: int, *, greeted: bool = False) -> Self:
        """Connect; `greeted`: preamble and Hello are said and answered."""
        peer = cls(*await asyncio.open_connection("127.0.0.1", port))
        if greeted:
            peer.send(PREAMBLE, frame_of(1, Hello()))
            assert await peer.preamble() == PREAMBLE
            assert isinstance((await peer.reply())[1], Welcome)
        return peer

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def preamble(self) -> bytes:
        return await self._read(len(PREAMBLE))

    async def reply(self) -> tuple[int, Reply]:
        """The next frame's correlation and message."""
        size = int.from_bytes(await self._read(4), "big")
        body = await self._read(size)
        return decode_reply(body[4 : 4 + int.from_bytes(body[:4], "big")])

    async def refusal(self) -> Refused:
        """The next frame, which refuses."""
        _, reply = await self.reply()
        assert isinstance(reply, Refused)
        return reply

    async def ended(self) -> bool:
        """Whether the other side closes without another word."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _read(self, size: int) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.readexactly(size)


@asynccontextmanager
async def saying(words: bytes) -> AsyncIterator[int]:
    """The port of a server that says these words to whoever connects."""
    writers: list[asyncio.StreamWriter] = []

    def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(words)

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    for writer in writers:
        writer.transport.abort()
    server.close()


def frame_of(correlation: int, message: Request, attachment: bytes = b"") -> bytes:
    """A whole frame."""
    return b"".join(bytes(part) for part in encode_frame(encode_head(correlation, message), attachment))
