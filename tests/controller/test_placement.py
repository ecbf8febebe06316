"""Where replicas stand: the sentences of 4.9 for new partitions, and what moving them keeps true."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.controller.book import OTHER, TOPIC, Book, ids
from tests.controller.clusters import (
    broker,
    cluster,
    counts,
    differ_by,
    is_spread,
    layout,
    living,
    numbers,
    racks_of,
)
from tests.controller.planted import Bug, fails, planted
from tidelog.controller import placement
from tidelog.controller.facts import Place
from tidelog.controller.image import BrokerState, Image
from tidelog.controller.placement import Cost, balance, cost, drain, place_new, spread
from tidelog.controller.topics import Replicas, TopicDefaults, create_topic
from tidelog.protocol.errors import BrokerIdNotRegistered, InvalidReplicationFactor, UnknownTopicId
from tidelog.protocol.messages import NewTopic

Layout = Mapping[Place, Replicas]

# ── new partitions ────────────────────────────────────────────────────────────────────────────────────


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[BrokerState], int]:
    """Brokers in racks, some of them fenced or on their way out, and a factor that is possible."""
    racks = racks_of(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    one = draw(st.sampled_from(sorted(racks)))
    brokers = [
        broker(
            number,
            rack,
            fenced=number != one and draw(st.booleans()),
            shutting_down=number != one and draw(st.integers(0, 4)) == 0,
        )
        for number, rack in racks.items()
    ]
    return brokers, draw(st.integers(1, sum(not b.shutting_down for b in brokers)))


@given(clusters(), st.integers(0, 40), st.integers(0, 99))
def test_every_partition_has_distinct_brokers_in_as_many_racks_as_there_are(
    asked: tuple[list[BrokerState], int], partitions: int, seed: int
) -> None:
    brokers, factor = asked
    racks: dict[int, str] = {b.id: b.rack for b in brokers if not b.shutting_down}
    placed = place_new(brokers, partitions, factor, Random(seed))
    assert len(placed) == partitions
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(racks)
        assert is_spread(replicas, racks, racks), replicas


@given(clusters(), st.integers(0, 99))
def test_the_first_is_alive_and_the_fenced_come_when_there_is_nobody_else_in_the_rack(
    asked: tuple[list[BrokerState], int], seed: int
) -> None:
    brokers, factor = asked
    usable = {b.id: b for b in brokers if not b.shutting_down}
    for replicas in place_new(brokers, 30, factor, Random(seed)):
        assert not usable[replicas[0]].fenced
        for fenced in (usable[r] for r in replicas if usable[r].fenced):
            neighbours = [b.id for b in usable.values() if b.rack == fenced.rack and not b.fenced]
            assert set(neighbours) <= set(replicas), f"{neighbours} could have it instead of {fenced.id}"


def racks_of_one_size(module: Any, racks: int, size: int, factor: int, partitions: int, seed: int) -> None:
    brokers = living([size] * racks)
    every = [b.id for b in brokers]
    rack = {b.id: b.rack for b in brokers}
    placed = module.place_new(brokers, partitions, factor, Random(seed))
    everywhere = [r for replicas in placed for r in replicas]
    assert differ_by(counts((replicas[0] for replicas in placed), every)) <= 1, placed
    assert differ_by(counts(everywhere, every)) <= 1, placed
    assert (
        differ_by(
            list(Counter(dict.fromkeys(rack.values(), 0) | Counter(rack[r] for r in everywhere)).values())
        )
        <= 1
    )
    for replicas in placed:
        assert differ_by([sum(rack[r] == name for r in replicas) for name in set(rack.values())]) <= 1


def a_rack_shares_what_it_has(module: Any) -> None:
    for sizes, partitions, factor in product(([1, 2, 4], [3, 2], [5]), range(1, 30), (1, 2, 3)):
        placed = module.place_new(living(sizes), partitions, factor, Random(partitions))
        for rack in set(racks_of(sizes).values()):
            here = [number for number, where in racks_of(sizes).items() if where == rack]
            assert differ_by(counts((r for replicas in placed for r in replicas), here)) <= 1, placed


def test_brokers_of_a_rack_share_its_replicas_to_within_one() -> None:
    a_rack_shares_what_it_has(placement)


@given(st.data(), st.integers(1, 6), st.integers(1, 6), st.integers(1, 80), st.integers(0, 99))
def test_racks_of_one_size_share_replicas_and_leaders_to_within_one(
    data: st.DataObject, racks: int, size: int, partitions: int, seed: int
) -> None:
    racks_of_one_size(placement, racks, size, data.draw(st.integers(1, racks * size)), partitions, seed)


def partitions_that_are_added_continue(module: Any, seed: int = 7) -> None:
    brokers = living([2, 3, 1])
    for first, more in product(range(9), range(9)):
        at_once = module.place_new(brokers, first + more, 2, Random(seed))
        before = module.place_new(brokers, first, 2, Random(seed))
        after = module.place_new(brokers, more, 2, Random(seed), first)
        assert before + after == at_once


def test_partitions_that_are_added_continue_where_those_that_exist_have_ended() -> None:
    partitions_that_are_added_continue(placement)


def test_who_is_alone_in_its_rack_does_not_pay_for_it_where_there_are_others() -> None:
    placed = place_new(living([1, 1, 4]), 120, 2, Random(1))
    assert counts((r for replicas in placed for r in replicas), range(1, 7)) == [60, 60, 30, 30, 30, 30]


def nothing_stands_in_a_dead_rack(module: Any) -> None:
    brokers = [*living([2, 2]), broker(5, "dead", fenced=True), broker(6, "dead", fenced=True)]
    placed = module.place_new(brokers, 40, 2, Random(3))
    assert counts((r for replicas in placed for r in replicas), range(1, 7)) == [20, 20, 20, 20, 0, 0]


def test_nothing_stands_in_a_rack_that_is_dead_while_enough_others_live() -> None:
    nothing_stands_in_a_dead_rack(placement)


def many_succeed(module: Any) -> None:
    placed = module.place_new(living([12]), 600, 3, Random(4))
    for leader in range(1, 13):
        successors = {replicas[1] for replicas in placed if replicas[0] == leader}
        assert len(successors) >= 9, f"{successors} take all that {leader} leads"


def test_when_a_broker_dies_many_share_what_it_led() -> None:
    many_succeed(placement)


def small_topics_stand_anywhere(module: Any) -> None:
    placed = [module.place_new(living([2, 2]), 1, 2, Random(seed))[0] for seed in range(80)]
    assert {replicas[0] for replicas in placed} == {1, 2, 3, 4}
    assert len({frozenset(replicas) for replicas in placed}) == 4


def test_topics_of_one_partition_do_not_all_stand_on_the_same_brokers() -> None:
    small_topics_stand_anywhere(placement)


THREE = [broker(1), broker(2, fenced=True), broker(3, shutting_down=True)]
REFUSED = {
    "too many": (THREE, 3, r"3 replicas .* 1 to 2 are possible: 3 brokers are registered, of which \[3\] shut down"),
    "none asked for": (THREE, 0, r"0 replicas were asked for, 1 to 2 are possible"),
    "nobody there": ([], 1, "1 replicas were asked for, none are possible: 0 brokers are registered"),
    "nobody alive": (THREE[1:], 1, r"until one of the brokers \[2\] is alive, .* of which \[3\] shut down"),
}  # fmt: skip


@pytest.mark.parametrize(("brokers", "factor", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_possible_is_refused_with_its_numbers(
    brokers: list[BrokerState], factor: int, says: str
) -> None:
    with pytest.raises(InvalidReplicationFactor, match=says):
        place_new(brokers, 1, factor, Random(1))


def test_topics_are_created_with_it() -> None:
    book = Book()
    place = partial(place_new, book.image.brokers.values(), rng=Random(OTHER))
    book.carry_out(create_topic(book.image, NewTopic("new", 6, 2), OTHER, place, TopicDefaults()))
    assert counts((p.leader for p in book.image.partitions_of(OTHER)), (1, 2, 3)) == [2, 2, 2]


# ── without a broker ──────────────────────────────────────────────────────────────────────────────────


@st.composite
def images(draw: st.DrawFn, uniform: bool = False) -> Image:
    """Two topics that stand just anywhere."""
    size = draw(st.integers(1, 3))
    sizes = (
        [size] * draw(st.integers(1, 3))
        if uniform
        else draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    )
    racks = racks_of(sizes)
    factor = draw(st.integers(1, min(3, len(racks))))
    replicas = st.permutations(sorted(racks)).map(lambda order: order[:factor])
    topics = [draw(st.lists(replicas, min_size=1, max_size=8)) for _ in range(2)]
    fenced = () if uniform else draw(st.lists(st.sampled_from(sorted(racks)), max_size=1))
    return cluster(racks, *topics, fenced=fenced).image


def loads(of: Layout, image: Image) -> dict[int, int]:
    """Replicas of everybody who is alive."""
    alive = [b for b in image.brokers if image.live_epoch(b) is not None]
    return dict(zip(alive, counts((r for replicas in of.values() for r in replicas), alive), strict=True))


def racks_in(image: Image) -> dict[int, str]:
    return {b: known.rack for b, known in image.brokers.items()}


def crowds(replicas: Iterable[int], image: Image) -> list[int]:
    return sorted(Counter(racks_in(image)[r] for r in replicas).values())


def options(image: Image, replicas: Replicas, leaves: int) -> list[Replicas]:
    """All that may become of the replicas without it: somebody alive, in a rack as empty as any."""
    able = [b for b in image.brokers if b not in replicas and image.live_epoch(b) is not None]
    every = [tuple(b if r == leaves else r for r in replicas) for b in able]
    best = min((crowds(each, image)[::-1] for each in every), default=[])
    return [each for each in every if crowds(each, image)[::-1] == best]


def drained_well(module: Any, image: Image, leaves: int) -> bool:
    """Everything that must move does, nothing else, to where it is best; False: there is nobody to take it."""
    held = {place: replicas for place, replicas in layout(image).items() if leaves in replicas}
    possible = {place: options(image, replicas, leaves) for place, replicas in held.items()}
    if not all(possible.values()):
        with pytest.raises(InvalidReplicationFactor, match=f"broker {leaves} cannot be drained"):
            module.drain(image, leaves)
        return False
    plan = module.drain(image, leaves)
    assert plan.keys() == held.keys()
    assert all(replicas in possible[place] for place, replicas in plan.items()), (plan, possible)
    if leaves in plan or len(held) > 6:
        return True

    def squares(chosen: Iterable[Replicas]) -> int:
        after = layout(image) | dict(zip(held, chosen, strict=True))
        return sum(load**2 for b, load in loads(after, image).items() if b != leaves)

    ways = product(*possible.values())
    assert squares(plan[place] for place in held) == min(map(squares, ways)), plan
    return True


@settings(max_examples=60)
@given(images(), st.integers(1, 9))
def test_a_drained_broker_holds_nothing_and_the_others_as_evenly_as_any_plan_allows(
    image: Image, leaves: int
) -> None:
    if leaves in image.brokers:
        drained_well(placement, image, leaves)


def who_leads_least_leads_in_its_place(module: Any) -> None:
    book = cluster(racks_of([7]), [(1, 2), (1, 3), *[(4, 6), (5, 7)] * 3, *[(2, 3)] * 5])
    assert numbers(module.drain(book.image, 1)) in ({0: (6, 2), 1: (7, 3)}, {0: (7, 2), 1: (6, 3)})


def test_of_equally_loaded_brokers_those_lead_in_its_place_who_lead_the_least() -> None:
    who_leads_least_leads_in_its_place(placement)


def test_who_replaces_a_broker_takes_its_place_in_the_order() -> None:
    book = cluster(racks_of([1, 1, 2]), [(1, 2, 3), (3, 1, 2), (2, 1, 4), (1, 4, 2)])
    assert numbers(drain(book.image, ids(3)[0])) == {0: (1, 2, 4), 1: (4, 1, 2)}


def test_nothing_goes_to_who_is_dead_or_leaves_or_is_spared_or_cannot_serve_it() -> None:
    book = cluster(racks_of([7]), [(1, 2)], fenced=[3], shutting_down=[4], offline={5: [(TOPIC, 0)]})
    assert numbers(drain(book.image, ids(1)[0], spare=ids(6))) == {0: (7, 2)}


def test_a_broker_that_is_dead_can_be_drained() -> None:
    book = cluster(racks_of([3]), [(1, 2)], fenced=[1])
    assert numbers(drain(book.image, ids(1)[0])) == {0: (3, 2)}


def what_is_under_way_counts_as_done(module: Any) -> None:
    book = cluster(racks_of([5]), [(1, 2, 3)], adding=(2,), removing=(3,))
    assert module.drain(book.image, ids(3)[0]) == {}
    assert numbers(module.drain(book.image, ids(2)[0])) == {0: (1, 3)}


def test_what_a_reassignment_takes_away_already_is_not_planned_twice() -> None:
    what_is_under_way_counts_as_done(placement)


def test_who_cannot_be_drained_is_told_why() -> None:
    book = cluster(racks_of([4]), [(1, 2)], fenced=[3])
    says = r"broker 1 .* 1 of its partitions .* orders-0 on brokers 1, 2; could take more: 2; fenced: 3; to be spared: 4$"
    with pytest.raises(InvalidReplicationFactor, match=says):
        drain(book.image, ids(1)[0], spare=ids(4))


def test_a_broker_that_does_not_exist_is_not_drained() -> None:
    with pytest.raises(BrokerIdNotRegistered, match=r"holds nothing; registered: \[1, 2\]"):
        drain(cluster(racks_of([2]), [(1, 2)]).image, ids(9)[0])


# ── evenly ────────────────────────────────────────────────────────────────────────────────────────────


def moved(before: Layout, after: Layout) -> int:
    """How many replicas have to be copied."""
    return sum(len(set(after[place]) - set(before[place])) for place in before)


def must_move(load: Iterable[int]) -> int:
    """How many at least, for loads that differ by one."""
    found = list(load)
    even = sum(found) // len(found)
    enough = even + (sum(found) % len(found) > 0)
    return max(sum(max(0, each - enough) for each in found), sum(max(0, even - each) for each in found))


def balanced_well(module: Any, image: Image) -> None:
    """Nothing goes to the dead or from them, and no partition is worse spread than before; once is enough."""
    before = layout(image)
    after = before | module.balance(image)
    dead = {b for b in image.brokers if image.live_epoch(b) is None}
    for place, replicas in after.items():
        assert len(set(replicas)) == len(replicas) == len(before[place])
        assert set(replicas) & dead == set(before[place]) & dead
        assert crowds(replicas, image)[::-1] <= crowds(before[place], image)[::-1]
    again = cluster(racks_in(image), *in_topics(after), fenced=dead)
    assert module.balance(again.image) == {}


def in_topics(of: Layout) -> list[list[Replicas]]:
    return [[of[place] for place in sorted(of) if place[0] == topic] for topic in (TOPIC, OTHER)]


@given(images())
def test_a_balance_keeps_racks_apart_and_the_dead_as_they_are_and_is_reached_at_once(image: Image) -> None:
    balanced_well(placement, image)


def even_racks_become_even(module: Any, image: Image) -> None:
    before = layout(image)
    after = before | module.balance(image)
    racks = racks_in(image)
    assert differ_by(list(loads(after, image).values())) <= 1, after
    assert differ_by(counts((replicas[0] for replicas in after.values()), image.brokers)) <= 1, after
    assert all(is_spread(replicas, racks, racks) for replicas in after.values())
    if len(set(racks.values())) == 1:
        assert moved(before, after) == must_move(loads(before, image).values()), after


@settings(max_examples=60)
@given(images(uniform=True))
def test_in_racks_of_one_size_brokers_hold_and_lead_alike_with_as_few_moves_as_that_takes(
    image: Image,
) -> None:
    even_racks_become_even(placement, image)


@given(st.lists(st.integers(1, 4), min_size=3, max_size=3), st.integers(1, 30), st.integers(0, 99))
def test_what_has_just_been_placed_in_racks_of_one_size_stays(
    sizes: list[int], partitions: int, seed: int
) -> None:
    placed = place_new(
        living([sizes[0]] * sizes[1]), partitions, 1 + sizes[2] % (sizes[0] * sizes[1]), Random(seed)
    )
    image = cluster(racks_of([sizes[0]] * sizes[1]), placed).image
    assert balance(image) == spread(image, [TOPIC]) == {}


def only_who_has_come_is_given_anything(module: Any) -> None:
    placed = place_new(living([2, 2, 2]), 40, 3, Random(5))
    book = cluster(racks_of([2, 2, 2]) | {7: "rack 0"}, placed)
    before = layout(book.image)
    after = before | module.balance(book.image)
    assert {b for place in after for b in set(after[place]) - set(before[place])} == {7}
    assert differ_by([loads(after, book.image)[b] for b in (1, 2, 7)]) <= 1


def test_a_broker_that_has_come_gets_its_share_and_nobody_else_gets_anything() -> None:
    only_who_has_come_is_given_anything(placement)


def test_the_order_alone_is_changed_where_that_is_enough() -> None:
    image = cluster(racks_of([2]), [(1, 2)] * 4).image
    assert numbers(balance(image)) == {0: (2, 1), 1: (2, 1)}


def who_cannot_serve_it_is_not_the_first(module: Any) -> None:
    book = cluster(racks_of([2]), [(1, 2)] * 4, offline={2: [(TOPIC, index) for index in range(3)]})
    assert numbers(module.balance(book.image)) == {3: (2, 1)}


def test_who_cannot_serve_a_partition_does_not_become_its_first() -> None:
    who_cannot_serve_it_is_not_the_first(placement)


def the_spared_get_nothing(module: Any) -> None:
    image = cluster(racks_of([3]), [(1,)] * 4).image
    for plan in (module.balance(image, None, ids(3)), module.spread(image, [TOPIC], ids(3))):
        assert loads(layout(image) | plan, image) == {1: 2, 2: 2, 3: 0}


def test_who_has_just_been_drained_is_not_filled_again() -> None:
    the_spared_get_nothing(placement)


def test_what_a_plan_costs_can_be_told_beforehand() -> None:
    image = cluster(racks_of([3]), [(1, 2)] * 3).image
    plan = {(TOPIC, 0): ids(2, 1), (TOPIC, 1): ids(1, 3)}
    assert cost(image, plan) == Cost(partitions=2, copies=1, leaders=1)


def test_a_crowded_rack_is_left() -> None:
    image = cluster(racks_of([2, 2]), [(1, 2), (3, 4)]).image
    assert all(crowds(replicas, image) == [1, 1] for replicas in (layout(image) | balance(image)).values())


def a_way_by_others_is_found(module: Any) -> None:
    """4 has room only for what stands in its own rack; that rack's other broker then takes over from 1."""
    book = cluster({1: "a", 2: "b", 3: "c", 4: "c"}, [(1, 3)] * 2 + [(1, 2)] * 4 + [(3, 2)] * 3)
    after = layout(book.image) | module.balance(book.image)
    assert max(loads(after, book.image).values()) - min(loads(after, book.image).values()) <= 1, after


