"""Connections to brokers: made once, shared, given up on in time, and never with a riddle for an error."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from tests.client.nodes import HOST, until
from tests.client.simulated import in_virtual_time
from tests.protocol.io.peers import Node
from tidelog.client.config import Address, ClientConfig, addresses
from tidelog.client.io.connections import Connections, first
from tidelog.client.retry import Backoff
from tidelog.protocol.errors import (
    ClientClosed,
    ConnectionFailed,
    InconsistentClusterId,
    RequestTimedOut,
    TidelogError,
)
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import Hello, InitProducerId, InitProducerIdReply, Welcome
from tidelog.protocol.types import BrokerId

pytestmark = pytest.mark.usefixtures("nothing_left")

ONE, TWO = BrokerId(1), BrokerId(2)


class Fixed(Random):
    """Chance that always waits as long as it may."""

    def uniform(self, a: float, b: float) -> float:
        return b


@asynccontextmanager
async def connections_to(
    places: dict[BrokerId, Address],
    *,
    first_ms: float = 50,
    hello: Hello | None = None,
    connect_timeout_ms: int = 5000,
) -> AsyncIterator[Connections]:
    """Connections to brokers that are there, which may be changed."""
    config = ClientConfig(bootstrap=addresses("h"), connect_timeout_ms=connect_timeout_ms)
    made = Connections(
        config,
        hello or Hello("test"),
        places.get,
        lambda deadline: Backoff(Fixed(), first_ms, 1000, deadline),
    )
    try:
        yield made
    finally:
        await made.close()


def welcome(number: int = 1, *, role: str = "broker", cluster: str = "c") -> Welcome:
    return Welcome(cluster, BrokerId(number), role)


class Slow(Node):
    """Answers Hello when the test does."""

    def _handle(self, request: Incoming) -> None:
        self.waiting.append(request)


def at(node: Node) -> Address:
    return Address(HOST, node.port)


@asynccontextmanager
async def listening(answer: bytes = b"", *, end: bool = False) -> AsyncIterator[Address]:
    """Something that accepts connections and is no broker: it says that, or nothing."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(answer)
        if end or not server.is_serving():  # who has connected just before the end is heard of after it
            writer.close()

    server = await asyncio.start_server(accept, HOST, 0)
    try:
        yield Address(HOST, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for writer in writers:
            writer.close()


# ── made once, shared ─────────────────────────────────────────────────────────────────────────────────


async def test_however_many_want_a_connection_it_is_made_once() -> None:
    async with Node(welcome=welcome()) as node, connections_to({ONE: at(node)}) as connections:
        found = await asyncio.gather(*(connections.get(ONE) for _ in range(10)))
        assert len(set(map(id, found))) == 1
        assert (node.bounds.connections, connections.made, len(connections)) == (1, 1, 1)
        assert connections.at_hand(ONE) is found[0]


async def test_each_lane_has_a_connection_of_its_own() -> None:
    async with Node(welcome=welcome()) as node, connections_to({ONE: at(node)}) as connections:
        requests, fetches = await connections.get(ONE), await connections.get(ONE, "fetches")
        assert requests is not fetches
        assert await connections.get(ONE, "fetches") is fetches
        assert connections.brokers() == [ONE]


async def test_who_stops_waiting_takes_nothing_from_the_others() -> None:
    async with Node(welcome=welcome()) as node, connections_to({ONE: at(node)}) as connections:
        waiters = [asyncio.ensure_future(connections.get(ONE)) for _ in range(3)]
        await asyncio.sleep(0)
        waiters[0].cancel()
        assert (await waiters[1]) is (await waiters[2])
        with pytest.raises(asyncio.CancelledError):
            await waiters[0]


async def test_a_connection_that_breaks_is_noticed_and_made_again() -> None:
    async with Node(welcome=welcome()) as node, connections_to({ONE: at(node)}) as connections:
        before = await connections.get(ONE)
        before.abort()
        assert connections.at_hand(ONE) is None
        assert (await connections.get(ONE)) is not before
        assert (connections.made, connections.lost) == (2, 1)


async def test_who_waits_for_a_broker_that_is_gone_is_told() -> None:
    async with Node(welcome=welcome()) as node, connections_to({ONE: at(node)}) as connections:
        connection = await connections.get(ONE)
        call = asyncio.ensure_future(connection.call(InitProducerId()))
        await until(lambda: node.waiting, "the request has arrived")
        connections.drop(ONE, "others say so")
        with pytest.raises(ConnectionFailed):
            await call
        assert connections.at_hand(ONE) is None


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_broker_that_failed_is_left_alone_and_whoever_asks_is_told_why(
    closed_port: Callable[[], int],
) -> None:
    async with connections_to({ONE: Address(HOST, closed_port())}, first_ms=500) as connections:
        with pytest.raises(ConnectionFailed, match="Connection refused"):
            await connections.get(ONE)
        assert connections.rests(ONE)
        with pytest.raises(ConnectionFailed, match=r"Connection refused \(tried again in \d+ ms\)"):
            await connections.get(ONE)


async def test_it_is_tried_again_when_its_rest_is_over(closed_port: Callable[[], int]) -> None:
    places = {ONE: Address(HOST, closed_port())}
    async with Node(welcome=welcome()) as node, connections_to(places, first_ms=20) as connections:
        with pytest.raises(ConnectionFailed):
            await connections.get(ONE)
        await until(lambda: not connections.rests(ONE), "its rest is over")
        with pytest.raises(ConnectionFailed, match=r"refused$"):
            await connections.get(ONE)
        places[ONE] = at(node)
        assert not connections.rests(ONE), "elsewhere it has not failed"
        await connections.get(ONE)


async def test_whoever_fails_together_gets_an_error_of_his_own(closed_port: Callable[[], int]) -> None:
    async with connections_to({ONE: Address(HOST, closed_port())}) as connections:
        errors = await asyncio.gather(*(connections.get(ONE) for _ in range(3)), return_exceptions=True)
        assert len({id(error) for error in errors}) == 3
        assert all(isinstance(error, ConnectionFailed) for error in errors)


async def test_a_broker_without_an_address_is_not_waited_for() -> None:
    async with connections_to({}) as connections:
        with pytest.raises(ConnectionFailed, match="broker 1 is not alive"):
            await connections.get(ONE)


async def test_one_that_accepts_and_never_answers_is_given_up_on_in_time() -> None:
    loop = asyncio.get_running_loop()
    async with listening() as address, connections_to({ONE: address}, connect_timeout_ms=100) as connections:
        began = loop.time()
        with pytest.raises((RequestTimedOut, ConnectionFailed), match="100 ms"):
            await connections.get(ONE)
        assert loop.time() - began < 2


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20, b"\x00" * 500, b"\xff" * 500])
async def test_one_that_answers_garbage_is_called_that(answer: bytes) -> None:
    async with listening(answer) as address, connections_to({ONE: address}) as connections:
        with pytest.raises(TidelogError, match=r"does not speak tidelog's protocol|newer tidelog") as caught:
            await connections.get(ONE)
        assert str(address) in str(caught.value)


