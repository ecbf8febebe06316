"""Random lives of a cluster in which operators do all that they can: what that must never cost (I-3, I-53; ADR 76).

Two topics on five brokers, a record at a time: whoever is in sync takes it; it is committed while enough are. The
modules that decide are arguments, so that planted bugs can be shown to be found.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.controller.book import OTHER, TOPIC, Book, ids
from tidelog.controller import configs, departures, leaders, partitions, reassignment, recovery
from tidelog.controller.election import (
    Loss,
    alive_for,
    begin_shutdown,
    change_in,
    configured_min_isr,
    fence,
    leave,
    unfence,
)
from tidelog.controller.facts import BrokerChanged, Fact, Place
from tidelog.controller.image import PartitionState
from tidelog.controller.topics import Replicas, TopicDefaults, create_topic
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.messages import (
    AlterConfigs,
    AlterReassignments,
    ConfigAlter,
    CreatePartitions,
    ElectLeaders,
    GetReplicaLogInfoReply,
    NewPartitions,
    NewTopic,
    PartitionMove,
    ReplicaLogInfo,
    ResourceAlter,
    UnregisterBroker,
)
from tidelog.protocol.settings import (
    CLUSTER,
    MIN_ISR,
    MOVE_RATE,
    UNCLEAN_RECOVERY,
    unclean_recovery,
)
from tidelog.protocol.types import NO_BROKER, BrokerId, TopicId

BROKERS = ids(1, 2, 3, 4, 5)
PARTITIONS_MAX = 6


class Modules(NamedTuple):
    """What decides."""

    configs: Any = configs
    departures: Any = departures
    leaders: Any = leaders
    partitions: Any = partitions
    reassignment: Any = reassignment
    recovery: Any = recovery


class Data:
    """What the replicas of a partition hold, and what it has promised."""

    def __init__(self) -> None:
        self.has: dict[BrokerId, int] = {}
        self.committed = 0
        self.strength = 0
        """`min_isr` when the ISR was big enough last."""
        self.lost: set[BrokerId] = set()
        """Complete replicas that lost their disk since."""
        self.home: set[BrokerId] = set()
        """Who held it when it was not being moved."""


class Operations:
    """What has happened so far."""

    def __init__(self, modules: Modules, seed: int) -> None:
        self.modules = modules
        self.rng = random.Random(seed)
        self.book = Book(live=BROKERS)
        self.data: dict[Place, Data] = {}
        self.recovery = modules.recovery.Recovery()
        self.now_ms = 0
        self.seen: Counter[str] = Counter()
        for topic_id, name in ((TOPIC, "orders"), (OTHER, "invoices")):
            new = NewTopic(name, 2, 3)
            self.book.carry_out(create_topic(self.book.image, new, topic_id, self.place, TopicDefaults()))
        self.look({})

    def run(self, steps: int) -> None:
        deeds: dict[Callable[[], None], int] = {
            self.write: 8,
            self.catch_up: 12,
            self.shrink: 3,
            self.fence: 4,
            self.unfence: 7,
            self.restart: 2,
            self.shut_down: 1,
            self.set_min_isr: 3,
            self.set_recovery: 1,
            self.move: 5,
            self.cancel: 2,
            self.add_partitions: 1,
            self.elect: 2,
            self.unregister: 1,
            self.recover: 2,
        }
        for _ in range(steps):
            before = dict(self.book.image.partitions)
            self.now_ms += self.rng.choice((1, 600, 7_000, 100_000))
            self.rng.choices(list(deeds), list(deeds.values()))[0]()
            self.look(before)

    def carry_out(self, batches: Sequence[list[Fact]]) -> None:
        for facts in batches:
            self.book.carry_out(facts)

    # ── what must hold ────────────────────────────────────────────────────────────────────────────

    def look(self, before: dict[Place, PartitionState]) -> None:
        image = self.book.image
        for place, p in image.partitions.items():
            data = self.data.setdefault(place, Data())
            was = before.get(place, p)
            self._forget(data, p, was)
            if p.unclean_epoch != was.unclean_epoch:
                self.seen["unclean"] += 1
                data.committed = data.has.get(p.leader, 0)
                data.has = {broker: min(end, data.committed) for broker, end in data.has.items()}
                data.strength = 0
            if len(p.isr) >= p.min_isr:
                data.strength, data.lost = p.min_isr, set()
            if not p.adding and not p.removing:
                data.home = set(p.replicas)
            self._check(data, p)
        rate, moves = (CLUSTER, "", MOVE_RATE), any(p.adding or p.removing for p in image.partitions.values())
        throttled = rate in image.configs
        self.book.carry_out(self.modules.reassignment.throttle_ends(image))
        assert (rate in image.configs) == (throttled and moves), image.configs

    def _forget(self, data: Data, p: PartitionState, was: PartitionState) -> None:
        """Who is no replica any more deletes what it has."""
        if (was.adding or was.removing) and not p.adding and not p.removing:
            self.seen["ended"] += 1
        data.has = {broker: data.has.get(broker, 0) for broker in p.replicas}

    def _check(self, data: Data, p: PartitionState) -> None:
        complete = {*p.isr, *p.elr}
        for broker in complete:
            assert data.has[broker] >= data.committed, (
                f"{broker} has {data.has[broker]} of {data.committed}: {p}"
            )
        assert len(complete) + len(data.lost) >= data.strength, f"I-53: {data.strength} were complete: {p}"
        configured = configured_min_isr(self.book.image, p)
        assert p.min_isr == min(configured, max(1, len(p.replicas) - len(p.adding))), (configured, p)
        if p.leader == NO_BROKER:
            can_lead = self.book.image.can_lead
            assert not any(can_lead(broker, p.place) for broker in p.isr or p.elr), p

    # ── the data ──────────────────────────────────────────────────────────────────────────────────

    def place(self, partitions: int, factor: int) -> list[Replicas]:
        live = [b for b in BROKERS if self.book.image.live_epoch(b) is not None]
        factor = min(factor, len(live))
        return [tuple(self.rng.sample(live, factor)) for _ in range(partitions)]

    def some(self) -> PartitionState:
        return self.rng.choice(list(self.book.image.partitions.values()))

    def write(self) -> None:
        for place, p in self.book.image.partitions.items():
            if p.leader != NO_BROKER and len(p.isr) >= p.min_isr:
                self.data[place].committed += 1
                for broker in p.isr:
                    self.data[place].has[broker] = self.data[place].committed

    def catch_up(self) -> None:
        self._catch_up(self.some())

    def _catch_up(self, p: PartitionState) -> bool:
        """A replica fetches what it lacks, and its leader proposes it."""
        can_lead = self.book.image.can_lead
        behind = [r for r in p.replicas if r not in p.isr and can_lead(r, p.place)]
        if p.leader == NO_BROKER or not behind or not can_lead(p.leader, p.place):
            return False
        joins = self.rng.choice(behind)
        self.data[p.place].has[joins] = self.data[p.place].has[p.leader]
        self._propose(p, (*p.isr, joins))
        return True

    def shrink(self) -> None:
        p = self.some()
        slow = [r for r in p.isr if r != p.leader]
        if slow and self.book.image.can_lead(p.leader, p.place):
            gone = self.rng.choice(slow)
            self._propose(p, tuple(r for r in p.isr if r != gone))

    def _propose(self, p: PartitionState, isr: tuple[BrokerId, ...]) -> None:
        then = change_in(self.book.image, p, isr, alive_for(self.book.image, p.place), recovered=True)
        self.book.carry_out([then.changed()] if then is not p else [])

    # ── the brokers ───────────────────────────────────────────────────────────────────────────────

    def _some(self, *, fenced: bool) -> BrokerId | None:
        found = [broker for broker, state in self.book.image.brokers.items() if state.fenced == fenced]
        return self.rng.choice(found) if found else None

    def fence(self) -> None:
        broker = self._some(fenced=False)
        if broker is not None:
            self.book.carry_out(fence(self.book.image, broker))

    def unfence(self) -> None:
        broker = self._some(fenced=True)
        if broker is not None:
            self.book.carry_out(unfence(self.book.image, broker))

    def restart(self) -> None:
        broker = self.rng.choice(BROKERS)
        loss = Loss(broker, self.rng.random() < 0.3) if self.rng.random() < 0.5 else None
        if broker not in self.book.image.brokers:
            loss = Loss(broker, everything=True)
        if loss:
            self._lose(broker)
        self._return(broker, loss)

    def _return(self, broker: BrokerId, loss: Loss | None) -> None:
        self.book.carry_out(leave(self.book.image, broker, lambda _: loss))
        self.book.register(broker, process=f"p{self.rng.getrandbits(32)}")

    def _lose(self, broker: BrokerId) -> None:
        for place, p in self.book.image.partitions.items():
            if broker in p.replicas:
                data = self.data[place]
                data.has[broker] = self.rng.randint(0, data.has[broker])
                if broker in (*p.isr, *p.elr):
                    data.lost.add(broker)

    def shut_down(self) -> None:
        broker = self._some(fenced=False)
        if broker is not None and not self.book.image.brokers[broker].shutting_down:
            self.book.carry_out(begin_shutdown(self.book.image, broker))

    # ── the operator ──────────────────────────────────────────────────────────────────────────────

    def set_min_isr(self) -> None:
        """Sometimes the controller goes in the middle of it."""
        value = self.rng.choice((None, "1", "2", "3", "9"))
        self._configure(MIN_ISR, value, torn=self.rng.random() < 0.3)

    def set_recovery(self) -> None:
        self._configure(UNCLEAN_RECOVERY, self.rng.choice((None, "none", "balanced", "aggressive")))

    def _configure(self, key: str, value: str | None, *, torn: bool = False) -> None:
        level, name = self.rng.choice((("topic", "orders"), ("topic", "invoices"), (CLUSTER, "")))
        resource = ResourceAlter(level, name, (ConfigAlter(key, value),))
        request = AlterConfigs((resource,))
        batches = self.modules.configs.alter_configs(self.book.image, request).batches
        if torn and batches:
            facts = batches[0]
            batches = [facts[: self.rng.randint(0, len(facts))]]
        self.carry_out(batches)
        if torn or self.modules.configs.reaches_partitions(request):
            self.carry_out(self.modules.configs.unfinished(self.book.image))
        for p in self.book.image.partitions.values() if key == MIN_ISR else ():
            # Who asks for less from now on has less to lose.
            self.data[p.place].strength = min(self.data[p.place].strength, p.min_isr)

    def move(self) -> None:
        p, target = self.some(), tuple(self.rng.sample(BROKERS, self.rng.randint(1, 4)))
        self._reassign(p, target)

    def cancel(self) -> None:
        self._reassign(self.some(), None)

    def _reassign(self, p: PartitionState, target: Replicas | None) -> None:
        rate = self.rng.choice((None, 0, 1000))
        request = AlterReassignments((PartitionMove(p.topic_id, p.index, target),), rate)
        answer = self.modules.reassignment.alter_reassignments(self.book.image, request)
        [entry] = answer.reply.partitions
        if entry.error:
            self.seen["refused"] += 1
            assert not any(
                type(fact).__name__ == "PartitionChanged" for facts in answer.batches for fact in facts
            )
        self.carry_out(answer.batches)
        then = self.book.image.partitions[p.place]
        if entry.error:
            return
        self.seen["moves" if target else "cancels"] += 1
        if unclean_recovery(self.book.image.configs, self.topic_of(p.place)) != "none":
            # ADR 76: who allows unclean recovery may have fewer.
            data = self.data[p.place]
            data.strength = min(data.strength, len({*then.isr, *then.elr}))
        assert set(then.isr) <= set(p.isr), (p, then)
        kept = set(then.replicas) - set(then.removing)
        assert kept == set(target or p.replicas) - (set() if target else set(p.adding)), (p, then)
        assert then.isr or not p.isr, (p, then)
        assert target or set(then.replicas) == self.data[p.place].home, (p, then)
        if then.adding or then.removing:
            assert {r for r in p.replicas if r not in p.adding} <= set(then.replicas), (p, then)

    def add_partitions(self) -> None:
        name, topic_id = self.rng.choice((("orders", TOPIC), ("invoices", OTHER)))
        count = self.book.image.topics[topic_id].partitions
        if count >= PARTITIONS_MAX:
            return

        def place(_topic: TopicId, _first: int, partitions: int, factor: int) -> list[Replicas]:
            return self.place(partitions, factor)

        request = CreatePartitions((NewPartitions(name, count + 1),))
        if any(self.book.image.live_epoch(b) is not None for b in BROKERS):
            self.carry_out(self.modules.partitions.create_partitions(self.book.image, request, place).batches)
            assert self.book.image.topics[topic_id].partitions == count + 1

    def elect(self) -> None:
        unclean = self.rng.random() < 0.2
        before = dict(self.book.image.partitions)
        answer = self.modules.leaders.elect_leaders(self.book.image, ElectLeaders(unclean=unclean))
        self.carry_out(answer.batches)
        for entry in answer.reply.partitions:
            p = self.book.image.partitions[entry.topic_id, entry.index]
            was = before[p.place]
            assert (p.leader == was.leader) == bool(entry.error), (entry, p)
            assert entry.unclean == (p.unclean_epoch != was.unclean_epoch), (entry, p)
            assert unclean or not entry.unclean, entry

    def unregister(self) -> None:
        broker, force = self.rng.choice(BROKERS), self.rng.random() < 0.3
        image = self.book.image
        known, kept = image.brokers.get(broker), image.indexes.in_replicas.get(broker)
        try:
            answer = self.modules.departures.unregister_broker(image, UnregisterBroker(broker, force))
        except TidelogError:
            assert known is None or not known.fenced or (kept and not force), known
            return
        assert known is not None, broker
        assert known.fenced, broker
        assert force or not kept, broker
        self._lose(broker)
        self.carry_out(answer.batches)
        self.seen["unregistered"] += 1
        assert all(broker not in p.elr for p in image.partitions.values())

    def recover(self) -> None:
        """The controller asks who has most; what is alive answers, or not."""
        before = dict(self.book.image.partitions)
        for _ in range(2):
            todo = self.modules.recovery.Recovery.look(self.recovery, self.book.image, self.now_ms)
            self.carry_out(todo.elect)
            for facts in todo.elect:
                for fact in facts:
                    self.recovered((fact.topic_id, fact.index), before)
            for broker, places in todo.ask.items():
                if self.rng.random() < 0.8:
                    self._answer(broker, places)

    def _answer(self, broker: BrokerId, places: list[Place]) -> None:
        infos = tuple(
            ReplicaLogInfo(*place, last_epoch=0, end_offset=self.data[place].has[broker]) for place in places
        )
        epoch = self.book.image.brokers[broker].epoch
        asked = {place: self.book.image.partitions[place].leader_epoch for place in places}
        self.recovery.answered(broker, GetReplicaLogInfoReply(broker_epoch=epoch, partitions=infos), asked)

    def recovered(self, place: Place, before: dict[Place, PartitionState]) -> None:
        """Nobody who has more and is alive was there to lead, unless it did not answer."""
        p, was = self.book.image.partitions[place], before[place]
        allowed = unclean_recovery(self.book.image.configs, self.topic_of(place))
        self.seen[f"recovered {allowed}"] += 1
        assert was.leader == NO_BROKER, was
        if p.unclean_epoch != was.unclean_epoch:
            assert allowed != "none", p
            assert allowed == "aggressive" or (not was.isr and not was.elr), was

    def topic_of(self, place: Place) -> str:
        return self.book.image.topics[place[0]].name

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def heal(self) -> None:
        """Everybody is there: what goes on ends, and all is well."""
        for broker in BROKERS:
            known = self.book.image.brokers.get(broker)
            if known is None or known.shutting_down:
                if known is None:
                    self._lose(broker)
                before = dict(self.book.image.partitions)
                self._return(broker, None if known else Loss(broker, everything=True))
                self.look(before)
            if self.book.image.brokers[broker].fenced:
                before = dict(self.book.image.partitions)
                self.book.carry_out(unfence(self.book.image, broker))
                self.look(before)
        before = dict(self.book.image.partitions)
        self.carry_out(
            self.modules.leaders.elect_leaders(self.book.image, ElectLeaders(unclean=True)).batches
        )
        self.look(before)
        for place in list(self.book.image.partitions):
            while self._catch_up(self.book.image.partitions[place]):
                self.look({})
            p = self.book.image.partitions[place]
            assert (p.adding, p.removing, p.elr) == ((), (), ()), p
            assert set(p.isr) == set(p.replicas), p
        assert not any(isinstance(fact, BrokerChanged) and fact.fenced for fact in self.book.image.facts())
