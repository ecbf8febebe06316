"""Follow one leader broker: ask for all partitions that it leads for us, again and again.

One request in flight; what an answer means is decided by each partition's `Followership`, carried out by the
`Partition`. An answer counts only for the followership that asked: whatever was adopted meanwhile wins (I-21).

An answer counts once (ADR 0078): only what the outstanding call returns is processed, beside what it was asked with;
a call that is given up takes its connection with it, and with that whatever may still arrive on it. The leader hears
fetches in order (ADR 0071): each has a number, for an old connection may still deliver what it held back.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests.context import Clocks
from tidelog.broker.wanted import Sent, Wanted
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import ConnectionFailed, TidelogError
from tidelog.protocol.io import Connection, connect
from tidelog.protocol.messages import (
    EARLIEST,
    LATEST,
    EndWait,
    Fetch,
    FetchReply,
    Hello,
    ListOffsets,
    ListOffsetsReply,
    OffsetQuery,
    PartitionFetched,
    Request,
    split_attachment,
)
from tidelog.protocol.types import BrokerId, Buffer, Offset
from tidelog.replication.followership import (
    Append,
    AskStart,
    CheckRegistration,
    GoOffline,
    StartAt,
    Step,
    StopFetching,
    Truncate,
    Wait,
)
from tidelog.replication.sessions import Asking, FetchSession, Place
from tidelog.storage.files import NoRoom

logger = logging.getLogger(__name__)

_SILENT_WAITS_MAX = 4
"""While neither side has anything to say, the leader may wait so many times as long."""
_RECONNECT_MS = 100
_RECONNECT_MAX_MS = 1000
_FULL_MS = 1000
_NOTED_MS = 500
"""How often it is noted of all that is asked for that the leader was heard: whether consumers may read here goes by it."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How a follower fetches (`replica.fetch.*`)."""

    max_wait_ms: int = 500
    """How long the leader may wait for news; up to four times as long while there are none, for all that it leads."""
    min_bytes: int = 1
    max_bytes: int = 10 << 20
    partition_max_bytes: int = 1 << 20
    timeout_ms: int = 5000
    """An answer that takes longer than this and the wait together will not come: connect anew."""


class Follow(NamedTuple):
    """What a fetcher works with."""

    replicas: Replicas
    clocks: Clocks
    address_of: Callable[[BrokerId], tuple[str, int] | None]
    """Where the leader listens, as far as is known."""
    bounds: Bounds
    settings: FetchSettings
    rng: Random
    appended: Callable[[Partition, int, int], None]
    """Told of records' size and batches when they were appended: they are to be flushed, at once or some time."""
    save_log_starts: Callable[[], None]
    """Told when a log starts higher than is durable: the leader hears of it only then."""
    check_registration: Callable[[], None]
    """Told when a leader says that somebody newer has this broker's id."""


