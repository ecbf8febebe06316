"""Simulated connections keep TCP's and asyncio's promises, and break as real ones do (07-simulation 7.3)."""

import asyncio
import errno
import socket

import pytest

from tests.simulation.demo_network import EchoBytes, ask, echo_lines
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.network import Network
from tidelog.testing.simulation.sockets import Connection
from tidelog.testing.simulation.transports import SimulatedTransport
from tidelog.testing.simulation.world import World

PORT = 9000


class Peer(asyncio.Protocol):
    """Notes everything that its transport tells it."""

    def __init__(self, *, half_open: bool = False) -> None:
        self.transport: SimulatedTransport
        self.told: list[str] = []
        self.data = b""
        self.chunks = 0
        self.lost: list[Exception | None] = []
        self.half_open = half_open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimulatedTransport)
        self.transport = transport
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.chunks += 1

    def eof_received(self) -> bool:
        self.told.append("eof")
        return self.half_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")


class Pair:
    """A client on host a, a server on host b, and a connection between them."""

    def __init__(self, world: World, **options: bool) -> None:
        self.world = world
        self.a, self.b = Host("a", world), Host("b", world)
        self.servers: list[Peer] = []
        self.client = Peer(**options)
        self.b.spawn(self._listen(**options))
        world.run_for(0.1)
        world.result(self.a.create_task(self.connect(self.client)), 10)
        world.run_for(0.1)

    async def _listen(self, **options: bool) -> None:
        def accept() -> Peer:
            self.servers.append(Peer(**options))
            return self.servers[-1]

        await asyncio.get_running_loop().create_server(accept, "b", PORT)

    async def connect(self, peer: Peer) -> None:
        await asyncio.get_running_loop().create_connection(lambda: peer, "b", PORT)

    @property
    def server(self) -> Peer:
        return self.servers[0]

    @property
    def network(self) -> Network:
        return self.world.network

    @property
    def connection(self) -> Connection:
        return self.network.connections("a", "b")[0]


@pytest.fixture
def pair(world: World) -> Pair:
    return Pair(world)


def test_bytes_arrive_whole_in_order_and_cut_at_will(pair: Pair) -> None:
    sent = bytes(range(256)) * 400
    for at in range(0, len(sent), 1000):
        pair.client.transport.write(sent[at : at + 1000])
    pair.world.run_for(60)
    assert pair.server.data == sent
    assert pair.server.chunks != 103


@pytest.mark.parametrize("seed", range(10))
def test_streams_echo_under_every_seed(seed: int) -> None:
    with World(seed).running() as world:
        server = Host("server", world)
        server.spawn(asyncio_start(echo_lines))
        world.run_for(0.1)
        tasks = [Host(name, world).create_task(ask("server", PORT, 20)) for name in "abc"]
        assert [world.result(task, 60) for task in tasks] == [20, 20, 20]


def test_a_buffered_protocol_shares_one_buffer_among_its_connections(world: World) -> None:
    async def serve() -> None:
        await asyncio.get_running_loop().create_server(EchoBytes, None, PORT)

    Host("server", world).spawn(serve())
    world.run_for(0.1)
    tasks = [Host(name, world).create_task(ask("server", PORT, 50)) for name in "abcd"]
    assert [world.result(task, 60) for task in tasks] == [50] * 4


def test_both_ends_know_who_they_are_and_that_there_is_no_socket(pair: Pair) -> None:
    client, server = pair.client.transport, pair.server.transport
    assert client.get_extra_info("peername") == server.get_extra_info("sockname") == ("10.0.0.2", PORT)
    assert client.get_extra_info("sockname") == server.get_extra_info("peername")
    assert client.get_extra_info("socket") is None
    assert client.get_extra_info("compression", "none") == "none"


