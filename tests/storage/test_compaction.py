"""Compaction keeps the last value of every key, whatever happens meanwhile (1.12, C1 to C11; I-41, I-42)."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import msgspec
import pytest

from tests.storage.compacted import CONFIG, MEMORY, Compacted, live, values
from tests.storage.logs import Halted
from tidelog.protocol.batch import DELETE_HORIZON, TRANSACTIONAL, BatchHeader, walk
from tidelog.protocol.errors import DamagedLog, DiskFull, StorageError, TidelogError
from tidelog.protocol.records import decode, encode
from tidelog.protocol.types import Offset
from tidelog.storage import cleaning, compaction, data_directory, key_map, log_compaction, recovery, swap
from tidelog.storage.cleaning import Plan, Said, decode_plan, decode_said, encode_plan, encode_said
from tidelog.storage.compaction import Compactor
from tidelog.storage.files import Directory
from tidelog.storage.log import Log
from tidelog.storage.log_compaction import Compaction
from tidelog.testing.simulation.faults import WHENS, Crash, Killed, PowerCut, When

SEEDS = 60


@pytest.fixture
def life() -> Compacted:
    return filled()


def filled(seed: int = 1, batches: int = 40) -> Compacted:
    life = Compacted(Random(seed))
    life.fill(batches)
    life.roll()
    return life


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


def test_a_truncation_makes_dirty_what_comes_in_its_place_also_after_a_crash(life: Compacted) -> None:
    life.compact()
    cut = life.log.end_offset // 2
    life.durable = cut
    life.truncate(cut)
    assert life.log.first_dirty <= cut
    life.start(Killed)
    assert life.log.first_dirty <= cut


# ── tombstones ────────────────────────────────────────────────────────────────────────────────────────


def deleted_once() -> Compacted:
    life = Compacted(Random(2))
    life.append(keys=[b"a"], tombstones=0)
    life.append(keys=[b"other"], tombstones=0)
    life.append(keys=[b"a"], tombstones=1)
    life.append(keys=[b"last"], tombstones=0)
    life.roll()
    return life


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


# ── in the middle of it ───────────────────────────────────────────────────────────────────────────────


def crash_everywhere(
    make: Callable[[], Compacted], act: Callable[[Compacted], object], *, stride: int = 1
) -> int:
    """Strike at every operation of what is done, in every way; what is there then is checked, and done again."""
    life = make()
    before = life.node.disk.operations
    act(life)
    operations = life.node.disk.operations - before
    for nth in range(1, operations + 1, stride):
        for crash in (Killed, PowerCut):
            strike(make(), act, nth, WHENS[nth % 3] if stride > 1 else "before", crash)
            if stride == 1:
                strike(make(), act, nth, "within", crash)
    strike(make(), act, operations, "after", PowerCut)
    return operations


def strike(
    life: Compacted, act: Callable[[Compacted], object], nth: int, when: When, crash: type[Crash]
) -> None:
    life.node.disk.crash_at(nth, when=when, crash=crash)
    with pytest.raises(Crash):
        act(life)
    life.node.disk._faults.forget_crash()
    life.start(crash)
    life.check()
    assert not [name for name in life.log.directory.names() if name.endswith((".cleaned", ".swap", ".tmp"))]
    act(life)
    life.check(rot=True)


def some() -> Compacted:
    """Small, with tombstones that are due, and with neighbours that become one."""
    life = filled(4, 14)
    life.compact()
    life.now_ms += 5000
    life.append(keys=[b"a", b"b", b"c"])
    life.roll()
    return life


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


def stored(life: Compacted) -> list[str]:
    directory = life.node.disk.medium.directory_at("/data/orders-0")
    return sorted(directory.entries)


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
    """C10: what is committed is finished, what is not is given up; the next compaction goes on (KAFKA-3123)."""
    steps = 0
    while True:
        life = some()
        life.append()
        running = life.compaction()
        ended = True
        for taken, work in enumerate(running.steps(life.durable, life.now_ms, MEMORY)):
            if taken == steps:
                life.truncate(life.durable)
                ended = False
                break
            if work is not None:
                work()
        assert life.log.compaction is None
        life.check()
        assert not [name for name in stored(life) if name.endswith((".cleaned", ".swap", ".tmp"))]
        life.compact()
        life.check(rot=True)
        if ended:
            break
        steps += 1
    assert steps > 20


def test_a_log_that_begins_anew_while_it_is_compacted_has_nothing_of_the_old(life: Compacted) -> None:
    running = life.compaction()
    steps = running.steps(life.durable, life.now_ms, MEMORY)
    for _ in range(5):
        next(steps)
    life.log.truncate_fully_and_start_at(500)
    assert life.log.compaction is None
    assert cleaning.first_dirty(life.log) == 500
    assert life.log.end_offset == 500


def test_damage_ends_a_compaction_and_nothing_is_replaced(life: Compacted) -> None:
    before = [bytes(life.log.read(s.base_offset, 2000).data) for s in life.log.segments[:-1]]
    life.node.disk.rot(f"/data/orders-0/{life.log.segments[2].name}", 150)
    with pytest.raises(DamagedLog):
        life.compact()
    life.node.disk.rot(f"/data/orders-0/{life.log.segments[2].name}", 150)
    assert [bytes(life.log.read(s.base_offset, 2000).data) for s in life.log.segments[:-1]] == before
    assert life.log.compaction is None
    life.compact()
    life.check()


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

        def steps(self) -> Iterator[Said]:
            for said in self._compactor.steps():
                yield None if said is None else decode_said(encode_said(said))

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


def test_the_map_takes_what_it_was_given_and_no_more() -> None:
    """By what the interpreter says of its own objects, also while a table grows."""
    for memory in (1 << 12, 1 << 16, 1 << 20, 1 << 23):
        keys = key_map.keys_within(memory)
        table = dict.fromkeys(range(keys))
        assert sys.getsizeof(table) + keys * sys.getsizeof(b"k" * 31) <= memory
        assert keys * 200 > memory, "much of it is wasted"


# ── lives, and planted bugs ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_whatever_happens_to_a_compacted_log_its_readers_know_the_last_values(first: int) -> None:
    for seed in range(first, first + 10):
        live(seed)


def random_lives() -> None:
    for seed in range(SEEDS * 2):
        live(seed)


Plant = Callable[[pytest.MonkeyPatch], None]


def a_swap_without_a_flush(plant: pytest.MonkeyPatch) -> None:
    def planted(self: swap.Swap) -> None:
        written = self._new.name.removesuffix(swap.SWAP) + compaction.CLEANED
        self._directory.rename(written, self._new.name)
        self._directory.flush()
        self.state = swap.State.COMMITTED

    plant.setattr(swap.Swap, "commit", planted)


def a_swap_whose_name_is_not_durable_before_the_old_files_go(plant: pytest.MonkeyPatch) -> None:
    """The old segments leave before the new one is there."""

    def planted(self: swap.Swap) -> None:
        for base in reversed(self._cleaned.bases):
            self._directory.remove(f"{base:020d}.log")
            self._directory.flush()
        commit(self)

    commit = swap.Swap.commit
    plant.setattr(swap.Swap, "commit", planted)
    plant.setattr(swap.Swap, "finish", lambda self: swap._name(self._directory, self._cleaned.base_offset))


def groups_that_are_put_in_place_from_the_last_on(plant: pytest.MonkeyPatch) -> None:
    """A tombstone goes before the record that it deleted."""
    put = Compaction._carry_out

    def planted(self: Compaction, planned: Plan) -> Iterator[log_compaction.Work | None]:
        begin = self._begin

        class Reversed:
            def __init__(self, directory: Directory, plan: Plan) -> None:
                self._inner = begin(directory, plan)

            def steps(self) -> Iterator[Said]:
                said = [one for one in self._inner.steps() if one is not None]
                yield from reversed(said[:-1])
                yield said[-1]

            def abandon(self) -> None:
                self._inner.abandon()

        self._begin = Reversed
        yield from put(self, planned)

    plant.setattr(Compaction, "_carry_out", planted)


def a_start_that_undoes_what_was_committed(plant: pytest.MonkeyPatch) -> None:
    def planted(directory: Directory) -> Iterator[None]:
        for name in directory.names():
            if name.endswith((".cleaned", ".swap")):
                directory.remove(name)
        return iter(())

    plant.setattr(recovery, "finish_swaps", planted)


def tombstones_that_go_at_once(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(compaction, "are_there_nils", lambda _: False)
    kept = Compactor._thinned

    def planted(self, header, batch, keep, packed, stays):  # type: ignore[no-untyped-def]
        columns = decode(batch)
        keep = [place for place in keep if columns.values[place] is not None or columns.keys[place] is None]
        return kept(self, header, batch, keep, packed, stays)

    plant.setattr(Compactor, "_thinned", planted)


def a_floor_that_is_not_written(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(
        data_directory.DataDirectory, "write_purge_floors", lambda self: self.write_cleaner_offsets()
    )


def a_floor_that_comes_after_the_swap(plant: pytest.MonkeyPatch) -> None:
    def planted(self: Compaction, cleaned: cleaning.Cleaned) -> Iterator[log_compaction.Work | None]:
        self._swap = late = swap.Swap(self._log, cleaned)
        yield from self._work(late.commit, "x")
        late.adopt()
        yield from self._work(late.finish, "x")
        self._leftovers.add(self._log, late.settle(), self._now_ms)
        self._swap = None
        floor = max(self._log.purge_floor, cleaned.purge_floor, 0)
        if floor > self._log.purge_floor:
            self._log.purge_floor = floor
            yield from self._work(lambda: self._checkpoints.write_purge_floors().run())

    plant.setattr(Compaction, "_put_in_place", planted)


def _without(plant: pytest.MonkeyPatch, kind: str) -> None:
    must_stay = Compactor._must_stay

    def planted(self, source, position, header):  # type: ignore[no-untyped-def]
        if kind == "producers":
            self._plan = replace_struct(self._plan, remembered=frozenset())
        if kind == "edges":
            self._firsts, self._lasts = set(), set()
        if kind == "epochs":
            self._epoch = header.leader_epoch
        return must_stay(self, source, position, header)

    plant.setattr(Compactor, "_must_stay", planted)


def replace_struct(plan: Plan, **changes: object) -> Plan:
    return msgspec.structs.replace(plan, **changes)


def batches_that_producers_are_known_by_go(plant: pytest.MonkeyPatch) -> None:
    _without(plant, "producers")


def the_first_batch_of_an_epoch_goes(plant: pytest.MonkeyPatch) -> None:
    _without(plant, "epochs")


def the_last_batch_of_a_segment_goes(plant: pytest.MonkeyPatch) -> None:
    _without(plant, "edges")


def what_the_map_did_not_hold_is_judged(plant: pytest.MonkeyPatch) -> None:
    """A key that is not in a full map may well be newer than what the map has."""
    compact = Compactor._compact_mapped

    def planted(self, reader, mapped):  # type: ignore[no-untyped-def]
        mapped.end = reader.source.size
        self._plan = replace_struct(self._plan)
        yield from compact(self, reader, mapped)

    plant.setattr(Compactor, "_compact_mapped", planted)


def the_high_watermark_is_no_bound(plant: pytest.MonkeyPatch) -> None:
    cleanable = cleaning.cleanable
    for module in (cleaning, log_compaction):
        plant.setattr(module, "cleanable", lambda log, _, now_ms: cleanable(log, 1 << 60, now_ms))


def the_first_record_of_a_key_stays(plant: pytest.MonkeyPatch) -> None:
    def planted(self: key_map.KeyMap, keys: list[bytes | None], block: int) -> bool:
        for key in keys:
            self._last.setdefault(key, block)
        return self._last.pop(None, None) is not None

    plant.setattr(key_map.KeyMap, "add", planted)


def two_in_one_block_both_go(plant: pytest.MonkeyPatch) -> None:
    def planted(self, keys, number):  # type: ignore[no-untyped-def]
        places = iter(())
        kept = yield from original(self, keys, number)
        seen = [keys[place] for place in kept]
        del places
        return [place for place, key in zip(kept, seen, strict=True) if keys.count(key) == 1 or key is None]

    original = Compactor._kept
    plant.setattr(Compactor, "_kept", planted)


def long_keys_that_are_cut(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(compaction, "represented", lambda keys: [key and key[:31] for key in keys])


def a_truncation_that_goes_on_beside_a_compaction(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Log, "_end_compaction", lambda _: None)


def a_truncation_that_leaves_the_first_dirty_offset(plant: pytest.MonkeyPatch) -> None:
    lower = data_directory.DataDirectory.lower_recovery_point

    def planted(self: data_directory.DataDirectory, log: Log, offset: Offset) -> None:
        before = log.first_dirty
        lower(self, log, offset)
        log.first_dirty = before

    plant.setattr(data_directory.DataDirectory, "lower_recovery_point", planted)


def a_first_dirty_offset_that_is_written_first(plant: pytest.MonkeyPatch) -> None:
    """A crash then leaves for clean what is not."""
    carry_out = Compaction._carry_out

    def planted(self: Compaction, planned: Plan) -> Iterator[log_compaction.Work | None]:
        self._log.first_dirty = planned.end
        yield from self._work(lambda: self._checkpoints.write_cleaner_offsets().run())
        yield from carry_out(self, planned)

    plant.setattr(Compaction, "_carry_out", planted)


def crash_and_look_whether_it_is_clean() -> None:
    def act(life: Compacted) -> None:
        life.compact()
        life.check_clean()

    crash_everywhere(some, act, stride=2)


def truncate_and_append_and_look_whether_it_is_clean() -> None:
    life = filled()
    life.compact()
    life.durable = life.log.end_offset // 2
    life.truncate(life.durable)
    life.fill(30)
    life.roll()
    life.compact()
    life.check_clean()


def what_is_not_committed_is_cut_after_it_was_compacted() -> None:
    """Another leader's history follows: the older value, which only the cut record had replaced, is the last again."""
    life = Compacted(Random(1))
    life.append(keys=[b"a"], tombstones=0)
    life.log.roll()
    committed = life.log.end_offset
    life.append(keys=[b"a"], tombstones=0)
    life.roll()
    life.durable = committed
    life.compact()
    life.truncate(committed)
    life.check()


