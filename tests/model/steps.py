"""What can happen next. A step gets the world, a broker and two small numbers that say which and how much.

It returns whether anything happened, so that a walk counts only steps that did. Messages wait in short lists
per sender; delivering one may leave a copy behind, and a full list loses its oldest.
"""

# ruff: noqa: ARG001 - every step takes the same arguments, and some need fewer

from collections.abc import Callable
from itertools import permutations
from typing import TypeVar

from tests.model import invariants, storage
from tests.model.assignment import cancel, configure, fail_over, prefer, reassign, recover_unclean
from tests.model.controller import (
    begin_shutdown,
    fence,
    hear_alter,
    hear_heartbeat,
    hear_registration,
)
from tests.model.follower import hear_fetched, next_fetch, replay, tell_flushed
from tests.model.heal import live
from tests.model.leader import (
    advance,
    answer_deletion,
    delete_records,
    hear_fetch,
    hear_flushed,
    hear_verdict,
    produce,
    propose,
    send_alter,
    shown,
)
from tests.model.state import LEADER, LEASE, Beat, Broker, Register, World, alive, mask_of

T = TypeVar("T")
Step = Callable[[World, Broker, int, int], bool]
WIRE_MAX = 4
LOG_MAX = 40


def _send(wire: list[T], message: T) -> None:
    if len(wire) >= WIRE_MAX:
        wire.pop(0)
    wire.append(message)


def _take(wire: list[T], which: int, copy: int) -> T:
    """The message that arrives; one time in four a copy of it stays on the way."""
    index = which % len(wire)
    return wire[index] if copy & 3 == 3 else wire.pop(index)


# ---------------------------------------------------------------------------------------------- data


def produce_record(world: World, b: Broker, x: int, y: int) -> bool:
    """A client writes to whoever believes that it leads (2.5)."""
    if b.role != LEADER or b.lease < world.now or len(b.log) >= LOG_MAX:
        return False
    record = b.record
    assert record is not None
    if record.isr.bit_count() < record.min_isr and x & 3:
        return False  # acks=all is refused; acks=1 is not
    produce(world, b)
    return True


def fetch_round(world: World, b: Broker, x: int, y: int) -> bool:
    """A fetch and its answer without delay."""
    fetch = next_fetch(world, b) if b.active else None
    if fetch is None:
        return False
    answer = hear_fetch(world, world.brokers[fetch.leader], fetch)
    return answer is not None and hear_fetched(world, b, answer)


def send_fetch(world: World, b: Broker, x: int, y: int) -> bool:
    """A fetch goes out."""
    fetch = next_fetch(world, b) if b.active else None
    if fetch is None:
        return False
    _send(b.fetches, fetch)
    return True


def fetch_arrives(world: World, b: Broker, x: int, y: int) -> bool:
    """A fetch of this broker, or a copy, reaches the leader it was sent to; the answer goes out."""
    if not b.fetches:
        return False
    fetch = _take(b.fetches, x, y)
    answer = hear_fetch(world, world.brokers[fetch.leader], fetch)
    if answer is not None:
        _send(b.answers, answer)
    return True


def answer_arrives(world: World, b: Broker, x: int, y: int) -> bool:
    """An answer reaches the follower."""
    if not b.answers:
        return False
    answer = _take(b.answers, x, y)
    return b.active and hear_fetched(world, b, answer)


def read(world: World, b: Broker, x: int, y: int) -> bool:
    """One of two clients reads; it never goes back to a leader of an older epoch than it has met (2.12, I-76)."""
    if b.role != LEADER or b.lease < world.now:
        return False
    client = world.clients[x & 1]
    if b.leader_epoch < client[0]:
        return False
    invariants.bounded_staleness(world, b)
    client[0] = b.leader_epoch
    invariants.lasting_deletion(world, b)
    hwm = shown(world, b)
    if hwm >= 0:
        invariants.steady_reports(world, b, client)
        if b.lineage >= world.lineage:
            client[1], client[3] = hwm, world.lineage
    world.count("reads")
    return True


def delete(world: World, b: Broker, x: int, y: int) -> bool:
    """DeleteRecords at a leader, up to its high watermark (2.15)."""
    if b.role != LEADER or b.lease < world.now or b.hwm <= b.log_start:
        return False
    delete_records(world, b, b.log_start + 1 + x % (b.hwm - b.log_start))
    return True


