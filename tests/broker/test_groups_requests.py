"""A broker that coordinates groups: loaded from its log, served when committed, and given up with its leadership."""

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.broker.node import Asked, Node
from tidelog.broker import coordinator as carrying
from tidelog.broker.coordinator import Coordinator, cut, partition_of
from tidelog.broker.groups.records import (
    GROUPS_TOPIC,
    CurrentKey,
    CurrentState,
    MemberKey,
    MemberState,
    OffsetKey,
    OffsetState,
    Record,
    TargetKey,
    TargetState,
    encoded,
)
from tidelog.broker.groups.settings import GroupSettings
from tidelog.broker.requests.groups import TIMED_GROUPS, handlers
from tidelog.controller.image import Changes, PartitionState, TopicState
from tidelog.protocol.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    DamagedLog,
    GroupIdNotFound,
    InvalidReplicationFactor,
    NonEmptyGroup,
    NotCoordinator,
    RequestTimedOut,
)
from tidelog.protocol.messages import (
    CreatedTopic,
    CreateTopics,
    CreateTopicsReply,
    DeleteGroups,
    DescribeGroups,
    FetchReply,
    FindCoordinator,
    GroupHeartbeat,
    ListenerEndpoint,
    ListGroups,
    ListOffsetsReply,
    OffsetCommit,
    OffsetFetch,
    OffsetFound,
    OffsetToCommit,
    PartitionFetched,
    Request,
    Subscription,
)
from tidelog.protocol.records import encode
from tidelog.protocol.types import BrokerId

GROUPS_ID = b"groups--groups--"
ORDERS_ID = b"orders---orders-"


class Desk(Node):
    """Broker 1, which leads `orders` (2 partitions) alone, and both partitions of the log of groups."""

    def __init__(self, *, alone: bool = True) -> None:
        super().__init__()
        self.alone = alone
        self.coordinator = Coordinator(self.context, GroupSettings())
        self.handlers = handlers(self.coordinator)
        self.sequence = 0
        for index in range(2):
            self.lead(place=(ORDERS_ID, index), replicas=(1,), isr=(1,), min_isr=1)
        self.coordinator.begin()

    def lead_groups(self, epoch: int = 0, leader: int = 1, partitions: int = 2) -> None:
        """The cluster decides who leads the log of groups."""
        changed = {}
        replicas = [BrokerId(each) for each in ((1,) if self.alone else (1, 2, 3))]
        isr = [BrokerId(leader)] if self.alone else replicas
        for index in range(partitions):
            known = self.image.partitions.get((GROUPS_ID, index))
            state = PartitionState(
                GROUPS_ID,
                index,
                tuple(dict.fromkeys(replicas + isr)),
                tuple(isr),
                BrokerId(leader),
                epoch,
                known.partition_epoch + 1 if known else 0,
                1 if self.alone else 2,
            )
            self.image.partitions[GROUPS_ID, index] = state
            changed[GROUPS_ID, index] = GROUPS_TOPIC, state
        self.image.topics[GROUPS_ID] = TopicState(GROUPS_ID, GROUPS_TOPIC, partitions)
        self.image.topic_ids[GROUPS_TOPIC] = GROUPS_ID
        self.replicas.adopt(changed, (), self.now_ms, self.now_ms)
        self.coordinator.adopt(Changes(tuple(changed), (), (GROUPS_ID,), ()))

    def load(self) -> None:
        while self.coordinator.load_some():
            pass

    def put(self, message: Request, came_in_by: str = "") -> Asked:
        asked = Asked(message)
        asked.connection.came_in_by = came_in_by
        self.handlers[type(message)](self.context, cast("Any", asked))
        self.turn()
        return asked

    def say(self, member: str, epoch: int, *topics: str, max_wait_ms: int = 0, group: str = "g") -> Asked:
        self.sequence += 1
        told = Subscription(topics) if topics else None
        return self.put(GroupHeartbeat(group, member, epoch, self.sequence, None, told, None, max_wait_ms))

    def commit(self, member: str, epoch: int, offset: int, group: str = "g") -> Asked:
        return self.put(OffsetCommit(group, (OffsetToCommit(ORDERS_ID, 0, offset),), member, epoch))

    def offset(self, group: str = "g") -> int:
        answer = self.put(OffsetFetch(group)).answer
        assert not answer.error, answer
        return answer.partitions[0].offset if answer.partitions else -1


def ready() -> Desk:
    desk = Desk()
    desk.lead_groups()
    desk.load()
    desk.coordinator.tick()
    return desk


