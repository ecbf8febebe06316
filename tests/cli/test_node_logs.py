"""What a node says on stderr: fields from templates, two layouts, no storms, no commands to a terminal."""

import json
import logging
import os
import sys
from typing import Any

import pytest

from tidelog.cli.node.logs import BURST, EVERY_S, Json, Moderation, Pretty, Stderr, fields_of, set_up


def record(template: str, *args: Any, level: int = logging.INFO, at: float = 0.0) -> logging.LogRecord:
    made = logging.LogRecord("tidelog.x", level, "x.py", 1, template, args, None)
    made.created = at
    return made


@pytest.mark.parametrize(
    ("template", "args", "event", "fields"),
    [
        (
            "isr.shrunk partition=%s behind_ms=%d",
            ("orders-0", 7),
            "isr.shrunk",
            {"partition": "orders-0", "behind_ms": 7},
        ),
        ("a.b", (), "a.b", {}),
        ("%s.ready id=%d", ("broker", 1), "broker.ready", {"id": 1}),
        (
            "isr.refused partition=%s/%s error=%s",
            ("ab", 1, "X"),
            "isr.refused",
            {"partition": "ab/1", "error": "X"},
        ),
        ("quorum.votes_not id=%d: another disk", (1,), "quorum.votes_not", {"id": "1: another disk"}),
        ("quorum.full %s", ("no room",), "quorum.full", {"message": "no room"}),
        ("a.b reason=%r", ("it's",), "a.b", {"reason": "it's"}),
        ("a.b share=%.1f%% of=%s", (1.25, "x"), "a.b", {"share": "1.2%", "of": "x"}),
        ("Task was destroyed: %s", ("t",), "tidelog.x", {"message": "Task was destroyed: t"}),
        ("100%", (), "tidelog.x", {"message": "100%"}),
    ],
)
def test_fields_are_those_of_the_template(
    template: str, args: tuple[Any, ...], event: str, fields: dict[str, Any]
) -> None:
    assert fields_of(record(template, *args)) == (event, fields)


def test_no_value_can_pretend_to_be_a_field() -> None:
    _, fields = fields_of(record("a.b reason=%s id=%d", "x id=7 level=critical", 1))
    assert fields == {"reason": "x id=7 level=critical", "id": 1}


def test_a_line_of_json_has_time_level_event_and_fields() -> None:
    line = json.loads(Json().format(record("a.b id=%d event=%s", 1, "other", at=1.5)))
    assert line == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "info",
        "event": "a.b",
        "id": 1,
        "event_": "other",
    }


def test_people_get_words_and_colours_only_where_they_are_wanted() -> None:
    plain = Pretty(colour=False).format(record("a.b id=%d reason=%s", 1, "it is so"))
    assert plain.endswith('INFO    a.b id=1 reason="it is so"')
    assert "\x1b[" in Pretty(colour=True).format(record("a.b"))


def test_no_value_sends_a_terminal_a_command() -> None:
    line = Pretty(colour=False).format(record("a.b name=%s", "x\x1b[2J\ny"))
    assert "\x1b" not in line
    assert "\n" not in line


def test_a_traceback_stands_below_the_line() -> None:
    try:
        raise ValueError("oh")
    except ValueError:
        failed = record("a.b", level=logging.ERROR)
        failed.exc_info = sys.exc_info()
    assert Pretty(colour=False).format(failed).endswith("ValueError: oh")
    assert json.loads(Json().format(failed))["traceback"].endswith("ValueError: oh\n")


def test_an_event_that_repeats_itself_is_said_seldom_and_counted() -> None:
    moderation = Moderation()
    said = [moderation.filter(record("a.b id=%d", n, at=n * 0.001)) for n in range(1000)]
    assert sum(said) == BURST
    assert moderation.filter(record("c.d", at=1.0))
    later = record("a.b id=%d", 7, at=1.0 + EVERY_S)
    assert moderation.filter(later)
    assert fields_of(later) == ("a.b", {"id": 7, "left_out": 1000 - BURST})
    assert not list(moderation.summary())


def test_what_was_left_out_is_told_though_the_event_never_comes_again() -> None:
    moderation = Moderation()
    for n in range(BURST + 3):
        moderation.filter(record("a.b id=%d", n))
    assert list(moderation.summary()) == [("a.b", 3)]
    assert not list(moderation.summary())


def test_telling_what_was_left_out_may_itself_be_an_event_that_was_not_said_before() -> None:
    moderation = Moderation()
    for event in ("a.b id=%d", "c.d id=%d"):
        for n in range(BURST + 1):
            moderation.filter(record(event, n))
    told = 0
    for _, left_out in moderation.summary():
        moderation.filter(record("log.left_out lines=%d", left_out))
        told += left_out
    assert told == 2


def test_what_is_critical_always_passes() -> None:
    moderation = Moderation()
    assert all(moderation.filter(record("a.b", level=logging.CRITICAL)) for _ in range(100))


def test_a_stderr_that_was_closed_disturbs_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    handler = Stderr(writing)
    handler.emit(record("a.b"))
    os.close(writing)
    handler.emit(record("a.b"))


def test_a_stderr_that_nobody_reads_stops_nothing_and_says_so_later() -> None:
    reading, writing = os.pipe()
    handler = Stderr(writing)
    handler.setFormatter(Pretty(colour=False))
    for n in range(5000):
        handler.emit(record("a.b id=%d text=%s", n, "x" * 100))
    first = os.read(reading, 1 << 20)
    assert first.endswith(b"\n")
    handler.emit(record("c.d"))
    unsaid = 5000 - first.count(b"\n")
    assert os.read(reading, 1 << 20).startswith(
        f"({unsaid} lines before this one were not read in time)\n".encode()
    )
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("layout", "on_terminal", "pretty"),
    [("auto", True, True), ("auto", False, False), ("pretty", False, True), ("json", True, False)],
)
def test_people_on_a_terminal_are_told_in_words_and_programs_in_json(
    layout: str, on_terminal: bool, pretty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stderr:
        monkeypatch.setattr(stderr, "isatty", lambda: on_terminal)
        monkeypatch.setattr(sys, "stderr", stderr)
        root = logging.getLogger()
        before = root.handlers[:], root.level
        try:
            set_up("info", layout, colour=False)
            logging.getLogger("tidelog.x").info("a.b id=%d", 1)
        finally:
            logging.captureWarnings(False)
            root.handlers[:], level = before
            root.setLevel(level)
    said = os.read(reading, 1 << 16).decode()
    os.close(reading)
    assert said.startswith("{") is not pretty
    assert "\x1b" not in said
