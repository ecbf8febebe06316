"""What must hold, as nouns. Each raises Violation with the name that docs and transcripts use.

The oracle sees every disk. `world.committed` grows whenever a leader of the present lineage moves its high
watermark; a lineage ends with an unclean election, which is the one event that may shorten it. Leaders and
replicas that have not heard of the newest unclean election are judged no more: what they still say is lost.
"""

from tests.model.state import ABSENT, EPOCH_SHIFT, HARMLESS, LEADER, Broker, Image, Record, Register, World


class Violation(Exception):
    """An invariant is broken: its name and the numbers."""

    def __init__(self, invariant: str, fact: str) -> None:
        super().__init__(f"{invariant}: {fact}")
        self.invariant = invariant


def committed_once(world: World, leader: Broker, old: int, new: int) -> None:
    """I-2: what is committed never changes. Called when a leader's high watermark moves from old to new."""
    committed, log = world.committed, leader.log
    for offset in range(max(old, world.floor), min(new, len(committed))):
        if log[offset] != committed[offset] and offset >= leader.log_start:
            raise Violation("I-2", f"{leader.id} commits {word(log[offset])} at {offset}, which was another")
    grown = len(committed)
    if new > grown:
        committed.extend(log[grown:new])
        world.count("committed")
        _members_hold(world, grown)


def _members_hold(world: World, start: int) -> None:
    """I-4 for the records that were just committed."""
    image = world.meta[-1]
    members = image.record.isr | image.record.elr
    committed = world.committed
    for broker in world.brokers:
        if members >> broker.id & 1 and not broker.lost and not _is_new_life(broker, image):
            log = broker.log
            if not may_begin_there(world, broker):
                raise Violation("I-4", f"{broker.id} begins at {broker.log_start}, nobody deleted that far")
            begin = max(start, broker.log_start)
            if len(log) < len(committed) or log[begin : len(committed)] != committed[begin:]:
                raise Violation("I-4", f"{broker.id} is in ISR or ELR without {begin}..{len(committed)}")


def _is_new_life(broker: Broker, image: Image) -> bool:
    """Its directory was replaced and the controller does not know yet."""
    return broker.directory != image.directories[broker.id]


def may_begin_there(world: World, broker: Broker) -> bool:
    """Every committed record below this log's start was deleted, by somebody who had it."""
    if broker.log_start <= world.legit_start:
        return True
    below = world.committed[world.floor : broker.log_start]
    return broker.log_start <= len(world.committed) and all(
        r == ABSENT or r in world.deleted_records for r in below
    )


def holds_committed(world: World, broker: Broker) -> bool:
    """Every committed record that nobody deleted is in this log."""
    begin = max(broker.log_start, world.floor)
    end = len(world.committed)
    return (
        may_begin_there(world, broker)
        and len(broker.log) >= end
        and broker.log[begin:end] == world.committed[begin:]
    )


def complete_members(world: World) -> None:
    """I-4: ISR and ELR hold everything committed, as far as their disks are what the controller believes."""
    image = world.meta[-1]
    members = image.record.isr | image.record.elr
    for broker in world.brokers:
        if members >> broker.id & 1 and not broker.lost and not _is_new_life(broker, image):
            if broker.lineage < world.lineage and broker.id == image.record.leader:
                continue  # an unclean leader that has not heard of it; its log was taken as the measure
            if not holds_committed(world, broker):
                raise Violation("I-4", f"{broker.id} is in ISR or ELR and lacks committed records")


def complete_leader(world: World, broker: Broker) -> None:
    """I-3: whoever leads the newest epoch holds everything committed.

    A broker that lost power may be elected before its silence is noticed; it will not lead under that record.
    """
    if not broker.lost and not _is_new_life(broker, world.meta[-1]) and not holds_committed(world, broker):
        raise Violation(
            "I-3", f"{broker.id} leads epoch {world.meta[-1].record.leader_epoch} and lacks records"
        )


