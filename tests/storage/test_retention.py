"""Retention: which segments go, and that a crash at any step of their going leaves a log that begins where it should."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from errno import ENOSPC
from random import Random

import pytest

from tests.storage.compacted import CONFIG, Compacted
from tests.storage.logs import SMALL, Host, batch
from tidelog.protocol.errors import DiskFull, StorageError, TidelogError
from tidelog.protocol.types import NO_TIMESTAMP
from tidelog.storage import retention
from tidelog.storage.cleaning import cleanable
from tidelog.storage.config import LogConfig
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.log import Log
from tidelog.storage.retention import Leftovers, look, remove, retain, seal, wanted_log_start
from tidelog.storage.segment import NOT_SEEN, Segment
from tidelog.testing.simulation.faults import Crash, Killed, PowerCut

HOUR = 3600 * 1000
DAY = 24 * HOUR
DELETING = replace(CONFIG, cleanup_policy="delete", retention_ms=1000, file_delete_delay_ms=500)


@dataclass(frozen=True)
class Aged:
    size: int
    next_offset: int
    max_timestamp: int = 0
    appended_ms: int = NOT_SEEN


def start(
    segments: list[Aged],
    now_ms: int = 0,
    log_start: int = 0,
    committed: int = 1 << 60,
    looked_ms: int = 0,
    **config: object,
) -> int:
    settings = replace(LogConfig(retention_ms=-1), **config)  # type: ignore[arg-type]  # fields of LogConfig
    return wanted_log_start(segments, settings, log_start, committed, now_ms, looked_ms)


FOUR = [Aged(100, 10, 1000), Aged(100, 20, 2000), Aged(100, 30, 3000), Aged(50, 35, 4000)]


def test_segments_go_when_their_newest_record_is_too_old() -> None:
    assert start(FOUR, 3000, retention_ms=1000) == 10
    assert start(FOUR, 3001, retention_ms=1000) == 20
    assert start(FOUR, 99_999, retention_ms=1000) == 35
    assert start(FOUR, 99_999, retention_ms=-1) == 0


def test_segments_go_while_what_is_left_is_still_large_enough() -> None:
    assert start(FOUR, retention_bytes=349) == 0
    assert start(FOUR, retention_bytes=250) == 10
    assert start(FOUR, retention_bytes=150) == 20
    assert start(FOUR, retention_bytes=0) == 35


def test_an_old_segment_behind_a_young_one_stays() -> None:
    assert start([Aged(100, 10, 5000), Aged(100, 20, 1000)], 5500, retention_ms=1000) == 0


def test_nothing_that_reaches_above_the_high_watermark_goes() -> None:
    """KAFKA-5634."""
    assert start(FOUR, 99_999, retention_ms=1000, committed=29) == 20
    assert start(FOUR, retention_bytes=0, committed=30) == 30


def test_what_lies_below_the_log_start_goes_whatever_the_policy_is() -> None:
    assert start(FOUR, 0, 20, cleanup_policy="compact", retention_ms=1000) == 20
    assert start(FOUR, 99_999, 0, cleanup_policy="compact", retention_ms=1000) == 0
    assert start(FOUR, 99_999, 0, cleanup_policy="compact,delete", retention_ms=1000) == 35


def test_a_record_from_the_future_counts_from_when_it_was_seen_here() -> None:
    future = Aged(100, 10, 1 << 50, appended_ms=2000)
    assert start([future], 0, looked_ms=3000, retention_ms=1000) == 0
    assert start([future], 0, looked_ms=3001, retention_ms=1000) == 10


def test_records_without_a_time_count_from_when_they_were_seen_here() -> None:
    timeless = Aged(100, 10, NO_TIMESTAMP, appended_ms=2000)
    assert start([timeless], 1 << 50, looked_ms=3000, retention_ms=1000) == 0
    assert start([timeless], 0, looked_ms=3001, retention_ms=1000) == 10
    assert start([Aged(100, 10, NO_TIMESTAMP)], 1 << 50, looked_ms=3001, retention_ms=1000) == 0


def test_a_clock_that_goes_back_deletes_nothing() -> None:
    assert start(FOUR, -DAY, retention_ms=1000) == 0


# ── a log ─────────────────────────────────────────────────────────────────────────────────────────────


def aging(seed: int = 1, batches: int = 30) -> Compacted:
    life = Compacted(Random(seed), DELETING)
    for _ in range(batches):
        life.append()
        life.now_ms += 100
    life.flush()
    return life


def test_a_log_keeps_what_is_young_and_its_files_stay_a_little_longer() -> None:
    life = aging()
    files = len([name for name in life.log.directory.names() if name.endswith(".log")])
    gone = [segment for segment in life.log.segments if life.now_ms - segment.max_timestamp > 1000]
    life.retain()
    assert life.log.log_start == gone[-1].next_offset
    assert len(life.leftovers) == len(gone)
    names = life.log.directory.names()
    assert len([name for name in names if name.endswith(".deleted")]) == len(gone) > 2
    assert len([name for name in names if name.endswith(".log")]) == files - len(gone)
    life.check()
    remove(life.leftovers.due(life.now_ms + 499))
    assert len(life.leftovers) == len(gone)
    remove(life.leftovers.due(life.now_ms + 500))
    assert not [name for name in life.log.directory.names() if name.endswith(".deleted")]


def test_who_has_read_keeps_what_was_read() -> None:
    life = aging()
    piece = life.log.read(0, 1000)
    before = bytes(piece.data)
    life.retain()
    remove(life.leftovers.due(life.now_ms + 10_000))
    assert bytes(piece.data) == before


def test_files_that_left_the_log_are_gone_after_a_start() -> None:
    for crash in (Killed, PowerCut):
        life = aging()
        life.retain()
        life.start(crash)
        life.check()
        assert not [name for name in life.log.directory.names() if name.endswith(".deleted")]


def test_the_newest_segment_goes_only_when_a_new_one_has_begun() -> None:
    life = aging()
    life.now_ms += DAY
    life.retain()
    assert life.log.log_start == life.log.end_offset
    assert [segment.size for segment in life.log.segments] == [0]
    life.append()
    life.check()


def test_what_was_deleted_to_the_end_goes_whoever_has_raised_the_log_start() -> None:
    """Somebody asked for it, or the leader has done so: this log's owner never leads."""
    life = aging(batches=2)
    log = life.log
    log.raise_log_start(log.end_offset)
    assert seal(log, life.now_ms)
    life.leftovers.take(log, life.now_ms)
    assert ([segment.size for segment in log.segments], len(life.leftovers)) == ([0], 1)
    assert not seal(log, life.now_ms)


