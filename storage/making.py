"""Many new, empty logs at once: what their directories need is made durable in a worker thread.

A log that is made where it is needed costs four flushes, some 10 ms of a disk; five hundred of them would keep a
broker's loop from its heartbeats for as many seconds. The order within a directory is the promise: its topic id is durable
before it has a segment, so that a directory without one was never served (`DataDirectory._set_aside`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.protocol.types import TopicId, TopicPartition
from tidelog.storage.files import Directory
from tidelog.storage.identity import write_topic_id
from tidelog.storage.names import partition_name
from tidelog.storage.segment import segment_name


@dataclass(slots=True)
class Making:
    """One log that is to be. `DataDirectory.begin_making` gives it, `run` makes it, `DataDirectory.create` opens it."""

    partition: TopicPartition
    topic_id: TopicId
    error: OSError | None = None
    """Why it could not be made, once `run` has ended."""


def run(root: Directory, makings: Sequence[Making]) -> None:
    """Make them (may run in a worker thread)."""
    for making in makings:
        try:
            _make(root, making)
        except OSError as error:
            making.error = error
    try:
        root.flush()
    except OSError as error:
        for making in makings:
            making.error = making.error or error


def _make(root: Directory, making: Making) -> None:
    directory = root.directory(partition_name(making.partition), create=True)
    write_topic_id(directory, making.topic_id)
    directory.open(segment_name(0), create=True).close()
    directory.flush()
