"""Which offsets `tidelog consume` reads, as people type them. Pure: now is an argument.

    start         from the first record on            end         from now on: what comes
    10:20         the offsets 10 to 19                10          from offset 10 on
    :end          all that is there now               start:+5    the first five
    -5            the last five, and what comes       -5:end      the last five
    @-1h:end      the last hour                       @2026-01-01T00:00:00Z      from that time on
    @2026-01-31:@2026-02-01     a day                 @2026-01-31:6h             six hours from then

A range is FROM, FROM:TO, FROM: or :TO; TO is exclusive. Every bound is taken in each partition by itself: `-5` are
five records of each. A range with a TO ends there; one without goes on for ever.
"""

import re
from enum import Enum
from typing import Final, NamedTuple

from tidelog.cli.times import PERIOD, TIME, period_ms, time_ms

EXAMPLES: Final = "start, end, 10:20, :end, -5, @-1h:end, @2026-01-01T00:00:00Z"


class Where(Enum):
    """What a bound is counted from."""

    OFFSET = "offset"
    START = "start"
    """So many behind the first record."""
    END = "end"
    """So many before the end."""
    TIME = "time"
    """The first record at that time in ms or later; the end, if there is none."""


class Bound(NamedTuple):
    """One end of a range."""

    where: Where
    number: int = 0


class Range(NamedTuple):
    """Which offsets are read."""

    begin: Bound
    stop: Bound | None
    """None: it goes on for ever."""


class Extent(NamedTuple):
    """The same in one partition, in offsets."""

    begin: int
    stop: int | None


START: Final = Bound(Where.START)
END: Final = Bound(Where.END)

_BOUND: Final = rf"start|end|[+-]?\d+|@{TIME}"
_RANGE: Final = re.compile(rf"(?P<begin>{_BOUND})?(?:(?P<colon>:)(?P<stop>{_BOUND}|{PERIOD})?)?")


class NoRange(ValueError):
    """What was typed is no range; the message says why."""


def parse(text: str, now_ms: int) -> Range:
    """The range; NoRange says what is wrong with it."""
    found = _RANGE.fullmatch(text)
    if found is None or not text.strip(":"):
        raise NoRange(f"{text!r} is no range: it is like {EXAMPLES}{_hint(text)}")
    begin = START if found["begin"] is None else _bound(found["begin"], now_ms)
    stop = None if found["stop"] is None else _stop(found["stop"], begin, text, now_ms)
    if stop is not None and stop.where is begin.where and _before(stop, begin):
        raise NoRange(f"{text!r} ends before it begins")
    return Range(begin, stop)


def _stop(text: str, begin: Bound, whole: str, now_ms: int) -> Bound:
    if re.fullmatch(PERIOD, text) is None:
        return _bound(text, now_ms)
    if begin.where is not Where.TIME:
        raise NoRange(f"{whole!r}: a period can only follow a time, as in @2026-01-01:{text}")
    length_ms = period_ms(text)
    if length_ms is None:
        raise NoRange(f"{whole!r}: no calendar has a period of {text}")
    return Bound(Where.TIME, begin.number + length_ms)


def _bound(text: str, now_ms: int) -> Bound:
    if text == "start":
        return START
    if text == "end":
        return END
    if text.startswith("@"):
        at_ms = time_ms(text[1:], now_ms)
        if at_ms is None:
            raise NoRange(f"{text!r}: no calendar has that time")
        return Bound(Where.TIME, at_ms)
    sign, number = text[0], int(text.lstrip("+-"))
    return Bound({"-": Where.END, "+": Where.START}.get(sign, Where.OFFSET), number)


def _before(stop: Bound, begin: Bound) -> bool:
    # Counted from the end, the larger number is the earlier one.
    return stop.number > begin.number if stop.where is Where.END else stop.number < begin.number


def _hint(text: str) -> str:
    if re.search(r"\d{4}-\d\d", text) and "@" not in text:
        return "; a time begins with @"
    if text.startswith("@"):
        return "; after @ stands a time: -1h, 2026-01-31, 2026-01-31T12:00:00Z, or ms since 1970"
    return ""


def extent(wanted: Range, start: int, end: int, at: "dict[int, int]") -> Extent:
    """The range in a partition that holds the offsets from `start` to before `end`; `at`: where times begin there.

    A range may begin beyond the end: whatever comes before it is then no part of it.
    """
    begin = max(_offset(wanted.begin, start, end, at), start)
    stop = None if wanted.stop is None else _offset(wanted.stop, start, end, at)
    return Extent(begin, None if stop is None else max(min(stop, end), begin))


def _offset(bound: Bound, start: int, end: int, at: "dict[int, int]") -> int:
    if bound.where is Where.START:
        return start + bound.number
    if bound.where is Where.END:
        return max(end - bound.number, start)
    if bound.where is Where.TIME:
        found = at.get(bound.number, -1)
        return end if found < 0 else found
    return bound.number


def times(wanted: Range) -> list[int]:
    """The times that have to be looked up."""
    bounds = [wanted.begin] + ([wanted.stop] if wanted.stop is not None else [])
    return sorted({bound.number for bound in bounds if bound.where is Where.TIME})
