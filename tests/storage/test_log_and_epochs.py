"""A log, its epochs, and the file that remembers them: they agree whatever happened (I-12)."""

import pytest

from tests.storage.logs import Host, batch, placed
from tidelog.protocol.errors import InvalidAppend


@pytest.fixture
def host() -> Host:
    return Host()


def test_epochs_of_a_log_that_was_emptied_do_not_stop_the_opening_of_its_successor() -> None:
    """Emptied, and copied from a leader with an older epoch: the file still has the younger one."""
    host = Host()
    host.log.append(batch(), 5, now_ms=0)
    host.flush()
    host.log.truncate_fully_and_start_at(500)
    host.log.append_as_follower(placed(500, 3), 6, now_ms=0)
    host.kill_and_open()
    assert [tuple(entry) for entry in host.log.epochs.entries] == [(3, 500)]


def test_a_batch_without_an_epoch_is_refused(host: Host) -> None:
    with pytest.raises(InvalidAppend):
        host.log.append(batch(), -1, now_ms=0)
    with pytest.raises(InvalidAppend):
        host.log.append_as_follower(placed(0, -1), 3, now_ms=0)
    assert (host.log.end_offset, host.log.is_offline) == (0, False)


def test_a_batch_without_an_epoch_ends_the_log_before_it(host: Host) -> None:
    host.log.segments[0].write(placed(0, -1))
    assert host.kill_and_open().torn_bytes == len(placed(0, -1))
    assert host.log.end_offset == 0


def test_epochs_do_not_go_back_when_all_records_are_deleted(host: Host) -> None:
    """The batches are still there, and recovery cuts the log where their epochs go back."""
    host.log.append(batch(), 5, now_ms=0)
    host.log.raise_log_start(1)
    with pytest.raises(InvalidAppend, match="epoch 3 follows epoch 5"):
        host.log.append(batch(), 3, now_ms=0)
    with pytest.raises(InvalidAppend):
        host.log.append_as_follower(placed(1, 3), 6, now_ms=0)
    host.log.append(batch(), 5, now_ms=0)
    assert [tuple(entry) for entry in host.log.epochs.entries] == [(5, 1)]


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_of_which_all_records_are_deleted_has_no_epochs_to_miss(host: Host, clean: bool) -> None:
    host.log.append(batch(), 5, now_ms=0)
    host.log.raise_log_start(1)
    host.stop()
    assert host.open(clean=clean, log_start=1).problems == []
    assert host.log.epochs.entries == ()


def test_a_log_start_that_was_forgotten_gets_its_epochs_back(host: Host) -> None:
    """The file was written with the higher start, the checkpoint was not: the batches decide (I-12)."""
    for epoch in (0, 1, 2):
        host.log.append(batch(5), epoch, now_ms=0)
    host.log.raise_log_start(7)
    host.flush()
    host.kill_and_open()
    assert host.log.log_start == 0
    assert [tuple(entry) for entry in host.log.epochs.entries] == [(0, 0), (1, 5), (2, 10)]