def true_high_watermark(world: World, broker: Broker, begin: int) -> None:
    """I-5: below a replica's high watermark stands what was committed."""
    if broker.lineage < world.lineage:
        return
    end = broker.hwm
    if end > len(world.committed):
        raise Violation("I-5", f"{broker.id} has high watermark {end}, committed is {len(world.committed)}")
    begin = max(begin, broker.log_start, world.floor)
    if broker.log[begin:end] != world.committed[begin:end]:
        raise Violation("I-5", f"{broker.id} shows below {end} what was never committed")


def enter_lineage(world: World, broker: Broker, lineage: int) -> None:
    """A leader accepted this replica's log after an unclean election: from here on it is judged again.

    It may show more than the oracle kept, if the unclean leader has the same records; then they are promised.
    """
    broker.lineage = lineage
    end = len(world.committed)
    if lineage == world.lineage and broker.hwm > end:
        world.committed.extend(broker.log[end : broker.hwm])
    true_high_watermark(world, broker, broker.log_start)


def one_writer_per_offset(world: World, leader: Broker, offset: int, record: int) -> None:
    """I-11: within one epoch an offset is written once."""
    key = (record >> EPOCH_SHIFT) << EPOCH_SHIFT | offset
    if key in world.written:
        raise Violation("I-11", f"{leader.id} writes {offset} again in epoch {record >> EPOCH_SHIFT}")
    world.written[key] = record


def matching_logs(world: World, broker: Broker, first: int) -> None:
    """I-10: a record stands behind the same record everywhere; by induction, equal (offset, epoch) means equal past."""
    log, previous = broker.log, world.previous
    for offset in range(max(first, broker.log_start + 1, broker.base + 1), len(log)):
        before = previous[log[offset]]
        if before not in (ABSENT, log[offset - 1]):
            raise Violation(
                "I-10", f"{broker.id} has {word(log[offset])} at {offset} behind {word(log[offset - 1])}"
            )


def pure_cache(world: World, broker: Broker) -> None:
    """I-12: the epoch cache is a function of the log."""
    if world.rules.cache_pure and broker.cache != cache_of(broker):
        raise Violation("I-12", f"{broker.id} caches {broker.cache}, the log says {cache_of(broker)}")


def cache_of(broker: Broker) -> list[tuple[int, int]]:
    """One entry per epoch that has a record at or above log start (D1)."""
    entries: list[tuple[int, int]] = []
    last = -1
    log = broker.log
    for offset in range(broker.log_start, len(log)):
        epoch = log[offset] >> EPOCH_SHIFT
        if epoch != last:
            entries.append((epoch, offset))
            last = epoch
    return entries


def ordered_ends(broker: Broker) -> None:
    """I-38: log start <= high watermark <= end, and nothing above the end is durable."""
    if not (broker.log_start <= broker.hwm <= len(broker.log) and broker.synced <= len(broker.log)):
        raise Violation(
            "I-38",
            f"{broker.id}: start {broker.log_start}, high watermark {broker.hwm}, end {len(broker.log)}, "
            f"durable {broker.synced}",
        )


def maximal_isr(world: World, leader: Broker, *, moved: bool) -> None:
    """I-14: the newest leader waits for everyone the controller counts, with the ELR whenever it commits."""
    record = world.meta[-1].record
    own = leader.record
    if own is None or leader.role != LEADER or own.leader_epoch != record.leader_epoch:
        return
    counted = own.isr | leader.pending
    wanted = record.isr | record.elr if moved else record.isr
    if wanted & ~counted:
        raise Violation("I-14", f"{leader.id} waits for {members(counted)}, the record has {members(wanted)}")


def permitted_truncation(world: World, broker: Broker, end: int) -> None:
    """I-6, D10: below the own high watermark only what an unclean election allows."""
    record = broker.record
    if record is None or record.unclean_epoch <= broker.last_epoch:
        raise Violation("I-6", f"{broker.id} truncates to {end}, its high watermark is {broker.hwm}")
    world.count("truncations below the high watermark")


