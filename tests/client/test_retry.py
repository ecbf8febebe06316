"""How long to wait before another attempt, and which errors deserve one."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.retry import Advice, Backoff, advice
from tidelog.protocol.errors import (
    BY_CODE,
    InvalidTopic,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    RequestTimedOut,
    Throttled,
    TidelogError,
)


class Longest(Random):
    """Chance that always waits as long as it may."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_each_wait_may_be_twice_as_long_as_the_one_before_up_to_the_longest() -> None:
    backoff = Backoff(Longest(), 50, 1000)
    assert [backoff.wait_ms(0) for _ in range(7)] == [50, 100, 200, 400, 800, 1000, 1000]


@given(st.integers(0, 2**32), st.integers(1, 100), st.integers(100, 2000), st.integers(1, 20))
def test_a_wait_is_any_part_of_its_bound(seed: int, first_ms: int, max_ms: int, attempts: int) -> None:
    backoff, bound = Backoff(Random(seed), first_ms, max_ms), first_ms
    for _ in range(attempts):
        wait = backoff.wait_ms(0)
        assert wait is not None
        assert 0 <= wait <= bound
        bound = min(bound * 2, max_ms)


def test_clients_that_failed_together_do_not_come_back_together() -> None:
    waits = {Backoff(Random(seed), 50, 1000).wait_ms(0) for seed in range(100)}
    assert len(waits) == 100


def test_the_last_wait_ends_at_the_deadline_and_none_follows() -> None:
    backoff = Backoff(Longest(), 50, 1000, deadline_ms=1070)
    assert backoff.wait_ms(1000) == 50
    assert backoff.wait_ms(1050) == 20
    assert backoff.wait_ms(1070) is None
    assert backoff.left_ms(1050) == 20
    assert backoff.left_ms(2000) == 0


def test_without_a_deadline_the_time_is_never_up() -> None:
    backoff = Backoff(Longest(), 50, 1000)
    assert backoff.wait_ms(1e12) == 50
    assert backoff.left_ms(1e12) == float("inf")


def test_a_success_makes_the_next_wait_short_again() -> None:
    backoff = Backoff(Longest(), 50, 1000)
    assert (backoff.wait_ms(0), backoff.wait_ms(0), backoff.attempts) == (50, 100, 2)
    backoff.succeeded()
    assert (backoff.attempts, backoff.wait_ms(0)) == (0, 50)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotLeaderOrFollower(), Advice.REFRESH),
        (RequestTimedOut(), Advice.REFRESH),
        (NotEnoughReplicas(), Advice.AGAIN),
        (Throttled(), Advice.AGAIN),
        (InvalidTopic(), Advice.FATAL),
        (ValueError("ours"), Advice.FATAL),
    ],
)
def test_what_is_done_about_an_error(error: Exception, expected: Advice) -> None:
    assert advice(error) is expected


@pytest.mark.parametrize("kind", BY_CODE.values(), ids=lambda kind: kind.__name__)
def test_whatever_is_retriable_is_tried_again_and_nothing_else(kind: type[TidelogError]) -> None:
    assert (advice(kind()) is not Advice.FATAL) is kind.retriable
