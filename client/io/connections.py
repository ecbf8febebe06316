"""The client's connections: to each broker one per lane, made when somebody needs it and shared by all.

    requests    what is answered soon: produce, metadata, administration
    fetches     long polls, and large answers: a record that is sent never waits behind one

What it keeps true:

* However many wait for a connection, it is made once; whoever stops waiting takes nothing from the others.
* A broker that has failed is left alone for a while, longer with each failure: until then whoever asks is told at once
  why. Another address is another broker in this respect.
* A connection that says nothing any more is replaced, once a request on it has waited in vain.
* Nothing takes longer than `connect_timeout_ms`, whatever listens there. When every address of a bootstrap list has
  failed there is one error, with a line per address and its cause.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from tidelog.client.config import Address, ClientConfig
from tidelog.client.retry import Backoff, NewBackoff
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import ClientClosed, ConnectionFailed, InconsistentClusterId, TidelogError
from tidelog.protocol.io import Connection, connect
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import Hello
from tidelog.protocol.types import NO_BROKER, BrokerId

logger = logging.getLogger(__name__)

T = TypeVar("T")

Lane: TypeAlias = Literal["requests", "fetches"]

_STAGGER_MS: Final = 250
"""How soon another is asked too, though the one before has not failed: it may be one that never answers."""

_SILENT_MS: Final = 5000
"""How long a connection may owe answers and say nothing, before a request that was not answered in time ends it."""


class _Failure(NamedTuple):
    """The last attempts at one broker."""

    address: Address
    error: TidelogError
    backoff: Backoff
    again_ms: float
    """When it may be tried again."""


class Connections:
    """See the module. `address_of` knows where brokers are."""

    def __init__(
        self,
        config: ClientConfig,
        hello: Hello,
        address_of: Callable[[BrokerId], Address | None],
        new_backoff: NewBackoff,
    ) -> None:
        self._config = config
        self._hello = hello
        self._address_of = address_of
        self._new_backoff = new_backoff
        self._bounds = Bounds(DEFAULT)
        self._open: dict[tuple[BrokerId, Lane], Connection] = {}
        self._making: dict[tuple[BrokerId, Lane], asyncio.Task[Connection]] = {}
        self._failures: dict[BrokerId, _Failure] = {}
        self._closing: list[Connection] = []
        self._closed = False
        self.made = 0
        self.lost = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def in_flight(self) -> int:
        """Requests that are not answered yet."""
        return sum(connection.in_flight for connection in self._open.values())

    def opened(self) -> list[Connection]:
        """All that there are."""
        return list(self._open.values())

    def brokers(self) -> list[BrokerId]:
        """To whom."""
        return list(dict.fromkeys(broker for broker, _ in self._open))

    # ── to a broker ───────────────────────────────────────────────────────────────────────────────

    def at_hand(self, broker: BrokerId, lane: Lane = "requests") -> Connection | None:
        """The connection, if there is one."""
        connection = self._open.get((broker, lane))
        return None if connection is None or connection.closed else connection

    async def get(self, broker: BrokerId, lane: Lane = "requests") -> Connection:
        """The connection, made if there is none. Raises ConnectionFailed, or what the broker refused Hello with."""
        connection = self.at_hand(broker, lane)
        if connection is not None:
            return connection
        if self._closed:
            raise ClientClosed("the client is closed")
        making = self._making.get((broker, lane))
        if making is None:
            making = self._begin(broker, lane)
        try:
            return await joined(making, "the client was closed while it connected")
        except TidelogError as error:
            raise error.anew() from error.__cause__

    def rests(self, broker: BrokerId) -> bool:
        """Whether the broker has just failed and is left alone."""
        failure = self._failures.get(broker)
        return (
            failure is not None
            and self.at_hand(broker) is None
            and failure.address == self._address_of(broker)
            and _now_ms() < failure.again_ms
        )

    def nobody(self, brokers: Collection[BrokerId]) -> ConnectionFailed | None:
        """Why none of them can be reached, if that is so."""
        failures = [self._failures.get(broker) for broker in brokers if self.at_hand(broker) is None]
        if not brokers or len(failures) < len(brokers):
            return None
        lines = []
        for each in failures:
            if each is None:
                return None
            lines.append(f"{each.address}: {str(each.error).removeprefix(f'{each.address}: ')}")
        return ConnectionFailed("\n  ".join(["no broker can be reached:", *lines]))

    def drop(self, broker: BrokerId, why: str) -> None:
        """The broker is gone: cut off what there is to it, so that nobody waits for its answers."""
        for (one, lane), connection in list(self._open.items()):
            if one == broker:
                logger.info("connection.dropped broker=%d lane=%s reason=%s", broker, lane, why)
                connection.abort()

    def doubt(self, connection: Connection) -> None:
        """It has not answered in time: cut it off if nothing at all comes by it. A machine that lost power, or a path that
        drops everything, says no farewell, and the system would take a quarter of an hour to notice.
        """
        since_ms = connection.silent_since_ms
        patience_ms = min(self._config.request_timeout_ms, _SILENT_MS)
        if since_ms is not None and _now_ms() - since_ms >= patience_ms - 1:
            logger.info("connection.silent address=%s:%d", connection.host, connection.port)
            connection.abort()

    def _begin(self, broker: BrokerId, lane: Lane) -> "asyncio.Task[Connection]":
        address = self._address_of(broker)
        if address is None:
            raise ConnectionFailed(f"broker {broker} is not alive, or not known: it has no address")
        failure = self._failures.get(broker)
        if failure is not None and failure.address != address:
            del self._failures[broker]
        elif failure is not None and (left_ms := failure.again_ms - _now_ms()) > 0:
            raise type(failure.error)(f"{failure.error} (tried again in {left_ms:.0f} ms)")
        task = asyncio.get_running_loop().create_task(self._make(broker, lane, address))
        self._making[broker, lane] = task
        task.add_done_callback(partial(self._made, broker, lane))
        return task

    async def _make(self, broker: BrokerId, lane: Lane, address: Address) -> Connection:
        try:
            connection = await self._connect(address, self._config.connect_timeout_ms)
            if connection.welcome.node_id not in (broker, NO_BROKER):
                connection.abort()
                raise ConnectionFailed(
                    f"{address}: broker {connection.welcome.node_id} answers there, broker {broker} was meant"
                )
        except TidelogError as error:
            self._failed(broker, address, error)
            raise
        kept = self.at_hand(broker, lane)
        if kept is not None:  # somebody has reached the broker by another of its addresses meanwhile
            connection.abort()
            return kept
        self._keep(broker, lane, connection)
        return connection

    def _made(self, broker: BrokerId, lane: Lane, task: "asyncio.Task[Connection]") -> None:
        self._making.pop((broker, lane), None)
        if not task.cancelled():
            task.exception()  # looked at: those who waited may all have gone

    def _failed(self, broker: BrokerId, address: Address, error: TidelogError) -> None:
        before = self._failures.get(broker)
        backoff = before.backoff if before is not None else self._new_backoff(None)
        now_ms = _now_ms()
        wait_ms = backoff.wait_ms(now_ms)
        assert wait_ms is not None, "it has no deadline"
        self._failures[broker] = _Failure(address, error, backoff, now_ms + wait_ms)
        logger.info("connection.failed broker=%d attempt=%d reason=%s", broker, backoff.attempts, error)

    def _keep(self, broker: BrokerId, lane: Lane, connection: Connection) -> None:
        if self._closed:
            connection.abort()
            raise ClientClosed("the client was closed while it connected")
        key = broker, lane
        self._failures.pop(broker, None)
        self._open[key] = connection
        self.made += 1

        def ended(error: TidelogError) -> None:
            if self._open.get(key) is connection:
                del self._open[key]
            if not self._closed:
                self.lost += 1
                logger.info("connection.lost broker=%d lane=%s reason=%s", broker, lane, error)

        connection.on_closed = ended

    async def _connect(self, address: Address, timeout_ms: float) -> Connection:
        """A connection to a broker, whoever it is; to nobody else."""
        connection = await connect(*address, self._hello, bounds=self._bounds, timeout_ms=timeout_ms)
        welcome = connection.welcome
        if welcome.role != "broker":
            connection.abort()
            raise ConnectionFailed(
                f"{address}: {welcome.role} {welcome.node_id} answers there, clients talk to brokers"
            )
        if self._hello.cluster_id and welcome.cluster_id not in ("", self._hello.cluster_id):
            connection.abort()
            raise InconsistentClusterId(
                f"{address} belongs to cluster {welcome.cluster_id}, this client to {self._hello.cluster_id}"
            )
        return connection

    def belong_to(self, cluster_id: str) -> None:
        """From now on only brokers of this cluster are accepted."""
        if cluster_id != self._hello.cluster_id:
            self._hello = Hello(self._hello.client_id, self._hello.software, cluster_id)

    # ── to an address ─────────────────────────────────────────────────────────────────────────────

    async def reach(self, address: Address, timeout_ms: float) -> Connection:
        """A connection to the broker that answers there, kept as that broker's if there is none to it."""
        connection = await self._connect(address, timeout_ms)
        broker = connection.welcome.node_id
        kept = self.at_hand(broker)
        if kept is not None:
            connection.abort()
            return kept
        self._keep(broker, "requests", connection)
        return connection

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def abort(self) -> None:
        """End everything at once; nobody waits."""
        self._closed = True
        for task in self._making.values():
            task.cancel()
        for connection in [*self._open.values(), *self._closing]:
            connection.abort()

    async def close(self) -> None:
        """Send what is to be sent, then close, and wait until every socket is gone."""
        self._closed = True
        for task in self._making.values():
            task.cancel()
        self._closing = list(self._open.values())
        self._open.clear()
        for connection in self._closing:
            connection.close()
        try:
            for connection in self._closing:
                await connection.wait_closed()
            await asyncio.gather(*self._making.values(), return_exceptions=True)
        finally:
            self.abort()


