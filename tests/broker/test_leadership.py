"""A leader's view of its partition: the sentences of design 2.2 to 2.9, one by one.

Its proposals are in test_proposals.py; what random lives find is in test_leadership_life.py.
"""

from random import Random
from typing import Any

import pytest

from tests.broker.leaders import LAG_MAX_MS, Brokers, Led, ids
from tidelog.protocol import errors
from tidelog.protocol.errors import OffsetOutOfRange, StaleBrokerEpoch, UnknownLeaderEpoch
from tidelog.protocol.types import NO_EPOCH, BrokerId

TWO, THREE = BrokerId(2), BrokerId(3)

# ── becoming leader (2.3) ─────────────────────────────────────────────────────────────────────────────


def test_a_new_leader_knows_nothing_of_its_followers() -> None:
    led = Led(end=10, hwm=4)
    assert [(f.fetch_offset, f.ack_offset, f.broker_epoch) for f in led.leader.followers.values()] == [
        (-1, -1, NO_EPOCH)
    ] * 2
    assert led.hwm == 4


def test_an_election_commits_at_once_what_nobody_else_must_have() -> None:
    assert Led(isr=[1], min_isr=1, end=10, hwm=4).hwm == 10


def test_members_of_the_isr_have_the_whole_lag_to_show_up_after_an_election() -> None:
    led = Led(end=10).at(LAG_MAX_MS)
    led.tick()
    assert led.proposed is None


def test_a_new_leader_does_not_tell_a_high_watermark_that_may_be_stale() -> None:
    """D11: below where its epoch begins, earlier leaders may have committed more than it knows of."""
    led = Led(isr=[1, 2], end=10, hwm=4)
    assert led.leader.known_high_watermark == -1
    led.fetch(2, 9)
    assert (led.hwm, led.leader.known_high_watermark) == (9, -1)
    led.fetch(2, 10)
    assert led.leader.known_high_watermark == 10


# ── the high watermark (2.4) ──────────────────────────────────────────────────────────────────────────


def test_the_high_watermark_is_what_every_member_of_the_isr_has() -> None:
    led = Led(end=10)
    assert not led.fetch(2, 8)
    assert led.fetch(3, 6)
    assert led.hwm == 6


def test_a_member_that_has_not_fetched_yet_has_nothing() -> None:
    led = Led(end=10)
    led.fetch(2, 10)
    assert led.hwm == 0


def test_an_append_moves_it_only_where_nobody_else_is_in_sync() -> None:
    alone, both = Led(isr=[1], replicas=[1], min_isr=1), Led(isr=[1, 2])
    both.fetch(2, 0)
    assert (alone.appended(7), both.appended(7)) == (True, False)
    assert (alone.hwm, both.hwm) == (7, 0)


def test_nothing_is_committed_while_the_isr_is_smaller_than_min_isr() -> None:
    """KIP-966: else the last replica standing would commit alone what the others never get."""
    led = Led(isr=[1], replicas=[1, 2], min_isr=2, end=10)
    led.appended(12)
    assert led.hwm == 0
    led.fetch(2, 12)
    assert led.hwm == 0
    led.adopt(isr=[1, 2])
    assert led.hwm == 12


def test_lowering_min_isr_commits_what_waited_for_it() -> None:
    led = Led(isr=[1], replicas=[1, 2], min_isr=2, end=10)
    assert led.adopt(min_isr=1)
    assert led.hwm == 10


def test_a_proposed_member_counts_before_the_controller_has_agreed() -> None:
    """KIP-497: it may have agreed already, and then only that member may be left to lead."""
    led = Led(isr=[1, 2], end=10, hwm=5).at(LAG_MAX_MS + 1)
    led.appended(20)
    led.fetch(3, 10)
    assert led.proposed == (1, 2, 3)
    led.fetch(2, 20)
    assert led.hwm == 10


def test_a_member_counts_until_the_controller_has_dropped_it() -> None:
    """KIP-497, the other way round."""
    led = Led(end=10)
    led.at(LAG_MAX_MS + 1).fetch(2, 10)
    led.tick()
    assert led.proposed == (1, 2)
    led.fetch(2, 10)
    assert led.hwm == 0


