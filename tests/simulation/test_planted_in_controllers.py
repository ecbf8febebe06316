"""Each planted bug is found, by a storm over three controllers or by the story that it spoils."""

from collections.abc import Callable

import pytest

from tests.simulation import planted_in_controllers as planted
from tests.simulation import test_controllers as stories
from tests.simulation.metadata_storm import storm_of_three
from tests.simulation.planted import caught
from tests.simulation.planted_in_controllers import IN_STORMS, Plant
from tidelog.testing.simulation.seeds import run_seed
from tidelog.testing.simulation.world import World

SEEDS = (1, 8, 7, 23, 9, *range(10, 20))

SPOILED: list[tuple[Plant, Callable[[World], None]]] = [
    (planted.founded_by_a_majority, stories.test_the_first_election_needs_everybody_and_the_next_a_majority),
    (
        planted.leases_without_a_majority,
        stories.test_a_leader_that_is_cut_off_answers_nobody_and_another_one_leads,
    ),
    (
        planted.leading_whoever_listens,
        stories.test_a_leader_that_is_cut_off_answers_nobody_and_another_one_leads,
    ),
    (planted.stale_requests_are_served, stories.test_a_request_that_addresses_another_epoch_changes_nothing),
    (planted.a_new_disk_votes, stories.test_a_controller_with_a_new_disk_follows_and_does_not_vote),
    (
        planted.promises_forgotten_at_a_start,
        stories.test_a_controller_votes_once_in_an_epoch_whatever_becomes_of_its_process,
    ),
    (
        planted.two_votes_in_an_epoch,
        stories.test_a_controller_votes_once_in_an_epoch_whatever_becomes_of_its_process,
    ),
    (
        planted.cut_below_what_is_committed,
        stories.test_what_a_leader_that_was_cut_off_could_not_commit_is_cut_off,
    ),
    (
        planted.lost_leaderships_count_as_success,
        stories.test_what_a_leader_that_was_cut_off_could_not_commit_is_cut_off,
    ),
    (planted.votes_for_whoever_asks, stories.test_who_lacks_what_is_committed_does_not_lead),
    (planted.nobody_is_looked_for, stories.test_a_killed_broker_is_fenced_within_a_second),
    (planted.whoever_hangs_up_is_dead, stories.test_one_that_hangs_up_and_lives_is_not_fenced),
    (planted.stopped_without_a_word, stories.test_one_that_stops_hands_over_at_once),
    (planted.votes_against_a_living_leader, stories.test_one_that_is_not_heard_does_not_depose_the_leader),
]


# A run that fails leaves tasks behind that were about to start: they are dropped with it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize("plant", IN_STORMS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_ends_a_storm_badly(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(caught(run_seed(storm_of_three, seed)) for seed in SEEDS), f"{plant.__name__} survived"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("plant", "story"), SPOILED, ids=[plant.__name__ for plant, _ in SPOILED])
def test_a_planted_bug_spoils_its_story(
    plant: Plant, story: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(caught(run_seed(story, seed)) for seed in range(4)), f"{plant.__name__} survived"


@pytest.mark.slow
def test_without_a_planted_bug_these_stories_end_well() -> None:
    for story in {story for _, story in SPOILED}:
        outcome = run_seed(story, 0)
        assert outcome.failure is None, outcome.failure
