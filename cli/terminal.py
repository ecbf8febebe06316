"""What people read: lines, aligned columns, sizes, times, and bytes as text.

What it keeps true: output is streamed, whatever its length; what came from a file cannot send a terminal any
command, because control characters are escaped; a reader that goes away (`| head`) ends the program in silence.
Colours are click's, which leaves them out in a pipe; the root leaves them out for NO_COLOR.
"""

import contextlib
import os
import select
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from tidelog.cli.options import ENDED_BY
from tidelog.protocol.types import NO_TIMESTAMP

_WITHOUT_READER: Final = ENDED_BY + signal.SIGPIPE
_CHUNK_CHARACTERS: Final = 64 << 10
_ROWS_BEFORE_WIDTHS: Final = 200

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BACKSLASHED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Writer:
    """Lines to stdout, in pieces large enough for speed."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._characters = 0
        # A terminal that cannot show a character gets its escape.
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")

    def line(self, text: str = "") -> None:
        """One line more."""
        self._lines.append(text)
        self._characters += len(text) + 1
        if self._characters > _CHUNK_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        """Let go of all lines so far. Nobody reads them any more: the command is over, and that is no error."""
        lines, self._lines, self._characters = self._lines, [], 0
        if lines:
            try:
                click.echo("\n".join(lines))
            except BrokenPipeError:
                drop_stdout()
                raise click.exceptions.Exit(0) from None
            except OSError as error:
                raise click.ClickException(f"cannot write to stdout: {error.strerror}") from error


def drop_stdout() -> None:
    """What is still to be written goes nowhere, so that Python's own flush at exit neither waits nor complains."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def ended_with_its_reader() -> Iterator[None]:
    """For programs that are not done before all is said: a reader of stdout that goes away ends what is inside, in order
    and without a word, with the code of who is killed for that.
    """
    try:
        yield
    except BrokenPipeError:
        if not _nobody_reads():
            raise  # it was another pipe
        drop_stdout()
        sys.exit(_WITHOUT_READER)
    except SystemExit:
        if not _flushed():
            sys.exit(_WITHOUT_READER)
        raise
    except BaseException:
        _flushed()
        raise
    if not _flushed():
        sys.exit(_WITHOUT_READER)


def _flushed() -> bool:
    """Python would do it when nobody can catch anything any more; False: nobody reads."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
        return False
    return True


def _nobody_reads() -> bool:
    if sys.stdout is None:
        return False
    stdout = select.poll()
    stdout.register(sys.stdout, 0)  # an error, or that it was hung up on, is told unasked
    return bool(stdout.poll(0))


class Table:
    """Aligned columns that can be streamed: the first rows decide the widths, later ones may exceed them.

    A title that begins with `>` is set to the right, with its column. The last column may be as long as it likes.
    """

    def __init__(self, writer: Writer, titles: Sequence[str], indent: str = "") -> None:
        self._writer = writer
        self._titles = [title.lstrip(">") for title in titles]
        self._right = [title.startswith(">") for title in titles]
        self._indent = indent
        self._waiting: list[Sequence[str] | str] = []
        self._characters = 0
        self._widths: list[int] | None = None
        self._rows = 0

    def row(self, *cells: str) -> None:
        """One cell per column."""
        assert len(cells) == len(self._titles), cells
        self._rows += 1
        self._put(cells)

    def line(self, text: str) -> None:
        """A line of its own between two rows."""
        self._put(text)

    def end(self) -> None:
        """No row will follow."""
        if self._widths is None:
            self._settle()

    def _put(self, item: Sequence[str] | str) -> None:
        if self._widths is not None:
            self._print(item, self._widths)
            return
        self._waiting.append(item)
        self._characters += sum(map(len, item))
        if len(self._waiting) >= _ROWS_BEFORE_WIDTHS or self._characters > _CHUNK_CHARACTERS:
            self._settle()

    def _settle(self) -> None:
        rows = [self._titles, *(item for item in self._waiting if not isinstance(item, str))]
        self._widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        if self._rows:
            self._writer.line(click.style(self._aligned(self._titles, self._widths), bold=True))
        for item in self._waiting:
            self._print(item, self._widths)
        self._waiting.clear()

    def _print(self, item: Sequence[str] | str, widths: list[int]) -> None:
        self._writer.line(item if isinstance(item, str) else self._aligned(item, widths))

    def _aligned(self, cells: Sequence[str], widths: list[int]) -> str:
        aligned = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, self._right, strict=True)
        ]
        return (self._indent + "  ".join(aligned)).rstrip()


def typed(path: str | os.PathLike[str]) -> str:
    """The path as a word that a shell takes, for commands that are meant to be pasted."""
    return shlex.quote(click.format_filename(os.fspath(path)))


def size(count: int) -> str:
    """`812 B`, `4.5 KB`, `1.0 GB`: bytes, in powers of 1024."""
    if count < 1024:
        return f"{count} B"
    number = float(count)
    for unit in ("KB", "MB", "GB", "TB"):
        number /= 1024
        if number < 1023.95:
            return f"{number:.1f} {unit}"
    return f"{number / 1024:.1f} PB"


def many(count: int, thing: str, things: str = "") -> str:
    """`1 batch`, `2,048 batches`."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def time(timestamp_ms: int) -> str:
    """`2026-01-31 12:00:00.123` in UTC; `-` when there is none; the number itself when no calendar has it."""
    if timestamp_ms == NO_TIMESTAMP:
        return "-"
    try:
        at = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d}"


def time_on(timestamp_ms: int, on: str) -> str:
    """The time, without its day where that is `on`."""
    return time(timestamp_ms).removeprefix(f"{on} ") if on else time(timestamp_ms)


def span(first: int, end: int) -> str:
    """`offsets 0 to 75`, where `end` is exclusive; `no offsets` where there are none."""
    return f"offsets {first} to {end - 1}" if end > first else f"no offsets from {first} on"


def day(timestamp_ms: int) -> str:
    """`2026-01-31`: the day in UTC; empty for a time that no calendar has."""
    shown = time(timestamp_ms)
    return shown[:10] if ":" in shown else ""


def period(first_ms: int, last_ms: int, on: str = "") -> str:
    """`2026-01-31 12:00:00-12:00:07`: two times, the day left out where it is `on` or that of the first."""
    first, last = (_whole_seconds(at, on) for at in (first_ms, last_ms))
    if first == last:
        return first
    return f"{first}-{_whole_seconds(last_ms, day(first_ms))}"


def _whole_seconds(timestamp_ms: int, on: str) -> str:
    return time_on(timestamp_ms, on).partition(".")[0]


def printable(data: bytes) -> str:
    """The bytes as UTF-8; what is none of it, or what a terminal would obey or not show, as escapes."""
    text = data.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else "".join(map(_escaped, text))


def quoted(data: bytes | None, most: int = 0) -> str:
    """The bytes in quotes, at most so many characters of them; `null` is without."""
    if data is None:
        return "null"
    text = data if not most else data[: 4 * most]
    shown = printable(text.replace(b"\\", b"\\\\").replace(b"'", b"\\'"))
    if most and (len(shown) > most or len(text) < len(data)):
        return f"'{shown[:most]}'... ({size(len(data))})"
    return f"'{shown}'"


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return _BACKSLASHED.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
