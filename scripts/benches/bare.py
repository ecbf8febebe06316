"""The least that writes records to three disks and reads them: what the product costs more than this is its own.

    producer ──batches──► leader ──what followers ask for──► two followers         each a process, each with a file
                          leader ──what a consumer asks for──► consumer

One partition and no rule of replication: no epochs, no ISR, no indexes, no retries, no elections. What is left is what GOALS
calls the prototype: the same columns and checksums, one file per replica, an acknowledgement when both followers have asked
for what comes behind a batch. It runs in the same round as the product, on the same machine.

The leader, the followers and a reader are this module in processes of their own, whose stdin the bench holds, like `servers`.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import quantiles
from struct import Struct, pack_into
from typing import Final, Self, cast

import msgspec
from crc32c import crc32c
from scripts.benches.servers import say, until_stdin_ends

from tidelog.client.options import ProducerConfig
from tidelog.protocol.io import run

HOST: Final = "127.0.0.1"
FETCH_BYTES: Final = 1 << 20
BATCH_BYTES: Final = ProducerConfig().batch_size
"""As the product's, where that is told nothing else."""
IN_FLIGHT: Final = 15
"""As many as the product has with three leaders."""
_HEAD: Final = Struct(">IBqI")
"""Size of all, kind, a number (an offset or a sequence), a checksum of what follows."""
_BATCH, _DONE, _GIVE, _FOLLOW, _READ = range(5)
_JOINED_BYTES: Final = 64 << 10
_packed = msgspec.msgpack.Encoder().encode
_columns = msgspec.msgpack.Decoder(tuple[None, None, list[bytes], None]).decode


class _Record(msgspec.Struct, frozen=True, gc=False):
    offset: int
    value: bytes


class Peer(asyncio.BufferedProtocol):
    """A connection: whole frames go to `heard`."""

    def __init__(self, heard: Callable[["Peer", memoryview], None]) -> None:
        self._heard = heard
        self._view = memoryview(bytearray(4 << 20))
        self._filled = 0
        self.gone = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=64 << 20)

    def connection_lost(self, _error: Exception | None) -> None:
        """Nothing is said to it any more."""
        self.gone = True

    def get_buffer(self, _hint: int) -> memoryview:
        """Behind what has come of a frame."""
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Hand over what is whole."""
        end, at, view = self._filled + nbytes, 0, self._view
        while end - at >= _HEAD.size:
            size = _HEAD.unpack_from(view, at)[0]
            if end - at < size:
                break
            self._heard(self, view[at : at + size])
            at += size
        if at:
            self._view[: end - at] = bytes(view[at:end])
        self._filled = end - at

    def say(self, kind: int, number: int, data: bytes = b"", checksum: int = 0) -> None:
        """Send a frame."""
        head = _HEAD.pack(_HEAD.size + len(data), kind, number, checksum)
        if len(data) < _JOINED_BYTES:
            self._transport.write(head + data)
        else:
            self._transport.writelines((head, data))

    def close(self) -> None:
        """Hang up."""
        self._transport.close()


class Leader:
    """One file that producers append to, and that followers and consumers read."""

    def __init__(self, path: str, replicas: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._end = 0
        self._followers: dict[Peer, int] = {}
        self._replicas = replicas
        self._owed: deque[tuple[int, Peer, int]] = deque()
        self._waiting: dict[Peer, int] = {}
        self._serving = False

    def heard(self, peer: Peer, frame: memoryview) -> None:
        """A batch, or somebody who wants to have what there is."""
        _, kind, number, checksum = _HEAD.unpack_from(frame)
        if kind == _BATCH:
            assert crc32c(frame[_HEAD.size :]) == checksum
            pack_into(">q", frame, 5, self._end)  # its place, as a real leader stamps it
            os.pwrite(self._file, frame, self._end)
            self._end += len(frame)
            if self._replicas == 1:
                peer.say(_DONE, number)
            else:
                self._owed.append((self._end, peer, number))
            if self._waiting and not self._serving:
                self._serving = True
                asyncio.get_running_loop().call_soon(self._serve)
            return
        if kind == _FOLLOW:
            self._followers[peer] = number
            if len(self._followers) == self._replicas - 1:
                self._commit(min(self._followers.values()))
        self._waiting[peer] = number
        if number < self._end:
            self._give(peer)

    def _commit(self, up_to: int) -> None:
        while self._owed and self._owed[0][0] <= up_to:
            _, peer, number = self._owed.popleft()
            peer.say(_DONE, number)

    def _serve(self) -> None:
        self._serving = False
        for peer, number in list(self._waiting.items()):
            if number < self._end:
                self._give(peer)

    def _give(self, peer: Peer) -> None:
        at = self._waiting.pop(peer)
        if not peer.gone:
            peer.say(_GIVE, at, os.pread(self._file, min(self._end - at, FETCH_BYTES), at))


class Follower:
    """A copy of the leader's file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._end = 0

    def heard(self, peer: Peer, frame: memoryview) -> None:
        """Some more of it: write what is whole, and ask for what comes behind it."""
        at = whole = _HEAD.size
        for begin, end in _batches(frame, at):
            assert crc32c(frame[begin + _HEAD.size : end]) == _HEAD.unpack_from(frame, begin)[3]
            whole = end
        os.pwrite(self._file, frame[at:whole], self._end)
        self._end += whole - at
        peer.say(_FOLLOW, self._end)


