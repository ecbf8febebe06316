"""What `tidelog perf` says of figures that are none: too few samples, too short a time."""

import json
import re

import pytest

from tidelog.cli.perf.figures import JsonLines, Measured, Text
from tidelog.cli.perf.histogram import Histogram


def measured(samples: int, seconds: float, verb: str = "produce") -> Measured:
    latency = Histogram()
    for _ in range(samples):
        latency.add(2.84)
    return Measured(
        verb, "orders", records=2000, size=2000, seconds=seconds, latencies={"acknowledged": latency}
    )


@pytest.mark.parametrize(("samples", "told"), [(1, 0), (2, 1), (19, 1), (20, 2), (100, 3), (1000, 4)])
def test_a_percentile_that_the_samples_cannot_tell_is_a_dash(
    capsys: pytest.CaptureFixture[str], samples: int, told: int
) -> None:
    Text().all(measured(samples, 5.0))
    line = capsys.readouterr().out.splitlines()[-1]
    assert re.split(" {2,}", line) == [
        "acknowledged",
        "2.84 ms",
        *["2.84 ms"] * told,
        *["-"] * (4 - told),
        "2.84 ms",
    ]


@pytest.mark.parametrize(
    ("samples", "seconds", "verb", "note"),
    [
        (
            1,
            0.0029,
            "produce",
            "0.003 s is too short for a rate, 1 record timed, too few for every percentile",
        ),
        (999, 5.0, "produce", "999 records timed, too few for every percentile"),
        (0, 0.5, "consume", "0.500 s is too short for a rate"),
        (1000, 0.5, "latency", ""),
        (1000, 1.0, "produce", ""),
    ],
)
def test_too_short_a_run_is_said_to_be_that(
    capsys: pytest.CaptureFixture[str], samples: int, seconds: float, verb: str, note: str
) -> None:
    Text().all(measured(samples, seconds, verb))
    assert capsys.readouterr().err == (f"note: {note}: measure more records (-n)\n" if note else "")


def test_programs_get_every_figure_that_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    JsonLines().all(measured(1, 0.003))
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["p999_ms"] == 2.84
    assert err == ""
