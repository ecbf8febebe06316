"""Who is in sync and who leads: every change to a partition goes through `change` (design 4.6 to 4.8, 4.11; KIP-966).

    target_isr ──► complete the reassignment if it can be ──► elr, last_known_elr ──► leader ──► PartitionState

    fence, register, offline    change(p, isr - {broker})       the broker is not elected, whatever the image says
    damaged                     change(p, isr - {broker})       in a new leader epoch, where somebody else can lead
    unfence                     change(p, isr)                  of leaderless partitions that it may lead again
    shut down                   change(p, isr - {broker})       where somebody else is in sync
    low on space                change(p, isr)                  where somebody else is in sync and has room
    a leader's proposal         change(p, proposed isr)         (`alterations`)
    min.insync.replicas         change(p, isr, min_isr=...)
    by an operator              change(p, isr, preferred=True), elect_unclean

What it keeps true (I-3, I-4, I-18, I-23, I-54), beyond what `image.flaw_of` says of one state:

* Nobody becomes leader who is not alive, and nobody but the ISR, or else the ELR, is elected: they have everything
  that was committed. `elect_unclean` is the exception, and says so in `unclean_epoch`.
* While the ISR is below min_isr the high watermark stands still; so whoever leaves it then, or was in the ELR,
  still has everything and is in the ELR afterwards, unless it has lost data or is no replica any more.
* Epochs: partition_epoch + 1 if anything differs; leader_epoch + 1 exactly if the leader, the loss of a replica or
  the flush mode does (KAFKA-15021: not for the ISR alone).

Functions, and nothing else: they are given an image and answer facts; nothing changes until those are committed.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from tidelog.controller.facts import BrokerChanged, Fact, Place
from tidelog.controller.image import Image, PartitionState
from tidelog.protocol.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidReplicaAssignment,
    PreferredLeaderNotAvailable,
)
from tidelog.protocol.types import NO_BROKER, BrokerId, Epoch, TopicId

Alive: TypeAlias = Callable[[BrokerId], bool]
"""Registered, not fenced, not shutting down, and able to serve its replica."""


STEP: Final = 200
"""The most partitions that a step changes: thousands may change hands, and others want to be served meanwhile."""

MIN_ISR: Final = "min.insync.replicas"
MIN_ISR_DEFAULT: Final = 2


class Assignment(NamedTuple):
    """Who holds a partition, and who is coming and going."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()


class Loss(NamedTuple):
    """A broker comes back without all that it had."""

    broker: BrokerId
    everything: bool = False
    """Its disk is another one: there is nothing of it to inspect either."""


def change(
    p: PartitionState,
    target_isr: Iterable[BrokerId],
    alive: Alive,
    *,
    loss: Loss | None = None,
    preferred: bool = False,
    min_isr: int | None = None,
    assignment: Assignment | None = None,
    recovered: bool = False,
) -> PartitionState:
    """What becomes of the partition when its ISR is to be this; `p` itself when nothing differs.

    `min_isr` is the configured one where that has changed; what counts is clamped to the replicas (DECISIONS 10).
    """
    assigned = assignment or Assignment(p.replicas, p.adding, p.removing)
    isr = tuple(r for r in target_isr if r in assigned.replicas)
    assigned, isr = _completed(assigned, isr, min_isr or p.min_isr)
    elr, last_known = _guaranteed(p, assigned.replicas, isr, loss)
    leader = _leader_of(p, assigned.replicas, isr, alive, preferred=preferred)
    if leader == NO_BROKER and not isr:
        leader = next(filter(alive, elr), NO_BROKER)
        isr = (leader,) if leader != NO_BROKER else ()
        elr = tuple(r for r in elr if r != leader)
        # It may be the one that a move leads to, and all of it.
        assigned, isr = _completed(assigned, isr, min_isr or p.min_isr)
    least = min(min_isr or p.min_isr, max(1, len(assigned.replicas) - len(assigned.adding)))
    if len(isr) >= least:
        # Here and not before the election of an ELR member, which may just have filled the ISR.
        elr = last_known = ()
    return _numbered(
        p,
        PartitionState(  # in full, for `replace` takes twice as long and thousands change at once
            p.topic_id,
            p.index,
            assigned.replicas,
            isr,
            leader,
            p.leader_epoch,
            p.partition_epoch,
            least,
            elr,
            last_known,
            assigned.adding,
            assigned.removing,
            p.unclean_epoch,
            p.recovering and not recovered,
            p.flush_group,
        ),
    )


