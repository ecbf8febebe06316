"""What a member of a group has of a topic, what others have, and how far the group is behind: in words. Pure.

What it keeps true: a member's part counts as whole only when the coordinator means to give it no more; who has what this
member has not is named, with how long ago it was heard: one that has died has its partitions until its session ends.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from tidelog.cli.terminal import many
from tidelog.protocol.messages import DescribedGroup, DescribedMember
from tidelog.protocol.types import NO_OFFSET, TopicPartition

_FEW: Final = 5


def is_whole(group: DescribedGroup, mine: Collection[TopicPartition]) -> bool:
    """Whether whoever has these has all that it is to get. It wants one topic."""
    holders = {each.member_id for each in group.offsets if TopicPartition(each.topic, each.index) in mine}
    mine_of = [member for member in group.members if member.member_id in holders]
    if len(mine_of) != 1 or group.state == "assigning":
        return False  # it is being shared out, or others have heard more than this one
    [me] = mine_of
    target = {index for entry in me.target for index in entry.indexes}
    return not me.revoking and target <= {name.partition for name in mine}


def others(group: DescribedGroup, names: Iterable[TopicPartition], mine: Collection[TopicPartition]) -> str:
    """Who has what this member has not: `cli-1 at 127.0.0.1, heard 2.1 s ago, has orders-0`; empty: nobody has any of it."""
    members = {member.member_id: member for member in group.members}
    holders = {TopicPartition(each.topic, each.index): each.member_id for each in group.offsets}
    held: dict[str, list[TopicPartition]] = {}
    for name in names:
        holder = holders.get(name, "")
        if holder and name not in mine:
            held.setdefault(holder, []).append(name)
    told = [f"{_who(members.get(holder), holder)} has {_few(some)}" for holder, some in held.items()]
    more = f", and {many(len(told) - _FEW, 'other')} have more" if len(told) > _FEW else ""
    return ", ".join(told[:_FEW]) + more


def _who(member: DescribedMember | None, member_id: str) -> str:
    if member is None:
        return f"member {member_id}"
    return f"member {member_id} at {member.host}, heard {member.silent_ms / 1000:.1f} s ago,"


def _few(names: Collection[object]) -> str:
    shown = ", ".join(str(name) for name in list(names)[:_FEW])
    return f"{shown} and {len(names) - _FEW} more" if len(names) > _FEW else shown


class Ends(NamedTuple):
    """Of a partition: the first record that can be read, and behind the last one."""

    start: int
    end: int


def behind(
    group: DescribedGroup | None,
    ends: Mapping[TopicPartition, Ends],
    positions: Mapping[TopicPartition, int],
    *,
    from_start: bool,
) -> str:
    """How far it is from the ends: `5 records behind (orders-0 at 0 of 5)`.

    `positions`: how far this member is. Elsewhere counts what is committed; where nothing is, it would begin as `from_start` says.
    """
    committed = {
        TopicPartition(each.topic, each.index): each.offset for each in (group.offsets if group else ())
    }
    total, places = 0, []
    for name, (start, end) in ends.items():
        at = positions.get(name, committed.get(name, NO_OFFSET))
        if at == NO_OFFSET:
            at = start if from_start else end
        at = min(max(at, start), end)
        if at < end:
            total += end - at
            places.append(f"{name} at {at} of {end}")
    return f"{many(total, 'record')} behind ({_few(places)})" if places else "not behind"