def test_the_newest_segment_stays_while_some_of_it_is_not_committed() -> None:
    life = aging()
    life.durable = life.log.end_offset - 1
    life.now_ms += DAY
    life.retain()
    assert life.log.log_start < life.log.end_offset
    assert life.log.segments[-1].size


def test_a_segment_that_nothing_is_appended_to_is_closed_when_it_is_old() -> None:
    life = aging()
    log = life.log
    log.reconfigure(replace(DELETING, segment_ms=5000, retention_ms=-1))
    before = len(log.segments)
    assert not seal(log, life.now_ms)
    life.now_ms += 6000
    assert seal(log, life.now_ms)
    assert len(log.segments) == before + 1
    life.now_ms += 6000
    assert not seal(log, life.now_ms), "an empty segment needs no other"


def test_a_log_that_has_to_be_compacted_in_time_closes_its_segment_in_time() -> None:
    life = aging(batches=2)
    life.log.reconfigure(replace(CONFIG, max_compaction_lag_ms=300))
    assert not seal(life.log, life.now_ms)
    assert seal(life.log, life.now_ms + 301)


# ── clocks ────────────────────────────────────────────────────────────────────────────────────────────

NOW = 20_000 * DAY
"""What the time is in truth, and by the records."""
WEEK = replace(SMALL, retention_ms=7 * DAY, segment_ms=30 * DAY)


def written(clock_ms: int, config: LogConfig = WEEK, time_ms: int = NOW) -> Host:
    """A log with records of that time, appended while the wall clock said this; looked at an hour after the boot."""
    host = Host(1, config)
    for number in range(40):
        host.log.append(batch(size=100, time=time_ms + number), 0, clock_ms)
    host.flush()
    look(host.log, HOUR)
    return host


