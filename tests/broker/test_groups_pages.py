"""Groups that are too large for one answer: they are told in pages, each of which fits a frame, and nothing is left out."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.broker.test_groups_requests import ORDERS_ID, Desk, ready
from tidelog.broker.groups import pages
from tidelog.broker.groups.topics import Topic
from tidelog.broker.requests import groups as requests
from tidelog.client.membership import Member, Membership
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import (
    DeleteGroupOffsets,
    DescribedGroup,
    DescribeGroups,
    GroupHeartbeat,
    ListedGroup,
    ListGroups,
    OffsetCommit,
    OffsetFetch,
    OffsetToCommit,
    PartitionIndex,
    Reply,
    decode_reply,
    decode_request,
    encode_head,
)
from tidelog.protocol.messages.shapes import ENTRIES_MAX

WIDE_ID = b"wide------topic-"


def fits(reply: Reply) -> bool:
    """Whether a client takes it; half of what it takes, for what is counted is an estimate."""
    return len(encode_head(1, reply)) < DEFAULT.max_head_bytes / 2


def wide(count: int, metadata: str = "", group: str = "g") -> Desk:
    """A group that has committed something of so many partitions of one topic."""
    desk = ready()
    desk.coordinator.topics.put(Topic(WIDE_ID, "wide", count))
    for begin in range(0, count, 10_000):
        entries = tuple(
            OffsetToCommit(WIDE_ID, index, index, metadata=metadata)
            for index in range(begin, min(begin + 10_000, count))
        )
        assert not any(each.error for each in desk.put(OffsetCommit(group, entries)).answer.partitions)
    return desk


def fetched(desk: Desk, limit: int = 10_000) -> Iterator[Any]:
    """The pages of what is committed."""
    after, more = None, True
    while more:
        reply = desk.put(OffsetFetch("g", after=after, limit=limit)).answer
        assert reply.partitions
        assert fits(reply)
        yield reply
        more = reply.more
        after = PartitionIndex(reply.partitions[-1].topic_id, reply.partitions[-1].index)


def described(
    desk: Desk, *names: str, with_lag: bool = False, limit: int = 10_000
) -> Iterator[DescribedGroup]:
    """The groups' parts, page by page."""
    left, member, after = list(names), "", None
    while left:
        reply = desk.put(DescribeGroups(tuple(left), with_lag, 30_000, member, after, limit)).answer
        assert reply.groups
        assert fits(reply)
        for entry in reply.groups:
            assert entry.group_id == left[0]
            yield entry
            if entry.more:
                assert entry is reply.groups[-1]
                member = entry.members[-1].member_id if entry.members else member
                last = entry.offsets[-1] if entry.offsets else None
                after = PartitionIndex(last.topic_id, last.index) if last is not None else after
            else:
                left, member, after = left[1:], "", None


def test_what_a_hundred_thousand_partitions_have_committed_is_told_in_pages_that_fit() -> None:
    desk = wide(100_000)
    found = list(fetched(desk))
    assert [len(page.partitions) for page in found] == [10_000] * 10
    told = [(each.index, each.offset) for page in found for each in page.partitions]
    assert told == [(index, index) for index in range(100_000)]


@pytest.mark.slow
def test_a_hundred_thousand_partitions_are_described_in_pages_that_fit() -> None:
    desk = wide(100_000)
    for with_lag in (False, True):
        parts = list(described(desk, "g", with_lag=with_lag))
        assert [each.index for part in parts for each in part.offsets] == list(range(100_000))
        assert {part.state for part in parts} == {"empty"}
        assert len(parts) == 10


def test_of_those_that_are_asked_for_the_first_ones_are_told() -> None:
    desk = wide(30)
    places = tuple(PartitionIndex(WIDE_ID, index) for index in reversed(range(50)))
    reply = desk.put(OffsetFetch("g", places, limit=25)).answer
    assert [(each.index, each.offset) for each in reply.partitions] == [
        (index, index if index < 30 else -1) for index in range(49, 24, -1)
    ]
    assert reply.more
    assert not desk.put(OffsetFetch("g", places[:25], limit=25)).answer.more


def test_what_is_kept_with_offsets_makes_pages_shorter() -> None:
    desk = wide(3000, "m" * 4000)
    found = list(fetched(desk))
    assert sum(len(page.partitions) for page in found) == 3000
    assert len(found) >= 6
    parts = list(described(desk, "g"))
    assert [each.index for part in parts for each in part.offsets] == list(range(3000))
    assert {each.metadata for part in parts for each in part.offsets} == {"m" * 4000}


