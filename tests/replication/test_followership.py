"""What an answer means to a follower: the sentences of design 3.1 to 3.6, one by one.

What random histories find is in test_following.py.
"""

import pytest

from tidelog.protocol import errors
from tidelog.protocol.messages import EpochEnd, PartitionFetched
from tidelog.protocol.types import NO_EPOCH, BrokerId
from tidelog.replication.followership import (
    Append,
    Asked,
    AskStart,
    CheckRegistration,
    Continue,
    Followership,
    GoOffline,
    Leading,
    LogView,
    StartAt,
    Step,
    StopFetching,
    Truncate,
    Wait,
)
from tidelog.storage.epochs import LeaderEpochs

LEADER = BrokerId(2)


def follows(*, unclean: int = NO_EPOCH, epoch: int = 7) -> Followership:
    return Followership(Leading(LEADER, epoch, unclean))


def view(*entries: tuple[int, int], start: int = 0, end: int = 0, hwm: int = 0) -> LogView:
    return LogView(start, end, hwm, LeaderEpochs(entries))


THREE_EPOCHS = view((1, 0), (4, 30), (6, 50), end=80, hwm=30)


def answer(**fields: object) -> PartitionFetched:
    return PartitionFetched(bytes(16), 0, **fields)  # type: ignore[arg-type]


def told(follower: Followership, log: LogView, **fields: object) -> Step:
    return follower.on_fetched(follower.ask(log), answer(**fields), log)


def parts(follower: Followership, log: LogView, epoch: int, end: int) -> Step:
    return told(follower, log, diverging=EpochEnd(epoch, end), high_watermark=70, log_start=60)


# ── what is asked (3.1, 3.2) ──────────────────────────────────────────────────────────────────────────


def test_a_fetch_asks_from_the_end_with_the_epoch_of_the_last_batch() -> None:
    """I-21, KAFKA-15510: of the log, whatever answers came in between."""
    follower = follows()
    told(follower, THREE_EPOCHS, high_watermark=50)
    assert follower.ask(THREE_EPOCHS) == Asked(7, 80, 6)


def test_an_empty_log_has_no_last_epoch() -> None:
    assert follows().ask(view(start=30, end=30)) == Asked(7, 30, NO_EPOCH)


@pytest.mark.parametrize(
    "asked", [Asked(6, 80, 6), Asked(8, 80, 6), Asked(7, 79, 6), Asked(7, 81, 6), Asked(7, 80, 4)]
)
def test_an_answer_to_another_fetch_says_nothing(asked: Asked) -> None:
    """KAFKA-13207: it was asked in another leadership, or the log has grown or been cut since, or both."""
    assert not follows().is_current(asked, THREE_EPOCHS)
    assert follows().is_current(Asked(7, 80, 6), THREE_EPOCHS)


def test_a_newer_state_of_the_same_leadership_changes_nothing_of_the_fetching() -> None:
    """KAFKA-13790."""
    follower = follows()
    asked = follower.ask(THREE_EPOCHS)
    follower.adopt(Leading(LEADER, 7, unclean_epoch=7))
    assert follower.is_current(asked, THREE_EPOCHS)


@pytest.mark.parametrize("leading", [Leading(LEADER, 8), Leading(BrokerId(3), 7)])
def test_another_leadership_is_another_followership(leading: Leading) -> None:
    with pytest.raises(AssertionError):
        follows().adopt(leading)


# ── records, or none (3.3) ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [0, 500])
def test_what_comes_is_appended_and_then_what_is_committed_is_taken_over(size: int) -> None:
    step = told(follows(), THREE_EPOCHS, records_size=size, high_watermark=75, log_start=10)
    assert step == Append(75, 10)


@pytest.mark.parametrize(
    ("end", "floor", "taken"), [(10, -1, -1), (10, 7, 7), (80, -1, -1), (80, 0, 0), (80, 70, 0)]
)
def test_gaps_are_told_to_whoever_copies_from_here_and_what_was_purged_is_taken_from_the_start_on(
    end: int, floor: int, taken: int
) -> None:
    log = view((6, 5), end=end)
    assert told(follows(), log, log_start=10, purge_floor=floor) == Append(-1, 10, taken, floor >= 0)


@pytest.mark.parametrize(("told_hwm", "becomes"), [(-1, 30), (20, 30), (60, 60), (80, 80), (95, 80)])
def test_the_high_watermark_only_grows_and_stays_within_the_log(told_hwm: int, becomes: int) -> None:
    """D11, and C-model: not capped by the end, it would call committed what was never copied."""
    assert follows().new_high_watermark(Append(told_hwm, 0), THREE_EPOCHS) == becomes


@pytest.mark.parametrize(("start", "becomes"), [(-1, 30), (20, 30), (45, 45), (90, 80)])
def test_what_the_leader_has_deleted_was_committed_also_while_it_names_none(start: int, becomes: int) -> None:
    """ADR 0079: else the ISR waits for a log start, that for a high watermark, and that for the ISR."""
    assert follows().new_high_watermark(Append(-1, start), THREE_EPOCHS) == becomes


