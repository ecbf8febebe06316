"""Groups as operators see them: a line each, or in full; from what is committed, never from what may yet be lost.

empty          no members
assigning      partitions have not been shared out for the group as it is
reconciling    some member has not followed yet
stable         everybody has what it is to have
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from tidelog.broker.groups.heartbeats import shown
from tidelog.broker.groups.image import Group
from tidelog.broker.groups.lag import UNKNOWN, Ends, Lag, lag_of, total
from tidelog.broker.groups.pages import (
    LINE_BYTES,
    MEMBER_BYTES,
    PARTITION_BYTES,
    Page,
    bytes_of,
    bytes_of_spread,
)
from tidelog.broker.groups.records import LEFT_FOR_A_WHILE, OffsetState, Place
from tidelog.broker.groups.topics import Topics
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.messages import (
    DescribedGroup,
    DescribedMember,
    DescribedOffset,
    ListedGroup,
    ListGroups,
    ListGroupsReply,
    PartitionIndex,
)
from tidelog.protocol.types import NO_BROKER, NO_OFFSET, BrokerId, Offset

EMPTY: Final = "empty"
ASSIGNING: Final = "assigning"
RECONCILING: Final = "reconciling"
STABLE: Final = "stable"


class Cursor(NamedTuple):
    """Where an answer about a group goes on."""

    member: str = ""
    """Behind this member; empty: with the first one."""
    place: Place | None = None
    """Behind this partition, and no members; None: with the first one."""


BEGIN: Final = Cursor()


def cursor_of(member: str, after: PartitionIndex | None) -> Cursor:
    """As it was asked for."""
    return Cursor(member, (after.topic_id, after.index) if after is not None else None)


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
        return self.lag_of(place, group.offsets.get(place))

    def lag_of(self, place: Place, state: OffsetState | None) -> Lag:
        """The same, of what was committed."""
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
    # Either is nearly in order already, which sorting profits from, and a set would lose.
    return list(dict.fromkeys(sorted([*group.offsets, *group.held])))


# ── a line each ───────────────────────────────────────────────────────────────────────────────────────


def page_of(groups: Iterable[Group], request: ListGroups, topics: Topics) -> tuple[list[Group], bool]:
    """Those of the groups that an answer tells of, and whether there are more: whose partitions' leaders are to be asked."""
    chosen = chosen_of(groups, request, topics)
    page = Page(request.limit)
    told = [group for group in chosen if page.takes(LINE_BYTES + bytes_of(group.id))]
    return told, len(told) < len(chosen)


def listed(page: Iterable[Group], view: View, *, more: bool) -> ListGroupsReply:
    """These groups, a line each."""
    return ListGroupsReply(groups=tuple(_line(group, view) for group in page), more=more)


def chosen_of(groups: Iterable[Group], request: ListGroups, topics: Topics) -> list[Group]:
    """The groups that were asked for, by name."""
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
        lag_at_most=lag.at_most,
    )


# ── in full ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Part:
    """What one answer tells of a group, as it is when the answer is begun; how far it is behind comes later."""

    group: DescribedGroup
    """Without its partitions."""
    partitions: Sequence[tuple[Place, str, OffsetState | None]] = ()
    """Those that are told, with who has each, and what is committed of it."""

    @property
    def committed(self) -> dict[Place, Offset]:
        """What is committed of each partition that is told; -1: nothing."""
        return {
            place: state.offset if state is not None else NO_OFFSET for place, _, state in self.partitions
        }

    def told(self, view: View) -> DescribedGroup:
        """As messages say it."""
        return replace(self.group, offsets=tuple(_offset(*each, view) for each in self.partitions))


def unknown(group_id: str, error: TidelogError) -> Part:
    """Nothing can be told of that group."""
    return Part(DescribedGroup(group_id, error.code, str(error)))


def part_of(group: Group, view: View, page: Page, after: Cursor = BEGIN) -> Part:
    """As much of a group as the page takes: its members, then its partitions, from there on."""
    places = places_of_group(group)
    members = [] if after.place is not None else sorted(each for each in group.members if each > after.member)
    wanted = places if after.place is None else [place for place in places if place > after.place]
    told = []
    for name in members:
        member = _member(group, name, view)
        if not page.takes(_member_bytes(group, name, member)):
            break
        told.append(member)
    partitions = []
    for place in wanted:
        state, holder = group.offsets.get(place), group.held.get(place, "")
        texts = holder, view.topics.name(place[0]), state.metadata if state is not None else ""
        if not page.takes(PARTITION_BYTES + bytes_of(*texts)):
            break
        partitions.append((place, holder, state))
    more = len(told) < len(members) or len(partitions) < len(wanted)
    described = DescribedGroup(
        group.id,
        state=state_of(group),
        epoch=group.state.epoch,
        assignment_epoch=group.state.assignment_epoch,
        assignor=group.state.assignor,
        members=tuple(told),
        coordinator=view.coordinator,
        more=more,
    )
    return Part(described, partitions)


def _member_bytes(group: Group, name: str, member: DescribedMember) -> int:
    current = group.current(name)
    texts = (name, member.instance_id, member.client_id, member.host, member.rack, *member.topics)
    size = MEMBER_BYTES + bytes_of(*texts)
    for spread, shown_ones in (
        (current.assigned, member.assigned),
        (current.pending, member.revoking),
        (group.target(name), member.target),
    ):
        size += bytes_of_spread(spread, (each.topic for each in shown_ones))
    return size


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


def _offset(place: Place, holder: str, committed: OffsetState | None, view: View) -> DescribedOffset:
    lag = view.lag_of(place, committed)
    ends = view.ends.get(place) if view.ends is not None else None
    offset = DescribedOffset(
        place[0],
        view.topics.name(place[0]),
        place[1],
        holder,
        log_start=ends.log_start if ends is not None else NO_OFFSET,
        high_watermark=ends.high_watermark if ends is not None else NO_OFFSET,
        lag=lag.records,
        lag_ms=lag.ms,
        lost=lag.lost,
        lag_at_most=lag.at_most,
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
