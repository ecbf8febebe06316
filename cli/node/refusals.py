"""Why a node does not start, each in one line: the fact, and what to do about it."""

import errno
import os
import re
from collections.abc import Sequence
from typing import Final

import click

from tidelog.cli.node.machine import unavailable
from tidelog.cli.options import Address
from tidelog.protocol.errors import (
    DirectoryLocked,
    InconsistentClusterId,
    InconsistentMetadata,
    NotADataDirectory,
    TidelogError,
    UnsupportedFormat,
    WrongIdentity,
)

_WAY_OUT: Final = (
    DirectoryLocked,
    InconsistentClusterId,
    NotADataDirectory,
    UnsupportedFormat,
    WrongIdentity,
)
"""Errors whose message is only the fact, or no more than that most of the time."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_PLACE: Final = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)


def refusal(error: BaseException, directories: Sequence[str]) -> click.ClickException:
    """The one line for whatever kept a node from starting with these data directories."""
    data = directories[0]
    if isinstance(error, OSError) and error.filename:
        said = os.path.abspath(os.fsdecode(error.filename))
        data = next((one for one in directories if _holds(os.path.abspath(one), said)), data)
    if isinstance(error, _WAY_OUT):
        return click.ClickException(_with_way_out(error))
    if isinstance(error, InconsistentMetadata):
        return click.ClickException(
            f"{error}: name the controllers that the cluster was founded with; if they are those, keep {data} and report it"
        )
    if isinstance(error, TidelogError):
        return click.ClickException(str(error))
    assert isinstance(error, OSError), error
    if error.errno in _NO_PLACE:  # somebody was faster, after the look at it (`machine.look_at`)
        return click.ClickException(unavailable(_address(error), error))
    where = os.fsdecode(error.filename) if error.filename else data
    if error.errno in _FULL:
        return click.ClickException(
            f"the disk that holds {data} is full ({_free(data)} bytes are free): make room on it, or choose another "
            "one with --data"
        )
    if isinstance(error, NotADirectoryError | FileExistsError):
        return click.ClickException(
            f"{where} is a file: --data must name a directory, which need not be there yet"
        )
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return click.ClickException(
            f"{where} cannot be written ({error.strerror}): give user {os.geteuid()} the right to, or choose another "
            "directory with --data"
        )
    return click.ClickException(
        f"{where}: {error.strerror or error}: the data directory {data} cannot be used"
    )


def _with_way_out(error: TidelogError) -> str:
    """The fact, said once. What is wrong with `meta.properties` itself, or between two directories, says its own way out."""
    if not error.message or (isinstance(error, NotADataDirectory) and ": " in error.message):
        return str(error)
    return f"{error.message}: {error.way_out().partition(': ')[2]}"


def _holds(directory: str, path: str) -> bool:
    return os.path.commonpath([directory, path]) == directory


def _address(error: OSError) -> str:
    """Which one could not be had: asyncio says so in words only."""
    found = re.search(r"\('([^']*)', (\d+)", str(error.strerror))
    return str(Address(found[1], int(found[2]))) if found else f"one of its addresses ({error.strerror})"


def _free(path: str) -> int:
    while not os.path.isdir(path):
        path = os.path.dirname(os.path.abspath(path))
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
