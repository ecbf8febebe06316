"""What a broker answers with the controller's help: producer ids, topics made and removed."""

from typing import Any

import pytest

from tests.broker.node import Asked, Node
from tidelog.protocol.errors import (
    InvalidRequest,
    NotController,
    RequestTimedOut,
    StaleBrokerEpoch,
    UnsupportedVersion,
)
from tidelog.protocol.messages import (
    AllocateProducerIds,
    AllocateProducerIdsReply,
    CreateTopics,
    CreateTopicsReply,
    DeleteTopics,
    DeleteTopicsReply,
    InitProducerId,
    NewTopic,
    Request,
)


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


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (CreateTopics((NewTopic("orders", 3, 2),), timeout_ms=500), CreateTopicsReply(metadata_offset=9)),
        (DeleteTopics(("orders",), timeout_ms=500), DeleteTopicsReply(metadata_offset=9)),
    ],
)
def test_the_controllers_answer_is_the_answer(node: Node, request_: Request, reply: Any) -> None:
    asked = node.ask(request_)
    sent, timeout_ms, told = node.asked.pop()
    assert (sent.quorum_epoch, timeout_ms) == (7, 500)  # type: ignore[attr-defined]
    assert asked.waits
    told(reply)
    assert asked.answer is reply


def test_no_controller_is_an_answer_too(node: Node) -> None:
    asked = node.ask(DeleteTopics(("orders",)))
    node.asked.pop()[2](NotController("nobody leads"))
    assert asked.refused == "nobody leads"
