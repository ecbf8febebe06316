"""The disk under a node of a test cluster: full when it is told so, and closed to the dead."""

import errno
from pathlib import Path

import pytest

from tidelog.storage.files import NoRoom, read_whole, write_whole
from tidelog.testing.disk import Disk


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(str(tmp_path))


def test_what_makes_a_file_longer_does_not_fit_and_what_overwrites_it_does(disk: Disk) -> None:
    file = disk.mount().open("file", create=True)
    file.write_at(0, b"0123456789")
    disk.full = True
    file.write_at(5, b"abcde")
    with pytest.raises(OSError, match="No space") as full:
        file.write_at(8, b"12", b"34")
    assert full.value.errno == errno.ENOSPC
    assert file.read_at(0, 99) == b"01234abc12", "as much of it as fits"
    file.close()


def test_room_that_is_made_is_room(disk: Disk) -> None:
    directory = disk.mount()
    write_whole(directory, "old", b"x" * 100)
    disk.full = True
    assert directory.free_space() == 0
    with pytest.raises(NoRoom):
        write_whole(directory, "new", b"y" * 50)
    directory.remove("old")
    assert directory.free_space() == 100
    write_whole(directory, "new", b"y" * 50)
    assert read_whole(directory, "new") == b"y" * 50
    assert directory.free_space() == 50


def test_a_replaced_a_shortened_and_a_removed_tree_of_files_make_room(disk: Disk) -> None:
    directory = disk.mount()
    below = directory.directory("below", create=True)
    write_whole(below, "one", b"x" * 10)
    write_whole(directory, "a", b"x" * 20)
    write_whole(directory, "b", b"x" * 30)
    disk.full = True
    directory.rename("a", "b")
    directory.remove_directory("below")
    file = directory.open("b")
    file.truncate(15)
    assert directory.free_space() == 30 + 10 + 5
    file.close()


def test_a_disk_with_room_again_knows_nothing_of_before(disk: Disk) -> None:
    directory = disk.mount()
    file = directory.open("file", create=True)
    disk.full = True
    with pytest.raises(OSError, match="No space"):
        file.write_at(0, b"x")
    disk.full = False
    file.write_at(0, b"x" * 100)
    assert directory.free_space() > 0
    file.close()


def test_the_dead_write_nothing_and_their_lock_is_free(disk: Disk) -> None:
    directory = disk.mount()
    file = directory.open("file", create=True)
    directory.lock("lock", b"1")
    disk.kill()
    with pytest.raises(OSError, match="Bad file"):
        file.write_at(0, b"x")
    with pytest.raises(OSError, match="Bad file"):
        file.flush()
    with pytest.raises(OSError, match="Bad file"):
        directory.open("other", create=True)
    again = disk.mount()
    again.lock("lock", b"2").release()
    assert again.size_of("file") == 0
