"""Durations in buckets say what the durations themselves would say, within 0.2 %."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.perf.histogram import Histogram
from tidelog.testing.failover import percentile

DURATIONS = st.lists(st.floats(min_value=0, max_value=1e7), min_size=1, max_size=200)


def histogram(durations: list[float]) -> Histogram:
    found = Histogram()
    for ms in durations:
        found.add(ms)
    return found


@given(DURATIONS, st.sampled_from([0.0, 0.5, 0.95, 0.99, 0.999, 1.0]))
def test_a_percentile_is_that_of_the_durations(durations: list[float], share: float) -> None:
    exact = percentile(durations, share)
    assert histogram(durations).percentile_ms(share) == pytest.approx(exact, rel=0.002, abs=1e-6)


@given(DURATIONS)
def test_mean_shortest_and_longest_are_exact(durations: list[float]) -> None:
    found = histogram(durations)
    assert found.mean_ms == pytest.approx(sum(durations) / len(durations))
    assert (found.shortest_ms, found.longest_ms) == (min(durations), max(durations))
    assert found.count == len(durations)


def test_nothing_has_no_percentile() -> None:
    assert (Histogram().percentile_ms(0.5), Histogram().mean_ms) == (0.0, 0.0)


def test_many_durations_take_no_more_room_than_their_magnitudes() -> None:
    found = histogram([number / 1000 for number in range(100_000)])
    assert len(found._buckets) < 12_000
