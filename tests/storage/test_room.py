"""The low-space mark: where produce is refused before the disk is full, and where it is taken again."""

import pytest

from tidelog.protocol.errors import DiskFull
from tidelog.storage.room import Room


@pytest.fixture
def room() -> Room:
    return Room("/data", 1000)


def test_below_the_mark_records_are_refused_with_the_numbers_and_the_way_out(room: Room) -> None:
    assert not room.look(1000)
    room.check()
    assert room.look(999)
    with pytest.raises(
        DiskFull, match="/data has 999 bytes free, records are taken again from 1500 on: make room"
    ):
        room.check()


def test_a_log_that_did_not_fit_tries_again_with_two_segments_or_what_is_enough(room: Room) -> None:
    assert [room.for_log(segment) for segment in (100, 750, 4000)] == [200, 1500, 1500]
    assert Room("/data").for_log(4000) == 8000


def test_a_little_more_room_than_the_mark_changes_nothing(room: Room) -> None:
    room.look(999)
    assert not room.look(1499)
    assert room.low
    assert room.look(1500)
    room.check()
    assert not room.look(1001)
    assert not room.low


def test_while_something_did_not_fit_there_is_too_little_whatever_the_numbers_say(room: Room) -> None:
    assert room.look(1 << 40, refused=True)
    assert room.low
    assert room.look(1 << 40)
    assert not room.low


def test_without_a_mark_only_what_did_not_fit_tells() -> None:
    room = Room("/data")
    assert not room.look(0)
    assert room.look(0, refused=True)
    assert room.look(0)
