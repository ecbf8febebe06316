"""Groups on whole brokers in the simulator: members over connections, while the brokers that coordinate them die."""

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.simulation.cluster import BROKER_PORT, CONTROLLER_PORT, QUICK, Cluster
from tidelog.broker.groups.records import GROUPS_TOPIC, Place
from tidelog.broker.groups.settings import GroupSettings
from tidelog.client.membership import Assigned, Lose, Member, Membership, Revoke, Standing
from tidelog.protocol.errors import ConnectionFailed, NotCoordinator, RequestTimedOut, TidelogError, error_of
from tidelog.protocol.io import Connection, connect
from tidelog.protocol.messages import (
    ConfigEntry,
    CreateTopics,
    CreateTopicsReply,
    DescribedGroup,
    DescribeGroups,
    DescribeGroupsReply,
    FindCoordinator,
    FindCoordinatorReply,
    GroupHeartbeat,
    GroupHeartbeatReply,
    NewTopic,
    OffsetCommit,
    OffsetCommitReply,
    OffsetFetch,
    OffsetFetchReply,
    OffsetToCommit,
    PartitionIndex,
    Reply,
    Request,
)
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.world import World

SETTINGS = GroupSettings(
    group_consumer_session_timeout_ms=6000,
    group_consumer_heartbeat_interval_ms=2000,
    offsets_topic_num_partitions=4,
)


