"""Two replicas that lead and follow each other by the machines alone; logs are lists of (epoch, what)."""

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, cast

from msgspec.structs import replace as with_fields

from tests.broker.leaders import Brokers, ids
from tidelog.broker.leadership import Leadership
from tidelog.controller.image import PartitionState
from tidelog.protocol.errors import OffsetOutOfRange
from tidelog.protocol.messages import EpochEnd, PartitionFetched
from tidelog.protocol.types import NO_OFFSET, BrokerId, Offset
from tidelog.replication.fetch import check_place
from tidelog.replication.followership import (
    Append,
    Asked,
    AskStart,
    Followership,
    Leading,
    LogView,
    StartAt,
    Step,
    Truncate,
)
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.log import Log

Record = tuple[int, int]


@dataclass
class ListLog:
    """A log as a list; what lies below `log_start` stays in the list and is never read."""

    records: list[Record] = field(default_factory=list)
    log_start: Offset = 0

    @property
    def end_offset(self) -> Offset:
        return len(self.records)

    @property
    def epochs(self) -> LeaderEpochs:
        """Worked out anew each time (D1)."""
        epochs = LeaderEpochs()
        for offset in range(self.log_start, self.end_offset):
            epochs.assign(self.records[offset][0], offset)
        return epochs

    def place(self, asked: Asked) -> EpochEnd | None:
        """What a leader with this log answers about that place."""
        parts = check_place(cast("Log", self), asked.fetch_offset, asked.last_fetched_epoch)
        return None if parts is None else EpochEnd(*parts)


def answer(log: ListLog, asked: Asked, hwm: Offset, most: int) -> tuple[PartitionFetched, list[Record]]:
    """The entry and the records that come with it; a divergence comes with a high watermark that must not count."""
    try:
        parts = log.place(asked)
    except OffsetOutOfRange as error:
        return PartitionFetched(bytes(16), 0, error=error.code), []
    records = [] if parts else log.records[asked.fetch_offset : asked.fetch_offset + most]
    entry = PartitionFetched(
        bytes(16),
        0,
        records_size=len(records),
        high_watermark=hwm,
        log_start=log.log_start,
        diverging=parts,
    )
    return entry, records


@dataclass
class Replica:
    """A replica's log, what it takes to be committed, and whom it follows."""

    log: ListLog = field(default_factory=ListLog)
    hwm: Offset = 0
    checkpoint: Offset = 0
    """The high watermark as it is on the disk."""
    leadership: Leadership | None = None
    followership: Followership | None = None

    @property
    def committed(self) -> Offset:
        return self.leadership.high_watermark if self.leadership else self.hwm

    def view(self) -> LogView:
        return LogView(self.log.log_start, self.log.end_offset, self.hwm, self.log.epochs)

    def carry_out(self, step: Step, records: list[Record]) -> None:
        """As a node does; what else may come stops the test that meets it."""
        if isinstance(step, Append):
            assert self.followership is not None
            self.log.records += records
            self.hwm = self.followership.new_high_watermark(step, self.view())
            self.log.log_start = self.followership.new_log_start(step.log_start, self.view())
        elif isinstance(step, Truncate):
            del self.log.records[step.offset :]
            self.hwm = min(self.hwm, step.offset)
        else:
            assert isinstance(step, StartAt), step
            self.log = ListLog([(-1, -1)] * step.offset, step.offset)
            self.hwm = step.offset


class Sent(NamedTuple):
    """A fetch on its way, or its answer."""

    asked: Asked
    answer: tuple[PartitionFetched, list[Record]] | None = None