def test_the_decision_to_drop_a_member_moves_the_high_watermark_by_itself() -> None:
    """KAFKA-13091 (I-17): nobody may come to move it later, and producers would wait for nothing."""
    led = Led(end=10)
    led.at(LAG_MAX_MS + 1).fetch(2, 10)
    led.tick()
    assert led.adopt(isr=[1, 2])
    assert led.hwm == 10


def test_such_a_decision_moves_it_before_the_next_replica_is_proposed() -> None:
    """2.2, I-17: one that has barely reached the old high watermark would hold back the new one."""
    led = Led(isr=[1, 2], min_isr=1, end=5, hwm=5)
    led.brokers.fenced.add(3)
    led.fetch(3, 5)
    led.appended(100)
    led.brokers.fenced.clear()
    led.at(LAG_MAX_MS + 1).adopt(isr=[1])
    assert (led.hwm, led.proposed) == (100, None)


def test_a_replica_that_is_caught_up_and_about_to_join_is_waited_for() -> None:
    led = Led(isr=[1], replicas=[1, 2], min_isr=1, end=10, hwm=10)
    led.fetch(2, 10)
    led.refused(led.send(), errors.IneligibleReplica)
    assert not led.appended(15)
    assert led.hwm == 10


@pytest.mark.parametrize("leaves", ["fenced", "registers"])
def test_a_replica_that_may_not_join_is_not_waited_for(leaves: str) -> None:
    """KAFKA-15021 (I-18): the next image moves the high watermark past it."""
    led = Led(isr=[1], replicas=[1, 2], min_isr=1, end=10, hwm=10)
    led.fetch(2, 10)
    led.refused(led.send(), errors.IneligibleReplica)
    led.appended(15)
    assert led.hwm == 10
    led.brokers.registers(2) if leaves == "registers" else led.brokers.fenced.add(2)
    assert led.image_changed()
    assert led.hwm == 15


def test_a_replica_that_was_about_to_join_and_falls_silent_is_waited_for_no_longer_than_the_lag() -> None:
    """I-17: with nobody else in sync no fetch comes to look again; the tick must."""
    led = Led(isr=[1], replicas=[1, 2], min_isr=1, end=10, hwm=10)
    led.fetch(2, 10)
    led.refused(led.send(), errors.IneligibleReplica)
    led.appended(15)
    assert not led.at(LAG_MAX_MS).tick()
    assert led.at(LAG_MAX_MS + 1).tick()
    assert led.hwm == 15


def test_a_replica_that_comes_back_empty_is_not_waited_for_because_it_was_caught_up_before() -> None:
    """I-18, I-27: it was, as another process with another disk."""
    led = Led(isr=[1, 2], end=10, hwm=10)
    led.fetch(2, 10)
    led.fetch(3, 10)
    led.refused(led.send(), errors.IneligibleReplica)
    led.brokers.registers(3)
    led.brokers.fenced.clear()
    led.appended(15)
    led.fetch(3, 0)
    led.fetch(2, 15)
    assert led.hwm == 15


def test_a_replica_that_was_dropped_and_comes_back_empty_is_not_waited_for_either() -> None:
    """I-18: in the ISR it was given the benefit of the doubt at the election, and never fetched."""
    led = Led(end=10, hwm=10)
    led.fetch(2, 10)
    led.brokers.registers(3)
    led.adopt(isr=[1, 2])
    led.brokers.fenced.clear()
    led.fetch(3, 0)
    led.appended(15)
    led.fetch(2, 15)
    assert led.hwm == 15


def test_the_high_watermark_never_goes_back() -> None:
    led = Led(isr=[1, 2], end=10)
    led.fetch(2, 10)
    assert not led.fetch(2, 3)
    assert led.hwm == 10


# ── where logs begin (ADR 0071, ADR 0079) ─────────────────────────────────────────────────────────────


