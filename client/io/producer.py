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
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from operator import add
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from msgspec import Struct

from tidelog.client.batching import RECORD_OVERHEAD, Accumulator, Batch, GivenHeaders, Lane, TopicLanes, plain
from tidelog.client.cluster import Changes, Partition
from tidelog.client.options import ProducerConfig
from tidelog.client.records import Landed, RecordMetadata, Run
from tidelog.client.retry import Advice, advice
from tidelog.client.sending import FOREVER, Sending, Shipment, Told
from tidelog.client.sequences import Naming, Sequences
from tidelog.protocol.errors import (
    ClientClosed,
    ConnectionFailed,
    DeliveryError,
    DuplicateSequenceNumber,
    InvalidRecord,
    RequestTimedOut,
    Throttled,
    TidelogError,
    UnknownServerError,
    error_of,
)
from tidelog.protocol.io import Connection
from tidelog.protocol.messages import (
    InitProducerId,
    InitProducerIdReply,
    PartitionProduce,
    PartitionProduced,
    Produce,
    ProduceReply,
    Reply,
)
from tidelog.protocol.types import BrokerId

if TYPE_CHECKING:
    from tidelog.client.io.client import Client

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_TIMEOUT_S: Final = 30.0
"""How long `close` waits for acknowledgements, unless it is told another time."""
_FAILED_KEPT: Final = 1000
"""So many failed batches are remembered one by one, in case that somebody asks for their records."""
_PLAIN: Final = {bytes, NoneType}
_HASTE_MS: Final = (25.0, 100.0)
_HASTY_LOOKS: Final = 30
"""For the first seconds without a leader the cluster is looked at often: an election takes a moment only."""


class Delivery(Struct, gc=False, eq=False):
    """A record that was accepted: await it for the acknowledgement, as often as you like, or leave it."""

    _batch: Batch
    _place: int

    @property
    def done(self) -> bool:
        """Whether it was acknowledged, or has failed."""
        return self._batch.done

    def result(self) -> RecordMetadata:
        """Where it is, once it is done; raises what it failed with."""
        batch, place = self._batch, self._place
        assert batch.done, "it is not done: await it"
        if batch.error is not None:
            batch.told = batch.told or set()
            batch.told.add(place)
            error = batch.error
            fresh = type(error)(error.message)
            raise fresh from error.__cause__
        lane = batch.lane
        return RecordMetadata(lane.topic.name, lane.index, batch.offset(place), batch.timestamp_ms(place))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        batch = self._batch
        if not batch.done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            batch.listen(partial(_resolve, future))
            yield from future
        return self.result()


