"""The log of groups: what is written is read again, what is not known here stops the loading."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.groups_world import storm
from tidelog.broker.groups.records import (
    STATES,
    CurrentKey,
    CurrentState,
    GroupKey,
    GroupState,
    MemberKey,
    MemberState,
    OffsetKey,
    OffsetState,
    Record,
    TargetKey,
    TargetState,
    TopicKey,
    TopicState,
    decoded,
    encoded,
    places_of,
    spread_of,
)
from tidelog.protocol.errors import UnsupportedFormat

ID = bytes(range(16))
GOLDEN = [
    (
        Record(GroupKey("g"), GroupState(3, 2, b"12345678", "uniform", 1700)),
        "9201a167",
        "950302c4083132333435363738a7756e69666f726dcd06a4",
    ),
    (
        Record(MemberKey("g", "m"), MemberState(("t",), "i", "", "r", 1, 2, "c", "h")),
        "9302a167a16d",
        "9891a174a169a0a1720102a163a168",
    ),
    (
        Record(TargetKey("g", "m"), TargetState(((ID, (0, 1)),))),
        "9303a167a16d",
        "919192c410000102030405060708090a0b0c0d0e0f920001",
    ),
    (Record(CurrentKey("g", "m"), CurrentState(5, 4, 9)), "9304a167a16d", "950504099090"),
    (
        Record(OffsetKey("g", ID, 1), OffsetState(7, 2, "x", 5, 4, "m", 3)),
        "9405a167c410000102030405060708090a0b0c0d0e0f01",
        "970702a1780504a16d03",
    ),
    (Record(TopicKey("g", ID), TopicState(4)), "9306a167c410000102030405060708090a0b0c0d0e0f", "9104"),
]


@pytest.mark.parametrize(
    ("record", "key", "value"),
    GOLDEN,
    ids=lambda each: type(each[0]).__name__ if isinstance(each, tuple) else "",
)
def test_bytes_of_this_format_mean_for_ever_what_they_mean(record: Record, key: str, value: str) -> None:
    keys, values = encoded([record])
    assert [each and each.hex() for each in (*keys, *values)] == [key, value]
    assert decoded(bytes.fromhex(key), bytes.fromhex(value), 0) == record
    assert decoded(bytes.fromhex(key), None, 0) == Record(record.key, None)


def test_every_kind_of_record_has_its_bytes() -> None:
    assert {type(record.key) for record, _, _ in GOLDEN} == set(STATES)


def test_what_storms_write_is_read_again() -> None:
    records = [record for batch in storm(1, 300).log for record in batch]
    keys, values = encoded(records)
    assert [decoded(key, value, 0) for key, value in zip(keys, values, strict=True)] == records


def test_fields_that_came_later_have_their_defaults() -> None:
    key = msgspec.msgpack.encode(GroupKey("g"))
    assert decoded(key, msgspec.msgpack.encode([3, 2]), 0).value == GroupState(3, 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ([99, "g"], [1]),  # a kind from the future
        ([1, "g", "more"], [3, 2]),
        ([1, "g"], [3, 2, b"", "", 0, "more"]),
        ([1, "g"], ["x", 2]),
        ([], None),
        ("", None),
    ],
)
def test_what_a_newer_tidelog_has_written_is_not_skipped(key: object, value: object) -> None:
    data = None if value is None else msgspec.msgpack.encode(value)
    with pytest.raises(UnsupportedFormat, match=r"^offset 7 of the log of groups"):
        decoded(msgspec.msgpack.encode(key), data, 7)


@given(st.frozensets(st.tuples(st.sampled_from([ID, ID[::-1]]), st.integers(0, 9))))
def test_partitions_are_always_written_alike(places: frozenset[tuple[bytes, int]]) -> None:
    spread = spread_of(places)
    assert places_of(spread) == places
    assert spread_of(sorted(places, reverse=True)) == spread
