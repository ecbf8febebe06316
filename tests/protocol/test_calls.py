"""Each call ends once, with the right waiter."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.protocol.calls import CORRELATION_MAX, Calls


def test_correlations_grow_from_one() -> None:
    calls: Calls[str] = Calls()
    assert [calls.begin("x", 0) for _ in range(3)] == [1, 2, 3]


def test_correlations_begin_again_at_one_and_leave_out_what_is_in_flight() -> None:
    calls: Calls[str] = Calls()
    assert calls.begin("long", 0) == 1
    calls._last = CORRELATION_MAX - 1
    assert calls.begin("last", 0) == CORRELATION_MAX
    assert calls.begin("wrapped", 0) == 2


def test_a_reply_finds_its_call_once() -> None:
    calls: Calls[str] = Calls()
    correlation = calls.begin("one", 0)
    assert calls.finish(correlation) == "one"
    assert calls.finish(correlation) is None


def test_a_forgotten_call_is_not_found() -> None:
    calls: Calls[str] = Calls()
    correlation = calls.begin("one", 0)
    calls.forget(correlation)
    calls.forget(correlation)
    assert calls.finish(correlation) is None
    assert len(calls) == 0


def test_what_is_late_expires_and_the_rest_stays() -> None:
    calls: Calls[str] = Calls()
    calls.begin("early", 100)
    calls.begin("late", 200)
    assert calls.expire(99) == []
    assert calls.expire(100) == ["early"]
    assert calls.wake_ms == 200
    assert calls.expire(200) == ["late"]
    assert calls.wake_ms is None


def test_all_calls_fail_in_the_order_they_began() -> None:
    calls: Calls[int] = Calls()
    for waiter in range(5):
        calls.begin(waiter, 0)
    assert list(calls.fail_all()) == [0, 1, 2, 3, 4]
    assert len(calls) == 0
    assert calls.wake_ms is None


@given(st.lists(st.tuples(st.sampled_from(["begin", "finish", "expire"]), st.integers(0, 50))))
def test_no_deadline_is_before_the_time_to_wake(steps: list[tuple[str, int]]) -> None:
    calls: Calls[int] = Calls()
    ended = []
    for begun, (step, number) in enumerate(steps):
        if step == "begin":
            calls.begin(begun, number)
        elif step == "finish":
            ended.append(calls.finish(number))
        else:
            ended += calls.expire(number)
        deadlines = [deadline for deadline, _ in calls._in_flight.values()]
        assert not deadlines or (calls.wake_ms is not None and calls.wake_ms <= min(deadlines))
    found = [waiter for waiter in ended if waiter is not None]
    assert len(found) == len(set(found))
