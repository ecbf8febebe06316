"""Whom a node asks for the metadata log while nobody answers as its leader (ADR 83)."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tidelog.controller import following as module
from tidelog.controller.following import Following, FollowingConfig, Reader
from tidelog.protocol.errors import ConnectionFailed
from tidelog.protocol.messages import Hello
from tidelog.protocol.types import NO_BROKER, BrokerId, Epoch

CONTROLLERS = {BrokerId(number): (f"c{number}", 9192) for number in (1, 2, 3)}
CONFIG = FollowingConfig(connect_timeout_ms=60_000, retry_ms=1, retry_max_ms=1)


class Copy:
    """What a node knows of who leads; nothing is ever fetched."""

    quorum_epoch = Epoch(5)
    controller_id = BrokerId(1)

    def refused(self, _controller: BrokerId) -> None:
        """Nobody listens there."""


class Node:
    """Follows; whom it has asked is in `asked`. Those in `hanging` do not answer, the others refuse."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copy = Copy()
        self.asked: list[int] = []
        self.hanging = {1}
        self.waits = False
        """Whether the next who hangs is waited for until somebody calls."""
        copy: Any = self.copy
        reader = Reader(hello=Hello())
        self.following = Following(copy, CONTROLLERS, reader, wall_ms=lambda: 0, rng=Random(1), config=CONFIG)
        monkeypatch.setattr(module, "connect", self._connect)

    async def _connect(self, host: str, _port: int, *_: Any, **__: Any) -> Any:
        number = int(host[1:])
        self.asked.append(number)
        if number in self.hanging and self.waits:
            await asyncio.Event().wait()
        cause = TimeoutError() if number in self.hanging else ConnectionResetError()
        raise ConnectionFailed(f"{host} says nothing") from cause

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            running = group.create_task(self.following.run())
            while not condition():  # noqa: ASYNC110 -- it is the test that decides
                await asyncio.sleep(0)
            running.cancel()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


async def test_who_did_not_answer_is_let_alone_while_others_are_asked_again_and_again(node: Node) -> None:
    await node.until(lambda: len(node.asked) >= 9)
    assert node.asked[0] == 1
    assert set(node.asked[1:]) == {2, 3}


async def test_it_has_its_turn_again_when_a_connection_would_have_been_given_up(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.until(lambda: len(node.asked) >= 5)
    loop = asyncio.get_running_loop()
    late_s = loop.time() + CONFIG.connect_timeout_ms / 1000
    monkeypatch.setattr(module, "_now_s", lambda: late_s)
    node.asked.clear()
    await node.until(lambda: len(node.asked) >= 3)
    assert 1 in node.asked


async def test_that_nobody_is_known_to_lead_in_a_new_epoch_does_not_make_it_answer(node: Node) -> None:
    await node.until(lambda: len(node.asked) >= 2)
    node.copy.quorum_epoch, node.copy.controller_id = Epoch(6), NO_BROKER
    node.asked.clear()
    await node.until(lambda: len(node.asked) >= 8)
    assert set(node.asked) == {2, 3}


async def test_one_that_leads_anew_is_asked_at_once_whatever_it_was_before(node: Node) -> None:
    await node.until(lambda: len(node.asked) >= 2)
    node.copy.quorum_epoch = Epoch(6)
    node.asked.clear()
    await node.until(lambda: bool(node.asked))
    assert node.asked[0] == 1


async def test_where_nobody_answers_all_have_their_turn(node: Node) -> None:
    node.hanging = {1, 2, 3}
    await node.until(lambda: len(node.asked) >= 9)
    assert set(node.asked[3:]) == {1, 2, 3}


async def test_who_is_waited_for_in_vain_is_let_go_when_another_one_is_heard_to_lead(node: Node) -> None:
    node.waits = True

    def heard() -> bool:
        if node.asked == [1]:
            node.copy.quorum_epoch, node.copy.controller_id = Epoch(6), BrokerId(3)
            node.following.look_again()
        return len(node.asked) > 1

    await node.until(heard)
    assert node.asked[:2] == [1, 3]
    assert "heard to lead" in node.following.failures[BrokerId(1)]


async def test_who_waits_for_its_next_attempt_begins_it_when_somebody_is_heard_to_lead(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.following, "config", FollowingConfig(retry_ms=3_600_000, retry_max_ms=3_600_000))

    def heard() -> bool:
        if len(node.asked) == 3:
            node.copy.quorum_epoch, node.copy.controller_id = Epoch(6), BrokerId(node.asked[2])
            node.following.look_again()
        return len(node.asked) > 3

    await node.until(heard)
    assert node.asked[3] == node.copy.controller_id
