"""Retention: which segments go, and that a crash at any step of their going leaves a log that begins where it should."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import pytest

from tests.storage.compacted import CONFIG, Compacted
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.types import NO_TIMESTAMP
from tidelog.storage import retention
from tidelog.storage.config import LogConfig
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.log import Log
from tidelog.storage.retention import newest_ms, remove, retain, wanted_log_start
from tidelog.testing.simulation.faults import Crash, Killed, PowerCut

DAY = 24 * 3600 * 1000
DELETING = replace(CONFIG, cleanup_policy="delete", retention_ms=1000, file_delete_delay_ms=500)


@dataclass(frozen=True)
class Aged:
    size: int
    next_offset: int
    max_timestamp: int = 0
    appended_ms: int = 1 << 60


def start(
    segments: list[Aged], now_ms: int = 0, log_start: int = 0, committed: int = 1 << 60, **config: object
) -> int:
    settings = replace(LogConfig(retention_ms=-1), **config)  # type: ignore[arg-type]  # fields of LogConfig
    return wanted_log_start(segments, settings, log_start, committed, now_ms)


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


def test_a_record_from_the_future_counts_from_when_it_was_appended() -> None:
    future = Aged(100, 10, 1 << 50, appended_ms=2000)
    assert newest_ms(future) == 2000
    assert start([future], 3001, retention_ms=1000) == 10
    assert newest_ms(Aged(1, 1, NO_TIMESTAMP, appended_ms=7)) == 7


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
    gone = [segment for segment in life.log.segments if life.now_ms - newest_ms(segment) > 1000]
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
    for keep in (retention.seal, lambda log, now_ms: retain(log, log.end_offset, now_ms)):
        life = aging(batches=2)
        log = life.log
        log.raise_log_start(log.end_offset)
        keep(log, life.now_ms)
        life.leftovers.take(log, life.now_ms)
        assert ([segment.size for segment in log.segments], len(life.leftovers)) == ([0], 1)
        keep(log, life.now_ms)
        assert len(log.segments) == 1


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
    assert not retain(log, life.durable, life.now_ms)
    assert len(log.segments) == before
    life.now_ms += 6000
    retain(log, life.durable, life.now_ms)
    assert len(log.segments) == before + 1
    life.now_ms += 6000
    retain(log, life.durable, life.now_ms)
    assert len(log.segments) == before + 1, "an empty segment needs no other"


def test_a_log_that_has_to_be_compacted_in_time_closes_its_segment_in_time() -> None:
    life = aging(batches=2)
    life.log.reconfigure(replace(CONFIG, max_compaction_lag_ms=300))
    assert not life.log.roll_if_old(life.now_ms)
    assert life.log.roll_if_old(life.now_ms + 301)


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
        lambda segments, config, log_start, _, now_ms: wanted_log_start(
            segments, config, log_start, 1 << 60, now_ms
        ),
    )


def timestamps_that_are_believed(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(retention, "newest_ms", lambda segment: segment.max_timestamp)


PLANTS: dict[Plant, Callable[[], None]] = {
    a_log_start_that_is_not_durable: crash_anywhere,
    files_that_go_from_the_newest_on: crash_anywhere,
    files_that_go_at_once: test_a_log_keeps_what_is_young_and_its_files_stay_a_little_longer,
    a_watermark_that_bounds_nothing: test_the_newest_segment_stays_while_some_of_it_is_not_committed,
    timestamps_that_are_believed: test_a_record_from_the_future_counts_from_when_it_was_appended,
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, TidelogError, OSError)):
        PLANTS[plant]()
