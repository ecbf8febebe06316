"""Clusters in storms: whatever fails, nothing acknowledged is lost, and it all comes right again (R1)."""

import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.simulation.storms import Weather, storm
from tests.telling import Tell
from tidelog.testing.simulation.seeds import run_seed, run_seeds

ROOT = Path(__file__).resolve().parents[2]
FLOORS = {
    "acknowledged": 100_000,
    "elections": 1_000,
    "truncations": 300,
    "ISR shrinks": 1_000,
    "ISR expansions": 1_000,
    "fenced requests": 2_000,
    "deletions": 200,
    "killed": 500,
    "power cut": 100,
    "all power cut": 30,
    "stops compared with the disk": 100,
    "starts after clean": 100,
    "checkpoints harmed": 200,
    "paused": 100,
    "disk full": 200,
    "disk full at a start": 30,
    "low on space": 100,
    "refused for want of room": 200,
    "refused": 200,
    "fenced while alive": 40,
    "controller killed": 300,
    "controller paused": 50,
    "power of a controller cut": 150,
    "founding elections": 300,
    "activations": 600,
    "deposed": 100,
    "tails cut": 40,
    "images of brokers": 10_000,
    "starts after process": 500,
    "starts after host": 100,
    "recoveries that verified a tail": 500,
    "recoveries that cut a torn tail": 50,
}
"""What three hundred storms must have seen at least: a storm in which nothing happens proves nothing."""


def seeds_of_this_commit(count: int) -> range:
    """Other seeds for every commit, the same for the same."""
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    first = int(asked.stdout[:7] or "0", 16) % 1_000_000 * 1000
    return range(first, first + count)


def weathered(weather: Weather, seeds: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    for outcome in run_seeds(partial(storm, weather=weather), seeds):
        assert outcome.failure is None, outcome.failure
        counts.update(outcome.counts)
    return counts


def table(counts: Counter[str]) -> list[str]:
    """What the storms have seen, for CI's log."""
    return [f"{count:>12,}  {name}" for name, count in sorted(counts.items())]


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """What the storms of this run have seen so far."""
    return Counter()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_thirty_clusters_come_through_their_storms(part: int, seen: Counter[str]) -> None:
    seeds = seeds_of_this_commit(300)
    seen.update(weathered(Weather(seconds=20), seeds[part * 30 : part * 30 + 30]))
    seen["parts"] += 1


@pytest.mark.slow
def test_three_hundred_storms_have_seen_enough(seen: Counter[str], tell: Tell) -> None:
    if seen["parts"] == 10:  # else only some of the parts were asked for
        tell(table(seen))
        assert {name: seen[name] for name, floor in FLOORS.items() if seen[name] < floor} == {}


@pytest.mark.slow
def test_twenty_clusters_with_the_timeouts_that_users_get_do_so_too(tell: Tell) -> None:
    counts = weathered(Weather(seconds=60, defaults=True), seeds_of_this_commit(20))
    tell(table(counts))
    assert counts["acknowledged"] > 2_000


@pytest.mark.parametrize("seed", [0, 1])
def test_a_cluster_comes_through_a_short_storm(seed: int) -> None:
    outcome = run_seed(partial(storm, weather=Weather(seconds=4)), seed)
    assert outcome.failure is None, outcome.failure
    assert outcome.counts["acknowledged"] > 0
    assert outcome.counts["read"] > 0


def test_the_same_seed_is_the_same_storm() -> None:
    first, second = (run_seed(partial(storm, weather=Weather(seconds=4)), 3) for _ in range(2))
    assert (first.digest, first.counts) == (second.digest, second.counts)


@pytest.mark.slow
def test_a_storm_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from tests.simulation.storms import storm; from tidelog.testing.simulation.seeds import run_seed;"
        "print(run_seed(storm, 5).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"PYTHONPATH": f"{ROOT}/src:{ROOT}", "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1
