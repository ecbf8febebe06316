"""What the application has in hand while its log changes under it."""

import pytest

from tests.client.consuming import FIRST, Desk, batch
from tidelog.client.hand import Hand
from tidelog.protocol.errors import OffsetOutOfRange
from tidelog.protocol.messages import EpochEnd


@pytest.mark.parametrize("given", [1, 3])
def test_what_was_lent_before_the_log_was_cut_is_not_put_back(given: int) -> None:
    desk = Desk(leaders=(1,))
    hand = Hand(desk.fetching)
    hand.begin([FIRST])
    desk.answer(desk.asked(), batch(0, 5))
    for _ in range(given):
        hand.last = hand.one_by_one()
    desk.answer(desk.asked(), diverging=EpochEnd(2, 2))
    desk.answer(desk.asked(), batch(2, 3, epoch=4))
    hand.put_back()
    assert hand.position(desk.first) == 2
    assert desk.read() == [2, 3, 4], "what was written there since"


def test_what_was_lent_before_an_offset_was_out_of_range_is_not_put_back() -> None:
    desk = Desk(leaders=(1,))
    hand = Hand(desk.fetching)
    hand.begin([FIRST])
    desk.answer(desk.asked(), batch(0, 5))
    hand.last = hand.one_by_one()
    desk.answer(desk.asked(), error=OffsetOutOfRange.code)
    desk.found(desk.question(), 0)
    desk.found(desk.question(), 3)
    hand.put_back()
    assert hand.position(desk.first) == 3
    desk.answer(desk.asked(), batch(3, 2, epoch=4))
    assert desk.read() == [3, 4]
