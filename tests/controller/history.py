"""Random histories of a cluster, and who has which records meanwhile: what elections must never lose (I-3, I-4).

One partition on four brokers, a record at a time: whoever is in sync takes it; it is committed while enough are.
The modules that decide are arguments, so that planted bugs can be shown to be found.
"""

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tests.controller.book import TOPIC, Book, ids
from tidelog.controller.facts import TopicCreated
from tidelog.controller.image import PartitionState
from tidelog.protocol.types import NO_BROKER, BrokerId

BROKERS = ids(1, 2, 3, 4)
REPLICAS = ids(1, 2, 3)


class History:
    """What has happened so far."""

    def __init__(self, election: ModuleType | Any, seed: int) -> None:
        self.election = election
        self.rng = random.Random(seed)
        self.book = Book(live=BROKERS)
        state = election.new_partition(
            TOPIC, 0, REPLICAS, lambda _: True, self.rng.choice((1, 2, 3)), flush_group=False
        )
        self.book.say(TopicCreated(TOPIC, "orders"), state.created())
        self.has = dict.fromkeys(REPLICAS, 0)
        self.committed = 0
        self.writes = self.unclean = 0

    @property
    def p(self) -> PartitionState:
        return self.book.state()

    def run(self, steps: int) -> None:
        deeds: dict[Callable[[], None], int] = {
            self.write: 8,
            self.catch_up: 5,
            self.shrink: 3,
            self.fence: 3,
            self.unfence: 5,
            self.restart: 3,
            self.min_isr: 2,
            self.shut_down: 1,
            self.offline: 1,
            self.preferred: 1,
            self.anyway: 1,
        }
        for _ in range(steps):
            before = self.p
            self.rng.choices(list(deeds), list(deeds.values()))[0]()
            self.look(before)

    def look(self, before: PartitionState) -> None:
        p, image = self.p, self.book.image
        led_anew = p.leader != before.leader
        assert p.leader_epoch - before.leader_epoch >= led_anew, (before, p)
        if (before.leader, before.replicas) == (
            p.leader,
            p.replicas,
        ) and p.partition_epoch <= before.partition_epoch + 1:
            assert p.leader_epoch == before.leader_epoch, (before, p)
        if led_anew and p.leader != NO_BROKER:
            assert image.can_lead(p.leader, p.place), p
        if p.leader == NO_BROKER:
            assert not any(image.can_lead(broker, p.place) for broker in p.isr or p.elr), p
        for broker in (*p.isr, *p.elr):
            assert self.has[broker] >= self.committed, (
                f"{broker} has {self.has[broker]} of {self.committed}: {p}"
            )

    # ── the data ──────────────────────────────────────────────────────────────────────────────────

    def write(self) -> None:
        """A record is written, and committed if enough are in sync."""
        p = self.p
        if p.leader == NO_BROKER or len(p.isr) < p.min_isr:
            return
        self.committed += 1
        self.writes += 1
        for broker in p.isr:
            self.has[broker] = self.committed

    def catch_up(self) -> None:
        """A replica fetches what it lacks, and its leader proposes it."""
        p, image = self.p, self.book.image
        behind = [r for r in p.replicas if r not in p.isr and image.can_lead(r, p.place)]
        if p.leader == NO_BROKER or not behind or not image.can_lead(p.leader, p.place):
            return
        joins = self.rng.choice(behind)
        self.has[joins] = self.has[p.leader]
        self._change((*p.isr, joins))

    def shrink(self) -> None:
        """The leader proposes an ISR without somebody who is slow."""
        p = self.p
        slow = [r for r in p.isr if r != p.leader]
        if slow and self.book.image.can_lead(p.leader, p.place):
            gone = self.rng.choice(slow)
            self._change(tuple(r for r in p.isr if r != gone))

    def _change(self, isr: tuple[BrokerId, ...]) -> None:
        election, p = self.election, self.p
        then = election.change(p, isr, election.alive_for(self.book.image, p.place))
        self.book.carry_out([then.changed()] if then is not p else [])

    # ── the brokers ───────────────────────────────────────────────────────────────────────────────

    def _some(self, *, fenced: bool) -> BrokerId | None:
        found = [broker for broker, state in self.book.image.brokers.items() if state.fenced == fenced]
        return self.rng.choice(found) if found else None

    def fence(self) -> None:
        broker = self._some(fenced=False)
        if broker is not None:
            self.book.carry_out(self.election.fence(self.book.image, broker))

    def unfence(self) -> None:
        broker = self._some(fenced=True)
        if broker is None:
            return
        leaderless, epoch = self.p.leader == NO_BROKER, self.p.unclean_epoch
        self.book.carry_out(self.election.unfence(self.book.image, broker))
        if leaderless and self.p.unclean_epoch != epoch:
            self._lost()

    def restart(self) -> None:
        """A broker's process begins anew, and may have lost what was not on its disk."""
        broker = self.rng.choice(BROKERS)
        lossy = self.rng.random() < 0.5
        election = self.election
        loss = election.Loss(broker, self.rng.random() < 0.3) if lossy else None
        self.book.carry_out(election.leave(self.book.image, broker, lambda _: loss))
        if lossy and broker in self.has:
            self.has[broker] = self.rng.randint(0, self.has[broker])
        self.book.register(broker, process=f"p{self.rng.getrandbits(32)}")

    def shut_down(self) -> None:
        broker = self._some(fenced=False)
        if broker is not None and not self.book.image.brokers[broker].shutting_down:
            self.book.carry_out(self.election.begin_shutdown(self.book.image, broker))
            assert broker not in self.p.isr or self.p.isr == (broker,), self.p

    def offline(self) -> None:
        broker = self._some(fenced=False)
        if broker is not None:
            self.book.carry_out(self.election.go_offline(self.book.image, broker, [self.p.place]))

    # ── the operator ──────────────────────────────────────────────────────────────────────────────

    def min_isr(self) -> None:
        self.book.carry_out(self.election.set_min_isr(self.book.image, self.p.place, self.rng.randint(1, 4)))

    def preferred(self) -> None:
        p = self.p
        first = p.replicas[0]
        possible = p.leader not in {NO_BROKER, first} and first in p.isr
        if possible and self.book.image.can_lead(first, p.place):
            self.book.carry_out(self.election.elect_preferred(self.book.image, p.place))

    def anyway(self) -> None:
        p = self.p
        if p.leader == NO_BROKER and any(self.book.image.can_lead(r, p.place) for r in p.replicas):
            epoch = p.unclean_epoch
            self.book.carry_out(self.election.elect_anyway(self.book.image, p.place))
            if self.p.unclean_epoch != epoch:
                self._lost()

    def _lost(self) -> None:
        """An unclean election: what its leader has is all there is from now on."""
        self.unclean += 1
        self.committed = self.has[self.p.leader]
        self.has = {broker: min(end, self.committed) for broker, end in self.has.items()}
