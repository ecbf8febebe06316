"""What operators do with a cluster, by way of any broker (DECISIONS 21): topics, settings, offsets, elections, moves.

What it keeps true: a call ends within its `timeout` (seconds; the client's request time-out unless it says) whatever
brokers and controllers do meanwhile, and is tried again as long as that may help; when one thing was asked for its own
error is raised, for several one that names each (`SeveralErrors`). After `create_topics` the
topics are usable, after `delete_topics` no live broker names them.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from tidelog.client.admin import (
    At,
    ConfigValue,
    Election,
    Move,
    Moves,
    NewTopic,
    Refusals,
    places,
    text_of,
    timestamp_of,
)
from tidelog.client.arguments import (
    broker_of,
    brokers_of,
    flags,
    large,
    listed,
    mapped,
    partition_of,
    partitions_of,
    text,
    texts,
    topic_name,
    topics_of,
    whole,
)
from tidelog.client.cluster import Topic, topic_of
from tidelog.client.io.everywhere import everywhere, usable
from tidelog.client.io.group_admin import GroupAdmin
from tidelog.client.io.leaders import AtLeaders
from tidelog.client.io.log_dirs import describe_log_dirs
from tidelog.protocol.errors import (
    BrokerIdNotRegistered,
    ElectionNotNeeded,
    InvalidPartitions,
    InvalidRequest,
    TidelogError,
    TopicAlreadyExists,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from tidelog.protocol.messages import (
    AlterConfigs,
    AlterConfigsReply,
    AlterReassignments,
    AlterReassignmentsReply,
    ConfigAlter,
    ConfigDescribed,
    CreatedPartitions,
    CreatedTopic,
    CreatePartitions,
    CreatePartitionsReply,
    CreateTopics,
    CreateTopicsReply,
    DeleteTopics,
    DeleteTopicsReply,
    DescribeCluster,
    DescribeClusterReply,
    DescribeConfigs,
    DescribeConfigsReply,
    DescribeQuorum,
    DescribeQuorumReply,
    ElectLeaders,
    ElectLeadersReply,
    ListReassignments,
    ListReassignmentsReply,
    LogDirectory,
    Metadata,
    MetadataReply,
    NewPartitions,
    OffsetFound,
    PartitionIndex,
    PartitionMove,
    PlanMoves,
    PlanMovesReply,
    Reply,
    Request,
    ResourceAlter,
    ResourceAltered,
    ResourceQuery,
    UnregisterBroker,
    UnregisterBrokerReply,
)
from tidelog.protocol.types import NO_BROKER, BrokerId, Offset, TopicId, TopicPartition

E = TypeVar("E")
R = TypeVar("R", bound=Reply)

_ID_BYTES: Final = 16
"""How long a topic's id is."""


