"""Sockets as a kernel keeps them for its processes: ends of connections, listeners, and who is told about them.

What it keeps true:

* The kernel outlives its processes. While one is stopped, connections are accepted into the backlog and bytes into
  buffers; when one dies, its ends are closed for it, and peers hear of that. Without power there is no kernel:
  peers hear nothing until it is back, and then that it knows nothing of them.
* Readiness is a level: who is told once looks until nothing is left.
* To close with bytes unread is a reset, as by every TCP.
"""

import errno
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from tidelog.testing.simulation.flows import Flow
from tidelog.testing.simulation.links import Links
from tidelog.testing.simulation.timeline import Timeline

Address: TypeAlias = tuple[str, int]

FIRST_EPHEMERAL_PORT = 49152


class Watcher(Protocol):
    """Who in the process is told about a socket."""

    def on_readable(self) -> None:
        """A read would return something."""

    def on_writable(self) -> None:
        """A write would take something."""

    def on_death(self) -> None:
        """The process is gone."""


class Machine:
    """A host as the network sees it: its address and its kernel's sockets."""

    __slots__ = (
        "_next_port",
        "address",
        "endpoints",
        "listeners",
        "name",
        "number",
        "powered",
        "refusing",
        "silent",
    )

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.address = f"10.0.{number >> 8}.{number & 255}"
        self.powered = True
        self.refusing = False
        """Whether connects are refused whoever listens."""
        self.silent = False
        """Whether connects are not answered, as by a firewall that drops them."""
        self.endpoints: dict[Endpoint, None] = {}
        self.listeners: dict[int, Listener] = {}
        self._next_port = FIRST_EPHEMERAL_PORT

    def free_port(self) -> int:
        """A port that nobody has; the same one comes back late, as in a real kernel."""
        while self._next_port in self.listeners:
            self._next_port += 1
        port = self._next_port
        self._next_port = FIRST_EPHEMERAL_PORT if port == 65535 else port + 1
        return port

    def end_process(self) -> None:
        """The process is gone: close what it left open."""
        for listener in list(self.listeners.values()):
            listener.close()
        for endpoint in list(self.endpoints):
            endpoint.orphan()

    def lose_power(self) -> None:
        """Everything is forgotten, and nobody is told."""
        self.powered = False
        for listener in self.listeners.values():
            listener.backlog.clear()
        self.listeners.clear()
        for endpoint in list(self.endpoints):
            endpoint.vanish()


class Endpoint:
    """One end of a connection."""

    __slots__ = (
        "_on_over",
        "_rng",
        "address",
        "closed",
        "error",
        "into",
        "machine",
        "out",
        "peer",
        "watcher",
    )

    out: Flow
    into: Flow

    def __init__(
        self,
        machine: Machine,
        address: Address,
        peer: Address,
        timeline: Timeline,
        on_over: Callable[[], None],
    ) -> None:
        self.machine = machine
        self._rng = timeline.rng
        self._on_over = on_over
        self.address = address
        self.peer = peer
        self.closed = False
        self.error: OSError | None = None
        self.watcher: Watcher | None = None
        machine.endpoints[self] = None

    # ── what the process calls ─────────────────────────────────────────────────────────────────────

    @property
    def readable(self) -> bool:
        """Whether a read would return something, be it the end or an error."""
        return bool(self.into.received) or self.into.ended or self.error is not None

    def receive(self, most: int) -> memoryview:
        """What has arrived; empty at the end. Raises what broke the connection, once all else is read."""
        if self.into.received:
            return self.into.take(most)
        if self.error is not None:
            raise self.error
        assert self.into.ended, "a read that would block"
        return memoryview(b"")

    def send(self, data: memoryview) -> int:
        """Hand over as much as is taken. Raises what broke the connection."""
        if self.error is not None:
            raise self.error
        if self.closed:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        return self.out.send(data)

    def shut_down(self) -> None:
        """Send the end, and go on reading."""
        if not self.closed:
            self.out.finish()

    def close(self) -> None:
        """Neither send nor read any more; what was handed over is still delivered."""
        if self.closed:
            return
        self._forget()
        if self.into.received:
            self.out.reset()
        else:
            self.out.finish()
        self.into.poke()
        self._on_over()

    # ── what happens to it ─────────────────────────────────────────────────────────────────────────

    def orphan(self) -> None:
        """Its process is gone: the peer gets what was sent and the end, or a reset, as chance has it."""
        self._tell_death()
        if self._rng.random() < 0.5:
            self.close()
        elif not self.closed:
            self._forget()
            self.out.reset()
            self.into.poke()
            self._on_over()

    def vanish(self) -> None:
        """Its host lost power."""
        self._tell_death()
        self._forget()
        self.out.abandon()
        self._on_over()

    def fail(self, error: OSError) -> None:
        """The connection is broken. What was received and not read may be lost with it."""
        if self.closed:
            return
        self._forget()
        self.error = error
        if self._rng.random() < 0.5:
            self.into.received.clear()
        self.out.abandon()
        self.into.poke()
        self.on_arrival()
        self.on_room()
        self._on_over()

    def refuse(self) -> None:
        """Something arrived for a connection that is over."""
        self.out.deny()

    def on_room(self) -> None:
        """The peer's kernel has acknowledged something."""
        if self.watcher is not None:
            self.watcher.on_writable()

    def on_arrival(self) -> None:
        """Something has arrived."""
        if self.watcher is not None:
            self.watcher.on_readable()

    def _forget(self) -> None:
        self.closed = True
        self.machine.endpoints.pop(self, None)

    def _tell_death(self) -> None:
        if self.watcher is not None:
            self.watcher.on_death()
            self.watcher = None


