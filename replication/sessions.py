"""Fetch sessions: an idle replica asks and is answered in a few bytes, whatever it follows.

    reader    (0, 0) everything ──► (id, 1) what changed ──► (id, 2) ... ──► an error or a lost answer: (0, 0)
    leader    keeps what was asked of each partition and what was answered last; answers what is new

What it keeps true (docs/REPLICATION.md; I-20, KAFKA-8052, KAFKA-9338):

* A session is an optimisation: dropping all of them at any moment changes no outcome.
* Every field that takes part in validation is part of what is kept; a request is never judged by an old one.
* After an answer that may be lost both sides begin anew, for they may disagree about what was said.
* A session belongs to the reader that opened it: what one replica has never counts as what another one has.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from tidelog.protocol.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from tidelog.protocol.messages import NO_SESSION, PartitionFetch, PartitionFetched, PartitionIndex
from tidelog.protocol.types import NO_BROKER, NO_OFFSET, Offset, TopicId

Place: TypeAlias = tuple[TopicId, int]
"""A partition as replicas name it: a re-created topic is another one."""

EPOCH_MAX: Final = 2**31 - 1
KEPT: Final = 1000
EVICTABLE_AFTER_MS: Final = 120_000

NEW: Final = 0
"""`session_epoch` of a whole request that asks for a session."""


def next_epoch(epoch: int) -> int:
    """The number of the request that follows; 0 begins a session, so they wrap to 1."""
    return 1 if epoch == EPOCH_MAX else epoch + 1


class Told(NamedTuple):
    """What a reader was told of a partition besides records."""

    high_watermark: Offset = NO_OFFSET
    last_stable_offset: Offset = NO_OFFSET
    log_start: Offset = NO_OFFSET
    purge_floor: Offset = NO_OFFSET


# ── the leader's side ─────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Session:
    """What one reader asks for, and what it was told last."""

    session_id: int
    epoch: int
    used_ms: int
    reader: Hashable = None
    """Who opened it: nobody else continues it."""
    partitions: dict[Place, PartitionFetch] = field(default_factory=dict)
    told: dict[Place, Told] = field(default_factory=dict)
    first: int = 0
    """Where the next answer begins, so that none of many busy partitions is starved."""

    def in_turn(self) -> list[PartitionFetch]:
        """Every partition, beginning where the last answer stopped."""
        asked = list(self.partitions.values())
        first = self.first % len(asked) if asked else 0
        return asked[first:] + asked[:first]

    def stopped_before(self, served: int) -> None:
        """The answer had room for so many partitions with records: the next one begins behind them."""
        self.first = (self.first + served) % max(len(self.partitions), 1)

    def worth_telling(self, entry: PartitionFetched) -> bool:
        """Whether the entry says anything that the reader does not know; and remember that it is told."""
        place = entry.topic_id, entry.index
        if entry.error or entry.diverging is not None or entry.preferred_read_replica != NO_BROKER:
            self.told.pop(place, None)
            return True
        told = Told(entry.high_watermark, entry.last_stable_offset, entry.log_start, entry.purge_floor)
        changed = self.told.get(place) != told
        self.told[place] = told
        return changed or entry.records_size > 0


class FetchSessions:
    """A leader's sessions; bounded, the least recently used and idle one makes room."""

    __slots__ = ("_ids", "_sessions")

    def __init__(self, first_id: int = 1) -> None:
        self._sessions: dict[int, Session] = {}
        self._ids = first_id

    def __len__(self) -> int:
        return len(self._sessions)

    def drop_all(self) -> None:
        """Forget every session: readers begin new ones, and nothing else changes."""
        self._sessions.clear()

    def take(
        self,
        session_id: int,
        session_epoch: int,
        partitions: Iterable[PartitionFetch],
        forget: Iterable[PartitionIndex],
        now_ms: int,
        *,
        reader: Hashable = None,
    ) -> Session:
        """The session that a request belongs to, brought up to date with it; id 0 when there is none to keep.

        `reader` tells readers apart as far as that matters: a replica by its id and registration, for what is
        kept here is taken for what it has.
        """
        asked = {(entry.topic_id, entry.index): entry for entry in partitions}
        found = self._sessions.get(session_id)
        if found is not None:
            found = self._sessions.pop(session_id) if found.reader == reader else None
        if session_epoch in {NEW, NO_SESSION}:
            session = Session(0, NEW, now_ms, reader, asked)
            if session_epoch == NEW and self._has_room(now_ms):
                session.session_id, session.epoch = self._ids, 1
                self._ids = next_epoch(self._ids)
                self._sessions[session.session_id] = session
            return session
        if found is None:
            raise FetchSessionIdNotFound(f"fetch session {session_id} is not known")
        if session_epoch != found.epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch {session_epoch} of session {session_id} came, {found.epoch} was expected"
            )
        for place in ((gone.topic_id, gone.index) for gone in forget):
            found.partitions.pop(place, None)
            found.told.pop(place, None)
        for place, entry in asked.items():
            known = found.partitions.get(place)
            if known is None or known.current_leader_epoch != entry.current_leader_epoch:
                found.told.pop(place, None)
            found.partitions[place] = entry
        found.epoch = next_epoch(found.epoch)
        found.used_ms = now_ms
        self._sessions[session_id] = found  # behind all that were used less recently
        return found

    def _has_room(self, now_ms: int) -> bool:
        if len(self._sessions) < KEPT:
            return True
        oldest_id, oldest = next(iter(self._sessions.items()))
        if now_ms - oldest.used_ms < EVICTABLE_AFTER_MS:
            return False
        del self._sessions[oldest_id]
        return True


# ── the reader's side ─────────────────────────────────────────────────────────────────────────────────


class Asking(NamedTuple):
    """What to put into the next fetch."""

    session_id: int
    session_epoch: int
    partitions: tuple[PartitionFetch, ...]
    forget: tuple[PartitionIndex, ...]


class FetchSession:
    """One reader's session with one leader."""

    __slots__ = ("_epoch", "_forgotten", "_id", "_said")

    def __init__(self) -> None:
        self._id = 0
        self._epoch = NEW
        self._said: dict[Place, PartitionFetch] = {}
        self._forgotten: set[Place] = set()

    def forget(self, place: Place) -> None:
        """What was told of it is not known any more, though the same may be asked as before: it is told again."""
        self._forgotten.add(place)

    def ask(self, wanted: Mapping[Place, PartitionFetch]) -> Asking:
        """The smallest request that asks for exactly these partitions."""
        said, self._said = self._said, dict(wanted)
        forgotten, self._forgotten = self._forgotten, set()
        if self._epoch == NEW:
            return Asking(0, NEW, tuple(wanted.values()), ())
        changed = tuple(
            entry for place, entry in wanted.items() if place in forgotten or said.get(place) != entry
        )
        gone = tuple(PartitionIndex(*place) for place in said if place not in wanted or place in forgotten)
        return Asking(self._id, self._epoch, changed, gone)

    def answered(self, session_id: int) -> None:
        """The answer has come; its session id is 0 where the leader keeps none."""
        if session_id:
            self._id, self._epoch = session_id, next_epoch(self._epoch)
        else:
            self.begin_anew()

    def begin_anew(self) -> None:
        """An answer was an error of the session, or may be lost."""
        self._id, self._epoch = 0, NEW
