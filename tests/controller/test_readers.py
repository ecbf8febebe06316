"""Who is told what of the metadata log, and when: controllers of all there is, brokers of what is committed."""

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.controller.following import Following
from tidelog.controller.following import Reader as AskedAs
from tidelog.controller.readers import _Waiting
from tidelog.protocol.errors import StorageError
from tidelog.protocol.messages import FetchReply, Hello, PartitionFetch
from tidelog.protocol.types import NO_OFFSET, BrokerId
from tidelog.replication.delayed import Delayed


class Reader:
    """One that has everything up to 10, and knows that to be committed; its fetch waits."""

    def __init__(self, *, early: bool, knows: int = 10) -> None:
        self.told: list[FetchReply] = []
        self.log = SimpleNamespace(
            end_offset=10, log_start=0, read=lambda *_: SimpleNamespace(data=memoryview(b"batch"))
        )
        self.quorum = SimpleNamespace(high_watermark=10, leads=True, epoch=1)
        asked = PartitionFetch(b"", 0, 10, 100, current_leader_epoch=1, high_watermark=knows)
        self.refused: list[str] = []
        incoming = SimpleNamespace(
            closed=False,
            reply=lambda reply, *_: self.told.append(reply),
            refuse=lambda error: self.refused.append(str(error)),
        )
        metadata = SimpleNamespace(log=self.log)
        parts = cast("tuple[Any, Any, Any]", (metadata, self.quorum, incoming))
        self.waiting = _Waiting(parts[0], parts[1], asked, parts[2], None, early=early)

    def hears(self, end: int, committed: int) -> tuple[int, int] | None:
        """The end and what is committed, as it is told when the leader has come so far."""
        self.log.end_offset, self.quorum.high_watermark = end, committed
        if not self.waiting.try_complete():
            assert not self.told
            return None
        (entry,) = self.told[-1].partitions
        return entry.end_offset, entry.high_watermark


def test_a_controller_hears_of_what_is_appended_before_it_is_committed() -> None:
    assert Reader(early=True).hears(10, 10) is None
    assert Reader(early=True).hears(11, 10) == (11, 10)


def test_a_broker_hears_of_a_change_once_when_it_is_committed() -> None:
    reader = Reader(early=False)
    assert reader.hears(11, 10) is None
    assert reader.hears(12, 11) == (12, 11)


@pytest.mark.parametrize("knows", [9, NO_OFFSET])
def test_a_broker_hears_at_once_of_what_is_committed_and_new_to_it(knows: int) -> None:
    assert (Reader(early=False, knows=knows).hears(10, 10) is not None) is (knows == 9)
    assert Reader(early=False, knows=knows).hears(11, 11) == (11, 11)


def test_who_waits_for_a_log_that_cannot_be_read_is_told_so() -> None:
    reader, delayed = Reader(early=True), Delayed()
    delayed.wait(reader.waiting, ("log",), 500)

    def fails(*_: object) -> None:
        raise StorageError("planted")

    reader.log.end_offset, reader.log.read = 11, fails
    delayed.touched("log")
    with pytest.raises(StorageError):
        delayed.run()
    assert reader.refused == ["planted"]


# ── whom a follower asks ──────────────────────────────────────────────────────────────────────────────


async def test_whoever_looks_for_a_leader_asks_everybody_however_often_one_is_said_to_lead() -> None:
    """The one that is said to lead is dead, and so is the next one: a third knows who leads."""
    copy = SimpleNamespace(controller_id=2, quorum_epoch=5)
    controllers = {BrokerId(number): ("127.0.0.1", number) for number in range(1, 6)}
    following = Following(
        cast("Any", copy), controllers, AskedAs(hello=Hello()), wall_ms=lambda: 0, rng=Random(1)
    )
    assert [following._whom_to_ask() for _ in range(8)] == [2, 1, 2, 3, 2, 4, 2, 5]
    copy.controller_id = -1
    assert {following._whom_to_ask() for _ in range(5)} == {1, 2, 3, 4, 5}
