"""Fetch sessions (design 3.4): the sentences, and that they never change what is asked or told (I-20)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from tests.storage.planted import assert_caught
from tidelog.protocol.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from tidelog.protocol.messages import NO_SESSION, EpochEnd, PartitionFetch, PartitionFetched, PartitionIndex
from tidelog.protocol.types import BrokerId
from tidelog.replication import sessions as module
from tidelog.replication.sessions import (
    EPOCH_MAX,
    EVICTABLE_AFTER_MS,
    NEW,
    FetchSession,
    FetchSessions,
    Place,
    Reader,
    Session,
    Told,
    next_epoch,
)

TOPIC = bytes(16)
READER = Reader(connection="a consumer's")
REPLICA = Reader(BrokerId(2), 20)


def asks(index: int, **fields: Any) -> PartitionFetch:
    return PartitionFetch(TOPIC, index, **{"fetch_offset": 0, "max_bytes": 1000, **fields})


def says(index: int, **fields: Any) -> PartitionFetched:
    return PartitionFetched(TOPIC, index, **{"high_watermark": 5, "log_start": 0, **fields})


def opened(
    sessions: FetchSessions, *partitions: PartitionFetch, now_ms: int = 0, reader: Reader = READER
) -> Session:
    return sessions.take(0, NEW, partitions, (), now_ms, reader=reader)


# ── the leader's side ─────────────────────────────────────────────────────────────────────────────────


def test_a_whole_request_opens_a_session_that_begins_with_one() -> None:
    session = opened(FetchSessions(first_id=7), asks(0))
    assert (session.session_id, session.epoch) == (7, 1)


def test_a_request_outside_of_sessions_closes_the_one_that_it_names() -> None:
    sessions = FetchSessions()
    session = opened(sessions, asks(0))
    assert sessions.take(session.session_id, NO_SESSION, [asks(0)], (), 0, reader=READER).session_id == 0
    assert len(sessions) == 0


def test_a_request_within_a_session_names_what_is_new_changed_or_gone() -> None:
    sessions = FetchSessions()
    first = opened(sessions, asks(0), asks(1), asks(2))
    session = sessions.take(
        first.session_id, 1, [asks(1, fetch_offset=8), asks(3)], [PartitionIndex(TOPIC, 0)], 0, reader=READER
    )
    assert list(session.partitions.values()) == [asks(1, fetch_offset=8), asks(2), asks(3)]
    assert session.epoch == 2


@pytest.mark.parametrize("epoch", [2, EPOCH_MAX])
def test_a_request_out_of_turn_ends_the_session(epoch: int) -> None:
    """KAFKA-8052: the two sides disagree about what was said."""
    sessions = FetchSessions()
    opened(sessions, asks(0))
    with pytest.raises(InvalidFetchSessionEpoch, match=f"fetch {epoch} of session 1 came, 1 was expected"):
        sessions.take(1, epoch, (), (), 0, reader=READER)
    with pytest.raises(FetchSessionIdNotFound):
        sessions.take(1, 1, (), (), 0, reader=READER)


def test_a_session_that_is_not_known_is_refused() -> None:
    with pytest.raises(FetchSessionIdNotFound, match="fetch session 9 is not known"):
        FetchSessions().take(9, 1, (), (), 0)


@pytest.mark.parametrize("epoch", [1, 2, NEW, NO_SESSION])
def test_nobody_continues_or_ends_another_readers_session(epoch: int) -> None:
    """What is kept is taken for what the reader has: another one's would be acknowledged in its name."""
    sessions = FetchSessions()
    opened(sessions, asks(0, fetch_offset=100), reader=Reader(BrokerId(2), 20))
    try:
        taken = sessions.take(1, epoch, (), (), 0, reader=Reader(BrokerId(3), 30))
        assert taken.partitions == {}
    except FetchSessionIdNotFound:
        pass
    assert sessions.take(1, 1, (), (), 0, reader=Reader(BrokerId(2), 20)).epoch == 2


def test_requests_are_numbered_round_and_round_from_one() -> None:
    """0 would open a new session."""
    assert (next_epoch(NEW), next_epoch(EPOCH_MAX - 1), next_epoch(EPOCH_MAX)) == (1, EPOCH_MAX, 1)


def test_sessions_are_bounded_and_a_reader_beyond_asks_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    sessions = FetchSessions()
    assert [opened(sessions, asks(0), now_ms=n).session_id for n in range(3)] == [1, 2, 0]


