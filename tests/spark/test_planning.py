from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.protocol.errors import InvalidConfig
from tidelog.protocol.types import TopicPartition
from tidelog.spark.offsets import StreamOffset, stream_offset
from tidelog.spark.planning import Span, limited, rows_per_task, tasks

BOUNDS = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)).map(sorted)
SPANS = st.lists(BOUNDS, max_size=8).map(
    lambda each: [Span("t", b"", number, start, end) for number, (start, end) in enumerate(each)]
)


@given(SPANS, st.integers(1, 300_000), st.booleans())
def test_every_offset_is_in_one_task_and_each_task_reads_a_partition_once(
    spans: list[Span], rows: int, merge: bool
) -> None:
    planned = tasks(spans, max(rows, sum(span.size for span in spans) // 500), merge=merge)
    covered: dict[int, int] = {span.partition: span.start for span in spans}
    for task in planned:
        assert len({span.name for span in task}) == len(task)
        for span in task:
            assert span.start == covered[span.partition]
            assert span.size > 0
            covered[span.partition] = span.end
    assert covered == {span.partition: span.end for span in spans}


def test_small_partitions_share_a_task_and_large_ones_are_cut() -> None:
    small = [Span("t", b"", number, 0, 10) for number in range(100)]
    assert [len(task) for task in tasks(small, 500)] == [50, 50]
    assert [span.size for [span] in tasks([Span("t", b"", 0, 0, 100)], 40)] == [33, 33, 34]


def test_as_many_tasks_are_made_as_are_asked_for() -> None:
    spans = [Span("t", b"", number, 0, 50) for number in range(2)]
    rows = rows_per_task(100, 2, 10, None)
    assert len(tasks(spans, rows, merge=False)) == 10
    assert max(span.size for [span] in tasks(spans, rows_per_task(100, 2, None, 7))) <= 7


def test_a_limit_is_shared_out_by_what_is_there() -> None:
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    assert limited({first: 10, second: 0}, {first: 40, second: 10}, 20) == {first: 25, second: 5}


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 100), min_size=1), st.integers(1, 500))
def test_a_limit_is_kept_and_something_is_always_read(there: dict[int, int], most: int) -> None:
    ends = {TopicPartition("t", number): size for number, size in there.items()}
    taken = limited({}, ends, most)
    assert sum(taken.values()) == min(most, sum(there.values()))
    assert all(taken[name] <= ends[name] for name in ends)


def test_a_small_partition_is_read_beside_a_lag_that_never_ends() -> None:
    large, small = TopicPartition("a", 0), TopicPartition("b", 0)
    at, ends = {large: 0, small: 0}, {large: 1_000_000, small: 5}
    for _ in range(5):
        at = limited(at, ends, 1000)
        ends[large] += 1000
    assert at == {large: 4995, small: 5}


@given(st.integers(2, 40), st.integers(1, 40), st.data())
def test_every_partition_has_its_turn_where_a_limit_is_smaller_than_their_number(
    count: int, most: int, data: st.DataObject
) -> None:
    names = [TopicPartition("t", number) for number in range(count)]
    quiet = data.draw(st.sets(st.sampled_from(names)))
    at = {name: data.draw(st.integers(0, 9)) for name in names}
    begun = dict(at)
    for _ in range(count):
        ends = {name: offset if name in quiet else offset + 100 for name, offset in at.items()}
        assert limited(dict(reversed(at.items())), dict(reversed(ends.items())), most) == limited(
            at, ends, most
        )
        at = limited(at, ends, most)
    assert all(at[name] > begun[name] for name in names if name not in quiet)


def test_what_rounding_leaves_goes_to_the_largest_fractions() -> None:
    names = [TopicPartition("t", number) for number in range(3)]
    ends = dict(zip(names, [25, 10, 25], strict=True))
    assert limited({}, ends, 10) == dict(zip(names, [4, 2, 4], strict=True))


def test_the_same_offsets_are_the_same_text_whatever_their_order() -> None:
    names = [TopicPartition("b", 10), TopicPartition("b", 9), TopicPartition("a", 0)]
    ids = {"b": b"\1" * 16, "a": b"\2" * 16}
    one = StreamOffset(dict.fromkeys(names, 1), ids).as_json()
    other = StreamOffset(dict.fromkeys(reversed(names), 1), dict(reversed(ids.items()))).as_json()
    assert str(one) == str(other)
    assert list(one) == ["a", "b", "tidelog:ids", "tidelog:rows"]


def test_offsets_survive_a_checkpoint() -> None:
    name = TopicPartition("orders", 3)
    offset = StreamOffset({name: 7}, {"orders": b"\3" * 16}, 1000, {name: 2}, merge=False)
    assert stream_offset(offset.as_json()) == offset


def test_offsets_of_an_older_checkpoint_that_say_less_are_read() -> None:
    assert stream_offset({"orders": {"3": 7}}) == StreamOffset({TopicPartition("orders", 3): 7}, {})


@pytest.mark.parametrize(
    "another", [7, [1, 2], {"orders": 7}, {"logOffset": {"x": 1}}, {"orders": {"0": None}}]
)
def test_an_offset_of_another_source_is_refused_with_what_it_is(another: Any) -> None:
    with pytest.raises(
        InvalidConfig, match=r"offset .* is none of tidelog's: give this stream a checkpoint"
    ) as refused:
        stream_offset(another)
    assert repr(another) in str(refused.value)
