"""A follower that lets its leader wait for long does not hear late of what is committed."""

from tests.broker.node import Node


def test_a_follower_that_would_wait_long_hears_in_half_a_second_what_is_committed() -> None:
    node = Node()
    node.lead()
    node.fill(2)
    opened = node.fetched(3, 2, session_epoch=0).answer.session_id
    node.produce(acks=1)
    node.fetched(2, 3)
    asked = node.follower_fetch(3, 3, session_id=opened, session_epoch=1, wait_ms=2000)
    node.turn()
    node.wait(499)
    assert asked.waits
    node.wait(1)
    assert asked.entry.high_watermark == 3
