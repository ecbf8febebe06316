"""Requests that only leaders answer, for many partitions at once: each goes to who leads it, and follows it.

What it keeps true: every partition gets one outcome; those that a leader could not answer are asked again, of whoever
leads by then, until the deadline; one that can never succeed does not keep the others from theirs.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tidelog.client.admin import Refusals
from tidelog.client.io.connections import together
from tidelog.client.io.coordinator import pieces
from tidelog.client.io.session import Session, until
from tidelog.client.retry import Advice, advice
from tidelog.protocol.errors import (
    LeaderNotAvailable,
    RequestTimedOut,
    TidelogError,
    UnknownServerError,
    UnknownTopicOrPartition,
    error_of,
)
from tidelog.protocol.messages import (
    DeleteBefore,
    DeleteRecords,
    ListOffsets,
    OffsetFound,
    OffsetQuery,
    Request,
)
from tidelog.protocol.types import NO_BROKER, BrokerId, Epoch, Offset, TopicId, TopicPartition

_Asked: TypeAlias = tuple[TopicPartition, TopicId, Epoch]
"""A partition, its topic's id, and the leadership that is believed in."""

_Build: TypeAlias = Callable[[Sequence[_Asked], int], Request]
"""The request for partitions of one leader, and how long its answer may take."""


class AtLeaders:
    """One operation on many partitions."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._done: dict[TopicPartition, Any] = {}
        self._causes: dict[TopicPartition, TidelogError] = {}
        """Why a partition is not done yet."""
        self._failed: dict[TopicPartition, TidelogError] = {}
        """Why it never will be."""

    async def list_offsets(
        self, wanted: dict[TopicPartition, int], isolation: int, deadline_s: float
    ) -> dict[TopicPartition, OffsetFound]:
        """Which offset each partition has at that timestamp."""

        def build(asked: Sequence[_Asked], _timeout_ms: int) -> Request:
            queries = [
                OffsetQuery(topic_id, where.partition, wanted[where], epoch)
                for where, topic_id, epoch in asked
            ]
            return ListOffsets(tuple(queries), isolation)

        return await self._run(list(wanted), build, deadline_s)

    async def delete_records(
        self, before: dict[TopicPartition, Offset], deadline_s: float
    ) -> dict[TopicPartition, Offset]:
        """Forget what is below these offsets; where each partition begins then."""

        def build(asked: Sequence[_Asked], timeout_ms: int) -> Request:
            entries = [DeleteBefore(topic_id, where.partition, before[where]) for where, topic_id, _ in asked]
            return DeleteRecords(tuple(entries), timeout_ms)

        found = await self._run(list(before), build, deadline_s)
        return {where: entry.low_watermark for where, entry in found.items()}

    async def _run(
        self, wanted: list[TopicPartition], build: _Build, deadline_s: float
    ) -> dict[TopicPartition, Any]:
        loop, session = asyncio.get_running_loop(), self._session
        backoff = session.backoff(max(deadline_s - loop.time(), 0) * 1000)
        left = list(dict.fromkeys(wanted))
        while left:
            by_leader = await self._by_leader(left, deadline_s)
            timeout_ms = max(int((deadline_s - loop.time()) * 1000), 1)
            calls = [
                self._ask(leader, some, build, timeout_ms)
                for leader, asked in by_leader.items()
                for some in pieces(asked)
            ]
            await together(calls)
            left = [where for where in left if where not in self._done and where not in self._failed]
            if not left or not await session.pause(backoff):
                break
            await self._look_again(left, deadline_s)
        refusals = Refusals()
        refusals.errors = {
            str(where): self._failed.get(where) or self._causes[where]
            for where in wanted
            if where not in self._done
        }
        refusals.raise_any(len(wanted))
        return {where: self._done[where] for where in wanted}

    async def _by_leader(self, left: list[TopicPartition], deadline_s: float) -> dict[BrokerId, list[_Asked]]:
        """Who is to be asked for what; what nobody leads waits, what is not there has failed."""
        session, loop = self._session, asyncio.get_running_loop()
        for name in dict.fromkeys(where.topic for where in left):
            try:
                await session.topic(name, timeout=max(deadline_s - loop.time(), 0))
            except TidelogError as error:
                for where in left:
                    if where.topic == name:
                        self._failed[where] = error.anew()
        found: dict[BrokerId, list[_Asked]] = {}
        for where in left:
            topic, partition = session.cluster.topics.get(where.topic), session.cluster.partition(*where)
            if topic is None:
                self._causes[where] = UnknownTopicOrPartition(f"there is no topic {where.topic!r}")
            elif partition is None:
                fact = f"there is no partition {where}: {where.topic} has {len(topic.partitions)}"
                self._failed[where] = UnknownTopicOrPartition(fact)
            elif partition.leader == NO_BROKER:
                self._causes[where] = LeaderNotAvailable(f"{where}: nobody leads it")
            else:
                found.setdefault(partition.leader, []).append((where, topic.id, partition.leader_epoch))
        return found

    async def _ask(self, leader: BrokerId, asked: Sequence[_Asked], build: _Build, timeout_ms: int) -> None:
        session = self._session
        try:
            reply, _ = await session.call(leader, build(asked, timeout_ms), timeout_ms=timeout_ms)
        except TidelogError as error:
            for where, _, _ in asked:
                self._take(where, error.anew())
            return
        entries: Sequence[Any] = getattr(reply, "partitions", ())
        if len(entries) != len(asked):
            short = UnknownServerError(f"broker {leader} answered {len(entries)} of {len(asked)} partitions")
            for where, _, _ in asked:
                self._take(where, short.anew())
            return
        for (where, _, _), entry in zip(asked, entries, strict=True):
            if not entry.error:
                self._done[where] = entry
                continue
            session.hint(entry.topic_id, entry.index, entry.current_leader)
            self._take(where, error_of(entry.error, entry.message or ""))

    def _take(self, where: TopicPartition, error: TidelogError) -> None:
        (self._failed if advice(error) is Advice.FATAL else self._causes)[where] = error

    async def _look_again(self, left: list[TopicPartition], deadline_s: float) -> None:
        """Who leads now? An error of this attempt is that of the next one."""
        if not any(advice(self._causes[where]) is Advice.REFRESH for where in left):
            return
        late = RequestTimedOut("the cluster was not described in time")
        try:
            async with until(deadline_s * 1000, late):
                await self._session.refresh(dict.fromkeys(where.topic for where in left), newer=True)
        except TidelogError as error:
            for where in left:
                self._take(where, error.anew())
