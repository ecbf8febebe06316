"""The leader's side (2.3 to 2.10, 2.15): high watermark, fetch validation, ISR proposals, deletion."""

from tests.model import invariants
from tests.model.state import (
    EPOCH_SHIFT,
    LEADER,
    Alter,
    Broker,
    Fetch,
    Fetched,
    Flushed,
    Record,
    Verdict,
    World,
    alive,
    mask_of,
)
from tests.model.storage import assign, delete_up_to, end_offset_for

ANSWER_RECORDS_MAX = 4


def become_leader(world: World, broker: Broker, record: Record, *, fresh: bool) -> None:
    """2.3: the log is what it is; nothing is known of the followers, and nothing is appended."""
    broker.role = LEADER
    broker.generation += 1
    if broker.lineage < record.unclean_epoch:
        if record.unclean_epoch == world.lineage:  # until here it may have followed an older leader
            world.legit_start = max(world.legit_start, broker.log_start)
            world.floor = max(world.floor, broker.log_start)
        if record.group and world.rules.unclean_leader_flushes:
            broker.synced = broker.claimed = len(broker.log)
        invariants.enter_lineage(world, broker, record.unclean_epoch)
    if fresh:
        broker.leso = len(broker.log)
        broker.seq = 0
        broker.wanted_start = -1
        if world.rules.followers_cleared_per_epoch:
            forget(broker, -1)
        if not world.rules.cache_pure:
            assign(broker, record.leader_epoch, len(broker.log))
        if record.leader_epoch == world.meta[-1].record.leader_epoch:
            invariants.complete_leader(world, broker)
        invariants.true_high_watermark(world, broker, broker.log_start)
    else:
        forget(broker, ~mask_of(record.replicas))
    advance(world, broker)


def forget(broker: Broker, members: int) -> None:
    """Follower state of these brokers is unset."""
    for number in range(len(broker.ack)):
        if members >> number & 1:
            broker.ack[number] = broker.follower_offset[number] = -1
            broker.follower_start[number] = broker.follower_epoch[number] = -1


def advance(world: World, broker: Broker) -> None:
    """2.4: everything that the whole maximal ISR has is committed."""
    record = broker.record
    if broker.role != LEADER or record is None:
        return
    rules = world.rules
    isr = record.isr
    if rules.hwm_gated_by_min_isr:
        least = record.min_isr if rules.min_isr_in_record else min(broker.config_min, len(record.replicas))
        if isr.bit_count() < least:
            return
    if broker.pending:
        isr = isr | broker.pending if rules.maximal_isr else isr & broker.pending
    h = broker.claimed if record.group else len(broker.log)
    for member in record.replicas:
        if isr >> member & 1 and member != broker.id:
            h = min(h, broker.ack[member])
    old = broker.hwm
    if h <= old:
        return
    broker.hwm = h
    if broker.lineage < world.lineage:
        return
    if rules.maximal_isr:
        invariants.maximal_isr(world, broker, moved=True)
    invariants.committed_once(world, broker, old, h)
    for offset in range(max(old, broker.leso), h):
        if broker.log[offset] >> EPOCH_SHIFT == record.leader_epoch:
            world.acked[offset] = broker.log[offset]
            world.count("acks")


def produce(world: World, broker: Broker) -> None:
    """2.5: one record; whether it needed all of the ISR is decided by who asks, not by what is written."""
    record = broker.record
    assert record is not None
    offset = len(broker.log)
    world.next_serial += 1
    written = record.leader_epoch << EPOCH_SHIFT | world.next_serial
    invariants.one_writer_per_offset(world, broker, offset, written)
    world.previous[written] = broker.log[-1] if offset else -1
    broker.log.append(written)
    assign(broker, record.leader_epoch, offset)
    world.count("appends")
    advance(world, broker)


# ---------------------------------------------------------------------------------------------- fetches


