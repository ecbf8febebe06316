"""Each planted bug of the product's client makes a storm end badly that it writes and reads in."""

from functools import partial

import pytest

from tests.simulation.planted import Plant, caught
from tests.simulation.planted_in_clients import CAUGHT
from tests.simulation.storms import Weather, storm
from tidelog.testing.simulation.seeds import run_seed

OTHERS = tuple(range(100, 130))
"""Tried when the seeds that caught it last do not any more."""

SHORT = partial(storm, weather=Weather(seconds=8, controllers=1))


# A run that fails leaves tasks behind that were about to start: they are dropped with it.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("plant", CAUGHT, ids=lambda plant: plant.__name__)
def test_a_planted_bug_of_a_client_ends_a_storm_badly(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    outcomes = map(partial(run_seed, SHORT), (*CAUGHT[plant], *OTHERS))
    assert any(map(caught, outcomes)), f"{plant.__name__} survived"


@pytest.mark.slow
def test_without_it_these_storms_end_well() -> None:
    for seed in sorted({seeds[0] for seeds in CAUGHT.values()}):
        outcome = run_seed(SHORT, seed)
        assert outcome.failure is None, outcome.failure
        assert outcome.counts["acknowledged"] > 0
        assert outcome.counts["read"] > 0