async def test_one_that_hangs_up_is_named() -> None:
    async with listening(end=True) as address, connections_to({ONE: address}) as connections:
        with pytest.raises(ConnectionFailed, match=str(address)):
            await connections.get(ONE)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (welcome(7), ConnectionFailed, "broker 7 answers there, broker 1 was meant"),
        (
            welcome(1, role="controller"),
            ConnectionFailed,
            "controller 1 answers there, clients talk to brokers",
        ),
        (welcome(1, cluster="d"), InconsistentClusterId, "belongs to cluster d, this client to c"),
    ],
)
async def test_somebody_else_at_the_address_is_not_taken_for_the_broker(
    answer: Welcome, error: type[TidelogError], message: str
) -> None:
    hello = Hello("test", cluster_id="c")
    async with Node(welcome=answer) as node, connections_to({ONE: at(node)}, hello=hello) as connections:
        with pytest.raises(error, match=message):
            await connections.get(ONE)
        await until(lambda: node.bounds.connections == 0, "the connection is given up")


async def test_whoever_is_reached_by_an_address_is_kept_as_the_broker_that_it_is() -> None:
    async with Node(welcome=welcome(2)) as node, connections_to({TWO: at(node)}) as connections:
        reached = await connections.reach(at(node), 1000)
        assert await connections.get(TWO) is reached
        assert await connections.reach(at(node), 1000) is reached
        await until(lambda: node.bounds.connections == 1, "the second one is given up")


