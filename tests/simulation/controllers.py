"""Controllers of one quorum and members that ask them for things, each on a host of its own, and who watches them."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from functools import partial
from random import Random
from typing import Any, Final

from tests.controller.nodes import Member, sessions_of
from tests.simulation.controllers_witness import Witness
from tidelog.controller.config import ControllerConfig
from tidelog.controller.controller import Controller
from tidelog.controller.following import FollowingConfig
from tidelog.controller.quorum import QuorumConfig
from tidelog.controller.snapshots import SnapshotConfig
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.io import Incoming, listen
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import Hello, Welcome
from tidelog.protocol.types import BrokerId
from tidelog.storage.config import LogConfig
from tidelog.storage.environment import Environment as ControllerEnvironment
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.host import Environment, Host
from tidelog.testing.simulation.world import World

PORT: Final = 9192
MEMBER_PORT: Final = 9092
FAST: Final = (0.02, 5.0)

SESSION_MS: Final = 1500
BEAT_S: Final = 0.2
"""The pause between two heartbeats of a member."""
FETCH_MS: Final = 300
QUORUM: Final = QuorumConfig(election_timeout_ms=200, fetch_timeout_ms=FETCH_MS)
FOLLOWING: Final = FollowingConfig(
    fetch_max_wait_ms=100, fetch_timeout_ms=FETCH_MS, connect_timeout_ms=150, retry_ms=10, retry_max_ms=100
)


class Controllers:
    """A quorum, and who is there beside it."""

    def __init__(
        self, world: World, controllers: int = 3, members: Iterable[int] = (), **config: Any
    ) -> None:
        self.world = world
        self.rng = world.rng
        self.hosts = {number: Host(f"c{number}", world) for number in range(1, controllers + 1)}
        self.nodes: dict[int, Controller] = {}
        """The node of each controller's last life."""
        self.members: dict[int, Member] = {}
        self.member_hosts: dict[int, Host] = {}
        self.witness = Witness(self.hosts, FETCH_MS, world.counts)
        self._config = config
        self._snapshot_bytes = self.rng.choice([1000, 20 << 20])
        self._registered: dict[int, tuple[int, int]] = {}
        """Which epoch each member got, and in which of its lives."""
        for number in self.hosts:
            self.start(number)
        for number in members:
            self.enter(number)

    # ── controllers ───────────────────────────────────────────────────────────────────────────────

    def start(self, number: int) -> None:
        """Start that controller, unless it runs; after a boot if its machine is dark."""
        if not self.hosts[number].alive:
            self.nodes.pop(number, None)
            self.hosts[number].restart(partial(self._run, number))

    async def _run(self, number: int, env: Environment) -> None:
        rng = Random(self.rng.getrandbits(64))
        fields: dict[str, Any] = {
            "idle_ms": 200,
            "quorum": QUORUM,
            "following": FOLLOWING,
            "active": sessions_of(SESSION_MS),
            "log": LogConfig(segment_bytes=1 << 12),
            "snapshots": SnapshotConfig(metadata_log_max_record_bytes_between_snapshots=self._snapshot_bytes),
        }
        config = ControllerConfig(
            node_id=BrokerId(number),
            voters=tuple((n, host.machine.address, PORT) for n, host in self.hosts.items()),
            host=env.address,
            port=PORT,
            **fields | self._config,
        )
        world = ControllerEnvironment(
            env.directory,
            env.clock,
            env.boot_id,
            env.life,
            rng,
            partial(rng.randbytes, 16),
            nullcontext,
            env.halt,
        )
        node = self.nodes[number] = Controller(config, world)
        await node.run()

    def stop(self, number: int) -> None:
        """Let it stop in order."""
        loop, node = self.hosts[number].loop, self.nodes.get(number)
        if loop is not None and node is not None:
            loop.call_soon(node.stop)

    def replace_disk_of(self, number: int) -> None:
        """The machine gets an empty one, and loses what it knew."""
        host = self.hosts[number]
        host.kill()
        host.disk = SimulatedDisk(Random(self.rng.getrandbits(64)))
        host.disk.on_crash = host._on_crash
        self.witness.new_disk(number)

    @property
    def active(self) -> int | None:
        """Who serves: of several that believe to, the one in the newest epoch."""
        serving = [
            (node.epoch, number)
            for number, node in self.nodes.items()
            if self.hosts[number].alive and node.active is not None
        ]
        return max(serving)[1] if serving else None

    @property
    def leader(self) -> Controller:
        """The node that serves."""
        assert self.active is not None
        return self.nodes[self.active]

    def others(self, number: int) -> list[int]:
        """All controllers but that one."""
        return [other for other in self.hosts if other != number]

    # ── members ───────────────────────────────────────────────────────────────────────────────────

    def enter(self, number: int) -> Member:
        """A member on another host, with its first process."""
        host = self.member_hosts[number] = Host(f"m{number}", self.world)
        addresses = {n: (controller.machine.address, PORT) for n, controller in self.hosts.items()}
        member = self.members[number] = Member(number, addresses, self.witness.ledger, port=MEMBER_PORT)
        member.address = host.machine.address
        self.begin(number)
        return member

    def begin(self, number: int) -> None:
        """A process of a member: it listens, and follows."""
        member = self.members[number]
        if self.member_hosts[number].life:
            member.host.kill_and_open()
            member.begin()
        self.member_hosts[number].restart(partial(self._live, member))

    async def _live(self, member: Member, _env: Environment) -> None:
        listener = await listen("0.0.0.0", MEMBER_PORT, _welcome, Bounds(DEFAULT))  # noqa: S104 -- simulated
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(member.observer.run())
                group.create_task(self.live(member))
        finally:
            listener.close()

    async def live(self, member: Member) -> None:
        """What a member does beside following: register, and send heartbeats."""
        while True:
            with suppress(TidelogError):
                await self.join(member)
                while not (await self.beat(member)).error:  # noqa: ASYNC110 -- what a broker does
                    await asyncio.sleep(BEAT_S)
            await asyncio.sleep(0.05)

    async def join(self, member: Member) -> None:
        """Be registered. Epochs grow from one process to the next (I-51)."""
        known, life = self._registered.get(member.number, (-1, 0)), member.life
        reply = await member.register()
        if reply.error:
            return
        now = reply.broker_epoch, life
        assert now == known or (now[0] > known[0] and now[1] > known[1]), f"{member.number}: {known}, {now}"
        assert reply.broker_epoch < self.witness.end, f"{reply} came before it was committed"
        self._registered[member.number] = now

    async def beat(self, member: Member) -> Any:
        """One heartbeat."""
        reply = await member.beat()
        if not reply.error:
            assert reply.quorum_epoch in self.witness.leaders, reply
        self.world.counts["fenced when it asked"] += reply.fenced
        return reply

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    def until(self, condition: Callable[[], object], seconds: float = 10.0) -> None:
        """Let time pass until the condition holds, and look at every controller after every event."""

        def looked() -> object:
            self.witness.look(self.nodes)
            for member in self.members.values():
                assert member.observer.caught_up_to <= self.witness.end, f"{member.observer} is ahead"
            return condition()

        self.world.run_until(looked, self.world.now + seconds)

    def run_for(self, seconds: float) -> None:
        """Let time pass, and look."""
        end = self.world.now + seconds
        self.world.timeline.at(end, lambda: None)
        self.until(lambda: self.world.now >= end, seconds + 1)

    def result(self, task: "asyncio.Future[Any]", seconds: float = 10.0) -> Any:
        """What it returns."""
        self.until(task.done, seconds)
        return task.result()

    def until_active(self, seconds: float = 10.0) -> int:
        """Who serves, as soon as somebody does."""
        self.until(lambda: self.active is not None, seconds)
        assert self.active is not None
        return self.active

    def settled(self) -> bool:
        """One serves, everybody lives, and all members have read all that there was; nobody is fenced."""
        active = self.active
        if active is None or not all(host.alive and not host.stopped for host in self.hosts.values()):
            return False
        if len(self.nodes) < len(self.hosts) or not all(
            hasattr(node, "quorum") for node in self.nodes.values()
        ):
            return False
        leader = self.nodes[active]
        target = leader.metadata.committed.end_offset
        brokers = leader.metadata.committed.brokers
        return (
            sum(node.quorum.leads for node in self.nodes.values()) == 1
            and all(
                node.metadata.log.end_offset >= target - 2 and node.epoch == leader.epoch
                for node in self.nodes.values()
            )
            and all(member.observer.caught_up_to >= target - 2 for member in self.members.values())
            and all(number in brokers and not brokers[number].fenced for number in self.members)  # type: ignore[index]
        )

    def all_read(self, seconds: float = 10.0) -> None:
        """Until everybody knows all that was committed by now."""
        target = self.witness.end
        self.until(
            lambda: (
                all(node.metadata.committed.end_offset >= target for node in self.nodes.values())
                and all(member.observer.caught_up_to >= target for member in self.members.values())
            ),
            seconds,
        )


def _welcome(incoming: Incoming) -> None:
    assert isinstance(incoming.message, Hello), incoming.message
    incoming.reply(Welcome())
