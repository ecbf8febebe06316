"""A compacted log beside a model of everything that was ever written to it, through crashes at any step.

The model knows each record by its offset. Whoever has read up to any offset that is not below the purge floor, and
reads on, must end with the last value of every key: that is what compaction promises, to users and to followers.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

import pytest

from tests.storage.test_data_directory import ID, ORDERS, Node
from tidelog.protocol.batch import DELETE_HORIZON, BatchHeader, read_header, walk
from tidelog.protocol.errors import DamagedLog
from tidelog.protocol.records import decode, encode
from tidelog.storage import compaction
from tidelog.storage.cleaning import Plan
from tidelog.storage.compaction import Compactor
from tidelog.storage.config import LogConfig
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.files import Directory
from tidelog.storage.log import Log
from tidelog.storage.log_compaction import Compaction
from tidelog.storage.producers import Producers
from tidelog.storage.retention import Leftovers, look, remove, retain, seal
from tidelog.testing.simulation.faults import WHENS, Crash, Killed, PowerCut, When

CONFIG = LogConfig(
    segment_bytes=1024,
    index_interval_bytes=150,
    cleanup_policy="compact",
    delete_retention_ms=1000,
    retention_ms=-1,
)
MEMORY = 100_000
KEYS = [b"a", b"b", b"c", b"d", b"e", b"k" * 31, b"l" * 32, b"l" * 33, b"", None]


class Written(NamedTuple):
    """A record as it was written."""

    offset: int
    key: bytes | None
    value: bytes | None
    time: int


@dataclass(slots=True)
class Compacted:
    """A log on a simulated disk, and what it should say."""

    rng: Random
    config: LogConfig = CONFIG
    node: Node = field(init=False)
    records: list[Written] = field(default_factory=list)
    heads: list[BatchHeader] = field(default_factory=list)
    durable: int = 0
    now_ms: int = 10_000
    epoch: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    leftovers: Leftovers = field(default_factory=Leftovers)
    log_start: int = 0
    """Durably."""

    def __post_init__(self) -> None:
        config = self.config

        class Configured(Node):
            def start(self) -> DataDirectory:
                data = super().start()
                for log in data.logs.values():
                    log.reconfigure(config)
                return data

        self.node = Configured(self.rng.randrange(1 << 30))
        self.node.data.create(ORDERS, ID, now_ms=self.now_ms).reconfigure(config)

    @property
    def log(self) -> Log:
        return self.node.data.logs[ORDERS]

    # ── steps ──────────────────────────────────────────────────────────────────────────────────────

    def append(
        self,
        count: int = 0,
        keys: list[bytes | None] | None = None,
        *,
        tombstones: float = 0.3,
        attributes: int = 0,
    ) -> None:
        """A batch with some keys, of which some are deleted; of a producer that numbers it, sometimes."""
        rng = self.rng
        chosen = keys or [rng.choice(KEYS) for _ in range(count or rng.randrange(1, 6))]
        values = [
            None if rng.random() < tombstones else rng.randbytes(rng.choice([1, 4, 60])) for _ in chosen
        ]
        times = [self.now_ms - rng.randrange(0, 50) for _ in chosen]
        producer = rng.randrange(-1, 3)
        self.epoch += rng.random() < 0.1
        made = encode(
            values,
            chosen,
            times,
            codec=rng.choice([0, 0, 0, 3]),
            attributes=attributes,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=self.sequences.get(producer, 0) if producer >= 0 else -1,
        )
        base = self.log.end_offset
        self.heads.append(read_header(made)._replace(base_offset=base, leader_epoch=self.epoch))
        self.records += [
            Written(base + n, *row) for n, row in enumerate(zip(chosen, values, times, strict=True))
        ]
        self.log.append(made, self.epoch, self.now_ms)
        if producer >= 0:
            self.sequences[producer] = self.sequences.get(producer, 0) + len(chosen)

    def fill(self, batches: int = 40) -> None:
        for _ in range(batches):
            self.append()

    def flush(self) -> None:
        """All is durable, and on record as that."""
        self.log.flush()
        self.node.data.write_recovery_points().run()
        self.durable = self.log.end_offset

    def roll(self) -> None:
        """All is sealed and durable."""
        self.log.roll()
        self.flush()

    def compaction(self, begin: Callable[[Directory, Plan], Compactor] = Compactor) -> Compaction:
        return Compaction(self.log, self.node.data, self.leftovers, begin)

    def compact(self, memory_bytes: int = MEMORY) -> Compaction:
        """To the end."""
        compaction = self.compaction()
        for work in compaction.steps(self.durable, self.now_ms, memory_bytes):
            if work is not None:
                work()
        return compaction

    def retain(self) -> None:
        """What retention does, as its owner does it."""
        look(self.log, self.now_ms)
        raised = retain(self.log, self.durable, self.now_ms)
        seal(self.log, self.now_ms)
        if raised:
            self.node.data.write_log_starts().run()
            self.log_start = self.log.log_start
        self.leftovers.take(self.log, self.now_ms)
        remove(self.leftovers.due(self.now_ms))

    def truncate(self, offset: int) -> None:
        """A leader said where the logs part."""
        self.log.truncate_to(offset, self.now_ms)
        self.adopt()
        self.durable = min(self.durable, self.log.end_offset)

    def adopt(self) -> None:
        """The log ends where it ends; what was durable is there."""
        end = self.log.end_offset
        self.records = [record for record in self.records if record.offset < end]
        self.heads = [head for head in self.heads if head.base_offset < end]
        self.sequences = {
            producer: entry.batches[-1].last_sequence + 1
            for producer, entry in self.log.producers.items()
            if entry.batches
        }

    def start(self, crash: type[Crash]) -> None:
        """The end of a life, and the next."""
        if issubclass(crash, PowerCut):
            self.node.disk.power_cut()
            self.node.boot = f"boot {self.node.lives}"
        else:
            self.node.disk.kill()
        while True:
            try:
                self.node.start()
            except Crash:
                continue
            break
        self.leftovers = Leftovers()
        found = self.node.data.report
        assert not found.offline, found
        assert not [one for findings in found.found.values() for one in findings.damage], found
        assert self.log.end_offset >= self.durable, "durable records are lost"
        assert self.log.log_start >= self.log_start, "deleted records are back"
        self.adopt()
        self.durable = self.log.end_offset

    def forget_caches(self) -> None:
        """All that is only a cache rots, and the node starts again."""
        directory = self.log.directory
        for name in directory.names():
            if name.endswith((".snapshot", ".index", ".timeindex", "leader-epoch-checkpoint")):
                directory.remove(name)
        directory.flush()
        self.start(Killed)

    # ── what must hold ─────────────────────────────────────────────────────────────────────────────

    def read(self, offset: int | None = None, max_bytes: int = 500) -> list[Written]:
        """The records from that offset on, as readers get them."""
        log = self.log
        at = log.log_start if offset is None else offset
        begin = at
        found: list[Written] = []
        while at < log.end_offset:
            piece = log.read(at, max_bytes)
            assert piece.next_offset > at, f"{log} gives nothing at {at}"
            for position, _ in walk(piece.data):
                found += rows(piece.data, position)
            at = piece.next_offset
        return [record for record in found if record.offset >= begin]

    def check(self, *, rot: bool = False) -> None:
        """Everything that was promised."""
        log = self.log
        read = self.read()
        by_offset = {record.offset: record for record in self.records}
        assert [r for r in read if r != by_offset[r.offset]] == [], "a record is not what was written"
        offsets = [record.offset for record in read]
        assert offsets == sorted(set(offsets)), "the order is another"
        keyless = [r for r in self.records if r.key is None and r.offset >= log.log_start]
        assert [record for record in read if record.key is None] == keyless, "a record without a key is gone"
        self.check_readers(read)
        bases = [segment.base_offset for segment in log.segments]
        assert bases[1:] == [segment.next_offset for segment in log.segments[:-1]], "segments do not abut"
        epochs, producers = LeaderEpochs(), Producers()
        for head in self.heads:
            epochs.assign(head.leader_epoch, head.base_offset)
            producers.apply(head, 0)
        epochs.truncate_from_start(log.log_start, log.end_offset)
        assert log.epochs.entries == epochs.entries, "epochs are not what was written (I-12)"
        if not log.log_start:
            assert timeless(log.producers) == timeless(producers), "producers are not what was written (I-9)"
        self.check_times(read)
        if rot:
            self.forget_caches()
            self.check()

    def check_readers(self, read: list[Written]) -> None:
        """Who has read up to any offset at or above the purge floor, and reads on, knows the last values."""
        start = self.log.log_start
        truth = values(record for record in self.records if record.offset >= start)
        assert values(read) == truth, "a key has another value, or is back"
        floor = max(self.log.purge_floor, start, 0)
        state: dict[bytes, bytes] = {}
        everything = values(self.records)
        for place, record in enumerate(self.records):
            if record.offset >= floor and (place % 5 == 0 or len(self.records) < 40):
                behind = dict(state)
                values((r for r in read if r.offset >= record.offset), behind)
                assert behind == everything, (
                    f"a follower that fetches from {record.offset} keeps a deleted key"
                )
            values([record], state)

    def check_times(self, read: list[Written]) -> None:
        """Searches by time find what is there."""
        for _ in range(3 if read else 0):
            time = self.rng.choice(read).time + self.rng.randrange(-1, 2)
            expected = next((r.offset for r in read if r.time >= time), None)
            found = self.log.offset_for_time(time)
            assert (found and found.offset) == expected, (time, found, expected)
        ends = [head.next_offset for segment in self.log.segments for _, head in segment.headers_from(0)]
        for below in (self.log.end_offset, *self.rng.choices(ends or [0], k=3)):
            largest = self.log.largest_time(below)
            newest = max((r.time for r in read if r.offset < below), default=None)
            assert (largest and largest.timestamp_ms) == newest, (below, largest, newest)

    def check_clean(self) -> None:
        """Below the first dirty offset no key stands twice, nor has more than one version anywhere there."""
        seen = [r.key for r in self.read() if r.offset < self.log.first_dirty and r.key is not None]
        assert len(seen) == len(set(seen)), "a key stands twice in what is clean"


def rows(data: memoryview, position: int) -> Iterator[Written]:
    """The records of one batch."""
    columns = decode(data, position)
    return map(Written, columns.offsets, columns.keys, columns.values, columns.timestamps)


def values(
    records: Iterator[Written] | list[Written], into: dict[bytes, bytes] | None = None
) -> dict[bytes, bytes]:
    """The last value of every key."""
    state = {} if into is None else into
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


def timeless(producers: Producers) -> list[object]:
    """Producers without our own clock's times, which expiry alone goes by."""
    return [(producer, entry.epoch, entry.batches) for producer, entry in producers.items()]


