"""Records on their way from a thread that does not await to the producer in its loop: a queue with one wake-up per burst.

    thread of the caller:   put ──► queue          loop:   drain ──► the producer's batches
                            full: waits                    no room: `_move` waits for it, record by record

What it keeps true:

* Records come to the producer in the order in which a thread has put them here; those that are not put here (large ones,
  those with headers) go behind all that are.
* What waits here is bounded: `_COUNT` records of `_SMALL` bytes on top of `buffer_memory`.
* No record is dropped in silence: one that the producer refuses is told by its delivery, or by `flush` and `close`.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from tidelog.client.arguments import time_out
from tidelog.client.io.loop_thread import LoopThread
from tidelog.client.io.producer import Delivery as Accepted
from tidelog.client.io.producer import Producer
from tidelog.client.options import ProducerConfig
from tidelog.client.records import RecordMetadata
from tidelog.client.sizes import GivenHeaders
from tidelog.protocol.errors import ClientClosed, DeliveryError, RequestTimedOut, TidelogError

if TYPE_CHECKING:
    from tidelog.client.io.session import Session

_COUNT: Final = 2048
_SMALL: Final = 4096
"""A larger record is worth a call into the loop of its own."""
_REFUSED_KEPT: Final = 1000
"""So many refused records are remembered one by one, in case that somebody asks for them."""


class Delivery(Struct, gc=False, eq=False):
    """A record that was accepted: `result()` waits for the acknowledgement, as often as you like; or leave it."""

    handover: "Handover"
    accepted: Accepted | None = None
    """What the producer said, once it has the record."""
    refused: TidelogError | None = None
    """Why it would not have it."""

    def __repr__(self) -> str:
        state = "refused" if self.refused else "under way"
        return f"<delivery, {state}>" if self.accepted is None else repr(self.accepted)

    @property
    def done(self) -> bool:
        """Whether it was acknowledged, or has failed."""
        return self.refused is not None or (self.accepted is not None and self.accepted.done)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where it is; waits until that is known. Raises what it failed with, or RequestTimedOut after so many seconds."""
        accepted = self.accepted
        if accepted is not None and accepted.done:
            return accepted.result()
        return self.handover.thread.call(self.handover.result, self, timeout)