def test_where_no_replica_can_move_directly_it_moves_by_way_of_others() -> None:
    a_way_by_others_is_found(placement)


def only_what_is_named_moves(module: Any) -> None:
    book = cluster(racks_of([4]), [(1, 2)] * 4, [(1, 2), (2, 1)])
    plan = module.balance(book.image, [TOPIC])
    assert {topic for topic, _ in plan} == {TOPIC}
    assert loads(layout(book.image) | plan, book.image) == {1: 3, 2: 3, 3: 3, 4: 3}


def test_a_balance_of_some_topics_counts_all_and_moves_these() -> None:
    only_what_is_named_moves(placement)


def each_topic_by_itself(module: Any) -> None:
    book = cluster(racks_of([4]), [(1, 2)] * 4, [(3, 4)] * 4)
    assert module.balance(book.image).keys() <= {
        (topic, index) for topic in (TOPIC, OTHER) for index in range(4)
    }
    after = layout(book.image) | module.spread(book.image, [TOPIC, OTHER])
    for placed in in_topics(after):
        assert counts((r for replicas in placed for r in replicas), (1, 2, 3, 4)) == [2, 2, 2, 2]


def test_topics_are_spread_each_by_itself() -> None:
    each_topic_by_itself(placement)


def topics_are_mixed(module: Any) -> None:
    """Who comes gets of every topic its share, and not all of one."""
    book = cluster(racks_of([3]), [(1,), (2,)] * 3, [(1,), (2,)] * 3)
    after = layout(book.image) | module.balance(book.image)
    assert [counts((r for (r,) in placed), (3,)) for placed in in_topics(after)] == [[2], [2]]


