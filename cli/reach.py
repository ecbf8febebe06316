"""The way of the command line to a cluster: any broker, which knows who leads, or any controller, which may.

What it keeps true: whoever does not answer is named with the reason, in one line that ends with the way out; nothing
takes longer than it may. Nobody who listens: exit 1. No leader, or no answer in time: exit 3.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import click

from tidelog.cli.options import Address
from tidelog.protocol.errors import (
    ConnectionFailed,
    NoController,
    NotController,
    RequestTimedOut,
    TidelogError,
)
from tidelog.protocol.io import connect
from tidelog.protocol.messages import DescribeQuorum, DescribeQuorumReply, Hello
from tidelog.protocol.types import NO_BROKER

UNHEALTHY: Final = 3
_PAUSE_S: Final = 0.1
_SHARE: Final = 0.8
"""The part of the time that a node gets, so that its own answer comes before the time is over."""


class Unreachable(click.ClickException):
    """Nobody there is a node of a cluster."""


class Unhealthy(click.ClickException):
    """There is a cluster, and it cannot answer now."""

    exit_code = UNHEALTHY


def describe_quorum(where: Sequence[Address], timeout_ms: float) -> DescribeQuorumReply:
    """The quorum as its leader describes it."""
    return asyncio.run(_Search(timeout_ms).run(where))


class _Search:
    """For the leader, by way of those that are known."""

    def __init__(self, timeout_ms: float) -> None:
        self._timeout_ms = timeout_ms
        self._deadline = 0.0
        self._failed: dict[Address, TidelogError] = {}
        self._told: DescribeQuorumReply | None = None
        """The newest that a controller has said which does not lead."""

    async def run(self, where: Sequence[Address]) -> DescribeQuorumReply:
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + self._timeout_ms / 1000
        while True:
            answer = await self._once(where)
            if answer is not None:
                return answer
            # Only an election that is under way is worth waiting for.
            if self._told is None or loop.time() + _PAUSE_S >= self._deadline:
                raise self._given_up()
            await asyncio.sleep(_PAUSE_S)

    async def _once(self, where: Sequence[Address]) -> DescribeQuorumReply | None:
        """Ask each, and whom they name."""
        left, asked = list(where), set[Address]()
        while left:
            address = left.pop(0)
            if address in asked:
                continue
            asked.add(address)
            try:
                answer = await self._ask(address, len(left) + 1)
            except TidelogError as error:
                self._failed[address] = error
                continue
            self._failed.pop(address, None)
            if not answer.error:
                return answer
            if self._told is None or answer.quorum_epoch >= self._told.quorum_epoch:
                self._told = answer
            left += [
                Address(voter.host, voter.port) for voter in answer.voters if voter.id == answer.leader_id
            ]
        return None

    async def _ask(self, address: Address, others: int) -> DescribeQuorumReply:
        loop = asyncio.get_running_loop()
        left_ms = max(self._deadline - loop.time(), 0.001) * 1000
        hello = Hello(client_id="tidelog-cli")
        connection = await connect(*address, hello, timeout_ms=left_ms / others)
        try:
            left_ms = max(self._deadline - loop.time(), 0.001) * 1000 / others
            request = DescribeQuorum(timeout_ms=max(int(left_ms * _SHARE), 1))
            reply, _ = await connection.call(request, timeout_ms=left_ms)
        finally:
            connection.close()
            await connection.wait_closed()
        if not isinstance(reply, DescribeQuorumReply):
            raise ConnectionFailed(f"{address} answered with {type(reply).__name__}")
        if reply.error not in {0, NotController.code}:
            raise ConnectionFailed(f"{address}: {reply.message}")
        return reply

    # ── what to say ───────────────────────────────────────────────────────────────────────────────

    def _given_up(self) -> click.ClickException:
        reasons = "; ".join(
            text if str(address) in (text := str(error)) else f"{address}: {text}"
            for address, error in self._failed.items()
        )
        if self._told is not None:
            return Unhealthy(_leaderless(self._told) + (f" ({reasons})" if reasons else ""))
        if any(isinstance(error, NoController | RequestTimedOut) for error in self._failed.values()):
            return Unhealthy(
                f"{reasons}: no controller leads that a broker could find; see that a majority of the controllers runs, "
                "and ask one of them with -b HOST:PORT for what it knows"
            )
        late = any(isinstance(error.__cause__, TimeoutError) for error in self._failed.values())
        kind = Unhealthy if late else Unreachable
        return kind(
            f"{reasons}: is a broker running there? `tidelog up` starts a cluster here, -b HOST:PORT names another one"
        )


def _leaderless(told: DescribeQuorumReply) -> str:
    voters = [f"c{voter.id} ({Address(voter.host, voter.port)})" for voter in told.voters]
    majority = len(voters) // 2 + 1
    leader = f"c{told.leader_id} was last heard to lead, and does not answer" * (told.leader_id != NO_BROKER)
    return (
        f"no controller leads in epoch {told.quorum_epoch} of the quorum{': ' * bool(leader)}{leader}. {majority} of "
        f"{', '.join(voters)} must run and hear each other: start those that do not, or wait for the election"
    )
