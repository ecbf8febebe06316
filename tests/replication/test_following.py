"""Replicas that follow through random histories (I-5, I-6, I-7, I-8, I-10, I-13, I-21), and planted bugs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replication import test_followership as sentences
from tests.replication.replicas import ListLog, Pair, Replica, answer
from tests.storage.planted import assert_caught
from tests.storage.test_epochs import REIGNS, Reign, common, replicas_after
from tidelog.protocol.messages import EpochEnd, PartitionFetched
from tidelog.protocol.types import NO_EPOCH, BrokerId
from tidelog.replication import followership as module
from tidelog.replication.followership import (
    Append,
    Asked,
    Followership,
    GoOffline,
    Leading,
    LogView,
    Step,
    Truncate,
    Wait,
)
from tidelog.storage.epochs import EpochEnd as Parting
from tidelog.storage.epochs import LeaderEpochs, divergence

EPOCH = 100


def records(epochs: list[int]) -> ListLog:
    """One record per epoch named; equal (offset, epoch) is an equal record, as between real replicas (I-10)."""
    return ListLog([(epoch, offset) for offset, epoch in enumerate(epochs)])


# ── two logs, any history (I-13, D10) ─────────────────────────────────────────────────────────────────

HISTORIES = st.tuples(REIGNS, st.integers(0, 12), st.booleans())


def check_following(history: tuple[list[Reign], int, bool]) -> None:
    """Follow to the end; how far the follower's high watermark was, and whether its leader was elected uncleanly."""
    reigns, hwm, unclean = history
    mine, theirs, _ = replicas_after(reigns)
    shared, above = common(mine, theirs), set(mine[common(mine, theirs) :])
    replica, leader = Replica(records(mine), min(hwm, len(mine))), records(theirs)
    committed, cuts, losses = replica.hwm, 0, 0
    follower = replica.followership = Followership(
        Leading(BrokerId(2), EPOCH, EPOCH if unclean else NO_EPOCH)
    )
    while True:
        asked = follower.ask(replica.view())
        entry, more = answer(leader, asked, len(theirs), 3)
        step = follower.on_fetched(asked, entry, replica.view())
        if isinstance(step, GoOffline):
            assert shared < committed, "D10: nothing committed was to be lost"
            assert not unclean
            assert replica.log.records[:committed] == records(mine).records[:committed]
            return
        if isinstance(step, Truncate):
            cuts, losses = cuts + 1, losses + step.loses_committed
            assert step.offset >= shared, "cut into what both have"
            assert replica.hwm <= step.offset or step.loses_committed
        replica.carry_out(step, more)
        if isinstance(step, Append) and not more:
            break
    assert cuts <= len(above)
    assert (losses > 0) == (shared < committed)
    assert not losses or unclean
    assert replica.log.records == leader.records
    assert replica.hwm == len(theirs)


@given(HISTORIES)
def test_a_follower_becomes_its_leader_and_stops_exactly_where_committed_data_would_go(
    history: tuple[list[Reign], int, bool],
) -> None:
    check_following(history)


LIES = st.tuples(
    st.lists(st.integers(0, 5), max_size=8), st.lists(st.tuples(st.integers(-1, 6), st.integers(-1, 9)))
)


def check_lies(lies: tuple[list[int], list[tuple[int, int]]]) -> None:
    """A leader that says anything: each cut is one, and it ends."""
    epochs, places = lies
    replica = Replica(records(sorted(epochs)))
    follower = replica.followership = Followership(Leading(BrokerId(2), EPOCH))
    for epoch, end in places:
        asked, before = follower.ask(replica.view()), replica.log.end_offset
        entry = PartitionFetched(bytes(16), 0, diverging=EpochEnd(epoch, end))
        step = follower.on_fetched(asked, entry, replica.view())
        if isinstance(step, GoOffline | Wait):
            return
        assert isinstance(step, Truncate)
        replica.carry_out(step, [])
        assert replica.log.end_offset < before, "KAFKA-10706"


@given(LIES)
def test_a_leader_that_makes_no_sense_cannot_keep_a_follower_busy(
    lies: tuple[list[int], list[tuple[int, int]]],
) -> None:
    check_lies(lies)


