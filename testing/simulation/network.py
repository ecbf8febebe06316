"""The network of a simulated world: who reaches whom, how connections begin, and what tests do to them.

What it keeps true:

* A connect is answered by the kernel of the host that it reaches: accepted where somebody listens, be it a stopped
  process, and refused where nobody does. Where nothing answers (a cut, no power, a full backlog, a silent host) it is
  repeated, and only the caller's own patience ends it soon.
* A cut stalls what is under way in that direction; `heal` releases it. Nothing inside a connection is ever lost.
"""

import errno
import socket
from collections.abc import Callable

from tidelog.testing.simulation.links import Conditions, Links
from tidelog.testing.simulation.sockets import Connection, Endpoint, Listener, Machine
from tidelog.testing.simulation.timeline import Timeline

_HERE = ("", "localhost", "127.0.0.1", "0.0.0.0")  # noqa: S104 -- names that a config may say; nothing is bound
_FIRST_RETRY_S = 1.0


class Attempt:
    """A connect that has not been answered."""

    __slots__ = (
        "cancelled",
        "established",
        "failed",
        "give_up_at",
        "port",
        "source",
        "target",
        "wait",
    )

    def __init__(
        self,
        source: Machine,
        target: Machine,
        port: int,
        established: Callable[[Endpoint], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self.source = source
        self.target = target
        self.port = port
        self.established = established
        self.failed = failed
        self.cancelled = False
        self.give_up_at = 0.0
        self.wait = _FIRST_RETRY_S

    def cancel(self) -> None:
        """Nobody waits for it any more; it may still reach the other side."""
        self.cancelled = True


class Network:
    """All machines and connections of a world. Hosts are named by their names."""

    def __init__(self, timeline: Timeline, conditions: Conditions) -> None:
        self.conditions = conditions
        self.links = Links(timeline, conditions)
        self.machines: dict[str, Machine] = {}
        self._timeline = timeline
        self._connections: dict[Connection, None] = {}
        self._opened = 0

    # ── what hosts call ────────────────────────────────────────────────────────────────────────────

    def machine(self, name: str) -> Machine:
        """A new host, with the next address."""
        assert name not in self.machines, f"there is a host {name} already"
        machine = Machine(name, len(self.machines) + 1)
        self.machines[name] = machine
        return machine

    def listen(
        self, machine: Machine, host: str | None, port: int, limit: int, on_acceptable: Callable[[], None]
    ) -> Listener:
        """Open a port. All addresses of a host are one."""
        if host is not None and self._resolve(machine, host) is not machine:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is no address of {machine.name}")
        listener = Listener(machine, port, limit, on_acceptable)
        self._timeline.note(machine.name, "listen", listener.port)
        return listener

    def connect(
        self,
        source: Machine,
        host: str,
        port: int,
        established: Callable[[Endpoint], None],
        failed: Callable[[OSError], None],
    ) -> Attempt:
        """Try to connect; one of the two is told, unless nobody answers and the attempt is cancelled."""
        attempt = Attempt(source, self._resolve(source, host), port, established, failed)
        attempt.give_up_at = self._timeline.now + self.conditions.connect_give_up_s
        self._timeline.note(source.name, "connect", attempt.target.name, port)
        self._send(attempt)
        return attempt

    def _resolve(self, machine: Machine, host: str) -> Machine:
        if host in _HERE:
            return machine
        if host in self.machines:
            return self.machines[host]
        for other in self.machines.values():
            if other.address == host:
                return other
        raise socket.gaierror(socket.EAI_NONAME, f"no host is called {host}")

    # ── connecting ─────────────────────────────────────────────────────────────────────────────────

    def _send(self, attempt: Attempt) -> None:
        delay, _ = self.links.delay((attempt.source.name, attempt.target.name))
        self._timeline.at(self._timeline.now + delay, self._arrive, attempt)

    def _arrive(self, attempt: Attempt) -> None:
        if attempt.cancelled:
            return
        source, target = attempt.source, attempt.target
        there, back = (source.name, target.name), (target.name, source.name)
        lost = there in self.links.cuts or back in self.links.cuts
        listener = None if target.refusing else target.listeners.get(attempt.port)
        if lost or not target.powered or target.silent or (listener is not None and listener.full):
            self._repeat(attempt)
            return
        answered_at = self._timeline.now + self.links.delay(back)[0]
        if listener is None:
            self._timeline.at(answered_at, self._fail, attempt, errno.ECONNREFUSED)
            return
        self._opened += 1
        connection = Connection(
            self._opened,
            (source, (source.address, source.free_port())),
            (target, (target.address, attempt.port)),
            self._timeline,
            self.links,
            self._over,
        )
        self._connections[connection] = None
        connection.server.out.not_before(answered_at)
        listener.arrive(connection.server)
        self._timeline.note(target.name, "open", source.name, attempt.port, connection.number)
        self._timeline.at(answered_at, self._establish, attempt, connection.client)

    def _repeat(self, attempt: Attempt) -> None:
        again = self._timeline.now + attempt.wait
        attempt.wait *= 2
        if again < attempt.give_up_at:
            self._timeline.at(again, self._send, attempt)
        else:
            self._timeline.at(attempt.give_up_at, self._fail, attempt, errno.ETIMEDOUT)

    def _establish(self, attempt: Attempt, endpoint: Endpoint) -> None:
        if attempt.cancelled:
            endpoint.orphan()
        elif not endpoint.closed:
            attempt.established(endpoint)
        elif endpoint.error is not None:
            attempt.failed(endpoint.error)

    def _fail(self, attempt: Attempt, number: int) -> None:
        if not attempt.cancelled:
            reason = {errno.ECONNREFUSED: "Connection refused", errno.ETIMEDOUT: "Connection timed out"}
            attempt.failed(OSError(number, f"{reason[number]} by {attempt.target.name}:{attempt.port}"))

    def _over(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    # ── what tests do ──────────────────────────────────────────────────────────────────────────────

    def connections(self, a: str | None = None, b: str | None = None) -> list[Connection]:
        """Those that are open or half open, oldest first: all, of one host, or between two."""
        wanted = [name for name in (a, b) if name is not None]
        return [
            connection for connection in self._connections if all(name in connection.hosts for name in wanted)
        ]

    def partition(self, a: str, b: str, *, both: bool = True) -> None:
        """Let nothing get from a to b, nor, if `both`, from b to a."""
        assert a in self.machines and b in self.machines, f"there is no {a} or no {b}"  # noqa: PT018 -- one fact
        self._timeline.note(a, "cut", b, both)
        self.links.cut((a, b))
        if both:
            self.links.cut((b, a))

    def isolate(self, host: str) -> None:
        """Cut a host off from all others."""
        for other in self.machines:
            if other != host:
                self.partition(host, other)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """Mend every cut: between two hosts, of one, or all."""
        wanted = {name for name in (a, b) if name is not None}
        self._timeline.note(a or "*", "heal", b)
        for way in list(self.links.cuts):
            if wanted <= set(way):
                self.links.mend(way)
        for connection in self.connections(a, b):
            for flow in connection.flows:
                flow.resume()

    def refuse(self, host: str) -> None:
        """Let something on the way reset a living host's connections and refuse new ones to it."""
        self._timeline.note(host, "refuse")
        self.machines[host].refusing = True
        for connection in self.connections(host):
            connection.reset()

    def silence(self, host: str) -> None:
        """Let connects to this host go unanswered; its open connections go on."""
        self._timeline.note(host, "silence")
        self.machines[host].silent = True

    def admit(self, host: str) -> None:
        """Undo `refuse` and `silence`."""
        self._timeline.note(host, "admit")
        self.machines[host].refusing = self.machines[host].silent = False

    def slow(
        self, a: str, b: str, latency_ms: tuple[float, float], *, bytes_per_s: float = float("inf")
    ) -> None:
        """Let both directions between two hosts take so long, and carry no more than that."""
        self._timeline.note(a, "slow", b, *latency_ms)
        for way in ((a, b), (b, a)):
            self.links.slow(way, latency_ms, bytes_per_s)

    def quicken(self, a: str, b: str) -> None:
        """Undo `slow`."""
        self._timeline.note(a, "quicken", b)
        for way in ((a, b), (b, a)):
            self.links.quicken(way)

    # ── power ──────────────────────────────────────────────────────────────────────────────────────

    def lose_power(self, machine: Machine) -> None:
        """The host falls silent."""
        machine.lose_power()

    def regain_power(self, machine: Machine) -> None:
        """The host is back and knows of no connection: it resets what reaches it."""
        machine.powered = True
        for connection in self.connections(machine.name):
            for flow in connection.flows:
                flow.resume()
