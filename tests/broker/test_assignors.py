"""Partitions are shared out evenly, once each, and stay where they are if they can."""

from collections.abc import Mapping
from random import Random
from typing import Any, TypeAlias, TypeVar

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tidelog.broker import assignors
from tidelog.broker.assignors import ASSIGNORS, Wants, range_, uniform
from tidelog.broker.groups.records import Places
from tidelog.broker.groups.topics import Topic
from tidelog.protocol.types import TopicId

Case: TypeAlias = tuple[dict[str, Wants], dict[str, Places], dict[TopicId, Topic]]
K = TypeVar("K")
V = TypeVar("V")
every_assignor = pytest.mark.parametrize("name", ASSIGNORS)


def topic(number: int, partitions: int, racks: tuple[frozenset[str], ...] = ()) -> Topic:
    return Topic(bytes(15) + bytes([number]), f"t{number}", partitions, racks)


def all_want(topics: dict[TopicId, Topic], *names: str) -> dict[str, Wants]:
    return {name: Wants(frozenset(topics)) for name in names}


def by_id(*topics: Topic) -> dict[TopicId, Topic]:
    return {each.topic_id: each for each in topics}


@st.composite
def cases(draw: st.DrawFn, *, alike: bool = False) -> Case:
    racks = st.sampled_from(["", "a", "b", "c"])
    topics: dict[TopicId, Topic] = {}
    for number in range(draw(st.integers(1, 4))):
        partitions = draw(st.integers(0, 9))
        where = draw(
            st.just(())
            | st.lists(
                st.frozensets(racks.filter(bool), min_size=1), min_size=partitions, max_size=partitions
            )
        )
        topics |= by_id(topic(number, partitions, tuple(where)))
    ids = sorted(topics)
    everything = frozenset(ids)
    names = draw(st.lists(st.sampled_from("ABCDEFGH"), unique=True, min_size=1, max_size=8))
    members = {
        name: Wants(everything if alike else draw(st.frozensets(st.sampled_from(ids))), draw(racks))
        for name in names
    }
    # What was shared out before is a share-out, perhaps of other members and of topics that were larger.
    targets: dict[str, set[Any]] = {}
    for topic_id in ids:
        for index in range(12):
            owner = draw(st.sampled_from([*"ABCDEFGHI", None]))
            if owner is not None:
                targets.setdefault(owner, set()).add((topic_id, index))
    return members, {name: frozenset(places) for name, places in targets.items()}, topics


def check_once_each(
    members: Mapping[str, Wants], topics: dict[TopicId, Topic], shares: dict[str, Places]
) -> None:
    assert shares.keys() == members.keys()
    found = [place for places in shares.values() for place in places]
    wanted = {topic_id for wants in members.values() for topic_id in wants.topics}
    assert sorted(found) == sorted(
        (topic_id, index) for topic_id in wanted for index in range(topics[topic_id].partitions)
    )
    for member, places in shares.items():
        assert {topic_id for topic_id, _ in places} <= members[member].topics


@pytest.mark.slow
@every_assignor
@given(cases())
def test_every_wanted_partition_goes_to_one_member_that_wants_it(name: str, case: Case) -> None:
    members, targets, topics = case
    check_once_each(members, topics, ASSIGNORS[name](members, targets, topics))


def shuffled(table: dict[K, V], random: Random) -> dict[K, V]:
    return dict(random.sample(list(table.items()), len(table)))


@pytest.mark.slow
@every_assignor
@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(name: str, case: Case, random: Random) -> None:
    members, targets, topics = case
    expected = ASSIGNORS[name](members, targets, topics)
    assert (
        ASSIGNORS[name](shuffled(members, random), shuffled(targets, random), shuffled(topics, random))
        == expected
    )


@pytest.mark.slow
@every_assignor
@given(cases())
def test_what_was_shared_out_stays_as_it_is(name: str, case: Case) -> None:
    members, targets, topics = case
    shares = ASSIGNORS[name](members, targets, topics)
    assert ASSIGNORS[name](members, shares, topics) == shares


@given(cases())
def test_nobody_has_two_more_than_somebody_who_wants_one_of_them(case: Case) -> None:
    members, targets, topics = case
    shares = uniform(members, targets, topics)
    for giver, places in shares.items():
        for taker in members:
            if {topic_id for topic_id, _ in places} & members[taker].topics:
                assert len(places) - len(shares[taker]) < 2, (giver, taker, shares)


@given(cases(alike=True))
def test_where_all_want_the_same_the_fewest_move_that_evenness_takes(case: Case) -> None:
    members, targets, topics = case
    there = {(topic_id, index) for topic_id, each in topics.items() for index in range(each.partitions)}
    kept = {member: targets.get(member, frozenset()) & there for member in members}
    shares = uniform(members, targets, topics)
    lowest, more = divmod(len(there), len(members))
    # Who has most may keep one more, as many of them as there are to spare.
    most_first = sorted((len(places) for places in kept.values()), reverse=True)
    least = sum(max(had - lowest - (at < more), 0) for at, had in enumerate(most_first))
    assert sum(len(kept[member] - shares[member]) for member in members) == least


