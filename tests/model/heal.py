"""The end of a walk: faults stop, everybody who can comes back, and the partition must recover (I-29, I-74)."""

from tests.model import invariants
from tests.model.assignment import recover_unclean
from tests.model.controller import fence, hear_alter, hear_heartbeat, hear_registration
from tests.model.follower import hear_fetched, next_fetch, replay
from tests.model.invariants import Violation
from tests.model.leader import advance, hear_fetch, hear_verdict, propose, send_alter
from tests.model.state import LEADER, NOBODY, Beat, Broker, Register, World, mask_of
from tests.model.storage import begin_flush, end_flush, kill, start

ROUNDS = 40


def heal(world: World) -> None:
    """Rounds without faults until nothing is left to do; then leader, ISR, ends and acknowledged records agree."""
    for broker in world.brokers:
        broker.fetches, broker.answers, broker.alters, broker.verdicts = [], [], [], []
        broker.flushes, broker.registers, broker.beats = [], [], []
        if world.image.stopping >> broker.id & 1 and broker.up:
            kill(broker)
        if not broker.up or broker.epoch < 0:
            fence(world, broker.id, 100)
    for _ in range(ROUNDS):
        for broker in world.brokers:
            if not broker.up:
                start(world, broker, 0)
            live(world, broker)
        if _is_healed(world):
            break
        if world.image.record.leader == NOBODY and not world.image.record.isr | world.image.record.elr:
            recover_unclean(world, 15)
    else:
        raise Violation("I-29", f"after {ROUNDS} rounds without faults: {world.image.record}")
    invariants.survivors(world)
    world.count("walks healed")


def live(world: World, broker: Broker) -> None:
    """What an undisturbed broker does in a while."""
    broker.quorum_epoch = world.quorum_epoch
    if broker.epoch < 0:
        hear_registration(
            world,
            Register(
                broker.id, world.quorum_epoch, broker.start, broker.directory, broker.answered_epoch,
                broker.answered_start, broker.start_before, broker.crash, broker.group_marked,
            ),
        )  # fmt: skip
    replay(world, broker, len(world.meta) - 1)
    if not broker.up:
        return
    beat = Beat(broker.id, world.quorum_epoch, broker.epoch, broker.position, world.now, broker.connection)
    hear_heartbeat(world, beat)
    replay(world, broker, len(world.meta) - 1)
    begin_flush(broker)
    end_flush(world, broker)
    advance(world, broker)
    fetch = next_fetch(world, broker) if broker.active else None
    if fetch is not None:
        answer = hear_fetch(world, world.brokers[fetch.leader], fetch)
        if answer is not None:
            hear_fetched(world, broker, answer)
    if broker.role == LEADER:
        _lead(world, broker)
    replay(world, broker, len(world.meta) - 1)


def _lead(world: World, leader: Broker) -> None:
    if leader.pending:
        send_alter(leader)
    else:
        for other in world.brokers:
            if propose(world, leader, other.id, shrink=False):
                break
    while leader.alters:
        verdict = hear_alter(world, leader.alters.pop(0))
        if verdict is not None:
            hear_verdict(world, leader, verdict)


def _is_healed(world: World) -> bool:
    """One leader, every replica in the ISR, no reassignment under way, all logs committed to their equal ends."""
    p = world.image.record
    if p.leader == NOBODY or p.isr != mask_of(p.replicas) or p.adding | p.removing or p.recovering:
        return False
    ends = {(len(world.brokers[r].log), world.brokers[r].hwm) for r in p.replicas}
    end, hwm = next(iter(ends))
    return len(ends) == 1 and end == hwm
