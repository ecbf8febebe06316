"""Which batch goes when and where, and what an answer does to it: a pure machine.

    turn(now) ──► shipments, to be sent         answered / lost ──► batches done, to be sent again, or failed
    wake_ms: when to look again                 expire ──► batches failed that took too long

What it keeps true:

* A shipment holds at most one batch of a partition; a broker has at most `max_in_flight` shipments unanswered.
* A broker with nothing to do is sent what there is at once; a busy one waits for a full batch, or for `linger_ms`.
* Batches of a partition are sent in their order. Those that are sent again go one by one: each follows when the one
  before it is done. When the leader moves, what the old one has not answered is taken back and goes to the new one first.
* Every batch ends: written, or failed at its deadline at the latest, with the cause of its last attempt.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tidelog.client.batching import Accumulator, Batch, Lane
from tidelog.client.retry import Advice, advice
from tidelog.client.sequences import Outcome, Sequences
from tidelog.protocol.errors import RequestTimedOut, TidelogError
from tidelog.protocol.types import (
    NO_BROKER,
    NO_OFFSET,
    NO_TIMESTAMP,
    BrokerId,
    Epoch,
    Offset,
    TopicId,
)

FOREVER: Final = float("inf")


class Shipment:
    """One request to one broker: its batches, each of another partition."""

    __slots__ = ("batches", "broker", "size")

    def __init__(self, broker: BrokerId) -> None:
        self.broker = broker
        self.batches: list[Batch] = []
        self.size = 0


class Told(NamedTuple):
    """What the broker says of one batch."""

    error: TidelogError | None
    base_offset: Offset = NO_OFFSET
    append_ms: int = NO_TIMESTAMP


class _Route:
    """The way to one broker."""

    __slots__ = ("failures", "in_flight", "open", "retry_at_ms")

    def __init__(self) -> None:
        self.open = False
        self.in_flight = 0
        self.failures = 0
        self.retry_at_ms = 0.0


class Sending:
    """See the module. `backoff_ms` gives the wait after so many failures in a row."""

    def __init__(
        self,
        accumulator: Accumulator[Any],
        sequences: Sequences,
        *,
        codec: int,
        linger_ms: float,
        max_in_flight: int,
        max_request_size: int,
        backoff_ms: Callable[[int], float],
        on_end: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        self._accumulator = accumulator
        self._sequences = sequences
        self._codec = codec
        self._linger_ms = linger_ms
        self._max_in_flight = max_in_flight
        self._max_request_size = max_request_size
        self._backoff_ms = backoff_ms
        self._on_end = on_end
        self._routes: dict[BrokerId, _Route] = {}
        self.flushing = 0
        """How many wait for everything to be sent: nothing lingers."""
        self.wake_ms = FOREVER
        """When `turn` has something to do again, unless something happens before."""
        self.wanted: set[BrokerId] = set()
        """Brokers that have to be connected to, for there is something for them."""
        self.astray: dict[str, None] = {}
        """Topics of which the metadata is not good enough."""

    # ── what goes now ─────────────────────────────────────────────────────────────────────────────

    def turn(self, now_ms: float) -> list[Shipment]:
        """Everything that is to be sent now; what it holds is under way from here on."""
        self.wanted.clear()
        self.expire(now_ms)
        self._sequences.clear(self._accumulator.active)
        shipments: list[Shipment] = []
        while more := self._round(now_ms):
            shipments += more
        return shipments

    def _round(self, now_ms: float) -> list[Shipment]:
        """At most one shipment for each broker."""
        accumulator = self._accumulator
        hurried = bool(self.flushing or accumulator.waiting)
        self.wake_ms = FOREVER
        shipments: dict[BrokerId, Shipment] = {}
        busy = {
            broker
            for broker, route in self._routes.items()
            if route.open and route.in_flight >= self._max_in_flight
        }
        for lane in list(accumulator.active):
            if lane.leader in busy:
                continue  # an answer comes first
            if not lane.queue and lane.open is None:
                del accumulator.active[lane]
                continue
            due_ms = self._due_ms(lane, shipments.get(lane.leader), now_ms, hurried=hurried)
            if due_ms > now_ms:
                self.wake_ms = min(self.wake_ms, due_ms)
                continue
            if not lane.queue:
                accumulator.close(lane)
            batch = lane.queue[0]
            try:
                self._sequences.number(batch, self._codec)
            except TidelogError as error:  # it cannot be written at all
                self._fail(batch, error)
                continue
            shipment = shipments.setdefault(lane.leader, Shipment(lane.leader))
            self._load(shipment, lane, batch)
        for shipment in shipments.values():
            self._routes[shipment.broker].in_flight += 1
        if accumulator.outstanding:
            self.wake_ms = min(self.wake_ms, next(iter(accumulator.outstanding)).deadline_ms)
        return list(shipments.values())

    def _due_ms(self, lane: Lane, shipment: Shipment | None, now_ms: float, *, hurried: bool) -> float:
        """When the lane's next batch may go, as things are; infinity: something else has to happen first."""
        if lane.leader == NO_BROKER:
            self.astray[lane.topic.name] = None
            return FOREVER
        route = self._routes.setdefault(lane.leader, _Route())
        at_ms = max(lane.retry_at_ms, route.retry_at_ms)
        batch = lane.queue[0] if lane.queue else lane.open
        assert batch is not None
        if not self._sequences.may_send(batch):
            return FOREVER
        if batch.attempts and lane.in_flight:
            return FOREVER
        if not route.open:
            if at_ms <= now_ms:
                self.wanted.add(lane.leader)
            return at_ms if at_ms > now_ms else FOREVER
        if shipment is not None and shipment.size + batch.size > self._max_request_size:
            return FOREVER
        if not lane.queue and route.in_flight and not hurried:
            at_ms = max(at_ms, batch.opened_ms + self._linger_ms)
        return at_ms

    def _load(self, shipment: Shipment, lane: Lane, batch: Batch) -> None:
        accumulator = self._accumulator
        lane.queue.popleft()
        lane.in_flight.append(batch)
        batch.shipment = shipment
        batch.attempts += 1
        assert batch.data is not None
        shipment.batches.append(batch)
        shipment.size += len(batch.data)
        del accumulator.active[lane]
        if lane.queue or lane.open is not None:
            accumulator.active[lane] = None  # behind the others: each has its turn

    # ── what became of it ─────────────────────────────────────────────────────────────────────────

    def answered(self, shipment: Shipment, told: Sequence[Told], now_ms: float) -> None:
        """The broker has said what became of each batch."""
        self._routes[shipment.broker].in_flight -= 1
        for batch, one in zip(shipment.batches, told, strict=True):
            if batch.shipment is shipment:
                self._settle(batch, one, now_ms)

    def lost(self, shipment: Shipment, error: TidelogError, now_ms: float) -> None:
        """There is no answer, or the request as a whole was refused."""
        self.answered(shipment, [Told(error)] * len(shipment.batches), now_ms)

    def _settle(self, batch: Batch, told: Told, now_ms: float) -> None:
        lane = batch.lane
        lane.in_flight.remove(batch)
        batch.shipment = None
        outcome = self._sequences.judge(batch, told.error)
        if outcome is Outcome.DONE:
            lane.failures = 0
            batch.base_offset, batch.append_ms = told.base_offset, told.append_ms
            self._end(batch, None)
            return
        assert told.error is not None
        if outcome is Outcome.FAILED:
            self._fail(batch, told.error)
            return
        lane.put_back(batch)
        self._accumulator.active[lane] = None
        if advice(told.error) is Advice.REFRESH:
            self.astray[lane.topic.name] = None
        if told.error.retriable and lane.retry_at_ms <= now_ms:
            lane.failures += 1
            lane.retry_at_ms = now_ms + self._backoff_ms(lane.failures)

    def expire(self, now_ms: float) -> None:
        """Give up what has taken too long."""
        while self._accumulator.outstanding:
            batch = next(iter(self._accumulator.outstanding))
            if batch.deadline_ms > now_ms:
                return
            self._fail(batch, _too_late(batch, now_ms))

    def give_up(self, error: TidelogError) -> None:
        """Fail all that is left: the producer is closed for good."""
        for batch in list(self._accumulator.outstanding):
            failed = error.anew()
            failed.__cause__ = batch.cause
            self._fail(batch, failed)

    def _fail(self, batch: Batch, error: TidelogError) -> None:
        lane = batch.lane
        if batch.shipment is not None:
            lane.in_flight.remove(batch)
        elif lane.open is not batch and batch in lane.queue:
            lane.queue.remove(batch)
        self._sequences.failed(batch)
        self._end(batch, error)

    def _end(self, batch: Batch, error: TidelogError | None) -> None:
        lane = batch.lane
        self._accumulator.ended(batch)
        if lane.queue or lane.open is not None:
            self._accumulator.active[lane] = None
        batch.end(error)
        self._on_end(batch)

    @property
    def troubled(self) -> list[str]:
        """Topics with something to send and a leader that is missing or out of reach."""
        found: dict[str, None] = dict(self.astray)
        for lane in self._accumulator.active:
            route = self._routes.get(lane.leader)
            if lane.leader == NO_BROKER or lane.failures or (route is not None and route.failures):
                found[lane.topic.name] = None
        return list(found)

    @property
    def unresolved(self) -> bool:
        """Whether any batch is unanswered or perhaps written."""
        return any(batch.shipment is not None or batch.uncertain for batch in self._accumulator.outstanding)

    # ── what is known of the cluster ──────────────────────────────────────────────────────────────

    def learn(
        self,
        name: str,
        topic_id: TopicId,
        leading: Sequence[tuple[BrokerId, Epoch]],
        now_ms: float,
        batch_bytes_max: int = 0,
    ) -> None:
        """Who leads the topic's partitions now, and what they take (0: nobody has said).

        Where another one leads there is no need to wait any longer.
        """
        moved = self._accumulator.learn(name, topic_id, leading, batch_bytes_max)
        self.astray.pop(name, None)  # `turn` says so if there still is no leader
        for lane in moved:
            if lane.leader == NO_BROKER:
                continue
            lane.retry_at_ms = now_ms
            if self._sequences.enabled:
                self._take_back(lane)

    def _take_back(self, lane: Lane) -> None:
        """What another broker has not answered goes to this one: a repetition is recognised there."""
        for batch in list(lane.in_flight):
            assert isinstance(batch.shipment, Shipment)
            if batch.shipment.broker != lane.leader:
                lane.in_flight.remove(batch)
                batch.shipment = None
                batch.uncertain = True
                lane.put_back(batch)
                self._accumulator.active[lane] = None

    def opened(self, broker: BrokerId) -> None:
        """There is a connection to that broker."""
        route = self._routes.setdefault(broker, _Route())
        route.open, route.failures, route.retry_at_ms = True, 0, 0.0

    def closed(self, broker: BrokerId) -> None:
        """There is none any more; what it had not answered is told by `lost`, request by request."""
        self._routes.setdefault(broker, _Route()).open = False

    def not_opened(self, broker: BrokerId, error: TidelogError, now_ms: float) -> None:
        """No connection can be made: try again later, if that broker still leads anything then."""
        route = self._routes.setdefault(broker, _Route())
        route.open = False
        route.failures += 1
        route.retry_at_ms = now_ms + self._backoff_ms(route.failures)
        for lane in self._accumulator.active:
            if lane.leader == broker:
                self.astray[lane.topic.name] = None
                for batch in (*lane.queue, *([lane.open] if lane.open else [])):
                    batch.cause = error


def _too_late(batch: Batch, now_ms: float) -> TidelogError:
    """The deadline has passed: what was tried, and what came of it last."""
    waited = now_ms - batch.opened_ms
    cause = batch.cause
    fact = f"{len(batch)} records for {batch.lane} were not acknowledged in {waited:.0f} ms, "
    fact += f"{batch.attempts} attempts" if batch.attempts else "never sent"
    if batch.shipment is not None or batch.uncertain:
        fact += "; they may be written"
    if cause is not None:
        fact += f"; last: {cause.name()}: {cause}"
    elif batch.lane.leader == NO_BROKER:
        fact += "; the partition has no leader"
    error = RequestTimedOut(fact)
    error.__cause__ = cause
    return error
