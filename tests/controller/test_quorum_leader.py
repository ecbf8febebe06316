"""A leader of the metadata log: how long it leads, its lease, and what is committed (design 4.3, 4.12; I-46, I-49)."""

from typing import Any

import pytest

from tests.controller.quorum_desk import (
    CHECK_MS,
    FETCH_MS,
    Desk,
    Rule,
    Rules,
    disk,
)
from tidelog.controller import quorum
from tidelog.protocol.errors import (
    InconsistentClusterId,
    InconsistentMetadata,
    InvalidVoterKey,
)
from tidelog.protocol.messages import EndEpoch
from tidelog.protocol.types import BrokerId, Epoch

rule = Rules()


# ── leading ───────────────────────────────────────────────────────────────────────────────────────────


@rule
def a_voter_is_told_until_it_fetches(module: Any) -> None:
    desk = Desk(module).leads()
    desk.fetches(3)
    began = desk.now_ms
    assert [(s.to, s.request.epoch, s.request.leader_id) for s in desk.due()] == [(2, 5, 1)]
    assert desk.now_ms == began + FETCH_MS / 2
    desk.fetches(2)
    assert desk.tick(FETCH_MS / 2) == []
    assert desk.q.leads


@rule
def a_leader_without_a_majority_gives_up(module: Any) -> None:
    desk = Desk(module, 5).leads()
    for voter in (2, 3, 4, 5):
        desk.fetches(voter)
    began = desk.now_ms
    desk.now_ms += 500
    desk.fetches(2)
    assert desk.q.deadline_ms() == began + CHECK_MS, "the second one is needed as well"
    assert [type(s.request) for s in desk.due()] == [EndEpoch] * 4
    assert (desk.q.leads, desk.q.epoch) == (False, 5)


@rule
def a_leader_that_nobody_ever_fetches_from_gives_up(module: Any) -> None:
    desk = Desk(module).leads()
    began = desk.now_ms
    while desk.q.leads:
        desk.due()
    assert desk.now_ms == began + CHECK_MS


@rule
def a_leader_with_a_majority_goes_on(module: Any) -> None:
    desk = Desk(module).leads()
    for _ in range(10):
        desk.now_ms += CHECK_MS - 1
        desk.fetches(3)
        desk.tick()
    assert desk.q.leads


@rule
def what_lay_unread_does_not_revive_a_leader(module: Any) -> None:
    desk = Desk(module).leads()
    desk.fetches(2)
    desk.now_ms += 60_000
    assert not desk.fetches(2)
    assert not desk.fetches(2)
    assert not desk.q.holds_lease(desk.now_ms)
    assert [type(s.request) for s in desk.tick()] == [EndEpoch] * 2


@rule
def a_new_leader_has_no_lease_before_a_majority_has_fetched(module: Any) -> None:
    desk = Desk(module, 5).leads()
    assert not desk.q.holds_lease(desk.now_ms)
    desk.fetches(2)
    assert not desk.q.holds_lease(desk.now_ms)
    desk.fetches(3)
    assert desk.q.holds_lease(desk.now_ms)


@rule
def a_lease_ends_when_a_majority_has_been_silent_for_the_fetch_time_out(module: Any) -> None:
    desk = Desk(module).leads()
    desk.fetches(2)
    desk.fetches(2)
    assert desk.q.holds_lease(desk.now_ms + FETCH_MS - 1)
    assert not desk.q.holds_lease(desk.now_ms + FETCH_MS + 1)


@rule
def a_fetch_that_comes_late_extends_no_lease_by_itself(module: Any) -> None:
    desk = Desk(module).leads()
    desk.fetches(2)
    desk.now_ms += FETCH_MS + 1
    desk.fetches(2)
    assert not desk.q.holds_lease(desk.now_ms)
    desk.fetches(2)
    assert desk.q.holds_lease(desk.now_ms)


@rule
def who_does_not_lead_has_no_lease(module: Any) -> None:
    desk = Desk(module).leads()
    desk.fetches(2)
    desk.begins(3, 8)
    assert not desk.q.holds_lease(desk.now_ms)
    assert not desk.fetches(2)
    assert not desk.q.flushed(99)


# ── what is committed ─────────────────────────────────────────────────────────────────────────────────


@rule
def what_a_majority_has_on_stable_storage_is_committed(module: Any) -> None:
    desk = Desk(module, 5).leads(begins=10)
    assert not desk.q.flushed(20)
    assert not desk.fetches(2, 18)
    assert desk.fetches(3, 15)
    assert desk.q.high_watermark == 15
    assert desk.fetches(4, 17)
    assert desk.q.high_watermark == 17


@rule
def the_leaders_own_log_counts_when_it_is_flushed(module: Any) -> None:
    desk = Desk(module).leads(begins=10)
    assert not desk.fetches(2, 11)
    assert desk.q.flushed(11)
    assert (desk.q.high_watermark, desk.q.is_settled) == (11, True)


