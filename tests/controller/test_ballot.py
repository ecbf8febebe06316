"""What a controller has promised is on its disk, whole or not at all (I-45)."""

import json
from pathlib import Path
from random import Random

import pytest

from tidelog.controller.ballot import QUORUM_STATE, Ballot, decode_state, encode_state
from tidelog.controller.quorum import QuorumState
from tidelog.protocol.errors import CorruptCheckpoint, UnsupportedFormat
from tidelog.protocol.types import NO_BROKER, BrokerId
from tidelog.storage.files import read_whole, write_whole
from tidelog.storage.io import open_directory
from tidelog.storage.seal import JSON
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.faults import WHENS, Crash, Killed, PowerCut, When

OLD = QuorumState(3, BrokerId(2), BrokerId(2), b"\xd2" * 16)
NEW = QuorumState(4, NO_BROKER, BrokerId(1), b"\xd1" * 16)


def test_a_new_controller_has_promised_nothing(tmp_path: Path) -> None:
    assert Ballot.read(open_directory(str(tmp_path)), -1).state == QuorumState()


def test_what_was_promised_is_there_at_the_next_start(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    Ballot.read(directory, -1).write(NEW)
    assert Ballot.read(directory, 3).state == NEW


def test_a_log_of_a_newer_epoch_ends_the_promises_of_an_older_one(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    Ballot.read(directory, -1).write(NEW)
    assert Ballot.read(directory, 5).state == QuorumState(5)


def test_the_file_is_one_line_of_json_that_people_can_read(tmp_path: Path) -> None:
    Ballot.read(open_directory(str(tmp_path)), -1).write(OLD)
    assert (
        (tmp_path / QUORUM_STATE)
        .read_text()
        .startswith('{"version":1,"epoch":3,"leader_id":2,"voted_id":2,"voted_directory_id":"d2d2d2')
    )
    assert json.loads((tmp_path / QUORUM_STATE).read_text())["crc"]


def test_who_has_a_log_and_no_promises_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(
        CorruptCheckpoint,
        match="missing, and there is a metadata log: if the other controllers are a majority, move",
    ):
        Ballot.read(open_directory(str(tmp_path)), 0)


def test_every_cut_and_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    directory, content = open_directory(str(tmp_path)), encode_state(NEW)
    for at in range(len(content)):
        assert decode_state(content[:at], "") is None
        for other in range(256):
            if other != content[at]:
                assert decode_state(content[:at] + bytes([other]) + content[at + 1 :], "") is None
    write_whole(directory, QUORUM_STATE, content[:-1])
    with pytest.raises(
        CorruptCheckpoint, match="not what was written: if the other controllers are a majority, move"
    ):
        Ballot.read(directory, -1)


def test_the_file_of_a_newer_tidelog_is_refused_by_name(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    write_whole(directory, QUORUM_STATE, JSON.seal(b'{"version":2,"epoch":"9"'))
    with pytest.raises(UnsupportedFormat, match="quorum-state is of version 2"):
        Ballot.read(directory, -1)


@pytest.mark.parametrize("crash", [Killed, PowerCut])
@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("step", range(6))
def test_after_a_crash_anywhere_in_a_write_the_old_or_the_new_promise_stands(
    crash: type[Crash], when: When, step: int
) -> None:
    disk = SimulatedDisk(Random(step))
    Ballot.read(disk.open_directory(), -1).write(OLD)
    disk.crash_at(step + 1, when=when, crash=crash)
    finished = False
    try:
        Ballot.read(disk.open_directory(), 3).write(NEW)
        finished = True
    except Crash:
        pass
    disk.power_cut()
    state = Ballot.read(disk.open_directory(), 3).state
    assert state == NEW if finished else state in {OLD, NEW}


def test_the_same_promise_is_not_written_twice(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    ballot = Ballot.read(directory, -1)
    ballot.write(NEW)
    directory.remove(QUORUM_STATE)
    ballot.write(NEW)
    assert not directory.exists(QUORUM_STATE)


def test_the_file_holds_what_the_ballot_says(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    ballot = Ballot.read(directory, -1)
    for state in (OLD, NEW):
        ballot.write(state)
        assert decode_state(read_whole(directory, QUORUM_STATE), "") == ballot.state == state
