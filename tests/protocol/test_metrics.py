"""Metrics as Prometheus reads them: https://prometheus.io/docs/instrumenting/exposition_formats/ (0.0.4)."""

import re

import pytest
from scripts.docs import METRICS_PAGE, metrics_page

from tidelog.broker import metrics as of_brokers
from tidelog.cli.node import vitals
from tidelog.controller import metrics as of_controllers
from tidelog.protocol.metrics import Metric, counter, exposition, gauge

LINE = re.compile(r'[a-z_]+(\{[a-z_]+="(?:[^"\\\n]|\\.)*"(,[a-z_]+="(?:[^"\\\n]|\\.)*")*\})? -?[0-9.e+-]+')


def test_samples_stand_behind_their_sentence_and_kind() -> None:
    led, asked = gauge("tidelog_x_led", "So many."), counter("tidelog_x_asked_total", "So often.", "what")
    assert exposition([led.at(3), asked.at(1, "a"), led.at(0.5), asked.at(2, "b")]) == (
        "# HELP tidelog_x_led So many.\n# TYPE tidelog_x_led gauge\ntidelog_x_led 3\ntidelog_x_led 0.5\n"
        "# HELP tidelog_x_asked_total So often.\n# TYPE tidelog_x_asked_total counter\n"
        'tidelog_x_asked_total{what="a"} 1\ntidelog_x_asked_total{what="b"} 2\n'
    )


def test_labels_are_escaped() -> None:
    text = exposition([gauge("tidelog_x", "So many.", "name").at(1, 'a"b\\c\nd')])
    assert text.splitlines()[-1] == r'tidelog_x{name="a\"b\\c\nd"} 1'


def test_truths_are_numbers() -> None:
    assert exposition([gauge("tidelog_x", "So.").at(True)]).endswith("tidelog_x 1\n")


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("x", "gauge", "So."),
        ("tidelog_x", "counter", "So."),
        ("tidelog_x_total", "gauge", "So."),
        ("tidelog_X", "gauge", "So."),
        ("tidelog_x", "gauge", "So"),
    ],
)
def test_a_metric_keeps_the_rules_of_names(name: str, kind: str, sentence: str) -> None:
    with pytest.raises(AssertionError):
        Metric(name, kind, sentence)  # type: ignore[arg-type]


def test_a_sample_has_the_labels_of_its_metric() -> None:
    with pytest.raises(AssertionError):
        gauge("tidelog_x", "So.", "a").at(1)


def test_no_two_metrics_have_one_name() -> None:
    found = [
        value.name
        for module in (of_brokers, of_controllers, vitals)
        for value in vars(module).values()
        if isinstance(value, Metric)
    ]
    assert len(found) == len(set(found)) > 60


def test_the_page_of_metrics_is_what_the_code_says() -> None:
    assert METRICS_PAGE.read_text(encoding="utf-8") == metrics_page(), "run scripts/docs"
