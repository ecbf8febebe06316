"""Directories: which are partitions, which are data directories, and what the one knows of the other."""

import os
from pathlib import Path
from typing import Final

import click

from tidelog.cli.log.batches import Surroundings
from tidelog.cli.log.kinds import file_name
from tidelog.cli.read_only import ReadOnlyDirectory
from tidelog.cli.terminal import typed
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.types import Offset
from tidelog.storage.checkpoints import LEADER_EPOCHS, OFFSET_CHECKPOINTS, RECOVERY_POINTS, decode_offsets
from tidelog.storage.files import read_whole
from tidelog.storage.identity import META, PARTITION_METADATA
from tidelog.storage.names import DELETED, STRAY, parse_partition

_NAMED: Final = 5
"""So many nodes of a cluster are named where one of them is to be chosen."""


def is_partition(directory: ReadOnlyDirectory) -> bool:
    """Whether segments lie in it, or may."""
    names = directory.names()
    return PARTITION_METADATA in names or any(
        name.endswith(".log") and file_name(name) is not None for name in names
    )


def partitions_in(directory: ReadOnlyDirectory) -> list[str]:
    """The names of the partitions' directories in a data directory, by topic and number."""
    names = [name for name in directory.names() if parse_partition(name) and directory.is_directory(name)]
    return sorted(names, key=lambda name: parse_partition(name) or ())


def parted_in(directory: ReadOnlyDirectory) -> list[str]:
    """The names of directories that were a partition's and are none any more."""
    return [
        name for name in directory.names() if name.endswith((DELETED, STRAY)) and directory.is_directory(name)
    ]


def is_data_directory(directory: ReadOnlyDirectory) -> bool:
    """Whether partitions lie in it, or what a node writes beside them."""
    names = directory.names()
    return META in names or bool(set(OFFSET_CHECKPOINTS) & set(names)) or bool(partitions_in(directory))


def nodes_in(directory: ReadOnlyDirectory) -> list[str]:
    """The data directories in it, where it is none itself: what `tidelog up` names holds its nodes side by side.

    `broker-1` could be a partition's name, so that the directory would pass for a data directory.
    """
    if directory.exists(META):
        return []
    names = [
        name
        for name in directory.names()
        if directory.is_directory(name) and directory.directory(name).exists(META)
    ]
    return sorted(names, key=lambda name: parse_partition(name) or (name, 0))


def refuse_cluster(path: str, verb: str) -> None:
    """Refuse a directory that holds nodes, by naming them."""
    nodes = nodes_in(ReadOnlyDirectory(path))
    if not nodes:
        return
    few = [*nodes[:_NAMED], *["..."] * (len(nodes) > _NAMED)]
    named = ", ".join(few) if len(few) > 2 else " and ".join(few)
    raise click.UsageError(
        f"{click.format_filename(path)} holds the node{'s' * (len(nodes) > 1)} {named}: name one of them, "
        f"as in `tidelog log {verb} {typed(os.path.join(path, nodes[0]))}`"
    )


def require_directory(path: str, verb: str) -> ReadOnlyDirectory:
    """The directory, or why it is none for this verb and what to type instead."""
    shown = click.format_filename(path)
    if not os.path.lexists(path):
        raise click.UsageError(
            f"{shown} does not exist: {verb} takes a data directory or a partition's in it"
        )
    if not os.path.isdir(path):
        instead = f"`tidelog log dump {typed(path)}` shows it, " if file_name(os.path.basename(path)) else ""
        raise click.UsageError(f"{shown} is a file: {instead}{verb} takes a directory")
    refuse_cluster(path, verb)
    directory = ReadOnlyDirectory(path)
    if not is_partition(directory) and not is_data_directory(directory):
        held = ", ".join(list(directory.names())[:4]) or "nothing"
        raise click.UsageError(
            f"{shown} is neither a data directory nor a partition's: it holds {held}, "
            f"and no {META}, no <topic>-<partition> and no segment"
        )
    return directory


def state_files(partition: ReadOnlyDirectory) -> tuple[str, ...]:
    """The files of a partition's directory that say something of it as a whole."""
    names = (PARTITION_METADATA, LEADER_EPOCHS)
    return tuple(f"{partition.path}/{name}" for name in names if partition.exists(name))


def surroundings_of(partition: str, later: str | None = None) -> Surroundings:
    """What is known beside a segment, to tell a torn tail from damage."""
    return Surroundings(later, recovery_point_of(Path(partition)))


def recovery_point_of(partition: Path) -> Offset | None:
    """Up to where the data directory around it says that everything was flushed; None when nobody says."""
    around = ReadOnlyDirectory(os.fspath(partition.absolute().parent))
    which = parse_partition(partition.absolute().name)
    try:
        if which is None or not around.exists(RECOVERY_POINTS):
            return None
        content = read_whole(around, RECOVERY_POINTS)
        return decode_offsets(content, f"{around.path}/{RECOVERY_POINTS}").get(which)
    except (OSError, TidelogError):
        return None  # `checkpoints` and `dump` of that file say so; here it is only a hint
