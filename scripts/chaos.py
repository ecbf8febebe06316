"""Clusters of real processes under load and faults, for as long as is asked for.

    scripts/chaos --minutes 30             chunks of five minutes, each a new cluster; the run is kept as evidence
    scripts/chaos --minutes 2 --seed 7     the same faults in the same order; what processes make of them is their own
    scripts/chaos --groups --storms 3      a group of 50 members that come, go and crash, two minutes each; kept as well

Ends with 1 if anything was lost, there twice, out of order, or read and not there, or if a chunk stood still or failed in
another way: what it has seen until then is told, judged and kept all the same, and the next chunk begins. A kept run counts only while every
file that it ran is unchanged; `--check` tells which still do.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts import chaos_groups
from scripts.benches.evidence import code, machine

from tests.chaos.groups import Size
from tests.chaos.ledger import Verdict
from tests.chaos.run import SETTINGS, Report, Run
from tidelog.testing import Cluster

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "docs" / "evidence" / "chaos.json"
MODULES = ("tests.chaos.run", "tidelog.testing.node", "tidelog.testing.processes", "tidelog.cli.main")
CHUNK_MINUTES = 5.0


def main() -> int:
    """Run what was asked for; 0 if all went well."""
    asked = _arguments()
    if asked.check:
        chaos_groups.check()
        return check()
    first = asked.seed if asked.seed is not None else int(time.time())
    if asked.groups:
        size = Size(asked.members, asked.partitions, 60 * (2.0 if asked.minutes is None else asked.minutes))
        return chaos_groups.run(size, asked.storms, first, _git("rev-parse", "HEAD"))
    minutes_in_all = 5.0 if asked.minutes is None else asked.minutes
    digest = code(MODULES, ROOT)
    kept: dict[str, Any] = {
        "commit": _git("rev-parse", "HEAD"),
        "code": digest,
        "command": f"scripts/chaos --minutes {minutes_in_all:g} --seed {first}",
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "minutes": 0.0,
        "seeds": [],
        "failures": [],
        "counts": {},
        "faults": {},
    }
    left, seed = minutes_in_all, first
    while left > 0:
        minutes = min(left, CHUNK_MINUTES)
        told, verdict, failed = asyncio.run(chunk(seed, minutes))
        print(f"seed {seed}", *told.lines(), verdict, *failed, sep="\n  ", flush=True)
        if failed or not verdict.is_innocent:
            failure = {"failed": failed} if failed else {}
            kept["failures"].append({"seed": seed, **failure, **verdict.counts})
        kept["seeds"].append(seed)
        kept["minutes"] = round(kept["minutes"] + told.seconds / 60, 1)
        counts = {
            "acknowledged": told.acknowledged,
            "unknown": told.unknown,
            "read": told.read,
            "there": told.there,
            "leader epochs": told.elections,
        }
        kept["counts"] = dict(Counter(kept["counts"]) + Counter(counts))
        kept["faults"] = dict(Counter(kept["faults"]) + told.faults)
        keep(kept, digest)
        left, seed = left - minutes, seed + 1
    return 1 if kept["failures"] else 0


async def chunk(seed: int, minutes: float) -> tuple[Report, Verdict, list[str]]:
    """One cluster's life, whatever ends it: what was seen, what is wrong with it, and what has failed."""
    report, verdict, failed = Report(), Verdict(), list[str]()
    try:
        with tempfile.TemporaryDirectory(prefix="tidelog-chaos-") as directory:
            async with Cluster(
                3, 3, processes=True, proxied=True, settings=SETTINGS, directory=directory
            ) as cluster:
                run = Run(cluster, seed)
                report, verdict = run.report, run.ledger.verdict
                try:
                    await run.storm(minutes * 60, 1, lambda line: print(line, flush=True))
                except* Exception as errors:  # noqa: BLE001 -- whatever it is, it is kept with its seed
                    failed += words(errors)
                await run.judge()
    except* Exception as errors:  # noqa: BLE001 -- as above
        failed += words(errors)
    return report, verdict, failed


def words(error: BaseException) -> Iterator[str]:
    """Each error that is in a group, or in a group of groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from words(inner)
    else:
        yield f"{type(error).__name__}: {error}"


def keep(run: dict[str, Any], digest: str) -> None:
    """Write down what has been run so far, if it was this code all the time."""
    if code(MODULES, ROOT) != digest:
        print("the code was changed meanwhile: this is not kept")
        return
    runs = [each for each in _kept() if each["command"] != run["command"] or each["code"] != digest]
    EVIDENCE.parent.mkdir(exist_ok=True)
    EVIDENCE.write_text(json.dumps([*runs, run], indent=1) + "\n", encoding="utf-8")


def check() -> int:
    """Which kept runs still count."""
    digest = code(MODULES, ROOT)
    for run in _kept():
        standing = "counts" if run["code"] == digest else "history: the code has changed since"
        acknowledged = run["counts"].get("acknowledged", 0)
        print(
            f"{run['date']} {run['commit'][:10]} {run['minutes']:g} min, {acknowledged:,} acknowledged, "
            f"{sum(run['faults'].values())} faults: {len(run['failures'])} failed, {standing}"
        )
    return 0


def _kept() -> list[dict[str, Any]]:
    return json.loads(EVIDENCE.read_text(encoding="utf-8")) if EVIDENCE.exists() else []


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", ROOT, *words], capture_output=True, text=True, check=False
    ).stdout.strip()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos", description="Hurt clusters of real processes under load."
    )
    parser.add_argument("--minutes", type=float, help="how long (default: 5; with --groups 2 for each storm)")
    parser.add_argument("--seed", type=int, help="the first chunk's; the next has the next")
    parser.add_argument("--groups", action="store_true", help="hurt a consumer group instead")
    parser.add_argument("--storms", type=int, default=1, help="with --groups: how many, one after the other")
    parser.add_argument("--members", type=int, default=50, help="with --groups: of the group (default: 50)")
    parser.add_argument(
        "--partitions", type=int, default=60, help="with --groups: of its topic (default: 60)"
    )
    parser.add_argument("--check", action="store_true", help="tell which kept runs still count")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
