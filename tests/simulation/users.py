"""Users of a simulated cluster: applications that write, read and give orders with the product's own client.

A writer sends in all ways that there are and hears what became of each record; a reader reads everything from the
beginning, again and again, in all ways that there are; an operator makes a topic and deletes some of its records.
What cannot be seen through this client is what a `probe` is for.

    acknowledged   the producer has said so: it is there once, at that offset, behind what was sent before
    failed         the producer has given up: it may be there, once, and in its order
    read           offsets follow one another without a gap but for what some replica has deleted
    deleted        the operator has been told so: it stays deleted (I-76)
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from random import Random

from tests.simulation.history import Address, History, Sent
from tidelog.client.admin import NewTopic
from tidelog.client.config import client_config
from tidelog.client.io.client import Client
from tidelog.client.io.consumer import Consumer
from tidelog.client.io.producer import Delivery, Producer
from tidelog.protocol.errors import DeliveryError, TidelogError, TopicAlreadyExists
from tidelog.protocol.types import NO_OFFSET, Offset, TopicPartition
from tidelog.replication.sessions import Place

Pieces = list[tuple[int, Offset, bytes | None]]
"""Records as they came: partition, offset, value."""


class User:
    """An application: where it finds the cluster, and the history that it is part of."""

    def __init__(self, name: str, brokers: list[Address], rng: Random, history: History) -> None:
        self.name = name
        self.rng = rng
        self.history = history
        self._bootstrap = ",".join(f"{host}:{port}" for host, port in brokers)

    async def live(self, work: Callable[[Client], Awaitable[None]], stop: asyncio.Event) -> None:
        """Do that with a client until told to stop; with another one when it fails."""
        while not stop.is_set():
            options = {
                "client_id": self.name,
                "request_timeout_ms": 1500,
                "connect_timeout_ms": 1000,
                "retry_backoff_ms": 100,
            }
            client = Client(client_config(self._bootstrap, options), Random(self.rng.getrandbits(64)))
            try:
                async with client:
                    await work(client)
            except TidelogError as error:
                self.history.failed(error)
                await asyncio.sleep(self.rng.uniform(0.02, 0.2))


class Writer(User):
    """Sends numbered records."""

    def __init__(self, name: str, brokers: list[Address], rng: Random, history: History) -> None:
        super().__init__(name, brokers, rng, history)
        self._number = 0

    async def produce(self, topic: str, stop: asyncio.Event) -> None:
        """Until told to stop."""
        await self.live(lambda client: self._produce(client, topic, stop), stop)

    async def _produce(self, client: Client, topic: str, stop: asyncio.Event) -> None:
        rng, known = self.rng, await client.topic(topic)
        producer = client.producer(
            batch_size=rng.choice([100, 1000, 65_536]),
            linger_ms=rng.choice([0, 5, 20]),
            delivery_timeout_ms=rng.choice([2500, 6000]),
            request_timeout_ms=1500,
            buffer_memory=3000,
            max_in_flight=rng.choice([1, 3, 5]),
        )
        under_way: list[tuple[Sent, Delivery]] = []
        while not stop.is_set():
            partition = rng.choice(known.partitions).index
            records = self._records((known.id, partition), rng.choice([1, 3, 8, 20]))
            if rng.random() < 0.2:
                await self._send_many(producer, topic, partition, records)
            else:
                for record in records:
                    self.history.sent.append(record)
                    delivery = await producer.enqueue(topic, record.value, partition=partition)
                    under_way.append((record, delivery))
            if rng.random() < 0.5:
                await self._settle(under_way)
            await asyncio.sleep(rng.expovariate(7))
        await self._settle(under_way)
        try:
            await producer.close(timeout=20)
        except DeliveryError as error:
            self.history.contradictions.append(
                f"AcknowledgedRecords: {self.name} was told at the end, not before: {error}"
            )

    def _records(self, place: Place, count: int) -> list[Sent]:
        first, self._number = self._number, self._number + count
        values = [b"%s:%06d|" % (self.name.encode(), number) for number in range(first, self._number)]
        return [Sent(self.name, place, value) for value in values]

    async def _send_many(
        self, producer: Producer, topic: str, partition: int, records: Sequence[Sent]
    ) -> None:
        """All at once; of what fails nothing is known."""
        self.history.sent += records
        try:
            landed = await producer.send_many(
                topic, [record.value for record in records], partition=partition
            )
        except TidelogError as error:
            self.history.failed(error)
            return
        for record, metadata in zip(records, landed, strict=True):
            self.history.was_acknowledged(record, metadata.offset)

    async def _settle(self, under_way: list[tuple[Sent, Delivery]]) -> None:
        """Hear what became of these."""
        for record, delivery in under_way:
            try:
                metadata = await delivery
            except TidelogError as error:
                self.history.failed(error)
            else:
                self.history.was_acknowledged(record, metadata.offset)
        under_way.clear()


class Reader(User):
    """Reads everything from the beginning, over and over."""

    async def consume(self, topic: str, stop: asyncio.Event) -> None:
        """Until told to stop."""
        await self.live(lambda client: self._consume(client, topic, stop), stop)

    async def _consume(self, client: Client, topic: str, stop: asyncio.Event) -> None:
        known = await client.topic(topic)
        names = [TopicPartition(topic, partition.index) for partition in known.partitions]
        places = {name.partition: (known.id, name.partition) for name in names}
        async with client.consumer(
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=self.rng.choice([4096, 8192, 16384]),
            prefetch_bytes=self.rng.choice([1, 8192]),
            request_timeout_ms=1500,
        ) as consumer:
            consumer.assign(names)
            while not stop.is_set():
                await self._once_more(consumer, places, topic, stop)
                await asyncio.sleep(self.rng.uniform(0.3, 2))

    async def _once_more(
        self, consumer: Consumer, places: dict[int, Place], topic: str, stop: asyncio.Event
    ) -> None:
        """From the beginning, for a while. What comes was fetched since: what was deleted before is not among it."""
        forgiven = self.history.forgiven
        floors = {partition: self.history.floor(place) for partition, place in places.items()}
        following = dict.fromkeys(places, 0)
        await self._turn_elsewhere(consumer, topic, places)
        for partition in places:
            consumer.seek(TopicPartition(topic, partition), 0)
        left = self.rng.choice([10, 50, 300])
        while left > 0 and not stop.is_set():
            left -= 1
            pieces = await self._some(consumer)
            if self.history.forgiven != forgiven or self.history.distrusted():
                # A disk has lost its log starts since: what was deleted may come back.
                floors = dict.fromkeys(places, 0)
            for partition, offset, value in pieces:
                self._saw(places[partition], following[partition], offset, value, floors[partition])
                following[partition] = offset + 1
                left -= 1

    async def _turn_elsewhere(self, consumer: Consumer, topic: str, places: dict[int, Place]) -> None:
        """Ask for some place else, and do not wait for the answer: it is on its way when the next seek comes."""
        for partition, place in places.items():
            offset = self.rng.randint(self.history.begins(place), self.history.committed(place))
            consumer.seek(TopicPartition(topic, partition), offset)
        await asyncio.sleep(self.rng.uniform(0, 0.03))

    def _saw(
        self, place: Place, expected: Offset, offset: Offset, value: bytes | None, floor: Offset
    ) -> None:
        history = self.history
        if offset < floor:
            history.contradictions.append(
                f"DeletedRecords: offset {offset} was read, {floor} was deleted (I-76, ADR 79)"
            )
        if offset != expected and not expected < offset <= history.begins(place):
            history.contradictions.append(
                f"OrderOfReading: after offset {expected - 1} came {offset} (I-72, I-77)"
            )
        assert value is not None
        history.saw(place, offset, value)

    async def _some(self, consumer: Consumer) -> Pieces:
        """A few records, one way or another."""
        most = self.rng.choice([3, 50, 500])
        way = self.rng.randrange(3)
        if way == 0:
            found = await consumer.getmany(timeout=0.2, max_records=most)
            records = [record for some in found.values() for record in some]
            return [(record.partition, record.offset, record.value) for record in records]
        if way == 1:
            pieces: Pieces = []
            async for batch in consumer.batches(max_records=most, timeout=0.2):
                pairs = zip(batch.offsets, batch.values, strict=True)
                pieces += [(batch.partition, offset, value) for offset, value in pairs]
                if len(pieces) >= most:
                    break
            return pieces
        try:
            async with asyncio.timeout(self.rng.choice([0.01, 0.3])):
                record = await consumer.getone()
                return [(record.partition, record.offset, record.value)]
        except TimeoutError:
            return []


class Operator(User):
    """Makes a topic, and deletes records of it now and then."""

    async def create(self, topic: NewTopic, settings: Mapping[str, str]) -> None:
        """And set these for the cluster before: to the end, however often it takes."""
        done = asyncio.Event()

        async def create(client: Client) -> None:
            if settings:
                await client.admin.alter_configs("cluster", "", settings, timeout=5)
            with suppress(TopicAlreadyExists):  # an attempt before has made it, and nobody heard of that
                await client.admin.create_topics(topic, timeout=5)
            done.set()

        await self.live(create, done)

    async def delete(self, topic: str, per_s: float, stop: asyncio.Event) -> None:
        """Some of what is committed, until told to stop."""
        await self.live(lambda client: self._delete(client, topic, per_s, stop), stop)

    async def _delete(self, client: Client, topic: str, per_s: float, stop: asyncio.Event) -> None:
        history, known = self.history, await client.topic(topic)
        while not stop.is_set():
            await asyncio.sleep(min(self.rng.expovariate(per_s), 10))
            name = TopicPartition(topic, self.rng.choice(known.partitions).index)
            place = known.id, name.partition
            committed = history.committed(place)
            start = min(history.asked.get(place, 0), committed)
            offset = NO_OFFSET if self.rng.random() < 0.05 else self.rng.randint(start, committed)
            if stop.is_set() or offset == 0:
                continue
            ticket = history.wants_deleted(place, offset)
            begins = await client.admin.delete_records({name: offset}, timeout=self.rng.choice([2, 8]))
            history.was_deleted(place, begins[name], ticket)
