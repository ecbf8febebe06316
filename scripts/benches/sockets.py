"""The bench's side of its servers: starts them, talks to them over loopback, and ends them in any case."""

import asyncio
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from scripts.benches import servers
from scripts.benches.measure import Settings

from tidelog.protocol.errors import TidelogError
from tidelog.protocol.io import Connection
from tidelog.protocol.messages import Reply, Request
from tidelog.protocol.types import Buffer

HOST = "127.0.0.1"


class Server:
    """A server in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.pid = process.pid
        self.port = self._heard()

    def cpu_us(self) -> float:
        """CPU time that it has used."""
        assert self._process.stdin is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        return self._heard() / 1000

    def _heard(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a server of this bench has ended; why, it says above")
        return int(line)


@contextmanager
def server(kind: str, settings: Settings) -> Iterator[Server]:
    """A server of that kind (`servers`), ended with the context."""
    with subprocess.Popen(
        [sys.executable, Path(servers.__file__), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C is for the bench, which ends its servers
    ) as process:
        settings.children.add(process.pid)
        try:
            yield Server(process)
        finally:
            settings.children.discard(process.pid)
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()


class Pipeline:
    """Keeps so many requests of a connection in flight until a number of them is answered."""

    def __init__(self, connection: Connection, request: Request, attachments: tuple[Buffer, ...]) -> None:
        self._connection = connection
        self._request = request
        self._attachments = attachments
        self._loop = asyncio.get_running_loop()
        self._unsent = self._unanswered = 0
        self._done: asyncio.Future[None] = self._loop.create_future()

    async def run(self, count: int, window: int) -> float:
        """Seconds until the last answer."""
        began = time.perf_counter()
        self._unsent = self._unanswered = count
        self._done = self._loop.create_future()
        for _ in range(min(window, count)):
            self._send()
        await self._done
        return time.perf_counter() - began

    def _send(self) -> None:
        self._unsent -= 1
        self._connection.send(self._request, *self._attachments, on_reply=self._answered)

    def _answered(self, reply: Reply | TidelogError, _attachment: memoryview) -> None:
        self._unanswered -= 1
        if isinstance(reply, TidelogError):
            if not self._done.done():
                self._done.set_exception(reply)
        elif self._unsent:
            self._send()
        elif not self._unanswered:
            self._done.set_result(None)


class EchoClient(asyncio.BufferedProtocol):
    """As bare as the echo server: one message at a time, or a window of them."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(256 << 10))
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._message = b""
        self._sent = self._left = 0
        self._expected = 0
        self._heard: deque[asyncio.Future[None]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end; whoever waits is told."""
        for future in self._heard:
            if not future.done():
                future.set_exception(exc or ConnectionResetError())

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    def get_buffer(self, _hint: int) -> memoryview:
        """Always the same."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """So much has come back: as much goes out again, while there is more."""
        self._left -= nbytes
        whole = self._expected // len(self._message)
        self._expected += nbytes
        again = min(self._expected // len(self._message) - whole, self._sent)
        if again:
            self._sent -= again
            self._transport.write(self._message * again)
        if not self._left:
            self._heard.popleft().set_result(None)

    async def run(self, size: int, count: int, window: int) -> float:
        """Seconds until that many messages of that size have come back."""
        began = time.perf_counter()
        self._message = bytes(size)
        self._left, self._expected = size * count, 0
        first = min(window, count)
        self._sent = count - first
        future = self._loop.create_future()
        self._heard.append(future)
        self._transport.write(self._message * first)
        await future
        return time.perf_counter() - began


class RawPeer:
    """Blocking sockets on this side as well."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._view = memoryview(bytearray(1 << 20))

    def send(self, size: int, count: int) -> float:
        """Seconds until the server has read that many pieces."""
        piece, began = bytes(size), time.perf_counter()
        self._socket.sendall(servers.TRANSFER.pack(b"<", size, count))
        for _ in range(count):
            self._socket.sendall(piece)
        assert self._socket.recv(1) == b"!"
        return time.perf_counter() - began

    def receive(self, size: int, count: int) -> float:
        """Seconds until the server's pieces are here."""
        left, began = size * count, time.perf_counter()
        self._socket.sendall(servers.TRANSFER.pack(b">", size, count))
        while left:
            left -= self._socket.recv_into(self._view, min(left, len(self._view)))
        return time.perf_counter() - began

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