def kept(host: Host, now_ms: int, boot_ms: int = 2 * HOUR) -> int:
    """How many records are left at another look."""
    look(host.log, boot_ms)
    retain(host.log, host.log.end_offset, now_ms)
    return host.log.end_offset - host.log.log_start


def test_what_was_appended_while_the_clock_was_behind_stays_when_it_is_put_right() -> None:
    assert kept(written(NOW - 8 * DAY), NOW + 60_000) == 40


def test_a_log_that_was_opened_while_the_clock_was_behind_stays_when_it_is_put_right() -> None:
    host = written(NOW)
    host.stop()
    host.open(clean=True)  # by a clock that stands at 1970
    look(host.log, 0)
    assert kept(host, NOW + 60_000) == 40


def test_what_the_clock_says_at_the_append_changes_no_record_s_age() -> None:
    for clock_ms in (0, NOW, NOW + 100 * DAY):
        host = written(clock_ms)
        assert (kept(host, NOW + 7 * DAY), kept(host, NOW + 8 * DAY)) == (40, 0)


def test_records_from_the_future_go_when_they_were_here_for_long_enough() -> None:
    host = written(NOW, time_ms=NOW + 100 * DAY)
    assert kept(host, NOW, HOUR + 7 * DAY) == 40
    assert kept(host, NOW, HOUR + 7 * DAY + 1) == 0


def test_what_came_since_the_last_look_is_new_however_long_its_segment_was_here() -> None:
    host = written(NOW, time_ms=NOW + 100 * DAY)
    last = host.log.segments[-1].base_offset
    assert host.log.append(batch(time=NOW), 0, NOW).base_offset > last, "it is in the same segment"
    assert kept(host, NOW, 9 * DAY) == host.log.end_offset - last


def test_what_is_young_is_not_compacted_because_the_clock_was_behind() -> None:
    host = written(NOW - 8 * DAY, replace(WEEK, cleanup_policy="compact", min_compaction_lag_ms=DAY))
    assert cleanable(host.log, host.log.end_offset, NOW + 60_000) == []
    assert cleanable(host.log, host.log.end_offset, NOW + 2 * DAY) == list(host.log.segments[:-1])


def test_a_segment_is_closed_in_time_also_after_a_clock_that_was_ahead() -> None:
    host = written(NOW + 100 * DAY, time_ms=NOW + 100 * DAY)
    assert not seal(host.log, NOW)
    look(host.log, HOUR + 30 * DAY + 1)
    assert seal(host.log, NOW)


# ── a full disk ───────────────────────────────────────────────────────────────────────────────────────


def full(batches: int) -> Host:
    """A log in which a write did not fit; its newest segment is not empty."""
    host = Host(1, replace(SMALL, segment_ms=HOUR, retention_ms=2 * HOUR))
    for _ in range(batches):
        host.log.append(batch(size=100), 0, 0)
    host.flush()
    host.disk.capacity = host.disk.medium.used + 50
    with suppress(DiskFull):
        host.log.append(batch(size=100), 0, 0)
    assert host.log.is_full
    return host


def freed(host: Host) -> bool:
    """Whether what lies below the start goes, and the log is written to again; its start is durable by now."""
    leftovers = Leftovers()
    leftovers.take(host.log, 0)
    remove(leftovers.due(1 << 60))
    return host.log.probe()


def test_what_is_too_old_goes_from_a_log_that_waits_for_room() -> None:
    for batches, enough in ((42, True), (1, False)):
        host = full(batches)
        assert not host.log.probe()
        assert retain(host.log, host.log.end_offset, 10 * HOUR)
        assert seal(host.log, 10 * HOUR)
        assert freed(host) == enough
        assert (host.log.log_start, host.log.size) == (host.log.end_offset, 0)
        assert host.directory.free_space() > 150


def test_what_was_deleted_on_request_goes_from_a_log_that_waits_for_room() -> None:
    host = full(42)
    host.log.raise_log_start(host.log.end_offset)
    assert seal(host.log, 0)
    assert freed(host)


