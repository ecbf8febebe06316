"""How a broker brings the proposals of its leaders to the controller (D2, D3, I-16)."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.broker.test_leadership import outside
from tidelog.broker import proposer
from tidelog.protocol.messages import AlterPartition, AlterPartitionReply, PartitionAltered
from tidelog.protocol.types import TopicId

TOPIC = TopicId(b"topic-of-16-byte")


async def asked_for(leaders: int, *, decides: Callable[[int], bool], requests: int) -> list[list[int]]:
    """Which partitions the first requests name, where so many leaders propose."""
    proposing = {}
    for index in range(leaders):
        led = outside()
        led.fetch(3, 10)
        proposing[TOPIC, index] = SimpleNamespace(leadership=led.leader)
    sent: list[list[int]] = []

    async def call(build: Callable[[int], Any]) -> AlterPartitionReply:
        request: AlterPartition = build(1)
        indexes = [alter.index for alter in request.partitions]
        sent.append(indexes)
        if len(sent) == requests:
            raise asyncio.CancelledError
        return AlterPartitionReply(
            partitions=tuple(PartitionAltered(TOPIC, index) for index in indexes if decides(index))
        )

    replicas = SimpleNamespace(proposing=proposing, around=SimpleNamespace(me=1, my_epoch=10))
    asks = proposer.Proposer(cast("Any", replicas), cast("Any", None), call=call, rng=Random(1))
    asks.wake()
    with suppress(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await asks.run()
    return sent


@pytest.fixture(autouse=True)
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposer, "AT_ONCE", 2)
    monkeypatch.setattr(proposer, "_AGAIN_MS", 0)


async def test_more_proposals_than_a_request_holds_go_with_the_next_ones() -> None:
    assert await asked_for(5, decides=lambda _: True, requests=3) == [[0, 1], [2, 3], [4]]


async def test_who_is_not_decided_on_is_asked_for_again_behind_all_others() -> None:
    sent = await asked_for(5, decides=lambda index: index > 1, requests=4)
    assert sent == [[0, 1], [2, 3], [4, 0], [1, 0]]