@pytest.mark.parametrize(("told_start", "becomes"), [(-1, 10), (5, 10), (25, 25), (60, 30)])
def test_the_log_start_only_grows_and_stays_below_what_is_committed(told_start: int, becomes: int) -> None:
    """I-38."""
    assert follows().new_log_start(told_start, THREE_EPOCHS._replace(log_start=10)) == becomes


# ── errors (3.3) ──────────────────────────────────────────────────────────────────────────────────────


def test_an_old_epoch_ends_the_fetching_until_the_metadata_brings_a_new_one() -> None:
    assert told(follows(), THREE_EPOCHS, error=errors.FencedLeaderEpoch.code) == StopFetching()


@pytest.mark.parametrize(
    "error",
    [
        errors.UnknownLeaderEpoch,
        errors.NotLeaderOrFollower,
        errors.UnknownTopicId,
        errors.InconsistentTopicId,
        errors.UnknownServerError,
        errors.Throttled,
    ],
)
def test_where_somebody_is_behind_it_waits_twice_as_long_each_time(error: type[errors.TidelogError]) -> None:
    follower = follows()
    waits = [told(follower, THREE_EPOCHS, error=error.code) for _ in range(6)]
    assert waits == [Wait(100), Wait(200), Wait(400), Wait(800), Wait(1000), Wait(1000)]


def test_who_is_refused_again_and_again_tells_it_in_the_leader_s_words() -> None:
    follower = follows()
    code, why = errors.NotLeaderOrFollower.code, "orders-0 is not served here yet: its log is being made"
    waits = [told(follower, THREE_EPOCHS, error=code, message=why) for _ in range(20)]
    assert {at: wait.tell for at, wait in enumerate(waits, 1) if wait.tell} == {  # type: ignore[union-attr]
        10: f"10 times in a row: {why}",
        20: f"20 times in a row: {why}",
    }


def test_an_error_from_the_future_waits_like_any_other() -> None:
    assert told(follows(), THREE_EPOCHS, error=31_999) == Wait(100)


def test_a_leader_that_is_gone_for_a_year_is_asked_every_second() -> None:
    follower = follows()
    follower._failures = 30_000_000
    assert follower.on_failure() == Wait(1000)


def test_after_an_answer_it_waits_briefly_again() -> None:
    follower = follows()
    follower.on_failure()
    follower.on_failure()
    told(follower, THREE_EPOCHS)
    assert follower.on_failure() == Wait(100)


def test_a_fetch_under_an_old_registration_asks_whose_the_new_one_is() -> None:
    assert told(follows(), THREE_EPOCHS, error=errors.StaleBrokerEpoch.code) == CheckRegistration()


@pytest.mark.parametrize("error", [errors.StorageError, errors.CorruptMessage])
def test_bad_bytes_wait_a_second_and_every_tenth_time_in_a_row_it_is_told(
    error: type[errors.TidelogError],
) -> None:
    follower = follows()
    waits = [told(follower, THREE_EPOCHS, error=error.code, message="no") for _ in range(20)]
    assert waits == ([Wait(1000)] * 9 + [Wait(1000, "10 times in a row: no")]) + (
        [Wait(1000)] * 9 + [Wait(1000, "20 times in a row: no")]
    )


def test_records_that_do_not_continue_the_log_are_told_too() -> None:
    """An answer with records is a success only when they were appended."""
    follower, waits = follows(), []
    for _ in range(10):
        told(follower, THREE_EPOCHS, records_size=500)
        waits.append(follower.on_bad_bytes("a batch at 70 does not continue offset 80"))
    assert [wait.tell is not None for wait in waits] == [False] * 9 + [True]


def test_records_that_were_appended_end_the_row() -> None:
    follower = follows()
    for _ in range(9):
        told(follower, THREE_EPOCHS, records_size=500)
        follower.on_bad_bytes("torn")
    told(follower, THREE_EPOCHS, records_size=500)
    longer = THREE_EPOCHS._replace(end_offset=90)
    follower.ask(longer)
    assert follower.on_bad_bytes("torn") == Wait(1000)


# ── truncation (3.5) ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("epoch", "end", "cut"),
    [
        (6, 60, 60),  # the leader has less of my last epoch
        (4, 40, 40),  # it knows an older one, and less of it
        (4, 70, 50),  # more of it, but mine ends there
        (5, 70, 50),  # an epoch that I have nothing of: ask again from the end of the one below
        (3, 35, 30),
    ],
)
def test_the_log_is_cut_where_the_epochs_part_and_nothing_else_of_the_answer_counts(
    epoch: int, end: int, cut: int
) -> None:
    """KIP-101, KIP-279; KAFKA-14704: the high watermark of such an answer is about records that are not here."""
    assert parts(follows(), THREE_EPOCHS, epoch, end) == Truncate(cut, loses_committed=False)


def test_a_log_that_shares_no_epoch_with_the_leaders_is_cut_to_nothing() -> None:
    assert parts(follows(), view((4, 0), (6, 5), end=9), 3, 0) == Truncate(0, loses_committed=False)


