"""A limit of bytes holds whatever comes of the records that say how large they are."""

import asyncio
from typing import Any, Self

import pytest

from tidelog.client.records import Record
from tidelog.protocol.types import Offset, TopicPartition
from tidelog.spark import stream
from tidelog.spark.columns import schema_of
from tidelog.spark.options import read_options
from tidelog.spark.stream import RECORD_BYTES_MAX, TopicStream

NAME = TopicPartition("orders", 0)


class Leader:
    """A client, and its only consumer: what that is given, and where it stands then."""

    def __init__(self, records: list[Record], position: Offset) -> None:
        self.records = records
        self.at = position

    def consumer(self, **_: Any) -> "Leader":
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def assign(self, _: object) -> None:
        pass

    def seek(self, *_: object) -> None:
        pass

    async def getmany(self, **_: Any) -> dict[TopicPartition, list[Record]]:
        return {NAME: self.records} if self.records else {}

    async def position(self, _: TopicPartition) -> Offset:
        return self.at


def record() -> Record:
    return Record("orders", 0, 0, 0, b"", b"x" * 10, ())


@pytest.fixture
def planner() -> TopicStream:
    given = {
        "bootstrap.servers": "b:1",
        "subscribe": "orders",
        "maxBytesPerTrigger": str(RECORD_BYTES_MAX * 3),
    }
    return TopicStream(read_options(given, "stream"), schema_of(headers=False))


def limit(planner: TopicStream, leader: Leader, monkeypatch: pytest.MonkeyPatch) -> Offset:
    """How far a micro-batch goes of a lag of a million."""

    async def connected(_: object) -> Leader:
        return leader

    monkeypatch.setattr(stream, "connected", connected)
    return asyncio.run(planner._limit({NAME: 0}, {NAME: 1_000_000}))[NAME]


def test_records_that_do_not_come_in_time_are_taken_for_large_until_some_do(
    planner: TopicStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limit(planner, Leader([], 0), monkeypatch) == 3
    assert limit(planner, Leader([record()], 1), monkeypatch) == RECORD_BYTES_MAX * 3 // 10
    assert limit(planner, Leader([], 0), monkeypatch) == RECORD_BYTES_MAX * 3 // 10


def test_what_compaction_has_left_nothing_of_is_passed_at_once(
    planner: TopicStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limit(planner, Leader([], 1_000_000), monkeypatch) == 1_000_000
