"""Who leads the metadata log, and how far it is committed: Raft, with followers that pull (design 4.12).

    Unattached ──► Prospective ──► Candidate ──► Leader      a time-out, pre-votes, votes
        ▲               │              │            │
        └───────────────┴──────────────┴────────────┘        refused, resigned, a newer epoch
        └──────────────────► Follower                        the epoch's leader was heard of

    tick, on_vote_reply ────► `Step`s: requests to send, or the leadership that was won
    on_vote, on_begin, ... ─► the reply
    flushed, on_fetch ──────► move `high_watermark`

Whoever carries it makes `state` durable, whenever it has changed, before it does anything else with what a call has
returned: before a reply leaves, a request is sent, or a record is written.

What it keeps true (I-44 to I-46, I-48):

* An epoch has one leader: a voter votes once in it, and a majority has to. The first election of a cluster knows no
  disks yet and needs every voter, so that no other set of voters can decide beside it (DECISIONS 1).
* Epochs never go back. A process never leads an epoch that an earlier life of it stood for (KAFKA-10527): it begins
  unattached, its own vote kept, and to lead it needs an epoch of its own.
* Only a log that has everything that is committed wins: who votes compares its own.
* What is committed is on stable storage on a majority of voters, and the leader's own first record is part of it
  (KAFKA-12619): what it finds in its log from earlier epochs is committed by that one, not by counting copies.
* Who cannot win does not disturb: it asks first, and whoever hears the leader says no (pre-vote, KIP-996). A leader
  that a majority does not fetch from gives up (check-quorum, KAFKA-15489). A quorum of one never does.

Time is in milliseconds of a monotonic clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple, TypeAlias

from tidelog.controller.progress import Progress
from tidelog.protocol.errors import (
    FencedLeaderEpoch,
    InconsistentClusterId,
    InconsistentMetadata,
    InvalidVoterKey,
)
from tidelog.protocol.messages import (
    BeginEpoch,
    BeginEpochReply,
    EndEpoch,
    EndEpochReply,
    Vote,
    VoteReply,
)
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, NO_OFFSET, BrokerId, Epoch, Offset

FIRST_ELECTION_MS: Final = 150
"""Who has never heard a leader, or knows that it is gone, asks for votes within this time (DECISIONS 24)."""

BACK_OFF_MS: Final = 50
BACK_OFF_MAX_MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """How patient the quorum is."""

    election_timeout_ms: int = 1000
    """How long votes may take, and as much again at random (`quorum.election.timeout.ms`)."""
    fetch_timeout_ms: int = 2000
    """How long a follower goes without its leader before it asks whether it should lead
    (`quorum.fetch.timeout.ms`)."""

    @property
    def check_quorum_ms(self) -> int:
        """How long a leader goes on without a majority."""
        return self.fetch_timeout_ms * 3 // 2


class QuorumState(NamedTuple):
    """What must be durable before anybody hears of it."""

    epoch: Epoch = 0
    leader_id: BrokerId = NO_BROKER
    """Who leads in it; -1: not known."""
    voted_id: BrokerId = NO_BROKER
    """Whom this node has voted for in it."""
    voted_directory_id: bytes | None = None
    """And which disk of it."""


class LogEnd(NamedTuple):
    """How much a log has: of two, the greater one has all of the other one that may be committed."""

    last_epoch: Epoch = NO_EPOCH
    end_offset: Offset = 0


class Send(NamedTuple):
    """A request to another voter. If it is not answered, that is all: it is sent again when it has to be."""

    to: BrokerId
    request: Vote | BeginEpoch | EndEpoch


class Lead(NamedTuple):
    """The election is won: write `LeaderElected` in this epoch, then call `began`."""

    epoch: Epoch
    granted_by: tuple[BrokerId, ...]
    founding: tuple[tuple[BrokerId, bytes], ...] | None
    """The voters with their disks, if this is the first leader that the cluster has: write them too."""


Step: TypeAlias = Send | Lead


# ── what a node may be ────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Unattached:
    """Nobody is known to lead; asks for votes when it has waited long enough."""

    election_at_ms: float


@dataclass(slots=True)
class Follower:
    """Fetches from the leader."""

    fetch_by_ms: float
    """If it has not heard the leader by then, it asks for votes."""
    has_fetched: bool = False


@dataclass(slots=True)
class Prospective:
    """Asks who would vote for it."""

    until_ms: float
    granted: dict[BrokerId, bytes]
    refused: set[BrokerId] = field(default_factory=set)
    others_follow: bool = False
    """Somebody hears the leader that this node misses."""


@dataclass(slots=True)
class Candidate:
    """Asks for votes in an epoch of its own."""

    until_ms: float
    granted: dict[BrokerId, bytes]
    refused: set[BrokerId] = field(default_factory=set)


@dataclass(slots=True)
class Leader:
    """Writes the metadata log."""

    voters: dict[BrokerId, Progress]
    tell_at_ms: float
    """When those that have not fetched yet are told again."""
    begins: Offset = NO_OFFSET
    """Where its first record stands; -1: it is not written yet."""
    durable: Offset = 0


Role: TypeAlias = Unattached | Follower | Prospective | Candidate | Leader


class Quorum:
    """One controller's part in the quorum. See the module."""

    def __init__(  # noqa: PLR0913 -- who it is, what it remembers, and the world around it, each by its name
        self,
        me: BrokerId,
        directory_id: bytes,
        voters: Iterable[BrokerId],
        state: QuorumState,
        *,
        config: QuorumConfig,
        rng: Random,
        now_ms: float,
        directories: Mapping[BrokerId, bytes] | None = None,
        cluster_id: str = "",
    ) -> None:
        self.me = me
        self.voters = tuple(sorted(voters))
        """Everybody who may vote, by the configuration."""
        self.directories = directories
        self.cluster_id = cluster_id
        self.state = state
        self.high_watermark: Offset = 0
        """Of the log, as this node has earned or heard it; never goes back."""
        self._directory_id = directory_id
        self._config = config
        self._rng = rng
        self._failed = 0
        self._ended: Epoch = NO_EPOCH
        """The epoch whose leader has said that it leads no more; others may not know yet, and say that it does."""
        self._gone = self._silent = NO_EPOCH
        """The epochs whose leader was found gone, and missed: who only heard of it once does not bring it back."""
        first_ms = 0 if self.voters == (me,) else rng.uniform(0, FIRST_ELECTION_MS)
        self.role: Role = Unattached(now_ms + first_ms)

    def __repr__(self) -> str:
        return f"<controller {self.me} {type(self.role).__name__} in {self.state}>"

    # ── what is known ─────────────────────────────────────────────────────────────────────────────

    @property
    def directories(self) -> Mapping[BrokerId, bytes] | None:
        """The voters' disks, by the log as far as it is here; None: no leader has named them yet."""
        return self._directories

    @directories.setter
    def directories(self, named: Mapping[BrokerId, bytes] | None) -> None:
        # Two sets of voters have two majorities.
        if named is not None and {*named} != {*self.voters}:
            raise InconsistentMetadata(
                f"the configuration names the voters {list(self.voters)}, the metadata log {sorted(named)}"
            )
        self._directories = named

    @property
    def epoch(self) -> Epoch:
        """The newest that this node knows."""
        return self.state.epoch

    @property
    def leads(self) -> bool:
        """Whether it is the leader, as far as it knows."""
        return isinstance(self.role, Leader)

    @property
    def leader_id(self) -> BrokerId:
        """Who leads, as this node believes now; -1: it does not know, or does not hear it any more."""
        return self.state.leader_id if isinstance(self.role, Follower | Leader) else NO_BROKER

    @property
    def is_voter(self) -> bool:
        """Whether it takes part, with this disk. If not, it only follows: a new disk remembers no promises."""
        return self.me in self.voters and (
            self.directories is None or self.directories.get(self.me) == self._directory_id
        )

    @property
    def is_settled(self) -> bool:
        """Whether the leader's own first record is committed: only then it knows what is."""
        role = self.role
        return isinstance(role, Leader) and self.high_watermark > role.begins != NO_OFFSET

    def holds_lease(self, now_ms: float) -> bool:
        """Whether a majority has followed so lately that whoever was elected since still waits (4.3)."""
        role = self.role
        if not isinstance(role, Leader):
            return False
        since_ms = now_ms - self._config.fetch_timeout_ms
        followed = sum(progress.followed_ms >= since_ms for progress in role.voters.values())
        return followed + 1 >= self._majority()

    def deadline_ms(self) -> float | None:
        """When `tick` has something to do next."""
        role = self.role
        match role:
            case Unattached(election_at_ms=at) | Follower(fetch_by_ms=at):
                return at if self.is_voter else None
            case Prospective(until_ms=until) | Candidate(until_ms=until):
                return until
            case Leader():
                told = [role.tell_at_ms] if self._untold(role) else []
                return min([*told, *self._resigns_at(role)], default=None)

    def _needed(self) -> int:
        return len(self.voters) if self.directories is None else self._majority()

    def _majority(self) -> int:
        return len(self.voters) // 2 + 1

    def _untold(self, role: Leader) -> list[BrokerId]:
        return [voter for voter, progress in role.voters.items() if progress.end_offset == NO_OFFSET]

    def _resigns_at(self, role: Leader) -> list[float]:
        """When the last one that completes a majority has been silent for too long; never in a quorum of one."""
        latest = sorted((progress.heard_ms for progress in role.voters.values()), reverse=True)
        others = self._majority() - 1
        return [latest[others - 1] + self._config.check_quorum_ms] if others else []

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    def tick(self, now_ms: float, log: LogEnd) -> list[Step]:
        """Time has passed, or the process has begun."""
        role = self.role
        due = self.deadline_ms()
        if due is None or now_ms < due:
            return []
        match role:
            case Follower():
                self._silent = self.epoch  # if all who miss it ask at once, each votes for itself
                self.role = Unattached(now_ms + self._rng.uniform(0, FIRST_ELECTION_MS))
                return []
            case Unattached():
                return self._ask(now_ms, log)
            case Prospective() | Candidate():
                self._back_off(now_ms)
                return []
            case Leader():
                if any(at <= now_ms for at in self._resigns_at(role)):
                    return self.resign(now_ms)
                role.tell_at_ms = now_ms + self._config.fetch_timeout_ms / 2
                return [Send(voter, self._begin(voter)) for voter in self._untold(role)]

    def _ask(self, now_ms: float, log: LogEnd) -> list[Step]:
        """Find out whether they would vote for it."""
        self.role = Prospective(self._election_ends(now_ms), {self.me: self._directory_id})
        return self._count(now_ms, log) or self._votes(log, pre_vote=True)

    def _stand(self, now_ms: float, log: LogEnd) -> list[Step]:
        """They would: an epoch of its own, and its own vote."""
        self.state = QuorumState(self.epoch + 1, NO_BROKER, self.me, self._directory_id)
        self.role = Candidate(self._election_ends(now_ms), {self.me: self._directory_id})
        return self._count(now_ms, log) or self._votes(log, pre_vote=False)

    def _votes(self, log: LogEnd, *, pre_vote: bool) -> list[Step]:
        known = self.directories or {}
        return [
            Send(
                voter,
                Vote(
                    self.cluster_id,
                    voter,
                    known.get(voter),
                    self.epoch,
                    self.me,
                    self._directory_id,
                    *log,
                    pre_vote,
                ),
            )
            for voter in self.voters
            if voter != self.me
        ]

    def _count(self, now_ms: float, log: LogEnd) -> list[Step]:
        """What the answers so far come to."""
        role = self.role
        assert isinstance(role, Prospective | Candidate), self
        if len(role.refused) > len(self.voters) - self._needed():
            self._back_off(now_ms)
        elif len(role.granted) >= self._needed():
            return self._stand(now_ms, log) if isinstance(role, Prospective) else self._win(now_ms, role)
        return []

    def _win(self, now_ms: float, role: Candidate) -> list[Step]:
        self._failed = 0
        self.state = self.state._replace(leader_id=self.me)
        others = {voter: Progress(now_ms) for voter in self.voters if voter != self.me}
        self.role = Leader(others, now_ms + self._config.fetch_timeout_ms / 2)
        founding = None if self.directories is not None else tuple(sorted(role.granted.items()))
        told: list[Step] = [Send(voter, self._begin(voter)) for voter in others]
        return [Lead(self.epoch, tuple(sorted(role.granted)), founding), *told]

    def _begin(self, voter: BrokerId) -> BeginEpoch:
        return BeginEpoch(self.cluster_id, voter, self.epoch, self.me)

    def _back_off(self, now_ms: float) -> None:
        """It did not win: follow who leads, or ask again a little later, so that two who ask at once part."""
        pause_ms = min(BACK_OFF_MS << min(self._failed, 10), BACK_OFF_MAX_MS)
        self._failed += 1
        if (
            isinstance(self.role, Prospective)
            and self.role.others_follow
            and self.epoch not in {self._ended, self._gone}
        ):
            self.role = Follower(now_ms + self._config.fetch_timeout_ms)
        else:
            self.role = Unattached(now_ms + self._rng.uniform(0, pause_ms))

    def _election_ends(self, now_ms: float) -> float:
        return now_ms + self._config.election_timeout_ms * self._rng.uniform(1, 2)

    def resign(self, now_ms: float) -> list[Step]:
        """Lead no more: the process stops in order, or a majority is out of reach."""
        role = self.role
        if not isinstance(role, Leader):
            return []
        successors = sorted(role.voters, key=lambda voter: -role.voters[voter].end_offset)
        self.role = Unattached(self._election_ends(now_ms))
        return [
            Send(voter, EndEpoch(self.cluster_id, voter, self.epoch, self.me, tuple(successors)))
            for voter in role.voters
        ]

    # ── votes ─────────────────────────────────────────────────────────────────────────────────────

    def on_vote(self, request: Vote, now_ms: float, log: LogEnd) -> VoteReply:
        """Somebody wants to lead, or asks whether it could."""
        self._check_cluster(request.cluster_id)
        self._check_addressed(request.voter_id, request.voter_directory_id)
        self._check_voter(request.candidate_id)
        known = self.directories
        if known is not None and known.get(request.candidate_id) != request.candidate_directory_id:
            # A new disk knows of nobody, and the leader believes that it is told already: so it is told here.
            why = f"controller {request.candidate_id} does not vote with that disk"
            return VoteReply(
                InvalidVoterKey.code, why, self.epoch, self.leader_id, directory_id=self._directory_id
            )
        self._enter(request.epoch, now_ms)
        granted = (
            request.epoch == self.epoch
            and self.is_voter
            and LogEnd(request.last_epoch, request.end_offset) >= log
            and (self._would_vote(now_ms) if request.pre_vote else self._may_vote(request))
        )
        if granted and not request.pre_vote:
            self.state = self.state._replace(
                voted_id=request.candidate_id, voted_directory_id=request.candidate_directory_id
            )
            self.role = Unattached(self._election_ends(now_ms))
        return VoteReply(0, None, self.epoch, self.leader_id, granted, self._directory_id)

    def _would_vote(self, now_ms: float) -> bool:
        """Not while it leads, or hears the leader: then the candidate is the one who is cut off."""
        match self.role:
            case Leader():
                return False
            case Follower(fetch_by_ms=by, has_fetched=True):
                return now_ms >= by
        return True

    def _may_vote(self, request: Vote) -> bool:
        """Once in an epoch, and not when it has a leader already."""
        voted = self.state.voted_id, self.state.voted_directory_id
        candidate = request.candidate_id, request.candidate_directory_id
        return self.state.leader_id == NO_BROKER and voted in {(NO_BROKER, None), candidate}

    def on_vote_reply(self, asked: Vote, reply: VoteReply, now_ms: float, log: LogEnd) -> list[Step]:
        """A voter has answered."""
        granted = reply.granted and not reply.error
        role, leader = self.role, reply.leader_id
        if not granted:
            known = (reply.epoch, leader) == (self.epoch, self.state.leader_id)
            if isinstance(role, Prospective) and known and leader not in {NO_BROKER, self.me, asked.voter_id}:
                role.others_follow = (
                    True  # that is for a majority to say: it may miss the leader as well (I-48)
                )
            else:
                self.heard_of(leader, reply.epoch, now_ms, from_itself=leader == asked.voter_id)
        return self._counted(asked, now_ms, log, granted=granted, directory_id=reply.directory_id)

    def on_vote_unheard(self, asked: Vote, now_ms: float, log: LogEnd) -> list[Step]:
        """A voter cannot be asked: whoever wins no more without it asks again soon, instead of waiting for it."""
        return self._counted(asked, now_ms, log, granted=False, directory_id=None)

    def _counted(
        self, asked: Vote, now_ms: float, log: LogEnd, *, granted: bool, directory_id: bytes | None
    ) -> list[Step]:
        role = self.role
        kind = Prospective if asked.pre_vote else Candidate
        if (
            not isinstance(role, Prospective | Candidate)
            or type(role) is not kind
            or asked.epoch != self.epoch
        ):
            return []  # it answers what is not asked any more
        if granted and directory_id is not None:
            role.granted[asked.voter_id] = directory_id
        else:
            role.refused.add(asked.voter_id)
        return self._count(now_ms, log)

    # ── who leads ─────────────────────────────────────────────────────────────────────────────────

    def on_begin(self, request: BeginEpoch, now_ms: float) -> BeginEpochReply:
        """The sender leads."""
        self._check_cluster(request.cluster_id)
        self._check_addressed(request.voter_id)
        self._check_voter(request.leader_id)
        if request.epoch < self.epoch:
            raise FencedLeaderEpoch(f"epoch {self.epoch} has begun, {request.epoch} is over")
        self.heard_of(request.leader_id, request.epoch, now_ms, from_itself=True)
        return BeginEpochReply(0, None, self.epoch, self.leader_id)

    def on_end(self, request: EndEpoch, now_ms: float) -> EndEpochReply:
        """The sender leads no more: whoever it names first asks for votes at once, the others later."""
        self._check_cluster(request.cluster_id)
        self._check_addressed(request.voter_id)
        self._check_voter(request.leader_id)
        if request.epoch < self.epoch:
            raise FencedLeaderEpoch(f"epoch {self.epoch} has begun, {request.epoch} is over")
        self._enter(request.epoch, now_ms)
        self._check_leader(request.leader_id)
        self._ended = request.epoch
        if isinstance(self.role, Follower | Unattached):
            order = {voter: rank for rank, voter in enumerate(request.successors)}
            rank = order.get(self.me, len(order))
            self.role = Unattached(now_ms + rank * FIRST_ELECTION_MS * self._rng.uniform(0.5, 1))
        return EndEpochReply(0, None, self.epoch, self.leader_id)

    def heard_of(
        self, leader_id: BrokerId, epoch: Epoch, now_ms: float, *, from_itself: bool = False
    ) -> None:
        """Somebody says who leads in which epoch; -1: that it is this epoch, and nobody is known to."""
        if leader_id != NO_BROKER:
            self._check_voter(leader_id)
        if epoch < self.epoch:
            return
        self._enter(epoch, now_ms)
        if leader_id in {NO_BROKER, self.me}:
            return
        self._check_leader(leader_id)
        if from_itself:
            self._gone = self._silent = NO_EPOCH
        if not isinstance(self.role, Follower) and epoch not in {self._ended, self._gone, self._silent}:
            self.state = self.state._replace(leader_id=leader_id)
            self.role = Follower(now_ms + self._config.fetch_timeout_ms)

    def fetched(self, epoch: Epoch, high_watermark: Offset, end_offset: Offset, now_ms: float) -> None:
        """The leader of that epoch, which is known here, has answered a fetch; this node's log ends there now.

        Where the logs part, nothing else of the answer counts: then `high_watermark` is -1.
        """
        if epoch == self.epoch and isinstance(self.role, Follower):
            self._failed = 0
            self.role = Follower(now_ms + self._config.fetch_timeout_ms, has_fetched=True)
            self.high_watermark = max(self.high_watermark, min(high_watermark, end_offset))

    def leader_is_gone(self, now_ms: float) -> None:
        """Its connection has ended and its port refuses: no need to wait for it (DECISIONS 24)."""
        if isinstance(self.role, Follower):
            self._gone = self.epoch
            self.role = Unattached(now_ms + self._rng.uniform(0, FIRST_ELECTION_MS))

    def _enter(self, epoch: Epoch, now_ms: float) -> None:
        """A newer epoch has begun: whatever this node was, it is over."""
        if epoch > self.epoch:
            self.state = QuorumState(epoch)
            role = self.role
            waits = role.election_at_ms if isinstance(role, Unattached) else self._election_ends(now_ms)
            self.role = Unattached(waits)

    def _check_cluster(self, cluster_id: str) -> None:
        if cluster_id and self.cluster_id and cluster_id != self.cluster_id:
            raise InconsistentClusterId(
                f"this is a controller of cluster {self.cluster_id}, not {cluster_id}"
            )

    def _check_leader(self, leader_id: BrokerId) -> None:
        known = self.state.leader_id
        if known not in {NO_BROKER, leader_id}:
            raise InconsistentMetadata(
                f"controllers {known} and {leader_id} are both said to lead the quorum in epoch {self.epoch}"
            )

    def _check_voter(self, controller: BrokerId) -> None:
        if controller not in self.voters:
            raise InvalidVoterKey(f"controller {controller} is none of the voters {list(self.voters)}")

    def _check_addressed(self, voter_id: BrokerId, directory_id: bytes | None = None) -> None:
        if voter_id != self.me or directory_id not in {None, self._directory_id}:
            disk = f" with the disk {directory_id.hex()}" if directory_id is not None else ""
            raise InvalidVoterKey(
                f"controller {voter_id}{disk} was asked, this is {self.me} with {self._directory_id.hex()}"
            )

    # ── leading ───────────────────────────────────────────────────────────────────────────────────

    def began(self, begins: Offset) -> None:
        """The first record of this leadership stands there."""
        role = self.role
        assert isinstance(role, Leader), self
        assert role.begins == NO_OFFSET, self
        role.begins = begins

    def flushed(self, durable: Offset) -> bool:
        """The leader's own log is on stable storage up to there. Whether more is committed now."""
        role = self.role
        if not isinstance(role, Leader):
            return False
        role.durable = durable
        return self._advance(role)

    def on_fetch(
        self, voter: BrokerId, directory_id: bytes, fetch_offset: Offset, end_offset: Offset, now_ms: float
    ) -> bool:
        """A valid fetch of this epoch: that much is on the voter's stable storage. Whether more is committed now."""
        role = self.role
        known = self.directories or {}
        if not isinstance(role, Leader) or voter not in role.voters or known.get(voter) != directory_id:
            return False  # an observer, or a voter on another disk
        if any(at <= now_ms for at in self._resigns_at(role)):
            return False  # it gives up at the next tick: what lay unread while it slept does not revive it
        role.voters[voter].fetched(fetch_offset, end_offset, now_ms)
        return self._advance(role)

    def _advance(self, role: Leader) -> bool:
        ends = sorted(
            [role.durable, *(progress.end_offset for progress in role.voters.values())], reverse=True
        )
        reached = ends[self._majority() - 1]
        if role.begins == NO_OFFSET or reached <= max(role.begins, self.high_watermark):
            return False
        self.high_watermark = reached
        return True
