"""Which process a number means, and how a foreign one is shown."""

import os
import signal

import pytest

from tidelog.cli.local.identity import Incarnation, began, shortened


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["redis-server", "*:6379"], "redis-server *:6379"),
        (
            ["/usr/bin/python", "-m", "tidelog", "controller", "start", "--id", "1", "--data", "d" * 60],
            "/usr/bin/python -m tidelog controller start --id 1 ...",
        ),
        (["a" * 90, "--port", "1"], f"{'a' * 90} ..."),
    ],
)
def test_a_foreign_command_line_is_not_cut_within_an_option(words: list[str], shown: str) -> None:
    assert shortened(words) == shown


def test_a_process_is_known_by_more_than_its_number() -> None:
    mine = began(os.getpid())
    assert mine is not None
    assert Incarnation(os.getpid(), mine).alive
    other = Incarnation(os.getpid(), "another time")
    assert not other.alive
    assert not other.signal(signal.SIGWINCH)
