"""Clusters in storms: whatever fails, nothing acknowledged is lost, and it all comes right again (R1)."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.simulation.rotting import rots, storm_that_may_rot
from tests.simulation.storms import Weather, storm
from tests.telling import Tell
from tidelog.storage.checkpoints import HIGH_WATERMARKS, LEADER_EPOCHS, LOG_STARTS, RECOVERY_POINTS
from tidelog.testing.simulation.seeds import Outcome, run_seed, run_seeds, workers

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
    "refused for want of room": 50,
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
    "read": 100_000,
    "quorum elections": 600,
    "all killed": 1,
    "stopped in order": 1,
    "cut": 1,
    "cut one way": 1,
    "leader cut off": 1,
    "controller cut off": 1,
    "disk of a controller full": 1,
    "harmed: stale": 5,
    **{f"harmed: {how} {HIGH_WATERMARKS}": 1 for how in ("missing", "flipped")},
    **{f"harmed: {how} {LEADER_EPOCHS}": 1 for how in ("missing", "flipped")},
    **{f"harmed: {how} {RECOVERY_POINTS}": 1 for how in ("missing", "flipped")},
    **{f"harmed: {how} {LOG_STARTS}": 1 for how in ("missing", "flipped")},
    "connections reset": 500,
    "links slow": 100,
    "halted": 30,
    "disks that lose pages": 100,
}
"""What three hundred storms must have seen at least: a storm in which nothing happens proves nothing."""

FLOORS_OF_ROT = {
    "bits flipped": 150,
    "bits flipped at the leader": 50,
    "logs mended": 120,
    "acknowledged": 50_000,
    "killed": 50,
}
"""What those sixty of them must have seen in which disks rot."""

RARE = {name for name in FLOORS if name.startswith("harmed: ")}
"""What twenty storms with the timeouts that users get need not have seen: other than `checkpoints harmed`, not each kind."""

PARTS = 10
EACH = 30


@dataclass(slots=True)
class Seen:
    """What the storms of this run have seen so far."""

    counts: Counter[str] = field(default_factory=Counter)
    rotting: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0
    parts: int = 0

    def add(self, outcome: Outcome) -> None:
        assert outcome.failure is None, outcome.failure
        self.counts.update(outcome.counts)
        # What is older than the checkpoint that is there is seldom at hand, so all kinds are counted together.
        self.counts["harmed: stale"] += sum(
            count for name, count in outcome.counts.items() if name.startswith("harmed: stale ")
        )
        self.cpu_s += outcome.cpu_s
        if rots(outcome.seed):
            self.rotting.update(outcome.counts)

    def table(self) -> list[str]:
        """For CI's log."""
        rows = [f"{count:>12,}  {name}" for name, count in sorted(self.counts.items())]
        return [*rows, f"{self.cpu_s:>12,.0f}  seconds of CPU"]


def missed(counts: Counter[str], floors: dict[str, int]) -> dict[str, int]:
    """What has happened less often than it must."""
    return {name: counts[name] for name, floor in floors.items() if counts[name] < floor}


def seeds_of_this_commit(count: int) -> range:
    """Other seeds for every commit, the same for the same."""
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    first = int(asked.stdout[:7] or "0", 16) % 1_000_000 * 1000
    return range(first, first + count)


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen()


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    """One for all parts: a process takes a second to start."""
    with workers() as executor:
        yield executor


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_thirty_clusters_come_through_their_storms(part: int, seen: Seen, pool: Executor) -> None:
    """In every fifth of them disks rot (ADR 105)."""
    scenario = partial(storm_that_may_rot, weather=Weather(seconds=20))
    seeds = seeds_of_this_commit(PARTS * EACH)[part * EACH : part * EACH + EACH]
    for outcome in run_seeds(scenario, seeds, pool=pool):
        seen.add(outcome)
    seen.parts += 1


@pytest.mark.slow
def test_three_hundred_storms_have_seen_enough(
    seen: Seen, tell: Tell, request: pytest.FixtureRequest
) -> None:
    asked = request.config.option
    if seen.parts < PARTS and (asked.keyword or asked.lf):
        pytest.skip("only some of the parts were asked for")
    assert seen.parts == PARTS, "a part has failed, or another process has run it"
    tell(seen.table())
    assert missed(seen.counts, FLOORS) == {}
    assert missed(seen.rotting, FLOORS_OF_ROT) == {}


@pytest.mark.slow
def test_twenty_clusters_with_the_timeouts_that_users_get_do_so_too(tell: Tell, pool: Executor) -> None:
    seen = Seen()
    scenario = partial(storm, weather=Weather(seconds=60, defaults=True))
    for outcome in run_seeds(scenario, seeds_of_this_commit(20), pool=pool):
        seen.add(outcome)
    tell(seen.table())
    assert (
        missed(seen.counts, {name: 1 for name in FLOORS if name not in RARE} | {"acknowledged": 2000}) == {}
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_a_cluster_comes_through_a_short_storm(seed: int) -> None:
    outcome = run_seed(partial(storm, weather=Weather(seconds=4)), seed)
    assert outcome.failure is None, outcome.failure
    assert outcome.counts["acknowledged"] > 0
    assert outcome.counts["read"] > 0


@pytest.mark.slow
def test_the_same_seed_is_the_same_storm() -> None:
    first, second = (run_seed(partial(storm, weather=Weather(seconds=4)), 3) for _ in range(2))
    assert (first.digest, first.counts) == (second.digest, second.counts)


def printed(program: str, **environment: str) -> str:
    """By that program, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}/src:{ROOT}", **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.slow
def test_a_storm_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from tests.simulation.storms import storm; from tidelog.testing.simulation.seeds import run_seed;"
        "outcome = run_seed(storm, 5); print(outcome.digest); assert outcome.failure is None, outcome.failure"
    )
    digests = {printed(program, PYTHONHASHSEED=hash_seed) for hash_seed in ("1", "2")}
    assert len(digests) == 1


@pytest.mark.slow
def test_a_seed_leaves_nothing_of_its_world_behind() -> None:
    """Else processes that run hundreds of them grow by some MB with each."""
    # In one that has run nothing else: what tests before this one have left would count as well.
    program = (
        "import gc; from functools import partial; from tests.simulation.storms import Weather, storm;"
        "from tidelog.testing.simulation.seeds import run_seed; gc.collect(); gc.disable();"
        "outcome = run_seed(partial(storm, weather=Weather(seconds=2)), 4);"
        "assert outcome.failure is None, outcome.failure; print(gc.collect())"
    )
    assert int(printed(program)) < 100
