"""Options that every verb of every noun understands, in front of the noun or behind the verb.

    tidelog -o json log segments DIR        tidelog log segments DIR -o json

The one behind the verb wins. What a verb cannot do is refused by name, never ignored.
"""

import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import click

from tidelog.protocol.hosts import is_host

Layout: TypeAlias = Literal["text", "json", "kafka"]
"""How stdout looks: tables for people, JSON lines for programs, Kafka's tools' own lines for habits."""

LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)

_KEY: Final = "tidelog.layout"

ENDED_BY: Final = 128
"""The exit code of whoever is ended by a signal, without its number: the shell's habit. Who has sent it wants no wait."""
BOOTSTRAP: Final = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE: Final = "TIDELOG_BOOTSTRAP"
_BOOTSTRAP_KEY: Final = "tidelog.bootstrap"
TIMEOUT_S: Final = 5.0
CHANGE_TIMEOUT_S: Final = 30.0
"""For what changes something: until it is usable everywhere, not only until it is decided."""
TIMEOUT_S_MAX: Final = 2_147_483
"""As many milliseconds as a time-out of the client may have, which are 24 days."""
_TIMEOUT_KEY: Final = "tidelog.timeout"
_SETTINGS_KEY: Final = "tidelog.settings"
_VERBOSE_KEY: Final = "tidelog.verbose"

Callback = TypeVar("Callback", bound=Callable[..., Any] | click.Command)


def output_option(callback: Callback) -> Callback:
    """Add `-o`; the verb asks `layout` what was said."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(LAYOUTS),
        expose_value=False,
        callback=_remember,
        help="Tables, JSON lines, or the lines of Kafka's own tools. [default: text]",
    )(callback)


def layout(ctx: click.Context, *offered: Layout) -> Layout:
    """The layout that was asked for, which must be one of those that the verb has."""
    asked: Layout = ctx.meta.get(_KEY, "text")
    if asked not in offered:
        others = " or ".join(f"-o {name}" for name in offered)
        raise click.UsageError(f"`{ctx.command_path}` has no {asked} layout: use {others}", ctx)
    return asked


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Number(click.FloatRange):
    """A number that can be counted with: `nan` and `inf` are numbers to Python."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """It."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


class Seconds(Number):
    """How long something may take: as long as anybody can wait for it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """So many."""
        seconds = super().convert(value, param, ctx)
        if seconds > TIMEOUT_S_MAX:
            self.fail(f"{value} is no number of seconds up to {TIMEOUT_S_MAX}", param, ctx)
        return seconds


def connection_options(callback: Callback) -> Callback:
    """Add `-b`, `-X`, `-v` and `--timeout`; the verb asks `bootstrap`, `pairs`, ... what was said."""
    waits = f"How long an answer may take. [default: {TIMEOUT_S:g}, {CHANGE_TIMEOUT_S:g} for a change]"
    return connection_options_with(waits)(callback)


def connection_options_with(waits: str) -> Callable[[Callback], Callback]:
    """The same, for a verb of which `--timeout` says something else."""

    def add(callback: Callback) -> Callback:
        return _add_connection_options(callback, waits)

    return add


def _add_connection_options(callback: Callback, waits: str) -> Callback:
    verbose = click.option(
        "-v",
        "--verbose",
        count=True,
        expose_value=False,
        callback=_remember_verbose,
        help="Tell on stderr what the client does; twice: everything.",
    )
    settings = click.option(
        "-X",
        "pairs",
        metavar="KEY=VALUE",
        multiple=True,
        expose_value=False,
        callback=_remember_settings,
        help="A setting of the client, the producer or the consumer, by Kafka's name; repeatable.",
    )
    timeout = click.option(
        "--timeout",
        type=Seconds(min=0, min_open=True),
        metavar="SECONDS",
        expose_value=False,
        callback=_remember_timeout,
        help=waits,
    )
    where = click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT,...",
        expose_value=False,
        callback=_remember_bootstrap,
        help=f"Where the cluster is: brokers of it. [env: {BOOTSTRAP_VARIABLE}; default: {BOOTSTRAP}]",
    )
    return where(settings(timeout(verbose(callback))))


def bootstrap(ctx: click.Context) -> list[Address]:
    """Where to ask: what was said, or the environment says, or the default."""
    said: list[Address] | None = ctx.meta.get(_BOOTSTRAP_KEY)
    if said is not None:
        return said
    return _addresses(os.environ.get(BOOTSTRAP_VARIABLE) or BOOTSTRAP, f"{BOOTSTRAP_VARIABLE}=", ctx)


def timeout_ms(ctx: click.Context, default_s: float = TIMEOUT_S) -> float:
    """How long an answer may take."""
    seconds: float = ctx.meta.get(_TIMEOUT_KEY, default_s)
    return seconds * 1000


def pairs(ctx: click.Context) -> dict[str, str]:
    """What was said with `-X`."""
    said: dict[str, str] = ctx.meta.get(_SETTINGS_KEY, {})
    return said


def refuse_settings(ctx: click.Context, verbs: Sequence[str]) -> None:
    """Refuse `-X` in front of a noun or verb that has settings of its own, or none: they would be ignored."""
    if pairs(ctx) and ctx.invoked_subcommand in verbs:
        raise click.UsageError(
            f"-X in front of `{ctx.invoked_subcommand}` is nobody's: say it behind, if that has settings", ctx
        )


def verbose(ctx: click.Context) -> int:
    """How often `-v` was said."""
    said: int = ctx.meta.get(_VERBOSE_KEY, 0)
    return said


def can_be_sent(name: str) -> bool:
    """Whether a message takes it for a topic's name, whatever the cluster says of it then."""
    # Imported here because a help page must not pay for it.
    from tidelog.protocol.messages.shapes import TOPIC_NAME_MAX  # noqa: PLC0415

    return is_text(name) and len(name) <= TOPIC_NAME_MAX


