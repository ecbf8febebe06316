"""Who of a group is to have which partitions: functions of who wants what, and of who had what.

    uniform    as even as can be, and nobody gives up anything that evenness does not ask for
    range      of each topic a run of neighbours, and of topics of one size the same run (for joins)

What both keep true:

* Every partition of a wanted topic goes to exactly one member that wants the topic; nothing else goes to anybody.
* The same input leads to the same answer, in whatever order it is given, and the answer, given back, to itself.

`uniform`: nobody has two partitions more than somebody who wants the topic of one of them. Where everybody wants the
same, no two members differ by more than one, and the fewest partitions move that this takes. Racks decide who gets what
is free and what is given up first; nothing moves only for them.

`range`: members stand in the order of the runs that they have, so that who comes is appended and who goes leaves a gap
that the neighbours close.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, TypeAlias

from tidelog.broker.groups.records import NOWHERE, Place, Places
from tidelog.broker.groups.topics import Topic
from tidelog.protocol.types import TopicId


@dataclass(frozen=True, slots=True)
class Wants:
    """What matters of a member when partitions are shared out."""

    topics: frozenset[TopicId]
    """Those that it wants and that exist."""
    rack: str = ""
    """Where it stands; empty: it does not say."""


Members: TypeAlias = Mapping[str, Wants]
Targets: TypeAlias = Mapping[str, Places]
Assignor: TypeAlias = Callable[[Members, Targets, Mapping[TopicId, Topic]], dict[str, Places]]


class _Circle(NamedTuple):
    """Topics that the same members want."""

    members: tuple[str, ...]
    topics: tuple[Topic, ...]


def _circles(members: Members, topics: Mapping[TopicId, Topic]) -> list[_Circle]:
    """The topics by who wants them, the fewest members first: they have the least choice."""
    alike: dict[frozenset[TopicId], list[str]] = {}
    for member in sorted(members):
        alike.setdefault(members[member].topics, []).append(member)
    crowds = list(alike.values())
    wanted_by: dict[TopicId, list[int]] = {}
    for crowd, wanted in enumerate(alike):
        for topic_id in wanted:
            wanted_by.setdefault(topic_id, []).append(crowd)
    by_crowds: dict[tuple[int, ...], list[Topic]] = {}
    for topic_id in sorted(wanted_by):
        by_crowds.setdefault(tuple(wanted_by[topic_id]), []).append(topics[topic_id])
    circles = [
        _Circle(tuple(sorted(member for crowd in crowded for member in crowds[crowd])), tuple(of_crowds))
        for crowded, of_crowds in by_crowds.items()
    ]
    return sorted(circles, key=lambda circle: (len(circle.members), circle.topics[0].topic_id))


# ── uniform ───────────────────────────────────────────────────────────────────────────────────────────


def uniform(members: Members, targets: Targets, topics: Mapping[TopicId, Topic]) -> dict[str, Places]:
    """As even as can be, with the fewest moves."""
    shares = _Shares(members, targets, topics)
    circles = _circles(members, topics)
    for circle in circles:
        shares.hand_out(circle)
    moved = True
    while moved:  # each move makes the sum of the squares of all counts smaller
        moved = False
        for circle in circles:
            moved = shares.even_out(circle) or moved
    return {member: frozenset(had) for member, had in shares.of.items()}


class _Shares:
    """What everybody has while it is being shared out."""

    def __init__(self, members: Members, targets: Targets, topics: Mapping[TopicId, Topic]) -> None:
        self.members = members
        self.topics = topics
        self.of: dict[str, set[Place]] = {}
        self.taken: set[Place] = set()
        for member in sorted(members):
            wanted = members[member].topics
            kept = {
                place
                for place in targets.get(member, NOWHERE)
                if place[0] in wanted and place[1] < topics[place[0]].partitions and place not in self.taken
            }
            self.of[member] = kept
            self.taken |= kept

    def hand_out(self, circle: _Circle) -> None:
        """Give what nobody has to whoever has least: first to those nearby who would get some anyway, then to all."""
        free = [
            (topic.topic_id, index)
            for topic in circle.topics
            for index in range(topic.partitions)
            if (topic.topic_id, index) not in self.taken
        ]
        if not free:
            return
        self.taken.update(free)
        if any(topic.racks for topic in circle.topics):
            free = self._hand_out_nearby(circle, free)
        least = [(len(self.of[member]), member) for member in circle.members]
        heapify(least)
        for place in free:
            self._give(place, least)

    def _give(self, place: Place, least: list[tuple[int, str]]) -> None:
        had, member = heappop(least)
        assert had == len(self.of[member])
        self.of[member].add(place)
        heappush(least, (had + 1, member))

    def _hand_out_nearby(self, circle: _Circle, free: Sequence[Place]) -> list[Place]:
        """Up to an even share each, to members with a replica in their rack; what is left."""
        total = len(free) + sum(len(self.of[member]) for member in circle.members)
        share = total // len(circle.members)
        by_rack: dict[str, list[tuple[int, str]]] = {}
        for member in circle.members:
            if len(self.of[member]) < share:
                by_rack.setdefault(self.members[member].rack, []).append((len(self.of[member]), member))
        for least in by_rack.values():
            heapify(least)
        left = []
        for place in free:
            racks = self._racks(place) & by_rack.keys()
            nearby = min((by_rack[rack][0] for rack in racks), default=None)
            if nearby is None:
                left.append(place)
                continue
            rack = self.members[nearby[1]].rack
            self._give(place, by_rack[rack])
            while by_rack[rack] and by_rack[rack][0][0] >= share:
                heappop(by_rack[rack])
            if not by_rack[rack]:
                del by_rack[rack]
        return left

    def even_out(self, circle: _Circle) -> bool:
        """Move from whoever has most to whoever has least, as long as they differ by two; whether any moved."""
        counts = [len(self.of[member]) for member in circle.members]
        if max(counts) - min(counts) < 2:
            return False
        ids = {topic.topic_id for topic in circle.topics}
        least = [(len(self.of[member]), member) for member in circle.members]
        most = [(-count, member) for count, member in least]
        heapify(least)
        heapify(most)
        giving: dict[str, list[Place]] = {}
        moved = False
        while most:
            giver = heappop(most)[1]
            if giver not in giving:
                giving[giver] = self._in_order_of_keeping(giver, ids)
            while giving[giver]:
                had, taker = least[0]
                if had != len(self.of[taker]):  # it has given since
                    heappop(least)
                    heappush(least, (len(self.of[taker]), taker))
                    continue
                if len(self.of[giver]) - had < 2:
                    break
                if most and -most[0][0] > len(self.of[giver]):
                    heappush(most, (-len(self.of[giver]), giver))
                    break
                place = giving[giver].pop()
                self.of[giver].remove(place)
                self._give(place, least)
                moved = True
        return moved

    def _in_order_of_keeping(self, member: str, ids: set[TopicId]) -> list[Place]:
        """What it has of these topics; at the end what it gives up first: far away, and of what it has most."""
        rank: dict[TopicId, int] = {}
        order = []
        rack = self.members[member].rack
        for place in sorted(self.of[member]):
            if place[0] in ids:
                rank[place[0]] = rank.get(place[0], 0) + 1
                racks = self._racks(place)
                order.append((bool(racks) and rack not in racks, rank[place[0]], place))
        return [place for _, _, place in sorted(order)]

    def _racks(self, place: Place) -> frozenset[str]:
        racks = self.topics[place[0]].racks
        return racks[place[1]] if place[1] < len(racks) else frozenset()


# ── range ─────────────────────────────────────────────────────────────────────────────────────────────


def range_(members: Members, targets: Targets, topics: Mapping[TopicId, Topic]) -> dict[str, Places]:
    """Of each topic a run of neighbours for everybody who wants it."""
    shares: dict[str, list[Place]] = {member: [] for member in members}
    for circle in _circles(members, topics):
        order = _in_order_of_runs(circle, targets)
        for topic in circle.topics:
            each, more = divmod(topic.partitions, len(order))
            begin = 0
            for at, member in enumerate(order):
                if begin == topic.partitions:
                    break
                end = begin + each + (at < more)
                shares[member].extend((topic.topic_id, index) for index in range(begin, end))
                begin = end
    return {member: frozenset(places) for member, places in shares.items()}


def _in_order_of_runs(circle: _Circle, targets: Targets) -> list[str]:
    """The members as their runs follow one another; who has none comes last."""
    sizes = {topic.topic_id: topic.partitions for topic in circle.topics}

    def begins(places: Iterable[Place]) -> float:
        return min((index / sizes[topic] for topic, index in places if sizes.get(topic)), default=2.0)

    return sorted(circle.members, key=lambda member: (begins(targets.get(member, NOWHERE)), member))


ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": uniform, "range": range_}
"""Everybody who can share out partitions, by name."""

DEFAULT_ASSIGNOR: Final = "uniform"
"""Who does when no member has a wish."""
