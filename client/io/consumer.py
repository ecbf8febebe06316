"""The consumer: what `fetching` decides, carried out.

    async with client.consumer("orders", auto_offset_reset="earliest") as consumer:
        async for record in consumer: ...
        async for batch in consumer.batches(): ...          # columns: the fastest way
        records = await consumer.getmany(timeout=1)          # lists, by partition

Without a group it reads all partitions of its topics, or those that it is assigned, and keeps its positions to itself.
With one (`group="g"`) it reads those that the group gives it, see `groups`, or those that it is assigned, and keeps its
positions with the group, see `alone`.

What it keeps true:

* A task per broker fetches ahead of the reader, within `prefetch_bytes`; what is fetched is decoded when it is read, a
  whole batch at a time, and a record becomes an object when somebody looks at it.
* Whatever ends the reading is raised to who reads: an error of a partition when its records before it are read, an
  error of the consumer at once.
* While no broker answers, who reads is told so every `default_api_timeout_ms`, and may go on: an election or a restart
  of some brokers is waited for.
* An await that is cancelled loses no record: the next one goes on where it stopped.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from tidelog.client.arguments import (
    GivenPartition,
    offset_of,
    partition_of,
    partitions_of,
    seconds,
    some_records,
    time_out,
    times_of,
    topics_of,
)
from tidelog.client.cluster import Changes
from tidelog.client.hand import ONE_BY_ONE, Hand
from tidelog.client.io.alone import Alone
from tidelog.client.io.fetcher import Fetcher
from tidelog.client.io.group_offsets import ToCommit, commits
from tidelog.client.io.groups import GroupMember, Hands, Listener
from tidelog.client.io.leaders import AtLeaders
from tidelog.client.io.session import CLOSE_TIMEOUT_S, INTERRUPTED_S, interrupted
from tidelog.client.io.subscription import Subscription
from tidelog.client.options import ConsumerConfig
from tidelog.client.reader import Reader
from tidelog.client.records import PartitionPosition, Record, RecordBatch
from tidelog.protocol.errors import ClientClosed, InvalidRequest, RequestTimedOut
from tidelog.protocol.messages import EARLIEST, LATEST, OffsetFound
from tidelog.protocol.types import NO_OFFSET, Epoch, Offset, TopicPartition

if TYPE_CHECKING:
    from tidelog.client.io.session import Session


_BREATH_COLUMNS: Final = 10_000
"""After so many records that nobody makes objects of others of the loop have a turn, though more is here."""


_NAMED: Final = 5


class OffsetAndTimestamp(NamedTuple):
    """A record that was looked for by its time."""

    offset: int
    timestamp_ms: int


class Consumer:
    """See the module. Made by `Client.consumer`."""

    _new_hand: type[Hand] = Hand

    def __init__(self, client: "Session", topics: Iterable[str], config: ConsumerConfig) -> None:
        names = topics_of(topics)
        self.config = config
        self._client = client
        self._fetcher = Fetcher(client, config, self._learn)
        self._fetching = self._fetcher.fetching
        self._subscription = Subscription(client, config, self._fetcher, self._begin)
        self._hand = self._new_hand(self._fetching)
        self._closed = False
        self._patience_s = CLOSE_TIMEOUT_S
        self._closing: asyncio.Task[None] | None = None
        self._unwatch = client.watch(self._cluster_changed)
        client.register(self)
        self._group: GroupMember | None = None
        self._alone: Alone | None = None
        """In place of `_group`, since partitions were assigned."""
        if config.group is not None:
            hand = self._hand
            hands = Hands(
                self._begin,
                hand.withdraw,
                hand.drop,
                hand.processed,
                hand.done,
                hand.placed,
                hand.time_before,
            )
            self._group = GroupMember(client, config, self._fetcher, hands)
        self._names = names
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
        names = topics_of(topics)
        listeners = {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}
        if self._alone is not None:
            raise InvalidRequest(
                f"group={self.config.group!r}: partitions were assigned to this consumer: another one may subscribe"
            )
        if self._group is not None:
            self._names = []
            self._group.subscribe(names, listeners)
            return
        if any(listeners.values()):
            raise InvalidRequest("listeners are for members of a group; say which by group=")
        self._hand.drop_all()
        self._subscription.want(names)
        self._subscription.discover()

    def unsubscribe(self) -> None:
        """Read nothing."""
        self._check_open()
        if self._group is not None:
            self.subscribe()
            return
        if self._alone is not None:
            self._alone.leave(self._fetching.readers)
        self._hand.drop_all()
        self._subscription.want(())

    def assign(self, partitions: Iterable[GivenPartition]) -> None:
        """Read these partitions and no others; positions of those that were read before stay.

        With `group=` each is read from where the group has committed it. This consumer is no member then: it commits as
        long as the group has none, and is refused otherwise (NonEmptyGroup).
        """
        self._check_open()
        wanted = dict.fromkeys(partitions_of(partitions, "assign"))
        if self._group is not None:
            self._alone, self._group = self._choose(self._group), None
        new = [name for name in wanted if name not in self._fetching.readers]
        if self._alone is not None:
            self._alone.leave([name for name in self._fetching.readers if name not in wanted])
        self._hand.only(wanted)
        if self._alone is not None:
            self._alone.begin(new)
        self._subscription.want([name.topic for name in wanted], by_hand=True)
        self._subscription.discover()

    def _choose(self, group: GroupMember) -> Alone:
        """Who has neither topics nor what only members have may choose."""
        if group.begun or self._names:
            raise InvalidRequest(
                f"group={self.config.group!r} says which partitions of its topics this consumer reads: "
                "to choose them leave the topics out"
            )
        alone = ConsumerConfig.__dataclass_fields__
        for name in ("instance_id", "assignor", "on_assigned", "on_revoked", "on_lost"):
            if getattr(self.config, name) != alone[name].default:
                raise InvalidRequest(f"{name}: it is for members of a group, and who assigns is none")
        hand = self._hand
        return Alone(self._client, self.config, self._fetcher, hand.processed, hand.done, hand.time_before)

    def assignment(self) -> set[TopicPartition]:
        """What is read."""
        return set(self._fetching.readers)

    def pause(self, *partitions: GivenPartition) -> None:
        """Give no records of these for a while; without arguments of none at all."""
        self._hand.put_back()
        for reader in self._readers(partitions):
            reader.paused = True

    def resume(self, *partitions: GivenPartition) -> None:
        """Give records of these again; without arguments of all."""
        for reader in self._readers(partitions):
            reader.paused = False
        self._fetcher.stir()

    def paused(self) -> set[TopicPartition]:
        """Those that are paused."""
        return {name for name, reader in self._fetching.readers.items() if reader.paused}

    def _readers(self, partitions: Iterable[GivenPartition]) -> list[Reader]:
        self._check_open()
        found = [self._reader(each) for each in partitions]
        return found or list(self._fetching.readers.values())

    def _reader(self, partition: GivenPartition) -> Reader:
        name = partition_of(partition)
        reader = self._fetching.readers.get(name)
        if reader is None:
            has = ", ".join(str(each) for each in list(self._fetching.readers)[:_NAMED]) or "nothing"
            more = ", ..." if len(self._fetching.readers) > _NAMED else ""
            raise InvalidRequest(f"{name} is not assigned to this consumer, which reads {has}{more}")
        return reader

    # ── where ─────────────────────────────────────────────────────────────────────────────────────

    def seek(self, partition: GivenPartition, offset: Offset) -> None:
        """Go on at that offset."""
        self._check_open()
        reader = self._reader(partition)
        self._hand.seek(reader, offset_of(reader.name, offset))
        self._fetcher.stir()

    async def seek_to_beginning(self, *partitions: GivenPartition) -> None:
        """Go on at the first offset that there is; without arguments in all partitions."""
        await self._seek_where(partitions, EARLIEST)

    async def seek_to_end(self, *partitions: GivenPartition) -> None:
        """Go on behind the last committed record; without arguments in all partitions."""
        await self._seek_where(partitions, LATEST)

    async def _seek_where(self, partitions: Iterable[GivenPartition], which: int) -> None:
        await self._ready()
        readers = self._readers(partitions)
        for reader in readers:
            self._hand.seek(reader, NO_OFFSET, which)
        self._fetcher.stir()
        await self._until_placed(readers)

    async def position(self, partition: GivenPartition) -> Offset:
        """The offset of the next record of that partition."""
        await self._ready()
        reader = self._reader(partition)
        await self._until_placed((reader,))
        return self._hand.position(reader)

    async def positions(self) -> dict[TopicPartition, PartitionPosition]:
        """How far each partition is read, and what lies ahead."""
        await self._ready()
        readers = list(self._fetching.readers.values())
        await self._until_placed(readers)
        names = [reader.name for reader in readers]
        epochs = [reader.leader_epoch for reader in readers]
        ends = await self._list_offsets(dict.fromkeys(names, LATEST))
        committed = await self.committed(*names) if self.config.group is not None else {}
        return {
            name: self._told(reader, ends[name].offset, epoch, committed.get(name))
            for name, reader, epoch in zip(names, readers, epochs, strict=True)
        }

    def _told(self, reader: Reader, end: Offset, epoch: Epoch, committed: Offset | None) -> PartitionPosition:
        position = self._hand.position(reader)
        reader.ends(end, reader.log_start, epoch)
        high_watermark = reader.high_watermark
        lag = max(high_watermark - position, 0)
        lag_s = self._lag_s(reader, lag)
        return PartitionPosition(position, high_watermark, high_watermark, lag, lag_s, committed)

    def _lag_s(self, reader: Reader, lag: int) -> float | None:
        """The age of the next record, if it is known by what is here."""
        if lag == 0:
            return 0.0
        then_ms = self._hand.next_time_ms(reader)
        return None if then_ms is None else max(time.time() - then_ms / 1000, 0.0)

    async def _until_placed(self, readers: Iterable[Reader]) -> None:
        """Until it is known where each of them begins."""
        deadline_s = _now_s() + self.config.default_api_timeout_ms / 1000
        for reader in readers:
            while reader.position == NO_OFFSET:
                if reader.error is not None:
                    raise reader.error.anew()
                if not await self._news(deadline_s):
                    late_ms, cause = self.config.default_api_timeout_ms, reader.cause
                    why = "" if cause is None else f"; last: {cause.name()}: {cause}"
                    late = RequestTimedOut(
                        f"{reader.name}: its position is not known after {late_ms} ms{why}"
                    )
                    raise late from cause

    async def beginning_offsets(self, partitions: Iterable[GivenPartition]) -> dict[TopicPartition, Offset]:
        """The first offset of each of these."""
        names = partitions_of(partitions, "beginning_offsets")
        found = await self._list_offsets(dict.fromkeys(names, EARLIEST))
        return {name: answer.offset for name, answer in found.items()}

    async def end_offsets(self, partitions: Iterable[GivenPartition]) -> dict[TopicPartition, Offset]:
        """The offset behind the last committed record of each of these."""
        found = await self._list_offsets(dict.fromkeys(partitions_of(partitions, "end_offsets"), LATEST))
        return {name: answer.offset for name, answer in found.items()}

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each at that time or later; None where there is none."""
        found = await self._list_offsets(times_of(times_ms))
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

        Raises FencedMemberEpoch for partitions that others have by now; NonEmptyGroup when this is no member, for
        partitions were assigned, and others are.
        """
        group = self._group_of("commit")
        if not (isinstance(group, GroupMember) and group.state == "leaving"):  # `on_revoked` may commit then
            self._check()
        if self.config.enable_auto_commit is None:
            group.automatic = False
        if what is None:
            places = {name: self._hand.placed(name) for name in group.places}
            what = {name: offset for name, offset in places.items() if offset != NO_OFFSET}
        offsets = commits(what)
        for name, each in offsets.items():
            self._hand.say(name, each.offset)
        await group.commit(offsets, self._deadline_ms())

    async def committed(self, *partitions: GivenPartition) -> dict[TopicPartition, Offset | None]:
        """What the group has committed of these, or of all that this one reads; None: nothing."""
        self._check()
        group = self._group_of("committed")
        names = [partition_of(each) for each in partitions] or list(group.places)
        found = await group.committed(names, self._deadline_ms())
        return {name: None if it.offset == NO_OFFSET else it.offset for name, it in found.items()}

    def _group_of(self, verb: str) -> GroupMember | Alone:
        group = self._group or self._alone
        if group is None:
            raise InvalidRequest(f"{verb}: this consumer is in no group; say which by group=")
        return group

    def _deadline_ms(self) -> float:
        return _now_s() * 1000 + self.config.default_api_timeout_ms

    def _begin(self, names: Collection[TopicPartition]) -> None:
        self._hand.begin(names)
        self._fetcher.stir()
        self._fetcher.arrived.set()

    def _finished(self) -> None:
        """The application asks for more, or has ended well: it is done with what it had."""
        self._client.home.check()
        self._hand.finished()
        if self._group is not None:
            self._group.asked()

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        hand = self._hand
        record = next(hand.records, None)
        if record is None:
            try:
                record = await self._next_record()
            except ClientClosed:
                if self._closed:
                    raise StopAsyncIteration from None
                raise
        hand.last = record
        return record

    async def getone(self) -> Record:
        """The next record."""
        hand = self._hand
        record = next(hand.records, None)
        if record is None:
            record = await self._next_record()
        hand.last = record
        return record

    async def _next_record(self) -> Record:
        self._finished()
        await self._ready()
        await self._breathe()
        while True:
            # In one stretch from here: who is cancelled before has taken nothing. Another task may have fetched meanwhile.
            self._check_wanted()
            record = self._hand.one_by_one()
            self._make_room()
            if record is not None:
                return record
            await self._news(None)

    async def getmany(
        self,
        *partitions: GivenPartition,
        timeout: float = 0.0,
        max_records: int | None = None,
    ) -> dict[TopicPartition, list[Record]]:
        """What is here, at most so many records; if there is nothing, what comes first within `timeout` seconds."""
        patience_s = seconds("timeout", timeout)
        self._finished()
        await self._ready()
        await self._breathe()
        only = {partition_of(each) for each in partitions}
        left = self.config.max_poll_records if max_records is None else max_records
        some_records(left)
        deadline_s = _now_s() + patience_s
        found: dict[TopicPartition, list[Record]] = {}
        while left:
            taken = self._give(left, only, quiet=bool(found))
            if taken is not None:
                name, batch = taken
                found.setdefault(name, []).extend(batch)
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
        time_out(timeout)
        if max_records is not None:
            some_records(max_records)
        self._finished()
        await self._ready()
        while True:
            taken = None
            deadline_s = None if timeout is None else _now_s() + timeout
            try:
                await self._breathe(_BREATH_COLUMNS)
                while (taken := self._give(max_records)) is None:
                    if not await self._news(deadline_s):
                        return
            except ClientClosed:
                if self._closed:
                    return
                raise
            yield taken[1]
            self._finished()

    def _give(
        self,
        max_records: int | None = None,
        only: Collection[TopicPartition] = (),
        *,
        quiet: bool = False,
    ) -> tuple[TopicPartition, RecordBatch] | None:
        self._check_wanted()
        taken = self._hand.give(max_records, only, quiet=quiet)
        self._make_room()
        return taken

    def _check_wanted(self) -> None:
        self._check()
        if self._group is None and self._subscription.empty:
            raise InvalidRequest(
                "nothing is read, so nothing will come: subscribe to topics or assign partitions first"
            )

    def _make_room(self) -> None:
        """What was taken may be room for what was held back."""
        if self._hand.made_room:
            self._hand.made_room = False
            self._fetcher.stir()

    async def _breathe(self, after: int = ONE_BY_ONE) -> None:
        """Let others have their turn, though there is enough to go on: by itself nothing here would wait."""
        if self._hand.taken >= after:
            self._hand.taken = 0
            await asyncio.sleep(0)

    async def _news(self, deadline_s: float | None) -> bool:
        """Until something has happened; False when the time is up. Raises why nothing can happen."""
        self._check()
        self._fetcher.arrived.clear()
        self._hand.taken = 0
        if not await self._fetcher.news(deadline_s):
            return False
        self._check()
        return True

    def _check(self) -> None:
        if self._fetcher.fatal is not None:
            raise self._fetcher.fatal.anew()
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer is closed")
        self._client.home.check()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """End; who waits for a record is told so. A second call waits with the first."""
        if self._closing is None or not self._closing.done():
            self._client.home.check()
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.get_running_loop().create_task(
                self._close(), name="tidelog-consumer-close"
            )
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._group is not None:
            await self._group.close(min(self._patience_s, self._client.patience_s))
        elif self._alone is not None:
            await self._alone.close(min(self._patience_s, self._client.patience_s))
        self._unwatch()
        self._client.unregister(self)
        self._hand.drop_all()
        self._fetcher.stop()
        await self._fetcher.wait_stopped()

    def metrics(self) -> Mapping[str, float]:
        """Figures, by names that say what they count."""
        return self._fetcher.metrics()

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