class Producer:
    """See the module. Made by `Client.producer`."""

    def __init__(
        self, client: "Client", config: ProducerConfig, *, wall_ms: Callable[[], int] | None = None
    ) -> None:
        self.config = config
        self._client = client
        self._sequences = Sequences(enabled=config.idempotent)
        self._accumulator: Accumulator[Delivery] = Accumulator(
            batch_size=min(config.batch_size, config.max_request_size),
            buffer_memory=config.buffer_memory,
            record_size_max=config.max_request_size,
            delivery_timeout_ms=config.delivery_timeout_ms,
            rng=client.rng,
            handle=Delivery,
            now_ms=_now_ms,
            wall_ms=wall_ms or _wall_ms,
            wake=self._wake,
        )
        self._append = self._accumulator.append
        self._sending = Sending(
            self._accumulator,
            self._sequences,
            codec=config.codec,
            linger_ms=config.linger_ms,
            max_in_flight=config.max_in_flight,
            max_request_size=config.max_request_size,
            backoff_ms=self._backoff_ms,
            on_end=self._ended,
        )
        self._acks = config.required_acks
        self._connections: dict[BrokerId, Connection] = {}
        self._connecting: set[BrokerId] = set()
        self._looking = False
        """Whether the cluster is being looked at, for a leader is missing."""
        self._turn_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = FOREVER
        self._door = asyncio.Lock()
        self._queued = 0
        self._room: asyncio.Future[None] | None = None
        self._room_seen = 0
        self._over = False
        self._closed = False
        self._broken: TidelogError | None = None
        self._closing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed: list[Batch] = []
        self._failed_before = 0
        self._counts = {"records": 0, "batches": 0, "retries": 0, "failed_records": 0}
        self._unwatch = client.watch(self._cluster_changed)
        client.register(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
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
        column = _column(values, "value")
        named = None if keys is None else _column(keys, "key")
        if named is not None and len(named) != len(column):
            raise InvalidRecord(f"{len(named)} keys for {len(column)} values: one for each, or None")
        lanes = await self._lanes(topic)
        parts: list[tuple[Batch, int, int]] = []
        places: list[int] | None = None
        if named is None or partition is not None:
            await self._extend(lanes, partition, column, named, parts)
        else:
            places = await self._extend_by_key(lanes, column, named, parts)
        batches = list(dict.fromkeys(batch for batch, _, _ in parts if not batch.done))
        if batches:
            await _end_of(batches)
        return _landed(parts, places)

    async def partitions_for(self, topic: str) -> tuple[Partition, ...]:
        """The topic's partitions, and who leads them."""
        return (await self._client.topic(topic, timeout=self.config.max_block_ms / 1000)).partitions

    async def partition_for(self, topic: str, key: bytes | None = None) -> int:
        """Where a record with that key goes; without a key, where the next one goes."""
        await self._lanes(topic)
        return self._accumulator.partition_for(topic, key)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all records that were accepted are acknowledged.

        Raises DeliveryError if records have failed and nobody was told so, RequestTimedOut after `timeout` seconds.
        """
        batches = list(self._accumulator.outstanding)
        self._sending.flushing += 1
        try:
            if batches:
                self._wake()
                async with asyncio.timeout(timeout):
                    await _end_of(batches)
        except TimeoutError:
            left = sum(len(batch) for batch in batches if not batch.done)
            raise RequestTimedOut(f"{left} records were not acknowledged in {timeout} s") from None
        finally:
            self._sending.flushing -= 1
        await asyncio.sleep(0)  # who waits for a record of these is told first
        self._tell_of_failures()

    async def close(self, timeout: float | None = None) -> None:
        """Flush, for 30 seconds unless it is told another time, and end; a second call waits with the first.

        Raises DeliveryError with the number of records that were not acknowledged, unless their senders know.
        """
        if self._closing is None:
            self._closed = True
            loop = asyncio.get_running_loop()
            seconds = CLOSE_TIMEOUT_S if timeout is None else timeout
            self._closing = loop.create_task(self._close(seconds), name="tidelog-producer-close")
        await asyncio.shield(self._closing)

    async def _close(self, timeout: float) -> None:
        self._freed()
        self._accumulator.held = True
        try:
            try:
                await self.flush(timeout)
            except (RequestTimedOut, DeliveryError) as error:
                self._sending.give_up(ClientClosed("the producer was closed before it was acknowledged"))
                untold = self._take_failures()
                before = error.undelivered if isinstance(error, DeliveryError) else 0
                if untold + before:
                    raise _undelivered(untold + before, error) from error
        finally:
            self._end()
            for task in list(self._tasks):
                task.cancel()
            self._client.unregister(self)
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _end(self) -> None:
        self._over = True
        self._unwatch()
        self._sending.give_up(ClientClosed("the producer was closed"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

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
        found["producer_buffered_bytes"] = float(accumulator.buffer_memory - accumulator.room)
        found["producer_batches_outstanding"] = float(len(accumulator.outstanding))
        return found

    # ── waiting for a place ───────────────────────────────────────────────────────────────────────

    async def _in_turn(self, topic: str, append: Callable[[], T | None]) -> T:
        """Do that as soon as there is room, behind all who wait already; and let others run before."""
        await self._lanes(topic)
        breathe = not self._queued
        self._queued += 1
        self._accumulator.held = True
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
            self._accumulator.held = self._queued > 0 or self._closed

    async def _more_room(self) -> None:
        """Until anything ends: all batches do, at their deadlines at the latest."""
        self._room = asyncio.get_running_loop().create_future()
        self._room_seen = self._accumulator.room
        self._accumulator.waiting += 1
        self._wake()
        try:
            await self._room
        finally:
            self._accumulator.waiting -= 1
            self._room = None

    def _freed(self) -> None:
        """Let who waits for room try again, if there is more, or will never be."""
        if self._room is None or self._room.done():
            return
        if self._accumulator.room > self._room_seen or self._closed or self._broken is not None:
            self._room.set_result(None)

    async def _lanes(self, topic: str) -> TopicLanes:
        self._check_open()
        known = self._accumulator.topics.get(topic)
        if known is None:
            await self._client.topic(topic, timeout=self.config.max_block_ms / 1000)
            self._check_open()
            self._learn((topic,))
            known = self._accumulator.topics[topic]
        return known

    def _check_open(self) -> None:
        if self._broken is not None:
            raise type(self._broken)(self._broken.message)
        if self._closed:
            raise ClientClosed("the producer is closed")

    # ── columns ───────────────────────────────────────────────────────────────────────────────────

    async def _extend(
        self,
        topic: TopicLanes,
        partition: int | None,
        values: list[bytes | None],
        keys: list[bytes | None] | None,
        parts: list[tuple[Batch, int, int]],
    ) -> None:
        """Put the columns into batches, each as full as it gets."""
        if partition is not None:
            topic.lane(partition)
        ends = [0, *accumulate(_sizes(values, keys))]
        begin, count = 0, len(values)
        while begin < count:
            take = partial(self._take, topic, partition, values, keys, ends, begin)
            taken = None if self._accumulator.held else take()
            if taken is None:
                taken = await self._in_turn(topic.name, take)
            parts.append(taken)
            begin += taken[2]

    def _take(
        self,
        topic: TopicLanes,
        partition: int | None,
        values: list[bytes | None],
        keys: list[bytes | None] | None,
        ends: list[int],
        begin: int,
    ) -> tuple[Batch, int, int] | None:
        """The records from there on that fit into one batch: which, from which place on, and how many."""
        accumulator = self._accumulator
        lane: Lane = topic.sticky if partition is None else topic.lane(partition)
        accumulator.check_size(ends[begin + 1] - ends[begin], topic.name)
        room = accumulator.room_in(lane)
        end = bisect_right(ends, ends[begin] + room) - 1
        if end <= begin and lane.open is not None:
            accumulator.close(lane)
            accumulator.held = True  # a batch is full: let others run before more is made
            lane = topic.sticky if partition is None else lane
            room = accumulator.room_in(lane)
            end = bisect_right(ends, ends[begin] + room) - 1
        end = max(end, begin + 1)
        size = ends[end] - ends[begin]
        if size > accumulator.room:
            return None
        named: list[bytes | None] = [None] * (end - begin)
        if keys is not None:
            named = keys[begin:end]
        batch, place = accumulator.extend(lane, values[begin:end], named, size)
        return batch, place, end - begin

    async def _extend_by_key(
        self,
        topic: TopicLanes,
        values: list[bytes | None],
        keys: list[bytes | None],
        parts: list[tuple[Batch, int, int]],
    ) -> list[int]:
        """The same, each record into the partition of its key; each record's number in the order of the parts."""
        indexes: dict[int | None, list[int]] = {}
        for at, partition in enumerate(self._accumulator.spread(topic, keys)):
            indexes.setdefault(partition, []).append(at)
        places = [0] * len(keys)
        first = 0
        for partition, ats in indexes.items():
            column, named = [values[at] for at in ats], [keys[at] for at in ats]
            for number, at in enumerate(ats, first):
                places[at] = number
            first += len(ats)
            await self._extend(topic, partition, column, named, parts)
        return places

    # ── turns ─────────────────────────────────────────────────────────────────────────────────────

    def _wake(self) -> None:
        """Something can be done: in this turn of the loop, when all who run in it have said what they want."""
        if not self._turn_due and not self._over and self._broken is None:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if self._over:
            return
        try:
            self._work()
        except Exception as error:
            logger.exception("producer.failed")
            self._broken = UnknownServerError(f"the producer has failed: {type(error).__name__}: {error}")
            self._sending.give_up(self._broken)
        self._freed()

    def _work(self) -> None:
        """Whatever is due: requests, connections, an identity, metadata, and the next time to look."""
        accumulator, sending, sequences = self._accumulator, self._sending, self._sequences
        accumulator.stale = True
        for broker, connection in list(self._connections.items()):
            if connection.closed:
                del self._connections[broker]
                sending.closed(broker)
        for shipment in sending.turn(_now_ms()):
            self._ship(shipment)
        for broker in sending.wanted - self._connecting:
            self._connecting.add(broker)
            self._spawn(self._connect(broker))
        if accumulator.outstanding and sequences.naming in {Naming.NAMELESS, Naming.BROKEN}:
            request = sequences.ask(unresolved=sending.unresolved)
            if request is not None:
                self._spawn(self._take_name(request))
        if sending.astray and not self._looking:
            self._looking = True
            self._spawn(self._look())
        self._set_timer(sending.wake_ms)

    def _set_timer(self, wake_ms: float) -> None:
        if self._timer is not None:
            if self._timer_ms <= wake_ms and self._timer_ms > _now_ms():
                return  # it rings early enough; then it is looked again
            self._timer.cancel()
            self._timer = None
        if wake_ms < FOREVER:
            self._timer_ms = wake_ms
            self._timer = asyncio.get_running_loop().call_at(wake_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._turn()

    def _spawn(self, work: Any) -> None:
        task = self._client.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _backoff_ms(self, failures: int) -> float:
        """Full jitter (design 5.1)."""
        config = self._client.config
        bound = min(config.retry_backoff_ms * 2.0 ** min(failures - 1, 20), config.retry_backoff_max_ms)
        return self._client.rng.uniform(0, bound)

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def _ship(self, shipment: Shipment) -> None:
        entries, pieces = [], []
        for batch in shipment.batches:
            assert batch.data is not None
            lane = batch.lane
            entries.append(PartitionProduce(lane.topic.topic_id, lane.index, len(batch.data)))
            pieces.append(batch.data)
            self._counts["retries"] += batch.attempts > 1
        request = Produce(self._acks, self.config.request_timeout_ms, tuple(entries))
        connection = self._connections[shipment.broker]
        try:
            if self._acks == 0:
                self._ship_blindly(connection, shipment, request, pieces)
                return
            connection.send(
                request,
                *pieces,
                on_reply=partial(self._replied, shipment, connection),
                timeout_ms=self.config.request_timeout_ms,
            )
        except TidelogError as error:
            self._sending.lost(shipment, error, _now_ms())
            self._wake()

    def _ship_blindly(
        self, connection: Connection, shipment: Shipment, request: Produce, pieces: list[bytearray]
    ) -> None:
        """`acks=0`: what is handed to the network counts as written."""
        if not connection.writable:
            raise Throttled(f"broker {shipment.broker} does not read as fast as it is sent to")
        connection.send(request, *pieces)
        self._sending.answered(shipment, [Told(None)] * len(pieces), _now_ms())
        self._wake()

    def _replied(
        self, shipment: Shipment, connection: Connection, reply: Reply | TidelogError, _: memoryview
    ) -> None:
        now_ms = _now_ms()
        if isinstance(reply, TidelogError):
            self._sending.lost(shipment, reply, now_ms)
        elif not _answers(shipment, reply):
            error = ConnectionFailed(f"broker {shipment.broker} answered Produce with something else")
            connection.abort()
            self._sending.lost(shipment, error, now_ms)
        else:
            assert isinstance(reply, ProduceReply)
            self._sending.answered(shipment, [self._told(entry) for entry in reply.partitions], now_ms)
        self._freed()
        self._wake()

    def _told(self, entry: PartitionProduced) -> Told:
        if not entry.error:
            return Told(None, entry.base_offset, entry.append_time)
        if entry.error == DuplicateSequenceNumber.code:
            return Told(None, entry.base_offset)
        hint = entry.current_leader
        if hint is not None and self._client.cluster.hint(
            entry.topic_id, entry.index, hint.id, hint.leader_epoch
        ):
            name = self._client.cluster.names[entry.topic_id]
            asyncio.get_running_loop().call_soon(self._learn, (name,))
        return Told(error_of(entry.error, entry.message or ""))

    def _ended(self, batch: Batch) -> None:
        if batch.error is None:
            self._counts["batches"] += 1
            self._counts["records"] += batch.count
            return
        self._counts["failed_records"] += batch.count
        self._failed.append(batch)
        if len(self._failed) > _FAILED_KEPT:
            oldest = self._failed.pop(0)
            self._failed_before += oldest.count - len(oldest.told or ())

    async def _connect(self, broker: BrokerId) -> None:
        try:
            connection = await self._client.connection(broker)
        except TidelogError as error:
            self._sending.not_opened(broker, error, _now_ms())
        else:
            self._connections[broker] = connection
            self._sending.opened(broker)
        finally:
            self._connecting.discard(broker)
            self._wake()

    async def _take_name(self, request: InitProducerId) -> None:
        """Ask any broker for the producer's identity."""
        backoff = self._client.backoff()
        try:
            reply, _ = await self._client.call_any(request, timeout_ms=self.config.request_timeout_ms)
            if not isinstance(reply, InitProducerIdReply):
                raise ConnectionFailed(f"{type(reply).__name__} was answered to InitProducerId")
        except TidelogError as error:
            self._sequences.not_given()
            if advice(error) is Advice.FATAL:
                self._sending.give_up(error)
            for batch in self._accumulator.outstanding:
                batch.cause = batch.cause or error
            await asyncio.sleep((backoff.wait_ms(_now_ms()) or 0) / 1000)
        except asyncio.CancelledError:
            self._sequences.not_given()
            raise
        else:
            self._sequences.given(reply.producer_id, reply.producer_epoch)
        self._wake()

    # ── the cluster ───────────────────────────────────────────────────────────────────────────────

    async def _look(self) -> None:
        """Look at the cluster until every partition that waits has a leader that can be reached."""
        backoff, looks = self._client.backoff(), 0
        try:
            while not self._over and (names := self._sending.troubled):
                self._sending.astray.clear()
                try:
                    await self._client.refresh(names, newer=True)
                except ClientClosed:
                    return
                except TidelogError as error:
                    logger.info("metadata.not_refreshed reason=%s", error)
                    self._sending.astray.update(dict.fromkeys(names))
                self._learn(names)
                self._turn()
                looks += 1
                hasty = looks <= _HASTY_LOOKS
                wait_ms = self._client.rng.uniform(*_HASTE_MS) if hasty else backoff.wait_ms(_now_ms())
                await asyncio.sleep((wait_ms or 0) / 1000)
                self._turn()
        finally:
            self._looking = False

    def _cluster_changed(self, changes: Changes) -> None:
        self._learn(changes.topics)

    def _learn(self, names: Iterable[str]) -> None:
        now_ms = _now_ms()
        for name in names:
            topic = self._client.cluster.topics.get(name)
            if topic is not None and topic.partitions:
                leading = [(each.leader, each.leader_epoch) for each in topic.partitions]
                self._sending.learn(name, topic.id, leading, now_ms)
        self._wake()


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


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

    for batch in batches:
        if not batch.done:
            left += 1
            batch.listen(ended)
    if left:
        await future


def _answers(shipment: Shipment, reply: Reply) -> bool:
    """Whether the reply has one entry for each batch, in order."""
    return isinstance(reply, ProduceReply) and [entry.index for entry in reply.partitions] == [
        batch.lane.index for batch in shipment.batches
    ]


def _column(given: Iterable[bytes | None], what: str) -> list[bytes | None]:
    """The records' values or keys as a list, checked."""
    column = list(given)
    if set(map(type, column)) <= _PLAIN:
        return column
    return [plain(each, what)[0] for each in column]


def _sizes(values: list[bytes | None], keys: list[bytes | None] | None) -> Iterable[int]:
    """How much each record takes."""
    sizes = _lengths(values)
    if keys is not None:
        sizes = map(add, sizes, _lengths(keys))
    return map(RECORD_OVERHEAD.__add__, sizes)


def _lengths(column: list[bytes | None]) -> Iterable[int]:
    if None in column:
        return [len(each or b"") for each in column]
    return map(len, column)  # type: ignore[arg-type]  # there is no None in it


def _landed(parts: list[tuple[Batch, int, int]], places: list[int] | None) -> Landed:
    """Where the parts are; raises the first error, and all of them count as told."""
    runs: list[Run] = []
    failed: TidelogError | None = None
    first = lost = 0
    for batch, place, count in parts:
        lane = batch.lane
        runs.append(
            Run(first, count, lane.topic.name, lane.index, batch.offset(place), batch.timestamp_ms(place))
        )
        first += count
        if batch.error is not None:
            failed = failed or batch.error
            lost += count
            batch.told = batch.told or set()
            batch.told.update(range(place, place + count))
    if failed is not None:
        error = type(failed)(failed.message)
        error.add_note(f"{lost} of {first} records were not acknowledged")
        raise error from failed.__cause__
    return Landed(runs, places)


def _undelivered(count: int, cause: BaseException | None) -> DeliveryError:
    why = "" if cause is None else f"; the first: {cause}"
    return DeliveryError(f"{count} records were not acknowledged{why}", count)
