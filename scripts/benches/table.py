"""What was measured, for people: a table per bench."""

from collections.abc import Iterable, Sequence
from statistics import median

from scripts.benches.evidence import Standing
from scripts.benches.measure import Measured, Taken, shown

HEADS = ("name", "figure", "reference in the same run", "ratio", "goal", "met?")


def of(measured: Measured) -> str:
    """The table of one bench."""
    rows = [HEADS, *(_cells(taken) for taken in measured.rows)]
    load = f", {shown(median(measured.foreign))} cores busy with others" if measured.foreign else ""
    rounds = len(measured.rows[0].figures)
    title = f"{measured.bench.name}: {measured.bench.about}"
    return f"\n{title}\n{rounds} rounds in {measured.seconds:.0f} s{load}\n\n{markdown(rows)}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Aligned, so that it reads as text as well."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [_line(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], _line("-" * width for width in widths), *lines[1:]])


def standing(found: Iterable[Standing]) -> str:
    """Which evidence counts."""
    rows = [("taken", "commit", "bench", "counts?")]
    rows += [
        (one.date, one.commit[:8], one.bench, "yes" if one.counts else "no, its code has changed")
        for one in found
    ]
    return markdown(rows)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(taken: Taken) -> tuple[str, ...]:
    row, reference, ratio = taken.row, taken.reference, taken.ratio
    return (
        row.name,
        f"{shown(taken.figure)} {row.unit}",
        "" if reference is None else f"{shown(reference)} ({row.beside})",
        "" if ratio is None else shown(ratio),
        "" if row.goal is None else str(row.goal),
        {None: "", True: "yes", False: "NO"}[taken.met],
    )