def software() -> str:
    """What the client says that it is."""
    # Not imported above: the package's own names lead here.
    return f"tidelog-python {import_module('tidelog').__version__}"


async def joined(task: "asyncio.Future[T]", closed: str) -> T:
    """What a task brings that others wait for too: whoever is cancelled leaves it alone. ClientClosed, when it was
    itself cancelled: only a closing client does that.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        waiter = asyncio.current_task()
        if task.cancelled() and waiter is not None and not waiter.cancelling():
            raise ClientClosed(closed) from None
        raise


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What each of them brings. The first error ends the others, and is raised when they have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failed:
        error = failed.exceptions[0]
        raise error from error.__cause__
    return [task.result() for task in tasks]


async def first(attempts: Mapping[str, Callable[[], Awaitable[T]]], timeout_ms: float) -> T:
    """The first result of attempts, by name, that begin in order: each when the one before has failed, or is slow.

    When all fail: an error with a line for each and its cause; its class is that of the first cause that is more than
    a failed connection. When there was only one attempt, its error.
    """
    assert attempts, "there is nothing to try"
    names, begin = list(attempts), list(attempts.values())
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    running: list[asyncio.Task[T]] = []
    winner: asyncio.Task[T] | None = None
    causes: dict[int, TidelogError] = {}
    try:
        while len(causes) < len(attempts):
            now = loop.time()
            if now >= deadline:
                break
            if len(running) < len(attempts):
                running.append(loop.create_task(_awaited(begin[len(running)])))
            more = len(running) < len(attempts)
            wait_s = min(deadline - now, _STAGGER_MS / 1000) if more else deadline - now
            pending = [task for task in running if not task.done()]
            await asyncio.wait(pending, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            for number, task in enumerate(running):
                if not task.done() or number in causes:
                    continue
                error = task.exception()
                if error is None:
                    winner = task
                    return task.result()
                if not isinstance(error, TidelogError):
                    raise error
                causes[number] = error
        raise _all_failed(names, causes, timeout_ms)
    finally:
        await _end([task for task in running if task is not winner])


async def _awaited(attempt: Callable[[], Awaitable[T]]) -> T:
    return await attempt()


async def _end(late: "list[asyncio.Task[T]]") -> None:
    """Cancel those that run, and look at what became of the others: somebody should have."""
    for task in late:
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        task.cancel()
    if late:
        await asyncio.wait(late)


def _all_failed(names: Sequence[str], causes: Mapping[int, TidelogError], timeout_ms: float) -> TidelogError:
    if len(names) == 1 and causes:
        return causes[0].anew()
    lines = []
    for number, name in enumerate(names):
        cause = causes.get(number)
        why = f"no answer in {timeout_ms:.0f} ms" if cause is None else str(cause).removeprefix(f"{name}: ")
        lines.append(f"{name}: {why}")
    if len(lines) == 1:
        return ConnectionFailed(lines[0])
    others = [cause for cause in causes.values() if not isinstance(cause, ConnectionFailed)]
    kind = type(others[0]) if others else ConnectionFailed
    error = kind("no broker can be reached:\n  " + "\n  ".join(lines))
    error.__cause__ = next(iter(causes.values()), None)
    return error


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