def test_who_does_not_read_stops_who_writes_until_it_reads(pair: Pair) -> None:
    pair.server.transport.pause_reading()
    pair.client.transport.write(bytes(1 << 20))
    pair.world.run_for(5)
    assert pair.client.told == ["made", "pause"]
    assert pair.client.transport.get_write_buffer_size() > 64 * 1024
    pair.server.transport.resume_reading()
    pair.world.run_for(60)
    assert pair.client.told == ["made", "pause", "resume"]
    assert len(pair.server.data) == 1 << 20


def test_write_buffer_limits_are_kept(pair: Pair) -> None:
    transport = pair.client.transport
    transport.set_write_buffer_limits(high=1000)
    assert transport.get_write_buffer_limits() == (250, 1000)
    with pytest.raises(ValueError, match="must be >="):
        transport.set_write_buffer_limits(high=1, low=2)


def test_nothing_is_read_while_reading_is_paused(pair: Pair) -> None:
    pair.server.transport.pause_reading()
    pair.client.transport.write(b"early")
    pair.world.run_for(1)
    assert pair.server.data == b""
    assert not pair.server.transport.is_reading()
    pair.server.transport.resume_reading()
    pair.world.run_for(1)
    assert pair.server.data == b"early"


def test_closing_sends_what_was_written_then_ends_both_sides(pair: Pair) -> None:
    pair.client.transport.write(bytes(300_000))
    pair.client.transport.close()
    assert pair.client.transport.is_closing()
    pair.world.run_for(60)
    assert len(pair.server.data) == 300_000
    assert pair.server.told == ["made", "eof", "lost"]
    assert pair.client.lost == pair.server.lost == [None]
    assert pair.network.connections() == []


def test_a_connection_can_be_closed_by_halves(world: World) -> None:
    pair = Pair(world, half_open=True)
    pair.client.transport.write_eof()
    world.run_for(1)
    pair.server.transport.write(b"an answer to the end")
    world.run_for(1)
    assert pair.server.told == ["made", "eof"]
    assert pair.client.data == b"an answer to the end"


def test_an_abort_drops_what_the_kernel_has_not_taken(pair: Pair) -> None:
    pair.server.transport.pause_reading()
    pair.client.transport.write(bytes(1 << 20))
    pair.client.transport.abort()
    pair.server.transport.resume_reading()
    pair.world.run_for(60)
    assert pair.client.told[-1] == "lost"
    assert pair.server.told[-1] == "lost"
    assert len(pair.server.data) < 1 << 20


def test_to_close_with_bytes_unread_resets_the_peer(pair: Pair) -> None:
    pair.server.transport.pause_reading()
    pair.client.transport.write(b"never read")
    pair.world.run_for(1)
    pair.server.transport.close()
    pair.world.run_for(1)
    assert isinstance(pair.client.lost[0], ConnectionResetError)


def test_a_write_to_a_closed_peer_is_answered_with_a_reset(world: World) -> None:
    pair = Pair(world, half_open=True)
    pair.server.transport.close()
    world.run_for(1)
    for _ in range(2):
        # As with real sockets: who has read the end notices the reset when it writes again.
        pair.client.transport.write(b"is anybody there?")
        world.run_for(1)
    assert isinstance(pair.client.lost[0], ConnectionResetError)


def test_two_that_have_both_forgotten_their_connection_fall_silent(pair: Pair) -> None:
    connection = pair.connection
    for end in (pair.client, pair.server):
        end.transport.write(b"crossing")
    for end in (pair.client, pair.server):
        end.transport.close()
    pair.world.run_for(10)
    assert connection.client.closed
    assert connection.server.closed
    steps = pair.world.steps
    pair.world.run_for(60)
    assert pair.world.steps == steps


def test_a_reset_on_the_way_breaks_both_ends(pair: Pair) -> None:
    pair.connection.reset()
    pair.world.run_for(1)
    assert [type(error) for error in pair.client.lost + pair.server.lost] == [ConnectionResetError] * 2


def test_a_buffer_that_changes_after_it_was_written_changes_what_is_sent(pair: Pair) -> None:
    data = bytearray(1 << 20)
    pair.client.transport.write(data)
    data[-1] = 255
    pair.world.run_for(60)
    assert pair.server.data[-1] == 255