def test_who_has_not_deleted_what_the_leader_has_does_not_join() -> None:
    """Its election would bring back what a client was told to be deleted."""
    led = Led(isr=[1, 2], end=10, hwm=10, log_start=4)
    led.fetch(3, 10, log_start=3)
    assert led.proposed is None
    led.fetch(3, 10, log_start=4)
    assert led.proposed == (1, 2, 3)


def test_who_joins_has_followed_the_deletions_since_the_election() -> None:
    led = Led(isr=[1, 2], end=10, hwm=10)
    led.leader.raise_log_start(6)
    led.fetch(3, 10, log_start=5)
    assert led.proposed is None


def begins_anew_at(led: Led, broker_epoch: int) -> int | None:
    """Where broker 3 is told to begin; None: it may begin where it says."""
    try:
        led.leader.check_beginning(THREE, broker_epoch)
    except OffsetOutOfRange as refused:
        return refused.refetch_from
    return None


def test_an_empty_log_that_is_not_known_begins_anew() -> None:
    assert begins_anew_at(Led(isr=[1, 2], end=10, log_start=4), 30) == 4


@pytest.mark.parametrize("state", [{"isr": [1, 3]}, {"isr": [1], "min_isr": 2, "elr": ids([3])}])
def test_a_member_begins_where_it_says(state: dict[str, Any]) -> None:
    """What it lacks, it has deleted itself."""
    assert begins_anew_at(Led(**state, end=10, log_start=4), 30) is None


def test_who_is_about_to_become_a_member_and_who_was_heard_begin_where_they_say() -> None:
    led = Led(isr=[1, 2], end=10, log_start=4)
    led.fetch(3, 8, log_start=4)
    assert begins_anew_at(led, 30) is None
    led.fetch(3, 10, log_start=4)
    assert (led.proposed, begins_anew_at(led, 30)) == ((1, 2, 3), None)


def test_what_another_process_was_heard_with_says_nothing_of_an_empty_log() -> None:
    led = Led(isr=[1, 2], end=10, log_start=4)
    led.fetch(3, 8, log_start=4)
    led.brokers.registers(3)
    assert begins_anew_at(led, 31) == 4


@pytest.mark.parametrize("isr", [[1, 2], [1, 3]])
def test_a_process_that_is_not_known_yet_asks_again(isr: list[int]) -> None:
    """Beginning anew would harm a member."""
    with pytest.raises(UnknownLeaderEpoch):
        Led(isr=isr, end=10, log_start=4).leader.check_beginning(THREE, 31)


# ── what counts in group mode (D7) ────────────────────────────────────────────────────────────────────


def test_in_group_mode_only_what_is_durable_here_counts() -> None:
    led = Led(isr=[1, 2], flush_group=True, end=10, durable=4)
    led.fetch(2, 10, durable=10)
    assert led.hwm == 4
    assert led.leader.flushed(10, 0)
    assert led.hwm == 10


def test_in_group_mode_only_what_is_durable_there_counts() -> None:
    led = Led(isr=[1, 2], flush_group=True, end=10)
    led.fetch(2, 10, durable=6)
    assert led.hwm == 6


def test_a_follower_cannot_have_more_on_its_disk_than_it_has() -> None:
    """What it wrote above its fetch offset it may have cut off again."""
    led = Led(isr=[1, 2], flush_group=True, end=10)
    led.fetch(2, 6, durable=9)
    assert led.hwm == 6


def test_without_group_mode_a_flush_changes_nothing() -> None:
    led = Led(isr=[1, 2], end=10, durable=0)
    led.fetch(2, 10, durable=0)
    assert (led.hwm, led.leader.flushed(5, 0)) == (10, False)
    assert not led.leader.on_flushed(TWO, 20, 10, 0)


def test_a_flush_that_is_told_moves_what_counts_up_to_what_was_fetched() -> None:
    """DECISIONS 25."""
    led = Led(isr=[1, 2], flush_group=True, end=10)
    led.fetch(2, 8, durable=3)
    assert led.leader.on_flushed(TWO, 20, 9, 0)
    assert led.hwm == 8


def test_a_flush_that_is_told_late_takes_nothing_back() -> None:
    led = Led(isr=[1, 2], flush_group=True, end=10)
    led.fetch(2, 8, durable=7)
    led.leader.on_flushed(TWO, 20, 3, 0)
    assert led.leader.followers[TWO].ack_offset == 7


