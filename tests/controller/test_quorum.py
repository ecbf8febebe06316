"""Who leads the metadata log (design 4.12; DECISIONS 1, 24; I-44, I-45, I-48)."""

from random import Random
from typing import Any

import pytest

from tests.controller.quorum_desk import (
    ELECTION_MS,
    EMPTY,
    FETCH_MS,
    FIRST_MS,
    Desk,
    Rule,
    Rules,
    disk,
)
from tidelog.controller import quorum
from tidelog.protocol.errors import (
    FencedLeaderEpoch,
    InconsistentMetadata,
    InvalidVoterKey,
)
from tidelog.protocol.messages import BeginEpoch, VoteReply
from tidelog.protocol.types import NO_BROKER, BrokerId, Epoch, Offset

rule = Rules()


# ── votes ─────────────────────────────────────────────────────────────────────────────────────────────


@rule
def a_voter_votes_once_in_an_epoch(module: Any) -> None:
    desk = Desk(module)
    assert desk.grants(2)
    assert not desk.grants(3)
    assert desk.grants(2), "the same answer, asked again"
    assert desk.grants(3, 6), "another epoch"


@rule
def also_after_a_restart(module: Any) -> None:
    desk = Desk(module)
    desk.grants(2)
    again = Desk(module, state=desk.q.state._asdict())
    assert (again.grants(3), again.grants(2)) == (False, True)


@rule
def a_vote_is_in_the_state_with_the_disk_it_is_for(module: Any) -> None:
    desk = Desk(module)
    desk.grants(3)
    assert desk.q.state == module.QuorumState(5, NO_BROKER, BrokerId(3), disk(3))


@rule
def a_vote_is_for_a_disk(module: Any) -> None:
    desk = Desk(module, named=False)
    assert desk.grants(2)
    assert not desk.grants(2, candidate_directory_id=disk(9))


@rule
def who_stands_has_voted_for_itself(module: Any) -> None:
    desk = Desk(module)
    desk.stands()
    assert desk.q.state == module.QuorumState(5, NO_BROKER, BrokerId(1), disk(1))
    assert not desk.grants(2)


@rule
def an_epoch_that_has_a_leader_needs_no_votes(module: Any) -> None:
    assert not Desk(module).follows(2).grants(3)


@rule
def a_log_that_lacks_something_does_not_win(module: Any) -> None:
    for log in [(4, 9), (3, 99), (-1, 0)]:
        assert not Desk(module).grants(log=log)
        assert not Desk(module).would_grant(log=log)
    for log in [(4, 10), (4, 11), (5, 0)]:
        assert Desk(module).grants(log=log)


@rule
def an_old_epoch_is_not_voted_for(module: Any) -> None:
    reply = Desk(module).vote(epoch=3)
    assert (reply.granted, reply.epoch, reply.error) == (False, 4, 0)


@rule
def a_newer_epoch_is_entered_also_without_a_vote(module: Any) -> None:
    desk = Desk(module).follows(2)
    reply = desk.vote(3, 7, log=EMPTY)
    assert (reply.granted, reply.epoch, desk.q.leader_id, desk.role) == (False, 7, NO_BROKER, "Unattached")


@rule
def a_newer_epoch_does_not_put_an_election_off(module: Any) -> None:
    desk = Desk(module)
    deadline = desk.q.deadline_ms()
    for epoch in (7, 8, 9):
        desk.vote(3, epoch, log=EMPTY)
    assert desk.q.deadline_ms() == deadline


@rule
def epochs_never_go_back(module: Any) -> None:
    desk = Desk(module, state={"epoch": 9})
    desk.vote(epoch=5)
    desk.q.heard_of(BrokerId(2), Epoch(5), desk.now_ms)
    for late in (desk.begins, desk.ends):
        with pytest.raises(FencedLeaderEpoch, match="epoch 9 has begun, 5 is over"):
            late()
    assert (desk.q.epoch, desk.q.leader_id) == (9, NO_BROKER)


# ── asking first ──────────────────────────────────────────────────────────────────────────────────────


@rule
def it_asks_before_it_stands(module: Any) -> None:
    desk = Desk(module)
    asked = desk.due()
    assert [(s.to, s.request.pre_vote, s.request.epoch) for s in asked] == [(2, True, 4), (3, True, 4)]
    assert (desk.q.state, desk.role) == (module.QuorumState(4), "Prospective")


