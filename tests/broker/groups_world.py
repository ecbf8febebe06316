"""A group in one process: the real coordinator's machine, the real members' machines, and a network that lies.

    world = World(seed)                 a coordinator, its log, topics `orders` (4) and `events` (3)
    world.join("a"), .crash("a")        a consumer with a user who processes and commits
    world.step()                        something happens: time passes, a message arrives, is lost, comes twice or late,
                                        records are committed, the coordinator moves, a topic grows, somebody comes
    world.settle()                      nothing goes wrong any more: everybody must be content in bounded time

After every step `check` asks whether the group is what it promises to be.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from tidelog.broker.groups.draft import Decision
from tidelog.broker.groups.image import Groups
from tidelog.broker.groups.records import Place, Record, decoded, encoded, places_of
from tidelog.broker.groups.settings import GroupSettings
from tidelog.broker.groups.shard import Shard
from tidelog.broker.groups.topics import Topic, Topics
from tidelog.client.membership import Assigned, Failed, Lose, Member, Membership, Revoke, Standing
from tidelog.protocol.errors import FencedInstanceId, NotCoordinator, StaleMemberEpoch, error_of
from tidelog.protocol.messages import (
    GroupHeartbeat,
    GroupHeartbeatReply,
    OffsetCommit,
    OffsetCommitReply,
    OffsetFetch,
    OffsetToCommit,
    PartitionIndex,
    decode_reply,
    decode_request,
    encode_head,
)

GROUP = "g"
SESSION_MS = 9_000
REBALANCE_MS = 20_000
HEARTBEAT_MS = 3_000
SETTINGS = GroupSettings(
    group_consumer_session_timeout_ms=SESSION_MS, group_consumer_heartbeat_interval_ms=HEARTBEAT_MS
)
Handler: TypeAlias = Callable[[], None]


def topic_id(number: int) -> bytes:
    return b"topic-" + number.to_bytes(10, "big")


@dataclass
class Consumer:
    """A member's machine, and a user who processes what it is given."""

    name: str
    membership: Membership
    alive: bool = True
    positions: dict[Place, int] = field(default_factory=dict)
    obliged: deque[Revoke | Lose] = field(default_factory=deque)
    slow: bool = False
    """It takes longer than any session for each record."""
    stopped_until_ms: int = 0
    """Its process is stopped so long: it says and hears nothing, and goes on as if nothing had been."""