def hear_fetch(world: World, leader: Broker, fetch: Fetch) -> Fetched | None:
    """2.6 and 2.7. None: an error that changes nothing and that the follower meets with a retry."""
    record = leader.record
    if record is None or not _hears(world, leader, record, fetch):
        return None
    sender = fetch.sender
    rules = world.rules
    end = len(leader.log)
    offset = fetch.offset
    diverging = None
    if offset < leader.log_start:
        return _out_of_range(leader, fetch)
    if fetch.last_epoch >= 0:
        epoch, its_end = end_offset_for(leader, fetch.last_epoch)
        if epoch < fetch.last_epoch or its_end < offset:
            diverging = (epoch, its_end)
    elif offset > leader.log_start and rules.empty_log_begins_at_log_start:
        # What is missing below its offset was deleted for good only if this very process is a member, or had been
        # heard in this epoch with a last record. Beginning anew would harm a member, so a process that the image
        # does not know yet has to ask again.
        known_as = world.meta[leader.position].broker_epochs[sender]
        if fetch.broker_epoch != known_as:
            return None
        accepted = leader.follower_offset[sender] >= 0 and leader.follower_epoch[sender] == fetch.broker_epoch
        if not accepted and not (record.isr | record.elr | leader.pending) >> sender & 1:
            return _out_of_range(leader, fetch)
    if offset > end and diverging is None:
        return _out_of_range(leader, fetch)
    if diverging is not None and rules.divergence_checked:
        return Fetched(
            leader.id, fetch.generation, record.leader_epoch, offset, (), shown(world, leader),
            leader.log_start, diverging, out_of_range=False,
        )  # fmt: skip
    records = tuple(leader.log[offset : offset + ANSWER_RECORDS_MAX])
    hear_progress(world, leader, fetch)
    return Fetched(
        leader.id, fetch.generation, record.leader_epoch, offset, records, shown(world, leader),
        leader.log_start, None, out_of_range=False,
    )  # fmt: skip


def _hears(world: World, leader: Broker, record: Record, fetch: Fetch) -> bool:
    """2.6 #2 to #6, and whether this fetch is the latest of its process."""
    if not leader.active or leader.role != LEADER:
        return False
    if fetch.leader_epoch != record.leader_epoch and world.rules.epoch_checked_on_fetch:
        world.count("fetches of another epoch refused")
        return False
    sender = fetch.sender
    known = max(world.meta[leader.position].broker_epochs[sender], leader.follower_epoch[sender])
    if sender not in record.replicas or fetch.broker_epoch < known:
        return False
    if world.rules.fetches_in_order:
        if fetch.broker_epoch == leader.heard_epoch[sender] and fetch.generation < leader.heard[sender]:
            return False
        leader.heard[sender], leader.heard_epoch[sender] = fetch.generation, fetch.broker_epoch
    return True


def _out_of_range(leader: Broker, fetch: Fetch) -> Fetched:
    return Fetched(
        leader.id, fetch.generation, fetch.leader_epoch, fetch.offset, (), len(leader.log), leader.log_start,
        None, out_of_range=True,
    )  # fmt: skip


def shown(world: World, leader: Broker) -> int:
    """The high watermark that a leader names: none before it has reached its own beginning (D11)."""
    if leader.hwm < leader.leso and world.rules.hwm_hidden_below_leso:
        return -1
    return leader.hwm


def hear_progress(world: World, leader: Broker, fetch: Fetch) -> None:
    """2.7: the follower's numbers are overwritten, not maximised."""
    record = leader.record
    assert record is not None
    sender = fetch.sender
    leader.follower_offset[sender] = fetch.offset
    leader.follower_start[sender] = fetch.log_start
    leader.follower_epoch[sender] = fetch.broker_epoch
    leader.ack[sender] = min(fetch.durable, fetch.offset) if record.group else fetch.offset
    advance(world, leader)


def hear_flushed(world: World, leader: Broker, message: Flushed) -> None:
    """DECISIONS 25: only the ack offset moves, at most to what the follower fetched."""
    record = leader.record
    if not leader.active or record is None or leader.role != LEADER or not record.group:
        return
    sender = message.sender
    known = max(world.meta[leader.position].broker_epochs[sender], leader.follower_epoch[sender])
    if message.leader_epoch != record.leader_epoch or message.broker_epoch < known:
        return
    if sender not in record.replicas or leader.follower_offset[sender] < 0:
        return
    if world.rules.flushed_names_its_epoch and message.last_epoch >= 0:
        epoch, end = end_offset_for(leader, message.last_epoch)
        if epoch < message.last_epoch or end < message.durable:
            world.count("Flushed of another history refused")
            return
    durable = min(message.durable, leader.follower_offset[sender])
    if durable > leader.ack[sender]:
        leader.ack[sender] = durable
        world.count("Flushed heard")
        advance(world, leader)