def _completed(
    assigned: Assignment, isr: tuple[BrokerId, ...], min_isr: int
) -> tuple[Assignment, tuple[BrokerId, ...]]:
    """The reassignment at its end, if everybody it leads to is in sync (KAFKA-15665)."""
    goal = tuple(r for r in assigned.replicas if r not in assigned.removing)
    left = tuple(r for r in isr if r not in assigned.removing)
    moving = assigned.adding or assigned.removing
    if moving and set(goal) <= set(left) and len(left) >= min(min_isr, len(goal)):
        return Assignment(goal), left
    return assigned, isr


def _guaranteed(
    p: PartitionState, replicas: Sequence[BrokerId], isr: Sequence[BrokerId], loss: Loss | None
) -> tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]]:
    """ELR and last known ELR of an ISR that is too small: everybody who was complete when commits stood still."""
    lost = loss.broker if loss else NO_BROKER
    complete = [r for r in replicas if (r in p.elr or r in p.isr) and r not in isr]
    elr = tuple(r for r in complete if r != lost)
    known = {*p.last_known_elr, *(r for r in complete if r == lost)}
    if loss and loss.everything:
        known.discard(lost)
    return elr, tuple(r for r in replicas if r in known and r not in isr and r not in elr)


def _leader_of(
    p: PartitionState,
    replicas: Sequence[BrokerId],
    isr: Sequence[BrokerId],
    alive: Alive,
    *,
    preferred: bool,
) -> BrokerId:
    if preferred and replicas[0] in isr and alive(replicas[0]):
        return replicas[0]
    if p.leader in isr and alive(p.leader):
        return p.leader
    # The last one in sync leads on while it shuts down: somebody must, until somebody else can (4.6).
    staying = p.leader if p.leader in isr else NO_BROKER
    return next((r for r in replicas if r in isr and alive(r)), staying)


def _numbered(p: PartitionState, then: PartitionState) -> PartitionState:
    if then == p:
        return p
    led_anew = (
        then.leader != p.leader
        or not set(p.replicas) <= set(then.replicas)
        # Else a leader counts what was flushed in one mode as if it had been in the other (ADR 0073).
        or then.flush_group != p.flush_group
    )
    return replace(then, leader_epoch=p.leader_epoch + led_anew, partition_epoch=p.partition_epoch + 1)


def elect_unclean(p: PartitionState, leader: BrokerId) -> PartitionState:
    """Somebody leads who may lack committed records: they are gone, and every replica will know from which epoch on."""
    epoch = p.leader_epoch + 1
    return replace(
        p,
        isr=(leader,),
        elr=(),
        last_known_elr=tuple(r for r in p.last_known_elr if r != leader) if p.min_isr > 1 else (),
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=p.partition_epoch + 1,
        unclean_epoch=epoch,
        recovering=True,
    )


def new_partition(
    topic_id: TopicId,
    index: int,
    replicas: tuple[BrokerId, ...],
    alive: Alive,
    min_isr: int,
    *,
    flush_group: bool,
    living: Collection[BrokerId] = (),
) -> PartitionState:
    """A partition as it begins: whoever is alive is in sync, for there is nothing to lack."""
    isr = tuple(filter(alive, replicas))
    if not isr:
        raise InvalidReplicaAssignment(
            f"none of the brokers {list(replicas)} of partition {index} is alive: it must be one of {list(living)}"
        )
    least = min(min_isr, len(replicas))
    return PartitionState(topic_id, index, replicas, isr, isr[0], min_isr=least, flush_group=flush_group)


# ── brokers come and go ───────────────────────────────────────────────────────────────────────────────


