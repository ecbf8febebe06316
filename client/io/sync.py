"""`tidelog.sync`: the client's names without `await`, for programs that block.

    with tidelog.sync.connect("127.0.0.1:9092") as client:
        with client.producer() as producer:
            producer.send("orders", b"v", key=b"k")                # acknowledged
        with client.consumer("orders") as consumer:
            for record in consumer: ...
            for batch in consumer.batches(timeout=1): ...          # columns: the fastest way

The client itself is the asynchronous one; it lives in a thread of its own, with an event loop, from `connect` to `close`.

What it keeps true:

* Whatever the client can do is here by the same name with the same arguments; what is awaited there is waited for here.
* One hop into the loop per call, and none for a record that is iterated over or that `enqueue` takes.
* Any thread may use it; a consumer gives each record to one of those that read from it. Ctrl-C ends the wait. It may be
  used where an asyncio loop runs (a notebook); that loop stands still meanwhile, as with every call that blocks.
"""

import asyncio
import sys
import warnings
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial, wraps
from threading import Lock
from types import TracebackType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar

from tidelog.client.cluster import Partition
from tidelog.client.config import ClientConfig, from_options
from tidelog.client.hand import Hand
from tidelog.client.io import admin as asynchronous_admin
from tidelog.client.io import client as asynchronous
from tidelog.client.io import consumer as asynchronous_consumer
from tidelog.client.io.groups import Listener
from tidelog.client.io.handover import Delivery, Handover, QueuedProducer
from tidelog.client.io.loop_thread import LoopThread
from tidelog.client.io.session import INTERRUPTED_S, interrupted
from tidelog.client.options import ConsumerConfig, ProducerConfig
from tidelog.client.records import Landed, Record, RecordBatch, RecordMetadata
from tidelog.client.sizes import GivenHeaders
from tidelog.protocol.errors import ClientClosed, TidelogError
from tidelog.protocol.types import Offset, TopicPartition

__all__ = ["Admin", "Client", "Consumer", "Delivery", "Producer", "connect"]

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


