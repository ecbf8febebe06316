"""Random lives of a log go well, and each planted bug ends one of them badly (I-9, I-12, I-30 to I-34)."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.storage.log_life import live
from tests.storage.logs import Halted, Host, batch
from tidelog.protocol.batch import read_header
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.types import Offset
from tidelog.storage import producer_snapshots, scan
from tidelog.storage.config import LogConfig
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.flushing import Flush
from tidelog.storage.log import Log
from tidelog.storage.producer_replay import ProducerReplay
from tidelog.storage.producers import Producers
from tidelog.storage.recovery import Opening
from tidelog.storage.segment import Segment
from tidelog.storage.works import Work
from tidelog.testing.simulation import disk

SEEDS = 200
"""Within so many lives a planted bug must have been caught; each catch is found within a few seconds."""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_whatever_happens_to_a_log_it_says_what_was_written(first: int) -> None:
    for seed in range(first, first + 20):
        live(seed)


def random_lives() -> None:
    for seed in range(SEEDS):
        live(seed)


def a_history_with_other_batches_between_the_same_two() -> None:
    """The last index entry fits both histories, those before it only the one that was cut off."""
    for crash in (Host.kill_and_open, Host.cut_power_and_open):
        host = Host(config=LogConfig(index_interval_bytes=0))
        for size in (100, 200, 300, 100):
            host.log.append(batch(size=size), 0, now_ms=0)
        host.log.segments[0].let_go()
        host.flush()
        host.log.truncate_to(1, now_ms=0)
        for size in (300, 200, 100):
            host.log.append(batch(size=size), 1, now_ms=0)
        host.flush()
        crash(host)
        for offset in (3, 2, 1, 0):
            assert read_header(host.log.read(offset, 1).data).base_offset == offset


def a_cut_that_is_undone() -> None:
    """An old batch ends where the segment behind the new one begins."""
    for seed in range(40):
        host = Host(seed)
        host.log.append(batch(4, size=200), 1, now_ms=0)
        host.flush()
        host.log.truncate_to(0, now_ms=0)
        host.log.append(batch(4, size=1), 8, now_ms=0)
        host.log.append(batch(4, size=300), 8, now_ms=0)
        assert [segment.base_offset for segment in host.log.segments] == [0, 4]
        host.cut_power_and_open()
        epochs = [tuple(entry) for entry in host.log.epochs.entries]
        assert epochs in ([], [(1, 0)], [(8, 0)]), f"seed {seed}"


def a_segment_that_was_just_begun() -> None:
    """Its name is the only thing that is new in the directory."""
    for seed in range(40):
        host = Host(seed)
        host.log.append(batch(size=900), 0, now_ms=0)
        host.flush()
        host.log.append(batch(size=900), 0, now_ms=0)
        host.flush()
        host.cut_power_and_open()
        assert (host.log.end_offset, host.keeper.damage) == (2, [])


def test_a_segment_that_was_just_begun_is_there_after_its_flush() -> None:
    a_segment_that_was_just_begun()


def epochs_that_end_alike() -> None:
    """The old file ends with the right epoch, which began elsewhere then: nothing would tell."""
    host = Host()
    host.log.append(batch(), 3, now_ms=0)
    host.kill_and_open()
    host.log.truncate_to(0, now_ms=0)
    host.log.append(batch(), 2, now_ms=0)
    host.log.append(batch(), 3, now_ms=0)
    host.flush()
    host.kill_and_open()
    assert [tuple(entry) for entry in host.log.epochs.entries] == [(2, 0), (3, 1)]


def a_start_whose_flush_fails() -> None:
    """What it has checked is written again, and the disk does not take it."""
    host = Host()
    host.log.append(batch(), 0, now_ms=0)
    host.disk.kill()
    host.disk.fail_flush(suffix=".log")
    with suppress(Halted):
        host.open()
    assert host.keeper.halted == [
        "flush <segment /data/orders-0/00000000000000000000.log to 1> after checking it"
    ]
    assert host.keeper.read_recovery_point() == 0
    assert host.cut_power_and_open().damage == []


def test_a_start_ends_where_the_disk_does_not_take_what_it_has_checked() -> None:
    a_start_whose_flush_fails()


def test_epochs_that_end_as_before_a_truncation_are_told_apart() -> None:
    epochs_that_end_alike()


def test_a_cut_that_a_loss_of_power_undoes_never_meets_what_was_written_behind_it() -> None:
    a_cut_that_is_undone()


def test_an_index_from_before_a_truncation_is_never_met_again() -> None:
    a_history_with_other_batches_between_the_same_two()


Plant = Callable[[pytest.MonkeyPatch], None]


def durable_up_to_the_end_after_the_flush(plant: pytest.MonkeyPatch) -> None:
    """An fsync covers only what was written before it began (I-32)."""
    end_flush = Log.end_flush

    def planted(self: Log, flush: Flush) -> None:
        flush.upto = self.end_offset
        end_flush(self, flush)

    plant.setattr(Log, "end_flush", planted)


def a_flush_that_forgets_the_segments_before_the_last(plant: pytest.MonkeyPatch) -> None:
    """A segment must be durable before any byte of its successor counts."""

    def planted(self: Flush) -> None:
        for segment in self.segments:
            self._files.append(self.segments[-1].file())
            segment.pins += 1

    plant.setattr(Flush, "pin", planted)


def a_flush_that_covers_what_was_written_since_and_rolled(plant: pytest.MonkeyPatch) -> None:
    """The segment that the flush found last was written on before it was closed."""
    end_flush = Log.end_flush

    def planted(self: Log, flush: Flush) -> None:
        end_flush(self, flush)
        self._unflushed = [segment for segment in self._unflushed if segment not in flush.segments]

    plant.setattr(Log, "end_flush", planted)


def a_flush_that_forgets_the_names(plant: pytest.MonkeyPatch) -> None:
    """KAFKA-3968: a new file may be gone with its directory entry."""
    run = Flush.run

    def planted(self: Flush) -> None:
        self.names = False
        self.snapshots = ()
        run(self)

    plant.setattr(Flush, "run", planted)


def a_failed_flush_that_is_taken_for_a_success(plant: pytest.MonkeyPatch) -> None:
    """After EIO the pages look clean, and the next fsync succeeds (I-31)."""
    run = Flush.run

    def planted(self: Flush) -> None:
        run(self)
        self.error = None

    plant.setattr(Flush, "run", planted)


def recovery_that_trusts_the_page_cache(plant: pytest.MonkeyPatch) -> None:
    """What a failed flush left behind reads well and is not on the disk."""
    verify = Opening._verify

    def planted(self: Opening, segment: Segment) -> Iterator[Work | None]:
        plant.setattr(disk._File, "write_at", lambda *_: None)
        try:
            yield from verify(self, segment)
        finally:
            plant.setattr(disk._File, "write_at", write_at)

    write_at = disk._File.write_at
    plant.setattr(Opening, "_verify", planted)


def recovery_that_does_not_flush_what_it_keeps(plant: pytest.MonkeyPatch) -> None:
    """The recovery point is raised to what was only read and written."""
    plant.setattr(Opening, "_flush", lambda *_: iter(()))


def recovery_that_takes_a_failed_flush_for_a_success(plant: pytest.MonkeyPatch) -> None:
    """The disk has refused what was written again, and the recovery point is raised all the same."""

    def planted(_self: Opening, segment: Segment) -> Iterator[Work]:
        def flush() -> None:
            with suppress(OSError):
                segment.file().flush()

        yield flush

    plant.setattr(Opening, "_flush", planted)


def recovery_that_does_not_verify_bodies(plant: pytest.MonkeyPatch) -> None:
    """A torn batch has a whole head."""
    plant.setattr(scan, "check_body", lambda *_: None)


def truncation_that_keeps_the_recovery_point(plant: pytest.MonkeyPatch) -> None:
    """Then what is written behind the cut is believed without having been flushed."""

    def planted(self: Log, offset: Offset) -> None:
        self.recovery_point = min(self.recovery_point, offset)

    plant.setattr(Log, "_lower_recovery_point", planted)


def truncation_that_keeps_old_indexes(plant: pytest.MonkeyPatch) -> None:
    """An index of another history leads to the wrong batch."""
    plant.setattr(Segment, "_remove_index_files", lambda _: None)


def truncation_that_a_loss_of_power_can_undo(plant: pytest.MonkeyPatch) -> None:
    """What comes back may end where a later segment begins."""

    def planted(self: Segment) -> None:
        self._remove_index_files()
        self._directory.flush()
        self.file().truncate(self.size)

    plant.setattr(Segment, "cut", planted)


def truncation_that_keeps_the_producers(plant: pytest.MonkeyPatch) -> None:
    """A retried batch would be taken for a duplicate of one that is gone (I-9)."""
    forget_behind = Log._forget_behind

    def planted(self: Log, _: Producers) -> None:
        forget_behind(self, self.producers)

    plant.setattr(Log, "_forget_behind", planted)


def truncation_that_keeps_the_epochs(plant: pytest.MonkeyPatch) -> None:
    """The cache must be a function of the log (I-12)."""
    plant.setattr(LeaderEpochs, "truncate_from_end", lambda *_: None)


def snapshots_that_outlive_a_truncation(plant: pytest.MonkeyPatch) -> None:
    """State as of batches that the log has lost."""
    plant.setattr(producer_snapshots, "remove_above", lambda *_: [])


def producers_from_a_snapshot_without_replay(plant: pytest.MonkeyPatch) -> None:
    """State is replayed, never guessed."""
    plant.setattr(ProducerReplay, "steps", lambda *_: iter(()))


def a_failed_append_that_is_not_cut_back(plant: pytest.MonkeyPatch) -> None:
    """The next, shorter batch leaves the end of the failed one behind it (I-33)."""
    plant.setattr(Segment, "cut_back", lambda _: None)


def a_roll_that_hands_nothing_to_the_flush(plant: pytest.MonkeyPatch) -> None:
    """The closed segment is never flushed again."""
    roll = Log._roll

    def planted(self: Log) -> Segment:
        segment = roll(self)
        self._unflushed.clear()
        return segment

    plant.setattr(Log, "_roll", planted)


def epochs_that_are_not_written_before_the_recovery_point(plant: pytest.MonkeyPatch) -> None:
    """The file must know every epoch below it."""
    run = Flush.run

    def planted(self: Flush) -> None:
        self.epochs = None
        run(self)

    plant.setattr(Flush, "run", planted)


PLANTS: list[Plant] = [
    durable_up_to_the_end_after_the_flush,
    a_flush_that_forgets_the_segments_before_the_last,
    a_flush_that_covers_what_was_written_since_and_rolled,
    a_flush_that_forgets_the_names,
    a_failed_flush_that_is_taken_for_a_success,
    recovery_that_trusts_the_page_cache,
    recovery_that_does_not_flush_what_it_keeps,
    recovery_that_takes_a_failed_flush_for_a_success,
    recovery_that_does_not_verify_bodies,
    truncation_that_keeps_the_recovery_point,
    truncation_that_keeps_old_indexes,
    truncation_that_a_loss_of_power_can_undo,
    truncation_that_keeps_the_producers,
    truncation_that_keeps_the_epochs,
    snapshots_that_outlive_a_truncation,
    producers_from_a_snapshot_without_replay,
    a_failed_append_that_is_not_cut_back,
    a_roll_that_hands_nothing_to_the_flush,
    epochs_that_are_not_written_before_the_recovery_point,
]
DIRECTED: dict[Plant, Callable[[], None]] = {
    truncation_that_keeps_old_indexes: a_history_with_other_batches_between_the_same_two,
    truncation_that_a_loss_of_power_can_undo: a_cut_that_is_undone,
    a_flush_that_forgets_the_names: a_segment_that_was_just_begun,
    epochs_that_are_not_written_before_the_recovery_point: epochs_that_end_alike,
    recovery_that_takes_a_failed_flush_for_a_success: a_start_whose_flush_fails,
}
"""Where chance seldom finds it."""


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, TidelogError, OSError, Halted)):
        DIRECTED.get(plant, random_lives)()
