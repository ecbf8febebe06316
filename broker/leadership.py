"""The leader's view of one partition during one leader epoch: who has what, who is in sync, what is committed.

    adopt(state) ──────────► what the controller has decided holds, and nothing is pending any more
    appended, flushed ─────► my own log has grown
    on_fetch, on_flushed ──► a follower has told what it has
    tick, image_changed ───► time has passed, or who is alive has changed
                  each of them moves `high_watermark` where it may, and proposes another ISR where it should

What it keeps true (docs/REPLICATION.md; I-2 to I-5, I-14, I-16 to I-19):

* The high watermark never goes back, and moves only while the *committed* ISR has `min_isr` members (KIP-966).
* It waits for everybody in the maximal ISR: the committed one, and the proposed one as long as the controller
  has not answered through the metadata log (KIP-497). So an unknown outcome is always safe.
* The ISR itself changes by `adopt` alone: answers to a proposal end it or leave it, they never install one (D2).
* A follower is proposed only with what it fetched in this leader epoch and this registration of its own (KIP-903),
  and only from where this epoch began: the high watermark alone may be stale after an election (KAFKA-7128);
  and only when it has deleted durably what this leader has: its election would bring it back (ADR 0079).
* A log that is empty above where mine starts is continued only where nothing is missing below it (ADR 0071).
* A compaction drops no tombstone that a follower which is on its way has yet to come to (`purge_below`; ADR 0119).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from tidelog.controller.image import PartitionState
from tidelog.protocol.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NewLeaderElected,
    OffsetOutOfRange,
    OperationNotAttempted,
    StaleBrokerEpoch,
    UnknownLeaderEpoch,
    UnknownTopicId,
)
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, NO_OFFSET, BrokerId, Epoch, Offset


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Who leads, and whom it believes to be alive."""

    me: BrokerId
    my_epoch: Epoch
    """My registration."""
    registered_epoch: Callable[[BrokerId], Epoch | None]
    """The broker epoch of a broker as it is registered in my image, fenced or not; None: it is not."""
    live_epoch: Callable[[BrokerId], Epoch | None]
    """The broker epoch of a broker that is registered, unfenced and not shutting down, in my image; else None."""
    lag_max_ms: int
    """`replica.lag.time.max.ms`: how long a replica in sync may be behind."""


NEVER = -(2**62)
STANDING_LAGS = 10
"""So many times the lag allowed a follower may stay where it is, and still be on its way: a throttle or many other
partitions may keep it there. Of one that stands longer nobody knows whether it will ever go on."""
RETRY_MS = 100
"""A proposal that was refused for a member is not repeated sooner, unless the image changes."""

_REPLAY_FOLLOWS: Final = (
    FencedLeaderEpoch,
    InvalidUpdateVersion,
    NewLeaderElected,
    UnknownTopicId,
    InvalidRequest,
    StaleBrokerEpoch,
)
"""Answers that say that the leader's state is old: the metadata log will tell what holds (2.10)."""


@dataclass(slots=True)
class Follower:
    """What a follower has told in this leader epoch."""

    last_caught_up_ms: int = NEVER
    fetch_offset: Offset = NO_OFFSET
    """Everything below it, the follower has; -1: it has not fetched yet."""
    ack_offset: Offset = NO_OFFSET
    """What counts towards a commit: fetched, or in `group` mode also durable."""
    log_start: Offset = NO_OFFSET
    broker_epoch: Epoch = NO_EPOCH
    last_fetch_ms: int = NEVER
    last_moved_ms: int = NEVER
    """When it first fetched from where it is."""
    last_fetch_end: Offset = NO_OFFSET
    """Where the log ended when it fetched last."""
    to_flush: Offset = NO_OFFSET
    """Up to where it has yet to say that its disk has it; -1: nothing is missing."""
    to_flush_since_ms: int = NEVER

    def note_flushes(self, now_ms: int) -> None:
        """Follow what its disk owes, after what it has said: all at first, then what came meanwhile, and so on."""
        if self.ack_offset >= self.fetch_offset:
            self.to_flush = NO_OFFSET
        elif not self.ack_offset < self.to_flush <= self.fetch_offset:
            self.to_flush, self.to_flush_since_ms = self.fetch_offset, now_ms


