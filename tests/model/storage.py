"""One replica's log on its disk (1.6, 1.9, 1.11, 1.13): append, truncate, flush, checkpoints, and how it comes back.

The medium holds the first `synced` records for certain. A kill keeps what was written; a power cut keeps any
prefix that contains the synced part, and may bring back what a truncation that was not flushed had cut away.
"""

from tests.model import invariants
from tests.model.state import (
    ABSENT,
    DAMAGED,
    EPOCH_SHIFT,
    HARMLESS,
    HOST_CRASH,
    IDLE,
    Broker,
    World,
)

NO_TRUNCATION = 1 << 30


def assign(broker: Broker, epoch: int, offset: int) -> None:
    """An appended record enters the epoch cache (1.6)."""
    cache = broker.cache
    if not cache or epoch > cache[-1][0]:
        cache.append((epoch, offset))


def end_offset_for(broker: Broker, epoch: int) -> tuple[int, int]:
    """Where this log's records of the largest epoch <= `epoch` end (1.6)."""
    cache = broker.cache
    if not cache:
        return epoch, broker.log_start
    if epoch < cache[0][0]:
        return epoch, cache[0][1]
    end = len(broker.log)
    for own, start in reversed(cache):
        if own <= epoch:
            return own, end
        end = start
    raise AssertionError(cache)


def rebuild_cache(broker: Broker) -> None:
    """The cache as the log says (D1)."""
    broker.cache = invariants.cache_of(broker)


def raise_log_start(world: World, broker: Broker, start: int) -> None:
    """Everything below `start` is deleted; the epoch cache loses what lies wholly below (1.6)."""
    if start <= broker.log_start:
        return
    broker.log_start = start
    kept = [(epoch, max(begin, start)) for epoch, begin in broker.cache]
    last = {begin: epoch for epoch, begin in kept}
    broker.cache = [(epoch, begin) for begin, epoch in last.items() if begin < len(broker.log)]
    if start == len(broker.log):
        broker.log = [ABSENT] * start
        broker.base = start
    invariants.pure_cache(world, broker)


def delete_up_to(world: World, broker: Broker, start: int) -> None:
    """DeleteRecords or retention: the oracle notes which records went, for they go in every copy of this history."""
    world.deleted_records.update(broker.log[max(broker.base, broker.log_start) : start])
    if broker.lineage >= world.lineage:
        world.legit_start = max(world.legit_start, start)
    raise_log_start(world, broker, start)


def truncate_to(world: World, broker: Broker, end: int) -> None:
    """1.11: D10 first, then the checkpoints that would outlive what they name, then the log."""
    log = broker.log
    if end >= len(log):
        return
    if end < broker.hwm:
        if broker.lineage >= world.lineage or broker.record is not None:
            invariants.permitted_truncation(world, broker, end)
        if world.rules.checkpoints_lowered_first:
            broker.checkpointed_hwm = min(broker.checkpointed_hwm, end)
    if end < broker.synced:
        if not world.rules.truncation_flushed and broker.old is None and not broker.group_marked:
            broker.old = log[: broker.synced]
        broker.synced = end
    broker.claimed = min(broker.claimed, end)
    del log[end:]
    while broker.cache and broker.cache[-1][1] >= end:
        broker.cache.pop()
    broker.hwm = min(broker.hwm, end)
    broker.flush_floor = min(broker.flush_floor, end)
    world.count("truncations")
    invariants.pure_cache(world, broker)


def begin_anew_at(world: World, broker: Broker, start: int) -> None:
    """`truncate_fully_and_start_at`: nothing local is usable; the log is empty and begins at `start`."""
    if world.rules.checkpoints_lowered_first:
        broker.checkpointed_hwm = min(broker.checkpointed_hwm, start)
        broker.checkpointed_start = start
    broker.log = [ABSENT] * start
    broker.base = broker.log_start = broker.hwm = broker.synced = broker.claimed = broker.flush_floor = start
    broker.old = None
    broker.cache = []
    world.count("logs begun anew")


def wipe(broker: Broker) -> None:
    """The replica is deleted: directory, checkpoints and all."""
    broker.log = []
    broker.base = broker.log_start = broker.hwm = broker.synced = broker.claimed = broker.flush_floor = 0
    broker.checkpointed_hwm = broker.checkpointed_start = 0
    broker.old = None
    broker.cache = []
    broker.flushing = -1
    broker.lineage = -1
    broker.group_marked = False


