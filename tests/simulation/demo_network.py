"""Programs to simulate: echoes over streams and protocols, and a failure detector. Written as for a real loop."""

import asyncio

from tidelog.testing.simulation.host import Environment, Host
from tidelog.testing.simulation.world import World

LINES_PORT, FRAMES_PORT, BEATS_PORT = 9001, 9002, 9003


async def echo_lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send every line back."""
    try:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


class EchoBytes(asyncio.BufferedProtocol):
    """Sends everything back; all connections share one buffer, as the product's do."""

    buffer = bytearray(64)
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(bytes(self.buffer[:nbytes]))


async def serve_echoes(_environment: Environment) -> None:
    """The main of a host that echoes lines and bytes."""
    await asyncio.start_server(echo_lines, None, LINES_PORT)
    await asyncio.get_running_loop().create_server(EchoBytes, None, FRAMES_PORT)
    await asyncio.get_running_loop().create_future()


async def ask(host: str, port: int, times: int) -> int:
    """Send so many lines, each after the answer to the one before."""
    reader, writer = await asyncio.open_connection(host, port)
    for number in range(times):
        line = b"%d " % number + b"x" * (number % 70) + b"\n"
        writer.write(line)
        assert await reader.readline() == line
    writer.close()
    await writer.wait_closed()
    return times


def echo_scenario(world: World) -> None:
    """5 clients of streams and 5 of protocols, 500 round trips (07-simulation 7.7)."""
    Host("server", world).start(serve_echoes)
    world.run(until=1)
    ports = [LINES_PORT, FRAMES_PORT] * 5
    tasks = [Host(f"c{i}", world).create_task(ask("server", port, 50)) for i, port in enumerate(ports)]
    for task in tasks:
        world.counts["round trips"] += world.result(task, deadline=60)


class Detector:
    """Believes that a peer is alive while it hears from it: on each host, about all others."""

    BEAT_S, SILENCE_S = 0.1, 1.0

    def __init__(self, peers: list[str]) -> None:
        self.peers = peers
        self.heard: dict[str, float] = {}

    def alive(self, now: float) -> list[str]:
        """Those it has heard from lately."""
        return [peer for peer in self.peers if now - self.heard.get(peer, -9.0) < self.SILENCE_S]

    async def main(self, environment: Environment) -> None:
        """The main of a host: send beats to all, listen to all."""
        others = [peer for peer in self.peers if peer != environment.name]
        await asyncio.start_server(self._hear, None, BEATS_PORT)
        async with asyncio.TaskGroup() as group:
            for peer in others:
                group.create_task(self._beat(environment.name, peer))

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        try:
            while line := await reader.readline():
                # By the host's own clock: those of others have nothing in common with it.
                self.heard[line.decode().strip()] = loop.time()
        except OSError:
            pass
        finally:
            writer.close()

    async def _beat(self, name: str, peer: str) -> None:
        while True:
            try:
                await self._beat_until_broken(name, peer)
            except OSError:
                await asyncio.sleep(self.BEAT_S)

    async def _beat_until_broken(self, name: str, peer: str) -> None:
        async with asyncio.timeout(1):
            _, writer = await asyncio.open_connection(peer, BEATS_PORT)
        try:
            while True:
                writer.write(name.encode() + b"\n")
                async with asyncio.timeout(1):
                    await writer.drain()
                # Whoever is not heard of for long is connected to anew: the old connection may be dead.
                if asyncio.get_running_loop().time() - self.heard.get(peer, 0.0) > 3 * self.SILENCE_S:
                    self.heard[peer] = asyncio.get_running_loop().time() - 2 * self.SILENCE_S
                    raise TimeoutError
                await asyncio.sleep(self.BEAT_S)
        finally:
            writer.transport.abort()


class Watched:
    """Three hosts with detectors, and what each believes."""

    def __init__(self, world: World) -> None:
        self.world = world
        names = ["a", "b", "c"]
        self.detectors = {name: Detector([peer for peer in names if peer != name]) for name in names}
        self.hosts = {name: Host(name, world) for name in names}
        for name in names:
            self.hosts[name].start(self.detectors[name].main)

    def sees(self, name: str) -> list[str]:
        """Whom a host believes to be alive."""
        return self.detectors[name].alive(self.hosts[name].monotonic())

    def restart(self, name: str) -> None:
        """A new process on a host that was killed or lost power; it remembers nothing."""
        self.detectors[name] = Detector(self.detectors[name].peers)
        self.hosts[name].restart(self.detectors[name].main)

    def settle(self) -> dict[str, list[str]]:
        """Let some seconds pass, and tell what each living host believes."""
        self.world.run_for(6)
        return {name: self.sees(name) for name, host in self.hosts.items() if host.alive and not host.stopped}


EVERYBODY = {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]}
