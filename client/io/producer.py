"""The producer: what `batching`, `sequences` and `sending` decide, carried out.

    async with client.producer() as producer:
        metadata = await producer.send("orders", b"v", key=b"k")          # acknowledged
        delivery = await producer.enqueue("orders", b"v")                 # accepted; `await delivery` when you like
        await producer.send_many("orders", values=[...], keys=[...])      # columns: the fastest way

What it keeps true:

* Awaiting is the back-pressure: who sends waits for room, in the order of coming; who is cancelled while waiting has sent
  nothing and takes no room.
* No task and no future per record or request: a record costs its place in a batch, a request its callback.
* No record is dropped in silence: whoever awaits a failed one is told, and `flush` or `close` tell of the others.
"""

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeVar

from msgspec import Struct

from tidelog.client.arguments import time_out
from tidelog.client.batching import Batch, TopicLanes
from tidelog.client.cluster import Partition, Topic
from tidelog.client.columns import Columns
from tidelog.client.io.sender import Sender
from tidelog.client.io.session import INTERRUPTED_S, interrupted
from tidelog.client.options import ProducerConfig
from tidelog.client.records import Landed, RecordMetadata
from tidelog.client.sizes import GivenHeaders
from tidelog.protocol.errors import ClientClosed, DeliveryError, InvalidRequest, RequestTimedOut, Unsupported

if TYPE_CHECKING:
    from tidelog.client.io.session import Session

T = TypeVar("T")

_FAILED_KEPT: Final = 1000
"""So many failed batches are remembered one by one, in case that somebody asks for their records."""


class Delivery(Struct, gc=False, eq=False):
    """A record that was accepted: await it for the acknowledgement, as often as you like, or leave it."""

    _batch: Batch
    _place: int

    def __repr__(self) -> str:
        state = "failed" if self._batch.error else "acknowledged" if self._batch.done else "under way"
        return f"<delivery to {self._batch.lane}, {state}>"

    @property
    def done(self) -> bool:
        """Whether it was acknowledged, or has failed."""
        return self._batch.done

    def result(self) -> RecordMetadata:
        """Where it is, once it is done; raises what it failed with."""
        batch, place = self._batch, self._place
        if not batch.done:
            raise InvalidRequest("the record is not acknowledged yet: await the delivery")
        if batch.error is not None:
            batch.told = batch.told or set()
            batch.told.add(place)
            error = batch.error
            raise error.anew() from error.__cause__
        lane = batch.lane
        return RecordMetadata(lane.topic.name, lane.index, batch.offset(place), batch.timestamp_ms(place))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        batch = self._batch
        if not batch.done:
            batch.lane.topic.check_here()
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            batch.listen(partial(_resolve, future))
            yield from future
        return self.result()


