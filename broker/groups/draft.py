"""A group as it will be when what was just decided is written; and what a decision is.

What it keeps true: the group itself is not touched, so a decision whose records are refused by the log has not
happened, and nothing is to be undone. `records` lead from the group to what the draft shows.
"""

from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from tidelog.broker.groups.image import NEW, Group, held_by
from tidelog.broker.groups.records import (
    CurrentKey,
    CurrentState,
    GroupKey,
    GroupState,
    MemberKey,
    MemberState,
    Place,
    Places,
    Record,
    TargetKey,
    TargetState,
    TopicKey,
    TopicState,
    places_of,
)
from tidelog.protocol.messages import Reply
from tidelog.protocol.types import TopicId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from a request, or from the passing of time."""

    group_id: str
    reply: Reply | None = None
    """Leaves when everything is committed that it rests on: these records, and what was written of the group before."""
    records: tuple[Record, ...] = ()
    """To be written in this order, in one batch; if it is too large, cut behind a target."""
    has_looked: bool = False
    """Whether the topics were looked at, as they are now."""


class Draft:
    """A group, and what is about to be written of it."""

    __slots__ = (
        "_currents",
        "_held",
        "_members",
        "_targets",
        "_topics",
        "group",
        "has_looked",
        "records",
        "state",
    )

    def __init__(self, group: Group) -> None:
        self.group = group
        self.state: GroupState = group.state
        self.records: list[Record] = []
        self.has_looked = False
        self._members: dict[str, MemberState | None] = {}
        self._targets: dict[str, TargetState | None] = {}
        self._currents: dict[str, CurrentState | None] = {}
        self._topics: dict[TopicId, TopicState] = {}
        self._held: dict[Place, bool] = {}

    # ── what it shows ─────────────────────────────────────────────────────────────────────────────

    @property
    def needs_sharing_out(self) -> bool:
        """Whether partitions are shared out for an older epoch than the group's."""
        return self.state.epoch > self.state.assignment_epoch

    def member(self, member: str) -> MemberState | None:
        """What the member has told of itself; None: there is none."""
        return self._members[member] if member in self._members else self.group.members.get(member)

    def members(self) -> dict[str, MemberState]:
        """All members."""
        return _over(self.group.members, self._members)

    def current(self, member: str) -> CurrentState:
        """What the member has."""
        if member in self._currents:
            return self._currents[member] or NEW
        return self.group.current(member)

    def target(self, member: str) -> Places:
        """What the member is to have."""
        if member in self._targets:
            target = self._targets[member]
            return places_of(target.partitions) if target is not None else frozenset()
        return places_of(self.group.target(member))

    def is_free(self, place: Place) -> bool:
        """Whether nobody has it, in use or not yet given up."""
        return not self._held.get(place, place in self.group.held)

    def knows(self, topic_id: TopicId) -> bool:
        """Whether the group has begun with that topic."""
        return topic_id in self._topics or topic_id in self.group.topics

    # ── what it is told ───────────────────────────────────────────────────────────────────────────

    def bump(self) -> None:
        """Members, or what they want, change: before that is written, and once."""
        if self.state.epoch == self.group.state.epoch:
            self.set_state(replace(self.state, epoch=self.state.epoch + 1))

    def set_state(self, state: GroupState) -> None:
        """The group is this from now on."""
        self.state = state
        self.records.append(Record(GroupKey(self.group.id), state))

    def set_member(self, member: str, state: MemberState) -> None:
        """A member tells this of itself."""
        self._members[member] = state
        self.records.append(Record(MemberKey(self.group.id, member), state))

    def remove(self, member: str) -> None:
        """A member is gone, with its target and what it had."""
        self._hold(member, None)
        for table in (self._members, self._targets, self._currents):
            table[member] = None
        # The member itself last: cut behind the target it is whole yet, and put out again. What a member has that there is
        # not would stay for ever once compaction has dropped the news of its end.
        self.records += [
            Record(key(self.group.id, member), None) for key in (TargetKey, CurrentKey, MemberKey)
        ]

    def set_target(self, member: str, state: TargetState) -> None:
        """A member is to have this."""
        self._targets[member] = state
        self.records.append(Record(TargetKey(self.group.id, member), state))

    def set_current(self, member: str, state: CurrentState) -> None:
        """A member has this."""
        self._hold(member, state)
        self._currents[member] = state
        self.records.append(Record(CurrentKey(self.group.id, member), state))

    def begin_with(self, topic_id: TopicId, partitions: int) -> None:
        """The group begins with a topic that has so many partitions already."""
        self._topics[topic_id] = state = TopicState(partitions)
        self.records.append(Record(TopicKey(self.group.id, topic_id), state))

    def decision(self, reply: Reply | None = None) -> Decision:
        """What is to be written, and answered."""
        return Decision(self.group.id, reply, tuple(self.records), self.has_looked)

    def _hold(self, member: str, state: CurrentState | None) -> None:
        for place in held_by(self.current(member)):
            self._held[place] = False
        if state is not None:
            for place in held_by(state):
                self._held[place] = True


def _over(below: dict[str, T], above: dict[str, T | None]) -> dict[str, T]:
    if not above:
        return below
    merged: dict[str, T | None] = {**below, **above}
    return {name: value for name, value in merged.items() if value is not None}
