"""What a producer sends: the turns of its machines, carried out on connections.

What it keeps true: no task and no future per record or request: a turn of the loop is one turn of `Sending`, however
many have put records into batches during it; a request is a callback. Whatever is missing (a connection, an identity,
a leader) is looked for by one task at a time, for as long as something waits for it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tidelog.client.batching import Accumulator, Batch
from tidelog.client.cluster import Changes
from tidelog.client.options import ProducerConfig
from tidelog.client.retry import Advice, advice
from tidelog.client.sending import FOREVER, Sending, Shipment, Told
from tidelog.client.sequences import Naming, Sequences
from tidelog.protocol.errors import (
    ClientClosed,
    ConnectionFailed,
    DuplicateSequenceNumber,
    RequestTimedOut,
    Throttled,
    TidelogError,
    UnknownServerError,
    error_of,
)
from tidelog.protocol.io import Connection
from tidelog.protocol.limits import DEFAULT, MIB
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
    from tidelog.client.io.session import Session

logger = logging.getLogger(__name__)

H = TypeVar("H")

_HASTE_MS: Final = (25.0, 100.0)
_HASTY_LOOKS: Final = 30
"""For the first seconds without a leader the cluster is looked at often: an election takes a moment only."""

_REQUEST_BYTES: Final = DEFAULT.max_frame_bytes - MIB
"""More does not go into one request, whatever the settings say: no broker takes a larger frame, and all of its batches would
fail for good. The rest is for the head, which names each partition."""


class Sender(Generic[H]):
    """See the module. `on_room`: there may be room for more; `on_end`: a batch has ended."""

    def __init__(
        self,
        client: "Session",
        config: ProducerConfig,
        handle: Callable[[Batch, int], H],
        *,
        on_room: Callable[[], None],
        on_end: Callable[[Batch], None],
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        self.config = config
        self.accumulator: Accumulator[H] = Accumulator(
            batch_size=min(config.batch_size, config.max_request_size, _REQUEST_BYTES),
            buffer_memory=config.buffer_memory,
            record_size_max=config.max_request_size,
            delivery_timeout_ms=config.delivery_timeout_ms,
            rng=client.rng,
            handle=handle,
            now_ms=_now_ms,
            wall_ms=wall_ms or _wall_ms,
            wake=self.wake,
            clock_read=self._clock_read,
            check_here=client.home.check,
        )
        self._sequences = Sequences(enabled=config.idempotent)
        self.sending = Sending(
            self.accumulator,
            self._sequences,
            codec=config.codec,
            linger_ms=config.linger_ms,
            max_in_flight=config.max_in_flight,
            max_request_size=min(config.max_request_size, _REQUEST_BYTES),
            backoff_ms=self._backoff_ms,
            on_end=on_end,
        )
        self.broken: TidelogError | None = None
        """Why nothing can be sent any more."""
        self.retries = 0
        self._client = client
        self._on_room = on_room
        self._acks = config.required_acks
        self._connections: dict[BrokerId, Connection] = {}
        self._connecting: set[BrokerId] = set()
        self._looking = False
        """Whether the cluster is being looked at, for a leader is missing."""
        self._turn_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = FOREVER
        self._stopped = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._unwatch = client.watch(self._cluster_changed)

    def stop(self) -> None:
        """Send nothing more; what has not ended fails."""
        self._stopped = True
        self._unwatch()
        self.sending.give_up(ClientClosed("the producer was closed"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()

    async def wait_stopped(self) -> None:
        """Until no task is left."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # ── turns ─────────────────────────────────────────────────────────────────────────────────────

    def wake(self) -> None:
        """Something can be done: in this turn of the loop, when all who run in it have said what they want."""
        if not self._turn_due and not self._stopped and self.broken is None:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if self._stopped:
            return
        try:
            self._work()
        except Exception as error:
            logger.exception("producer.failed")
            self.broken = UnknownServerError(f"the producer has failed: {type(error).__name__}: {error}")
            self.sending.give_up(self.broken)
        self._on_room()

    def _work(self) -> None:
        """Whatever is due: requests, connections, an identity, metadata, and the next time to look."""
        accumulator, sending, sequences = self.accumulator, self.sending, self._sequences
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

    def _clock_read(self) -> None:
        """It is the same time until the next turn of the loop."""
        asyncio.get_running_loop().call_soon(self._time_passes)

    def _time_passes(self) -> None:
        self.accumulator.time_passes()

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
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

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
            self.retries += batch.attempts > 1
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
            self.sending.lost(shipment, error, _now_ms())
            self.wake()

    def _ship_blindly(
        self, connection: Connection, shipment: Shipment, request: Produce, pieces: list[bytearray]
    ) -> None:
        """`acks=0`: what is handed to the network counts as written."""
        if not connection.writable:
            raise Throttled(f"broker {shipment.broker} does not read as fast as it is sent to")
        connection.send(request, *pieces)
        self.sending.answered(shipment, [Told(None)] * len(pieces), _now_ms())
        self.wake()

    def _replied(
        self, shipment: Shipment, connection: Connection, reply: Reply | TidelogError, _: memoryview
    ) -> None:
        now_ms = _now_ms()
        if isinstance(reply, TidelogError):
            self.sending.lost(shipment, reply, now_ms)
            if isinstance(reply, RequestTimedOut):
                self._client.connections.doubt(connection)
        elif not _answers(shipment, reply):
            error = ConnectionFailed(f"broker {shipment.broker} answered Produce with something else")
            connection.abort()
            self.sending.lost(shipment, error, now_ms)
        else:
            assert isinstance(reply, ProduceReply)
            self.sending.answered(shipment, [self._told(entry) for entry in reply.partitions], now_ms)
        self._on_room()
        self.wake()

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
            asyncio.get_running_loop().call_soon(self.learn, (name,))
        return Told(error_of(entry.error, entry.message or ""))

    async def _connect(self, broker: BrokerId) -> None:
        try:
            connection = await self._client.connection(broker)
        except TidelogError as error:
            self.sending.not_opened(broker, error, _now_ms())
        else:
            self._connections[broker] = connection
            self.sending.opened(broker)
        finally:
            self._connecting.discard(broker)
            self.wake()

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
                self.sending.give_up(error)
            for batch in self.accumulator.outstanding:
                batch.cause = batch.cause or error
            await asyncio.sleep((backoff.wait_ms(_now_ms()) or 0) / 1000)
        except asyncio.CancelledError:
            self._sequences.not_given()
            raise
        else:
            self._sequences.given(reply.producer_id, reply.producer_epoch)
        self.wake()

    # ── the cluster ───────────────────────────────────────────────────────────────────────────────

    async def _look(self) -> None:
        """Look at the cluster until every partition that waits has a leader that can be reached."""
        backoff, looks = self._client.backoff(), 0
        try:
            while not self._stopped and (names := self.sending.troubled):
                self.sending.astray.clear()
                try:
                    await self._client.refresh(names, newer=True)
                except ClientClosed:
                    return
                except TidelogError as error:
                    logger.info("metadata.not_refreshed reason=%s", error)
                    self.sending.astray.update(dict.fromkeys(names))
                self.learn(names)
                self._turn()
                looks += 1
                hasty = looks <= _HASTY_LOOKS
                wait_ms = self._client.rng.uniform(*_HASTE_MS) if hasty else backoff.wait_ms(_now_ms())
                await asyncio.sleep((wait_ms or 0) / 1000)
                self._turn()
        finally:
            self._looking = False

    def _cluster_changed(self, changes: Changes) -> None:
        self.learn(changes.topics)

    def learn(self, names: Iterable[str]) -> None:
        """Take what the client knows of these topics."""
        now_ms = _now_ms()
        for name in names:
            topic = self._client.cluster.topics.get(name)
            if topic is not None and topic.partitions:
                leading = [(each.leader, each.leader_epoch) for each in topic.partitions]
                self.sending.learn(name, topic.id, leading, now_ms, topic.batch_bytes_max)
        self.wake()


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _answers(shipment: Shipment, reply: Reply) -> bool:
    """Whether the reply has one entry for each batch, in order."""
    return isinstance(reply, ProduceReply) and [entry.index for entry in reply.partitions] == [
        batch.lane.index for batch in shipment.batches
    ]
