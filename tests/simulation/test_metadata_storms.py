"""What controllers have promised survives them, and everybody who follows sees one history (I-44 to I-51, I-67)."""

from collections import Counter

import pytest

from tests.simulation.metadata_storm import FAULTS, metadata_storm
from tidelog.testing.simulation.seeds import run_seed, run_seeds

SEEDS = range(20)

HAPPENED = (
    *(
        "lives",
        "quorum elections",
        "founding elections",
        "activations",
        "deposed",
        "tails cut",
        "folds",
        "snapshots",
        "snapshots fetched",
    ),
    *("disks replaced", "fenced when it asked", "quorums of 1", "quorums of 3", "quorums of 5"),
)
"""What must not be missing from all seeds together."""


@pytest.mark.slow
def test_a_storm_takes_nothing_that_was_promised() -> None:
    counts: Counter[str] = Counter()
    for outcome in run_seeds(metadata_storm, SEEDS):
        assert outcome.failure is None, outcome.failure
        counts.update(outcome.counts)
    missing = [what for what in (*HAPPENED, *(fault.__name__ for fault in FAULTS)) if not counts[what]]
    assert not missing, (missing, counts)
    assert counts["quorum elections"] > 3 * len(SEEDS), counts
    assert min(counts["promised"], counts["blocks"], counts["lives"]) > 8 * len(SEEDS), counts


@pytest.mark.slow
def test_one_seed_is_one_history() -> None:
    assert run_seed(metadata_storm, 3) == run_seed(metadata_storm, 3)
