"""The offsets of a stream as Spark keeps them: JSON in the checkpoint, compared as text.

    {"orders": {"0": 12, "1": 7}, "tidelog:ids": {"orders": "0f3a..."}, "tidelog:rows": 50000}

What it keeps true: the same offsets are the same text, keys in order; a colon is in no topic's name, so ours never meet
a user's; what decides how a micro-batch is cut into tasks is in it, so that a repeated one is the same one; the first
one says where the stream began, for Spark may ask for the beginning again and get another answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.protocol.errors import InvalidConfig
from tidelog.protocol.types import Offset, TopicId, TopicPartition
from tidelog.spark.planning import ROWS_MIN

IDS: Final = "tidelog:ids"
ROWS: Final = "tidelog:rows"
START: Final = "tidelog:start"
MERGE: Final = "tidelog:merge"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a stream is."""

    offsets: Mapping[TopicPartition, Offset]
    ids: Mapping[str, TopicId]
    rows: int = ROWS_MIN
    """How many records a task of the batch that ends here reads."""
    start: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    """Of the first batch: where it begins, whatever else is said; otherwise empty."""
    merge: bool = True
    """Whether small partitions share a task of the batch that ends here."""

    def as_json(self) -> dict[str, Any]:
        """As Spark keeps it."""
        found: dict[str, Any] = nested(self.offsets)
        found[IDS] = {name: self.ids[name].hex() for name in sorted(self.ids)}
        found[ROWS] = self.rows
        if not self.merge:
            found[MERGE] = False
        if self.start:
            found[START] = nested(self.start)
        return dict(sorted(found.items()))


def nested(offsets: Mapping[TopicPartition, Offset]) -> dict[str, Any]:
    """`{"orders": {"0": 12}}`, in order: topics by name, partitions as texts are ordered."""
    found: dict[str, dict[str, int]] = {}
    for name in sorted(offsets, key=lambda each: (each.topic, str(each.partition))):
        found.setdefault(name.topic, {})[str(name.partition)] = offsets[name]
    return found


def stream_offset(given: Mapping[str, Any]) -> StreamOffset:
    """What a checkpoint says. Raises InvalidConfig when it is none of ours."""
    try:
        flat = _flat({name: by for name, by in given.items() if ":" not in name})
        ids = {name: bytes.fromhex(text) for name, text in given.get(IDS, {}).items()}
        start, merge = _flat(given.get(START, {})), bool(given.get(MERGE, True))
        return StreamOffset(flat, ids, int(given.get(ROWS, ROWS_MIN)), start, merge)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidConfig(
            f"the checkpoint's offset {given!r} is none of tidelog's: give this stream a checkpoint of its own"
        ) from error


def _flat(given: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, Offset]:
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, by in given.items()
        for number, offset in by.items()
    }
