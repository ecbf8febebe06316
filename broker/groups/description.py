"""Groups as operators see them: a line each, or in full; from what is committed, never from what may yet be lost.

empty          no members
assigning      partitions have not been shared out for the group as it is
reconciling    some member has not followed yet
stable         everybody has what it is to have
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from tidelog.broker.groups.heartbeats import shown
from tidelog.broker.groups.image import Group
from tidelog.broker.groups.lag import UNKNOWN, Ends, Lag, lag_of, total
from tidelog.broker.groups.records import LEFT_FOR_A_WHILE, Place
from tidelog.broker.groups.topics import Topics
from tidelog.protocol.errors import GroupIdNotFound
from tidelog.protocol.messages import (
    DescribedGroup,
    DescribedMember,
    DescribedOffset,
    ListedGroup,
    ListGroups,
    ListGroupsReply,
)
from tidelog.protocol.messages.shapes import ENTRIES_MAX
from tidelog.protocol.types import NO_BROKER, NO_OFFSET, BrokerId

EMPTY: Final = "empty"
ASSIGNING: Final = "assigning"
RECONCILING: Final = "reconciling"
STABLE: Final = "stable"


@dataclass(frozen=True, slots=True)
class View:
    """What groups are looked at with."""

    topics: Topics
    wall_ms: int
    """The time of day."""
    ends: Mapping[Place, Ends] | None = None
    """Where logs begin and end, as far as their leaders have said; None: nobody has asked."""
    silent_ms: Callable[[str, str], int] = field(default=lambda _group, _member: 0)
    """For how long a member of a group has not been heard."""
    coordinator: BrokerId = NO_BROKER

    def lag(self, group: Group, place: Place) -> Lag:
        """How far the group is behind in one partition."""
        state = group.offsets.get(place)
        if state is None or self.ends is None:
            return UNKNOWN
        return lag_of(state.offset, self.ends.get(place), self.wall_ms, state.timestamp)


def state_of(group: Group) -> str:
    """One of the four words."""
    if not group.members:
        return EMPTY
    epoch = group.state.assignment_epoch
    if group.state.epoch > epoch:
        return ASSIGNING
    for member in group.members:
        current = group.current(member)
        followed = current.epoch in {epoch, LEFT_FOR_A_WHILE} and current.assigned == group.target(member)
        if current.pending or not followed:
            return RECONCILING
    return STABLE


def places_of_group(group: Group) -> list[Place]:
    """Every partition of which something is committed or in use."""
    return sorted(group.offsets.keys() | group.held.keys())


# ── a line each ───────────────────────────────────────────────────────────────────────────────────────


def listed(groups: Iterable[Group], request: ListGroups, view: View) -> ListGroupsReply:
    """The groups that were asked for, by name, as many as were asked for."""
    chosen = chosen_of(groups, request, view.topics)
    page = chosen[: min(request.limit, ENTRIES_MAX)]
    return ListGroupsReply(groups=tuple(_line(group, view) for group in page), more=len(chosen) > len(page))


def chosen_of(groups: Iterable[Group], request: ListGroups, topics: Topics) -> list[Group]:
    """The groups that were asked for, by name: whose partitions' leaders are to be asked, if lag is wanted."""
    return [
        group
        for group in sorted(groups, key=lambda group: group.id)
        if group.id > request.after
        and (not request.topic or _consumes(group, request.topic, topics))
        and (not request.states or state_of(group) in request.states)
    ]


def _consumes(group: Group, name: str, topics: Topics) -> bool:
    topic = topics.by_name.get(name)
    if any(name in member.topics for member in group.members.values()):
        return True
    return topic is not None and any(place[0] == topic.topic_id for place in group.offsets)


def _line(group: Group, view: View) -> ListedGroup:
    places = places_of_group(group)
    lag, unknown = UNKNOWN, 0
    if view.ends is not None:
        lag, unknown = total(view.lag(group, place) for place in places)
    return ListedGroup(
        group.id,
        state_of(group),
        members=len(group.members),
        topics=len({place[0] for place in places}),
        lag=lag.records,
        lag_ms=lag.ms,
        unknown=unknown,
    )


# ── in full ───────────────────────────────────────────────────────────────────────────────────────────


def described(group: Group | None, group_id: str, view: View) -> DescribedGroup:
    """All about one group."""
    if group is None:
        error = GroupIdNotFound(f"there is no group {group_id!r}")
        return DescribedGroup(group_id, error.code, str(error))
    return DescribedGroup(
        group_id,
        state=state_of(group),
        epoch=group.state.epoch,
        assignment_epoch=group.state.assignment_epoch,
        assignor=group.state.assignor,
        members=tuple(_member(group, member, view) for member in sorted(group.members)),
        offsets=tuple(_offset(group, place, view) for place in places_of_group(group)),
        coordinator=view.coordinator,
    )


def _member(group: Group, member: str, view: View) -> DescribedMember:
    told, current = group.members[member], group.current(member)
    target = group.target(member)
    state = "stable"
    if current.epoch == LEFT_FOR_A_WHILE:
        state = "away"
    elif current.pending:
        state = "revoking"
    elif current.assigned != target:
        state = "waiting"
    return DescribedMember(
        member,
        told.instance_id,
        told.client_id,
        told.host,
        told.rack,
        current.epoch,
        state,
        told.topics,
        shown(current.assigned, view.topics),
        shown(current.pending, view.topics),
        shown(target, view.topics),
        view.silent_ms(group.id, member),
    )


def _offset(group: Group, place: Place, view: View) -> DescribedOffset:
    committed, lag = group.offsets.get(place), view.lag(group, place)
    ends = view.ends.get(place) if view.ends is not None else None
    offset = DescribedOffset(
        place[0],
        view.topics.name(place[0]),
        place[1],
        group.held.get(place, ""),
        log_start=ends.log_start if ends is not None else NO_OFFSET,
        high_watermark=ends.high_watermark if ends is not None else NO_OFFSET,
        lag=lag.records,
        lag_ms=lag.ms,
        lost=lag.lost,
    )
    if committed is None:
        return offset
    return replace(
        offset,
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_ms=committed.commit_ms,
    )
