"""What a node says on stderr: events with keys, for people on a terminal, as JSON lines elsewhere.

    16:20:01.250 INFO    broker.ready id=1 took_ms=181
    {"time": "2026-11-18T16:20:01.250Z", "level": "info", "event": "broker.ready", "id": 1, "took_ms": 181}

The product logs `event.name key=value ...` with logging's own placeholders. A record's fields are taken from that
template, not from the finished line: no value can pretend to be another field.

What it keeps true: an event that repeats itself does not bury the others (`Moderation`); no value sends a terminal a
command; a stderr that nobody reads any more disturbs nothing.
"""

import json
import logging
import os
import re
import select
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

_EVENT: Final = re.compile(r"%s|(?:%s|[a-z][a-z0-9_]*)(?:\.[a-z0-9_]+)+")
_FIELD: Final = re.compile(r"(?:^|(?<=\s))([a-z][a-z0-9_]*)=")
_PLACEHOLDER: Final = re.compile(r"%(?:%|[-+ #0]*\d*(?:\.\d+)?[a-zA-Z])")
_PLAIN: Final = re.compile(r"[^\s\"'=]+")

BURST: Final = 8
EVERY_S: Final = 30.0
"""An event may come `BURST` times in a row, and then once in so many seconds; how many were left out is said."""


class Part(NamedTuple):
    """One field of a template: its name, the text of its value, and how many arguments that takes."""

    name: str
    text: str
    takes: int


@lru_cache(maxsize=512)
def parts_of(template: str) -> tuple[Part, ...]:
    """The event of a template, and its fields; a text that has no name is the `message`."""
    event, _, rest = template.partition(" ")
    if not _EVENT.fullmatch(event):
        return (_part("event", ""), _part("message", template))
    found = list(_FIELD.finditer(rest))
    starts = [*(match.start() for match in found), len(rest)]
    parts = [_part("event", event), _part("message", rest[: starts[0]].strip())]
    for match, end in zip(found, starts[1:], strict=True):
        name = match[1] if match[1] != "event" else "event_"
        parts.append(_part(name, rest[match.end() : end].strip()))
    return tuple(part for part in parts if part.text or part.name == "event")


def _part(name: str, text: str) -> Part:
    return Part(name, text, sum(match != "%%" for match in _PLACEHOLDER.findall(text)))


def fields_of(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """The event of a record and its fields, numbers as numbers."""
    template, args = str(record.msg), record.args
    parts = parts_of(template)
    if not isinstance(args, tuple | None) or sum(part.takes for part in parts) != len(args or ()):
        return record.name, {"message": record.getMessage()}
    args = args or ()
    fields: dict[str, Any] = {}
    at = 0
    for part in parts:
        given, at = args[at : at + part.takes], at + part.takes
        whole = part.takes == 1 and _PLACEHOLDER.fullmatch(part.text)
        if whole and isinstance(given[0], bool | int | float | str) and part.text[-1] in "srd":
            fields[part.name] = int(given[0]) if part.text[-1] == "d" else given[0]
        else:
            fields[part.name] = part.text % given if args else part.text
    return fields.pop("event") or record.name, fields


class Json(logging.Formatter):
    """One JSON object per line; in ASCII, so that it passes everywhere."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        event, fields = fields_of(record)
        said = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": said.strftime("%Y-%m-%dT%H:%M:%S.") + f"{said.microsecond // 1000:03d}Z",
            "level": record.levelname.lower(),
            "event": event,
        }
        line |= {name if name not in line else f"{name}_": value for name, value in fields.items()}
        if record.exc_info:
            line["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line)


class Pretty(logging.Formatter):
    """Time of day, level, event, and its fields as key=value."""

    _COLOURS: Final = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback below it if there is one."""
        event, fields = fields_of(record)
        said = datetime.fromtimestamp(record.created).astimezone()
        words = [
            said.strftime("%H:%M:%S.") + f"{said.microsecond // 1000:03d}",
            self._in(self._COLOURS.get(record.levelname, ""), f"{record.levelname:<7}"),
            self._in("1", event),
        ]
        for name, value in fields.items():
            words.append(_shown(value) if name == "message" else self._in("2", f"{name}=") + _quoted(value))
        line = " ".join(words)
        if record.exc_info:
            trace = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            line += "\n" + "\n".join(map(_shown, trace.split("\n")))
        return line

    def _in(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code else text


def _shown(value: object) -> str:
    """Without anything that a terminal would obey."""
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _quoted(value: object) -> str:
    text = _shown(value)
    return text if _PLAIN.fullmatch(text) else f'"{text}"'


# ── no storms ─────────────────────────────────────────────────────────────────────────────────────────


class _Bucket:
    """How much of one event may still be said."""

    __slots__ = ("left", "left_out", "since")

    def __init__(self, now: float) -> None:
        self.left = float(BURST)
        self.since = now
        self.left_out = 0


class Moderation(logging.Filter):
    """Lets an event through while it is rare. What is critical, or has a traceback, always passes."""

    def __init__(self) -> None:
        super().__init__()
        self._buckets: dict[str, _Bucket] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this one is said; the one that comes after others were left out says how many."""
        if record.levelno >= logging.CRITICAL or record.exc_info:
            return True
        now, key = record.created, str(record.msg)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(now)
        bucket.left = min(bucket.left + max(now - bucket.since, 0) / EVERY_S, BURST)
        bucket.since = now
        if bucket.left < 1:
            bucket.left_out += 1
            return False
        bucket.left -= 1
        if bucket.left_out and isinstance(record.args, tuple):
            record.msg, record.args = f"{key} left_out=%d", (*record.args, bucket.left_out)
            bucket.left_out = 0
        return True

    def summary(self) -> Iterator[tuple[str, int]]:
        """Events of which some were left out since anybody heard of them, and how many; once."""
        for key, bucket in list(self._buckets.items()):  # who says it may say something new
            if bucket.left_out:
                left_out, bucket.left_out = bucket.left_out, 0
                yield parts_of(key)[0].text or key, left_out


class Stderr(logging.Handler):
    """Lines to a file descriptor. Where nobody reads, nothing is said, and nothing waits.

    A pipe that is full would stop the whole node until somebody reads it. One that is ready takes `PIPE_BUF` bytes, so
    that much is written at a time.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._unsaid = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, if there is room for it."""
        line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
        if self._unsaid:
            line = f"({self._unsaid} lines before this one were not read in time)\n".encode() + line
        try:
            said = self._write(line)
        except (OSError, ValueError):
            return  # it was closed: there is nobody to tell
        self._unsaid = 0 if said else self._unsaid + 1

    def _write(self, line: bytes) -> bool:
        """Whether there was room for at least the beginning."""
        for at in range(0, len(line), select.PIPE_BUF):
            if not select.select((), (self._descriptor,), (), 0)[1]:
                return at > 0
            os.write(self._descriptor, line[at : at + select.PIPE_BUF])
        return True


def set_up(level: str, layout: str, *, colour: bool) -> Moderation:
    """Let everything that is logged in this process go to stderr, moderated. `auto` is JSON but on a terminal."""
    on_terminal = sys.stderr.isatty()
    pretty = on_terminal if layout == "auto" else layout == "pretty"
    handler, moderation = Stderr(sys.stderr.fileno()), Moderation()
    handler.setFormatter(Pretty(colour=colour and on_terminal) if pretty else Json())
    handler.addFilter(moderation)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    return moderation
