"""What counts as durable in flush mode `group` (ADR 0073)."""

import pytest

from tests.broker.node import PLACE, Node, records
from tidelog.broker.requests import flushed as handler
from tidelog.protocol.errors import LeaderNotAvailable
from tidelog.protocol.messages import Flushed, PartitionFlushed
from tidelog.protocol.types import BrokerId


@pytest.fixture
def node() -> Node:
    """Leads epoch 2; offsets 0 and 1 are of epoch 1, 2 is of epoch 2, and broker 2 has fetched all three."""
    node = Node()
    node.lead(isr=(1, 2), flush_group=True)
    node.lead(epoch=1)
    node.produce(records(2))
    node.lead(epoch=2)
    node.produce()
    node.partition.log.flush()
    node.partition.flushed(node.now_ms)
    node.fetched(2, 3)
    return node


def flushed(node: Node, durable: int, last_epoch: int, *, epoch: int = 2) -> int:
    """Broker 2 says so; the answer is what is committed then."""
    entry = PartitionFlushed(*PLACE, epoch, durable, last_epoch)
    node.ask(Flushed(BrokerId(2), 20, (entry,)), one_way=True)
    return node.partition.high_watermark


def test_a_flush_of_these_very_records_counts(node: Node) -> None:
    assert flushed(node, 2, 1) == 2
    assert flushed(node, 3, 2) == 3


@pytest.mark.parametrize("last_epoch", [1, 3])
def test_a_flush_of_records_that_were_cut_off_since_counts_nothing(node: Node, last_epoch: int) -> None:
    assert flushed(node, 3, last_epoch) == 0


def test_a_flush_that_does_not_say_of_what_counts_nothing(node: Node) -> None:
    """An older follower's next fetch says it."""
    assert flushed(node, 3, -1) == 0
    node.fetched(2, 3, durable=3)
    assert node.partition.high_watermark == 3


def test_a_flush_told_in_another_leader_epoch_counts_nothing(node: Node) -> None:
    assert flushed(node, 2, 1, epoch=1) == 0


def test_counting_a_flush_of_any_history_is_caught(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "is_prefix", lambda *_: True)
    with pytest.raises(AssertionError):
        test_a_flush_of_records_that_were_cut_off_since_counts_nothing(node, 1)


# ── after an unclean election ─────────────────────────────────────────────────────────────────────────


def test_a_leader_of_an_unclean_election_flushes_before_it_serves(node: Node) -> None:
    node.produce()
    node.lead(epoch=3, unclean_epoch=3, recovering=True, isr=(1,))
    assert node.produce().error == LeaderNotAvailable.code
    node.partition.log.flush()
    assert node.produce(acks=1).error == 0


@pytest.mark.parametrize("state", [{"unclean_epoch": 1}, {"unclean_epoch": 3, "flush_group": False}])
def test_other_leaders_serve_at_once(node: Node, state: dict[str, int]) -> None:
    node.produce()
    node.lead(epoch=3, **state)
    assert node.produce(acks=1).error == 0
