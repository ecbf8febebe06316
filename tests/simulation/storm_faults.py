"""What goes wrong in a storm: each fault alone, and when it is over.

`Faults` draws how often each of them comes; some seeds leave some out. Whatever a fault breaks comes right again
some time later, at the latest when the storm is over.
"""

from collections.abc import Callable
from functools import partial

from tests.simulation.cluster import Cluster
from tests.simulation.storm_disks import Harm, check_clean_stop
from tidelog.protocol.types import BrokerId
from tidelog.storage.checkpoints import LOG_STARTS
from tidelog.storage.reserve import RESERVE
from tidelog.testing.simulation.host import FATAL, Host
from tidelog.testing.simulation.world import World

PLENTY = 1 << 40
"""Bytes that a disk holds which is not full."""


class Faults:
    """What one seed does to its cluster."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        *,
        power_cuts: bool,
        grouped: bool,
        forgive: Callable[[], None],
    ) -> None:
        self.world = world
        self.rng = world.rng
        self.cluster = cluster
        self._dark: tuple[int, int] | None = None
        """The broker that lost power last, and in which of its lives."""
        self._stopping: dict[int, int] = {}
        """Brokers that were asked to stop in order, and in which of their lives."""
        self._halted: dict[int, int] = {}
        """Brokers that have ended themselves, and in which of their lives."""
        self._low: set[BrokerId] = set()
        self._forgive = forgive
        """Somebody is told that a disk has lost its log starts."""
        self._harm = Harm(world.rng, cluster.hosts)
        self._harmed = self.rng.choice([0, 0.2, 0.6])
        """How many of those who start again find a checkpoint harmed."""
        self._without_starts: dict[int, int] = {}
        """Brokers that have lost their log starts, and the life before that."""
        self._restarts: list[tuple[float, Callable[[], None]]] = []
        faults: dict[Callable[[], None], float] = {
            self.kill: 3,
            self.kill_leader: 3,
            self.stop: 2,
            self.pause: 2,
            self.cut: 2,
            self.cut_one_way: 2,
            self.kill_controller: 1,
            self.cut_off_controller: 1,
            self.pause_controller: 0.5,
            self.cut_power_of_controller: 0.5,
            self.fill_disk_of_controller: 0.5,
            self.kill_all: 0.3,
            self.cut_off_leader: 6,
            self.refuse: 2,
            self.fill_disk: 2,
            self.reset: 2,
            self.fail_flush: 1,
            self.slow_link: 1,
        }
        if power_cuts:
            faults[self.cut_power] = 1
            if grouped:
                faults[self.cut_all_power] = 0.5
        self._faults = {fault: weight * self.rng.choice([0, 1, 1, 3]) for fault, weight in faults.items()}

    # ── when ──────────────────────────────────────────────────────────────────────────────────────

    def strike(self) -> None:
        """Look at who has stopped, end what is due to end, and let something else go wrong."""
        self._look_at_stops()
        self._look_at_halts()
        self._look_at_space()
        self._bring_back()
        self._harm.remember()
        if any(self._faults.values()):
            fault, before = self.world.chosen(self._faults), self.world.counts.total()
            fault()
            if self.world.counts.total() > before:
                self.world.trace.tell(self.world.now, "", fault.__name__.replace("_", " "))

    def heal(self) -> None:
        """The last fault is over."""
        self.world.network.heal()
        for host in (*self.cluster.hosts.values(), *self.cluster.quorum.values()):
            self.world.network.admit(host.name)
            host.disk.capacity = PLENTY
            host.disk.forget_flush_failures()
        self.start_the_halted()
        self.world.trace.tell(self.world.now, "", "all is mended")

    def start_the_halted(self) -> None:
        """Whoever is still to be started again, now; also who ends for a flush that had failed before all was mended."""
        self._look_at_halts()
        for _, back in self._restarts:
            back()
        self._restarts.clear()

    def _later(self, seconds: float, back: Callable[[], None]) -> None:
        self._restarts.append((self.world.now + seconds, back))

    def _bring_back(self) -> None:
        due = [back for at, back in self._restarts if at <= self.world.now]
        self._restarts = [(at, back) for at, back in self._restarts if at > self.world.now]
        for back in due:
            back()

    def _start_again(self, number: int) -> None:
        host = self.cluster.hosts[number]
        if host.alive:
            return
        if self.rng.random() < self._harmed:
            what = self._harm.strike(number)
            if what is not None:
                self.world.counts["checkpoints harmed"] += 1
                self.world.counts[f"harmed: {what}"] += 1
                if LOG_STARTS in what:
                    self._without_starts[number] = host.life
                    self._forgive()
        self.cluster.start(number)

    def deletions_may_come_back(self) -> bool:
        """Whether a broker has lost its log starts and has not come back in sync since (design 1.5).

        Until then its leader may still count on what it had deleted.
        """
        lost = {n: life for n, life in self._without_starts.items() if not self._in_sync(n, life)}
        self._without_starts = lost
        return bool(lost)

    # ── processes and machines ────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        """SIGKILL for some broker."""
        alive = self.cluster.alive()
        if alive:
            self._kill(self.rng.choice(alive))

    def kill_leader(self) -> None:
        """SIGKILL for a broker that leads something."""
        leaders = sorted({n for (n, _), p in self.cluster.replicas().items() if p.leadership is not None})
        if leaders:
            self._kill(self.rng.choice(leaders))

    def _kill(self, number: int) -> None:
        self.world.counts["killed"] += 1
        self.cluster.hosts[number].kill()
        self._later(self.rng.uniform(0.05, 5), partial(self._start_again, number))

    def stop(self) -> None:
        """A broker is stopped in order; who takes too long for that is killed, as an operator would."""
        alive = [n for n in self.cluster.alive() if n in self.cluster.brokers and n not in self._stopping]
        if alive:
            number = self.rng.choice(alive)
            host, broker = self.cluster.hosts[number], self.cluster.brokers[number]
            self.world.counts["asked to stop"] += 1
            self._stopping[number] = host.life
            assert host.loop is not None
            host.loop.call_soon(broker.stop)
            self._later(self.rng.uniform(1, 8), partial(self._lose_patience, number, host.life))

    def _look_at_stops(self) -> None:
        """Compare what was stored with what was known, before anything else happens to that disk."""
        for number, life in list(self._stopping.items()):
            host = self.cluster.hosts[number]
            if host.alive and host.life == life:
                continue
            del self._stopping[number]
            if host.life == life and host.exit_code == 0:
                self.world.counts["stopped in order"] += 1
                if check_clean_stop(host, self.cluster.brokers[number]):
                    self.world.counts["stops compared with the disk"] += 1
                self._later(self.rng.uniform(0.05, 3), partial(self._start_again, number))

    def _lose_patience(self, number: int, life: int) -> None:
        host = self.cluster.hosts[number]
        if host.alive and host.life == life:
            self.world.counts["killed while stopping"] += 1
            host.kill()
            self._start_again(number)

    def kill_all(self) -> None:
        """SIGKILL for every process of the cluster at once (I-24)."""
        self.world.counts["all killed"] += 1
        for number in self.cluster.alive():
            self._kill(number)
        for number in self.cluster.quorum:
            self._kill_controller(number)

    def cut_power(self) -> None:
        """A broker's machine loses power, and what was not flushed: in `async` one at a time (I-25).

        The next one may only when the last one is in sync again everywhere.
        """
        if self._dark is not None and not self._in_sync(*self._dark):
            return
        number = self.rng.choice(sorted(self.cluster.hosts))
        self._dark = number, self.cluster.hosts[number].life
        self.world.counts["power cut"] += 1
        self.cluster.hosts[number].power_cut()
        self._later(self.rng.uniform(0.1, 4), partial(self._start_again, number))

    def cut_all_power(self) -> None:
        """Every machine loses power at once: in `group` nothing acknowledged may be lost (I-25)."""
        self.world.counts["all power cut"] += 1
        for number, host in self.cluster.hosts.items():
            host.power_cut()
            self._later(self.rng.uniform(0.1, 4), partial(self._start_again, number))
        for number in self.cluster.quorum:
            self._cut_power_of_controller(number)

    def cut_off_leader(self) -> None:
        """A leader and its followers do not reach each other, and clients still reach it: it fills up in vain."""
        leaders = sorted({n for (n, _), p in self.cluster.replicas().items() if p.leadership is not None})
        if leaders:
            self.world.counts["leader cut off"] += 1
            leader = self.cluster.hosts[self.rng.choice(leaders)]
            seconds = self.rng.uniform(1.8, 4.5)
            for other in (*self.cluster.hosts.values(), *self.cluster.quorum.values()):
                if other is not leader:
                    self.world.network.partition(leader.name, other.name)
                    self._later(seconds, partial(self.world.network.heal, leader.name, other.name))

    def _in_sync(self, number: int, than: int) -> bool:
        """Whether a later life of that broker than this one is in every ISR."""
        broker = self.cluster.brokers.get(number)
        image = self.cluster.image
        return (
            self.cluster.hosts[number].life > than
            and broker is not None
            and broker.serving
            and self.cluster.active is not None
            and image.live_epoch(BrokerId(number)) == broker.replicas.around.my_epoch
            and all(number in state.isr for state in image.partitions.values())
        )

    def pause(self) -> None:
        """SIGSTOP, and SIGCONT some time later."""
        alive = self.cluster.alive()
        if alive:
            host = self.cluster.hosts[self.rng.choice(alive)]
            self.world.counts["paused"] += 1
            host.stop()
            self._later(self.rng.uniform(0.1, 5), host.resume)

    def _pair(self) -> tuple[Host, Host]:
        hosts = [*self.cluster.hosts.values(), *self.cluster.quorum.values()]
        one, other = self.rng.sample(hosts, 2)
        return one, other

    def cut(self) -> None:
        """Two hosts do not reach each other for a while."""
        one, other = self._pair()
        self.world.counts["cut"] += 1
        self.world.network.partition(one.name, other.name)
        self._later(self.rng.uniform(0.1, 6), partial(self.world.network.heal, one.name, other.name))

    def cut_one_way(self) -> None:
        """One host does not reach another, which still reaches it."""
        one, other = self._pair()
        self.world.counts["cut one way"] += 1
        self.world.network.partition(one.name, other.name, both=False)
        self._later(self.rng.uniform(0.1, 6), partial(self.world.network.heal, one.name, other.name))

    def reset(self) -> None:
        """Something on the way ends every connection of a host, be it that of a client."""
        connections = self.world.network.connections(self.rng.choice(sorted(self.world.hosts)))
        self.world.counts["connections reset"] += len(connections)
        for connection in connections:
            connection.reset()

    def slow_link(self) -> None:
        """What two hosts send each other takes long, and little gets through at a time."""
        one, other = self._pair()
        self.world.counts["links slow"] += 1
        self.world.network.slow(one.name, other.name, (5, 400), bytes_per_s=self.rng.choice([5e3, 50e3, 1e6]))
        self._later(self.rng.uniform(0.5, 6), partial(self.world.network.quicken, one.name, other.name))

    # ── controllers ───────────────────────────────────────────────────────────────────────────────

    def _some_controller(self) -> int:
        """The active one, or any."""
        active = self.cluster.active
        return active[0] if active and self.rng.random() < 0.5 else self.rng.choice(list(self.cluster.quorum))

    def kill_controller(self) -> None:
        """SIGKILL for a controller."""
        self._kill_controller(self._some_controller())

    def _kill_controller(self, number: int) -> None:
        if self.cluster.quorum[number].alive:
            self.world.counts["controller killed"] += 1
            self.cluster.quorum[number].kill()
            self._later(self.rng.uniform(0.05, 3), partial(self._start_controller, number))

    def cut_power_of_controller(self) -> None:
        """A controller's machine loses power: what it had promised or counted as committed is on its disk."""
        self._cut_power_of_controller(self._some_controller())

    def _cut_power_of_controller(self, number: int) -> None:
        self.world.counts["power of a controller cut"] += 1
        self.cluster.quorum[number].power_cut()
        self._later(self.rng.uniform(0.05, 3), partial(self._start_controller, number))

    def _start_controller(self, number: int) -> None:
        if not self.cluster.quorum[number].alive:
            self.cluster.quorum[number].disk.capacity = PLENTY  # an operator makes room first
            self.cluster.start_controller(number)

    def pause_controller(self) -> None:
        """SIGSTOP for a controller, and SIGCONT some time later."""
        host = self.cluster.quorum[self._some_controller()]
        if host.alive and not host.stopped:
            self.world.counts["controller paused"] += 1
            host.stop()
            self._later(self.rng.uniform(0.1, 5), host.resume)

    def fill_disk_of_controller(self) -> None:
        """A controller's disk is full for a while; one that cannot keep its promises ends, and is started again."""
        number = self._some_controller()
        host = self.cluster.quorum[number]
        if host.alive and hasattr(
            self.cluster.nodes.get(number), "quorum"
        ):  # else it has yet to write its markers
            self.world.counts["disk of a controller full"] += 1
            host.disk.capacity = host.disk.medium.used + self.rng.choice([0, 100, 1000, 5000])
            self._later(self.rng.uniform(0.5, 5), partial(self._make_room_for_controller, number))

    def _make_room_for_controller(self, number: int) -> None:
        self.cluster.quorum[number].disk.capacity = PLENTY
        self._start_controller(number)

    def cut_off_controller(self) -> None:
        """Nobody reaches some controller for a while."""
        self.world.counts["controller cut off"] += 1
        cut = self.cluster.quorum[self._some_controller()]
        for host in (*self.cluster.hosts.values(), *self.cluster.quorum.values()):
            if host is not cut:
                self.world.network.partition(host.name, cut.name)
                heal = partial(self.world.network.heal, host.name, cut.name)
                self._later(self.rng.uniform(0.1, 4), heal)

    def refuse(self) -> None:
        """Something on the way refuses for a living broker: only a paused one is taken for dead (DECISIONS 3)."""
        alive = self.cluster.alive()
        if alive:
            number = self.rng.choice(alive)
            host, seconds = self.cluster.hosts[number], self.rng.uniform(0.3, 4)
            self.world.counts["refused"] += 1
            if self.rng.random() < 0.5:
                host.stop()
                self._later(self.rng.uniform(0.2, seconds), host.resume)
            self.world.network.refuse(host.name)
            self._later(seconds, partial(self._admit, number, host.life, self._fenced_fast(number)))

    def _admit(self, number: int, life: int, fenced_before: int) -> None:
        host = self.cluster.hosts[number]
        self.world.network.admit(host.name)
        if host.alive and host.life == life and self._fenced_fast(number) > fenced_before:
            self.world.counts["fenced while alive"] += 1

    def _fenced_fast(self, number: int) -> int:
        return sum(node.fenced_fast.get(BrokerId(number), 0) for node in self.cluster.controllers)

    # ── disks ─────────────────────────────────────────────────────────────────────────────────────

    def _look_at_space(self) -> None:
        """Whom the cluster has just come to know as low on space."""
        if self.cluster.active is not None:
            low = {number for number, broker in self.cluster.image.brokers.items() if broker.low_space}
            self.world.counts["low on space"] += len(low - self._low)
            self._low = low

    def _has_reserve(self, host: Host) -> bool:
        directory = host.disk.medium.directory_at("/data")
        return RESERVE in directory.entries

    def fill_disk(self) -> None:
        """A broker's disk is full for a while, whether it runs, is about to start or does not (I-33, DECISIONS 9).

        Only its very first start needs room that nobody has kept yet.
        """
        ready = [host for host in self.cluster.hosts.values() if self._has_reserve(host)]
        if not ready:
            return
        host = self.rng.choice(ready)
        self.world.counts["disk full"] += 1
        self.world.counts["disk full at a start"] += not host.alive
        host.disk.capacity = host.disk.medium.used + self.rng.choice([0, 100, 1000, 5000])
        self._later(self.rng.uniform(0.5, 6), partial(setattr, host.disk, "capacity", PLENTY))

    def fail_flush(self) -> None:
        """A flush of records will fail, one of the next: the broker ends itself, and its pages only look clean."""
        alive = self.cluster.alive()
        if alive:
            self.world.counts["flushes to fail"] += 1
            self.cluster.hosts[self.rng.choice(alive)].disk.fail_flush(
                self.rng.randrange(1, 6), suffix=".log"
            )

    def _look_at_halts(self) -> None:
        """Who has ended itself is started again."""
        for number, host in self.cluster.hosts.items():
            if not host.alive and host.exit_code == FATAL and self._halted.get(number) != host.life:
                self._halted[number] = host.life
                self.world.counts["halted"] += 1
                self._later(self.rng.uniform(0.05, 3), partial(self._start_again, number))
