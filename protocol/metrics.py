"""What a node counts and measures: declared once, with a sentence each, and written as Prometheus reads it.

What it keeps true: a name says its unit (`_bytes`, `_seconds`, `_ms`; `_total` for what only grows); a sample has the
labels of its metric; nothing is computed before somebody asks. The text is that of Prometheus, version 0.0.4.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_NAME: Final = re.compile(r"tidelog(?:_[a-z][a-z0-9]*)+")
_LABEL: Final = re.compile(r"[a-z][a-z0-9_]*")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is counted or measured."""

    name: str
    kind: Literal["counter", "gauge"]
    sentence: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), self.name
        assert all(map(_LABEL.fullmatch, self.labels)), self.labels
        assert self.name.endswith("_total") == (self.kind == "counter"), self.name
        assert self.sentence.endswith("."), self.name

    def at(self, value: float, *labels: object) -> "Sample":
        """Its value now, for what the labels name."""
        assert len(labels) == len(self.labels), (self.name, labels)
        return Sample(self, value, tuple(map(str, labels)))


class Sample(NamedTuple):
    """The value of a metric at one moment."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()


def counter(name: str, sentence: str, *labels: str) -> Metric:
    """What only grows while a process lives."""
    return Metric(name, "counter", sentence, labels)


def gauge(name: str, sentence: str, *labels: str) -> Metric:
    """What goes up and down."""
    return Metric(name, "gauge", sentence, labels)


def exposition(samples: Iterable[Sample]) -> str:
    """The samples as text, those of one metric together, behind its sentence and kind."""
    by_metric: dict[Metric, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    lines = []
    for metric, of_metric in by_metric.items():
        sentence = metric.sentence.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {metric.name} {sentence}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        lines += [f"{metric.name}{_labelled(sample)} {_number(sample.value)}" for sample in of_metric]
    return "".join(f"{line}\n" for line in lines)


def _labelled(sample: Sample) -> str:
    pairs = zip(sample.metric.labels, sample.labels, strict=True)
    text = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs)
    return f"{{{text}}}" if text else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