# ── scenarios ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_follower_that_restarts_before_it_knew_what_was_committed_loses_nothing() -> None:
    """I-7, KAFKA-1211: it cut its log to its high watermark, and was elected."""
    pair = Pair(0)
    pair.append()
    pair.append()
    pair.round()
    pair.ask()
    pair.serve()
    assert (pair.leader.committed, pair.follower.hwm) == (2, 0)
    pair.restart()
    pair.fail_over()
    pair.settle()
    assert pair.committed == [(1, 1), (1, 2)]


def test_replicas_that_lost_power_together_become_one_log_again() -> None:
    """I-8: the one with fewer records returns first, leads and writes; offsets alone would not tell."""
    longer, leader = Replica(ListLog([(1, 1), (1, 2)]), hwm=1), ListLog([(1, 1), (2, 3)])
    longer.followership = Followership(Leading(BrokerId(2), 2))
    for _ in range(3):
        asked = longer.followership.ask(longer.view())
        entry, more = answer(leader, asked, 2, 10)
        longer.carry_out(longer.followership.on_fetched(asked, entry, longer.view()), more)
    assert longer.log.records == leader.records


def test_elections_without_records_cost_no_rounds() -> None:
    """I-13, KAFKA-6361: leaders that wrote nothing leave no trace in any log."""
    mine, theirs = records([1, 1, 3]), records([1, 1, 1, 1])
    replica = Replica(mine)
    follower = replica.followership = Followership(Leading(BrokerId(2), 9))
    asked = follower.ask(replica.view())
    entry, more = answer(theirs, asked, 0, 10)
    replica.carry_out(follower.on_fetched(asked, entry, replica.view()), more)
    assert replica.log.records == [(1, 0), (1, 1)]
    assert theirs.place(follower.ask(replica.view())) is None


# ── two replicas that lead in turn ────────────────────────────────────────────────────────────────────

SEEDS = 300


def lives(pair: Callable[[int], Pair] = Pair) -> None:
    for seed in range(SEEDS):
        pair(seed).live(80)


def test_what_is_committed_stays_and_replicas_become_one_log_whatever_happens() -> None:
    lives()


# ── planted bugs ──────────────────────────────────────────────────────────────────────────────────────

Check = Callable[[], object]
FOLLOWING: Check = partial(assert_caught, check_following, HISTORIES)
LYING: Check = partial(assert_caught, check_lies, LIES)


def living() -> None:
    with pytest.raises(AssertionError):
        lives()


def told_less() -> None:
    """While leaders say nothing below where their epoch begins (D11), only an answer that comes late does this."""
    with pytest.raises(AssertionError):
        sentences.test_the_high_watermark_only_grows_and_stays_within_the_log(20, 30)


def deleted_below_the_end() -> None:
    with pytest.raises(AssertionError):
        sentences.test_what_the_leader_has_deleted_was_committed_also_while_it_names_none(45, 45)


def deleted_above_what_is_committed() -> None:
    with pytest.raises(AssertionError):
        sentences.test_the_log_start_only_grows_and_stays_below_what_is_committed(60, 30)


def not_capped_by_the_end(_: Followership, told: Append, log: LogView) -> int:
    return max(log.high_watermark, told.high_watermark)


def going_back(_: Followership, told: Append, log: LogView) -> int:
    return min(told.high_watermark, log.end_offset) if told.high_watermark >= 0 else log.high_watermark


def capped_by_the_end_of_the_epoch(_: Followership, told: Append, log: LogView) -> int:
    """Never moves at the end of the log: settled replicas must agree."""
    return max(log.high_watermark, min(told.high_watermark, log.end_offset - 1))


def by_what_it_names_alone(_: Followership, told: Append, log: LogView) -> int:
    """ADR 0079: what was deleted counts for nothing."""
    return max(log.high_watermark, min(told.high_watermark, log.end_offset))


def as_told(_: Followership, told: int, log: LogView) -> int:
    return max(log.log_start, told)


def of_a_divergence_too(follower: Followership, asked: Asked, entry: PartitionFetched, log: LogView) -> Step:
    """KAFKA-14704: the high watermark first, the truncation at the next fetch."""
    return (
        Append(entry.high_watermark, entry.log_start)
        if entry.diverging
        else ON_FETCHED(follower, asked, entry, log)
    )


ON_FETCHED = Followership.on_fetched


def without_the_last_epoch(follower: Followership, log: LogView) -> Asked:
    """KIP-101, second case: only offsets are compared."""
    return Asked(follower.leading.leader_epoch, log.end_offset, NO_EPOCH)


def with_the_epoch_that_leads(follower: Followership, log: LogView) -> Asked:
    """I-21: as if the log's last batch were of the current leadership."""
    return Asked(follower.leading.leader_epoch, log.end_offset, follower.leading.leader_epoch)


