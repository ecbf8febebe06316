"""Random lives of a log: appends, truncations, full disks, failing flushes, and every kind of end.

Beside the log walks a model: the batches as bytes, and every history that a loss of power could bring back.
After each step the log must say what the model says, and what was reported as durable must be there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.storage.logs import Halted, Host, batch
from tidelog.protocol.batch import read_header, walk
from tidelog.protocol.errors import DiskFull
from tidelog.storage.config import LogConfig
from tidelog.storage.producers import Producers

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
    epoch: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    ended: int = 0

    @property
    def end(self) -> int:
        """The log's end by the model."""
        return read_header(self.batches[-1]).next_offset if self.batches else 0

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
        try:
            self.host.log.append_as_follower(data, self.epoch, now_ms=0)
        except DiskFull:
            # Those batches that went into a segment that is full already are there, the others are not.
            have = self.host.log.end_offset
            fetched = [bytes(data[at : at + header.size]) for at, header in walk(data)]
            self.may_return.append(self.batches + fetched)  # one write may have held several whole batches
            self.batches += [one for one in fetched if read_header(one).next_offset <= have]
            return
        self.batches += [bytes(data[at : at + header.size]) for at, header in walk(data)]

    def truncate(self) -> None:
        """A leader said where the logs part."""
        cut = self.rng.randrange(self.end + 1)
        kept = [one for one in self.batches if read_header(one).next_offset <= cut]
        if len(kept) == len(self.batches):
            return
        self.may_return.append(self.batches)
        self.batches = kept
        self.durable = min(self.durable, len(kept))
        self.host.log.truncate_to(cut, now_ms=0)
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
            self.host.log.end_flush(flush)
        self.host.keeper.write_recovery_point(self.host.log.durable_offset)
        self.host.log.recovery_point = self.host.log.durable_offset
        self.durable = covered
        self.may_return.clear()
        assert self.host.log.durable_offset <= self.end

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
            self.rng.choice([self.append, self.copy_from_a_leader])()
        disk.capacity = 1 << 40
        assert self.host.log.probe()

    # ── ends ───────────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """A clean stop and a start that believes it."""
        self.host.stop()
        findings = self.host.open(clean=True)
        assert findings.damage == [], findings
        assert findings.verified_bytes == 0
        self.durable = len(self.batches)
        self.may_return.clear()

    def kill(self) -> None:
        """SIGKILL: nothing is lost, and what recovery kept is durable now."""
        findings = self.host.kill_and_open()
        assert findings.damage == [], findings
        self.durable = len(self.batches)
        self.may_return.clear()

    def power_cut(self) -> None:
        """What was durable is there, and of the rest a prefix of what was, or of what a truncation removed."""
        findings = self.host.cut_power_and_open()
        assert findings.damage == [], findings
        left = read_all(self.host)
        histories = [self.batches, *self.may_return]
        assert any(left == history[: len(left)] for history in histories), "a history that never was"
        assert left[: self.durable] == self.batches[: self.durable], "durable records are lost"
        self.batches = left
        self.durable = len(left)
        self.may_return.clear()
        self.epoch = max(self.epoch, 0) + 1
        self.new_producers()

    # ── what must hold after every step ────────────────────────────────────────────────────────────

    def check(self) -> None:
        """The log says what the model says: bytes, end, epochs, producers, places, times."""
        log = self.host.log
        assert log.end_offset == self.end, (log, self.end)
        headers = [read_header(one) for one in self.batches]
        assert read_all(self.host) == self.batches
        naive: list[tuple[int, int]] = []
        producers = Producers()
        for header in headers:
            if not naive or header.leader_epoch > naive[-1][0]:
                naive.append((header.leader_epoch, header.base_offset))
            producers.apply(header, 0)
        assert [tuple(entry) for entry in log.epochs.entries] == naive, (
            "epochs are not what the log says (I-12)"
        )
        assert log.producers == producers, "producers are not what the log says (I-9)"
        if headers:
            wanted = self.rng.choice(headers)
            offset = self.rng.randrange(wanted.base_offset, wanted.next_offset)
            assert read_header(log.read(offset, 1).data) == wanted
            time = self.rng.randrange(900, 2100)
            found = log.offset_for_time(time)
            first = next((h for h in headers if h.max_timestamp >= time), None)
            assert (found is None) == (first is None)
            assert found is None or first is None or first.base_offset <= found.offset <= first.last_offset


def read_all(host: Host) -> list[bytes]:
    """Every batch of the log, as readers get them."""
    found: list[bytes] = []
    offset = host.log.log_start
    while offset < host.log.end_offset:
        piece = host.log.read(offset, 700)
        assert piece.next_offset > offset
        found += [bytes(piece.data[at : at + header.size]) for at, header in walk(piece.data)]
        offset = piece.next_offset
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
