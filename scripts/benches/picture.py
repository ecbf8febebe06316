"""Curves as SVG, drawn by hand: axes with units, logarithmic or not, lines with markers, references dashed, a legend.

What it keeps true: the same curves give the same bytes; text is text; it reads on a light page and on a dark one, and
without colours, because every line has a marker of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.sax.saxutils import escape, quoteattr

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 92, 78
_MARKERS = "osdt"
_MOST_LINES = 6
_LETTER = 6.6
"""What a letter of the legend takes, about."""

_LIGHT = ("#0b62c4", "#b35900", "#1a7f37", "#8250df", "#bf3989", "#57606a")
_DARK = ("#6cb6ff", "#f0a050", "#56d364", "#c297ff", "#ff8fc7", "#9da7b1")


def _colours(page: str, ink: str, faint: str, grid: str, lines: Sequence[str]) -> str:
    """Rules without variables, which not every viewer knows."""
    rules = [f".page {{ fill: {page} }} .ink {{ fill: {ink} }} .faint {{ fill: {faint} }}"]
    rules.append(f".frame {{ stroke: {faint} }} .grid {{ stroke: {grid} }}")
    for number, colour in enumerate(lines):
        rules.append(f".c{number} .line {{ stroke: {colour} }} .c{number} .mark {{ fill: {colour} }}")
    return "\n".join(rules)


_STYLE = f"""
text {{ font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif }} .title {{ font-size: 16px; font-weight: 600 }}
.frame {{ fill: none }} .line {{ fill: none; stroke-width: 2 }} .dash {{ stroke-dasharray: 6 5; stroke-width: 1.5 }}
{_colours("#ffffff", "#24292f", "#57606a", "#d8dee4", _LIGHT)}
@media (prefers-color-scheme: dark) {{
{_colours("#0d1117", "#e6edf3", "#9da7b1", "#2a313a", _DARK)}
}}
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """What is along one side, in which unit."""

    label: str
    log: bool = True


@dataclass(frozen=True, slots=True)
class Line:
    """Points from left to right."""

    name: str
    points: tuple[tuple[float, float], ...]
    reference: bool = False
    """Something to hold the others against: dashed."""


class _Scale:
    """From a value to a place."""

    def __init__(self, values: Sequence[float], axis: Axis, begin: float, end: float) -> None:
        if axis.log and min(values) <= 0:
            raise ValueError(f"{axis.label}: {min(values):g} has no place on a logarithmic axis")
        self._log = axis.log
        self._begin, self._end = begin, end
        self.ticks = _decades(values) if axis.log else _steps(values)
        self._low, self._high = self._of(self.ticks[0]), self._of(self.ticks[-1])

    def _of(self, value: float) -> float:
        return log10(value) if self._log else value

    def at(self, value: float) -> float:
        """The place."""
        return self._begin + (self._of(value) - self._low) / (self._high - self._low) * (
            self._end - self._begin
        )


def _decades(values: Sequence[float]) -> list[float]:
    """Powers of ten around the values; with 2 and 5 between them where they are few."""
    low, high = floor(log10(min(values)) + 1e-9), ceil(log10(max(values)) - 1e-9)
    high = max(high, low + 1)
    fine = (1, 2, 5) if high - low <= 2 else (1,)
    ticks = [digit * 10.0**power for power in range(low, high) for digit in fine] + [10.0**high]
    while len(ticks) > 3 and ticks[1] <= min(values) * (1 + 1e-9):
        ticks.pop(0)
    while len(ticks) > 3 and ticks[-2] >= max(values) * (1 - 1e-9):
        ticks.pop()
    return ticks


def _steps(values: Sequence[float]) -> list[float]:
    """From zero in some five even steps."""
    most = max(*values, 1e-9)
    unit = 10.0 ** floor(log10(most / 5))
    step = next(unit * digit for digit in (1, 2, 5, 10) if unit * digit * 5 >= most * (1 - 1e-9))
    return [step * number for number in range(ceil(most / step - 1e-9) + 1)]


