"""The controller (4.3 to 4.8): one atomic operation after the other, each a new image in the metadata log.

`change` is the one function that alters ISR, ELR and leader (4.7); reassignment (4.11) and unclean recovery
(4.8) stand in `assignment`.
"""

from tests.model import invariants
from tests.model.state import (
    DAMAGED,
    HARMLESS,
    HOST_CRASH,
    LEASE,
    NOBODY,
    Alter,
    Beat,
    Image,
    Record,
    Register,
    Verdict,
    World,
    alive,
    mask_of,
)


def publish(world: World, image: Image, *, unclean: bool = False) -> None:
    """Append the image to the metadata log, and let the oracle look at what became true."""
    old = world.meta[-1].record
    new = image.record
    world.meta.append(image)
    invariants.nobody_fenced(image)
    if new is old:
        return
    invariants.sound_record(new, old)
    if new.isr.bit_count() >= new.min_isr:
        world.strength, world.losses = new.min_isr, 0
    if new.leader_epoch != old.leader_epoch:
        world.leaderships.append((new.leader, world.now, world.reason))
        if old.leader not in (NOBODY, new.leader):
            world.taken[old.leader] = len(world.meta) - 1
        if new.leader >= 0:
            world.count("elections")
            if not unclean:
                invariants.complete_leader(world, world.brokers[new.leader])
    if not unclean:
        invariants.promise(world, new)
        invariants.complete_members(world)
        for broker in world.brokers:
            invariants.maximal_isr(world, broker, moved=False)


def change(
    world: World,
    target: int,
    *,
    gone: int = 0,
    back: int = 0,
    lossy: int = 0,
    preferred: bool = False,
    assignment: tuple[tuple[int, ...], int, int] | None = None,
) -> Record:
    """The record that follows if the ISR shall be `target` (4.7); `gone` is about to be fenced, `back` unfenced."""
    image = world.meta[-1]
    p = image.record
    replicas, adding, removing = assignment or (p.replicas, p.adding, p.removing)
    replicas, adding, removing, target = completed(replicas, adding, removing, target)
    held = mask_of(replicas)
    target &= held
    min_isr = effective_min_isr(world, replicas, adding)
    elr = 0
    if target.bit_count() < min_isr:
        elr = (p.elr | p.isr) & ~target & ~lossy & held
    if not world.rules.elr_kept:
        elr, target = 0, target or (p.isr & held)
    living = (alive(image, gone) | back) & ~gone
    staying = living | image.stopping & ~image.fenced & ~gone if world.rules.stopping_leader_stays else living
    leader = p.leader if target & staying & _bit(p.leader) else _first(replicas, target & living)
    if preferred and target & living & _bit(replicas[0]):
        leader = replicas[0]
    if leader == NOBODY and not target:
        leader = _first(replicas, elr & living)
        target = _bit(leader)
        elr &= ~target
        if leader >= 0:
            world.count("elections from the ELR")
    if target.bit_count() >= min_isr and world.rules.elr_cleared_after_election:
        elr = 0
    rules = world.rules
    grows = (
        leader != p.leader
        or (rules.epoch_grows_when_a_replica_leaves and bool(mask_of(p.replicas) & ~held))
        or (rules.mode_change_is_an_epoch and world.config_group != p.group)
    )
    directory = image.directories[leader] if leader >= 0 else p.directory
    new = p._replace(
        replicas=replicas, adding=adding, removing=removing, isr=target, elr=elr, min_isr=min_isr,
        leader=leader, leader_epoch=p.leader_epoch + grows, directory=directory, group=world.config_group,
    )  # fmt: skip
    if p.adding | p.removing and not adding | removing:
        world.count("reassignments completed" if assignment is None else "reassignments cancelled")
    return p if new == p else new._replace(partition_epoch=p.partition_epoch + 1)


def completed(
    replicas: tuple[int, ...], adding: int, removing: int, target: int
) -> tuple[tuple[int, ...], int, int, int]:
    """The assignment after a reassignment that has reached its goal (4.11), else as it was."""
    if adding | removing:
        goal = mask_of(replicas) & ~removing
        if not goal & ~target:
            return tuple(r for r in replicas if goal >> r & 1), 0, 0, target & ~removing
    return replicas, adding, removing, target


def effective_min_isr(world: World, replicas: tuple[int, ...], adding: int) -> int:
    """4.9, DECISIONS 10: clamped to the replicas that count already."""
    return min(world.config_min, max(1, len(replicas) - adding.bit_count()))


def _bit(broker: int) -> int:
    return 1 << broker if broker >= 0 else 0


def _first(order: tuple[int, ...], among: int) -> int:
    for broker in order:
        if among >> broker & 1:
            return broker
    return NOBODY


# ---------------------------------------------------------------------------------------------- liveness