@rule
def to_ask_costs_nobody_a_vote(module: Any) -> None:
    desk = Desk(module)
    assert desk.would_grant(2)
    assert desk.would_grant(3)
    assert desk.q.state == module.QuorumState(4)


@rule
def who_leads_does_not_favour_anybody(module: Any) -> None:
    desk = Desk(module).leads()
    assert not desk.would_grant(log=(9, 99))
    assert desk.q.leads


@rule
def who_hears_the_leader_does_not_favour_anybody(module: Any) -> None:
    desk = Desk(module).follows(2)
    desk.now_ms += FETCH_MS - 1
    assert not desk.would_grant(3)
    desk.now_ms += 1
    assert desk.would_grant(3)


@rule
def who_has_never_fetched_favours(module: Any) -> None:
    desk = Desk(module)
    desk.begins(2)
    assert desk.would_grant(3)


@rule
def who_knows_that_the_leader_is_gone_favours(module: Any) -> None:
    desk = Desk(module).follows(2)
    desk.q.leader_is_gone(desk.now_ms)
    assert desk.would_grant(3)
    assert desk.q.leader_id == NO_BROKER


@rule
def who_is_not_favoured_learns_who_leads(module: Any) -> None:
    desk = Desk(module)
    asked = desk.due()
    assert desk.replies(asked, 2, granted=False, leader_id=BrokerId(3)) == []
    assert (desk.role, desk.q.leader_id, desk.q.state.epoch) == ("Follower", 3, 4)


@rule
def a_majority_that_misses_the_leader_is_not_kept_from_electing_by_one_that_hears_it(module: Any) -> None:
    desk = Desk(module, 5).follows(2)
    asked = desk.missing()
    assert desk.replies(asked, 3, granted=False, leader_id=BrokerId(2)) == []
    assert [s.request.pre_vote for s in desk.replies(asked, 4, 5)] == [False] * 4


@rule
def who_is_refused_by_a_majority_follows_who_they_say_leads(module: Any) -> None:
    desk = Desk(module).follows(2)
    asked = desk.missing()
    desk.replies(asked, 3, granted=False, leader_id=BrokerId(2))
    assert desk.role == "Prospective"
    desk.replies(asked, 2, granted=False)
    assert (desk.role, desk.q.deadline_ms()) == ("Follower", desk.now_ms + FETCH_MS)
    assert desk.would_grant(3), "it has not fetched again"


@rule
def who_hears_the_leader_itself_follows_it_again(module: Any) -> None:
    desk = Desk(module, 5).follows(2)
    desk.replies(desk.missing(), 2, granted=False, leader_id=BrokerId(2))
    assert (desk.role, desk.q.leader_id) == ("Follower", 2)


@rule
def a_leader_that_has_begun_anew_does_not_follow_itself(module: Any) -> None:
    desk = Desk(module, state={"epoch": 5, "leader_id": BrokerId(1)})
    assert desk.role == "Unattached"
    desk.replies(desk.due(), 2, 3, granted=False, leader_id=BrokerId(1))
    assert desk.role == "Unattached"


@rule
def who_is_not_favoured_waits_longer_each_time_and_stays_in_its_epoch(module: Any) -> None:
    desk = Desk(module)
    for most_ms in (50, 100, 200, 400, 800, 1000, 1000):
        desk.replies(desk.due(), 2, 3, granted=False)
        assert desk.role == "Unattached"
        assert desk.now_ms < desk.q.deadline_ms() <= desk.now_ms + most_ms
    assert desk.q.epoch == 4


@rule
def who_is_not_answered_gives_up_after_an_election_time_out(module: Any) -> None:
    desk = Desk(module)
    desk.due()
    began = desk.now_ms
    assert desk.due() == []
    assert began + ELECTION_MS <= desk.now_ms <= began + 2 * ELECTION_MS
    assert desk.role == "Unattached"


@rule
def two_who_stand_at_once_do_not_wait_for_one_that_is_gone(module: Any) -> None:
    """Each has its own vote: the third one's would decide, and it will not come."""
    desk = Desk(module)
    votes = desk.stands(2)
    desk.replies(votes, 2, granted=False)
    assert desk.role == "Candidate"
    unheard = next(step for step in votes if step.to == 3)
    assert desk.q.on_vote_unheard(unheard.request, desk.now_ms, desk.log) == []
    assert desk.role == "Unattached"
    assert desk.q.deadline_ms() <= desk.now_ms + module.BACK_OFF_MS


