"""A simulated cluster: controllers and brokers, each the product's own code on a host of its own.

After each turn of a process its replicas are looked at; what an `Oracle` finds there fails the run at that moment.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from random import Random
from typing import Any

from tests.simulation.controllers_witness import Witness
from tests.simulation.invariants import Oracle
from tidelog.broker.broker import Broker
from tidelog.broker.broker import Environment as BrokerEnvironment
from tidelog.broker.config import BrokerConfig
from tidelog.broker.fetcher import FetchSettings
from tidelog.broker.flusher import FlushSettings
from tidelog.broker.partition import Partition
from tidelog.broker.upkeep import UpkeepSettings
from tidelog.controller.active import ActiveConfig
from tidelog.controller.config import ControllerConfig
from tidelog.controller.controller import Controller
from tidelog.controller.following import FollowingConfig
from tidelog.controller.image import Image
from tidelog.controller.liveness import LivenessConfig
from tidelog.controller.quorum import QuorumConfig
from tidelog.controller.snapshots import SnapshotConfig
from tidelog.protocol.types import BrokerId
from tidelog.storage.config import LogConfig
from tidelog.storage.environment import Environment as ControllerEnvironment
from tidelog.testing.simulation.host import Environment, Host
from tidelog.testing.simulation.timeline import Process
from tidelog.testing.simulation.world import World

BROKER_PORT = 9092
CONTROLLER_PORT = 9192
QUICK: dict[str, Any] = {
    "broker_heartbeat_interval_ms": 300,
    "broker_session_timeout_ms": 1500,
    "replica_lag_time_max_ms": 2000,
    "fetch": FetchSettings(max_wait_ms=500, timeout_ms=1000, partition_max_bytes=8192, max_bytes=32768),
    "flush": FlushSettings(3000, 64 << 10, 700, 3000, min_free_bytes=2000),
    "log": LogConfig(segment_bytes=4096, index_interval_bytes=256, retention_ms=-1),
    "reserve_bytes": 256 << 10,
    "snapshots": SnapshotConfig(metadata_log_max_record_bytes_between_snapshots=8192),
    "upkeep": UpkeepSettings(check_interval_ms=1000),
}
"""Timeouts five times shorter and segments a thousand times smaller than by default: rare branches become common."""

CONTROLLER_RESERVE = 8 << 10
"""Little enough to be used up now and then: what a controller does then is to be seen as well."""

IDLE_MS = 3000
"""A record of a controller that has nothing to say is written by every voter and read by every broker.

