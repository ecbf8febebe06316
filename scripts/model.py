"""Walks the replication model: a minute of it, one seed in full, all rules one by one, or long runs for the record.

Run by scripts/model. Long runs are written to docs/evidence/model.json chunk by chunk, and begin again where
they ended. A run counts for as long as the modules that made it are unchanged: the file says which they were.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.model import catalogue
from tests.model.rules import NAMES, Rules, all_but
from tests.model.walk import FLOORS, shrink, transcript, walk

ROOT = Path(__file__).parent.parent
EVIDENCE = ROOT / "docs" / "evidence" / "model.json"
NOT_WALKED = {"catalogue.py", "directed.py"}
"""Modules of tests/model that decide no walk."""


def model_hash() -> str:
    """What the walks are made of, as one number."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "tests" / "model").glob("*.py")):
        if path.name not in NOT_WALKED and not path.name.startswith("test_"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def main() -> int:
    """The exit status: 0 if nothing was violated and everything was met."""
    parser = argparse.ArgumentParser(prog="scripts/model", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long to walk (default: 60)")
    parser.add_argument("--length", type=int, default=catalogue.LENGTH, help="draws per walk")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument(
        "--seed", type=int, help="walk one seed, and show it if it fails, as short as it gets"
    )
    parser.add_argument(
        "--off", nargs="+", default=[], choices=NAMES, metavar="RULE", help="switch these off"
    )
    parser.add_argument("--rules", action="store_true", help="how long each rule stays unmissed, as a table")
    parser.add_argument(
        "--story", choices=NAMES, metavar="RULE", help="tell the written history about this rule"
    )
    parser.add_argument("--until", type=int, help="go on to this seed, and write docs/evidence/model.json")
    parser.add_argument("--check", action="store_true", help="whether the recorded runs are of this model")
    options = parser.parse_args()
    if options.check:
        return check()
    if options.story:
        return tell_story(options.story)
    if options.rules:
        return table(options.seconds, options.length, options.off or NAMES)
    if options.seed is not None:
        return show(all_but(*options.off), options.seed, options.length)
    if options.until is not None:
        return record(options.until, options.length)
    return bounded(all_but(*options.off), options.first, options.length, options.seconds)


def bounded(rules: Rules, first: int, length: int, seconds: float) -> int:
    """Walk for a while; a violation, or a kind of event that never happened, is a failure."""
    seed, begun = first, time.monotonic()
    counts: Counter[str] = Counter()
    steps = 0
    while time.monotonic() < begun + seconds:
        outcome = walk(rules, seed, length)
        counts.update(outcome.counts)
        steps += outcome.steps
        if outcome.violation is not None:
            return show(rules, seed, length)
        seed += 1
    tell(counts, seed - first, steps, time.monotonic() - begun)
    return missing(counts)


def missing(counts: Counter[str]) -> int:
    """1 if the walks never did what they are there to survive."""
    never = [what for what in FLOORS if not counts[what]]
    for what in never:
        print(f"never happened: {what}")
    return 1 if never else 0


def tell(counts: Counter[str], walks: int, steps: int, seconds: float) -> None:
    """The counts, and how fast."""
    for what in sorted(counts):
        print(f"{counts[what]:>12,}  {what}")
    print(f"{steps:,} steps in {walks:,} walks, {steps / seconds:,.0f} steps/s")


def show(rules: Rules, seed: int, length: int) -> int:
    """One seed; a failing one is shrunk and told in columns."""
    outcome = walk(rules, seed, length)
    if outcome.violation is None:
        tell(Counter(outcome.counts), 1, outcome.steps, 1)
        return 0
    invariant = outcome.violation.invariant
    choices = shrink(rules, outcome.settings, outcome.choices, invariant)
    print(f"seed {seed}: {outcome.steps} steps, {len(choices)} are enough")
    print(transcript(rules, outcome.settings, choices))
    return 1


def tell_story(name: str) -> int:
    """A history that was written by hand, in columns."""
    history = catalogue.story(name)
    if history is None:
        print(f"no history is about {name}")
        return 1
    print(transcript(history.rules, history.settings, history.choices, healing=False))
    return 0


def table(seconds: float, length: int, names: tuple[str, ...]) -> int:
    """Per rule: how many random walks until it is missed, and what else catches it."""
    print("| rule switched off | walks until caught | by |\n|---|---|---|")
    for name in names:
        begun, seed, violation = time.monotonic(), 0, None
        while violation is None and time.monotonic() < begun + seconds:
            violation = walk(all_but(name), seed, length).violation
            seed += 1
        found = (
            f"{seed:,} | {violation.invariant}" if violation else f"none in {seed:,} | {catalogue.how(name)}"
        )
        print(f"| {name} | {found} |", flush=True)
    return 0


# ---------------------------------------------------------------------------------------------- evidence


def recorded() -> list[dict[str, object]]:
    """The runs on record, oldest first."""
    return json.loads(EVIDENCE.read_text(encoding="utf-8")) if EVIDENCE.exists() else []


def record(until: int, length: int, chunk: int = 2000) -> int:
    """Walk the seeds that this model has not walked yet; each chunk is on record before the next begins."""
    while True:
        runs = recorded()
        run = next((r for r in runs if (r["model"], r["length"]) == (model_hash(), length)), None)
        if run is None:
            run = {
                "model": model_hash(), "length": length, "commit": "", "command": "", "seeds": 0, "steps": 0,
                "seconds": 0.0, "counts": {}, "failures": [],
            }  # fmt: skip
            runs.append(run)
        first = int(str(run["seeds"]))
        if first >= until:
            print(f"{first:,} seeds of length {length} are on record for model {model_hash()}")
            return 1 if run["failures"] else missing(Counter(run["counts"]))
        walk_chunk(run, first, min(first + chunk, until))
        run["commit"] = commit()
        run["command"] = "scripts/model " + " ".join(sys.argv[1:])
        EVIDENCE.parent.mkdir(exist_ok=True)
        text = json.dumps(runs, indent=1, sort_keys=True) + "\n"
        EVIDENCE.with_suffix(".tmp").write_text(text, encoding="utf-8")
        EVIDENCE.with_suffix(".tmp").replace(EVIDENCE)


def walk_chunk(run: dict[str, object], first: int, end: int) -> None:
    """These seeds, added to the run."""
    begun = time.monotonic()
    counts = Counter(run["counts"])
    failures = list(run["failures"])
    steps = int(str(run["steps"]))
    for seed in range(first, end):
        outcome = walk(Rules(), seed, int(str(run["length"])))
        counts.update(outcome.counts)
        steps += outcome.steps
        if outcome.violation is not None:
            failures.append([seed, str(outcome.violation)])
            print(f"seed {seed}: {outcome.violation}", flush=True)
    seconds = float(str(run["seconds"])) + time.monotonic() - begun
    run.update(seeds=end, counts=dict(counts), failures=failures, steps=steps, seconds=round(seconds, 1))


def commit() -> str:
    """The commit that was checked out, with a plus if the model differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "tests/model") else "")


def check() -> int:
    """0 if there are runs of the present model on record, and none of them failed."""
    runs = [run for run in recorded() if run["model"] == model_hash()]
    for run in runs:
        print(f"{run['seeds']:,} seeds of length {run['length']}: {len(run['failures'])} failures")
    if not runs:
        print(f"nothing on record for model {model_hash()}")
    return 0 if runs and not any(run["failures"] for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