class Listener:
    """A port on which a kernel accepts connections for a process."""

    __slots__ = ("_limit", "_machine", "backlog", "closed", "on_acceptable", "port")

    def __init__(self, machine: Machine, port: int, limit: int, on_acceptable: Callable[[], None]) -> None:
        if port in machine.listeners:
            raise OSError(errno.EADDRINUSE, f"{machine.name}:{port} is in use")
        self._machine = machine
        self._limit = limit
        self.port = port or machine.free_port()
        self.backlog: deque[Endpoint] = deque()
        self.closed = False
        self.on_acceptable = on_acceptable
        machine.listeners[self.port] = self

    @property
    def full(self) -> bool:
        """Whether too many wait to be accepted; more are not answered."""
        return len(self.backlog) > self._limit

    def arrive(self, endpoint: Endpoint) -> None:
        """A connection is open; the process may not know it for long."""
        self.backlog.append(endpoint)
        self.on_acceptable()

    def close(self) -> None:
        """Accept nobody any more; who waits is reset."""
        if self.closed:
            return
        self.closed = True
        self._machine.listeners.pop(self.port, None)
        while self.backlog:
            endpoint = self.backlog.popleft()
            endpoint.out.reset()
            endpoint.close()


class Connection:
    """Two ends and the ways between them. The tests call this."""

    __slots__ = ("_on_over", "client", "number", "server")

    def __init__(
        self,
        number: int,
        client: tuple[Machine, Address],
        server: tuple[Machine, Address],
        timeline: Timeline,
        links: Links,
        on_over: Callable[["Connection"], None],
    ) -> None:
        self.number = number
        self._on_over = on_over
        self.client = Endpoint(client[0], client[1], server[1], timeline, self._end)
        self.server = Endpoint(server[0], server[1], client[1], timeline, self._end)
        self.client.out = self.server.into = Flow(number, self.client, self.server, timeline, links)
        self.server.out = self.client.into = Flow(number, self.server, self.client, timeline, links)

    @property
    def flows(self) -> tuple[Flow, Flow]:
        """Both directions."""
        return self.client.out, self.server.out

    @property
    def hosts(self) -> tuple[str, str]:
        """The names of both hosts, the client's first."""
        return self.client.machine.name, self.server.machine.name

    def reset(self) -> None:
        """Something on the way resets the connection: both ends hear of it at once."""
        for flow in self.flows:
            flow.lose()
        for end in (self.client, self.server):
            end.fail(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def hold(self) -> None:
        """Let nothing arrive until `release`, though nobody gives up for it."""
        for flow in self.flows:
            flow.held = True

    def release(self) -> None:
        """Let arrive what was held, whatever became of those who sent it."""
        for flow in self.flows:
            flow.held = False
            flow.resume()
        self._end()

    def _end(self) -> None:
        if self.client.closed and self.server.closed and not any(flow.held for flow in self.flows):
            self._on_over(self)
