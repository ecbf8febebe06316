"""A small file is replaced whole (docs/STORAGE.md, 1), and three ways to get it wrong."""

import random
from collections.abc import Callable

import pytest

from tidelog.protocol.types import Buffer
from tidelog.storage.files import TEMPORARY, Directory, NoRoom, read_whole, write_whole
from tidelog.testing.simulation.crashes import every_crash
from tidelog.testing.simulation.disk import SimulatedDisk

OLD = b"old content\n" * 500
NEW = b"NEW CONTENT, AND LONGER\n" * 600

Replace = Callable[[Directory, str, Buffer], None]


def replace_and_crash(replace: Replace, *, seeds: int) -> None:
    """The file is whole after every crash, and new for sure once the replacement has returned."""
    for aftermath in every_crash(
        lambda directory: write_whole(directory, "file", OLD),
        lambda directory, _: replace(directory, "file", NEW),
        seeds=range(seeds),
    ):
        content = read_whole(aftermath.disk.open_directory(), "file")
        # Not compared within the assertion: pytest would explain how the two contents differ, for a minute.
        is_new, is_old = content == NEW, content == OLD
        assert is_new or (is_old and not aftermath.returned), aftermath.where


def test_after_any_crash_the_file_is_the_old_one_or_the_new_one() -> None:
    replace_and_crash(write_whole, seeds=20)


def test_a_crash_is_survived_by_the_next_replacement() -> None:
    for aftermath in every_crash(
        lambda directory: write_whole(directory, "file", OLD),
        lambda directory, _: write_whole(directory, "file", NEW),
    ):
        write_whole(aftermath.disk.open_directory(), "file", b"third")
        aftermath.disk.power_cut()
        assert read_whole(aftermath.disk.open_directory(), "file") == b"third", aftermath.where


@pytest.mark.parametrize(("nth", "possible"), [(1, {OLD}), (2, {OLD, NEW})])
def test_a_flush_that_fails_is_told_and_the_file_is_whole(nth: int, possible: set[bytes]) -> None:
    found = set()
    for seed in range(50):
        disk = SimulatedDisk(random.Random(seed))
        write_whole(disk.open_directory(), "file", OLD)
        disk.fail_flush(nth)
        with pytest.raises(OSError, match="Input/output error"):
            write_whole(disk.open_directory(), "file", NEW)
        disk.power_cut()
        found.add(read_whole(disk.open_directory(), "file"))
    assert found == possible


def test_a_full_disk_leaves_the_old_file_and_gets_its_room_back(simulated_disk: SimulatedDisk) -> None:
    directory = simulated_disk.open_directory()
    write_whole(directory, "file", OLD)
    simulated_disk.capacity = len(OLD) + 100
    with pytest.raises(NoRoom, match=f"no room for {len(NEW)} bytes"):
        write_whole(directory, "file", NEW)
    assert (read_whole(directory, "file"), directory.names()) == (OLD, ["file"])
    assert directory.free_space() == 100


# ── planted: what the check above is for ───────────────────────────────────────────────────────────


def without_file_flush(directory: Directory, name: str, content: Buffer) -> None:
    file = directory.open(name + TEMPORARY, create=True)
    file.truncate(0)
    file.write_at(0, content)
    file.close()
    directory.rename(name + TEMPORARY, name)
    directory.flush()


def without_rename(directory: Directory, name: str, content: Buffer) -> None:
    file = directory.open(name)
    file.truncate(0)
    file.write_at(0, content)
    file.flush()
    file.close()


def without_directory_flush(directory: Directory, name: str, content: Buffer) -> None:
    file = directory.open(name + TEMPORARY, create=True)
    file.truncate(0)
    file.write_at(0, content)
    file.flush()
    file.close()
    directory.rename(name + TEMPORARY, name)


@pytest.mark.parametrize("planted", [without_file_flush, without_rename, without_directory_flush])
def test_every_step_is_needed(planted: Replace) -> None:
    with pytest.raises(AssertionError, match="seed"):
        replace_and_crash(planted, seeds=3)
