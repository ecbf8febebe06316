"""The data directory of a node that is about to start: made if it is missing, and gone again if the start is refused.

What it keeps true: only what this start has made is removed, only while no other process has it, and only if nobody has
been told of it: a broker that was registered, or a controller that may have voted, is known by its directory's id.
"""

import os
import shutil
from collections.abc import Sequence
from typing import Final

import click

from tidelog.protocol.errors import TidelogError
from tidelog.storage.files import Directory
from tidelog.storage.identity import LOCK, META, read_identity
from tidelog.storage.io import open_directory

QUORUM_STATE: Final = "quorum-state"
"""What a controller has promised in elections (`controller.ballot`)."""


class Territory:
    """One data directory, by its path."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._made: list[str] = []
        """Directories that are this start's, the outermost first."""
        self._was_empty = False

    def take(self) -> Directory:
        """The directory, made with those above it where they are missing. OSError: it cannot be."""
        missing: list[str] = []
        above = self.path
        while not os.path.lexists(above):
            missing.insert(0, above)
            above = os.path.dirname(above)
        self._made = missing
        directory = open_directory(self.path, create=True)
        self._was_empty = not directory.names()
        return directory

    def give_back(self) -> None:
        """The start was refused: what it has made goes."""
        if not self._was_empty or not self._is_ours() or self._is_known():
            return
        for name in os.listdir(self.path):
            there = os.path.join(self.path, name)
            if os.path.isdir(there) and not os.path.islink(there):
                shutil.rmtree(there)
            else:
                os.unlink(there)
        for made in reversed(self._made):
            os.rmdir(made)

    def _is_ours(self) -> bool:
        """Whether no other process has come in meanwhile: its lock is on record with its pid."""
        try:
            with open(os.path.join(self.path, LOCK), encoding="ascii") as file:
                return file.read().strip() in {"", str(os.getpid())}
        except FileNotFoundError:
            return True

    def _is_known(self) -> bool:
        """Whether others may count on this directory already."""
        if os.path.lexists(os.path.join(self.path, QUORUM_STATE)):
            return True
        try:
            return read_identity(open_directory(self.path)).cluster_id is not None
        except TidelogError:
            return False  # it was not even formatted


class Territories:
    """All data directories of a node, by their paths.

    A first start makes those that are missing. Later a path that is not there is a disk that is not mounted, far more
    likely than a new one: what lies there would be given up for lost.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._all = [Territory(path) for path in paths]

    def take(self) -> list[Directory]:
        """The directories, in their order."""
        paths = [one.path for one in self._all]
        if any(os.path.lexists(os.path.join(path, META)) for path in paths):
            for path in paths:
                if not os.path.lexists(path):
                    raise click.ClickException(
                        f"{path} is not there, and the others have been in use: mount its disk, make it with mkdir if it "
                        "is to be a new one, or leave it out and let others lead what lay there"
                    )
        taken: list[Directory] = []
        for at, one in enumerate(self._all):
            taken.append(one.take())
            for other in paths[:at]:
                if os.path.samefile(other, one.path):
                    raise click.ClickException(f"{one.path} and {other} are one directory: name it once")
        return taken

    def give_back(self) -> None:
        """The start was refused: what it has made goes."""
        for one in reversed(self._all):
            one.give_back()