@dataclass(frozen=True, slots=True)
class Proposal:
    """Another ISR, as it was proposed to the controller and not yet decided."""

    kind: Literal["expand", "shrink", "confirm"]
    """`confirm`: the same ISR, but an unclean election is over: its leader is up."""
    isr: tuple[BrokerId, ...]
    partition_epoch: Epoch
    """Of the state that it is to follow."""


@dataclass(frozen=True, slots=True)
class Alteration:
    """One sending of a proposal: each has a number of its own, retries included (D3)."""

    alter_seq: int
    leader_epoch: Epoch
    partition_epoch: Epoch
    members: tuple[tuple[BrokerId, Epoch], ...]
    recovered: bool = False
    """Whether the leader of an unclean election says that it is up."""


class Leadership:
    """One partition, led by `me` in `state.leader_epoch`. Time is in milliseconds of a monotonic clock."""

    __slots__ = (
        "_alter_seq",
        "_around",
        "_durable",
        "_end",
        "_log_start",
        "_me",
        "_retry_at_ms",
        "_stage",
        "_start",
        "copying",
        "followers",
        "high_watermark",
        "pending",
        "state",
    )

    def __init__(
        self,
        around: Surroundings,
        state: PartitionState,
        *,
        log_start: Offset,
        end_offset: Offset,
        durable_offset: Offset,
        high_watermark: Offset,
        now_ms: int,
    ) -> None:
        assert state.leader == around.me, state
        assert high_watermark <= end_offset, (high_watermark, end_offset)
        self.copying: dict[BrokerId, tuple[Epoch, Offset]] = {}
        """Followers that began at the log's start: their processes, and the purge floor of that moment."""
        self._around = around
        self._me = around.me
        self._start = end_offset
        self._end = end_offset
        self._log_start = log_start
        self._durable = durable_offset
        self._alter_seq = 0
        self._retry_at_ms = NEVER
        self._stage: Literal["unsent", "sent", "decided"] = "unsent"
        """Of what is pending; decided: the metadata log will say how."""
        self.state = state
        self.high_watermark = high_watermark
        self.pending: Proposal | None = None
        # Cleared also when the same broker is elected again: who was removed and added may be empty.
        self.followers = {
            replica: Follower(now_ms if replica in state.isr else NEVER)
            for replica in state.replicas
            if replica != around.me
        }
        self._advance(now_ms)

    def __repr__(self) -> str:
        return (
            f"<leads {self.state.index} in epoch {self.state.leader_epoch}: isr {list(self.state.isr)} "
            f"committed {self.high_watermark} of {self._end}>"
        )

    # ── what is known ─────────────────────────────────────────────────────────────────────────────

    @property
    def epoch_start(self) -> Offset:
        """Where this leader epoch begins in the log."""
        return self._start

    @property
    def known_high_watermark(self) -> Offset:
        """What may be told to others: -1 until everything that earlier leaders may have committed is covered."""
        return self.high_watermark if self.high_watermark >= self._start else NO_OFFSET

    @property
    def maximal_isr(self) -> frozenset[BrokerId]:
        """Everybody that the controller may now count as in sync."""
        return frozenset(self.state.isr) | frozenset(self.pending.isr if self.pending else ())

    @property
    def has_enough_replicas(self) -> bool:
        """Whether anything can be committed now."""
        return len(self.state.isr) >= self.state.min_isr

    def caught_up(self, follower: BrokerId, now_ms: int) -> bool:
        """Whether it has the whole log, or had it not long ago; and its disk, where that counts, flushes what it has.

        One that fetches on while a flush of it does not end would hold up what the others have (D7).
        """
        known, lag_ms = self.followers[follower], self._around.lag_max_ms
        flushes = known.to_flush == NO_OFFSET or now_ms - known.to_flush_since_ms <= lag_ms
        return flushes and (known.fetch_offset == self._end or now_ms - known.last_caught_up_ms <= lag_ms)

    def eligible(self, follower: BrokerId) -> bool:
        """Whether it may be in the ISR: alive by my image, under the registration that it fetched with."""
        live = self._around.live_epoch(follower)
        return live is not None and live == self.followers[follower].broker_epoch

    def purge_below(self, now_ms: int) -> Offset:
        """Tombstones from there on stay: a follower that is on its way has not come to them yet (ADR 0119).

        If they went, it would have to begin anew (C7), and so for ever where they go faster than it copies.
        """
        lag_ms = self._around.lag_max_ms
        places = [
            known.fetch_offset
            for known in self.followers.values()
            if now_ms - known.last_fetch_ms <= lag_ms
            and now_ms - known.last_moved_ms <= lag_ms * STANDING_LAGS
        ]
        return min([self.high_watermark, *places])

    def nearest(self, there: Iterable[BrokerId], offset: Offset) -> BrokerId:
        """Who of these can serve a consumer from that offset as well as I can; -1: nobody (2.13).

        Never one that is fenced or has not got so far: a consumer must not be trapped (KAFKA-14372, KAFKA-15390).
        """
        able = [
            (-known.ack_offset, follower)
            for follower in there
            if (known := self.followers.get(follower)) is not None
            and follower in self.state.isr
            and known.fetch_offset >= offset >= known.log_start
            and self.eligible(follower)
        ]
        return min(able)[1] if able else NO_BROKER

    # ── what happens ──────────────────────────────────────────────────────────────────────────────

    def adopt(self, state: PartitionState, now_ms: int) -> bool:
        """The controller has decided, and I still lead in the same epoch. Whether the high watermark moved."""
        assert (state.leader, state.leader_epoch) == (self._me, self.state.leader_epoch), (self.state, state)
        assert state.partition_epoch > self.state.partition_epoch, (self.state, state)
        for left in self.state.isr:
            if left != self._me and left not in state.isr:
                # What it was caught up with as a member says nothing of what it comes back with (I-18).
                self.followers[left].last_caught_up_ms = NEVER
        self.state = state
        self.pending = None
        for gone in [replica for replica in self.followers if replica not in state.replicas]:
            del self.followers[gone]
        for replica in state.replicas:
            if replica != self._me and replica not in self.followers:
                self.followers[replica] = Follower()
        return self.image_changed(now_ms)

    def image_changed(self, now_ms: int) -> bool:
        """Who is alive may have changed: without this an idle partition would wait for a fetch (2.8)."""
        self._retry_at_ms = NEVER
        # KAFKA-13091: after a shrink nobody else may come to move it; and only then is anybody proposed (2.2),
        # for who barely has what was committed so far would hold it back.
        moved = self._advance(now_ms)
        for replica in self.followers:
            self._maybe_expand(replica, now_ms)
        return moved

    def appended(self, end_offset: Offset, now_ms: int) -> bool:
        """My log has grown. Whether the high watermark moved: with no follower in sync it may."""
        assert end_offset >= self._end, (end_offset, self._end)
        self._end = end_offset
        return len(self.state.isr) == 1 and self._advance(now_ms)

    def raise_log_start(self, log_start: Offset) -> None:
        """My log now starts there: whoever joins must have deleted as much."""
        assert self._log_start <= log_start <= self.high_watermark, (self._log_start, log_start, self)
        self._log_start = log_start

    def flushed(self, durable_offset: Offset, now_ms: int) -> bool:
        """My log is on stable storage up to there."""
        self._durable = durable_offset
        return self.state.flush_group and self._advance(now_ms)

    def check_replica(self, follower: BrokerId, broker_epoch: Epoch) -> None:
        """Refuse a fetch from somebody who is no replica, or no longer the one it says (2.6, 5 and 6)."""
        known = self.followers.get(follower)
        if known is None:
            raise UnknownLeaderEpoch(
                f"broker {follower} is not a replica as of partition epoch {self.state.partition_epoch}"
            )
        registered = self._around.registered_epoch(follower)
        newest = known.broker_epoch if registered is None else max(known.broker_epoch, registered)
        if broker_epoch < newest:
            raise StaleBrokerEpoch(
                f"broker {follower} fetched under epoch {broker_epoch}, {newest} is registered"
            )

    def check_beginning(self, follower: BrokerId, broker_epoch: Epoch) -> None:
        """Refuse an empty log that begins above mine, unless what is missing below it was deleted for good (ADR 0071).

        A member has deleted it itself, and who was heard in this leader epoch had a last record that was compared
        or began where I did; of anybody else's history nothing is known. It begins anew where my log starts. That
        would harm a member, so a process that my image does not know yet is told to ask again.
        """
        known = self.followers[follower]
        if self._around.registered_epoch(follower) != broker_epoch:
            raise UnknownLeaderEpoch(f"broker {follower} is not known here yet under epoch {broker_epoch}")
        heard = known.fetch_offset != NO_OFFSET and known.broker_epoch == broker_epoch
        if not heard and follower not in self.maximal_isr and follower not in self.state.elr:
            raise OffsetOutOfRange(
                f"what broker {follower} lacks above {self._log_start} may be more than was deleted",
                refetch_from=self._log_start,
            )

    def on_fetch(
        self,
        follower: BrokerId,
        *,
        broker_epoch: Epoch,
        fetch_offset: Offset,
        durable_offset: Offset,
        log_start: Offset,
        now_ms: int,
    ) -> bool:
        """A valid fetch that does not diverge. Whether the high watermark moved."""
        known = self.followers[follower]
        if NO_EPOCH < known.broker_epoch < broker_epoch:
            # Another process, maybe with another disk: that the last one was caught up says nothing (I-18).
            known = self.followers[follower] = Follower()
        if fetch_offset != known.fetch_offset:
            known.last_moved_ms = now_ms
        # Overwritten, not maximised: after a restart the smaller value is the truth (2.7).
        known.fetch_offset = fetch_offset
        known.log_start = log_start
        known.ack_offset = min(durable_offset, fetch_offset) if self.state.flush_group else fetch_offset
        known.broker_epoch = broker_epoch
        known.note_flushes(now_ms)
        if fetch_offset >= self._end:
            known.last_caught_up_ms = max(known.last_caught_up_ms, now_ms)
        elif fetch_offset >= known.last_fetch_end:
            known.last_caught_up_ms = max(known.last_caught_up_ms, known.last_fetch_ms)
        known.last_fetch_end = self._end
        known.last_fetch_ms = now_ms
        if follower not in self.state.isr:
            self._maybe_expand(follower, now_ms)
        return self._advance(now_ms)

    def heard_again(
        self,
        follower: BrokerId,
        *,
        broker_epoch: Epoch,
        fetch_offset: Offset,
        durable_offset: Offset,
        log_start: Offset,
        now_ms: int,
    ) -> bool:
        """Whether a member that has everything says what it said before: only the time of it is noted then.

        What `on_fetch` would do besides leads to nothing: all is committed, and nobody is about to join or to leave.
        """
        known = self.followers.get(follower)
        if (
            known is None
            or self.pending is not None
            or not fetch_offset == known.fetch_offset == known.ack_offset == known.last_fetch_end
            or not fetch_offset == self._end == self.high_watermark
            or (self.state.flush_group and durable_offset < fetch_offset)
            or (broker_epoch, log_start) != (known.broker_epoch, known.log_start)
            or follower not in self.state.isr
        ):
            return False
        known.last_caught_up_ms = max(known.last_caught_up_ms, now_ms)
        known.last_fetch_ms = now_ms
        return True

    def heard_until(self, follower: BrokerId, broker_epoch: Epoch, at_ms: int) -> None:
        """It had everything until then, and fetched: that is not noted while there is nothing else to say."""
        known = self.followers.get(follower)
        if known is not None and known.broker_epoch == broker_epoch:
            known.last_caught_up_ms = max(known.last_caught_up_ms, at_ms)
            known.last_fetch_ms = max(known.last_fetch_ms, at_ms)

    def on_flushed(
        self, follower: BrokerId, broker_epoch: Epoch, durable_offset: Offset, now_ms: int
    ) -> bool:
        """A follower's disk has caught up (DECISIONS 25): it touches what counts, capped by what was fetched."""
        known = self.followers[follower]
        if known.broker_epoch != broker_epoch or not self.state.flush_group:
            return False
        known.ack_offset = max(known.ack_offset, min(durable_offset, known.fetch_offset))
        known.note_flushes(now_ms)
        if follower not in self.state.isr:
            self._maybe_expand(follower, now_ms)
        return self._advance(now_ms)

    def tick(self, now_ms: int) -> bool:
        """Propose an ISR without those who have fallen behind; call it every half of the lag allowed.

        Whether the high watermark moved: it no longer waits for who was about to join and has fallen silent,
        and where nobody else is in sync, no fetch would come to notice.
        """
        if self.pending is None and now_ms >= self._retry_at_ms:
            isr = tuple(r for r in self.state.isr if r == self._me or self.caught_up(r, now_ms))
            if len(isr) < len(self.state.isr):
                self._propose("shrink", isr)
            elif self.state.recovering:
                self._propose("confirm", self.state.isr)
        return self._advance(now_ms)

    # ── proposals and their answers ───────────────────────────────────────────────────────────────

    def alteration(self) -> Alteration | None:
        """What to send to the controller now, under a number that was never used; None: nothing is to be sent."""
        if not self.is_proposing:
            return None
        assert self.pending is not None
        self._alter_seq += 1
        self._stage = "sent"
        members = tuple((member, self._epoch_of(member)) for member in self.pending.isr)
        return Alteration(
            self._alter_seq,
            self.state.leader_epoch,
            self.pending.partition_epoch,
            members,
            recovered=self.state.recovering,
        )

    @property
    def is_proposing(self) -> bool:
        """Whether a proposal waits for the controller's decision, and not only for the replay of it."""
        return self.pending is not None and self._stage != "decided"

    def accepted(self, alteration: Alteration) -> None:
        """The controller has committed the change: it is pending, and not sent again, until `adopt` brings it."""
        if self._is_latest(alteration):
            self._stage = "decided"

    def refused(self, alteration: Alteration, error: type[Exception], now_ms: int) -> None:
        """The controller has refused, or cannot be asked. Only where no replay will follow is it given up.

        Everything else keeps it pending, and with it the maximal ISR: a newer state is on its way, or the
        outcome is unknown and it is to be sent again.
        """
        if self._is_latest(alteration):
            if issubclass(error, IneligibleReplica | OperationNotAttempted):
                self.pending = None
                self._retry_at_ms = now_ms + RETRY_MS
            elif issubclass(error, _REPLAY_FOLLOWS):
                self._stage = "decided"

    def _is_latest(self, alteration: Alteration) -> bool:
        return (
            self.pending is not None
            and self._stage == "sent"  # what was decided stays decided
            and alteration.alter_seq == self._alter_seq
            and alteration.partition_epoch == self.state.partition_epoch
        )

    def _epoch_of(self, member: BrokerId) -> Epoch:
        return self._around.my_epoch if member == self._me else self.followers[member].broker_epoch

    def _maybe_expand(self, follower: BrokerId, now_ms: int) -> None:
        known = self.followers[follower]
        if (
            self.pending is None
            and follower not in self.state.isr
            and known.ack_offset >= max(self.high_watermark, self._start)
            and known.log_start >= self._log_start
            and now_ms >= self._retry_at_ms
            # While too few are in sync the high watermark stands still, and who left silently still reaches it.
            and now_ms - known.last_fetch_ms <= self._around.lag_max_ms
            and self.eligible(follower)
        ):
            self._propose("expand", (*self.state.isr, follower))

    def _propose(self, kind: Literal["expand", "shrink", "confirm"], isr: tuple[BrokerId, ...]) -> None:
        self.pending = Proposal(kind, isr, self.state.partition_epoch)
        self._stage = "unsent"

    def _advance(self, now_ms: int) -> bool:
        """Move the high watermark to what everybody has who must (2.4)."""
        state = self.state
        if len(state.isr) < state.min_isr:
            return False
        reached = self._durable if state.flush_group else self._end
        pending = self.pending.isr if self.pending else ()
        for replica, known in self.followers.items():
            # A caught-up replica about to join is waited for, so that it need not chase the high watermark;
            # by `eligible`, so that one that is fenced or stopping cannot hold it back (KAFKA-15021).
            if known.ack_offset < reached and (
                replica in state.isr
                or replica in pending
                or (self.eligible(replica) and self.caught_up(replica, now_ms))
            ):
                reached = known.ack_offset
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True