@rule
def who_knows_that_the_leader_is_gone_asks_those_again_who_have_not_noticed(module: Any) -> None:
    desk = Desk(module).follows(2)
    desk.q.leader_is_gone(desk.now_ms)
    asked = desk.due()
    desk.replies(asked, 3, granted=False, leader_id=BrokerId(2))
    unheard = next(step for step in asked if step.to == 2)
    desk.q.on_vote_unheard(unheard.request, desk.now_ms, desk.log)
    assert desk.role == "Unattached"
    assert desk.q.deadline_ms() <= desk.now_ms + module.BACK_OFF_MS


@rule
def a_candidate_that_is_not_answered_asks_again_before_another_epoch(module: Any) -> None:
    desk = Desk(module)
    desk.stands()
    desk.due()
    assert [s.request.pre_vote for s in desk.due()] == [True, True]
    assert desk.q.epoch == 5


@rule
def answers_to_another_question_do_not_count(module: Any) -> None:
    desk = Desk(module)
    asked = desk.due()
    desk.vote(3, 6, log=EMPTY)
    desk.due()
    assert desk.replies(asked, 2, 3) == [], "the question was about another epoch"
    assert desk.role == "Prospective"


@rule
def a_vote_that_comes_late_is_no_favour(module: Any) -> None:
    desk = Desk(module)
    votes = desk.stands()
    desk.due()
    desk.due()
    assert (desk.role, desk.q.epoch, desk.replies(votes, 2, 3)) == ("Prospective", 5, [])


# ── elections ─────────────────────────────────────────────────────────────────────────────────────────


@rule
def a_majority_elects(module: Any) -> None:
    desk = Desk(module, 5)
    votes = desk.stands(2, 3)
    assert [(s.to, s.request.epoch, s.request.pre_vote) for s in votes] == [
        (v, 5, False) for v in (2, 3, 4, 5)
    ]
    assert desk.replies(votes, 2) == []
    won = desk.replies(votes, 3)
    assert won[0] == module.Lead(5, (1, 2, 3), None)
    assert [(s.to, type(s.request)) for s in won[1:]] == [(v, BeginEpoch) for v in (2, 3, 4, 5)]
    assert (desk.q.leader_id, desk.q.state.leader_id) == (1, 1)


@rule
def nobody_is_counted_twice(module: Any) -> None:
    desk = Desk(module, 5)
    votes = desk.stands()
    assert desk.replies(votes, 2) + desk.replies(votes, 2) + desk.replies(votes, 2) == []


@rule
def a_refusal_is_no_vote(module: Any) -> None:
    desk = Desk(module, 5)
    votes = desk.stands()
    assert desk.replies(votes, 2, 3, error=InvalidVoterKey.code) == []
    assert desk.replies(votes, 4, 5, granted=False) == []
    assert desk.role == "Unattached"


@rule
def voters_are_asked_with_their_disks(module: Any) -> None:
    desk = Desk(module)
    assert [s.request.voter_directory_id for s in desk.due()] == [disk(2), disk(3)]
    assert [s.request.voter_directory_id for s in Desk(module, named=False).due()] == [None, None]


@rule
def the_first_election_needs_every_voter_and_names_the_disks(module: Any) -> None:
    desk = Desk(module, named=False, state={})
    assert desk.stands(2) == []
    assert desk.role == "Prospective"
    desk = Desk(module, named=False, state={})
    votes = desk.stands()
    assert desk.replies(votes, 2) == []
    won = desk.replies(votes, 3)
    assert won[0] == module.Lead(1, (1, 2, 3), ((1, disk(1)), (2, disk(2)), (3, disk(3))))


@rule
def in_the_first_election_one_refusal_is_enough(module: Any) -> None:
    desk = Desk(module, named=False)
    desk.replies(desk.due(), 2, granted=False)
    assert desk.role == "Unattached"


@rule
def another_disk_does_not_vote(module: Any) -> None:
    desk = Desk(module, disk=disk(9))
    assert (desk.q.is_voter, desk.q.deadline_ms(), desk.tick(10**6)) == (False, None, [])
    assert not desk.grants(2)
    assert not desk.would_grant(2)