@pytest.mark.parametrize("broker_epoch", [19, 21])
def test_a_flush_of_another_process_than_the_one_that_fetched_counts_nothing(broker_epoch: int) -> None:
    led = Led(isr=[1, 2], flush_group=True, end=10)
    led.fetch(2, 8, durable=3)
    assert not led.leader.on_flushed(TWO, broker_epoch, 8, 0)
    assert led.hwm == 3


def test_a_flush_before_the_first_fetch_of_a_leader_epoch_counts_nothing() -> None:
    led = Led(isr=[1, 2], flush_group=True, end=10)
    led.leader.on_flushed(TWO, 20, 10, 0)
    assert led.hwm == 0


# ── what a fetch tells (2.7) ──────────────────────────────────────────────────────────────────────────


def test_a_smaller_offset_than_before_is_the_truth() -> None:
    """After a restart a follower may have less: then it is no longer complete."""
    led = Led(isr=[1, 2], end=10, hwm=8)
    led.fetch(3, 9)
    led.fetch(3, 7)
    assert led.leader.followers[THREE].ack_offset == 7


def test_who_has_the_whole_log_is_caught_up_for_as_long_as_nothing_is_appended() -> None:
    led = Led(end=10)
    led.fetch(2, 10)
    assert led.leader.caught_up(TWO, 10 * LAG_MAX_MS)


def test_who_has_what_there_was_at_its_last_fetch_was_caught_up_then() -> None:
    """Under load nobody is ever at the end; having had all of a moment is enough, as of that moment."""
    led = Led(end=10)
    led.at(1000).fetch(2, 0)
    led.appended(20)
    led.at(2000).fetch(2, 10)
    assert led.leader.caught_up(TWO, 1000 + LAG_MAX_MS)
    assert not led.leader.caught_up(TWO, 1001 + LAG_MAX_MS)


def test_who_has_less_than_at_its_last_fetch_is_not() -> None:
    led = Led(end=10)
    led.at(1000).fetch(2, 0)
    led.at(2000).fetch(2, 9)
    assert not led.leader.caught_up(TWO, LAG_MAX_MS + 1)


# ── who may fetch (2.6, 5 and 6) ──────────────────────────────────────────────────────────────────────


def test_a_fetch_from_a_broker_that_is_no_replica_is_told_to_come_back_later() -> None:
    """My assignment may be behind."""
    with pytest.raises(UnknownLeaderEpoch, match="broker 7 is not a replica as of partition epoch 0"):
        Led().leader.check_replica(BrokerId(7), 70)


@pytest.mark.parametrize("fenced", [False, True])
def test_a_fetch_under_an_older_registration_than_mine_is_refused(fenced: bool) -> None:
    """Also while the newer one is still fenced: it is registered all the same (2.6, 6)."""
    led = Led()
    led.brokers.registers(2)
    led.brokers.fenced = {2} if fenced else set()
    with pytest.raises(StaleBrokerEpoch, match="broker 2 fetched under epoch 20, 21 is registered"):
        led.leader.check_replica(TWO, 20)


def test_a_fetch_under_an_older_registration_than_its_last_is_refused() -> None:
    """My image may be behind the follower's own."""
    led = Led()
    led.fetch(2, 0, broker_epoch=21)
    led.leader.check_replica(TWO, 21)
    with pytest.raises(StaleBrokerEpoch):
        led.leader.check_replica(TWO, 20)


# ── expansion (2.8) ───────────────────────────────────────────────────────────────────────────────────


def outside(hwm: int = 10, **state: Any) -> Led:
    """Broker 3 is a replica and not in sync; the epoch began at 10."""
    return Led(isr=[1, 2], end=10, hwm=hwm, **state)


def test_who_has_everything_committed_is_proposed() -> None:
    led = outside()
    led.fetch(3, 10)
    assert led.proposed == (1, 2, 3)
    assert led.leader.pending is not None
    assert led.leader.pending.kind == "expand"


