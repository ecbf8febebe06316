"""How long a node waits for a peer."""

import pytest

from tidelog.protocol.limits import Limits
from tidelog.protocol.patience import Patience, Sight

LIMITS = Limits(
    linger_ms=10, send_timeout_ms=300, frame_timeout_ms=200, hello_timeout_ms=100, idle_timeout_ms=1000
)
QUIET = Sight(
    closing=False, not_reading=False, clogged=False, drains=0, frames=1, in_frame=False, reads=1, unanswered=0
)


@pytest.mark.parametrize(
    ("sight", "limit_ms", "reason"),
    [
        (QUIET._replace(closing=True), 10, "kept the closing connection open for 10 ms"),
        (QUIET._replace(frames=0), 100, "did not say hello"),
        (QUIET._replace(frames=0, in_frame=True), 100, "did not say hello"),
        (QUIET._replace(in_frame=True), 200, "a frame was incomplete"),
        (QUIET._replace(clogged=True, not_reading=True), 300, "did not read"),
        (QUIET, 1000, "silent for 1000 ms, the limit is 1000"),
    ],
)
def test_each_wait_has_its_limit(sight: Sight, limit_ms: int, reason: str) -> None:
    patience = Patience(LIMITS, 0)
    patience.look(5, sight)
    assert patience.look(5 + limit_ms - 1, sight) == ""
    assert reason in patience.look(5 + limit_ms, sight)


@pytest.mark.parametrize(
    ("sight", "progress"),
    [
        (QUIET._replace(in_frame=True), {"frames": 2}),
        (QUIET._replace(clogged=True), {"drains": 1}),
        (QUIET, {"reads": 2}),
    ],
)
def test_progress_begins_the_wait_anew(sight: Sight, progress: dict[str, int]) -> None:
    patience = Patience(LIMITS, 0)
    patience.look(0, sight)
    assert patience.look(5000, sight._replace(**progress)) == ""  # type: ignore[arg-type]


def test_reads_within_a_frame_are_no_progress() -> None:
    patience = Patience(LIMITS, 0)
    patience.look(0, QUIET._replace(in_frame=True))
    assert patience.look(200, QUIET._replace(in_frame=True, reads=100)) != ""


def test_time_in_which_we_did_not_read_is_not_the_peers() -> None:
    patience = Patience(LIMITS, 0)
    patience.look(0, QUIET._replace(in_frame=True))
    assert patience.look(10_000, QUIET._replace(in_frame=True, not_reading=True)) == ""
    assert patience.look(10_001, QUIET._replace(in_frame=True)) == ""


def test_nobody_is_hurried_who_waits_for_our_answer() -> None:
    patience = Patience(LIMITS, 0)
    patience.look(0, QUIET._replace(unanswered=1))
    assert patience.look(100_000, QUIET._replace(unanswered=1)) == ""
