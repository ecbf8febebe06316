"""What operators do, through the client, to a cluster of real nodes on real sockets."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.client.nodes import Cluster
from tests.client.scripted import Scripted, partition
from tidelog.client.admin import NewTopic
from tidelog.client.io.session import Session
from tidelog.protocol.errors import (
    BrokerIdNotRegistered,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidRequest,
    RequestTimedOut,
    SeveralErrors,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    CreatedPartitions,
    CreatePartitions,
    CreatePartitionsReply,
    Metadata,
    MetadataReply,
)
from tidelog.protocol.types import BrokerId, TopicPartition

ORDERS = NewTopic("orders", partitions=3, replication_factor=3)
FIRST = TopicPartition("orders", 0)


async def test_a_topic_is_usable_on_every_broker_when_it_was_created(cluster: Cluster) -> None:
    async with cluster.client() as client:
        [created] = await client.admin.create_topics(ORDERS)
        for broker in client.cluster.brokers:
            reply, _ = await client.call(broker, Metadata(("orders",)))
            assert isinstance(reply, MetadataReply)
            [told] = reply.topics
            assert (told.topic_id, told.error, len(told.partitions)) == (created.topic_id, 0, 3)
            assert all(not one.error and len(one.isr) == 3 for one in told.partitions)


async def test_a_topic_is_created_described_listed_and_deleted(broker: Cluster) -> None:
    async with broker.client() as client:
        admin = client.admin
        await admin.create_topics(NewTopic("orders", 2, 1, {"retention.ms": 60_000}), NewTopic("bills", 1, 1))
        assert [topic.name for topic in await admin.list_topics()] == ["bills", "orders"]
        [orders] = await admin.describe_topics("orders")
        assert [partition.replicas for partition in orders.partitions] == [(1,), (1,)]
        configs = await admin.describe_configs("topic", "orders", keys=["retention.ms"])
        assert (configs["retention.ms"].value, configs["retention.ms"].source) == ("60000", "topic")
        await admin.delete_topics("orders", (await admin.describe_topics("bills"))[0].id)
        assert await admin.list_topics() == []


async def test_one_refusal_is_raised_as_itself_and_several_by_name(broker: Cluster) -> None:
    async with broker.client() as client:
        admin = client.admin
        await admin.create_topics(NewTopic("orders", 1, 1))
        with pytest.raises(TopicAlreadyExists):
            await admin.create_topics(NewTopic("orders", 1, 1))
        with pytest.raises(InvalidReplicationFactor):
            await admin.create_topics(NewTopic("bills", 1, 3))
        with pytest.raises(SeveralErrors, match="orders: TOPIC_ALREADY_EXISTS") as caught:
            await admin.create_topics(NewTopic("orders", 1, 1), NewTopic("bills", 1, 1))
        assert [type(error) for error in caught.value.errors.values()] == [TopicAlreadyExists]
        assert [topic.name for topic in await admin.list_topics()] == ["bills", "orders"]
        with pytest.raises(UnknownTopicOrPartition, match="nowhere"):
            await admin.delete_topics("nowhere")


async def test_what_is_only_validated_does_not_happen(broker: Cluster) -> None:
    async with broker.client() as client:
        await client.admin.create_topics(NewTopic("orders", 1, 1), validate_only=True)
        assert await client.admin.list_topics() == []


async def test_partitions_are_added_and_known_when_it_returns(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.admin.create_topics(ORDERS)
        added = await client.admin.add_partitions("orders", 5)
        assert added.partitions == 5
        assert len(client.cluster.partitions("orders")) == 5
        with pytest.raises(InvalidPartitions):
            await client.admin.add_partitions("orders", 2)


async def test_partitions_are_known_that_were_added_though_the_first_broker_asked_did_not_know_them() -> None:
    async with Scripted() as brokers, brokers.client() as client:
        await client.topic("orders")
        more = (*brokers.topics["orders"].partitions, partition(2))

        def add(_broker: BrokerId, incoming: Incoming) -> None:
            incoming.reply(CreatePartitionsReply((CreatedPartitions("orders", partitions=3),)))

        def late(broker: BrokerId, incoming: Incoming) -> None:
            told(broker, incoming)
            if brokers.count(CreatePartitions):
                brokers.offset = 11
                brokers.topics["orders"] = replace(brokers.topics["orders"], partitions=more)

        brokers.handler, told, brokers.on_metadata = add, brokers.on_metadata, late
        await client.admin.add_partitions("orders", 3)
        assert len(client.cluster.partitions("orders")) == 3


async def test_settings_are_set_taken_back_and_refused(broker: Cluster) -> None:
    async with broker.client() as client:
        admin = client.admin
        await admin.create_topics(NewTopic("orders", 1, 1))
        await admin.alter_configs("topic", "orders", {"retention.ms": 5000, "min.insync.replicas": 1})
        described = await admin.describe_configs("topic", "orders")
        assert described["retention.ms"].value == "5000"
        await admin.alter_configs("topic", "orders", {"retention.ms": None})
        described = await admin.describe_configs("topic", "orders")
        assert described["retention.ms"].source == "default"
        with pytest.raises(InvalidConfig, match=r"retention\.ms"):
            await admin.alter_configs("topic", "orders", {"retention.mss": 1})


async def test_offsets_are_asked_of_leaders_and_unknown_partitions_named(cluster: Cluster) -> None:
    async with cluster.client() as client:
        admin = client.admin
        await admin.create_topics(ORDERS)
        found = await admin.list_offsets("orders", "earliest")
        assert {where: one.offset for where, one in found.items()} == {
            TopicPartition("orders", index): 0 for index in range(3)
        }
        with pytest.raises(UnknownTopicOrPartition, match="orders-7"):
            await admin.list_offsets([TopicPartition("orders", 7)])
        with pytest.raises(SeveralErrors, match="orders-7"):
            await admin.list_offsets({FIRST: "latest", TopicPartition("orders", 7): "latest"})
        with pytest.raises(InvalidRequest, match="'newest'"):
            await admin.list_offsets("orders", "newest")  # type: ignore[arg-type]


async def test_records_are_deleted_up_to_what_is_committed(broker: Cluster) -> None:
    async with broker.client() as client:
        await client.admin.create_topics(NewTopic("orders", 1, 1))
        assert await client.admin.delete_records({FIRST: -1}) == {FIRST: 0}


async def test_an_election_that_is_not_needed_is_told_and_no_error(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.admin.create_topics(ORDERS)
        [election] = await client.admin.elect_leaders([FIRST])
        assert (election.partition, election.changed) == (FIRST, False)
        assert await client.admin.elect_leaders() == []


async def test_a_partition_is_moved_and_the_move_listed_until_it_ends(cluster: Cluster) -> None:
    async with cluster.client() as client:
        admin = client.admin
        await admin.create_topics(NewTopic("orders", assignment=[[1, 2]]))
        [move] = await admin.reassign({FIRST: [3, 2]}, validate_only=True)
        assert (move.partition, move.adding, move.removing) == (FIRST, (3,), (1,))
        assert (await admin.list_reassignments()).partitions == ()
        await admin.reassign({FIRST: [3, 2]})
        while (await admin.list_reassignments([FIRST])).partitions:
            await client.refresh(newer=True)
        [orders] = await admin.describe_topics("orders")
        assert orders.partitions[0].replicas == (3, 2)


async def test_the_cluster_and_its_quorum_are_described(cluster: Cluster) -> None:
    async with cluster.client() as client:
        described = await client.admin.describe_cluster()
        assert [(broker.id, broker.rack) for broker in described.brokers] == [
            (1, "rack-1"),
            (2, "rack-2"),
            (3, "rack-3"),
        ]
        assert (described.topics, described.without_leader) == (0, 0)
        assert described.cluster_id == (await client.admin.describe_quorum()).cluster_id


async def test_the_directories_of_brokers_and_what_lies_there_are_described(cluster: Cluster) -> None:
    async with cluster.client() as client:
        admin = client.admin
        await admin.create_topics(NewTopic("orders", 2, 3), NewTopic("bills", 1, 1))
        async with client.producer() as producer:
            await producer.send_many("orders", [b"x" * 100] * 10, partition=1)
        found = await admin.describe_log_dirs(topics=["orders"])
        assert sorted(found) == [1, 2, 3]
        for (directory,) in found.values():
            assert directory.path
            assert (directory.error, directory.low_space) == (0, False)
            sizes = {(log.topic, log.index): (log.size > 1000, log.end_offset) for log in directory.replicas}
            assert sizes == {("orders", 0): (False, 0), ("orders", 1): (True, 10)}
        [[one]] = (await admin.describe_log_dirs(2)).values()
        assert {"orders", "__metadata"} <= {log.topic for log in one.replicas}
        with pytest.raises(SeveralErrors, match="broker 9 is not alive"):
            await admin.describe_log_dirs(1, 9)


async def test_a_broker_is_drained_and_given_its_share_again(cluster: Cluster) -> None:
    async with cluster.client() as client:
        admin = client.admin
        await admin.create_topics(NewTopic("orders", partitions=6, replication_factor=2))
        planned = await admin.drain_broker(1, validate_only=True)
        kept = [broker.replicas for broker in (await admin.describe_cluster()).brokers]
        assert len(planned) == kept[0] > 0
        assert all(move.removing == (1,) for move in planned)

        async def keeps() -> int:
            while (await admin.list_reassignments()).partitions:
                await client.refresh(newer=True)
            return (await admin.describe_cluster()).brokers[0].replicas

        await admin.drain_broker(1)
        assert await keeps() == 0
        assert await admin.drain_broker(1) == []
        given = await admin.undrain_broker(1)
        assert all(1 in move.adding for move in given)
        assert await keeps() == len(given) == 4


async def test_a_broker_that_is_gone_for_good_is_taken_off_the_list_even_if_the_first_answer_is_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as client:
        admin = client.admin
        with pytest.raises(InvalidRequest, match="broker 3 is alive at"):
            await admin.unregister_broker(3)
        await cluster.kill(3)
        while not (await admin.describe_cluster()).brokers[2].fenced:
            await client.refresh(newer=True)
        call_any = Session.call_any

        async def twice(session: Session, request: Any, **how: Any) -> Any:
            """The first answer is lost, and the request is sent again."""
            await call_any(session, request, **how)
            how["on_retry"](RequestTimedOut("lost"))
            return await call_any(session, request, **how)

        with monkeypatch.context() as during:
            during.setattr(Session, "call_any", twice)
            await admin.unregister_broker(3)
        assert 3 not in [broker.id for broker in (await admin.describe_cluster()).brokers]
        with pytest.raises(BrokerIdNotRegistered, match="broker 3 is not registered"):
            await admin.unregister_broker(3)


async def test_what_was_begun_to_drain_a_broker_is_cancelled_when_it_is_not_to_be(cluster: Cluster) -> None:
    async with cluster.client() as client:
        admin = client.admin
        await admin.create_topics(NewTopic("orders", assignment=[[1, 2]]))
        await cluster.kill(3)
        while not (await admin.describe_cluster()).brokers[2].fenced:
            await client.refresh(newer=True)
        await admin.reassign({FIRST: [3, 2]})
        [move] = (await admin.list_reassignments()).partitions
        assert (move.removing, move.waiting_for) == ((1,), (3,))
        [back] = await admin.undrain_broker(1)
        assert (back.partition, set(back.replicas), back.adding) == (FIRST, {1, 2}, ())
