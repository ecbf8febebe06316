"""Clusters in storms: whatever fails, nothing acknowledged is lost, and it all comes right again."""

import pytest

from tests.simulation.storms import storm
from tidelog.testing.simulation.seeds import run_seed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_cluster_comes_through_a_storm(seed: int) -> None:
    outcome = run_seed(storm, seed)
    assert outcome.failure is None, outcome.failure
    assert outcome.counts["acknowledged"] > 0


@pytest.mark.slow
def test_the_same_seed_is_the_same_storm() -> None:
    first, second = run_seed(storm, 3), run_seed(storm, 3)
    assert (first.digest, first.counts) == (second.digest, second.counts)