def deletion_answered(world: World, b: Broker, x: int, y: int) -> bool:
    """DeleteRecords is answered when enough replicas have followed."""
    return b.active and answer_deletion(world, b)


def retain(world: World, b: Broker, x: int, y: int) -> bool:
    """A replica deletes by age, on its own (1.12)."""
    if b.record is None or not b.up or not b.active or b.hwm <= b.log_start or b.lineage < world.lineage:
        return False
    start = b.log_start + 1 + x % (b.hwm - b.log_start)
    storage.delete_up_to(world, b, start)
    b.checkpointed_start = max(b.checkpointed_start, start)
    world.count("retentions")
    return True


def quiet_moment(world: World, b: Broker, x: int, y: int) -> bool:
    """For a while nothing disturbs this broker: registration, metadata, heartbeat, flush, fetch, ISR."""
    if not b.up:
        return False
    live(world, b)
    return True


# ---------------------------------------------------------------------------------------------- disk


def flush_begins(world: World, b: Broker, x: int, y: int) -> bool:
    """An fsync starts."""
    return b.up and storage.begin_flush(b)


def flush_ends(world: World, b: Broker, x: int, y: int) -> bool:
    """An fsync is done: a leader counts it, a follower says so."""
    if not b.up or not storage.end_flush(world, b):
        return False
    advance(world, b)
    message = tell_flushed(b) if b.active else None
    if message is not None:
        _send(b.flushes, message)
    return True


def flushed_arrives(world: World, b: Broker, x: int, y: int) -> bool:
    """`Flushed` reaches the leader."""
    if not b.flushes:
        return False
    message = _take(b.flushes, x, y)
    hear_flushed(world, world.brokers[message.leader], message)
    return True


def checkpoint(world: World, b: Broker, x: int, y: int) -> bool:
    """High watermark and log start are written down (1.5)."""
    if not b.up or (b.checkpointed_hwm, b.checkpointed_start) == (b.hwm, b.log_start):
        return False
    b.checkpointed_hwm, b.checkpointed_start = b.hwm, b.log_start
    return True


def doomed_directory_goes(world: World, b: Broker, x: int, y: int) -> bool:
    """A deletion that was put off happens (only if 4.11's order is switched off)."""
    if not b.doomed:
        return False
    role = b.role
    storage.wipe(b)
    b.doomed, b.role = False, role
    return True


# ---------------------------------------------------------------------------------------------- processes


def kill_process(world: World, b: Broker, x: int, y: int) -> bool:
    """SIGKILL."""
    if not b.up:
        return False
    storage.kill(b)
    world.count("kills")
    return True


def cut_power(world: World, b: Broker, x: int, y: int) -> bool:
    """The host goes dark; so do the processes on it."""
    unflushed = len(b.log) - b.synced
    if not b.up and not unflushed:
        return False
    storage.cut_power(world, b, x % (unflushed + 1), y % 3)
    world.count("power cuts")
    return True


def cut_all_power(world: World, b: Broker, x: int, y: int) -> bool:
    """Every host goes dark at once."""
    for broker in world.brokers:
        unflushed = len(broker.log) - broker.synced
        storage.cut_power(world, broker, (x + broker.id) % (unflushed + 1), y % 3)
    world.count("power cuts of all")
    return True


def disk_replaced(world: World, b: Broker, x: int, y: int) -> bool:
    """A dead broker gets a new disk."""
    if b.up or not b.log:
        return False
    storage.replace_disk(world, b)
    world.count("disks replaced")
    return True


def start_process(world: World, b: Broker, x: int, y: int) -> bool:
    """The broker is started again."""
    if b.up:
        return False
    storage.start(world, b, x % 4)
    return True


def send_registration(world: World, b: Broker, x: int, y: int) -> bool:
    """A process asks to be registered, as often as it likes."""
    if not b.up or b.epoch >= 0:
        return False
    request = Register(
        b.id, b.quorum_epoch, b.start, b.directory, b.answered_epoch, b.answered_start, b.start_before, b.crash,
        b.group_marked,
    )  # fmt: skip
    if y & 1:
        hear_registration(world, request)
        if y & 2:
            _send(b.registers, request)
    else:
        _send(b.registers, request)
    return True