def test_a_connect_where_nobody_listens_is_refused(pair: Pair) -> None:
    task = pair.b.create_task(refused_by("a"))
    assert pair.world.result(task, 1) == errno.ECONNREFUSED


def test_a_connect_to_an_unknown_name_fails(pair: Pair) -> None:
    assert pair.world.result(pair.b.create_task(refused_by("nobody")), 1) == socket.EAI_NONAME


def test_a_port_that_is_taken_cannot_be_listened_on_and_port_0_is_another(pair: Pair) -> None:
    async def listen(port: int) -> int:
        server = await asyncio.get_running_loop().create_server(Peer, "b", port)
        return int(server.sockets[0].getsockname()[1])

    with pytest.raises(OSError, match="in use"):
        pair.world.result(pair.b.create_task(listen(PORT)))
    ports = [pair.world.result(pair.b.create_task(listen(0))) for _ in range(2)]
    assert len({PORT, *ports}) == 3


def test_a_partition_stalls_what_is_sent_and_healing_brings_it(pair: Pair) -> None:
    pair.network.partition("a", "b")
    pair.client.transport.write(b"patience")
    pair.world.run_for(5)
    assert pair.server.data == b""
    pair.network.heal()
    pair.world.run_for(1)
    assert pair.server.data == b"patience"
    assert pair.client.lost == []


def test_a_partition_that_lasts_ends_who_sent_with_a_timeout_and_who_did_not_hears_nothing(
    pair: Pair,
) -> None:
    pair.network.partition("a", "b")
    pair.client.transport.write(b"lost")
    pair.world.run_for(9)
    assert pair.client.lost == []
    pair.world.run_for(32)
    assert isinstance(pair.client.lost[0], TimeoutError)
    assert pair.server.lost == []


def test_a_one_way_cut_lets_bytes_through_but_not_their_acknowledgements(pair: Pair) -> None:
    pair.network.partition("b", "a", both=False)
    pair.client.transport.write(b"heard")
    pair.server.transport.write(b"not heard")
    pair.world.run_for(41)
    assert pair.server.data == b"heard"
    assert pair.client.data == b""
    assert [type(end.lost[0]) for end in (pair.client, pair.server)] == [TimeoutError, TimeoutError]


def test_after_a_timeout_a_healed_peer_learns_by_a_reset(pair: Pair) -> None:
    pair.network.partition("a", "b")
    pair.client.transport.write(b"lost")
    pair.world.run_for(41)
    pair.network.heal("a", "b")
    pair.server.transport.write(b"are you there?")
    pair.world.run_for(2)
    assert isinstance(pair.server.lost[0], ConnectionResetError)


def test_a_connect_into_a_partition_hangs_until_its_caller_gives_up(pair: Pair) -> None:
    pair.network.isolate("b")

    async def try_it() -> None:
        async with asyncio.timeout(7):
            await pair.connect(Peer())

    begin = pair.world.now
    with pytest.raises(TimeoutError):
        pair.world.result(pair.a.create_task(try_it()))
    assert pair.world.now - begin == pytest.approx(7, abs=0.01)


def test_a_connect_that_was_given_up_leaves_nothing_open(pair: Pair) -> None:
    pair.network.slow("a", "b", (500, 500))

    async def try_it() -> None:
        async with asyncio.timeout(0.75):
            await pair.connect(Peer())

    with pytest.raises(TimeoutError):
        pair.world.result(pair.a.create_task(try_it()))
    pair.world.run_for(5)
    assert pair.servers[1].told[-1] == "lost"
    assert len(pair.network.connections()) == 1


def test_a_healed_connect_succeeds_with_its_next_attempt(pair: Pair) -> None:
    pair.network.partition("a", "b")
    again = Peer()
    task = pair.a.create_task(pair.connect(again))
    pair.world.run_for(2)
    pair.network.heal()
    pair.world.result(task, pair.world.now + 3)
    assert again.told == ["made"]


