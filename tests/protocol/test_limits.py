"""Limits that contradict each other are refused before a node starts."""

from typing import Any

import pytest

from tidelog.protocol.errors import InvalidConfig
from tidelog.protocol.limits import MIB, Limits


@pytest.mark.parametrize(
    ("wrong", "fact"),
    [
        ({"max_connections": 0}, "max_connections is 0"),
        ({"max_head_bytes": 32 * MIB}, "max_head_bytes .* must not be above max_frame_bytes"),
        ({"max_request_bytes": 1 * MIB}, "max_frame_bytes .* must not be above max_request_bytes"),
        ({"receive_buffer_bytes": 100}, "at least 4096"),
    ],
)
def test_limits_that_cannot_work_are_refused(wrong: dict[str, Any], fact: str) -> None:
    with pytest.raises(InvalidConfig, match=fact):
        Limits(**wrong)


def test_the_shortest_time_limit_sets_how_often_they_are_looked_at() -> None:
    assert Limits().sweep_ms == 1000
    assert Limits().sweep_last_words_ms == 250
    assert Limits(idle_timeout_ms=100).sweep_ms == 25