# ── served ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_member_joins_commits_and_finds_it_again() -> None:
    desk = ready()
    joined = desk.say("a", 0, "orders").answer
    assert (joined.error, joined.member_epoch) == (0, 1)
    assert [(entry.topic, entry.indexes) for entry in joined.assignment] == [("orders", (0, 1))]
    assert desk.commit("a", 1, 7).answer.partitions[0].error == 0
    assert desk.offset() == 7


def test_a_group_belongs_to_one_partition_for_ever() -> None:
    assert [partition_of(name, 16) for name in ("g", "orders-app", "größe", "")] == [6, 0, 9, 0]


def test_another_broker_and_the_next_process_load_the_same() -> None:
    desk = ready()
    desk.say("a", 0, "orders")
    desk.commit("a", 1, 7)
    before = desk.coordinator.of_group("g").shard
    desk.lead_groups(epoch=1)
    assert desk.commit("a", 1, 8).answer.error == CoordinatorLoadInProgress.code
    desk.load()
    after = desk.coordinator.of_group("g").shard
    assert after is not before
    assert desk.offset() == 7
    assert desk.say("a", 1).answer.error == 0


def test_a_log_is_loaded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = ready()
    desk.say("a", 0, "orders")
    for offset in range(50):
        desk.commit("a", 1, offset)
    monkeypatch.setattr(carrying, "LOAD_BYTES", 500)
    desk.lead_groups(epoch=1)
    slices = 1
    while desk.coordinator.load_some():
        slices += 1
    assert slices > 5
    assert desk.offset() == 49


def test_a_log_that_is_not_understood_is_not_served_and_read_anew_later() -> None:
    desk = ready()
    index = partition_of("g", 2)
    partition = desk.replicas.partitions[GROUPS_ID, index]
    partition.produce(
        encode([b"?"], [b"?"], now_ms=0), -1, partition.leader_epoch, now_ms=desk.now_ms, wall_ms=desk.now_ms
    )
    desk.lead_groups(epoch=1)
    desk.load()
    answer = desk.say("a", 0, "orders").answer
    assert answer.error == CoordinatorLoadInProgress.code
    assert "is not known here" in answer.message
    assert not desk.coordinator.load_some()
    assert desk.coordinator.has_to_load
    desk.now_ms += 1000
    desk.coordinator.load_some()
    assert desk.coordinator.held[index].not_before_ms == desk.now_ms + 1000


def test_a_log_that_contradicts_itself_is_not_served() -> None:
    desk = ready()
    held = desk.coordinator.of_group("g")
    both = CurrentState(1, assigned=((ORDERS_ID, (0,)),))
    records = [Record(MemberKey("g", name), MemberState(("orders",))) for name in "ab"]
    records += [Record(CurrentKey("g", name), both) for name in "ab"]
    keys, values = encoded(records)
    held.partition.produce(
        encode(values, keys), -1, held.leader_epoch, now_ms=desk.now_ms, wall_ms=desk.now_ms
    )
    desk.lead_groups(epoch=1)
    desk.load()
    answer = desk.say("a", 1).answer
    assert answer.error == CoordinatorLoadInProgress.code
    assert "has a partition twice" in answer.message


def test_a_log_that_cannot_be_read_is_left_to_another_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = ready()
    desk.say("a", 0, "orders")
    index = partition_of("g", 2)

    def read(*_: Any) -> Any:
        raise DamagedLog("a bit has flipped")

    monkeypatch.setattr(type(desk.replicas.partitions[GROUPS_ID, index].log), "read", read)
    desk.lead_groups(epoch=1)
    desk.load()
    damage = desk.replicas.partitions[GROUPS_ID, index].damage
    assert damage is not None
    assert damage.why == "a bit has flipped"
    assert desk.say("a", 1).answer.error == CoordinatorLoadInProgress.code
    desk.lead_groups(epoch=2, leader=2)
    assert desk.say("a", 1).answer.error == NotCoordinator.code


def test_a_disk_that_fails_ends_coordinating_without_a_decision_of_the_cluster() -> None:
    desk = ready()
    desk.say("a", 0, "orders")
    waiting = desk.say("a", 1, max_wait_ms=5000)
    desk.coordinator.of_group("g").partition.go_offline("the disk is gone")
    desk.coordinator.tick()
    desk.turn()
    assert waiting.answer.error == NotCoordinator.code


# ── what is not committed ─────────────────────────────────────────────────────────────────────────────


def replicated() -> tuple[Desk, tuple[bytes, int]]:
    """The log of groups has three replicas, two of which must have a record."""
    desk = Desk(alone=False)
    desk.lead_groups()
    desk.load()
    place = GROUPS_ID, partition_of("g", 2)
    follow(desk, place)
    assert desk.coordinator.of_group("g").shard.is_active
    return desk, place