def test_the_least_recently_used_one_makes_room_once_it_has_been_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    sessions = FetchSessions()
    opened(sessions), opened(sessions)
    sessions.take(1, 1, (), (), 10, reader=READER)
    assert opened(sessions, now_ms=EVICTABLE_AFTER_MS).session_id == 3
    with pytest.raises(FetchSessionIdNotFound):
        sessions.take(2, 1, (), (), EVICTABLE_AFTER_MS, reader=READER)
    assert sessions.take(1, 2, (), (), EVICTABLE_AFTER_MS, reader=READER).epoch == 3


# ── what is worth telling ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("field", ["high_watermark", "last_stable_offset", "log_start", "purge_floor"])
def test_an_offset_is_told_once_and_again_when_it_has_moved(field: str) -> None:
    session, entry = opened(FetchSessions(), asks(0)), says(0)
    moved = with_fields(entry, **{field: 7})
    assert [session.worth_telling(e) for e in (entry, entry, moved, moved)] == [True, False, True, False]


@pytest.mark.parametrize(
    "entry",
    [
        says(0, error=6),
        says(0, diverging=EpochEnd(3, 4)),
        says(0, preferred_read_replica=BrokerId(2)),
        says(0, records_size=70),
    ],
)
def test_records_errors_divergence_and_a_nearer_replica_are_told_every_time(entry: PartitionFetched) -> None:
    session = opened(FetchSessions(), asks(0))
    assert [session.worth_telling(entry) for _ in range(3)] == [True] * 3


@pytest.mark.parametrize(
    "special",
    [says(0, error=6), says(0, diverging=EpochEnd(3, 4)), says(0, preferred_read_replica=BrokerId(2))],
)
def test_after_an_answer_that_told_no_offsets_they_are_told_again(special: PartitionFetched) -> None:
    session = opened(FetchSessions(), asks(0))
    assert [session.worth_telling(e) for e in (says(0), special, says(0))] == [True, True, True]


def test_under_another_leader_epoch_everything_is_told_again() -> None:
    """KAFKA-9338: what was told in the old one the reader has forgotten with it."""
    sessions = FetchSessions()
    session = opened(sessions, asks(0, current_leader_epoch=5))
    session.worth_telling(says(0))
    again = sessions.take(1, 1, [asks(0, current_leader_epoch=6)], (), 0, reader=READER)
    assert again.worth_telling(says(0))


def test_a_topic_that_was_made_again_is_another_one() -> None:
    sessions = FetchSessions()
    session = opened(sessions, asks(0))
    session.worth_telling(says(0))
    assert session.worth_telling(with_fields(says(0), topic_id=b"another topic id"))


def test_the_next_answer_begins_where_the_last_one_stopped() -> None:
    """Else the first of many busy partitions would starve the others."""
    session = opened(FetchSessions(), *(asks(index) for index in range(4)))
    order = []
    for _ in range(3):
        order.append([entry.index for entry in session.in_turn()])
        session.served((TOPIC, index) for index in order[-1][:3])
    assert order == [[0, 1, 2, 3], [3, 0, 1, 2], [2, 3, 0, 1]]


# ── what has moved ────────────────────────────────────────────────────────────────────────────────────


def hearing(
    sessions: FetchSessions, *partitions: PartitionFetch, epoch: int = NEW, number: int = 0
) -> Session:
    session = sessions.take(number, epoch, partitions, (), 0, reader=REPLICA)
    session.look(0, 1000)
    return session


def hear(sessions: FetchSessions, index: int) -> list[Session]:
    """Something moves there; the sessions that hear of it."""
    watching = list(sessions.watching((TOPIC, index)))
    for session in watching:
        session.stirs((TOPIC, index))
    return watching


def settled(session: Session) -> Session:
    for place in list(session.moved):
        session.settled(place)
    return session


def test_only_what_has_moved_or_is_asked_for_anew_is_looked_at() -> None:
    sessions = FetchSessions()
    session = settled(hearing(sessions, *(asks(index) for index in range(4))))
    assert hear(sessions, 2) == [session]
    again = hearing(sessions, asks(1, fetch_offset=3), epoch=1, number=1)
    assert [entry.index for entry in again.in_turn()] == [2, 1]


def test_all_is_looked_at_again_from_time_to_time() -> None:
    session = settled(hearing(FetchSessions(), asks(0), asks(1)))
    session.look(999, 1000)
    assert session.in_turn() == []
    session.look(1000, 1000)
    assert [entry.index for entry in session.in_turn()] == [0, 1]


