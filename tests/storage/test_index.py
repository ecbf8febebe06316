"""Sparse indexes: a cache that is believed only as far as its checksums reach (ADR 0010)."""

from random import Random

import pytest

from tidelog.storage.files import Directory
from tidelog.storage.index import OFFSETS, TIMES, SparseIndex
from tidelog.testing.simulation.disk import SimulatedDisk

NAME = "0.index"


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(Random(1))


@pytest.fixture
def directory(disk: SimulatedDisk) -> Directory:
    return disk.open_directory("/data")


def saved(directory: Directory, *blocks: list[tuple[int, int]]) -> SparseIndex:
    """An index saved in blocks, each covering 100 bytes of log per entry so far."""
    index = SparseIndex(OFFSETS)
    for block in blocks:
        for key, value in block:
            index.add(key, value)
        index.save(directory, NAME, 100 * len(index))
    return index


def load(directory: Directory, log_size: int = 10_000) -> list[tuple[int, int]]:
    index = SparseIndex.load(OFFSETS, directory, NAME, log_size)
    return list(zip(index.keys, index.values, strict=True))


def test_the_greatest_key_at_or_below_the_one_sought_is_found() -> None:
    index = SparseIndex(OFFSETS)
    for key, value in ((3, 10), (5, 20), (9, 30)):
        index.add(key, value)
    assert [index.floor(key) for key in (2, 3, 4, 5, 8, 9, 100)] == [-1, 0, 0, 1, 1, 2, 2]


def test_what_was_saved_in_blocks_is_loaded_as_one(directory: Directory) -> None:
    saved(directory, [(1, 0), (2, 100)], [(7, 250)], [])
    assert load(directory) == [(1, 0), (2, 100), (7, 250)]


def test_a_missing_file_is_an_empty_index(directory: Directory) -> None:
    assert load(directory) == []


def test_a_file_cut_at_any_byte_keeps_its_whole_blocks(directory: Directory) -> None:
    saved(directory, [(1, 0), (2, 100)], [(7, 250)])
    whole = directory.open(NAME).read_at(0, 1000)
    for cut in range(len(whole)):
        directory.open(NAME).truncate(cut)
        assert load(directory) in ([], [(1, 0), (2, 100)]), f"cut at {cut}"
        directory.open(NAME).write_at(0, whole)


def test_a_flipped_bit_anywhere_costs_its_block_and_those_behind_it(
    disk: SimulatedDisk, directory: Directory
) -> None:
    saved(directory, [(1, 0), (2, 100)], [(7, 250)])
    for position in range(directory.size_of(NAME)):
        for bit in range(8):
            disk.rot(f"/data/{NAME}", position, bit)
            assert load(directory) in ([], [(1, 0), (2, 100)]), f"byte {position} bit {bit}"
            disk.rot(f"/data/{NAME}", position, bit)


def test_blocks_that_reach_beyond_the_log_are_not_believed(directory: Directory) -> None:
    saved(directory, [(1, 0), (2, 100)], [(7, 250)])
    assert load(directory, log_size=299) == [(1, 0), (2, 100)]


def test_saving_after_a_load_that_stopped_early_replaces_the_rest(directory: Directory) -> None:
    saved(directory, [(1, 0), (2, 100)], [(7, 250)])
    index = SparseIndex.load(OFFSETS, directory, NAME, 299)
    index.add(8, 260)
    index.save(directory, NAME, 320)
    assert load(directory) == [(1, 0), (2, 100), (8, 260)]


def test_a_time_index_is_not_taken_for_an_offset_index(directory: Directory) -> None:
    index = SparseIndex(TIMES)
    index.add(1_700_000_000_000, 4)
    index.save(directory, NAME, 100)
    assert load(directory) == []


def test_nothing_is_written_when_nothing_is_new(disk: SimulatedDisk, directory: Directory) -> None:
    index = saved(directory, [(1, 0)])
    before = disk.operations
    index.save(directory, NAME, index.covered)
    assert disk.operations == before
