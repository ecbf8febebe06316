"""What a heartbeat leads to: members join, stay, give up, get and leave (design 5.7, in the manner of KIP-848).

    member    JOINED ──► STABLE ◄──► WAITING (for others to give up what it is to have)
                            │  ▲
         target took some   ▼  │ a later heartbeat without what it was asked for
                         REVOKING ──rebalance timeout──► gone        (any) ──session timeout, leave──► gone
                                                                     (static) ──leave for a while──► AWAY ──► taken over

    a change of members, wishes or topics      the group's epoch grows
    partitions are shared out for that epoch   the assignment's epoch follows; each member has its target
    a member's own heartbeat                   it is brought as near to its target as others allow, and its epoch follows

What it keeps true (I-58, I-59):

* A partition is in use by one member, or not yet given up by one, or free. Only what is free is given.
* A member gives something up by saying, in a later heartbeat than the one whose answer asked for it, what it still has.
  A heartbeat that was held up on its way confirms nothing and changes nothing (docs/adr/0094).
* A member's epoch changes between having a partition and not having it any more: what it commits after that is refused.
* Nobody who has followed is disturbed: who joins, leaves or wants something else costs others only what evenness asks.

Pure: a group and a request lead to a decision. Refusals are answers too, for what they rest on must be committed first.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from tidelog.broker.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Wants
from tidelog.broker.groups.draft import Decision, Draft
from tidelog.broker.groups.image import NO_GROUP, Group, held_by
from tidelog.broker.groups.records import (
    LEFT_FOR_A_WHILE,
    NOWHERE,
    CurrentState,
    MemberState,
    Places,
    Spread,
    TargetState,
    places_of,
    spread_of,
)
from tidelog.broker.groups.settings import GroupSettings
from tidelog.broker.groups.topics import Topics, digest_of
from tidelog.protocol.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRequest,
    TidelogError,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from tidelog.protocol.messages import (
    JOIN,
    LEAVE,
    LEAVE_FOR_A_WHILE,
    GroupHeartbeat,
    GroupHeartbeatReply,
    Subscription,
    TopicPartitions,
)
from tidelog.protocol.messages.shapes import ENTRIES_MAX
from tidelog.protocol.types import NO_TIMESTAMP

NAME_MAX: Final = 255
"""The longest name of a group, a member or an instance: so a batch has room for what is decided about a full group."""
SOON_MS: Final = 100
"""When a member heartbeats again that waits for others."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a decision rests on besides the group."""

    settings: GroupSettings
    topics: Topics
    wall_ms: int
    """The time of day."""
    may_share_out: bool = True
    """False: it was done a moment ago, and is too much work to be done for every member that comes."""
    has_news_of_topics: bool = True
    """False: the group has seen the topics as they are."""
    client_id: str = ""
    """What the process calls itself that has sent the request."""
    host: str = ""
    """Where it called from."""
    heard: int = 0
    """The highest number of a heartbeat that was heard of the member, also where nothing came of it."""


def heartbeat(group: Group | None, request: GroupHeartbeat, at: Moment) -> Decision:
    """What follows from a heartbeat."""
    draft = Draft(group or Group(request.group_id))
    step = _STEPS.get(request.member_epoch, _stay)
    try:
        _check_names(request)
        if request.member_epoch != JOIN and group is None:
            raise GroupIdNotFound(f"there is no group {request.group_id!r}")
        reply = step(draft, request, at)
    except TidelogError as error:
        return Decision(request.group_id, GroupHeartbeatReply(error.code, str(error)))
    return draft.decision(reply)


def _check_names(request: GroupHeartbeat) -> None:
    for what, name in (
        ("group", request.group_id),
        ("member", request.member_id),
        ("instance", request.instance_id),
    ):
        if name is not None and not 0 < len(name) <= NAME_MAX:
            raise InvalidRequest(
                f"the {what}'s name has {len(name)} characters: from 1 to {NAME_MAX} are possible"
            )


# ── to come ───────────────────────────────────────────────────────────────────────────────────────────


