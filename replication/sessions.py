"""Fetch sessions: an idle replica asks and is answered in a few bytes, whatever it follows.

    reader    (0, 0) everything ──► (id, 1) what changed ──► (id, 2) ... ──► an error or a lost answer: (0, 0)
    leader    keeps what was asked of each partition and what was answered last; answers what is new
    moved     ──► the only partitions that either side looks at; all of them from time to time (ADR 115)

What it keeps true (docs/REPLICATION.md; I-20, KAFKA-8052, KAFKA-9338):

* A session is an optimisation: dropping all of them at any moment changes no outcome.
* Every field that takes part in validation is part of what is kept; a request is never judged by an old one.
* After an answer that may be lost both sides begin anew, for they may disagree about what was said.
* A session belongs to the reader that opened it: what one replica has never counts as what another one has.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from tidelog.protocol.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from tidelog.protocol.messages import NO_SESSION, PartitionFetch, PartitionFetched, PartitionIndex
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, NO_OFFSET, BrokerId, Epoch, Offset, TopicId

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


class Reader(NamedTuple):
    """Who asks: a replica by its id and registration, for what is kept here is taken for what it has; else a connection."""

    broker_id: BrokerId = NO_BROKER
    broker_epoch: Epoch = NO_EPOCH
    connection: object = None


NOBODY: Final = Reader()


class Told(NamedTuple):
    """What a reader was told of a partition besides records."""

    high_watermark: Offset = NO_OFFSET
    last_stable_offset: Offset = NO_OFFSET
    log_start: Offset = NO_OFFSET
    purge_floor: Offset = NO_OFFSET


# ── the leader's side ─────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class Session:
    """What one reader asks for, and what it was told last."""

    session_id: int
    epoch: int
    used_ms: int
    reader: Reader = NOBODY
    """Who opened it: nobody else continues it."""
    partitions: dict[Place, PartitionFetch] = field(default_factory=dict)
    told: dict[Place, Told] = field(default_factory=dict)
    moved: dict[Place, None] = field(default_factory=dict)
    """Of which there may be something to note or to tell; whose turn it is comes first."""
    looked_ms: int | None = None
    """When all of them were looked at last."""
    waits: int = 0
    """How many answers are owed."""

    @property
    def hears(self) -> bool:
        """Whether it is told what moves, as replicas' are; to any other everything has moved, always."""
        return self.reader.broker_id != NO_BROKER

    def look(self, now_ms: int, every_ms: int) -> None:
        """Look at all of them if that is due: of those that do not move it is noted only then that they were asked for."""
        if not self.hears or self.looked_ms is None or now_ms - self.looked_ms >= every_ms:
            self.looked_ms = now_ms
            self.moved |= dict.fromkeys(self.partitions)

    def in_turn(self) -> list[PartitionFetch]:
        """What has moved, beginning where the last answer stopped."""
        return [self.partitions[place] for place in self.moved]

    def served(self, places: Iterable[Place]) -> None:
        """The answer had room for records of these: the next one begins behind them, so that no other is starved."""
        for place in places:
            self.moved.pop(place)
            self.moved[place] = None

    def stirs(self, place: Place) -> bool:
        """Something has happened there. Whether it stood still until now: then its reader had everything at `used_ms`."""
        stood_still = place not in self.moved
        self.moved[place] = None
        return stood_still

    def settled(self, place: Place) -> None:
        """Its reader has everything, has said so and was told all: it is looked at again when something happens."""
        self.moved.pop(place, None)

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

    __slots__ = ("_ids", "_of_replicas", "_sessions", "_watching")

    def __init__(self, first_id: int = 1) -> None:
        self._sessions: dict[int, Session] = {}
        self._ids = first_id
        self._of_replicas: dict[BrokerId, Session] = {}
        """Each has one fetch on its way and needs one session, however often it has lost the last one."""
        self._watching: dict[Place, dict[Session, None]] = {}
        """Those that are to hear what moves: replicas' that are kept, and others of theirs while they wait."""

    def __len__(self) -> int:
        return len(self._sessions)

    def drop_all(self) -> None:
        """Forget every session: readers begin new ones, and nothing else changes."""
        for session in list(self._sessions.values()):
            self._drop(session)

    def watching(self, place: Place) -> Iterable[Session]:
        """The sessions that are to hear of it when something moves there."""
        return self._watching.get(place, ())

    def begin_wait(self, session: Session) -> None:
        """Its answer waits for something to move."""
        session.waits += 1
        if not self._keeps(session):
            self._watch(session, session.partitions)

    def end_wait(self, session: Session) -> None:
        """It is answered."""
        session.waits -= 1
        if not session.waits and not self._keeps(session):
            self._unwatch(session, session.partitions)

    def _keeps(self, session: Session) -> bool:
        return self._sessions.get(session.session_id) is session

    def _watch(self, session: Session, places: Iterable[Place]) -> None:
        for place in places if session.hears else ():
            self._watching.setdefault(place, {})[session] = None

    def _unwatch(self, session: Session, places: Iterable[Place]) -> None:
        for place in places:
            watching = self._watching.get(place, {})
            watching.pop(session, None)
            if not watching:
                self._watching.pop(place, None)

    def _drop(self, session: Session) -> None:
        del self._sessions[session.session_id]
        if self._of_replicas.get(session.reader.broker_id) is session:
            del self._of_replicas[session.reader.broker_id]
        if not session.waits:
            self._unwatch(session, session.partitions)

    def take(
        self,
        session_id: int,
        session_epoch: int,
        partitions: Iterable[PartitionFetch],
        forget: Iterable[PartitionIndex],
        now_ms: int,
        *,
        reader: Reader = NOBODY,
    ) -> Session:
        """The session that a request belongs to, brought up to date with it; id 0 when there is none to keep."""
        asked = {(entry.topic_id, entry.index): entry for entry in partitions}
        found = self._sessions.get(session_id)
        if found is not None and found.reader != reader:
            found = None
        if session_epoch in {NEW, NO_SESSION}:
            if found is not None:
                self._drop(found)
            session = Session(0, NEW, now_ms, reader, asked, moved=dict.fromkeys(asked))
            if session_epoch == NEW:
                self._keep(session, now_ms)
            return session
        if found is None:
            raise FetchSessionIdNotFound(f"fetch session {session_id} is not known")
        if session_epoch != found.epoch:
            self._drop(found)
            raise InvalidFetchSessionEpoch(
                f"fetch {session_epoch} of session {session_id} came, {found.epoch} was expected"
            )
        for place in ((gone.topic_id, gone.index) for gone in forget):
            found.partitions.pop(place, None)
            found.told.pop(place, None)
            found.moved.pop(place, None)
            self._unwatch(found, (place,))
        for place, entry in asked.items():
            known = found.partitions.get(place)
            if known is None or known.current_leader_epoch != entry.current_leader_epoch:
                found.told.pop(place, None)
            found.partitions[place] = entry
            found.moved[place] = None
        self._watch(found, asked)
        found.epoch = next_epoch(found.epoch)
        found.used_ms = now_ms
        self._sessions[session_id] = self._sessions.pop(session_id)  # behind all that were used less recently
        return found

    def _keep(self, session: Session, now_ms: int) -> None:
        """Keep it, if there is room; the one that its replica had, it will not continue."""
        earlier = self._of_replicas.get(session.reader.broker_id)
        if earlier is not None and earlier.reader.broker_epoch <= session.reader.broker_epoch:
            self._drop(earlier)
        if not self._has_room(now_ms):
            return
        session.session_id, session.epoch = self._ids, 1
        self._ids = next_epoch(self._ids)
        self._sessions[session.session_id] = session
        self._watch(session, session.partitions)
        if session.hears:
            self._of_replicas.setdefault(session.reader.broker_id, session)

    def _has_room(self, now_ms: int) -> bool:
        if len(self._sessions) < KEPT:
            return True
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms < EVICTABLE_AFTER_MS:
            return False
        self._drop(oldest)
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

    __slots__ = ("_epoch", "_id", "_said")

    def __init__(self) -> None:
        self._id = 0
        self._epoch = NEW
        self._said: dict[Place, PartitionFetch] = {}

    @property
    def is_new(self) -> bool:
        """Whether the next request says everything."""
        return self._epoch == NEW

    def ask(self, changed: Mapping[Place, PartitionFetch], gone: Iterable[Place] = ()) -> Asking:
        """The smallest request that asks for what was asked for before, without those, and with these.

        What is in both is given up and asked for anew: what was told of it is not known any more.
        """
        left = tuple(PartitionIndex(*place) for place in gone if self._said.pop(place, None) is not None)
        news = tuple(entry for place, entry in changed.items() if self._said.get(place) != entry)
        self._said |= changed
        if self.is_new:
            return Asking(0, NEW, tuple(self._said.values()), ())
        return Asking(self._id, self._epoch, news, left)

    def answered(self, session_id: int) -> None:
        """The answer has come; its session id is 0 where the leader keeps none."""
        if session_id:
            self._id, self._epoch = session_id, next_epoch(self._epoch)
        else:
            self.begin_anew()

    def begin_anew(self) -> None:
        """An answer was an error of the session, or may be lost."""
        self._id, self._epoch = 0, NEW