def test_old_segments_go_also_where_no_new_one_can_be_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name can be made either."""
    host = full(42)
    monkeypatch.setattr(Segment, "create", no_room)
    assert retain(host.log, host.log.end_offset, 10 * HOUR)
    with pytest.raises(DiskFull):
        seal(host.log, 10 * HOUR)
    assert freed(host)
    assert len(host.log.segments) == 1


def no_room(_: Segment) -> None:
    raise OSError(ENOSPC, "No space left on device")


def test_a_log_that_is_offline_begins_no_segment() -> None:
    host = full(42)
    host.log._refusal = StorageError("it failed")
    with pytest.raises(StorageError, match="it failed"):
        seal(host.log, 10 * HOUR)


# ── settings, crashes ─────────────────────────────────────────────────────────────────────────────────


def test_other_settings_hold_from_now_on() -> None:
    life = aging()
    life.log.reconfigure(replace(DELETING, retention_ms=-1))
    life.retain()
    assert life.log.log_start == 0
    life.log.reconfigure(replace(DELETING, retention_bytes=2000, retention_ms=-1))
    life.retain()
    assert 2000 <= life.log.size < 2000 + 1024 * 2
    life.log.reconfigure(replace(DELETING, segment_bytes=4096, retention_ms=-1))
    life.fill(60)
    assert max(segment.size for segment in life.log.segments) > 2048
    life.check()


def test_a_compacted_log_may_have_retention_as_well() -> None:
    life = aging()
    life.log.reconfigure(replace(DELETING, cleanup_policy="compact,delete", retention_ms=2000))
    life.log.roll()
    life.flush()
    life.compact()
    life.retain()
    assert life.log.log_start > 0
    life.check(rot=True)


def crash_anywhere() -> None:
    """At every operation of what retention does, in every way."""
    life = aging()
    before = life.node.disk.operations
    life.retain()
    operations = life.node.disk.operations - before
    assert operations > 10
    for nth in range(1, operations + 1):
        for when in ("before", "after"):
            for crash in (Killed, PowerCut):
                life = aging()
                life.node.disk.crash_at(nth, when=when, crash=crash)
                with pytest.raises(Crash):
                    life.retain()
                life.node.disk._faults.forget_crash()
                life.start(crash)
                assert life.log.segments[0].base_offset <= life.log.log_start
                life.check()
                life.retain()
                life.check()


def test_a_crash_at_any_step_of_retention_leaves_a_log_that_begins_where_it_should() -> None:
    crash_anywhere()


# ── planted bugs ──────────────────────────────────────────────────────────────────────────────────────

Plant = Callable[[pytest.MonkeyPatch], None]


def a_log_start_that_is_not_durable(plant: pytest.MonkeyPatch) -> None:
    """Deleted records are back after a crash, where their files had not gone yet."""
    plant.setattr(DataDirectory, "write_log_starts", DataDirectory.write_cleaner_offsets)


def files_that_go_from_the_newest_on(plant: pytest.MonkeyPatch) -> None:
    """A crash leaves a gap."""

    def planted(self: Log) -> list[str]:
        old = [segment for segment in self._segments[:-1] if segment.next_offset <= self.log_start]
        names = [segment.retire() for segment in reversed(old)]
        del self._segments[: len(old)]
        return names

    plant.setattr(Log, "retire_old_segments", planted)


def files_that_go_at_once(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(retention.Leftovers, "take", lambda _, log, __: log.delete_old_segments())


def a_watermark_that_bounds_nothing(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(
        retention,
        "wanted_log_start",
        lambda segments, config, log_start, _, now_ms, looked_ms: wanted_log_start(
            segments, config, log_start, 1 << 60, now_ms, looked_ms
        ),
    )


def timestamps_that_are_believed(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(retention, "age_ms", lambda segment, now_ms, _: now_ms - segment.max_timestamp)


PLANTS: dict[Plant, Callable[[], None]] = {
    a_log_start_that_is_not_durable: crash_anywhere,
    files_that_go_from_the_newest_on: crash_anywhere,
    files_that_go_at_once: test_a_log_keeps_what_is_young_and_its_files_stay_a_little_longer,
    a_watermark_that_bounds_nothing: test_the_newest_segment_stays_while_some_of_it_is_not_committed,
    timestamps_that_are_believed: test_a_record_from_the_future_counts_from_when_it_was_seen_here,
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, TidelogError, OSError)):
        PLANTS[plant]()