# ── logs to begin with, and crashes ──────────────────────────────────────────────────────────────────


def filled(seed: int = 1, batches: int = 40) -> Compacted:
    life = Compacted(Random(seed))
    life.fill(batches)
    life.roll()
    return life


def deleted_once() -> Compacted:
    life = Compacted(Random(2))
    life.append(keys=[b"a"], tombstones=0)
    life.append(keys=[b"other"], tombstones=0)
    life.append(keys=[b"a"], tombstones=1)
    life.append(keys=[b"last"], tombstones=0)
    life.roll()
    return life


def crash_everywhere(
    make: Callable[[], Compacted], act: Callable[[Compacted], object], *, stride: int = 1
) -> int:
    """Strike at every operation of what is done, in every way; what is there then is checked, and done again."""
    life = make()
    before = life.node.disk.operations
    act(life)
    operations = life.node.disk.operations - before
    for nth in range(1, operations + 1, stride):
        for crash in (Killed, PowerCut):
            strike(make(), act, nth, WHENS[nth % 3] if stride > 1 else "before", crash)
            if stride == 1:
                strike(make(), act, nth, "within", crash)
    strike(make(), act, operations, "after", PowerCut)
    return operations


def strike(
    life: Compacted, act: Callable[[Compacted], object], nth: int, when: When, crash: type[Crash]
) -> None:
    life.node.disk.crash_at(nth, when=when, crash=crash)
    with pytest.raises(Crash):
        act(life)
    life.node.disk._faults.forget_crash()
    life.start(crash)
    life.check()
    assert not [name for name in life.log.directory.names() if name.endswith((".cleaned", ".swap", ".tmp"))]
    act(life)
    life.check(rot=True)