def follow(desk: Desk, place: tuple[bytes, int]) -> None:
    end = desk.replicas.partitions[place].log.end_offset
    for follower in (2, 3):
        desk.fetched(follower, end, place=place)
    desk.turn()


def test_an_answer_waits_for_the_replicas() -> None:
    desk, place = replicated()
    asked = desk.say("a", 0, "orders")
    assert asked.waits
    assert desk.put(DescribeGroups(("g",))).answer.groups[0].error == GroupIdNotFound.code
    again = desk.say("a", 1)
    assert again.waits, "it rests on what is not committed"
    follow(desk, place)
    assert asked.answer.member_epoch == 1
    assert again.answer.member_epoch == 1
    assert desk.put(DescribeGroups(("g",))).answer.groups[0].state == "stable"


def test_an_answer_that_waits_too_long_says_so() -> None:
    desk, _ = replicated()
    asked = desk.say("a", 0, "orders")
    desk.wait(10_000)
    assert asked.answer.error == CoordinatorNotAvailable.code
    assert "written but not committed" in asked.answer.message


def test_who_waits_is_told_when_another_broker_leads() -> None:
    desk, _ = replicated()
    asked = desk.say("a", 0, "orders")
    desk.lead_groups(epoch=1, leader=2)
    desk.turn()
    assert asked.answer.error == NotCoordinator.code
    assert desk.say("a", 1).answer.error == NotCoordinator.code
    assert not desk.coordinator.held


def test_nothing_is_served_before_what_was_loaded_is_committed() -> None:
    desk, place = replicated()
    desk.say("a", 0, "orders")
    desk.lead_groups(epoch=1)
    desk.load()
    assert desk.say("a", 1).answer.error == CoordinatorLoadInProgress.code
    follow(desk, place)
    assert desk.say("a", 1).answer.error == 0


def test_who_is_to_lead_and_is_not_ready_says_so_and_sends_nobody_away() -> None:
    desk = ready()
    index = partition_of("g", 2)
    held = desk.coordinator.held.pop(index)  # its log is still being made
    answer = desk.say("a", 0, "orders").answer
    assert answer.error == CoordinatorLoadInProgress.code
    assert "is to lead it, and is not ready" in answer.message
    desk.coordinator.held[index] = held
    assert desk.say("a", 0, "orders").answer.error == 0


def test_nothing_is_served_without_a_lease() -> None:
    desk = ready()
    desk.replicas.lease_until_ms = desk.now_ms
    assert desk.say("a", 0, "orders").answer.error == NotCoordinator.code
    assert desk.put(ListGroups()).answer.error == NotCoordinator.code


def test_what_the_log_refuses_has_not_happened() -> None:
    desk, place = replicated()
    desk.adopt(place=place, isr=(1,), min_isr=2)
    asked = desk.say("a", 0, "orders")
    assert asked.answer.error == CoordinatorNotAvailable.code
    assert desk.coordinator.of_group("g").shard.current.get("g") is None


# ── operators ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_who_asks_for_a_coordinator_has_the_topic_made() -> None:
    desk = Desk()
    asked = desk.put(FindCoordinator(("g",)))
    ((request, _, told),) = desk.asked
    assert isinstance(request, CreateTopics)
    (topic,) = request.topics
    assert (topic.name, topic.partitions, topic.replication_factor) == (GROUPS_TOPIC, 16, 3)
    assert {entry.key: entry.value for entry in topic.configs} == {
        "cleanup.policy": "compact",
        "flush.mode": "group",
        "min.insync.replicas": "2",
    }
    told(
        CreateTopicsReply(
            topics=(CreatedTopic(GROUPS_TOPIC, InvalidReplicationFactor.code, "1 is registered"),)
        )
    )
    (found,) = asked.answer.coordinators
    assert found.error == CoordinatorNotAvailable.code
    assert "1 is registered" in found.message
    again = desk.put(FindCoordinator(("g",)))
    desk.asked[1][2](RequestTimedOut("no controller"))
    assert "no controller" in again.answer.coordinators[0].message


def test_any_broker_says_who_coordinates() -> None:
    desk = ready()
    (found,) = desk.put(FindCoordinator(("g",))).answer.coordinators
    assert (found.broker_id, found.host, found.port) == (1, "b1", 9092)


