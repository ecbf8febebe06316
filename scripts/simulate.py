"""Simulated clusters in storms: one seed to look at, or many to believe in.

    scripts/simulate --seed 7              one storm again, with what happened in columns
    scripts/simulate --seeds 1000          a thousand of them on all cores; failing seeds are named
    scripts/simulate --until 10000          go on from where the kept runs of this code ended, chunk by chunk

They are the storms of tests/simulation/test_storms.py: a seed that fails there fails here, and in every fifth disks rot.
A kept run counts only while every file that it ran is unchanged; `--check` tells which still do.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from scripts.benches.evidence import code, keep, machine

from tests.simulation.invariants import COLUMNS
from tests.simulation.planted import CAUGHT, PLANTS, caught
from tests.simulation.rotting import storm_that_may_rot
from tests.simulation.storms import Weather, storm
from tidelog.testing.simulation.seeds import Outcome, run_seed, run_seeds, workers
from tidelog.testing.simulation.trace import Event
from tidelog.testing.simulation.world import World

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "docs" / "evidence" / "simulation.json"
MODULES = ("tests.simulation.rotting", "tidelog.testing.simulation.seeds")
CHUNK = 40
"""So much at most is lost when a run is interrupted."""
_ROW = "{:>12}  {:<4} {:<26} {:<12} {:>5} {:<9} {:>9} {:>9} {:>9}"
SHORT = partial(storm, weather=Weather(seconds=8, controllers=1))


def main() -> int:
    """Run what was asked for; 0 if all went well."""
    asked = _arguments()
    weather = Weather(seconds=asked.seconds, defaults=asked.defaults)
    if asked.check:
        return check()
    if asked.mutants:
        return mutants(asked.first or int(time.time()), asked.seeds)
    if asked.seed is not None:
        return show(weather, asked.seed, asked.last)
    if asked.until is not None:
        return go_on(weather, asked.until)
    with workers(os.cpu_count() or 1) as pool:
        counts, failures = run_all(weather, range(asked.first, asked.first + asked.seeds), pool)
    tell(counts)
    return 1 if failures else 0


def show(weather: Weather, seed: int, last: int = 1000) -> int:
    """One storm, as it was and always will be."""
    worlds: list[World] = []

    def watched(world: World) -> None:
        worlds.append(world)
        storm_that_may_rot(world, weather)

    outcome = run_seed(watched, seed)
    print_transitions(worlds[0].trace.transitions, last)
    tell(Counter(outcome.counts))
    if outcome.failure:
        print(outcome.failure)
        print(_last_line(outcome))
        return 1
    print(f"seed {seed}: all is well after {outcome.virtual_s:.1f} s, digest {outcome.digest}")
    return 0


def print_transitions(transitions: Sequence[Event], last: int) -> None:
    """Who led what and when, what became of the logs, and what went wrong meanwhile, in columns."""
    print(_ROW.format("time", "who", "what", *COLUMNS).rstrip())
    for event in list(transitions)[-last:]:
        details = [*map(str, event.details), *[""] * (len(COLUMNS) - len(event.details))]
        print(_ROW.format(f"{event.time:.6f}", event.host, event.what, *details).rstrip())


def run_all(weather: Weather, seeds: range, pool: Executor) -> tuple[Counter[str], list[int]]:
    """All these seeds; what they counted, and which failed."""
    return take_note(weather, run_seeds(partial(storm_that_may_rot, weather=weather), seeds, pool=pool))


def take_note(weather: Weather, outcomes: Iterable[Outcome]) -> tuple[Counter[str], list[int]]:
    """What they counted, and which failed."""
    counts: Counter[str] = Counter()
    failures: list[int] = []
    for outcome in outcomes:
        counts.update(outcome.counts)
        counts["seeds"] += 1
        counts["virtual seconds"] += round(outcome.virtual_s)
        if outcome.failure:
            failures.append(outcome.seed)
            print(f"seed {outcome.seed} failed: {_last_line(outcome)}", flush=True)
            print(
                f"  again: scripts/simulate --seed {outcome.seed} --seconds {weather.seconds:g}", flush=True
            )
    return counts, failures


def tell(counts: Counter[str]) -> None:
    """What happened, how often."""
    for name, count in sorted(counts.items()):
        print(f"{count:>12,}  {name}")


def mutants(first: int, most: int) -> int:
    """Plant each bug, and look for a seed that catches it; 1 if one survives that storms have caught before."""
    survivors = 0
    for plant in PLANTS:
        patch = pytest.MonkeyPatch()
        plant(patch)
        try:
            catching = (seed for seed in range(first, first + most) if caught(run_seed(SHORT, seed)))
            seed = next(catching, None)
        finally:
            patch.undo()
        survivors += seed is None and plant in CAUGHT
        print(f"{plant.__name__:50} {'survived' if seed is None else f'caught by seed {seed}'}", flush=True)
    return 1 if survivors else 0


# ── evidence ──────────────────────────────────────────────────────────────────────────────────────────


def go_on(weather: Weather, until: int) -> int:
    """Run on from where the kept runs of this very code ended, and keep what comes."""
    runs = _kept()
    digest, settings = code(MODULES, ROOT), _settings(weather)
    run = next((kept for kept in runs if kept["code"] == digest and kept["settings"] == settings), None)
    if run is None:
        run = {
            "commit": _git("rev-parse", "HEAD"),
            "code": digest,
            "settings": settings,
            "machine": machine(),
            "seeds": 0,
            "duration_s": 0,
            "failures": [],
            "counts": {},
        }
        runs.append(run)
    scenario, seeds = partial(storm_that_may_rot, weather=weather), range(run["seeds"], until)
    # One stream of seeds, kept by pieces: no core waits for the last seed of each.
    with workers(os.cpu_count() or 1) as pool:
        outcomes = pool.map(partial(run_seed, scenario), seeds)
        while run["seeds"] < until:
            began = time.monotonic()
            some = min(CHUNK, until - run["seeds"])
            counts, failures = take_note(weather, islice(outcomes, some))
            if code(MODULES, ROOT) != digest:
                print("the code was changed meanwhile: this chunk is not kept")
                pool.shutdown(cancel_futures=True)
                return 1
            run["seeds"] += some
            run["duration_s"] = round(run["duration_s"] + time.monotonic() - began)
            run["failures"] += failures
            run["counts"] = dict(Counter(run["counts"]) + counts)
            run["date"] = time.strftime("%Y-%m-%d", time.gmtime())
            keep(EVIDENCE, json.dumps(runs, indent=1) + "\n")
            print(
                f"{run['seeds']:,} seeds, {len(run['failures'])} failed, {run['duration_s']:,} s", flush=True
            )
    tell(Counter(run["counts"]))
    return 1 if run["failures"] else 0


def check() -> int:
    """Which kept runs still count."""
    digest = code(MODULES, ROOT)
    for run in _kept():
        standing = "counts" if run["code"] == digest else "history: the code has changed since"
        failed = len(run["failures"])
        print(
            f"{run['date']} {run['commit'][:10]} {run['seeds']:,} seeds {run['settings']}: {failed} failed, {standing}"
        )
    return 0


def _settings(weather: Weather) -> dict[str, Any]:
    return {"seconds": weather.seconds, "defaults": weather.defaults}


def _kept() -> list[dict[str, Any]]:
    return json.loads(EVIDENCE.read_text(encoding="utf-8")) if EVIDENCE.exists() else []


def _last_line(outcome: Outcome) -> str:
    lines = (outcome.failure or "").split("the last events:")[0].splitlines()
    return next((line for line in reversed(lines) if line and not line.startswith(" ")), "?")


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", ROOT, *words], capture_output=True, text=True, check=False
    ).stdout.strip()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/simulate", description="Run simulated clusters through storms."
    )
    parser.add_argument("--seed", type=int, help="run this one and tell what happened")
    parser.add_argument("--seeds", type=int, default=20, help="run so many (default: 20)")
    parser.add_argument("--first", type=int, default=0, help="beginning with this one")
    parser.add_argument("--until", type=int, help="go on to this seed and keep the run")
    parser.add_argument("--last", type=int, default=1000, help="with --seed: so many lines (default: 1000)")
    parser.add_argument("--seconds", type=float, default=20, help="how long a storm lasts (default: 20)")
    parser.add_argument("--defaults", action="store_true", help="with default timeouts, not shortened ones")
    parser.add_argument(
        "--mutants", action="store_true", help="plant bugs and look for seeds that catch them"
    )
    parser.add_argument("--check", action="store_true", help="tell which kept runs still count")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