class Producer:
    """See the module. Made by `Client.producer`."""

    def __init__(
        self, client: "Session", config: ProducerConfig, *, wall_ms: Callable[[], int] | None = None
    ) -> None:
        self.config = config
        self._client = client
        self._sender = Sender(
            client, config, Delivery, on_room=self._freed, on_end=self._ended, wall_ms=wall_ms
        )
        self._accumulator = self._sender.accumulator
        self._append = self._accumulator.append
        self._home = client.home
        self._door = asyncio.Lock()
        self._queued = 0
        self._room: asyncio.Future[None] | None = None
        self._room_seen = 0
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._told = False
        """Whether `close` has raised what it had to."""
        self._failed: list[Batch] = []
        self._failed_before = 0
        self._counts = {"records": 0, "bytes": 0, "batches": 0, "failed_records": 0}
        client.register(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._accumulator.outstanding)} batches under way"
        return f"<producer of {self._client!r}, {state}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close(INTERRUPTED_S if interrupted(kind) else None)
        except DeliveryError as undelivered:
            if error is None:
                raise
            error.add_note(f"and {undelivered.name()}: {undelivered}")

    # ── sending ───────────────────────────────────────────────────────────────────────────────────

    async def enqueue(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: GivenHeaders | None = None,
    ) -> Delivery:
        """Accept a record, as soon as there is room for it; await what is returned for its acknowledgement."""
        if get_ident() != self._home.thread:
            self._home.check()
        delivery = self._append(topic, value, key, partition, timestamp_ms, headers)
        if delivery is not None:
            return delivery
        append = partial(self._append, topic, value, key, partition, timestamp_ms, headers, first=True)
        return await self._in_turn(topic, append)

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: GivenHeaders | None = None,
    ) -> RecordMetadata:
        """Write a record: where it is, acknowledged as `acks` asks. Raises what it failed with.

        Who is cancelled while waiting for the acknowledgement has sent it nevertheless.
        """
        return await (
            await self.enqueue(
                topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
        )

    async def send_many(
        self,
        topic: str,
        values: Iterable[bytes | None],
        keys: Iterable[bytes | None] | None = None,
        *,
        partition: int | None = None,
    ) -> Landed:
        """Write many records: where each is, once all are acknowledged. Raises the first error if any has failed."""
        columns = Columns(values, keys)
        for portion in columns.columns(self._accumulator, await self._lanes(topic), partition):
            while not portion.done:
                part = None if self._accumulator.held else portion.take()
                if part is None:
                    part = await self._in_turn(topic, portion.take)
                columns.parts.append(part)
        await _end_of([part.batch for part in columns.parts if not part.batch.done])
        return columns.landed()

    async def partitions_for(self, topic: str) -> tuple[Partition, ...]:
        """The topic's partitions, and who leads them."""
        return (await self._wanted(topic)).partitions

    async def partition_for(self, topic: str, key: bytes | None = None) -> int:
        """Where a record with that key goes; without a key, where the next one goes."""
        await self._lanes(topic)
        return self._accumulator.partition_for(topic, key)

    # ── transactions ──────────────────────────────────────────────────────────────────────────────

    def transaction(self) -> NoReturn:
        """`async with producer.transaction()`: not there yet."""
        raise Unsupported("transaction: there are no transactions yet")

    async def send_offsets(self, *_given: object, **_named: object) -> NoReturn:
        """Offsets that are committed with a transaction: not there yet."""
        raise Unsupported("send_offsets: there are no transactions yet; a consumer's commit takes offsets")

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all records that were accepted are acknowledged.

        Raises DeliveryError if records have failed and nobody was told so, RequestTimedOut after `timeout` seconds.
        """
        self._home.check()
        time_out(timeout)
        batches = list(self._accumulator.outstanding)
        self._sender.sending.flushing += 1
        try:
            if batches:
                self._sender.wake()
                async with asyncio.timeout(timeout):
                    await _end_of(batches)
        except TimeoutError:
            left = sum(len(batch) for batch in batches if not batch.done)
            raise RequestTimedOut(f"{left} records were not acknowledged in {timeout} s") from None
        finally:
            self._sender.sending.flushing -= 1
        await asyncio.sleep(0)  # who waits for a record of these is told first
        self._tell_of_failures()

    async def close(self, timeout: float | None = None) -> None:
        """Flush, for 30 seconds unless it is told another time, and end; a second call waits with the first.

        Raises DeliveryError with the number of records that were not acknowledged, unless their senders know; once.
        """
        if self._closing is None or not self._closing.done():
            self._home.check()
        time_out(timeout)
        if self._closing is None:
            self._closed = True
            loop = asyncio.get_running_loop()
            seconds = self._client.patience_s if timeout is None else timeout
            self._closing = loop.create_task(self._close(seconds), name="tidelog-producer-close")
        try:
            await asyncio.shield(self._closing)
        except DeliveryError:
            if self._told:
                return
            self._told = True
            raise

    async def _close(self, timeout: float) -> None:
        self._freed()
        self._accumulator.hold(back=True)
        try:
            try:
                await self.flush(timeout)
            except (RequestTimedOut, DeliveryError) as error:
                causes = [batch.cause for batch in self._accumulator.outstanding if batch.cause]
                cause = causes[0] if causes else error.__cause__ or error
                closed = ClientClosed("the producer was closed before the record was acknowledged")
                self._sender.sending.give_up(closed)
                await asyncio.sleep(0)  # who waits for a record is told first
                untold = self._take_failures()
                untold += error.undelivered if isinstance(error, DeliveryError) else 0
                if untold:
                    raise _undelivered(untold, cause) from error
        finally:
            self._sender.stop()
            self._client.unregister(self)
        await self._sender.wait_stopped()

    def _ended(self, batch: Batch) -> None:
        if batch.error is None:
            self._counts["batches"] += 1
            self._counts["records"] += batch.count
            self._counts["bytes"] += batch.size
            return
        self._counts["failed_records"] += batch.count
        self._failed.append(batch)
        if len(self._failed) > _FAILED_KEPT:
            oldest = self._failed.pop(0)
            self._failed_before += oldest.count - len(oldest.told or ())

    def _tell_of_failures(self) -> None:
        cause = next((batch.error for batch in self._failed), None)
        untold = self._take_failures()
        if untold:
            raise _undelivered(untold, cause) from cause

    def _take_failures(self) -> int:
        """How many records have failed of which nobody was told; from now on somebody is."""
        untold = self._failed_before + sum(len(batch) - len(batch.told or ()) for batch in self._failed)
        self._failed, self._failed_before = [], 0
        return untold

    def metrics(self) -> Mapping[str, float]:
        """Figures, by names that say what they count."""
        accumulator = self._accumulator
        found = {f"producer_{name}": float(count) for name, count in self._counts.items()}
        found["producer_retries"] = float(self._sender.retries)
        found["producer_buffered_bytes"] = float(accumulator.buffer_memory - accumulator.room)
        found["producer_batches_outstanding"] = float(len(accumulator.outstanding))
        return found

    # ── waiting for a place ───────────────────────────────────────────────────────────────────────

    async def _in_turn(self, topic: str, append: Callable[[], T | None]) -> T:
        """Do that as soon as there is room, behind all who wait already; and let others run before."""
        await self._lanes(topic)
        breathe = not self._queued
        self._queued += 1
        self._accumulator.hold(back=True)
        try:
            async with self._door:
                if breathe:
                    await asyncio.sleep(0)  # it is time to: a batch was filled without one pause
                self._check_open()
                while (done := append()) is None:
                    await self._more_room()
                    self._check_open()
                return done
        finally:
            self._queued -= 1
            self._accumulator.hold(back=self._queued > 0 or self._closed)

    async def _more_room(self) -> None:
        """Until anything ends: all batches do, at their deadlines at the latest."""
        self._room = asyncio.get_running_loop().create_future()
        self._room_seen = self._accumulator.room
        self._accumulator.waiting += 1
        self._sender.wake()
        try:
            await self._room
        finally:
            self._accumulator.waiting -= 1
            self._room = None

    def _freed(self) -> None:
        """Let who waits for room try again, if there is more, or will never be."""
        if self._room is None or self._room.done():
            return
        if self._accumulator.room > self._room_seen or self._closed or self._sender.broken is not None:
            self._room.set_result(None)

    async def _wanted(self, topic: str) -> Topic:
        """It is made if it is missing, where the cluster allows it (`auto.create.topics.enable`)."""
        self._client.wanted.add(topic)
        try:
            return await self._client.topic(topic, timeout=self.config.max_block_ms / 1000)
        finally:
            self._client.wanted.discard(topic)

    async def _lanes(self, topic: str) -> TopicLanes:
        self._check_open()
        known = self._accumulator.topics.get(topic)
        if known is None:
            await self._wanted(topic)
            self._check_open()
            self._sender.learn((topic,))
            known = self._accumulator.topics[topic]
        return known

    def _check_open(self) -> None:
        if self._sender.broken is not None:
            raise self._sender.broken.anew()
        if self._closed:
            raise ClientClosed("the producer is closed")
        self._home.check()


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def _end_of(batches: Sequence[Batch]) -> None:
    """Until each of them has ended. Whoever is cancelled changes nothing."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = 0

    def ended() -> None:
        nonlocal left
        left -= 1
        if not left:
            _resolve(future)

    for batch in dict.fromkeys(batches):
        if not batch.done:
            left += 1
            batch.listen(ended)
    if left:
        await future


def _undelivered(count: int, cause: BaseException | None) -> DeliveryError:
    why = "" if cause is None else f"; the first: {cause}"
    return DeliveryError(f"{count} records were not acknowledged{why}", count)
