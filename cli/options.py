"""Options that every verb of every noun understands, in front of the noun or behind the verb.

    tidelog -o json log segments DIR        tidelog log segments DIR -o json

The one behind the verb wins. What a verb cannot do is refused by name, never ignored.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

import click

Layout: TypeAlias = Literal["text", "json", "kafka"]
"""How stdout looks: tables for people, JSON lines for programs, Kafka's tools' own lines for habits."""

LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)

_KEY: Final = "tidelog.layout"

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
        formatter.write("".join(f"  {example}\n" for example in self.examples))
