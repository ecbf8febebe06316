"""Options by keyword and by Kafka's names, and what is refused."""

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from tidelog.client.config import Address, addresses, client_config, from_options, option
from tidelog.client.io.client import connect
from tidelog.protocol.errors import InvalidConfig, Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A config of every kind of field."""

    linger_ms: int = option(5, low=0, high=1000)
    ratio: float = option(0.5, low=0, high=1)
    idempotent: bool = option(True, also=("enable.idempotence",))
    name: str = option("")
    acks: int | str = option("all", choices=(0, 1, "all"))
    isolation: Literal["read_committed", "read_uncommitted"] = option("read_uncommitted")
    limit: int | None = option(None, low=1)


@pytest.mark.parametrize(
    ("bootstrap", "expected"),
    [
        ("h1", [("h1", 9092)]),
        ("h1:1,h2:2", [("h1", 1), ("h2", 2)]),
        (" h1:1 , h1:1,", [("h1", 1)]),
        (["h1:1", "h2"], [("h1", 1), ("h2", 9092)]),
        ("[::1]:7", [("::1", 7)]),
        ("[::1]", [("::1", 9092)]),
        ("::1", [("::1", 9092)]),
    ],
)
def test_addresses_are_read(bootstrap: Any, expected: list[tuple[str, int]]) -> None:
    assert list(addresses(bootstrap)) == expected


@pytest.mark.parametrize(
    "bad", ["", ",", "h1:", "h1:x", "h1:0", "h1:65536", ":9092", "http://h1:1", "a b:1", []]
)
def test_what_is_no_address_is_named(bad: Any) -> None:
    with pytest.raises(InvalidConfig, match="bootstrap"):
        addresses(bad)


def test_an_address_is_written_as_it_is_read() -> None:
    assert str(Address("::1", 7)) == "[::1]:7"
    assert addresses(str(Address("::1", 7))) == (Address("::1", 7),)


def test_both_spellings_mean_the_same_field() -> None:
    assert from_options(Sample, {"linger_ms": 7}) == from_options(Sample, {}, {"linger.ms": "7"})
    assert from_options(Sample, {}, {"enable.idempotence": "false"}).idempotent is False


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"linger_ms": " 7 "}, "linger_ms", 7),
        ({"ratio": 1}, "ratio", 1),
        ({"ratio": "0.25"}, "ratio", 0.25),
        ({"acks": "1"}, "acks", 1),
        ({"acks": "ALL"}, "acks", "all"),
        ({"isolation": "read_committed"}, "isolation", "read_committed"),
        ({"limit": None}, "limit", None),
        ({"limit": 3}, "limit", 3),
    ],
)
def test_a_value_becomes_what_its_field_is(options: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(from_options(Sample, options), field) == value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"linger_ms": -1}, "linger_ms=-1: it must be a whole number from 0 to 1000"),
        ({"linger_ms": 1001}, "linger_ms=1001: it must be a whole number from 0 to 1000"),
        ({"linger_ms": "soon"}, "linger_ms='soon': it must be a whole number from 0 to 1000"),
        ({"linger_ms": True}, "linger_ms=True: it must be a whole number from 0 to 1000"),
        ({"linger_ms": 1.5}, "linger_ms=1.5: it must be a whole number from 0 to 1000"),
        ({"linger_ms": None}, "linger_ms=None: it must be a whole number from 0 to 1000"),
        ({"limit": 0}, "limit=0: it must be a whole number or None of at least 1"),
        ({"idempotent": 1}, "idempotent=1: it must be true or false"),
        ({"name": 1}, "name=1: it must be a text"),
        ({"acks": 2}, "acks=2: it must be one of 0, 1, all"),
        ({"acks": True}, "acks=True: it must be one of 0, 1, all"),
        ({"isolation": "none"}, "isolation='none': it must be one of read_committed, read_uncommitted"),
        ({"linger": 1}, "linger: there is no such option; the nearest is linger_ms"),
        ({"linger.m": 1}, "linger.m: there is no such option; the nearest is linger.ms"),
    ],
)
def test_a_refusal_names_the_option_its_value_and_what_is_accepted(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        from_options(Sample, options)
    assert str(caught.value) == message


def test_an_option_is_given_once() -> None:
    with pytest.raises(InvalidConfig, match="linger_ms is given twice"):
        from_options(Sample, {"linger_ms": 1}, {"linger.ms": 1})


@pytest.mark.parametrize(
    "options",
    [
        {"transactional_id": "t"},
        {"transactional.id": "t"},
        {"security.protocol": "SSL"},
        {"sasl.mechanism": "PLAIN"},
        {"ssl.cafile": "ca.pem"},
    ],
)
def test_what_is_not_there_yet_says_so(options: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match="leave it out"):
        from_options(Sample, options)


def test_no_transactional_id_is_no_transaction() -> None:
    assert from_options(Sample, {"transactional_id": None}) == Sample()


def test_a_client_is_told_its_time_outs_in_both_units() -> None:
    assert client_config("h", {"connect_timeout": 2.5}).connect_timeout_ms == 2500
    assert client_config("h", {}, {"request.timeout.ms": "70"}).request_timeout_ms == 70
    with pytest.raises(InvalidConfig, match="given twice"):
        client_config("h", {"connect_timeout": 1, "connect_timeout_ms": 1})
    with pytest.raises(InvalidConfig, match="number of seconds above 0"):
        client_config("h", {"connect_timeout": 0})


def test_the_bootstrap_list_is_no_option() -> None:
    with pytest.raises(InvalidConfig, match="bootstrap"):
        client_config("h", {"bootstrap": "h2"})
    with pytest.raises(InvalidConfig, match=r"bootstrap\.servers: there is no such option"):
        client_config("h", {}, {"bootstrap.servers": "h2"})


def test_waits_contradict_each_other_in_words() -> None:
    with pytest.raises(
        InvalidConfig, match=r"retry\.backoff\.ms=50: it must not be above retry\.backoff\.max\.ms=9"
    ):
        client_config("h", {"retry_backoff_max_ms": 9})


def test_connect_refuses_before_anything_is_connected() -> None:
    with pytest.raises(Unsupported, match="tls"):
        _ = connect("h", tls=True)
    with pytest.raises(Unsupported, match="auth"):
        _ = connect("h", auth=("user", "secret"))
    with pytest.raises(InvalidConfig, match="nearest is request_timeout_ms"):
        _ = connect("h", request_timeout=3)
    assert connect("h", rack="a", client_id="me").config.rack == "a"
    assert connect("h", config={"client.rack": "b"}).config.rack == "b"
    assert connect("h", rack="tidelog").config.rack == "tidelog"
    assert connect("h", client_id="").config.client_id == ""
    assert connect("h", config={"client.id": "me"}).config.client_id == "me"