async def test_who_is_reached_by_another_address_meanwhile_is_not_connected_twice() -> None:
    """The first of the two would have no owner, and outlive the client."""
    async with (
        Slow() as slow,
        Node(welcome=welcome(1)) as quick,
        connections_to({ONE: at(slow)}) as connections,
    ):
        waiting = asyncio.ensure_future(connections.get(ONE))
        await until(lambda: slow.waiting, "it is asked")
        reached = await connections.reach(at(quick), 1000)
        slow.waiting.pop().reply(welcome(1))
        assert await waiting is reached
        await until(lambda: slow.bounds.connections == 0, "the second one is given up")


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────


async def test_closing_ends_those_who_wait_for_a_connection() -> None:
    async with listening() as address, connections_to({ONE: address}) as connections:
        waiting = asyncio.ensure_future(connections.get(ONE))
        await until(lambda: connections._making, "it connects")
        await connections.close()
        with pytest.raises(ClientClosed):
            await waiting
        with pytest.raises(ClientClosed):
            await connections.get(ONE)


async def test_closing_says_what_was_to_be_said() -> None:
    async with Node(welcome=welcome()) as node, connections_to({ONE: at(node)}) as connections:
        node.handler = lambda request: request.reply(InitProducerIdReply())
        connection = await connections.get(ONE)
        connection.send(InitProducerId())
        await connections.close()
        await connections.close()
        await until(lambda: node.bounds.connections == 0, "the broker has seen the end")


# ── one of several ────────────────────────────────────────────────────────────────────────────────────


async def answers(what: str) -> str:
    return what


async def fails(error: TidelogError) -> str:
    raise error


async def never() -> str:
    waiting: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return await waiting


async def test_the_first_that_answers_counts_and_later_ones_are_not_asked() -> None:
    asked: list[str] = []

    async def ask(name: str) -> str:
        asked.append(name)
        return name

    assert await first({"a": lambda: ask("a"), "b": lambda: ask("b")}, 1000) == "a"
    assert asked == ["a"]


@in_virtual_time
async def test_another_is_asked_when_one_has_failed_or_is_slow() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    refused = ConnectionFailed("a: refused")
    assert await first({"a": lambda: fails(refused), "b": lambda: answers("b")}, 1000) == "b"
    assert loop.time() - began < 0.4
    assert await first({"a": never, "b": lambda: answers("b")}, 5000) == "b"
    assert loop.time() - began < 2


@pytest.mark.slow
async def test_when_all_fail_each_is_named_with_its_cause() -> None:
    ways = {"a:1": lambda: fails(ConnectionFailed("a:1: refused")), "b:2": never}
    with pytest.raises(ConnectionFailed) as caught:
        await first(ways, 700)
    assert str(caught.value) == "no broker can be reached:\n  a:1: refused\n  b:2: no answer in 700 ms"


async def test_the_error_is_of_the_kind_that_says_most() -> None:
    ways = {"a": lambda: fails(ConnectionFailed("no")), "b": lambda: fails(InconsistentClusterId("another"))}
    with pytest.raises(InconsistentClusterId, match="a: no\n  b: another"):
        await first(ways, 700)


async def test_who_is_cancelled_leaves_nothing_running() -> None:
    racing = asyncio.ensure_future(first({"a": never, "b": never}, 10_000))
    await asyncio.sleep(0)
    racing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await racing
