"""A consumer's session with one broker: what has not changed since the last fetch is not said again.

    (0, 0) everything ──► (id, 1) what changed ──► (id, 2) ... ──► an error or a lost answer: (0, 0)

What it keeps true: the broker is asked for exactly what is wanted, whatever was said before; after an answer that may be
lost both sides begin anew. A session belongs to one connection; a broker that keeps none answers with id 0.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from tidelog.protocol.messages import PartitionFetch, PartitionIndex
from tidelog.protocol.types import TopicId

Place: TypeAlias = tuple[TopicId, int]
"""A partition as brokers name it."""

_NEW: Final = 0
_EPOCH_MAX: Final = 2**31 - 1


class Said(NamedTuple):
    """What goes into the next fetch."""

    session_id: int
    session_epoch: int
    partitions: tuple[PartitionFetch, ...]
    forget: tuple[PartitionIndex, ...]


class FetchSession:
    """See the module."""

    __slots__ = ("_epoch", "_id", "_known")

    def __init__(self) -> None:
        self._id = 0
        self._epoch = _NEW
        self._known: dict[Place, PartitionFetch] = {}

    def say(self, wanted: Mapping[Place, PartitionFetch]) -> Said:
        """The smallest request that asks for exactly these."""
        known, self._known = self._known, dict(wanted)
        if self._epoch == _NEW:
            return Said(0, _NEW, tuple(wanted.values()), ())
        changed = tuple(entry for place, entry in wanted.items() if known.get(place) != entry)
        gone = tuple(PartitionIndex(*place) for place in known if place not in wanted)
        return Said(self._id, self._epoch, changed, gone)

    def answered(self, session_id: int) -> None:
        """The answer has come."""
        if session_id:
            self._id, self._epoch = session_id, 1 if self._epoch == _EPOCH_MAX else self._epoch + 1
        else:
            self.begin_anew()

    def begin_anew(self) -> None:
        """An answer was an error of the session, or may be lost."""
        self._id, self._epoch = 0, _NEW
