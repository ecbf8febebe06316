"""The other process of a bench over sockets: run by path, `servers.py KIND`, with its stdin held by the bench.

    product    tidelog's listener: answers requests with as little as there is to say
    echo       a bare BufferedProtocol on the same loop that sends back what it gets
    raw        blocking sockets: reads, or writes, as many bytes as it is told to

It says on stdout where it listens, answers each line on stdin with the CPU nanoseconds that it has used, and
ends with its stdin: nothing outlives the bench, however that ends.
"""

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from struct import Struct
from typing import cast

from tidelog.protocol.io import Incoming, listen, run, tune_malloc
from tidelog.protocol.messages import (
    Fetch,
    FetchReply,
    Hello,
    InitProducerId,
    InitProducerIdReply,
    Produce,
    ProduceReply,
    Welcome,
)

TRANSFER = Struct(">cII")
"""What a raw transfer begins with: `<` to the server, `>` from it; bytes a piece, pieces."""

_HOST = "127.0.0.1"
_BUFFER_BYTES = 256 << 10
_BLOB = bytes(1 << 20)
_ANSWER = InitProducerIdReply(producer_id=7, producer_epoch=0)
_WRITTEN = ProduceReply(partitions=())
_FETCHED = FetchReply()


def serve(request: Incoming) -> None:
    """Answer at once."""
    message = request.message
    if isinstance(message, InitProducerId):
        request.reply(_ANSWER)
    elif isinstance(message, Produce):
        request.reply(_WRITTEN)
    elif isinstance(message, Fetch):
        request.reply(_FETCHED, _BLOB if message.max_bytes == len(_BLOB) else _BLOB[: message.max_bytes])
    elif isinstance(message, Hello):
        request.reply(Welcome())


class Echo(asyncio.BufferedProtocol):
    """What arrives goes back."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, _hint: int) -> memoryview:
        """Always the same."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Send them back, as a copy: the view is reused."""
        self._transport.write(bytes(self._view[:nbytes]))


async def product() -> None:
    """Tidelog's listener, until stdin ends."""
    listener = await listen(_HOST, 0, serve)
    say(listener.port)
    await until_stdin_ends()
    listener.close()
    await listener.wait_closed()


async def echo() -> None:
    """The echo, until stdin ends."""
    server = await asyncio.get_running_loop().create_server(Echo, _HOST, 0)
    say(server.sockets[0].getsockname()[1])
    await until_stdin_ends()
    server.close()


async def until_stdin_ends() -> None:
    """Answer each line with the CPU time that was used."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def hear() -> None:
        if os.read(0, 100):
            say(time.process_time_ns())
        elif not ended.done():
            ended.set_result(None)

    loop.add_reader(0, hear)
    await ended
    loop.remove_reader(0)


def raw() -> None:
    """Blocking sockets, one connection at a time, until stdin ends."""
    tune_malloc()
    server = socket.create_server((_HOST, 0))
    say(server.getsockname()[1])
    threading.Thread(target=_transfers, args=(server,), daemon=True).start()
    while os.read(0, 100):
        say(time.process_time_ns())


def _transfers(server: socket.socket) -> None:
    view = memoryview(bytearray(len(_BLOB)))
    while True:
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while head := connection.recv(TRANSFER.size, socket.MSG_WAITALL):
                way, size, count = TRANSFER.unpack(head)
                if way == b">":
                    for _ in range(count):
                        connection.sendall(_BLOB[:size] if size < len(_BLOB) else _BLOB)
                    continue
                left = size * count
                while left:
                    left -= connection.recv_into(view, min(left, len(view)))
                connection.sendall(b"!")


def say(number: int) -> None:
    """One line to the bench."""
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


KINDS: dict[str, Callable[[], None]] = {
    "product": lambda: run(product()),
    "echo": lambda: run(echo()),
    "raw": raw,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]]()
