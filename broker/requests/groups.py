"""The requests about groups: from the right shard, or why it cannot be served, to the answer (docs/GROUPS.md)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as decided
from functools import partial
from typing import Final, TypeAlias, cast

from msgspec.structs import replace

from tidelog.broker.coordinator import Answer, Coordinator, Held, gathered
from tidelog.broker.coordinator_ends import gather_ends
from tidelog.broker.groups.description import (
    BEGIN,
    Cursor,
    Part,
    View,
    cursor_of,
    listed,
    page_of,
    part_of,
    unknown,
)
from tidelog.broker.groups.lag import Ends
from tidelog.broker.groups.pages import LINE_BYTES, Page, bytes_of
from tidelog.broker.groups.records import GROUPS_TOPIC, Place
from tidelog.broker.requests.context import Context
from tidelog.broker.requests.endpoints import endpoint
from tidelog.protocol.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InvalidReplicationFactor,
    InvalidRequest,
    NotCoordinator,
    TidelogError,
    TopicAlreadyExists,
    error_of,
)
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    ConfigEntry,
    CreateTopics,
    CreateTopicsReply,
    DeletedGroup,
    DeleteGroupOffsets,
    DeleteGroupOffsetsReply,
    DeleteGroups,
    DeleteGroupsReply,
    DescribeGroups,
    DescribeGroupsReply,
    FindCoordinator,
    FindCoordinatorReply,
    GroupHeartbeat,
    GroupHeartbeatReply,
    ListGroups,
    ListGroupsReply,
    NewTopic,
    OffsetCommit,
    OffsetCommitReply,
    OffsetFetch,
    OffsetFetchReply,
    Reply,
    Request,
)
from tidelog.protocol.messages import Coordinator as FoundCoordinator
from tidelog.protocol.types import NO_BROKER, NO_OFFSET, Epoch

TIMED_GROUPS: Final = 20
"""Of so many groups that are described at once, the first unread record of each partition is looked up."""
TIMED_PARTITIONS: Final = 10_000
"""But not of a group that has more partitions than these."""
TIMED_PAGE: Final = 2_000
"""So many are looked up for one answer: it takes a broker's whole attention."""

Handler: TypeAlias = Callable[[Context, Incoming], None]
Refuse: TypeAlias = Callable[[TidelogError], Reply]

HEARTBEAT_TIMEOUT_MS: Final = 10_000
"""How long the answer to a heartbeat waits until it is committed."""
AT_ONCE_MS: Final = 20
"""When a member heartbeats again whose heartbeats wait for news: the broker is where it waits."""


def handlers(coordinator: Coordinator) -> Mapping[type[Request], Handler]:
    """Who serves which request."""
    served: dict[type[Request], Callable[[Coordinator, Context, Incoming], None]] = {
        FindCoordinator: find_coordinator,
        GroupHeartbeat: group_heartbeat,
        OffsetCommit: offset_commit,
        OffsetFetch: offset_fetch,
        ListGroups: list_groups,
        DescribeGroups: describe_groups,
        DeleteGroups: delete_groups,
        DeleteGroupOffsets: delete_group_offsets,
    }
    return {request: partial(handler, coordinator) for request, handler in served.items()}


# ── members ───────────────────────────────────────────────────────────────────────────────────────────


def group_heartbeat(coordinator: Coordinator, _: Context, incoming: Incoming) -> None:
    """A member says something; without news for it the answer waits for some, as long as it allows."""
    request = cast("GroupHeartbeat", incoming.message)
    answer = _answer(incoming, lambda error: GroupHeartbeatReply(error.code, str(error)))
    try:
        held = coordinator.of_group(request.group_id)
    except TidelogError as error:
        answer(error)
        return
    _heartbeat(coordinator, held, request, incoming, answer)