def _join(draft: Draft, request: GroupHeartbeat, at: Moment) -> GroupHeartbeatReply:
    if request.subscription is None:
        raise InvalidRequest("whoever joins says what it wants")
    if request.owned:
        raise InvalidRequest("whoever joins has nothing")
    known = draft.member(request.member_id)
    if known is not None:
        if known.instance_id != request.instance_id:
            raise InvalidRequest(f"member {request.member_id} has another instance id: {known.instance_id}")
        if _is_late(draft, request, at):
            return _standing(draft, request)
    before = _instance_before(draft, request)
    if known is None and before is None and len(draft.members()) >= at.settings.group_max_size:
        raise GroupMaxSizeReached(
            f"{draft.group.id} has {len(draft.members())} members, group.max.size is {at.settings.group_max_size}"
        )
    state = _told(request.subscription, request, at)
    if before is not None:
        _take_over(draft, before, request.member_id, state, at)
    _tell(draft, request.member_id, state, at)
    _look_at_topics(draft, at)
    if at.may_share_out:
        share_out(draft, at)
    _reconcile(draft, request, told=True)
    return _standing(draft, request, whole=True, at=at)


def _instance_before(draft: Draft, request: GroupHeartbeat) -> str | None:
    """The member whose place a static one takes."""
    if request.instance_id is None:
        return None
    before = draft.group.instances.get(request.instance_id)
    if before is None or before == request.member_id:
        return None
    if draft.current(before).epoch != LEFT_FOR_A_WHILE:
        raise UnreleasedInstanceId(
            f"member {before} is alive, or was until {draft.group.members[before].session_timeout_ms} ms ago at most, "
            f"as instance {request.instance_id}"
        )
    return before


def _take_over(draft: Draft, before: str, member: str, state: MemberState, at: Moment) -> None:
    """What the process before was to have and had is the new one's; the group need not hear of it."""
    told, target, current = draft.group.members[before], draft.target(before), draft.current(before)
    if (told.topics, told.assignor, told.rack) != (state.topics, state.assignor, state.rack):
        draft.bump()
    draft.remove(before)
    draft.set_member(member, state)
    draft.set_target(member, TargetState(spread_of(target)))
    draft.set_current(member, CurrentState(assigned=current.assigned))
    _begin(draft, state, at)


def _told(subscription: Subscription, request: GroupHeartbeat, at: Moment) -> MemberState:
    """What a member tells of itself, as it is kept."""
    if subscription.assignor and subscription.assignor not in ASSIGNORS:
        raise UnsupportedAssignor(
            f"there is no assignor {subscription.assignor!r}: it must be one of {', '.join(ASSIGNORS)}"
        )
    return MemberState(
        tuple(sorted(set(subscription.topics))),
        request.instance_id,
        subscription.assignor,
        subscription.rack,
        subscription.rebalance_timeout_ms,
        at.settings.session_timeout_ms(subscription.session_timeout_ms),
        at.client_id,
        at.host,
    )


def _tell(draft: Draft, member: str, state: MemberState, at: Moment) -> bool:
    """A member tells this of itself; whether that is news."""
    before = draft.member(member)
    if before == state:
        return False
    if before is None or (before.topics, before.assignor, before.rack) != (
        state.topics,
        state.assignor,
        state.rack,
    ):
        draft.bump()
    draft.set_member(member, state)
    _begin(draft, state, at)
    if draft.state.empty_since_ms != NO_TIMESTAMP:
        draft.set_state(replace(draft.state, empty_since_ms=NO_TIMESTAMP))
    return True


def _begin(draft: Draft, state: MemberState, at: Moment) -> None:
    """Partitions that are there by now are read as the consumer says; those that came later, from their start."""
    for topic_id, topic in at.topics.wanted(state.topics).items():
        if not draft.knows(topic_id):
            draft.begin_with(topic_id, 0 if _was_wanted(draft, topic.name) else topic.partitions)


def _was_wanted(draft: Draft, topic: str) -> bool:
    """Whether somebody wanted it before this decision: then it was not there yet, or the group would know it."""
    return any(topic in member.topics for member in draft.group.members.values())


# ── to stay ───────────────────────────────────────────────────────────────────────────────────────────


def _stay(draft: Draft, request: GroupHeartbeat, at: Moment) -> GroupHeartbeatReply:
    _check_member(draft, request)
    if _is_late(draft, request, at):
        return _standing(draft, request)
    _check_epoch(draft, request)
    told = False
    if request.subscription is not None:
        told = _tell(draft, request.member_id, _told(request.subscription, request, at), at)
    _look_at_topics(draft, at)
    if draft.needs_sharing_out and at.may_share_out:
        share_out(draft, at)
    before = draft.group.current(request.member_id).assigned
    _reconcile(draft, request, told=told)
    changed = draft.current(request.member_id).assigned != before
    return _standing(draft, request, whole=changed or request.owned is not None, at=at)


