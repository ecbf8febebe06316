"""Each planted bug makes a storm end badly: the checks of the simulator can fail.

What random storms seldom meet is planted and caught in tests/broker/test_leadership.py: the proposed ISR, joining by
the high watermark alone, followers remembered from another epoch.
"""

from functools import partial

import pytest

from tests.simulation.planted import CAUGHT, Plant, caught
from tests.simulation.planted_in_controllers import OF_BROKERS
from tests.simulation.storms import Weather, storm
from tidelog.broker.partition import Partition
from tidelog.testing.simulation.seeds import run_seed

OTHERS = tuple(range(100, 160))
"""Tried when the seeds that caught it last do not any more."""

SHORT = partial(storm, weather=Weather(seconds=8, controllers=1))
OF_THREE = partial(storm, weather=Weather(seconds=8, controllers=3))


# A run that fails leaves tasks behind that were about to start: they are dropped with it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize("plant", CAUGHT, ids=lambda plant: plant.__name__)
def test_a_planted_bug_ends_a_storm_badly(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    outcomes = map(partial(run_seed, SHORT), (*CAUGHT[plant], *OTHERS))
    assert any(map(caught, outcomes)), f"{plant.__name__} survived"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize("plant", OF_BROKERS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_of_those_who_follow_ends_a_storm_over_brokers_badly(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(caught(run_seed(OF_THREE, seed)) for seed in OTHERS), f"{plant.__name__} survived"


@pytest.mark.slow
def test_without_a_planted_bug_these_storms_end_well() -> None:
    for seed in sorted({seeds[0] for seeds in CAUGHT.values() if seeds}):
        outcome = run_seed(SHORT, seed)
        assert outcome.failure is None, outcome.failure


def test_a_plant_that_the_product_has_outgrown_catches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever calls it fails, and that says nothing of the checks."""
    monkeypatch.setattr(Partition, "_follow", lambda: None)
    outcome = run_seed(SHORT, 1)
    assert outcome.failure is not None
    assert not caught(outcome)