def _heartbeat(
    coordinator: Coordinator,
    held: Held,
    request: GroupHeartbeat,
    incoming: Incoming,
    answer: Answer,
    *,
    may_wait: bool = True,
) -> None:
    context = coordinator.context
    clocks, shard = context.clocks, held.shard
    client_id, host = _caller(incoming)
    decision = shard.heartbeat(request, clocks.now_ms(), clocks.wall_ms(), client_id, host)
    reply = decision.reply
    assert isinstance(reply, GroupHeartbeatReply)
    if request.max_wait_ms and not reply.error and reply.member_epoch > 0:
        decision = decided(decision, reply=replace(reply, heartbeat_interval_ms=AT_ONCE_MS))
        nothing_new = not decision.records and reply.assignment is None
        if may_wait and nothing_new and not shard.has_news(request.group_id, request.member_id):
            wait_ms = min(
                request.max_wait_ms, shard.heartbeat_interval_ms(request.group_id, request.member_id)
            )
            waiting = _Patient(coordinator, held, request, incoming, answer)
            keys = (held.gone, (GROUPS_TOPIC, request.group_id))
            context.replicas.wait(waiting, keys, clocks.now_ms() + wait_ms)
            return
    coordinator.carry(held, decision, answer, HEARTBEAT_TIMEOUT_MS)


@dataclass(slots=True)
class _Patient:
    """A heartbeat that had nothing to be told, and waits for news: then it is as if it arrived again."""

    coordinator: Coordinator
    held: Held
    request: GroupHeartbeat
    incoming: Incoming
    answer: Answer

    def try_complete(self) -> bool:
        held, request = self.held, self.request
        is_here = self.coordinator.held.get(held.index) is held and held.is_led and not self.incoming.closed
        if is_here and not held.shard.has_news(request.group_id, request.member_id):
            return False
        self.give_up()
        return True

    def give_up(self) -> None:
        if self.incoming.closed:
            return  # whoever has hung up since says nothing, and is not heard
        try:
            held = self.coordinator.of_group(self.request.group_id)
            if held is not self.held:  # which has not heard what the member may have said since
                raise NotCoordinator(
                    f"{self.request.group_id} has another coordinator, on this broker as well"
                )
        except TidelogError as error:
            self.answer(error)
            return
        _heartbeat(self.coordinator, held, self.request, self.incoming, self.answer, may_wait=False)

    def fail(self, error: TidelogError) -> None:
        self.answer(error)


def offset_commit(coordinator: Coordinator, context: Context, incoming: Incoming) -> None:
    """Somebody says how far a group has come."""
    request = cast("OffsetCommit", incoming.message)
    answer = _answer(incoming, lambda error: OffsetCommitReply(error.code, str(error)))
    try:
        held = coordinator.of_group(request.group_id)
    except TidelogError as error:
        answer(error)
        return
    decision = held.shard.commit(request, context.clocks.wall_ms())
    coordinator.carry(held, decision, answer, request.timeout_ms)


def offset_fetch(coordinator: Coordinator, _: Context, incoming: Incoming) -> None:
    """Somebody asks how far a group has come."""
    request = cast("OffsetFetch", incoming.message)
    answer = _answer(incoming, lambda error: OffsetFetchReply(error.code, str(error)))
    try:
        answer(coordinator.of_group(request.group_id).shard.fetch(request))
    except TidelogError as error:
        answer(error)


# ── who coordinates ───────────────────────────────────────────────────────────────────────────────────


def find_coordinator(coordinator: Coordinator, context: Context, incoming: Incoming) -> None:
    """Who coordinates groups; the topic is made when it is asked for the first time (DECISIONS 19)."""
    request = cast("FindCoordinator", incoming.message)
    if GROUPS_TOPIC in context.image.topic_ids:
        incoming.reply(_found(coordinator, context, incoming))
        return
    settings = coordinator.settings
    topic = NewTopic(
        GROUPS_TOPIC,
        settings.offsets_topic_num_partitions,
        settings.offsets_topic_replication_factor,
        configs=(
            ConfigEntry("cleanup.policy", "compact"),
            ConfigEntry("flush.mode", "group"),
            ConfigEntry("min.insync.replicas", str(min(2, settings.offsets_topic_replication_factor))),
        ),
    )

    def build(quorum_epoch: Epoch) -> Request:
        return CreateTopics((topic,), timeout_ms=request.timeout_ms, quorum_epoch=quorum_epoch)

    def told(answer: Reply | TidelogError) -> None:
        incoming.reply(_found(coordinator, context, incoming, _why_not(answer)))

    context.ask_controller(build, request.timeout_ms, told)