def test_what_only_an_uncommitted_record_replaces_stays() -> None:
    what_is_not_committed_is_cut_after_it_was_compacted()


def crash_everywhere_in_some() -> None:
    crash_everywhere(some, Compacted.compact, stride=1)


def crash_everywhere_while_a_tombstone_goes() -> None:
    def due() -> Compacted:
        life = deleted_once()
        life.compact()
        life.now_ms += 2000
        life.append(keys=[b"last"], tombstones=0)
        life.roll()
        return life

    crash_everywhere(due, Compacted.compact)


def test_a_crash_at_any_step_while_a_tombstone_goes_leaves_no_follower_with_what_it_deleted() -> None:
    crash_everywhere_while_a_tombstone_goes()


PLANTS: dict[Plant, Callable[[], None]] = {
    a_swap_without_a_flush: crash_everywhere_in_some,
    a_swap_whose_name_is_not_durable_before_the_old_files_go: crash_everywhere_in_some,
    groups_that_are_put_in_place_from_the_last_on: random_lives,
    a_start_that_undoes_what_was_committed: crash_everywhere_in_some,
    tombstones_that_go_at_once: random_lives,
    a_floor_that_is_not_written: random_lives,
    a_floor_that_comes_after_the_swap: crash_everywhere_while_a_tombstone_goes,
    batches_that_producers_are_known_by_go: random_lives,
    the_first_batch_of_an_epoch_goes: random_lives,
    the_last_batch_of_a_segment_goes: random_lives,
    what_the_map_did_not_hold_is_judged: random_lives,
    the_high_watermark_is_no_bound: what_is_not_committed_is_cut_after_it_was_compacted,
    the_first_record_of_a_key_stays: random_lives,
    two_in_one_block_both_go: random_lives,
    long_keys_that_are_cut: random_lives,
    a_truncation_that_goes_on_beside_a_compaction: random_lives,
    a_truncation_that_leaves_the_first_dirty_offset: truncate_and_append_and_look_whether_it_is_clean,
    a_first_dirty_offset_that_is_written_first: crash_and_look_whether_it_is_clean,
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, TidelogError, OSError, Halted, KeyError)):
        PLANTS[plant]()