class Consumer:
    """A member and its user, over connections: what the client's consumer will be, in short."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.cluster = cluster
        member = Member(group_id="g", member_id=name, max_wait_ms=2000)
        self.membership = Membership(member, Random(name))
        self.positions: dict[Place, int] = {}
        self.connection: Connection | None = None
        self.news = asyncio.Event()
        self.best: dict[Place, int] = {}
        """What it was told to be committed."""

    @property
    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    async def run(self) -> None:
        self.membership.subscribe(["orders"], self.now_ms)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.use())
            while self.membership.standing is not Standing.LEFT:
                request = self.membership.poll(self.now_ms)
                if request is not None:
                    group.create_task(self.heartbeat(request))
                self.news.clear()
                due_ms = self.membership.deadline_ms
                pause_s = 0.5 if due_ms is None else max(min((due_ms - self.now_ms) / 1000, 0.5), 0)
                try:
                    async with asyncio.timeout(pause_s):
                        await self.news.wait()
                except TimeoutError:
                    continue

    async def heartbeat(self, request: GroupHeartbeat) -> None:
        try:
            reply = await self.ask(request, 3000)
            assert isinstance(reply, GroupHeartbeatReply)
            if reply.error:
                raise error_of(reply.error, reply.message or "")
        except TidelogError as error:
            if not isinstance(error, RequestTimedOut):
                self.membership.unanswered(request.sequence, error, self.now_ms)
            else:
                self.membership.unanswered(request.sequence, NotCoordinator(), self.now_ms)
        else:
            self.membership.answered(request.sequence, reply, self.now_ms)
        self.news.set()

    async def ask(self, request: Request, timeout_ms: int) -> Reply:
        """Ask the coordinator, and look it up when there is none any more."""
        try:
            if self.connection is None or self.connection.closed:
                self.connection = await self.find()
            reply, _ = await self.connection.call(request, timeout_ms=timeout_ms)
        except TidelogError:
            self.connection = None
            raise
        if getattr(reply, "error", 0) == NotCoordinator.code:
            self.connection = None
        return reply

    async def find(self) -> Connection:
        for number in sorted(self.cluster.hosts, key=lambda _: self.cluster.world.rng.random()):
            address = self.cluster.hosts[number].machine.address
            try:
                connection = await connect(address, BROKER_PORT, timeout_ms=1000)
                reply, _ = await connection.call(FindCoordinator(("g",)), timeout_ms=3000)
                connection.close()
            except TidelogError:
                continue
            assert isinstance(reply, FindCoordinatorReply)
            (found,) = reply.coordinators
            if not found.error:
                return await connect(found.host, found.port, timeout_ms=1000)
        raise ConnectionFailed("nobody knows who coordinates")

    async def use(self) -> None:
        """Process, commit, give up what is asked for."""
        while self.membership.standing is not Standing.LEFT:
            while (news := self.membership.take()) is not None:
                if isinstance(news, Assigned):
                    for place in news.places:
                        self.positions[place] = await self.committed(place)
                elif isinstance(news, Revoke | Lose):
                    if isinstance(news, Revoke):
                        await self.commit()
                    for place in news.places:
                        self.positions.pop(place, None)
                    self.membership.released(news, self.now_ms)
                    self.news.set()
            for place in self.positions:
                self.positions[place] += 1
            await self.commit()
            await asyncio.sleep(0.05)

    async def committed(self, place: Place) -> int:
        while True:
            try:
                reply = await self.ask(OffsetFetch("g", (PartitionIndex(*place),)), 2000)
            except TidelogError:
                await asyncio.sleep(0.05)
                continue
            assert isinstance(reply, OffsetFetchReply)
            if not reply.error:
                return max(reply.partitions[0].offset, 0)
            await asyncio.sleep(0.05)

    async def commit(self) -> None:
        epoch, sequence = self.membership.next_commit()
        offsets = dict(self.positions)
        if not offsets or epoch < 1:
            return
        entries = tuple(OffsetToCommit(*place, offset) for place, offset in sorted(offsets.items()))
        request = OffsetCommit("g", entries, self.membership.member.member_id, epoch, None, sequence)
        try:
            reply = await self.ask(request, 2000)
        except TidelogError:
            return
        assert isinstance(reply, OffsetCommitReply)
        if reply.error:
            self.membership.commit_refused(error_of(reply.error, ""), epoch, self.now_ms)
            self.news.set()
        for entry in reply.partitions:
            if not entry.error:
                place = entry.topic_id, entry.index
                self.best[place] = max(offsets[place], self.best.get(place, 0))


class Play:
    """Three brokers, a topic, and members on a host of their own."""

    def __init__(self, world: World, **config: Any) -> None:
        self.cluster = Cluster(world, brokers=3, config={**QUICK, "groups": SETTINGS, **config})
        self.client = Host("client", world)
        self.client.start()
        self.consumers: list[Consumer] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        cluster = self.cluster
        cluster.until(lambda: cluster.active and self.unfenced() == 3, 20)
        topic = NewTopic("orders", 6, 3, configs=(ConfigEntry("min.insync.replicas", "2"),))
        epoch = cluster.controllers[-1].epoch
        reply = self.ask(cluster.controller, CONTROLLER_PORT, CreateTopics((topic,), quorum_epoch=epoch))
        assert isinstance(reply, CreateTopicsReply)
        assert not reply.error
        cluster.until(cluster.converged, 20)

    def unfenced(self) -> int:
        return sum(not known.fenced for known in self.cluster.controllers[-1].working.brokers.values())

    def ask(self, host: Host, port: int, request: Request) -> Reply:
        async def call() -> Reply:
            connection = await connect(host.machine.address, port, timeout_ms=2000)
            reply, _ = await connection.call(request, timeout_ms=5000)
            connection.close()
            return reply

        task = self.client.create_task(call())
        self.cluster.until(task.done, 20)
        return task.result()

    def join(self, name: str) -> Consumer:
        consumer = Consumer(name, self.cluster)
        self.consumers.append(consumer)
        self.tasks[name] = self.client.create_task(consumer.run())
        return consumer

    def silence(self, consumer: Consumer) -> None:
        """Its process dies, and says nothing to anybody."""
        self.tasks[consumer.membership.member.member_id].cancel()
        self.consumers.remove(consumer)

    def leave(self, consumer: Consumer) -> None:
        async def close() -> None:
            consumer.membership.close(consumer.now_ms)
            consumer.news.set()

        _ = self.client.create_task(close())
        self.consumers.remove(consumer)

    def content(self) -> bool:
        """Whether the six partitions are shared out evenly, and everybody knows."""
        owned = [place for each in self.consumers for place in each.membership.owned]
        sizes = [len(each.membership.owned) for each in self.consumers]
        stable = all(each.membership.standing is Standing.STABLE for each in self.consumers)
        return stable and len(owned) == len(set(owned)) == 6 and max(sizes) - min(sizes) <= 1

    def until_content(self, seconds: float) -> float:
        began = self.cluster.world.now
        self.cluster.until(self.content, seconds)
        return self.cluster.world.now - began

    def coordinator(self) -> int:
        """The broker that coordinates the group."""
        for number, broker in self.cluster.brokers.items():
            if self.cluster.hosts[number].alive and hasattr(broker, "groups"):
                for held in broker.groups.coordinator.held.values():
                    if held.shard.is_active and "g" in held.shard.current.by_id and held.is_led:
                        return number
        raise AssertionError("nobody coordinates the group")

    def described(self) -> DescribedGroup:
        host = self.cluster.hosts[self.coordinator()]
        reply = self.ask(host, BROKER_PORT, DescribeGroups(("g",), with_lag=True))
        assert isinstance(reply, DescribeGroupsReply)
        (group,) = reply.groups
        return group

    def check_commits(self) -> None:
        """What members were told to be committed is committed, or more."""
        told = [dict(consumer.best) for consumer in self.consumers]  # before it is asked what is committed
        offsets = {(each.topic_id, each.index): each.offset for each in self.described().offsets}
        for best_of in told:
            for place, best in best_of.items():
                assert offsets[place] >= best, (
                    f"{place}: {best} was acknowledged, {offsets[place]} is committed"
                )


@pytest.fixture
def play() -> Iterator[Play]:
    with World(7).running() as world:
        yield Play(world)


def test_members_share_a_topic_and_hear_at_once_of_who_comes_and_goes(play: Play) -> None:
    first = play.join("a")
    play.until_content(20)
    topic_id = play.cluster.image.topic_ids[GROUPS_TOPIC]
    assert play.cluster.image.partitions[topic_id, 0].flush_group
    play.join("b")
    play.join("c")
    assert play.until_content(5) < 5
    play.leave(first)
    assert play.until_content(5) < 2, "the others wait at the broker for this"
    play.check_commits()
    group = play.described()
    assert (group.state, len(group.members)) == ("stable", 2)
    assert all(offset.lag == 0 and offset.lag_ms == 0 for offset in group.offsets), (
        "nothing was ever produced"
    )


def test_a_coordinator_is_told_the_time_when_something_is_due_and_else_once_a_second(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.join("a")
    play.until_content(20)
    coordinator = play.cluster.brokers[play.coordinator()].groups.coordinator
    told: list[int] = []
    tick, now_ms = coordinator.tick, coordinator.context.clocks.now_ms

    def counted() -> None:
        told.append(now_ms())
        tick()

    monkeypatch.setattr(coordinator, "tick", counted)
    began_ms = now_ms()
    play.cluster.until(lambda: now_ms() - began_ms >= 10_000, 20)
    assert 9 <= len(told) <= 12, told
    due_ms = now_ms() + 300
    told.clear()
    next(iter(coordinator.held.values())).shard.deadlines.set(0, "nobody", "nobody", due_ms)
    play.cluster.until(lambda: told != [] and told[-1] >= due_ms, 0.5)
    assert len(told) <= 3, "once to be told when, and once when it is due"


def test_who_dies_is_put_out_also_by_a_coordinator_that_had_nothing_to_load(play: Play) -> None:
    """The log of the groups is new, and its leaders stay: nothing but the time tells them to look."""
    first = play.join("a")
    play.join("b")
    play.until_content(20)
    play.silence(first)
    # Its last heartbeat lies at the coordinator for so long.
    waits_ms = SETTINGS.group_consumer_heartbeat_interval_ms
    assert play.until_content(10) <= (SETTINGS.group_consumer_session_timeout_ms + waits_ms) / 1000 + 1
    play.check_commits()


def test_a_group_goes_on_when_its_coordinator_dies(play: Play) -> None:
    for name in "abc":
        play.join(name)
    play.until_content(20)
    play.cluster.pass_time(1)
    before = {name.membership.member.member_id: name.membership.owned for name in play.consumers}
    dead = play.coordinator()
    play.cluster.hosts[dead].kill()
    play.cluster.pass_time(4)
    assert play.coordinator() != dead
    assert {name.membership.member.member_id: name.membership.owned for name in play.consumers} == before
    play.join("d")
    assert play.until_content(5) < 5
    play.cluster.start(dead)
    play.cluster.pass_time(3)
    play.check_commits()


@pytest.mark.slow
def test_members_come_and_go_while_brokers_die(play: Play) -> None:
    rng = Random(3)
    for name in "abcd":
        play.join(name)
    play.until_content(20)
    for turn in range(5):
        victim = rng.choice(play.cluster.alive())
        play.cluster.hosts[victim].kill()
        if rng.random() < 0.5:
            play.join(f"turn-{turn}")
        elif len(play.consumers) > 2:
            play.leave(rng.choice(play.consumers))
        play.cluster.pass_time(rng.uniform(0.2, 3))
        play.cluster.start(victim)
        play.cluster.pass_time(rng.uniform(0.5, 3))
    play.cluster.pass_time(6)  # whoever died with its farewell unheard is put out by its session
    assert play.until_content(5) < 5
    play.check_commits()
