"""The product's own transport runs unmodified in the simulator: cut anywhere, delayed, killed, stopped."""

import asyncio

import pytest

from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import ConnectionFailed, RequestTimedOut
from tidelog.protocol.io import Connection, Incoming, connect, listen
from tidelog.protocol.limits import Limits
from tidelog.protocol.messages import Hello, InitProducerId, InitProducerIdReply, Welcome
from tidelog.testing.simulation.host import Environment, Host
from tidelog.testing.simulation.world import World

PORT = 9092
ASK = InitProducerId()
ANSWER = InitProducerIdReply(producer_id=7, producer_epoch=0)
LIMITS = Limits(
    max_frame_bytes=300_000, max_head_bytes=10_000, max_request_bytes=400_000, max_requests_in_flight=4
)


def answer_later(request: Incoming) -> None:
    """Hello at once, the rest after a while, in whatever order."""
    if isinstance(request.message, Hello):
        request.reply(Welcome())
        return
    content = bytes(request.attachment)
    delay_s = len(content) % 7 / 1000
    asyncio.get_running_loop().call_later(delay_s, lambda: request.reply(ANSWER, content))


async def serve(_environment: Environment) -> None:
    """The main of a host that serves."""
    await listen("0.0.0.0", PORT, answer_later, Bounds(LIMITS))  # noqa: S104 -- a simulated address
    await asyncio.get_running_loop().create_future()


async def call_often(times: int) -> int:
    """Calls of all sizes, many at once."""
    connection = await connect("server", PORT)
    contents = [bytes((number % 256,)) * (number * 7919 % 250_000) for number in range(times)]
    replies = await asyncio.gather(*(connection.call(ASK, content) for content in contents))
    assert [attached for _, attached in replies] == contents
    connection.close()
    await connection.wait_closed()
    return times


def begun(world: World) -> Host:
    """A host that serves."""
    server = Host("server", world)
    server.start(serve)
    world.run(until=1)
    return server


@pytest.mark.parametrize("seed", range(5))
def test_calls_of_many_hosts_come_back_whole(seed: int) -> None:
    with World(seed).running() as world:
        begun(world)
        tasks = [Host(f"c{number}", world).create_task(call_often(20)) for number in range(4)]
        assert [world.result(task, deadline=120) for task in tasks] == [20] * 4


def test_a_killed_server_ends_every_call(world: World) -> None:
    server = begun(world)
    client = Host("client", world)
    connection: Connection = world.result(client.create_task(connect("server", PORT)), deadline=10)
    server.stop()
    call = client.create_task(connection.call(ASK, timeout_ms=60_000))
    world.run(until=3)
    server.kill()
    with pytest.raises(ConnectionFailed):
        world.result(call, deadline=100)


def test_a_stopped_server_is_waited_for_no_longer_than_asked(world: World) -> None:
    server = begun(world)
    client = Host("client", world)
    connection: Connection = world.result(client.create_task(connect("server", PORT)), deadline=10)
    server.stop()
    with pytest.raises(RequestTimedOut):
        world.result(client.create_task(connection.call(ASK, timeout_ms=500)), deadline=10)


def test_a_port_where_nobody_listens_refuses(world: World) -> None:
    Host("server", world).start()
    with pytest.raises(ConnectionFailed) as failed:
        world.result(Host("client", world).create_task(connect("server", PORT)), deadline=30)
    assert isinstance(failed.value.__cause__, ConnectionRefusedError)
