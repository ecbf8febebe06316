"""Sends malformed frames to readers, decoders and servers, and counts what came of them (GOALS.md R6).

A run is a seed and a range of indexes: it can be cut into chunks (`--begin`), and a finding is repeated by
its index alone. `--record` appends the run to docs/evidence/fuzz.json.
"""

import argparse
import asyncio
import json
import logging
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from scripts.benches.evidence import code as code_of  # noqa: E402
from scripts.benches.evidence import machine  # noqa: E402

from tests.protocol.fuzzing import Report, fuzz_machines, fuzz_sockets  # noqa: E402

EVIDENCE = ROOT / "docs/evidence/fuzz.json"
MODULES = ("tests.protocol.fuzzing",)
CHUNK = 20_000
SOCKETS_EVERY = 100
"""Of so many conversations one more goes through a real socket."""


def main(arguments: list[str]) -> int:
    """0: everything held; 1: something did not, and is named."""
    options = _parser().parse_args(arguments)
    logging.disable(logging.CRITICAL)  # a server says a line for each peer that it turns away
    began = time.perf_counter()
    if options.check:
        return check()
    code = {"commit": _git("rev-parse", "HEAD"), "changed": _changed(), "code": code_of(MODULES, ROOT)}
    total = Report()
    end = options.begin + options.frames
    for begin in range(options.begin, end, CHUNK):
        count = min(CHUNK, end - begin)
        _add(total, _run(fuzz_machines, options.seed, begin, count), "")
        _add(total, _run(fuzz_sockets, options.seed, begin, -(-count // SOCKETS_EVERY)), "by socket: ")
        print(f"{begin + count - options.begin} conversations, {len(total.failures)} failures", flush=True)
    duration_s = time.perf_counter() - began
    for outcome, count in sorted(total.outcomes.items()):
        print(f"  {count:>9}  {outcome}")
    print(
        f"slowest {total.slowest_s * 1000:.1f} ms, at most {total.allocated_bytes} bytes allocated, {duration_s:.0f} s"
    )
    for failure in total.failures[:20]:
        print(f"FAILED {failure}")
    if options.record:
        _record(code, shlex.join(["scripts/fuzz", *arguments]), options, total, duration_s)
    return 1 if total.failures else 0


def _run(
    fuzz: Callable[[int, int, int], Coroutine[Any, Any, Report]], seed: int, begin: int, count: int
) -> Report:
    return asyncio.run(fuzz(seed, begin, count))


def _add(total: Report, report: Report, where: str) -> None:
    for outcome, count in report.outcomes.items():
        total.outcomes[where + outcome] += count
    total.failures += [where + failure for failure in report.failures]
    total.slowest_s = max(total.slowest_s, report.slowest_s)
    total.allocated_bytes = max(total.allocated_bytes, report.allocated_bytes)


def _record(
    code: dict[str, Any], command: str, options: argparse.Namespace, total: Report, duration_s: float
) -> None:
    runs = json.loads(EVIDENCE.read_text(encoding="utf-8")) if EVIDENCE.exists() else []
    runs.append(
        {
            **code,
            "command": command,
            "machine": machine(),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "seed": options.seed,
            "begin": options.begin,
            "conversations": options.frames,
            "duration_s": round(duration_s),
            "outcomes": dict(sorted(total.outcomes.items())),
            "slowest_ms": round(total.slowest_s * 1000, 1),
            "allocated_bytes_max": total.allocated_bytes,
            "failures": total.failures[:20],
        }
    )
    EVIDENCE.parent.mkdir(parents=True, exist_ok=True)
    EVIDENCE.write_text(json.dumps(runs, indent=2) + "\n", encoding="utf-8")


def check() -> int:
    """Tell which kept runs count: those of the code as it is."""
    now = code_of(MODULES, ROOT)
    for run in json.loads(EVIDENCE.read_text(encoding="utf-8")) if EVIDENCE.exists() else []:
        standing = "counts" if run.get("code") == now else "history: the code has changed since"
        found = f"{run['conversations']:,} conversations: {len(run['failures'])} failures"
        print(f"{run['date']} {run['commit'][:10]} {found}, {standing}")
    return 0


def _changed() -> list[str]:
    """Files of ours that differ from the commit."""
    return [
        line[3:] for line in _git("status", "--porcelain", "--", "protocol", "tests/protocol").splitlines()
    ]


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description="Send malformed frames.")
    parser.add_argument("--frames", type=int, default=1_000_000, help="how many conversations (1,000,000)")
    parser.add_argument("--seed", type=int, default=1, help="which conversations (1)")
    parser.add_argument(
        "--begin", type=int, default=0, help="the first index, to go on where a run ended (0)"
    )
    parser.add_argument("--check", action="store_true", help="tell which kept runs still count")
    parser.add_argument("--record", action="store_true", help="append the run to docs/evidence/fuzz.json")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
