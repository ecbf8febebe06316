"""Clients of a simulated cluster, and the history of what they were told.

Small on purpose: the product's client (`users`) takes turns with them. A producer numbers its batches and repeats one until it
knows what became of it; a consumer reads everything from the beginning, again and again. Who deletes records says
so only of what it was told to be deleted.

    acknowledged   told that it is committed
    unknown        sent, and never told: it may be there, once
    refused        told that it was not written
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tidelog.protocol.batch import walk
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import (
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
    TidelogError,
    UnknownProducerId,
)
from tidelog.protocol.io import Connection, connect
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import (
    ACKS_ALL,
    EARLIEST,
    DeleteBefore,
    DeleteRecords,
    DeleteRecordsReply,
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
    split_attachment,
)
from tidelog.protocol.records import decode, encode
from tidelog.protocol.types import NO_OFFSET, Buffer, Offset
from tidelog.replication.sessions import Place

Address = tuple[str, int]
LOST = (OutOfOrderSequenceNumber, UnknownProducerId, InvalidProducerEpoch)
"""What ends a producer's numbering: it begins anew, and what was in flight stays unknown."""


@dataclass(slots=True)
class Sent:
    """One record that a producer sent."""

    producer: str
    place: Place
    value: bytes
    sent_s: float
    offset: Offset = -1
    """Where it was acknowledged; -1 if it was not."""
    somewhere: bool = False
    """Acknowledged, and nobody was told where: it had been written before."""


@dataclass(slots=True)
class History:
    """What all clients did and were told, in the order in which it happened."""

    sent: list[Sent] = field(default_factory=list)
    read: dict[tuple[Place, Offset], bytes] = field(default_factory=dict)
    acknowledged: int = 0
    reads: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    contradictions: list[str] = field(default_factory=list)
    committed: Callable[[Place], Offset] = lambda _: 1 << 62
    """How far a partition is known to be committed, by who sees it all."""
    begins: Callable[[Place], Offset] = lambda _: 1 << 62
    """Up to where some replica has deleted, by who sees it all."""
    deleted: Callable[[Place, Offset], None] = lambda _place, _offset: None
    """Who sees it all is told of a deletion that was acknowledged."""
    now_s: Callable[[], float] = lambda: 0.0
    """The time, one for all clients."""
    lease_s: float = 0.0
    """How long a leader that was hidden from its controller may still serve what was deleted (DECISIONS 3)."""
    asked: dict[Place, Offset] = field(default_factory=dict)
    """The largest offset below which somebody wanted records deleted."""
    deletions: list[tuple[float, Place, Offset]] = field(default_factory=list)
    """Those that were acknowledged, and when."""
    deletions_told: int = 0
    """How many were acknowledged in all."""
    forgiven: int = 0
    """How often disks have lost their log starts."""
    distrusted: Callable[[], bool] = lambda: False
    """Whether a disk has, and its leader may not know that yet."""

    def wants_deleted(self, place: Place, offset: Offset) -> int:
        """A client is about to ask for it; what it is to show when it was told that it is done."""
        self.asked[place] = max(self.asked.get(place, 0), 1 << 62 if offset == NO_OFFSET else offset)
        return -1 if self.distrusted() else self.forgiven

    def was_deleted(self, place: Place, offset: Offset, ticket: int) -> None:
        """A client was told so; what a disk may have lost since it asked counts for nothing."""
        self.deletions_told += 1
        if ticket == self.forgiven and not self.distrusted():
            self.deletions.append((self.now_s(), place, offset))
            self.deleted(place, offset)

    def forgive(self) -> None:
        """A disk has lost its log starts: what was deleted until now may come back."""
        self.forgiven += 1
        self.deletions.clear()

    def floor(self, place: Place) -> Offset:
        """Where a read that begins now begins at the earliest: deleted records stay deleted (I-76, ADR 79)."""
        before = self.now_s() - self.lease_s
        return max((to for at, where, to in self.deletions if where == place and at < before), default=0)

    def was_out_of_range(self, place: Place, offset: Offset) -> None:
        """A consumer was told so: only of what somebody wanted deleted (I-77)."""
        if offset >= self.asked.get(place, 0):
            self.contradictions.append(f"offset {offset} was out of range and never deleted (I-77)")

    def saw(self, place: Place, offset: Offset, value: bytes) -> None:
        """A consumer was given this."""
        self.reads += 1
        if offset >= self.committed(place):
            self.contradictions.append(f"offset {offset} was read and is not committed (I-75)")
        before = self.read.setdefault((place, offset), value)
        if before != value:
            self.contradictions.append(f"offset {offset} was read as {before!r} and as {value!r} (I-68)")

    def check(
        self, final: dict[Place, dict[Offset, bytes]], starts: dict[Place, Offset] | None = None
    ) -> list[str]:
        """What contradicts the records that are there at the end; below `starts` they may be deleted."""
        wrong = list(self.contradictions)
        starts = starts or {}
        for place, records in final.items():
            start = starts.get(place, 0)
            times = Counter(records.values())
            wrong += [
                f"{value!r} is there {count} times (I-69)" for value, count in times.items() if count > 1
            ]
            last: dict[str, Offset] = {}
            where = {value: offset for offset, value in records.items()}
            for sent in self.sent:
                if sent.place != place:
                    continue
                gone = sent.offset < start and sent.offset not in records
                if sent.offset >= 0 and not gone and records.get(sent.offset) != sent.value:
                    wrong.append(f"acknowledged {sent.value!r} is not at {sent.offset} (I-1, I-74)")
                if sent.somewhere and not start and sent.value not in where:
                    wrong.append(f"acknowledged {sent.value!r} is nowhere (I-1)")
                if sent.value in where:
                    if where[sent.value] < last.get(sent.producer, -1):
                        wrong.append(f"{sent.value!r} stands before what {sent.producer} sent earlier (I-73)")
                    last[sent.producer] = where[sent.value]
        wrong += [
            f"{value!r} was read at offset {offset} and is not there (I-70)"
            for (place, offset), value in self.read.items()
            if final.get(place, {}).get(offset) != value
            and (offset >= starts.get(place, 0) or offset in final.get(place, {}))
        ]
        return wrong


