"""A line at a terminal that says how far a long reading has come; nowhere else, and gone when it is over."""

import sys
import time
from typing import Final

import click

from tidelog.cli.read_only import ReadOnlyFile
from tidelog.cli.terminal import size

_SHOWN_S: Final = 0.5
"""Who is ready before is spared it, and nobody is told more often."""


class Progress:
    """How far a file is read. To take the line away is no colour: it is done for NO_COLOR as well."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._wanted = sys.stderr is not None and sys.stderr.isatty()
        self._next_s = time.monotonic() + _SHOWN_S
        self._shown = False

    def show(self, position: int, whole: int) -> None:
        """It is at that byte of so many."""
        if not self._wanted or time.monotonic() < self._next_s:
            return
        self._next_s, self._shown = time.monotonic() + _SHOWN_S, True
        share = position / max(whole, 1)
        filled = round(share * 20)
        bar = "#" * filled + "-" * (20 - filled)
        click.echo(
            f"\r{self._name} [{bar}] {share:4.0%} of {size(whole)}\x1b[K", err=True, nl=False, color=True
        )

    def end(self) -> None:
        """It is over, or something else is said."""
        if self._shown:
            self._shown = False
            click.echo("\r\x1b[K", err=True, nl=False, color=True)


class WatchedFile(ReadOnlyFile):
    """A file whose reader tells how far it is."""

    def __init__(self, path: str, progress: Progress) -> None:
        super().__init__(path)
        self._progress = progress
        self._whole = self.size()

    def read_at(self, position: int, length: int) -> bytes:
        """So many bytes from there."""
        self._progress.show(position, self._whole)
        return super().read_at(position, length)
