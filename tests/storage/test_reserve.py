"""The reserve of a data directory: what it is kept for is written to a full disk, and nothing else gets any of it."""

import errno
import random
from contextlib import nullcontext

import pytest

from tidelog.controller.facts import METADATA
from tidelog.storage.checkpoints import write_leader_epochs
from tidelog.storage.epochs import EpochEntry
from tidelog.storage.files import Directory, NoRoom, read_whole, write_whole
from tidelog.storage.names import partition_name
from tidelog.storage.reserve import METADATA_LOG, RESERVE, Reserve, Reserved
from tidelog.testing.simulation.disk import SimulatedDisk

SIZE = 16_000


class Place:
    """A data directory with a reserve on a disk of some size."""

    def __init__(self, capacity: int = 1 << 20, size: int = SIZE) -> None:
        self.disk = SimulatedDisk(random.Random(1), capacity=capacity)
        self.size = size
        self.begin()
        self.reserve.take_back()

    def begin(self) -> None:
        """A process begins on it."""
        directory = self.disk.open_directory()
        self.reserve = Reserve(directory, self.size, nullcontext())
        self.directory: Directory = Reserved(directory, self.reserve)
        self.partition = self.directory.directory("orders-0", create=True)

    def fill(self, room: int = 0) -> None:
        """Somebody else fills the disk."""
        self.disk.capacity = self.disk.medium.used + room

    def append(self, size: int, name: str = "00000000000000000000.log") -> None:
        """Records come."""
        file = self.partition.open(name, create=True)
        try:
            file.write_at(file.size(), b"x" * size)
        finally:
            file.close()


@pytest.fixture
def place() -> Place:
    return Place()


def test_the_reserve_takes_its_room_and_no_more_than_a_part_of_what_there_is(place: Place) -> None:
    assert place.reserve.held == place.disk.medium.used == SIZE
    small = Place(capacity=8000)
    assert small.reserve.held == small.disk.medium.used == 1000


def test_what_it_is_kept_for_is_written_to_a_full_disk(place: Place) -> None:
    place.fill()
    write_whole(place.directory, "quorum-state", b"q" * 200)
    assert read_whole(place.directory, "quorum-state") == b"q" * 200
    file = place.directory.directory(METADATA_LOG, create=True).open("0.log", create=True)
    file.write_at(0, b"m" * 3000)
    assert file.read_at(0, 9000) == b"m" * 3000
    write_leader_epochs(place.partition, [EpochEntry(0, 0)])
    assert 0 < place.reserve.held < SIZE


def test_it_is_given_in_parts_and_all_of_it_at_last(place: Place) -> None:
    place.fill()
    write_whole(place.directory, "marker", b"x")
    assert place.reserve.held == SIZE - SIZE // 16
    write_whole(place.directory, "marker", b"x" * (SIZE - 1))
    assert place.reserve.held == 0
    with pytest.raises(NoRoom):
        write_whole(place.directory, "marker", b"x" * 2)
    assert read_whole(place.directory, "marker") == b"x" * (SIZE - 1), "what was there is there"


def test_nothing_of_it_goes_to_the_records_of_partitions(place: Place) -> None:
    place.fill()
    with pytest.raises(OSError, match="No space"):
        place.append(1)
    assert place.reserve.held == SIZE


def test_while_some_of_it_is_out_no_records_are_written_where_there_is_room(place: Place) -> None:
    place.append(10)
    place.fill()
    write_whole(place.directory, "marker", b"x")
    assert place.disk.capacity > place.disk.medium.used, "what was given and not used"
    with pytest.raises(OSError, match="reserve is out") as refused:
        place.append(1)
    assert refused.value.errno == errno.ENOSPC
    assert place.directory.free_space() == 0, "it is owed"
    file = place.partition.open("00000000000000000000.log")
    file.write_at(3, b"y" * 7)
    assert file.read_at(0, 99) == b"xxxyyyyyyy", "they are read, and recovery writes them again"


def test_it_comes_back_when_there_is_room_for_it_and_a_little_more(place: Place) -> None:
    place.fill()
    write_whole(place.directory, "marker", b"x")
    enough = place.reserve.owed + SIZE // 256
    place.fill(enough - 1)
    assert not place.reserve.take_back()
    place.fill(enough)
    assert place.reserve.take_back()
    assert place.reserve.held == SIZE
    place.append(1)


def test_who_fills_the_disk_meanwhile_does_not_keep_it_from_being_tried_again(place: Place) -> None:
    place.fill()
    write_whole(place.directory, "marker", b"x")
    place.disk.capacity = place.disk.medium.used - 1
    assert not place.reserve.take_back()
    place.disk.capacity = 1 << 20
    assert place.reserve.take_back()


def test_a_process_that_begins_on_a_full_disk_has_what_the_last_one_kept(place: Place) -> None:
    place.fill()
    place.disk.kill()
    place.begin()
    place.reserve.take_back()
    assert place.reserve.held == SIZE
    write_whole(place.directory, "marker", b"x")


@pytest.mark.parametrize("size", [0, 4000, 32_000])
def test_another_setting_is_another_size_from_the_next_start_on(place: Place, size: int) -> None:
    place.disk.kill()
    place.size = size
    place.begin()
    assert place.reserve.take_back()
    assert place.reserve.held == place.directory.size_of(RESERVE) == size


def test_the_metadata_log_is_the_one_that_it_is_kept_for() -> None:
    assert partition_name(METADATA) == METADATA_LOG