def test_a_silent_host_answers_no_connect_and_keeps_its_connections(pair: Pair) -> None:
    pair.network.silence("b")
    task = pair.a.create_task(refused_by("b"))
    pair.client.transport.write(b"still here")
    pair.world.run_for(100)
    assert not task.done()
    assert pair.server.data == b"still here"
    assert pair.world.result(task) == errno.ETIMEDOUT


def test_a_refusing_host_lives_while_its_connections_are_reset_and_new_ones_refused(pair: Pair) -> None:
    pair.network.refuse("b")
    assert pair.world.result(pair.a.create_task(refused_by("b")), 5) == errno.ECONNREFUSED
    assert isinstance(pair.client.lost[0], ConnectionResetError)
    assert pair.b.alive
    pair.network.admit("b")
    assert pair.world.result(pair.a.create_task(refused_by("b")), 9) == 0


def test_what_an_old_connection_sent_can_arrive_after_what_its_successor_sent(pair: Pair) -> None:
    old = pair.connection
    old.hold()
    pair.client.transport.write(b"request 1")
    pair.world.run_for(60)
    pair.client.transport.abort()
    retry = Peer()
    pair.world.result(pair.a.create_task(pair.connect(retry)), 100)
    retry.transport.write(b"request 1 again")
    pair.world.run_for(5)
    assert [peer.data for peer in pair.servers] == [b"", b"request 1 again"]
    old.release()
    pair.world.run_for(5)
    assert pair.servers[0].data == b"request 1"
    assert pair.servers[0].told[-1] == "lost"


def test_a_slow_link_takes_its_time_and_has_a_width(pair: Pair) -> None:
    pair.network.slow("a", "b", (200, 300), bytes_per_s=10_000)
    pair.client.transport.write(bytes(50_000))
    pair.world.run_for(4)
    assert 0 < len(pair.server.data) < 45_000
    pair.world.run_for(60)
    assert len(pair.server.data) == 50_000


def test_a_killed_hosts_peers_are_told(pair: Pair) -> None:
    pair.client.transport.write(b"last words")
    pair.b.kill()
    pair.world.run_for(1)
    assert pair.client.told[-1] == "lost"
    assert pair.server.told == ["made"]


def test_a_host_without_power_tells_nobody_until_it_is_back(pair: Pair) -> None:
    pair.b.power_cut()
    pair.client.transport.write(b"hello?")
    pair.world.run_for(5)
    assert pair.client.lost == []
    pair.b.boot()
    pair.world.run_for(2)
    assert isinstance(pair.client.lost[0], ConnectionResetError)


def test_a_stopped_host_accepts_connections_and_bytes_and_answers_nothing(pair: Pair) -> None:
    pair.b.stop()
    second = Peer()
    pair.world.result(pair.a.create_task(pair.connect(second)), 5)
    second.transport.write(b"anybody?")
    pair.world.run_for(100)
    assert second.told == ["made"]
    assert len(pair.servers) == 1
    pair.b.resume()
    pair.world.run_for(1)
    assert pair.servers[1].data == b"anybody?"


def test_a_server_that_closes_waits_for_its_connections(pair: Pair) -> None:
    async def serve_then_close() -> list[str]:
        server = await asyncio.start_server(echo_lines, None, PORT + 1)
        await asyncio.sleep(1)
        server.close()
        assert not server.is_serving()
        await server.wait_closed()
        return pair.client.told

    serving = pair.b.create_task(serve_then_close())
    pair.world.run_for(0.5)
    asking = pair.a.create_task(ask("b", PORT + 1, 300))
    assert pair.world.result(asking, 100) == 300
    pair.world.result(serving, 100)


async def asyncio_start(serve: object) -> None:
    assert callable(serve)
    await asyncio.start_server(serve, None, PORT)


async def refused_by(host: str) -> int:
    """How a connect to this host's port ended: 0, or the error's number."""
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(Peer, host, PORT)
    except OSError as error:
        return error.errno or 0
    transport.abort()
    return 0