class Fetcher:
    """The fetching from one leader broker. `run` it as a task; `wake` it when there may be more to fetch."""

    def __init__(self, leader: BrokerId, follow: Follow) -> None:
        self._leader = leader
        self._follow = follow
        self._session = FetchSession()
        self._connection: Connection | None = None
        self._woken = asyncio.Event()
        self._failures = 0
        self._wanted = Wanted(leader, follow.replicas, follow.settings.partition_max_bytes)
        self._may_hurry = False
        """Whether the leader has been asked, has not answered, and was not asked to do so soon."""
        self._heard_ms: int | None = None
        """When it was noted last of all that is asked for that the leader was heard."""
        self._silent = 0
        """How many fetches in a row have neither said nor been told anything new."""

    def moved(self, place: Place) -> None:
        """What is to be asked there may be something else."""
        self._wanted.moved(place)

    def wake(self) -> None:
        """The partitions to fetch may be others: one that the leader was not asked for does not wait for an answer."""
        self._woken.set()
        if self._may_hurry and self._wanted.has_more():
            self._may_hurry = False
            self.tell(EndWait())

    def tell(self, message: Request) -> None:
        """Say something to the leader that needs no answer; without a connection it is not said."""
        if self._connection is not None and self._connection.writable:
            self._connection.send(message)

    async def run(self) -> None:
        """Fetch until cancelled."""
        try:
            while True:
                self._woken.clear()
                self._update()
                if not self._wanted.asked:
                    await self._until_woken()
                    continue
                try:
                    await self._fetch()
                    self._failures = 0
                except TidelogError as error:
                    await self._recover(error)
        finally:
            if self._connection is not None:
                self._connection.abort()

    def _update(self) -> None:
        self._wanted.update(self._follow.clocks.now_ms(), whole=self._session.is_new)

    async def _until_woken(self) -> None:
        """Until somebody calls, or a partition's delay is over."""
        back_ms = self._wanted.back_ms
        delay = None if back_ms is None else max(back_ms - self._follow.clocks.now_ms(), 1) / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._woken.wait()

    async def _recover(self, error: TidelogError) -> None:
        """The answer may be lost, and with it the session; connect anew, later each time."""
        logger.info("fetch.failed leader=%s reason=%s", self._leader, error)
        self._session.begin_anew()
        self._silent = 0
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        self._failures += 1
        longest = min(_RECONNECT_MS * 2 ** min(self._failures - 1, 4), _RECONNECT_MAX_MS)
        await asyncio.sleep(self._follow.rng.uniform(0.5, 1.0) * longest / 1000)

    async def _fetch(self) -> None:
        connection = self._connection
        if connection is None or connection.closed:
            connection = await self._connected()
            self._update()  # roles may have changed while we connected
        settings = self._follow.settings
        news, gone = self._wanted.take()
        asking = self._session.ask(news, gone)
        self._follow.replicas.fetches_sent += 1
        wait_ms = self._wait_ms(asking)
        request = Fetch(
            wait_ms,
            settings.min_bytes,
            settings.max_bytes,
            asking.partitions,
            session_id=asking.session_id,
            session_epoch=asking.session_epoch,
            forget=asking.forget,
            broker_id=self._follow.replicas.around.me,
            broker_epoch=self._follow.replicas.around.my_epoch,
            fetch_seq=self._follow.replicas.fetches_sent,
        )
        timeout_ms = wait_ms + settings.timeout_ms
        self._may_hurry = True
        try:
            reply, data = await connection.call(request, timeout_ms=timeout_ms)
        finally:
            self._may_hurry = False
        assert isinstance(reply, FetchReply), reply
        if reply.error:
            self._session.begin_anew()
            self._silent = 0
            return
        self._session.answered(reply.session_id)
        self._silent = 0 if reply.partitions or asking.partitions or asking.forget else self._silent + 1
        await self._process(reply, data, news)

    def _wait_ms(self, asking: Asking) -> int:
        """How long the leader may wait for news: longer, the longer there have been none.

        Not while this broker has something to say, or wants to join: that is decided when it fetches.
        """
        settings, around, back_ms = self._follow.settings, self._follow.replicas.around, self._wanted.back_ms
        if back_ms is not None:  # it is asked for what was refused as soon as its delay is over
            return min(settings.max_wait_ms, max(back_ms - self._follow.clocks.now_ms(), 0))
        if not self._silent or asking.partitions or asking.forget or settings.min_bytes > 1:
            return settings.max_wait_ms
        asked = (one.partition.state for one, _ in self._wanted.asked.values())
        if any(state is None or around.me not in state.isr for state in asked):
            return settings.max_wait_ms
        longest_ms = min(settings.max_wait_ms * _SILENT_WAITS_MAX, around.lag_max_ms // 4)
        return max(min(settings.max_wait_ms << min(self._silent, 8), longest_ms), settings.max_wait_ms)

    async def _process(self, reply: FetchReply, data: Buffer, news: Iterable[Place]) -> None:
        now_ms, asked = self._follow.clocks.now_ms(), self._wanted.asked
        pieces = split_attachment(memoryview(data), reply.partitions)
        ask_start: list[Sent] = []
        answered: set[Place] = set()
        for entry, piece in zip(reply.partitions, pieces, strict=True):
            place = entry.topic_id, entry.index
            if place in answered or place not in asked:
                continue
            answered.add(place)
            self._wanted.moved(place)
            one = asked[place][0]
            if one.partition.followership is not one.followership:
                continue  # no longer followed, or in another leadership: the answer says nothing any more
            if one.followership.is_current(one.asked, one.partition.view()):
                if not entry.error:
                    one.partition.heard_from_leader(now_ms)
                self._one(one, entry, piece, ask_start)
        if self._heard_ms is None or now_ms - self._heard_ms >= _NOTED_MS:
            self._heard_ms, news = now_ms, asked
        for place in news:
            one = asked[place][0]
            if place not in answered and one.partition.followership is one.followership:
                one.partition.heard_from_leader(now_ms)  # in a session, silence means: nothing new
        for one in ask_start:
            await self._ask_start(one)

    def _one(self, one: Sent, entry: PartitionFetched, piece: Buffer, ask_start: list[Sent]) -> None:
        step = one.followership.on_fetched(one.asked, entry, one.partition.view())
        if isinstance(step, AskStart):
            ask_start.append(one)
            return
        self._carry_out(one, step, piece)

    def _carry_out(self, one: Sent, step: Step, piece: Buffer) -> None:
        partition = one.partition
        place = one.partition.state.topic_id, one.partition.state.index  # type: ignore[union-attr]
        if isinstance(step, Append) and not self._takes_floor(partition, step.purge_floor):
            step, piece = Wait(_FULL_MS), b""
        batches = partition.log.batches_written
        left = partition.carry_out(step, piece, self._follow.clocks.wall_ms())
        if isinstance(left, Append):
            if piece:
                self._follow.appended(partition, len(piece), partition.log.batches_written - batches)
            if partition.log.log_start > partition.saved_log_start:
                self._follow.save_log_starts()
            self._follow.replicas.touched(place)
        elif isinstance(left, Wait):
            self._wanted.come_back(place, self._follow.clocks.now_ms() + left.delay_ms)
            if left.tell is not None:
                logger.warning(
                    "fetch.refused partition=%s leader=%s %s", partition.name, self._leader, left.tell
                )
        elif isinstance(left, StopFetching):
            self._wanted.stop(place, one.followership)
        elif isinstance(left, CheckRegistration):
            self._wanted.come_back(place, self._follow.clocks.now_ms() + _RECONNECT_MS)
            self._follow.check_registration()
        elif isinstance(left, GoOffline):
            logger.error("partition.offline partition=%s why=%r", partition.name, left.why)
            self._follow.replicas.touched(place)
        elif isinstance(left, Truncate | StartAt):
            logger.info("log.truncated partition=%s to=%s", partition.name, left.offset)

    def _takes_floor(self, partition: Partition, floor: Offset) -> bool:
        """Whether it is durable that what the leader has purged is missing here as well, before it is copied."""
        if floor <= partition.log.purge_floor:
            return True
        data = self._follow.replicas.data.of(partition.name)
        before, partition.log.purge_floor = partition.log.purge_floor, floor
        try:
            data.write_purge_floors().run()  # seldom: once for a whole copy
        except NoRoom as full:
            partition.log.purge_floor = before
            logger.warning("fetch.refused partition=%s leader=%s %s", partition.name, self._leader, full)
            return False
        return True

    async def _ask_start(self, one: Sent) -> None:
        """My place is out of range: ask where the leader's log starts and ends, in one request (3.6)."""
        state = one.partition.state
        assert state is not None
        queries = tuple(
            OffsetQuery(state.topic_id, state.index, timestamp, current_leader_epoch=one.asked.leader_epoch)
            for timestamp in (EARLIEST, LATEST)
        )
        connection = await self._connected()
        reply, _ = await connection.call(
            ListOffsets(queries, replica=True), timeout_ms=self._follow.settings.timeout_ms
        )
        assert isinstance(reply, ListOffsetsReply), reply
        view = one.partition.view()
        if one.partition.followership is not one.followership or not one.followership.is_current(
            one.asked, view
        ):
            return
        if len(reply.partitions) != len(queries) or any(found.error for found in reply.partitions):
            step: Step = one.followership.on_failure()
        else:
            start, end = reply.partitions
            step = one.followership.on_range(one.asked.leader_epoch, start.offset, end.offset, view)
        self._carry_out(one, step, b"")

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._session.begin_anew()
            address = self._follow.address_of(self._leader)
            if address is None:
                raise ConnectionFailed(f"the address of broker {self._leader} is not known")
            host, port = address
            timeout_ms = self._follow.settings.timeout_ms
            hello = Hello(client_id=f"broker-{self._follow.replicas.around.me}")
            self._connection = await connect(
                host, port, hello, bounds=self._follow.bounds, timeout_ms=timeout_ms
            )
        return self._connection