def test_who_coordinates_is_told_at_the_address_of_the_listener_that_is_asked() -> None:
    desk = ready()
    known = desk.image.brokers[BrokerId(1)]
    outside = ListenerEndpoint("host", "127.0.0.1", 19092)
    desk.image.brokers[BrokerId(1)] = replace(known, listeners=(outside,))
    (found,) = desk.put(FindCoordinator(("g",)), came_in_by="host").answer.coordinators
    assert (found.broker_id, found.host, found.port) == (1, "127.0.0.1", 19092)


def test_groups_are_listed_with_their_lag_and_described_with_the_time_of_it() -> None:
    desk = ready()
    for _ in range(5):
        desk.produce(acks=1, place=(ORDERS_ID, 0))
    desk.say("a", 0, "orders")
    desk.commit("a", 1, 3)
    desk.commit("", -1, 5, group="other")
    desk.now_ms += 60_000
    reply = desk.put(ListGroups(with_lag=True)).answer
    assert [(line.group_id, line.state, line.members, line.lag) for line in reply.groups] == [
        ("g", "stable", 1, 2),
        ("other", "empty", 0, 0),
    ]
    assert [line.unknown for line in reply.groups] == [1, 0], "of orders-1 nothing is committed"
    assert [line.group_id for line in desk.put(ListGroups(states=("empty",))).answer.groups] == ["other"]
    assert [line.group_id for line in desk.put(ListGroups(topic="events")).answer.groups] == []
    page = desk.put(ListGroups(limit=1)).answer
    assert (page.groups[0].group_id, page.more) == ("g", True)
    assert [line.group_id for line in desk.put(ListGroups(after="g")).answer.groups] == ["other"]
    (group, unknown) = desk.put(DescribeGroups(("g", "none"), with_lag=True)).answer.groups
    assert unknown.error == GroupIdNotFound.code
    (member,) = group.members
    assert (member.state, member.silent_ms, member.topics) == ("stable", 60_000, ("orders",))
    first, second = group.offsets
    assert (first.member_id, first.offset, first.high_watermark, first.lag) == ("a", 3, 5, 2)
    assert first.lag_ms == desk.now_ms, "the records of this test were written in 1970"
    assert (second.offset, second.lag, second.lag_ms) == (-1, -1, -1)


def test_how_far_other_brokers_logs_go_is_asked_of_their_leaders_once_for_all_groups() -> None:
    desk = ready()
    asked: list[tuple[Any, Any]] = []
    desk.coordinator.ask_broker = lambda _broker, request, _ms, heard: asked.append((request, heard))
    desk.commit("", -1, 3)
    desk.commit("", -1, 4, group="other")
    desk.follow(leader=2, place=(ORDERS_ID, 0), replicas=(1, 2), isr=(1, 2))
    listing = desk.put(ListGroups(with_lag=True))
    ((request, heard),) = asked
    assert [(query.index, query.timestamp) for query in request.partitions] == [(0, -2), (0, -1)]
    heard(ListOffsetsReply((OffsetFound(ORDERS_ID, 0, offset=1), OffsetFound(ORDERS_ID, 0, offset=9))), b"")
    assert [(line.group_id, line.lag) for line in listing.answer.groups] == [("g", 6), ("other", 5)]
    asked.clear()
    described = desk.put(DescribeGroups(("g",), with_lag=True))
    ((_, ends),) = asked
    ends(ListOffsetsReply((OffsetFound(ORDERS_ID, 0, offset=1), OffsetFound(ORDERS_ID, 0, offset=9))), b"")
    _, (fetch, times) = asked
    assert [(entry.index, entry.fetch_offset) for entry in fetch.partitions] == [(0, 3)]
    batch = bytearray(encode([b"x"] * 9, timestamps=[desk.now_ms - 100 * (9 - at) for at in range(9)]))
    assert described.waits
    times(FetchReply((PartitionFetched(ORDERS_ID, 0, records_size=len(batch)),)), batch)
    (offset,) = described.answer.groups[0].offsets
    assert (offset.lag, offset.lag_ms) == (6, 600)