def some() -> Compacted:
    """Small, with tombstones that are due, and with neighbours that become one."""
    life = filled(4, 14)
    life.compact()
    life.now_ms += 5000
    life.append(keys=[b"a", b"b", b"c"])
    life.roll()
    return life


def stored(life: Compacted) -> list[str]:
    directory = life.node.disk.medium.directory_at("/data/orders-0")
    return sorted(directory.entries)


def what_is_not_committed_is_cut_after_it_was_compacted() -> None:
    """Another leader's history follows: the older value, which only the cut record had replaced, is the last again."""
    life = Compacted(Random(1))
    life.append(keys=[b"a"], tombstones=0)
    life.log.roll()
    committed = life.log.end_offset
    life.append(keys=[b"a"], tombstones=0)
    life.roll()
    life.durable = committed
    life.compact()
    life.truncate(committed)
    life.check()


def crash_everywhere_while_a_tombstone_goes() -> None:
    def due() -> Compacted:
        life = deleted_once()
        life.compact()
        life.now_ms += 2000
        life.append(keys=[b"last"], tombstones=0)
        life.roll()
        return life

    crash_everywhere(due, Compacted.compact)


def damage_ends_it() -> None:
    """A bit has flipped in the middle of a segment: nothing is replaced, until it has flipped back."""
    life = filled()
    before = [bytes(life.log.read(s.base_offset, 2000).data) for s in life.log.segments[:-1]]
    life.node.disk.rot(f"/data/orders-0/{life.log.segments[2].name}", 150)
    with pytest.raises(DamagedLog):
        life.compact()
    life.node.disk.rot(f"/data/orders-0/{life.log.segments[2].name}", 150)
    assert [bytes(life.log.read(s.base_offset, 2000).data) for s in life.log.segments[:-1]] == before
    assert life.log.compaction is None
    life.compact()
    life.check()


