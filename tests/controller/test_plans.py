"""Plans of moves: what `placement` decides, as an answer, and nothing is changed by it."""

import pytest

from tests.controller.book import TOPIC
from tests.controller.clusters import cluster, layout, racks_of
from tidelog.controller import plans
from tidelog.controller.image import Image
from tidelog.controller.turns import at_once
from tidelog.protocol.errors import BrokerIdNotRegistered, TidelogError
from tidelog.protocol.messages import PlanMoves, PlanMovesReply
from tidelog.protocol.types import NO_BROKER, BrokerId

FOUR = racks_of([1, 1, 1, 1])


def plan_moves(image: Image, request: PlanMoves) -> PlanMovesReply:
    return at_once(plans.plan_moves(image, request))


def test_a_plan_to_drain_a_broker_names_what_it_has_and_moves_nothing() -> None:
    book = cluster(FOUR, [(1, 2), (2, 3), (3, 1)])
    before = layout(book.image)
    told = plan_moves(book.image, PlanMoves(BrokerId(1)))
    assert [(move.topic_id, move.index) for move in told.moves] == [(TOPIC, 0), (TOPIC, 2)]
    assert all(move.target is not None and 1 not in move.target for move in told.moves)
    assert told.metadata_offset == book.image.end_offset
    assert layout(book.image) == before


def test_a_plan_may_spare_others_too() -> None:
    book = cluster(FOUR, [(1, 2), (2, 1)])
    told = plan_moves(book.image, PlanMoves(BrokerId(1), spare=(BrokerId(4),)))
    assert [move.target for move in told.moves] == [(3, 2), (2, 3)]


def test_a_plan_without_a_broker_gives_everybody_as_much() -> None:
    book = cluster(FOUR, [(1, 2)] * 4)
    moves = plan_moves(book.image, PlanMoves(NO_BROKER)).moves
    assert {broker for move in moves for broker in move.target or ()} >= {3, 4}
    assert not plan_moves(cluster(FOUR, [(1, 2), (3, 4)]).image, PlanMoves()).moves


def test_what_cannot_be_drained_says_why() -> None:
    with pytest.raises(BrokerIdNotRegistered):
        plan_moves(cluster(FOUR, [(1, 2)]).image, PlanMoves(BrokerId(9)))
    with pytest.raises(
        TidelogError, match=r"nobody to go to, one of them \S+-0 on brokers 1, 2; could take more: 2$"
    ):
        plan_moves(cluster(racks_of([1, 1]), [(1, 2)]).image, PlanMoves(BrokerId(1)))
