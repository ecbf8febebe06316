"""Which folders of a pipeline are read while others are compacted: a Spark that only says what it is asked to read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from tidelog.spark import pipeline


def nothing() -> None:
    """Nobody compacts."""


def once(what: list[Callable[[], None]]) -> None:
    if what:
        what.pop()()


class Frames:
    """A session, its reader and its frames in one; the files of a frame are listed when it is made."""

    def __init__(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._before, self._after = [before], [after]
        self.folders: list[str] = []

    @property
    def read(self) -> "Frames":
        return self

    def option(self, *_: str) -> "Frames":
        return self

    def parquet(self, *folders: str) -> "Frames":
        made = Frames(nothing, nothing)
        once(self._before)
        for each in folders:
            if not Path(each).exists():
                raise FileNotFoundError(each)
            made.folders.append(Path(each).name)
        once(self._after)
        return made

    def drop(self, _: str) -> "Frames":
        return self

    def unionByName(self, other: "Frames") -> "Frames":  # noqa: N802 -- Spark's
        self.folders += other.folders
        return self


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Eight micro-batches."""
    for number in range(8):
        folder = tmp_path / "data" / f"batch={number}"
        (folder / "day=2026-01-01").mkdir(parents=True)
        (folder / "_SUCCESS").touch()
    return tmp_path


def compacted(lake: Path, number: int, reach: int) -> None:
    """What `compact` does at its end."""
    state = {"number": number, "folder": f"compacted-{number}", "batch": reach}
    (lake / f"compacted-{number}").mkdir()
    (lake / "_current").write_text(json.dumps(state))
    pipeline._remove_replaced(lake, state)


def read(lake: Path, before: Callable[[], None] = nothing, after: Callable[[], None] = nothing) -> list[str]:
    """What is read when that is done before the first listing of files, or after it."""
    frame: Any = pipeline.read_parquet(cast(SparkSession, Frames(before, after)), lake)
    return cast(list[str], frame.folders)


def test_a_compaction_that_ends_between_two_looks_hides_no_rows(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = pipeline._state

    def late(place: Path) -> dict[str, Any] | None:
        monkeypatch.setattr(pipeline, "_state", look)
        state = look(place)
        compacted(lake, 1, 6)
        return state

    monkeypatch.setattr(pipeline, "_state", late)
    assert read(lake) == ["compacted-1", "batch=7"]


def test_files_that_are_removed_while_they_are_listed_are_looked_for_where_they_are_now(lake: Path) -> None:
    assert read(lake, before=lambda: compacted(lake, 1, 6)) == ["compacted-1", "batch=7"]
    assert read(lake, before=lambda: compacted(lake, 2, 7)) == ["compacted-2"]


def test_files_that_are_removed_when_they_are_listed_are_not_handed_out(lake: Path) -> None:
    assert read(lake, after=lambda: compacted(lake, 1, 6)) == ["compacted-1", "batch=7"]


def test_files_that_are_missing_without_a_compaction_are_an_error(lake: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(lake, before=lambda: shutil.rmtree(lake / "data" / "batch=3"))
