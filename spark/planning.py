"""What is read by whom: offsets into tasks, and how much of what is there into one micro-batch. Pure.

What it keeps true: every offset of every span is in one task, and each task reads a partition once, in order; the same
spans with the same numbers give the same tasks on every machine, so that a repeated micro-batch is the same one.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from tidelog.protocol.types import Offset, TopicPartition

ROWS_MIN: Final = 50_000
"""A task costs as much as reading so many records, about."""
ROWS_MAX: Final = 4_000_000


class Span(NamedTuple):
    """A part of a partition: from `start` up to, and without, `end`."""

    topic: str
    topic_id: bytes
    partition: int
    start: Offset
    end: Offset

    @property
    def name(self) -> TopicPartition:
        """Which partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """How many offsets."""
        return self.end - self.start


def rows_per_task(total: int, cores: int, least_tasks: int | None, most_rows: int | None) -> int:
    """How many records a task should read."""
    if least_tasks is not None:
        rows = max(total // least_tasks, 1)
    else:
        rows = min(max(-(-total // (2 * cores)), ROWS_MIN), ROWS_MAX)
    return rows if most_rows is None else min(rows, most_rows)


def tasks(spans: Iterable[Span], rows: int, *, merge: bool = True) -> list[tuple[Span, ...]]:
    """Large spans cut into equal pieces of at most so many records, small ones put together (`merge`)."""
    found: list[list[Span]] = []
    room = 0
    for span in sorted(spans):
        count = -(-span.size // rows)
        edges = [span.start + span.size * at // max(count, 1) for at in range(count + 1)]
        for start, end in pairwise(edges):
            piece = span._replace(start=start, end=end)
            if not merge or not found or piece.size > room:
                found.append([])
                room = rows
            room -= piece.size
            last = found[-1][-1] if found[-1] else None
            if last is not None and last.name == piece.name:
                found[-1][-1] = last._replace(end=piece.end)
            else:
                found[-1].append(piece)
    return [tuple(task) for task in found]


def limited(
    start: Mapping[TopicPartition, Offset], end: Mapping[TopicPartition, Offset], most: int
) -> dict[TopicPartition, Offset]:
    """The ends of a micro-batch of at most so many records: every partition advances by its share of what is there.

    Each that has any advances by one at least: a share that rounds to nothing would stay so behind a large lag. Where there
    are too few for that they take turns: the first ones in an order do, and the next micro-batch begins further on in it.
    """
    there = {name: max(end[name] - start.get(name, 0), 0) for name in sorted(end)}
    total = sum(there.values())
    if total <= most:
        return dict(end)
    names = list(there)
    # Each limited micro-batch moves it by `most`; and what is planned again from this start gets the same.
    first = sum(start.get(name, 0) for name in names) % len(names)
    order = [name for name in names[first:] + names[:first] if there[name]]
    taken = dict.fromkeys(names, 0) | dict.fromkeys(order[:most], 1)
    rest, more = max(most - len(order), 0), max(total - len(order), 1)
    left, fractions = rest, {}
    for name in order:
        share, fractions[name] = divmod(rest * (there[name] - 1), more)
        taken[name] += share
        left -= share
    for name in sorted(order, key=lambda name: -fractions[name])[:left]:
        taken[name] += 1
    return {name: start.get(name, 0) + taken[name] for name in names}