def cutting_nothing(_: Followership, leader: Parting, _start: int, log: LogView) -> Step:
    """KAFKA-10706: no look whether anything is cut."""
    return Truncate(divergence(log.epochs, log.end_offset, leader), loses_committed=False)


def as_far_as_the_leader_says(_: LeaderEpochs, log_end: int, leader: Parting) -> int:
    """Before KIP-279."""
    return min(leader.end, log_end)


def one_record_deeper(mine: LeaderEpochs, log_end: int, leader: Parting) -> int:
    return max(divergence(mine, log_end, leader) - 1, 0)


def to_the_high_watermark_at_once(_: Followership, step: Step, _log: LogView, _why: str) -> Step:
    """D10 off."""
    return step


def never(_: Followership, _step: Step, _log: LogView, why: str) -> Step:
    """D10 without its exception."""
    return GoOffline(why)


def any_time(_: Followership, _asked: Asked, _log: LogView) -> bool:
    """KAFKA-13207."""
    return True


def of_the_same_end(_: Followership, asked: Asked, log: LogView) -> bool:
    return asked.fetch_offset == log.end_offset


def of_the_same_end_and_leader_epoch(follower: Followership, asked: Asked, log: LogView) -> bool:
    """Cut and grown again."""
    return asked[:2] == (follower.leading.leader_epoch, log.end_offset)


def of_the_same_epoch(follower: Followership, asked: Asked, _log: LogView) -> bool:
    return asked.leader_epoch == follower.leading.leader_epoch


PLANTS: list[tuple[str, str, Any, Check]] = [
    ("the_high_watermark_is", "new_high_watermark", not_capped_by_the_end, living),
    ("the_high_watermark_is", "new_high_watermark", going_back, told_less),
    ("the_high_watermark_is", "new_high_watermark", capped_by_the_end_of_the_epoch, living),
    ("the_high_watermark_is", "new_high_watermark", by_what_it_names_alone, deleted_below_the_end),
    ("the_high_watermark_is_taken", "on_fetched", of_a_divergence_too, living),
    ("the_log_start_is", "new_log_start", as_told, deleted_above_what_is_committed),
    ("it_asks", "ask", without_the_last_epoch, living),
    ("it_asks", "ask", with_the_epoch_that_leads, living),
    ("it_cuts", "_on_diverging", cutting_nothing, LYING),
    ("it_cuts", "divergence", as_far_as_the_leader_says, FOLLOWING),
    ("it_cuts", "divergence", one_record_deeper, FOLLOWING),
    ("it_loses_what_is_committed", "_losing", to_the_high_watermark_at_once, FOLLOWING),
    ("it_loses_what_is_committed", "_losing", never, FOLLOWING),
    ("an_answer_counts", "is_current", any_time, living),
    ("an_answer_counts", "is_current", of_the_same_end, living),
    ("an_answer_counts", "is_current", of_the_same_end_and_leader_epoch, living),
    ("an_answer_counts", "is_current", of_the_same_epoch, living),
]


@pytest.mark.parametrize(
    ("target", "bug", "caught"),
    [pytest.param(*rest, id=f"{what}_{rest[1].__name__}") for what, *rest in PLANTS],
)
def test_a_planted_bug_is_caught(
    target: str, bug: Any, caught: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module if target == "divergence" else Followership, target, bug)
    caught()


class CutsToTheHighWatermark(Pair):
    """KIP-101, first case: as replicas did before they compared epochs."""

    def begins_to_follow(self, replica: Replica) -> None:
        super().begins_to_follow(replica)
        del replica.log.records[replica.hwm :]


def test_a_replica_that_cuts_to_its_high_watermark_is_caught() -> None:
    with pytest.raises(AssertionError):
        lives(CutsToTheHighWatermark)


def test_the_example_in_numbers_is_right() -> None:
    """docs/REPLICATION.md, "Cutting, in numbers"."""
    mine = LeaderEpochs([(1, 0), (4, 30), (6, 50)])
    leader = LeaderEpochs([(1, 0), (3, 30), (7, 42)])
    assert leader.end_offset_for(mine.latest, 60) == (3, 42)
    assert divergence(mine, 80, Parting(3, 42)) == 30
    assert leader.end_offset_for(1, 60) == (1, 30)
    assert divergence(mine, 80, Parting(4, 40)) == 40
