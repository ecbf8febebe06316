"""What operators do with groups: list them, look at them, set their offsets, forget them.

What it keeps true: each group is asked of whoever coordinates it at that moment, many in one request; a call ends
within its `timeout`; offsets are set only of groups without members, and the default is to say what would be done.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from tidelog.client.admin import OffsetReset, Refusals, Target, check_target, offset_within
from tidelog.client.arguments import (
    flags,
    listed,
    partition_of,
    partitions_of,
    seconds,
    text,
    texts,
    topic_name,
)
from tidelog.client.io.connections import together
from tidelog.client.io.coordinator import ENTRIES, AtCoordinator, pieces
from tidelog.client.io.leaders import AtLeaders
from tidelog.client.io.session import Session
from tidelog.client.retry import Advice, Backoff, advice
from tidelog.protocol.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    RequestTimedOut,
    TidelogError,
    UnknownServerError,
    error_of,
)
from tidelog.protocol.messages import (
    EARLIEST,
    LATEST,
    CommittedPartition,
    DeletedGroup,
    DeleteGroupOffsets,
    DeleteGroupOffsetsReply,
    DeleteGroups,
    DeleteGroupsReply,
    DescribedGroup,
    DescribedMember,
    DescribedOffset,
    DescribeGroups,
    DescribeGroupsReply,
    FindCoordinator,
    FindCoordinatorReply,
    ListedGroup,
    ListGroups,
    ListGroupsReply,
    Metadata,
    MetadataReply,
    OffsetCommit,
    OffsetCommitReply,
    OffsetToCommit,
    PartitionIndex,
)
from tidelog.protocol.types import NO_BROKER, BrokerId, TopicId, TopicPartition

_GROUP: Final = "a group's name"
_MOST_MS: Final = 2**31 - 1
"""No message can ask for more time: 24 days."""
TOPICS: Final = 64
"""How many topics are named at once: an answer tells all their partitions."""


class GroupAdmin:
    """The part of a client's `admin` that is about groups."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def list_groups(
        self,
        *,
        states: Iterable[str] = (),
        topic: str = "",
        with_lag: bool = False,
        timeout: float | None = None,
    ) -> list[ListedGroup]:
        """All groups by name, a line each: all brokers are asked at once. Raises CoordinatorNotAvailable where nobody tells of
        some of them: a list with gaps would look like a whole one.
        """
        flags(with_lag=with_lag)
        wanted = texts("states", states)
        if topic != "":
            topic_name(topic)
        session = self._session
        backoff = session.backoff(self._allowed_ms(timeout))
        while True:
            lines: dict[
                str, ListedGroup
            ] = {}  # a group whose coordinator has just changed may be told by both
            told: set[int] = set()
            count = 0
            try:
                await session.refresh((), newer=True)
                ask = ListGroups(wanted, topic, with_lag)
                brokers = list(session.cluster.brokers)
                for replies in await together(self._listed(each, ask, backoff) for each in brokers):
                    lines |= {group.group_id: group for reply in replies for group in reply.groups}
                    told.update(replies[-1].partitions)
                    count = max(count, replies[-1].partition_count)
                if missing := sorted(set(range(count)) - told):
                    raise CoordinatorNotAvailable(
                        f"no broker leads partitions {missing} of __consumer_offsets: their groups would be missing"
                    )
            except TidelogError as error:
                if advice(error) is Advice.FATAL or not await session.pause(backoff):
                    raise
                continue
            return [lines[name] for name in sorted(lines)]

    async def _listed(self, broker: BrokerId, request: ListGroups, backoff: Backoff) -> list[ListGroupsReply]:
        """What one broker coordinates, page by page."""
        pages: list[ListGroupsReply] = []
        after = ""
        while True:
            left_ms = backoff.left_ms(_now_ms())
            page = replace(request, after=after, limit=ENTRIES, timeout_ms=max(int(left_ms / 2), 1))
            reply, _ = await self._session.call(broker, page, timeout_ms=left_ms)
            if not isinstance(reply, ListGroupsReply):
                raise UnknownServerError(f"{type(reply).__name__} was answered to ListGroups")
            if reply.error:
                raise error_of(reply.error, reply.message or "")
            pages.append(reply)
            if not reply.more or not reply.groups:
                return pages
            after = reply.groups[-1].group_id

    async def describe_groups(
        self, *groups: str, with_lag: bool = True, timeout: float | None = None
    ) -> list[DescribedGroup]:
        """All about these groups, in this order: members, what each has, how far it has come, how far it is behind."""
        flags(with_lag=with_lag)

        async def ask(broker: BrokerId, names: Sequence[str], backoff: Backoff) -> Sequence[DescribedGroup]:
            return await self._in_full(broker, names, backoff, with_lag=with_lag)

        found: dict[str, DescribedGroup] = await self._at_coordinators(groups, ask, timeout)
        return [found[name] for name in groups]

    async def _in_full(
        self, broker: BrokerId, names: Sequence[str], backoff: Backoff, *, with_lag: bool
    ) -> list[DescribedGroup]:
        """What one broker says of these groups, page by page."""
        found: list[DescribedGroup] = []
        members: list[DescribedMember] = []
        offsets: list[DescribedOffset] = []
        after = None
        while len(found) < len(names):
            left_ms = backoff.left_ms(_now_ms())
            request = DescribeGroups(
                tuple(names[len(found) : len(found) + ENTRIES]),
                with_lag,
                max(int(left_ms / 2), 1),
                members[-1].member_id if members else "",
                after,
                ENTRIES,
            )
            reply, _ = await self._session.call(broker, request, timeout_ms=left_ms)
            if not isinstance(reply, DescribeGroupsReply):
                raise UnknownServerError(f"{type(reply).__name__} was answered to DescribeGroups")
            if not reply.groups:
                raise UnknownServerError(f"broker {broker} says nothing of {names[len(found)]!r}")
            for entry in reply.groups:
                members += entry.members
                offsets += entry.offsets
                if entry.more and not entry.error:
                    after = PartitionIndex(offsets[-1].topic_id, offsets[-1].index) if offsets else None
                    continue
                found.append(replace(entry, members=tuple(members), offsets=tuple(offsets)))
                members, offsets, after = [], [], None
        return found

    async def delete_groups(self, *groups: str, timeout: float | None = None) -> None:
        """Forget groups that have no members, with their offsets. One that is gone when its deletion is asked for again,
        because it was not known what had become of it, counts as deleted.
        """
        doubtful: set[str] = set()

        async def ask(broker: BrokerId, names: Sequence[str], backoff: Backoff) -> Sequence[DeletedGroup]:
            left_ms = backoff.left_ms(_now_ms())
            request = DeleteGroups(tuple(names), max(int(left_ms / 2), 1))
            before = frozenset(doubtful)
            doubtful.update(names)
            reply, _ = await self._session.call(broker, request, timeout_ms=left_ms)
            if not isinstance(reply, DeleteGroupsReply):
                raise UnknownServerError(f"{type(reply).__name__} was answered to DeleteGroups")
            doubtful.difference_update(
                entry.group_id for entry in reply.groups if entry.error == CoordinatorLoadInProgress.code
            )
            return [
                DeletedGroup(entry.group_id)
                if entry.error == GroupIdNotFound.code and entry.group_id in before
                else entry
                for entry in reply.groups
            ]

        await self._at_coordinators(groups, ask, timeout)

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> None:
        """Forget what a group has committed of partitions whose topics no member of it wants."""
        text(_GROUP, group)
        wanted = partitions_of(partitions, "delete_group_offsets")
        deadline_ms = _now_ms() + self._allowed_ms(timeout)
        names = await self._topic_ids(wanted, deadline_ms)
        at, told = AtCoordinator(self._session, group), list[Any]()
        for some in pieces(list(names)):
            entries = tuple(PartitionIndex(*place) for place in some)
            reply = await at.insist(
                lambda left_ms, entries=entries: DeleteGroupOffsets(group, entries, left_ms),  # type: ignore[misc]
                DeleteGroupOffsetsReply,
                deadline_ms,
            )
            told += reply.partitions
        _raise_refused(told, names)

    async def committed_offsets(
        self, group: str, *, timeout: float | None = None
    ) -> dict[TopicPartition, CommittedPartition]:
        """What a group has committed, of every topic that there still is."""
        text(_GROUP, group)
        deadline_ms = _now_ms() + self._allowed_ms(timeout)
        found = await AtCoordinator(self._session, group).committed(None, deadline_ms)
        names = await self._topic_names([entry.topic_id for entry in found], deadline_ms)
        return {
            TopicPartition(names[entry.topic_id], entry.index): entry
            for entry in found
            if entry.topic_id in names
        }

    async def reset_group_offsets(
        self,
        group: str,
        to: Target,
        *,
        partitions: Iterable[TopicPartition | str] | None = None,
        dry_run: bool = True,
        timeout: float | None = None,
    ) -> list[OffsetReset]:
        """Set where a group without members goes on: at `"earliest"`, `"latest"`, an `Offset`, a `Time` or a `Duration`
        ago, or by a `Shift`; never outside of what there is. Of these partitions or topics; without them, of all that
        it has committed something of.

        Unless `dry_run=False` nothing is changed, and what is returned is what would be.
        """
        check_target(to)
        flags(dry_run=dry_run)
        named = None if partitions is None else _named(partitions)
        deadline_ms = _now_ms() + self._allowed_ms(timeout)
        before = await self.committed_offsets(group, timeout=(deadline_ms - _now_ms()) / 1000)
        wanted = sorted(before) if named is None else await self._spelled_out(named, deadline_ms)
        if not wanted:
            return []
        deadline_s = deadline_ms / 1000
        starts = await AtLeaders(self._session).list_offsets(dict.fromkeys(wanted, EARLIEST), 0, deadline_s)
        ends = await AtLeaders(self._session).list_offsets(dict.fromkeys(wanted, LATEST), 0, deadline_s)
        at_times = {}
        time_ms = to.time_ms(int(time.time() * 1000)) if not isinstance(to, str) else None
        if time_ms is not None:
            times = AtLeaders(self._session).list_offsets(dict.fromkeys(wanted, time_ms), 0, deadline_s)
            at_times = {name: found.offset for name, found in (await times).items()}
        resets = []
        for name in wanted:
            known = before.get(name)
            start, end = starts[name].offset, ends[name].offset
            had = None if known is None else known.offset
            resets.append(OffsetReset(name, had, offset_within(to, had, start, end, at_times.get(name))))
        await self._set_offsets(group, resets, deadline_ms, dry_run=dry_run)
        return resets

    async def _set_offsets(
        self, group: str, resets: Sequence[OffsetReset], deadline_ms: float, *, dry_run: bool
    ) -> None:
        names = await self._topic_ids([each.partition for each in resets], deadline_ms)
        offsets = {each.partition: each.after for each in resets}
        at, told = AtCoordinator(self._session, group), list[Any]()
        for some in pieces(list(names.items())):
            entries = tuple(OffsetToCommit(*place, offsets[name]) for place, name in some)
            commit = OffsetCommit(group, entries, validate_only=dry_run)
            reply = await at.insist(
                lambda left_ms, commit=commit: replace(commit, timeout_ms=left_ms),  # type: ignore[misc]
                OffsetCommitReply,
                deadline_ms,
            )
            told += reply.partitions
        _raise_refused(told, names)

    # ── how ───────────────────────────────────────────────────────────────────────────────────────

    async def _at_coordinators(
        self,
        groups: Sequence[str],
        ask: Callable[[BrokerId, Sequence[str], Backoff], Awaitable[Sequence[Any]]],
        timeout: float | None,
    ) -> dict[str, Any]:
        """The entry of each group, asked of whoever coordinates it, until it is told or the time is up."""
        texts("groups", groups)
        session = self._session
        backoff = session.backoff(self._allowed_ms(timeout))
        done: dict[str, Any] = {}
        failed: dict[str, TidelogError] = {}
        left = list(dict.fromkeys(groups))
        while left:
            causes: dict[str, TidelogError] = {}
            try:
                by_broker = await self._coordinators(left, backoff.left_ms(_now_ms()), causes)
            except TidelogError as error:
                causes, by_broker = dict.fromkeys(left, error), {}
            asked = [
                (broker, some)
                for broker, names in by_broker.items()
                for some in pieces(names, lambda name: name)
            ]
            replies = await asyncio.gather(
                *(ask(broker, some, backoff) for broker, some in asked), return_exceptions=True
            )
            for (_, names), reply in zip(asked, replies, strict=True):
                if isinstance(reply, TidelogError):
                    causes.update(dict.fromkeys(names, reply))
                    continue
                if isinstance(reply, BaseException):
                    raise reply
                for entry in reply:
                    if entry.error:
                        causes[entry.group_id] = error_of(entry.error, entry.message or "")
                    else:
                        done[entry.group_id] = entry
            failed.update({name: each for name, each in causes.items() if advice(each) is Advice.FATAL})
            left = [name for name in left if name not in done and name not in failed]
            if left and not await session.pause(backoff):
                late = RequestTimedOut("its coordinator has not answered in time")
                failed.update({name: causes.get(name, late) for name in left})
                break
        refusals = Refusals()
        refusals.errors = {name: failed[name] for name in dict.fromkeys(groups) if name in failed}
        refusals.raise_any(len(groups))
        return done

    async def _coordinators(
        self, groups: Sequence[str], left_ms: float, causes: dict[str, TidelogError]
    ) -> dict[BrokerId, list[str]]:
        found: dict[BrokerId, list[str]] = {}
        for some in pieces(groups, lambda name: name):
            reply, _ = await self._session.call_any(
                FindCoordinator(tuple(some), max(int(left_ms), 1)), timeout_ms=left_ms
            )
            if not isinstance(reply, FindCoordinatorReply):
                raise UnknownServerError(f"{type(reply).__name__} was answered to FindCoordinator")
            for each in reply.coordinators:
                if each.error:
                    causes[each.key] = error_of(each.error, each.message or "")
                else:
                    found.setdefault(each.broker_id, []).append(each.key)
        unknown = [broker for broker in found if broker not in self._session.cluster.brokers]
        if unknown:
            await self._session.refresh((), newer=True)
            for broker in unknown:
                if broker not in self._session.cluster.brokers and broker != NO_BROKER:
                    error = CoordinatorNotAvailable(f"broker {broker} coordinates it, and is not alive")
                    causes.update(dict.fromkeys(found.pop(broker), error))
        return found

    async def _spelled_out(
        self, partitions: Iterable[TopicPartition | str], deadline_ms: float
    ) -> list[TopicPartition]:
        found: dict[TopicPartition, None] = {}
        for each in partitions:
            if not isinstance(each, str):
                found[each] = None
                continue
            left_s = max(deadline_ms - _now_ms(), 1.0) / 1000
            topic = await self._session.topic(each, timeout=left_s)
            found.update(dict.fromkeys(TopicPartition(each, index) for index in range(len(topic.partitions))))
        return sorted(found)

    async def _topic_ids(
        self, partitions: Iterable[TopicPartition], deadline_ms: float
    ) -> dict[tuple[TopicId, int], TopicPartition]:
        found = {}
        for name in partitions:
            left_s = max(deadline_ms - _now_ms(), 1.0) / 1000
            topic = await self._session.topic(name.topic, timeout=left_s)
            found[topic.id, name.partition] = TopicPartition(*name)
        return found

    async def _topic_names(self, ids: Iterable[TopicId], deadline_ms: float) -> dict[TopicId, str]:
        wanted = list(dict.fromkeys(ids))
        found: dict[TopicId, str] = {}
        for at in range(0, len(wanted), TOPICS):
            reply, _ = await self._session.call_any(
                Metadata(ids=tuple(wanted[at : at + TOPICS])), timeout_ms=max(deadline_ms - _now_ms(), 1.0)
            )
            if not isinstance(reply, MetadataReply):
                raise UnknownServerError(f"{type(reply).__name__} was answered to Metadata")
            found |= {told.topic_id: told.name for told in reply.topics if told.topic_id and not told.error}
        return found

    def _allowed_ms(self, timeout: float | None) -> float:
        """How long a call may take; each asks, before it does anything."""
        self._session.home.check()
        if timeout is None:
            return self._session.config.request_timeout_ms
        return min(seconds("timeout", timeout) * 1000, _MOST_MS)


def _named(given: object) -> list[TopicPartition | str]:
    """Partitions, and topics for all of theirs."""
    each = listed("partitions", given, "[('orders', 0), 'bills']")
    return [topic_name(one) if isinstance(one, str) else partition_of(one) for one in each]


def _raise_refused(entries: Sequence[Any], names: Mapping[tuple[TopicId, int], TopicPartition]) -> None:
    refusals = Refusals()
    for entry in entries:
        refusals.look(str(names[entry.topic_id, entry.index]), entry.error, entry.message)
    refusals.raise_any(len(names))


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
