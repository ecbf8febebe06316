"""Groups as the records of one partition of `__consumer_offsets` add up to them.

A fold: nothing but `apply` changes it, and the same records lead to the same groups on every broker and after every
failover. What it holds are values, replaced and never changed. It asks for no order among keys, because compaction
leaves none: what belongs together is complete when the log has been read to its end.

What it keeps true:

* `held` is who has each partition, in use or not yet given up: what `holdings` computes from scratch.
* A member that is gone has no target and holds nothing, whatever was written of it before.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from tidelog.broker.groups.records import (
    CurrentKey,
    CurrentState,
    GroupKey,
    GroupState,
    MemberKey,
    MemberState,
    OffsetKey,
    OffsetState,
    Place,
    Places,
    Record,
    Spread,
    TargetKey,
    TargetState,
    TopicKey,
    TopicState,
    places_of,
)
from tidelog.protocol.types import TopicId

NO_GROUP: Final = GroupState(0, 0)
"""Of a group that nobody has heard of."""

NO_TARGET: Final = TargetState()
NEW: Final = CurrentState()
"""What a member has of whom nothing is written yet."""

_places = lru_cache(maxsize=4096)(places_of)


def held_by(current: CurrentState) -> Places:
    """What a member has, in use or not yet given up."""
    if not current.pending:
        return _places(current.assigned)
    return _places(current.assigned) | _places(current.pending)


class Group:
    """One group, as of the last record."""

    __slots__ = ("currents", "held", "id", "instances", "members", "offsets", "state", "targets", "topics")

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.state: GroupState = NO_GROUP
        self.members: dict[str, MemberState] = {}
        self.targets: dict[str, TargetState] = {}
        self.currents: dict[str, CurrentState] = {}
        self.offsets: dict[Place, OffsetState] = {}
        self.topics: dict[TopicId, TopicState] = {}
        self.held: dict[Place, str] = {}
        """Derived: who has which partition."""
        self.instances: dict[str, str] = {}
        """Derived: which member is the static one of an instance id."""

    def __repr__(self) -> str:
        return f"<{self.id} {self.state} {self.currents}>"

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is remembered of it."""
        return self.state is NO_GROUP and not (
            self.members or self.targets or self.currents or self.offsets or self.topics
        )

    def current(self, member: str) -> CurrentState:
        """What the member has."""
        return self.currents.get(member, NEW)

    def target(self, member: str) -> Spread:
        """What the member is to have."""
        return self.targets.get(member, NO_TARGET).partitions

    def holdings(self) -> Iterator[tuple[Place, str]]:
        """Who has what, from scratch."""
        for member, current in self.currents.items():
            for place in held_by(current):
                yield place, member

    def flaw(self) -> str:
        """What contradicts itself when the log was read to its end; empty: nothing."""
        found = list(self.holdings())
        if len(found) != len(dict(found)):
            return f"{self} has a partition twice"
        if dict(found) != self.held:
            return f"{self} believes in {self.held}"
        if not set(self.currents) <= set(self.members):
            return f"{self} has members that are gone"
        return ""

    def check(self) -> None:
        """Nothing may contradict itself that was decided here."""
        flaw = self.flaw()
        assert not flaw, flaw

    def copy(self) -> "Group":
        """The same, to go on by itself: the values are shared."""
        group = Group(self.id)
        group.state = self.state
        for name in ("members", "targets", "currents", "offsets", "topics", "held", "instances"):
            setattr(group, name, dict(getattr(self, name)))
        return group

    def set_member(self, member: str, state: MemberState | None) -> None:
        """A member has told of itself, or is gone."""
        before = self.members.pop(member, None)
        instance_id = before.instance_id if before is not None else None
        if instance_id is not None and self.instances.get(instance_id) == member:
            del self.instances[instance_id]
        if state is None:
            self.targets.pop(member, None)
            self.set_current(member, None)
            return
        self.members[member] = state
        if state.instance_id is not None:
            self.instances[state.instance_id] = member

    def set_current(self, member: str, state: CurrentState | None) -> None:
        """A member has something else."""
        before = self.currents.pop(member, None)
        if before is not None:
            for place in held_by(before):
                if self.held.get(place) == member:
                    del self.held[place]
        if state is not None:
            self.currents[member] = state
            for place in held_by(state):
                self.held[place] = member


class Groups:
    """All groups of one partition of the log of groups, by name."""

    __slots__ = ("by_id",)

    def __init__(self) -> None:
        self.by_id: dict[str, Group] = {}

    def get(self, group_id: str) -> Group | None:
        """The group, if anything is remembered of it."""
        return self.by_id.get(group_id)

    def copy(self) -> "Groups":
        """The same, to go on by itself."""
        groups = Groups()
        groups.by_id = {name: group.copy() for name, group in self.by_id.items()}
        return groups

    def replay(self, records: Iterable[Record]) -> None:
        """All of this holds, in this order."""
        for record in records:
            self.apply(record)

    def apply(self, record: Record) -> None:
        """This holds from now on."""
        key, value = record
        group = self.by_id.get(key.group)
        if group is None:
            if value is None:
                return
            group = self.by_id[key.group] = Group(key.group)
        if isinstance(key, OffsetKey):
            assert value is None or isinstance(value, OffsetState)
            _put(group.offsets, (key.topic_id, key.index), value)
        elif isinstance(key, CurrentKey):
            assert value is None or isinstance(value, CurrentState)
            group.set_current(key.member, value)
        elif isinstance(key, TargetKey):
            assert value is None or isinstance(value, TargetState)
            _put(group.targets, key.member, value)
        elif isinstance(key, MemberKey):
            assert value is None or isinstance(value, MemberState)
            group.set_member(key.member, value)
        elif isinstance(key, TopicKey):
            assert value is None or isinstance(value, TopicState)
            _put(group.topics, key.topic_id, value)
        else:
            assert isinstance(key, GroupKey)
            assert value is None or isinstance(value, GroupState)
            group.state = value or NO_GROUP
        if value is None and group.is_nothing:
            del self.by_id[key.group]


def _put(table: dict, key: object, value: object) -> None:  # type: ignore[type-arg]  # each caller's own
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
