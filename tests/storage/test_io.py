"""What only the real disk can get wrong: short writes, descriptors, threads, other processes."""

import errno
import fcntl
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tidelog.protocol.types import Buffer
from tidelog.storage.files import Directory, read_whole, write_whole
from tidelog.storage.io import disk, open_directory


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return open_directory(str(tmp_path))


BUFFERS = [bytes([number]) * number for number in range(50)]


@pytest.fixture(params=[1, 2, 7, 100])
def stingy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that writes and reads a few bytes per call, as it may."""
    most: int = request.param
    write, read = os.pwrite, os.pread

    def pwritev(fd: int, buffers: Sequence[Buffer], position: int) -> int:
        return write(fd, b"".join(buffers)[:most], position)

    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: write(fd, data[:most], position))
    monkeypatch.setattr(os, "pread", lambda fd, length, position: read(fd, min(length, most), position))
    monkeypatch.setattr(os, "pwritev", pwritev)


@pytest.mark.usefixtures("stingy")
@pytest.mark.parametrize("buffers", [[b"".join(BUFFERS)], BUFFERS, [b"", *BUFFERS, b""]])
def test_a_short_write_is_continued(directory: Directory, buffers: list[bytes]) -> None:
    file = directory.open("file", create=True)
    file.write_at(3, *buffers)
    assert file.read_at(0, 5000) == b"\0\0\0" + b"".join(BUFFERS)
    file.close()


def test_a_write_that_never_ends_is_an_error(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    file = directory.open("file", create=True)
    monkeypatch.setattr(os, "pwrite", lambda _fd, _data, _position: 0)
    with pytest.raises(OSError, match="wrote 0 bytes"):
        file.write_at(0, b"abc")
    file.close()


@pytest.mark.parametrize("buffers", [[bytes(20_000)], [bytes(7)] * 4000])
def test_a_write_that_does_not_fit_raises_and_leaves_a_prefix(
    directory: Directory, buffers: list[bytes]
) -> None:
    file = directory.open("file", create=True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.write_at(0, *buffers)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.size() == 10_000
    file.close()


def test_words_are_counted_in_bytes(directory: Directory) -> None:
    words = memoryview(bytearray(b"abcdefgh")).cast("I")
    file = directory.open("file", create=True)
    file.write_at(0, words, words)
    file.write_at(16, words)
    assert file.read_at(0, 99) == b"abcdefgh" * 3
    file.close()


def test_a_descriptor_is_not_given_back_under_a_flush(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = directory.open("file", create=True)
    flushing, may_end, flushed = threading.Event(), threading.Event(), []

    def slow_flush(fd: int) -> None:
        flushing.set()
        may_end.wait(10)
        flushed.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(disk, "_flush_data", slow_flush)
    inode = os.stat(f"{directory.path}/file").st_ino
    worker = threading.Thread(target=file.flush)
    worker.start()
    flushing.wait(10)
    file.close()
    other = directory.open("other", create=True)  # would get the number if it were free
    may_end.set()
    worker.join()
    assert flushed == [inode]
    other.close()


def test_a_closed_file_gives_its_descriptor_back(directory: Directory) -> None:
    before = open_descriptors()
    for _ in range(10):
        file = directory.open("file", create=True)
        file.flush()
        file.close()
        directory.flush()
        directory.lock(".lock", b"1").release()
    assert open_descriptors() == before


@pytest.mark.parametrize(
    "refused", [lambda d: d.open("none"), lambda d: d.directory("none"), lambda d: d.lock("held", b"")]
)
def test_a_refusal_costs_no_descriptor(directory: Directory, refused: Callable[[Directory], object]) -> None:
    lock = directory.lock("held", b"")
    before = open_descriptors()
    with pytest.raises(OSError):  # noqa: PT011 - each is refused in its own way
        refused(directory)
    assert open_descriptors() == before
    lock.release()


def test_descriptors_are_not_inherited_by_other_programs(directory: Directory) -> None:
    before = open_descriptors()
    file, lock = directory.open("file", create=True), directory.lock(".lock", b"1")
    opened = open_descriptors() - before
    assert len(opened) == 2
    assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in opened)
    file.close()
    lock.release()


def test_a_file_that_nobody_has_any_more_is_closed(directory: Directory) -> None:
    gc.collect()  # what tests before this one have left
    before = open_descriptors()
    file = directory.open("file", create=True)
    file.write_at(0, b"content")
    del file
    gc.collect()
    assert open_descriptors() == before


def open_descriptors() -> set[int]:
    return set(filter(is_open, map(int, os.listdir("/dev/fd"))))


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


DYING = """
import os, signal, sys
from tidelog.storage.io import open_directory
directory = open_directory(sys.argv[1])
lock = directory.lock(".lock", b"child")
directory.open("file", create=True).write_at(0, b"written and not flushed")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_killed_process_leaves_its_writes_and_no_lock(directory: Directory) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", DYING, directory.path], stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        with pytest.raises(BlockingIOError):
            directory.lock(".lock", b"parent")
        child.send_signal(signal.SIGKILL)
        child.wait(10)
    directory.lock(".lock", b"parent").release()
    assert read_whole(directory, "file") == b"written and not flushed"


def test_a_missing_data_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_directory(f"{tmp_path}/a/b")
    directory = open_directory(f"{tmp_path}/a/b/", create=True)
    assert directory.path == f"{tmp_path}/a/b"
    assert list(open_directory(f"{tmp_path}/a").names()) == ["b"]


def test_a_file_is_no_data_directory(directory: Directory) -> None:
    directory.open("file", create=True).close()
    for create in (False, True):
        with pytest.raises(NotADirectoryError):
            open_directory(f"{directory.path}/file", create=create)


def test_a_relative_path_does_not_follow_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = open_directory("data", create=True)
    monkeypatch.chdir("/")
    assert directory.names() == []


def test_a_file_that_has_the_inode_of_another_one_is_another_one(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems give numbers of inodes again, and count how often; some do not say how often."""
    write_whole(directory, "file", b"content")
    number = directory.whereabouts("file")
    assert directory.whereabouts("file") == number

    def refused(_fd: int, _request: int, _answer: bytearray) -> None:
        raise OSError(errno.ENOTTY, "this one does not say")

    def gives(generation: bytes) -> Callable[[int, int, bytearray], None]:
        def ioctl(_fd: int, _request: int, answer: bytearray) -> None:
            answer[:4] = generation

        return ioctl

    numbers = []
    for ioctl in (gives(b"\x01\0\0\0"), gives(b"\x02\0\0\0"), refused):
        monkeypatch.setattr(fcntl, "ioctl", ioctl)
        numbers.append(directory.whereabouts("file"))
        assert directory.whereabouts("file") == numbers[-1]
    assert len(set(numbers)) == (1 if sys.platform == "darwin" else 3)