class _Facade(Generic[A]):
    """Something asynchronous, and the thread that it lives in."""

    def __init__(self, inner: A, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"

    def _prepare(self) -> None:
        """What the loop does before anything else."""

    async def _do(self, work: Callable[[], Awaitable[R]]) -> R:
        self._prepare()
        return await work()

    def _do_at_once(self, work: Callable[[], R]) -> R:
        self._prepare()
        return work()


def _awaited(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """The method as one that blocks."""

    @wraps(method)
    def blocking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._thread.call(self._do, partial(method, self._inner, *args, **kwargs))
        return result

    return blocking


def _done(method: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A method that never waits, done in the loop."""

    @wraps(method)
    def doing(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._thread.do(self._do_at_once, partial(method, self._inner, *args, **kwargs))
        return result

    return doing


class Admin(_Facade[asynchronous_admin.Admin]):
    """What operators do; see `tidelog.Admin`."""

    create_topics = _awaited(asynchronous_admin.Admin.create_topics)
    delete_topics = _awaited(asynchronous_admin.Admin.delete_topics)
    list_topics = _awaited(asynchronous_admin.Admin.list_topics)
    describe_topics = _awaited(asynchronous_admin.Admin.describe_topics)
    add_partitions = _awaited(asynchronous_admin.Admin.add_partitions)
    describe_configs = _awaited(asynchronous_admin.Admin.describe_configs)
    alter_configs = _awaited(asynchronous_admin.Admin.alter_configs)
    describe_cluster = _awaited(asynchronous_admin.Admin.describe_cluster)
    describe_log_dirs = _awaited(asynchronous_admin.Admin.describe_log_dirs)
    describe_quorum = _awaited(asynchronous_admin.Admin.describe_quorum)
    list_offsets = _awaited(asynchronous_admin.Admin.list_offsets)
    delete_records = _awaited(asynchronous_admin.Admin.delete_records)
    elect_leaders = _awaited(asynchronous_admin.Admin.elect_leaders)
    reassign = _awaited(asynchronous_admin.Admin.reassign)
    list_reassignments = _awaited(asynchronous_admin.Admin.list_reassignments)
    drain_broker = _awaited(asynchronous_admin.Admin.drain_broker)
    undrain_broker = _awaited(asynchronous_admin.Admin.undrain_broker)
    unregister_broker = _awaited(asynchronous_admin.Admin.unregister_broker)
    list_groups = _awaited(asynchronous_admin.Admin.list_groups)
    describe_groups = _awaited(asynchronous_admin.Admin.describe_groups)
    delete_groups = _awaited(asynchronous_admin.Admin.delete_groups)
    delete_group_offsets = _awaited(asynchronous_admin.Admin.delete_group_offsets)
    committed_offsets = _awaited(asynchronous_admin.Admin.committed_offsets)
    reset_group_offsets = _awaited(asynchronous_admin.Admin.reset_group_offsets)


class Producer(_Facade[QueuedProducer]):
    """See `tidelog.Producer`. Made by `Client.producer`; any number of threads may use it."""

    def __init__(self, client: "Client", inner: QueuedProducer, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self.config = inner.config
        self._client = client  # which is not given up as long as this is in use
        self._handover = thread.do(Handover, client.asynchronous, inner, thread)

    def enqueue(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: GivenHeaders | None = None,
    ) -> Delivery:
        """Accept a record, as soon as there is room for it; `result()` of what is returned waits for its acknowledgement.

        What cannot be seen at once (that the producer has failed meanwhile, say) is told by the delivery, or by `flush`.
        """
        return self._handover.put(topic, value, key, partition, timestamp_ms, headers)

    def send(
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

        Who is interrupted while waiting for the acknowledgement may have sent it nevertheless.
        """

        async def sending() -> RecordMetadata:
            await self._handover.moved()
            return await self._inner.send(
                topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )

        return self._thread.call(sending)

    def send_many(
        self,
        topic: str,
        values: Iterable[bytes | None],
        keys: Iterable[bytes | None] | None = None,
        *,
        partition: int | None = None,
    ) -> Landed:
        """Write many records: where each is, once all are acknowledged. Raises the first error if any has failed."""
        # An iterator of the caller's runs in the caller's thread.
        columns = _listed(values), None if keys is None else _listed(keys)

        async def sending() -> Landed:
            await self._handover.moved()
            return await self._inner.send_many(topic, *columns, partition=partition)

        return self._thread.call(sending)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all records that were accepted are acknowledged.

        Raises DeliveryError if records have failed and nobody was told so, RequestTimedOut after `timeout` seconds.
        """
        self._thread.call(self._handover.flush, timeout)

    def partitions_for(self, topic: str) -> tuple[Partition, ...]:
        """The topic's partitions, and who leads them."""
        return self._thread.call(self._inner.partitions_for, topic)

    def partition_for(self, topic: str, key: bytes | None = None) -> int:
        """Where a record with that key goes; without a key, where the next one goes."""
        return self._thread.call(self._inner.partition_for, topic, key)

    def transaction(self) -> NoReturn:
        """`with producer.transaction()`: not there yet."""
        self._inner.transaction()

    def send_offsets(self, *_given: object, **_named: object) -> None:
        """Offsets that are committed with a transaction: not there yet."""
        self._thread.call(self._inner.send_offsets)

    def metrics(self) -> Mapping[str, float]:
        """Figures, by names that say what they count."""
        return self._thread.do(lambda: {**self._inner.metrics(), **self._handover.metrics()})

    def close(self, timeout: float | None = None) -> None:
        """Flush, for 30 seconds unless it is told another time, and end; a second call does nothing.

        Raises DeliveryError with the number of records that were not acknowledged, unless their senders know; once.
        """
        if self._thread.alive:
            self._thread.call(self._handover.close_producer, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close(lambda: self.close(INTERRUPTED_S if interrupted(kind) else None), error)


class _Hand(Hand):
    """What was given to a thread: how far it has read is told when it matters, not for each record."""

    look: Callable[[], None] = staticmethod(lambda: None)
    """Brings `last` up to date."""

    def processed(self, name: TopicPartition) -> Offset:
        self.look()
        return super().processed(name)

    def withdraw(self, names: Collection[TopicPartition]) -> None:
        self.look()
        super().withdraw(names)


class _Reader(asynchronous_consumer.Consumer):
    """The consumer, as one that hands out a batch and is told later how far it was read."""

    _new_hand = _Hand

    @property
    def hand(self) -> _Hand:
        """What was given."""
        assert isinstance(self._hand, _Hand)
        return self._hand

    async def take(self) -> tuple[object, RecordBatch]:
        """The next batch, and what it is known by; it counts as read as far as `read` says."""
        first, hand = await self._next_record(), self._hand
        assert hand.reading is not None
        assert first.offset == hand.reading[1].offset
        hand.records = iter(())
        return hand.reading, hand.reading[1]

    def read(self, lent: object, last: Record | None) -> None:
        """So far what was lent was read."""
        if self._hand.reading is lent is not None:
            self._hand.last = last

    @property
    def lent(self) -> object:
        """What `take` has given; another object as soon as its partition is taken away, or sought elsewhere."""
        return self._hand.reading

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed


class Consumer(_Facade[_Reader]):
    """See `tidelog.Consumer`. Made by `Client.consumer`; `for record in consumer` reads until it is closed."""

    def __init__(self, client: "Client", inner: _Reader, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self.config = inner.config
        self._client = client
        self._reader = Lock()
        """Who waits for the next batch."""
        self._place = Lock()
        """Held for a moment: the three below change together."""
        self._lent: object = None
        self._records: Iterator[Record] = iter(())
        self._last: Record | None = None
        self._hand = inner.hand
        self._hand.look = self._prepare

    def subscribe(
        self,
        *topics: str,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Read these topics instead of what was read before, also partitions that are added later: all, or the group's
        share. In a group listeners that are given take the place of those before; each call of one has a thread of
        its own, so it may use the consumer.
        """
        listeners = {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}
        threaded = {name: _threaded(listener) for name, listener in listeners.items()}
        self._thread.do(self._do_at_once, partial(self._inner.subscribe, *topics, **threaded))

    unsubscribe = _done(asynchronous_consumer.Consumer.unsubscribe)
    assign = _done(asynchronous_consumer.Consumer.assign)
    assignment = _done(asynchronous_consumer.Consumer.assignment)
    pause = _done(asynchronous_consumer.Consumer.pause)
    resume = _done(asynchronous_consumer.Consumer.resume)
    paused = _done(asynchronous_consumer.Consumer.paused)
    seek = _done(asynchronous_consumer.Consumer.seek)
    seek_to_beginning = _awaited(asynchronous_consumer.Consumer.seek_to_beginning)
    seek_to_end = _awaited(asynchronous_consumer.Consumer.seek_to_end)
    position = _awaited(asynchronous_consumer.Consumer.position)
    positions = _awaited(asynchronous_consumer.Consumer.positions)
    beginning_offsets = _awaited(asynchronous_consumer.Consumer.beginning_offsets)
    end_offsets = _awaited(asynchronous_consumer.Consumer.end_offsets)
    offsets_for_times = _awaited(asynchronous_consumer.Consumer.offsets_for_times)
    commit = _awaited(asynchronous_consumer.Consumer.commit)
    committed = _awaited(asynchronous_consumer.Consumer.committed)
    metrics = _done(asynchronous_consumer.Consumer.metrics)

    @property
    def state(self) -> str:
        """How it stands to its group: `joining`, `stable`, `revoking`, `losing`, `leaving`, `left` or `failed`; without
        one `reading` or `closed`.
        """
        return self._inner.state

    def _prepare(self) -> None:
        with self._place:
            self._inner.read(self._lent, self._last)

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        if (
            self._thread.alive
        ):  # in a forked child it is not: there the batch is the parent's, and nobody opens its locks
            with self._place:  # once more what `_here` does: a call costs as much as all of it
                if self._hand.reading is self._lent:
                    record = next(self._records, None)
                    if record is not None:
                        self._last = record
                        return record
        try:
            return self.getone()
        except ClientClosed:
            if self._inner.closed:
                raise StopIteration from None
            raise

    def getone(self) -> Record:
        """The next record."""
        while True:
            self._thread.check()
            record = self._here()
            if record is not None:
                return record
            with self._reader:
                record = self._here()  # another thread may have waited for it
                if record is not None:
                    return record
                lent, batch = self._thread.call(self._do, self._inner.take)
                with self._place:
                    self._lent, self._records, self._last = lent, iter(batch), None

    def _here(self) -> Record | None:
        """The next record of the batch that was fetched."""
        with self._place:
            if self._inner.lent is not self._lent:
                return None
            record = next(self._records, None)
            if record is not None:
                self._last = record
            return record

    def getmany(
        self,
        *partitions: TopicPartition | tuple[str, int],
        timeout: float = 0.0,
        max_records: int | None = None,
    ) -> dict[TopicPartition, list[Record]]:
        """What is here, at most so many records; if there is nothing, what comes first within `timeout` seconds."""
        work = partial(self._inner.getmany, *partitions, timeout=timeout, max_records=max_records)
        return self._thread.call_or(self._give_back_many, partial(self._do, work))

    def batches(self, max_records: int | None = None, timeout: float | None = None) -> Iterator[RecordBatch]:
        """Batches of consecutive records, each of one partition, as columns; at most so many records in each.

        Ends when nothing has come for `timeout` seconds; without it, when the consumer is closed.
        """
        source = self._inner.batches(max_records, timeout)

        async def another() -> RecordBatch | None:
            return await anext(source, None)

        while True:
            batch = self._thread.call_or(self._give_back, partial(self._do, another))
            if batch is None:
                return
            yield batch

    def _give_back_many(self, found: dict[TopicPartition, list[Record]]) -> None:
        for partition, records in found.items():
            self._seek_back(partition, records[0].offset)

    def _give_back(self, batch: RecordBatch | None) -> None:
        if batch is not None:
            self._seek_back(TopicPartition(batch.topic, batch.partition), batch.offset)

    def _seek_back(self, partition: TopicPartition, offset: int) -> None:
        try:
            self._inner.seek(partition, offset)
        except TidelogError:
            return  # it is not read any more

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """End; who waits for a record is told so. A second call does nothing."""
        if self._thread.alive:
            self._thread.call(self._do, self._inner.close)

    def __enter__(self) -> Self:
        self._thread.call(self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.alive:
            _close(
                lambda: self._thread.call(self._do, partial(self._inner.__aexit__, kind, error, trace)), error
            )


class Client:
    """A cluster's client that is connected: `with`, or `close()`. See `tidelog.Client`."""

    def __init__(self, inner: asynchronous.Client) -> None:
        self.asynchronous = inner
        """The client that does the work. It belongs to this one's thread."""
        self._thread = LoopThread(f"tidelog-{inner.config.client_id}")
        self._thread.at_exit = partial(_exiting, inner)
        self.admin = Admin(inner.admin, self._thread)
        """What operators do: topics, settings, moves."""
        try:
            self._thread.call(inner.start)
        except BaseException:
            self._thread.end(inner.close)
            raise

    @property
    def config(self) -> ClientConfig:
        """What `connect` was told."""
        return self.asynchronous.config

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to another process."""
        return not self._thread.alive

    def producer(self, *, config: Mapping[str, Any] | None = None, **options: Any) -> Producer:
        """A producer: `with client.producer(acks="all", linger_ms=5) as producer`."""
        chosen = from_options(ProducerConfig, options, config)
        return Producer(self, self._thread.do(QueuedProducer, self.asynchronous, chosen), self._thread)

    def consumer(self, *topics: str, config: Mapping[str, Any] | None = None, **options: Any) -> Consumer:
        """A consumer of these topics: `with client.consumer("orders") as consumer`."""
        chosen = from_options(ConsumerConfig, options, config)
        chosen = replace(
            chosen,
            on_assigned=_threaded(chosen.on_assigned),
            on_revoked=_threaded(chosen.on_revoked),
            on_lost=_threaded(chosen.on_lost),
        )
        return Consumer(self, self._thread.do(_Reader, self.asynchronous, topics, chosen), self._thread)

    def metrics(self) -> dict[str, float]:
        """Figures of the client and of all its children, by names that say what they count."""
        return self._thread.do(self.asynchronous.metrics)

    def close(self) -> None:
        """Close children, connections and the thread; raises what a child could not finish. A second call does nothing."""
        self._thread.end(self.asynchronous.close)

    def __repr__(self) -> str:
        return f"<blocking {self.asynchronous!r}>"

    def __enter__(self) -> Self:
        self._thread.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if interrupted(kind):
            self.asynchronous.patience_s = INTERRUPTED_S
        _close(self.close, error)

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)
        if thread is not None and thread.alive:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)
            thread.abandon(self.asynchronous.close)


def connect(
    bootstrap: str | Iterable[str],
    *,
    rack: str = "",
    client_id: str = "tidelog",
    config: Mapping[str, Any] | None = None,
    tls: object = None,
    auth: object = None,
    **options: Any,
) -> Client:
    """A client of the cluster that these brokers belong to: `"h1:9092,h2:9092"`, tried in this order; it is connected.

    Options are those of `ClientConfig`, by name or, in `config`, by Kafka's dotted names; `connect_timeout` is in seconds.
    Raises ConnectionFailed with a line per address and its cause, InvalidConfig, or Unsupported for what is not there yet.
    """
    return Client(
        asynchronous.connect(
            bootstrap, rack=rack, client_id=client_id, config=config, tls=tls, auth=auth, **options
        )
    )


def _threaded(listener: Listener | None) -> Listener | None:
    """The listener, called in a thread in which it may block: the loop would wait for itself."""
    if listener is None:
        return None

    async def calling(names: list[TopicPartition]) -> None:
        await asyncio.to_thread(listener, names)

    return calling


def _listed(column: Iterable[bytes | None]) -> Iterable[bytes | None]:
    """What is no list yet, as one; strings are left as they are, to be refused."""
    return list(column) if isinstance(column, Iterator) else column


async def _exiting(client: asynchronous.Client) -> None:
    """Of a client that nobody has closed: whoever has left the interpreter by Ctrl-C does not want to wait."""
    if interrupted(getattr(sys, "last_type", None)):
        client.patience_s = INTERRUPTED_S
    await client.close()


def _close(close: Callable[[], None], error: BaseException | None) -> None:
    try:
        close()
    except TidelogError as failure:
        if error is None:
            raise
        # What ended the block is what its author has to know first.
        error.add_note(f"and when it was closed: {failure.name()}: {failure}")
