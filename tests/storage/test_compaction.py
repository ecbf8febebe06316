"""Compaction keeps the last value of every key, whatever happens meanwhile (1.12, C1 to C11; I-41, I-42)."""

import errno
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from typing import NoReturn

import pytest

from tests.storage.compacted import (
    CONFIG,
    MEMORY,
    Compacted,
    crash_everywhere,
    crash_everywhere_while_a_record_goes_with_its_tombstone,
    crash_everywhere_while_a_tombstone_goes,
    cut_at_every_step,
    damage_ends_it,
    deleted_once,
    filled,
    flushed_while_it_is_compacted,
    live,
    sealed_during_its_flush,
    some,
    stored,
    values,
    what_is_not_committed_is_cut_after_it_was_compacted,
)
from tests.storage.logs import Halted
from tidelog.protocol.batch import DELETE_HORIZON, TRANSACTIONAL, BatchHeader, walk
from tidelog.protocol.errors import DiskFull, StorageError
from tidelog.protocol.records import encode
from tidelog.storage import cleaning, key_map
from tidelog.storage.checkpoints import PendingWrite
from tidelog.storage.cleaning import Plan, Refused, Said, decode_plan, decode_said, encode_plan, encode_said
from tidelog.storage.compaction import Compactor
from tidelog.storage.files import Directory, NoRoom
from tidelog.storage.log import Log
from tidelog.storage.log_compaction import Compaction
from tidelog.testing.simulation.faults import Crash, Killed, PowerCut

SEEDS = 60


@pytest.fixture
def life() -> Compacted:
    return filled()


def heads(log: Log) -> list[BatchHeader]:
    return [header for segment in log.segments for _, header in segment.headers_from(0)]


def batches(log: Log) -> list[bytes]:
    data = b"".join(
        bytes(log.read(segment.base_offset, 1 << 20).data) for segment in log.segments if segment.size
    )
    return [data[at : at + header.size] for at, header in walk(data)]


# ── what stays ────────────────────────────────────────────────────────────────────────────────────────


def test_of_every_key_the_last_value_stays_and_nothing_older(life: Compacted) -> None:
    before = values(life.read())
    life.compact()
    assert values(life.read()) == before
    assert life.log.first_dirty == life.log.end_offset
    life.check_clean()
    life.check(rot=True)


def test_a_second_compaction_of_what_is_clean_has_nothing_to_do(life: Compacted) -> None:
    life.compact()
    assert life.compact().outcome is None


def test_a_segment_in_which_nothing_changes_is_not_written_again() -> None:
    life = Compacted(Random(3))
    for n in range(60):
        life.append(keys=[b"%04d" % n], tombstones=0)
    life.roll()
    done = life.compact().outcome
    assert done is not None
    assert (done.written_bytes, done.dropped_records) == (0, 0)
    life.check()


def test_a_batch_of_which_all_stays_is_byte_for_byte_what_it_was() -> None:
    life = Compacted(Random(3))
    life.append(keys=[b"once"], tombstones=0)
    life.append(keys=[b"x"], tombstones=0)
    life.append(keys=[b"stays", b"too"], tombstones=0)
    life.append(keys=[b"x"], tombstones=0)
    life.roll()
    before = batches(life.log)
    life.compact()
    after = batches(life.log)
    assert [batch for batch in before if batch in after] == [before[0], before[2], before[3]]
    life.check()


def test_small_neighbours_become_one_segment(life: Compacted) -> None:
    life.compact()
    life.fill(3)
    life.roll()
    many = len(life.log.segments)
    life.compact()
    assert len(life.log.segments) < many
    life.check(rot=True)


def test_records_without_a_key_stay() -> None:
    life = Compacted(Random(5))
    for _ in range(30):
        life.append(keys=[None, b"a", None])
    life.roll()
    life.compact()
    assert sum(record.key is None for record in life.read()) == 60
    life.check()


def test_the_newest_segment_what_is_not_committed_and_what_is_young_are_left_alone(life: Compacted) -> None:
    life.append()
    segments = life.log.segments
    committed = segments[3].base_offset + 1
    assert cleaning.cleanable(life.log, life.log.end_offset, life.now_ms) == list(segments[:-1])
    assert cleaning.cleanable(life.log, committed, life.now_ms) == list(segments[:3])
    life.log.reconfigure(replace(CONFIG, min_compaction_lag_ms=1000))
    assert cleaning.cleanable(life.log, life.log.end_offset, life.now_ms) == []
    assert cleaning.cleanable(life.log, life.log.end_offset, life.now_ms + 5000) == list(segments[:-1])