def is_text(said: str) -> bool:
    """Whether what was typed is UTF-8: Python lets other bytes pass in disguise, and nothing can be sent so."""
    try:
        said.encode()
    except UnicodeEncodeError:
        return False
    return True


def key_values(texts: Sequence[str], option: str, ctx: click.Context) -> dict[str, str]:
    """What was said as KEY=VALUE, each key once."""
    found: dict[str, str] = {}
    for text in texts:
        if not is_text(text):
            raise click.UsageError(f"{option} {text!r} is no UTF-8".strip(), ctx)
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise click.UsageError(f"{option} {text} is no KEY=VALUE".strip(), ctx)
        if key in found:
            raise click.UsageError(f"{option} {key} is given twice".strip(), ctx)
        found[key] = value
    return found


def _addresses(text: str, where: str, ctx: click.Context) -> list[Address]:
    found = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        host, colon, port = word.rpartition(":")
        if not (colon and is_host(host) and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise click.UsageError(f"{where}{word} is no HOST:PORT, as {BOOTSTRAP} is", ctx)
        found.append(Address(host.removeprefix("[").removesuffix("]"), int(port)))
    if not found:
        raise click.UsageError(f"{where}{text} names nobody: it must be HOST:PORT, as {BOOTSTRAP}", ctx)
    return found


def _remember_bootstrap(ctx: click.Context, _option: click.Parameter, asked: str | None) -> None:
    if asked is not None:
        ctx.meta[_BOOTSTRAP_KEY] = _addresses(asked, "--bootstrap ", ctx)


def _remember_timeout(ctx: click.Context, _option: click.Parameter, asked: float | None) -> None:
    if asked is not None:
        ctx.meta[_TIMEOUT_KEY] = asked


def _remember_verbose(ctx: click.Context, _option: click.Parameter, count: int) -> None:
    ctx.meta[_VERBOSE_KEY] = count + verbose(ctx)


def _remember_settings(ctx: click.Context, _option: click.Parameter, texts: Sequence[str]) -> None:
    # As with the other options: what stands behind the verb wins over what stands before the noun.
    ctx.meta[_SETTINGS_KEY] = pairs(ctx) | key_values(texts, "-X", ctx)


def remember_layout(ctx: click.Context, asked: Layout) -> None:
    """For a verb whose `-o` takes other words besides."""
    ctx.meta[_KEY] = asked


def _remember(ctx: click.Context, _option: click.Parameter, asked: Layout | None) -> None:
    # click calls this for the root first and for the verb last; both share `meta`.
    if asked is not None:
        ctx.meta[_KEY] = asked


class Verb(click.Command):
    """A command whose help ends with examples, each a line that can be typed."""

    def __init__(self, *args: Any, examples: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, which no terminal is too narrow for."""
        formatter.write_paragraph()
        formatter.write("Examples:\n")
        for example in self.examples:
            formatter.write("".join(f"  {line}\n" for line in wrapped(example, formatter.width - 2)))


def wrapped(example: str, width: int) -> list[str]:
    """The example in lines that can be typed as they stand: a remark goes above what is too long, a shell joins the rest."""
    if len(example) <= width:
        return [example]
    command, found, remark = example.partition("  #")
    lines = [f"#{remark}"] if found else []
    # What stands in quotes is one word, and so is what a command has printed.
    words = re.findall(r"(?:\"[^\"]*\"|'[^']*'|\S)+", command)
    line = words[0]
    for word in words[1:]:
        if len(line) + len(word) + 3 > width:
            lines.append(f"{line} \\")
            line = f"    {word}"
        else:
            line += f" {word}"
    return [*lines, line]
