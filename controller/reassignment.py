"""Partitions move to other brokers: begin, begin anew, cancel, and what goes on (design 4.11; ADR 76).

    replicas ──begin──► target ++ removing, adding ──all of target in sync──► target          `election.change`
                              │        ▲
                              │        └── a new target, from the original replicas
                              └──cancel──► replicas without adding

What it keeps true (I-53):

* Nobody enters an ISR by a move. Nobody leaves `replicas` by its beginning but who was still to come.
* Complete replicas (ISR and ELR) stay: at least `min_isr` of them, or as many as there are; and the ISR is not
  emptied. Else it is refused, unless unclean recovery is allowed for the topic; an empty ISR never is.
* Who leads is not taken away where nobody could follow.
* A broker may be dead: it can be left, it cannot be gone to while it shuts down or is unknown, and a move to one
  that is fenced waits for it.
* What moves may take of a broker belongs to the moves, and ends with the last of them.

Functions: they are given an image and answer facts. The end of a move needs none of them: every change of a
partition looks whether it has come.
"""

from collections.abc import Iterable, Sequence

from tidelog.controller.batches import Answer, check_distinct, in_batches, label
from tidelog.controller.election import Assignment, alive_for, change, configured_min_isr
from tidelog.controller.facts import ConfigChanged, Fact, Place
from tidelog.controller.image import Image, PartitionState
from tidelog.protocol.errors import (
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    TidelogError,
    UnknownTopicId,
)
from tidelog.protocol.messages import (
    AlterReassignments,
    AlterReassignmentsReply,
    ListReassignments,
    ListReassignmentsReply,
    PartitionMove,
    PartitionMoved,
    PartitionMoving,
)
from tidelog.protocol.settings import CLUSTER, MOVE_RATE, number, unclean_recovery
from tidelog.protocol.types import NO_BROKER, BrokerId


def alter_reassignments(image: Image, request: AlterReassignments) -> Answer[AlterReassignmentsReply]:
    """Some moves, each by itself; the throttle goes before them."""
    places = [(entry.topic_id, entry.index) for entry in request.partitions]
    check_distinct(label(image, place) for place in places)
    entries = []
    then: dict[Place, PartitionState] = {}
    begun: list[list[Fact]] = []
    ended: list[list[Fact]] = []
    for entry in request.partitions:
        try:
            p = partition_of(image, (entry.topic_id, entry.index))
            moved = cancel(image, p) if entry.target is None else move(image, p, entry.target)
        except TidelogError as error:
            entries.append(PartitionMoved(entry.topic_id, entry.index, error.code, str(error)))
            continue
        entries.append(_entry(entry, moved))
        then[p.place] = moved
        if moved is not p:
            (begun if moved.adding or moved.removing else ended).append([moved.changed()])
    throttle = _throttle(image, request.throttle_bytes_s, then)
    # What begins comes first: a batch after which nothing moves would end the throttle for those that follow.
    batches = [] if request.validate_only else in_batches([throttle, *begun, *ended])
    return Answer(batches, AlterReassignmentsReply(tuple(entries)))


def partition_of(image: Image, place: Place) -> PartitionState:
    """The partition, if there is one."""
    p = image.partitions.get(place)
    if p is None:
        topic = image.topics.get(place[0])
        if topic is None:
            raise UnknownTopicId(
                f"there is no partition {place[1]} of topic {place[0].hex()}: no topic has that id"
            )
        raise UnknownTopicId(
            f"there is no partition {place[1]} of {topic.name}: it has {topic.partitions}, numbered from 0"
        )
    return p


def _entry(entry: PartitionMove, p: PartitionState) -> PartitionMoved:
    return PartitionMoved(
        entry.topic_id, entry.index, replicas=p.replicas, adding=p.adding, removing=p.removing
    )


# ── to begin and to cancel ────────────────────────────────────────────────────────────────────────────


def original(p: PartitionState) -> tuple[BrokerId, ...]:
    """Who held it before the move began, and holds it again if that is cancelled."""
    return tuple(r for r in p.replicas if r not in p.adding)


def move(image: Image, p: PartitionState, target: Sequence[BrokerId]) -> PartitionState:
    """The partition is to be kept by these, whatever was begun before; `p` itself when it is already."""
    _check_target(image, p, target)
    before = original(p)
    removing = tuple(r for r in before if r not in target)
    adding = tuple(r for r in target if r not in before)
    return _assigned(image, p, Assignment((*target, *removing), adding, removing))


