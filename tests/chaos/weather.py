"""The faults of a chaos run: which there are, and in which order they come (docs/CHAOS.md).

    fault: hurt ─► let clients feel it ─► mend ─► wait until the cluster is whole

Each fault mends what it has hurt, so that the next one begins with a whole cluster and each is seen by itself; what
two of them do together is the simulator's business. A round has every fault once, in an order of its own, and so many
kills of leaders that a run of one round has seen enough of those.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol, TypeAlias


class Sky(Protocol):
    """What faults need to know of the run they are in."""

    cluster: Any
    """`tidelog.testing.Cluster`."""
    rng: Random
    session_s: float
    """How long a broker may be silent before others take over."""
    request_s: float
    """How long clients wait for an answer before they ask again."""
    controllers: int

    async def leader(self) -> int:
        """The broker that leads one of the topic's partitions, by chance which."""
        ...

    async def active_controller(self) -> int:
        """The controller that decides."""
        ...

    async def progress(self, records: int) -> None:
        """Until clients have had so many more acknowledgements."""
        ...

    async def isr(self) -> list[set[int]]:
        """Who is in sync, partition by partition, as a broker says that runs."""
        ...

    async def without(self, broker: int) -> None:
        """Until that broker is in sync nowhere any more."""
        ...

    async def whole(self) -> None:
        """Until every replica of every partition is in sync again."""
        ...

    def brokers(self) -> Sequence[int]:
        """All of them."""
        ...


Fault: TypeAlias = Callable[[Sky], Awaitable[None]]

_SOME: Final = 500
"""Acknowledgements that show that the service goes on."""
_ATTEMPTS: Final = 5
"""How often a moment is waited for that a slow machine may miss."""


async def kill_leader(sky: Sky) -> None:
    """SIGKILL; the others go on without it; it comes back."""
    leader = await sky.leader()
    await sky.cluster.kill(leader)
    await sky.progress(_SOME)
    await sky.cluster.restart(leader)


async def kill_two(sky: Sky) -> None:
    """Two of three brokers at once: what they have acknowledged is on the third."""
    one = await sky.leader()
    other = sky.rng.choice([broker for broker in sky.brokers() if broker != one])
    await asyncio.gather(sky.cluster.kill(one), sky.cluster.kill(other))
    await asyncio.sleep(sky.rng.uniform(0.2, 1.0))
    for broker in (one, other):
        await sky.cluster.restart(broker)


async def kill_before_the_isr_shrinks(sky: Sky) -> None:
    """A broker, and another before anybody has noticed the first: what counts as in sync is on three, one of which is left.

    The first is stopped before it is killed: connections that are refused would be noticed at once.
    """
    one = await sky.leader()
    other = sky.rng.choice([broker for broker in sky.brokers() if broker != one])
    for _ in range(_ATTEMPTS):
        await sky.cluster.pause(one)
        await asyncio.sleep(sky.session_s * sky.rng.uniform(0.05, 0.2))
        if all(one in members for members in await sky.isr()):
            break
        await sky.cluster.resume(one)
        await sky.whole()
    else:
        raise AssertionError(
            f"broker {one} is out of the ISR before {other} can be killed, {_ATTEMPTS} times"
        )
    await sky.cluster.kill(other)
    await sky.cluster.kill(one)
    await asyncio.sleep(sky.rng.uniform(0.2, 1.0))
    for broker in (other, one):
        await sky.cluster.restart(broker)


async def kill_the_second_later(sky: Sky) -> None:
    """One broker, and another when the ISR has shrunk: what was acknowledged meanwhile is on the third."""
    one = await sky.leader()
    other = sky.rng.choice([broker for broker in sky.brokers() if broker != one])
    await sky.cluster.kill(one)
    await sky.without(one)
    await sky.progress(_SOME)
    await sky.cluster.kill(other)
    await asyncio.sleep(sky.rng.uniform(0.2, 1.0))
    for broker in (other, one):
        await sky.cluster.restart(broker)


async def kill_all(sky: Sky) -> None:
    """Every process at once, controllers too."""
    controllers = [f"c{number}" for number in range(1, sky.controllers + 1)]
    everybody: list[int | str] = [*sky.brokers(), *controllers]
    await asyncio.gather(*(sky.cluster.kill(node) for node in everybody))
    await asyncio.gather(*(sky.cluster.restart(node) for node in everybody))


async def pause_leader(sky: Sky) -> None:
    """SIGSTOP for longer than its session: it is replaced, and wakes up as what it is no more."""
    leader = await sky.leader()
    await sky.cluster.pause(leader)
    await asyncio.sleep(sky.session_s * sky.rng.uniform(1.2, 1.6))
    await sky.cluster.resume(leader)


