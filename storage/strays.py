"""Directories of partitions that this node should not have, on one disk.

    orders-0.<32 hex>-stray ──give_up──► orders-0.<32 hex>-delete ──► removed, now or by the next start

What it keeps true: a directory is never half a stray. Before the first of its files is removed it durably has a name
under which nobody takes it for anything, so that a crash in between leaves nothing that looks whole.

Which of them may go, and when, is for whoever knows the cluster to say.
"""

from typing import NamedTuple

from tidelog.protocol.types import TopicId, TopicPartition
from tidelog.storage.files import Directory
from tidelog.storage.identity import read_topic_id
from tidelog.storage.names import DELETED, STRAY, parse_parted, parted_name, partition_name


class Stray(NamedTuple):
    """One of them."""

    name: str
    partition: TopicPartition | None
    """What it was the directory of; None: its name does not say."""
    topic_id: TopicId | None
    """Of which topic of that name; None: nobody can say."""
    size: int
    """Its bytes."""


def strays(directory: Directory) -> list[Stray]:
    """All that are there."""
    return [
        _looked_at(directory, name)
        for name in directory.names()
        if name.endswith(STRAY) and directory.is_directory(name)
    ]


def _looked_at(directory: Directory, name: str) -> Stray:
    inside = directory.directory(name)
    topic_id, _ = read_topic_id(inside)
    return Stray(
        name, parse_parted(name, STRAY), topic_id, sum(inside.size_of(file) for file in inside.names())
    )


def give_up(directory: Directory, stray: Stray) -> None:
    """Remove it for good."""
    assert stray.partition is not None, stray
    taken = set(directory.names())
    base = partition_name(stray.partition)
    gone = next(name for n in range(len(taken) + 1) if (name := parted_name(base, n, DELETED)) not in taken)
    directory.rename(stray.name, gone)
    directory.flush()
    directory.remove_directory(gone)