def cancel(image: Image, p: PartitionState) -> PartitionState:
    """The partition is to be kept by those who kept it before."""
    if not p.adding and not p.removing:
        raise NoReassignmentInProgress(f"partition {p.index} is not being moved: {list(p.replicas)} hold it")
    return _assigned(image, p, Assignment(original(p)))


def _check_target(image: Image, p: PartitionState, target: Sequence[BrokerId]) -> None:
    if not target or len(set(target)) != len(target):
        raise InvalidReplicaAssignment(
            f"partition {p.index} cannot be kept by {list(target)}: it must be distinct brokers, and at least one"
        )
    strangers = [r for r in target if r not in image.brokers]
    if strangers:
        raise InvalidReplicaAssignment(
            f"partition {p.index} cannot be kept by {list(target)}: brokers {strangers} are not registered, "
            f"{sorted(image.brokers)} are"
        )
    stopping = [r for r in target if r not in p.replicas and image.brokers[r].shutting_down]
    if stopping:
        raise InvalidReplicaAssignment(
            f"partition {p.index} cannot go to brokers {stopping}: they are shutting down; it must be others, or later"
        )


def _assigned(image: Image, p: PartitionState, assignment: Assignment) -> PartitionState:
    _check_guard(image, p, assignment.replicas)
    alive = alive_for(image, p.place)
    then = change(p, p.isr, alive, min_isr=configured_min_isr(image, p), assignment=assignment)
    if then.leader == NO_BROKER != p.leader:
        # It would be complete at once, with those who are about to stop and have not been relieved yet.
        raise InvalidReplicaAssignment(
            f"partition {p.index}: broker {p.leader} would leave, and of {sorted(then.isr)} nobody could lead: wait "
            f"until they are back"
        )
    return then


def _check_guard(image: Image, p: PartitionState, replicas: Iterable[BrokerId]) -> None:
    """ADR 76: whoever leaves with this very step must not be all that keeps the records on enough disks."""
    left = set(replicas)
    complete = {*p.isr, *p.elr}
    stay = complete & left
    least = min(p.min_isr, len(complete))
    if p.isr and not set(p.isr) & left:
        raise InvalidReplicaAssignment(
            f"partition {p.index}: only {sorted(p.isr)} are in sync and would leave; at least one must stay: wait until "
            f"others are"
        )
    if len(stay) < least and unclean_recovery(image.configs, image.topics[p.topic_id].name) == "none":
        raise InvalidReplicaAssignment(
            f"partition {p.index}: of {sorted(complete)}, who have every record, {sorted(stay)} would stay; at least "
            f"{least} must: wait until others are in sync, or allow unclean.recovery"
        )


# ── what goes on ──────────────────────────────────────────────────────────────────────────────────────


def moving(image: Image) -> list[PartitionState]:
    """The partitions that are being moved, in order."""
    return [image.partitions[place] for place in sorted(image.indexes.moving)]


def list_reassignments(image: Image, request: ListReassignments) -> ListReassignmentsReply:
    """What is being moved, of all or of some; what is not being moved is not there."""
    asked = (
        None
        if request.partitions is None
        else {(entry.topic_id, entry.index) for entry in request.partitions}
    )
    entries = [_moving(image, p) for p in moving(image) if asked is None or p.place in asked]
    return ListReassignmentsReply(tuple(entries), number(image.configs, CLUSTER, "", MOVE_RATE) or 0)


def _moving(image: Image, p: PartitionState) -> PartitionMoving:
    behind = [r for r in p.replicas if r not in p.removing and r not in p.isr]
    dead = tuple(r for r in behind if not image.can_lead(r, p.place))
    return PartitionMoving(p.topic_id, p.index, p.replicas, p.adding, p.removing, p.isr, dead)


def _throttle(image: Image, asked: int | None, then: dict[Place, PartitionState]) -> list[Fact]:
    """The throttle as it was asked for, if anything moves that it can belong to."""
    value = str(asked) if asked else None
    if asked is None or image.configs.get((CLUSTER, "", MOVE_RATE)) == value:
        return []
    begun = any(p.adding or p.removing for p in then.values())
    if value is not None and not begun and all(p.place in then for p in moving(image)):
        return []
    return [ConfigChanged(CLUSTER, "", MOVE_RATE, value)]


def throttle_ends(image: Image) -> list[Fact]:
    """What is to be said when partitions have changed: without moves there is no throttle (KAFKA-13392)."""
    if (CLUSTER, "", MOVE_RATE) not in image.configs or image.indexes.moving:
        return []
    return [ConfigChanged(CLUSTER, "", MOVE_RATE, None)]