def test_who_comes_takes_an_even_share_and_nothing_else_moves() -> None:
    topics = by_id(topic(1, 12))
    before = uniform(all_want(topics, "a", "b", "c"), {}, topics)
    after = uniform(all_want(topics, "a", "b", "c", "d"), before, topics)
    assert [len(after[name]) for name in "abcd"] == [3, 3, 3, 3]
    assert all(after[name] < before[name] for name in "abc")


def test_each_topic_is_spread_as_well() -> None:
    topics = by_id(topic(1, 6), topic(2, 6))
    shares = uniform(all_want(topics, "a", "b", "c"), {}, topics)
    for places in shares.values():
        assert [sum(place[0] == topic_id for place in places) for topic_id in topics] == [2, 2]


def test_free_partitions_go_to_members_that_stand_by_a_replica() -> None:
    racks = tuple(frozenset({"a" if index % 2 else "b"}) for index in range(6))
    topics = by_id(topic(1, 6, racks))
    members = {name: Wants(frozenset(topics), rack) for name, rack in (("m1", "a"), ("m2", "b"))}
    shares = uniform(members, {}, topics)
    assert {index for _, index in shares["m1"]} == {1, 3, 5}
    assert {index for _, index in shares["m2"]} == {0, 2, 4}


def test_nothing_moves_only_for_a_rack() -> None:
    racks = tuple(frozenset({"a"}) for _ in range(2))
    topics = by_id(topic(1, 2, racks))
    members = {"m1": Wants(frozenset(topics), "a"), "m2": Wants(frozenset(topics), "b")}
    before = {"m1": frozenset({(min(topics), 0)}), "m2": frozenset({(min(topics), 1)})}
    assert uniform(members, before, topics) == before


def test_ranges_are_neighbours_and_the_same_for_topics_of_one_size() -> None:
    topics = by_id(topic(1, 7), topic(2, 7))
    shares = range_(all_want(topics, "a", "b", "c"), {}, topics)
    for name, indexes in (("a", {0, 1, 2}), ("b", {3, 4}), ("c", {5, 6})):
        assert shares[name] == {(topic_id, index) for topic_id in topics for index in indexes}


def test_who_comes_to_ranges_stands_behind_those_who_are_there() -> None:
    topics = by_id(topic(1, 9))
    before = range_(all_want(topics, "m", "n"), {}, topics)
    after = range_(all_want(topics, "a", "m", "n"), before, topics)
    assert [sorted(index for _, index in after[name]) for name in "mna"] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


# ── a thousand members ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@every_assignor
@pytest.mark.parametrize(("number", "size"), [(1, 10_000), (100, 100), (10_000, 1)])
def test_a_thousand_members_and_ten_thousand_partitions_are_shared_out_at_once(
    name: str, number: int, size: int
) -> None:
    topics = {
        topic_id: Topic(topic_id, topic_id.hex(), size)
        for topic_id in (number.to_bytes(16, "big") for number in range(number))
    }
    everything = frozenset(topics)
    members = {f"member-{at:04}": Wants(everything) for at in range(1000)}
    shares = ASSIGNORS[name](members, {}, topics)
    check_once_each(members, topics, shares)
    del members["member-0500"]
    again = ASSIGNORS[name](members, shares, topics)
    check_once_each(members, topics, again)
    if name == "uniform":
        assert sum(len(again[member] - shares[member]) for member in members) == 10


# ── planted bugs ──────────────────────────────────────────────────────────────────────────────────────


SHARED_OUT_WELL = uniform


def _forgets_what_was(members: Any, _: Any, topics: Any) -> Any:
    return SHARED_OUT_WELL(members, {}, topics)


def _gives_what_is_not_wanted(members: Any, targets: Any, topics: Any) -> Any:
    everything = frozenset(topics)
    return SHARED_OUT_WELL({name: Wants(everything) for name in members}, targets, topics)


def _once_each(case: Case) -> None:
    test_every_wanted_partition_goes_to_one_member_that_wants_it.hypothesis.inner_test("uniform", case)


@pytest.mark.parametrize(
    ("bug", "test", "alike"),
    [
        (
            _forgets_what_was,
            test_where_all_want_the_same_the_fewest_move_that_evenness_takes.hypothesis.inner_test,  # type: ignore[attr-defined]
            True,
        ),
        (_gives_what_is_not_wanted, _once_each, False),
        (
            "even_out",
            test_nobody_has_two_more_than_somebody_who_wants_one_of_them.hypothesis.inner_test,  # type: ignore[attr-defined]
            False,
        ),
        ("hand_out", _once_each, False),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_bug_is_noticed(bug: Any, test: Any, alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(bug, str):
        monkeypatch.setattr(assignors._Shares, bug, lambda *_: False)
    else:
        monkeypatch.setitem(ASSIGNORS, "uniform", bug)
        monkeypatch.setitem(globals(), "uniform", bug)

    # The same body and the same cases; the smallest case that shows the bug is nobody's question.
    @settings(phases=[Phase.generate], database=None)
    @given(cases(alike=alike))
    def noticed(case: Case) -> None:
        test(case)

    with pytest.raises((AssertionError, BaseExceptionGroup)):
        noticed()