def cut_at_every_step() -> None:
    """C10: what is committed is finished, what is not is given up; the next compaction goes on (KAFKA-3123)."""
    steps = 0
    while True:
        life = some()
        life.append()
        running = life.compaction()
        ended = True
        for taken, work in enumerate(running.steps(life.durable, life.now_ms, MEMORY)):
            if taken == steps:
                life.truncate(life.durable)
                ended = False
                break
            if work is not None:
                work()
        assert life.log.compaction is None
        life.check()
        assert not [name for name in stored(life) if name.endswith((".cleaned", ".swap", ".tmp"))]
        life.compact()
        life.check(rot=True)
        if ended:
            break
        steps += 1
    assert steps > 20


def crash_everywhere_while_a_record_goes_with_its_tombstone() -> None:
    """As on a follower that has the record, and then copies the tombstone when its horizon has long been set."""

    def due() -> Compacted:
        life = Compacted(Random(7))
        life.append(keys=[b"a"], tombstones=0)
        for number in range(25):
            life.append(keys=[b"x%d" % number, b"last"], tombstones=0)
        life.append(keys=[b"a"], tombstones=1, attributes=DELETE_HORIZON)
        life.append(keys=[b"last"], tombstones=0)
        life.roll()
        assert len(life.log.segments) > 3
        return life

    crash_everywhere(due, Compacted.compact)


