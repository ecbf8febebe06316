"""A storm over the controller and those who follow it: nothing acknowledged is lost, and everybody sees one history.

The controller and three members on hosts of their own, with the metadata log and nothing else. Members register,
send heartbeats, make topics and take producer ids; the controller is killed, loses power and is cut off meanwhile.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random

from tests.controller.nodes import Ledger, Member
from tests.simulation.one_controller import ControllerConfig, OneController, run_controller
from tidelog.controller.topics import TopicDefaults
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.messages import AllocateProducerIds, AllocateProducerIdsReply
from tidelog.protocol.types import Offset
from tidelog.storage.log import Log
from tidelog.testing.simulation.host import Environment, Host
from tidelog.testing.simulation.world import NotReached, World

PORT = 9192
STORM_S = 6.0
CALM_S = 20.0
CONFIG = ControllerConfig(session_timeout_ms=1500, idle_ms=200, topics=TopicDefaults(replication_factor=1))


class MetadataStorm:
    """One seed's controller, members, faults, and what was promised to whom."""

    def __init__(
        self,
        world: World,
        *,
        node: type[OneController] = OneController,
        member: type[Member] = Member,
        numbers: Iterable[int] = (1, 2, 3),
    ) -> None:
        self.world = world
        self.rng = world.rng
        self.ledger = Ledger()
        self.promised: list[str] = []
        """Topics that were acknowledged."""
        self.blocks: list[range] = []
        self.lives: list[OneController] = []
        self._node = node
        self._before = 0
        """How many lives the controller had before the one that was started last."""
        self.controller = Host("c1", world)
        self.controller.disk_ms = self.rng.choice([(0.02, 5.0), (1.0, 30.0), (20.0, 150.0)])
        self.hosts: dict[int, Host] = {}
        self.members: dict[int, Member] = {}
        self._member = member
        self.start_controller()
        for number in numbers:
            self.enter(number)
            self.start(number)

    # ── processes ─────────────────────────────────────────────────────────────────────────────────

    def start_controller(self) -> None:
        async def main(env: Environment) -> None:
            rng = Random(self.world.rng.getrandbits(64))
            await run_controller(CONFIG, env, PORT, rng, hold=self.lives, node=self._node)

        self._before = len(self.lives)
        self.controller.restart(main)

    def enter(self, number: int) -> Member:
        """Another host; nothing runs there yet."""
        self.hosts[number] = Host(f"m{number}", self.world)
        address = (self.controller.machine.address, PORT)
        member = self.members[number] = self._member(number, {1: address}, self.ledger)
        return member

    def start(self, number: int) -> None:
        member = self.members[number]

        async def main(_env: Environment) -> None:
            member.begin()
            async with asyncio.TaskGroup() as group:
                group.create_task(member.observer.run())
                group.create_task(self.live(member))

        if member.life > 1:
            member.host.kill_and_open()
        self.hosts[number].restart(main)

    async def live(self, member: Member) -> None:
        """Join, send heartbeats, and ask for things now and then."""
        with suppress(TidelogError):
            await member.join()
        while True:
            with suppress(TidelogError):
                reply = await member.beat()
                self.world.counts["fenced when it asked"] += reply.fenced
                if reply.error:
                    await member.join()
                await self.ask(member)
            await asyncio.sleep(self.rng.uniform(0.02, 0.3))

    async def ask(self, member: Member) -> None:
        if self.rng.random() < 0.5:
            name = f"topic-{self.rng.getrandbits(32)}"
            reply = await member.create(name, self.rng.randint(1, 3))
            if not reply.topics[0].error:
                self.promised.append(name)
            return
        taken = await member.ask(lambda epoch: AllocateProducerIds(member.number, member.epoch, epoch))
        if isinstance(taken, AllocateProducerIdsReply) and not taken.error:
            self.blocks.append(range(taken.first, taken.first + taken.count))

    # ── faults ────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """A storm, then calm, then the account."""
        faults: dict[Callable[[], None], float] = {
            self.kill_controller: 3,
            self.cut_power: 3,
            self.cut_off: 2,
            self.kill_member: 2,
            self.heal: 2,
        }
        weights = {fault: weight * self.rng.choice([0, 1, 2]) for fault, weight in faults.items()}
        weights[self.cut_power] = max(weights[self.cut_power], 1)
        end = self.world.now + STORM_S
        while self.world.now < end:
            self.world.run_for(self.rng.expovariate(2))
            fault = self.world.chosen(weights)
            fault()
            self.world.counts[fault.__name__] += 1
        self.heal()
        if not self.controller.alive:
            self.start_controller()
        self.world.run_until(self.agreed, self.world.now + CALM_S)
        self.account()

    def kill_controller(self) -> None:
        self.controller.kill()
        self.start_controller()

    def cut_power(self) -> None:
        """When something is not flushed, if that happens soon; and sometimes again when it has just come back."""
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            with suppress(NotReached):
                self.world.run_until(self.unflushed, self.world.now + 0.3)
            self.world.run_for(self.rng.uniform(0, 0.02))
            self.controller.power_cut()
            self.start_controller()

    def unflushed(self) -> bool:
        """Whether the controller's log has an end that a loss of power would take."""
        return bool(self.lives) and self.lives[-1].log.end_offset > self.lives[-1].log.durable_offset

    def cut_off(self) -> None:
        self.world.network.partition("c1", f"m{self.rng.randint(1, 3)}", both=self.rng.random() < 0.5)

    def heal(self) -> None:
        for name in ("c1", *(host.name for host in self.hosts.values())):
            self.world.network.heal(name)

    def kill_member(self) -> None:
        number = self.rng.randint(1, 3)
        self.hosts[number].kill()
        self.start(number)

    # ── the account ───────────────────────────────────────────────────────────────────────────────

    def agreed(self) -> bool:
        """Everybody has read what the controller had committed a moment ago, and nobody is fenced."""
        node = self.lives[-1]
        return (
            len(self.lives) > self._before
            and len(node.working.brokers) == 3
            and all(not state.fenced for state in node.working.brokers.values())
            and all(self._follows(member, node) for member in self.members.values())
        )

    @staticmethod
    def _follows(member: Member, node: OneController) -> bool:
        alive = member.observer.log is member.host.log
        return alive and member.observer.caught_up_to >= node.log.durable_offset

    def account(self) -> None:
        """What was promised is there, in one history."""
        image = self.lives[-1].working
        image.check()
        lost = [name for name in self.promised if name not in image.topic_ids]
        assert not lost, f"{len(lost)} of {len(self.promised)} acknowledged topics are gone: {lost}"
        for member in self.members.values():
            end = member.observer.caught_up_to
            assert committed(member.observer.log, end) == committed(self.lives[-1].log, end), member.observer
        taken = [number for block in self.blocks for number in block]
        assert len(set(taken)) == len(taken), f"producer ids were given out twice: {self.blocks}"
        self.world.counts["promised"] += len(self.promised)
        self.world.counts["blocks"] += len(self.blocks)
        self.world.counts["controllers"] += len(self.lives)