def sound_record(new: Record, old: Record) -> None:
    """I-43: the assertions with which every node replays a partition's record (4.1)."""
    replicas = 0
    for member in new.replicas:
        replicas |= 1 << member
    wrong = (
        new.partition_epoch != old.partition_epoch + 1
        or new.leader_epoch not in (old.leader_epoch, old.leader_epoch + 1)
        or new.isr & new.elr
        or (new.isr | new.elr) & ~replicas
        or (new.leader >= 0 and not new.isr >> new.leader & 1)
        or (new.elr and new.isr.bit_count() >= new.min_isr)
    )
    if wrong:
        raise Violation("I-43", f"{new} cannot follow {old}")


def nobody_fenced(image: Image) -> None:
    """I-18: a fenced broker is in no ISR."""
    if image.record.isr & image.fenced:
        raise Violation("I-18", f"{members(image.record.isr & image.fenced)} is fenced and in the ISR")


def promise(world: World, record: Record) -> None:
    """I-53 and the promise: only lost disks reduce the number of complete replicas below `min_isr`."""
    left = (record.isr | record.elr).bit_count()
    if left + world.losses < world.strength:
        raise Violation(
            "I-53", f"{left} complete replicas are left of {world.strength}, and {world.losses} were lost"
        )


def own_disk(broker: Broker, image: Image) -> None:
    """DECISIONS 5: what is recovered without an operator is the disk that was lost power, not a new one."""
    if broker.directory != image.record.directory:
        raise Violation("automatic recovery", f"{broker.id} leads with a replaced disk, nobody was asked")


def steady_reports(world: World, leader: Broker, client: list[int]) -> None:
    """I-76: high watermarks told to one client never decrease."""
    epoch, seen = client[0], client[1]
    if leader.lineage < world.lineage:
        return
    if client[3] == world.lineage and leader.hwm < seen:
        raise Violation("I-76", f"a client saw {seen} in epoch {epoch}, {leader.id} says {leader.hwm}")


def lasting_deletion(world: World, leader: Broker) -> None:
    """I-76 for log starts: an acknowledged deletion stays."""
    newest = leader.leader_epoch >= world.meta[-1].record.leader_epoch and leader.lineage >= world.lineage
    if newest and leader.log_start < world.deleted:
        raise Violation("I-76", f"{world.deleted} was deleted, {leader.id} begins at {leader.log_start}")


def bounded_staleness(world: World, broker: Broker) -> None:
    """I-79: a deposed leader answers for at most a lease, and not at all if silence deposed it."""
    for epoch in range(broker.leader_epoch + 1, len(world.leaderships)):
        leader, since, grace = world.leaderships[epoch]
        if leader != broker.id:
            if grace == 0 or world.now > since + grace:
                raise Violation(
                    "I-79",
                    f"{broker.id} answers at {world.now}, epoch {epoch} began at {since}, grace {grace}",
                )
            return


def survivors(world: World) -> None:
    """I-1 and I-74: at the end the leader has every acknowledged record that nobody deleted."""
    leader = world.brokers[world.meta[-1].record.leader]
    for offset, record in world.acked.items():
        if offset >= max(leader.log_start, world.floor) and leader.log[offset : offset + 1] != [record]:
            raise Violation("I-1", f"{word(record)} was acknowledged at {offset} and is gone")


def lost_something(request: Register) -> None:
    """I-24: a member is called lossy only if its host lost power since it was last believed."""
    if request.crash == HARMLESS:
        raise Violation("I-24", f"{request.sender} is called lossy, and only its process died")


def undamaged(broker: Broker) -> None:
    """R3, D6: a kill without loss of power damages nothing."""
    raise Violation("kill is harmless", f"{broker.id} calls itself damaged, and only its process died")


def word(record: int) -> str:
    """A record as transcripts show it: its epoch and a serial."""
    return "-" if record == ABSENT else f"{record >> EPOCH_SHIFT}.{record & (1 << EPOCH_SHIFT) - 1}"


def members(mask: int) -> str:
    """A set of brokers as transcripts show it."""
    return "".join(str(number) for number in range(mask.bit_length()) if mask >> number & 1) or "-"
