"""docs/TOUR.md is typed as it stands: every command does what the page says, and prints what stands below it."""

import os
import random
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.node_processes import clean_environment
from tests.cli.test_up import on_record
from tests.tour import PAGE, Step, Typed, at_port, shape, steps, type_them

STEPS = steps(PAGE.read_text(encoding="utf-8"))
MOST_S = 240
PORTS = [first + number for first in (0, 100, 200, 300) for number in range(3)]
Told = dict[str, list[Typed]]


def is_free(port: int) -> bool:
    with socket.socket() as trial:
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Typed]]:
    """The whole tour, once: at ports that nobody has, and with less patience than people need."""
    directory = tmp_path_factory.mktemp("tour")
    port = next(
        base for base in random.sample(range(15_000, 30_000), 1000) if all(is_free(base + n) for n in PORTS)
    )
    commands = [
        at_port(step.command, port).replace("time.max.ms=20000", "time.max.ms=12000") for step in STEPS
    ]
    environment = clean_environment()
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    try:
        yield type_them(commands, directory, environment, MOST_S)
    finally:
        for process in on_record(directory / "tidelog-data"):
            process.signal(signal.SIGKILL)


@pytest.fixture
def told(typed: list[Typed]) -> Told:
    """What each command has printed, at each time that it was typed."""
    found: Told = {}
    for step, one in zip(STEPS, typed, strict=True):
        found.setdefault(step.command, []).append(one)
    return found


@pytest.mark.slow
def test_every_command_works(typed: list[Typed]) -> None:
    assert len(typed) == len(STEPS), typed[-1]
    failed = [(step.command, one) for step, one in zip(STEPS, typed, strict=True) if one.code]
    # Health says by its exit code, too, that a replica is not in sync.
    assert [(command, one.code) for command, one in failed] == [("tidelog cluster health", 3)], failed


@pytest.mark.slow
def test_every_line_that_the_page_shows_is_printed(typed: list[Typed]) -> None:
    for step, one in zip(STEPS, typed, strict=True):
        printed = [shape(line) for line in one.printed.splitlines()]
        missing = [line for line in step.shown if line != "..." and shape(line) not in printed]
        assert not missing, (step.command, missing, one.printed)


@pytest.mark.slow
def test_the_ends_of_the_logs_are_those_of_the_page(told: Told) -> None:
    ends = [[int(end) for end in re.findall(r"to (\d+)$", one.printed, re.MULTILINE)] for one in told["ends"]]
    assert ends == [[2, 2, 2], [4, 4, 2], [6, 6, 6], [7, 6, 6], [7, 7, 7]]
    marks = [one.printed.split()[-2] for one in told["tidelog topic offsets tour"]]
    assert marks == ["3", "7", "7"], "the high watermark"


@pytest.mark.slow
def test_isr_and_epoch_change_as_the_page_says(told: Told) -> None:
    rows = [one.printed.splitlines()[-1].split() for one in told["tidelog topic describe tour"]]
    assert [len(row[4].split(",")) for row in rows] == [3, 2, 3, 2, 3, 3]
    assert [int(row[2]) for row in rows] == [0, 0, 0, 1, 1, 2]


@pytest.mark.slow
def test_what_was_not_committed_gives_way_to_what_was(told: Told) -> None:
    of_the_leader, after = (
        one.printed for one in told["tidelog log dump --data tidelog-data/broker-$L/tour-0/*.log | tail -3"]
    )
    [of_a_follower] = told["tidelog log dump --data tidelog-data/broker-$F/tour-0/*.log | tail -3"]
    assert "'lost'" in of_the_leader
    assert "'kept'" in of_a_follower.printed
    assert "'kept'" in after
    assert "'lost'" not in after
    [epochs] = told["cat tidelog-data/broker-$F/tour-0/leader-epoch-checkpoint"]
    assert "0 0\n1 7\n" in epochs.printed


def test_the_page_is_read_as_commands_with_what_they_print() -> None:
    page = "text\n```console\n$ one\nprinted\n$ two\n```\n```console\n$ three\n...\n```\n"
    assert steps(page) == [Step("one", ("printed",)), Step("two", ()), Step("three", ("...",))]


def test_a_line_is_known_again_at_another_run() -> None:
    assert shape("3 records in 0.01 s (279 records/s, 279 B/s)") == shape(
        "3 records in 12.3 s (1,279 records/s, 1.1 KB/s)"
    )
    assert shape("ISR 1,2,3") != shape("ISR 1,2")


def test_ports_are_moved_and_nothing_else() -> None:
    moved = at_port("tidelog up -n 3 at 127.0.0.1:9092, 9192, $((9291+L)), 20000", 15_000)
    assert moved == "tidelog up --port 15000 -n 3 at 127.0.0.1:15000, 15100, $((15199+L)), 20000"
