"""Metadata: what this broker's image says of the cluster."""

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.broker.node import TOPIC_ID, Node
from tidelog.protocol.errors import (
    InvalidReplicationFactor,
    LeaderNotAvailable,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.protocol.messages import (
    CreatedTopic,
    CreateTopics,
    CreateTopicsReply,
    DescribeCluster,
    ListenerEndpoint,
    Metadata,
    PossibleLoss,
)
from tidelog.protocol.settings import AUTO_CREATE, CLUSTER
from tidelog.protocol.types import BrokerId


@pytest.fixture
def node() -> Node:
    node = Node()
    node.lead()
    return node


def describe(node: Node, **asked: Any) -> Any:
    return node.ask(Metadata(**asked)).answer


def test_a_topic_is_found_by_name_by_id_and_among_all(node: Node) -> None:
    for asked in ({"names": ("orders",)}, {"ids": (TOPIC_ID,)}, {"all_topics": True}):
        (topic,) = describe(node, **asked).topics
        (partition,) = topic.partitions
        assert (topic.name, topic.topic_id) == ("orders", TOPIC_ID)
        assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 0, (1, 2, 3))


def test_what_nobody_knows_is_told_by_what_it_was_asked_by(node: Node) -> None:
    answer = describe(node, names=("ghosts",), ids=(b"?" * 16,))
    assert [topic.error for topic in answer.topics] == [UnknownTopicOrPartition.code, UnknownTopicId.code]


def test_a_partition_without_a_leader_says_so(node: Node) -> None:
    node.follow(-1)
    (partition,) = describe(node, all_topics=True).topics[0].partitions
    assert (partition.error, partition.leader) == (LeaderNotAvailable.code, -1)


def test_only_brokers_that_live_are_told(node: Node) -> None:
    node.register(2, fenced=True)
    answer = describe(node, all_topics=True)
    assert [broker.id for broker in answer.brokers] == [1, 3]
    assert answer.topics[0].partitions[0].offline == (2,)


def test_a_replica_on_a_broken_disk_is_offline_and_one_that_will_stop_is_not(node: Node) -> None:
    brokers, broken, stopping = node.image.brokers, BrokerId(2), BrokerId(3)
    brokers[broken] = replace(brokers[broken], offline=frozenset({(TOPIC_ID, 0)}))
    brokers[stopping] = replace(brokers[stopping], shutting_down=True)
    assert describe(node, all_topics=True).topics[0].partitions[0].offline == (2,)


def test_who_has_every_record_outside_the_isr_is_told(node: Node) -> None:
    node.lead(isr=(1,), elr=(2,))
    assert describe(node, all_topics=True).topics[0].partitions[0].elr == (2,)


def test_each_is_told_the_addresses_of_the_listener_it_came_in_by(node: Node) -> None:
    for number, port in ((1, 19092), (2, 19093)):
        outside = ListenerEndpoint("host", "127.0.0.1", port)
        inside = node.image.brokers[BrokerId(number)]
        node.image.brokers[BrokerId(number)] = replace(inside, listeners=(outside,))
    for asked in (Metadata(all_topics=True), DescribeCluster()):
        by_the_first = [(broker.host, broker.port) for broker in node.ask(asked).answer.brokers]
        assert by_the_first == [("b1", 9092), ("b2", 9092), ("b3", 9092)]
        by_the_other = [(b.host, b.port) for b in node.ask(asked, came_in_by="host").answer.brokers]
        assert by_the_other == [("127.0.0.1", 19092), ("127.0.0.1", 19093), ("b3", 9092)]


def at_a_glance(node: Node) -> Any:
    return node.ask(DescribeCluster()).answer


def test_the_cluster_at_a_glance_shows_brokers_that_are_not_alive_as_well(node: Node) -> None:
    node.register(2, fenced=True, rack="r2")
    node.image.brokers[BrokerId(3)] = replace(
        node.image.brokers[BrokerId(3)], shutting_down=True, offline=frozenset({(TOPIC_ID, 0)})
    )
    one, two, three = at_a_glance(node).brokers
    assert (one.id, one.broker_epoch, one.leads, one.replicas, one.fenced) == (1, 10, 1, 1, False)
    assert (two.id, two.rack, two.leads, two.replicas, two.fenced) == (2, "r2", 0, 1, True)
    assert (three.shutting_down, three.offline) == (True, 1)


def test_the_cluster_at_a_glance_counts_what_is_not_as_it_should_be(node: Node) -> None:
    def counts() -> tuple[int, ...]:
        told = at_a_glance(node)
        assert (told.topics, told.partitions, told.quorum_epoch) == (1, 1, 7)
        return told.without_leader, told.under_min_isr, told.under_replicated, told.moving

    assert counts() == (0, 0, 0, 0)
    node.lead(isr=(1, 2))
    assert counts() == (0, 0, 1, 0)
    node.lead(isr=(1,))
    assert counts() == (0, 1, 1, 0)
    node.follow(-1, isr=())
    assert counts() == (1, 1, 1, 0)
    node.lead(isr=(1, 2, 3), replicas=(1, 2, 3, 4), adding=(4,), removing=())
    assert counts() == (0, 0, 0, 1), "whoever is being added is not missing"


def test_the_cluster_at_a_glance_names_what_may_have_lost_records_for_as_long_as_that_leadership_lasts(
    node: Node,
) -> None:
    node.lead()
    assert (at_a_glance(node).unclean, at_a_glance(node).possible_losses) == (0, ())
    node.lead(epoch=7, unclean_epoch=7)
    assert at_a_glance(node).possible_losses == (PossibleLoss("orders", 0, 7, BrokerId(1)),)
    node.follow(2, epoch=8)
    assert (at_a_glance(node).unclean, at_a_glance(node).possible_losses) == (0, ())


def test_whoever_asks_is_told_which_controller_leads(node: Node) -> None:
    assert describe(node, all_topics=True).controller_id == 101


def wanted(node: Node, *names: str) -> list[str]:
    """Which topics the controller is asked for when somebody wants to write to these."""
    before = len(node.asked)
    assert describe(node, names=names, allow_create=True).topics[0].error == UnknownTopicOrPartition.code
    return [
        topic.name for request, _, _ in node.asked[before:] for topic in cast("CreateTopics", request).topics
    ]


def test_a_missing_topic_is_asked_for_once_at_a_time_where_the_cluster_allows_it(node: Node) -> None:
    node.lead()
    assert wanted(node, "new") == []
    node.image.configs[CLUSTER, "", AUTO_CREATE] = "true"
    assert wanted(node, "new", "__offsets", "orders") == ["new"]
    assert wanted(node, "new", "other") == ["other"]
    _, _, told = node.asked[0]
    told(CreateTopicsReply((CreatedTopic("new", InvalidReplicationFactor.code, "too few"),)))
    assert wanted(node, "new", "other") == ["new"]
    assert describe(node, names=("new",)).topics[0].error == UnknownTopicOrPartition.code
    assert len(node.asked) == 3
