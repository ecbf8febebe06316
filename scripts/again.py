"""The whole suite, again and again: a test that fails once in ten runs is a defect like any other.

    scripts/again --until 10               go on until ten runs of this very code are kept
    scripts/again --check                  tell which kept runs still count

Each run is kept as it ends, in docs/evidence/suite.json, so that an interrupted count goes on. A run counts while every
tracked file but prose and evidence is unchanged. Ends with 1 if a kept run of this code has failed.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from scripts.benches.evidence import keep, machine

ROOT: Final = Path(__file__).resolve().parents[1]
EVIDENCE: Final = ROOT / "docs" / "evidence" / "suite.json"
_SHOWN: Final = 20_000
"""So many of the last characters of a run that failed are shown: what failed, and how, among them."""
_PROSE: Final = ("docs/", "CHANGELOG.md", "README.md", "CONTRIBUTING.md")


def main() -> int:
    """Run what was asked for; 0 if nothing has failed."""
    parser = argparse.ArgumentParser(prog="scripts/again", description="Run the whole suite again and again.")
    parser.add_argument(
        "--until", type=int, default=10, help="how many runs of this code to have (default: 10)"
    )
    parser.add_argument("--check", action="store_true", help="tell which kept runs still count")
    asked = parser.parse_args()
    if asked.check:
        return check()
    digest, runs = code(ROOT), _kept()
    ours = [run for run in runs if run["code"] == digest]
    while len(ours) < asked.until:
        run = once(digest)
        if code(ROOT) != digest:
            print("a file was changed meanwhile: this run is not kept")
            return 1
        ours.append(run)
        runs.append(run)
        keep(EVIDENCE, json.dumps(runs, indent=1) + "\n")
        print(f"{len(ours)} of {asked.until}: {_line(run)}", flush=True)
    return 1 if any(run["failed"] for run in ours) else 0


def once(digest: str) -> dict[str, Any]:
    """One run of `scripts/test`."""
    began = time.monotonic()
    done = subprocess.run(["scripts/test"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    counts, failed = told(done.stdout)
    if done.returncode:
        print(done.stdout[-_SHOWN:], flush=True)
        failed = failed or [f"scripts/test ended with {done.returncode}"]
    return {
        "date": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
        "commit": _git(ROOT, "rev-parse", "HEAD").strip(),
        "code": digest,
        "command": "scripts/test",
        "machine": machine(),
        "duration_s": round(time.monotonic() - began),
        "counts": counts,
        "failed": failed,
    }


def told(output: str) -> tuple[dict[str, int], list[str]]:
    """What pytest's last lines say: how many of each outcome, and which failed."""
    lines = output.rstrip().splitlines()
    closing = lines[-1] if lines else ""
    counts = {
        word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", closing)
    }
    failed = [
        found[1] for line in lines if (found := re.match(r"(?:FAILED|ERROR) (\S+::.*?)(?: - |$)", line))
    ]
    return counts, failed


def code(root: Path) -> str:
    """One checksum of all tracked files, as they lie there, but prose and evidence."""
    names = [
        name for name in _git(root, "ls-files", "-z").split("\0") if name and not name.startswith(_PROSE)
    ]
    total = sha256()
    for name in sorted(names):
        path = root / name
        content = b"" if not path.is_file() or path.is_symlink() else path.read_bytes()
        total.update(f"{name} ".encode() + sha256(content).digest())
    return total.hexdigest()[:16]


def check() -> int:
    """Which kept runs still count."""
    digest = code(ROOT)
    for run in _kept():
        print(
            _line(run), "counts" if run["code"] == digest else "history: the code has changed since", sep=", "
        )
    return 0


def _line(run: dict[str, Any]) -> str:
    counts = ", ".join(f"{count:,} {word}" for word, count in run["counts"].items())
    failed = "".join(f"; {name}" for name in run["failed"])
    return f"{run['date']} {run['commit'][:10]} {run['duration_s']:,} s: {counts}{failed}"


def _kept() -> list[dict[str, Any]]:
    return json.loads(EVIDENCE.read_text(encoding="utf-8")) if EVIDENCE.exists() else []


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
