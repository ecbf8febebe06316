"""How records look: formats of kcat, and bytes that a terminal must not obey."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.consume.filters import NoPattern, records_with
from tidelog.cli.consume.formats import NoFormat, by_layout, line, parse_format, rendered, safe
from tidelog.cli.terminal import Writer
from tidelog.protocol.records import Record

RECORD = Record("orders", 3, 17, 1_700_000_000_123, b"k", b"v\xff", (("a", b"1"), ("b", None)))
NULLS = Record("orders", 0, 0, 0, None, None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("%t-%p@%o", b"orders-3@17"),
        ("%k=%s\\n", b"k=v\xff\n"),
        ("%T %h", b"1700000000123 a=1,b="),
        ("%K %S", b"1 2"),
        ("100%%", b"100%"),
        ("\\t\\\\\\x41\\0", b"\t\\A\0"),
        ("größe", "größe".encode()),
        ("", b""),
    ],
)
def test_a_format_is_kcats(text: str, shown: bytes) -> None:
    assert rendered(parse_format(text), RECORD) == shown


def test_nothing_is_empty_and_its_length_is_minus_one() -> None:
    assert rendered(parse_format("[%k|%s|%h|%K|%S]"), NULLS) == b"[|||-1|-1]"


@pytest.mark.parametrize(
    ("text", "said"), [("%q", "%q is unknown"), ("5%", "% is unknown"), ("\\y", "\\y is no escape")]
)
def test_what_is_no_format_is_named(text: str, said: str) -> None:
    with pytest.raises(NoFormat) as error:
        parse_format(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (None, "null"),
        (b"", ""),
        ("größe".encode(), "größe"),
        (b"a\tb", "a\tb"),
        (b"a\nb", "a\\nb"),
        (b"\xff\x00", "\\xff\\x00"),
        (b"\x1b[2J", "\\x1b[2J"),
    ],
)
def test_a_value_is_one_line(data: bytes | None, shown: str) -> None:
    assert line(data) == shown


@given(st.binary(max_size=40))
def test_no_value_can_command_a_terminal(data: bytes) -> None:
    assert line(data).replace("\t", "").isprintable()
    assert safe(data).replace("\t", "").replace("\n", "").isprintable()


def test_json_has_text_or_base64_and_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer()
    show = by_layout("json", writer)
    show(RECORD)
    show(NULLS)
    writer.flush()
    one, other = map(json.loads, capsys.readouterr().out.splitlines())
    assert one == {
        "type": "record",
        "topic": "orders",
        "partition": 3,
        "offset": 17,
        "timestamp_ms": 1_700_000_000_123,
        "key": "k",
        "value": "dv8=",
        "value_encoding": "base64",
        "headers": [{"name": "a", "value": "1"}, {"name": "b", "value": None}],
    }
    assert (other["key"], other["value"], other["headers"]) == (None, None, [])


@pytest.mark.parametrize(
    ("key", "grep", "headers", "kept"),
    [
        ("k", None, [], True),
        ("", None, [], False),
        (None, "^v", [], True),
        (None, "x", [], False),
        (None, None, ["a"], True),
        (None, None, ["a=1", "b"], True),
        (None, None, ["a=2"], False),
        (None, None, ["b="], False),
        ("k", "v", ["c"], False),
    ],
)
def test_all_conditions_must_hold(key: str | None, grep: str | None, headers: list[str], kept: bool) -> None:
    keep = records_with(key, grep, headers)
    assert keep is not None
    assert keep(RECORD) is kept


def test_without_conditions_nothing_is_looked_at() -> None:
    assert records_with(None, None, []) is None


def test_a_value_that_is_null_is_never_found() -> None:
    keep = records_with(None, "", [])
    assert keep is not None
    assert not keep(NULLS)


def test_a_broken_expression_is_refused() -> None:
    with pytest.raises(NoPattern, match="is no regular expression"):
        records_with(None, "(", [])