def registration_arrives(world: World, b: Broker, x: int, y: int) -> bool:
    """A registration, or a copy, reaches the controller."""
    if not b.registers:
        return False
    hear_registration(world, _take(b.registers, x, y))
    return True


def heartbeat(world: World, b: Broker, x: int, y: int) -> bool:
    """A heartbeat, answered at once or on its way for a while."""
    if not b.up or b.epoch < 0:
        return False
    beat = Beat(b.id, b.quorum_epoch, b.epoch, b.position, world.now, b.connection)
    if x & 3:
        hear_heartbeat(world, beat)
    else:
        _send(b.beats, beat)
    return True


def heartbeat_arrives(world: World, b: Broker, x: int, y: int) -> bool:
    """A heartbeat that was delayed reaches the controller."""
    if not b.beats:
        return False
    hear_heartbeat(world, _take(b.beats, x, y))
    return True


def replay_metadata(world: World, b: Broker, x: int, y: int) -> bool:
    """The broker replays one batch, some, or all."""
    behind = len(world.meta) - 1 - b.position
    if not b.up or (behind <= 0 and b.active):
        return False
    step = behind if x & 3 == 3 else min(behind, 1 + (x >> 2))
    before = b.position, b.active
    replay(world, b, b.position + step)
    return (b.position, b.active) != before


def tick(world: World, b: Broker, x: int, y: int) -> bool:
    """Time passes."""
    world.now += 1
    return True


# ---------------------------------------------------------------------------------------------- the controller


def fence_for_silence(world: World, b: Broker, x: int, y: int) -> bool:
    """4.3: nothing was heard for longer than a lease."""
    image = world.image
    if image.fenced >> b.id & 1:
        return False
    if world.now <= world.contact[b.id] + LEASE and world.rules.lease_before_fencing:
        return False
    fence(world, b.id, 0)
    return True


def fence_fast(world: World, b: Broker, x: int, y: int) -> bool:
    """DECISIONS 3: the connection ended and new ones are refused; by the dead, the closing, or something between."""
    if world.image.fenced >> b.id & 1:
        return False
    if not b.up:
        fence(world, b.id, 0)
        return True
    if x & 3 == 0:
        b.connection += 1
        if world.rules.lease_given_up:
            b.lease = -1
        fence(world, b.id, 0)
        world.count("closing brokers fenced")
        return True
    fence(world, b.id, LEASE)
    world.count("living brokers fenced")
    return True


def connection_ends(world: World, b: Broker, x: int, y: int) -> bool:
    """The broker sees its controller connection end, and gives up its lease (DECISIONS 3)."""
    if not b.up or b.lease < world.now:
        return False
    b.connection += 1
    if world.rules.lease_given_up:
        b.lease = -1
    return True


def stop_politely(world: World, b: Broker, x: int, y: int) -> bool:
    """4.6: leadership goes first, then the process ends with everything flushed and checkpointed."""
    image = world.image
    bit = 1 << b.id
    if not b.up or not b.active or b.epoch != image.broker_epochs[b.id] or image.fenced & bit:
        return False
    if not image.stopping & bit:
        begin_shutdown(world, b.id)
        return True
    if x & 1:
        return False
    fence(world, b.id, LEASE)
    b.synced = b.claimed = len(b.log)
    b.old = None
    b.checkpointed_hwm, b.checkpointed_start = b.hwm, b.log_start
    storage.kill(b)
    return True


def propose_expansion(world: World, b: Broker, x: int, y: int) -> bool:
    """A leader finds that a follower may join (2.8)."""
    return b.active and propose(world, b, x % len(world.brokers), shrink=False)


def propose_shrink(world: World, b: Broker, x: int, y: int) -> bool:
    """A leader finds that a follower lags (2.9)."""
    return b.active and propose(world, b, x % len(world.brokers), shrink=True)


def alter_again(world: World, b: Broker, x: int, y: int) -> bool:
    """No answer came, or NOT_CONTROLLER did: the same proposal, with a new number (2.10)."""
    if b.role != LEADER or not b.pending:
        return False
    if y & 1:
        b.quorum_epoch = world.quorum_epoch
    send_alter(b)
    return True


