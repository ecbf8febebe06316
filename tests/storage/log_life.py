"""Random lives of a log: appends, cuts, full disks, failing flushes, rot, and every kind of end at any moment.

Beside the log walks a model: the batches as bytes, and every history that a loss of power could bring back.
After each step the log must say what the model says, and what was reported as durable must be there.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from tests.storage.logs import Halted, Host, batch
from tidelog.protocol.batch import BatchHeader, read_header, walk
from tidelog.protocol.errors import DamagedLog, DiskFull
from tidelog.storage.config import LogConfig
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.files import NoRoom
from tidelog.storage.producers import Producers
from tidelog.testing.simulation.faults import WHENS, Crash, Killed, PowerCut

TINY = LogConfig(segment_bytes=1100, index_interval_bytes=150)
PRODUCERS = 3


@dataclass(slots=True)
class Life:
    """A log, its model, and the chance that drives both."""

    rng: Random
    host: Host
    batches: list[bytes] = field(default_factory=list)
    """The log as it should be, batch by batch."""
    durable: int = 0
    """How many of them were reported as durable."""
    may_return: list[list[bytes]] = field(default_factory=list)
    """What the log was before truncations that were not flushed since."""
    base: int = 0
    """Where the log ends when it has no batch."""
    start: int = 0
    """Where readers begin, by the checkpoint as well."""
    deleted: bool = False
    """Some were, and who wrote only those is known or forgotten, as snapshots go."""
    epoch: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    ended: int = 0

    @property
    def end(self) -> int:
        """The log's end by the model."""
        return end_of(self.batches, self.base)

    @property
    def first(self) -> int:
        """Where the log's first batch begins, deleted or not."""
        return read_header(self.batches[0]).base_offset if self.batches else self.base

    def visible(self, batches: list[bytes]) -> list[bytes]:
        """What readers get of these."""
        return [one for one in batches if read_header(one).next_offset > self.start]

    # ── steps ──────────────────────────────────────────────────────────────────────────────────────

    def append(self) -> None:
        """A client's batch, sometimes of a producer that numbers them, sometimes in a new epoch."""
        self.epoch += self.rng.random() < 0.1
        producer = self.rng.randrange(-1, PRODUCERS)
        count = self.rng.randrange(1, 6)
        made = batch(
            count,
            size=self.rng.choice([1, 5, 30, 30, 200, 900]),
            time=self.rng.randrange(1000, 2000),
            producer=producer,
            producer_epoch=self.ended if producer >= 0 else 0,
            sequence=self.sequences.get(producer, 0),
            mark=self.rng.randbytes(2),
        )
        try:
            self.host.log.append(memoryview(made), self.epoch, now_ms=0)
        except DiskFull:
            return
        except Crash:
            self.may_return.append([*self.batches, bytes(made)])
            raise
        self.batches.append(bytes(made))
        if producer >= 0:
            self.sequences[producer] = self.sequences.get(producer, 0) + count

    def copy_from_a_leader(self) -> None:
        """Several batches at once, as a follower gets them."""
        leader = Host(self.rng.randrange(1 << 30), TINY)
        leader.log.truncate_fully_and_start_at(self.end)
        self.epoch += self.rng.random() < 0.3
        for _ in range(self.rng.randrange(1, 8)):
            leader.log.append(
                batch(self.rng.randrange(1, 4), mark=self.rng.randbytes(2)), self.epoch, now_ms=0
            )
        data = leader.log.read(self.end, 4000).data
        fetched = [bytes(data[at : at + header.size]) for at, header in walk(data)]
        try:
            self.host.log.append_as_follower(data, self.epoch, now_ms=0)
        except DiskFull:
            # Those batches that went into a segment that is full already are there, the others are not.
            have = self.host.log.end_offset
            self.may_return.append(self.batches + fetched)  # one write may have held several whole batches
            self.batches += [one for one in fetched if read_header(one).next_offset <= have]
        except Crash:
            self.may_return.append(self.batches + fetched)
            raise
        else:
            self.batches += fetched

    def truncate(self) -> None:
        """A leader said where the logs part."""
        cut = self.rng.randrange(self.start, self.end + 1)
        kept = [one for one in self.batches if read_header(one).next_offset <= cut]
        if len(kept) == len(self.batches):
            return
        before = self.batches, self.durable, self.base, self.start
        self.may_return.append(self.batches)
        self.batches, self.base = kept, self.first
        if self.end < self.start:  # the log starts within the batch that goes
            self.batches, self.base = [], cut
        self.durable = min(self.durable, len(self.batches))
        self.host.keeper.start_lowered = False
        try:
            self.host.log.truncate_to(cut, now_ms=0)
            self.start = self.host.log.log_start
        except Crash:
            self.start = 0 if self.host.keeper.start_lowered else self.start
            raise
        except DiskFull:
            self.batches, self.durable, self.base, self.start = before
        self.new_producers()

    def start_again(self) -> None:
        """Nothing here is of use: the leader's log begins elsewhere."""
        before = self.batches, self.durable, self.base, self.start
        self.may_return.append(self.batches)
        self.batches, self.durable = [], 0
        self.base = self.start = self.rng.choice([0, self.start, self.end, self.end + 100])
        try:
            self.host.log.truncate_fully_and_start_at(self.base)
            self.deleted = False
        except DiskFull:
            self.batches, self.durable, self.base, self.start = before
        self.new_producers()

    def raise_log_start(self) -> None:
        """Records are deleted, of those that are durable."""
        end = end_of(self.batches[: self.durable], self.first)
        self.start = self.rng.randrange(self.start, max(self.start, end) + 1)
        self.host.log.raise_log_start(self.start)
        self.deleted = self.deleted or self.start > self.first
        self.new_producers()

    def new_producers(self) -> None:
        """Producers that cannot know what was lost begin anew, with a new epoch."""
        self.ended += 1
        self.sequences.clear()

    def flush(self) -> None:
        """A flush as a worker thread does it: appends go on meanwhile and are not covered."""
        flush = self.host.log.begin_flush()
        covered = len(self.batches)
        racing = self.rng.randrange(3)
        if flush is not None:
            for _ in range(self.rng.randrange(4) if racing == 0 else 0):
                self.append()
            flush.run()
            for _ in range(self.rng.randrange(4) if racing == 1 else 0):
                self.append()
            try:
                self.host.log.end_flush(flush)
            except DiskFull:
                return
        self.durable = covered
        self.may_return.clear()
        try:
            self.host.keeper.write_recovery_point(self.host.log.durable_offset)
        except NoRoom:
            return
        self.host.log.recovery_point = self.host.log.durable_offset

    def failing_flush(self) -> None:
        """A flush fails, the process ends at once, and the next one finds pages that look right."""
        self.host.disk.fail_flush(self.rng.randrange(1, 3))
        try:
            self.flush()
        except (Halted, OSError):  # of the log, or of the checkpoint that its keeper writes
            self.kill()
        self.host.disk.forget_flush_failures()

    def full_disk(self) -> None:
        """The disk is nearly full for a while."""
        disk = self.host.disk
        disk.capacity = disk.capacity - self.host.directory.free_space() + self.rng.randrange(600)
        for _ in range(self.rng.randrange(1, 6)):
            self.rng.choice(
                [self.append, self.append, self.copy_from_a_leader, self.flush, self.truncate, self.kill]
            )()
            self.check()
        disk.capacity = 1 << 40
        assert self.host.log.probe()

    def rot(self) -> None:
        """A bit flips for a while, below or above the recovery point: it is told, and never served."""
        segment = self.rng.choice(self.host.log.segments)
        if not segment.size or segment.next_offset <= self.start:
            return
        path = f"{self.host.path}/{segment.name}"
        if self.host.disk.medium.file_at(path).unflushed:
            return  # a power cut could keep the flip and lose that it was undone
        position, bit = self.rng.randrange(segment.size), self.rng.randrange(8)
        self.host.disk.rot(path, position, bit)
        with suppress(DamagedLog):
            assert read_all(self.host) == self.visible(self.batches)
        self.host.disk.rot(path, position, bit)

    # ── ends ───────────────────────────────────────────────────────────────────────────────────────

    def open(self, *, clean: bool = False) -> None:
        """Start, and perhaps be struck down while starting."""
        while True:
            if self.rng.random() < 0.1:
                self.plan_a_crash()
            try:
                findings = self.host.open(clean=clean, log_start=self.start)
            except Crash:
                clean = False
                continue
            except Halted:
                raise AssertionError("an opening that no flush failed has halted") from None
            break
        self.host.disk._faults.forget_crash()
        assert findings.damage == [], findings
        assert not clean or findings.verified_bytes == 0

    def plan_a_crash(self) -> None:
        """Strike at one of the next operations on the disk."""
        self.host.disk.crash_at(
            self.rng.randrange(1, 12), when=self.rng.choice(WHENS), crash=self.rng.choice([Killed, PowerCut])
        )

    def adopt(self, least: int) -> None:
        """What is there must be a history that was, with at least the first `least` batches of the last one."""
        log = self.host.log
        left = read_all(self.host, log.segments[0].base_offset)
        histories = [self.batches, *self.may_return]
        assert any(left == history[: len(left)] for history in histories), "a history that never was"
        assert left[:least] == self.batches[:least], "durable records are lost"
        self.batches = left
        self.base, self.start = log.end_offset, log.log_start
        self.durable = len(self.batches)
        self.may_return.clear()
        self.epoch += 1
        self.new_producers()

    def stop(self) -> None:
        """A clean stop and a start that believes it."""
        self.host.stop()
        self.durable = len(self.batches)
        self.may_return.clear()
        self.open(clean=True)
        self.new_producers()

    def kill(self) -> None:
        """SIGKILL: nothing is lost, and what recovery kept is durable now."""
        self.host.disk.kill()
        self.open()
        self.adopt(self.durable)

    def power_cut(self) -> None:
        """What was durable is there, and of the rest a prefix of what was, or of what a truncation removed."""
        self.host.disk.power_cut()
        self.open()
        self.adopt(self.durable)

    def crash(self) -> None:
        """An end in the middle of something."""
        self.plan_a_crash()
        steps = [self.append, self.copy_from_a_leader, self.truncate, self.flush, self.host.stop]
        try:
            for _ in range(6):
                self.rng.choice(steps)()
                if self.host.disk._life.forgotten:
                    break
        except Crash:
            pass
        self.host.disk._faults.forget_crash()
        self.open()
        self.adopt(self.durable)

    # ── what must hold after every step ────────────────────────────────────────────────────────────

    def check(self) -> None:
        """The log says what the model says: bytes, end, epochs, producers, places, times."""
        log = self.host.log
        assert (log.log_start, log.end_offset) == (self.start, self.end), log
        headers = [read_header(one) for one in self.batches]
        assert read_all(self.host) == self.visible(self.batches)
        epochs, producers = LeaderEpochs(), Producers()
        for header in headers:
            epochs.assign(header.leader_epoch, header.base_offset)
            producers.apply(header, 0)
        epochs.truncate_from_start(self.start, self.end)
        assert log.epochs == epochs, "epochs are not what the log says (I-12)"
        if not self.deleted:
            assert log.producers == producers, "producers are not what the log says (I-9)"
        if self.visible(self.batches):
            self.look_up()

    def look_up(self) -> None:
        """A place and a time at random, and a read within limits."""
        log, headers = self.host.log, [read_header(one) for one in self.visible(self.batches)]
        wanted = self.rng.randrange(len(headers))
        offset = self.rng.randrange(max(headers[wanted].base_offset, self.start), headers[wanted].next_offset)
        below, max_bytes = offset + self.rng.randrange(-2, 12), self.rng.randrange(1500)
        end, size = wanted, 0
        while end < len(headers) and headers[end].next_offset <= below:
            size += headers[end].size
            if size > max_bytes and end > wanted:
                break
            end += 1
        found = [header for _, header in walk(log.read(offset, max_bytes, below).data)]
        whole = [
            header
            for header in headers[wanted:end]
            if self._segment_of(header) == self._segment_of(headers[wanted])
        ]
        assert found == whole, (offset, below, max_bytes)
        time = self.rng.randrange(900, 2100)
        at = log.offset_for_time(time)
        first = next((h for h in headers if h.max_timestamp >= time), None)
        assert (at is None) == (first is None) or self.start > headers[0].base_offset
        assert at is None or first is None or at.offset >= max(first.base_offset, self.start)

    def _segment_of(self, header: BatchHeader) -> int:
        return max(one.base_offset for one in self.host.log.segments if one.base_offset <= header.base_offset)


