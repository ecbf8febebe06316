"""How far groups have come: what a commit, a question, a deletion and the passing of time lead to (design 5.7).

    who commits                          of a group with members        of a group without, or unknown
    a member                             its id and epoch must hold     refused
    nobody (epoch -1: a reset, or who    NON_EMPTY_GROUP                taken; with an id, numbers count as a member's
    reads what it was assigned by hand)

What it keeps true (I-57, docs/adr/0095):

* A committed offset goes back only when somebody says so who may: the member that has the partition, in a commit with a
  higher number than its last, or an operator while nobody consumes. Who is no member may say an id of its own: then
  what it commits is in order as well.
* What a member has given up it commits no more; nor does who was put out, or has not heard of its newest epoch.
* Nobody inherits offsets of a topic that was deleted; they are forgotten.
* Offsets are forgotten only when nobody consumes their topic, and long enough after the last one did.
"""

from typing import Final

from msgspec.structs import replace

from tidelog.broker.groups.draft import Decision
from tidelog.broker.groups.heartbeats import Moment
from tidelog.broker.groups.image import NO_GROUP, Group
from tidelog.broker.groups.pages import PARTITION_BYTES, Page, bytes_of
from tidelog.broker.groups.records import (
    GroupKey,
    OffsetKey,
    OffsetState,
    Place,
    Record,
    TopicKey,
)
from tidelog.broker.groups.settings import GroupSettings
from tidelog.broker.groups.topics import Topics
from tidelog.protocol.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    InvalidRequest,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    PolicyViolation,
    StaleMemberEpoch,
    TidelogError,
    UnknownMemberId,
    UnknownTopicId,
)
from tidelog.protocol.messages import (
    NO_MEMBER,
    CommittedPartition,
    DeletedGroup,
    DeletedOffset,
    DeleteGroupOffsets,
    DeleteGroupOffsetsReply,
    DeleteGroupsReply,
    OffsetCommit,
    OffsetCommitReply,
    OffsetCommitted,
    OffsetFetch,
    OffsetFetchReply,
    OffsetToCommit,
)

NAME_MAX: Final = 255
"""The longest name of a group."""
REASONS_MAX: Final = 100
"""So many refused partitions of one request are told in words; of others the error says enough, and the answer fits."""


# ── to commit ─────────────────────────────────────────────────────────────────────────────────────────


def commit(group: Group | None, request: OffsetCommit, at: Moment) -> Decision:
    """What follows from a commit: each partition for itself, once the one who commits may."""
    known = group or Group(request.group_id)
    try:
        _check_committer(known, request)
        places = [(entry.topic_id, entry.index) for entry in request.partitions]
        if len(set(places)) != len(places):
            raise InvalidRequest("a partition is named twice: one offset of each is committed at a time")
    except TidelogError as error:
        return Decision(request.group_id, OffsetCommitReply(error.code, str(error)))
    records: list[Record] = []
    answers, refused = [], 0
    for entry in request.partitions:
        try:
            records += _commit_one(known, request, entry, at)
            answers.append(OffsetCommitted(entry.topic_id, entry.index))
        except TidelogError as error:
            refused += 1
            why = str(error) if refused <= REASONS_MAX else None
            answers.append(OffsetCommitted(entry.topic_id, entry.index, error.code, why))
    if records and known.state is NO_GROUP:
        born = replace(NO_GROUP, empty_since_ms=at.wall_ms)
        records.insert(0, Record(GroupKey(request.group_id), born))
    if request.validate_only:
        records = []
    return Decision(request.group_id, OffsetCommitReply(partitions=tuple(answers)), tuple(records))


def _check_committer(group: Group, request: OffsetCommit) -> None:
    if not 0 < len(request.group_id) <= NAME_MAX:
        raise InvalidRequest(
            f"the group's name has {len(request.group_id)} characters: 1 to {NAME_MAX} are possible"
        )
    if request.member_epoch == NO_MEMBER:
        if group.members:
            raise NonEmptyGroup(f"{group.id} has {len(group.members)} members: only they commit")
        return
    if group.state is NO_GROUP:
        raise GroupIdNotFound(f"there is no group {group.id!r}")
    _check_member(group, request.member_id, request.member_epoch, request.instance_id)


def _check_member(group: Group, member: str, epoch: int, instance_id: str | None) -> None:
    if instance_id is not None:
        holder = group.instances.get(instance_id)
        if holder is not None and holder != member:
            raise FencedInstanceId(f"member {holder} has taken the place of {member} as {instance_id}")
    if member not in group.members:
        raise UnknownMemberId(f"{group.id} has no member {member}")
    current = group.current(member)
    if epoch > current.epoch:
        raise FencedMemberEpoch(f"member {member} says epoch {epoch}, it is at {current.epoch}")
    if epoch != current.epoch:
        raise StaleMemberEpoch(f"member {member} says epoch {epoch}, it is at {current.epoch}")


def _commit_one(group: Group, request: OffsetCommit, entry: OffsetToCommit, at: Moment) -> list[Record]:
    """What is to be written of one partition: nothing, if the member has committed something later."""
    place = entry.topic_id, entry.index
    if not at.topics.has(*place):
        raise UnknownTopicId(f"no partition {entry.index} of a topic {entry.topic_id.hex()} is known here")
    if entry.offset < 0:
        raise InvalidRequest(f"{entry.offset} is no offset")
    size = len(entry.metadata.encode("utf-8", "surrogatepass"))
    if size > at.settings.offset_metadata_max_bytes:
        raise OffsetMetadataTooLarge(
            f"{size} bytes of metadata, offset.metadata.max.bytes is {at.settings.offset_metadata_max_bytes}"
        )
    _check_holder(group, place, request.member_id, at.topics)
    before = group.offsets.get(place)
    of_the_same = before is not None and bool(request.member_id) and before.member == request.member_id
    if of_the_same and before is not None and 0 < request.commit_sequence <= before.sequence:
        return []
    state = OffsetState(
        entry.offset,
        entry.leader_epoch,
        entry.metadata,
        at.wall_ms,
        entry.timestamp,
        request.member_id,
        request.commit_sequence,
    )
    return [Record(OffsetKey(group.id, *place), state)]


