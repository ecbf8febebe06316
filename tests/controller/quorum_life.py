"""Random lives of a quorum: 1, 3 or 5 voters and an observer in virtual time, everything from one seed (I-44 to I-48).

Messages are late, lost, doubled and overtake each other; links are cut in one direction; processes pause, are killed,
lose their power and with it what they have not flushed, or end between two steps; disks are replaced, a minority at
most; clocks differ. Then the faults stop, or one voter stays cut off in one direction, and there has to be a leader.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any

from tests.controller.quorum_nodes import Crash, Disk, Node
from tests.controller.quorum_witness import SKEW, Witness
from tidelog.controller import quorum
from tidelog.protocol.types import BrokerId

OBSERVER = BrokerId(9)
CHAOS_MS = 9000
BOUND_MS = 10_000
"""When everything works again, or all but one voter, there is a leader with a committed first record within so long:
five of the longest elections, of two seconds each, one of which a follower may need to miss its leader."""
EVENTS_MAX = 50_000
"""Ten times as many as a long life has."""
CALM_MS = 6000
"""Then it goes on so long without another epoch."""


@dataclass
class Member:
    """A controller, dead or alive."""

    disk: Disk
    rate: float
    offset_ms: float
    node: Node | None = None
    paused_until_ms: float = 0
    lives: int = 0


class Life:
    """One seed's history."""

    def __init__(self, seed: int, module: Any = quorum, nodes: type[Node] = Node) -> None:
        self.rng = Random(seed)
        self.module = module
        self.act = nodes
        """The process's own class: it may have a bug."""
        self.config = module.QuorumConfig()
        self.counts: Counter[str] = Counter()
        self.now_ms = 0.0
        self.voters = tuple(BrokerId(n) for n in range(1, self.rng.choice([1, 3, 3, 3, 5, 5]) + 1))
        self.everybody = (*self.voters, OBSERVER)
        self.members = {
            me: Member(Disk(self._name()), 1 + self.rng.uniform(-SKEW, SKEW), self.rng.uniform(0, 1e6))
            for me in self.everybody
        }
        self.witness = Witness(self)
        self.cuts: set[tuple[BrokerId, BrokerId]] = set()
        self.lossy, self.doubling = self.rng.choice([0, 0.02, 0.2]), self.rng.choice([0, 0.1])
        self.crashing = self.rng.choice([0, 0, 0.05])
        self.delay_ms, self.flush_ms = self.rng.choice([5, 100, 900]), self.rng.choice([5, 50, 400])
        self.weights = [self.rng.choice([0, 1, 4]) + 0.1 for _ in FAULTS]
        self.healed = False
        self.replaced: list[Disk] = []
        self.replaceable = (len(self.voters) - 1) // 2
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._events = self._payloads = 0
        for me in self.everybody:
            self.start(me)

    # ── what nodes ask of the world ───────────────────────────────────────────────────────────────

    @property
    def nodes(self) -> dict[BrokerId, Node]:
        return {me: member.node for me, member in self.members.items() if member.node is not None}

    def disks(self) -> list[Disk]:
        """Those that were replaced as well: what was committed with them was."""
        return [*(member.disk for member in self.members.values()), *self.replaced]

    def clock(self, me: BrokerId) -> float:
        member = self.members[me]
        return member.offset_ms + self.now_ms * member.rate

    def payload(self) -> int:
        self._payloads += 1
        return self._payloads

    def may_crash(self) -> None:
        if self.crashing and self.rng.random() < self.crashing:
            raise Crash

    def later(self, node: Node, delay_ms: float, act: Callable[[Node], None]) -> None:
        self._at(self.now_ms + delay_ms, lambda: self._run(node, act))

    def ask(self, sender: Node, to: BrokerId, act: Callable[..., None], *what: Any) -> None:
        """A request: whoever listens there by then gets it; who finds that nobody does may notice."""

        def arrives() -> None:
            node = self.members[to].node
            if node is not None:
                self._run(node, act, sender, *what)
            elif self.rng.random() < 0.5:
                self._run(sender, self.act.refused, to)

        self._send(sender.me, to, arrives)

    def answer(self, sender: Node, to: Node, act: Callable[..., None], *what: Any) -> None:
        """A reply: it reaches the process that asked, or nobody."""
        self._send(sender.me, to.me, lambda: self._run(to, act, sender, *what))

    def _send(self, sender: BrokerId, to: BrokerId, arrives: Callable[[], None]) -> None:
        if (sender, to) in self.cuts or self.rng.random() < self.lossy:
            self.counts["messages lost"] += 1
            return
        for _ in range(2 if self.rng.random() < self.doubling else 1):
            self._at(self.now_ms + self.rng.uniform(0.1, self.delay_ms), arrives)

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    def _at(self, at_ms: float, act: Callable[[], None]) -> None:
        self._events += 1
        assert self._events < EVENTS_MAX, "something goes on for ever"
        heappush(self._heap, (at_ms, self._events, act))

    def _run(self, node: Node, act: Callable[..., None], *what: Any) -> None:
        """Something happens to a process, or as soon as it goes on."""
        member = self.members[node.me]
        if member.node is not node:
            return
        if self.now_ms < member.paused_until_ms:
            self._at(member.paused_until_ms, lambda: self._run(node, act, *what))
            return
        try:
            act(node, *what)
        except Crash:
            self.counts["crashes between steps"] += 1
            self.crash(node.me)
            self._at(self.now_ms + 100, lambda: self.start(node.me))
            return
        self.witness.after(node)
        due = node.quorum.deadline_ms()
        if due is not None and due != node.ticks_at_ms:
            node.ticks_at_ms = due
            at_ms = (due - member.offset_ms) / member.rate + 1e-6
            self._at(max(at_ms, self.now_ms), lambda: self._ticks(node, due))

    def _ticks(self, node: Node, due: float) -> None:
        if node.ticks_at_ms == due:
            node.ticks_at_ms = None
            self._run(node, self.act.tick)

    def until(self, end_ms: float, done: Callable[[], bool] = lambda: False) -> None:
        while self._heap and self._heap[0][0] <= end_ms and not done():
            self.now_ms, _, act = heappop(self._heap)
            act()
        if not done():
            self.now_ms = end_ms

    # ── what may go wrong ─────────────────────────────────────────────────────────────────────────

    def _name(self) -> bytes:
        return self.rng.randbytes(16)

    def start(self, me: BrokerId) -> None:
        member = self.members[me]
        if member.node is None:
            member.lives += 1
            self.counts["restarts"] += member.lives > 1
            member.paused_until_ms = 0
            member.node = self.act(self, me, member.disk)
            self._run(member.node, self.act.poll)

    def crash(self, me: BrokerId, *, power: bool = False) -> None:
        member = self.members[me]
        member.node = None
        disk = member.disk
        if power and disk.durable < disk.end_offset:
            self.counts["tails lost"] += 1
            disk.cut(self.rng.randint(disk.durable, disk.end_offset - 1))

    def kill(self) -> None:
        self._dies(self.rng.choice(self.everybody), power=False)

    def lose_power(self) -> None:
        for me in self.rng.choice([self.voters, self.rng.sample(self.everybody, 1)]):
            self._dies(me, power=True)

    def _dies(self, me: BrokerId, *, power: bool) -> None:
        if self.healed:
            return
        self.crash(me, power=power)
        self._at(self.now_ms + self.rng.choice([50, 500, 5000]), lambda: self.start(me))

    def stop_in_order(self) -> None:
        me = self.rng.choice(self.voters)
        node = self.members[me].node
        if node is not None:
            self._run(node, self.act.resign)
            self._at(self.now_ms + 20, lambda: self._dies(me, power=False))

    def replace_disk(self) -> None:
        """Before the voters are named, or when they are for good; not while only some might know (see the report)."""
        me = self.rng.choice(self.voters)
        named = any(disk.log for disk in self.disks())
        if self.replaceable and (self.witness.committed or not named):
            self.replaceable -= 1
            self.counts["disks replaced"] += 1
            self.crash(me)
            self.replaced.append(self.members[me].disk)
            self.members[me].disk = Disk(self._name())
            self._at(self.now_ms + 200, lambda: self.start(me))

    def pause(self) -> None:
        member = self.members[self.rng.choice(self.everybody)]
        member.paused_until_ms = self.now_ms + self.rng.choice([100, 1500, 2500, 8000])

    def cut(self) -> None:
        links = [(a, b) for a in self.everybody for b in self.everybody if a != b]
        victim = self.rng.choice(self.voters)
        kind = self.rng.randrange(4)
        chosen = (
            [self.rng.choice(links)]
            if kind == 0
            else [
                link
                for link in links
                if (kind in {1, 3} and link[0] == victim) or (kind in {2, 3} and link[1] == victim)
            ]
        )
        self._cut({*chosen}, self.rng.choice([300, 3000, 6000]))

    def _cut(self, links: set[tuple[BrokerId, BrokerId]], for_ms: float) -> None:
        def mend() -> None:
            if not self.healed:
                self.cuts -= links

        self.cuts |= links
        self._at(self.now_ms + for_ms, mend)

    def leader_alone(self) -> None:
        """It writes on, and nobody hears of it for a while; what it has flushed by then may have to be cut."""
        for me, node in self.nodes.items():
            if node.quorum.leads:
                links = {link for other in self.everybody for link in ((me, other), (other, me))}
                self._cut(links, self.rng.choice([1000, 3500]))
                for _ in range(self.rng.randint(1, 3)):
                    self._run(node, self.act.write_fact)

    def write_fact(self) -> None:
        for node in self.nodes.values():
            self._run(node, self.act.write_fact)

    # ── a life ────────────────────────────────────────────────────────────────────────────────────

    def live(self) -> None:
        """Faults, then none; the seed is all it depends on."""
        while self.now_ms < CHAOS_MS:
            self.until(self.now_ms + self.rng.expovariate(1 / 250))
            self.rng.choices(FAULTS, self.weights)[0](self)
        self.heal()
        self.settles()
        self.converges()
        if len(self.voters) > 1 and self.rng.random() < 0.5:
            self.one_is_cut_off()

    def heal(self) -> None:
        self.healed = True
        self.lossy = self.doubling = self.crashing = 0
        self.delay_ms, self.flush_ms = 20, 20
        self.cuts.clear()
        for me in self.everybody:
            self.start(me)
        self.until(max(self.now_ms, *(member.paused_until_ms for member in self.members.values())))

    def settles(self) -> None:
        end_ms = self.now_ms + BOUND_MS
        began_ms = self.now_ms
        self.until(end_ms, lambda: self.witness.settled() is not None)
        assert self.witness.settled() is not None, (
            f"no leader within {BOUND_MS} ms: {[node.quorum for node in self.nodes.values()]}"
        )
        self.counts["slowest"] = max(self.counts["slowest"], int(self.now_ms - began_ms))

    def converges(self) -> None:
        """Everybody gets to know what is committed."""
        self.write_fact()
        self.until(self.now_ms + BOUND_MS, self.agree)
        assert self.agree(), [node.quorum.high_watermark for node in self.nodes.values()]

    def agree(self) -> bool:
        """Whether everybody knows everything to be committed."""
        leader = self.witness.settled()
        return leader is not None and all(
            node.quorum.high_watermark == leader.disk.end_offset for node in self.nodes.values()
        )

    def one_is_cut_off(self) -> None:
        """For ever, in one direction, from everybody or from some of them (I-48)."""
        leader = self.witness.settled()
        assert leader is not None
        named = leader.disk.directories or {}
        voting = [me for me in self.voters if named[me] == self.members[me].disk.directory_id]
        if len(voting) <= self.witness.majority:
            return  # who has another disk does not vote: everybody else is needed
        victim = self.rng.choice(voting)
        peers = [me for me in self.everybody if me != victim]
        one = leader.me if leader.me != victim else self.rng.choice(peers)
        some = self.rng.sample(peers, self.rng.randint(1, len(peers)))
        peers = self.rng.choice([peers, [one], some])
        inward = self.rng.random() < 0.5
        self.cuts = {(peer, victim) if inward else (victim, peer) for peer in peers}
        self.counts["cut off for ever"] += 1
        epoch = leader.quorum.epoch
        self.until(self.now_ms + BOUND_MS)
        before = max(node.quorum.epoch for node in self.nodes.values())
        assert victim == leader.me or before == epoch, "who is cut off deposes a leader that the others hear"
        self.settles()
        self.until(self.now_ms + CALM_MS)
        assert max(node.quorum.epoch for node in self.nodes.values()) == before, "elections without end"
        leader = self.witness.settled()
        assert leader is not None
        assert leader.quorum.holds_lease(leader.now_ms)
        leading = [node for node in self.nodes.values() if node.quorum.leads]
        assert leading == [leader], "somebody leads whom nobody hears"


FAULTS = (
    Life.write_fact,
    Life.write_fact,
    Life.write_fact,
    Life.kill,
    Life.lose_power,
    Life.stop_in_order,
    Life.replace_disk,
    Life.pause,
    Life.cut,
    Life.cut,
    Life.leader_alone,
    Life.leader_alone,
)


def live(seed: int, module: Any = quorum, nodes: type[Node] = Node) -> Counter[str]:
    """One history, and what happened in it."""
    life = Life(seed, module, nodes)
    life.live()
    life.counts["committed"] = len(life.witness.committed)
    return life.counts
