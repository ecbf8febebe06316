"""What a broker counts of the changes that the metadata log tells."""

import pytest
from msgspec.structs import replace

from tidelog.broker.tally import Tally
from tidelog.controller.image import PartitionState
from tidelog.protocol.types import BrokerId

ME, OTHER, THIRD = BrokerId(1), BrokerId(2), BrokerId(3)
ALL = (ME, OTHER, THIRD)
STATE = PartitionState(topic_id=bytes(16), index=0, replicas=ALL, isr=ALL, leader=ME)


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        (None, STATE, (1, 0, 0, 0)),
        (None, replace(STATE, leader=OTHER), (0, 0, 0, 0)),
        (replace(STATE, leader=OTHER), STATE, (1, 0, 0, 0)),
        (STATE, replace(STATE, leader=OTHER), (0, 1, 0, 0)),
        (STATE, replace(STATE, isr=(ME, OTHER)), (0, 0, 1, 0)),
        (replace(STATE, isr=(ME,)), STATE, (0, 0, 0, 1)),
        (replace(STATE, isr=(ME, OTHER)), replace(STATE, isr=(ME, THIRD)), (0, 0, 1, 1)),
        (STATE, replace(STATE, leader=OTHER, isr=(OTHER,)), (0, 1, 0, 0)),
        (STATE, STATE, (0, 0, 0, 0)),
    ],
)
def test_changes_are_counted(
    before: PartitionState | None, after: PartitionState, counts: tuple[int, int, int, int]
) -> None:
    tally = Tally(ME)
    tally.changed(before, after)
    assert (
        tally.leaderships_begun,
        tally.leaderships_ended,
        tally.isr_shrinks,
        tally.isr_expands,
    ) == counts
