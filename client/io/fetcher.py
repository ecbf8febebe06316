"""What a consumer fetches: the decisions of `fetching`, carried out.

What it keeps true: a task per broker, with one fetch at a time; the next one is sent before anybody looks at what the one
before has brought. Whatever is missing (a position, a leader) is looked for while something waits for it. An error that
nobody expected ends the reading, and is told to who reads.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from tidelog.client.fetching import FOREVER, Asked, Fetching, Question
from tidelog.client.options import ConsumerConfig
from tidelog.protocol.errors import ClientClosed, ConnectionFailed, TidelogError, UnknownServerError
from tidelog.protocol.messages import (
    EndWait,
    EpochEndFound,
    EpochEnds,
    EpochEndsReply,
    EpochQuery,
    FetchReply,
    ListOffsets,
    ListOffsetsReply,
    OffsetFound,
    OffsetQuery,
    PartitionFetched,
    Reply,
    Request,
)
from tidelog.protocol.types import NO_BROKER, BrokerId

if TYPE_CHECKING:
    from tidelog.client.io.session import Session

logger = logging.getLogger(__name__)

_HASTE_MS: Final = (25.0, 100.0)
_HASTY_LOOKS: Final = 30
"""For the first seconds without a leader the cluster is looked at often: an election takes a moment only."""


class Fetcher:
    """See the module. `learn`: the client knows more about a topic."""

    def __init__(self, client: "Session", config: ConsumerConfig, learn: Callable[[str], None]) -> None:
        self.config = config
        self.fetching = Fetching(config, client.config.rack, self._backoff_ms)
        self.arrived = asyncio.Event()
        """Something has come, or has ended: who waits looks again."""
        self.fatal: TidelogError | None = None
        """Why nothing can be read any more."""
        self.fetches = 0
        self.fetched_bytes = 0
        self._client = client
        self._learn = learn
        self._changed: dict[BrokerId, asyncio.Event] = {}
        self._asked: dict[BrokerId, Asked] = {}
        """The fetch that a broker may hold back, unless it was told already that something else is to be asked for."""
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._looking = False
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._told_ms = 0.0
        """When it was last said that no broker answers."""

    def stop(self) -> None:
        """Fetch nothing more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.arrived.set()
        for task in self._tasks:
            task.cancel()

    async def wait_stopped(self) -> None:
        """Until no task is left."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def metrics(self) -> dict[str, float]:
        """What the consumer tells of itself."""
        fetching = self.fetching
        return {
            "consumer_fetches": float(self.fetches),
            "consumer_fetched_bytes": float(self.fetched_bytes),
            "consumer_records": float(fetching.records),
            "consumer_partitions": float(len(fetching.readers)),
            "consumer_buffered_bytes": float(fetching.buffered_bytes),
            "consumer_lag": float(fetching.lag),
        }

    async def news(self, deadline_s: float | None) -> bool:
        """Until something has happened; False when the time is up.

        Raises why no broker answers when none has for `default_api_timeout_ms`, and again after as long.
        """
        loop, patience_ms = asyncio.get_running_loop(), self.config.default_api_timeout_ms
        while True:
            now_ms, since_ms = _now_ms(), self._client.silence.since_ms
            until_ms = (now_ms if since_ms is None else max(since_ms, self._told_ms)) + patience_ms
            if now_ms >= until_ms and (error := self._client.silence.error) is not None:
                self._told_ms = now_ms
                raise type(error)(
                    f"no broker has answered for {now_ms - (since_ms or 0):.0f} ms; last: {error}"
                )
            if deadline_s is not None and loop.time() >= deadline_s:
                return False
            at_s = until_ms / 1000 if deadline_s is None else min(until_ms / 1000, deadline_s)
            try:
                async with asyncio.timeout_at(at_s):
                    await self.arrived.wait()
            except TimeoutError:
                continue
            return True

    # ── carrying out ──────────────────────────────────────────────────────────────────────────────

    def stir(self) -> None:
        """Something can be asked that could not be asked before, perhaps."""
        if self._stopped:
            return
        for event in self._changed.values():
            event.set()
        for broker, asked in list(self._asked.items()):
            if self.fetching.outdated(asked, _now_ms()):
                del self._asked[broker]
                self._end_wait(broker)
        for broker in self.fetching.brokers(_now_ms()):
            if broker not in self._changed:
                self._changed[broker] = asyncio.Event()
                self.spawn(self._follow(broker))
        self._settle()
        if self.fetching.astray and not self._looking:
            self._looking = True
            self.spawn(self._look())
        for name, what in self.fetching.notes:
            logger.warning("consumer.position_reset partition=%s reason=%s", name, what)
        self.fetching.notes.clear()

    def _end_wait(self, broker: BrokerId) -> None:
        """Have the fetch answered now that waits there (ADR 101). Lost, it costs the rest of `fetch_max_wait_ms`."""
        connection = self._client.connections.at_hand(broker, "fetches")
        if connection is not None and connection.writable:
            connection.send(EndWait())

    def _settle(self) -> None:
        """Ask leaders what has to be known before more can be read."""
        for broker, questions in self.fetching.questions(_now_ms()).items():
            self.spawn(self._ask(broker, questions))
        wake_ms = self.fetching.wake_ms(_now_ms())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_ms < FOREVER:
            self._timer = asyncio.get_running_loop().call_at(wake_ms / 1000, self.stir)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """A task of the consumer."""
        task = self._client.spawn(self._guarded(work))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(lambda _: work.close())  # a task that is cancelled at once never begins it

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """A task that fails fails the consumer: who reads is told."""
        try:
            await work
        except TidelogError as error:
            self.fail(error)
        except Exception as error:
            logger.exception("consumer.failed")
            self.fail(UnknownServerError(f"the consumer has failed: {type(error).__name__}: {error}"))

    def fail(self, error: TidelogError) -> None:
        """Nothing can be read any more."""
        self.fatal = self.fatal or error
        self.arrived.set()

    async def _follow(self, broker: BrokerId) -> None:
        """Fetch from one broker whatever is wanted of it, as long as the consumer lives."""
        changed = self._changed[broker]
        while True:
            changed.clear()
            asked = self.fetching.ask(broker, _now_ms())
            if asked is None:
                self._settle()
                await changed.wait()
            else:
                await self._fetch(asked)

    async def _fetch(self, asked: Asked) -> None:
        fetching = self.fetching
        timeout_ms = asked.request.max_wait_ms + self.config.request_timeout_ms
        self._asked[asked.broker] = asked
        try:
            reply, data = await self._client.call(
                asked.broker, asked.request, timeout_ms=timeout_ms, lane="fetches"
            )
            if not isinstance(reply, FetchReply):
                raise ConnectionFailed(f"broker {asked.broker} answered Fetch with {type(reply).__name__}")
        except TidelogError as error:
            fetching.lost(asked, error, _now_ms())
            self.stir()
            self.arrived.set()
            return
        except asyncio.CancelledError:
            fetching.lost(asked, ClientClosed("cancelled"), _now_ms())
            raise
        finally:
            self._asked.pop(asked.broker, None)
        self.fetches += 1
        self.fetched_bytes += len(data)
        for entry in reply.partitions:
            if entry.error:
                self._hint(entry)
        if fetching.answered(asked, reply, data, _now_ms()):
            self.arrived.set()
        told = any(entry.error or entry.preferred_read_replica != NO_BROKER for entry in reply.partitions)
        if told or fetching.astray or fetching.notes:
            self.stir()

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
            await self._ask_one(broker, where, request, ListOffsetsReply, self.fetching.found)
        if whether:
            checks = [
                EpochQuery(*each.reader.place, each.reader.offset_epoch, each.reader.leader_epoch)
                for each in whether
            ]
            await self._ask_one(
                broker, whether, EpochEnds(tuple(checks)), EpochEndsReply, self.fetching.checked
            )
        self.arrived.set()
        self.stir()

    async def _ask_one(
        self,
        broker: BrokerId,
        questions: list[Question],
        request: Request,
        answers: type[ListOffsetsReply | EpochEndsReply],
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
                self.fetching.not_answered(question, error, _now_ms())
            return
        entries: tuple[OffsetFound | EpochEndFound, ...] = reply.partitions
        for question, answer in zip(questions, entries, strict=True):
            if answer.error:
                self._hint(answer)
            take(question, answer, _now_ms())

    def _hint(self, refused: PartitionFetched | OffsetFound | EpochEndFound) -> None:
        """A broker has said who leads instead of it."""
        if self._client.hint(refused.topic_id, refused.index, refused.current_leader):
            self._learn(self._client.cluster.names[refused.topic_id])

    async def refresh(self, names: Iterable[str]) -> None:
        """Look at these topics again; what becomes of an attempt that fails is seen by the next one."""
        wanted = list(names)
        try:
            await self._client.refresh(wanted, newer=True)
        except ClientClosed:
            raise
        except TidelogError as error:
            logger.info("metadata.not_refreshed reason=%s", error)
            self.fetching.astray.update(dict.fromkeys(wanted))
        for name in wanted:
            self._learn(name)

    async def _look(self) -> None:
        """Look at the cluster until every partition has a leader that answers."""
        backoff, looks = self._client.backoff(), 0
        try:
            while names := list(self.fetching.astray):
                self.fetching.astray.clear()
                await self.refresh(names)
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


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
