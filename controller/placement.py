"""Which brokers hold which replicas: of new partitions, without a broker, and evenly (design 4.9; DECISIONS 10, 19).

    place_new     partitions that do not exist yet, striped over racks and brokers
    drain         what a broker holds, to others: it is to be stopped for good or repaired
    balance       all replicas, or those of some topics, so that every broker holds as many as any other
    spread        topics, each by itself, so that every broker holds as many of it as any other

What it keeps true:

* Replicas of a partition stand on distinct brokers, in as many racks as there are and as evenly among these as
  they can; no rack is crowded further by a move.
* New ones go to the living first and to the fenced after; who shuts down gets none; the first one is alive. Where
  racks are of one size and everybody lives, brokers differ by at most one in replicas, and by at most one in
  partitions that they are the first of: over all partitions of a topic, however many are added later, as long as
  the same brokers and equally seeded randomness are handed in.
* Who is low on space gets new ones last, and nothing is moved there while anybody else could take it.
* Nothing is moved to who is not alive, and nothing from who is fenced unless it is drained: it may come back.
* Nothing moves without need. A replica moves from the fuller to the emptier broker, directly if it can, and only
  if the two differ by more than one; whoever is not replaced keeps its place in the order.

Where this is not 4.9 to the letter. What it says of start offsets is done by shuffling, at the beginning and whenever
everybody has had as many turns: with fixed offsets all that a broker leads has the same successor when it dies, and
offsets that advance in step elect the same half of the brokers (2 racks of 2, 2 replicas). Among more racks than
replicas each has turns by its size, or who is alone in its rack would hold more than all others; and a rack of which
nobody is alive waits until the others do not suffice.

Functions, and nothing else: they are given brokers or an image, and answer replicas.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import count
from random import Random
from typing import Final, NamedTuple, TypeAlias

from tidelog.controller.facts import Place
from tidelog.controller.image import BrokerState, Image, PartitionState
from tidelog.controller.offers import Offers, Topics
from tidelog.controller.topics import Replicas
from tidelog.controller.turns import Steps, at_once
from tidelog.protocol.errors import BrokerIdNotRegistered, InvalidReplicationFactor, UnknownTopicId
from tidelog.protocol.types import BrokerId, TopicId

Plan: TypeAlias = dict[Place, Replicas]
"""The partitions that are to be reassigned, and to whom, in order of preference; all others stay as they are."""

STEP: Final = 200
"""Partitions that are looked at in a turn."""


class Cost(NamedTuple):
    """What a plan asks of the cluster, to be shown before it is carried out."""

    partitions: int
    """Are reassigned."""
    copies: int
    """Of a whole partition are fetched by brokers that do not have it."""
    leaders: int
    """Partitions that another broker is the first of."""


def cost(image: Image, plan: Plan) -> Cost:
    """What carrying it out costs; a partition of which only the order changes is not copied."""
    before = {place: image.partitions[place].replicas for place in plan}
    copies = sum(len(set(then) - set(before[place])) for place, then in plan.items())
    leaders = sum(then[0] != before[place][0] for place, then in plan.items())
    return Cost(len(plan), copies, leaders)


# ── new partitions ────────────────────────────────────────────────────────────────────────────────────


def place_new(
    brokers: Iterable[BrokerState], partitions: int, factor: int, rng: Random, first: int = 0
) -> list[Replicas]:
    """The replicas of partitions number `first` and following, or InvalidReplicationFactor.

    With `Random(topic_id)` every time, partitions that are added go on where those that exist have ended.
    """
    assert partitions >= 0, partitions
    assert first >= 0, first
    usable = _usable(brokers, factor)
    fenced = {broker.id for broker in usable if broker.fenced}
    racks = [_Rack(usable, rack) for rack in sorted({broker.rack for broker in usable})]
    leads = dict.fromkeys((broker.id for broker in usable), 0)
    placed: list[Replicas] = []
    for index in range(first + partitions):
        if index % len(usable) == 0:
            _shuffle(racks, rng)
        chosen = _stripe(racks, factor)
        # Among equals the first: with racks of one size that is everybody once, before it is anybody twice.
        leader = min((broker for broker in chosen if broker not in fenced), key=leads.__getitem__)
        leads[leader] += 1
        at = chosen.index(leader)
        placed.append((*chosen[at:], *chosen[:at]))
    return placed[first:]


def _usable(brokers: Iterable[BrokerState], factor: int) -> list[BrokerState]:
    known = sorted(brokers, key=lambda broker: broker.id)
    usable = [broker for broker in known if not broker.shutting_down]
    leaving = [broker.id for broker in known if broker.shutting_down]
    there = f"{len(known)} brokers are registered" + (f", of which {leaving} shut down" if leaving else "")
    if not 1 <= factor <= len(usable):
        possible = f"1 to {len(usable)} are possible" if usable else "none are possible"
        raise InvalidReplicationFactor(f"{factor} replicas were asked for, {possible}: {there}")
    if all(broker.fenced for broker in usable):
        raise InvalidReplicationFactor(
            f"{factor} replicas were asked for, none are possible until one of the brokers "
            f"{[broker.id for broker in usable]} is alive, to lead: all of them are fenced; {there}"
        )
    roomy = [broker for broker in usable if not broker.low_space]
    enough = len(roomy) >= factor and not all(broker.fenced for broker in roomy)
    return roomy if enough else usable


class _Turns:
    """Brokers that take turns."""

    __slots__ = ("_at", "_brokers", "_taken")

    def __init__(self, brokers: list[BrokerId]) -> None:
        self._brokers = brokers
        self._taken = dict.fromkeys(brokers, 0)
        self._at = 0

    def __len__(self) -> int:
        return len(self._brokers)

    def take(self) -> BrokerId:
        taken = self._brokers[self._at]
        self._taken[taken] += 1
        self._at = (self._at + 1) % len(self._brokers)
        return taken

    def shuffle(self, rng: Random) -> None:
        """Another order; whoever has had a turn less than others still comes before them."""
        rng.shuffle(self._brokers)
        self._brokers.sort(key=self._taken.__getitem__)
        self._at = 0


class _Rack:
    """The brokers of a rack: the living take turns, and the fenced do."""

    __slots__ = ("fenced", "living", "size", "taken")

    def __init__(self, brokers: Iterable[BrokerState], name: str) -> None:
        here = [broker for broker in brokers if broker.rack == name]
        self.living = _Turns([broker.id for broker in here if not broker.fenced])
        self.fenced = _Turns([broker.id for broker in here if broker.fenced])
        self.size = len(here)
        self.taken = 0

    def turn(self) -> tuple[bool, float]:
        """Whose turn it is: the dead wait for all others, and of those who has had the least for its size."""
        return not self.living, self.taken / (len(self.living) or len(self.fenced))

    def take(self, already: int) -> BrokerId:
        """The next one for a partition that has so many of this rack."""
        self.taken += 1
        return (self.living if already < len(self.living) else self.fenced).take()


def _shuffle(racks: list[_Rack], rng: Random) -> None:
    rng.shuffle(racks)
    for rack in racks:
        rack.living.shuffle(rng)
        rack.fenced.shuffle(rng)


def _stripe(racks: Iterable[_Rack], factor: int) -> list[BrokerId]:
    """The replicas of the next partition: of every rack one, then of every rack another one, until they are enough."""
    order = sorted(racks, key=_Rack.turn)
    chosen: list[BrokerId] = []
    for already in count():
        for rack in order:
            if already < rack.size:
                chosen.append(rack.take(already))
                if len(chosen) == factor:
                    return chosen
    raise AssertionError("unreachable")


# ── evening out ───────────────────────────────────────────────────────────────────────────────────────


class _Step(NamedTuple):
    """Something changes hands."""

    what: Place
    giver: BrokerId
    taker: BrokerId


Give: TypeAlias = Callable[[list[_Step]], None]
"""Do all of this; of a single step the partition may be another one."""


def _even_out(load: dict[BrokerId, int], offers: Offers, give: Give) -> Steps[None]:
    """Give from the fuller to the emptier, if need be by way of others, until no two differ by more than they must.

    Where it does not depend on other things who may have something, no distribution is more even than the one
    that has no such way left (Harvey et al., Semi-Matchings for Bipartite Graphs and Load Balancing, 2003).
    """
    while path := (yield from _shortest_path(load, offers)):
        give(path)
        load[path[0].giver] -= 1
        load[path[-1].taker] += 1


def _shortest_path(load: Mapping[BrokerId, int], offers: Offers) -> Steps[list[_Step]]:
    """From one of the fullest to somebody who has at least two less."""
    if offers.tires(more=len(load)):
        yield
    emptiest_first = sorted(load, key=lambda broker: (load[broker], broker))
    came_by: dict[BrokerId, _Step | None] = {}
    for source in reversed(emptiest_first):
        if load[source] - load[emptiest_first[0]] < 2:
            break
        if source in came_by:
            continue  # whoever is reached from here was reached from a fuller one, and had too much
        came_by[source] = None
        queue = deque([source])
        while queue:
            giver = queue.popleft()
            for taker in emptiest_first:
                if taker in came_by:
                    continue
                if offers.tires():
                    yield
                if (what := offers.first((giver,), taker)) is None:
                    continue
                came_by[taker] = _Step(what, giver, taker)
                if load[taker] <= load[source] - 2:
                    path = _way_to(taker, came_by)
                    # The same partition twice: each step may be possible by itself only.
                    if len({step.what for step in path}) == len(path):
                        return path
                queue.append(taker)
    return []


def _way_to(broker: BrokerId, came_by: Mapping[BrokerId, _Step | None]) -> list[_Step]:
    path: list[_Step] = []
    while (step := came_by[broker]) is not None:
        path.append(step)
        broker = step.giver
    return path[::-1]


# ── without a broker ──────────────────────────────────────────────────────────────────────────────────


def drain(image: Image, broker: BrokerId, spare: Collection[BrokerId] = ()) -> Plan:
    """Everything that the broker holds is somebody else's; to those in `spare` nothing goes either.

    Whoever replaces it takes its place in the order, in a rack that has as few of the partition as any, and is as
    little loaded as that allows. What a running reassignment takes away from it is not planned twice.
    """
    return at_once(draining(image, broker, spare))


def draining(image: Image, broker: BrokerId, spare: Collection[BrokerId] = ()) -> Steps[Plan]:
    """The same in steps, of an image that stays as it is meanwhile."""
    held = [
        p
        for place in sorted(image.indexes.in_replicas.get(broker, ()))
        if broker in goal(p := image.partitions[place])
    ]
    if not held and broker not in image.brokers:
        raise BrokerIdNotRegistered(
            f"broker {broker} is not registered and holds nothing; registered: {sorted(image.brokers)}"
        )
    takers = [
        b for b in sorted(image.brokers) if image.live_epoch(b) is not None and b not in (broker, *spare)
    ]
    options: dict[Place, Replicas] = {}
    for p in held:
        options[p.place] = _replacements(image, p, broker, takers)
        if len(options) % STEP == 0:
            yield
    stuck = [p for p in held if not options[p.place]]
    if stuck:
        raise _cannot_drain(image, broker, spare, takers, stuck)
    goals = [goal(p) for p in image.partitions.values()]
    yield
    load = Counter(dict.fromkeys(takers, 0))
    load.update(r for replicas in goals for r in replicas if r in load)
    leads = Counter(replicas[0] for replicas in goals)
    yield
    given: dict[BrokerId, dict[Place, None]] = {b: {} for b in takers}
    offers = Offers(lambda place, giver, taker: place in given[giver] and taker in options[place])
    for done, p in enumerate(sorted(held, key=lambda p: goal(p)[0] != broker)):
        first = goal(p)[0] == broker
        taker = min(options[p.place], key=lambda b: (load[b], leads[b], b))
        given[taker][p.place] = None
        offers.offer((taker,), p.place)
        load[taker] += 1
        leads[taker] += first
        if done % STEP == 0:
            yield

    def give(path: list[_Step]) -> None:
        for step in path:
            assert step.what in given[step.giver], step
            del given[step.giver][step.what]
            given[step.taker][step.what] = None
            offers.offer((step.taker,), step.what)

    yield from _even_out(load, offers, give)
    taken_by = {place: taker for taker, places in given.items() for place in places}
    return {p.place: tuple(taken_by[p.place] if r == broker else r for r in goal(p)) for p in held}


def goal(p: PartitionState) -> Replicas:
    """Who will hold the partition when what is under way has come to its end (4.11)."""
    return tuple(r for r in p.replicas if r not in p.removing)


def _replacements(image: Image, p: PartitionState, broker: BrokerId, takers: Iterable[BrokerId]) -> Replicas:
    others = [r for r in goal(p) if r != broker]
    crowd = Counter(rack_of(image, r) for r in others)
    able = [b for b in takers if b not in others and image.can_lead(b, p.place)]
    able = [b for b in able if image.has_room(b)] or able
    least = min((crowd[rack_of(image, b)] for b in able), default=0)
    return tuple(b for b in able if crowd[rack_of(image, b)] == least)


def rack_of(image: Image, broker: BrokerId) -> str | None:
    """Where it stands; None: nobody knows any more."""
    known = image.brokers.get(broker)
    return known.rack if known is not None else None


def _cannot_drain(
    image: Image,
    broker: BrokerId,
    spare: Collection[BrokerId],
    takers: Collection[BrokerId],
    stuck: Collection[PartitionState],
) -> InvalidReplicationFactor:
    one = next(iter(stuck))
    others = [b for b in image.brokers.values() if b.id != broker]
    told = {
        "could take more": takers,
        "fenced": [b.id for b in others if b.fenced],
        "shutting down": [b.id for b in others if b.shutting_down],
        "to be spared": spare,
    }
    return InvalidReplicationFactor(
        f"broker {broker} cannot be drained: {len(stuck)} of its partitions have nobody to go to, one of them "
        f"{image.topics[one.topic_id].name}-{one.index} on brokers {_numbers(goal(one))}"
        + "".join(f"; {what}: {_numbers(sorted(ids))}" for what, ids in told.items() if ids)
    )


def _numbers(brokers: Iterable[BrokerId]) -> str:
    return ", ".join(map(str, brokers))


# ── evenly ────────────────────────────────────────────────────────────────────────────────────────────


def balance(image: Image, topics: Iterable[TopicId] | None = None, spare: Collection[BrokerId] = ()) -> Plan:
    """Every living broker holds as many replicas as any other, and is the first of as many partitions.

    Only those of these topics move, if they are named; all count. Racks come first: a partition is taken out of
    a crowded one if there is an emptier one. Who is fenced keeps what it has, or is drained; who is in `spare` as
    well, for it has just been drained.
    """
    return at_once(balancing(image, topics, spare))


def balancing(
    image: Image, topics: Iterable[TopicId] | None = None, spare: Collection[BrokerId] = ()
) -> Steps[Plan]:
    """The same in steps, of an image that stays as it is meanwhile."""
    chosen = sorted(image.partitions) if topics is None else _places(image, topics)
    layout = _Layout(image, chosen, spare)
    yield
    movable = set(chosen)
    layout.count(goal(p) for place, p in image.partitions.items() if place not in movable)
    yield from layout.arrange()
    return layout.plan()


def spread(image: Image, topics: Iterable[TopicId], spare: Collection[BrokerId] = ()) -> Plan:
    """As `balance`, but each of these topics by itself, whatever else the brokers hold."""
    plan: Plan = {}
    for topic_id in dict.fromkeys(topics):
        layout = _Layout(image, _places(image, [topic_id]), spare)
        at_once(layout.arrange())
        plan |= layout.plan()
    return plan


def _places(image: Image, topics: Iterable[TopicId]) -> list[Place]:
    named = set(topics)
    for topic_id in named:
        if topic_id not in image.topics:
            raise UnknownTopicId(f"there is no topic with the id {topic_id.hex()}")
    return [p.place for topic_id in sorted(named) for p in image.partitions_of(topic_id)]


class _Layout:
    """Who holds which of some partitions, while that is rearranged."""

    def __init__(self, image: Image, places: Iterable[Place], spare: Collection[BrokerId]) -> None:
        self._image = image
        self._replicas = {place: goal(image.partitions[place]) for place in places}
        living = [b for b in sorted(image.brokers) if image.live_epoch(b) is not None and b not in spare]
        self._racks = {
            b: rack_of(image, b) for b in {*living, *(r for rs in self._replicas.values() for r in rs)}
        }
        self._holds: dict[BrokerId, dict[TopicId, dict[Place, None]]] = {b: {} for b in living}
        """Of the living, by topic; dicts in place of sets, for their order."""
        self._load = dict.fromkeys(living, 0)
        self._leads = dict.fromkeys(living, 0)
        self._offers = Offers(self._may_move)
        self._topics = Topics(
            lambda b: list(self._holds[b]), lambda b, topic: len(self._holds[b].get(topic, ()))
        )
        for place, replicas in self._replicas.items():
            for r in replicas:
                if r in self._holds:
                    self._holds[r].setdefault(place[0], {})[place] = None
        self.count(self._replicas.values())

    def count(self, others: Iterable[Replicas]) -> None:
        """These count for the load of who is alive."""
        for replicas in others:
            for r in replicas:
                if r in self._load:
                    self._load[r] += 1
            if replicas[0] in self._leads:
                self._leads[replicas[0]] += 1

    def arrange(self) -> Steps[None]:
        """Leave crowded racks, then crowded brokers, then brokers that are the first too often."""
        for done, place in enumerate(self._replicas):
            while step := self._out_of_a_crowded_rack(place):
                self._move(step)
                self._load[step.giver] -= 1
                self._load[step.taker] += 1
            if done % STEP == 0:
                yield
        for done, place in enumerate(self._replicas):
            self._offer(place)
            if done % STEP == 0:
                yield
        yield from _even_out(self._load, self._offers, self._give)
        yield from self._arrange_leads()

    def _arrange_leads(self) -> Steps[None]:
        leads: dict[BrokerId, dict[Place, None]] = {b: {} for b in self._leads}
        can_lead = self._image.can_lead

        def may(place: Place, giver: BrokerId, taker: BrokerId) -> bool:
            return place in leads[giver] and taker in self._replicas[place] and can_lead(taker, place)

        offers = Offers(may)
        for place, replicas in self._replicas.items():
            if replicas[0] in leads:
                leads[replicas[0]][place] = None
                offers.offer((replicas[0],), place)
        yield

        def give(path: list[_Step]) -> None:
            for place, giver, taker in path:
                del leads[giver][place]
                leads[taker][place] = None
                offers.offer((taker,), place)
                self._replicas[place] = (taker, *(r for r in self._replicas[place] if r != taker))

        yield from _even_out(self._leads, offers, give)

    def plan(self) -> Plan:
        """What is otherwise than it was."""
        was = self._image.partitions
        return {place: now for place, now in self._replicas.items() if now != goal(was[place])}

    def _crowd(self, place: Place, rack: str | None) -> int:
        racks = self._racks
        return sum(racks[r] == rack for r in self._replicas[place])

    def _able(self, place: Place, broker: BrokerId) -> bool:
        image = self._image
        return (
            broker not in self._replicas[place] and image.can_lead(broker, place) and image.has_room(broker)
        )

    def _out_of_a_crowded_rack(self, place: Place) -> _Step | None:
        crowd = Counter(self._racks[r] for r in self._replicas[place])
        if len(crowd) == len(self._replicas[place]):
            return None
        givers = [r for r in self._replicas[place] if r in self._load and crowd[self._racks[r]] > 1]
        takers = [b for b in self._load if self._able(place, b)]
        if not givers or not takers:
            return None
        # Of the fullest rack the fullest broker, a follower if it makes no difference; to the opposite of it.
        order = self._replicas[place]
        giver = max(givers, key=lambda b: (crowd[self._racks[b]], self._load[b], order.index(b)))
        taker = min(takers, key=lambda b: (crowd[self._racks[b]], self._load[b], b))
        if crowd[self._racks[giver]] - crowd[self._racks[taker]] < 2:
            return None
        return _Step(place, giver, taker)

    def _offer(self, place: Place) -> None:
        """It is where it was not, or may go where it could not go."""
        for r in self._replicas[place]:
            if r in self._holds:
                self._offers.offer((r,), place)
                self._offers.offer((r, place[0], self._replicas[place][0] == r), place)

    def _may_move(self, place: Place, giver: BrokerId, taker: BrokerId) -> bool:
        if giver not in self._replicas[place] or not self._able(place, taker):
            return False
        return self._keeps_spread(place, self._racks[giver], self._racks[taker])

    def _keeps_spread(self, place: Place, here: str | None, there: str | None) -> bool:
        return here == there or self._crowd(place, here) > self._crowd(place, there)

    def _give(self, path: list[_Step]) -> None:
        for step in [self._best(path[0])] if len(path) == 1 else path:
            self._move(step)
            self._offer(step.what)
            holders = tuple(r for r in self._replicas[step.what] if r in self._holds)
            self._topics.changed(step.what[0], givers=holders, lacks=step.giver)

    def _best(self, step: _Step) -> _Step:
        """Better still: of a topic of which the one has the most more than the other, and led by somebody else."""
        _, giver, taker = step

        def find(topic: TopicId) -> Place | None:
            followed = self._offers.first((giver, topic, False), taker)
            return followed or self._offers.first((giver, topic, True), taker)

        return step._replace(what=self._topics.first(giver, taker, find) or step.what)

    def _move(self, step: _Step) -> None:
        place, giver, taker = step
        assert giver in self._replicas[place], f"{step}, and {self._replicas[place]} have it"
        self._replicas[place] = tuple(taker if r == giver else r for r in self._replicas[place])
        topic = place[0]
        del self._holds[giver][topic][place]
        if not self._holds[giver][topic]:
            del self._holds[giver][topic]
        self._holds[taker].setdefault(topic, {})[place] = None
        if self._replicas[place][0] == taker and giver in self._leads:
            self._leads[giver] -= 1
            self._leads[taker] += 1