def _why_not(answer: Reply | TidelogError) -> str:
    """Why the topic was not made; empty: it was, or is there already, and this broker is about to hear of it."""
    if isinstance(answer, TidelogError):
        return str(answer)
    assert isinstance(answer, CreateTopicsReply), answer
    error = error_of(answer.error, answer.message or "") if answer.error else None
    for entry in answer.topics:
        error = error_of(entry.error, entry.message or "") if entry.error else error
    if error is None or isinstance(error, TopicAlreadyExists):
        return ""
    if isinstance(error, InvalidReplicationFactor):
        return f"{error}; groups need that many, or offsets.topic.replication.factor less"
    return str(error)


def _found(
    coordinator: Coordinator, context: Context, incoming: Incoming, why_not: str = ""
) -> FindCoordinatorReply:
    keys = cast("FindCoordinator", incoming.message).keys
    return FindCoordinatorReply(
        tuple(_found_one(coordinator, context, key, incoming, why_not) for key in keys)
    )


def _found_one(
    coordinator: Coordinator, context: Context, key: str, incoming: Incoming, why_not: str
) -> FoundCoordinator:
    place = coordinator.place_of(key)
    known = context.image.partitions.get(place) if place is not None else None
    broker = context.image.brokers.get(known.leader) if known is not None else None
    if broker is None or known is None or known.leader == NO_BROKER:
        fact = why_not or f"{GROUPS_TOPIC} is being made, or the partition that holds {key!r} has no leader"
        error = CoordinatorNotAvailable(fact)
        return FoundCoordinator(key, error.code, str(error))
    host, port = endpoint(broker, incoming)
    return FoundCoordinator(key, broker_id=broker.id, host=host, port=port)


# ── operators ─────────────────────────────────────────────────────────────────────────────────────────


def list_groups(coordinator: Coordinator, context: Context, incoming: Incoming) -> None:
    """The groups that are coordinated here, a line each."""
    request = cast("ListGroups", incoming.message)
    try:
        groups, missing = coordinator.served()
    except TidelogError as error:
        incoming.reply(ListGroupsReply(error.code, str(error)))
        return

    page, more = page_of(groups, request, coordinator.topics)
    told = tuple(sorted(coordinator.held.keys() - set(missing)))

    def done(ends: dict[Place, Ends] | None) -> None:
        view = View(coordinator.topics, context.clocks.wall_ms(), ends)
        reply = replace(
            listed(page, view, more=more), partitions=told, partition_count=coordinator.partition_count
        )
        if missing:
            fact = f"{GROUPS_TOPIC}: partitions {sorted(missing)} are not loaded yet"
            reply = replace(reply, error=CoordinatorLoadInProgress.code, message=fact)
        incoming.reply(reply)

    if not request.with_lag:
        done(None)
        return
    places = dict.fromkeys((place for group in page for place in group.offsets), 0)
    gather_ends(context, coordinator.ask_broker, places, request.timeout_ms, done, with_times=False)


def describe_groups(coordinator: Coordinator, _: Context, incoming: Incoming) -> None:
    """All about some groups, as much of it as fits into an answer."""
    request = cast("DescribeGroups", incoming.message)
    timed = request.with_lag and _may_be_timed(coordinator, request.groups)
    page = Page(min(request.limit, TIMED_PAGE) if timed else request.limit)
    cursor = cursor_of(request.after_member, request.after)
    parts: list[Part] = []
    for name in request.groups:
        # The first one takes no room by itself: whoever goes on behind one entry gets another.
        if parts and not page.takes(LINE_BYTES + bytes_of(name)):
            break
        parts.append(_part(coordinator, name, page, cursor))
        cursor = BEGIN
    if not request.with_lag:
        incoming.reply(DescribeGroupsReply(tuple(part.told(View(coordinator.topics, 0)) for part in parts)))
    elif timed:
        _tell_with_times(coordinator, request, parts, incoming)
    else:
        _tell_with_lag(coordinator, request, parts, incoming)


def _may_be_timed(coordinator: Coordinator, names: Sequence[str]) -> bool:
    """Whether these groups are so few, and each so small, that logs are read for them."""
    if len(names) > TIMED_GROUPS:
        return False
    groups = [held.shard.committed.get(name) for held in coordinator.held.values() for name in names]
    return all(
        max(len(each.offsets), len(each.held)) <= TIMED_PARTITIONS for each in groups if each is not None
    )