def begin_flush(broker: Broker) -> bool:
    """An fsync starts: it will cover what is there now (1.9)."""
    if broker.flushing >= 0 or broker.synced == len(broker.log):
        return False
    broker.flushing = len(broker.log)
    broker.flush_floor = NO_TRUNCATION
    return True


def end_flush(world: World, broker: Broker) -> bool:
    """The fsync is done."""
    if broker.flushing < 0:
        return False
    rules = world.rules
    covered = min(broker.flushing, broker.flush_floor)
    claimed = broker.flushing if rules.flush_covers_what_was_there else len(broker.log)
    if rules.flush_forgets_truncated:
        claimed = min(claimed, broker.flush_floor)
    broker.flushing = -1
    broker.synced = max(broker.synced, covered)
    broker.claimed = max(broker.claimed, min(claimed, len(broker.log)))
    broker.old = None
    world.count("flushes")
    return True


def adopt_mode(broker: Broker, *, group: bool) -> None:
    """The flush mode of the record: whoever turns to `group` flushes everything first, and then says so on disk."""
    if group and not broker.group_marked:
        broker.synced = broker.claimed = len(broker.log)
        broker.old = None
    broker.group_marked = group


# ---------------------------------------------------------------------------------------------- ends and starts


def kill(broker: Broker) -> None:
    """The process ends; what was written stays."""
    broker.up = False
    broker.active = False
    broker.role = IDLE
    broker.epoch = -1
    broker.flushing = -1
    broker.lease = -1
    broker.connection += 1
    broker.generation += 1


def cut_power(world: World, broker: Broker, kept: int, what: int) -> None:
    """The host loses power: `kept` records more than the synced ones survive; `what` decides about truncations."""
    if broker.up:
        kill(broker)
    if not (world.meta[-1].record.group and broker.group_marked):
        broker.lost = True
    survived = broker.log[: broker.synced + kept]
    if broker.old is not None and what:
        survived = broker.old if what == 1 else survived + broker.old[len(survived) :]
        world.count("truncations undone by a power cut")
    end = len(survived)
    for offset in range(broker.base + 1, end):
        if survived[offset] >> EPOCH_SHIFT < survived[offset - 1] >> EPOCH_SHIFT:
            end = offset
            break
    broker.log = survived[:end]
    broker.synced = broker.claimed = min(broker.synced, end)
    broker.old = None
    broker.base = min(broker.base, end)
    broker.hwm = min(broker.hwm, end)
    broker.log_start = min(broker.log_start, end)
    broker.crash = max(broker.crash, HOST_CRASH)


def replace_disk(world: World, broker: Broker) -> None:
    """The disk is gone and another one is there, empty."""
    if broker.up:
        kill(broker)
    wipe(broker)
    broker.directory = world.next_directory
    world.next_directory += 1
    broker.start = broker.start_before = broker.answered_start = 0
    broker.answered_epoch = -1
    broker.crash = HARMLESS
    broker.position = 0


def start(world: World, broker: Broker, back: int) -> None:
    """A process opens the directory (1.13); its copy of the metadata log may be `back` batches older."""
    broker.up = True
    broker.start_before = broker.start
    broker.start += 1
    broker.epoch = -1
    broker.active = False
    broker.role = IDLE
    broker.record = None
    broker.pending = 0
    broker.seq = 0
    broker.doomed = False
    broker.wanted_start = -1
    broker.lease = -1
    broker.position = max(0, broker.position - back)
    broker.log_start = broker.checkpointed_start = max(broker.checkpointed_start, broker.base)
    if len(broker.log) < broker.log_start:
        if broker.crash == HARMLESS:
            invariants.undamaged(broker)
        broker.log = [ABSENT] * broker.log_start
        broker.base = broker.log_start
        broker.crash = DAMAGED
        world.count("damaged logs")
    end = len(broker.log)
    if broker.checkpointed_hwm > end:
        if broker.crash == HARMLESS:
            invariants.undamaged(broker)
        broker.crash = DAMAGED
        if world.rules.checkpoints_lowered_first:
            broker.checkpointed_hwm = end
    broker.hwm = min(max(broker.checkpointed_hwm, broker.log_start), end)
    broker.synced = broker.claimed = end  # 1.13: what was scanned is rewritten and flushed
    if world.rules.cache_pure:
        rebuild_cache(broker)
    else:
        broker.cache = [entry for entry in broker.cache if entry[1] <= end]
    world.count("restarts")
    invariants.matching_logs(world, broker, broker.log_start)
    invariants.true_high_watermark(world, broker, broker.log_start)
