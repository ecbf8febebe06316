"""Storms of a consumer group on real processes: `scripts/chaos --groups` (docs/CHAOS.md, "Groups").

Each is a new cluster; what a storm has counted, or why it failed, is kept after each as evidence, next to a checksum of
all that it ran: a kept run counts only while that is unchanged.
"""

import asyncio
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from scripts.benches.evidence import code, entries, machine

from tests.chaos.groups import Size, Storm, storm

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "docs" / "evidence" / "groups.json"
MODULES = ("tests.chaos.groups", "tidelog.testing.node", "tidelog.testing.processes", "tidelog.cli.main")


def run(size: Size, storms: int, first: int, commit: str, evidence: Path = EVIDENCE) -> int:
    """So many storms, one after the other; 0 if all went well."""
    digest = code(MODULES, ROOT)
    kept: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
        "commit": commit,
        "code": digest,
        "command": f"scripts/chaos --groups --storms {storms} --members {size.members} "
        f"--partitions {size.partitions} --minutes {size.seconds / 60:g} --seed {first}",
        "settings": {"members": size.members, "partitions": size.partitions, "seconds": size.seconds},
        "machine": machine(),
        "duration_s": 0.0,
        "counts": {},
        "storms": [],
        "failures": [],
    }
    before = entries(evidence)
    began = time.monotonic()
    for seed in range(first, first + storms):
        try:
            found = asyncio.run(_storm(size, seed))
        except Exception as error:  # noqa: BLE001 -- whatever ends a storm is its failure, and is kept
            print(f"seed {seed}: FAILED: {error!r}", flush=True)
            kept["failures"].append({"seed": seed, "error": repr(error)[:2000]})
        else:
            print(found, flush=True)
            kept["counts"] = dict(Counter(kept["counts"]) + Counter(found.counts))
            kept["storms"].append(
                {"seed": seed, "peak": found.peak, "converged_s": round(found.converged_s, 2)}
            )
        kept["duration_s"] = round(time.monotonic() - began, 1)
        if code(MODULES, ROOT) != digest:
            print("the code was changed meanwhile: this is not kept")
        else:
            evidence.parent.mkdir(parents=True, exist_ok=True)
            evidence.write_text(json.dumps([*before, kept], indent=1) + "\n", encoding="utf-8")
    return 1 if kept["failures"] else 0


async def _storm(size: Size, seed: int) -> Storm:
    with tempfile.TemporaryDirectory(prefix="tidelog-groups-") as directory:
        return await storm(size, seed, directory)


def check() -> None:
    """Tell which kept runs still count."""
    digest = code(MODULES, ROOT)
    for each in entries(EVIDENCE):
        standing = "counts" if each["code"] == digest else "history: the code has changed since"
        slowest = max((one["converged_s"] for one in each["storms"]), default=-1.0)
        print(
            f"{each['date']} {each['commit'][:10]} groups {json.dumps(each['settings'])}, "
            f"{len(each['storms'])} storms, converged in {slowest:g} s at worst: "
            f"{len(each['failures'])} failed, {standing}"
        )