def words(value: float) -> str:
    """A number as it stands at an axis: 100, 1k, 2.5M."""
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= bound * (1 - 1e-9):
            return f"{value / bound:.3g}{unit}"
    return f"{value:.3g}"


def draw(title: str, x: Axis, y: Axis, lines: Sequence[Line], caption: str) -> str:
    """The picture."""
    if not 1 <= len(lines) <= _MOST_LINES or not all(line.points for line in lines):
        raise ValueError(f"{title}: from 1 to {_MOST_LINES} lines can be told apart, each with a point")
    across = _Scale([at for line in lines for at, _ in line.points], x, LEFT, WIDTH - RIGHT)
    up = _Scale([value for line in lines for _, value in line.points], y, HEIGHT - BOTTOM, TOP)
    said = quoteattr(f"{title}. {'; '.join(line.name for line in lines)}. {caption}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label={said}>',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        _text(20, 30, title, "ink title"),
        *_grid(across, up, x, y),
        *_legend(lines),
    ]
    for number, line in enumerate(lines):
        parts += _curve(number, line, across, up)
    parts += [_text(20, HEIGHT - 14, caption, "faint"), "</svg>"]
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, said: str, kind: str, anchor: str = "start", more: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(said)}</text>'


def _grid(across: _Scale, up: _Scale, x: Axis, y: Axis) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for tick in across.ticks:
        at = across.at(tick)
        yield f'<path class="grid" d="M{at:.1f} {TOP}V{bottom}"/>'
        yield _text(at, bottom + 18, words(tick), "faint", "middle")
    for tick in up.ticks:
        at = up.at(tick)
        yield f'<path class="grid" d="M{LEFT} {at:.1f}H{right}"/>'
        yield _text(LEFT - 8, at + 4, words(tick), "faint", "end")
    yield f'<path class="frame" d="M{LEFT} {TOP}V{bottom}H{right}"/>'
    yield _text((LEFT + right) / 2, bottom + 38, x.label, "ink", "middle")
    middle = (TOP + bottom) / 2
    yield _text(22, middle, y.label, "ink", "middle", f' transform="rotate(-90 22 {middle:.1f})"')


def _legend(lines: Sequence[Line]) -> Iterator[str]:
    at, row = 20.0, 54.0
    for number, line in enumerate(lines):
        wide = 44 + _LETTER * len(line.name)
        if at > 20 and at + wide > WIDTH - 10:
            at, row = 20.0, row + 20
        dash = " dash" if line.reference else ""
        yield f'<g class="c{number}"><path class="line{dash}" d="M{at:.1f} {row - 4:.1f}h26"/>'
        yield f"{'' if line.reference else _marker(number, at + 13, row - 4)}</g>"
        yield _text(at + 32, row, line.name, "ink")
        at += wide + 12


def _curve(number: int, line: Line, across: _Scale, up: _Scale) -> Iterator[str]:
    places = [(across.at(at), up.at(value)) for at, value in line.points]
    way = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    yield f'<g class="c{number}"><path class="line{" dash" if line.reference else ""}" d="M{way}"/>'
    if not line.reference:
        for (at, value), (x, y) in zip(line.points, places, strict=True):
            told = escape(f"{line.name}: {words(value)} at {words(at)}")
            yield _marker(number, x, y).replace("/>", f"><title>{told}</title></path>")
    yield "</g>"


def _marker(number: int, x: float, y: float) -> str:
    """A dot, a square, a diamond, a triangle."""
    way = {
        "o": f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
        "s": f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z",
        "d": f"M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
        "t": f"M{x:.1f} {y - 5:.1f}l5 9h-10z",
    }[_MARKERS[number % len(_MARKERS)]]
    return f'<path class="mark" d="{way}"/>'
