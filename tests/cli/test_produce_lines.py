"""Lines out of pieces, and the account of those that were not written."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.produce.lines import Failed, Failures, Line, Lines, TooLong


def split(data: bytes, sizes: list[int], limit: int = 1 << 20) -> list[Line | TooLong]:
    """The lines, of pieces of these sizes."""
    lines, found = Lines(limit), []
    for size in sizes:
        found += list(lines.feed(data[:size]))
        data = data[size:]
    return [*found, *lines.feed(data), *lines.end()]


@given(st.lists(st.binary(max_size=5)), st.lists(st.integers(min_value=0, max_value=7), max_size=12))
def test_lines_are_the_same_however_they_come(parts: list[bytes], sizes: list[int]) -> None:
    data = b"\n".join(parts)
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert split(data, sizes) == [Line(number, line) for number, line in enumerate(expected, 1)]


def test_a_last_line_needs_no_end_and_an_empty_line_is_a_line() -> None:
    assert split(b"a\n\nb", []) == [Line(1, b"a"), Line(2, b""), Line(3, b"b")]
    assert split(b"a\n", []) == [Line(1, b"a")]
    assert split(b"", []) == []


def test_a_carriage_return_is_part_of_the_line() -> None:
    assert split(b"a\r\n", []) == [Line(1, b"a\r")]


def test_of_a_line_that_is_too_long_nothing_is_kept_but_its_length() -> None:
    lines = Lines(10)
    for _ in range(1000):
        assert list(lines.feed(b"x" * 4)) == []
        assert sum(map(len, lines._rest)) <= 10
    assert list(lines.feed(b"\nnext\n")) == [TooLong(1, 4000), Line(2, b"next")]


def test_neighbours_with_one_cause_are_told_in_one_sentence() -> None:
    failures = Failures()
    told = [
        failures.add(1, "full"),
        failures.add(2, "full"),
        failures.add(3, "full"),
        failures.add(4, "gone"),
        failures.add(6, "gone"),
        failures.end(),
        failures.end(),
    ]
    assert told == [None, None, None, Failed(1, 3, "full"), Failed(4, 4, "gone"), Failed(6, 6, "gone"), None]
    assert (str(told[3]), str(told[4]), failures.count) == ("lines 1 to 3: full", "line 4: gone", 5)
