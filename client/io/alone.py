"""A consumer that chooses its partitions itself, and keeps with a group how far it is (`assign` with `group=`).

It is no member: nobody shares anything out, there are no heartbeats, and its commits are those of nobody in particular.

What it keeps true:

* A partition is read from where the group has committed it, or else by `auto_offset_reset`; where somebody has sought
  meanwhile, from there.
* Its commits are sent one behind the other, and numbered: one that was given up and arrives late changes nothing.
* What was read of a topic that was deleted is not committed into another one of that name, before somebody seeks there.
* Nothing is committed by itself that the application has in hand. A group with members refuses whatever is committed so
  (NonEmptyGroup): that ends the reading, since somebody else reads for this group.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog.client.admin import Refusals
from tidelog.client.fetch_sessions import Place
from tidelog.client.io.coordinator import pieces
from tidelog.client.io.fetcher import Fetcher
from tidelog.client.io.group_offsets import CLOSE_COMMIT_S, Commit, GroupOffsets, to_commit
from tidelog.client.io.session import until
from tidelog.client.options import ConsumerConfig
from tidelog.client.reader import Reader
from tidelog.protocol.errors import NonEmptyGroup, RequestTimedOut, TidelogError, UnknownTopicId
from tidelog.protocol.messages import NO_MEMBER, CommittedPartition, OffsetCommit, OffsetCommitReply
from tidelog.protocol.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Offset, TopicId, TopicPartition

if TYPE_CHECKING:
    from tidelog.client.io.session import Session

logger = logging.getLogger(__name__)


class Alone:
    """See the module. `processed`: how far the application is done with a partition; `done`: also by what it has committed
    itself of what it has in hand; `time_before`: when the last record before an offset was written; -1: unknown.
    """

    def __init__(
        self,
        client: "Session",
        config: ConsumerConfig,
        fetcher: Fetcher,
        processed: Callable[[TopicPartition], Offset],
        done: Callable[[TopicPartition], Offset],
        time_before: Callable[[TopicPartition, Offset], int],
    ) -> None:
        assert config.group is not None
        self.config = config
        self.group = config.group
        self.automatic = config.enable_auto_commit is not False
        """Whether progress is committed by itself."""
        self._client = client
        self._offsets = GroupOffsets(client, config.group)
        self._fetcher = fetcher
        self._processed = processed
        self._done = done
        self._time_before = time_before
        self._id = f"{client.config.client_id or 'consumer'}-{client.rng.getrandbits(96):024x}"
        """Whose commits are numbered: nobody else's."""
        self._commits = 0
        self._turn = asyncio.Lock()
        self._committed: dict[Place, Offset] = {}
        """What was committed last, as far as is known here."""
        self._left: dict[TopicPartition, Offset] = {}
        """How far those were processed that are not read any more, until it is committed."""
        self._topics: dict[TopicPartition, TopicId] = {}
        """Which topic those were of that are not read any more."""
        self._committing = False
        self._by_policy: dict[TopicPartition, int] = {}
        """The version of readers that begin by `auto_offset_reset`, for the group had committed nothing."""
        fetcher.fetching.begin_anew = self._begin_anew

    @property
    def places(self) -> Collection[TopicPartition]:
        """What is read."""
        return self._fetcher.fetching.readers

    def leave(self, names: Collection[TopicPartition]) -> None:
        """These are about to be read no more."""
        self._topics.update({name: self._meant(name)[0] for name in names})
        if self.automatic:
            self._left.update({name: at for name in names if (at := self._done(name)) != NO_OFFSET})

    def begin(self, names: Collection[TopicPartition]) -> None:
        """Find out where these begin."""
        asked: dict[TopicPartition, int] = {}
        for name in names:
            reader = self._fetcher.fetching.readers[name]
            topic_id = self._topics.pop(name, b"")
            self._by_policy.pop(name, None)
            reader.seek(self._left.pop(name, NO_OFFSET))
            if reader.position == NO_OFFSET:
                asked[name] = reader.version
            else:
                reader.topic_id = topic_id  # if it is another one by now, that is told
        if asked:
            self._fetcher.spawn(self._place(asked))
        if self.automatic and not self._committing:
            self._committing = True
            self._fetcher.spawn(self._keep_committing())

    def _begin_anew(self, reader: Reader) -> None:
        """Of the topic that is there now the group may have committed something; but what somebody has sought counts."""
        sought = reader.position == NO_OFFSET and self._by_policy.get(reader.name) != reader.version
        question = reader.question if sought else None
        reader.seek(NO_OFFSET, question)
        if question is None:
            self._fetcher.spawn(self._place({reader.name: reader.version}))

    async def _place(self, asked: Mapping[TopicPartition, int]) -> None:
        fetching = self._fetcher.fetching
        found = await self.committed(asked, _now_ms() + self.config.default_api_timeout_ms)
        for name, version in asked.items():
            reader, start = fetching.readers.get(name), found[name]
            if reader is None or reader.version != version or reader.error is not None:
                continue
            if start.offset == NO_OFFSET:
                fetching.begin(reader)
                self._by_policy[name] = reader.version
                continue
            reader.seek(start.offset)
            reader.begins = start.offset
            reader.offset_epoch = start.leader_epoch
            reader.unchecked = start.leader_epoch != NO_EPOCH
            self._committed[reader.place] = start.offset
        self._fetcher.stir()
        self._fetcher.arrived.set()

    async def committed(
        self, names: Collection[TopicPartition] | Mapping[TopicPartition, object], deadline_ms: float
    ) -> dict[TopicPartition, CommittedPartition]:
        """What the group has committed of these."""
        return await self._offsets.committed(names, {}, deadline_ms)

    async def commit(self, offsets: Mapping[TopicPartition, Commit], deadline_ms: float) -> None:
        """Commit these. Raises NonEmptyGroup when the group has members."""
        if not offsets:
            return
        late = RequestTimedOut(f"group {self.group!r} has not taken {len(offsets)} offsets in time")
        meant = {name: self._meant(name) for name in offsets}
        async with until(deadline_ms, late), self._turn:
            self._commits += 1
            for some in pieces(list(offsets.items()), lambda each: each[1].metadata):
                await self._send(dict(some), meant, deadline_ms)

    def _meant(self, name: TopicPartition) -> Place:
        """The partition whose offsets are spoken of; without a topic if nobody knows it yet."""
        reader = self._fetcher.fetching.readers.get(name)
        topic_id = self._topics.get(name, b"") if reader is None else reader.deleted or reader.topic_id
        return topic_id, name.partition

    def _is_gone(self, name: TopicPartition) -> bool:
        """Whether it was deleted, as far as is known, whatever has its name now."""
        cluster, (topic_id, _) = self._client.cluster, self._meant(name)
        known = cluster.topics.get(name.topic)
        there = known.id == topic_id if known is not None else name.topic not in cluster.absent
        return bool(topic_id) and not there

    async def _send(
        self,
        offsets: Mapping[TopicPartition, Commit],
        meant: Mapping[TopicPartition, Place],
        deadline_ms: float,
    ) -> None:
        places: dict[Place, Commit] = {}
        names: dict[Place, TopicPartition] = {}
        for name, each in offsets.items():
            place = await self._offsets.place(name, deadline_ms)
            if meant[name][0] and meant[name] != place:
                raise UnknownTopicId(
                    f"{name}: what was read of it is of a topic that was deleted, and made anew since: "
                    "seek to where to begin in the new one"
                )
            reader = self._fetcher.fetching.readers.get(name)
            epoch = reader.epoch_before(each.offset) if reader is not None else NO_EPOCH
            time_ms = each.timestamp_ms
            if time_ms == NO_TIMESTAMP:
                time_ms = self._time_before(name, each.offset)
            places[place] = replace(each, leader_epoch=epoch, timestamp_ms=time_ms)
            names[place] = name
        entries, number = to_commit(places), self._commits
        reply = await self._offsets.at.insist(
            lambda left_ms: OffsetCommit(
                self.group, entries, self._id, NO_MEMBER, commit_sequence=number, timeout_ms=left_ms
            ),
            OffsetCommitReply,
            deadline_ms,
        )
        refusals = Refusals()
        for entry in reply.partitions:
            place = entry.topic_id, entry.index
            if not refusals.look(str(names[place]), entry.error, entry.message):
                self._committed[place] = places[place].offset
        refusals.raise_any(len(places))

    async def _keep_committing(self) -> None:
        while self.automatic:
            await asyncio.sleep(self.config.auto_commit_interval_ms / 1000)
            await self._commit_processed()

    async def _commit_processed(self) -> None:
        """Commit how far the application is, if it leaves that to us; what was not is tried again the next time."""
        if not self.automatic:
            return
        far = dict(self._left)
        for name in self.places:
            offset = self._processed(name)
            if self._done(name) <= offset:  # more: it commits that itself, and to say less would take it back
                far[name] = offset
        moved = {
            name: Commit(offset)
            for name, offset in far.items()
            if offset not in {NO_OFFSET, self._committed.get(self._meant(name))} and not self._is_gone(name)
        }
        try:
            await self.commit(moved, _now_ms() + CLOSE_COMMIT_S * 1000)
        except TidelogError as error:
            logger.warning(
                "group.not_committed group=%s partitions=%d reason=%s", self.group, len(moved), error
            )
            if isinstance(error, NonEmptyGroup):
                self._fetcher.fail(error)
        else:
            committed = self._committed
            self._left = {
                name: at for name, at in self._left.items() if committed.get(self._meant(name)) != at
            }

    async def close(self, timeout: float) -> None:
        """Commit how far the application is."""
        try:
            async with asyncio.timeout(min(timeout, CLOSE_COMMIT_S)):
                await self._commit_processed()
        except TimeoutError:
            logger.warning(
                "group.not_committed group=%s reason=its coordinator has not answered in time", self.group
            )


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
