"""The real client in a simulated world: three controllers, three brokers, virtual time, every fault on purpose."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.simulated import Stage
from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client
from tidelog.protocol.errors import (
    ConnectionFailed,
    InvalidConfig,
    NoController,
    RequestTimedOut,
    UnknownTopicOrPartition,
    Unsupported,
)
from tidelog.protocol.messages import Metadata
from tidelog.protocol.types import BrokerId, TopicPartition
from tidelog.testing.simulation.world import World

FIRST, SECOND = BrokerId(1), BrokerId(2)


@pytest.fixture
def world() -> Iterator[World]:
    """A world that is running; errors that nobody caught fail the test."""
    with World(5).running() as world:
        yield world


@pytest.fixture
def stage(world: World) -> Stage:
    return Stage(world)


def test_a_topic_that_was_created_is_led_on_every_broker(stage: Stage) -> None:
    async def create(client: Client) -> Any:
        created = await client.admin.create_topics(NewTopic("orders", partitions=6, replication_factor=3))
        return created, await client.topic("orders"), client.cluster.controller_id

    [created], topic, controller = stage.run(create)
    [leads] = {broker.observer.controller_id for broker in stage.cluster.brokers.values()}
    assert controller == leads
    assert (created.name, created.partitions, created.replication_factor) == ("orders", 6, 3)
    assert topic.id == created.topic_id
    for broker in stage.cluster.brokers.values():
        states = broker.observer.image.partitions_of(created.topic_id)
        assert len(states) == 6
        assert all(state.leader != -1 for state in states)


def test_the_loss_of_a_broker_moves_leaders_and_the_client_follows(stage: Stage) -> None:
    async def live(client: Client) -> Any:
        await client.admin.create_topics(NewTopic("orders", partitions=6, replication_factor=3))
        began = stage.world.now
        stage.cluster.hosts[1].kill()
        found = await client.admin.list_offsets("orders", "latest", timeout=20)
        seconds = stage.world.now - began
        await client.refresh(["orders"], newer=True)
        return found, client.cluster.partitions("orders"), client.cluster.brokers, seconds

    found, partitions, brokers, seconds = stage.run(live)
    assert seconds < 1, "its port refuses: nobody waits for a session to end"
    assert found.keys() == {TopicPartition("orders", index) for index in range(6)}
    assert {partition.leader for partition in partitions} <= {2, 3}
    assert brokers.keys() == {2, 3}


def test_a_client_begins_though_the_first_address_is_dark(stage: Stage) -> None:
    stage.cluster.hosts[1].power_cut()
    stage.cluster.hosts[2].stop()

    async def look(client: Client) -> float:
        await client.admin.list_topics()
        return client.metrics()["connections"]

    began = stage.world.now
    assert stage.run(look) >= 1
    assert stage.world.now - began < 5, "the others are asked before the first one's time is up"


def test_a_start_without_any_broker_names_each_address_within_its_time(stage: Stage) -> None:
    for number, host in stage.cluster.hosts.items():
        (host.kill if number == 1 else host.power_cut)()

    async def nothing(_client: Client) -> None:
        return None

    began = stage.world.now
    with pytest.raises(ConnectionFailed) as caught:
        stage.run(nothing, connect_timeout=2)
    assert stage.world.now - began <= 2.5
    first, *lines = str(caught.value).splitlines()
    assert first == "no broker can be reached:"
    addresses = stage.bootstrap.split(",")
    assert [line.split()[0].rstrip(":") for line in lines] == addresses
    assert "refused" in lines[0]
    assert "no answer in 2000 ms" in lines[1]


def test_a_topic_that_is_not_there_is_told_soon(stage: Stage) -> None:
    began = stage.world.now
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic 'nowhere'"):
        stage.run(lambda client: client.topic("nowhere"))
    assert stage.world.now - began < 2


def test_a_broker_that_is_stopped_loses_its_connection_when_others_say_that_it_is_gone(stage: Stage) -> None:
    async def live(client: Client) -> float:
        await client.admin.create_topics(NewTopic("orders", partitions=3, replication_factor=3))
        loop = asyncio.get_running_loop()
        await client.connection(FIRST)
        stage.cluster.hosts[1].stop()
        began = loop.time()
        with pytest.raises(ConnectionFailed):
            await client.call(FIRST, Metadata())
        return loop.time() - began

    assert stage.run(live) < 8, "long before the request time-out of 30 s"


def test_when_no_broker_is_left_a_record_fails_in_its_time_with_the_cause(stage: Stage) -> None:
    async def live(client: Client) -> float:
        await client.admin.create_topics(NewTopic("orders", partitions=3, replication_factor=3))
        async with client.producer(delivery_timeout_ms=700) as producer:
            await producer.send("orders", b"v")
            for host in stage.cluster.hosts.values():
                host.kill()
            began = stage.world.now
            why = r"1 records for orders-. were not acknowledged in 70\d ms.*last: CONNECTION_FAILED: .* refused"
            with pytest.raises(RequestTimedOut, match=why):
                await producer.send("orders", b"v")
            return stage.world.now - began

    assert stage.run(live) == pytest.approx(0.7, abs=0.01)


def test_the_cluster_is_described_and_its_quorum(stage: Stage) -> None:
    async def look(client: Client) -> Any:
        return await client.admin.describe_cluster(), await client.admin.describe_quorum()

    cluster, quorum = stage.run(look)
    assert [(broker.id, broker.fenced) for broker in cluster.brokers] == [(1, False), (2, False), (3, False)]
    assert quorum.leader_id == stage.cluster.active[0]  # type: ignore[index]
    assert [voter.id for voter in quorum.voters] == [1, 2, 3]
    assert cluster.cluster_id


def test_a_topic_that_one_broker_cannot_know_yet_is_not_called_usable(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in stage.cluster.quorum:
        stage.world.network.partition("b3", f"c{number}")

    async def create(client: Client) -> Any:
        # Broker 1 is asked: broker 3 finds no controller, and would look for one for half of the time.
        monkeypatch.setattr(client.rng, "shuffle", list.sort)
        new = NewTopic("orders", assignment=[[1, 2]])
        with pytest.raises(
            RequestTimedOut, match="orders was created, and is not usable yet: broker 3: orders is not known"
        ):
            await client.admin.create_topics(new, timeout=1)  # a session of a broker is 1.5 s
        began = stage.world.now
        await client.admin.add_partitions("orders", 2, timeout=10)
        return stage.world.now - began, client.cluster.brokers.keys()

    seconds, brokers = stage.run(create)
    assert brokers == {1, 2}, "it is waited for as long as it counts as alive, and no longer"
    assert seconds < 3


def test_operations_outlive_the_loss_of_the_active_controller(stage: Stage) -> None:
    async def create(client: Client) -> Any:
        for number in range(3):
            stage.cluster.controller.kill()
            name = f"orders-{number}"
            await client.admin.create_topics(NewTopic(name, partitions=2, replication_factor=3), timeout=20)
            for dead, host in stage.cluster.quorum.items():
                if not host.alive:
                    stage.cluster.start_controller(dead)
        return [topic.name for topic in await client.admin.list_topics()]

    assert stage.run(create, seconds=60) == ["orders-0", "orders-1", "orders-2"]


def test_an_operation_without_controllers_ends_within_its_time(stage: Stage) -> None:
    for host in stage.cluster.quorum.values():
        host.kill()
    began = stage.world.now
    with pytest.raises(NoController, match=r"c1 .*: Connection refused, c2 .*, c3 "):
        stage.run(lambda client: client.admin.create_topics("orders", timeout=3))
    assert stage.world.now - began < 4


def test_an_operation_without_brokers_ends_within_its_time_and_says_why(stage: Stage) -> None:
    addresses: list[str] = []

    async def create(client: Client) -> None:
        addresses.extend(f"{each.host}:{each.port}: " for each in client.cluster.brokers.values())
        for host in stage.cluster.hosts.values():
            host.kill()
        await client.admin.create_topics("orders", timeout=3)

    began = stage.world.now
    with pytest.raises(ConnectionFailed, match="no broker can be reached") as caught:
        stage.run(create)
    assert len(addresses) == 3
    assert all(address in str(caught.value) for address in addresses)
    assert 2 < stage.world.now - began < 5


def test_metadata_is_looked_at_again_when_it_is_old_though_nothing_failed(stage: Stage) -> None:
    async def wait(client: Client) -> tuple[set[int], float]:
        await client.admin.create_topics(NewTopic("orders", partitions=6, replication_factor=3))
        await client.connection(SECOND)
        refreshes = client.metrics()["refreshes"]
        await asyncio.sleep(5)
        regular = client.metrics()["refreshes"] - refreshes
        stage.cluster.hosts[3].kill()  # no connection leads there: nothing tells the client
        await asyncio.sleep(5)
        return {one.leader for one in client.cluster.partitions("orders")}, regular

    leaders, regular = stage.run(wait, metadata_max_age_ms=1000)
    assert leaders <= {1, 2}
    assert 4 <= regular <= 5


def test_options_that_are_not_there_yet_are_refused_by_whoever_has_them(stage: Stage) -> None:
    async def ask(client: Client) -> None:
        with pytest.raises(Unsupported, match="transactional_id"):
            client.producer(transactional_id="t")
        with pytest.raises(InvalidConfig, match="nearest is linger_ms"):
            client.producer(linger=5)
        with pytest.raises(InvalidConfig, match="there is no such option"):
            client.consumer("orders", config={"auto.offset.resett": "earliest"})
        assert client.metrics()["tasks"] == 2, "what was refused has begun nothing"

    stage.run(ask)


def test_a_topic_that_a_producer_writes_to_is_made_where_the_cluster_allows_it_and_by_nobody_else(
    stage: Stage,
) -> None:
    async def live(client: Client) -> Any:
        async with client.producer() as producer:
            with pytest.raises(UnknownTopicOrPartition):
                await producer.send("orders", b"x")
            await client.admin.alter_configs("cluster", "", {"auto.create.topics.enable": True})
            await asyncio.sleep(1)
            with pytest.raises(UnknownTopicOrPartition):
                await client.topic("orders")
            sent = await asyncio.gather(*(producer.send("orders", b"%d" % at) for at in range(20)))
            with pytest.raises(UnknownTopicOrPartition):
                await producer.send("__orders", b"x")
            await client.admin.alter_configs("cluster", "", {"auto.create.topics.enable": None})
            await asyncio.sleep(1)
            with pytest.raises(UnknownTopicOrPartition):
                await producer.send("bills", b"x")
        return sorted(one.offset for one in sent), await client.topic("orders")

    offsets, topic = stage.run(live, 60)
    assert offsets == list(range(20))
    assert (len(topic.partitions), len(topic.partitions[0].replicas)) == (1, 3)
