"""A member of a group, as its own process sees it: what to say to the coordinator and when, what to consume or give up.

    APART ──subscribe──► JOINING ──answer──► STABLE ◄──► REVOKING      (told to give something up, and not done with it)
                            ▲                   │
            losing is done  └──── LOSING ◄──────┤ fenced, unknown      (what it had belongs to others by now)
                                                │
                     FAILED ◄── what no retry can mend                 LEAVING ──► LEFT

    poll(now)            the heartbeat to send now, if any; again at `deadline_ms`, and after every other call
    answered, unanswered what became of it
    take()               what to tell the user, in this order: Assigned, Revoke, Lose, Failed
    released(news)       the user is done with what that Revoke or Lose has named

What it keeps true (I-57 to I-59):

* Heartbeats depend on nothing that the user does: who processes for an hour stays a member for an hour.
* What it was told to give up it says to have until the user is done with it; then it says so at once.
* Only the answer to its latest heartbeat counts: an older one, come late, may speak of what others have by now.
* It joins again only when the user knows that everything was lost: whoever joins says that it has nothing.
* An error that neither time nor joining again mends ends it, and reaches the user.

No asyncio, no clock, no socket: whoever carries it sends what `poll` returns.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final, TypeAlias

from tidelog.protocol.errors import (
    FencedMemberEpoch,
    GroupIdNotFound,
    StaleMemberEpoch,
    TidelogError,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from tidelog.protocol.messages import (
    JOIN,
    LEAVE,
    LEAVE_FOR_A_WHILE,
    GroupHeartbeat,
    GroupHeartbeatReply,
    Subscription,
    TopicPartitions,
)
from tidelog.protocol.messages.shapes import ENTRIES_MAX
from tidelog.protocol.types import NO_BROKER, BrokerId, TopicId

Place: TypeAlias = tuple[TopicId, int]
Places: TypeAlias = frozenset[Place]

NOTHING: Final[Places] = frozenset()
RETRY_MS: Final = 50
RETRY_MAX_MS: Final = 1000
REJOINS: Final = (FencedMemberEpoch, UnknownMemberId, GroupIdNotFound)
"""The group has gone on without this member: everything is lost, and it joins again."""


class Standing(Enum):
    """How a member stands to its group."""

    APART = "apart"
    JOINING = "joining"
    STABLE = "stable"
    REVOKING = "revoking"
    LOSING = "losing"
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Assigned:
    """Consume these as well."""

    places: Places
    names: dict[TopicId, str]
    """What the topics are called, as far as the coordinator has said."""


@dataclass(frozen=True, slots=True)
class Revoke:
    """Finish with these, commit, and say `released`."""

    places: Places


@dataclass(frozen=True, slots=True)
class Lose:
    """These are others' by now: stop, commit nothing, and say `released`."""

    places: Places
    why: TidelogError


@dataclass(frozen=True, slots=True)
class Failed:
    """This member is none any more, and it is not tried again."""

    error: TidelogError


