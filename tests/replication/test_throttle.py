"""A throttle lets so much through in a second, whatever the steps are."""

from random import Random

from tidelog.replication.throttle import UNLIMITED, Throttle


def test_a_second_is_there_at_first_and_then_it_fills_with_time() -> None:
    throttle = Throttle(1000)
    assert throttle.room(5) == 1000
    throttle.spent(1000)
    assert [throttle.room(at) for at in (5, 105, 505)] == [0, 100, 500]


def test_what_was_too_much_is_owed() -> None:
    throttle = Throttle(1000)
    throttle.room(0)
    throttle.spent(3000)
    assert [throttle.room(at) for at in (1999, 2000, 2001, 9000)] == [0, 0, 1, 1000]


def test_time_that_goes_back_gives_nothing() -> None:
    throttle = Throttle(1000)
    throttle.room(1000)
    throttle.spent(1000)
    assert [throttle.room(at) for at in (0, 1000, 1001)] == [0, 0, 1]


def test_over_any_stretch_no_more_than_the_rate_leaves() -> None:
    rng, throttle, now_ms, sent = Random(1), Throttle(1000), 0, 0
    while now_ms < 100_000:
        now_ms += rng.randrange(50)
        if throttle.room(now_ms) > 0:
            count = rng.randrange(1, 300)
            throttle.spent(count)
            sent += count
        assert sent <= 1000 + 300 + now_ms
    assert sent > 95_000


def test_without_a_rate_everything_goes() -> None:
    throttle = Throttle()
    throttle.spent(1 << 40)
    assert throttle.room(0) == UNLIMITED


def test_the_rate_may_change_and_what_is_owed_stays_owed() -> None:
    throttle = Throttle()
    throttle.limit(1000)
    assert throttle.room(0) == 1000
    throttle.spent(1500)
    throttle.limit(100)
    assert [throttle.room(at) for at in (0, 5000, 6000)] == [0, 0, 100]
    throttle.limit(None)
    assert throttle.room(6000) == UNLIMITED
    throttle.limit(10)
    assert throttle.room(6000) == 10
