"""What all connections hold together stays within the node's limits, and nobody waits for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.protocol.bounds import Bounds, Share
from tidelog.protocol.limits import Limits

LIMITS = Limits(
    max_connections=2,
    max_request_bytes=1000,
    max_frame_bytes=1000,
    max_head_bytes=100,
    connection_allowance_bytes=100,
)


class Peer:
    """A connection as the bounds see it."""

    def __init__(self, bounds: Bounds) -> None:
        self.woken = 0
        self.share: Share = bounds.share(self.wake)

    def wake(self) -> None:
        self.woken += 1


@pytest.fixture
def bounds() -> Bounds:
    return Bounds(LIMITS)


def test_one_connection_too_many_does_not_enter(bounds: Bounds) -> None:
    assert [bounds.enter(), bounds.enter(), bounds.enter()] == [True, True, False]
    bounds.leave()
    assert bounds.enter()


def test_a_connection_uses_its_allowance_first(bounds: Bounds) -> None:
    share = Peer(bounds).share
    assert share.reserve(100)
    assert bounds.used_bytes == 0
    assert share.reserve(50)
    assert bounds.used_bytes == 50


def test_a_frame_that_does_not_fit_is_not_granted(bounds: Bounds) -> None:
    first, second = Peer(bounds).share, Peer(bounds).share
    assert first.reserve(1000)
    assert not second.reserve(500)
    assert second.held == 0


def test_a_request_that_has_arrived_counts_even_if_it_does_not_fit(bounds: Bounds) -> None:
    first, second = Peer(bounds).share, Peer(bounds).share
    first.add(1100)
    assert not second.add(300)
    assert bounds.used_bytes == 1200


def test_small_requests_pass_when_the_node_is_full(bounds: Bounds) -> None:
    """The produce requests that fill a node wait for the fetches of followers: those must be read."""
    Peer(bounds).share.add(1100)
    Peer(bounds).share.wait(900)
    follower = Peer(bounds).share
    assert follower.reserve(60)
    assert follower.add(40)


def test_who_waits_is_woken_when_there_is_room_and_has_it(bounds: Bounds) -> None:
    first, second = Peer(bounds), Peer(bounds)
    first.share.reserve(1000)
    second.share.wait(500)
    first.share.free(500)
    assert second.woken == 1
    assert (second.share.held, bounds.used_bytes) == (500, 800)


def test_nobody_overtakes_a_large_frame_that_waits(bounds: Bounds) -> None:
    first, large, small = Peer(bounds), Peer(bounds), Peer(bounds)
    first.share.reserve(600)
    large.share.wait(1000)
    assert not small.share.reserve(200)
    small.share.wait(300)
    first.share.free(500)
    assert (large.woken, small.woken) == (1, 0)
    large.share.free(1000)
    assert small.woken == 1


def test_who_went_over_the_limit_is_woken_when_it_is_kept_again(bounds: Bounds) -> None:
    peer = Peer(bounds)
    assert not peer.share.add(1200)
    peer.share.wait()
    peer.share.free(50)
    assert peer.woken == 0
    peer.share.free(50)
    assert peer.woken == 1


def test_a_connection_that_ends_leaves_nothing_behind(bounds: Bounds) -> None:
    first, second = Peer(bounds), Peer(bounds)
    first.share.reserve(1000)
    second.share.wait(900)
    second.share.close()
    first.share.close()
    assert (bounds.used_bytes, len(bounds.waiters), second.woken) == (0, 0, 0)


def test_who_is_woken_may_free_at_once(bounds: Bounds) -> None:
    first, second = Peer(bounds), Peer(bounds)
    hasty = bounds.share(lambda: hasty.free(1000))
    first.share.reserve(1000)
    hasty.wait(1000)
    second.share.wait(1000)
    first.share.free(1000)
    assert (second.woken, bounds.used_bytes) == (1, 900)


step = st.tuples(
    st.integers(0, 3), st.sampled_from(["reserve", "add", "free", "close"]), st.integers(1, 1000)
)


@given(st.lists(step, max_size=60))
def test_the_budget_is_the_sum_of_what_is_drawn_and_nobody_waits_beside_room(
    steps: list[tuple[int, str, int]],
) -> None:
    bounds = Bounds(LIMITS)
    peers = [Peer(bounds) for _ in range(4)]
    for who, what, size in steps:
        share = peers[who].share
        if share.waits_for >= 0 and what in {"reserve", "add"}:
            continue
        if (what == "reserve" and not share.reserve(size)) or (what == "add" and not share.add(size)):
            share.wait(size if what == "reserve" else 0)
        elif what == "free":
            share.free(min(size, share.held))
        elif what == "close":
            share.close()
        assert bounds.used_bytes == sum(peer.share.drawn for peer in peers)
        assert all(peer.share.drawn == max(peer.share.held - 100, 0) for peer in peers)
    for peer in peers:
        peer.share.free(peer.share.held)
    for peer in peers:
        peer.share.free(peer.share.held)
    assert not bounds.waiters or bounds.used_bytes > 0