def end_of(batches: list[bytes], base: int) -> int:
    """The offset behind the last of them."""
    return read_header(batches[-1]).next_offset if batches else base


def read_all(host: Host, start: int | None = None) -> list[bytes]:
    """Every batch of the log, as readers get them; or from `start` on, deleted ones too."""
    found: list[bytes] = []
    log_start = host.log.log_start
    offset = host.log.log_start = log_start if start is None else start
    while offset < host.log.end_offset:
        piece = host.log.read(offset, 700)
        assert piece.next_offset > offset
        found += [bytes(piece.data[at : at + header.size]) for at, header in walk(piece.data)]
        offset = piece.next_offset
    host.log.log_start = log_start
    return found


def live(seed: int, steps: int = 60) -> Life:
    """One life. Each seed draws its own mixture: an even one hides bugs."""
    rng = Random(seed)
    life = Life(rng, Host(seed, TINY, max_open=rng.choice([2, 3, 64])))
    life.host.disk.by_page = rng.random() < 0.3
    choices: list[Callable[[], None]] = [
        life.append,
        life.copy_from_a_leader,
        life.truncate,
        life.start_again,
        life.raise_log_start,
        life.rot,
        life.crash,
        life.flush,
        life.failing_flush,
        life.full_disk,
        life.stop,
        life.kill,
        life.power_cut,
    ]
    weights = [rng.choice([0, 1, 3, 8]) + (3 if choice == life.append else 0) for choice in choices]
    for _ in range(steps):
        rng.choices(choices, weights)[0]()
        life.check()
    return life
