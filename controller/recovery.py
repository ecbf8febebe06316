"""Partitions that nobody can lead without loss: whom to ask what they have, and when to decide (design 4.8; KIP-966).

    leaderless ──► ask ──all have answered, or patience is over──► the one with most leads: `elect_anyway`
                    ▲ │
                    └─┘ somebody registers anew: what the process before it said counts for nothing

    none         nobody is asked: an ISR or ELR member comes back, or an operator decides
    balanced     ISR and ELR are empty: the last known ELR is asked, and waited for, five minutes from the first ask
    aggressive   nobody who has everything is alive: the replicas that are alive are asked, five seconds
    an operator  wants somebody to lead, whatever the rule: the same are asked, five seconds or half of the operator's
                 time; then `leaders` takes the one with most

What it keeps true: an answer counts as long as the registration that it came from is the newest, and nobody has led
since the question; nobody leads who is not alive, nor without having answered; as soon as somebody leads, what was
found is forgotten. `election` holds a clean election instead if one has become possible.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from tidelog.controller.batches import in_batches
from tidelog.controller.election import elect_anyway
from tidelog.controller.facts import Fact, PartitionChanged, Place
from tidelog.controller.image import Image, PartitionState
from tidelog.protocol.messages import GetReplicaLogInfoReply
from tidelog.protocol.settings import unclean_recovery
from tidelog.protocol.types import BrokerId, Epoch, Offset

BALANCED_MS: Final = 5 * 60_000
AGGRESSIVE_MS: Final = 5_000
ASK_AGAIN_MS: Final = 1_000
"""An answer that has not come after this is asked for again: requests and answers may be lost."""


def possible_losses(image: Image, facts: Sequence[Fact]) -> list[PartitionChanged]:
    """Those of them by which somebody leads who may lack what was committed: always to be told."""
    return [
        fact
        for fact in facts
        if isinstance(fact, PartitionChanged)
        and fact.unclean_epoch == fact.leader_epoch
        and (known := image.partitions.get((fact.topic_id, fact.index))) is not None
        and known.leader_epoch != fact.leader_epoch
    ]


def leader_epochs(image: Image, places: Iterable[Place]) -> dict[Place, Epoch]:
    """In which a broker is asked for these now: for `Recovery.answered`."""
    return {place: p.leader_epoch for place in places if (p := image.partitions.get(place)) is not None}


class Log(NamedTuple):
    """How much a replica has: what is greater has more."""

    last_epoch: Epoch
    end_offset: Offset


class _Said(NamedTuple):
    """What a broker has said."""

    broker_epoch: Epoch
    """By which registration."""
    leader_epoch: Epoch
    """The partition's, when it was asked: another one now says that somebody has led since, and may have written."""
    log: Log | None
    """None: it has nothing to say."""


@dataclass(slots=True)
class _Search:
    """What is known about one partition's replicas."""

    since_ms: int | None = None
    """When somebody was asked first whose log decides."""
    asked: dict[BrokerId, tuple[Epoch, int]] = field(default_factory=dict)
    """Under which registration, and when last."""
    found: dict[BrokerId, _Said] = field(default_factory=dict)


class Todo(NamedTuple):
    """What is to be done now."""

    ask: dict[BrokerId, list[Place]]
    elect: list[list[Fact]]
    """Batches of elections. Possible loss, where they say so in `unclean_epoch`: always to be reported."""
    next_ms: int | None
    """When to look again, if nothing happens before."""


