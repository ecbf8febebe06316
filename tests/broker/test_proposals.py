"""A leader's proposals to the controller, and what each answer means (design 2.10)."""

import pytest

from tests.broker.leaders import LAG_MAX_MS, Led
from tests.broker.test_leadership import outside
from tidelog.broker.leadership import RETRY_MS
from tidelog.protocol import errors
from tidelog.protocol.types import NO_EPOCH, BrokerId

TWO, THREE = BrokerId(2), BrokerId(3)


def test_nothing_is_sent_while_nothing_is_pending() -> None:
    assert Led().leader.alteration() is None


def test_every_sending_has_a_number_of_its_own() -> None:
    """D3: retries included, so that a copy of a refused one is known when it comes late."""
    led = outside()
    led.fetch(3, 10)
    sent = [led.send() for _ in range(3)]
    assert [one.alter_seq for one in sent] == [1, 2, 3]
    assert {(one.leader_epoch, one.partition_epoch) for one in sent} == {(5, 0)}


def test_a_proposal_names_the_registration_that_each_member_fetched_under() -> None:
    """KIP-903: mine for myself, -1 for a member that has not fetched in this epoch."""
    led = outside()
    led.fetch(3, 10)
    assert led.send().members == ((1, 10), (2, NO_EPOCH), (3, 30))


@pytest.mark.parametrize("error", [errors.IneligibleReplica, errors.OperationNotAttempted])
def test_a_refusal_that_no_replay_will_follow_ends_the_proposal(error: type[Exception]) -> None:
    led = outside()
    led.fetch(3, 10)
    led.refused(led.send(), error)
    assert led.proposed is None


@pytest.mark.parametrize(
    "error",
    [
        errors.FencedLeaderEpoch,
        errors.InvalidUpdateVersion,
        errors.NewLeaderElected,
        errors.UnknownTopicId,
        errors.InvalidRequest,
        errors.StaleBrokerEpoch,
    ],
)
def test_after_any_other_refusal_the_strict_set_stays_and_nothing_is_sent(error: type[Exception]) -> None:
    """A newer state is on its way."""
    led = outside()
    led.fetch(3, 10)
    led.refused(led.send(), error)
    assert (led.proposed, led.leader.alteration()) == ((1, 2, 3), None)


@pytest.mark.parametrize(
    "error",
    [errors.NotController, errors.RequestTimedOut, errors.ConnectionFailed, errors.UnknownServerError],
)
def test_after_an_unknown_outcome_it_is_sent_again_under_a_new_number(error: type[Exception]) -> None:
    """I-16: the strict set holds meanwhile, for it may have been applied."""
    led = outside()
    led.fetch(3, 10)
    led.refused(led.send(), error)
    assert led.leader.maximal_isr == {1, TWO, THREE}
    assert led.send().alter_seq == 2


def test_after_success_the_proposal_is_pending_until_the_metadata_log_brings_it() -> None:
    """D2: an answer never installs an ISR."""
    led = outside()
    led.fetch(3, 10)
    led.leader.accepted(led.send())
    assert (led.leader.state.isr, led.proposed, led.leader.alteration()) == ((1, 2), (1, 2, 3), None)
    led.adopt(isr=[1, 2, 3])
    assert (led.leader.state.isr, led.proposed) == ((1, 2, 3), None)


def test_what_was_accepted_stays_so_whatever_is_said_of_it_later() -> None:
    led = outside()
    led.fetch(3, 10)
    sent = led.send()
    led.leader.accepted(sent)
    led.refused(sent, errors.IneligibleReplica)
    assert led.proposed == (1, 2, 3)


def test_a_refusal_of_an_older_sending_leaves_the_proposal() -> None:
    """D3: the newer one may have been applied."""
    led = outside()
    led.fetch(3, 10)
    first, _second = led.send(), led.send()
    led.refused(first, errors.IneligibleReplica)
    assert led.proposed == (1, 2, 3)


def test_a_refusal_of_what_was_proposed_before_the_state_changed_leaves_the_new_proposal() -> None:
    led = outside()
    led.fetch(3, 10)
    old = led.send()
    led.adopt(min_isr=1)
    assert led.proposed == (1, 2, 3)
    led.refused(old, errors.IneligibleReplica)
    assert led.proposed == (1, 2, 3)


def test_an_answer_about_an_earlier_proposal_says_nothing_of_one_that_was_not_sent_yet() -> None:
    led = outside()
    led.fetch(3, 10)
    first = led.send()
    led.refused(first, errors.IneligibleReplica)
    led.image_changed()
    led.refused(first, errors.InvalidUpdateVersion)
    led.leader.accepted(first)
    assert led.send().alter_seq == 2


def test_any_newer_state_ends_what_is_pending() -> None:
    led = Led(end=10)
    led.at(LAG_MAX_MS + 1).tick()
    assert led.proposed == (1,)
    led.adopt(min_isr=1)
    assert led.proposed is None


def test_a_refused_proposal_is_not_repeated_at_once() -> None:
    led = outside()
    led.fetch(3, 10)
    led.refused(led.send(), errors.IneligibleReplica)
    led.at(RETRY_MS - 1).fetch(3, 10)
    assert led.proposed is None
    led.at(RETRY_MS).fetch(3, 10)
    assert led.proposed == (1, 2, 3)


def test_a_refused_proposal_is_repeated_when_the_image_changes() -> None:
    led = outside()
    led.fetch(3, 10)
    led.refused(led.send(), errors.IneligibleReplica)
    led.image_changed()
    assert led.proposed == (1, 2, 3)


# ── unclean elections ─────────────────────────────────────────────────────────────────────────────────


def test_the_leader_of_an_unclean_election_says_that_it_is_up() -> None:
    """4.8: with the ISR as it is; whoever waits for the high watermark waits no longer by it."""
    led = Led(isr=(1,), min_isr=1, recovering=True, end=10)
    led.leader.tick(0)
    sent = led.send()
    assert (sent.recovered, [member for member, _ in sent.members]) == (True, [1])
    assert led.leader.maximal_isr == {1}
    led.adopt(recovering=False)
    led.leader.tick(LAG_MAX_MS)
    assert led.leader.alteration() is None


def test_a_follower_that_joins_after_an_unclean_election_brings_the_confirmation_with_it() -> None:
    led = Led(isr=(1,), min_isr=1, recovering=True, end=10)
    led.fetch(3, 10)
    sent = led.send()
    assert (sent.recovered, [member for member, _ in sent.members]) == (True, [1, 3])


def test_without_an_unclean_election_nothing_is_confirmed() -> None:
    led = outside()
    led.fetch(3, 10)
    assert not led.send().recovered