def fence(world: World, broker: int, grace: int) -> None:
    """4.4: first out of every ISR, then fenced, in two batches. `grace`: how long it may go on answering."""
    image = world.meta[-1]
    bit = 1 << broker
    if image.record.isr & bit:
        world.reason = grace
        publish(world, image._replace(record=change(world, image.record.isr & ~bit, gone=bit)))
    image = world.meta[-1]
    publish(world, image._replace(fenced=image.fenced | bit))
    world.count("fencings")


def unfence(world: World, broker: int) -> None:
    """4.4: with the elections that it makes possible, in one batch."""
    image = world.meta[-1]
    bit = 1 << broker
    record = image.record
    if record.leader == NOBODY:
        world.reason = 0
        record = change(world, record.isr, back=bit)
    publish(world, image._replace(record=record, fenced=image.fenced & ~bit))
    if record.leader == NOBODY and _recovers_alone(world, broker):
        world.count("single replicas recovered")
        elect_unclean(world, broker)
        invariants.own_disk(world.brokers[broker], image)


def _recovers_alone(world: World, broker: int) -> bool:
    """DECISIONS 5: the only replica that ever counted comes back, with the disk that it led with."""
    image = world.meta[-1]
    p = image.record
    if p.isr | p.elr or mask_of(p.replicas) & ~p.adding != 1 << broker:
        return False
    return image.directories[broker] == p.directory or not world.rules.host_crash_alone_is_recovered


def elect_unclean(world: World, broker: int) -> None:
    """4.8: an election that may lose data; the oracle's lineage ends and another begins."""
    image = world.meta[-1]
    p = image.record
    epoch = p.leader_epoch + 1
    x = world.brokers[broker]
    kept = x.log_start
    sure = x.synced if p.group else len(x.log)
    while kept < min(sure, len(world.committed)) and x.log[kept] == world.committed[kept]:
        kept += 1
    lost = len(world.committed) - kept
    world.committed = x.log[:kept]
    world.acked = {offset: record for offset, record in world.acked.items() if offset < kept}
    world.lineage = epoch
    world.legit_start = max(x.log_start, min(world.legit_start, kept))
    world.deleted = world.floor = x.log_start
    world.strength, world.losses = 1, 0
    world.count("unclean elections")
    if lost > 0:
        world.count("unclean elections that lost records")
    world.reason = LEASE
    min_isr = p.min_isr
    record = p._replace(
        isr=1 << broker, elr=0, min_isr=min_isr, leader=broker, leader_epoch=epoch, recovering=True,
        partition_epoch=p.partition_epoch + 1, directory=image.directories[broker],
        unclean_epoch=epoch if world.rules.unclean_marked else p.unclean_epoch,
    )  # fmt: skip
    if not world.rules.unclean_marked:
        world.lineage = p.unclean_epoch
    publish(world, image._replace(record=record), unclean=True)


def hear_heartbeat(world: World, beat: Beat) -> None:
    """4.4 and 2.14: unfence who has caught up with its registration, and let it serve for a while."""
    image = world.meta[-1]
    broker = world.brokers[beat.sender]
    if beat.quorum_epoch != world.quorum_epoch or beat.broker_epoch != image.broker_epochs[beat.sender]:
        _learn_controller(world, beat.sender)
        return
    world.contact[beat.sender] = world.now
    bit = 1 << beat.sender
    if image.fenced & bit and not image.stopping & bit and beat.position >= beat.broker_epoch:
        unfence(world, beat.sender)
        world.count("unfencings")
    if world.meta[-1].fenced & bit or not broker.up or broker.epoch != beat.broker_epoch:
        return
    if beat.position < world.taken[beat.sender] and world.rules.lease_needs_metadata:
        return
    if broker.connection == beat.connection:
        broker.lease = max(broker.lease, beat.sent + LEASE)


def _learn_controller(world: World, broker: int) -> None:
    """NOT_CONTROLLER names the epoch of the new one (4.15)."""
    world.brokers[broker].quorum_epoch = max(world.brokers[broker].quorum_epoch, world.quorum_epoch)


def hear_registration(world: World, request: Register) -> None:
    """4.5 with DECISIONS 2: out of every ISR first, then the new registration; its answer may be lost."""
    image = world.meta[-1]
    number = request.sender
    broker = world.brokers[number]
    rules = world.rules
    if request.quorum_epoch != world.quorum_epoch and rules.quorum_epoch_named:
        _learn_controller(world, number)
        return
    same_directory = request.directory == image.directories[number]
    registered = image.starts[number]
    if request.start != registered or not same_directory:
        if rules.starts_counted and same_directory and request.start < registered:
            world.count("old registrations refused")
            return
        if not same_directory and not image.fenced >> number & 1:
            return
        lossy = _is_lossy(world, request)
        if lossy and same_directory and (image.record.isr | image.record.elr) >> number & 1:
            invariants.lost_something(request)
        _leave(world, number, lossy=lossy)
        _enrol(world, request)
        if broker.start == request.start and broker.directory == request.directory:
            broker.lost = False
        world.count("registrations")
    if (broker.up, broker.start, broker.directory, broker.epoch) == (
        True,
        request.start,
        request.directory,
        -1,
    ):
        broker.epoch = world.meta[-1].broker_epochs[number]
        broker.answered_epoch, broker.answered_start, broker.crash = broker.epoch, broker.start, HARMLESS