def _check_holder(group: Group, place: Place, member: str, topics: Topics) -> None:
    """What somebody has, or has not given up yet, only that one commits."""
    holder = group.held.get(place)
    if holder is not None and holder != member:
        raise InvalidRequest(f"{topics.name(place[0])}-{place[1]} is {holder}'s: only it commits")


# ── to ask ────────────────────────────────────────────────────────────────────────────────────────────


def committed(group: Group | None, request: OffsetFetch) -> OffsetFetchReply:
    """How far a group has come, of what is committed of it."""
    known = group or Group(request.group_id)
    if request.member_id and request.member_epoch != NO_MEMBER:
        try:
            _check_member(known, request.member_id, request.member_epoch, None)
        except TidelogError as error:
            return OffsetFetchReply(error.code, str(error))
    if request.partitions is not None:
        places = [(entry.topic_id, entry.index) for entry in request.partitions]
    else:
        after = (request.after.topic_id, request.after.index) if request.after is not None else None
        places = sorted(place for place in known.offsets if after is None or place > after)
    page, told = Page(request.limit), []
    for place in places:
        entry = _committed_one(known, place)
        if not page.takes(PARTITION_BYTES + bytes_of(entry.metadata)):
            break
        told.append(entry)
    return OffsetFetchReply(partitions=tuple(told), more=len(told) < len(places))


def _committed_one(group: Group, place: Place) -> CommittedPartition:
    state = group.offsets.get(place)
    if state is not None:
        return CommittedPartition(
            *place,
            offset=state.offset,
            leader_epoch=state.leader_epoch,
            metadata=state.metadata,
            commit_ms=state.commit_ms,
        )
    begun = group.topics.get(place[0])
    return CommittedPartition(*place, from_beginning=begun is not None and place[1] >= begun.partitions)


# ── to forget ─────────────────────────────────────────────────────────────────────────────────────────


def forget_group(group: Group) -> tuple[Record, ...]:
    """What ends a group without members and all that is remembered of it."""
    assert not group.members, group
    records = [Record(OffsetKey(group.id, *place), None) for place in sorted(group.offsets)]
    records += [Record(TopicKey(group.id, topic_id), None) for topic_id in sorted(group.topics)]
    return (*records, Record(GroupKey(group.id), None))


def delete_group(group: Group | None, group_id: str) -> Decision:
    """Forget a group that has no members; the reply has the one entry."""
    error: TidelogError | None = None
    if group is None:
        error = GroupIdNotFound(f"there is no group {group_id!r}")
    elif group.members:
        error = NonEmptyGroup(f"{group_id} has {len(group.members)} members")
    if error is not None or group is None:
        assert error is not None
        return Decision(group_id, DeleteGroupsReply((DeletedGroup(group_id, error.code, str(error)),)))
    return Decision(group_id, DeleteGroupsReply((DeletedGroup(group_id),)), forget_group(group))


def delete_offsets(group: Group | None, request: DeleteGroupOffsets, topics: Topics) -> Decision:
    """Forget what is committed of some partitions, if no member wants their topics."""
    if group is None:
        error = GroupIdNotFound(f"there is no group {request.group_id!r}")
        return Decision(request.group_id, DeleteGroupOffsetsReply(error.code, str(error)))
    wanted = wanted_names(group)
    records: list[Record] = []
    answers, refused = [], 0
    for entry in request.partitions:
        place = entry.topic_id, entry.index
        name = topics.name(entry.topic_id)
        if name in wanted or place in group.held:
            refused += 1
            why = PolicyViolation(f"{group.id} has members that consume {name}: stop them first")
            told = str(why) if refused <= REASONS_MAX else None
            answers.append(DeletedOffset(*place, why.code, told))
            continue
        answers.append(DeletedOffset(*place))
        if place in group.offsets:
            records.append(Record(OffsetKey(group.id, *place), None))
    return Decision(request.group_id, DeleteGroupOffsetsReply(partitions=tuple(answers)), tuple(records))


def wanted_names(group: Group) -> set[str]:
    """The topics that some member has subscribed to."""
    return {name for member in group.members.values() for name in member.topics}


def expire(group: Group, topics: Topics, settings: GroupSettings, wall_ms: int) -> Decision:
    """Forget what is too old, and what is of topics that are gone; and the group when nothing is left of it.

    Of a group without members the time counts since the last one has left (KAFKA-8069), of others since the commit.
    """
    wanted = wanted_names(group)
    since = max(group.state.empty_since_ms, 0)
    oldest = wall_ms - settings.retention_ms
    gone = [
        place
        for place, state in sorted(group.offsets.items())
        if place[0] not in topics.by_id
        or (topics.name(place[0]) not in wanted and max(state.commit_ms, since) <= oldest)
    ]
    if not group.members and since <= oldest and len(gone) == len(group.offsets):
        return Decision(group.id, None, forget_group(group))
    records = [Record(OffsetKey(group.id, *place), None) for place in gone]
    records += [
        Record(TopicKey(group.id, topic_id), None)
        for topic_id in sorted(group.topics)
        if topic_id not in topics.by_id
    ]
    return Decision(group.id, None, tuple(records))
