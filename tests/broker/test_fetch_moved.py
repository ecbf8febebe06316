"""A leader looks only at what has moved, and answers as if it had looked at all that is followed (ADR 115)."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.broker.node import TOPIC_ID, Asked, Node
from tidelog.broker.replicas import LOOKS, Replicas
from tidelog.broker.requests.fetch import _Waiting
from tidelog.protocol.batch import walk
from tidelog.protocol.messages import (
    DeleteBefore,
    DeleteRecords,
    Fetch,
    PartitionFetch,
    PartitionIndex,
    split_attachment,
)
from tidelog.protocol.types import BrokerId
from tidelog.replication.sessions import FetchSessions, Place, Session

PLACES: list[Place] = [(TOPIC_ID, index) for index in range(4)]
SEEDS = 60
STEPS = 60


class Follower:
    """What a follower has of each partition, and its session; it believes all that it is told."""

    def __init__(self, node: Node, number: int) -> None:
        self.node = node
        self.number = number
        self.ends = dict.fromkeys(PLACES, 0)
        self.starts = dict.fromkeys(PLACES, 0)
        self.left: set[Place] = set()
        self.session_id = self.epoch = 0
        self.said: dict[Place, PartitionFetch] = {}
        self.waiting: Asked | None = None
        self.heard: list[object] = []

    def entry(self, place: Place) -> PartitionFetch:
        log = self.node.replicas.partitions[place].log
        end = self.ends[place]
        return PartitionFetch(
            *place,
            end,
            120,
            current_leader_epoch=self.node.image.partitions[place].leader_epoch,
            last_fetched_epoch=log.epochs.epoch_of(end - 1) if end else -1,
            durable_offset=end,
            log_start=self.starts[place],
        )

    def fetch(self, wait_ms: int) -> None:
        """Ask for what is new; nothing while an answer is owed."""
        if self.waiting is not None:
            return
        wanted = {place: self.entry(place) for place in PLACES if place not in self.left}
        gone = [place for place in self.said if place not in wanted]
        news = {place: entry for place, entry in wanted.items() if self.said.get(place) != entry}
        asks = wanted if not self.epoch else news
        self.said = wanted
        self.waiting = self.node.ask(
            Fetch(
                wait_ms,
                1,
                300,
                tuple(asks.values()),
                session_id=self.session_id,
                session_epoch=self.epoch,
                forget=tuple(PartitionIndex(*place) for place in gone) if self.epoch else (),
                broker_id=BrokerId(self.number),
                broker_epoch=10 * self.number,
            )
        )
        self.hear()

    def hear(self) -> None:
        """Take the answer, if there is one."""
        if self.waiting is None or self.waiting.waits:
            return
        asked, self.waiting = self.waiting, None
        answer = asked.answer
        self.heard.append((answer.error, [repr(entry) for entry in answer.partitions], asked.data))
        if answer.error:
            self.session_id = self.epoch = 0
            return
        self.session_id, self.epoch = answer.session_id, self.epoch + 1
        for entry, piece in zip(
            answer.partitions, split_attachment(asked.data, answer.partitions), strict=True
        ):
            if entry.error:
                continue
            place = entry.topic_id, entry.index
            for _, header in walk(piece):
                self.ends[place] = header.next_offset
            self.starts[place] = max(self.starts[place], min(entry.log_start, self.ends[place]))
            self.ends[place] = max(self.ends[place], self.starts[place])


def live(seed: int) -> list[list[object]]:
    """What both followers of four partitions are told in a random life of their leader."""
    rng, node = Random(seed), Node()
    for place in PLACES:
        node.lead(place=place)
    followers = [Follower(node, 2), Follower(node, 3)]

    def leave_or_come_back() -> None:
        rng.choice(followers).left.symmetric_difference_update([rng.choice(PLACES)])

    def delete() -> None:
        place = rng.choice(PLACES)
        before = node.replicas.partitions[place].high_watermark
        node.ask(DeleteRecords((DeleteBefore(*place, rng.randrange(before + 1)),), 1000))
        while node.saves:
            node.saves.pop()()

    def fence_or_not() -> None:
        node.register(2, fenced=rng.random() < 0.5)
        node.replicas.image_changed(node.now_ms)

    def retain() -> None:
        place = rng.choice(PLACES)
        partition = node.replicas.partitions[place]
        partition.log.raise_log_start(partition.high_watermark)
        partition.log_start_saved(partition.log.log_start, partition.begun_anew)
        node.replicas.log_start_saved(place)

    choices: list[tuple[int, Callable[[], object]]] = [
        (6, lambda: node.produce(acks=rng.choice([1, -1]), place=rng.choice(PLACES))),
        (12, lambda: rng.choice(followers).fetch(rng.choice([0, 500, 2000]))),
        (4, lambda: node.wait(rng.choice([1, 20, 400]))),
        (1, lambda: node.lead(place=rng.choice(PLACES))),
        (1, lambda: node.adopt(place=rng.choice(PLACES), isr=rng.choice([(1, 2, 3), (1, 2), (1, 3), (1,)]))),
        (1, lambda: node.replicas.tick(node.now_ms)),
        (1, leave_or_come_back),
        (1, delete),
        (1, retain),
        (1, fence_or_not),
        (1, node.replicas.sessions.drop_all),
    ]
    for _ in range(STEPS):
        (step,) = rng.choices([each for _, each in choices], [weight for weight, _ in choices])
        step()
        node.turn()
        for follower in followers:
            follower.hear()
    marks = [
        (
            p.high_watermark,
            sorted((f, k.fetch_offset, k.ack_offset) for f, k in p.leadership.followers.items()),
        )
        for p in node.replicas.partitions.values()
        if p.leadership is not None
    ]
    return [*(follower.heard for follower in followers), list[object](marks)]


def always(self: Session, *_: int) -> None:
    self.moved |= dict.fromkeys(self.partitions)


def differs(seed: int) -> bool:
    """Whether anybody is told anything else than by a leader that always looks at everything."""
    with pytest.MonkeyPatch.context() as plant:
        plant.setattr(Session, "look", always)
        expected = live(seed)
    return live(seed) != expected


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_what_is_told_and_noted_is_the_same_as_if_all_were_looked_at(first: int) -> None:
    assert [seed for seed in range(first, first + 20) if differs(seed)] == []


def test_lives_are_worth_comparing() -> None:
    told: list[Any] = [entry for seed in range(10) for heard in live(seed)[:2] for entry in heard]
    assert len(told) > 100
    assert sum(bool(entry[2]) for entry in told) > 30


def _without(made: Any) -> Any:
    """A message that does not reach the sessions."""

    def planted(self: Replicas, *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as plant:
            plant.setattr(FetchSessions, "watching", lambda *_: ())
            return made(self, *args)

    return planted


def _said_is_enough(made: Any) -> Any:
    """What is told of is settled, although its reader has not said that it has it."""

    def planted(self: _Waiting) -> None:
        made(self)
        for place in list(self.session.moved):
            if place in self.session.told:
                self.session.settled(place)

    return planted


PLANTS: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "appends are not heard of": lambda plant: plant.setattr(Replicas, "grown", _without(Replicas.grown)),
    "commits are not heard of": lambda plant: plant.setattr(
        Replicas, "committed", _without(Replicas.committed)
    ),
    "log starts are not heard of": lambda plant: plant.setattr(
        Replicas, "log_start_saved", _without(Replicas.log_start_saved)
    ),
    "what is told is settled": lambda plant: plant.setattr(
        _Waiting, "give_up", _said_is_enough(_Waiting.give_up)
    ),
    "what is asked for anew is not looked at": lambda plant: plant.setattr(
        FetchSessions, "take", _unmarked(FetchSessions.take)
    ),
    "who waits outside of a session is forgotten": lambda plant: [
        plant.setattr(FetchSessions, name, lambda *_: None) for name in ("begin_wait", "end_wait")
    ],
}


def _unmarked(made: Any) -> Any:
    def planted(self: FetchSessions, number: int, *rest: Any, **more: Any) -> Session:
        found = self._sessions.get(number)
        before = dict(found.moved) if found is not None else {}
        session: Session = made(self, number, *rest, **more)
        if session is found:
            session.moved = {place: None for place in session.moved if place in before}
        return session

    return planted


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_a_leader_that_misses_something_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = []
    with pytest.MonkeyPatch.context() as plant:
        plant.setattr(Session, "look", always)
        expected = [live(seed) for seed in range(SEEDS)]
    PLANTS[name](monkeypatch)
    assert any(live(seed) != expected[seed] for seed in range(SEEDS))


def test_partitions_that_stand_still_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    for place in PLACES:
        node.lead(place=place)
    follower = Follower(node, 2)
    looked: list[Place] = []
    said_before = _Waiting._said_before

    def counted(self: _Waiting, place: Place, *rest: Any) -> bool:
        looked.append(place)
        return said_before(self, place, *rest)

    monkeypatch.setattr(_Waiting, "_said_before", counted)
    for _ in range(4):
        follower.fetch(0)
    looked.clear()
    node.produce(acks=1, place=PLACES[2])
    follower.fetch(0)
    follower.fetch(0)
    assert set(looked) == {PLACES[2]}
    looked.clear()
    node.wait(node.replicas.around.lag_max_ms // LOOKS)
    follower.fetch(0)
    assert set(looked) == set(PLACES), "but it is noted from time to time that they are followed"


@pytest.mark.parametrize("wait_ms", [0, 500])
def test_a_session_that_is_lost_leaves_nobody_who_listens(wait_ms: int) -> None:
    node = Node()
    for place in PLACES:
        node.lead(place=place)
    follower = Follower(node, 2)
    for _ in range(3):
        follower.fetch(wait_ms)
        node.wait(wait_ms)
        follower.hear()
    assert [session.waits for session in node.replicas.sessions.watching(PLACES[0])] == [0]
    node.replicas.sessions.drop_all()
    assert not any(list(node.replicas.sessions.watching(place)) for place in PLACES)


def shrinks_after_ms() -> int:
    """How long a follower, which fetches and has everything, may stand still when there is a record for it."""
    node = Node()
    for place in PLACES:
        node.lead(place=place)
    followers = [Follower(node, 2), Follower(node, 3)]

    def fetch(*those: Follower, wait_ms: int = 2000) -> None:
        for follower in those:
            follower.hear()
            follower.fetch(wait_ms)

    for _ in range(3):
        fetch(*followers, wait_ms=0)
    node.wait(node.replicas.around.lag_max_ms // LOOKS)
    fetch(*followers)
    node.wait(2000)
    fetch(*followers)  # too early for another look at everything
    node.wait(1990)
    node.produce(acks=1)
    node.turn()
    since_ms, leadership = node.now_ms, node.partition.leadership
    assert leadership is not None
    while leadership.pending is None:
        node.wait(100)
        fetch(followers[1], wait_ms=0)
        leadership.tick(node.now_ms)
    assert leadership.pending.isr == (1, 3)
    return node.now_ms - since_ms


def test_who_falls_behind_is_given_as_long_as_if_each_fetch_had_been_noted() -> None:
    with pytest.MonkeyPatch.context() as plant:
        plant.setattr(Session, "look", always)
        expected = shrinks_after_ms()
    assert shrinks_after_ms() == expected
    with pytest.MonkeyPatch.context() as plant:
        plant.setattr(Replicas, "_had_everything", lambda *_: None)
        assert shrinks_after_ms() < expected