@rule
def a_majority_may_do_without_the_leader(module: Any) -> None:
    desk = Desk(module).leads(begins=10)
    assert not desk.fetches(2, 12)
    assert desk.fetches(3, 11)
    assert desk.q.high_watermark == 11


@rule
def what_is_of_older_epochs_is_committed_by_the_leaders_first_record(module: Any) -> None:
    desk = Desk(module).leads(begins=10)
    desk.q.flushed(11)
    assert not desk.fetches(2, 10), "a majority has all that is older, and it may be lost still"
    assert (desk.q.high_watermark, desk.q.is_settled) == (0, False)
    assert desk.fetches(2, 11)
    assert (desk.q.high_watermark, desk.q.is_settled) == (11, True)


@rule
def nothing_is_committed_before_the_first_record_is_written(module: Any) -> None:
    desk = Desk(module)
    desk.wins()
    assert not desk.q.flushed(10)
    assert not desk.fetches(2, 10)
    assert (desk.q.high_watermark, desk.q.is_settled) == (0, False)


@rule
def the_high_watermark_never_goes_back(module: Any) -> None:
    desk = Desk(module).leads(begins=10)
    desk.q.flushed(20)
    desk.fetches(2, 20)
    assert not desk.fetches(2, 12)
    assert desk.q.high_watermark == 20
    desk.begins(3, 8)
    desk.fetched(15)
    assert desk.q.high_watermark == 20


@rule
def a_follower_knows_what_is_committed_of_its_own_log(module: Any) -> None:
    desk = Desk(module).follows(2, high_watermark=8)
    assert desk.q.high_watermark == 8
    desk.fetched(50)
    assert desk.q.high_watermark == 10
    desk.q.fetched(Epoch(4), 99, 99, desk.now_ms)
    assert desk.q.high_watermark == 10, "another epoch's answer"


@rule
def observers_and_other_disks_never_count(module: Any) -> None:
    desk = Desk(module).leads(begins=10)
    desk.q.flushed(20)
    assert not desk.fetches(7, 20)
    assert not desk.fetches(2, 20, disk=disk(9))
    assert not desk.fetches(1, 20)
    assert (desk.q.high_watermark, desk.q.holds_lease(desk.now_ms)) == (0, False)
    assert {s.to for s in desk.due()} == {2, 3}, "nor are they told, and who is on another disk still is"


@rule
def a_voter_that_was_far_may_come_back_with_less(module: Any) -> None:
    desk = Desk(module, 5).leads(begins=10)
    desk.q.flushed(30)
    desk.fetches(2, 30)
    desk.fetches(2, 11)
    desk.fetches(3, 20)
    assert desk.q.high_watermark == 11


# ── mistakes ──────────────────────────────────────────────────────────────────────────────────────────


@rule
def who_is_meant_for_somebody_else_is_refused(module: Any) -> None:
    desk = Desk(module)
    with pytest.raises(InvalidVoterKey, match="controller 3 was asked, this is 1 with 0101"):
        desk.vote(voter_id=BrokerId(3))
    with pytest.raises(
        InvalidVoterKey, match=r"controller 1 with the disk 0909.* was asked, this is 1 with 0101"
    ):
        desk.vote(epoch=9, voter_directory_id=disk(9))
    assert desk.q.epoch == 4


@rule
def strangers_are_refused(module: Any) -> None:
    desk = Desk(module, named=False)
    for strange in (desk.vote, desk.begins, desk.ends):
        with pytest.raises(InvalidVoterKey, match=r"controller 7 is none of the voters \[1, 2, 3\]"):
            strange(7, 9)
    with pytest.raises(InvalidVoterKey):
        desk.q.heard_of(BrokerId(7), Epoch(9), desk.now_ms)
    assert desk.q.epoch == 4


@rule
def another_cluster_is_refused(module: Any) -> None:
    desk = Desk(module, cluster_id="ours")
    with pytest.raises(InconsistentClusterId, match="cluster ours, not theirs"):
        desk.vote(cluster_id="theirs")
    with pytest.raises(InconsistentClusterId):
        desk.begins(cluster_id="theirs")
    assert desk.grants(cluster_id="ours")
    assert Desk(module).grants(cluster_id="theirs"), "who knows of no cluster yet"


@rule
def a_configuration_with_other_voters_than_the_log_is_refused(module: Any) -> None:
    desk = Desk(module)
    for named in ({}, {BrokerId(1): disk(1)}, {BrokerId(n): disk(n) for n in (1, 2, 4)}):
        with pytest.raises(InconsistentMetadata, match=r"names the voters \[1, 2, 3\], the metadata log"):
            desk.q.directories = named
    desk.q.directories = None


@rule
def a_leader_begins_once(module: Any) -> None:
    with pytest.raises(AssertionError):
        Desk(module).q.began(10)
    with pytest.raises(AssertionError):
        Desk(module).leads(10).q.began(11)


@pytest.mark.parametrize("holds", rule, ids=lambda holds: holds.__name__)
def test_of_the_leader(holds: Rule) -> None:
    holds(quorum)