def test_who_comes_gets_its_share_of_every_topic() -> None:
    topics_are_mixed(placement)


def test_followers_move_rather_than_leaders() -> None:
    book = cluster(racks_of([3]), [(1, 2), (2, 1), (1, 2)])
    assert [replicas[0] for replicas in (layout(book.image) | balance(book.image)).values()] != [3, 3, 3]
    assert moved(layout(book.image), layout(book.image) | balance(book.image)) == 2


def test_a_topic_that_does_not_exist_is_not_balanced() -> None:
    image = cluster(racks_of([2]), [(1, 2)]).image
    for plan in (balance, spread):
        with pytest.raises(UnknownTopicId):
            plan(image, [OTHER])


def steps_of(partitions: int) -> int:
    """How many steps it takes to give a fourth broker its share."""
    placed = place_new(living([3]), partitions, 3, Random(1))
    image = cluster(racks_of([4]), placed[::2], placed[1::2]).image
    return sum(1 for _ in placement.balancing(image))


def test_ten_times_the_partitions_take_ten_times_the_steps() -> None:
    assert 5 < steps_of(2000) / steps_of(200) < 15


# ── bugs planted into the module ──────────────────────────────────────────────────────────────────────


def examples(module: Any) -> None:
    """The properties, on a few clusters that are always the same."""
    for seed in range(60):
        rng = Random(seed)
        racks, size = rng.randint(1, 4), rng.randint(1, 4)
        racks_of_one_size(module, racks, size, rng.randint(1, racks * size), rng.randint(1, 50), seed)
        sizes = [rng.randint(1, 3) for _ in range(3)]
        image = some_image(rng, sizes, fenced=rng.random() < 0.3)
        drained_well(module, image, rng.randint(1, sum(sizes)))
        balanced_well(module, image)
        even_racks_become_even(module, some_image(rng, sizes[:1] * sizes[1], fenced=False))


