"""What a broker answers with the controller's help: producer ids, topics made and removed."""

from typing import Any

import pytest

from tests.broker.node import PLACE, TOPIC_ID, Asked, Node
from tidelog.broker.requests.topics import HANDED_ON
from tidelog.protocol.errors import (
    FencedLeaderEpoch,
    InvalidRequest,
    NotController,
    RequestTimedOut,
    StaleBrokerEpoch,
    StorageError,
    UnknownTopicId,
    UnsupportedVersion,
)
from tidelog.protocol.messages import (
    AllocateProducerIds,
    AllocateProducerIdsReply,
    AlterConfigs,
    AlterConfigsReply,
    AlterReassignments,
    AlterReassignmentsReply,
    ConfigDescribed,
    CreatePartitions,
    CreatePartitionsReply,
    CreateTopics,
    CreateTopicsReply,
    DeleteTopics,
    DeleteTopicsReply,
    DescribeConfigs,
    DescribeConfigsReply,
    DescribeLogDirs,
    DescribeQuorum,
    DescribeQuorumReply,
    ElectLeaders,
    ElectLeadersReply,
    GetReplicaLogInfo,
    InitProducerId,
    ListReassignments,
    ListReassignmentsReply,
    NewTopic,
    PartitionIndex,
    PlanMoves,
    PlanMovesReply,
    Request,
    ResourceDescribed,
    UnregisterBroker,
    UnregisterBrokerReply,
)
from tidelog.protocol.types import BrokerId
from tidelog.replication.sessions import Place


@pytest.fixture
def node() -> Node:
    return Node()


def wants_id(node: Node, **fields: Any) -> Asked:
    return node.ask(InitProducerId(**fields))


def gives(node: Node, first: int, count: int) -> None:
    """The controller answers the request for a block."""
    asked, _, told = node.asked.pop()
    assert isinstance(asked, AllocateProducerIds)
    told(AllocateProducerIdsReply(first=first, count=count))
    node.turn()


# ── producer ids ──────────────────────────────────────────────────────────────────────────────────────


def test_one_block_is_asked_for_and_all_who_wait_get_an_id_each(node: Node) -> None:
    waiting = [wants_id(node) for _ in range(3)]
    assert len(node.asked) == 1
    gives(node, 1000, 1000)
    assert [asked.answer.producer_id for asked in waiting] == [1000, 1001, 1002]
    assert wants_id(node).answer.producer_id == 1003


def test_a_block_that_is_used_up_is_followed_by_another(node: Node) -> None:
    waiting = [wants_id(node) for _ in range(3)]
    gives(node, 10, 2)
    assert waiting[2].waits
    gives(node, 50, 2)
    assert waiting[2].answer.producer_id == 50


def test_the_request_names_the_registration_and_the_quorum(node: Node) -> None:
    wants_id(node, timeout_ms=300)
    assert node.asked[0][:2] == (AllocateProducerIds(node.replicas.around.me, 10, 7), 300)


@pytest.mark.parametrize("epoch", [0, 32765])
def test_who_has_an_id_gets_its_next_epoch(node: Node, epoch: int) -> None:
    answer = wants_id(node, producer_id=5, producer_epoch=epoch).answer
    assert (answer.producer_id, answer.producer_epoch) == (5, epoch + 1)


def test_at_the_last_epoch_there_is_another_id(node: Node) -> None:
    asked = wants_id(node, producer_id=5, producer_epoch=32766)
    gives(node, 9, 1)
    assert (asked.answer.producer_id, asked.answer.producer_epoch) == (9, 0)


def test_an_id_without_its_epoch_means_nothing(node: Node) -> None:
    for fields in ({"producer_id": 5}, {"producer_epoch": 5}):
        with pytest.raises(InvalidRequest):
            wants_id(node, **fields)


def test_transactions_are_not_known_yet(node: Node) -> None:
    with pytest.raises(UnsupportedVersion):
        wants_id(node, transactional_id="payments")


def test_a_controller_that_is_not_there_is_told_in_time(node: Node) -> None:
    asked = wants_id(node, timeout_ms=100)
    node.wait(100)
    assert asked.answer.error == RequestTimedOut.code
    gives(node, 7, 5)
    assert wants_id(node).answer.producer_id == 7, "what came too late for one is there for the next"


def test_a_refusal_is_told_and_the_next_one_asks_again(node: Node) -> None:
    asked = wants_id(node)
    node.asked.pop()[2](AllocateProducerIdsReply(error=StaleBrokerEpoch.code))
    node.turn()
    assert asked.answer.error == StaleBrokerEpoch.code
    assert wants_id(node).waits
    gives(node, 7, 5)


# ── topics ────────────────────────────────────────────────────────────────────────────────────────────


ASKED_OF_ANY_BROKER: list[tuple[Any, Any]] = [
    (CreateTopics((NewTopic("orders", 3, 2),), timeout_ms=500), CreateTopicsReply(metadata_offset=9)),
    (DeleteTopics(("orders",), timeout_ms=500), DeleteTopicsReply(metadata_offset=9)),
    (CreatePartitions((), timeout_ms=500), CreatePartitionsReply(metadata_offset=9)),
    (AlterConfigs((), timeout_ms=500), AlterConfigsReply(metadata_offset=9)),
    (DescribeConfigs((), timeout_ms=500), DescribeConfigsReply(metadata_offset=9)),
    (ElectLeaders(timeout_ms=500), ElectLeadersReply(metadata_offset=9)),
    (AlterReassignments((), timeout_ms=500), AlterReassignmentsReply(metadata_offset=9)),
    (ListReassignments(timeout_ms=500), ListReassignmentsReply(metadata_offset=9)),
    (UnregisterBroker(BrokerId(3), timeout_ms=500), UnregisterBrokerReply(InvalidRequest.code)),
    (DescribeQuorum(timeout_ms=500), DescribeQuorumReply(high_watermark=9)),
    (PlanMoves(BrokerId(3), timeout_ms=500), PlanMovesReply(metadata_offset=9)),
]