@rule
def another_disk_is_not_voted_for_and_enters_no_epoch(module: Any) -> None:
    desk = Desk(module).follows(2)
    reply = desk.vote(3, 9, candidate_directory_id=disk(9))
    assert (reply.error, reply.granted, desk.q.epoch) == (InvalidVoterKey.code, False, 5)
    assert (reply.epoch, reply.leader_id) == (5, 2), (
        "it learns who leads, since the leader knows its old disk"
    )


@rule
def another_disk_learns_who_leads_from_its_refusal(module: Any) -> None:
    desk = Desk(module, named=False, state={})
    refusal = VoteReply(InvalidVoterKey.code, None, Epoch(7), BrokerId(3))
    asked = desk.due()
    assert desk.q.on_vote_reply(asked[0].request, refusal, desk.now_ms, desk.log) == []
    assert (desk.role, desk.q.leader_id, desk.q.epoch) == ("Follower", 3, 7)


@rule
def a_quorum_of_one_elects_itself_at_once_and_never_resigns(module: Any) -> None:
    desk = Desk(module, 1, named=False, state={}, now_ms=77)
    assert desk.q.deadline_ms() == 77
    assert desk.tick() == [module.Lead(1, (1,), ((1, disk(1)),))]
    desk.q.directories = {BrokerId(1): disk(1)}
    assert (desk.q.deadline_ms(), desk.tick(10**9), desk.q.leads) == (None, [], True)
    assert desk.q.holds_lease(desk.now_ms)


@rule
def the_first_election_is_not_waited_for(module: Any) -> None:
    for now_ms in (0, 5000):
        assert now_ms <= Desk(module, now_ms=now_ms).q.deadline_ms() <= now_ms + FIRST_MS


@rule
def who_has_led_or_stood_before_a_restart_needs_another_epoch(module: Any) -> None:
    for leader in (NO_BROKER, BrokerId(1)):
        kept = {"epoch": 5, "leader_id": leader, "voted_id": BrokerId(1), "voted_directory_id": disk(1)}
        desk = Desk(module, state=kept)
        assert (desk.role, desk.q.leader_id) == ("Unattached", NO_BROKER)
        desk.q.heard_of(BrokerId(1), Epoch(5), desk.now_ms)
        assert not desk.q.leads, "others may believe so still"
        assert desk.wins()[0].epoch == 6


# ── who leads ─────────────────────────────────────────────────────────────────────────────────────────


@rule
def who_leads_is_followed_and_remembered(module: Any) -> None:
    desk = Desk(module)
    reply = desk.begins(2)
    assert (reply.error, reply.epoch, reply.leader_id, desk.role) == (0, 5, 2, "Follower")
    assert desk.q.state == module.QuorumState(5, BrokerId(2))


@rule
def a_vote_is_kept_when_the_epoch_has_its_leader(module: Any) -> None:
    desk = Desk(module)
    desk.grants(3)
    desk.begins(2)
    assert desk.q.state == module.QuorumState(5, BrokerId(2), BrokerId(3), disk(3))


@rule
def a_silent_leader_is_missed_after_the_fetch_time_out(module: Any) -> None:
    desk = Desk(module).follows(2)
    desk.now_ms += 700
    desk.fetched()
    assert desk.q.deadline_ms() == desk.now_ms + FETCH_MS
    assert [s.request.pre_vote for s in desk.missing()] == [True, True]


@rule
def those_who_miss_a_silent_leader_do_not_all_ask_at_once(module: Any) -> None:
    waits = set()
    for seed in range(5):
        desk = Desk(module, rng=Random(seed)).follows(2)
        assert desk.due() == []
        waits.add(desk.q.deadline_ms() - desk.now_ms)
        assert desk.would_grant(3), "whoever asks first is favoured"
    assert len(waits) == 5
    assert all(0 <= wait <= module.FIRST_ELECTION_MS for wait in waits)


@rule
def hearsay_does_not_bring_back_a_leader_that_was_missed(module: Any) -> None:
    desk = Desk(module).follows(2)
    desk.due()
    desk.q.heard_of(BrokerId(2), 5, desk.now_ms)
    assert desk.role == "Unattached"
    desk.due()
    desk.q.heard_of(BrokerId(2), 5, desk.now_ms)
    assert desk.role == "Prospective"
    desk.begins(2)
    assert desk.role == "Follower"