def alter_arrives(world: World, b: Broker, x: int, y: int) -> bool:
    """AlterPartition, or a copy, reaches the controller; the answer goes out."""
    if not b.alters:
        return False
    verdict = hear_alter(world, _take(b.alters, x, y))
    if verdict is not None:
        _send(b.verdicts, verdict)
    return True


def verdict_arrives(world: World, b: Broker, x: int, y: int) -> bool:
    """The controller's answer reaches the leader."""
    if not b.verdicts:
        return False
    hear_verdict(world, b, _take(b.verdicts, x, y))
    return True


def controller_fails_over(world: World, b: Broker, x: int, y: int) -> bool:
    """Another controller takes over."""
    fail_over(world)
    return True


def config_changes(world: World, b: Broker, x: int, y: int) -> bool:
    """`min.insync.replicas` or the flush mode of the topic changes."""
    group = not world.config_group if y & 3 == 3 else world.config_group
    return configure(world, 1 + x % 3, group=group)


def config_heard(world: World, b: Broker, x: int, y: int) -> bool:
    """A broker's own copy of the config catches up (only of interest if D4 is switched off)."""
    if b.config_min == world.config_min:
        return False
    b.config_min = world.config_min
    advance(world, b)
    return True


def reassignment_begins(world: World, b: Broker, x: int, y: int) -> bool:
    """An operator moves the partition, or changes her mind about where to."""
    n = len(world.brokers)
    size = 1 + x % min(3, n)
    orders = ORDERS[n, size]
    target = orders[(x + 16 * y) % len(orders)]
    live = alive(world.image)
    if mask_of(target) & ~live and y & 3:
        return False
    return reassign(world, target)


def reassignment_cancelled(world: World, b: Broker, x: int, y: int) -> bool:
    """An operator takes it back."""
    return cancel(world)


def unclean_election(world: World, b: Broker, x: int, y: int) -> bool:
    """Nobody complete is left, or nobody alive is; somebody else leads (4.8)."""
    return recover_unclean(world, 15 if x & 1 else y)


def preferred_election(world: World, b: Broker, x: int, y: int) -> bool:
    """The first replica gets its leadership back."""
    return prefer(world)


ORDERS = {
    (n, size): list(permutations(range(n), size)) for n in range(1, 5) for size in range(1, min(3, n) + 1)
}

WEIGHTS: dict[Step, float] = {
    produce_record: 150,
    fetch_round: 150,
    quiet_moment: 70,
    replay_metadata: 70,
    heartbeat: 60,
    start_process: 24,
    send_registration: 16,
    propose_expansion: 40,
    alter_arrives: 40,
    send_fetch: 24,
    fetch_arrives: 20,
    answer_arrives: 20,
    read: 16,
    delete: 5,
    deletion_answered: 6,
    retain: 3,
    flush_begins: 14,
    flush_ends: 14,
    flushed_arrives: 8,
    checkpoint: 8,
    doomed_directory_goes: 2,
    kill_process: 3,
    cut_power: 2,
    cut_all_power: 0.4,
    disk_replaced: 1,
    registration_arrives: 8,
    heartbeat_arrives: 6,
    tick: 7,
    fence_for_silence: 2,
    fence_fast: 1.5,
    connection_ends: 2,
    stop_politely: 1.5,
    propose_shrink: 10,
    alter_again: 6,
    verdict_arrives: 14,
    controller_fails_over: 0.6,
    config_changes: 2,
    config_heard: 3,
    reassignment_begins: 3,
    reassignment_cancelled: 1.5,
    unclean_election: 6,
    preferred_election: 3,
}
"""Every step with its usual share; a seed multiplies them (`walk.swarm`)."""

ALWAYS: frozenset[Step] = frozenset(
    {
        produce_record, fetch_round, quiet_moment, replay_metadata, heartbeat, start_process, send_registration,
        propose_expansion, alter_arrives, fence_for_silence, fence_fast, flush_begins, flush_ends, tick,
    }
)  # fmt: skip
"""Steps that no seed turns off: without them nothing else happens."""

BY_NAME: dict[str, Step] = {step.__name__: step for step in WEIGHTS}