def test_to_a_reader_that_hears_nothing_everything_has_moved() -> None:
    session = settled(opened(FetchSessions(), asks(0)))
    session.look(0, 1000)
    assert session.in_turn() == [asks(0)]


def test_a_session_hears_of_what_it_asks_for_now() -> None:
    sessions = FetchSessions()
    session = settled(hearing(sessions, asks(0), asks(1)))
    sessions.take(1, 1, [asks(2)], [PartitionIndex(TOPIC, 0)], 0, reader=REPLICA)
    assert [hear(sessions, index) for index in range(4)] == [[], [session], [session], []]
    assert set(session.moved) == {(TOPIC, 1), (TOPIC, 2)}


@pytest.mark.parametrize("kept", [True, False])
def test_who_waits_hears_also_when_no_session_is_kept_and_afterwards_no_more(kept: bool) -> None:
    sessions = FetchSessions()
    session = hearing(sessions, asks(0), epoch=NEW if kept else NO_SESSION)
    sessions.begin_wait(session)
    sessions.drop_all()
    assert hear(sessions, 0) == [session]
    sessions.end_wait(session)
    assert hear(sessions, 0) == []


def test_who_stood_still_until_now_had_everything_until_its_last_fetch() -> None:
    session = settled(hearing(FetchSessions(), asks(0)))
    assert [session.stirs((TOPIC, 0)) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("epoch", [20, 30])
def test_a_replica_has_one_session_however_often_it_loses_the_last_one(epoch: int) -> None:
    """Its newer process as well; each append would be told to all of them."""
    sessions = FetchSessions()
    for number in range(5):
        opened(sessions, asks(0), reader=Reader(BrokerId(2), 20 if number < 4 else epoch))
    other = opened(sessions, asks(0), reader=Reader(BrokerId(3), 30))
    assert len(hear(sessions, 0)) == len(sessions) == 2
    assert other in sessions.watching((TOPIC, 0))


def test_an_older_process_ends_no_session_of_its_successor() -> None:
    sessions = FetchSessions()
    later = opened(sessions, asks(0), reader=Reader(BrokerId(2), 20))
    opened(sessions, asks(0), reader=Reader(BrokerId(2), 10))
    assert later in hear(sessions, 0)


# ── the reader's side ─────────────────────────────────────────────────────────────────────────────────


def test_a_reader_asks_in_full_until_the_leader_keeps_a_session() -> None:
    reader = FetchSession()
    wanted = {(TOPIC, 0): asks(0)}
    for _ in range(2):
        assert reader.ask(wanted) == (0, NEW, (asks(0),), ())
        reader.answered(0)


def test_what_a_reader_has_forgotten_it_gives_up_and_asks_for_anew() -> None:
    reader = FetchSession()
    reader.ask({(TOPIC, i): asks(i) for i in range(2)})
    reader.answered(9)
    anew = reader.ask({(TOPIC, 1): asks(1)}, [(TOPIC, 1)])
    assert anew == (9, 1, (asks(1),), (PartitionIndex(TOPIC, 1),))
    reader.answered(9)
    assert reader.ask({}) == (9, 2, (), ())


def test_a_reader_then_asks_for_what_has_changed() -> None:
    reader = FetchSession()
    reader.ask({(TOPIC, i): asks(i) for i in range(3)})
    reader.answered(9)
    changed = asks(1, durable_offset=4)
    assert reader.ask(
        {(TOPIC, 1): changed, (TOPIC, 2): asks(2), (TOPIC, 3): asks(3)}, [(TOPIC, 0), (TOPIC, 7)]
    ) == (
        9,
        1,
        (changed, asks(3)),
        (PartitionIndex(TOPIC, 0),),
    )


def test_a_reader_begins_anew_after_an_answer_that_may_be_lost() -> None:
    """KAFKA-8052."""
    reader = FetchSession()
    reader.ask({(TOPIC, 0): asks(0)})
    reader.answered(9)
    reader.begin_anew()
    assert reader.ask({(TOPIC, 1): asks(1)}) == (0, NEW, (asks(0), asks(1)), ())


# ── sessions change nothing (I-20) ────────────────────────────────────────────────────────────────────

Turn = tuple[str, int, int]
WHICH = st.integers(0, 1)
TURNS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["round", "round", "drop", "lose request", "lose answer", "repeat"]), WHICH, WHICH
        ),
        st.tuples(st.sampled_from(["ask", "move"]), WHICH, st.integers(0, 2)),
        st.tuples(st.sampled_from(["epoch", "stop asking", "records", "error"]), WHICH, WHICH),
    ),
    max_size=30,
)


