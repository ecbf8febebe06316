"""What cannot be undone is shown before it is done, and done when somebody has said yes.

At a terminal the question is asked; elsewhere nobody could answer it, so that without `--yes` nothing is done (exit 2).
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

Callback = TypeVar("Callback", bound=Callable[..., Any] | click.Command)


def yes_option(callback: Callback) -> Callback:
    """Add `--yes`."""
    return click.option("--yes", is_flag=True, help="Do it without asking.")(callback)


def at_a_terminal() -> bool:
    """Whether somebody reads the question and can answer it."""
    # A stream that was closed before the start is None.
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def require_consent(ctx: click.Context, would: Iterable[str], *, yes: bool, question: str) -> None:
    """Return when it is wanted; `would`: what would be done, line by line."""
    if yes:
        return
    for line in would:
        click.echo(line, err=True)
    if at_a_terminal():
        click.confirm(question, abort=True, err=True)
        return
    raise click.UsageError("nothing was done: add --yes to do this", ctx)