def alive_for(
    image: Image, place: Place, *, but: BrokerId = NO_BROKER, and_also: BrokerId = NO_BROKER
) -> Alive:
    """Who may lead this partition: by the image, except for a broker about which the image is about to change."""

    def alive(broker: BrokerId) -> bool:
        if broker == but:
            return False
        if broker == and_also:
            known = image.brokers.get(and_also)
            return known is not None and not known.shutting_down and place not in known.offline
        return image.can_lead(broker, place)

    return alive


def change_in(
    image: Image,
    p: PartitionState,
    target_isr: Iterable[BrokerId],
    alive: Alive,
    *,
    loss: Loss | None = None,
    preferred: bool = False,
    recovered: bool = False,
) -> PartitionState:
    """`change`; where replicas are coming and going, with the min_isr that the new number of them allows.

    Who is elected has room for records, unless nobody has who could be (ADR 103).
    """
    min_isr = configured_min_isr(image, p) if p.adding or p.removing else None
    target = tuple(target_isr)

    def then(alive: Alive) -> PartitionState:
        return change(p, target, alive, loss=loss, preferred=preferred, min_isr=min_isr, recovered=recovered)

    if not all(map(image.has_room, p.replicas)):
        best = then(lambda r: alive(r) and (r == p.leader or image.has_room(r)))
        if alive(best.leader):
            return best
    return then(alive)


def configured_min_isr(image: Image, p: PartitionState) -> int:
    """`min.insync.replicas` of the partition's topic, or of the cluster."""
    topic = ("topic", image.topics[p.topic_id].name, MIN_ISR)
    value = image.configs.get(topic) or image.configs.get(("cluster", "", MIN_ISR))
    return int(value) if value else MIN_ISR_DEFAULT


LossOf: TypeAlias = Callable[[PartitionState], Loss | None]
"""What a broker's return has cost, partition by partition."""


def leaving(image: Image, broker: BrokerId, loss_of: LossOf = lambda _: None) -> list[Place]:
    """Where `leave` has something to change: it may be done in steps."""
    indexes = image.indexes
    waiting = indexes.leaderless & indexes.in_replicas.get(broker, set())
    in_sync = indexes.in_isr.get(broker, set())
    others = (indexes.in_elr.get(broker, set()) | waiting) - in_sync
    return sorted(in_sync | {place for place in others if _leaves(image.partitions[place], broker, loss_of)})


def _leaves(p: PartitionState, broker: BrokerId, loss_of: LossOf) -> bool:
    """Out of the ISR: in the ELR of what it has lost.

    Where it is only worth asking, and has lost everything, it is not even that any more (ADR 0077).
    """
    loss = loss_of(p)
    return loss is not None and (broker in p.elr or (loss.everything and broker in p.last_known_elr))


def leave(
    image: Image,
    broker: BrokerId,
    loss_of: LossOf = lambda _: None,
    places: Sequence[Place] | None = None,
) -> list[Fact]:
    """The broker leaves every ISR; and every ELR too of partitions of which it has lost something.

    With `places`, some of `leaving`: the rest follow in other steps.
    """
    facts: list[Fact] = []
    for place in leaving(image, broker, loss_of) if places is None else places:
        p = image.partitions.get(place)
        if p is None:
            continue  # its topic was removed between two steps
        # It is not fenced yet, but must not be elected from the ELR that it has just entered.
        alive = alive_for(image, place, but=broker)
        isr = (r for r in p.isr if r != broker)
        facts += _facts(p, change_in(image, p, isr, alive, loss=loss_of(p)))
    return facts


def fence(image: Image, broker: BrokerId) -> list[Fact]:
    """It is not heard any more: the next step of it, to be repeated until one ends by saying that it is fenced.

    That fact comes last: if only some of the steps are committed, nothing is wrong yet.
    """
    places = leaving(image, broker)
    if len(places) > STEP:
        return leave(image, broker, places=places[:STEP])
    return [*leave(image, broker, places=places), _changed(image, broker, fenced=True)]