def _batches(view: memoryview, at: int) -> Iterator[tuple[int, int]]:
    """Where whole batches begin and end."""
    while len(view) - at >= _HEAD.size:
        end = at + _HEAD.unpack_from(view, at)[0]
        if end > len(view):
            return
        yield at, end
        at = end


class Bare:
    """The bench's side: it produces, and it reads."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._in_flight = 0
        self._acknowledged: asyncio.Event
        self._peer: Peer

    async def __aenter__(self) -> Self:
        self._acknowledged = asyncio.Event()
        _, self._peer = await asyncio.get_running_loop().create_connection(
            lambda: Peer(self._heard), HOST, self._port
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._peer.close()

    def _heard(self, _peer: Peer, _frame: memoryview) -> None:
        self._in_flight -= 1
        self._acknowledged.set()

    async def _at_most(self, in_flight: int) -> None:
        while self._in_flight > in_flight:
            self._acknowledged.clear()
            await self._acknowledged.wait()

    async def _send(self, values: list[bytes], in_flight: int) -> None:
        data = _packed((None, None, values, None))
        self._peer.say(_BATCH, 0, data, crc32c(data))
        self._in_flight += 1
        await asyncio.sleep(0)
        await self._at_most(in_flight - 1)

    async def columns(self, value: bytes, count: int, batch_bytes: int) -> float:
        """Records a second, given as columns."""
        many = max(batch_bytes // (len(value) + 6), 1)
        column, began = [value] * many, time.perf_counter()
        for _ in range(max(count // many, 1)):
            await self._send(column[:], IN_FLIGHT)
        await self._at_most(0)
        return max(count // many, 1) * many / (time.perf_counter() - began)

    async def one_by_one(self, value: bytes, count: int, batch_bytes: int) -> float:
        """Records a second, given one by one to a coroutine that puts each into a list."""
        left = [batch_bytes, 0]
        values: list[bytes] = []

        async def put(value: bytes) -> tuple[list[bytes], int]:
            left[0] -= len(value) + 6
            values.append(value)
            return values, len(values)

        began = time.perf_counter()
        for _ in range(count):
            await put(value)
            if left[0] < 0:
                await self._send(values, IN_FLIGHT)
                values, left[0] = [], batch_bytes
        await self._send(values or [value], IN_FLIGHT)
        await self._at_most(0)
        return count / (time.perf_counter() - began)

    async def requests(self, value: bytes, count: int, in_flight: int) -> float:
        """Batches of one record a second."""
        data = _packed((None, None, [value], None))
        checksum, began = crc32c(data), time.perf_counter()
        for _ in range(count):
            self._peer.say(_BATCH, 0, data, checksum)
            self._in_flight += 1
            await self._at_most(in_flight - 1)
        await self._at_most(0)
        return count / (time.perf_counter() - began)

    async def latency(self, value: bytes, count: int) -> list[float]:
        """How long each of so many records takes that is waited for, in ms."""
        taken = []
        for _ in range(count):
            began = time.perf_counter_ns()
            await self._send([value], 1)
            taken.append((time.perf_counter_ns() - began) / 1e6)
        return taken

    async def read(self, count: int, *, objects: bool) -> float:
        """Records a second: all that is there, until there are so many; the next answer comes while this one is read."""
        answers: asyncio.Queue[memoryview] = asyncio.Queue()
        place = 0

        def heard(peer: Peer, frame: memoryview) -> None:
            nonlocal place
            *_, (_, end) = _batches(frame, _HEAD.size)
            place += end - _HEAD.size
            answers.put_nowait(memoryview(bytes(frame)))
            peer.say(_READ, place)

        _, reader = await asyncio.get_running_loop().create_connection(lambda: Peer(heard), HOST, self._port)
        got, began = 0, time.perf_counter()
        reader.say(_READ, place)
        while got < count:
            frame = await answers.get()
            for begin, end in _batches(frame, _HEAD.size):
                data = frame[begin + _HEAD.size : end]
                assert crc32c(data) == _HEAD.unpack_from(frame, begin)[3]
                values = _columns(data)[2]
                if objects:
                    for record in map(_Record, range(got, got + len(values)), values):
                        got += record.value is not None
                else:
                    got += len(values)
        rate = got / (time.perf_counter() - began)
        reader.close()
        return rate


@contextmanager
def bare(directory: Path, replicas: int, children: set[int]) -> Iterator[int]:
    """A leader and its followers, with their files there; the port of the leader."""
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        port = stack.enter_context(_process(children, "leader", directory / "leader", replicas))
        for number in range(replicas - 1):
            stack.enter_context(_process(children, "follower", directory / f"follower-{number}", port))
        yield port


@contextmanager
def _process(children: set[int], kind: str, path: Path, number: int) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-m", "scripts.benches.bare", kind, path, str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C is for the bench, which ends it
    ) as process:
        children.add(process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            children.discard(process.pid)
            process.stdin.close()


async def measure(
    port: int, alone: int, count: Callable[[int, int], int], children: set[int]
) -> dict[str, float]:
    """All of it once; `alone` is a leader without followers."""
    small, large = b"x" * 100, b"x" * 1024
    found: dict[str, float] = {}
    many, calls, pieces = count(500_000, 2000), count(500, 5), count(100_000, 1000)
    async with Bare(port) as one:
        await one.columns(small, many // 5, BATCH_BYTES)  # it warms up
        found["bare columns"] = await one.columns(small, many, BATCH_BYTES) / 1e6
        # Read before there is anything else in the file.
        found["bare read columns"] = await one.read(many // 2, objects=False) / 1e6
        found["bare read objects"] = await one.read(many // 2, objects=True) / 1e6
        found["bare enqueue"] = await one.one_by_one(small, many, BATCH_BYTES) / 1e6
        found["bare requests"] = await one.requests(small, count(20_000, 100), 64) / 1e3
        for name, size in (("bare 64K", 65_536), ("bare 1M", 1 << 20)):
            found[name] = await one.columns(large, pieces, size) * len(large) / 1e6
        cuts = quantiles(await one.latency(small, calls), n=100)
        found |= {"bare send p50": cuts[49], "bare send p99": cuts[98]}
        with _process(children, "reader", Path(), port):
            cuts = quantiles(await one.latency(small, calls), n=100)
        found |= {"bare beside p99": cuts[98]}
    async with Bare(alone) as one:
        await one.columns(large, pieces // 5, BATCH_BYTES)
        found["bare alone"] = await one.columns(large, pieces, BATCH_BYTES) * len(large) / 1e6
        found["bare requests alone"] = await one.requests(small, count(20_000, 100), 64) / 1e3
    return found


async def _read_for_ever(port: int) -> None:
    async with Bare(port) as one:
        while True:
            await one.read(10_000, objects=True)


async def _serve(kind: str, path: str, number: int) -> None:
    loop = asyncio.get_running_loop()
    if kind == "leader":
        leader = Leader(path, number)
        server = await loop.create_server(lambda: Peer(leader.heard), HOST, 0)
        say(server.sockets[0].getsockname()[1])
    elif kind == "reader":
        reading = loop.create_task(_read_for_ever(number))
        say(number)
        await until_stdin_ends()
        reading.cancel()
        return
    else:
        follower = Follower(path)
        _, peer = await loop.create_connection(lambda: Peer(follower.heard), HOST, number)
        peer.say(_FOLLOW, 0)
        say(number)
    await until_stdin_ends()


if __name__ == "__main__":
    run(_serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
