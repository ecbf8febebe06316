"""What a disk does where the system is another one, or gives less: played on whatever system this is."""

import errno
import fcntl
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tidelog.storage.io import disk, open_directory

ROOM = (1 << 20) + 4097
"""More than is written at once, and no whole number of pages."""


def fails_with(number: int) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.fixture(scope="module")
def as_on_macos() -> ModuleType:
    """The module as it is made there; this system knows that call by no name, and refuses its number."""
    spec = importlib.util.spec_from_file_location("disk_as_on_macos", disk.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        patch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def full_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_a_file_system_without_room_ahead_is_given_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", fails_with(number), raising=False)
    file = open_directory(str(tmp_path)).open("file", create=True)
    file.write_at(0, b"content")
    file.allocate(ROOM)
    assert (file.size(), file.read_at(0, ROOM)) == (ROOM, b"content" + bytes(ROOM - 7))
    file.close()


@pytest.mark.skipif(sys.platform == "darwin", reason="zeros are written there, and nothing is asked")
def test_a_full_disk_is_no_file_system_without_room_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", fails_with(errno.ENOSPC))
    file = open_directory(str(tmp_path)).open("file", create=True)
    file.write_at(0, b"content")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.allocate(ROOM)
    assert file.size() == 7
    file.close()


@pytest.mark.usefixtures("full_fsync")
def test_a_drive_that_cannot_be_asked_to_write_all_is_flushed_as_far_as_it_can(
    as_on_macos: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    if sys.platform == "darwin":
        monkeypatch.setattr(fcntl, "fcntl", fails_with(errno.ENOTSUP))
    monkeypatch.setattr(os, "fsync", flushed.append)
    directory = as_on_macos.open_directory(str(tmp_path))
    file = directory.open("file", create=True)
    file.allocate(ROOM)
    assert file.size() == ROOM
    file.flush()
    assert len(flushed) == 1
    directory.flush()
    assert len(flushed) == 2
    file.close()


@pytest.mark.usefixtures("full_fsync")
def test_a_drive_that_fails_is_not_taken_for_one_that_cannot_be_asked(
    as_on_macos: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "fcntl", fails_with(errno.EIO))
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("what could not be written is taken for written"))
    file = as_on_macos.open_directory(str(tmp_path)).open("file", create=True)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.flush()
    file.close()