def an_epoch_that_was_lost(world: World, node: type[OneController] = OneController) -> None:
    """Somebody has read what a controller lost with its power, and comes back when another life has gone on."""
    storm = MetadataStorm(world, node=node, numbers=())
    world.run_until(lambda: storm.lives and not storm.unflushed(), 5)
    storm.controller.slow_disk((5000.0, 5000.0))
    storm.kill_controller()
    first = storm.enter(1)
    storm.hosts[1].spawn(first.observer.run())
    registering = storm.hosts[1].create_task(first.register())
    world.run_until(
        lambda: first.observer.log.end_offset == storm.lives[-1].log.end_offset > 3, world.now + 3
    )
    storm.hosts[1].stop()
    storm.controller.power_cut()
    storm.controller.slow_disk((0.02, 5.0))
    storm.start_controller()
    second = storm.enter(2)
    storm.hosts[2].spawn(second.observer.run())
    world.result(storm.hosts[2].create_task(second.register()), world.now + 5)
    storm.hosts[1].resume()
    world.result(registering, world.now + 5)
    storm.account()


def committed(log: Log, end: Offset) -> bytes:
    """The bytes of all batches below `end`."""
    found, offset = [], log.log_start
    while offset < end:
        piece = log.read(offset, 1 << 16, end)
        found.append(bytes(piece.data))
        offset = piece.next_offset
    return b"".join(found)


def metadata_storm(world: World) -> None:
    """The scenario."""
    MetadataStorm(world).run()