class Admin(GroupAdmin):
    """A client's `admin`."""

    def __repr__(self) -> str:
        return f"<admin of {self._session!r}>"

    # ── topics ────────────────────────────────────────────────────────────────────────────────────

    async def create_topics(
        self,
        *topics: NewTopic | str,
        wait: bool = True,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> list[CreatedTopic]:
        """Make topics. With `wait`, return when every live broker knows a leader of each partition: then they are usable."""
        flags(validate_only=validate_only)
        wanted = [NewTopic(topic) if isinstance(topic, str) else topic for topic in topics]
        for topic in wanted:
            if not isinstance(topic, NewTopic):
                raise InvalidRequest(
                    f"create_topics takes NewTopic(...) or names, one after the other, not {topic!r}"
                )
        request = CreateTopics(tuple(topic.entry() for topic in wanted), validate_only)
        deadline_s = self._deadline_s(timeout)
        unsure: list[TidelogError] = []
        reply = await self._any(request, CreateTopicsReply, deadline_s, unsure)
        refusals, created = Refusals(), []
        for topic, entry in zip(wanted, _each(reply.topics, len(wanted)), strict=True):
            done = entry
            if unsure and not validate_only and entry.error == TopicAlreadyExists.code:
                # An attempt whose answer was lost may have made it: it is ours if it is as we wanted it.
                done = await self._made_before(topic, entry, deadline_s)
            if not refusals.look(topic.name, done.error, done.message):
                created.append(done)
        if wait and not validate_only:
            counts = {topic.name: topic.partitions for topic in created}
            await usable(self._session, counts, deadline_s, "was created, and is not usable yet")
        refusals.raise_any(len(wanted))
        return created

    async def delete_topics(
        self, *topics: str | TopicId, wait: bool = True, timeout: float | None = None
    ) -> None:
        """Remove topics, by name or by id, with all their records, for ever. With `wait`, return when no live broker
        names them any more.
        """
        ids = tuple(topic for topic in topics if isinstance(topic, bytes) and len(topic) == _ID_BYTES)
        names = tuple(topics_of(topic for topic in topics if topic not in ids))
        deadline_s = self._deadline_s(timeout)
        unsure: list[TidelogError] = []
        reply = await self._any(DeleteTopics(names, ids), DeleteTopicsReply, deadline_s, unsure)
        refusals = Refusals()
        asked = [*names, *(topic_id.hex() for topic_id in ids)]
        for name, entry in zip(asked, _each(reply.topics, len(asked)), strict=True):
            if not (unsure and entry.error == UnknownTopicOrPartition.code):
                refusals.look(name, entry.error, entry.message)
        if wait and len(refusals.errors) < len(asked):
            await everywhere(
                self._session,
                lambda told: (
                    "" if told.metadata_offset >= reply.metadata_offset else "still knows what is deleted"
                ),
                (),
                deadline_s,
                f"{', '.join(asked)} is deleted, and not every broker has read so",
            )
        refusals.raise_any(len(topics))

    async def list_topics(self, *, internal: bool = False, timeout: float | None = None) -> list[Topic]:
        """All topics by name; those in which the cluster keeps its own books only if asked for."""
        reply = await self._any(Metadata(all_topics=True), MetadataReply, self._deadline_s(timeout))
        found = [topic_of(told, reply.metadata_offset) for told in reply.topics if not told.error]
        return sorted(
            (topic for topic in found if internal or not topic.internal), key=lambda topic: topic.name
        )

    async def describe_topics(self, *names: str, timeout: float | None = None) -> list[Topic]:
        """These topics as one broker knows them at this moment, in this order; without names all of them."""
        if not names:
            return await self.list_topics(internal=True, timeout=timeout)
        topics_of(names)
        reply = await self._any(Metadata(names), MetadataReply, self._deadline_s(timeout))
        refusals, found = Refusals(), []
        for name, told in zip(names, _each(reply.topics, len(names)), strict=True):
            if not refusals.look(name, told.error, told.message):
                found.append(topic_of(told, reply.metadata_offset))
        refusals.raise_any(len(names))
        return found

    async def add_partitions(
        self,
        topic: str,
        count: int,
        *,
        assignment: Sequence[Sequence[int]] = (),
        validate_only: bool = False,
        wait: bool = True,
        timeout: float | None = None,
    ) -> CreatedPartitions:
        """Let a topic have that many partitions; `assignment`: who keeps each of the new ones."""
        flags(validate_only=validate_only)
        more = NewPartitions(topic_name(topic), whole("count", count), places(assignment))
        request = CreatePartitions((more,), validate_only)
        deadline_s = self._deadline_s(timeout)
        unsure: list[TidelogError] = []
        reply = await self._any(request, CreatePartitionsReply, deadline_s, unsure)
        [entry] = _each(reply.topics, 1)
        if unsure and not validate_only and entry.error == InvalidPartitions.code:
            # An attempt whose answer was lost may have added them: then there are as many as we wanted.
            entry = await self._added_before(count, entry, deadline_s)
        refusals = Refusals()
        refusals.look(topic, entry.error, entry.message)
        refusals.raise_any(1)
        if wait and not validate_only:
            fact = "has its partitions, and they are not usable yet"
            await usable(self._session, {topic: count}, deadline_s, fact)
        return entry

    # ── settings ──────────────────────────────────────────────────────────────────────────────────

    async def describe_configs(
        self, kind: str, name: str = "", *, keys: Iterable[str] = (), timeout: float | None = None
    ) -> dict[str, ConfigDescribed]:
        """The settings of a `topic`, a `broker` or the `cluster`: what is configured, where, and what holds.

        A broker is asked itself: while it is down nobody knows what it was started with.
        """
        request = DescribeConfigs((ResourceQuery(*_resource(kind, name), texts("keys", keys)),))
        itself = BrokerId(int(name)) if kind == "broker" and str(name).isdecimal() else NO_BROKER
        reply = await self._any(request, DescribeConfigsReply, self._deadline_s(timeout), first=itself)
        [entry] = _each(reply.resources, 1)
        refusals = Refusals()
        refusals.look(f"{kind} {name}", entry.error, entry.message)
        refusals.raise_any(1)
        return {config.key: config for config in entry.configs}

    async def alter_configs(
        self,
        kind: str,
        name: str,
        configs: Mapping[str, ConfigValue | None],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> ResourceAltered:
        """Set some settings, or with None take them back; all others stay as they are. All of them are taken, or none."""
        flags(validate_only=validate_only)
        changes = tuple(
            ConfigAlter(text("a setting's name", key), None if value is None else text_of(value))
            for key, value in mapped("configs", configs, "{'retention.ms': 3_600_000}").items()
        )
        request = AlterConfigs((ResourceAlter(*_resource(kind, name), changes),), validate_only)
        reply = await self._any(request, AlterConfigsReply, self._deadline_s(timeout))
        [entry] = _each(reply.resources, 1)
        refusals = Refusals()
        refusals.look(f"{kind} {name}", entry.error, entry.message)
        refusals.raise_any(1)
        return entry

    # ── the cluster ───────────────────────────────────────────────────────────────────────────────

    async def describe_cluster(self, *, timeout: float | None = None) -> DescribeClusterReply:
        """All brokers, alive or not, and how the partitions are, as one broker knows it."""
        return await self._any(DescribeCluster(), DescribeClusterReply, self._deadline_s(timeout))

    async def describe_quorum(self, *, timeout: float | None = None) -> DescribeQuorumReply:
        """The controllers as the active one sees them, and how far everybody has read the metadata log."""
        return await self._any(DescribeQuorum(), DescribeQuorumReply, self._deadline_s(timeout))

    async def describe_log_dirs(
        self, *brokers: int, topics: Iterable[str] = (), timeout: float | None = None
    ) -> dict[BrokerId, tuple[LogDirectory, ...]]:
        """The data directories of these brokers, or of all that are alive: their room, and what each log takes, of these
        topics or of all.
        """
        asked, names = brokers_of("it", brokers), topics_of(listed("topics", topics, "['orders']"))
        return await describe_log_dirs(self._session, asked, names, self._deadline_s(timeout))

    # ── offsets ───────────────────────────────────────────────────────────────────────────────────

    async def list_offsets(
        self,
        partitions: str | Iterable[TopicPartition] | Mapping[TopicPartition, At],
        at: At = "latest",
        *,
        isolation: int = 0,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetFound]:
        """Which offsets partitions have there, as their leaders say; a topic's name stands for all of its partitions."""
        deadline_s, when = self._deadline_s(timeout), timestamp_of(at)
        whole("isolation", isolation, 0, 1)
        if isinstance(partitions, Mapping):
            wanted = {partition_of(where): timestamp_of(one) for where, one in partitions.items()}
        else:
            wanted = dict.fromkeys(await self._named(partitions, deadline_s), when)
        return await AtLeaders(self._session).list_offsets(wanted, isolation, deadline_s)

    async def delete_records(
        self, before: Mapping[TopicPartition, Offset], *, timeout: float | None = None
    ) -> dict[TopicPartition, Offset]:
        """Forget all below these offsets (-1: all that is committed); where each partition begins now, everywhere."""
        given = mapped("delete_records", before, "{('orders', 0): 7}").items()
        offsets = {partition_of(where): large("offset", offset, -1) for where, offset in given}
        return await AtLeaders(self._session).delete_records(offsets, self._deadline_s(timeout))

    # ── leaders and moves ─────────────────────────────────────────────────────────────────────────

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        unclean: bool = False,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> list[Election]:
        """Let the preferred replica lead; or, `unclean`, of partitions without a leader whoever has most: records may
        be lost by it. Without partitions: all of which that is to be said.
        """
        flags(unclean=unclean, validate_only=validate_only)
        deadline_s = self._deadline_s(timeout)
        ids = await self._ids(partitions, deadline_s)
        wanted = None if ids is None else tuple(PartitionIndex(*place) for place in ids)
        request = ElectLeaders(wanted, unclean, validate_only)
        reply = await self._any(request, ElectLeadersReply, deadline_s)
        names = ids or await self._names_of([entry.topic_id for entry in reply.partitions], deadline_s)
        refusals, elected = Refusals(), []
        for entry in reply.partitions:
            where = _where(names, entry.topic_id, entry.index)
            needless = entry.error == ElectionNotNeeded.code
            if needless or not refusals.look(str(where), entry.error, entry.message):
                elected.append(Election(where, entry.leader, entry.leader_epoch, not needless, entry.unclean))
        refusals.raise_any(len(reply.partitions))
        return elected

    async def reassign(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        throttle_bytes_s: int | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> list[Move]:
        """Begin to move partitions to these brokers, the preferred leader first; None cancels a move that goes on.

        The throttle is what one broker hands out for all moves in a second, and ends with them. `list_reassignments`
        says what goes on.
        """
        _check_move(throttle_bytes_s, validate_only=validate_only)
        given = mapped("reassign", targets, "{('orders', 0): [1, 2]}").items()
        to = {
            partition_of(where): None if target is None else brokers_of("a target", target)
            for where, target in given
        }
        deadline_s = self._deadline_s(timeout)
        ids = await self._ids(to, deadline_s)
        assert ids is not None
        moves = [PartitionMove(topic_id, index, to[where]) for (topic_id, index), where in ids.items()]
        return await self._move(moves, deadline_s, throttle_bytes_s, validate_only=validate_only)

    async def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> Moves:
        """What is being moved, of these partitions or of all."""
        deadline_s = self._deadline_s(timeout)
        ids = await self._ids(partitions, deadline_s)
        wanted = None if ids is None else tuple(PartitionIndex(*place) for place in ids)
        reply = await self._any(ListReassignments(wanted), ListReassignmentsReply, deadline_s)
        names = ids or await self._names_of([entry.topic_id for entry in reply.partitions], deadline_s)
        moving = tuple(
            Move(
                _where(names, entry.topic_id, entry.index),
                entry.replicas,
                entry.adding,
                entry.removing,
                entry.isr,
                entry.waiting_for,
            )
            for entry in reply.partitions
        )
        return Moves(moving, reply.throttle_bytes_s)

    async def drain_broker(
        self,
        broker: int,
        *,
        throttle_bytes_s: int | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> list[Move]:
        """Begin to move everything that a broker keeps to others, alive or dead as it is; `list_reassignments` says how
        far that is. Topics that are made meanwhile may still be given to it.
        """
        number = broker_of(broker)
        _check_move(throttle_bytes_s, validate_only=validate_only)
        deadline_s = self._deadline_s(timeout)
        plan = await self._any(PlanMoves(number), PlanMovesReply, deadline_s)
        return await self._move(plan.moves, deadline_s, throttle_bytes_s, validate_only=validate_only)

    async def undrain_broker(
        self,
        broker: int,
        *,
        throttle_bytes_s: int | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> list[Move]:
        """Cancel the moves that take something from a broker, and begin those that give it as much as others have."""
        number = broker_of(broker)
        _check_move(throttle_bytes_s, validate_only=validate_only)
        deadline_s = self._deadline_s(timeout)
        moving = await self._any(ListReassignments(), ListReassignmentsReply, deadline_s)
        back = [
            PartitionMove(entry.topic_id, entry.index)
            for entry in moving.partitions
            if number in entry.removing
        ]
        moves = await self._move(back, deadline_s, None, validate_only=validate_only)
        plan = await self._any(PlanMoves(), PlanMovesReply, deadline_s)
        kept = {(move.topic_id, move.index) for move in back}
        given = [
            move
            for move in plan.moves
            if number in (move.target or ()) and (move.topic_id, move.index) not in kept
        ]
        return moves + await self._move(given, deadline_s, throttle_bytes_s, validate_only=validate_only)

    async def unregister_broker(
        self, broker: int, *, force: bool = False, timeout: float | None = None
    ) -> None:
        """Take a broker off the list that is down and will not come back; `force`: even if it is a replica of something,
        and what only it has is given up.
        """
        unsure: list[TidelogError] = []
        flags(force=force)
        request = UnregisterBroker(broker_of(broker), force)
        try:
            await self._any(request, UnregisterBrokerReply, self._deadline_s(timeout), unsure)
        except BrokerIdNotRegistered:
            if not unsure:  # an attempt whose answer was lost may have done it
                raise

    async def _move(
        self,
        moves: Sequence[PartitionMove],
        deadline_s: float,
        throttle_bytes_s: int | None,
        *,
        validate_only: bool,
    ) -> list[Move]:
        """Order these moves; what became of each."""
        if not moves:
            return []
        names = await self._names_of([move.topic_id for move in moves], deadline_s)
        request = AlterReassignments(tuple(moves), throttle_bytes_s, validate_only)
        reply = await self._any(request, AlterReassignmentsReply, deadline_s)
        refusals, begun = Refusals(), []
        for entry in reply.partitions:
            where = _where(names, entry.topic_id, entry.index)
            if not refusals.look(str(where), entry.error, entry.message):
                begun.append(Move(where, entry.replicas, entry.adding, entry.removing))
        refusals.raise_any(len(moves))
        return begun

    # ── how ───────────────────────────────────────────────────────────────────────────────────────

    def _deadline_s(self, timeout: float | None) -> float:
        return asyncio.get_running_loop().time() + self._allowed_ms(timeout) / 1000

    def _left_ms(self, deadline_s: float) -> float:
        return max(deadline_s - asyncio.get_running_loop().time(), 0.0) * 1000

    async def _any(
        self,
        request: Request,
        kind: type[R],
        deadline_s: float,
        unsure: list[TidelogError] | None = None,
        first: BrokerId = NO_BROKER,
    ) -> R:
        """Any broker's reply; `unsure` gets the errors after which it was not known what had been done."""
        known: list[TidelogError] = [] if unsure is None else unsure
        reply, _ = await self._session.call_any(
            request, timeout_ms=self._left_ms(deadline_s), on_retry=known.append, first=first
        )
        if not isinstance(reply, kind):
            raise UnknownServerError(f"{type(reply).__name__} was answered to {type(request).__name__}")
        return reply

    async def _made_before(self, topic: NewTopic, entry: CreatedTopic, deadline_s: float) -> CreatedTopic:
        reply = await self._any(Metadata((topic.name,)), MetadataReply, deadline_s)
        [told] = _each(reply.topics, 1)
        wanted = len(topic.assignment) or topic.partitions
        if told.error or (wanted and len(told.partitions) != wanted):
            return entry
        factor = len(told.partitions[0].replicas)
        return CreatedTopic(topic.name, 0, None, told.topic_id, len(told.partitions), factor)

    async def _added_before(
        self, count: int, entry: CreatedPartitions, deadline_s: float
    ) -> CreatedPartitions:
        reply = await self._any(Metadata((entry.name,)), MetadataReply, deadline_s)
        [told] = _each(reply.topics, 1)
        if told.error or len(told.partitions) != count:
            return entry
        return CreatedPartitions(entry.name, partitions=count)

    async def _named(
        self, partitions: str | Iterable[TopicPartition], deadline_s: float
    ) -> list[TopicPartition]:
        if not isinstance(partitions, str):
            return partitions_of(partitions, "list_offsets")
        topic = await self._session.topic(partitions, timeout=self._left_ms(deadline_s) / 1000)
        return [TopicPartition(partitions, index) for index in range(len(topic.partitions))]

    async def _ids(
        self, partitions: Iterable[TopicPartition] | None, deadline_s: float
    ) -> dict[tuple[TopicId, int], TopicPartition] | None:
        """These partitions by the ids of their topics as they are now, each once; None: all."""
        if partitions is None:
            return None
        wanted = partitions_of(partitions, "this call")
        names = list(dict.fromkeys(where.topic for where in wanted))
        if len(set(wanted)) != len(wanted):
            raise InvalidRequest("a partition is named twice")
        topics = {topic.name: topic for topic in await self._described(names, deadline_s)}
        for where in wanted:
            if not 0 <= where.partition < len(topics[where.topic].partitions):
                raise UnknownTopicOrPartition(
                    f"there is no partition {where}: {where.topic} has {len(topics[where.topic].partitions)}"
                )
        return {(topics[where.topic].id, where.partition): where for where in wanted}

    async def _described(self, names: Sequence[str], deadline_s: float) -> list[Topic]:
        if not names:
            return []
        return await self.describe_topics(*names, timeout=self._left_ms(deadline_s) / 1000)

    async def _names_of(
        self, ids: Iterable[TopicId], deadline_s: float
    ) -> dict[tuple[TopicId, int], TopicPartition]:
        wanted = tuple(dict.fromkeys(ids))
        if not wanted:
            return {}
        reply = await self._any(Metadata(ids=wanted), MetadataReply, deadline_s)
        return {
            (told.topic_id, one.index): TopicPartition(told.name, one.index)
            for told in reply.topics
            if told.topic_id is not None
            for one in told.partitions
        }


def _resource(kind: object, name: object) -> tuple[str, str]:
    """What settings belong to; a broker also by its number."""
    return text("kind", kind), str(whole("name", name)) if type(name) is int else text("name", name)


def _check_move(throttle_bytes_s: object, *, validate_only: object) -> None:
    flags(validate_only=validate_only)
    if throttle_bytes_s is not None:
        large("throttle_bytes_s", throttle_bytes_s)


def _each(entries: Sequence[E], asked: int) -> Sequence[E]:
    """The entries of a reply, one for each that was asked for."""
    if len(entries) != asked:
        raise UnknownServerError(f"{len(entries)} entries were answered, {asked} were asked for")
    return entries


def _where(names: Mapping[Any, TopicPartition], topic_id: TopicId, index: int) -> TopicPartition:
    """The partition's name; of a topic that was deleted meanwhile its id."""
    return names.get((topic_id, index), TopicPartition(topic_id.hex(), index))