def test_who_lacks_a_committed_record_is_not() -> None:
    led = outside()
    led.fetch(3, 9)
    assert led.proposed is None


def test_who_lacks_what_there_was_when_the_epoch_began_is_not() -> None:
    """KAFKA-7128: the new leader's high watermark is stale, and more may be committed than it knows of."""
    led = outside(hwm=4)
    led.fetch(3, 9)
    assert led.proposed is None
    led.fetch(3, 10)
    assert led.proposed == (1, 2, 3)


def test_who_is_fenced_is_not_until_the_image_says_otherwise() -> None:
    """2.8: and then at once, or an idle partition would wait for the next fetch."""
    led = outside()
    led.brokers.fenced.add(3)
    led.fetch(3, 10)
    assert led.proposed is None
    led.brokers.fenced.clear()
    led.image_changed()
    assert led.proposed == (1, 2, 3)


@pytest.mark.parametrize("broker_epoch", [29, 31])
def test_who_fetched_as_another_process_than_the_registered_one_is_not(broker_epoch: int) -> None:
    """KIP-903: what the one has says nothing about the other."""
    led = outside()
    led.fetch(3, 10, broker_epoch=broker_epoch)
    assert led.proposed is None


def test_who_fetched_in_the_last_epoch_only_is_not() -> None:
    """2.3: it may have been removed and added in between, and be empty."""
    led = outside()
    led.fetch(3, 10)
    again = outside(leader_epoch=6)
    again.image_changed()
    assert again.proposed is None


def test_in_group_mode_who_has_not_flushed_it_is_not() -> None:
    led = outside(flush_group=True)
    led.fetch(3, 10, durable=9)
    assert led.proposed is None
    led.leader.on_flushed(THREE, 30, 10, 0)
    assert led.proposed == (1, 2, 3)


def test_who_left_because_it_was_silent_is_not_until_it_fetches_again() -> None:
    """While too few are in sync the high watermark stands still: it would join and leave for ever."""
    led = Led(isr=[1, 2], replicas=[1, 2], end=10)
    led.fetch(2, 10)
    led.appended(11)
    led.at(LAG_MAX_MS + 1).tick()
    led.adopt(isr=[1], elr=ids([2]))
    assert (led.hwm, led.proposed) == (10, None)
    led.fetch(2, 10)
    assert led.proposed == (1, 2)


def test_one_is_proposed_at_a_time() -> None:
    led = Led(isr=[1], replicas=[1, 2, 3], min_isr=1)
    led.fetch(2, 0)
    led.fetch(3, 0)
    before = led.proposed
    led.adopt(isr=[1, 2])
    assert (before, led.proposed) == ((1, 2), (1, 2, 3))


# ── shrinking (2.9) ───────────────────────────────────────────────────────────────────────────────────


def test_who_was_not_caught_up_for_longer_than_the_lag_is_proposed_to_leave() -> None:
    led = Led(end=10)
    led.at(500).fetch(2, 10)
    led.appended(11)
    led.at(LAG_MAX_MS + 1).tick()
    assert led.proposed == (1, 2)
    assert led.leader.pending is not None
    assert led.leader.pending.kind == "shrink"


def flushing() -> Led:
    led = Led(isr=[1, 2, 3], end=10, hwm=10, flush_group=True)
    for follower in (2, 3):
        led.fetch(follower, 10, durable=10)
    return led


