"""What tidelog does today, on a terminal: one log behind a socket, killed in mid-stream, with nothing lost.

Run by scripts/demo; the first half is the server, the second half the story. It ends by itself, in a few
seconds, and leaves no process and no file. It is not yet a cluster: there is one log and no replica, so what is
shown is what a replica will be made of.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from tidelog.protocol.batch import walk
from tidelog.protocol.errors import StorageError, TidelogError, error_of
from tidelog.protocol.io import Connection, Incoming, connect, listen, run
from tidelog.protocol.messages import (
    Fetch,
    FetchReply,
    Hello,
    PartitionFetch,
    PartitionFetched,
    PartitionProduce,
    PartitionProduced,
    Produce,
    ProduceReply,
    Welcome,
    split_attachment,
)
from tidelog.protocol.records import decode, encode
from tidelog.protocol.types import TopicPartition
from tidelog.storage.config import LogConfig
from tidelog.storage.crashes import Life
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.identity import claim
from tidelog.storage.io import open_directory
from tidelog.storage.log import Log
from tidelog.storage.names import parse_partition
from tidelog.storage.open_segments import OpenSegments

ORDERS: Final = TopicPartition("orders", 0)
TOPIC_ID: Final = b"tidelog's orders"
LOCALHOST: Final = "127.0.0.1"
CONFIG: Final = LogConfig(segment_bytes=16 << 20)
FLUSH_SECONDS: Final = 0.5
STREAM_SECONDS: Final = 1.5
RECORDS_PER_BATCH: Final = 100
IN_FLIGHT: Final = 5
COLUMNS: Final = 80


# ── the server: one log behind a socket ───────────────────────────────────────────────────────────────


class Server:
    """Answers Produce and Fetch for one partition, by calling the log. A broker will know many, and replicas."""

    def __init__(self, directory: str) -> None:
        started = time.perf_counter()
        root = open_directory(directory, create=True)
        cluster_id, directory_id, pid = b"tidelog's demo c", os.urandom(16), os.getpid()
        claimed = claim(
            root, role="broker", node_id=1, cluster_id=cluster_id, new_directory_id=directory_id, pid=pid
        )
        life = Life.begin(
            root,
            directory_id=claimed.identity.directory_id,
            incarnation_id=os.urandom(16),
            boot_id=boot_id(),
            has_partitions=any(parse_partition(name) for name in root.names()),
        )
        self.data = DataDirectory(root, life, CONFIG, OpenSegments(), halt=halt, new_guard=nullcontext)
        for _ in self.data.open(now_ms()):
            pass
        self.log: Log = self.data.logs.get(ORDERS) or self.data.create(ORDERS, TOPIC_ID, now_ms())
        self.epoch = self.log.epochs.latest + 1  # one leadership per life: a quorum will decide this
        findings = self.data.report.found.get(ORDERS)
        self.found = {
            "last_end": life.last_end.name.lower(),
            "end_offset": self.log.end_offset,
            "epoch": self.epoch,
            "verified": findings.verified_bytes if findings else 0,
            "torn": findings.torn_bytes if findings else 0,
            "damage": findings.damage if findings else [],
            "ms": round((time.perf_counter() - started) * 1000),
        }

    def handle(self, request: Incoming) -> None:
        """Serve one request."""
        message = request.message
        if isinstance(message, Hello):
            request.reply(Welcome(software="tidelog demo"))
        elif isinstance(message, Produce):
            parts = split_attachment(request.attachment, message.partitions)
            batches = zip(message.partitions, parts, strict=True)
            request.reply(ProduceReply(tuple(self.append(entry, batch) for entry, batch in batches)))
        elif isinstance(message, Fetch):
            self.read(request, message.partitions[0])

    def append(self, entry: PartitionProduce, batch: memoryview) -> PartitionProduced:
        """One batch into the log; what the log refuses is the answer."""
        try:
            base_offset, _, _ = self.log.append(batch, self.epoch, now_ms())
        except TidelogError as error:
            return PartitionProduced(entry.topic_id, entry.index, error.code, str(error))
        return PartitionProduced(entry.topic_id, entry.index, base_offset=base_offset)

    def read(self, request: Incoming, entry: PartitionFetch) -> None:
        """The log's own bytes, which it has verified; or why they are not served."""
        try:
            found = self.log.read(entry.fetch_offset, entry.max_bytes)
        except TidelogError as error:
            # How a log is damaged is the broker's business; to a client its disk has failed.
            refused = PartitionFetched(entry.topic_id, entry.index, StorageError.code, str(error))
            request.reply(FetchReply((refused,)))
            return
        end = self.log.end_offset
        size = len(found.data)
        answer = PartitionFetched(
            entry.topic_id, entry.index, records_size=size, high_watermark=end, end_offset=end
        )
        request.reply(FetchReply((answer,)), found.data)

    async def serve(self) -> None:
        """Until stdin ends, which it does with whoever has started this, however they end."""
        listener = await listen(LOCALHOST, 0, self.handle)
        print(json.dumps({"port": listener.port, **self.found}), flush=True)
        flushing = asyncio.create_task(self.flush_now_and_then())
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        flushing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await flushing
        listener.close()
        await listener.wait_closed()
        self.data.close({ORDERS: self.log.end_offset})

    async def flush_now_and_then(self) -> None:
        """Make durable what is there, in a worker thread, and write the checkpoints that say so."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            flush = self.log.begin_flush()
            if flush is not None:
                await loop.run_in_executor(None, flush.run)
                self.log.end_flush(flush)
                self.data.write_recovery_points().run()
                self.data.write_high_watermarks({ORDERS: self.log.end_offset}).run()


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def boot_id() -> str:
    """Which boot of the machine this is; empty where that cannot be known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def halt(what: str, error: OSError) -> NoReturn:
    """A flush failed: nothing that follows could be believed."""
    print(f"{what}: {error}", file=sys.stderr)
    os._exit(70)