def test_a_page_has_an_entry_even_if_that_is_too_large_or_none_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = wide(5)
    assert [len(page.partitions) for page in fetched(desk, limit=0)] == [1] * 5
    monkeypatch.setattr(pages, "BYTES", 10)
    assert [len(page.partitions) for page in fetched(desk)] == [1] * 5
    assert [each.index for part in described(desk, "g") for each in part.offsets] == list(range(5))
    assert len(desk.put(ListGroups()).answer.groups) == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 100])
def test_members_come_first_and_groups_in_the_order_they_are_asked_for(limit: int) -> None:
    desk = ready()
    for group, count in (("g", 3), ("h", 1)):
        for number in range(count):
            desk.say(f"m{number}", 0, "orders", group=group)
    desk.commit("", -1, 5, group="offsets")
    names = ("h", "nobody", "g", "offsets")
    found: dict[str, tuple[list[str], list[int]]] = {name: ([], []) for name in names}
    for part in described(desk, *names, limit=limit):
        members, offsets = found[part.group_id]
        assert not (offsets and part.members), "members come before partitions"
        members += [each.member_id for each in part.members]
        offsets += [each.index for each in part.offsets]
        assert bool(part.error) == (part.group_id == "nobody")
    assert found == {
        "h": (["m0"], [0, 1]),
        "nobody": ([], []),
        "g": (["m0", "m1", "m2"], [0, 1]),
        "offsets": ([], [0]),
    }


def test_how_far_a_page_is_behind_is_asked_of_its_partitions_only() -> None:
    desk = ready()
    asked: list[tuple[Any, Any]] = []
    desk.coordinator.ask_broker = lambda _broker, request, _ms, heard: asked.append((request, heard))
    desk.put(OffsetCommit("g", tuple(OffsetToCommit(ORDERS_ID, index, 3) for index in range(2))))
    for index in range(2):
        desk.follow(leader=2, place=(ORDERS_ID, index), replicas=(1, 2), isr=(1, 2))
    waiting = desk.put(DescribeGroups(("g",), True, limit=1))
    assert waiting.waits
    assert {query.index for query in asked[0][0].partitions} == {0}


def test_times_are_looked_up_for_a_bounded_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = wide(8)
    monkeypatch.setattr(requests, "TIMED_PAGE", 5)
    assert [len(part.offsets) for part in described(desk, "g", with_lag=True)] == [5, 3]
    assert [len(part.offsets) for part in described(desk, "g")] == [8]
    monkeypatch.setattr(requests, "TIMED_PARTITIONS", 7)
    assert [len(part.offsets) for part in described(desk, "g", with_lag=True)] == [8]


def test_groups_with_long_names_are_listed_in_pages_that_fit() -> None:
    desk = ready()
    names = sorted(f"{number:04}" + "𝄞" * 251 for number in range(2500))
    for name in names:
        desk.commit("", -1, 1, group=name)
    found: list[ListedGroup] = []
    more, answers = True, 0
    while more:
        reply = desk.put(ListGroups(after=found[-1].group_id if found else "")).answer
        assert fits(reply)
        found += reply.groups
        more, answers = reply.more, answers + 1
    assert [each.group_id for each in found] == names
    assert answers > 1


def test_refusals_of_as_many_partitions_as_a_request_can_name_fit() -> None:
    desk = ready()
    desk.say("a", 0, "orders")
    commit = tuple(OffsetToCommit(WIDE_ID, index, 1) for index in range(ENTRIES_MAX))
    reply = desk.put(OffsetCommit("other", commit)).answer
    assert all(each.error for each in reply.partitions)
    assert "is known here" in reply.partitions[0].message
    assert len(encode_head(1, reply)) < DEFAULT.max_head_bytes
    held = (PartitionIndex(ORDERS_ID, 0),) * ENTRIES_MAX
    reply = desk.put(DeleteGroupOffsets("g", held)).answer
    assert all(each.error for each in reply.partitions)
    assert len(encode_head(1, reply)) < DEFAULT.max_head_bytes


@pytest.mark.slow
def test_a_member_may_have_more_partitions_of_a_topic_than_a_list_holds() -> None:
    desk = wide(100_000)
    member = Membership(Member(group_id="g", member_id="a"), Random(1))
    member.subscribe(("wide",), desk.now_ms)
    for _ in range(2):  # it joins, and says what it has
        request = member.poll(desk.now_ms)
        assert isinstance(request, GroupHeartbeat)
        assert decode_request(encode_head(1, request))[1] == request
        reply = desk.put(request).answer
        assert decode_reply(encode_head(1, reply))[1] == reply
        member.answered(request.sequence, reply, desk.now_ms)
        assert len(member.owned) >= 100_000
        member.subscribe(("orders", "wide"), desk.now_ms)
    for part in described(desk, "g"):
        assert not part.members or sum(len(each.indexes) for each in part.members[0].assigned) == 100_000
