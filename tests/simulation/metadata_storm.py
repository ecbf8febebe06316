"""A storm over controllers and those who follow them: nothing acknowledged is lost, and everybody sees one history.

One, three or five controllers and three members on hosts of their own, with the metadata log and nothing else.
Members register, send heartbeats, make topics and take producer ids; controllers are killed, lose power, are paused,
cut off, reset, stopped in order and robbed of their disks meanwhile, one by one and all at once.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from tests.controller.nodes import Member
from tests.simulation.controllers import FAST, Controllers
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.messages import AllocateProducerIds, AllocateProducerIdsReply
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.world import NotReached, World

STORM_S: Final = 6.0
CALM_S: Final = 10.0
"""When everything works again, one controller serves and everybody has read all within so long."""
CHECKPOINT_MS: Final = 200
"""A log begins later after two snapshots: so often that a life in a storm is long enough for them."""
DISKS: Final = [FAST, FAST, (1.0, 30.0), (20.0, 150.0)]


class MetadataStorm(Controllers):
    """One seed's controllers, members, faults, and what was promised to whom."""

    def __init__(self, world: World, controllers: Sequence[int] = (1, 3, 3, 3, 5), **config: Any) -> None:
        self.promised: list[str] = []
        """Topics that were acknowledged."""
        self.blocks: list[range] = []
        super().__init__(world, world.rng.choice(controllers), (1, 2, 3), **config)
        self.replaceable = (len(self.hosts) - 1) // 2
        for host in self.hosts.values():
            host.slow_disk(self.rng.choice(DISKS))

    # ── members ───────────────────────────────────────────────────────────────────────────────────

    async def live(self, member: Member) -> None:
        """Join, send heartbeats, and ask for things now and then."""
        while True:
            with suppress(TidelogError):
                await self.join(member)
                while not (await self.beat(member)).error:
                    await self.ask(member)
                    await asyncio.sleep(self.rng.uniform(0.02, 0.3))
            await asyncio.sleep(0.05)

    async def ask(self, member: Member) -> None:
        if self.rng.random() < 0.5:
            name = f"topic-{self.rng.getrandbits(32)}"
            reply = await member.create(name, self.rng.randint(1, 3))
            if reply.topics and not reply.topics[0].error:
                assert reply.metadata_offset <= self.witness.end, f"{name} exists before it is committed"
                self.promised.append(name)
            return
        taken = await member.ask(lambda epoch: AllocateProducerIds(member.number, member.epoch, epoch))
        if isinstance(taken, AllocateProducerIdsReply) and not taken.error:
            ids = range(taken.first, taken.first + taken.count)
            assert ids.stop <= self.witness.image.next_producer_id, f"{ids} before they are committed"
            assert all(ids.start >= block.stop or ids.stop <= block.start for block in self.blocks), ids
            self.blocks.append(ids)

    # ── a storm ───────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """A storm, then calm, then the account."""
        weights = {fault: self.rng.choice([0, 1, 3]) + 0.1 for fault in FAULTS}
        weights[MetadataStorm.mend] += 2
        end = self.world.now + STORM_S
        while self.world.now < end:
            self.run_for(self.rng.expovariate(4))
            fault = self.world.chosen(weights)
            fault(self)
            self.world.counts[fault.__name__] += 1
        self.calm()
        self.until(self.settled, CALM_S)
        began = self.world.now
        self.all_read(CALM_S)
        assert self.world.now - began < CALM_S
        self.account()

    def later(self, seconds: float, action: Callable[..., None], *args: int) -> None:
        """Do this then."""
        self.world.timeline.at(self.world.now + seconds, action, *args)

    def any(self) -> int:
        """One of the controllers, mostly the one that serves."""
        active = self.active
        return active if active is not None and self.rng.random() < 0.5 else self.rng.choice([*self.hosts])

    def some(self) -> list[int]:
        """One controller, or a few, or all of them at once."""
        return self.rng.choice(
            [
                [self.any()],
                [self.any()],
                self.rng.sample([*self.hosts], 2 % len(self.hosts) or 1),
                [*self.hosts],
            ]
        )

    def kill(self) -> None:
        for number in self.some():
            self.hosts[number].kill()
            self.later(self.rng.choice([0.0, 0.1, 1.0]), self.start, number)

    def cut_power(self) -> None:
        """When something is not flushed, if that happens soon; and sometimes again when it has just come back."""
        chosen = self.some()
        for _ in range(self.rng.choice([1, 1, 2])):
            with suppress(NotReached):
                self.until(lambda: any(self.unflushed(number) for number in chosen), 0.3)
            for number in chosen:
                self.hosts[number].power_cut()
                self.start(number)

    def unflushed(self, number: int) -> bool:
        """Whether the controller's log has an end that a loss of power would take."""
        node = self.nodes.get(number)
        return node is not None and (
            self.hosts[number].alive
            and hasattr(node, "quorum")
            and node.metadata.log.end_offset > node.metadata.log.durable_offset
        )

    def pause(self) -> None:
        for number in self.some():
            self.hosts[number].stop()
            self.later(self.rng.choice([0.05, 0.25, 0.4, 0.8, 2.0]), self.hosts[number].resume)

    def stop_in_order(self) -> None:
        for number in self.some():
            self.stop(number)
            self.later(self.rng.choice([0.1, 0.5, 1.0]), self.start, number)

    def isolate(self) -> None:
        host = self.hosts[self.any()]
        self.world.network.isolate(host.name)
        self.later(self.rng.choice([0.2, 0.5, 1.5]), self.mend)

    def cut(self) -> None:
        """One way or both, between two hosts."""
        a, b = self.rng.sample(self._everybody(), 2)
        self.world.network.partition(a.name, b.name, both=self.rng.random() < 0.4)

    def cut_one_way(self) -> None:
        """Nobody hears a controller, or it hears nobody."""
        me, inward = self.hosts[self.any()], self.rng.random() < 0.5
        for other in self._everybody():
            if other is not me:
                a, b = (other, me) if inward else (me, other)
                self.world.network.partition(a.name, b.name, both=False)
        self.later(self.rng.choice([0.3, 1.0, 2.0]), self.mend)

    def reset(self) -> None:
        """Something on the way ends connections."""
        for connection in self.world.network.connections(self.rng.choice(self._everybody()).name):
            connection.reset()

    def hide(self) -> None:
        """Something resets a living host's connections and refuses for it."""
        name = self.rng.choice(self._everybody()).name
        self.world.network.refuse(name)
        self.later(self.rng.choice([0.1, 0.5, 1.0]), lambda: self.world.network.admit(name))

    def slow_disk(self) -> None:
        self.hosts[self.any()].slow_disk(self.rng.choice(DISKS))

    def replace_disk(self) -> None:
        """Of a minority, and when the voters are named for good."""
        number = self.any()
        if self.replaceable and self.witness.end and number not in self.witness.replaced:
            self.replaceable -= 1
            self.world.counts["disks replaced"] += 1
            self.replace_disk_of(number)
            self.later(0.1, self.start, number)

    def kill_member(self) -> None:
        number = self.rng.choice([*self.members])
        self.member_hosts[number].kill()
        self.begin(number)

    def mend(self) -> None:
        """The network is whole again."""
        self.world.network.heal()

    def calm(self) -> None:
        """All is well from now on."""
        self.mend()
        for host in self._everybody():
            self.world.network.admit(host.name)
            host.resume()
            host.slow_disk(FAST)
        for number in self.hosts:
            self.later(1.0, self.start, number)
        self.run_for(1.1)

    def _everybody(self) -> list[Host]:
        return [*self.hosts.values(), *self.member_hosts.values()]

    # ── the account ───────────────────────────────────────────────────────────────────────────────

    def account(self) -> None:
        """What was promised is there, in one history."""
        for node in self.nodes.values():
            self.witness.folds(node)
        image = self.leader.metadata.committed
        lost = [name for name in self.promised if name not in image.topic_ids]
        assert not lost, f"{len(lost)} of {len(self.promised)} acknowledged topics are gone: {lost}"
        self.world.counts["promised"] += len(self.promised)
        self.world.counts["blocks"] += len(self.blocks)
        self.world.counts["snapshots"] += sum(
            n.metadata.archive.snapshots.newest is not None for n in self.nodes.values()
        )
        self.world.counts[f"quorums of {len(self.hosts)}"] += 1


FAULTS: Final = (
    MetadataStorm.kill,
    MetadataStorm.cut_power,
    MetadataStorm.pause,
    MetadataStorm.stop_in_order,
    MetadataStorm.isolate,
    MetadataStorm.cut,
    MetadataStorm.cut_one_way,
    MetadataStorm.reset,
    MetadataStorm.hide,
    MetadataStorm.slow_disk,
    MetadataStorm.replace_disk,
    MetadataStorm.kill_member,
    MetadataStorm.mend,
)


def metadata_storm(world: World) -> None:
    """The scenario."""
    MetadataStorm(world, checkpoint_ms=CHECKPOINT_MS).run()


def storm_of_three(world: World) -> None:
    """As often as not it takes a majority to see what is wrong."""
    MetadataStorm(world, (3,)).run()