# ── the story ─────────────────────────────────────────────────────────────────────────────────────────


class Acknowledged(NamedTuple):
    """A batch that the server has said to be in the log."""

    base_offset: int
    first_number: int
    records: int


class Verdict(NamedTuple):
    """Whether a promise was kept, and the line that says so."""

    kept: bool
    line: str


def value(number: int) -> bytes:
    """The record with that number: what is read back is compared with it, byte for byte."""
    return b'{"order": %d, "amount": %d.%02d, "currency": "EUR"}' % (number, number * 7 % 1000, number % 100)


def verdict(acknowledged: Sequence[Acknowledged], found: dict[int, bytes]) -> Verdict:
    """Whether every acknowledged record is where the server said, is what was sent, and is there once."""
    missing = changed = 0
    placed: set[int] = set()
    for base_offset, first, count in acknowledged:
        for each in range(count):
            record = found.get(base_offset + each)
            placed.add(base_offset + each)
            missing += record is None
            changed += record is not None and record != value(first + each)
    records = sum(batch.records for batch in acknowledged)
    twice = records - len(placed)
    unasked = len(found.keys() - placed)
    if missing or changed or twice or unasked:
        faults = f"{missing} missing, {changed} changed, {twice} at one place, {unasked} not asked for"
        return Verdict(False, f"LOST  of {records:,} acknowledged records: {faults}")
    return Verdict(True, f"KEPT  {records:,} of {records:,} acknowledged records: each once, byte for byte")


class Process:
    """The server as a process of its own, with a connection to it."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start")
        self.said: dict[str, Any] = json.loads(line)

    async def connect(self) -> Connection:
        """A connection to it."""
        return await connect(LOCALHOST, self.said["port"])

    def stop(self) -> None:
        """In order when it can be, and certainly."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Producer:
    """Sends numbered records, a few batches at a time, and remembers which were acknowledged."""

    def __init__(self) -> None:
        self.number = 0
        self.acknowledged: list[Acknowledged] = []
        self.unacknowledged: dict[int, bytes] = {}
        """Batches on their way, by the number of their first record."""

    @property
    def count(self) -> int:
        """How many records are acknowledged."""
        return len(self.acknowledged) * RECORDS_PER_BATCH

    async def stream(self, connection: Connection) -> None:
        """Send until the connection breaks."""
        room = asyncio.Semaphore(IN_FLIGHT)
        async with asyncio.TaskGroup() as tasks:
            while not connection.closed:
                await room.acquire()
                if not connection.closed:
                    tasks.create_task(self._send_next(connection, room))

    async def _send_next(self, connection: Connection, room: asyncio.Semaphore) -> None:
        first = self.number
        self.number += RECORDS_PER_BATCH
        values = [value(number) for number in range(first, first + RECORDS_PER_BATCH)]
        batch = encode(values, now_ms=now_ms(), producer_id=1, producer_epoch=0, base_sequence=first)
        self.unacknowledged[first] = bytes(batch)
        # Killed: whether these were written is unknown, so they are kept to be sent again.
        with contextlib.suppress(TidelogError):
            await self.send(connection, first)
        room.release()

    async def send(self, connection: Connection, first: int) -> None:
        """One batch, until its answer."""
        batch = self.unacknowledged[first]
        entry = PartitionProduce(TOPIC_ID, 0, len(batch))
        reply, _ = await connection.call(Produce(1, 5_000, (entry,)), batch)
        assert isinstance(reply, ProduceReply)
        answer = reply.partitions[0]
        if answer.error:
            raise error_of(answer.error, answer.message or "")
        self.acknowledged.append(Acknowledged(answer.base_offset, first, RECORDS_PER_BATCH))
        del self.unacknowledged[first]


