"""A probe of a simulated cluster: single requests to brokers of our choice, and what exactly they say to them.

What the product's client (`users`) does in every storm, it does well: it asks who leads, with the newest epoch that it
knows, repeats what failed and tells its user the end of it. This is for what cannot be asked through it:

    a chosen broker, a chosen epoch    who does not lead must refuse, and who answers for an epoch is its leader
    any offset                         above the high watermark nothing is read; out of range is only what was deleted
    acks 0 and 1, and all, once        a record that nobody repeats is there at most once
    the bare answer                    what the client would hide by asking again

Directed tests use it to do one thing at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from tests.simulation.history import Address, History, Sent
from tidelog.protocol.batch import walk
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import DiskFull, OffsetOutOfRange, TidelogError, error_of
from tidelog.protocol.io import Connection, connect
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import (
    ACKS_ALL,
    EARLIEST,
    Fetch,
    FetchReply,
    ListOffsets,
    ListOffsetsReply,
    Metadata,
    MetadataReply,
    OffsetQuery,
    PartitionFetch,
    PartitionProduce,
    Produce,
    ProduceReply,
    Reply,
    Request,
)
from tidelog.protocol.records import decode, encode
from tidelog.protocol.types import NO_EPOCH, Buffer, Epoch, Offset
from tidelog.replication.sessions import Place


class Probe:
    """Connections to brokers, and who is said to lead what."""

    def __init__(self, name: str, brokers: list[Address], rng: Random, history: History) -> None:
        self.name = name
        self.rng = rng
        self.history = history
        self.brokers = brokers
        self.places: dict[str, list[Place]] = {}
        self._bounds = Bounds(DEFAULT)
        self._connections: dict[Address, Connection] = {}
        self._leaders: dict[Place, tuple[Address, Epoch]] = {}

    async def connection(self, address: Address) -> Connection:
        """The one that is there, or a new one."""
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = await connect(*address, bounds=self._bounds, timeout_ms=1000)
            self._connections[address] = connection
        return connection

    async def ask(self, address: Address, request: Request, *attachments: Buffer) -> tuple[Reply, Buffer]:
        """One request."""
        connection = await self.connection(address)
        try:
            return await connection.call(request, *attachments, timeout_ms=2500)
        except TidelogError:
            connection.abort()
            raise

    async def learn(self, topic: str) -> None:
        """Ask somebody who leads the topic's partitions."""
        reply, _ = await self.ask(self.rng.choice(self.brokers), Metadata(names=(topic,)))
        assert isinstance(reply, MetadataReply), reply
        addresses = {broker.id: (broker.host, broker.port) for broker in reply.brokers}
        for known in reply.topics:
            if known.topic_id is None:
                continue
            self.places[topic] = [(known.topic_id, partition.index) for partition in known.partitions]
            for partition in known.partitions:
                place = known.topic_id, partition.index
                if partition.leader in addresses:
                    self._leaders[place] = addresses[partition.leader], partition.leader_epoch
                else:
                    self._leaders.pop(place, None)

    async def leadership(self, topic: str, place: Place) -> tuple[Address, Epoch]:
        """Who leads and since which epoch, as far as is known; asks until somebody does."""
        while place not in self._leaders:
            await self.trouble(topic)
        return self._leaders[place]

    async def leader(self, topic: str, place: Place) -> Address:
        """Who leads, as `leadership`."""
        address, _ = await self.leadership(topic, place)
        return address

    async def trouble(self, topic: str, place: Place | None = None) -> None:
        """Something went wrong: wait a little and learn anew."""
        if place is not None:
            self._leaders.pop(place, None)
        await asyncio.sleep(self.rng.uniform(0.02, 0.2))
        try:
            await self.learn(topic)
        except TidelogError as error:
            self.history.failed(error)


