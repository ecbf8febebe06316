"""Ask the controller for the ISRs that leaders want: one request in flight, all partitions that are due in it, or in
the next ones.

What it keeps true (docs/REPLICATION.md; D2, D3, I-15, I-16): every sending has a number of its own; an answer never
installs anything; without an answer it is asked again, for as long as the leader wants it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Final, TypeAlias

from tidelog.broker.leadership import Alteration, Leadership
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests.context import Clocks
from tidelog.protocol.errors import StaleBrokerEpoch, TidelogError, error_of
from tidelog.protocol.messages import (
    AlterPartition,
    AlterPartitionReply,
    IsrMember,
    PartitionAlter,
    Reply,
    Request,
)
from tidelog.replication.sessions import Place

logger = logging.getLogger(__name__)

_AGAIN_MS = 100
AT_ONCE: Final = 10_000
"""Partitions in one request: it fits into a frame, and so does its answer, also where it says why not."""

Asked: TypeAlias = dict[Place, tuple[Leadership, Alteration]]
"""What is asked of the controller in one request, and for whom."""


class Proposer:
    """The proposals of one broker. `run` is a task of the node."""

    def __init__(
        self,
        replicas: Replicas,
        clocks: Clocks,
        *,
        call: Callable[[Callable[[int], Request]], Awaitable[Reply]],
        rng: Random,
    ) -> None:
        self._replicas = replicas
        self._clocks = clocks
        self._call = call
        self._rng = rng
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """A leader wants another ISR."""
        self._woken.set()

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            while asked := self._collect():
                try:
                    reply = await self._call(partial(self._request, asked))
                except TidelogError as error:
                    logger.info("isr.not_proposed reason=%s", error)
                    await self._pause()
                    continue
                assert isinstance(reply, AlterPartitionReply), reply
                if reply.error:
                    if reply.error == StaleBrokerEpoch.code:
                        break  # this broker must register again, or was replaced: replay will tell
                    logger.info("isr.refused %s", error_of(reply.error, reply.message or ""))
                    await self._pause()
                    continue
                if not self._take(reply, asked):
                    await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.5, 1.0) * _AGAIN_MS / 1000)

    def _collect(self) -> Asked:
        asked: Asked = {}
        proposing = self._replicas.proposing
        for place, partition in list(proposing.items()):
            if len(asked) == AT_ONCE:
                break
            leadership = partition.leadership
            alteration = leadership.alteration() if leadership is not None else None
            if leadership is None or alteration is None:
                del proposing[place]
            else:
                asked[place] = leadership, alteration
                proposing[place] = proposing.pop(place)  # behind those whose turn has not come
        return asked

    def _request(self, asked: Asked, quorum_epoch: int) -> AlterPartition:
        around = self._replicas.around
        return AlterPartition(
            around.me,
            around.my_epoch,
            quorum_epoch,
            tuple(
                PartitionAlter(
                    place[0],
                    place[1],
                    alteration.leader_epoch,
                    alteration.partition_epoch,
                    alteration.alter_seq,
                    tuple(IsrMember(member, epoch) for member, epoch in alteration.members),
                    alteration.recovered,
                )
                for place, (_, alteration) in asked.items()
            ),
        )

    def _take(self, reply: AlterPartitionReply, asked: Asked) -> bool:
        """Take the answers; whether all were decided on."""
        for answer in reply.partitions:
            place = answer.topic_id, answer.index
            if place not in asked:
                continue  # nobody asked for this
            leadership, alteration = asked[place]
            if answer.error:
                error = type(error_of(answer.error, ""))
                leadership.refused(alteration, error, self._clocks.now_ms())
                logger.info("isr.refused partition=%s/%s error=%s", place[0].hex(), place[1], error.name())
            else:
                leadership.accepted(alteration)
        # What was not decided, or not even answered, is asked again, and not at once.
        return not any(leadership.is_proposing for leadership, _ in asked.values())