def _is_lossy(world: World, request: Register) -> bool:
    """Whether unflushed records may be gone since the registration that is replaced."""
    image = world.meta[-1]
    number = request.sender
    if request.directory != image.directories[number] or request.crash == DAMAGED:
        return True
    if request.crash == HOST_CRASH and not (
        image.record.group and (request.flushed or not world.rules.mode_change_flushed)
    ):
        return True
    if world.rules.starts_counted:
        return image.starts[number] < request.answered_start
    return (
        request.answered_epoch != image.broker_epochs[number] and request.start_before != image.starts[number]
    )


def _leave(world: World, number: int, *, lossy: bool) -> None:
    """4.5 #4: as fencing does, and a lossy broker leaves the ELR as well."""
    image = world.meta[-1]
    p = image.record
    bit = 1 << number
    if not (p.isr | p.elr) & bit:
        return
    if lossy and world.rules.lossy_leaves_elr:
        world.losses += 1
        world.count("lossy registrations of members")
        record = change(world, p.isr & ~bit, gone=bit, lossy=bit)
    else:
        record = change(world, p.isr & ~bit, gone=bit)
    world.reason = 0
    publish(world, image._replace(record=record))


def _enrol(world: World, request: Register) -> None:
    """RegisterBroker: the broker epoch is the offset of this very record."""
    image = world.meta[-1]
    number = request.sender

    def at(values: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*values[:number], value, *values[number + 1 :])

    publish(
        world,
        image._replace(
            broker_epochs=at(image.broker_epochs, len(world.meta)),
            starts=at(image.starts, request.start),
            directories=at(image.directories, request.directory),
            fenced=image.fenced | 1 << number,
            stopping=image.stopping & ~(1 << number),
        ),
    )


def begin_shutdown(world: World, broker: int) -> None:
    """4.6: leadership and ISR membership move to others as far as there are others."""
    image = world.meta[-1]
    bit = 1 << broker
    p = image.record
    image = image._replace(stopping=image.stopping | bit)
    if p.isr & bit and p.isr & ~bit:
        world.reason = LEASE
        image = image._replace(record=change(world, p.isr & ~bit, gone=bit))
    publish(world, image)
    world.count("controlled shutdowns")


# ---------------------------------------------------------------------------------------------- AlterPartition


def hear_alter(world: World, request: Alter) -> Verdict | None:
    """4.7, in its order. None: the answer says nothing that a leader acts on."""
    image = world.meta[-1]
    p = image.record
    rules = world.rules
    if request.quorum_epoch != world.quorum_epoch and rules.quorum_epoch_named:
        _learn_controller(world, request.sender)
        return None
    if request.broker_epoch != image.broker_epochs[request.sender]:
        return None
    if request.leader_epoch != p.leader_epoch or request.sender != p.leader:
        return None
    if request.partition_epoch != p.partition_epoch and rules.partition_epoch_cas:
        return None
    if world.seen_epoch != request.leader_epoch:
        world.seen_epoch, world.seen = request.leader_epoch, 0
    if rules.alter_seq and request.seq <= world.seen:
        world.count("copies of AlterPartition refused")
        return None
    world.seen = max(world.seen, request.seq)
    if not request.isr & 1 << p.leader or request.isr & ~mask_of(p.replicas):
        return None
    if not _all_eligible(world, request):
        world.count("AlterPartitions refused")
        return Verdict(request.leader_epoch, request.partition_epoch, request.seq, refused=True, isr=0)
    world.reason = LEASE
    record = change(world, request.isr)
    if record.recovering:
        record = record._replace(recovering=False, partition_epoch=p.partition_epoch + 1)
    if record.isr & ~p.isr:
        world.count("ISR expansions")
    elif p.isr & ~record.isr:
        world.count("ISR shrinks")
    publish(world, image._replace(record=record))
    return Verdict(request.leader_epoch, record.partition_epoch, request.seq, refused=False, isr=record.isr)


def _all_eligible(world: World, request: Alter) -> bool:
    image = world.meta[-1]
    rules = world.rules
    if rules.fenced_not_eligible and request.isr & ~alive(image):
        return False
    if not rules.broker_epochs_in_alter:
        return True
    for member, epoch in enumerate(request.member_epochs):
        if request.isr >> member & 1:
            if epoch < 0 and not image.record.isr >> member & 1:
                return False
            if epoch >= 0 and epoch != image.broker_epochs[member]:
                return False
    return True
