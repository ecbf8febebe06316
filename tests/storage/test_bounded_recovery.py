"""What a crash costs is bounded by what was written since the last flushes, not by the segment's size (C6)."""

from collections.abc import Callable

import pytest

from tests.storage.logs import Host, batch, contents
from tidelog.storage import log as log_module
from tidelog.storage.config import LogConfig
from tidelog.storage.index import OFFSETS, SparseIndex
from tidelog.storage.producer_snapshots import snapshot_offsets
from tidelog.storage.recovery import Findings
from tidelog.storage.segment import INDEX, segment_name

SPARED = 600


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """A log of one large segment, that spares what lies before the last few batches."""
    monkeypatch.setattr(log_module, "SPARED_BYTES", SPARED)
    return Host(config=LogConfig(segment_bytes=100_000, index_interval_bytes=200))


def fill(host: Host, batches: int) -> None:
    """Append batches of an idempotent producer, each flushed."""
    for _ in range(batches):
        host.log.append(batch(producer=7, sequence=host.log.end_offset), 0, 0)
        host.flush()


def saved(host: Host) -> SparseIndex:
    """What the index file of the segment being written says."""
    name = segment_name(0, INDEX)
    return SparseIndex.load(OFFSETS, host.directory, name, host.log.size)


def test_flushes_save_the_indexes_of_the_segment_that_is_being_written(host: Host) -> None:
    fill(host, 50)
    assert host.log.size - SPARED < saved(host).covered <= host.log.size


def test_flushes_save_the_producers_and_keep_one_snapshot_within_a_segment(host: Host) -> None:
    fill(host, 50)
    (newest,) = snapshot_offsets(host.directory)
    assert host.log.end_offset - newest <= SPARED // 100


def test_a_short_log_is_spared_nothing_and_writes_nothing(host: Host) -> None:
    fill(host, 3)
    assert snapshot_offsets(host.directory) == []
    assert not host.directory.exists(segment_name(0, INDEX))


@pytest.mark.parametrize("crash", [Host.kill_and_open, Host.cut_power_and_open])
def test_a_log_comes_back_the_same_from_what_was_spared(
    host: Host, crash: Callable[[Host], Findings]
) -> None:
    fill(host, 50)
    before, producers = contents(host.log), host.log.producers
    assert crash(host).problems == []
    assert contents(host.log) == before
    assert host.log.producers == producers


def test_a_log_that_was_cut_forgets_the_producers_of_what_is_gone(host: Host) -> None:
    fill(host, 50)
    host.log.truncate_to(20, 0)
    host.log.append(batch(producer=8, producer_epoch=3), 1, 0)
    host.flush()
    before, producers = contents(host.log), host.log.producers
    assert host.kill_and_open().damage == []
    assert contents(host.log) == before
    assert host.log.producers == producers
