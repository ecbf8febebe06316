"""How `tidelog consume` prints records: values as text, JSON lines, the console consumer's lines, or by a format.

What it keeps true: a record is one line, whatever bytes it has, in every layout but `-f`. What could command a
terminal is escaped there; `-f` gives the very bytes, unless it is a terminal that they would go to.
"""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import click
import msgspec

from tidelog.cli.objects import as_json
from tidelog.cli.options import Layout
from tidelog.cli.terminal import Writer, drop_stdout, printable
from tidelog.protocol.records import Record

Show: TypeAlias = Callable[[Record], None]

TOKENS: Final = {
    "t": "the topic",
    "p": "the partition",
    "o": "the offset",
    "k": "the key",
    "s": "the value",
    "T": "the time, in ms since 1970",
    "h": "the headers, as name=value,...",
    "K": "the key's length, -1: none",
    "S": "the value's length, -1: none",
}
"""kcat's."""

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\", "e": b"\x1b"}
_PIECE: Final = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)", re.DOTALL)
_CHUNK: Final = 64 << 10


class NoFormat(ValueError):
    """What was typed is no format; the message says why."""


def parse_format(text: str) -> list[str | bytes]:
    """The pieces: tokens as their letter, all else as bytes. NoFormat names what is none."""
    pieces: list[str | bytes] = []
    at = 0
    for found in _PIECE.finditer(text):
        if found.start() > at:
            pieces.append(_encoded(text[at : found.start()]))
        at = found.end()
        letter, code, escaped = found.groups()
        if code is not None:
            pieces.append(bytes.fromhex(code))
        elif letter is not None:
            pieces.append(_token(letter))
        elif escaped not in _ESCAPES:
            raise NoFormat(f"\\{escaped} is no escape: there are \\n, \\t, \\r, \\0, \\e, \\\\ and \\x00")
        else:
            pieces.append(_ESCAPES[escaped])
    if at < len(text):
        pieces.append(_encoded(text[at:]))
    return pieces


def _token(letter: str) -> str | bytes:
    if letter == "%":
        return b"%"
    if letter not in TOKENS:
        known = ", ".join(f"%{each} {what}" for each, what in TOKENS.items())
        raise NoFormat(f"%{letter} is unknown: there are {known}, and %% for a %")
    return letter


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def rendered(pieces: Sequence[str | bytes], record: Record) -> bytes:
    """The record in that format; what is null is empty."""
    return b"".join(piece if isinstance(piece, bytes) else _field(piece, record) for piece in pieces)


def _field(letter: str, record: Record) -> bytes:
    if letter == "k":
        return record.key or b""
    if letter == "s":
        return record.value or b""
    if letter == "h":
        return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)
    if letter in "KS":
        data = record.key if letter == "K" else record.value
        return str(-1 if data is None else len(data)).encode()
    field = {"t": "topic", "p": "partition", "o": "offset", "T": "timestamp_ms"}[letter]
    return str(getattr(record, field)).encode()


class Raw:
    """Bytes to stdout, in pieces large enough for speed; to a terminal as text that cannot command it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._terminal = sys.stdout.isatty()

    def write(self, data: bytes) -> None:
        """So many bytes more."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > _CHUNK:
            self.flush()

    def flush(self) -> None:
        """Let go of all so far; nobody reads it any more: the command is over, and that is no error."""
        data, self._parts, self._size = b"".join(self._parts), [], 0
        if not data:
            return
        try:
            if self._terminal:
                click.echo(safe(data), nl=False)
            else:
                click.echo(data, nl=False)
        except BrokenPipeError:
            drop_stdout()
            raise click.exceptions.Exit(0) from None
        except OSError as error:
            raise click.ClickException(f"cannot write to stdout: {error.strerror}") from error


def safe(data: bytes) -> str:
    """The bytes as text: line ends and tabs stay, what else is not printable is escaped."""
    return re.sub(
        r"[^\n\t]+",
        lambda found: printable(found[0].encode("utf-8", "surrogateescape")),
        data.decode("utf-8", "surrogateescape"),
    )


def line(data: bytes | None) -> str:
    """A value as one line: tabs stay, what else is not printable is escaped, and `null` is none."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    else:
        if text.isprintable():
            return text
    return "\t".join(printable(part) for part in data.split(b"\t"))


# ── layouts ───────────────────────────────────────────────────────────────────────────────────────────


def by_format(raw: Raw, text: str) -> Show:
    """Each record as the format says; a line's end only where it stands in it."""
    pieces = parse_format(text)
    return lambda record: raw.write(rendered(pieces, record))


def by_layout(asked: Layout, writer: Writer) -> Show:
    """Each record as a line."""
    if asked == "json":
        return _as_json(writer)
    if asked == "kafka":
        return lambda record: writer.line(_as_kafka(record))
    return lambda record: writer.line(line(record.value))


def _as_kafka(record: Record) -> str:
    """kafka-console-consumer with print.timestamp, print.partition, print.offset and print.key."""
    return (
        f"CreateTime:{record.timestamp_ms}\tPartition:{record.partition}\tOffset:{record.offset}\t"
        f"{line(record.key)}\t{line(record.value)}"
    )


def _as_json(writer: Writer) -> Show:
    encode = msgspec.json.Encoder().encode

    def show(record: Record) -> None:
        writer.line(
            encode(
                {
                    "type": "record",
                    "topic": record.topic,
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp_ms": record.timestamp_ms,
                    **as_json("key", record.key),
                    **as_json("value", record.value),
                    "headers": [{"name": name, **as_json("value", value)} for name, value in record.headers],
                }
            ).decode()
        )

    return show
