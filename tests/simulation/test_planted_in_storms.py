"""Each planted bug makes a storm end badly: the checks of the simulator can fail.

What random storms seldom meet is planted and caught in tests/broker/test_leadership.py: the proposed ISR, joining by
the high watermark alone, followers remembered from another epoch.
"""

from functools import partial

import pytest

from tests.simulation import planted
from tests.simulation.planted import Plant
from tests.simulation.storms import Storm, Weather
from tidelog.testing.simulation.seeds import run_seed
from tidelog.testing.simulation.world import World

SEEDS = (0, 3, 8, 7, 1, 2, 4)
"""In this order; with them each bug below is caught within a few seconds."""

CAUGHT: list[Plant] = [
    planted.high_watermark_without_enough_replicas,
    planted.acknowledged_before_replication,
    planted.no_divergence_check,
    planted.truncation_to_the_high_watermark,
    planted.high_watermark_above_the_end,
    planted.stale_answers_count,
    planted.roles_before_the_own_registration,
    planted.unclean_restarts_keep_their_standing,
    planted.nobody_is_kept_in_the_elr,
    planted.members_of_any_registration,
    planted.reads_above_the_high_watermark,
    planted.duplicates_are_appended,
    planted.the_recovered_tail_is_forgotten,
]


def short_storm(world: World) -> None:
    Storm(world, Weather(seconds=8)).run()


# A run that fails leaves tasks behind that were about to start: they are dropped with it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize("plant", CAUGHT, ids=lambda plant: plant.__name__)
def test_a_planted_bug_ends_a_storm_badly(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    outcomes = map(partial(run_seed, short_storm), SEEDS)
    assert any(outcome.failure for outcome in outcomes), f"{plant.__name__} survived"


@pytest.mark.slow
def test_without_a_planted_bug_these_storms_end_well() -> None:
    for seed in SEEDS:
        outcome = run_seed(short_storm, seed)
        assert outcome.failure is None, outcome.failure