@dataclass
class Conversation:
    """A reader and a leader who speak in sessions, and what both would know of each other without."""

    leader: FetchSessions
    reader: FetchSession
    wanted: dict[Place, PartitionFetch] = field(default_factory=dict)
    state: dict[Place, PartitionFetched] = field(default_factory=dict)
    known: dict[Place, Told] = field(default_factory=dict)
    """What the reader believes of each partition."""
    changed: dict[Place, PartitionFetch] = field(default_factory=dict)
    gone: dict[Place, None] = field(default_factory=dict)
    last: module.Asking | None = None

    def want(self, entry: PartitionFetch) -> None:
        self.wanted[TOPIC, entry.index] = self.changed[TOPIC, entry.index] = entry

    def becomes(self, entry: PartitionFetched) -> None:
        self.state[TOPIC, entry.index] = entry
        hear(self.leader, entry.index)

    def ask(self) -> module.Asking:
        (changed, self.changed), (gone, self.gone) = (self.changed, {}), (self.gone, {})
        return self.reader.ask(changed, gone)

    def turn(self, kind: str, index: int, amount: int) -> None:
        place = (TOPIC, index)
        asked, now = self.wanted.get(place, asks(index)), self.state.setdefault(place, says(index))
        if kind == "ask":
            self.want(with_fields(asked, fetch_offset=amount))
        elif kind == "epoch":
            self.want(with_fields(asked, current_leader_epoch=asked.current_leader_epoch + 1))
            self.known.pop(place, None)  # another leader may have told it
        elif kind == "stop asking":
            self.wanted.pop(place, None)
            self.known.pop(place, None)
            self.changed.pop(place, None)
            self.gone[place] = None
        elif kind == "move":
            moved = ("high_watermark", "log_start", "purge_floor")[amount]
            self.becomes(with_fields(now, **{moved: getattr(now, moved) + 1}))
        elif kind in {"records", "error"}:
            self.becomes(with_fields(now, **({"error": 6} if kind == "error" else {"records_size": 70})))
            self.round()
            self.becomes(now)
        elif kind == "drop":
            self.leader.drop_all()
        elif kind == "lose request":
            self.ask()
            self.reader.begin_anew()
        elif kind == "repeat" and self.last is not None:
            self.served(self.last)  # a copy of the last request, come late; nobody reads the answer
        else:
            self.round(lost=kind == "lose answer")

    def round(self, *, lost: bool = False) -> None:
        asking = self.last = self.ask()
        answer = self.served(asking)
        if answer is None or lost:
            self.reader.begin_anew()
            return
        session_id, asked, entries = answer
        assert asked == self.wanted, "the leader takes the reader to have what it said it has"
        self.reader.answered(session_id)
        for entry in entries:
            if entry.error:
                self.known.pop((TOPIC, entry.index), None)  # it does something about it, and may begin anew
            else:
                self.known[TOPIC, entry.index] = told_of(entry)
        noted = {(entry.topic_id, entry.index) for entry in entries}
        for place in self.wanted:
            now = self.state[place]
            assert self.known.get(place) == told_of(now) if not now.error else place in noted
            assert place in noted or not now.records_size

    def served(
        self, asking: module.Asking
    ) -> tuple[int, dict[Place, PartitionFetch], list[PartitionFetched]] | None:
        try:
            session = self.leader.take(*asking, now_ms=0, reader=REPLICA)
        except (FetchSessionIdNotFound, InvalidFetchSessionEpoch):
            return None
        entries = [self.state[entry.topic_id, entry.index] for entry in session.in_turn()]
        session.served((TOPIC, entry.index) for entry in entries[:1])
        told = [entry for entry in entries if session.worth_telling(entry)]
        for entry in entries:
            if not entry.error and not entry.records_size:
                session.settled((TOPIC, entry.index))
        return session.session_id, dict(session.partitions), told


def told_of(entry: PartitionFetched) -> Told:
    return Told(entry.high_watermark, entry.last_stable_offset, entry.log_start, entry.purge_floor)


def check_conversation(
    turns: list[Turn],
    leader: Callable[[], FetchSessions] = FetchSessions,
    reader: Callable[[], FetchSession] = FetchSession,
) -> None:
    talk = Conversation(leader(), reader())
    for turn in turns:
        talk.turn(*turn)


