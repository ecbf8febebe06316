"""What people type for offsets and times, and what it means in a partition."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.consume.ranges import (
    END,
    START,
    Bound,
    Extent,
    NoRange,
    Range,
    Where,
    extent,
    parse,
    times,
)
from tidelog.cli.times import period_ms, time_ms

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
NEW_YEAR_MS = 1_767_225_600_000


def at(ms: int) -> Bound:
    return Bound(Where.TIME, ms)


def offset(number: int) -> Bound:
    return Bound(Where.OFFSET, number)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("start", Range(START, None)),
        ("end", Range(END, None)),
        ("start:", Range(START, None)),
        ("10", Range(offset(10), None)),
        ("10:20", Range(offset(10), offset(20))),
        (":end", Range(START, END)),
        (":20", Range(START, offset(20))),
        ("-5", Range(Bound(Where.END, 5), None)),
        ("-5:end", Range(Bound(Where.END, 5), END)),
        ("start:-5", Range(START, Bound(Where.END, 5))),
        ("+2:+5", Range(Bound(Where.START, 2), Bound(Where.START, 5))),
        ("@-1h:end", Range(at(NOW_MS - HOUR_MS), END)),
        ("@-2h:@-1h", Range(at(NOW_MS - 2 * HOUR_MS), at(NOW_MS - HOUR_MS))),
        ("@2026-01-01T00:00:00Z", Range(at(NEW_YEAR_MS), None)),
        ("@2026-01-01T00:00:00Z:end", Range(at(NEW_YEAR_MS), END)),
        ("@2026-01-01:@2026-01-01T00:01", Range(at(NEW_YEAR_MS), at(NEW_YEAR_MS + 60_000))),
        ("@2026-01-01T01:00:00+01:00:1h", Range(at(NEW_YEAR_MS), at(NEW_YEAR_MS + HOUR_MS))),
        ("@2026-01-01:90s", Range(at(NEW_YEAR_MS), at(NEW_YEAR_MS + 90_000))),
        (f"@{NEW_YEAR_MS}", Range(at(NEW_YEAR_MS), None)),
        (f"@{NEW_YEAR_MS // 1000}:5", Range(at(NEW_YEAR_MS), offset(5))),
    ],
)
def test_a_range_means(text: str, meant: Range) -> None:
    assert parse(text, NOW_MS) == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no range"),
        (":", "is no range"),
        ("::", "is no range"),
        ("begin", "is no range: it is like start, end, 10:20"),
        ("1:2:3", "is no range"),
        ("2026-01-01", "a time begins with @"),
        ("@yesterday", "after @ stands a time: -1h, 2026-01-31"),
        ("@2026-13-01", "no calendar has that time"),
        ("20:10", "ends before it begins"),
        ("-5:-9", "ends before it begins"),
        ("@-1h:@-2h", "ends before it begins"),
        ("5:1h", "a period can only follow a time"),
        ("1.5", "is no range"),
    ],
)
def test_what_is_no_range_is_told_so(text: str, said: str) -> None:
    with pytest.raises(NoRange, match="^" + repr(text)[:-1]) as error:
        parse(text, NOW_MS)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("start", Extent(100, None)),
        ("end", Extent(150, None)),
        ("-5", Extent(145, None)),
        ("-500", Extent(100, None)),
        ("+5", Extent(105, None)),
        ("120:130", Extent(120, 130)),
        ("10:130", Extent(100, 130)),
        ("10:20", Extent(100, 100)),
        ("120:9000", Extent(120, 150)),
        (":end", Extent(100, 150)),
        (":-10", Extent(100, 140)),
        ("9000", Extent(9000, None)),
        ("9000:9001", Extent(9000, 9000)),
        ("@1970-01-02:end", Extent(110, 150)),
        ("@1970-01-03", Extent(150, None)),
        (":@1970-01-03", Extent(100, 150)),
    ],
)
def test_a_range_is_fixed_in_a_partition_from_100_to_150(text: str, meant: Extent) -> None:
    wanted = parse(text, NOW_MS)
    found = {86_400_000: 110, 2 * 86_400_000: -1}
    assert set(times(wanted)) <= set(found)
    assert extent(wanted, 100, 150, found) == meant


@given(st.text(alphabet="0123456789:+-@startendhTZ.", max_size=24))
def test_whatever_is_typed_is_a_range_or_refused(text: str) -> None:
    try:
        wanted = parse(text, NOW_MS)
    except NoRange:
        return
    found = extent(wanted, 5, 9, {})
    assert found.begin >= 5
    assert found.stop is None or found.stop >= found.begin


@given(st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(5000, 1, 1)))  # noqa: DTZ001 -- naive on purpose
def test_every_time_can_be_typed(when: datetime) -> None:
    typed = when.replace(microsecond=when.microsecond // 1000 * 1000, tzinfo=UTC)
    ms = round(typed.timestamp() * 1000)
    assert time_ms(typed.isoformat(), NOW_MS) == ms
    assert time_ms(typed.isoformat().removesuffix("+00:00"), NOW_MS) == ms


@pytest.mark.parametrize("text", ["9" * 19, "9" * 5000, f"-{'9' * 19}d", f"-{'9' * 400}ms"])
def test_a_time_that_no_record_can_have_is_none(text: str) -> None:
    assert time_ms(text, NOW_MS) is None
    with pytest.raises(NoRange):
        parse(f"@{text}:end", NOW_MS)


def test_every_time_in_a_range_can_be_sent() -> None:
    assert max(times(parse(f"@{'9' * 18}:{'9' * 17}ms", NOW_MS))) < 1 << 63
    with pytest.raises(NoRange):
        parse(f"@-1h:{'9' * 19}d", NOW_MS)


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("1.5h", 5_400_000), ("2d", 172_800_000), ("1min", 60_000), ("h", None)]
)
def test_periods(text: str, ms: int | None) -> None:
    assert period_ms(text) == ms
