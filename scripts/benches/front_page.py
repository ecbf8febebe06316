"""The README's figures: rows of the last kept runs, each with the command that takes it again. `scripts/bench --pages`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scripts.benches.growth import PLOTS
from scripts.benches.measure import shown

BEGIN = "<!-- figures: written by scripts/bench --pages from docs/evidence/bench.json -->"
END = "<!-- end of figures -->"

FIGURES = (
    (
        "a leader is killed under load: next acknowledged write",
        "failover",
        "leader killed: next write, median",
    ),
    ("the same, 95 of 100 kills", "failover", "... 95 of 100 kills"),
    ("the active controller is killed: next topic", "failover", "controller killed: next topic, median"),
    (
        "`tidelog up`: three brokers and a controller are ready",
        "processes",
        "`tidelog up`, 3+1 processes: ready",
    ),
    (
        "a test's cluster in one process, 3 + 1 nodes",
        "processes",
        "`testing.Cluster`, 3+1 nodes inside one process: ready",
    ),
    ("memory of an idle broker", "processes", "idle broker, resident"),
    ("10,000 partitions made: CPU of the controller", "controllers", "1: 10,000 created, CPU of the leader"),
    ("a log of 10 GB opened after SIGKILL", "opening", "10 GB after SIGKILL"),
    ("`tidelog --help`", "command", "tidelog --help"),
)


def table(runs: Iterable[dict[str, Any]]) -> str:
    """Of each figure the last one that was kept; of what was never measured there is none."""
    rows: dict[tuple[str, str], tuple[str, str]] = {}
    for run in runs:
        for bench, kept in run["benches"].items():
            # Of rows with the same words the first one is meant.
            for row in reversed(kept["rows"]):
                rows[bench, row["name"]] = _said(row["median"], row["unit"]), run["date"][:10]
    lines = ["| what | figure | taken | take it again |", "|---|---|---|---|"]
    for words, bench, name in FIGURES:
        if (bench, name) in rows:
            figure, date = rows[bench, name]
            lines.append(f"| {words} | {figure} | {date} | `scripts/bench {bench}` |")
    return "\n".join(lines)


def _said(figure: float, unit: str) -> str:
    return f"{shown(figure * 1000)} ms" if unit == "s" and figure < 1 else f"{shown(figure)} {unit}"


def curves(runs: Iterable[dict[str, Any]]) -> str:
    """Where the pictures of what grows are, as far as it was measured."""
    measured = {name for run in runs for name in run["benches"]}
    those = [plot for plot in PLOTS if plot.section in measured]
    return "".join(f"* [{plot.title}](docs/growth/{plot.file})\n" for plot in those)


def written(page: str, runs: Iterable[dict[str, Any]]) -> str:
    """The page with these figures."""
    before, rest = page.split(BEGIN)
    kept = list(runs)
    below = curves(kept)
    pictures = f"How it grows:\n\n{below}\n" if below else ""
    return f"{before}{BEGIN}\n\n{table(kept)}\n\n{pictures}{END}{rest.split(END)[1]}"


def write(page: Path, runs: Iterable[dict[str, Any]]) -> None:
    """Put them there."""
    page.write_text(written(page.read_text("utf-8"), runs), "utf-8")
