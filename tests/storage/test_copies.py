"""A copy of a directory whose node ran is not taken for what a killed process has left (ADR 0118)."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.test_crashes import HOST, PROCESS, begin
from tidelog.storage.identity import META
from tidelog.storage.io import open_directory


def killed_node(path: Path) -> None:
    """A directory whose broker was killed when it had joined a cluster: `meta.properties` was written anew for that."""
    path.mkdir()
    (path / META).write_bytes(b"before it joined")
    life = begin(open_directory(str(path)), 1)
    (path / META).write_bytes(b"it has joined")
    life.registered(5)


def put_elsewhere(path: Path) -> Path:
    return Path(shutil.copytree(path, path.with_name("copy")))


def put_back(path: Path) -> Path:
    copy = put_elsewhere(path)
    path.rename(path.with_name("before"))
    return Path(shutil.copytree(copy, path))


def put_over(path: Path) -> Path:
    """The files stay the same, and get other contents."""
    return Path(shutil.copytree(put_elsewhere(path), path, dirs_exist_ok=True, copy_function=shutil.copy))


@pytest.mark.parametrize("copied", [put_elsewhere, put_back, put_over])
def test_a_copy_is_never_taken_for_what_a_killed_process_has_left(
    tmp_path: Path, copied: Callable[[Path], Path]
) -> None:
    """It may be of any time: on the same disk, in the same boot."""
    killed_node(tmp_path / "data")
    assert begin(open_directory(str(copied(tmp_path / "data"))), 2).last_end == HOST


def test_files_of_which_only_the_contents_were_put_back_cannot_be_told_apart(tmp_path: Path) -> None:
    """As `rsync -a` does: why the pages say that a copy of a node that ran must never be put back."""
    killed_node(tmp_path / "data")
    for each in tmp_path.glob("data/*"):
        times = each.stat()
        each.write_bytes(each.read_bytes())
        os.utime(each, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert begin(open_directory(str(tmp_path / "data")), 2).last_end == PROCESS


def test_a_directory_that_was_moved_or_given_to_another_owner_is_no_copy(tmp_path: Path) -> None:
    killed_node(tmp_path / "data")
    for each in tmp_path.glob("data/*"):
        each.chmod(0o600)
    moved = shutil.move(tmp_path / "data", tmp_path / "moved")
    assert begin(open_directory(str(moved)), 2).last_end == PROCESS