def test_nothing_above_the_recovery_point_is_touched() -> None:
    life = Compacted(Random(1))
    life.fill()
    life.log.roll()
    life.log.flush()
    assert cleaning.cleanable(life.log, life.log.end_offset, life.now_ms) == []


def test_a_map_that_is_full_cleans_a_part_and_the_rest_the_next_time(life: Compacted) -> None:
    rounds = 0
    while life.compact(300).outcome is not None:
        rounds += 1
        life.check()
        assert rounds < 200
    assert rounds > 3
    assert life.log.first_dirty == life.log.end_offset
    life.check_clean()


def test_a_transaction_ends_what_is_judged(life: Compacted) -> None:
    stop = life.log.end_offset
    made = encode(
        [b"v"], [b"a"], attributes=TRANSACTIONAL, now_ms=1, producer_id=9, producer_epoch=0, base_sequence=0
    )
    life.log.append(made, life.epoch, life.now_ms)
    life.log.append(encode([b"w"], [b"b"], now_ms=1), life.epoch, life.now_ms)
    life.roll()
    done = life.compact().outcome
    assert done is not None
    assert done.clean_below == stop
    assert [header.attributes & TRANSACTIONAL for header in heads(life.log)[-2:]] == [TRANSACTIONAL, 0]
    again = life.compact().outcome
    assert again is not None
    assert again.clean_below == stop


def test_a_first_dirty_offset_outside_the_log_means_its_start(life: Compacted) -> None:
    """KAFKA-1641."""
    for wrong in (-1, life.log.end_offset + 1):
        life.log.first_dirty = wrong
        assert cleaning.first_dirty(life.log) == 0


def test_the_largest_time_below_an_offset_is_that_of_a_record_that_is_there(life: Compacted) -> None:
    """A batch still claims the time of a record that compaction has removed; behind it stands a later one."""
    log = life.log
    for times, keys in (([9_000, 8_000], [b"b", b"a"]), ([8_500], [b"b"]), ([8_600], [b"c"])):
        log.append(encode([b"v"] * len(keys), keys, times), life.epoch, life.now_ms)
    below = log.end_offset
    life.roll()
    life.compact()
    found = log.largest_time(below)
    assert found is not None
    assert found.timestamp_ms != 9_000
    log.append(encode([b"v"], [b"d"], [99_000]), life.epoch, life.now_ms)
    assert log.largest_time(below) == found


def test_a_log_that_a_start_has_cut_is_dirty_from_its_end_on(life: Compacted) -> None:
    """What comes in the place of what was clean is new: else a key in it would never be judged."""
    life.compact()
    clean = life.log.first_dirty
    first = life.log.segments[0]
    heads_of_it = [position for position, _ in first.headers_from(0)]
    life.node.disk.rot(f"/data/orders-0/{first.name}", heads_of_it[-1] + 70)
    life.node.data.directory.directory("orders-0").remove(first.name.replace(".log", ".index"))
    life.node.kill_and_start()
    assert life.log.end_offset < clean
    assert life.log.first_dirty <= life.log.end_offset
    life.node.kill_and_start()
    assert life.log.first_dirty <= life.log.end_offset


