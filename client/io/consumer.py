"""The consumer: what `fetching` decides, carried out.

    async with client.consumer("orders", auto_offset_reset="earliest") as consumer:
        async for record in consumer: ...
        async for batch in consumer.batches(): ...          # columns: the fastest way
        records = await consumer.getmany(timeout=1)          # lists, by partition

Without a group it reads all partitions of its topics, or those that it is assigned, and keeps its positions to itself.

What it keeps true:

* A task per broker fetches ahead of the reader, within `prefetch_bytes`; what is fetched is decoded when it is read, a
  whole batch at a time, and a record becomes an object when somebody looks at it.
* Whatever ends the reading is raised to who reads: an error of a partition when its records before it are read, an
  error of the consumer at once.
* An await that is cancelled loses no record: the next one goes on where it stopped.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from tidelog.client.cluster import Changes
from tidelog.client.fetching import FOREVER, Asked, Fetching, Question, Reader
from tidelog.client.io.leaders import AtLeaders
from tidelog.client.options import ConsumerConfig
from tidelog.client.records import PartitionPosition, Record, RecordBatch
from tidelog.client.retry import Advice, advice
from tidelog.protocol.batch import read_header
from tidelog.protocol.errors import (
    ClientClosed,
    ConnectionFailed,
    InvalidRequest,
    RequestTimedOut,
    TidelogError,
    UnknownServerError,
    UnknownTopicOrPartition,
    Unsupported,
)
from tidelog.protocol.messages import (
    EARLIEST,
    LATEST,
    EpochEnds,
    EpochEndsReply,
    EpochQuery,
    FetchReply,
    ListOffsets,
    ListOffsetsReply,
    OffsetFound,
    OffsetQuery,
    Reply,
    Request,
)
from tidelog.protocol.types import NO_OFFSET, BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from tidelog.client.io.client import Client

logger = logging.getLogger(__name__)

_HASTE_MS: Final = (25.0, 100.0)
_HASTY_LOOKS: Final = 30
"""For the first seconds without a leader the cluster is looked at often: an election takes a moment only."""


class OffsetAndTimestamp(NamedTuple):
    """A record that was looked for by its time."""

    offset: int
    timestamp_ms: int


class Consumer:
    """See the module. Made by `Client.consumer`."""

    def __init__(self, client: "Client", topics: Iterable[str], config: ConsumerConfig) -> None:
        if config.group is not None:
            raise Unsupported(
                f"group={config.group!r}: consumer groups are not there yet; leave it out to read all partitions"
            )
        self.config = config
        self._client = client
        self._fetching = Fetching(config, client.config.rack, self._backoff_ms)
        self._topics: dict[str, int] = {}
        """What is subscribed to, and how many partitions of each are assigned; -1: it was not looked at yet."""
        self._by_hand = False
        self._turn: list[Reader] = []
        """Whose turn it is to be read, the next one first."""
        self._reading: tuple[Reader, RecordBatch] | None = None
        self._records: Iterator[Record] = iter(())
        self._last: Record | None = None
        self._arrived = asyncio.Event()
        self._changed: dict[BrokerId, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._discovering: asyncio.Task[Any] | None = None
        self._looking = False
        self._settling = False
        self._timer: asyncio.TimerHandle | None = None
        self._fatal: TidelogError | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._counts = {"fetches": 0, "fetched_bytes": 0}
        self._unwatch = client.watch(self._cluster_changed)
        client.register(self)
        names = list(topics)
        if names:
            self._topics = dict.fromkeys(names, -1)

    async def __aenter__(self) -> Self:
        try:
            await self._ready()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ── which partitions ──────────────────────────────────────────────────────────────────────────

    def subscribe(self, *topics: str) -> None:
        """Read all partitions of these topics, also those that are added later; instead of what was read before."""
        self._check_open()
        self._drop_all()
        self._by_hand = False
        self._topics = dict.fromkeys(topics, -1)
        self._discover()

    def unsubscribe(self) -> None:
        """Read nothing."""
        self._check_open()
        self._drop_all()
        self._topics = {}

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions and no others; positions of those that were read before stay."""
        self._check_open()
        wanted = dict.fromkeys(TopicPartition(*each) for each in partitions)
        self._release()
        self._by_hand = True
        self._fetching.unassign([name for name in self._fetching.readers if name not in wanted])
        self._fetching.assign(wanted)
        self._topics = {name.topic: -1 for name in wanted}
        self._turn = list(self._fetching.readers.values())
        self._discover()

    def assignment(self) -> set[TopicPartition]:
        """What is read."""
        return set(self._fetching.readers)

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Give no records of these for a while; without arguments of none at all."""
        self._release()
        for reader in self._readers(partitions):
            reader.paused = True

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Give records of these again; without arguments of all."""
        for reader in self._readers(partitions):
            reader.paused = False
        self._stir()

    def paused(self) -> set[TopicPartition]:
        """Those that are paused."""
        return {name for name, reader in self._fetching.readers.items() if reader.paused}

    def _readers(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> list[Reader]:
        self._check_open()
        found = [self._reader(each) for each in partitions]
        return found or list(self._fetching.readers.values())

    def _reader(self, partition: TopicPartition | tuple[str, int]) -> Reader:
        name = TopicPartition(*partition)
        reader = self._fetching.readers.get(name)
        if reader is None:
            raise InvalidRequest(f"{name} is not assigned to this consumer")
        return reader

    # ── where ─────────────────────────────────────────────────────────────────────────────────────

    def seek(self, partition: TopicPartition | tuple[str, int], offset: Offset) -> None:
        """Go on at that offset."""
        self._check_open()
        if offset < 0:
            raise InvalidRequest(
                f"offset {offset}: offsets begin at 0; see seek_to_beginning and seek_to_end"
            )
        reader = self._reader(partition)
        self._release()
        reader.seek(offset)
        self._stir()

    async def seek_to_beginning(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Go on at the first offset that there is; without arguments in all partitions."""
        await self._seek_where(partitions, EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Go on behind the last committed record; without arguments in all partitions."""
        await self._seek_where(partitions, LATEST)

    async def _seek_where(self, partitions: Iterable[TopicPartition | tuple[str, int]], which: int) -> None:
        await self._ready()
        readers = self._readers(partitions)
        versions = {reader.name: reader.version for reader in readers}
        found = await self._list_offsets(dict.fromkeys(versions, which))
        self._release()
        for reader in readers:
            if reader.version == versions[reader.name]:  # nobody has gone elsewhere meanwhile
                reader.seek(found[reader.name].offset)
        self._stir()

    async def position(self, partition: TopicPartition | tuple[str, int]) -> Offset:
        """The offset of the next record of that partition."""
        await self._ready()
        reader = self._reader(partition)
        await self._until_placed((reader,))
        return self._position(reader)

    async def positions(self) -> dict[TopicPartition, PartitionPosition]:
        """How far each partition is read, and what lies ahead."""
        await self._ready()
        readers = list(self._fetching.readers.values())
        await self._until_placed(readers)
        names = [reader.name for reader in readers]
        committed = await self._list_offsets(dict.fromkeys(names, LATEST))
        return {reader.name: self._told(reader, committed[reader.name].offset) for reader in readers}

    def _told(self, reader: Reader, end: Offset) -> PartitionPosition:
        position = self._position(reader)
        high_watermark = reader.high_watermark = max(reader.high_watermark, end)
        lag = max(high_watermark - position, 0)
        return PartitionPosition(position, high_watermark, high_watermark, lag, self._lag_s(reader, lag))

    def _lag_s(self, reader: Reader, lag: int) -> float | None:
        """The age of the next record, if it is known by what is here."""
        if lag == 0:
            return 0.0
        then_ms: int | None = None
        if self._reading is not None and self._reading[0] is reader:
            rest = self._rest()
            then_ms = rest.timestamps_ms[0] if rest is not None else None
        if then_ms is None and reader.rest is not None:
            then_ms = reader.rest.timestamps_ms[0]
        if then_ms is None and reader.buffered:
            then_ms = read_header(*reader.buffered[0]).base_timestamp
        return None if then_ms is None else max(time.time() - then_ms / 1000, 0.0)

    def _position(self, reader: Reader) -> Offset:
        if self._reading is not None and self._reading[0] is reader:
            rest = self._rest()
            return reader.position if rest is None else rest.offset
        return reader.position

    async def _until_placed(self, readers: Iterable[Reader]) -> None:
        """Until it is known where each of them begins."""
        deadline_s = _now_s() + self.config.default_api_timeout_ms / 1000
        for reader in readers:
            while reader.position == NO_OFFSET:
                if reader.error is not None:
                    raise type(reader.error)(reader.error.message)
                if not await self._news(deadline_s):
                    raise RequestTimedOut(
                        f"{reader.name}: its position is not known after {self.config.default_api_timeout_ms} ms"
                    )

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, Offset]:
        """The first offset of each of these."""
        found = await self._list_offsets({TopicPartition(*each): EARLIEST for each in partitions})
        return {name: answer.offset for name, answer in found.items()}

    async def end_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, Offset]:
        """The offset behind the last committed record of each of these."""
        found = await self._list_offsets({TopicPartition(*each): LATEST for each in partitions})
        return {name: answer.offset for name, answer in found.items()}

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each at that time or later; None where there is none."""
        found = await self._list_offsets({TopicPartition(*each): at for each, at in times_ms.items()})
        return {
            name: None if answer.offset == NO_OFFSET else OffsetAndTimestamp(answer.offset, answer.timestamp)
            for name, answer in found.items()
        }

    async def _list_offsets(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetFound]:
        self._check_open()
        deadline_s = _now_s() + self.config.default_api_timeout_ms / 1000
        return await AtLeaders(self._client).list_offsets(wanted, self.config.isolation, deadline_s)

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        record = next(self._records, None)
        if record is None:
            try:
                record = await self._next_record()
            except ClientClosed:
                if self._closed:
                    raise StopAsyncIteration from None
                raise
        self._last = record
        return record

    async def getone(self) -> Record:
        """The next record."""
        record = next(self._records, None)
        if record is None:
            record = await self._next_record()
        self._last = record
        return record

    async def _next_record(self) -> Record:
        await self._ready()
        while True:
            # In one stretch from here: who is cancelled before has taken nothing.
            self._reading = self._last = None
            taken = self._take()
            if taken is not None:
                self._reading = taken
                self._records = iter(taken[1])
                return next(self._records)
            await self._news(None)

    async def getmany(
        self,
        *partitions: TopicPartition | tuple[str, int],
        timeout: float = 0.0,
        max_records: int | None = None,
    ) -> dict[TopicPartition, list[Record]]:
        """What is here, at most so many records; if there is nothing, what comes first within `timeout` seconds."""
        await self._ready()
        only = {TopicPartition(*each) for each in partitions}
        left = self.config.max_poll_records if max_records is None else max_records
        if left < 1:
            raise InvalidRequest(f"max_records={left}: at least one")
        deadline_s = _now_s() + timeout
        self._release()
        found: dict[TopicPartition, list[Record]] = {}
        while left:
            taken = self._take(left, only, quiet=bool(found))
            if taken is not None:
                reader, batch = taken
                found.setdefault(reader.name, []).extend(batch)
                left -= len(batch)
            elif found or not await self._news(deadline_s):
                break
        return found

    async def batches(
        self,
        max_records: int | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[RecordBatch]:
        """Batches of consecutive records, each of one partition, as columns; at most so many records in each.

        Ends when nothing has come for `timeout` seconds; without it, when the consumer is closed.
        """
        await self._ready()
        self._release()
        while True:
            taken = None
            deadline_s = None if timeout is None else _now_s() + timeout
            try:
                while (taken := self._take(max_records)) is None:
                    if not await self._news(deadline_s):
                        return
            except ClientClosed:
                if self._closed:
                    return
                raise
            yield taken[1]
            self._release()

    def _take(
        self,
        max_records: int | None = None,
        only: set[TopicPartition] | None = None,
        *,
        quiet: bool = False,
    ) -> tuple[Reader, RecordBatch] | None:
        """The next batch of the partition whose turn it is. An error waits while `quiet`."""
        self._check()
        for _ in range(len(self._turn)):
            reader = self._turn[0]
            batch = None
            if not reader.paused and not (only and reader.name not in only):
                if reader.has_records or (reader.error is not None and not quiet):
                    batch = self._fetching.take(reader)
                if self._fetching.made_room(reader):
                    self._stir()
            if batch is not None:
                if max_records is not None:
                    batch, rest = batch.split(max_records)
                    if rest is not None:
                        self._fetching.give_back(reader, rest)
                if not reader.has_records:
                    self._turn.append(self._turn.pop(0))
                return reader, batch
            self._turn.append(self._turn.pop(0))
        return None

    def _rest(self) -> RecordBatch | None:
        """What is left of the batch that is being read one by one."""
        assert self._reading is not None
        return self._reading[1] if self._last is None else self._reading[1].after(self._last.offset)

    def _release(self) -> None:
        """Give back what is left of it, for somebody reads in another way, or elsewhere."""
        if self._reading is not None:
            rest, reader = self._rest(), self._reading[0]
            if rest is not None:
                self._fetching.give_back(reader, rest)
        self._reading = self._last = None
        self._records = iter(())

    async def _news(self, deadline_s: float | None) -> bool:
        """Until something has happened; False when the time is up."""
        self._check()
        self._arrived.clear()
        if deadline_s is not None and _now_s() >= deadline_s:
            return False
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._arrived.wait()
        except TimeoutError:
            return False
        self._check()
        return True

    def _check(self) -> None:
        if self._fatal is not None:
            raise type(self._fatal)(self._fatal.message)
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer is closed")

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """End; who waits for a record is told so. A second call waits with the first."""
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.get_running_loop().create_task(
                self._close(), name="tidelog-consumer-close"
            )
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._unwatch()
        self._client.unregister(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._drop_all()
        self._arrived.set()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def metrics(self) -> Mapping[str, float]:
        """Figures, by names that say what they count."""
        found = {f"consumer_{name}": float(count) for name, count in self._counts.items()}
        found["consumer_partitions"] = float(len(self._fetching.readers))
        found["consumer_buffered_bytes"] = float(self._fetching.buffered_bytes)
        return found

    def _drop_all(self) -> None:
        self._reading = self._last = None
        self._records = iter(())
        self._fetching.unassign(list(self._fetching.readers))
        self._turn = []

    # ── topics ────────────────────────────────────────────────────────────────────────────────────

    async def _ready(self) -> None:
        """Until the topics are known that are subscribed to; raises why they cannot be."""
        self._check()
        while any(count < 0 for count in self._topics.values()):
            self._discover()
            await self._news(None)

    def _discover(self) -> None:
        if self._discovering is None and self._topics:
            self._discovering = self._spawn(self._keep_discovering())
        self._stir()

    async def _keep_discovering(self) -> None:
        """Learn the topics, and look for new partitions once in a while."""
        try:
            while self._topics:
                for name in [name for name, count in self._topics.items() if count < 0]:
                    await self._client.topic(name, timeout=self.config.default_api_timeout_ms / 1000)
                    self._learn(name)
                if any(count < 0 for count in self._topics.values()):
                    continue  # subscribed to meanwhile
                await asyncio.sleep(self.config.topic_refresh_ms / 1000)
                await self._refresh(list(self._topics))
        except TidelogError as error:
            self._topics = {name: count for name, count in self._topics.items() if count >= 0}
            self._fail(error)
        finally:
            self._discovering = None

    async def _refresh(self, names: list[str]) -> None:
        try:
            await self._client.refresh(names, newer=True)
        except ClientClosed:
            raise
        except TidelogError as error:
            logger.info("metadata.not_refreshed reason=%s", error)
        for name in names:
            self._learn(name)

    def _cluster_changed(self, changes: Changes) -> None:
        for name in changes.topics:
            self._learn(name)

    def _learn(self, name: str) -> None:
        """Take what is known of the topic: its leaders, and partitions that are new."""
        topic = self._client.cluster.topics.get(name)
        if topic is None:
            if name in self._client.cluster.absent:
                self._fetching.gone(name)
                self._arrived.set()
            return
        before = self._topics.get(name)
        if before is None:
            return
        if not self._by_hand and len(topic.partitions) > before:
            new = [TopicPartition(name, index) for index in range(max(before, 0), len(topic.partitions))]
            # What appears later was empty when the reading began: nothing of it may be missed.
            self._fetching.assign(new, None if before < 0 else EARLIEST)
            self._turn += [self._fetching.readers[each] for each in new]
        self._topics[name] = len(topic.partitions)
        self._fetching.learn(topic)
        if self._by_hand:
            for each in self._fetching.readers.values():
                if each.name.topic == name and each.name.partition >= len(topic.partitions):
                    count = len(topic.partitions)
                    each.fail(UnknownTopicOrPartition(f"{each.name}: the topic has {count} partitions"))
        self._stir()
        self._arrived.set()

    # ── carrying out ──────────────────────────────────────────────────────────────────────────────

    def _stir(self) -> None:
        """Something can be asked that could not be asked before, perhaps."""
        if self._closed:
            return
        for event in self._changed.values():
            event.set()
        for broker in self._fetching.brokers(_now_ms()):
            if broker not in self._changed:
                self._changed[broker] = asyncio.Event()
                self._spawn(self._follow(broker))
        self._settle()
        if self._fetching.astray and not self._looking:
            self._looking = True
            self._spawn(self._look())
        for name, what in self._fetching.notes:
            logger.warning("consumer.position_reset partition=%s reason=%s", name, what)
        self._fetching.notes.clear()

    def _settle(self) -> None:
        """Ask leaders what has to be known before more can be read."""
        for broker, questions in self._fetching.questions(_now_ms()).items():
            self._spawn(self._ask(broker, questions))
        wake_ms = self._fetching.wake_ms(_now_ms())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_ms < FOREVER:
            self._timer = asyncio.get_running_loop().call_at(wake_ms / 1000, self._stir)

    def _spawn(self, work: Any) -> "asyncio.Task[Any]":
        task = self._client.spawn(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, work: Any) -> None:
        """A task that fails fails the consumer: who reads is told."""
        try:
            await work
        except TidelogError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("consumer.failed")
            self._fail(UnknownServerError(f"the consumer has failed: {type(error).__name__}: {error}"))

    def _fail(self, error: TidelogError) -> None:
        self._fatal = self._fatal or error
        self._arrived.set()

    async def _follow(self, broker: BrokerId) -> None:
        """Fetch from one broker whatever is wanted of it, as long as the consumer lives."""
        changed = self._changed[broker]
        while True:
            changed.clear()
            asked = self._fetching.ask(broker, _now_ms())
            if asked is None:
                self._settle()
                await changed.wait()
            else:
                await self._fetch(asked)

    async def _fetch(self, asked: Asked) -> None:
        fetching = self._fetching
        timeout_ms = asked.request.max_wait_ms + self.config.request_timeout_ms
        try:
            reply, data = await self._client.call(
                asked.broker, asked.request, timeout_ms=timeout_ms, lane="fetches"
            )
            if not isinstance(reply, FetchReply):
                raise ConnectionFailed(f"broker {asked.broker} answered Fetch with {type(reply).__name__}")
        except TidelogError as error:
            fetching.lost(asked, error, _now_ms())
            self._stir()
            if advice(error) is Advice.FATAL:
                self._arrived.set()
            return
        except asyncio.CancelledError:
            fetching.lost(asked, ClientClosed("cancelled"), _now_ms())
            raise
        self._counts["fetches"] += 1
        self._counts["fetched_bytes"] += len(data)
        for entry in reply.partitions:
            if entry.error:
                self._client.hint(entry.topic_id, entry.index, entry.current_leader)
        if fetching.answered(asked, reply, data, _now_ms()):
            self._arrived.set()
        if fetching.astray or fetching.notes or any(entry.error for entry in reply.partitions):
            self._stir()

    async def _ask(self, broker: BrokerId, questions: list[Question]) -> None:
        """Where positions are, and whether they still hold."""
        where = [each for each in questions if each.timestamp is not None]
        whether = [each for each in questions if each.timestamp is None]
        if where:
            queries = [
                OffsetQuery(*each.reader.place, each.timestamp or 0, each.reader.leader_epoch)
                for each in where
            ]
            request = ListOffsets(tuple(queries), self.config.isolation)
            await self._ask_one(broker, where, request, ListOffsetsReply, self._fetching.found)
        if whether:
            checks = [
                EpochQuery(*each.reader.place, each.reader.offset_epoch, each.reader.leader_epoch)
                for each in whether
            ]
            await self._ask_one(
                broker, whether, EpochEnds(tuple(checks)), EpochEndsReply, self._fetching.checked
            )
        self._arrived.set()
        self._stir()

    async def _ask_one(
        self,
        broker: BrokerId,
        questions: list[Question],
        request: Request,
        answers: type[ListOffsetsReply] | type[EpochEndsReply],
        take: Callable[[Question, Any, float], None],
    ) -> None:
        try:
            reply: Reply
            reply, _ = await self._client.call(broker, request, timeout_ms=self.config.request_timeout_ms)
            if not isinstance(reply, answers) or len(reply.partitions) != len(questions):
                raise ConnectionFailed(
                    f"broker {broker} answered {type(request).__name__} with something else"
                )
        except TidelogError as error:
            for question in questions:
                self._fetching.not_answered(question, error, _now_ms())
            return
        for question, answer in zip(questions, reply.partitions, strict=True):
            if answer.error:
                self._client.hint(answer.topic_id, answer.index, answer.current_leader)
            take(question, answer, _now_ms())

    async def _look(self) -> None:
        """Look at the cluster until every partition has a leader that answers."""
        backoff, looks = self._client.backoff(), 0
        try:
            while names := list(self._fetching.astray):
                self._fetching.astray.clear()
                await self._refresh(names)
                looks += 1
                hasty = looks <= _HASTY_LOOKS
                wait_ms = self._client.rng.uniform(*_HASTE_MS) if hasty else backoff.wait_ms(_now_ms())
                await asyncio.sleep((wait_ms or 0) / 1000)
                for event in self._changed.values():
                    event.set()
                self._settle()
                await asyncio.sleep(0)
        finally:
            self._looking = False

    def _backoff_ms(self, failures: int) -> float:
        """Full jitter (design 5.1)."""
        config = self._client.config
        bound = min(config.retry_backoff_ms * 2.0 ** min(failures - 1, 20), config.retry_backoff_max_ms)
        return self._client.rng.uniform(0, bound)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _now_ms() -> float:
    return _now_s() * 1000