News: TypeAlias = Assigned | Revoke | Lose | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Who it is, and what it does not change."""

    group_id: str
    member_id: str
    """Drawn at random, one for each consumer."""
    instance_id: str | None = None
    """Of a static member: the same for the next process."""
    assignor: str = ""
    rack: str = ""
    rebalance_timeout_ms: int = 300_000
    session_timeout_ms: int = 0
    max_wait_ms: int = 0
    """How long an answer may wait for news."""


class Membership:
    """See the module."""

    def __init__(self, member: Member, rng: Random) -> None:
        self.member = member
        self.standing = Standing.APART
        self.epoch = JOIN
        """What it says in heartbeats and commits."""
        self.owned: Places = NOTHING
        """What the user consumes, or is not done with."""
        self.told: Places = NOTHING
        """What the coordinator wants it to have."""
        self._rng = rng
        self._names: dict[TopicId, str] = {}
        self._topics: tuple[str, ...] = ()
        self._asked: Revoke | Lose | None = None
        """What the user has not finished yet."""
        self._news: deque[News] = deque()
        self._sequence = 0
        self._commits = 0
        self._in_flight: int | None = None
        self._due_ms: int | None = None
        """When to heartbeat next; None: not before something happens."""
        self._whole = True
        """Whether the next heartbeat says everything, because the coordinator may not have heard the last."""
        self._coordinator = NO_BROKER
        """Whom it has spoken to last."""
        self._failures = 0
        self._closing = False

    def __repr__(self) -> str:
        return f"<{self.member.member_id} {self.standing.value} epoch {self.epoch} {sorted(self.owned)}>"

    # ── what the user wants ───────────────────────────────────────────────────────────────────────

    def subscribe(self, topics: Iterable[str], now_ms: int) -> None:
        """Consume these topics from now on, and no others."""
        wanted = tuple(sorted(set(topics)))
        if wanted == self._topics and self.standing is not Standing.APART:
            return
        self._topics = wanted
        if self.standing is Standing.APART:
            self.standing = Standing.JOINING
        self._say(now_ms)

    def close(self, now_ms: int) -> None:
        """Give everything up, then leave: for good, or for the next process of this instance id."""
        if self._closing or self.standing in {Standing.APART, Standing.LEFT, Standing.FAILED}:
            self.standing = (
                self.standing if self._closing or self.standing is Standing.FAILED else Standing.LEFT
            )
            return
        self._closing = True
        self.told = NOTHING
        if self.standing is not Standing.LOSING:
            self._give_up()
        self._settle(now_ms)

    def take(self) -> News | None:
        """The next thing to tell the user."""
        return self._news.popleft() if self._news else None

    def released(self, news: Revoke | Lose, now_ms: int) -> None:
        """The user is done with what it was told to give up, or has lost; without effect once it has lost it all."""
        if news is not self._asked:
            return
        self._asked = None
        self.owned -= news.places
        if self.standing is Standing.LOSING:
            self.standing = Standing.JOINING
        self._settle(now_ms)

    def next_commit(self) -> tuple[int, int]:
        """The epoch and the number that the next commit says."""
        self._commits += 1
        return self.epoch, self._commits

    def commit_refused(self, error: TidelogError, epoch: int, now_ms: int) -> bool:
        """A commit that said this epoch was refused; whether it is worth another try."""
        if isinstance(error, StaleMemberEpoch):
            if epoch == self.epoch:
                self._say(now_ms)
            return self.standing in {Standing.STABLE, Standing.REVOKING, Standing.LEAVING}
        if isinstance(error, REJOINS) and epoch == self.epoch:
            self._lose(error, now_ms)
        return False

    # ── what it says ──────────────────────────────────────────────────────────────────────────────

    @property
    def deadline_ms(self) -> int | None:
        """When to ask for the next heartbeat; None: not before something happens."""
        return self._due_ms

    def poll(self, now_ms: int, coordinator: BrokerId = NO_BROKER) -> GroupHeartbeat | None:
        """The heartbeat to send now, if any, to that broker as far as is known.

        To another one than before it says everything: an older one that comes there late is heard, and its answer is not.
        """
        if self._due_ms is None or now_ms < self._due_ms:
            return None
        self._whole |= self._coordinator not in {NO_BROKER, coordinator}
        self._coordinator = coordinator
        self._due_ms = None
        self._sequence += 1
        self._in_flight = self._sequence
        whole, self._whole = self._whole, False
        leaving = self._closing and not self.owned
        member, epoch = self.member, self.epoch
        if leaving:
            epoch = LEAVE if member.instance_id is None else LEAVE_FOR_A_WHILE
        return GroupHeartbeat(
            member.group_id,
            member.member_id,
            epoch,
            self._sequence,
            member.instance_id,
            self._subscription() if whole and not leaving else None,
            _entries(self.owned) if whole and epoch != JOIN and not leaving else None,
            0 if leaving else member.max_wait_ms,
        )

    def _subscription(self) -> Subscription:
        member = self.member
        return Subscription(
            self._topics, member.assignor, member.rack, member.rebalance_timeout_ms, member.session_timeout_ms
        )

    def _say(self, now_ms: int) -> None:
        """Something is to be said at once; but who is losing has nothing to say before it is done."""
        self._whole = True
        if self.standing not in {Standing.APART, Standing.LOSING, Standing.LEFT, Standing.FAILED}:
            self._due_ms = now_ms

    # ── what it hears ─────────────────────────────────────────────────────────────────────────────

    def answered(self, sequence: int, reply: GroupHeartbeatReply, now_ms: int) -> None:
        """The coordinator has answered that heartbeat, without an error."""
        if sequence != self._in_flight:
            return
        self._in_flight = None
        self._failures = 0
        if reply.member_epoch < 0:
            self._end(Standing.LEFT)
            return
        self.epoch = reply.member_epoch
        if self.standing is Standing.JOINING:
            self.standing = Standing.STABLE
        if self._due_ms is None:
            self._due_ms = now_ms + reply.heartbeat_interval_ms
        if reply.assignment is not None and not self._closing:
            self.told = _places(reply.assignment)
            self._names.update({entry.topic_id: entry.topic for entry in reply.assignment if entry.topic})
            self._give_up()
        self._settle(now_ms, is_answer=True)

    def unanswered(self, sequence: int, error: TidelogError, now_ms: int) -> None:
        """That heartbeat has failed, or was refused."""
        if sequence != self._in_flight:
            return
        self._in_flight = None
        self._whole = True
        if self._closing and not self.owned and not error.retriable:
            self._end(Standing.LEFT)  # whoever has put it out has done its work
        elif isinstance(error, REJOINS):
            self._lose(error, now_ms)
        elif error.retriable or isinstance(error, UnreleasedInstanceId):
            pause_ms = min(RETRY_MAX_MS, RETRY_MS << min(self._failures, 10))
            self._failures += 1
            self._due_ms = now_ms + int(pause_ms * self._rng.uniform(0.5, 1.0))
        else:
            self._fail(error)

    # ── what follows ──────────────────────────────────────────────────────────────────────────────

    def _give_up(self) -> None:
        """Tell the user what to give up, one thing after the other."""
        revoke = self.owned - self.told
        if revoke and self._asked is None:
            self._asked = Revoke(revoke)
            self._news.append(self._asked)
            self.standing = Standing.LEAVING if self._closing else Standing.REVOKING

    def _settle(self, now_ms: int, *, is_answer: bool = False) -> None:
        """Nothing is being released, perhaps: go on with what was put off until then."""
        if self.standing in {Standing.LOSING, Standing.LEFT, Standing.FAILED}:
            return
        self._give_up()
        if self._asked is not None:
            return
        if self._closing:
            self.standing = Standing.LEAVING
            if not is_answer:
                self._say(now_ms)
            return
        if self.standing is Standing.REVOKING:
            self.standing = Standing.STABLE
        new = self.told - self.owned
        if new:
            self.owned |= new
            self._news.append(Assigned(new, {topic: self._names.get(topic, "") for topic, _ in new}))
        if not is_answer:
            self._say(now_ms)

    def _lose(self, error: TidelogError, now_ms: int) -> None:
        """The group has gone on: nothing that this member had is its own."""
        if self.standing in {Standing.LOSING, Standing.LEFT, Standing.FAILED}:
            return
        self.epoch, self.told, self._whole = JOIN, NOTHING, True
        self._in_flight = None
        if self._closing:
            self._end(Standing.LEFT, why=error)
            return
        if not self.owned:
            self.standing = Standing.JOINING
            self._due_ms = now_ms
            return
        self._tell_loss(error)
        self.standing = Standing.LOSING
        self._due_ms = None

    def _tell_loss(self, error: TidelogError) -> None:
        """All is lost: what the user was to give up, and has not heard of yet, it need not give up."""
        self._asked = Lose(self.owned, error)
        self._news = deque(each for each in self._news if not isinstance(each, Revoke))
        self._news.append(self._asked)

    def _fail(self, error: TidelogError) -> None:
        self._end(Standing.FAILED, why=error)
        self._news.append(Failed(error))

    def _end(self, standing: Standing, why: TidelogError | None = None) -> None:
        self.standing = standing
        self._due_ms = self._in_flight = None
        if self.owned and why is not None:
            self._tell_loss(why)
        self.owned = self.told = NOTHING


def _entries(places: Places) -> tuple[TopicPartitions, ...]:
    by_topic: dict[TopicId, list[int]] = {}
    for topic, index in sorted(places):
        by_topic.setdefault(topic, []).append(index)
    return tuple(
        TopicPartitions(topic, tuple(indexes[at : at + ENTRIES_MAX]))
        for topic, indexes in by_topic.items()
        for at in range(0, len(indexes), ENTRIES_MAX)
    )


def _places(entries: Iterable[TopicPartitions]) -> Places:
    return frozenset((entry.topic_id, index) for entry in entries for index in entry.indexes)
