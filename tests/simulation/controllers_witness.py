"""Whoever watches controllers and knows what must not happen: I-44 to I-46 and I-49, after every event.

It believes nobody's word alone: what is committed it counts on the disks, and a promise it reads from the medium.
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from tests.controller.nodes import Ledger
from tidelog.controller.ballot import QUORUM_STATE, decode_state
from tidelog.controller.controller import Controller
from tidelog.controller.image import Image
from tidelog.controller.quorum import Leader, QuorumState
from tidelog.protocol.batch import walk
from tidelog.protocol.types import NO_BROKER, Epoch, Offset
from tidelog.storage.log import Log
from tidelog.testing.simulation.host import Host

FOLD_EVERY = 64
"""At every so manieth look at a node that has news, its whole log is folded anew."""


class Placed(NamedTuple):
    """A batch as it lies in a log."""

    next_offset: Offset
    epoch: Epoch
    checksum: int


@dataclass(slots=True)
class Seen:
    """What was known of a node when it was looked at last."""

    node: Controller
    log_start: Offset = 0
    """At its birth: where its own disk had the log begin."""
    turns: int = 0
    state: QuorumState | None = None
    high_watermark: Offset = 0
    committed: Offset = 0
    end: Offset = 0
    leads: Epoch = -1
    active: Epoch = -1
    looks: int = 0
    facets: tuple[object, ...] = ()
    """Whatever is looked at: while it is the same, nothing needs to be looked at again."""


class Witness:
    """Of one quorum's history."""

    def __init__(self, hosts: dict[int, Host], fetch_timeout_ms: int, counts: Counter[str]) -> None:
        self.ledger = Ledger()
        self.counts = counts
        self.batches: dict[Offset, Placed] = {}
        """What was committed, by where it begins."""
        self.end: Offset = 0
        """Of what was committed."""
        self.image = Image()
        """The sum of it."""
        self.leaders: dict[Epoch, int] = {}
        self.replaced: set[int] = set()
        """Controllers whose disk is not the one that the voters' record names."""
        self._hosts = hosts
        self._fetch_timeout_ms = fetch_timeout_ms
        self._seen: dict[int, Seen] = {}
        self._promised: dict[int, QuorumState] = {}
        self._durable = dict.fromkeys(hosts, 0)
        """Up to where each disk surely has its log."""
        self._lost: dict[int, tuple[Seen | None, Offset]] = {}
        """What was on the disks that were taken away."""
        self._two_leases_since: float | None = None
        self._leaders_now: set[int] = set()
        """Who said that it leads when it was looked at last, be it a process that is gone."""

    def new_disk(self, number: int) -> None:
        """That controller has lost what it had; it may have told somebody of it just now."""
        self._promised.pop(number, None)
        self._lost[number] = self._seen.get(number), self._durable[number]
        self.replaced.add(number)
        self._durable[number] = 0

    def look(self, nodes: dict[int, Controller]) -> None:
        """Look at every node that has had a turn since it was looked at."""
        for number, node in nodes.items():
            self._look_if_turned(number, node)
        self._leases(nodes)

    def look_at(self, number: int, nodes: dict[int, Controller]) -> None:
        """Look at the node that has just had a turn."""
        node = nodes.get(number)
        if node is not None and self._look_if_turned(number, node) and len(self._leaders_now) > 1:
            self._leases(nodes)  # time alone ends leases, and gives nobody another

    def _look_if_turned(self, number: int, node: Controller) -> bool:
        host = self._hosts[number]
        loop = host.loop
        if loop is None or not hasattr(node, "quorum"):
            return False  # who has just ended tells nobody what it could not write down
        seen = self._seen.get(number)
        if seen is None or seen.node is not node:
            seen = self._seen[number] = self._born(number, node)
        if seen.turns == loop.turns:
            return False
        seen.turns = loop.turns
        self._look_at(number, seen)
        return True

    def follows(self, who: str, image: Image, nodes: dict[int, Controller]) -> None:
        """Somebody who follows has added that up: of what is committed, and to the same (I-44)."""
        if image.end_offset > self.end:
            self.look(nodes)
        assert image.end_offset <= self.end, f"{who} counts on {image.end_offset}, {self.end} is committed"
        self.counts["images of brokers"] += 1
        self.ledger.saw(image.end_offset, image.to_bytes())

    @property
    def wary(self) -> bool:
        """Whether two hold leases: then time alone may bring news."""
        return self._two_leases_since is not None

    # ── one node ──────────────────────────────────────────────────────────────────────────────────

    def _born(self, number: int, node: Controller) -> Seen:
        log, before = node.metadata.log, self._durable[number]
        assert log.end_offset >= before, f"c{number} had {before} on its disk, and has {log}"
        seen = Seen(node, log.log_start, state=self._promised.get(number))
        self._leaders_now.discard(number)
        self.counts["lives"] += 1
        return seen

    def _look_at(self, number: int, seen: Seen) -> None:
        node = seen.node
        quorum, metadata, log = node.quorum, node.metadata, node.metadata.log
        facets = (
            quorum.state,
            quorum.role,
            quorum.high_watermark,
            log.end_offset,
            log.durable_offset,
            metadata.committed.end_offset,
            metadata.working.end_offset,
            node.active,
        )
        if facets == seen.facets and number not in self.replaced:
            return
        seen.facets = facets
        if quorum.state is not seen.state and quorum.state != seen.state:
            self._is_durable(number, node)
            self._keeps(number, quorum.state)
            seen.state = quorum.state
        high_watermark, end, committed = quorum.high_watermark, log.end_offset, metadata.committed.end_offset
        assert high_watermark >= seen.high_watermark, f"c{number}: {high_watermark} < {seen}"
        seen.high_watermark = high_watermark
        assert committed == high_watermark, (metadata, high_watermark)
        assert metadata.working.end_offset == end, (metadata, metadata.working.end_offset)
        self._durable[number] = max(min(self._durable[number], end), log.durable_offset)
        cut = end < seen.end
        news = end != seen.end or committed != seen.committed
        seen.end = end
        if committed != seen.committed:
            self._committed(number, seen)
        seen.looks += news
        if cut:
            self.counts["tails cut"] += 1
        if cut or (news and seen.looks % FOLD_EVERY == 0):
            self.folds(node)
        self._leading(number, seen)
        if number in self.replaced and quorum.directories is not None:
            assert not quorum.is_voter, f"c{number} votes with a new disk"
            assert quorum.state.voted_id == NO_BROKER, f"c{number} voted with a new disk: {quorum.state}"

    def _is_durable(self, number: int, node: Controller) -> None:
        """What it knows and has promised is on its disk; what it only concludes from its log is there too."""
        state = node.quorum.state
        if state == QuorumState(state.epoch) and state.epoch <= max(node.metadata.log.epochs.latest, 0):
            return
        try:
            stored = self._hosts[number].disk.stored(f"/data/{QUORUM_STATE}")
        except FileNotFoundError:
            stored = b""
        assert decode_state(stored, "the medium") == state, f"c{number}: {state} is not durable: {stored!r}"

    def _keeps(self, number: int, state: QuorumState) -> None:
        """What it has promised in an epoch holds as long as that lasts, whatever its process goes through (I-45)."""
        before = self._promised.get(number, QuorumState())
        self._promised[number] = state
        voted = before.voted_id, before.voted_directory_id
        keeps = state.epoch > before.epoch or (
            state.epoch == before.epoch
            and voted in {(NO_BROKER, None), (state.voted_id, state.voted_directory_id)}
            and before.leader_id in {NO_BROKER, state.leader_id}
        )
        assert keeps, f"c{number}: {state} after {before}"

    def _committed(self, number: int, seen: Seen) -> None:
        """More is committed, as this node says."""
        metadata, before = seen.node.metadata, self.end
        upto = metadata.committed.end_offset
        # A log begins behind what was committed here only where somebody else's snapshot has taken its place.
        self.counts["snapshots fetched"] += metadata.log.log_start > max(seen.committed, seen.log_start)
        for base, placed, batch in batches(metadata.log, seen.committed, upto):
            if base >= self.end:
                assert base == self.end, (
                    f"c{number} says that {base} is committed, {self.end} is the end of it"
                )
                self.batches[base] = placed
                self.end = placed.next_offset
                self.image.replay(batch)
                self.ledger.saw(self.end, self.image.to_bytes())
            assert self.batches.get(base) == placed, (
                f"c{number} has {placed} at {base}, where {self.batches.get(base)} is committed"
            )
        seen.committed = upto
        if self.end > before:
            held = [other for other in self._durable if self._holds(other)]
            assert len(held) > len(self._durable) // 2, f"{self.end} is committed, and on the disks of {held}"
            quorum, last = seen.node.quorum, self.batches[max(self.batches)]
            assert not quorum.leads or last.epoch == quorum.epoch, (
                f"c{number} commits {last} in {quorum.epoch}"
            )
        self.ledger.saw(upto, metadata.committed.to_bytes())

    def _holds(self, number: int) -> bool:
        """Whether the last batch that is committed is on that disk."""
        last = self.batches[max(self.batches)]
        return any(
            seen is not None
            and durable >= self.end
            and seen.node.metadata.log.epochs.epoch_of(self.end - 1) == last.epoch
            for seen, durable in [
                (self._seen.get(number), self._durable[number]),
                self._lost.get(number, (None, 0)),
            ]
        )

    def folds(self, node: Controller) -> None:
        """Its working image is the sum of all that is in its log, and the indexes are right."""
        metadata = node.metadata
        fold = metadata.committed.copy()
        for _, _, batch in batches(metadata.log, fold.end_offset, metadata.log.end_offset):
            fold.replay(batch)
        assert fold.to_bytes() == metadata.working.to_bytes(), f"{metadata} is not the sum of its log"
        node.metadata.working.check()
        self.counts["folds"] += 1

    def _leading(self, number: int, seen: Seen) -> None:
        role, epoch = seen.node.quorum.role, seen.node.quorum.epoch
        if isinstance(role, Leader):
            if seen.leads != epoch:
                seen.leads = epoch
                self._leaders_now.add(number)
                self._elected(number, seen.node, role.begins)
            follows = seen.node._follows
            assert follows is None or follows.done(), f"c{number} leads and follows"
        elif seen.leads >= 0:
            seen.leads = -1
            self._leaders_now.discard(number)
            self.counts["deposed"] += 1
        active = seen.node.active
        assert active is None or (active.epoch, seen.leads) == (epoch, epoch), f"c{number}: {active}, {role}"
        if active is not None and seen.active != epoch:
            seen.active = epoch
            self.counts["activations"] += 1
        assert active is None or seen.node.quorum.is_settled, (
            f"c{number} serves, and does not know what is so"
        )

    def _elected(self, number: int, node: Controller, begins: Offset) -> None:
        epoch = node.quorum.epoch
        first = self.leaders.setdefault(epoch, number)
        assert first == number, f"c{first} and c{number} lead in epoch {epoch}"
        assert number not in self.replaced, f"c{number} leads with a new disk"
        self.counts["quorum elections"] += 1
        self.counts["founding elections"] += begins == 0
        log = node.metadata.log
        here = {base: placed for base, placed, _ in batches(log, 0, log.end_offset)}
        lost = [
            base
            for base, placed in self.batches.items()
            if base >= log.log_start and here.get(base) != placed
        ]
        assert not lost, f"c{number} leads in epoch {epoch} without what is committed at {lost}"

    # ── all of them ───────────────────────────────────────────────────────────────────────────────

    def _leases(self, nodes: dict[int, Controller]) -> None:
        """Who is followed by a majority: two at a time only until the older one must have noticed (4.3)."""
        leading = [
            number for number in sorted(self._leaders_now) if nodes.get(number) is self._seen[number].node
        ]
        if len(leading) < 2:
            self._two_leases_since = None
            return
        holders = [
            number
            for number in leading
            if self._hosts[number].alive
            and nodes[number].quorum.holds_lease(self._hosts[number].clock.boot_ms())
        ]
        if len(holders) < 2:
            self._two_leases_since = None
            return
        now = self._hosts[holders[0]].world.now
        if self._two_leases_since is None:
            self._two_leases_since = now
            self.counts["two leases"] += 1
        together_ms = (now - self._two_leases_since) * 1000
        # What lay unread in one that was paused may count once more (`LivenessConfig.old_leases_ms`), and words take
        # their time; a lease that is given away has a tenth of a session to spare.
        assert together_ms <= self._fetch_timeout_ms * 5 // 2 + 100, (
            f"{holders} hold leases together for {together_ms:.0f} ms"
        )


def batches(log: Log, begin: Offset, end: Offset) -> list[tuple[Offset, Placed, bytes]]:
    """The batches of a log from one offset to another: where each begins, what it is, and its bytes."""
    found: list[tuple[Offset, Placed, bytes]] = []
    begin = max(begin, log.log_start)
    while begin < end:
        data = log.read(begin, 1 << 20, end).data
        for at, header in walk(data):
            placed = Placed(header.next_offset, header.leader_epoch, header.body_crc)
            found.append((header.base_offset, placed, bytes(data[at : at + header.size])))
        begin = found[-1][1].next_offset
    return found
