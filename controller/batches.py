"""What an operator's request leads to: batches of facts for the metadata log, and the answer (design 4.1, 4.2).

What it keeps true: what belongs together is in one batch as long as it fits; where it does not, every prefix is
safe, because whoever decided has put the facts into an order in which they are; no batch is too large to append.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from tidelog.controller.facts import BATCH_BYTES, FACTS_MAX, Fact, Place
from tidelog.controller.image import Image
from tidelog.protocol.errors import InvalidRequest
from tidelog.protocol.messages import Reply

R = TypeVar("R", bound=Reply)

_BYTES_MAX: Final = BATCH_BYTES * 3 // 4
"""What the facts may take; the rest is for the batch around them."""
_AROUND: Final = 12
"""What a batch spends on a record beside its value, at most."""

_encode: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
    """What is to be appended, batch by batch and without anything between, and what is answered when it is committed.

    `metadata_offset` and `quorum_epoch` of the reply are the node's to fill in.
    """

    batches: list[list[Fact]]
    reply: R


def check_distinct(names: Iterable[str]) -> None:
    """What a request names it names once; else InvalidRequest says what is named twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidRequest(f"{name} is named twice: once is accepted")
        seen.add(name)


def label(image: Image, place: Place) -> str:
    """A partition as operators name it; by its topic's id, where that is not known."""
    topic = image.topics.get(place[0])
    return f"{topic.name if topic else place[0].hex()}-{place[1]}"


def in_batches(units: Iterable[Sequence[Fact]]) -> list[list[Fact]]:
    """Units of facts in as few batches as hold them; a unit is divided only if it is too large for a batch."""
    batches: list[list[Fact]] = []
    open_batch: list[Fact] = []
    size = 0
    for unit in units:
        sizes = [len(_encode(fact)) + _AROUND for fact in unit]
        if open_batch and not _fits(len(open_batch) + len(unit), size + sum(sizes)):
            batches.append(open_batch)
            open_batch, size = [], 0
        for fact, more in zip(unit, sizes, strict=True):
            if open_batch and not _fits(len(open_batch) + 1, size + more):
                batches.append(open_batch)
                open_batch, size = [], 0
            open_batch.append(fact)
            size += more
    return [*batches, open_batch] if open_batch else batches


def _fits(count: int, size: int) -> bool:
    return count <= FACTS_MAX and size <= _BYTES_MAX