def _check_member(draft: Draft, request: GroupHeartbeat) -> None:
    """Whether there is this member, and no newer process in its place."""
    member = request.member_id
    if request.instance_id is not None:
        holder = draft.group.instances.get(request.instance_id)
        if holder is not None and holder != member:
            raise FencedInstanceId(
                f"member {holder} has taken the place of {member} as {request.instance_id}"
            )
    known = draft.member(member)
    if known is None:
        raise UnknownMemberId(f"{draft.group.id} has no member {member}")
    if known.instance_id != request.instance_id:
        raise InvalidRequest(f"member {member} has another instance id: {known.instance_id}")


def _is_late(draft: Draft, request: GroupHeartbeat, at: Moment) -> bool:
    """Whether something newer of this member was heard: this one was held up on its way, or here, or repeated."""
    # The one that was heard last may be asked again: it has waited for news, and nothing has come of it yet.
    return request.sequence < at.heard or request.sequence <= draft.current(request.member_id).sequence


def _check_epoch(draft: Draft, request: GroupHeartbeat) -> None:
    current = draft.current(request.member_id)
    told = f"member {request.member_id} says epoch {request.member_epoch}, it is at {current.epoch}"
    owned = _owned(request)
    if request.member_epoch != current.epoch and (
        request.member_epoch > current.epoch
        or request.member_epoch != current.previous_epoch
        or owned is None
    ):
        raise FencedMemberEpoch(told)
    if owned is not None and not owned <= held_by(current):
        raise FencedMemberEpoch(f"{told} and has what it was not given, or what others have by now")


def _owned(request: GroupHeartbeat) -> Places | None:
    if request.member_epoch == JOIN:
        return NOWHERE
    if request.owned is None:
        return None
    return frozenset((entry.topic_id, index) for entry in request.owned for index in entry.indexes)


def _look_at_topics(draft: Draft, at: Moment) -> None:
    """Topics that came, went or grew are shared out anew."""
    draft.has_looked = True
    if at.has_news_of_topics and draft.state is not NO_GROUP:
        names = {name for member in draft.members().values() for name in member.topics}
        if digest_of(at.topics.wanted(names)) != draft.state.digest:
            draft.bump()


def _reconcile(draft: Draft, request: GroupHeartbeat, *, told: bool) -> None:
    """Bring the member as near to its target as others allow."""
    member, owned = request.member_id, _owned(request)
    before = draft.current(member)
    current = replace(before, sequence=request.sequence)
    pending = places_of(before.pending)
    if not pending or (owned is not None and not owned & pending):
        current = _moved(draft, member, current, owned, request.member_epoch)
    if told or replace(current, sequence=before.sequence) != before:
        draft.set_current(member, current)


def _moved(
    draft: Draft, member: str, current: CurrentState, owned: Places | None, said_epoch: int
) -> CurrentState:
    """What a member has next that has nothing to give up any more."""
    target, assigned = draft.target(member), places_of(current.assigned)
    keep, revoke = assigned & target, assigned - target
    if revoke and (owned is None or owned & revoke):
        return replace(current, assigned=spread_of(keep), pending=spread_of(revoke))
    released = places_of(current.pending)
    granted = {place for place in target - assigned if place in released or draft.is_free(place)}
    epoch = draft.state.assignment_epoch
    previous = current.previous_epoch if epoch == current.epoch else said_epoch
    return replace(
        current, epoch=epoch, previous_epoch=previous, assigned=spread_of(keep | granted), pending=()
    )


def _standing(
    draft: Draft, request: GroupHeartbeat, *, whole: bool = False, at: Moment | None = None
) -> GroupHeartbeatReply:
    """Where the member stands."""
    current = draft.current(request.member_id)
    interval = SOON_MS
    if at is not None:
        member = draft.member(request.member_id)
        assert member is not None, request
        interval = at.settings.heartbeat_interval_ms(member.session_timeout_ms)
        if is_waiting(draft, request.member_id):
            interval = min(interval, SOON_MS + 2 * len(draft.group.members))
    return GroupHeartbeatReply(
        member_epoch=current.epoch,
        heartbeat_interval_ms=interval,
        assignment=shown(current.assigned, at.topics) if whole and at is not None else None,
    )