class Client:
    """Connections to brokers, and who leads what."""

    def __init__(self, name: str, brokers: list[Address], rng: Random, history: History) -> None:
        self.name = name
        self.rng = rng
        self.history = history
        self._brokers = brokers
        self._bounds = Bounds(DEFAULT)
        self._connections: dict[Address, Connection] = {}
        self._leaders: dict[Place, Address] = {}
        self.places: dict[str, list[Place]] = {}

    async def ask(self, address: Address, request: Request, *attachments: Buffer) -> tuple[Reply, Buffer]:
        """One request, on a connection that is made when there is none."""
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = await connect(*address, bounds=self._bounds, timeout_ms=1000)
            self._connections[address] = connection
        try:
            return await connection.call(request, *attachments, timeout_ms=2500)
        except TidelogError:
            connection.abort()
            raise

    async def learn(self, topic: str) -> None:
        """Ask somebody who leads the topic's partitions."""
        reply, _ = await self.ask(self.rng.choice(self._brokers), Metadata(names=(topic,)))
        assert isinstance(reply, MetadataReply), reply
        addresses = {broker.id: (broker.host, broker.port) for broker in reply.brokers}
        for known in reply.topics:
            if known.topic_id is None:
                continue
            self.places[topic] = [(known.topic_id, partition.index) for partition in known.partitions]
            for partition in known.partitions:
                place = known.topic_id, partition.index
                if partition.leader in addresses:
                    self._leaders[place] = addresses[partition.leader]
                else:
                    self._leaders.pop(place, None)

    async def leader(self, topic: str, place: Place) -> Address:
        """Who leads, as far as is known; asks until somebody does."""
        while place not in self._leaders:
            await self.trouble(topic)
        return self._leaders[place]

    async def trouble(self, topic: str, place: Place | None = None) -> None:
        """Something went wrong: wait a little and learn anew."""
        if place is not None:
            self._leaders.pop(place, None)
        await asyncio.sleep(self.rng.uniform(0.02, 0.2))
        try:
            await self.learn(topic)
        except TidelogError as error:
            self.history.errors[error.name()] += 1


async def produce(client: Client, topic: str, *, stop: asyncio.Event, first_id: int) -> None:
    """Send numbered records, one batch at a time, until told to stop."""
    while topic not in client.places:
        await client.trouble(topic)
    number, producer_id, sequences = 0, first_id, Counter[Place]()
    while not stop.is_set():
        place = client.rng.choice(client.places[topic])
        values = [
            b"%s:%06d|" % (client.name.encode(), number + i) for i in range(client.rng.choice([1, 1, 2, 5]))
        ]
        number += len(values)
        records = [Sent(client.name, place, value, 0.0) for value in values]
        client.history.sent += records
        batch = encode(
            values, now_ms=0, producer_id=producer_id, producer_epoch=0, base_sequence=sequences[place]
        )
        if await _deliver(client, topic, place, bytes(batch), records):
            sequences[place] += len(values)
        else:
            producer_id, sequences = producer_id + 1, Counter()
        await asyncio.sleep(client.rng.expovariate(40))


