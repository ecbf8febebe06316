"""Points in time as people type them. Pure: now is an argument.

2026-01-31   2026-01-31T12:00   2026-01-31T12:00:00.5Z   2026-01-31T12:00+02:00     UTC, unless it says
1767225600000   1767225600                                                          ms or s since 1970
-1h   -30m   -1.5d                                                                  so long ago
"""

import re
from datetime import UTC, datetime
from typing import Final

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_DIGITS_MOST: Final = 18
"""Thirty million years in ms. Twice as much still goes onto the wire."""
_DAY: Final = r"\d{4}-\d\d-\d\d"
_CLOCK: Final = r"[Tt ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,6})?)?"
_ZONE: Final = r"(?:[Zz]|[+-]\d\d:?\d\d)"
PERIOD: Final = r"\d+(?:\.\d+)?(?:ms|min|[smhdw])"
"""`90s`, `1.5h`."""
TIME: Final = rf"(?:-{PERIOD}|{_DAY}(?:{_CLOCK})?{_ZONE}?|\d+)"
"""A point in time, as a part of a larger pattern."""
ACCEPTED: Final = "2026-01-31, 2026-01-31T12:00:00Z, -1h, or milliseconds since 1970"

_SECONDS_BELOW: Final = 100_000_000_000
"""Smaller numbers are seconds (up to the year 5138), larger ones milliseconds (from 1973 on)."""


def period_ms(text: str) -> int | None:
    """`90s`, `1.5h` in milliseconds; None: it is no such thing, or longer than any calendar."""
    if re.fullmatch(PERIOD, text) is None:
        return None
    number = text.rstrip("msinhdw")
    length_ms = float(number) * _UNITS_MS[text[len(number) :]]
    return round(length_ms) if length_ms < 10**_DIGITS_MOST else None


def time_ms(text: str, now_ms: int) -> int | None:
    """The time in milliseconds since 1970; None: it is none."""
    if re.fullmatch(TIME, text) is None:
        return None
    if text.isdecimal():
        if len(text) > _DIGITS_MOST:
            return None
        return int(text) if int(text) >= _SECONDS_BELOW else int(text) * 1000
    if text.startswith("-"):
        ago_ms = period_ms(text[1:])
        return None if ago_ms is None else max(now_ms - ago_ms, 0)
    try:
        at = datetime.fromisoformat(text.upper().replace(",", "."))
    except ValueError:
        return None
    return max(round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000), 0)