# ---------------------------------------------------------------------------------------------- the ISR


def propose(world: World, leader: Broker, who: int, *, shrink: bool) -> bool:
    """2.8 to 2.10: one change at a time; who lags is drawn, because time is not modelled that finely."""
    record = leader.record
    if leader.role != LEADER or record is None or leader.pending:
        return False
    bit = 1 << who
    if record.recovering:
        leader.pending = record.isr
    elif shrink:
        if who == leader.id or not record.isr & bit:
            return False
        leader.pending = record.isr & ~bit
    elif can_join(world, leader, who):
        leader.pending = record.isr | bit
    else:
        return False
    send_alter(leader)
    return True


def can_join(world: World, leader: Broker, who: int) -> bool:
    """2.8: the follower has everything that may be committed, and is the process that the image knows."""
    record = leader.record
    assert record is not None
    if who not in record.replicas or record.isr >> who & 1 or leader.ack[who] < 0:
        return False
    image = world.meta[leader.position]
    rules = world.rules
    if rules.fenced_not_eligible and not alive(image) >> who & 1:
        return False
    if rules.broker_epochs_in_alter and image.broker_epochs[who] != leader.follower_epoch[who]:
        return False
    if rules.leso_for_expansion and leader.ack[who] < leader.leso:
        return False
    if rules.deletion_waits_for_members and leader.follower_start[who] < leader.log_start:
        return False
    return leader.ack[who] >= leader.hwm


def send_alter(leader: Broker) -> None:
    """Every send takes a fresh number (D3)."""
    record = leader.record
    assert record is not None
    leader.seq += 1
    leader.pending_seq = leader.seq
    leader.pending_sent = record.partition_epoch
    epochs = tuple(
        leader.epoch if number == leader.id else leader.follower_epoch[number]
        for number in range(len(leader.ack))
    )
    request = Alter(
        leader.id, leader.quorum_epoch, leader.epoch, record.leader_epoch, record.partition_epoch, leader.seq,
        leader.pending, epochs,
    )  # fmt: skip
    if len(leader.alters) > 3:
        leader.alters.pop(0)
    leader.alters.append(request)


def hear_verdict(world: World, leader: Broker, verdict: Verdict) -> None:
    """2.10: a refusal ends what was proposed; a success waits for the metadata log (D2)."""
    record = leader.record
    if leader.role != LEADER or record is None or record.leader_epoch != verdict.leader_epoch:
        return
    if not world.rules.isr_only_from_log and not verdict.refused:
        leader.record = record._replace(isr=verdict.isr)
        leader.pending = 0
        invariants.maximal_isr(world, leader, moved=False)
        advance(world, leader)
        return
    if (
        verdict.seq == leader.pending_seq
        and record.partition_epoch == leader.pending_sent
        and verdict.refused
    ):
        leader.pending = 0
        invariants.maximal_isr(world, leader, moved=False)
        advance(world, leader)


# ---------------------------------------------------------------------------------------------- deletion


def delete_records(world: World, leader: Broker, offset: int) -> None:
    """2.15: the leader's log begins at `offset` at once; the answer waits."""
    delete_up_to(world, leader, offset)
    leader.checkpointed_start = leader.log_start
    leader.wanted_start = leader.log_start
    world.count("deletions")


def answer_deletion(world: World, leader: Broker) -> bool:
    """2.15: when every replica that might lead begins there too."""
    record = leader.record
    if leader.role != LEADER or record is None or leader.wanted_start < 0:
        return False
    if world.rules.deletion_waits_for_members:
        waited = record.isr | record.elr | leader.pending
    else:
        waited = alive(world.meta[leader.position]) & mask_of(record.replicas)
    for member in record.replicas:
        if (
            waited >> member & 1
            and member != leader.id
            and leader.follower_start[member] < leader.wanted_start
        ):
            return False
    if leader.lineage >= world.lineage:
        world.deleted = max(world.deleted, leader.wanted_start)
    leader.wanted_start = -1
    world.count("deletions answered")
    return True
