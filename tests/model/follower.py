"""The follower's side (2.2, section 3): adopting metadata, fetching, appending, truncating, beginning anew."""

from tests.model import invariants
from tests.model.leader import become_leader
from tests.model.state import EPOCH_SHIFT, FOLLOWER, IDLE, LEADER, Broker, Fetch, Fetched, Flushed, World
from tests.model.storage import (
    adopt_mode,
    assign,
    begin_anew_at,
    end_offset_for,
    kill,
    raise_log_start,
    truncate_to,
    wipe,
)


def replay(world: World, broker: Broker, position: int) -> None:
    """The broker's image is now the one at `position`; what lay between is skipped (2.2)."""
    broker.position = position
    image = world.meta[position]
    if image.starts[broker.id] > broker.start and image.directories[broker.id] == broker.directory:
        kill(broker)
        return
    if broker.epoch >= 0 and image.broker_epochs[broker.id] > broker.epoch:
        world.count("processes that found themselves replaced")
        kill(broker)
        return
    if not broker.active:
        registered = 0 <= broker.epoch <= position
        if not registered and world.rules.roles_after_registration:
            return
        broker.active = True
    adopt(world, broker)


def adopt(world: World, broker: Broker) -> None:
    """2.2: only a newer partition epoch changes anything."""
    new = world.meta[broker.position].record
    old = broker.record
    if old is not None and new.partition_epoch <= old.partition_epoch:
        return
    broker.record = new
    broker.pending = 0
    if broker.id not in new.replicas:
        _leave(world, broker)
        return
    adopt_mode(broker, group=new.group)
    if new.leader == broker.id:
        fresh = broker.role != LEADER or old is None or new.leader_epoch > old.leader_epoch
        become_leader(world, broker, new, fresh=fresh)
        invariants.maximal_isr(world, broker, moved=False)
        return
    if (
        old is None
        or broker.role != FOLLOWER
        or (old.leader, old.leader_epoch) != (new.leader, new.leader_epoch)
    ):
        broker.generation += 1
    broker.role = FOLLOWER
    broker.wanted_start = -1


def _leave(world: World, broker: Broker) -> None:
    """The partition is no longer here: its directory goes, before any other role can start (4.11)."""
    if broker.role != IDLE or broker.log:
        world.count("replicas deleted")
    broker.role = IDLE
    broker.generation += 1
    if world.rules.deletion_before_new_role:
        wipe(broker)
    else:
        broker.doomed = True


def next_fetch(world: World, broker: Broker) -> Fetch | None:
    """3.1: from the own end, with the epoch of the last record; what was asked before is given up."""
    record = broker.record
    if broker.role != FOLLOWER or record is None or record.leader < 0:
        return None
    if world.rules.one_answer_per_request:
        broker.generation += 1
    return Fetch(
        broker.id, record.leader, broker.generation, broker.epoch, record.leader_epoch, len(broker.log),
        broker.last_epoch, broker.claimed, broker.log_start,
    )  # fmt: skip


def hear_fetched(world: World, broker: Broker, answer: Fetched) -> bool:
    """3.2 and 3.3: one entry of an answer; False if it came too late to mean anything."""
    record = broker.record
    if broker.role != FOLLOWER or record is None:
        return False
    current = (
        answer.generation == broker.generation
        and answer.leader_epoch == record.leader_epoch
        and answer.asked == len(broker.log)
    )
    if not current:
        if world.rules.stale_answers_dropped or answer.asked > len(broker.log):
            return False
        if answer.diverging is None and answer.asked < len(broker.log):
            return False
    if world.rules.one_answer_per_request:
        broker.generation += 1
    if answer.out_of_range:
        _out_of_range(world, broker, answer)
    elif answer.diverging is not None:
        _diverged(world, broker, answer)
    else:
        _append(world, broker, answer)
    return True


def _append(world: World, broker: Broker, answer: Fetched) -> None:
    log = broker.log
    first = len(log)
    for record in answer.records:
        if log and first > broker.base and record >> EPOCH_SHIFT < broker.last_epoch:
            break
        assign(broker, record >> EPOCH_SHIFT, len(log))
        log.append(record)
    own = broker.record
    assert own is not None
    old = broker.hwm
    _raise_hwm(world, broker, answer.hwm)
    if world.rules.hwm_from_log_start:
        _raise_hwm(world, broker, answer.log_start)
    start = min(answer.log_start, broker.hwm) if world.rules.log_start_capped_by_hwm else answer.log_start
    if start > broker.log_start:
        raise_log_start(world, broker, start)
        if world.rules.log_start_durable:
            broker.checkpointed_start = start
    if broker.lineage < own.unclean_epoch:
        invariants.enter_lineage(world, broker, own.unclean_epoch)
    elif broker.hwm > old:
        invariants.true_high_watermark(world, broker, old)
    invariants.matching_logs(world, broker, first)


def _raise_hwm(world: World, broker: Broker, named: int) -> None:
    """3.3: never above the own end; -1 leaves it."""
    if world.rules.hwm_capped_by_end:
        named = min(named, len(broker.log))
    broker.hwm = max(broker.hwm, named)


def _diverged(world: World, broker: Broker, answer: Fetched) -> None:
    """3.5: cut at where the leader's records of that epoch end, or where mine do."""
    assert answer.diverging is not None
    epoch, its_end = answer.diverging
    if not world.rules.hwm_not_from_divergence:
        _raise_hwm(world, broker, answer.hwm)
        invariants.true_high_watermark(world, broker, broker.log_start)
    own, mine = end_offset_for(broker, epoch)
    end = min(min(its_end, mine) if own == epoch else mine, len(broker.log))
    if end >= broker.log_start:
        truncate_to(world, broker, end)
        return
    invariants.permitted_truncation(world, broker, end)
    begin_anew_at(world, broker, answer.log_start if world.rules.refetch_below_log_start else end)
    invariants.true_high_watermark(world, broker, broker.log_start)


def _out_of_range(world: World, broker: Broker, answer: Fetched) -> None:
    """3.6: `hwm` of such an answer is the leader's end."""
    end = len(broker.log)
    empty = broker.last_epoch < 0
    if end < answer.log_start or (empty and world.rules.empty_log_begins_at_log_start):
        own = broker.record
        assert own is not None
        broker.lineage = max(broker.lineage, own.unclean_epoch)
        begin_anew_at(world, broker, answer.log_start)
        invariants.true_high_watermark(world, broker, broker.log_start)
    elif end > answer.hwm and not empty:
        raise invariants.Violation("I-6", f"{broker.id} ends at {end}, beyond its leader's {answer.hwm}")


def tell_flushed(broker: Broker) -> Flushed | None:
    """DECISIONS 25: what a follower says when its fsync is done."""
    record = broker.record
    if broker.role != FOLLOWER or record is None or record.leader < 0 or not record.group:
        return None
    durable = broker.claimed
    last = broker.log[durable - 1] >> EPOCH_SHIFT if durable > broker.base else -1
    return Flushed(broker.id, record.leader, broker.epoch, record.leader_epoch, durable, last)