@pytest.mark.parametrize(("request_", "reply"), ASKED_OF_ANY_BROKER)
def test_the_controllers_answer_is_the_answer(node: Node, request_: Request, reply: Any) -> None:
    asked = node.ask(request_)
    sent, timeout_ms, told = node.asked.pop()
    assert (sent.quorum_epoch, timeout_ms) == (7, 400), "in time for the answer to arrive"  # type: ignore[attr-defined]
    assert asked.waits
    told(reply)
    assert asked.answer is reply


def test_a_broker_says_itself_what_it_was_started_with_where_nothing_else_is_set(node: Node) -> None:
    """The controller cannot know it, and says the default."""
    key, other = "open.segments", "flush.ms"
    node.started_with.update({("broker", "1", key): "16", ("broker", "1", other): "7"})
    told = (
        ("broker", "1", (ConfigDescribed(key, "512", "default"), ConfigDescribed(other, "5", "cluster"))),
        ("broker", "2", (ConfigDescribed(key, "512", "default"),)),
        ("topic", "1", (ConfigDescribed(key, "512", "default"),)),
    )
    resources = tuple(ResourceDescribed(kind, name, configs=configs) for kind, name, configs in told)
    asked = node.ask(DescribeConfigs(()))
    node.asked.pop()[2](DescribeConfigsReply(resources))
    mine, *others = asked.answer.resources
    assert mine.configs == (ConfigDescribed(key, "16", "start"), ConfigDescribed(other, "5", "cluster"))
    assert others == list(resources[1:])


def test_no_controller_is_an_answer_too(node: Node) -> None:
    asked = node.ask(DeleteTopics(("orders",)))
    node.asked.pop()[2](NotController("nobody leads"))
    assert asked.refused == "nobody leads"


def test_whatever_only_the_controller_knows_may_be_asked_of_a_broker() -> None:
    assert set(HANDED_ON) == {type(request) for request, _ in ASKED_OF_ANY_BROKER}
    assert all(request.timeout_ms == 500 for request, _ in ASKED_OF_ANY_BROKER)


# ── who has most ──────────────────────────────────────────────────────────────────────────────────────


def log_info(node: Node, *places: Place, epoch: int = 7) -> Any:
    return node.ask(GetReplicaLogInfo(epoch, tuple(PartitionIndex(*place) for place in places))).answer


def test_a_replica_says_how_much_it_has(node: Node) -> None:
    partition = node.lead(epoch=4)
    node.produce(acks=1)
    partition.log.flush()
    node.produce(acks=1)
    node.follow(-1)
    answer = log_info(node, PLACE)
    assert (answer.broker_epoch, answer.crash_kind) == (10, 2)
    [entry] = answer.partitions
    assert (entry.error, entry.last_epoch, entry.end_offset, entry.durable_offset) == (0, 4, 2, 1)


def test_an_empty_replica_has_no_epoch_and_needs_no_lease_to_say_so(node: Node) -> None:
    node.follow(-1)
    node.replicas.lease_until_ms = -1
    [entry] = log_info(node, PLACE).partitions
    assert (entry.error, entry.last_epoch, entry.end_offset, entry.durable_offset) == (0, -1, 0, 0)


def test_a_replica_that_is_not_there_or_is_broken_says_why(node: Node) -> None:
    node.lead().go_offline("its disk has failed")
    broken, unknown = log_info(node, PLACE, (TOPIC_ID, 5)).partitions
    assert (broken.error, broken.end_offset) == (StorageError.code, -1)
    assert broken.message == "orders-0 is not served here: its disk has failed"
    assert (unknown.error, unknown.end_offset) == (UnknownTopicId.code, -1)
    assert "no partition 5" in unknown.message


def test_a_directory_says_what_lies_there_and_a_failed_one_only_why(node: Node) -> None:
    node.lead()
    node.produce(acks=1)
    [directory] = node.ask(DescribeLogDirs()).answer.directories
    [log] = directory.replicas
    assert (log.topic, log.index, log.error, log.end_offset, log.size > 0) == ("orders", 0, 0, 1, True)
    [directory] = node.ask(DescribeLogDirs(("bills",))).answer.directories
    assert directory.replicas == ()
    node.replicas.data.first.failure = StorageError("it has failed")
    [directory] = node.ask(DescribeLogDirs()).answer.directories
    assert (directory.error, directory.message, directory.replicas) == (
        StorageError.code,
        "it has failed",
        (),
    )


def test_a_controller_that_was_replaced_is_told_nothing(node: Node) -> None:
    node.lead()
    with pytest.raises(
        FencedLeaderEpoch, match="led in epoch 6 of the quorum, this broker has heard of epoch 7"
    ):
        log_info(node, PLACE, epoch=6)
    assert not log_info(node, PLACE, epoch=8).error, "it may have heard of less than there is"
