"""A coordinator to talk to: every decision is written and committed at once, and the answer handed back.

desk = Desk()                        topics `orders` (4) and `events` (2)
desk.say("a", 0, topics=["orders"])  a heartbeat; sequences count up by themselves
desk.commit("a", 1, {("orders", 0): 7})
"""

from collections.abc import Iterable, Mapping

from tests.broker.groups_world import topic_id
from tidelog.broker.groups.draft import Decision
from tidelog.broker.groups.image import Group
from tidelog.broker.groups.records import places_of
from tidelog.broker.groups.settings import GroupSettings
from tidelog.broker.groups.shard import Shard
from tidelog.broker.groups.topics import Topic, Topics
from tidelog.protocol.messages import (
    GroupHeartbeat,
    GroupHeartbeatReply,
    OffsetCommit,
    OffsetCommitReply,
    OffsetFetch,
    OffsetToCommit,
    PartitionIndex,
    Subscription,
    TopicPartitions,
)
from tidelog.protocol.types import TopicId

SESSION_MS = 45_000
IDS = {"orders": topic_id(1), "events": topic_id(2)}


class Desk:
    """See the module."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.topics = Topics([Topic(IDS["orders"], "orders", 4), Topic(IDS["events"], "events", 2)])
        self.shard = Shard(settings or GroupSettings(), self.topics)
        self.shard.activate(0)
        self.now_ms = 0
        self.wall_ms = 1_700_000_000_000
        self.log: list[Decision] = []
        self.sequence = 0
        self.refuses = False
        """Whether the log takes nothing."""

    def write(self, decision: Decision) -> Decision:
        if decision.records and not self.refuses:
            self.log.append(decision)
            self.shard.written(decision, len(self.log), self.now_ms)
            self.shard.commit_to(len(self.log))
        return decision

    def say(
        self,
        member: str,
        epoch: int,
        topics: Iterable[str] | None = None,
        owned: Iterable[tuple[str, int]] | None = None,
        instance: str | None = None,
        assignor: str = "",
        sequence: int | None = None,
        group: str = "g",
        *,
        session_ms: int = 0,
    ) -> GroupHeartbeatReply:
        self.sequence += 1
        places = None
        if owned is not None:
            places = tuple(TopicPartitions(IDS[topic], (index,)) for topic, index in sorted(owned))
        request = GroupHeartbeat(
            group,
            member,
            epoch,
            self.sequence if sequence is None else sequence,
            instance,
            Subscription(tuple(topics), assignor, session_timeout_ms=session_ms)
            if topics is not None
            else None,
            places,
        )
        decision = self.write(self.shard.heartbeat(request, self.now_ms, self.wall_ms))
        assert isinstance(decision.reply, GroupHeartbeatReply)
        return decision.reply

    def commit(
        self,
        member: str,
        epoch: int,
        offsets: Mapping[tuple[str, int], int],
        sequence: int = 0,
        metadata: str = "",
        validate_only: bool = False,
        *,
        instance: str | None = None,
    ) -> OffsetCommitReply:
        entries = tuple(
            OffsetToCommit(IDS[topic], index, offset, metadata=metadata)
            for (topic, index), offset in offsets.items()
        )
        request = OffsetCommit("g", entries, member, epoch, instance, sequence, validate_only=validate_only)
        decision = self.write(self.shard.commit(request, self.wall_ms))
        assert isinstance(decision.reply, OffsetCommitReply)
        return decision.reply

    def is_from_beginning(self, topic_id: TopicId) -> bool:
        """Whether its first partition is read from its start, whatever the consumer says."""
        [entry] = self.shard.fetch(OffsetFetch("g", (PartitionIndex(topic_id, 0),))).partitions
        return entry.from_beginning

    def offset(self, topic: str, index: int) -> int:
        """What is committed; -1: nothing."""
        for entry in self.shard.fetch(OffsetFetch("g")).partitions:
            if (entry.topic_id, entry.index) == (IDS[topic], index):
                return entry.offset
        return -1

    def wait(self, ms: int, step_ms: int = 1000) -> None:
        """Time passes, and somebody listens."""
        for _ in range(0, ms, step_ms):
            self.now_ms += step_ms
            self.wall_ms += step_ms
            self.tick()

    def tick(self) -> None:
        for decision in self.shard.tick(self.now_ms, self.wall_ms):
            self.write(decision)

    @property
    def group(self) -> Group:
        group = self.shard.current.get("g")
        assert group is not None
        return group

    def has(self, member: str) -> set[tuple[str, int]]:
        """What the member may consume."""
        return {
            (self.topics.name(topic), index)
            for topic, index in places_of(self.group.current(member).assigned)
        }


def told(reply: GroupHeartbeatReply) -> set[tuple[str, int]] | None:
    """What the answer says that the member may consume."""
    if reply.assignment is None:
        return None
    return {(entry.topic, index) for entry in reply.assignment for index in entry.indexes}


def of(topic: str, *indexes: int) -> set[tuple[str, int]]:
    return {(topic, index) for index in indexes}