@given(TURNS)
@example([("epoch", 0, 0), ("round", 0, 0), ("stop asking", 0, 0), ("epoch", 0, 0), ("round", 0, 0)])
def test_with_sessions_the_same_is_asked_and_told_as_without(turns: list[Turn]) -> None:
    check_conversation(turns)


class KeepsTheFirstRequest(FetchSessions):
    """KAFKA-9338: a changed partition is judged by what was said of it before."""

    def take(self, session_id: int, session_epoch: int, partitions: Any, *rest: Any, **more: Any) -> Session:
        found = self._sessions.get(session_id)
        known = found.partitions if found is not None and session_epoch > 0 else {}
        fresh = [entry for entry in partitions if (entry.topic_id, entry.index) not in known]
        return super().take(session_id, session_epoch, fresh, *rest, **more)


class ForgetsNothing(FetchSessions):
    def take(
        self, session_id: int, session_epoch: int, partitions: Any, forget: Any, *rest: Any, **more: Any
    ) -> Session:
        return super().take(session_id, session_epoch, partitions, (), *rest, **more)


class IgnoresTheNumber(FetchSessions):
    """KAFKA-8052: a late copy is taken for the next request."""

    def take(self, session_id: int, session_epoch: int, *rest: Any, **more: Any) -> Session:
        found = self._sessions.get(session_id)
        epoch = found.epoch if found is not None and session_epoch > 0 else session_epoch
        return super().take(session_id, epoch, *rest, **more)


class RemembersAcrossEpochs(FetchSessions):
    def take(self, session_id: int, *rest: Any, **more: Any) -> Session:
        found = self._sessions.get(session_id)
        told = dict(found.told) if found is not None else {}
        session = super().take(session_id, *rest, **more)
        if session is found:
            session.told |= told
        return session


class HearsOnlyOfWhatWasAskedForFirst(FetchSessions):
    def take(self, *rest: Any, **more: Any) -> Session:
        watching = {place: dict(sessions) for place, sessions in self._watching.items()}
        session = super().take(*rest, **more)
        if session.epoch > 1:
            self._watching = watching
        return session


class SettlesWhatItHasTold(FetchSessions):
    """Also an error, which is to be told every time."""

    def take(self, *rest: Any, **more: Any) -> Session:
        session = super().take(*rest, **more)
        for place in session.told.keys() & session.moved.keys():
            session.settled(place)
        return session


class GoesOnAfterALostAnswer(FetchSession):
    def begin_anew(self) -> None:
        pass


class TakesForKnownWhatItAskedBefore(FetchSession):
    """A place that it has left and asks for again, between two requests, is told as if it had stayed."""

    def ask(self, changed: Any, gone: Any = ()) -> module.Asking:
        return super().ask(changed, [place for place in gone if place not in changed])


class AsksForWhatChangedSinceTheFirstRequest(FetchSession):
    def ask(self, changed: Any, gone: Any = ()) -> module.Asking:
        said = dict(self._said)
        asking = super().ask(changed, gone)
        self._said = said or self._said
        return asking


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [
        KeepsTheFirstRequest,
        ForgetsNothing,
        IgnoresTheNumber,
        RemembersAcrossEpochs,
        HearsOnlyOfWhatWasAskedForFirst,
        SettlesWhatItHasTold,
    ],
    ids=lambda bug: bug.__name__,
)
def test_a_leader_with_a_planted_bug_is_caught(bug: Callable[[], FetchSessions]) -> None:
    assert_caught(partial(check_conversation, leader=bug), TURNS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [GoesOnAfterALostAnswer, TakesForKnownWhatItAskedBefore, AsksForWhatChangedSinceTheFirstRequest],
    ids=lambda bug: bug.__name__,
)
def test_a_reader_with_a_planted_bug_is_caught(bug: Callable[[], FetchSession]) -> None:
    assert_caught(partial(check_conversation, reader=bug), TURNS)


def test_a_leader_that_does_not_repeat_itself_after_an_error_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planted(self: Session, entry: PartitionFetched) -> bool:
        told, place = told_of(entry), (entry.topic_id, entry.index)
        worth = bool(entry.error) or entry.records_size > 0 or self.told.get(place) != told
        self.told[place] = told
        return worth

    monkeypatch.setattr(Session, "worth_telling", planted)
    assert_caught(check_conversation, TURNS)
