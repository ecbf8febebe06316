"""What a refused start leaves behind: nothing that it has made, and everything that others count on."""

import os
from pathlib import Path
from random import Random

import pytest

from tidelog.cli.node.territory import QUORUM_STATE, Territory
from tidelog.controller import ballot
from tidelog.storage.identity import LOCK, Claim, adopt_cluster, claim
from tidelog.storage.io import open_directory

ID = Random(1).randbytes(16)


def formatted(territory: Territory) -> Claim:
    directory = territory.take()
    return claim(directory, role="broker", node_id=1, cluster_id=None, new_directory_id=ID, pid=os.getpid())


def test_what_this_start_has_made_goes_with_the_directories_above(tmp_path: Path) -> None:
    territory = Territory(str(tmp_path / "a" / "b"))
    formatted(territory)
    (tmp_path / "a" / "b" / "orders-0").mkdir()
    territory.give_back()
    assert not list(tmp_path.iterdir())


def test_an_empty_directory_that_was_there_stays_and_is_empty(tmp_path: Path) -> None:
    territory = Territory(str(tmp_path))
    formatted(territory)
    territory.give_back()
    assert tmp_path.is_dir()
    assert not list(tmp_path.iterdir())


def test_a_directory_that_was_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    territory = Territory(str(tmp_path))
    territory.take()
    territory.give_back()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_directory_that_the_cluster_knows_stays(tmp_path: Path) -> None:
    territory = Territory(str(tmp_path / "data"))
    claimed = formatted(territory)
    adopt_cluster(open_directory(territory.path), claimed.identity, ID)
    territory.give_back()
    assert (tmp_path / "data" / "meta.properties").exists()


def test_a_directory_whose_controller_may_have_voted_stays(tmp_path: Path) -> None:
    assert ballot.QUORUM_STATE == QUORUM_STATE
    territory = Territory(str(tmp_path / "data"))
    formatted(territory)
    (tmp_path / "data" / QUORUM_STATE).touch()
    territory.give_back()
    assert (tmp_path / "data" / "meta.properties").exists()


def test_a_directory_that_another_process_has_taken_meanwhile_stays(tmp_path: Path) -> None:
    territory = Territory(str(tmp_path / "data"))
    territory.take()
    (tmp_path / "data" / LOCK).write_text("1\n")
    territory.give_back()
    assert (tmp_path / "data" / LOCK).exists()


def test_a_path_below_a_file_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    territory = Territory(str(tmp_path / "file" / "data"))
    with pytest.raises(NotADirectoryError):
        territory.take()
    territory.give_back()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
