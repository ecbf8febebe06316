"""A simulated cluster: one controller and some brokers, each the product's own code on a host of its own.

`Cluster.until` lets time pass and looks at every replica after every event; what an `Oracle` finds there fails
the run at that moment.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from random import Random
from typing import Any

from tests.simulation.invariants import Oracle
from tests.simulation.one_controller import ControllerConfig, OneController, run_controller
from tidelog.broker.broker import Broker
from tidelog.broker.broker import Environment as BrokerEnvironment
from tidelog.broker.config import BrokerConfig
from tidelog.broker.fetcher import FetchSettings
from tidelog.broker.flusher import FlushSettings
from tidelog.broker.partition import Partition
from tidelog.protocol.types import BrokerId
from tidelog.storage.config import LogConfig
from tidelog.testing.simulation.host import Environment, Host
from tidelog.testing.simulation.world import World

BROKER_PORT = 9092
CONTROLLER_PORT = 9192
QUICK: dict[str, Any] = {
    "broker_heartbeat_interval_ms": 300,
    "broker_session_timeout_ms": 1500,
    "replica_lag_time_max_ms": 2000,
    "fetch": FetchSettings(max_wait_ms=200, timeout_ms=1000, partition_max_bytes=8192, max_bytes=32768),
    "flush": FlushSettings(3000, 64 << 10, 700, 3000),
    "log": LogConfig(segment_bytes=4096, index_interval_bytes=256),
}
"""Timeouts five times shorter and segments a thousand times smaller than by default: rare branches become common."""

DEFAULTS: dict[str, Any] = {
    "broker_session_timeout_ms": 9000,
    "log": LogConfig(segment_bytes=16384, index_interval_bytes=256),
}
"""What users get, but for segments: a storm writes too little for large ones."""


class Cluster:
    """One controller, `brokers` brokers, and what they are seen to do."""

    def __init__(
        self,
        world: World,
        *,
        brokers: int = 3,
        config: dict[str, Any] | None = None,
        racks: dict[int, str] | None = None,
    ) -> None:
        self.world = world
        self.oracle = Oracle()
        self.config = QUICK if config is None else config
        self.racks = racks or {}
        self.brokers: dict[int, Broker] = {}
        """The node of each broker's last life."""
        self._looked_at: dict[int, int] = {}
        self.controller = Host("c1", world)
        self.controllers: list[OneController] = []
        """The node of each life of the controller, the last one last."""
        self.hosts = {number: Host(f"b{number}", world) for number in range(1, brokers + 1)}
        self.start_controller()
        for number in self.hosts:
            self.start(number)

    # ── processes ─────────────────────────────────────────────────────────────────────────────────

    def start_controller(self) -> None:
        """Start the controller's process, after a boot if its machine is dark."""

        async def main(env: Environment) -> None:
            config = ControllerConfig(session_timeout_ms=self.config["broker_session_timeout_ms"])
            await run_controller(
                config, env, CONTROLLER_PORT, Random(self.world.rng.getrandbits(64)), hold=self.controllers
            )

        self.controller.restart(main)

    def start(self, number: int) -> None:
        """Start a broker's process, after a boot if its machine is dark."""

        def made(broker: Broker) -> None:
            self.brokers[number] = broker

        self.brokers.pop(number, None)
        self._looked_at.pop(number, None)
        self.hosts[number].restart(partial(self.run_broker, number, made))

    async def run_broker(self, number: int, made: Callable[[Broker], None], env: Environment) -> None:
        """The main of a host that is this broker; `made` gets the node, to be looked at."""
        config = BrokerConfig(
            broker_id=BrokerId(number),
            controllers=((1, self.controller.machine.address, CONTROLLER_PORT),),
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
        """Look at every replica of every broker that has had a turn since the last look."""
        for number, broker in self.brokers.items():
            host = self.hosts[number]
            if not broker.serving or host.loop is None or self._looked_at.get(number) == host.loop.turns:
                continue
            if number not in self._looked_at:
                self._count_start(broker)
            self._looked_at[number] = host.loop.turns
            for place, partition in broker.replicas.partitions.items():
                if partition.offline is None:
                    self.oracle.look((number, host.life), place, partition)
                elif "not placed" not in partition.offline:
                    raise AssertionError(f"{partition} went offline")

    def _count_start(self, broker: Broker) -> None:
        """How the last life of a broker ended, and what its recovery had to do."""
        counts = self.oracle.counts
        counts[f"starts after {broker.data.life.last_end.name.lower()}"] += 1
        for findings in broker.data.report.found.values():
            counts["recoveries that verified a tail"] += findings.verified_bytes > 0
            counts["recoveries that cut a torn tail"] += findings.torn_bytes > 0
            counts["recoveries that found damage"] += bool(findings.damage)

    def compare(self) -> None:
        """Compare all that replicas hold with what was committed."""
        for (number, place), partition in self.replicas().items():
            self.oracle.compare((number, self.hosts[number].life), place, partition)

    def until(self, condition: Callable[[], object], seconds: float) -> None:
        """Let time pass until the condition holds, looking at everything after every event."""

        def looking() -> object:
            self.look()
            return condition()

        self.world.run_until(looking, self.world.now + seconds)

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass, looking at everything after every event."""
        end = self.world.now + seconds
        self.world.timeline.at(end, lambda: None)
        self.until(lambda: self.world.now >= end, math.inf)

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