class World:
    """See the module."""

    def __init__(self, seed: int, *, faults: bool = True, twins: bool = False) -> None:
        self.random = Random(seed)
        self.faults = faults
        self.twins = twins
        """Whether somebody starts a second process of an instance while the first one lives."""
        self.now_ms = 1_000
        self.topics = Topics([Topic(topic_id(1), "orders", 4), Topic(topic_id(2), "events", 3)])
        self.ids = 2
        self.log: list[tuple[Record, ...]] = []
        self.high_watermark = 0
        self.shard = self.coordinator()
        self.life = 0
        self.waiting: list[tuple[int, Handler]] = []
        self.network: list[Handler] = []
        self.held_up: list[tuple[int, Handler]] = []
        """What arrives some time later, once or once more."""
        self.consumers: dict[str, Consumer] = {}
        self.born = 0
        self.processed: dict[Place, int] = {}
        self.best: dict[Place, int] = {}
        """The highest offset of each partition that was ever committed by the replicas."""
        self.commits_taken = 0
        self.acknowledged: dict[Place, int] = {}
        """The highest offset of each partition of which a member was told that it is committed."""

    # ── the coordinator ───────────────────────────────────────────────────────────────────────────

    def coordinator(self) -> Shard:
        """A new one, from the log alone."""
        shard = Shard(SETTINGS, self.topics)
        for batch in self.log:
            keys, values = encoded(batch)
            shard.load(decoded(key, value, 0) for key, value in zip(keys, values, strict=True))
        shard.activate(self.now_ms)
        return shard

    def fail_over(self) -> None:
        """Another broker leads: it has what was committed, and perhaps more; who waits for an answer gets none."""
        end = self.random.randint(self.high_watermark, len(self.log))
        del self.log[end:]
        self.commit_to(end)
        self.life += 1
        self.waiting.clear()
        self.shard = self.coordinator()

    def decide(self, decision: Decision, answer: Callable[[Any], None] | None = None) -> None:
        """Write what was decided, and answer when that is committed."""
        if decision.records:
            if self.faults and self.random.random() < 0.02:
                if answer is not None:
                    answer(None)
                return  # the log has refused it: it has not happened
            self.log.append(decision.records)
            self.shard.written(decision, len(self.log), self.now_ms)
        if answer is not None:
            rests_on = self.shard.rests_on(decision.group_id)
            self.waiting.append((rests_on, lambda: answer(decision.reply)))
        self.answer()

    def commit_to(self, offset: int) -> None:
        self.high_watermark = max(offset, self.high_watermark)
        self.shard.commit_to(self.high_watermark)
        self.answer()

    def answer(self) -> None:
        ready = [handler for rests_on, handler in self.waiting if rests_on <= self.high_watermark]
        self.waiting = [entry for entry in self.waiting if entry[0] > self.high_watermark]
        for handler in ready:
            handler()

    def tick(self) -> None:
        for decision in self.shard.tick(self.now_ms, self.now_ms):
            self.decide(decision)

    # ── members ───────────────────────────────────────────────────────────────────────────────────

    def join(self, name: str, *topics: str, instance_id: str | None = None, assignor: str = "") -> Consumer:
        self.born += 1
        member = Member(
            group_id=GROUP,
            member_id=f"{name}#{self.born}",
            instance_id=instance_id,
            assignor=assignor,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        consumer = Consumer(name, Membership(member, Random(self.born)))
        consumer.membership.subscribe(topics or ("orders", "events"), self.now_ms)
        self.consumers[member.member_id] = consumer
        return consumer

    def crash(self, consumer: Consumer) -> None:
        consumer.alive = False

    def living(self) -> list[Consumer]:
        gone = {Standing.LEFT, Standing.FAILED, Standing.APART}
        return [
            each for each in self.consumers.values() if each.alive and each.membership.standing not in gone
        ]

    def send(self, arrive: Handler) -> None:
        """Sooner or later, never, or twice."""
        chance = self.random.random() if self.faults else 1.0
        if chance < 0.08:
            return
        if chance < 0.16:
            self.held_up.append((self.now_ms + self.random.randint(0, 12_000), arrive))
        if not 0.12 < chance < 0.16:
            self.network.append(arrive)

    def deliver(self) -> None:
        """What arrives next need not be what was sent first; without faults it is."""
        if self.network:
            at = self.random.randrange(len(self.network)) if self.faults else 0
            if self.random.random() < 0.7:
                at = 0
            self.network.pop(at)()

    def speak(self, consumer: Consumer) -> None:
        """Send the heartbeat that is due, and give one up that was not answered in a second."""
        membership = consumer.membership
        request = membership.poll(self.now_ms)
        if request is None:
            return
        assert decode_request(encode_head(1, request))[1] == request
        self.send(lambda: self.hear(consumer, request))
        given_up = self.now_ms + 1_000

        def give_up() -> None:
            if self.now_ms < given_up:
                self.network.append(give_up)
            elif consumer.alive:
                membership.unanswered(request.sequence, NotCoordinator(), self.now_ms)

        self.network.append(give_up)

    def hear(self, consumer: Consumer, request: GroupHeartbeat) -> None:
        decision = self.shard.heartbeat(request, self.now_ms, self.now_ms, "test", "here")

        def answered(reply: GroupHeartbeatReply | None) -> None:
            self.send(lambda: self.told(consumer, request.sequence, reply))

        self.decide(decision, answered)

    def told(self, consumer: Consumer, sequence: int, reply: GroupHeartbeatReply | None) -> None:
        if not consumer.alive or self.now_ms < consumer.stopped_until_ms:
            return
        if reply is None:
            consumer.membership.unanswered(sequence, NotCoordinator(), self.now_ms)
        elif reply.error:
            error = error_of(reply.error, reply.message or "")
            failed = consumer.membership.standing is Standing.FAILED
            consumer.membership.unanswered(sequence, error, self.now_ms)
            may_fail = self.twins and (failed or isinstance(error, FencedInstanceId))
            assert may_fail or consumer.membership.standing is not Standing.FAILED, (
                f"{consumer.membership}: {error!r}"
            )
        else:
            assert decode_reply(encode_head(1, reply))[1] == reply
            consumer.membership.answered(sequence, reply, self.now_ms)

    # ── users ─────────────────────────────────────────────────────────────────────────────────────

    def live(self, consumer: Consumer) -> None:
        """The user hears the news, processes something, commits, or finishes what it was asked to."""
        membership = consumer.membership
        while not consumer.obliged and (news := membership.take()) is not None:
            if isinstance(news, Assigned):
                for place in news.places:
                    consumer.positions[place] = self.fetch(place)
            elif isinstance(news, Failed):
                assert self.twins, f"{membership} has failed: {news.error!r}"
                self.crash(consumer)
            else:
                consumer.obliged.append(news)
                if isinstance(news, Lose):
                    for place in news.places:
                        consumer.positions.pop(place, None)
        if consumer.slow and self.faults and self.random.random() < 0.9:
            return
        if consumer.obliged and self.random.random() < 0.5:
            self.finish(consumer, consumer.obliged.popleft())
        for place in sorted(consumer.positions):
            if self.random.random() < 0.3:
                consumer.positions[place] += 1
                done = max(self.processed.get(place, 0), consumer.positions[place])
                self.processed[place] = done
        if consumer.positions and self.random.random() < 0.3:
            self.commit(consumer)

    def finish(self, consumer: Consumer, news: Revoke | Lose) -> None:
        if isinstance(news, Revoke):
            self.commit(consumer)
        for place in news.places:
            consumer.positions.pop(place, None)
        consumer.membership.released(news, self.now_ms)

    def fetch(self, place: Place) -> int:
        reply = self.shard.fetch(OffsetFetch(GROUP, (PartitionIndex(*place),)))
        return max(reply.partitions[0].offset, 0)

    def commit(self, consumer: Consumer) -> None:
        epoch, sequence = consumer.membership.next_commit()
        member = consumer.membership.member
        entries = tuple(
            OffsetToCommit(*place, offset) for place, offset in sorted(consumer.positions.items())
        )
        request = OffsetCommit(GROUP, entries, member.member_id, epoch, member.instance_id, sequence)
        if entries and epoch > 0:
            self.send(lambda: self.hear_commit(consumer, request))

    def hear_commit(self, consumer: Consumer, request: OffsetCommit) -> None:
        decision = self.shard.commit(request, self.now_ms)
        self.commits_taken += bool(decision.records)

        def answered(reply: OffsetCommitReply | None) -> None:
            if reply is None:
                return
            for entry, answer in zip(request.partitions, reply.partitions, strict=False):
                place = entry.topic_id, entry.index
                if not answer.error and place[0] in self.topics.by_id:
                    self.acknowledged[place] = max(entry.offset, self.acknowledged.get(place, 0))
            if reply.error and consumer.alive:
                error = error_of(reply.error, reply.message or "")
                consumer.membership.commit_refused(error, request.member_epoch, self.now_ms)
                assert isinstance(error, StaleMemberEpoch) or not error.retriable

        self.decide(decision, answered)

    # ── what happens ──────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        """One thing, drawn at random."""
        chance = self.random.random()
        if chance < 0.35:
            self.deliver()
        elif chance < 0.55:
            self.pass_time(self.random.choice((10, 50, 200, 500, 1500)))
        elif chance < 0.75:
            self.act()
        elif chance < 0.945:
            self.commit_to(self.random.randint(self.high_watermark, len(self.log)))
        elif chance < 0.955:
            self.fail_over()
        else:
            self.change()
        self.check()

    def act(self) -> None:
        for consumer in self.living():
            if self.now_ms >= consumer.stopped_until_ms:
                self.speak(consumer)
                self.live(consumer)

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.network += [arrive for when, arrive in self.held_up if when <= self.now_ms]
        self.held_up = [entry for entry in self.held_up if entry[0] > self.now_ms]
        self.tick()

    def change(self) -> None:
        """Somebody comes or goes, or a topic does."""
        living = self.living()
        chance = self.random.random()
        if chance < 0.35 and len(living) < 6:
            self.come()
        elif chance < 0.5 and living:
            self.crash(self.random.choice(living))
        elif chance < 0.65 and living:
            self.random.choice(living).membership.close(self.now_ms)
        elif chance < 0.75 and living:
            wanted = self.random.choice((("orders",), ("events",), ("orders", "events", "later")))
            self.random.choice(living).membership.subscribe(wanted, self.now_ms)
        elif chance < 0.85:
            self.change_topics()
        elif chance < 0.93 and living:
            self.random.choice(living).stopped_until_ms = self.now_ms + self.random.randint(0, 2 * SESSION_MS)
        elif living:
            consumer = self.random.choice(living)
            consumer.slow = not consumer.slow

    def come(self) -> None:
        name = self.random.choice("abcd")
        wanted = self.random.choice(((), (), ("orders",), ("events", "later")))
        used = {each.membership.member.instance_id for each in self.living()}
        static = self.random.random() < 0.4 and (self.twins or f"static-{name}" not in used)
        self.join(name, *wanted, instance_id=f"static-{name}" if static else None)

    def change_topics(self) -> None:
        name = self.random.choice(("orders", "events", "later"))
        known = self.topics.by_name.get(name)
        if known is not None and self.random.random() < 0.3:
            self.topics.remove(known.topic_id)
            for table in (self.best, self.processed, self.acknowledged):
                for place in [place for place in table if place[0] == known.topic_id]:
                    del table[place]
        elif known is not None and known.partitions < 8:
            self.topics.put(Topic(known.topic_id, name, known.partitions + 1))
        elif known is None:
            self.ids += 1
            self.topics.put(Topic(topic_id(self.ids), name, 2))

    # ── what has to hold ──────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """The group is what it promises to be."""
        for groups, end in ((self.shard.current, len(self.log)), (self.shard.committed, self.high_watermark)):
            for group in groups.by_id.values():
                group.check()  # I-58: nobody has what another has
            if self.random.random() < 0.05:
                assert same(groups, replayed(self.log[:end])), "it is not what its log says"
        self.check_users()
        self.check_offsets()

    def check_users(self) -> None:
        """EachPartitionHasOneOwner, also in the members' own eyes, as long as their commits are taken."""
        group = self.shard.current.get(GROUP)
        for consumer in self.living():
            membership = consumer.membership
            name = membership.member.member_id
            current = group.currents.get(name) if group is not None else None
            if group is None or current is None or membership.epoch != current.epoch:
                continue  # what it commits is refused
            for place in membership.owned | consumer.positions.keys():
                assert group.held.get(place) == name, (
                    f"{membership} uses {place}, which is {group.held.get(place)}'s"
                )

    def check_offsets(self) -> None:
        group = self.shard.committed.get(GROUP)
        for place, state in group.offsets.items() if group is not None else ():
            if place[0] not in self.topics.by_id:
                continue
            assert state.offset >= self.best.get(place, 0), (
                f"{place} has gone back from {self.best[place]} to {state.offset}"
            )
            assert state.offset <= self.processed.get(place, 0), (
                f"{place}: {state.offset} was never processed"
            )
            self.best[place] = state.offset
        for place, offset in self.acknowledged.items():
            assert self.best.get(place, 0) >= offset, f"{place}: {offset} was acknowledged"
        for place, best in self.best.items():
            assert best == 0 or (group is not None and place in group.offsets), (
                f"{place} has lost its offset {best}"
            )

    def settle(self) -> int:
        """Let nothing go wrong any more, and say how long it takes until everybody is content."""
        self.faults = False
        self.network += [arrive for _, arrive in self.held_up]
        self.held_up.clear()
        for consumer in self.consumers.values():
            consumer.slow, consumer.stopped_until_ms = False, 0
        self.part_twins()
        if not self.living():
            self.join("last")
        # A static process is waited for until its session ends, and so is who took its place and died as well.
        took_ms = self.until_content(3 * SESSION_MS + REBALANCE_MS)
        for topic in list(self.topics.by_name.values()):
            self.topics.put(Topic(topic.topic_id, topic.name, topic.partitions + 1))
        self.until_content(HEARTBEAT_MS + 2_000)
        return took_ms

    def part_twins(self) -> None:
        """Of several processes of one instance that one goes on which is the member."""
        group = self.shard.current.get(GROUP)
        instances: dict[str, list[Consumer]] = {}
        for consumer in self.living():
            if consumer.membership.member.instance_id is not None:
                instances.setdefault(consumer.membership.member.instance_id, []).append(consumer)
        for instance_id, processes in instances.items():
            member = group.instances.get(instance_id) if group is not None else None
            processes.sort(key=lambda each: each.membership.member.member_id == member)
            for consumer in processes[:-1]:
                self.crash(consumer)

    def until_content(self, bound_ms: int) -> int:
        began = self.now_ms
        while not self.is_content():
            assert self.now_ms - began < bound_ms, f"stuck: {self.story()}"
            for _ in range(len(self.network)):
                self.deliver()
            self.commit_to(len(self.log))
            self.act()
            self.pass_time(50)
            self.check()
        return self.now_ms - began

    def is_content(self) -> bool:
        """Whether every partition that somebody wants is used by one who wants it, and all know it."""
        living = self.living()
        group = self.shard.committed.get(GROUP)
        if group is None or not living:
            return not living and (group is None or not group.members)
        names = {each.membership.member.member_id: each.membership for each in living}
        if names.keys() != group.members.keys() or group.state.epoch != group.state.assignment_epoch:
            return False
        wanted = {
            (topic.topic_id, index)
            for topic in self.topics.wanted(
                {name for each in living for name in each.membership._topics}
            ).values()
            for index in range(topic.partitions)
        }
        return group.held.keys() == wanted and all(
            membership.standing is Standing.STABLE
            and membership.owned == places_of(group.target(name)) == places_of(group.current(name).assigned)
            for name, membership in names.items()
        )

    def story(self) -> str:
        """What everybody believes."""
        group = self.shard.current.get(GROUP)
        lines = [repr(each.membership) for each in self.living()]
        return "\n".join([repr(group), f"targets {group.targets if group else None}", *lines])


def replayed(log: list[tuple[Record, ...]]) -> Groups:
    groups = Groups()
    for batch in log:
        groups.replay(batch)
    return groups


def same(one: Groups, other: Groups) -> bool:
    """Whether both know the same of every group."""
    names = ("state", "members", "targets", "currents", "offsets", "topics", "held", "instances")
    return one.by_id.keys() == other.by_id.keys() and all(
        getattr(group, name) == getattr(other.by_id[key], name)
        for key, group in one.by_id.items()
        for name in names
    )


def storm(seed: int, steps: int = 600, *, twins: bool = False) -> World:
    """A run: things go wrong, and then no more."""
    world = World(seed, twins=twins)
    for _ in range(2):
        world.come()
    for _ in range(steps):
        world.step()
    world.settle()
    return world


def storms(first: int, count: int) -> Iterator[World]:
    """Several, each with its seed."""
    for seed in range(first, first + count):
        yield storm(seed)