async def _deliver(client: Client, topic: str, place: Place, batch: bytes, records: list[Sent]) -> bool:
    """Repeat one batch until its fate is known; False when the numbering is lost."""
    entry = PartitionProduce(place[0], place[1], len(batch))
    while True:
        address = await client.leader(topic, place)
        try:
            reply, _ = await client.ask(address, Produce(ACKS_ALL, 1500, (entry,)), batch)
        except TidelogError as error:
            client.history.errors[error.name()] += 1
            await client.trouble(topic, place)
            continue
        assert isinstance(reply, ProduceReply), reply
        answer = reply.partitions[0]
        if not answer.error:
            for at, record in enumerate(records):
                record.offset = answer.base_offset + at
            client.history.acknowledged += len(records)
            return True
        if answer.error == DuplicateSequenceNumber.code:
            return True
        client.history.errors[str(answer.error)] += 1
        if answer.error in {error.code for error in LOST}:
            return False
        await client.trouble(topic, place)


async def consume(client: Client, topic: str, *, stop: asyncio.Event) -> None:
    """Read everything from the beginning, over and over; offsets must grow without a gap but for what is deleted."""
    while topic not in client.places:
        await client.trouble(topic)
    while not stop.is_set():
        place = client.rng.choice(client.places[topic])
        offset = 0
        for _ in range(client.rng.randrange(1, 20)):
            address = await client.leader(topic, place)
            ask = Fetch(100, 1, 4096, (PartitionFetch(place[0], place[1], offset, 4096),))
            floor = client.history.floor(place)
            try:
                reply, data = await client.ask(address, ask)
            except TidelogError as error:
                client.history.errors[error.name()] += 1
                await client.trouble(topic, place)
                continue
            assert isinstance(reply, FetchReply), reply
            entry = reply.partitions[0]
            if entry.error == OffsetOutOfRange.code:
                client.history.was_out_of_range(place, offset)
                offset = max(offset, await _beginning(client, address, place))
            if entry.error:
                client.history.errors[str(entry.error)] += 1
                await client.trouble(topic, place)
                continue
            (piece,) = split_attachment(memoryview(data), reply.partitions)
            if len(piece) and offset < floor:
                client.history.contradictions.append(
                    f"offset {offset} was read, {floor} was deleted (I-76, ADR 79)"
                )
            offset = _take(client, place, piece, offset)
        await asyncio.sleep(client.rng.uniform(0.01, 0.3))


def _take(client: Client, place: Place, piece: memoryview, offset: Offset) -> Offset:
    for at, header in walk(piece):
        columns = decode(piece[at : at + header.size])
        for found, value in zip(columns.offsets, columns.values, strict=True):
            if found < offset:
                continue
            if found != offset:
                client.history.contradictions.append(f"after offset {offset - 1} came {found} (I-72)")
            assert value is not None
            client.history.saw(place, found, value)
            offset = found + 1
    return offset


async def _beginning(client: Client, address: Address, place: Place) -> Offset:
    """Where a partition begins now, as far as its leader says."""
    try:
        reply, _ = await client.ask(address, ListOffsets((OffsetQuery(*place, EARLIEST),)))
    except TidelogError as error:
        client.history.errors[error.name()] += 1
        return 0
    assert isinstance(reply, ListOffsetsReply), reply
    found = reply.partitions[0]
    if found.error:
        client.history.errors[str(found.error)] += 1
        return 0
    if found.offset > client.history.asked.get(place, 0):
        client.history.contradictions.append(
            f"{found.offset} is the beginning and nobody asked for it (I-77)"
        )
    return found.offset


async def delete(client: Client, topic: str, *, stop: asyncio.Event, per_s: float) -> None:
    """Delete some of what is committed, now and then."""
    while topic not in client.places:
        await client.trouble(topic)
    while not stop.is_set():
        await asyncio.sleep(client.rng.expovariate(per_s))
        place = client.rng.choice(client.places[topic])
        committed = client.history.committed(place)
        start = min(client.history.asked.get(place, 0), committed)
        offset = NO_OFFSET if client.rng.random() < 0.05 else client.rng.randint(start, committed)
        if stop.is_set() or offset == 0:
            continue
        address = await client.leader(topic, place)
        ticket = client.history.wants_deleted(place, offset)
        try:
            reply, _ = await client.ask(address, DeleteRecords((DeleteBefore(*place, offset),), 2000))
        except TidelogError as error:
            client.history.errors[error.name()] += 1
            await client.trouble(topic, place)
            continue
        assert isinstance(reply, DeleteRecordsReply), reply
        answer = reply.partitions[0]
        if answer.error:
            client.history.errors[str(answer.error)] += 1
            await client.trouble(topic, place)
        else:
            client.history.was_deleted(place, answer.low_watermark, ticket)