def sealed_during_its_flush() -> Compacted:
    """Its segments but the newest are durable and on record as that, and the next flush takes the last of them again."""
    life = Compacted(Random(1))
    life.fill(20)
    flush = life.log.begin_flush()
    assert flush is not None
    life.log.roll()
    flush.run()
    life.log.end_flush(flush)
    life.node.data.write_recovery_points().run()
    life.durable = life.log.end_offset
    return life


def flushed_while_it_is_compacted() -> None:
    """A segment leaves the log while a thread flushes it: the flush succeeds, and then its file is closed."""
    life = sealed_during_its_flush()
    life.append()
    flush = life.log.begin_flush()
    assert flush is not None
    taken, file = flush.segments[0], flush._files[0]
    assert life.compact().outcome is not None
    assert taken not in life.log.segments
    flush.run()
    assert flush.error is None
    life.log.end_flush(flush)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.size()
    life.check()


# ── lives ─────────────────────────────────────────────────────────────────────────────────────────────


def live(seed: int, steps: int = 40) -> None:
    """One life of a compacted log, full of crashes; blocks and steps of any size."""
    rng = Random(seed)
    before = compaction.BLOCK, compaction.RECORDS_PER_STEP
    compaction.BLOCK, compaction.RECORDS_PER_STEP = rng.choice([100, 400, 1 << 18]), rng.choice([2, 7, 1500])
    policy = rng.choice(["compact", "compact", "compact,delete"])
    config = replace(
        CONFIG,
        cleanup_policy=policy,
        retention_bytes=rng.choice([-1, 6000]),
        min_compaction_lag_ms=rng.choice([0, 0, 700]),
    )
    try:
        _live(Compacted(rng, config), rng, steps)
    finally:
        compaction.BLOCK, compaction.RECORDS_PER_STEP = before


def _live(life: Compacted, rng: Random, steps: int) -> None:
    memory = rng.choice([300, 600, 1500, MEMORY])
    life.node.disk.by_page = rng.random() < 0.3

    def interrupted() -> None:
        """Others have their turns between the steps, and may end it."""
        running = life.compaction()
        end_at = rng.choice([rng.randrange(1, 60), 1 << 30])
        for taken, work in enumerate(running.steps(life.durable, life.now_ms, memory)):
            if taken == end_at:
                if rng.random() < 0.5:
                    life.truncate(life.durable)  # which ends it, if there is anything to cut
                running.abort()
                break
            if work is not None:
                work()
            if rng.random() < 0.2:
                life.append()
            if rng.random() < 0.1:
                life.check_readers(life.read())

    def crash() -> None:
        kind = rng.choice([Killed, PowerCut])
        life.node.disk.crash_at(rng.randrange(1, 40), when=rng.choice(WHENS), crash=kind)
        struck = True
        with suppress(Crash):
            rng.choice([lambda: life.compact(memory), life.retain, life.roll, life.fill])()
            struck = False
        life.node.disk._faults.forget_crash()
        if rng.random() < 0.3:
            life.node.disk.crash_at(rng.randrange(1, 20), when=rng.choice(WHENS), crash=kind)
        life.start(kind if struck else rng.choice([Killed, PowerCut]))
        life.node.disk._faults.forget_crash()

    def later() -> None:
        life.now_ms += rng.choice([10, 600, 1500])

    choices: list[Callable[[], object]] = [
        lambda: life.fill(rng.randrange(1, 12)),
        life.flush,
        life.roll,
        lambda: life.compact(memory),
        interrupted,
        crash,
        later,
        life.retain,
        lambda: life.truncate(rng.randrange(life.durable, life.log.end_offset + 1)),
        life.forget_caches,
    ]
    weights = [rng.choice([1, 2, 6]) for _ in choices]
    weights[0] += 4
    for _ in range(steps):
        rng.choices(choices, weights)[0]()
        life.check()
        life.check_clean()
