"""Each bug that is planted in compaction is found by a random life, or by crashes at every step."""

from collections.abc import Callable, Iterator

import msgspec
import pytest

from tests.storage.compacted import (
    Compacted,
    crash_everywhere,
    crash_everywhere_while_a_record_goes_with_its_tombstone,
    crash_everywhere_while_a_tombstone_goes,
    cut_at_every_step,
    damage_ends_it,
    filled,
    flushed_while_it_is_compacted,
    live,
    some,
    what_is_not_committed_is_cut_after_it_was_compacted,
)
from tests.storage.logs import Halted
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.records import decode
from tidelog.protocol.types import Offset
from tidelog.storage import cleaning, compaction, data_directory, key_map, log_compaction, recovery, swap
from tidelog.storage.cleaned_segment import CLEANED
from tidelog.storage.cleaning import Plan, Said
from tidelog.storage.compaction import Compactor
from tidelog.storage.files import Directory
from tidelog.storage.log import Log
from tidelog.storage.log_compaction import Compaction
from tidelog.storage.segment import Segment
from tidelog.storage.works import Work

SEEDS = 120
"""Within so many lives a planted bug must have been caught; each catch is found within a few seconds."""


def random_lives() -> None:
    for seed in range(SEEDS):
        live(seed)


Plant = Callable[[pytest.MonkeyPatch], None]


def a_swap_without_a_flush(plant: pytest.MonkeyPatch) -> None:
    def planted(self: swap.Swap) -> None:
        written = self._new.name.removesuffix(swap.SWAP) + CLEANED
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

    def planted(self: Compaction, planned: Plan) -> Iterator[Work | None]:
        begin = self._begin

        class Reversed:
            def __init__(self, directory: Directory, plan: Plan) -> None:
                self._inner = begin(directory, plan)

            @property
            def moved_bytes(self) -> int:
                return 0

            @property
            def pause_s(self) -> float:
                return 0.0

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
    kept = Compactor._thinned

    def planted(self, header, batch, keep, _, stays):  # type: ignore[no-untyped-def]
        columns = decode(batch)
        keep = [place for place in keep if columns.values[place] is not None or columns.keys[place] is None]
        return kept(self, header, batch, keep, has_nil=False, stays=stays)

    plant.setattr(Compactor, "_thinned", planted)


def a_floor_that_is_not_written(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(
        data_directory.DataDirectory, "write_purge_floors", lambda self: self.write_cleaner_offsets()
    )


def a_floor_that_comes_after_the_swap(plant: pytest.MonkeyPatch) -> None:
    def planted(self: Compaction, cleaned: cleaning.Cleaned) -> Iterator[Work | None]:
        self._swap = late = swap.Swap(self._log, cleaned)
        yield from self._work(late.commit, "x")
        late.adopt()
        yield from self._work(late.finish, "x")
        self._leftovers.add(self._log, late.settle(), self._now_ms)
        self._swap = None
        floor = max(self._log.purge_floor, cleaned.purge_floor, 0)
        if floor > self._log.purge_floor:
            self._log.purge_floor = floor
            yield from self._work(self._checkpoints.write_purge_floors().run)

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

    def planted(self: Compaction, planned: Plan) -> Iterator[Work | None]:
        self._log.first_dirty = planned.end
        yield from self._work(self._checkpoints.write_cleaner_offsets().run)
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


def crash_everywhere_in_some() -> None:
    crash_everywhere(some, Compacted.compact, stride=1)


def the_first_of_two_in_one_block_stays(plant: pytest.MonkeyPatch) -> None:
    def planted(self: key_map.KeySet, keys: list[bytes | None], first: int) -> list[int]:
        new = [place for place, key in enumerate(keys) if key not in self._seen and keys.index(key) == place]
        self._seen.update(key for key in keys if key is not None)
        return [first + place for place in new]

    plant.setattr(key_map.KeySet, "newest", planted)


def bodies_that_are_not_verified(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(compaction, "check_body", lambda *_: None)


def a_file_that_is_closed_while_it_is_flushed(plant: pytest.MonkeyPatch) -> None:
    let_go = Segment.let_go

    def planted(self: Segment) -> None:
        self.pins = 0
        let_go(self)

    plant.setattr(Segment, "let_go", planted)


PLANTS: dict[Plant, Callable[[], None]] = {
    a_swap_without_a_flush: crash_everywhere_in_some,
    a_swap_whose_name_is_not_durable_before_the_old_files_go: crash_everywhere_in_some,
    groups_that_are_put_in_place_from_the_last_on: crash_everywhere_while_a_record_goes_with_its_tombstone,
    a_start_that_undoes_what_was_committed: crash_everywhere_in_some,
    tombstones_that_go_at_once: random_lives,
    a_floor_that_is_not_written: crash_everywhere_while_a_tombstone_goes,
    a_floor_that_comes_after_the_swap: crash_everywhere_while_a_tombstone_goes,
    batches_that_producers_are_known_by_go: random_lives,
    the_first_batch_of_an_epoch_goes: random_lives,
    the_last_batch_of_a_segment_goes: random_lives,
    what_the_map_did_not_hold_is_judged: random_lives,
    the_high_watermark_is_no_bound: what_is_not_committed_is_cut_after_it_was_compacted,
    the_first_record_of_a_key_stays: random_lives,
    two_in_one_block_both_go: random_lives,
    long_keys_that_are_cut: random_lives,
    the_first_of_two_in_one_block_stays: random_lives,
    bodies_that_are_not_verified: damage_ends_it,
    a_file_that_is_closed_while_it_is_flushed: flushed_while_it_is_compacted,
    a_truncation_that_goes_on_beside_a_compaction: cut_at_every_step,
    a_truncation_that_leaves_the_first_dirty_offset: truncate_and_append_and_look_whether_it_is_clean,
    a_first_dirty_offset_that_is_written_first: crash_and_look_whether_it_is_clean,
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, TidelogError, OSError, Halted, KeyError)):
        PLANTS[plant]()
