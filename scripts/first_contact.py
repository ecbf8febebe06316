"""What a newcomer does: clone, type what README says, and see whether it is so.

    scripts/first-contact                  all of it, in about an hour; kept in docs/evidence/first-contact.json
    scripts/first-contact --only perf      those commands that contain this; nothing is kept
    scripts/first-contact --list           what would be typed
    scripts/first-contact --check          which kept runs are of today's code

The commands are README's own: its blocks for the shell, its Python examples, and every command that a table names as what
shows a claim. They are typed in this order, in a clone of the last commit in an empty directory, with an installer that
has no cache. Commands of the `tidelog` tool find the cluster that README starts before its examples. Ends with 1 if a command ended badly.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripts.again import code
from scripts.benches.evidence import keep, machine

ROOT: Final = Path(__file__).resolve().parents[1]
EVIDENCE: Final = ROOT / "docs" / "evidence" / "first-contact.json"
_COMMAND: Final = re.compile(r"`((?:make|scripts/|tidelog )[^`]*)`")
_BLOCK: Final = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NEEDS_CLUSTER: Final = "tidelog perf"
_BEGIN, _END = "tidelog up --detach", "tidelog down"
_TAIL: Final = 5
"""So many lines of what a command has said last are kept."""


class Typed(NamedTuple):
    """One thing that a newcomer does."""

    what: str
    """As README has it."""
    line: str
    """For the shell."""


def typed(readme: str) -> list[Typed]:
    """All that README says to type, in an order in which it works: set-up, the cluster and what needs it, the rest."""
    lines: list[Typed] = []
    examples = 0
    for kind, text in _BLOCK.findall(readme):
        if kind == "python":
            examples += 1
            lines.append(Typed(f"Python example {examples}", f"python - <<'EXAMPLE'\n{text}EXAMPLE"))
            continue
        lines += [Typed(line, line) for line in _without_comments(text)]
    named = [
        Typed(line, line)
        for line in dict.fromkeys(_in_tables(readme))
        if line not in {one.what for one in lines}
    ]
    with_cluster = [one for one in named if one.what.startswith(_NEEDS_CLUSTER)]
    alone = [one for one in named if one not in with_cluster and one.what != _END]
    return [*lines, *with_cluster, Typed(_END, _END), *alone]


def _without_comments(block: str) -> Iterator[str]:
    for line in block.splitlines():
        if command := line.split("#")[0].strip():
            yield command


def _in_tables(readme: str) -> Iterator[str]:
    """Those in the last column of a table: what shows a claim, or takes a figure again."""
    for row in re.findall(r"^\|.*\|$", readme, re.MULTILINE):
        yield from _COMMAND.findall(row.rsplit("|", 2)[1])


def main() -> int:
    """Do it; 0 if everything ended well."""
    parser = argparse.ArgumentParser(
        prog="scripts/first-contact", description="Do what README says, in a fresh clone."
    )
    parser.add_argument(
        "--only", help="only what contains this, besides the set-up and the cluster; nothing is kept"
    )
    parser.add_argument("--list", action="store_true", help="tell what would be typed")
    parser.add_argument("--check", action="store_true", help="tell which kept runs still count")
    asked = parser.parse_args()
    if asked.check:
        return check()
    todo = typed((ROOT / "README.md").read_text(encoding="utf-8"))
    if asked.only:
        always = ("scripts/demo", ". .venv/bin/activate", _BEGIN, _END)
        todo = [one for one in todo if one.what in always or asked.only in one.what]
    if asked.list:
        print("\n".join(one.what for one in todo))
        return 0
    done = _all_of(todo)
    if not asked.only:
        run = {
            "date": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
            "commit": _commit(),
            "code": code(ROOT),
            "machine": machine(),
            "typed": done,
        }
        runs = [*_kept(), run]
        keep(EVIDENCE, json.dumps(runs, indent=1) + "\n")
    return 1 if any(one["status"] for one in done) else 0


def _all_of(todo: list[Typed]) -> list[dict[str, Any]]:
    done: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="first-contact-") as directory:
        clone = Path(directory) / "tidelog"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        environment = {
            name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}
        }
        environment |= {"PIP_NO_CACHE_DIR": "1", "HOME": directory}
        activate, is_up = "", False

        def shell(line: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                ["bash", "-c", activate + line],
                cwd=clone,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )

        try:
            for one in todo:
                if one.what.startswith(". "):
                    activate = f"{one.line}; "
                    continue
                is_up = one.what == _BEGIN or (is_up and one.what != _END)
                began = time.monotonic()
                ran = shell(one.line)
                seconds = round(time.monotonic() - began, 1)
                said = ran.stdout.replace(directory, "~").rstrip().splitlines()[-_TAIL:]
                done.append({"what": one.what, "status": ran.returncode, "seconds": seconds, "said": said})
                print(f"{'ok ' if not ran.returncode else 'BAD'} {seconds:>7.1f} s  {one.what}", flush=True)
                if ran.returncode:
                    print(ran.stdout[-3000:], file=sys.stderr)
        finally:
            if is_up:  # somebody has interrupted it
                shell(_END)
    return done


def check() -> int:
    """Which kept runs still count."""
    digest = code(ROOT)
    for run in _kept():
        bad = sum(one["status"] != 0 for one in run["typed"])
        standing = "counts" if run["code"] == digest else "history: the code has changed since"
        print(
            f"{run['date']} {run['commit'][:10]} {len(run['typed'])} things typed, {bad} ended badly, {standing}"
        )
    return 0


def _kept() -> list[dict[str, Any]]:
    return json.loads(EVIDENCE.read_text(encoding="utf-8")) if EVIDENCE.exists() else []


def _commit() -> str:
    return subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