Of several it is what a leader that is cut off writes in vain, so there it comes as often as by default.
"""

DEFAULTS: dict[str, Any] = {
    "broker_session_timeout_ms": 9000,
    "log": LogConfig(segment_bytes=16384, index_interval_bytes=256, retention_ms=-1),
}
"""What users get, but for segments: a storm writes too little for large ones."""


class Cluster:
    """Some controllers and brokers, and what they are seen to do."""

    kind_of_oracle = Oracle

    def __init__(
        self,
        world: World,
        *,
        brokers: int = 3,
        controllers: int = 1,
        config: dict[str, Any] | None = None,
        racks: dict[int, str] | None = None,
        disks: int = 1,
    ) -> None:
        self.world = world
        self.oracle = self.kind_of_oracle()
        self.config = QUICK if config is None else config
        self.racks = racks or {}
        self.brokers: dict[int, Broker] = {}
        """The node of each broker's last life."""
        self._folded: dict[int, tuple[Broker, int]] = {}
        """Up to where the image of each broker was compared, and in which of its lives."""
        self._looked_at: set[int] = set()
        """The brokers of which somebody has seen how they started."""
        self.quorum = {number: Host(f"c{number}", world) for number in range(1, controllers + 1)}
        self.controllers: list[Controller] = []
        """The node of each life of each controller, in the order in which they began."""
        self.nodes: dict[int, Controller] = {}
        """The node of each controller's last life."""
        self.hosts = {number: Host(f"b{number}", world) for number in range(1, brokers + 1)}
        for host in self.hosts.values():
            for _ in range(disks - 1):
                host.add_disk()
        self._controllers: dict[Process, int] = {host: number for number, host in self.quorum.items()}
        self._numbers: dict[Process, int] = {host: number for number, host in self.hosts.items()}
        self.witness = Witness(self.quorum, self._fetch_ms, self.oracle.counts)
        """Of the quorum; the oracle sees to the brokers."""
        self.oracle.told = lambda life, *news: world.trace.tell(world.now, f"b{life[0]}", *news)
        world.timeline.watch = self.look
        for number in self.quorum:
            self.start_controller(number)
        for number in self.hosts:
            self.start(number)

    # ── processes ─────────────────────────────────────────────────────────────────────────────────

    def start_controller(self, number: int = 1) -> None:
        """Start a controller's process, after a boot if its machine is dark."""
        self.nodes.pop(number, None)
        self.quorum[number].restart(partial(self._run_controller, number))

    @property
    def _fetch_ms(self) -> int:
        """`quorum.fetch.timeout.ms`, in its proportion to the session."""
        return int(self.config["broker_session_timeout_ms"]) * 2 // 9

    async def _run_controller(self, number: int, env: Environment) -> None:
        rng = Random(self.world.rng.getrandbits(64))
        session_ms, fetch_ms = self.config["broker_session_timeout_ms"], self._fetch_ms
        config = ControllerConfig(
            node_id=BrokerId(number),
            voters=tuple((n, host.machine.address, CONTROLLER_PORT) for n, host in self.quorum.items()),
            host=env.address,
            port=CONTROLLER_PORT,
            quorum=QuorumConfig(election_timeout_ms=fetch_ms // 2, fetch_timeout_ms=fetch_ms),
            following=FollowingConfig(
                fetch_max_wait_ms=fetch_ms // 2, fetch_timeout_ms=fetch_ms, connect_timeout_ms=fetch_ms // 2
            ),
            snapshots=self.config.get("snapshots", SnapshotConfig()),
            log=self.config["log"],
            reserve_bytes=CONTROLLER_RESERVE,
            idle_ms=IDLE_MS if len(self.quorum) == 1 else IDLE_MS // 6,
            active=ActiveConfig(
                liveness=LivenessConfig(session_timeout_ms=session_ms, quorum_fetch_timeout_ms=fetch_ms)
            ),
        )
        controller = Controller(
            config,
            ControllerEnvironment(
                env.directory,
                env.clock,
                env.boot_id,
                env.life,
                rng,
                lambda: rng.randbytes(16),
                nullcontext,
                env.halt,
            ),
        )
        self.controllers.append(controller)
        self.nodes[number] = controller
        await controller.run()

    def start(self, number: int) -> None:
        """Start a broker's process, after a boot if its machine is dark."""

        def made(broker: Broker) -> None:
            self.brokers[number] = broker

        self.brokers.pop(number, None)
        self._looked_at.discard(number)
        self.hosts[number].restart(partial(self.run_broker, number, made))

    async def run_broker(self, number: int, made: Callable[[Broker], None], env: Environment) -> None:
        """The main of a host that is this broker; `made` gets the node, to be looked at."""
        config = BrokerConfig(
            broker_id=BrokerId(number),
            controllers=tuple((n, host.machine.address, CONTROLLER_PORT) for n, host in self.quorum.items()),
            host=env.address,
            port=BROKER_PORT,
            rack=self.racks.get(number, ""),
            **self.config,
        )
        rng = Random(self.world.rng.getrandbits(64))
        broker = Broker(
            config,
            BrokerEnvironment(
                env.directory,
                env.clock,
                env.boot_id,
                env.life,
                rng,
                lambda: rng.randbytes(16),
                nullcontext,
                env.halt,
                other_directories=env.other_directories,
            ),
        )
        made(broker)
        await broker.run()

    def stop(self, number: int, seconds: float = 10) -> None:
        """Stop a broker in order, and wait until its process has ended."""
        host, broker = self.hosts[number], self.brokers[number]

        async def ask() -> None:
            broker.stop()

        host.spawn(ask())
        self.until(lambda: not host.alive, seconds)

    @property
    def controller(self) -> Host:
        """The host of the active controller; while nobody is, of the first one."""
        return self.quorum[self.active[0] if self.active else 1]

    @property
    def active(self) -> tuple[int, Controller] | None:
        """The active controller: of several that believe to be, the one of the newest epoch."""
        nodes = [
            (node.epoch, number, node)
            for number, node in self.nodes.items()
            if self.quorum[number].alive and node.active is not None
        ]
        return max(nodes, key=lambda known: known[0])[1:] if nodes else None

    @property
    def image(self) -> Image:
        """The cluster as the controller with the longest log has it."""
        known = [
            node.working for node in self.controllers[-2 * len(self.quorum) :] if hasattr(node, "metadata")
        ]
        return max(known, key=lambda image: image.end_offset)

    def alive(self) -> list[int]:
        """The brokers whose process runs and is not stopped."""
        return [number for number, host in self.hosts.items() if host.alive and not host.stopped]

    # ── looking ───────────────────────────────────────────────────────────────────────────────────

    def replicas(self) -> dict[tuple[int, tuple[bytes, int]], Partition]:
        """Every replica of a living broker, by broker and place."""
        return {
            (number, place): partition
            for number, broker in self.brokers.items()
            if broker.serving and self.hosts[number].alive
            for place, partition in broker.replicas.partitions.items()
        }

    def look(self) -> None:
        """Look at whoever has just had a turn: at every replica of a broker, or at a controller."""
        whose = self.world.timeline.turned
        assert whose is not None
        number = self._numbers.get(whose)
        if number is not None:
            self._look_at(number)
        elif whose in self._controllers:
            self.witness.look_at(self._controllers[whose], self.nodes)
        if self.witness.wary:
            self.witness.look(self.nodes)

    def _look_at(self, number: int) -> None:
        broker, host = self.brokers.get(number), self.hosts[number]
        if broker is None or not broker.serving or host.loop is None:
            return
        if number not in self._looked_at:
            self._looked_at.add(number)
            self._count_start(broker)
        end = broker.observer.image.end_offset
        if self._folded.get(number) != (broker, end):
            self._folded[number] = broker, end
            self.witness.follows(f"b{number}", broker.observer.image, self.nodes)
        life = number, host.life
        broken: tuple[str, ...] = ()
        if host.more_disks:
            broken = tuple(f"/more-{at}/" for at, disk in enumerate(host.more_disks, 1) if disk.broken)
        for place, partition in broker.replicas.partitions.items():
            if broken and partition.log.directory.path.startswith(broken):
                continue  # what is there nobody can read, nor can we: a reader may be the first who finds that
            if partition.offline is None:
                self.oracle.look(life, place, partition)
            elif not any(word in partition.offline for word in ("not placed", "directory has failed")):
                raise AssertionError(f"{partition} went offline")

    def _count_start(self, broker: Broker) -> None:
        """How the last life of a broker ended, and what its recovery had to do."""
        counts = self.oracle.counts
        counts[f"starts after {broker.data.first.life.last_end.name.lower()}"] += 1
        for findings in broker.data.report.found.values():
            counts["recoveries that verified a tail"] += findings.verified_bytes > 0
            counts["recoveries that cut a torn tail"] += findings.torn_bytes > 0
            counts["recoveries that found damage"] += bool(findings.damage)

    def compare(self) -> None:
        """Compare all that replicas hold with what was committed."""
        for (number, place), partition in self.replicas().items():
            self.oracle.compare((number, self.hosts[number].life), place, partition)

    def until(self, condition: Callable[[], object], seconds: float, *, every_s: float = 0.0) -> None:
        """Let time pass until the condition holds; it is looked at after each event, or only so often."""
        self.world.run_until(condition, self.world.now + seconds, every_s=every_s)

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass."""
        self.world.run_for(seconds)

    # ── converged ─────────────────────────────────────────────────────────────────────────────────

    def converged(self) -> bool:
        """Every partition is led, everybody is in sync, everything is committed, all logs are the same (I-29)."""
        by_place: dict[tuple[bytes, int], list[Partition]] = {}
        for (_, place), partition in self.replicas().items():
            by_place.setdefault(place, []).append(partition)
        return bool(by_place) and all(self._agree(partitions) for partitions in by_place.values())

    @staticmethod
    def _agree(partitions: list[Partition]) -> bool:
        leaders = [partition.leadership for partition in partitions if partition.leadership is not None]
        if len(leaders) != 1 or len(partitions) != len(leaders[0].state.replicas):
            return False
        ends = {(partition.log.end_offset, partition.high_watermark) for partition in partitions}
        state = leaders[0].state
        return (
            len(ends) == 1 and all(end == hwm for end, hwm in ends) and set(state.isr) == set(state.replicas)
        )


def with_config(**changes: Any) -> dict[str, Any]:
    """`QUICK`, with these settings otherwise."""
    return {**QUICK, **changes}
