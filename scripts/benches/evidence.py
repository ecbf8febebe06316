"""Runs that were kept, and for how long they count: as long as the code that they ran is unchanged.

An entry carries, per bench, one checksum of every file that the bench's module reaches by imports: the
product's, and the bench's own. The same walk over today's tree gives the same checksum, or the entry is
history. An entry says nothing about who took it: cores, system and versions are what a reader needs.

A run is kept bench by bench, so that one that is cut has not been in vain: the next one goes on with what is missing.
"""

import ast
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from scripts.benches.measure import Bench, Measured, Settings, Taken

PACKAGES = ("crc32c", "cramjam", "msgpack", "msgspec", "uvloop")


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a bench of a kept run still counts."""

    date: str
    commit: str
    bench: str
    counts: bool


def codes(benches: Iterable[Bench], root: Path) -> dict[str, str]:
    """Each bench's code as it is now: to be taken before they run."""
    return {bench.name: code(modules_of(bench), root) for bench in benches}


def entry(
    parts: Mapping[str, dict[str, Any]], settings: Settings, command: str, seconds: float, root: Path
) -> dict[str, Any]:
    """A run as it is kept, with the `part` of each bench that is complete."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
        "commit": _git(root, "rev-parse", "HEAD"),
        "command": command,
        "settings": {"rounds": settings.rounds, "quick": settings.quick},
        "machine": machine(),
        "duration_s": round(seconds, 1),
        "benches": dict(parts),
    }


def machine() -> dict[str, Any]:
    """The shape of this machine, without its name."""
    return {
        "cores": os.cpu_count(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: version(name) for name in PACKAGES},
    }


def append(path: Path, kept: dict[str, Any]) -> None:
    """Add a run to the file."""
    write(path, [*entries(path), kept])


def write(path: Path, runs: Iterable[dict[str, Any]]) -> None:
    """These are the runs that are kept."""
    lines = ",\n".join(_lines(one) for one in runs)
    keep(path, f"[\n{lines}\n]\n")


def keep(path: Path, text: str) -> None:
    """This is the file from now on; whoever is interrupted leaves it as it was, or as it will be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def measured_already(benches: Iterable[Bench], settings: Settings, path: Path, root: Path) -> set[str]:
    """Which benches need not run again: by today's code, on a machine like this, in as many rounds they have."""
    like_this = [kept for kept in entries(path) if kept["machine"] == machine()]
    found = set()
    for bench in benches:
        now = code(modules_of(bench), root)
        taken = [kept["benches"][bench.name] for kept in like_this if bench.name in kept["benches"]]
        rounds = min(settings.rounds, bench.rounds_max)
        if any(one["code"] == now and len(one["rows"][0]["rounds"]) >= rounds for one in taken):
            found.add(bench.name)
    return found


def standing(path: Path, root: Path) -> list[Standing]:
    """Every bench of every kept run, oldest first, and whether it counts."""
    return [
        Standing(kept["date"], kept["commit"], name, bench["code"] == code(bench["modules"], root))
        for kept in entries(path)
        for name, bench in kept["benches"].items()
    ]


def code(modules: Iterable[str], root: Path) -> str:
    """One checksum of all files of this repository that these modules reach by imports."""
    total = sha256()
    for file in sorted(reached(modules, root)):
        total.update(f"{file} ".encode() + _seen(root / file).digest)
    return total.hexdigest()[:16]


def reached(modules: Iterable[str], root: Path) -> set[str]:
    """The files of these modules and of all that they import, wherever the import stands."""
    found: set[str] = set()
    named = set(modules)
    waiting = list(named)
    while waiting:
        file = _file(waiting.pop(), root)
        if file is None or file in found:
            continue
        found.add(file)
        new = set(_seen(root / file).imports) - named
        named |= new
        waiting += new
    return found


class _Source(NamedTuple):
    """What is asked of a file, for every bench that reaches it."""

    digest: bytes
    imports: tuple[str, ...]


def _seen(path: Path) -> _Source:
    status = path.stat()
    return _source(path, status.st_mtime_ns, status.st_size, status.st_ino)


@cache
def _source(path: Path, *_version: int) -> _Source:
    """Read once per version of the file."""
    content = path.read_bytes()
    return _Source(sha256(content).digest(), _imports(content))


def _imports(source: bytes) -> tuple[str, ...]:
    """Everything that may be a module, its packages included."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            found += (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return tuple(dict.fromkeys(found))


def _file(module: str, root: Path) -> str | None:
    """Where a module of this repository lies; components are folders at the top (docs/adr/0001)."""
    path = module.replace(".", "/")
    if module == "tidelog":
        path = "src/tidelog"
    elif path.startswith("tidelog/"):
        path = path.removeprefix("tidelog/")
    elif not path.startswith(("scripts", "tests")):
        return None
    candidates = (f"{path}.py", f"{path}/__init__.py")
    return next((file for file in candidates if os.path.isfile(f"{root}/{file}")), None)


def modules_of(bench: Bench) -> list[str]:
    """Where the walk over a bench's code begins."""
    return [bench.begin.__module__, *bench.also_runs]


def part(measured: Measured, before: str, root: Path) -> dict[str, Any]:
    """A bench of a run as it is kept, made when it ends. `before`: its code when the run began."""
    modules = modules_of(measured.bench)
    return {
        "modules": modules,
        # What was edited under a run's feet is nothing that the run has measured.
        "code": before if before == code(modules, root) else "changed during the run",
        "seconds": round(measured.seconds, 1),
        "foreign_cores": [_short(load) for load in measured.foreign],
        "rows": [_row(taken) for taken in measured.rows],
    }


def _row(taken: Taken) -> dict[str, Any]:
    row = taken.row
    kept: dict[str, Any] = {"name": row.name, "unit": row.unit, "median": _short(taken.figure)}
    kept["spread"] = _spread(taken.figures)
    kept["rounds"] = [_short(figure) for figure in taken.figures]
    if taken.ratio is not None and taken.reference is not None:
        kept["reference"] = {
            "name": row.beside,
            "median": _short(taken.reference),
            "spread": _spread(taken.references),
            "rounds": [_short(figure) for figure in taken.references],
        }
        kept["ratio"] = _short(taken.ratio)
    if row.goal is not None:
        kept["goal"], kept["met"] = str(row.goal), taken.met
    return kept


def _spread(figures: Sequence[float]) -> list[float]:
    return [_short(min(figures)), _short(max(figures))]


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def entries(path: Path) -> list[dict[str, Any]]:
    """All runs that are kept, oldest first."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def _lines(kept: dict[str, Any]) -> str:
    """An entry with a line per row: a diff shows what was added."""
    head = {name: value for name, value in kept.items() if name != "benches"}
    benches = []
    for name, bench in kept["benches"].items():
        rows = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in bench["rows"])
        rest = json.dumps({key: value for key, value in bench.items() if key != "rows"})
        benches.append(f'  {json.dumps(name)}: {rest[:-1]}, "rows": [\n    {rows}\n  ]}}')
    begin = json.dumps(head, ensure_ascii=False)[:-1]
    return f'{begin}, "benches": {{\n' + ",\n".join(benches) + "\n}}"


def _git(root: Path, *words: str) -> str:
    found = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