def unfence(image: Image, broker: BrokerId) -> list[Fact]:
    """It is back and up to date: what waited for it gets a leader again, the rest by `lead_again`."""
    return [_changed(image, broker, fenced=False), *lead_again(image, broker)]


def lead_again(image: Image, broker: BrokerId) -> list[Fact]:
    """The next step of what waited for a broker that is alive; nothing when nothing waits any more."""
    facts: list[Fact] = []
    offline = image.brokers[broker].offline
    for place in sorted(image.indexes.leaderless & image.indexes.in_replicas.get(broker, set())):
        p = image.partitions[place]
        if broker in p.isr or (not p.isr and broker in p.elr):
            facts += _facts(p, change_in(image, p, p.isr, alive_for(image, place, and_also=broker)))
        elif _without(p.replicas, p.adding) == p.last_known_elr == (broker,) and place not in offline:
            # DECISIONS 5: what the only replica has left is all there will ever be, so nobody waits for more. On
            # another disk it is not worth asking (`leave`): the old one may be repaired (ADR 0077).
            facts += _facts(p, elect_unclean(p, broker))
        if len(facts) == STEP:
            break
    return facts


def _without(replicas: tuple[BrokerId, ...], those: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
    return tuple(r for r in replicas if r not in those)


def begin_shutdown(image: Image, broker: BrokerId) -> list[Fact]:
    """It wants to stop: others lead where others are in sync, the rest by `relieve`."""
    return [_changed(image, broker, fenced=False, shutting_down=True), *relieve(image, broker)]


def relieve(image: Image, broker: BrokerId) -> list[Fact]:
    """The next step of a shutdown; nothing when it leads only what nobody else can: there it stays until the end."""
    held = sorted(image.indexes.in_isr.get(broker, ()))
    facts: list[Fact] = []
    for p in [p for place in held if len((p := image.partitions[place]).isr) > 1][:STEP]:
        alive = alive_for(image, p.place, but=broker)
        facts += _facts(p, change_in(image, p, (r for r in p.isr if r != broker), alive))
    return facts


def go_offline(image: Image, broker: BrokerId, offline: Iterable[Place]) -> list[Fact]:
    """The next step with the replicas that it cannot serve, all of them: as fencing, for these only.

    What it does not name any more it serves again: that follows by `lead_again`, and by the proposals of leaders.
    The fact that says which they are comes last, as that of a fencing.
    """
    known = image.brokers[broker]
    # Of what is gone by now nobody has to know: the set would grow with every topic that is removed.
    now = set(offline) & image.indexes.in_replicas.get(broker, set())
    if now == known.offline:
        return []
    held = sorted((now - known.offline) & image.indexes.in_isr.get(broker, set()))
    facts: list[Fact] = []
    for p in (image.partitions[place] for place in held[:STEP]):
        alive = alive_for(image, p.place, but=broker)
        facts += _facts(p, change_in(image, p, (r for r in p.isr if r != broker), alive))
    if len(held) <= STEP:
        facts.append(_changed(image, broker, fenced=known.fenced, offline=now))
    return facts


def relieve_damaged(image: Image, broker: BrokerId, damaged: Mapping[Place, Epoch]) -> list[Fact]:
    """The next step with replicas whose logs are damaged, as of these leader epochs (ADR 105); nothing: it is known.

    Where somebody else can lead, the broker has lost something, and a new leader epoch says so to everybody: what it
    told before, to whoever leads, counts for nothing any more. Where nobody can, it goes on as it is.
    """
    facts: list[Fact] = []
    alone: set[Place] = set()
    for place in sorted(damaged):
        p = image.partitions.get(place)
        if p is None or broker not in p.replicas or p.leader_epoch != damaged[place]:
            continue  # it speaks of another moment, and will say so again
        alive = alive_for(image, place, but=broker)
        then = change_in(image, p, (r for r in p.isr if r != broker), alive, loss=Loss(broker))
        if then.leader == NO_BROKER:
            alone.add(place)
        elif len(facts) < STEP:
            epochs = {"leader_epoch": p.leader_epoch + 1, "partition_epoch": p.partition_epoch + 1}
            facts.append(replace(then, **epochs).changed())
    known = image.brokers[broker]
    if not facts and alone != known.damaged:
        facts.append(_changed(image, broker, fenced=known.fenced, damaged=alone))
    return facts


def say_low_space(image: Image, broker: BrokerId, *, low_space: bool) -> list[Fact]:
    """It refuses records for want of room, or takes them again."""
    known = image.brokers[broker]
    if known.low_space == low_space:
        return []
    return [_changed(image, broker, fenced=known.fenced, low_space=low_space)]


def hand_over(image: Image, broker: BrokerId, places: Iterable[Place]) -> list[Fact]:
    """The next step of letting others lead what it has no room for, where one is in sync who has; it stays in sync."""
    facts: list[Fact] = []
    for p in [image.partitions[place] for place in places if place in image.partitions]:
        alive = alive_for(image, p.place, but=broker)
        able = {r for r in p.isr if alive(r) and image.has_room(r)}
        if p.leader == broker and able:
            facts += _facts(p, change_in(image, p, p.isr, able.__contains__))
        if len(facts) == STEP:
            break
    return facts


def _changed(
    image: Image,
    broker: BrokerId,
    *,
    fenced: bool,
    shutting_down: bool | None = None,
    offline: Iterable[Place] | None = None,
    damaged: Iterable[Place] | None = None,
    low_space: bool | None = None,
) -> BrokerChanged:
    known = image.brokers[broker]
    return BrokerChanged(
        broker,
        known.epoch,
        fenced,
        known.shutting_down if shutting_down is None else shutting_down,
        tuple(sorted(known.offline if offline is None else offline)),
        known.low_space if low_space is None else low_space,
        tuple(sorted(known.damaged if damaged is None else damaged)),
    )


def _facts(before: PartitionState, after: PartitionState) -> list[Fact]:
    return [] if after is before else [after.changed()]


# ── operators and settings ────────────────────────────────────────────────────────────────────────────


def set_min_isr(image: Image, place: Place, configured: int) -> list[Fact]:
    """`min.insync.replicas` has changed (D4): the record says so, and the ELR goes where the ISR now suffices."""
    p = image.partitions[place]
    return _facts(p, change(p, p.isr, alive_for(image, place), min_isr=configured))


def set_flush_mode(image: Image, place: Place, *, flush_group: bool) -> list[Fact]:
    """`flush.mode` has changed (ADR 0073): what counts is counted anew, in a leader epoch of its own."""
    p = image.partitions[place]
    return _facts(p, _numbered(p, replace(p, flush_group=flush_group)))


def elect_preferred(image: Image, place: Place) -> list[Fact]:
    """Let the first replica lead."""
    p = image.partitions[place]
    if p.leader == p.replicas[0]:
        raise ElectionNotNeeded(f"broker {p.leader} leads already")
    then = change_in(image, p, p.isr, alive_for(image, place), preferred=True)
    if then.leader != p.replicas[0]:
        raise PreferredLeaderNotAvailable(
            f"broker {p.replicas[0]} is not alive, in sync {list(p.isr)}, and with room"
        )
    return _facts(p, then)


def elect_anyway(image: Image, place: Place, best_first: Sequence[BrokerId] = ()) -> list[Fact]:
    """Let somebody lead even if committed records are lost by it, because an operator says so.

    `best_first` are replicas by what they were found to hold; without it whoever may hold most is taken.
    """
    p = image.partitions[place]
    if p.leader != NO_BROKER:
        raise ElectionNotNeeded(f"broker {p.leader} leads")
    alive = alive_for(image, place)
    then = change_in(image, p, p.isr, alive)
    if then.leader != NO_BROKER:
        return _facts(p, then)
    order = (*best_first, *p.elr, *p.last_known_elr, *p.replicas)
    chosen = next((r for r in order if r in p.replicas and alive(r)), NO_BROKER)
    if chosen == NO_BROKER:
        raise EligibleLeadersNotAvailable(f"none of the replicas {list(p.replicas)} is alive")
    return _facts(p, elect_unclean(p, chosen))
