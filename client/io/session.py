"""What a client's producers, consumers and admin share: the cluster as it is known, and the ways to it.

    session.cluster                            what is known, see `client.cluster`
    await session.topic("orders")              a topic's metadata, learned if it is not known
    await session.refresh()                    look at the cluster again
    await session.call(broker, request)        ask one broker
    await session.call_any(request)            ask any, until one answers or the time is up
    session.spawn(work)                        a task that ends with the client

What it keeps true:

* However many want fresh metadata, one request for it is under way, and at most one more waits behind it.
* Every await ends: with the answer, with an error that says what was tried, or at its deadline. Whoever is cancelled
  leaves the session as it was.
* Closing ends the children first, then all tasks, then all connections, in whatever state they are.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from random import Random
from typing import Any, Final, Protocol

import msgspec

from tidelog.client.arguments import topic_name
from tidelog.client.cluster import Changes, Cluster, Topic
from tidelog.client.config import Address, ClientConfig
from tidelog.client.io.absence import ABSENT_MS, Absence
from tidelog.client.io.connections import Connections, Lane, first, joined, software
from tidelog.client.io.home import Home
from tidelog.client.io.rounds import Round
from tidelog.client.retry import Advice, Backoff, advice
from tidelog.client.silence import Silence
from tidelog.protocol.errors import (
    ClientClosed,
    ConnectionFailed,
    LeaderNotAvailable,
    NoController,
    RequestTimedOut,
    TidelogError,
    error_of,
)
from tidelog.protocol.io import Connection
from tidelog.protocol.messages import Hello, Leader, Metadata, MetadataReply, Reply, Request
from tidelog.protocol.types import NO_BROKER, BrokerId, Buffer, TopicId

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 30.0
"""How long what was accepted is waited for at the end, unless it is told another time."""
INTERRUPTED_S: Final = 3.0
"""The same for whoever is interrupted: long enough where brokers answer."""
_WATCH_S: Final = 0.5
"""How often it is looked whether a broker that owes answers is silent."""
_SILENT_S: Final = 2.0
"""After how long without any answer the cluster is asked whether the broker is still part of it."""


class Child(Protocol):
    """Something made by a client that ends before it: a producer, a consumer."""

    async def close(self) -> None:
        """Finish what is under way, and end; a second call does nothing. Bounded in time."""

    def metrics(self) -> Mapping[str, float]:
        """Figures, by names that say what they count."""
        ...


def interrupted(kind: type[BaseException] | None) -> bool:
    """Whether somebody has ended the block who does not want to wait: Ctrl-C, or the end of its task."""
    return kind is not None and issubclass(kind, asyncio.CancelledError | KeyboardInterrupt)


class Session:
    """See the module."""

    def __init__(self, config: ClientConfig, rng: Random | None = None) -> None:
        self.config = config
        self.rng = rng or Random()
        """For jitter, and for whatever children leave to chance."""
        self.home = Home()
        self.cluster = Cluster()
        hello = Hello(config.client_id, software())
        self.connections = Connections(config, hello, self._address_of, self.backoff)
        self.silence = Silence()
        self.closed = False
        """Whether `close` was called."""
        self.patience_s = CLOSE_TIMEOUT_S
        """How long children wait for brokers when they are closed, unless they are told another time."""
        self._finishing = False
        """Whether it was called, and children still finish what they have begun."""
        self._watchers: list[Callable[[Changes], None]] = []
        self._children: list[Child] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._absence = Absence(self)
        self.wanted: set[str] = set()  # to be made if missing, where the cluster allows it
        self._round: Round | None = None
        """The request for metadata that is under way."""
        self._next: Round | None = None
        """The one that begins when that has ended."""
        self._rounds: asyncio.Task[Any] | None = None
        """What sends them."""
        self._refreshed_s: float | None = None
        self._starting: asyncio.Task[None] | None = None
        self._starters = 0
        """How many wait for it."""
        self._closing: asyncio.Task[None] | None = None
        self._counts = {
            "requests": 0,
            "request_errors": 0,
            "refreshes": 0,
            "refresh_errors": 0,
            "task_errors": 0,
        }

    def __repr__(self) -> str:
        where = ",".join(map(str, self.config.bootstrap))
        state = "closed" if self.closed else "new" if self._starting is None else "open"
        return f"<{type(self).__name__.lower()} {self.config.client_id} of {where}, {state}>"

    # ── a life ────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Connect and learn who is there, within `connect_timeout_ms`; a second call does nothing.

        Raises ConnectionFailed with a line per address and its cause; then the client is closed.
        """
        self._check_open()
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._begin(), name="tidelog-start")
        starting = self._starting
        self._starters += 1
        try:
            await joined(starting, "the client was closed while it started")
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and self._starters > 1:
                raise  # others still wait for it
            self.closed = True
            starting.cancel()
            self._cancel_tasks()
            self.connections.abort()
            raise
        finally:
            self._starters -= 1

    async def _begin(self) -> None:
        """Be told of the cluster by a broker. Who is starting is asked again; when nobody listens, that is the answer."""
        backoff = self.backoff(self.config.connect_timeout_ms)
        while True:
            try:
                await self._learn((), backoff.left_ms(self._now_ms()))
                if not self.cluster.brokers:
                    raise LeaderNotAvailable(
                        "no broker of the cluster is alive yet, the one that answered says"
                    )
            except TidelogError as error:
                if isinstance(error, ConnectionFailed) or advice(error) is Advice.FATAL:
                    raise
                await self._pause(backoff, error)
            else:
                break
        _ = self.spawn(self._keep_fresh(), name="tidelog-metadata")
        _ = self.spawn(self._watch(), name="tidelog-watch")

    async def close(self) -> None:
        """Close children, tasks and connections; raises what a child could not finish. A second call waits with the first."""
        if self._closing is None or not self._closing.done():
            self.home.check()
        if self._closing is None:
            self.closed = self._finishing = True
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="tidelog-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        failure: Exception | None = None
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        try:
            for child in reversed(list(self._children)):
                try:
                    await child.close()
                except Exception as error:  # noqa: BLE001 -- raised below: all others are closed first
                    if failure is None:
                        failure = error
                    else:
                        failure.add_note(f"and {type(error).__name__}: {error}")
            self._finishing = False
            await self._end_tasks()
            await self.connections.close()
        finally:
            self._finishing = False
            self._cancel_tasks()
            self.connections.abort()
        if failure is not None:
            logger.warning("client.closed_with_failure reason=%s", failure)
            raise failure

    async def _end_tasks(self) -> None:
        self._cancel_tasks()
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _cancel_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _check_open(self) -> None:
        # While it closes, its children finish what is under way: a producer may need a leader for that.
        if self.closed and not self._finishing:
            raise ClientClosed("the client is closed")
        self.home.check()

    def register(self, child: Child) -> None:
        """Close this before the client; refused when that has begun."""
        if self.closed:
            raise ClientClosed("the client is closed")
        self._children.append(child)

    def unregister(self, child: Child) -> None:
        """It was closed by itself."""
        if child in self._children:
            self._children.remove(child)

    def spawn(self, work: Coroutine[Any, Any, object], *, name: str | None = None) -> "asyncio.Task[Any]":
        """A task of the client: cancelled and awaited when it closes. A failure is reported to the loop's handler."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._counts["task_errors"] += 1
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"a task of the client failed: {task.get_name()}", "exception": error, "task": task}
        )

    # ── what is known ─────────────────────────────────────────────────────────────────────────────

    async def topic(self, name: str, *, timeout: float | None = None) -> Topic:
        """A topic's metadata, learned if it is not known.

        Raises UnknownTopicOrPartition when there is none, and still none half a second later.
        """
        known = self.cluster.topics.get(name)
        if known is not None:
            return known
        topic_name(name)
        backoff = self.backoff(self._timeout_ms(timeout))
        absent_until_ms = self._now_ms() + ABSENT_MS
        why = ""
        while True:
            error: TidelogError = RequestTimedOut(f"topic {name!r} is not known in time{why}")
            try:
                async with self._within(backoff, error):
                    await self.refresh([name], newer=backoff.attempts > 0)
            except TidelogError as failed:
                if advice(failed) is Advice.FATAL:
                    raise
                if failed is not error:
                    why = f"; last: {failed.name()}: {failed}"
                    error = RequestTimedOut(f"topic {name!r} is not known in time{why}")
                    error.__cause__ = failed
            known = self.cluster.topics.get(name)
            if known is not None:
                return known
            absent = self.cluster.absent.get(name)
            if absent is not None:
                error = absent.error.anew()
                if not error.retriable or self._now_ms() >= absent_until_ms:
                    raise await self._absence.told(name, error)
            await self._pause(backoff, error)

    async def refresh(self, topics: Iterable[str] | None = None, *, newer: bool = False) -> None:
        """Look at the cluster again: at these topics, or at all that are known; `newer`: by a request that is sent
        from now on, not by one that is under way.

        Raises what became of all who were asked; another attempt is the caller's to make.
        """
        self._check_open()
        names = None if topics is None else dict.fromkeys(topics)
        under_way = self._round
        if under_way is None or newer or not under_way.covers(names):
            if self._next is None:
                self._next = Round(asyncio.get_running_loop().create_future())
            self._next.add(names)
            if self._rounds is None:
                self._rounds = self.spawn(self._run_rounds(), name="tidelog-refresh")
            under_way = self._next
        try:
            await asyncio.shield(under_way.done)
        except TidelogError as error:
            raise error.anew() from error.__cause__

    def watch(self, watcher: Callable[[Changes], None]) -> Callable[[], None]:
        """Tell of every change of what is known; returns what ends it. The watcher must not raise or wait."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher) if watcher in self._watchers else None

    def hint(self, topic_id: TopicId, index: int, leader: Leader | None) -> bool:
        """A broker has said who leads instead of it; whether that was news."""
        return leader is not None and self.cluster.hint(topic_id, index, leader.id, leader.leader_epoch)

    async def _run_rounds(self) -> None:
        """One request for metadata after another, as long as somebody waits for one."""
        try:
            while self._next is not None:
                one, self._next = self._next, None
                self._round = one
                await self._run_round(one)
        finally:
            self._rounds = None
            for left in (self._round, self._next):
                if left is not None:
                    left.fail(ClientClosed("the client was closed while it asked for metadata"))
            self._round = self._next = None

    async def _run_round(self, one: "Round") -> None:
        try:
            names = {**dict.fromkeys(self.cluster.topics), **one.names} if one.known else one.names
            await self._learn(names, self.config.request_timeout_ms)
        except TidelogError as error:
            one.fail(error)
        else:
            one.done.set_result(None)
        finally:
            if one.done.done():
                self._round = None

    async def _learn(self, topics: Iterable[str], timeout_ms: float) -> None:
        """Ask whoever answers first, and take what is new."""
        request = Metadata(asked := tuple(topics), allow_create=self.wanted.issuperset(asked) and bool(asked))
        began_ms, answers = self._now_ms(), self.silence.answers
        try:
            reply = await first(self._ways(request, timeout_ms), timeout_ms)
            self.adopt(reply)
        except TidelogError as error:
            self._counts["refresh_errors"] += 1
            self.silence.failed(error, began_ms, answers)
            raise
        self.silence.heard()
        self._counts["refreshes"] += 1
        self._refreshed_s = asyncio.get_running_loop().time()

    def adopt(self, reply: MetadataReply) -> None:
        """Take what is new in a broker's answer, and tell of it; raises InconsistentClusterId."""
        changes = self.cluster.adopt(reply)
        self.connections.belong_to(self.cluster.cluster_id)
        if changes.brokers:
            self._drop_the_gone()
        if changes:
            for watcher in list(self._watchers):
                watcher(changes)

    def _ways(
        self, request: Metadata, timeout_ms: float
    ) -> dict[str, Callable[[], Awaitable[MetadataReply]]]:
        """Whom to ask, in order: who is connected, who is known, who has failed just now, where we began."""
        known = list(self.cluster.brokers)
        self.rng.shuffle(known)
        connections = self.connections
        known.sort(key=lambda broker: (connections.at_hand(broker) is None, connections.rests(broker)))
        there = {self._address_of(broker): broker for broker in known}
        ways: dict[str, Callable[[], Awaitable[MetadataReply]]] = {
            str(address): partial(self._ask, partial(connections.get, broker), request, timeout_ms)
            for address, broker in there.items()
        }
        for address in self.config.bootstrap:
            if address not in there:
                reach = partial(connections.reach, address, min(timeout_ms, self.config.connect_timeout_ms))
                ways[str(address)] = partial(self._ask, reach, request, timeout_ms)
        return ways

    async def _ask(
        self, way: Callable[[], Awaitable[Connection]], request: Metadata, timeout_ms: float
    ) -> MetadataReply:
        connection = await way()
        try:
            reply, _ = await connection.call(request, timeout_ms=timeout_ms)
        except (RequestTimedOut, asyncio.CancelledError):  # whoever asks several ends this at the deadline
            self.connections.doubt(connection)
            raise
        if not isinstance(reply, MetadataReply):
            raise ConnectionFailed(f"{type(reply).__name__} was answered to Metadata")
        if reply.error:
            raise error_of(reply.error, reply.message or "")
        return reply

    def _address_of(self, broker: BrokerId) -> Address | None:
        known = self.cluster.brokers.get(broker)
        return None if known is None else Address(known.host, known.port)

    def _drop_the_gone(self) -> None:
        """Who is no longer part of the cluster answers nothing that counts: who waits for it is to try elsewhere."""
        for broker in self.connections.brokers():
            if broker not in self.cluster.brokers and self.cluster.brokers:
                self.connections.drop(broker, "it is not alive any more, other brokers say")

    async def _keep_fresh(self) -> None:
        """Look at the cluster once in a while, though nothing has failed."""
        backoff = self.backoff()
        while True:
            await asyncio.sleep(self.config.metadata_max_age_ms / 1000)
            while True:
                try:
                    await self.refresh()
                except TidelogError as error:
                    logger.warning("metadata.not_refreshed reason=%s", error)
                    await self._pause(backoff, error)
                else:
                    backoff.succeeded()
                    break

    async def _watch(self) -> None:
        """Notice a broker that owes an answer and says nothing: others may know that it is gone."""
        silent: dict[Connection, tuple[int, float]] = {}
        while True:
            await asyncio.sleep(_WATCH_S)
            now_s = asyncio.get_running_loop().time()
            owing = {c: c.oldest for c in self.connections.opened() if c.oldest is not None}
            silent = {
                c: silent[c] if c in silent and silent[c][0] == oldest else (oldest, now_s)
                for c, oldest in owing.items()
            }
            if any(now_s - since >= _SILENT_S for _, since in silent.values()):
                silent = {c: (oldest, now_s) for c, (oldest, _) in silent.items()}
                try:
                    await self.refresh((), newer=True)
                except TidelogError as error:
                    logger.info("metadata.not_refreshed reason=%s", error)

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    async def connection(self, broker: BrokerId, lane: Lane = "requests") -> Connection:
        """The connection to a broker, made if there is none."""
        self._check_open()
        return self.connections.at_hand(broker, lane) or await self.connections.get(broker, lane)

    async def call(
        self,
        broker: BrokerId,
        request: Request,
        *attachments: Buffer,
        timeout_ms: float | None = None,
        lane: Lane = "requests",
    ) -> tuple[Reply, Buffer]:
        """One broker's reply and its attachment, once. Raises what it refused with, ConnectionFailed, or RequestTimedOut;
        errors in the reply are the caller's to look at.
        """
        self.home.check()
        allowed_ms = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = self._now_ms() + allowed_ms
        self._counts["requests"] += 1
        connection = self.connections.at_hand(broker, lane)
        try:
            if connection is None:
                self._check_open()
                late = RequestTimedOut(f"broker {broker} was not connected in {allowed_ms:.0f} ms")
                async with until(deadline_ms, late):
                    connection = await self.connections.get(broker, lane)
            left_ms = max(deadline_ms - self._now_ms(), 0.0)
            answer = await connection.call(request, *attachments, timeout_ms=left_ms)
        except TidelogError as error:
            self._counts["request_errors"] += 1
            if isinstance(error, RequestTimedOut) and connection is not None:
                self.connections.doubt(connection)
            raise
        self.silence.heard()
        return answer

    async def call_any(
        self,
        request: Request,
        *attachments: Buffer,
        timeout_ms: float | None = None,
        on_retry: Callable[[TidelogError], None] = lambda _error: None,
        first: BrokerId = NO_BROKER,
    ) -> tuple[Reply, Buffer]:
        """Any broker's reply, whoever answers within the time; `first` is asked first. Errors of the reply as a whole are
        raised, or lead to another attempt, of which `on_retry` is told: what was done by the one before is then not known.
        """
        self._check_open()
        backoff = self.backoff(self.config.request_timeout_ms if timeout_ms is None else timeout_ms)
        broker = NO_BROKER
        late: TidelogError = RequestTimedOut("no broker could be reached in time")
        while True:
            left_ms = backoff.left_ms(self._now_ms())
            # Half of the time for one: so another one is asked as well, should the first never answer.
            attempt_ms = left_ms if len(self.cluster.brokers) < 2 else max(left_ms / 2, min(left_ms, 1000))
            try:
                known = first in self.cluster.brokers
                broker, first = first if known else await self._somebody(broker, backoff, late), NO_BROKER
                reply, attachment = await self.call(
                    broker, _for(request, attempt_ms), *attachments, timeout_ms=attempt_ms
                )
                code = getattr(reply, "error", 0)
                if not code:
                    return reply, attachment
                raise error_of(code, getattr(reply, "message", None) or "")
            except TidelogError as error:
                if advice(error) is Advice.FATAL:
                    raise
                on_retry(error)
                # That no controller leads says more than that the time has run out.
                if not (isinstance(late, NoController) and isinstance(error, RequestTimedOut)):
                    late = self.connections.nobody(self.cluster.brokers) or error
                await self._pause(backoff, late)

    async def _somebody(self, but: BrokerId, backoff: Backoff, late: TidelogError) -> BrokerId:
        """A broker to ask: one that is connected if possible, and not the one that has just failed."""
        connections = self.connections
        for attempt in (1, 2):
            known = list(self.cluster.brokers)
            self.rng.shuffle(known)
            known.sort(key=lambda b: (connections.rests(b), b == but, connections.at_hand(b) is None))
            if known and not connections.rests(known[0]):
                return known[0]
            if attempt == 1:
                async with self._within(backoff, late.anew()):
                    await self.refresh((), newer=True)
        if not self.cluster.brokers:
            raise ConnectionFailed("no broker of the cluster is alive, the one that answered says")
        raise connections.nobody(self.cluster.brokers) or late.anew()

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    def backoff(self, timeout_ms: float | None = None) -> Backoff:
        """The waits between attempts at one thing, from now until the time is up, or for ever."""
        deadline_ms = None if timeout_ms is None else self._now_ms() + timeout_ms
        return Backoff(self.rng, self.config.retry_backoff_ms, self.config.retry_backoff_max_ms, deadline_ms)

    async def _pause(self, backoff: Backoff, error: TidelogError) -> None:
        """Wait before the next attempt; raise the error if the time is up before that, or then."""
        if not await self.pause(backoff):
            raise error

    async def pause(self, backoff: Backoff) -> bool:
        """Wait before the next attempt, after one that failed; False: the time is up."""
        wait_ms = backoff.wait_ms(self._now_ms())
        if wait_ms is None:
            return False
        await asyncio.sleep(wait_ms / 1000)
        return backoff.left_ms(self._now_ms()) > 0

    def _within(self, backoff: Backoff, late: TidelogError) -> AbstractAsyncContextManager[None]:
        return until(backoff.deadline_ms, late)

    def _timeout_ms(self, timeout: float | None) -> float:
        """A method's time-out, in seconds, as milliseconds."""
        return self.config.request_timeout_ms if timeout is None else timeout * 1000

    @staticmethod
    def _now_ms() -> float:
        return asyncio.get_running_loop().time() * 1000

    def metrics(self) -> dict[str, float]:
        """Figures of the client and of all its children, by names that say what they count."""
        found: dict[str, float] = {
            **self._counts,
            "connections": len(self.connections),
            "connections_made": self.connections.made,
            "requests_in_flight": self.connections.in_flight,
            "topics_known": len(self.cluster.topics),
            "tasks": len(self._tasks),
        }
        if self._refreshed_s is not None:
            found["metadata_age_seconds"] = asyncio.get_running_loop().time() - self._refreshed_s
        for child in self._children:
            for name, value in child.metrics().items():
                found[name] = found.get(name, 0) + value
        return found


@asynccontextmanager
async def until(deadline_ms: float | None, late: TidelogError) -> AsyncIterator[None]:
    """Raise that error when the block has not ended by then."""
    try:
        async with asyncio.timeout_at(None if deadline_ms is None else deadline_ms / 1000):
            yield
    except TimeoutError as error:
        raise late from error


def _for(request: Request, timeout_ms: float) -> Request:
    """The request, saying how long its answer may take, if it is one that says so."""
    if "timeout_ms" not in request.__struct_fields__:
        return request
    return msgspec.structs.replace(request, timeout_ms=int(timeout_ms))
