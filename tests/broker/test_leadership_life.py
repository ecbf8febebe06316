"""Random lives of a leader go as a naive one says, and each planted bug parts them (I-14, I-16 to I-18, C-model)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from tests.broker import test_leadership as sentences
from tests.broker.leader_life import live
from tests.broker.leaders import LAG_MAX_MS
from tidelog.broker.leadership import NEVER, Alteration, Follower, Leadership, Proposal
from tidelog.controller.image import PartitionState
from tidelog.protocol.types import BrokerId

SEEDS = 600
"""Within so many lives a planted bug must have been caught; most are within the first ten."""


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
def test_a_leader_does_what_the_rules_say(first: int) -> None:
    for seed in range(first, first + 100):
        live(seed)


Plant = Callable[[pytest.MonkeyPatch], None]


def advancing(
    *,
    gated: bool = True,
    proposed_counts: bool = True,
    joiner_counts: bool = True,
    joiner_eligible: bool = True,
    own_durable: bool = True,
    never_back: bool = True,
) -> Plant:
    """The rule of 2.4 with one clause left out."""

    def advance(self: Leadership, now_ms: int) -> bool:
        state = self.state
        if gated and len(state.isr) < state.min_isr:
            return False
        needed = self.maximal_isr if proposed_counts else frozenset(state.isr)
        reached = self._durable if own_durable and state.flush_group else self._end
        for replica, known in self.followers.items():
            about_to_join = (not joiner_eligible or self.eligible(replica)) and self.caught_up(
                replica, now_ms
            )
            if replica in needed or (joiner_counts and about_to_join):
                reached = min(reached, max(known.ack_offset, 0))
        moved = reached > self.high_watermark
        if moved or not never_back:
            self.high_watermark = reached
        return moved

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Leadership, "_advance", advance)

    return plant


def expanding(plant: pytest.MonkeyPatch, **without: bool) -> None:
    """The rule of 2.8 with one clause left out."""

    def maybe_expand(self: Leadership, follower: BrokerId, now_ms: int) -> None:
        known = self.followers[follower]
        floor = max(self.high_watermark * without.get("hwm", True), self._start * without.get("start", True))
        if (
            (self.pending is None or not without.get("one_at_a_time", True))
            and follower not in self.state.isr
            and known.ack_offset >= floor
            and (known.log_start >= self._log_start or not without.get("deleted", True))
            and (now_ms >= self._retry_at_ms or not without.get("patience", True))
            and (now_ms - known.last_fetch_ms <= LAG_MAX_MS or not without.get("heard", True))
            and self._around.live_epoch(follower) is not None
            and (self.eligible(follower) or not without.get("same_process", True))
        ):
            self._propose("expand", (*self.state.isr, follower))

    plant.setattr(Leadership, "_maybe_expand", maybe_expand)


def a_stale_high_watermark_is_enough_to_join(plant: pytest.MonkeyPatch) -> None:
    """KAFKA-7128."""
    expanding(plant, start=False)


def a_replica_below_the_high_watermark_joins(plant: pytest.MonkeyPatch) -> None:
    expanding(plant, hwm=False)


def a_replica_that_has_deleted_less_joins(plant: pytest.MonkeyPatch) -> None:
    """ADR 0079."""
    expanding(plant, deleted=False)


def any_empty_log_begins_anywhere(plant: pytest.MonkeyPatch) -> None:
    """ADR 0071."""
    plant.setattr(Leadership, "check_beginning", lambda *_: None)


def another_process_of_the_same_broker_joins(plant: pytest.MonkeyPatch) -> None:
    """KIP-903."""
    expanding(plant, same_process=False)


def a_proposal_is_replaced_before_it_is_decided(plant: pytest.MonkeyPatch) -> None:
    expanding(plant, one_at_a_time=False)


def who_is_silent_joins(plant: pytest.MonkeyPatch) -> None:
    expanding(plant, heard=False)


def a_refused_proposal_is_repeated_at_once(plant: pytest.MonkeyPatch) -> None:
    expanding(plant, patience=False)


def a_fenced_replica_joins(plant: pytest.MonkeyPatch) -> None:
    """KIP-841: the epoch is right, but nobody keeps it alive."""

    def eligible(self: Leadership, follower: BrokerId) -> bool:
        return self._around.registered_epoch(follower) == self.followers[follower].broker_epoch

    plant.setattr(Leadership, "eligible", eligible)


def followers_are_remembered_across_leader_epochs(plant: pytest.MonkeyPatch) -> None:
    """2.3: one that was removed and added meanwhile is empty."""
    last: list[Leadership] = []

    def planted(self: Leadership, around: Any, state: PartitionState, **rest: Any) -> None:
        init(self, around, state, **rest)
        if last and last[0].state.leader_epoch < state.leader_epoch:
            self.followers = last[0].followers
        last[:] = [self]

    init = Leadership.__init__
    plant.setattr(Leadership, "__init__", planted)


def a_retry_keeps_its_number(plant: pytest.MonkeyPatch) -> None:
    """D3."""

    def planted(self: Leadership) -> Alteration | None:
        again = self._stage == "sent"
        sent = alteration(self)
        if sent is not None and again:
            self._alter_seq -= 1
            sent = replace(sent, alter_seq=self._alter_seq)
        return sent

    alteration = Leadership.alteration
    plant.setattr(Leadership, "alteration", planted)


def members_are_named_under_the_registration_that_the_image_has(plant: pytest.MonkeyPatch) -> None:
    """KIP-903: what was fetched was fetched by another process."""

    def epoch_of(self: Leadership, member: BrokerId) -> int:
        return self._around.registered_epoch(member) or 0

    plant.setattr(Leadership, "_epoch_of", epoch_of)


def fetched_is_as_good_as_durable(plant: pytest.MonkeyPatch) -> None:
    """D7."""

    def planted(self: Leadership, follower: BrokerId, **fetch: Any) -> bool:
        return on_fetch(self, follower, **{**fetch, "durable_offset": fetch["fetch_offset"]})

    on_fetch = Leadership.on_fetch
    plant.setattr(Leadership, "on_fetch", planted)


def a_flush_counts_beyond_what_was_fetched(plant: pytest.MonkeyPatch) -> None:
    """DECISIONS 25."""

    def planted(self: Leadership, follower: BrokerId, broker_epoch: int, durable: int, now_ms: int) -> bool:
        known = self.followers[follower]
        if known.broker_epoch == broker_epoch and self.state.flush_group:
            known.ack_offset = max(known.ack_offset, durable + 1)
        return self._advance(now_ms)

    plant.setattr(Leadership, "on_flushed", planted)


def what_was_fetched_is_maximised(plant: pytest.MonkeyPatch) -> None:
    """After a restart the smaller value is the truth."""

    def planted(self: Leadership, follower: BrokerId, **fetch: Any) -> bool:
        most = max(fetch["fetch_offset"], self.followers[follower].fetch_offset)
        return on_fetch(self, follower, **{**fetch, "fetch_offset": most})

    on_fetch = Leadership.on_fetch
    plant.setattr(Leadership, "on_fetch", planted)


def only_the_end_is_caught_up(plant: pytest.MonkeyPatch) -> None:
    """Under load nobody ever is."""
    plant.setattr(
        Leadership, "caught_up", lambda self, follower, _: self.followers[follower].fetch_offset == self._end
    )


def what_there_was_at_the_last_fetch_is_caught_up_now(plant: pytest.MonkeyPatch) -> None:
    """It was so then: a replica that falls behind ever further would stay in sync for ever."""

    def planted(self: Leadership, follower: BrokerId, **fetch: Any) -> bool:
        self.followers[follower].last_fetch_ms = fetch["now_ms"]
        return on_fetch(self, follower, **fetch)

    on_fetch = Leadership.on_fetch
    plant.setattr(Leadership, "on_fetch", planted)


def a_restarted_replica_is_as_caught_up_as_before(plant: pytest.MonkeyPatch) -> None:
    """I-18."""

    def planted(self: Leadership, follower: BrokerId, **fetch: Any) -> bool:
        self.followers[follower].broker_epoch = fetch["broker_epoch"]
        return on_fetch(self, follower, **fetch)

    on_fetch = Leadership.on_fetch
    plant.setattr(Leadership, "on_fetch", planted)


def a_dropped_replica_is_as_caught_up_as_before(plant: pytest.MonkeyPatch) -> None:
    """I-18."""

    def planted(self: Leadership, state: PartitionState, now_ms: int) -> bool:
        was = {replica: known.last_caught_up_ms for replica, known in self.followers.items()}
        moved = adopt(self, state, now_ms)
        for replica, known in self.followers.items():
            known.last_caught_up_ms = max(known.last_caught_up_ms, was.get(replica, NEVER))
        return moved

    adopt = Leadership.adopt
    plant.setattr(Leadership, "adopt", planted)


def a_leader_leaves_its_own_isr(plant: pytest.MonkeyPatch) -> None:
    def planted(self: Leadership, now_ms: int) -> bool:
        moved = tick(self, now_ms)
        if self.pending is not None and self.pending.kind == "shrink":
            isr = tuple(member for member in self.pending.isr if member != self._me)
            self.pending = Proposal("shrink", isr, self.pending.partition_epoch)
        return moved

    tick = Leadership.tick
    plant.setattr(Leadership, "tick", planted)


def a_newer_state_leaves_what_is_pending(plant: pytest.MonkeyPatch) -> None:
    def planted(self: Leadership, state: PartitionState, now_ms: int) -> bool:
        pending = self.pending
        moved = adopt(self, state, now_ms)
        self.pending = pending
        return moved

    adopt = Leadership.adopt
    plant.setattr(Leadership, "adopt", planted)


def a_decision_leaves_the_high_watermark(plant: pytest.MonkeyPatch) -> None:
    """KAFKA-13091."""

    def planted(self: Leadership, state: PartitionState, now_ms: int) -> bool:
        before = self.high_watermark
        adopt(self, state, now_ms)
        self.high_watermark = before
        return False

    adopt = Leadership.adopt
    plant.setattr(Leadership, "adopt", planted)


def any_refusal_ends_a_proposal(plant: pytest.MonkeyPatch) -> None:
    """I-16: after a time-out it may have been applied."""

    def planted(self: Leadership, alteration: Alteration, error: type[Exception], now_ms: int) -> None:
        refused(self, alteration, error, now_ms)
        if self._is_latest(alteration) or self._stage == "decided":
            self.pending = None

    refused = Leadership.refused
    plant.setattr(Leadership, "refused", planted)


def a_late_refusal_ends_a_proposal(plant: pytest.MonkeyPatch) -> None:
    """D3: the newer sending may have been applied."""
    plant.setattr(Leadership, "_is_latest", lambda self, _: self.pending is not None)


def an_answer_installs_the_isr(plant: pytest.MonkeyPatch) -> None:
    """D2: it moves the high watermark before the metadata log has said so."""

    def planted(self: Leadership) -> Alteration | None:
        sent = alteration(self)
        if self.pending is not None:
            self.state = with_fields(self.state, isr=self.pending.isr)
        return sent

    alteration = Leadership.alteration
    plant.setattr(Leadership, "alteration", planted)


def who_comes_alive_waits_for_a_fetch(plant: pytest.MonkeyPatch) -> None:
    """2.8: on an idle partition there is none."""
    plant.setattr(Leadership, "image_changed", lambda self, now_ms: self._advance(now_ms))


def a_member_that_has_not_fetched_is_not_waited_for(plant: pytest.MonkeyPatch) -> None:
    """2.4: unknown counts as nothing."""

    def planted(self: Leadership, now_ms: int) -> bool:
        unknown = [known for known in self.followers.values() if known.fetch_offset < 0]
        for known in unknown:
            known.ack_offset = self._end
        moved = advance(self, now_ms)
        for known in unknown:
            known.ack_offset = -1
        return moved

    advance = Leadership._advance
    plant.setattr(Leadership, "_advance", planted)


def new_replicas_are_taken_for_members(plant: pytest.MonkeyPatch) -> None:
    """2.3: the benefit of the doubt at an election is for the ISR."""

    def planted(self: Leadership, around: Any, state: PartitionState, **rest: Any) -> None:
        init(self, around, state, **rest)
        self.followers = {replica: Follower(rest["now_ms"]) for replica in self.followers}

    init = Leadership.__init__
    plant.setattr(Leadership, "__init__", planted)


PLANTS: dict[str, Plant] = {
    "nothing_waits_for_min_isr": advancing(gated=False),
    "only_the_committed_isr_counts": advancing(proposed_counts=False),
    "who_is_about_to_join_chases_the_high_watermark": advancing(joiner_counts=False),
    "a_fenced_joiner_holds_the_high_watermark_back": advancing(joiner_eligible=False),
    "what_is_not_durable_here_counts": advancing(own_durable=False),
    "the_high_watermark_goes_back": advancing(never_back=False),
    **{
        plant.__name__: plant
        for plant in (
            a_stale_high_watermark_is_enough_to_join,
            a_replica_below_the_high_watermark_joins,
            a_replica_that_has_deleted_less_joins,
            any_empty_log_begins_anywhere,
            another_process_of_the_same_broker_joins,
            a_proposal_is_replaced_before_it_is_decided,
            who_is_silent_joins,
            a_refused_proposal_is_repeated_at_once,
            a_fenced_replica_joins,
            followers_are_remembered_across_leader_epochs,
            a_retry_keeps_its_number,
            members_are_named_under_the_registration_that_the_image_has,
            fetched_is_as_good_as_durable,
            a_flush_counts_beyond_what_was_fetched,
            what_was_fetched_is_maximised,
            only_the_end_is_caught_up,
            what_there_was_at_the_last_fetch_is_caught_up_now,
            a_restarted_replica_is_as_caught_up_as_before,
            a_dropped_replica_is_as_caught_up_as_before,
            a_leader_leaves_its_own_isr,
            a_newer_state_leaves_what_is_pending,
            a_decision_leaves_the_high_watermark,
            any_refusal_ends_a_proposal,
            a_late_refusal_ends_a_proposal,
            an_answer_installs_the_isr,
            who_comes_alive_waits_for_a_fetch,
            a_member_that_has_not_fetched_is_not_waited_for,
            new_replicas_are_taken_for_members,
        )
    },
}


DIRECTED: dict[str, Callable[[], None]] = {
    "a_dropped_replica_is_as_caught_up_as_before": (
        sentences.test_a_replica_that_was_dropped_and_comes_back_empty_is_not_waited_for_either
    ),
    "a_replica_that_has_deleted_less_joins": (
        sentences.test_who_has_not_deleted_what_the_leader_has_does_not_join
    ),
    "any_empty_log_begins_anywhere": sentences.test_an_empty_log_that_is_not_known_begins_anew,
}
"""Where chance seldom finds it."""


def random_lives() -> None:
    for seed in range(SEEDS):
        live(seed)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        DIRECTED.get(name, random_lives)()


def test_the_rule_written_out_with_every_clause_is_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the plants above would be caught for another reason than theirs."""
    advancing()(monkeypatch)
    expanding(monkeypatch)
    for seed in range(100):
        live(seed)
