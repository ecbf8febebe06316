"""Whoever watches a quorum's life and knows what must not happen, from what was sent, kept and written alone."""

from collections import Counter
from typing import Any

from tests.controller.quorum_nodes import Batch, Disk, Node
from tidelog.protocol.messages import Vote
from tidelog.protocol.types import BrokerId, Epoch, Offset

SKEW = 0.03
"""How much faster or slower than true a clock may go."""


class Witness:
    """Notes what has happened, and asserts after every event what has to hold."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.counts: Counter[str] = world.counts
        self.committed: list[Batch] = []
        """What any leader has ever called committed."""
        self.commit_epochs: list[Epoch] = []
        """And in which epoch."""
        self.leaders: dict[Epoch, BrokerId] = {}
        self.won_ms: dict[Epoch, float] = {}
        self.votes: dict[tuple[Epoch, BrokerId, bytes], tuple[BrokerId, bytes]] = {}
        self.watermarks: dict[Node, Offset] = {}
        self.held: dict[BrokerId, Node] = {}
        """Who holds a lease."""
        self.fetched_ms: dict[Node, dict[BrokerId, float]] = {}

    @property
    def majority(self) -> int:
        return len(self.world.voters) // 2 + 1

    # ── votes ─────────────────────────────────────────────────────────────────────────────────────

    def keeps(self, node: Node) -> None:
        assert node.quorum.state.epoch >= node.disk.state.epoch, "an epoch goes back"

    def asks(self, node: Node, request: Any) -> None:
        """A request leaves: who stands has voted for itself."""
        if not isinstance(request, Vote):
            self.counts[type(request).__name__] += 1
        elif not request.pre_vote:
            self.counts["votes asked for"] += 1
            self._votes(node, request.epoch, node.me, node.disk.directory_id)

    def answers(self, node: Node, request: Any, reply: Any) -> None:
        """A reply leaves."""
        if not isinstance(request, Vote) or reply.error:
            return
        self.counts[f"{'pre-' * request.pre_vote}vote {'granted' if reply.granted else 'refused'}"] += 1
        assert reply.epoch == node.disk.state.epoch, "an epoch is told that is not durable"
        if reply.granted and not request.pre_vote:
            assert (request.last_epoch, request.end_offset) >= node.disk.end
            self._votes(node, request.epoch, request.candidate_id, request.candidate_directory_id)

    def _votes(self, node: Node, epoch: Epoch, candidate: BrokerId, disk: bytes) -> None:
        kept = node.disk.state
        assert (kept.epoch, kept.voted_id, kept.voted_directory_id) == (epoch, candidate, disk), (
            f"controller {node.me} votes for {candidate} in {epoch}, and keeps {kept}"
        )
        voter = epoch, node.me, node.disk.directory_id
        assert self.votes.setdefault(voter, (candidate, disk)) == (candidate, disk), f"{voter} votes twice"

    def elected(self, node: Node, won: Any) -> None:
        self.counts["elections"] += 1
        assert won.epoch not in self.leaders, f"{self.leaders[won.epoch]} and {node.me} lead in {won.epoch}"
        assert node.disk.state.epoch == won.epoch
        assert node.disk.state.leader_id == node.me
        self.leaders[won.epoch] = node.me
        self.won_ms[won.epoch] = self.world.now_ms
        known = node.disk.directories
        me = node.me, node.disk.directory_id
        for_it = {
            (v, disk) for (epoch, v, disk), who in self.votes.items() if epoch == won.epoch and who == me
        }
        for_it.add(me)
        if known is None:
            self.counts["foundings"] += 1
            assert won.founding is not None
            assert {v for v, _ in won.founding} == {*self.world.voters}, "founded without somebody"
            assert {*won.founding} <= for_it
        else:
            assert won.founding is None
            assert len(for_it & {*known.items()}) >= self.majority, "elected by a minority"
        # Who wins late, when a newer epoch has committed more already, cannot do any harm.
        earlier = sum(epoch < won.epoch for epoch in self.commit_epochs)
        assert node.disk.log[:earlier] == self.committed[:earlier], f"{node.me} lacks what is committed"

    # ── the log ───────────────────────────────────────────────────────────────────────────────────

    def fetches(self, leader: Node, voter: BrokerId, directory_id: bytes) -> None:
        self.counts["fetches"] += 1
        if voter in self.world.voters and (leader.disk.directories or {}).get(voter) == directory_id:
            self.fetched_ms.setdefault(leader, {})[voter] = leader.now_ms

    def cuts(self, node: Node, cut: Offset) -> None:
        log, agreed = node.disk.log, self.committed
        self.counts["truncations"] += 1
        assert cut < len(log), "a truncation cuts nothing"
        assert cut >= node.quorum.high_watermark, "cut below what is known to be committed"
        assert cut >= len(agreed) or log[cut] != agreed[cut] or log[:cut] != agreed[:cut], (
            "cut what is committed"
        )

    def ticked(self, node: Node, due: float | None, before: Any, steps: list[Any]) -> None:
        after, leads = node.quorum.role, self.world.module.Leader
        if due is None or node.now_ms < due:
            assert (steps, after) == ([], before), "something was done before its time"
        else:
            again = node.quorum.deadline_ms()
            assert after is not before or steps, "nothing was done in time"
            assert again is None or again > due or (not isinstance(after, leads) and after is not before)
            self.counts["told again"] += isinstance(after, leads) and before is after
            self.counts["resignations"] += isinstance(before, leads) and not isinstance(after, leads)

    def after(self, node: Node) -> None:
        """Something has happened to it."""
        quorum, disk = node.quorum, node.disk
        assert quorum.epoch >= disk.epochs.latest
        known = self.watermarks.get(node, 0)
        reached = quorum.high_watermark
        if reached != known:
            assert reached > known, "the high watermark goes back"
            assert reached <= disk.end_offset, "the high watermark is above the log"
            self.watermarks[node] = reached
            self._advances(node, known, reached)
        if quorum.leads:
            assert self.leaders.get(quorum.epoch) == node.me, "leads without an election"
            self._lease(node)

    def _advances(self, node: Node, known: Offset, reached: Offset) -> None:
        log, agreed = node.disk.log, self.committed
        if reached > len(agreed):
            assert node.quorum.leads, "a follower knows of more than any leader"
            assert log[: len(agreed)] == agreed
            new = log[len(agreed) : reached]
            assert log[reached - 1].epoch == node.quorum.epoch, "committed by copies of older epochs"
            named = node.disk.directories or {}
            having = [disk for disk in self.world.disks() if self._has(disk, named, log, reached)]
            assert len(having) >= self.majority, f"committed {reached} on {len(having)} disks"
            for offset, batch in enumerate(new, len(agreed)):
                assert (batch.voters is not None) == (offset == 0), "the voters are named once"
            agreed.extend(new)
            self.commit_epochs.extend([node.quorum.epoch] * len(new))
            self.counts["commits"] += 1
        assert log[known:reached] == agreed[known:reached], "two histories are committed"

    def _has(self, disk: Disk, named: dict[BrokerId, bytes], log: list[Batch], reached: Offset) -> bool:
        return (
            disk.directory_id in named.values()
            and disk.durable >= reached
            and disk.log[reached - 1] == log[reached - 1]
        )

    def _lease(self, node: Node) -> None:
        if not node.quorum.holds_lease(node.now_ms):
            self.counts["leases lost"] += node.me in self.held and self.held[node.me] is node
            self.held.pop(node.me, None)
            return
        self.held[node.me] = node
        self.counts["leases held"] += 1
        timeout_ms = self.world.config.fetch_timeout_ms
        fetched = self.fetched_ms.get(node, {})
        lately = sum(at >= node.now_ms - timeout_ms for at in fetched.values())
        assert lately + 1 >= self.majority, "a lease, and no majority fetches"
        newer = [at for epoch, at in self.won_ms.items() if epoch > node.quorum.epoch]
        if newer:
            # A fetch may be on its way that long, or lie unread while the leader pauses, but no longer than until
            # it has to give up.
            late_ms = self.world.delay_ms + self.world.config.check_quorum_ms * (1 + SKEW)
            over_ms = self.world.now_ms - min(newer)
            assert over_ms <= timeout_ms * (1 + SKEW) + late_ms, f"a lease {over_ms} ms after it was replaced"

    def settled(self) -> Node | None:
        """The leader of the newest epoch, once its first record is committed."""
        for node in self.world.nodes.values():
            if node.quorum.leads and node.quorum.is_settled and node.quorum.epoch == max(self.leaders):
                return node  # type: ignore[no-any-return]
        return None