async def pause_briefly(sky: Sky) -> None:
    """SIGSTOP for less than its session: nothing should come of it."""
    leader = await sky.leader()
    await sky.cluster.pause(leader)
    await asyncio.sleep(sky.session_s * sky.rng.uniform(0.1, 0.6))
    await sky.cluster.resume(leader)


async def roll(sky: Sky) -> None:
    """Restart every broker in order, as an upgrade does."""
    for broker in sky.brokers():
        await sky.cluster.stop(broker)
        await sky.cluster.restart(broker)
        await sky.whole()


async def kill_controller(sky: Sky) -> None:
    """The one that decides; records do not need it while nobody else fails."""
    active = f"c{await sky.active_controller()}"
    await sky.cluster.kill(active)
    await sky.progress(_SOME)
    await sky.cluster.restart(active)


async def pause_controller(sky: Sky) -> None:
    """It wakes up as one of two, and must not think so for long."""
    active = f"c{await sky.active_controller()}"
    await sky.cluster.pause(active)
    await asyncio.sleep(sky.session_s * sky.rng.uniform(0.8, 1.4))
    await sky.cluster.resume(active)


async def cut_off(sky: Sky) -> None:
    """A leader that hears nobody, and that nobody hears."""
    leader = await sky.leader()
    await sky.cluster.isolate(leader)
    await asyncio.sleep(sky.session_s * sky.rng.uniform(1.2, 1.6))
    await sky.cluster.heal()


async def cut_between(sky: Sky) -> None:
    """Two brokers that do not hear each other, while controllers and clients hear both."""
    one = await sky.leader()
    other = sky.rng.choice([broker for broker in sky.brokers() if broker != one])
    await sky.cluster.isolate(one, other)
    await sky.progress(_SOME)
    await sky.cluster.heal()


async def cut_from_controllers(sky: Sky) -> None:
    """A leader that clients and followers reach, and controllers do not: it must stop by itself."""
    leader = await sky.leader()
    for number in range(1, sky.controllers + 1):
        await sky.cluster.isolate(leader, f"c{number}")
    await asyncio.sleep(sky.session_s * sky.rng.uniform(1.2, 1.6))
    await sky.cluster.heal()


async def slow(sky: Sky) -> None:
    """Everything between a leader and a follower takes its time."""
    one = await sky.leader()
    other = sky.rng.choice([broker for broker in sky.brokers() if broker != one])
    await sky.cluster.delay(one, other, seconds=sky.rng.uniform(0.02, 0.2))
    await sky.progress(_SOME)
    await sky.cluster.heal()


async def kill_unfollowed(sky: Sky) -> None:
    """A leader that no follower hears any more is killed before anybody has noticed."""
    leader = await sky.leader()
    await sky.cluster.isolate(leader, *(broker for broker in sky.brokers() if broker != leader))
    await asyncio.sleep(sky.rng.uniform(0.5, 1.0))
    await sky.cluster.kill(leader)
    await sky.cluster.heal()
    await sky.progress(_SOME)
    await sky.cluster.restart(leader)


async def lose_answers(sky: Sky) -> None:
    """Clients are heard and hear nothing: they repeat what is written already."""
    leader = await sky.leader()
    await sky.cluster.isolate(leader, "clients", one_way=True)
    await asyncio.sleep(sky.request_s * sky.rng.uniform(1.2, 1.8))
    await sky.cluster.heal()


KILLS_OF_A_ROUND: Final = 5
FAULTS: Final[tuple[Fault, ...]] = (
    *(kill_leader,) * KILLS_OF_A_ROUND,
    kill_two,
    kill_before_the_isr_shrinks,
    kill_the_second_later,
    kill_all,
    pause_leader,
    pause_briefly,
    roll,
    kill_controller,
    pause_controller,
    cut_off,
    cut_between,
    cut_from_controllers,
    slow,
    kill_unfollowed,
    lose_answers,
)
"""What a round has."""


@dataclass(slots=True)
class Forecast:
    """One run's faults, and how often each has come."""

    rng: Random
    faults: Sequence[Fault] = FAULTS
    """A round."""
    came: "Counter[str]" = field(default_factory=Counter)

    def rounds(self) -> Iterator[Fault]:
        """For ever; whoever runs them ends."""
        while True:
            faults = list(self.faults)
            self.rng.shuffle(faults)
            for fault in faults:
                self.came[fault.__name__] += 1
                yield fault

    @property
    def has_had_all(self) -> bool:
        """Whether a whole round has come."""
        return self.came >= Counter(fault.__name__ for fault in self.faults)
