"""One contract, two disks: every promise of `storage.files`, asked of the real disk and of the simulated one."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tidelog.storage.files import Directory, File, Lock, is_name, read_whole, write_whole
from tidelog.storage.io import open_directory
from tidelog.testing.disk import Disk
from tidelog.testing.simulation.disk import SimulatedDisk


@pytest.fixture(params=["real", "simulated", "watched"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    if request.param == "real":
        return open_directory(str(tmp_path))
    if request.param == "watched":
        return Disk(str(tmp_path)).mount()
    return SimulatedDisk(random.Random(1)).open_directory()


@pytest.fixture
def file(directory: Directory) -> Iterator[File]:
    file = directory.open("file", create=True)
    yield file
    file.close()


# ── bytes ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_file_is_empty(file: File) -> None:
    assert file.size() == 0
    assert file.read_at(0, 10) == b""


def test_what_was_written_is_read(file: File) -> None:
    file.write_at(0, b"tide")
    assert file.read_at(0, 4) == b"tide"
    assert file.size() == 4


def test_several_buffers_are_written_one_behind_the_other(file: File) -> None:
    file.write_at(2, b"one", bytearray(b"two"), b"", memoryview(b"three"))
    assert file.read_at(0, 99) == b"\0\0onetwothree"


def test_more_buffers_than_one_call_takes_are_written_as_well(file: File) -> None:
    buffers = [bytes([number % 251]) * 3 for number in range(5000)]
    file.write_at(7, *buffers)
    assert file.read_at(7, 20_000) == b"".join(buffers)


def test_no_buffers_and_empty_buffers_change_nothing(file: File) -> None:
    file.write_at(100)
    file.write_at(100, b"")
    file.write_at(100, b"", b"")
    assert file.size() == 0


def test_a_write_replaces_what_was_there_and_nothing_beside_it(file: File) -> None:
    file.write_at(0, b"abcdef")
    file.write_at(2, b"XY")
    assert file.read_at(0, 9) == b"abXYef"


def test_a_gap_before_a_write_reads_as_zeros(file: File) -> None:
    file.write_at(0, b"a")
    file.write_at(4, b"b")
    assert file.read_at(0, 9) == b"a\0\0\0b"


def test_a_read_ends_where_the_file_ends(file: File) -> None:
    file.write_at(0, b"abc")
    assert file.read_at(1, 100) == b"bc"
    assert file.read_at(3, 100) == b""
    assert file.read_at(50, 100) == b""


def test_a_read_of_nothing_is_empty(file: File) -> None:
    file.write_at(0, b"abc")
    assert file.read_at(1, 0) == b""


def test_what_was_read_does_not_change_with_the_file(file: File) -> None:
    file.write_at(0, b"abc")
    before = file.read_at(0, 3)
    file.write_at(0, b"xyz")
    assert before == b"abc"


def test_what_was_written_does_not_change_with_the_buffer(file: File) -> None:
    buffer = bytearray(b"abc")
    file.write_at(0, buffer)
    buffer[:] = b"xyz"
    assert file.read_at(0, 3) == b"abc"


@pytest.mark.parametrize(
    "act", [lambda f: f.read_at(-1, 1), lambda f: f.write_at(-1, b"x"), lambda f: f.truncate(-1)]
)
def test_positions_below_zero_are_refused(file: File, act: Callable[[File], object]) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        act(file)


def test_truncation_cuts_the_end(file: File) -> None:
    file.write_at(0, b"abcdef")
    file.truncate(2)
    assert (file.size(), file.read_at(0, 9)) == (2, b"ab")


def test_what_was_cut_off_does_not_come_back(file: File) -> None:
    file.write_at(0, b"abcdef")
    file.truncate(2)
    file.write_at(4, b"x")
    assert file.read_at(0, 9) == b"ab\0\0x"


def test_two_handles_are_one_file(directory: Directory, file: File) -> None:
    other = directory.open("file")
    file.write_at(0, b"abc")
    assert other.read_at(0, 3) == b"abc"
    other.close()


def test_a_flush_of_what_is_flushed_is_no_error(file: File) -> None:
    file.write_at(0, b"abc")
    file.flush()
    file.flush()
    assert file.read_at(0, 3) == b"abc"


@pytest.mark.parametrize(
    "act",
    [
        lambda file: file.size(),
        lambda file: file.read_at(0, 1),
        lambda file: file.write_at(0, b"x"),
        lambda file: file.write_at(0, b"x", b"y"),
        lambda file: file.truncate(0),
        lambda file: file.flush(),
    ],
)
def test_a_closed_handle_is_good_for_nothing(file: File, act: Callable[[File], object]) -> None:
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        act(file)


# ── names ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_missing_file_is_not_opened(directory: Directory) -> None:
    with pytest.raises(FileNotFoundError):
        directory.open("file")
    assert directory.names() == []


def test_opening_for_creation_keeps_what_is_there(directory: Directory, file: File) -> None:
    file.write_at(0, b"abc")
    again = directory.open("file", create=True)
    assert again.read_at(0, 3) == b"abc"
    again.close()


def test_names_are_sorted(directory: Directory) -> None:
    for name in ("b", "a10", "a9", "B"):
        directory.open(name, create=True).close()
    directory.directory("aa", create=True)
    assert list(directory.names()) == ["B", "a10", "a9", "aa", "b"]


def test_files_and_directories_are_told_apart(directory: Directory, file: File) -> None:
    file.write_at(0, b"x")
    directory.directory("below", create=True)
    assert [directory.exists(name) for name in ("file", "below", "none")] == [True, True, False]
    assert [directory.is_directory(name) for name in ("file", "below", "none")] == [False, True, False]


def test_the_size_is_known_without_opening(directory: Directory, file: File) -> None:
    file.write_at(0, b"abc")
    assert directory.size_of("file") == 3


def test_room_that_is_allocated_is_zeros_and_what_was_written_stays(directory: Directory, file: File) -> None:
    file.write_at(0, b"abc")
    file.allocate(1 << 20)
    assert file.size() == directory.size_of("file") == 1 << 20
    assert file.read_at(1, 5) == b"bc\0\0\0"
    file.allocate(10)
    assert file.size() == 1 << 20, "it never shortens a file"
    file.truncate(2)
    assert (file.size(), file.read_at(0, 9)) == (2, b"ab")
    file.write_at(4, b"x")
    assert file.read_at(0, 9) == b"ab\0\0x"


def test_the_size_of_nothing_and_of_a_directory_is_refused(directory: Directory) -> None:
    directory.directory("below", create=True)
    with pytest.raises(FileNotFoundError):
        directory.size_of("none")
    with pytest.raises(IsADirectoryError):
        directory.size_of("below")


def test_a_file_keeps_its_bytes_under_another_name(directory: Directory, file: File) -> None:
    file.write_at(0, b"abc")
    directory.rename("file", "other")
    assert list(directory.names()) == ["other"]
    assert read_whole(directory, "other") == b"abc"


def test_an_open_file_stays_open_when_it_is_renamed(directory: Directory, file: File) -> None:
    directory.rename("file", "other")
    file.write_at(0, b"abc")
    assert read_whole(directory, "other") == b"abc"


def test_a_rename_takes_the_place_of_what_had_the_name(directory: Directory, file: File) -> None:
    write_whole(directory, "other", b"new")
    file.write_at(0, b"old")
    directory.rename("other", "file")
    assert read_whole(directory, "file") == b"new"
    assert file.read_at(0, 3) == b"old"


def test_a_rename_to_its_own_name_changes_nothing(directory: Directory, file: File) -> None:
    file.write_at(0, b"abc")
    directory.rename("file", "file")
    assert read_whole(directory, "file") == b"abc"


def test_what_is_missing_is_not_renamed(directory: Directory) -> None:
    with pytest.raises(FileNotFoundError):
        directory.rename("none", "other")


def test_files_and_directories_do_not_replace_each_other(directory: Directory, file: File) -> None:
    file.write_at(0, b"x")
    directory.directory("below", create=True)
    with pytest.raises(IsADirectoryError):
        directory.rename("file", "below")
    with pytest.raises(NotADirectoryError):
        directory.rename("below", "file")


def test_a_directory_replaces_an_empty_one_only(directory: Directory) -> None:
    directory.directory("a", create=True).open("x", create=True).close()
    directory.directory("b", create=True)
    directory.rename("a", "b")
    directory.directory("a", create=True)
    with pytest.raises(OSError, match="not empty"):
        directory.rename("a", "b")


def test_a_renamed_directory_is_found_by_its_new_name_only(directory: Directory) -> None:
    below = directory.directory("a", create=True)
    below.open("x", create=True).close()
    directory.rename("a", "b")
    assert list(directory.directory("b").names()) == ["x"]
    with pytest.raises(FileNotFoundError):
        below.names()


def test_a_removed_file_is_gone_and_its_handle_still_good(directory: Directory, file: File) -> None:
    file.write_at(0, b"abc")
    directory.remove("file")
    assert not directory.exists("file")
    assert file.read_at(0, 3) == b"abc"
    file.write_at(3, b"def")
    assert file.size() == 6


def test_a_name_used_again_is_another_file(directory: Directory, file: File) -> None:
    file.write_at(0, b"abc")
    directory.remove("file")
    assert read_whole_or_new(directory, "file") == b""
    assert file.read_at(0, 3) == b"abc"


def read_whole_or_new(directory: Directory, name: str) -> bytes:
    directory.open(name, create=True).close()
    return read_whole(directory, name)


def test_a_missing_file_is_not_removed(directory: Directory) -> None:
    with pytest.raises(FileNotFoundError):
        directory.remove("none")


def test_a_directory_is_not_removed_as_a_file(directory: Directory) -> None:
    directory.directory("below", create=True)
    with pytest.raises((IsADirectoryError, PermissionError)):  # POSIX says EPERM, Linux EISDIR
        directory.remove("below")
    assert directory.exists("below")


def test_a_directory_is_not_opened_as_a_file(directory: Directory) -> None:
    directory.directory("below", create=True)
    with pytest.raises(IsADirectoryError):
        directory.open("below")


def test_a_missing_directory_is_made_only_on_demand(directory: Directory) -> None:
    with pytest.raises(FileNotFoundError):
        directory.directory("below")
    below = directory.directory("below", create=True)
    assert below.path == f"{directory.path}/below"
    assert list(below.names()) == []


def test_making_a_directory_again_keeps_what_is_in_it(directory: Directory) -> None:
    directory.directory("below", create=True).open("x", create=True).close()
    assert list(directory.directory("below", create=True).names()) == ["x"]


def test_a_file_is_not_a_directory(directory: Directory, file: File) -> None:
    file.write_at(0, b"x")
    for create in (False, True):
        with pytest.raises(NotADirectoryError):
            directory.directory("file", create=create)


def test_a_directory_is_removed_with_all_that_is_in_it(directory: Directory) -> None:
    deep = directory.directory("a", create=True).directory("b", create=True)
    write_whole(deep, "x", b"abc")
    directory.remove_directory("a")
    assert directory.names() == []
    with pytest.raises(FileNotFoundError):
        directory.remove_directory("a")


def test_a_file_is_not_removed_as_a_directory(directory: Directory, file: File) -> None:
    file.write_at(0, b"x")
    with pytest.raises(NotADirectoryError):
        directory.remove_directory("file")


def test_names_lead_nowhere_else(directory: Directory) -> None:
    assert not any(map(is_name, ["", ".", "..", "a/b", "/", "a\0b"]))
    assert all(map(is_name, ["a", ".lock", "..a", "orders-0", "00000000000000000000.log"]))
    with pytest.raises(AssertionError, match="is no name"):
        directory.open("../escape", create=True)


def test_a_directory_can_be_flushed(directory: Directory, file: File) -> None:
    file.write_at(0, b"x")
    directory.flush()
    assert list(directory.names()) == ["file"]


# ── locks, space, whole files ──────────────────────────────────────────────────────────────────────


def test_a_lock_is_exclusive_until_released(directory: Directory) -> None:
    lock = directory.lock(".lock", b"1")
    with pytest.raises(BlockingIOError):
        directory.lock(".lock", b"2")
    lock.release()
    lock.release()
    directory.lock(".lock", b"3").release()


def test_a_lock_leaves_its_content_for_others_to_read(directory: Directory) -> None:
    directory.lock(".lock", b"4711").release()
    lock = directory.lock(".lock", b"12")
    with pytest.raises(BlockingIOError):
        directory.lock(".lock", b"999")
    assert read_whole(directory, ".lock") == b"12"
    lock.release()


def test_locks_on_different_files_do_not_meet(directory: Directory) -> None:
    locks = [directory.lock(name, b"") for name in ("a", "b")]
    assert list(directory.names()) == ["a", "b"]
    for lock in locks:
        lock.release()


def test_a_file_stays_where_it_is(directory: Directory) -> None:
    below = directory.directory("below", create=True)
    write_whole(below, "file", b"content")
    number = below.whereabouts("file")
    write_whole(below, "other", b"content")
    directory.rename("below", "moved")
    assert read_whole(directory.directory("moved"), "file") == b"content"
    assert directory.directory("moved").whereabouts("file") == number
    with pytest.raises(FileNotFoundError):
        directory.whereabouts("nowhere")
    assert directory.free_space() > 0


def test_a_whole_file_is_replaced(directory: Directory) -> None:
    write_whole(directory, "small", b"a longer content")
    write_whole(directory, "small", b"short")
    assert read_whole(directory, "small") == b"short"
    assert list(directory.names()) == ["small"]


# ── operation by operation ─────────────────────────────────────────────────────────────────────────

NAMES = st.sampled_from(["a", "b", "c", "d"])
POSITIONS = st.integers(0, 40)


def outcome(act: Callable[[], object]) -> object:
    """The answer, or the kind of refusal."""
    try:
        return act()
    except OSError as error:
        return type(error), error.errno


class TwoDisks(RuleBasedStateMachine):
    """Whatever is asked of both, the answers are the same."""

    handles = Bundle("handles")
    locks = Bundle("locks")

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.real = open_directory(self.folder.name)
        self.simulated = SimulatedDisk(random.Random(1)).open_directory()
        self.opened: list[File] = []
        self.locked: list[Lock] = []

    def teardown(self) -> None:
        for file in self.opened:
            file.close()
        for lock in self.locked:
            lock.release()
        self.folder.cleanup()

    def both(self, one: Callable[[], object], other: Callable[[], object]) -> None:
        assert outcome(one) == outcome(other)

    def pick(self, inside: bool) -> tuple[Directory, Directory]:
        if inside and self.real.is_directory("d"):
            return self.real.directory("d"), self.simulated.directory("d")
        return self.real, self.simulated

    @rule(target=handles, inside=st.booleans(), name=NAMES, create=st.booleans())
    def open(self, inside: bool, name: str, create: bool) -> tuple[File, File] | None:
        opened: list[File] = []
        one, other = self.pick(inside)

        def keep(directory: Directory) -> None:
            opened.append(directory.open(name, create=create))

        self.both(lambda: keep(one), lambda: keep(other))
        self.opened += opened
        return (opened[0], opened[1]) if opened else None

    @rule(handle=handles, position=POSITIONS, buffers=st.lists(st.binary(max_size=9), max_size=3))
    def write(self, handle: tuple[File, File] | None, position: int, buffers: list[bytes]) -> None:
        if handle:
            self.both(
                lambda: handle[0].write_at(position, *buffers), lambda: handle[1].write_at(position, *buffers)
            )

    @rule(handle=handles, position=POSITIONS, length=POSITIONS)
    def read(self, handle: tuple[File, File] | None, position: int, length: int) -> None:
        if handle:
            self.both(
                lambda: handle[0].read_at(position, length), lambda: handle[1].read_at(position, length)
            )
            self.both(handle[0].size, handle[1].size)

    @rule(handle=handles, size=POSITIONS)
    def truncate(self, handle: tuple[File, File] | None, size: int) -> None:
        if handle:
            self.both(lambda: handle[0].truncate(size), lambda: handle[1].truncate(size))

    @rule(handle=handles, size=POSITIONS)
    def allocate(self, handle: tuple[File, File] | None, size: int) -> None:
        if handle:
            self.both(lambda: handle[0].allocate(size), lambda: handle[1].allocate(size))

    @rule(handle=handles)
    def close(self, handle: tuple[File, File] | None) -> None:
        if handle:
            self.both(handle[0].close, handle[1].close)

    @rule(inside=st.booleans(), old=NAMES, new=NAMES)
    def rename(self, inside: bool, old: str, new: str) -> None:
        one, other = self.pick(inside)
        self.both(lambda: one.rename(old, new), lambda: other.rename(old, new))

    @rule(inside=st.booleans(), name=NAMES)
    def remove(self, inside: bool, name: str) -> None:
        one, other = self.pick(inside)
        if not one.is_directory(name):  # the one case in which systems differ
            self.both(lambda: one.remove(name), lambda: other.remove(name))

    @rule(inside=st.booleans(), name=NAMES, create=st.booleans())
    def make_directory(self, inside: bool, name: str, create: bool) -> None:
        one, other = self.pick(inside)
        self.both(
            lambda: list(one.directory(name, create=create).names()),
            lambda: list(other.directory(name, create=create).names()),
        )

    @rule(inside=st.booleans(), name=NAMES)
    def remove_directory(self, inside: bool, name: str) -> None:
        one, other = self.pick(inside)
        self.both(lambda: one.remove_directory(name), lambda: other.remove_directory(name))

    @rule(target=locks, name=NAMES)
    def lock(self, name: str) -> tuple[Lock, Lock] | None:
        got: list[Lock] = []
        self.both(
            lambda: got.append(self.real.lock(name, b"mine")),
            lambda: got.append(self.simulated.lock(name, b"mine")),
        )
        self.locked += got
        return (got[0], got[1]) if got else None

    @rule(lock=consumes(locks))
    def release(self, lock: tuple[Lock, Lock] | None) -> None:
        if lock:
            self.both(lock[0].release, lock[1].release)

    @invariant()
    def all_names_and_sizes_agree(self) -> None:
        self.both(lambda: tree(self.real), lambda: tree(self.simulated))


def tree(directory: Directory) -> list[object]:
    return [
        (
            name,
            tree(directory.directory(name)) if directory.is_directory(name) else read_whole(directory, name),
        )
        for name in directory.names()
    ]


TwoDisks.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_two_disks_answer_alike = TwoDisks.TestCase
