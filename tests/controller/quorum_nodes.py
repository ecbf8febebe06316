"""A controller as small as it can be around the quorum's machine: a disk, a log, and messages instead of sockets.

It carries out what the machine says, in the order that the machine asks for: the state is durable before anything
leaves. The log is a list of batches; followers fetch it and compare epochs by the product's own rules.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from tidelog.controller.quorum import LogEnd, QuorumState
from tidelog.protocol.errors import FencedLeaderEpoch, InvalidVoterKey, UnknownLeaderEpoch
from tidelog.protocol.messages import BeginEpoch, EndEpoch, Vote
from tidelog.protocol.types import NO_BROKER, NO_OFFSET, BrokerId, Epoch, Offset
from tidelog.replication.fetch import check_leader_epoch, check_place
from tidelog.storage.epochs import EpochEnd, LeaderEpochs, divergence

POLL_MS, ASK_AGAIN_MS, BATCHES = 200, 500, 4
"""How often a follower that has everything asks, when it gives an answer up, and how many batches one answer has."""


class Batch(NamedTuple):
    """What a leader writes at once."""

    epoch: Epoch
    payload: int
    voters: tuple[tuple[BrokerId, bytes], ...] | None = None
    """The first one names the voters and their disks."""


class Fetch(NamedTuple):
    epoch: Epoch
    offset: Offset
    last_epoch: Epoch


class Fetched(NamedTuple):
    asked: Fetch
    batches: list[Batch]
    high_watermark: Offset
    parting: EpochEnd | None


class Elsewhere(NamedTuple):
    """Who was asked does not lead in that epoch."""

    epoch: Epoch
    leader_id: BrokerId


class Crash(Exception):
    """The process ends between two steps."""


class Disk:
    """What outlives a process: all of it a kill, the flushed part a loss of power."""

    log_start = 0

    def __init__(self, directory_id: bytes) -> None:
        self.directory_id = directory_id
        self.state = QuorumState()
        self.log: list[Batch] = []
        self.epochs = LeaderEpochs()
        self.durable = 0

    @property
    def end_offset(self) -> Offset:
        return len(self.log)

    @property
    def end(self) -> LogEnd:
        return LogEnd(self.epochs.latest, len(self.log))

    @property
    def directories(self) -> dict[BrokerId, bytes] | None:
        named = self.log[0].voters if self.log else None
        return dict(named) if named is not None else None

    def append(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self.epochs.assign(batch.epoch, len(self.log))
            self.log.append(batch)

    def cut(self, end: Offset) -> None:
        """A truncation is durable (ADR 72)."""
        del self.log[end:]
        self.epochs.truncate_from_end(end)
        self.durable = min(self.durable, end)


class Node:
    """One process of a controller, from its start to its end."""

    def __init__(self, world: Any, me: BrokerId, disk: Disk) -> None:
        self.world = world
        self.me = me
        self.disk = disk
        disk.state = self.remembered()
        disk.durable = disk.end_offset  # recovery flushes what it keeps (ADR 73)
        self.quorum = world.module.Quorum(
            me,
            disk.directory_id,
            world.voters,
            disk.state,
            config=world.config,
            rng=world.rng,
            now_ms=world.clock(me),
            directories=disk.directories,
        )
        self.asked_ms: float | None = None
        """When the fetch that is under way was sent."""
        self.flushing: Offset | None = None
        self.ticks_at_ms: float | None = None

    def remembered(self) -> QuorumState:
        """A log of a newer epoch ends the promises of an older one, as `Ballot.read` says."""
        state = self.disk.state
        return state if state.epoch >= self.disk.epochs.latest else QuorumState(self.disk.epochs.latest)

    @property
    def now_ms(self) -> float:
        return float(self.world.clock(self.me))

    def keep(self) -> None:
        """Before anything leaves that depends on it."""
        if self.quorum.state != self.disk.state:
            self.world.may_crash()
            self.write_state()
            self.world.may_crash()

    def write_state(self) -> None:
        self.world.witness.keeps(self)
        self.disk.state = self.quorum.state

    # ── elections ─────────────────────────────────────────────────────────────────────────────────

    def tick(self) -> None:
        due, before = self.quorum.deadline_ms(), self.quorum.role
        steps = self.quorum.tick(self.now_ms, self.disk.end)
        self.world.witness.ticked(self, due, before, steps)
        self.perform(steps)

    def perform(self, steps: list[Any]) -> None:
        self.keep()
        for step in steps:
            if isinstance(step, self.world.module.Lead):
                self.lead(step)
            else:
                self.world.witness.asks(self, step.request)
                self.world.ask(self, step.to, Node.on_request, step.request)

    def lead(self, won: Any) -> None:
        self.world.witness.elected(self, won)
        begins = self.disk.end_offset
        self.append([Batch(won.epoch, self.world.payload(), won.founding)])
        self.quorum.began(begins)

    def on_request(self, sender: "Node", request: Vote | BeginEpoch | EndEpoch) -> None:
        reply: Any
        try:
            if isinstance(request, Vote):
                reply = self.quorum.on_vote(request, self.now_ms, self.disk.end)
            elif isinstance(request, BeginEpoch):
                reply = self.quorum.on_begin(request, self.now_ms)
            else:
                reply = self.quorum.on_end(request, self.now_ms)
        except (FencedLeaderEpoch, InvalidVoterKey) as error:
            self.world.counts["refused with an error"] += 1
            reply = request.reply(error=error.code, message=str(error))
        self.keep()
        self.world.witness.answers(self, request, reply)
        if isinstance(request, Vote):
            self.world.answer(self, sender, Node.on_vote_reply, request, reply)

    def on_vote_reply(self, _: "Node", asked: Vote, reply: Any) -> None:
        self.perform(self.quorum.on_vote_reply(asked, reply, self.now_ms, self.disk.end))

    def resign(self) -> None:
        self.perform(self.quorum.resign(self.now_ms))

    def refused(self, leader: BrokerId) -> None:
        """Nobody listens there any more."""
        if self.quorum.leader_id == leader:
            self.quorum.leader_is_gone(self.now_ms)

    # ── the log ───────────────────────────────────────────────────────────────────────────────────

    def append(self, batches: Iterable[Batch]) -> None:
        self.disk.append(batches)
        self.quorum.directories = self.disk.directories
        self.flush()

    def write_fact(self) -> None:
        if self.quorum.leads:
            self.append([Batch(self.quorum.epoch, self.world.payload())])

    def flush(self) -> None:
        """Begin to."""
        if self.flushing is None and self.disk.durable < self.disk.end_offset:
            self.flushing = self.disk.end_offset
            self.world.later(self, self.world.rng.uniform(0, self.world.flush_ms), Node.flushed)

    def flushed(self) -> None:
        """What there was when it began is on stable storage, if it is there still."""
        assert self.flushing is not None
        self.disk.durable, self.flushing = max(self.disk.durable, self.flushing), None
        self.flush()
        if self.quorum.leads:
            self.quorum.flushed(self.disk.durable)
        else:
            self.fetch()

    def poll(self) -> None:
        self.world.later(self, POLL_MS, Node.poll)
        if self.asked_ms is None or self.now_ms >= self.asked_ms + ASK_AGAIN_MS:
            self.fetch()

    def fetch(self) -> None:
        """A voter says what it has on stable storage; whoever does not know the leader asks anybody."""
        leader = self.quorum.leader_id
        if self.asked_ms is not None and not self.quorum.is_voter:
            leader = NO_BROKER
        if leader == NO_BROKER and not self.quorum.is_voter:
            leader = self.world.rng.choice(self.world.voters)
        if leader in {NO_BROKER, self.me} or self.disk.durable < self.disk.end_offset:
            return
        self.asked_ms = self.now_ms
        last_epoch, end = self.disk.end
        self.world.ask(self, leader, Node.on_fetch, Fetch(self.quorum.epoch, end, last_epoch))

    def on_fetch(self, sender: "Node", asked: Fetch) -> None:
        answer: Fetched | Elsewhere = Elsewhere(self.quorum.epoch, self.quorum.leader_id)
        try:
            check_leader_epoch(asked.epoch, self.quorum.epoch, must_say=True)
        except (FencedLeaderEpoch, UnknownLeaderEpoch):
            pass
        else:
            if self.quorum.leads:
                answer = self.fetched_by(sender, asked)
        self.world.answer(self, sender, Node.on_fetched, answer)

    def fetched_by(self, sender: "Node", asked: Fetch) -> Fetched:
        """Epochs first, then the place, and only then it counts."""
        parting = check_place(self.disk, asked.offset, asked.last_epoch)  # type: ignore[arg-type]
        if parting is not None:
            return Fetched(asked, [], NO_OFFSET, parting)
        directory_id = sender.disk.directory_id
        self.world.witness.fetches(self, sender.me, directory_id)
        self.quorum.on_fetch(sender.me, directory_id, asked.offset, self.disk.end_offset, self.now_ms)
        news = self.disk.log[asked.offset : asked.offset + BATCHES]
        return Fetched(asked, news, self.quorum.high_watermark, None)

    def on_fetched(self, leader: "Node", answer: Fetched | Elsewhere) -> None:
        if isinstance(answer, Elsewhere):
            self.asked_ms = None
            self.quorum.heard_of(answer.leader_id, answer.epoch, self.now_ms)
            self.keep()
            return
        last_epoch, end = self.disk.end
        if answer.asked != Fetch(self.quorum.epoch, end, last_epoch) or self.quorum.leads:
            return  # it answers another fetch
        self.asked_ms = None
        self.quorum.heard_of(leader.me, answer.asked.epoch, self.now_ms, from_itself=True)
        self.keep()
        if answer.parting is not None:
            self.truncate(divergence(self.disk.epochs, end, answer.parting))
            self.quorum.fetched(answer.asked.epoch, NO_OFFSET, self.disk.end_offset, self.now_ms)
            self.fetch()
            return
        self.append(answer.batches)
        self.quorum.fetched(answer.asked.epoch, answer.high_watermark, self.disk.end_offset, self.now_ms)

    def truncate(self, cut: Offset) -> None:
        self.world.witness.cuts(self, cut)
        self.disk.cut(cut)
        self.quorum.directories = self.disk.directories
        if self.flushing is not None:
            self.flushing = min(self.flushing, cut)