def test_what_is_committed_is_not_cut_without_an_unclean_election() -> None:
    """D10, I-6: silent loss becomes a loud stop."""
    step = parts(follows(), THREE_EPOCHS, 1, 20)
    assert isinstance(step, GoOffline)
    assert "parts from mine at 20, below 30 which is committed" in step.why


@pytest.mark.parametrize(("unclean", "cuts"), [(5, False), (6, False), (7, True)])
def test_what_is_committed_is_cut_only_if_the_unclean_election_came_later(unclean: int, cuts: bool) -> None:
    step = parts(follows(unclean=unclean), THREE_EPOCHS, 1, 20)
    assert step == Truncate(20, loses_committed=True) if cuts else isinstance(step, GoOffline)


def test_a_cut_below_the_log_start_begins_anew_where_the_leader_starts_and_is_told_as_loss() -> None:
    """ADR 0071: what was deleted here is of another history, so a hole would stay below the cut."""
    follower, log = follows(unclean=7), THREE_EPOCHS._replace(log_start=25)
    step = told(follower, log, diverging=EpochEnd(1, 20), log_start=5)
    assert step == StartAt(5, loses_committed=True)


def test_a_cut_below_the_log_start_needs_an_unclean_election() -> None:
    log = THREE_EPOCHS._replace(log_start=25)
    assert isinstance(parts(follows(), log, 1, 20), GoOffline)


def test_a_parting_that_does_not_say_where_the_leader_starts_is_not_believed() -> None:
    assert told(follows(), THREE_EPOCHS, diverging=EpochEnd(1, 20)) == Wait(1000)


def test_an_answer_that_would_cut_nothing_is_a_loud_stop() -> None:
    """KAFKA-10706 looped for ever."""
    assert isinstance(parts(follows(), THREE_EPOCHS, 6, 80), GoOffline)
    assert isinstance(parts(follows(), THREE_EPOCHS, 9, 90), GoOffline)


def test_a_round_that_finds_the_log_no_shorter_than_the_last_one_is_a_loud_stop() -> None:
    follower = follows()
    parts(follower, THREE_EPOCHS, 6, 60)
    assert isinstance(parts(follower, THREE_EPOCHS, 6, 60), GoOffline)


def test_after_records_have_come_a_truncation_may_find_more_than_before() -> None:
    follower = follows()
    parts(follower, THREE_EPOCHS, 6, 60)
    shorter = THREE_EPOCHS._replace(end_offset=60)
    told(follower, shorter, records_size=500)
    assert parts(follower, THREE_EPOCHS, 6, 60) == Truncate(60, loses_committed=False)


@pytest.mark.parametrize(("epoch", "end"), [(-1, 20), (6, -1), (-1, -1)])
def test_an_answer_that_makes_no_sense_is_bad_bytes(epoch: int, end: int) -> None:
    """What a peer says is validated, never asserted: offset -1 is none."""
    step = parts(follows(unclean=7), THREE_EPOCHS, epoch, end)
    assert step == Wait(1000)


# ── out of range (3.6) ────────────────────────────────────────────────────────────────────────────────

OUT_OF_RANGE = errors.OffsetOutOfRange.code


def test_out_of_range_asks_the_leader_where_its_log_starts_and_ends() -> None:
    assert told(follows(), THREE_EPOCHS, error=OUT_OF_RANGE) == AskStart()


def test_out_of_range_with_a_place_to_begin_again_begins_there() -> None:
    assert told(follows(), THREE_EPOCHS, error=OUT_OF_RANGE, refetch_from=12) == StartAt(12)


def test_a_leader_that_has_deleted_what_is_needed_next_is_followed_from_where_it_starts() -> None:
    """D10 does not apply: retention or a request deleted it."""
    assert follows().on_range(7, 90, 200, THREE_EPOCHS) == StartAt(90)


def test_a_range_of_another_leadership_is_not_believed() -> None:
    assert follows().on_range(6, 90, 200, THREE_EPOCHS) == Continue()


def test_a_range_that_ends_before_it_starts_is_not_believed() -> None:
    assert follows().on_range(7, 90, 85, THREE_EPOCHS) == Wait(1000)


def test_a_log_that_has_epochs_and_ends_behind_the_leaders_is_a_loud_stop() -> None:
    assert isinstance(follows(unclean=9).on_range(7, 0, 79, THREE_EPOCHS), GoOffline)


@pytest.mark.parametrize("end", [20, 45])
def test_an_empty_log_behind_the_leaders_end_is_committed_data_that_the_leader_lacks(end: int) -> None:
    """What ended at 40 was committed and deleted; the leader may have grown past it while it was asked."""
    empty = view(start=40, end=40, hwm=40)
    assert isinstance(follows().on_range(7, 0, end, empty), GoOffline)
    assert follows(unclean=7).on_range(7, 0, end, empty) == StartAt(0, loses_committed=True)


def test_otherwise_it_waits_and_fetches_on() -> None:
    assert follows().on_range(7, 0, 80, THREE_EPOCHS) == Wait(100)