def goes_on(led: Led, *, lag: int) -> None:
    """For two lags both fetch twice a second; the disk of one is so many fetches behind: as far as there are any."""
    for n in range(1, 4 * LAG_MAX_MS // 1000):
        led.at(n * 500).appended(10 + n)
        led.leader.flushed(10 + n, led.now_ms)
        led.fetch(2, 10 + n, durable=10 + n)
        led.fetch(3, 10 + n, durable=max(10 + n - lag, 10))
        led.tick()


def test_who_fetches_on_while_a_flush_does_not_end_is_proposed_to_leave_and_holds_up_nobody() -> None:
    led = flushing()
    goes_on(led, lag=1000)
    assert (led.proposed, led.hwm) == ((1, 2), 10)
    led.adopt(isr=[1, 2])
    assert led.hwm == led.end


def test_whose_disk_lags_a_little_for_ever_stays() -> None:
    led = flushing()
    goes_on(led, lag=3)
    assert (led.proposed, led.hwm) == (None, led.end - 3)


def test_who_has_cut_its_log_owes_no_more_than_it_has() -> None:
    led = flushing()
    led.at(1).fetch(3, 10, durable=5)
    led.fetch(3, 7, durable=5)
    led.at(LAG_MAX_MS).fetch(3, 9, durable=8)
    led.at(LAG_MAX_MS + 2).fetch(3, 10, durable=8)
    assert led.leader.caught_up(THREE, led.now_ms)


def test_a_leader_never_proposes_to_leave_itself() -> None:
    led = Led(end=10).at(100 * LAG_MAX_MS)
    led.tick()
    assert led.proposed == (1,)


def test_nobody_is_proposed_to_leave_while_another_change_is_pending() -> None:
    led = outside()
    led.fetch(3, 10)
    led.appended(11)
    led.at(10 * LAG_MAX_MS).tick()
    assert led.proposed == (1, 2, 3)


# ── adopting what the controller decided (2.2) ────────────────────────────────────────────────────────


def test_who_is_no_replica_any_more_is_forgotten_and_comes_back_as_unknown() -> None:
    led = outside()
    led.fetch(3, 10)
    led.adopt(replicas=[1, 2])
    assert THREE not in led.leader.followers
    led.adopt(replicas=[1, 2, 3])
    assert led.leader.followers[THREE].fetch_offset == -1
    assert led.proposed is None


def test_the_others_and_the_beginning_of_the_epoch_are_kept() -> None:
    led = Led(end=10)
    led.fetch(2, 8)
    led.appended(12)
    led.adopt(replicas=[1, 2, 3, 4])
    assert (led.leader.followers[TWO].fetch_offset, led.leader.epoch_start) == (8, 10)


@pytest.mark.parametrize(("leader_epoch", "partition_epoch"), [(6, 1), (5, 0)])
def test_another_leadership_or_an_older_state_is_not_adopted(leader_epoch: int, partition_epoch: int) -> None:
    led = Led(brokers=Brokers(1, 2, 3))
    with pytest.raises(AssertionError):
        led.adopt(leader_epoch=leader_epoch) if partition_epoch else led.leader.adopt(led.leader.state, 0)


@pytest.mark.parametrize("seed", range(40))
def test_who_is_heard_again_is_known_as_if_it_had_been_heard_for_the_first_time(seed: int) -> None:
    """Two leaders live the same life; one of them looks first whether it has heard this before."""
    rng = Random(seed)
    about: dict[str, Any] = {"isr": (1, 2), "flush_group": seed % 2 == 1}
    brief, full = Led(**about), Led(**about)
    again = 0
    for _ in range(200):
        now_ms = brief.now_ms + rng.choice((0, 1, LAG_MAX_MS // 2))
        step = rng.choice(("fetch",) * 12 + ("append", "tick", "registers", "decided"))
        follower, lacks, unflushed = rng.choice((2, 2, 3)), rng.choice((0, 0, 0, 1)), rng.choice((0, 0, 1))
        isr = brief.proposed or rng.choice(((1,), (1, 2), (1, 2, 3)))
        for led in (brief.at(now_ms), full.at(now_ms)):
            end = led.end
            said = {"durable": max(end - unflushed, 0), "log_start": 0}
            if step == "append":
                led.appended(end + 1)
                led.leader.flushed(end + 1, now_ms)
            elif step == "tick":
                led.tick()
            elif step == "registers":
                led.brokers.registers(follower)
                led.brokers.fenced.clear()
            elif step == "decided":
                led.adopt(isr=isr)
            elif led is brief and led.again(follower, max(end - lacks, 0), **said):
                again += 1
            else:
                led.fetch(follower, max(end - lacks, 0), **said)
        assert brief.leader.followers == full.leader.followers
        assert (brief.hwm, brief.proposed) == (full.hwm, full.proposed)
    assert again, "some of it was said before"