def some_image(rng: Random, sizes: list[int], *, fenced: bool) -> Image:
    every = sorted(racks_of(sizes))
    factor = rng.randint(1, min(3, len(every)))
    topics = [[rng.sample(every, factor) for _ in range(rng.randint(1, 8))] for _ in range(2)]
    return cluster(racks_of(sizes), *topics, fenced=every[:1] if fenced else ()).image


RULES: tuple[Callable[[Any], object], ...] = (
    partitions_that_are_added_continue,
    nothing_stands_in_a_dead_rack,
    many_succeed,
    small_topics_stand_anywhere,
    who_leads_least_leads_in_its_place,
    a_rack_shares_what_it_has,
    what_is_under_way_counts_as_done,
    only_who_has_come_is_given_anything,
    a_way_by_others_is_found,
    who_cannot_serve_it_is_not_the_first,
    the_spared_get_nothing,
    only_what_is_named_moves,
    each_topic_by_itself,
    topics_are_mixed,
    examples,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_module_obeys_what_finds_bugs(rule: Callable[[Any], object]) -> None:
    rule(placement)


BUGS = (
    Bug("leaders by the order alone", "key=leads.__getitem__)", "key=lambda _: 0)"),
    Bug("fixed offsets, nothing is shuffled", "        if index % len(usable) == 0:\n", "        if index == 0:\n"),
    Bug("shuffled in the middle of a turn", "if index % len(usable) == 0:", "if index % 2 == 0:"),
    Bug("whoever had a turn is forgotten", "        self._brokers.sort(key=self._taken.__getitem__)\n", ""),
    Bug("added partitions start anew", "range(first + partitions)", "range(partitions)"),
    Bug("racks take no turns", "self.taken / (len(self.living) or len(self.fenced))", "0.0"),
    Bug("the dead take turns with all others", "return not self.living, self", "return False, self"),
    Bug("a rack at a time", "    for already in count():\n        for rack in order:\n", "    for rack in order:\n        for already in range(rack.size):\n"),
    Bug("who must not have it is given it", " and taker in options[place])", ")"),
    Bug("the first best replaces", "key=lambda b: (load[b], leads[b], b))", "key=lambda b: b)"),
    Bug("leads are not looked at", "key=lambda b: (load[b], leads[b], b))", "key=lambda b: (load[b], b))"),
    Bug("any rack will do", "if crowd[rack_of(image, b)] == least)", ")"),
    Bug("the plan is not evened out", "    yield from _even_out(load, offers, give)\n    taken_by", "    taken_by"),
    Bug("what is under way is not looked at", "tuple(r for r in p.replicas if r not in p.removing)", "p.replicas"),
    Bug("who replaces comes last", "tuple(taken_by[p.place] if r == broker else r for r in goal(p))", "(*(r for r in goal(p) if r != broker), taken_by[p.place])"),
    Bug("it moves for a difference of one", "if load[source] - load[emptiest_first[0]] < 2", "if load[source] - load[emptiest_first[0]] < 3"),
    Bug("only directly", "                queue.append(taker)\n", ""),
    Bug("the dead are given more", "if image.live_epoch(b) is not None and b not in spare]", "if b not in spare]"),
    Bug("the spared are given more", "if image.live_epoch(b) is not None and b not in spare]", "if image.live_epoch(b) is not None]"),
    Bug("the first cannot serve it", " and can_lead(taker, place)", ""),
    Bug("racks are not left", "            while step := self._out_of", "            while step := None and self._out_of"),
    Bug("racks are crowded", "return here == there or self._crowd(place, here) > self._crowd(place, there)", "return True"),
    Bug("any topic will do", "lambda b, topic: len(self._holds[b].get(topic, ()))", "lambda b, topic: 0"),
    Bug("others do not count", "    layout.count(goal(p) for place, p in image.partitions.items() if place not in movable)\n", ""),
    Bug("nobody leads less", "        yield from _even_out(self._leads, offers, give)\n", ""),
    Bug("what was given away is offered", "if giver not in self._replicas[place] or not", "if not"),
    Bug("whoever is drained for offers what others took", "place in given[giver] and ", ""),
    Bug("all topics together", "_Layout(image, _places(image, [topic_id]), spare)", "_Layout(image, sorted(image.partitions), spare)"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    module = planted(placement, bug)
    assert any(fails(partial(rule, module)) for rule in RULES)