class Pair:
    """Who is in sync may be elected at any moment, and nothing committed is lost by that."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = 0
        self.replicas = {BrokerId(1): Replica(), BrokerId(2): Replica()}
        self.state = PartitionState(bytes(16), 0, ids([1, 2]), ids([1, 2]), BrokerId(1))
        self.brokers = Brokers(1, 2)
        self.written = 0
        self.committed: list[Record] = []
        self.on_the_way: list[Sent] = []
        self.elect(BrokerId(1))

    @property
    def leader(self) -> Replica:
        return self.replicas[self.state.leader]

    @property
    def follower(self) -> Replica:
        return self.replicas[BrokerId(3 - self.state.leader)]

    @property
    def leadership(self) -> Leadership:
        assert self.leader.leadership is not None
        return self.leader.leadership

    def elect(self, new: BrokerId) -> None:
        for replica in self.replicas.values():
            replica.hwm, replica.leadership, replica.followership = replica.committed, None, None
        self.state = with_fields(
            self.state,
            leader=new,
            leader_epoch=self.state.leader_epoch + 1,
            partition_epoch=self.state.partition_epoch + 1,
        )
        end = self.leader.log.end_offset
        self.leader.leadership = Leadership(
            self.brokers.around(new),
            self.state,
            log_start=self.leader.log.log_start,
            end_offset=end,
            durable_offset=end,
            high_watermark=self.leader.hwm,
            now_ms=self.now,
        )
        self.begins_to_follow(self.follower)

    def begins_to_follow(self, replica: Replica) -> None:
        """Nothing is cut here (3.1)."""
        replica.followership = Followership(Leading(self.state.leader, self.state.leader_epoch))

    # ── what may happen ───────────────────────────────────────────────────────────────────────────

    def live(self, steps: int) -> None:
        weights = [self.rng.choice([0, 1, 3]) + 0.3 for _ in STEPS]
        for _ in range(steps):
            self.now += 1
            before = {broker: replica.committed for broker, replica in self.replicas.items()}
            step = self.rng.choices(STEPS, weights)[0]
            step(self)
            for broker, replica in self.replicas.items():
                assert replica.committed >= before[broker] or step is Pair.restart
            self.check()
        self.settle()

    def append(self) -> None:
        self.written += 1
        self.leader.log.records.append((self.state.leader_epoch, self.written))
        self.leadership.appended(self.leader.log.end_offset, self.now)

    def ask(self) -> None:
        follower = self.follower
        assert follower.followership is not None
        asked = follower.followership.ask(follower.view())
        assert asked == (self.state.leader_epoch, follower.log.end_offset, follower.log.epochs.latest)
        self.on_the_way.append(Sent(asked))

    def serve(self) -> None:
        waiting = [sent for sent in self.on_the_way if sent.answer is None]
        if waiting:
            sent = self.rng.choice(waiting)
            self.on_the_way.remove(sent)
            asked, sender = sent.asked, BrokerId(3 - self.state.leader)
            if asked.leader_epoch == self.state.leader_epoch:
                entry, records = answer(self.leader.log, asked, NO_OFFSET, self.rng.choice([1, 2, 100]))
                if not entry.error and entry.diverging is None:
                    self.leadership.on_fetch(
                        sender,
                        broker_epoch=self.brokers.epochs[sender],
                        fetch_offset=asked.fetch_offset,
                        durable_offset=asked.fetch_offset,
                        log_start=self.follower.log.log_start,
                        now_ms=self.now,
                    )
                entry = with_fields(entry, high_watermark=self.leadership.known_high_watermark)
                self.on_the_way.append(Sent(asked, (entry, records)))

    def hear(self) -> None:
        """An answer arrives, be it long after; which fetch it was for is for the machine to tell."""
        answers = [sent for sent in self.on_the_way if sent.answer is not None]
        if answers:
            sent = self.rng.choice(answers)
            if self.rng.random() < 0.8:
                self.on_the_way.remove(sent)
            follower = self.follower
            assert sent.answer is not None
            assert follower.followership is not None
            if follower.followership.is_current(sent.asked, follower.view()):
                entry, records = sent.answer
                step = follower.followership.on_fetched(sent.asked, entry, follower.view())
                if step == AskStart():
                    theirs = self.leader.log
                    step = follower.followership.on_range(
                        sent.asked.leader_epoch, theirs.log_start, theirs.end_offset, follower.view()
                    )
                follower.carry_out(step, records)

    def round(self) -> None:
        self.ask()
        self.serve()
        self.hear()

    def lose(self) -> None:
        self.on_the_way.clear()

    def checkpoint(self) -> None:
        for replica in self.replicas.values():
            replica.checkpoint = replica.committed

    def restart(self) -> None:
        """SIGKILL: the log is whole, the high watermark as old as its checkpoint."""
        follower = self.follower
        follower.hwm = max(follower.checkpoint, follower.log.log_start)
        self.begins_to_follow(follower)

    def fail_over(self) -> None:
        if len(self.state.isr) == 2:
            self.elect(BrokerId(3 - self.state.leader))

    def decide(self, isr: tuple[BrokerId, ...]) -> None:
        self.state = with_fields(self.state, isr=isr, partition_epoch=self.state.partition_epoch + 1)
        self.leadership.adopt(self.state, self.now)

    def drop(self) -> None:
        self.decide((self.state.leader,))

    def agree(self) -> None:
        if self.leadership.pending is not None:
            self.decide(self.leadership.pending.isr)

    def elect_again(self) -> None:
        self.elect(self.state.leader)

    def delete_before(self) -> None:
        known = self.leader.log
        known.log_start = self.rng.randint(known.log_start, max(self.leader.committed, known.log_start))
        self.leadership.raise_log_start(known.log_start)

    # ── what must hold ────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        for offset in range(len(self.committed), self.leader.committed):
            self.committed.append(self.leader.log.records[offset])
        for replica in self.replicas.values():
            log, hwm = replica.log, replica.committed
            assert log.log_start <= hwm <= log.end_offset, "I-38"
            assert log.records[log.log_start : hwm] == self.committed[log.log_start : hwm], "I-5"
        mine, yours = self.leader.log.records, self.follower.log.records
        start = max(self.leader.log.log_start, self.follower.log.log_start)
        same = [a[0] == b[0] for a, b in zip(mine, yours, strict=False)]
        last = max((offset for offset in range(start, len(same)) if same[offset]), default=-1)
        assert mine[start : last + 1] == yours[start : last + 1], "I-10"

    def settle(self) -> None:
        """Faults stop: within a few rounds both are the same."""
        bound = 1 + len({epoch for epoch, _ in self.follower.log.records}) + len(self.leader.log.records) + 4
        for _ in range(bound):
            self.lose()
            self.round()
            self.agree()
            self.check()
        start = max(self.leader.log.log_start, self.follower.log.log_start)
        assert self.follower.log.records[start:] == self.leader.log.records[start:]
        assert self.follower.hwm == self.leader.committed == self.leader.log.end_offset
        assert self.leadership.known_high_watermark != NO_OFFSET


STEPS = (
    Pair.append,
    Pair.append,
    Pair.ask,
    Pair.serve,
    Pair.hear,
    Pair.round,
    Pair.round,
    Pair.lose,
    Pair.checkpoint,
    Pair.restart,
    Pair.fail_over,
    Pair.elect_again,
    Pair.drop,
    Pair.agree,
    Pair.delete_before,
)
