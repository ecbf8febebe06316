"""Facts in batches that can be appended: whole where that is possible (design 4.1)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controller.book import NOW, ids, named, partition
from tidelog.controller.batches import in_batches
from tidelog.controller.facts import BATCH_BYTES, FACTS_MAX, ConfigChanged, Fact, encode_facts


def said(size: int) -> Fact:
    return ConfigChanged("topic", "orders", "key", "x" * size)


def test_nothing_is_no_batch() -> None:
    assert in_batches([]) == in_batches([[], []]) == []


def test_units_share_a_batch_while_they_fit() -> None:
    assert in_batches([[said(1)], [], [said(2), said(3)]]) == [[said(1), said(2), said(3)]]


def test_a_unit_that_fits_into_a_batch_is_not_divided() -> None:
    half = [said(BATCH_BYTES // 4), said(BATCH_BYTES // 4)]
    assert in_batches([half, half]) == [half, half]


def test_a_unit_that_fits_into_none_is_divided_in_its_order() -> None:
    unit = [said(number) for number in range(100)] * (FACTS_MAX // 100 + 1)
    batches = in_batches([unit])
    assert len(batches) > 1
    assert [fact for facts in batches for fact in facts] == unit
    assert max(map(len, batches)) <= FACTS_MAX


@given(st.lists(st.lists(st.integers(0, 300_000), max_size=5), max_size=6))
def test_every_batch_can_be_appended_and_nothing_is_lost(sizes: list[list[int]]) -> None:
    units = [[said(size) for size in unit] for unit in sizes]
    batches = in_batches(units)
    assert [fact for facts in batches for fact in facts] == [fact for unit in units for fact in unit]
    assert all(facts and len(encode_facts(facts, NOW)) <= BATCH_BYTES for facts in batches)


@pytest.mark.parametrize(("replicas", "count"), [(1, 12_000), (3, 12_000), (50, 2_000)])
def test_a_full_batch_of_partitions_can_be_appended(replicas: int, count: int) -> None:
    largest = 2**31 - 1
    who = tuple(range(largest - replicas, largest))
    unit: list[Fact] = [
        partition(who, replicas=who, adding=ids(*who), index=largest - number, topic=named("t")).changed()
        for number in range(count)
    ]
    batches = in_batches([unit])
    assert len(batches) > 1
    assert len(encode_facts(batches[0], NOW)) <= BATCH_BYTES