class Poking:
    """A probe that asks at random for as long as a storm lasts."""

    def __init__(
        self,
        probe: Probe,
        topic: str,
        stop: asyncio.Event,
        full: Callable[[], Sequence[tuple[Address, Place]]] = lambda: (),
    ) -> None:
        self._probe = probe
        self._full = full
        """Leaders that have no room, by who sees it all: the product's clients have left them before one can look."""
        self._rng = probe.rng
        self._history = probe.history
        self._topic = topic
        self._stop = stop
        self._number = 0

    async def run(self, per_s: float) -> None:
        """Until told to stop."""
        probe = self._probe
        while self._topic not in probe.places:
            await probe.trouble(self._topic)
        while not self._stop.is_set():
            await asyncio.sleep(self._rng.expovariate(per_s))
            place = self._rng.choice(probe.places[self._topic])
            address, epoch = await probe.leadership(self._topic, place)
            if self._rng.random() < 0.2:
                address = self._rng.choice(probe.brokers)
            writes = self._rng.random() < 0.4
            if full := self._full():
                writes, (address, place) = True, self._rng.choice(full)
            epoch = self._rng.choice([NO_EPOCH, epoch, epoch, epoch - 1, epoch + 1])
            error = await (self._write(address, place) if writes else self._read(address, place, epoch))
            while writes and isinstance(error, DiskFull) and not self._stop.is_set():
                # Who has no room says so until it has, or until another leads.
                await asyncio.sleep(0.05)
                error = await self._write(address, place)
            if error is not None:
                await probe.trouble(self._topic, place)

    async def _write(self, address: Address, place: Place) -> TidelogError | None:
        """A batch, once; the error that is told."""
        return await self._told(self._write_once(address, place))

    async def _read(self, address: Address, place: Place, epoch: Epoch) -> TidelogError | None:
        """A piece of a log; the error that is told."""
        return await self._told(self._read_once(address, place, epoch))

    async def _told(self, asked: Awaitable[int]) -> TidelogError | None:
        """The error, whether it is told of the partition or there is no answer; it is counted."""
        try:
            code = await asked
            error = error_of(code, "") if code else None
        except TidelogError as failed:
            error = failed
        if error is not None:
            self._history.failed(error)
        return error

    async def _write_once(self, address: Address, place: Place) -> int:
        """The code that is told."""
        acks = self._rng.choice([0, 1, ACKS_ALL, ACKS_ALL])
        self._number += 1
        # Nobody keeps an order among requests on several connections: each is a producer of its own.
        name = f"{self._probe.name}/{self._number}"
        records = [
            Sent(name, place, b"%s-%d|" % (name.encode(), at)) for at in range(self._rng.choice([1, 3]))
        ]
        self._history.sent += records
        batch = bytes(encode([record.value for record in records], now_ms=0))
        request = Produce(acks, 1500, (PartitionProduce(*place, len(batch)),))
        if acks == 0:
            (await self._probe.connection(address)).send(request, batch)
            return 0
        reply, _ = await self._probe.ask(address, request, batch)
        assert isinstance(reply, ProduceReply), reply
        answer = reply.partitions[0]
        if not answer.error and acks == ACKS_ALL:
            for at, record in enumerate(records):
                self._history.was_acknowledged(record, answer.base_offset + at)
        return answer.error

    async def _read_once(self, address: Address, place: Place, epoch: Epoch) -> int:
        """The code that is told."""
        history, committed = self._history, self._history.committed(place)
        offset = self._rng.choice([0, self._rng.randint(0, committed), committed, committed + 10])
        floor = history.floor(place)
        asked = PartitionFetch(*place, offset, 4096, current_leader_epoch=max(epoch, NO_EPOCH))
        reply, data = await self._probe.ask(address, Fetch(100, 1, 4096, (asked,)))
        assert isinstance(reply, FetchReply), reply
        entry = reply.partitions[0]
        if entry.error == OffsetOutOfRange.code and offset <= committed:
            history.was_out_of_range(place, offset)
            return await self._look_where_it_begins(address, place)
        if entry.error:
            return entry.error
        history.was_served(place, epoch, address)
        if len(data) and offset < floor:
            history.contradictions.append(
                f"DeletedRecords: offset {offset} was read, {floor} was deleted (I-76, ADR 79)"
            )
        for found, value in _records(data, offset):
            if found != offset:
                history.contradictions.append(
                    f"OrderOfReading: after offset {offset - 1} came {found} (I-72)"
                )
            history.saw(place, found, value)
            offset = found + 1
        return 0

    async def _look_where_it_begins(self, address: Address, place: Place) -> int:
        """What is out of range lies below what somebody wanted deleted; the code that is told."""
        reply, _ = await self._probe.ask(address, ListOffsets((OffsetQuery(*place, EARLIEST),)))
        assert isinstance(reply, ListOffsetsReply), reply
        found = reply.partitions[0]
        if not found.error and found.offset > self._history.asked.get(place, 0):
            self._history.contradictions.append(
                f"DeletedRecords: {found.offset} is the beginning, nobody asked for it (I-77)"
            )
        return found.error


def _records(data: Buffer, offset: Offset) -> Sequence[tuple[Offset, bytes]]:
    """Those from that offset on."""
    found: list[tuple[Offset, bytes]] = []
    for at, header in walk(data):
        columns = decode(data[at : at + header.size])
        for each, value in zip(columns.offsets, columns.values, strict=True):
            assert value is not None
            if each >= offset:
                found.append((each, value))
    return found