def is_waiting(draft: Draft, member: str) -> bool:
    """Whether the member will get something, or hear something, that does not depend on itself."""
    current = draft.current(member)
    if current.pending:
        return False
    return draft.needs_sharing_out or places_of(current.assigned) != draft.target(member)


def shown(spread: Spread, topics: Topics) -> tuple[TopicPartitions, ...]:
    """Partitions as messages name them: a topic with more than a list may hold comes several times."""
    return tuple(
        TopicPartitions(topic_id, indexes[at : at + ENTRIES_MAX], topics.name(topic_id))
        for topic_id, indexes in spread
        for at in range(0, len(indexes), ENTRIES_MAX)
    )


# ── to go ─────────────────────────────────────────────────────────────────────────────────────────────


def _leave(draft: Draft, request: GroupHeartbeat, at: Moment) -> GroupHeartbeatReply:
    _check_member(draft, request)
    if _is_late(draft, request, at):
        return _standing(draft, request)
    put_out(draft, [request.member_id], at)
    return GroupHeartbeatReply(member_epoch=LEAVE)


def _leave_for_a_while(draft: Draft, request: GroupHeartbeat, at: Moment) -> GroupHeartbeatReply:
    if request.instance_id is None:
        raise InvalidRequest("only a static member leaves for a while: it needs an instance id")
    _check_member(draft, request)
    if not _is_late(draft, request, at):
        current = draft.current(request.member_id)
        # It may not have heard yet what others are to have of it: that is free as well.
        kept = spread_of(places_of(current.assigned) & draft.target(request.member_id))
        left = replace(current, epoch=LEFT_FOR_A_WHILE, sequence=request.sequence, assigned=kept, pending=())
        draft.set_current(request.member_id, left)
    return GroupHeartbeatReply(member_epoch=LEAVE_FOR_A_WHILE)


def put_out(draft: Draft, members: Iterable[str], at: Moment) -> None:
    """These members are gone: what they had is free at once, for their commits are refused from now on."""
    draft.bump()
    for member in members:
        draft.remove(member)
    if not draft.members():
        state = draft.state
        draft.set_state(replace(state, assignment_epoch=state.epoch, digest=b"", empty_since_ms=at.wall_ms))
    elif at.may_share_out:
        share_out(draft, at)


_STEPS: Final[dict[int, Callable[[Draft, GroupHeartbeat, Moment], GroupHeartbeatReply]]] = {
    JOIN: _join,
    LEAVE: _leave,
    LEAVE_FOR_A_WHILE: _leave_for_a_while,
}


# ── to share out ──────────────────────────────────────────────────────────────────────────────────────


def share_out(draft: Draft, at: Moment) -> None:
    """Give every member its target, if the group has changed since that was done."""
    if not draft.needs_sharing_out:
        return
    members = draft.members()
    topics = at.topics.wanted({name for member in members.values() for name in member.topics})
    for topic_id in sorted(topics):
        if not draft.knows(topic_id):
            draft.begin_with(topic_id, 0)  # somebody wanted it before it was there
    wanted = {
        names: frozenset(at.topics.wanted(names)) for names in {member.topics for member in members.values()}
    }
    wants = {name: Wants(wanted[member.topics], member.rack) for name, member in members.items()}
    before = {name: draft.target(name) for name in members}
    assignor = _assignor(members.values())
    for member, target in sorted(ASSIGNORS[assignor](wants, before, topics).items()):
        if target != before[member]:
            draft.set_target(member, TargetState(spread_of(target)))
        _trim(draft, member, target)
    state = draft.state
    draft.set_state(replace(state, assignment_epoch=state.epoch, digest=digest_of(topics), assignor=assignor))


def _trim(draft: Draft, member: str, target: Places) -> None:
    """A static member that is away uses nothing: what it is not to have any more is free at once."""
    current = draft.current(member)
    if current.epoch == LEFT_FOR_A_WHILE and not places_of(current.assigned) <= target:
        kept = spread_of(places_of(current.assigned) & target)
        draft.set_current(member, replace(current, assigned=kept))


def _assignor(members: Iterable[MemberState]) -> str:
    """The one that most members wish for; of several, the first by name."""
    wishes: dict[str, int] = {}
    for member in members:
        if member.assignor:
            wishes[member.assignor] = wishes.get(member.assignor, 0) + 1
    return min(wishes, key=lambda name: (-wishes[name], name), default=DEFAULT_ASSIGNOR)