@rule
def to_be_told_again_is_not_to_be_answered(module: Any) -> None:
    desk = Desk(module)
    desk.begins(2)
    desk.now_ms += FETCH_MS - 1
    desk.begins(2)
    assert desk.q.deadline_ms() == desk.now_ms + 1


@rule
def a_leader_that_is_gone_is_not_waited_for(module: Any) -> None:
    desk = Desk(module).follows(2)
    desk.q.leader_is_gone(desk.now_ms)
    assert desk.now_ms <= desk.q.deadline_ms() <= desk.now_ms + FIRST_MS


@rule
def hearsay_does_not_bring_back_a_leader_that_is_gone(module: Any) -> None:
    """Who has not noticed yet tells everybody; a controller that believes it waits for a whole fetch time-out."""
    desk = Desk(module).follows(2)
    epoch = desk.q.epoch
    desk.q.leader_is_gone(desk.now_ms)
    desk.q.heard_of(BrokerId(2), epoch, desk.now_ms)
    assert (desk.role, desk.q.leader_id) == ("Unattached", NO_BROKER)


@rule
def a_leader_that_was_thought_gone_is_followed_when_it_says_so_itself(module: Any) -> None:
    desk = Desk(module).follows(2)
    epoch = desk.q.epoch
    desk.q.leader_is_gone(desk.now_ms)
    desk.q.heard_of(BrokerId(2), epoch, desk.now_ms, from_itself=True)
    assert (desk.role, desk.q.leader_id) == ("Follower", 2)
    desk.q.fetched(epoch, Offset(0), Offset(0), desk.now_ms)
    assert not desk.would_grant(3)


@rule
def a_newer_leader_is_followed(module: Any) -> None:
    for desk in (Desk(module).follows(2), Desk(module).leads()):
        desk.begins(3, 8)
        assert (desk.role, desk.q.leader_id, desk.q.epoch) == ("Follower", 3, 8)
        assert desk.q.state.voted_id == NO_BROKER


@rule
def an_epoch_with_two_leaders_is_refused_loudly(module: Any) -> None:
    message = "controllers 2 and 3 are both said to lead the quorum in epoch 5"
    for claims in (Desk.begins, Desk.ends):
        desk = Desk(module).follows(2)
        with pytest.raises(InconsistentMetadata, match=message):
            claims(desk, 3)
        assert desk.q.leader_id == 2


@rule
def a_candidate_follows_who_has_won(module: Any) -> None:
    desk = Desk(module)
    desk.stands()
    desk.begins(3)
    assert (desk.role, desk.q.state.leader_id, desk.q.state.voted_id) == ("Follower", 3, 1)


@rule
def the_first_successor_asks_at_once_the_others_later(module: Any) -> None:
    deadlines = []
    for successors in ((1, 3), (3, 1), (3, 4, 1)):
        desk = Desk(module, 5).follows(2)
        assert desk.ends(2, 5, *successors).error == 0
        deadlines.append(desk.q.deadline_ms() - desk.now_ms)
    first, second, third = deadlines
    assert first == 0
    assert FIRST_MS / 2 <= second <= FIRST_MS <= third <= 2 * FIRST_MS


@rule
def who_has_not_heard_of_a_resignation_does_not_undo_it(module: Any) -> None:
    desk = Desk(module).follows(2)
    desk.ends(2, 5, 1, 3)
    asked = desk.due()
    desk.replies(asked, 3, granted=False, leader_id=BrokerId(2))
    assert desk.role == "Prospective"
    assert desk.replies(asked, 2) != []
    desk = Desk(module).follows(2)
    desk.ends(2, 5, 3, 1)
    desk.begins(2)
    assert (desk.role, desk.q.leader_id) == ("Unattached", NO_BROKER)


@rule
def who_resigns_names_the_most_complete_first(module: Any) -> None:
    desk = Desk(module, 5).leads()
    for voter, offset in ((2, 3), (3, 10), (4, 7)):
        desk.fetches(voter, offset)
    steps = desk.q.resign(desk.now_ms)
    assert [(s.to, s.request.successors) for s in steps] == [(v, (3, 4, 2, 5)) for v in (2, 3, 4, 5)]
    assert (desk.q.leads, desk.q.leader_id, desk.role) == (False, NO_BROKER, "Unattached")
    assert desk.q.resign(desk.now_ms) == []


@pytest.mark.parametrize("holds", rule, ids=lambda holds: holds.__name__)
def test_of_elections(holds: Rule) -> None:
    holds(quorum)
