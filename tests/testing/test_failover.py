"""Taking failovers, where a real cluster cannot be asked for the moment that matters."""

import asyncio
from typing import Any, Self

import pytest

from tidelog.client.admin import NewTopic
from tidelog.testing import failover


class Quorum:
    """A client, an admin and a cluster of three controllers that are between two leaders at first."""

    nodes = ("c1", "c2", "c3")
    bootstrap = ""
    high_watermark = 0
    voters = ()

    def __init__(self) -> None:
        self.admin = self
        self.leaders = [-1, -1, 2]
        self.killed: list[int] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    async def describe_quorum(self) -> "Quorum":
        self.leader_id = self.leaders.pop(0) if self.leaders else 2
        return self

    async def create_topics(self, topic: NewTopic, *, wait: bool) -> None:
        assert topic.name.endswith("-2")

    async def kill(self, *, controller: int) -> None:
        self.killed.append(controller)

    async def restart(self, *, controller: int) -> None:
        assert controller in self.killed


async def test_between_two_active_controllers_the_next_one_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quorum: Any = Quorum()
    monkeypatch.setattr(failover, "connect", lambda *_, **__: quorum)
    async with asyncio.timeout(10):
        [taken] = await failover.kill_controllers(quorum, 1)
    assert (quorum.killed, taken.node) == ([2], "controller 2")