async def read_all(connection: Connection, offset: int = 0) -> dict[int, bytes]:
    """Every record from that offset on, by offset; raises what the server refuses with."""
    found: dict[int, bytes] = {}
    while True:
        entry = PartitionFetch(TOPIC_ID, 0, offset, 1 << 20)
        reply, batches = await connection.call(Fetch(0, 1, 1 << 20, (entry,)))
        assert isinstance(reply, FetchReply)
        answer = reply.partitions[0]
        if answer.error:
            raise error_of(answer.error, answer.message or "")
        for position, header in walk(batches):
            columns = decode(batches, position)
            found.update(zip(columns.offsets, (each or b"" for each in columns.values), strict=True))
            offset = header.next_offset
        if offset >= answer.end_offset:
            return found


class Screen:
    """Plain lines of 80 columns; bold, green and red where there is a terminal and NO_COLOR is not set."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._coloured = self._live and not os.environ.get("NO_COLOR")
        self._step = 0

    def step(self, title: str) -> None:
        """The next part of the story."""
        self._step += 1
        print()
        print(self._style("1", f"{self._step}  {title}"), flush=True)

    def say(self, text: str) -> None:
        """One line of it."""
        print(f"   {text}", flush=True)

    def count(self, number: int) -> None:
        """A number that grows: in place on a terminal, nothing in a pipe."""
        if self._live:
            print(f"\r   {number:>9,} records acknowledged", end="", flush=True)

    def counted(self, number: int) -> None:
        """The number that it has come to."""
        print(f"{chr(13) if self._live else ''}   {number:>9,} records acknowledged", flush=True)

    def verdict(self, verdict: Verdict) -> None:
        """Green or red."""
        print(f"   {self._style('1;32' if verdict.kept else '1;31', verdict.line)}", flush=True)

    def command(self, directory: Path, *words: str, most: int = 20) -> None:
        """A command line of tidelog, run where the data directory is, and the beginning of what it prints.

        What is too long for the screen goes on in the next line, or is left out where it is a table's.
        """
        print(f"\n {self._style('2', '$ tidelog ' + ' '.join(words))}", flush=True)
        ran = subprocess.run(
            [sys.executable, "-m", "tidelog", *words],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = (ran.stdout + ran.stderr).rstrip().splitlines()
        for line in lines[:most]:
            table = "  " in line.strip()
            for piece in [line[: COLUMNS - 1]] if table else folded(line, COLUMNS - 1):
                print(f" {piece}".rstrip(), flush=True)
        if len(lines) > most:
            print(f" {self._style('2', f'... {len(lines) - most} more lines')}", flush=True)

    def _style(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._coloured else text


def folded(line: str, width: int = COLUMNS - 3) -> Iterator[str]:
    """A long line as several that fit."""
    while len(line) > width:
        at = line.rfind(" ", width // 2, width)
        at = width if at < 0 else at
        yield line[:at]
        line = "    " + line[at:].lstrip()
    yield line


async def tell(screen: Screen, place: Path, running: list[Process]) -> bool:
    """The whole story; whether every promise was kept."""
    data = place / "data"
    screen.step("A server: one process, one log, real TCP, real disk")
    server = Process(data)
    running.append(server)
    screen.say(f"process {server.process.pid} serves {ORDERS} at {LOCALHOST}:{server.said['port']}, epoch 0")

    producer = Producer()
    await kill_in_mid_stream(screen, server, producer)

    screen.step("The same directory, opened again")
    server = Process(data)
    running.append(server)
    said = server.said
    screen.say(f"last end    {said['last_end']}: killed, but the machine went on")
    screen.say(f"verified    {said['verified']:,} unflushed bytes: checked, and written again")
    screen.say(f"torn off    {said['torn']:,} bytes; damage: {'; '.join(said['damage']) or 'none'}")
    screen.say(
        f"open        after {said['ms']} ms, up to offset {said['end_offset']:,}, epoch {said['epoch']}"
    )

    connection = await server.connect()
    pending = sorted(producer.unacknowledged)
    for first in pending:
        await producer.send(connection, first)
    known = sum(batch.base_offset < said["end_offset"] for batch in producer.acknowledged[-len(pending) :])
    if pending:
        screen.say(f"sent again  {len(pending)} batches that had no answer; {known} known, not written twice")

    screen.step("Every acknowledged record, read back over the socket")
    kept = verdict(producer.acknowledged, await read_all(connection))
    screen.verdict(kept)

    screen.step("What is on the disk")
    screen.command(place, "log", "segments", "data/orders-0")
    screen.command(place, "log", "checkpoints", "data")
    first_segment = f"data/orders-0/{0:020}.log"
    screen.command(place, "log", "dump", first_segment, most=5)

    damage = await flip_a_bit(screen, connection, place / first_segment)
    screen.command(place, "log", "dump", "--verify", first_segment)
    screen.verdict(damage)
    connection.close()
    await connection.wait_closed()
    return kept.kept and damage.kept


async def kill_in_mid_stream(screen: Screen, server: Process, producer: Producer) -> None:
    """Produce for a while, and kill the server while requests are on their way."""
    screen.step("A producer: a record counts once it is acknowledged")
    streaming = asyncio.create_task(producer.stream(await server.connect()))
    until = time.monotonic() + STREAM_SECONDS
    while time.monotonic() < until:
        screen.count(producer.count)
        await asyncio.sleep(0.05)
    screen.counted(producer.count)
    screen.step("kill -9, in mid-stream")
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    await streaming
    screen.say(
        f"process {server.process.pid} is gone, with {len(producer.unacknowledged)} batches unanswered"
    )
    screen.say(f"{producer.count:,} records had been acknowledged by then")


async def flip_a_bit(screen: Screen, connection: Connection, segment: Path) -> Verdict:
    """Change one bit in the middle of a file, and read there."""
    screen.step("One bit flips on the disk")
    with segment.open("r+b") as file:
        content = file.read()
        batches = list(walk(content))
        position, header = batches[len(batches) // 2]
        at = position + header.size // 2
        file.seek(at)
        file.write(bytes([content[at] ^ 0b1000]))
    screen.say(f"bit 3 of byte {at:,} of {segment.name}")
    return await read_there(screen, connection, header.base_offset)


async def read_there(screen: Screen, connection: Connection, offset: int) -> Verdict:
    """Ask for a record that is damaged: it must be refused, and not be served."""
    try:
        found = await read_all(connection, offset)
    except StorageError as error:
        message = str(error).rpartition("/")[2]  # a temporary directory's path says nothing to anybody
        for piece in folded(f"reading offset {offset:,} is refused: {error.name()}: {message}"):
            screen.say(piece)
        return Verdict(True, "KEPT  the damage was named, and not a byte of it was served")
    return Verdict(False, f"LOST  {len(found):,} records were served from damaged bytes")


def main() -> int:
    """Be the server, or tell the story in a temporary directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    directory = parser.parse_args().serve
    if directory:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the story, which then ends this
        run(Server(directory).serve())
        return 0
    screen = Screen()
    print("tidelog, as far as it goes today: one log behind a socket. There is no broker")
    print("yet, no replica and no election: this is what a replica will be made of.")
    running: list[Process] = []
    place = Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    started = time.monotonic()
    try:
        kept = run(tell(screen, place, running))
    except KeyboardInterrupt:
        return 130
    finally:
        for server in running:
            server.stop()
        shutil.rmtree(place)
    print()
    print(f"Done in {time.monotonic() - started:.1f} s; no process and no file is left.")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
