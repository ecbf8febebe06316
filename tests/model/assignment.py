"""What operators ask of the controller: reassignment (4.11), unclean recovery (4.8), configs (4.9), failover."""

from tests.model.controller import change, elect_unclean, publish
from tests.model.state import LEASE, NOBODY, World, alive, mask_of


def reassign(world: World, target: tuple[int, ...]) -> bool:
    """Start, or replace the target of, a reassignment; False if it is refused."""
    p = world.meta[-1].record
    goal = mask_of(target)
    original = tuple(r for r in p.replicas if not p.adding >> r & 1)
    before = mask_of(original)
    removing = before & ~goal
    replicas = target + tuple(r for r in original if removing >> r & 1)
    leaving = p.adding & ~goal
    if leaving and world.rules.replace_keeps_members and not _keeps_members(world, leaving):
        world.count("reassignments refused")
        return False
    world.reason = LEASE
    record = change(world, p.isr, assignment=(replicas, goal & ~before, removing))
    if record == p:
        return False
    world.count("reassignments replaced" if p.adding | p.removing else "reassignments started")
    publish(world, world.meta[-1]._replace(record=record))
    return True


def cancel(world: World) -> bool:
    """Back to the original replicas; False if there is nothing to cancel or it would drop too many."""
    p = world.meta[-1].record
    if not p.adding | p.removing:
        return False
    if world.rules.cancel_keeps_members and not _keeps_members(world, p.adding):
        world.count("reassignments refused")
        return False
    if not p.isr & ~p.adding and p.isr:
        return False
    world.reason = LEASE
    original = tuple(
        sorted((r for r in p.replicas if not p.adding >> r & 1), key=lambda r: (p.removing >> r & 1, r))
    )
    record = change(world, p.isr & ~p.adding, assignment=(original, 0, 0))
    publish(world, world.meta[-1]._replace(record=record))
    return True


def _keeps_members(world: World, leaving: int) -> bool:
    """Whether enough complete replicas stay if these leave."""
    p = world.meta[-1].record
    counted = p.isr | p.elr if world.rules.guard_counts_eligible else p.isr
    staying = (counted & ~leaving).bit_count()
    if p.isr and not p.isr & ~leaving:
        return False
    return staying >= min(p.min_isr, counted.bit_count())


def recover_unclean(world: World, answering: int) -> bool:
    """ElectLeader(unclean), balanced or aggressive: the best log among those that are alive and answer."""
    image = world.meta[-1]
    p = image.record
    if p.leader != NOBODY:
        return False
    if world.settings.unclean < 2 and p.isr | p.elr:
        return False
    candidates = [
        broker
        for broker in world.brokers
        if (alive(image) & mask_of(p.replicas) & answering) >> broker.id & 1
        and broker.up
        and broker.active
        and broker.epoch == image.broker_epochs[broker.id]
    ]
    if not candidates:
        return False
    best = max(candidates, key=lambda broker: (broker.last_epoch, len(broker.log), -broker.id))
    elect_unclean(world, best.id)
    return True


def configure(world: World, min_isr: int, *, group: bool) -> bool:
    """A new `min.insync.replicas` or flush mode, written into the record (D4, DECISIONS 4)."""
    if (min_isr, group) == (world.config_min, world.config_group):
        return False
    if group != world.config_group:
        world.count("flush mode changes")
    world.config_min, world.config_group = min_isr, group
    world.reason = LEASE
    p = world.meta[-1].record
    record = change(world, p.isr)
    if record is not p:
        publish(world, world.meta[-1]._replace(record=record))
    return True


def fail_over(world: World) -> None:
    """Another controller: it has the metadata log, and neither the seen numbers nor the contacts (4.3)."""
    world.quorum_epoch += 1
    world.seen_epoch = world.seen = 0
    world.contact = [world.now] * len(world.brokers)
    world.count("controller failovers")


def prefer(world: World) -> bool:
    """Preferred leader balancing (4.9)."""
    p = world.meta[-1].record
    if p.leader in (NOBODY, p.replicas[0]) or not p.isr >> p.replicas[0] & 1:
        return False
    world.reason = LEASE
    record = change(world, p.isr, preferred=True)
    if record is not p:
        publish(world, world.meta[-1]._replace(record=record))
    return record is not p
