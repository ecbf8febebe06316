"""One receive buffer serves all connections, because both loops ask, read and tell in one stretch."""

import asyncio
import itertools

from tests.protocol.io.peers import ANSWER, ASK, Node, until

PEERS = 8


class Witness(asyncio.BufferedProtocol):
    """Notes in which order the loop calls the protocols of many connections."""

    def __init__(self, notes: list[tuple[str, int]], number: int) -> None:
        self.notes = notes
        self.number = number
        self.buffer = bytearray(512)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(bytes(20_000))  # type: ignore[attr-defined]

    def get_buffer(self, sizehint: int) -> bytearray:
        self.notes.append(("get", self.number))
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.notes.append(("updated", self.number))

    def eof_received(self) -> None:
        self.notes.append(("eof", self.number))


async def test_the_loop_does_nothing_between_asking_for_a_buffer_and_telling_what_it_read() -> None:
    """The promise of the loops that protocol/buffers.py rests on."""
    loop = asyncio.get_running_loop()
    notes: list[tuple[str, int]] = []
    numbers = iter(range(2 * PEERS))
    server = await loop.create_server(lambda: Witness(notes, next(numbers)), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    clients = [
        (await loop.create_connection(lambda: Witness(notes, next(numbers)), *address))[0]
        for _ in range(PEERS)
    ]
    await until(lambda: sum(what == "updated" for what, _ in notes) >= PEERS * 60, "much was read")
    for before, after in itertools.pairwise(notes):
        if after[0] == "updated":
            assert before == ("get", after[1])
    for client in clients:
        client.close()
    server.close()


async def test_frames_of_many_connections_do_not_mix(node: Node) -> None:
    """Small ones, cut ones and large ones, through one buffer on each side."""
    node.handler = lambda request: request.reply(ANSWER, request.attachment)
    connections = [await node.connect() for _ in range(PEERS)]
    assert len({id(c._reader._shared) for c in node.listener.connections}) == 1
    contents = [bytes((number,)) * size for number in range(PEERS) for size in (3, 5000, 15_000, 90_000)]
    calls = [connection.call(ASK, content) for content in contents for connection in connections]
    replies = await asyncio.gather(*calls)
    assert [attached for _, attached in replies] == [content for content in contents for _ in connections]


async def test_idle_connections_hold_no_buffers(node: Node) -> None:
    node.handler = lambda request: request.reply(ANSWER, request.attachment)
    for _ in range(PEERS):
        await (await node.connect()).call(ASK, bytes(500_000))
    assert [c._reader.buffered_bytes for c in node.listener.connections] == [0] * PEERS