class QueuedProducer(Producer):
    """The producer that is behind the queue."""

    def __init__(self, client: "Session", config: ProducerConfig) -> None:
        super().__init__(client, config)
        self.offer = self._append
        """As `enqueue` at once; None: it would have to wait."""

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has that was sent to."""
        return len(self._accumulator.topics[topic].lanes)


class Handover:
    """See the module. A child of the client: it is empty before the producer is closed."""

    def __init__(self, client: "Session", producer: QueuedProducer, thread: LoopThread) -> None:
        self.thread = thread
        self._client = client
        self._producer = producer
        self._queue: deque[tuple[Delivery, str, bytes | None, bytes | None, int | None]] = deque()
        self._counts: dict[str, int] = {}
        """How many partitions a topic has; those of which the producer knows that they are there."""
        self._small = min(_SMALL, producer.config.max_request_size // 2, producer.config.buffer_memory // 2)
        self._woken = False
        self._moving: asyncio.Task[None] | None = None
        self._refused: dict[int, Delivery] = {}
        """Those of which nobody was told, by their identity."""
        self._refused_before = 0
        self._closed = False
        client.register(self)

    # ── in the caller's thread ────────────────────────────────────────────────────────────────────

    def put(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: GivenHeaders | None,
    ) -> Delivery:
        """Accept a record, or wait until it can be."""
        count = self._counts.get(topic)
        if (
            count is None
            or (value is not None and (type(value) is not bytes or len(value) > self._small))
            or (key is not None and (type(key) is not bytes or len(key) > self._small))
            or (partition is not None and not (type(partition) is int and 0 <= partition < count))
            or timestamp_ms is not None
            or headers
            or self._closed
            or len(self._queue) >= _COUNT
        ):
            return self.thread.call(self._put, topic, value, key, partition, timestamp_ms, headers)
        if not self.thread.alive:
            self.thread.check()
        delivery = Delivery(self)
        self._queue.append((delivery, topic, value, key, partition))
        if not self._woken:
            self._woken = True
            self.thread.post(self._drain)
        return delivery

    # ── in the loop ───────────────────────────────────────────────────────────────────────────────

    async def _put(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: GivenHeaders | None,
    ) -> Delivery:
        await self.moved()
        accepted = await self._producer.enqueue(
            topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )
        self._counts[topic] = self._producer.partition_count(topic)
        return Delivery(self, accepted)

    async def moved(self) -> None:
        """Until what is here now is with the producer."""
        self._drain()
        if self._moving is not None:
            await asyncio.wait([self._moving])

    async def result(self, delivery: Delivery, timeout: float | None) -> RecordMetadata:
        """What became of a record."""
        time_out(timeout)
        try:
            async with asyncio.timeout(timeout):
                if delivery.accepted is None:
                    await self.moved()
                if delivery.accepted is not None:
                    return await delivery.accepted
        except TimeoutError:
            raise RequestTimedOut(f"the record was not acknowledged in {timeout} s") from None
        error = delivery.refused
        assert error is not None, "it is refused, or the producer has it"
        self._refused.pop(id(delivery), None)
        raise error.anew() from error.__cause__

    def _drain(self) -> None:
        """Give the producer all that is here, as long as it takes it at once."""
        self._woken = False
        queue, offer = self._queue, self._producer.offer
        while queue and self._moving is None:
            delivery, topic, value, key, partition = queue[0]
            try:
                delivery.accepted = offer(topic, value, key, partition)
            except TidelogError as error:
                self._refuse(delivery, error)
            else:
                if delivery.accepted is None:
                    self._moving = self._client.spawn(self._move(), name="tidelog-handover")
                    self._moving.add_done_callback(self._moved)
                    return
            queue.popleft()

    async def _move(self) -> None:
        """Give it the rest, waiting for room."""
        queue, producer = self._queue, self._producer
        while queue:
            delivery, topic, value, key, partition = queue[0]
            try:
                delivery.accepted = producer.offer(topic, value, key, partition) or await producer.enqueue(
                    topic, value, key, partition=partition
                )
            except TidelogError as error:
                self._refuse(delivery, error)
            queue.popleft()

    def _moved(self, task: "asyncio.Task[None]") -> None:
        self._moving = None
        if self._queue and not task.cancelled():
            self._drain()

    def _refuse(self, delivery: Delivery, error: TidelogError) -> None:
        delivery.refused = error
        self._refused[id(delivery)] = delivery
        if len(self._refused) > _REFUSED_KEPT:
            del self._refused[next(iter(self._refused))]
            self._refused_before += 1

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    async def flush(self, timeout: float | None) -> None:
        """As the producer's: all that was put here before is acknowledged."""
        time_out(timeout)
        loop = asyncio.get_running_loop()
        end_s = None if timeout is None else loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                await self.moved()
        except TimeoutError:
            raise RequestTimedOut(f"{len(self._queue)} records found no room in {timeout} s") from None
        await self._producer_does(
            self._producer.flush(None if end_s is None else max(end_s - loop.time(), 0.0))
        )

    async def close_producer(self, timeout: float | None) -> None:
        """Close both, this one first."""
        time_out(timeout)
        await self._finish(timeout)
        await self._producer_does(self._producer.close(timeout))

    async def close(self) -> None:
        """What is here goes to the producer, which is closed after this."""
        await self._finish(None)
        self._tell(None)

    def metrics(self) -> Mapping[str, float]:
        """Figures, by names that say what they count."""
        return {"producer_queued_records": float(len(self._queue))}

    async def _finish(self, timeout: float | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._client.unregister(self)
        try:
            async with asyncio.timeout(self._client.patience_s if timeout is None else timeout):
                await self.moved()
        except TimeoutError:
            assert self._moving is not None
            self._moving.cancel()
            await asyncio.wait([self._moving])
        error = ClientClosed("the producer was closed before there was room for the record")
        while self._queue:
            self._refuse(self._queue.popleft()[0], error)

    async def _producer_does(self, work: Coroutine[Any, Any, None]) -> None:
        """That; and what was refused here is told with what has failed there."""
        failed: DeliveryError | None = None
        try:
            await work
        except DeliveryError as error:
            failed = error
        self._tell(failed)

    def _tell(self, failed: DeliveryError | None) -> None:
        refused, self._refused = self._refused, {}
        count, self._refused_before = len(refused) + self._refused_before, 0
        if not count and failed is not None:
            raise failed
        if count:
            cause = failed or next(iter(refused.values())).refused
            count += failed.undelivered if failed else 0
            raise DeliveryError(
                f"{count} records were not acknowledged; the first: {cause}", count
            ) from cause