class Recovery:
    """The partitions that the active controller seeks leaders for. A new controller begins with none."""

    __slots__ = ("_searches", "_wishes")

    def __init__(self) -> None:
        self._searches: dict[Place, _Search] = {}
        self._wishes: dict[Place, int] = {}
        """Where an operator wants to know who has most, and until when those who are silent are asked."""

    def wish(self, places: Iterable[Place], until_ms: int) -> None:
        """An operator is about to have somebody lead these; call `look` afterwards.

        Who could not say what it has is asked again: it may be able to by now.
        """
        for place in places:
            self._wishes[place] = max(until_ms, self._wishes.get(place, until_ms))
            if (search := self._searches.get(place)) is not None:
                search.found = {broker: said for broker, said in search.found.items() if said.log is not None}
                search.asked = {
                    broker: asked for broker, asked in search.asked.items() if broker in search.found
                }

    def is_known(self, image: Image, places: Iterable[Place]) -> bool:
        """Whether all who are alive have said what they have of these, where nobody leads."""
        return not any(place in image.indexes.leaderless and self._silent(image, place) for place in places)

    def _silent(self, image: Image, place: Place) -> list[BrokerId]:
        p, search = image.partitions[place], self._searches.get(place) or _Search()
        return _standing(image, p, search, _alive(image, p))[1]

    def answered(self, broker: BrokerId, reply: GetReplicaLogInfoReply, asked: Mapping[Place, Epoch]) -> None:
        """A broker has said what it has; call `look` afterwards. `asked`: the leader epochs when it was asked.

        An answer may be late: it does not take the place of one to a later question.
        """
        for entry in reply.partitions:
            place = entry.topic_id, entry.index
            search, leader_epoch = self._searches.get(place), asked.get(place)
            if search is None or leader_epoch is None:
                continue
            known = search.found.get(broker)
            if known is None or known.leader_epoch <= leader_epoch:
                log = None if entry.error else Log(entry.last_epoch, entry.end_offset)
                search.found[broker] = _Said(reply.broker_epoch, leader_epoch, log)

    def look(self, image: Image, now_ms: int) -> Todo:
        """Whom to ask and whom to elect, now."""
        wanted = _wanted(image)
        self._wishes = {
            place: due for place, due in self._wishes.items() if place in image.indexes.leaderless
        }
        places = {**wanted, **self._wishes}
        self._searches = {place: self._searches.get(place) or _Search() for place in places}
        todo = Todo({}, [], None)
        elected: list[list[Fact]] = []
        for place, (whom, patience_ms) in wanted.items():
            p, search = image.partitions[place], self._searches[place]
            best, missing = _standing(image, p, search, whom)
            over = search.since_ms is not None and now_ms >= search.since_ms + patience_ms
            if best and (not missing or over):
                elected.append(elect_anyway(image, place, best))
                continue
            todo = _ask(image, todo, place, search, missing, now_ms)
            if search.since_ms is None and not search.asked.keys().isdisjoint(whom):
                search.since_ms = now_ms
            if best and search.since_ms is not None:
                todo = _soonest(todo, search.since_ms + patience_ms)
        for place, due_ms in self._wishes.items():
            if now_ms < due_ms and (silent := self._silent(image, place)):
                todo = _soonest(_ask(image, todo, place, self._searches[place], silent, now_ms), due_ms)
        return todo._replace(elect=in_batches(elected))

    def best_first(self, image: Image, place: Place) -> list[BrokerId]:
        """In which order they are to be taken in an operator's election: who is alive and has said what it has, by that;
        then who has not answered; who cannot say what it has, at last.
        """
        p, search = image.partitions.get(place), self._searches.get(place)
        if p is None or search is None:
            return []
        best, silent = _standing(image, p, search, p.replicas)
        hopeful = [broker for broker in (*p.elr, *p.last_known_elr, *p.replicas) if broker in silent]
        return list(dict.fromkeys((*best, *hopeful, *p.replicas)))


_Rule: TypeAlias = tuple[tuple[BrokerId, ...], int]
"""Whose logs decide, and how long to wait for those of them that do not answer."""


def _wanted(image: Image) -> dict[Place, _Rule]:
    """The leaderless partitions that have a rule. By topic, for thousands wait where everybody has died."""
    leaderless = image.indexes.leaderless
    topics = {place[0] for place in leaderless}
    said = {topic_id: unclean_recovery(image.configs, image.topics[topic_id].name) for topic_id in topics}
    if all(rule == "none" for rule in said.values()):
        return {}
    places = sorted(place for place in leaderless if said[place[0]] != "none")
    rules = ((place, _rule(image, image.partitions[place], said[place[0]])) for place in places)
    return {place: rule for place, rule in rules if rule is not None}


def _rule(image: Image, p: PartitionState, said: str) -> _Rule | None:
    match said:
        case "balanced" if p.last_known_elr and not p.isr and not p.elr:
            return p.last_known_elr, BALANCED_MS
        case "aggressive":
            alive = _alive(image, p)
            return (alive, AGGRESSIVE_MS) if alive else None
    return None


def _alive(image: Image, p: PartitionState) -> tuple[BrokerId, ...]:
    return tuple(r for r in p.replicas if image.can_lead(r, p.place))


def _standing(
    image: Image, p: PartitionState, search: _Search, whom: Sequence[BrokerId]
) -> tuple[list[BrokerId], list[BrokerId]]:
    """Who may lead, the one with most first and in the order of the replicas else; and who has not answered."""
    counted = {
        broker: said.log
        for broker, said in search.found.items()
        if broker in image.brokers
        and image.brokers[broker].epoch == said.broker_epoch
        and p.leader_epoch == said.leader_epoch
    }
    missing = [broker for broker in whom if broker not in counted]
    alive = [
        (log, -p.replicas.index(broker), broker)
        for broker, log in counted.items()
        if log is not None and broker in whom and image.can_lead(broker, p.place)
    ]
    return [broker for _, _, broker in sorted(alive, reverse=True)], missing


def _ask(
    image: Image, todo: Todo, place: Place, search: _Search, missing: list[BrokerId], now_ms: int
) -> Todo:
    for broker in missing:
        if not image.can_lead(broker, place):
            continue
        epoch = image.brokers[broker].epoch
        asked = search.asked.get(broker)
        if asked is None or asked[0] != epoch or now_ms >= asked[1] + ASK_AGAIN_MS:
            todo.ask.setdefault(broker, []).append(place)
            search.asked[broker] = (epoch, now_ms)
        todo = _soonest(todo, search.asked[broker][1] + ASK_AGAIN_MS)
    return todo


def _soonest(todo: Todo, at_ms: int) -> Todo:
    return todo._replace(next_ms=at_ms if todo.next_ms is None else min(todo.next_ms, at_ms))
