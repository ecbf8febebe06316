"""The product's own transport, unmodified, on the simulated loop: what calls and connects do when things break."""

import asyncio
from dataclasses import replace

import pytest

from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import ConnectionFailed, RequestTimedOut
from tidelog.protocol.io import Connection, Incoming, Listener, StallMeter, connect, listen
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import Hello, Welcome
from tidelog.testing.simulation.host import Environment, Host
from tidelog.testing.simulation.world import World

PORT = 9092


class Node:
    """A broker's place: it answers each request with its attachment, at once or when told to."""

    def __init__(self, world: World, bounds: Bounds | None = None) -> None:
        self.world = world
        self.bounds = bounds
        self.listener: Listener
        self.answering = True
        self.waiting: list[Incoming] = []
        self.seen: list[bytes] = []
        self.host = Host("b1", world)
        self.client = Host("client", world)
        self.host.start(self.main)
        world.run_for(0.1)

    async def main(self, _environment: Environment) -> None:
        self.listener = await listen("b1", PORT, self.handle, self.bounds)
        await self.listener.wait_closed()

    def handle(self, request: Incoming) -> None:
        self.seen.append(bytes(request.attachment))
        if self.answering or not self.seen[-1]:
            request.reply(Welcome(), self.seen[-1])
        else:
            self.waiting.append(request)

    def connected(self) -> Connection:
        return self.world.result(self.client.create_task(connect("b1", PORT)), self.world.now + 20)

    def call(
        self, connection: Connection, attachment: bytes, timeout_ms: float = 1_000
    ) -> "asyncio.Task[bytes]":
        async def answer() -> bytes:
            return bytes((await connection.call(Hello(), attachment, timeout_ms=timeout_ms))[1])

        return self.client.create_task(answer())


@pytest.fixture
def node(world: World) -> Node:
    return Node(world)


@pytest.mark.parametrize("seed", range(10))
def test_calls_of_many_sizes_are_answered_under_every_seed(seed: int) -> None:
    with World(seed).running() as world:
        node = Node(world)
        sizes = [0, 1, 100, 70_000, 300_000, 3_000_000, 17]
        connection = node.connected()
        tasks = [node.call(connection, bytes([n]) * size, 60_000) for n, size in enumerate(sizes)]
        for number, (size, task) in enumerate(zip(sizes, tasks, strict=True)):
            assert world.result(task, 100) == bytes([number]) * size


def test_many_clients_share_a_nodes_receive_buffer(node: Node) -> None:
    connections = [node.connected() for _ in range(10)]
    tasks = [node.call(one, bytes([n]) * 5_000) for n, one in enumerate(connections) for _ in range(5)]
    for number, task in enumerate(tasks):
        assert node.world.result(task, 60) == bytes([number // 5]) * 5_000


def test_a_call_that_is_not_answered_ends_at_its_deadline_and_no_later(node: Node) -> None:
    node.answering = False
    connection = node.connected()
    begin = node.world.now
    with pytest.raises(RequestTimedOut):
        node.world.result(node.call(connection, b"x", timeout_ms=750), 60)
    assert node.world.now - begin == pytest.approx(0.75, abs=0.002)


def test_calls_to_a_stopped_node_time_out_and_connects_too(node: Node) -> None:
    connection = node.connected()
    node.host.stop()
    with pytest.raises(RequestTimedOut):
        node.world.result(node.call(connection, b"x"), 60)
    with pytest.raises(ConnectionFailed, match="no answer"):
        node.world.result(node.client.create_task(connect("b1", PORT, timeout_ms=500)), 60)


def test_a_reset_ends_the_calls_in_flight_with_connection_failed(node: Node) -> None:
    node.answering = False
    connection = node.connected()
    task = node.call(connection, b"x", timeout_ms=60_000)
    node.world.run_for(1)
    node.world.network.connections("client")[0].reset()
    with pytest.raises(ConnectionFailed, match="reset by peer"):
        node.world.result(task, 60)
    node.world.run_for(1)
    assert node.listener.connections == {}


def test_calls_across_a_partition_time_out_and_come_through_once_it_has_healed(node: Node) -> None:
    connection = node.connected()
    node.world.network.partition("client", "b1")
    with pytest.raises(RequestTimedOut):
        node.world.result(node.call(connection, b"stalled"), 60)
    node.world.network.heal()
    assert node.world.result(node.call(connection, b"after"), 60) == b"after"
    assert node.seen[1:] == [b"stalled", b"after"]


def test_a_partition_that_lasts_ends_the_connection(node: Node) -> None:
    connection = node.connected()
    node.world.network.partition("client", "b1")
    with pytest.raises(ConnectionFailed, match="timed out"):
        node.world.result(node.call(connection, b"x", timeout_ms=100_000), 100)


@pytest.mark.parametrize("end", ["kill", "exit", "power"])
def test_a_node_that_dies_is_noticed_and_one_that_returns_is_reached(node: Node, end: str) -> None:
    connection = node.connected()
    task = node.call(connection, b"x", timeout_ms=5_000)
    {"kill": node.host.kill, "exit": lambda: node.host.exit(1), "power": node.host.power_cut}[end]()
    with pytest.raises((ConnectionFailed, RequestTimedOut)):
        node.world.result(task, 60)
    node.host.restart(node.main)
    node.world.run_for(1)
    assert node.world.result(node.call(node.connected(), b"again"), 60) == b"again"


def test_a_refused_connect_says_so(node: Node) -> None:
    node.world.network.refuse("b1")
    with pytest.raises(ConnectionFailed) as refused:
        node.connected()
    assert isinstance(refused.value.__cause__, ConnectionRefusedError)


def test_a_node_that_is_full_stops_reading_and_serves_all_in_the_end(world: World) -> None:
    limits = replace(
        DEFAULT, max_requests_in_flight=4, connection_allowance_bytes=64 * 1024, max_request_bytes=17 << 20
    )
    node = Node(world, Bounds(limits))
    node.answering = False
    connection = node.connected()
    tasks = [node.call(connection, bytes(50_000), 600_000) for _ in range(20)]
    world.run_for(5)
    assert 0 < len(node.waiting) <= 5
    node.answering = True
    for request in list(node.waiting):
        node.host.spawn(answer_later(request))
    assert [len(world.result(task, 100)) for task in tasks] == [50_000] * 20


async def answer_later(request: Incoming) -> None:
    await asyncio.sleep(1)
    request.reply(Welcome(), bytes(50_000))


def test_closing_sends_what_was_answered_and_leaves_nothing(node: Node) -> None:
    connection = node.connected()
    task = node.call(connection, bytes(2_000_000))
    node.world.result(task, 60)
    node.listener.close()
    node.world.run_until(lambda: not node.host.alive, node.world.now + 60)
    node.world.run_for(1)
    assert node.host.exit_code == 0
    assert connection.closed
    assert node.world.network.connections() == []


def test_a_stall_is_measured_in_virtual_time(node: Node) -> None:
    async def measure() -> float:
        meter = StallMeter(every_ms=20)
        meter.start()
        await asyncio.sleep(10)
        meter.stop()
        return meter.longest_ms

    task = node.host.create_task(measure())
    node.world.run_for(3)
    node.host.stop()
    node.world.run_for(2)
    node.host.resume()
    assert node.world.result(task, 60) == pytest.approx(2_000, abs=21)
