"""Which records `tidelog consume` shows: by key, by what is in the value, by header. All conditions must hold."""

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tidelog.protocol.records import Record

Keep: TypeAlias = Callable[[Record], bool]


class NoPattern(ValueError):
    """What was typed is no regular expression; the message says why."""


def records_with(key: str | None, grep: str | None, headers: Sequence[str]) -> Keep | None:
    """Whether a record is wanted; None: all are. Keys, values and headers are compared as bytes."""
    conditions: list[Keep] = []
    if key is not None:
        wanted = _bytes(key)
        conditions.append(lambda record: record.key == wanted)
    if grep is not None:
        try:
            search = re.compile(_bytes(grep)).search
        except re.error as error:
            raise NoPattern(f"{grep!r} is no regular expression: {error}") from error
        conditions.append(lambda record: record.value is not None and search(record.value) is not None)
    conditions += [_header(text) for text in headers]
    if not conditions:
        return None
    return lambda record: all(holds(record) for holds in conditions)


def _header(text: str) -> Keep:
    name, equals, value = text.partition("=")
    wanted = _bytes(value)
    if not equals:
        return lambda record: any(each == name for each, _ in record.headers)
    return lambda record: any(each == name and found == wanted for each, found in record.headers)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