def test_how_old_what_waits_is_is_asked_again_where_an_answer_had_no_room() -> None:
    desk = ready()
    asked: list[tuple[Any, Any]] = []
    desk.coordinator.ask_broker = lambda _broker, request, _ms, heard: asked.append((request, heard))
    entries = tuple(OffsetToCommit(ORDERS_ID, index, 3) for index in range(2))
    desk.put(OffsetCommit("g", entries, "", -1))
    for index in range(2):
        desk.follow(leader=2, place=(ORDERS_ID, index), replicas=(1, 2), isr=(1, 2))
    described = desk.put(DescribeGroups(("g",), with_lag=True))
    ends = [(0, 5), (0, 9), (1, 0), (1, 9)]
    asked[0][1](ListOffsetsReply(tuple(OffsetFound(ORDERS_ID, each, offset=at) for each, at in ends)), b"")
    fetch, times = asked[1]
    found = [(entry.index, entry.fetch_offset) for entry in fetch.partitions]
    assert found == [(0, 5), (1, 3)], "two were deleted unread of the first"
    batch = bytearray(encode([b"x"] * 9, timestamps=[desk.now_ms - 100 * (9 - at) for at in range(9)]))
    parts = [PartitionFetched(ORDERS_ID, 0, records_size=len(batch)), PartitionFetched(ORDERS_ID, 1)]
    times(FetchReply(tuple(parts)), batch)
    fetch, times = asked[2]
    assert [(entry.index, entry.fetch_offset) for entry in fetch.partitions] == [(1, 3)]
    times(FetchReply((PartitionFetched(ORDERS_ID, 1, records_size=len(batch)),)), batch)
    assert len(asked) == 3
    told = described.answer.groups[0].offsets
    assert [(each.lag, each.lag_ms, each.lost, each.lag_at_most) for each in told] == [
        (4, 400, 2, False),
        (6, 600, 0, False),
    ]


def test_for_many_groups_that_are_described_at_once_each_leader_is_asked_once() -> None:
    desk = ready()
    asked: list[tuple[Any, Any]] = []
    desk.coordinator.ask_broker = lambda _broker, request, _ms, heard: asked.append((request, heard))
    names = [f"g{number}" for number in range(TIMED_GROUPS + 1)]
    for number, name in enumerate(names):
        desk.commit("", -1, number % 5, group=name)
    desk.follow(leader=2, place=(ORDERS_ID, 0), replicas=(1, 2), isr=(1, 2))
    described = desk.put(DescribeGroups(tuple(names), with_lag=True))
    ((_, heard),) = asked
    heard(ListOffsetsReply((OffsetFound(ORDERS_ID, 0, offset=0), OffsetFound(ORDERS_ID, 0, offset=9))), b"")
    assert [group.offsets[0].lag for group in described.answer.groups] == [
        9 - number % 5 for number in range(len(names))
    ]


def test_a_leader_that_does_not_answer_leaves_its_partitions_unknown() -> None:
    desk = ready()
    desk.coordinator.ask_broker = lambda _broker, _request, _ms, heard: heard(RequestTimedOut(), b"")
    desk.commit("", -1, 3)
    desk.follow(leader=2, place=(ORDERS_ID, 0), replicas=(1, 2), isr=(1, 2))
    (line,) = desk.put(ListGroups(with_lag=True)).answer.groups
    assert (line.lag, line.unknown) == (-1, 1)
    (offset,) = desk.put(DescribeGroups(("g",), with_lag=True)).answer.groups[0].offsets
    assert (offset.offset, offset.lag, offset.lag_ms) == (3, -1, -1)


def test_groups_are_deleted_each_for_itself() -> None:
    desk = ready()
    desk.say("a", 0, "orders")
    desk.commit("", -1, 5, group="other")
    reply = desk.put(DeleteGroups(("g", "other", "none"))).answer
    assert [entry.error for entry in reply.groups] == [NonEmptyGroup.code, 0, GroupIdNotFound.code]
    assert [line.group_id for line in desk.put(ListGroups()).answer.groups] == ["g"]


def test_offsets_expire_when_nobody_is_there_for_a_week() -> None:
    desk = ready()
    desk.commit("", -1, 5)
    desk.now_ms += 7 * 24 * 3600 * 1000
    desk.coordinator.tick()
    desk.turn()
    assert desk.put(ListGroups()).answer.groups == ()


# ── large decisions ───────────────────────────────────────────────────────────────────────────────────


def test_a_large_decision_is_cut_behind_targets_and_offsets_only() -> None:
    large = TargetState(((ORDERS_ID, tuple(range(70_000))),))
    records = [Record(TargetKey("g", f"m{number}"), large) for number in range(8)]
    records.append(Record(TargetKey("g", "most"), TargetState(((ORDERS_ID, tuple(range(190_000))),))))
    batches = list(cut(records))
    assert [record for batch in batches for record in batch] == records
    assert len(batches) > 1
    for batch in batches:
        keys, values = encoded(batch)
        assert len(encode(values, keys)) < 1 << 20
    one = Record(OffsetKey("g", ORDERS_ID, 0), OffsetState(1))
    assert list(cut([one, one])) == [(one, one)]
    assert list(cut([])) == []
