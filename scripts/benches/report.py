"""The tables of docs/performance.md: each bench's last kept run, row by row. `scripts/bench --pages`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from scripts.benches.all import BENCHES
from scripts.benches.measure import shown
from scripts.benches.table import HEADS, markdown

BEGIN = "<!-- tables: written by scripts/bench --pages from docs/evidence/bench.json -->"
END = "<!-- end of tables -->"
_MISSED = ("bench", "name", "figure", "reference in the same run", "ratio", "goal")


def tables(runs: Iterable[dict[str, Any]]) -> str:
    """How many goals are met, which are not, and everything that was measured, in the order of the benches."""
    last: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for run in runs:
        for name, kept in run["benches"].items():
            last[name] = run, kept
    there = [(bench, *last[bench.name]) for bench in BENCHES if bench.name in last]
    goals = [
        (bench.name, *_cells({**row, "name": whole}))
        for bench, _, kept in there
        for row, whole in zip(kept["rows"], _whole_names(kept["rows"]), strict=True)
        if "goal" in row
    ]
    missed = [cells[:-1] for cells in goals if cells[-1] == "NO"]
    parts = [f"Of {len(goals)} goals {len(goals) - len(missed)} are met."]
    if missed:
        parts += ["These are not:", markdown([_MISSED, *missed])]
    for bench, run, kept in there:
        rows = [HEADS, *map(_cells, kept["rows"])]
        parts += [f"### `{bench.name}`: {bench.about}", "".join(_taken(run, kept)), markdown(rows)]
    return "\n\n".join(parts)


def _whole_names(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A row "... of 1,000" says by itself what it is of."""
    head = ""
    for row in rows:
        name = row["name"]
        head = head if name.startswith("... ") else name
        yield name.replace("... ", f"{head} ... ") if name.startswith("... ") else name


def _taken(run: dict[str, Any], kept: dict[str, Any]) -> Iterator[str]:
    rounds, machine = len(kept["rows"][0]["rounds"]), run["machine"]
    yield f"{rounds} round{'s' if rounds > 1 else ''} in {kept['seconds']:.0f} s on {run['date'][:10]} "
    yield f"at commit {run['commit'][:8]}, {machine['python']}, {machine['system']}"
    if kept["foreign_cores"]:
        yield f"; {median(kept['foreign_cores']):.2f} of the {machine['cores']} cores busy with others"
    yield "."


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    reference = row.get("reference")
    return (
        row["name"],
        f"{shown(row['median'])} {row['unit']}".rstrip(),
        f"{shown(reference['median'])} ({reference['name']})" if reference else "",
        shown(row["ratio"]) if reference else "",
        row.get("goal", ""),
        {None: "", True: "yes", False: "NO"}[row.get("met")],
    )


def written(page: str, runs: Iterable[dict[str, Any]]) -> str:
    """The page with these tables."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables(runs)}\n\n{END}{rest.split(END)[1]}"


def write(page: Path, runs: Iterable[dict[str, Any]]) -> None:
    """Put them there."""
    page.write_text(written(page.read_text("utf-8"), runs), "utf-8")
