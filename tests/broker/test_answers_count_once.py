"""An answer counts once, and only for the fetch that is outstanding (ADR 0078)."""

import asyncio
from random import Random
from typing import Any, cast

import pytest

from tests.broker.node import Node
from tidelog.broker.fetcher import Fetcher, FetchSettings, Follow
from tidelog.broker.requests.context import Clocks
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import RequestTimedOut
from tidelog.protocol.io import Connection
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import Fetch, FetchReply
from tidelog.protocol.types import BrokerId


class Leader:
    """A connection to a leader: the first call is given up, later ones are answered; what happens is written down."""

    def __init__(self, seen: list[str], *, answers: bool) -> None:
        self.seen, self.answers, self.closed = seen, answers, False

    async def call(self, request: Fetch, **_: Any) -> tuple[FetchReply, bytes]:
        assert not self.closed
        self.seen.append(f"fetch {request.fetch_seq}")
        if not self.answers:
            raise RequestTimedOut("no answer")
        await asyncio.sleep(0)
        return FetchReply(), b""

    def abort(self) -> None:
        self.closed = True
        self.seen.append("aborted")


class Hasty(Random):
    """No pause between attempts."""

    def uniform(self, a: float, b: float) -> float:
        return 0 * (a + b)


class Prepared(Fetcher):
    """Connects to these leaders in turn, writes down what it processes, and ends after the second answer."""

    def __init__(self, follow: Follow, leaders: list[Leader], seen: list[str]) -> None:
        super().__init__(BrokerId(2), follow)
        self.leaders, self.seen = leaders, seen

    async def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = cast("Connection", self.leaders.pop(0))
        return self._connection

    async def _process(self, *_: Any) -> None:
        self.seen.append("processed")
        if self.seen.count("processed") == 2:
            raise asyncio.CancelledError


def test_a_call_that_is_given_up_takes_its_connection_with_it_before_anything_is_asked_again() -> None:
    node, seen = Node(), list[str]()
    node.follow(2)
    clocks, nothing = Clocks(lambda: 0, lambda: 0, lambda: 0), cast("Any", None)
    follow = Follow(
        node.replicas, clocks, nothing, Bounds(DEFAULT), FetchSettings(), Hasty(), nothing, nothing, nothing
    )
    leaders = [Leader(seen, answers=False), Leader(seen, answers=True)]
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Prepared(follow, leaders, seen).run())
    assert seen == ["fetch 1", "aborted", "fetch 2", "processed", "fetch 3", "processed", "aborted"]
