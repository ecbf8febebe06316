"""What can be the name of a host."""

import pytest

from tidelog.protocol.hosts import is_host

NONE = ("", "a..b", ".a", "a" * 64, "\ud800", "a\0b")
"""No name of a host, each in its own way."""


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "::1", "fe80::1%eth0", "a.", "b_1.example", "bücher.example"]
)
def test_what_can_be_looked_up_is_a_host(host: str) -> None:
    assert is_host(host)


@pytest.mark.parametrize("host", NONE)
def test_what_nobody_could_look_up_is_none(host: str) -> None:
    assert not is_host(host)