@pytest.mark.parametrize("ends", ["refused", "aborted"])
def test_a_floor_that_could_not_be_written_is_written_by_the_next_compaction(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    life = deleted_once()
    life.compact()
    life.now_ms += 1100
    life.append(keys=[b"last"], tombstones=0)
    life.roll()

    def refused(_: object) -> None:
        raise NoRoom(errno.ENOSPC, "there is no room")

    with monkeypatch.context() as full:
        full.setattr(PendingWrite, "run", refused)
        compaction = life.compaction()
        with pytest.raises(DiskFull) if ends == "refused" else nullcontext():
            for work in compaction.steps(life.durable, life.now_ms, MEMORY):
                if work is not None:
                    work()
                    if ends == "aborted" and life.log.purge_floor == 3:
                        compaction.abort()
                        break
    assert life.log.purge_floor == 0
    life.compact()
    assert life.log.purge_floor == 3
    life.start(PowerCut)
    assert life.log.purge_floor == 3
    life.check(rot=True)


def test_a_truncation_makes_dirty_what_comes_in_its_place_also_after_a_crash(life: Compacted) -> None:
    life.compact()
    cut = life.log.end_offset // 2
    life.durable = cut
    life.truncate(cut)
    assert life.log.first_dirty <= cut
    life.start(Killed)
    assert life.log.first_dirty <= cut


# ── tombstones ────────────────────────────────────────────────────────────────────────────────────────


def test_a_tombstone_stays_until_its_horizon_and_the_floor_says_that_it_went() -> None:
    life = deleted_once()
    life.compact()
    (marked,) = [header for header in heads(life.log) if header.attributes & DELETE_HORIZON]
    assert marked.base_timestamp == life.now_ms + CONFIG.delete_retention_ms
    assert [record.key for record in life.read()] == [b"other", b"a", b"last"]
    assert life.log.purge_floor == 0
    life.check(rot=True)
    for later, tombstones in ((900, 1), (200, 0)):
        life.now_ms += later
        life.append(keys=[b"last"], tombstones=0)
        life.roll()
        life.compact()
        assert sum(record.value is None for record in life.read()) == tombstones
        life.check(rot=True)
    assert life.log.purge_floor == 3


def test_a_tombstone_that_somebody_has_yet_to_see_stays_and_the_floor_as_well() -> None:
    life = deleted_once()
    life.compact()
    for purge_below, tombstones, floor in ((2, 1, 0), (3, 0, 3)):
        life.now_ms += 2000
        life.append(keys=[b"last"], tombstones=0)
        life.roll()
        for work in life.compaction().steps(life.durable, life.now_ms, MEMORY, purge_below):
            if work is not None:
                work()
        assert sum(record.value is None for record in life.read()) == tombstones
        assert life.log.purge_floor == floor
        life.check(rot=True)


def test_a_later_pass_keeps_the_first_horizon() -> None:
    life = deleted_once()
    life.compact()
    first = [header.base_timestamp for header in heads(life.log) if header.attributes & DELETE_HORIZON]
    life.now_ms += 500
    life.append(keys=[b"last"], tombstones=0)
    life.roll()
    life.compact()
    assert [h.base_timestamp for h in heads(life.log) if h.attributes & DELETE_HORIZON] == first


def test_the_floor_is_durable_before_a_tombstone_goes() -> None:
    life = deleted_once()
    life.compact()
    life.now_ms += 2000
    life.append(keys=[b"last"], tombstones=0)
    life.roll()
    trace = life.node.disk.record()
    life.compact()
    done = [(line.what, line.path.rpartition("/")[2]) for line in trace]
    floor = done.index(("rename", "cleaner-purge-checkpoint.tmp"))
    assert floor < next(
        n for n, (what, name) in enumerate(done) if what == "rename" and name.endswith(".cleaned")
    )


def test_a_purge_file_that_cannot_be_read_means_that_all_may_be_gone(life: Compacted) -> None:
    life.compact()
    life.node.data.directory.remove("cleaner-purge-checkpoint")
    life.start(Killed)
    assert life.log.purge_floor == life.log.end_offset


@pytest.mark.slow
def test_a_record_and_its_tombstone_that_go_together_go_in_their_order() -> None:
    crash_everywhere_while_a_record_goes_with_its_tombstone()


# ── in the middle of it ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_crash_at_any_step_of_a_compaction_loses_nothing_and_brings_nothing_back() -> None:
    assert crash_everywhere(some, Compacted.compact) > 20


def test_a_crash_while_a_start_finishes_a_swap_is_finished_by_the_next() -> None:
    """Each crash of the swap, and then at each operation of the opening."""
    for nth in range(1, 60):
        life = some()
        life.node.disk.crash_at(nth, when="after", crash=Killed)
        try:
            life.compact()
        except Crash:
            pass
        else:
            break
        if not [name for name in stored(life) if name.endswith(".swap")]:
            continue
        for again in range(1, 40):
            life.node.disk.power_cut()
            life.node.boot = f"boot {life.node.lives}"
            life.node.disk.crash_at(again, when="after", crash=PowerCut)
            try:
                life.node.start()
            except Crash:
                continue
            life.node.disk._faults.forget_crash()
            break
        life.start(Killed)
        life.check(rot=True)


def test_a_reader_in_the_middle_of_a_swap_reads_what_it_would_have_read(life: Compacted) -> None:
    """Files are opened anew at every read, as where very many are open."""
    life.node.data.open_segments.max_open = 2
    running = life.compaction()
    for work in running.steps(life.durable, life.now_ms, MEMORY):
        life.check_readers(life.read())
        if work is not None:
            work()
            life.check_readers(life.read())
    life.check()


def test_who_cuts_a_log_ends_its_compaction_first_at_every_step() -> None:
    cut_at_every_step()


def test_a_log_that_begins_anew_while_it_is_compacted_has_nothing_of_the_old(life: Compacted) -> None:
    running = life.compaction()
    steps = running.steps(life.durable, life.now_ms, MEMORY)
    for _ in range(5):
        next(steps)
    life.log.truncate_fully_and_start_at(500)
    assert life.log.compaction is None
    assert cleaning.first_dirty(life.log) == 500
    assert life.log.end_offset == 500


def test_damage_ends_a_compaction_and_nothing_is_replaced() -> None:
    damage_ends_it()


def test_a_full_disk_ends_a_compaction_and_nothing_is_lost(life: Compacted) -> None:
    disk = life.node.disk
    disk.capacity = disk.capacity - life.log.directory.free_space() + 500
    with pytest.raises(DiskFull):
        life.compact()
    assert not [name for name in stored(life) if name.endswith((".cleaned", ".swap"))]
    disk.capacity = 1 << 40
    life.check()
    life.compact()
    life.check(rot=True)


def test_a_disk_that_does_not_answer_ends_a_compaction(life: Compacted) -> None:
    life.node.disk.fail_reads(f"/data/orders-0/{life.log.segments[1].name}")
    with pytest.raises(StorageError):
        life.compact()
    assert life.log.compaction is None


def test_a_disk_that_dies_at_any_step_ends_a_compaction_with_one_error_and_no_other() -> None:
    """Its own directory has failed, or only this compaction has: whoever has other disks goes on."""
    steps = 0
    while True:
        life = some()

        def fails(what: str, error: OSError) -> NoReturn:
            raise StorageError(f"{what}: the directory has failed") from error

        life.node.data.fails_alone(fails)
        running = life.compaction()
        try:
            for taken, work in enumerate(running.steps(life.durable, life.now_ms, MEMORY)):
                life.node.disk.broken = taken >= steps
                if work is not None:
                    work()
        except StorageError:
            assert life.log.compaction is None
        else:
            break
        steps += 1
    assert steps > 20


@pytest.mark.parametrize("suffix", [".log.cleaned", "orders-0"])
def test_a_flush_that_fails_in_a_swap_ends_the_process(life: Compacted, suffix: str) -> None:
    life.node.disk.fail_flush(1, suffix=suffix)
    with pytest.raises(Halted):
        life.compact()
    life.start(PowerCut)
    life.check()


def test_another_process_may_read_and_write_while_the_owner_swaps(life: Compacted) -> None:
    """All that passes between the two are bytes."""
    root = life.node.disk.open_directory("/data")

    class Elsewhere:
        def __init__(self, directory: Directory, plan: Plan) -> None:
            self._sent = encode_plan(plan)
            self._compactor = Compactor(root.directory("orders-0"), decode_plan(self._sent))

        @property
        def moved_bytes(self) -> int:
            return self._compactor.moved_bytes

        @property
        def pause_s(self) -> float:
            return 0.0

        def steps(self) -> Iterator[Said]:
            for said in self._compactor.steps():
                heard = None if said is None else decode_said(encode_said(said))
                assert not isinstance(heard, Refused)
                yield heard

        def abandon(self) -> None:
            self._compactor.abandon()

    running = Compaction(life.log, life.node.data, life.leftovers, Elsewhere)
    for work in running.steps(life.durable, life.now_ms, MEMORY):
        if work is not None:
            work()
    assert running.outcome is not None
    life.check(rot=True)
    life.check_clean()


# ── which log is next ─────────────────────────────────────────────────────────────────────────────────


def test_the_dirtiest_log_is_next_unless_another_has_waited_too_long(life: Compacted) -> None:
    def dirt(clean: int, dirty: int, waiting: int = 0) -> cleaning.Dirt:
        return cleaning.Dirt(clean, dirty, waiting, min_ratio=0.5, max_lag_ms=100)

    one, other = life.log, filled(9).log
    assert cleaning.next_to_compact([(one, dirt(60, 40)), (other, dirt(51, 49))]) is None
    assert cleaning.next_to_compact([(one, dirt(10, 40)), (other, dirt(50, 50))]) is one
    assert cleaning.next_to_compact([(one, dirt(10, 40)), (other, dirt(99, 1, 101))]) is other
    assert cleaning.next_to_compact([(one, dirt(10, 0, 101))]) is None


def test_how_dirty_a_log_is_changes_with_what_is_appended(life: Compacted) -> None:
    assert cleaning.dirt(life.log, life.durable, life.now_ms).ratio == 1
    life.compact()
    assert cleaning.dirt(life.log, life.durable, life.now_ms).ratio == 0
    life.fill(20)
    life.roll()
    found = cleaning.dirt(life.log, life.durable, life.now_ms + 70)
    assert 0 < found.ratio < 1
    assert found.waiting_ms >= 70


def test_a_pace_is_kept_and_idle_time_is_not_saved_up() -> None:
    pace = cleaning.Pace(1000)
    assert pace.pause_s(0, 5.0) == 0
    assert pace.pause_s(500, 5.1) == pytest.approx(0.4)
    assert pace.pause_s(500, 9.0) == 0
    assert pace.pause_s(1500, 9.0) == pytest.approx(1.0)


def test_who_was_asked_for_the_core_rests_as_long_as_it_works_for_a_while() -> None:
    courtesy = cleaning.Courtesy(5.0, 7)
    assert courtesy.rest_s(5.004, 7, 1.0) == 0, "nobody asked"
    assert courtesy.rest_s(5.0045, 8, 1.01) == 0, "too little work to be in the way"
    assert courtesy.rest_s(5.006, 8, 1.02) == pytest.approx(0.002)
    assert courtesy.rest_s(5.009, 8, 1.11) == pytest.approx(0.003), "they may still want it"
    assert courtesy.rest_s(5.012, 8, 1.13) == 0
    assert courtesy.rest_s(5.014, 9, 1.14) == pytest.approx(0.002)


def test_the_map_takes_what_it_was_given_and_no_more() -> None:
    """By what the interpreter says of its own objects, also while a table grows."""
    for memory in (1 << 12, 1 << 16, 1 << 20, 1 << 23):
        keys = key_map.keys_within(memory)
        table = dict.fromkeys(range(keys))
        assert sys.getsizeof(table) + keys * sys.getsizeof(b"k" * 31) <= memory
        assert keys * 200 > memory, "much of it is wasted"
        seen = key_map.keys_seen_within(memory)
        table_of_seen: set[int] = set()
        for key in range(seen):
            table_of_seen.add(key)
        assert sys.getsizeof(table_of_seen) + seen * sys.getsizeof(b"k" * 31) <= memory
        assert seen * 400 > memory, "much of it is wasted"


# ── lives, and planted bugs ───────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_whatever_happens_to_a_compacted_log_its_readers_know_the_last_values(first: int) -> None:
    for seed in range(first, first + 10):
        live(seed)


def test_what_only_an_uncommitted_record_replaces_stays() -> None:
    what_is_not_committed_is_cut_after_it_was_compacted()


def test_a_crash_at_any_step_while_a_tombstone_goes_leaves_no_follower_with_what_it_deleted() -> None:
    crash_everywhere_while_a_tombstone_goes()


def test_a_segment_that_was_sealed_during_its_flush_can_be_compacted_before_the_next() -> None:
    """It is durable, and still on the list of what the next flush takes: nothing is looked for that is gone."""
    life = sealed_during_its_flush()
    assert life.compact().outcome is not None
    life.append()
    life.flush()
    assert values(life.read()) == values(life.records)


def test_a_segment_that_is_being_flushed_stays_open_for_that_when_another_takes_its_place() -> None:
    flushed_while_it_is_compacted()