def _part(coordinator: Coordinator, name: str, page: Page, cursor: Cursor) -> Part:
    """What the page takes of the group."""
    context = coordinator.context
    try:
        shard = coordinator.of_group(name).shard
    except TidelogError as error:
        return unknown(name, error)
    group = shard.committed.get(name)
    if group is None:
        return unknown(name, GroupIdNotFound(f"there is no group {name!r}"))

    def silent_ms(group: str, member: str) -> int:
        return shard.silent_ms(group, member, context.clocks.now_ms())

    me = context.replicas.around.me
    view = View(coordinator.topics, context.clocks.wall_ms(), None, silent_ms, me)
    return part_of(group, view, page, cursor)


def _tell_with_times(
    coordinator: Coordinator, request: DescribeGroups, parts: Sequence[Part], incoming: Incoming
) -> None:
    """Of each group by itself it is asked when the first record was written that it has not read."""
    context = coordinator.context

    def done(answers: list[Reply | TidelogError]) -> None:
        entries = (answer.groups[0] for answer in answers if isinstance(answer, DescribeGroupsReply))
        incoming.reply(DescribeGroupsReply(tuple(entries)))

    def heard(part: Part, answer: Answer, ends: dict[Place, Ends]) -> None:
        view = View(coordinator.topics, context.clocks.wall_ms(), ends)
        answer(DescribeGroupsReply((part.told(view),)))

    if not parts:
        incoming.reply(DescribeGroupsReply())
    for part, answer in zip(parts, gathered(len(parts), done), strict=True):
        gather_ends(
            context,
            coordinator.ask_broker,
            part.committed,
            request.timeout_ms,
            partial(heard, part, answer),
            with_times=True,
        )


def _tell_with_lag(
    coordinator: Coordinator, request: DescribeGroups, parts: Sequence[Part], incoming: Incoming
) -> None:
    """Every leader is asked once for all of the groups; how old what they lag behind is, commits tell."""
    context = coordinator.context

    def done(ends: dict[Place, Ends]) -> None:
        view = View(coordinator.topics, context.clocks.wall_ms(), ends)
        incoming.reply(DescribeGroupsReply(tuple(part.told(view) for part in parts)))

    places = {place: NO_OFFSET for part in parts for place in part.committed}
    gather_ends(context, coordinator.ask_broker, places, request.timeout_ms, done, with_times=False)


def delete_groups(coordinator: Coordinator, _: Context, incoming: Incoming) -> None:
    """Forget groups without members."""
    request = cast("DeleteGroups", incoming.message)
    if len(set(request.groups)) != len(request.groups):
        raise InvalidRequest("a group is named twice")
    if not request.groups:
        incoming.reply(DeleteGroupsReply())
        return

    def done(answers: list[Reply | TidelogError]) -> None:
        incoming.reply(DeleteGroupsReply(tuple(map(_deleted, request.groups, answers))))

    for name, answer in zip(request.groups, gathered(len(request.groups), done), strict=True):
        try:
            held = coordinator.of_group(name)
        except TidelogError as error:
            answer(error)
            continue
        coordinator.carry(held, held.shard.delete_group(name), answer, request.timeout_ms)


def _deleted(name: str, answer: Reply | TidelogError) -> DeletedGroup:
    if isinstance(answer, TidelogError):
        return DeletedGroup(name, answer.code, str(answer))
    assert isinstance(answer, DeleteGroupsReply), answer
    return answer.groups[0]


def delete_group_offsets(coordinator: Coordinator, _: Context, incoming: Incoming) -> None:
    """Forget what a group has committed of partitions that no member wants."""
    request = cast("DeleteGroupOffsets", incoming.message)
    answer = _answer(incoming, lambda error: DeleteGroupOffsetsReply(error.code, str(error)))
    try:
        held = coordinator.of_group(request.group_id)
    except TidelogError as error:
        answer(error)
        return
    coordinator.carry(held, held.shard.delete_offsets(request), answer, request.timeout_ms)


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────


def _answer(incoming: Incoming, refuse: Refuse) -> Answer:
    """What gives the reply, or the refusal as a reply of the same kind."""

    def answer(reply: Reply | TidelogError) -> None:
        incoming.reply(refuse(reply) if isinstance(reply, TidelogError) else reply)

    return answer


def _caller(incoming: Incoming) -> tuple[str, str]:
    """What the process calls itself that asks, and where it is."""
    hello = incoming.connection.context
    return str(getattr(hello, "client_id", "") or ""), str(getattr(incoming.connection, "peer", "") or "")
