"""The consumer: what `fetching` decides, carried out.

    async with client.consumer("orders", auto_offset_reset="earliest") as consumer:
        async for record in consumer: ...
        async for batch in consumer.batches(): ...          # columns: the fastest way
        records = await consumer.getmany(timeout=1)          # lists, by partition

Without a group it reads all partitions of its topics, or those that it is assigned, and keeps its positions to itself.
With one (`group="g"`) it reads those that the group gives it, see `groups`.

What it keeps true:

* A task per broker fetches ahead of the reader, within `prefetch_bytes`; what is fetched is decoded when it is read, a
  whole batch at a time, and a record becomes an object when somebody looks at it.
* Whatever ends the reading is raised to who reads: an error of a partition when its records before it are read, an
  error of the consumer at once.
* An await that is cancelled loses no record: the next one goes on where it stopped.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from tidelog.client.cluster import Changes
from tidelog.client.io.fetcher import Fetcher
from tidelog.client.io.groups import GroupMember, Hands, Listener, ToCommit, commits
from tidelog.client.io.leaders import AtLeaders
from tidelog.client.io.session import CLOSE_TIMEOUT_S, INTERRUPTED_S, interrupted
from tidelog.client.io.subscription import Subscription
from tidelog.client.options import ConsumerConfig
from tidelog.client.reader import Reader
from tidelog.client.records import PartitionPosition, Record, RecordBatch
from tidelog.protocol.batch import read_header
from tidelog.protocol.errors import ClientClosed, InvalidRequest, RequestTimedOut
from tidelog.protocol.messages import EARLIEST, LATEST, OffsetFound
from tidelog.protocol.types import NO_OFFSET, Offset, TopicPartition

if TYPE_CHECKING:
    from tidelog.client.io.session import Session


class OffsetAndTimestamp(NamedTuple):
    """A record that was looked for by its time."""

    offset: int
    timestamp_ms: int


class Consumer:
    """See the module. Made by `Client.consumer`."""

    def __init__(self, client: "Session", topics: Iterable[str], config: ConsumerConfig) -> None:
        self.config = config
        self._client = client
        self._fetcher = Fetcher(client, config, self._learn)
        self._fetching = self._fetcher.fetching
        self._subscription = Subscription(client, config, self._fetcher, self._begin)
        self._turn: list[Reader] = []
        """Whose turn it is to be read, the next one first."""
        self._reading: tuple[Reader, RecordBatch] | None = None
        self._records: Iterator[Record] = iter(())
        self._last: Record | None = None
        self._hand: dict[TopicPartition, Offset] = {}
        """From where on the application was given records that it may not be done with; `_last` is another one."""
        self._closed = False
        self._patience_s = CLOSE_TIMEOUT_S
        self._closing: asyncio.Task[None] | None = None
        self._unwatch = client.watch(self._cluster_changed)
        client.register(self)
        self._group: GroupMember | None = None
        if config.group is not None:
            hands = Hands(self._begin, self._withdraw, self._drop, self._processed, self._placed)
            self._group = GroupMember(client, config, self._fetcher, hands)
        self._names = list(topics)
        """What the group is still to be told."""
        if self._group is None:
            self._subscription.want(self._names)

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
        if error is None:
            self._finished()
        if interrupted(kind):
            self._patience_s = INTERRUPTED_S
        await self.close()

    # ── which partitions ──────────────────────────────────────────────────────────────────────────

    def subscribe(
        self,
        *topics: str,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Read these topics instead of what was read before, also partitions that are added later: all, or the group's
        share. In a group listeners that are given take the place of those before.
        """
        self._check_open()
        listeners = {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}
        if self._group is not None:
            self._names = []
            self._group.subscribe(topics, listeners)
            return
        if any(listeners.values()):
            raise InvalidRequest("listeners are for members of a group; say which by group=")
        self._drop_all()
        self._subscription.want(topics)
        self._subscription.discover()

    def unsubscribe(self) -> None:
        """Read nothing."""
        self._check_open()
        if self._group is not None:
            self.subscribe()
            return
        self._drop_all()
        self._subscription.want(())

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions and no others; positions of those that were read before stay."""
        self._check_open()
        if self._group is not None:
            raise InvalidRequest(
                f"group={self.config.group!r}: it says who reads what; to choose leave it out"
            )
        wanted = dict.fromkeys(TopicPartition(*each) for each in partitions)
        self._release()
        self._fetching.unassign([name for name in self._fetching.readers if name not in wanted])
        self._fetching.assign(wanted)
        self._turn = list(self._fetching.readers.values())
        self._subscription.want([name.topic for name in wanted], by_hand=True)
        self._subscription.discover()

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
        self._fetcher.stir()

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
        self._hand.pop(reader.name, None)
        reader.seek(offset)
        self._fetcher.stir()

    async def seek_to_beginning(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Go on at the first offset that there is; without arguments in all partitions."""
        await self._seek_where(partitions, EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Go on behind the last committed record; without arguments in all partitions."""
        await self._seek_where(partitions, LATEST)

    async def _seek_where(self, partitions: Iterable[TopicPartition | tuple[str, int]], which: int) -> None:
        await self._ready()
        readers = self._readers(partitions)
        self._release()
        for reader in readers:
            self._hand.pop(reader.name, None)
            reader.seek(NO_OFFSET, which)
        self._fetcher.stir()
        await self._until_placed(readers)

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
        ends = await self._list_offsets(dict.fromkeys(names, LATEST))
        committed = await self.committed(*names) if self._group is not None else {}
        return {
            name: self._told(reader, ends[name].offset, committed.get(name))
            for name, reader in zip(names, readers, strict=True)
        }

    def _told(self, reader: Reader, end: Offset, committed: Offset | None) -> PartitionPosition:
        position = self._position(reader)
        high_watermark = reader.high_watermark = max(reader.high_watermark, end)
        lag = max(high_watermark - position, 0)
        lag_s = self._lag_s(reader, lag)
        return PartitionPosition(position, high_watermark, high_watermark, lag, lag_s, committed)

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

    # ── the group ─────────────────────────────────────────────────────────────────────────────────

    @property
    def state(self) -> str:
        """How it stands to its group: `joining`, `stable`, `revoking`, `losing`, `leaving`, `left` or `failed`; without
        one `reading` or `closed`.
        """
        return self._group.state if self._group is not None else "closed" if self._closed else "reading"

    async def commit(self, what: ToCommit = None) -> None:
        """Tell the group how far this is: behind a record, at given offsets (`{partition: offset}`, or `(offset, metadata)`),
        or, by default, behind all that was given out. From then on nothing is committed by itself, unless
        `enable_auto_commit=True`.

        Raises FencedMemberEpoch for partitions that others have by now.
        """
        group = self._group_of("commit")
        if group.state != "leaving":  # `on_revoked` may commit while the consumer closes
            self._check()
        if self.config.enable_auto_commit is None:
            group.automatic = False
        if what is None:
            places = {name: self._placed(name) for name in group.places}
            what = {name: offset for name, offset in places.items() if offset != NO_OFFSET}
        await group.commit(commits(what), self._deadline_ms())

    async def committed(
        self, *partitions: TopicPartition | tuple[str, int]
    ) -> dict[TopicPartition, Offset | None]:
        """What the group has committed of these, or of all that this one reads; None: nothing."""
        self._check()
        group = self._group_of("committed")
        names = [TopicPartition(*each) for each in partitions] or list(group.places)
        found = await group.committed(names, self._deadline_ms())
        return {name: None if it.offset == NO_OFFSET else it.offset for name, it in found.items()}

    def _group_of(self, verb: str) -> GroupMember:
        if self._group is None:
            raise InvalidRequest(f"{verb}: this consumer is in no group; say which by group=")
        return self._group

    def _deadline_ms(self) -> float:
        return _now_s() * 1000 + self.config.default_api_timeout_ms

    def _begin(self, names: Collection[TopicPartition]) -> None:
        self._turn += [self._fetching.readers[name] for name in names]
        self._fetcher.stir()
        self._fetcher.arrived.set()

    def _withdraw(self, names: Collection[TopicPartition]) -> None:
        if self._reading is not None and self._reading[0].name in names:
            self._release()
        self._turn = [reader for reader in self._turn if reader.name not in names]

    def _drop(self, names: Collection[TopicPartition]) -> None:
        self._withdraw(names)
        self._fetching.unassign([name for name in names if name in self._fetching.readers])
        for name in names:
            self._hand.pop(name, None)

    def _placed(self, name: TopicPartition) -> Offset:
        reader = self._fetching.readers.get(name)
        return NO_OFFSET if reader is None else self._position(reader)

    def _processed(self, name: TopicPartition) -> Offset:
        """How far the application is done with it: all before what it has in hand."""
        if self._reading is not None and self._reading[0].name == name and self._last is not None:
            return self._last.offset
        return self._hand.get(name, self._placed(name))

    def _finished(self) -> None:
        """The application asks for more, or has ended well: it is done with what it had."""
        if self._reading is not None:
            self._release()
        self._hand.clear()
        if self._group is not None:
            self._group.asked()

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
        self._finished()
        await self._ready()
        while True:
            # In one stretch from here: who is cancelled before has taken nothing. Another task may have fetched meanwhile.
            if (record := next(self._records, None)) is not None:
                return record
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
        self._finished()
        await self._ready()
        only = {TopicPartition(*each) for each in partitions}
        left = self.config.max_poll_records if max_records is None else max_records
        if left < 1:
            raise InvalidRequest(f"max_records={left}: at least one")
        deadline_s = _now_s() + timeout
        found: dict[TopicPartition, list[Record]] = {}
        while left:
            taken = self._take(left, only, quiet=bool(found))
            if taken is not None:
                reader, batch = taken
                self._hand.setdefault(reader.name, batch.offset)
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
        self._finished()
        await self._ready()
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
            self._hand.setdefault(taken[0].name, taken[1].offset)
            yield taken[1]
            self._finished()

    def _take(
        self,
        max_records: int | None = None,
        only: set[TopicPartition] | None = None,
        *,
        quiet: bool = False,
    ) -> tuple[Reader, RecordBatch] | None:
        """The next batch of the partition whose turn it is. An error waits while `quiet`."""
        self._check()
        if self._group is None and self._subscription.empty:
            raise InvalidRequest(
                "nothing is read, so nothing will come: subscribe to topics or assign partitions first"
            )
        for _ in range(len(self._turn)):
            reader = self._turn[0]
            batch = None
            if not reader.paused and not (only and reader.name not in only):
                if reader.has_records or (reader.error is not None and not quiet):
                    batch = self._fetching.take(reader)
                if self._fetching.made_room(reader):
                    self._fetcher.stir()
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
            if self._last is not None:
                self._hand.setdefault(reader.name, self._last.offset)
            if rest is not None:
                self._fetching.give_back(reader, rest)
        self._reading = self._last = None
        self._records = iter(())

    async def _news(self, deadline_s: float | None) -> bool:
        """Until something has happened; False when the time is up."""
        self._check()
        self._fetcher.arrived.clear()
        if deadline_s is not None and _now_s() >= deadline_s:
            return False
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._fetcher.arrived.wait()
        except TimeoutError:
            return False
        self._check()
        return True

    def _check(self) -> None:
        if self._fetcher.fatal is not None:
            raise type(self._fetcher.fatal)(self._fetcher.fatal.message)
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
        if self._group is not None:
            await self._group.close(min(self._patience_s, self._client.patience_s))
        self._unwatch()
        self._client.unregister(self)
        self._drop_all()
        self._fetcher.stop()
        await self._fetcher.wait_stopped()

    def metrics(self) -> Mapping[str, float]:
        """Figures, by names that say what they count."""
        return self._fetcher.metrics()

    def _drop_all(self) -> None:
        self._reading = self._last = None
        self._records = iter(())
        self._hand.clear()
        self._fetching.unassign(list(self._fetching.readers))
        self._turn = []

    # ── topics ────────────────────────────────────────────────────────────────────────────────────

    async def _ready(self) -> None:
        """Until the topics are known that are subscribed to; raises why they cannot be."""
        self._check()
        if self._group is not None:
            if self._names:
                self.subscribe(*self._names)
            while self._group.joining:
                await self._news(None)
        while not self._subscription.knows_all:
            self._subscription.discover()
            if not self._subscription.knows_all:
                await self._news(None)

    def _cluster_changed(self, changes: Changes) -> None:
        for name in changes.topics:
            self._learn(name)

    def _learn(self, name: str) -> None:
        """More is known of the topic."""
        if self._group is not None:
            self._group.learn(name)
        else:
            self._subscription.learn(name)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
