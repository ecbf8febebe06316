"""What a leader checks before it answers a fetch: the table of design 2.6, row by row and in its order."""

import pytest

from tests.storage.logs import Host, batch
from tidelog.protocol.errors import FencedLeaderEpoch, OffsetOutOfRange, UnknownLeaderEpoch
from tidelog.protocol.types import NO_EPOCH
from tidelog.replication.fetch import check_leader_epoch, check_place, is_prefix
from tidelog.storage.log import Log


def log_of(*epochs: int, start: int = 0) -> Log:
    """A leader's log with one record per epoch named."""
    log = Host().log
    for epoch in epochs:
        log.append(batch(), epoch, now_ms=0)
    log.raise_log_start(start)
    return log


LEADER = log_of(1, 1, 1, 4, 4, 6)

# ── epochs (2 and 3) ──────────────────────────────────────────────────────────────────────────────────


def test_an_older_leader_epoch_is_fenced() -> None:
    with pytest.raises(FencedLeaderEpoch, match="the leader epoch is 7, the request was made in 6"):
        check_leader_epoch(6, 7)


def test_a_newer_leader_epoch_is_not_known_here_yet() -> None:
    with pytest.raises(UnknownLeaderEpoch, match="made in leader epoch 8, this broker knows of 7"):
        check_leader_epoch(8, 7)


def test_the_same_leader_epoch_passes() -> None:
    check_leader_epoch(7, 7, must_say=True)


def test_a_client_may_say_nothing_and_a_replica_may_not() -> None:
    """2.12 lets consumers leave it out; a replica whose epoch nobody checks may have another history."""
    check_leader_epoch(NO_EPOCH, 7)
    with pytest.raises(FencedLeaderEpoch):
        check_leader_epoch(NO_EPOCH, 7, must_say=True)


# ── what was flushed (ADR 0073) ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("end", "epoch", "is_so"),
    [
        (6, 6, True),
        (4, 4, True),
        (3, 1, True),
        (4, 1, False),  # more of an epoch than I have
        (5, 5, False),  # an epoch that I have nothing of
        (2, 9, False),
        (2, NO_EPOCH, False),  # not said
    ],
)
def test_what_was_flushed_counts_when_it_is_the_leaders(end: int, epoch: int, is_so: bool) -> None:
    assert is_prefix(LEADER, end, epoch) is is_so


# ── the place (7, 9 and 10) ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("offset", "epoch"), [(6, 6), (5, 4), (4, 4), (3, 1), (2, 1), (0, NO_EPOCH)])
def test_a_log_that_is_a_prefix_continues(offset: int, epoch: int) -> None:
    assert check_place(LEADER, offset, epoch) is None


@pytest.mark.parametrize(
    ("offset", "epoch", "parts"),
    [
        (7, 6, (6, 6)),  # more of my last epoch than I have
        (6, 5, (4, 5)),  # an epoch that I have nothing of: the one below it ends at 5
        (5, 5, (4, 5)),
        (5, 1, (1, 3)),  # more of an epoch than I have
        (2, 9, (6, 6)),  # a leader that was never mine
        (2, 0, (0, 0)),  # nothing here is that old
    ],
)
def test_a_log_that_parts_is_told_where(offset: int, epoch: int, parts: tuple[int, int]) -> None:
    assert check_place(LEADER, offset, epoch) == parts


@pytest.mark.parametrize("epoch", [1, 5, NO_EPOCH])
def test_below_the_log_start_is_out_of_range_also_where_the_logs_part(epoch: int) -> None:
    """KAFKA-12996: what the epochs would say of it is about records that are gone."""
    with pytest.raises(OffsetOutOfRange, match="offset 3 lies below 4"):
        check_place(log_of(1, 1, 1, 4, 4, 6, start=4), 3, epoch)


def test_an_empty_log_may_begin_anywhere_but_behind_the_end() -> None:
    assert check_place(LEADER, 6, NO_EPOCH) is None
    with pytest.raises(OffsetOutOfRange, match="offset 7 lies above 6"):
        check_place(LEADER, 7, NO_EPOCH)


def test_behind_the_end_with_an_epoch_is_a_divergence_and_not_out_of_range() -> None:
    assert check_place(LEADER, 100, 6) == (6, 6)


def test_a_leader_with_an_empty_log_shares_nothing() -> None:
    assert check_place(log_of(), 3, 2) == (2, 0)


def test_a_check_changes_nothing() -> None:
    """I-19, KAFKA-13141."""
    log = log_of(1, 1, 4)
    before = log.epochs.entries, log.log_start, log.end_offset
    check_place(log, 9, 3)
    assert (log.epochs.entries, log.log_start, log.end_offset) == before
