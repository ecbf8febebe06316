"""Random lives of a leader beside a naive one, which keeps every fetch and works all out anew each time.

The naive leader is design 2.3 to 2.10 read aloud. Followers fetch, restart with less, are fenced and come back;
the controller agrees, refuses, loses answers and decides on its own; the same broker is elected again.
"""

from dataclasses import dataclass, field
from random import Random

from tests.broker.leaders import LAG_MAX_MS, Brokers, Led, ids
from tidelog.broker.leadership import RETRY_MS, Alteration, Leadership
from tidelog.controller.image import PartitionState
from tidelog.protocol import errors
from tidelog.protocol.types import NO_EPOCH, BrokerId, Offset

ME, EVERYBODY = BrokerId(1), ids([1, 2, 3, 4])
ANSWERS = (
    errors.IneligibleReplica,
    errors.OperationNotAttempted,
    errors.InvalidUpdateVersion,
    errors.NotController,
    errors.RequestTimedOut,
)
GIVES_UP = ANSWERS[:2]
"""After these no newer state follows."""


@dataclass
class Fetched:
    """One fetch, and where the leader's log ended when it came."""

    at_ms: int
    offset: Offset
    ack: Offset
    broker_epoch: int
    end: Offset


@dataclass
class NaiveLeader:
    """What a leader knows, as lists of what has happened in this leader epoch."""

    state: PartitionState
    brokers: Brokers
    end: Offset
    durable: Offset
    hwm: Offset
    began_ms: int
    start: Offset = field(init=False)
    fetches: dict[BrokerId, list[Fetched]] = field(default_factory=dict)
    caught_up_at: dict[BrokerId, list[int]] = field(default_factory=dict)
    owed: dict[BrokerId, tuple[Offset, int]] = field(default_factory=dict)
    """Of whose disk has not all that it fetched: up to where that was asked for last, and when."""
    pending: tuple[BrokerId, ...] | None = None
    retry_ms: int = -(2**62)

    def __post_init__(self) -> None:
        self.start = self.end
        self.caught_up_at = {r: [self.began_ms] for r in self.state.isr}
        self.try_advance_hwm(self.began_ms)

    def last(self, replica: BrokerId) -> Fetched:
        fetches = self.fetches.get(replica)
        return fetches[-1] if fetches else Fetched(0, -1, -1, NO_EPOCH, -1)

    def caught_up(self, replica: BrokerId, now: int) -> bool:
        moments = self.caught_up_at.get(replica, [])
        if replica in self.owed and now - self.owed[replica][1] > LAG_MAX_MS:
            return False
        return self.last(replica).offset == self.end or any(now - at <= LAG_MAX_MS for at in moments)

    def eligible(self, replica: BrokerId) -> bool:
        return self.brokers.live_epoch(replica) == self.last(replica).broker_epoch

    def others(self) -> list[BrokerId]:
        return [replica for replica in self.state.replicas if replica != ME]

    def try_advance_hwm(self, now: int) -> None:
        if len(self.state.isr) < self.state.min_isr:
            return
        maximal = {*self.state.isr, *(self.pending or ())}
        needed = [r for r in self.others() if r in maximal or (self.eligible(r) and self.caught_up(r, now))]
        own = self.durable if self.state.flush_group else self.end
        self.hwm = max(self.hwm, min([own, *(max(self.last(r).ack, 0) for r in needed)]))

    def maybe_expand(self, replica: BrokerId, now: int) -> None:
        if self.pending is None and now >= self.retry_ms and replica not in self.state.isr:
            last = self.last(replica)
            silent = now - last.at_ms > LAG_MAX_MS
            if self.eligible(replica) and last.ack >= max(self.hwm, self.start) and not silent:
                self.pending = (*self.state.isr, replica)

    def note_disk(self, replica: BrokerId, now: int) -> None:
        last = self.last(replica)
        asked, _ = self.owed.get(replica, (-1, 0))
        if last.ack >= last.offset:
            self.owed.pop(replica, None)
        elif last.ack >= asked or last.offset < asked:
            self.owed[replica] = last.offset, now

    def fetch(self, replica: BrokerId, new: Fetched) -> None:
        old = self.last(replica)
        if old.broker_epoch not in {NO_EPOCH, new.broker_epoch}:
            self.fetches[replica], self.caught_up_at[replica] = [], []
            self.owed.pop(replica, None)
            old = self.last(replica)
        if new.offset >= self.end:
            self.caught_up_at.setdefault(replica, []).append(new.at_ms)
        elif old.end >= 0 and new.offset >= old.end:
            self.caught_up_at.setdefault(replica, []).append(old.at_ms)
        self.fetches.setdefault(replica, []).append(new)
        self.note_disk(replica, new.at_ms)
        self.maybe_expand(replica, new.at_ms)
        self.try_advance_hwm(new.at_ms)

    def flushed(self, replica: BrokerId, broker_epoch: int, durable: Offset, now: int) -> None:
        last = self.last(replica)
        if last.broker_epoch == broker_epoch and self.state.flush_group:
            last.ack = max(last.ack, min(durable, last.offset))
            self.note_disk(replica, now)
            self.maybe_expand(replica, now)
            self.try_advance_hwm(now)

    def look_again(self, now: int) -> None:
        self.retry_ms = -(2**62)
        self.try_advance_hwm(now)
        for replica in self.others():
            self.maybe_expand(replica, now)

    def adopt(self, state: PartitionState, now: int) -> None:
        for left in {*self.state.isr} - {*state.isr}:
            self.caught_up_at[left] = []
        self.state, self.pending = state, None
        self.look_again(now)

    def tick(self, now: int) -> None:
        if self.pending is None and now >= self.retry_ms:
            stay = tuple(r for r in self.state.isr if r == ME or self.caught_up(r, now))
            self.pending = None if stay == self.state.isr else stay
        self.try_advance_hwm(now)


@dataclass
class Disk:
    """What a replica has, and has on stable storage."""

    end: Offset = 0
    durable: Offset = 0


class Life:
    """One seed's history."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.brokers = Brokers(*EVERYBODY)
        self.group = self.rng.random() < 0.4
        self.disks = {replica: Disk() for replica in EVERYBODY}
        self.now = 0
        self.led = Led(
            isr=[*self.rng.sample(EVERYBODY[1:], self.rng.randrange(4)), 1],
            replicas=EVERYBODY,
            min_isr=self.rng.randint(1, 3),
            brokers=self.brokers,
            flush_group=self.group,
        )
        self.naive = NaiveLeader(self.led.leader.state, self.brokers, 0, 0, 0, 0)
        self.sent: list[Alteration] = []
        self.open = False
        """The last sending is about what is pending now."""
        self.settled = False
        """And the controller has decided about it."""
        self.weights = [self.rng.choice([0, 1, 4]) + 0.2 for _ in STEPS]

    @property
    def machine(self) -> Leadership:
        return self.led.leader

    def live(self, steps: int) -> None:
        for _ in range(steps):
            before = self.machine.high_watermark
            self.now += self.rng.choice([0, 1, 20, 60, 3000, 9000])
            self.led.at(self.now)
            self.rng.choices(STEPS, self.weights)[0](self)
            assert self.machine.high_watermark == self.naive.hwm >= before
            assert (self.machine.pending.isr if self.machine.pending else None) == self.naive.pending
            self.check_proposal()

    def check_proposal(self) -> None:
        pending, state = self.machine.pending, self.machine.state
        if pending is not None:
            assert ME in pending.isr
            assert len({*pending.isr} ^ {*state.isr}) >= 1
            assert pending.kind == ("expand" if len(pending.isr) > len(state.isr) else "shrink")
            assert {*state.isr, *pending.isr} == self.machine.maximal_isr

    # ── what may happen ───────────────────────────────────────────────────────────────────────────

    def append(self) -> None:
        mine = self.disks[ME]
        mine.end += self.rng.randint(1, 5)
        self.naive.end = mine.end
        self.naive.try_advance_hwm(self.now)
        self.machine.appended(mine.end, self.now)
        if self.machine.high_watermark != self.naive.hwm:
            # An append with others in sync looks for nothing new; the next fetch does.
            assert len(self.machine.state.isr) > 1
            self.machine._advance(self.now)

    def flush(self) -> None:
        mine = self.disks[ME]
        self.naive.durable = mine.durable = self.rng.randint(mine.durable, mine.end)
        self.machine.flushed(mine.durable, self.now)
        if self.group:
            self.naive.try_advance_hwm(self.now)

    def fetch(self) -> None:
        replica = self.rng.choice(EVERYBODY[1:])
        disk, end, epoch = self.disks[replica], self.disks[ME].end, self.brokers.epochs[replica]
        disk.end = self.rng.choice([disk.end, self.rng.randint(min(disk.end, end), end), end])
        self.led.fetch(replica, disk.end, durable=disk.durable)
        ack = min(disk.durable, disk.end) if self.group else disk.end
        self.naive.fetch(replica, Fetched(self.now, disk.end, ack, epoch, end))

    def follower_flush(self) -> None:
        replica = self.rng.choice(EVERYBODY[1:])
        disk, epoch = self.disks[replica], self.brokers.epochs[replica]
        disk.durable = disk.end
        self.machine.on_flushed(replica, epoch, disk.end, self.now)
        self.naive.flushed(replica, epoch, disk.end, self.now)

    def restart(self) -> None:
        """With what it has, or with less."""
        replica = self.rng.choice(EVERYBODY[1:])
        self.brokers.registers(replica)
        if self.rng.random() < 0.5:
            self.brokers.fenced.discard(replica)
        disk = self.disks[replica]
        disk.end = self.rng.choice([disk.end, min(disk.durable, disk.end), 0])
        disk.durable = min(disk.durable, disk.end)
        self.image_changed()

    def fence(self) -> None:
        self.brokers.fenced ^= {self.rng.choice(EVERYBODY[1:])}
        if self.rng.random() < 0.8:
            self.image_changed()

    def image_changed(self) -> None:
        self.machine.image_changed(self.now)
        self.naive.look_again(self.now)

    def tick(self) -> None:
        self.machine.tick(self.now)
        self.naive.tick(self.now)

    def send(self) -> None:
        alteration = self.machine.alteration()
        if alteration is None:
            assert self.naive.pending is None or self.settled
            return
        assert not self.settled
        assert not self.sent or alteration.alter_seq > self.sent[-1].alter_seq
        assert [member for member, _ in alteration.members] == [*(self.naive.pending or ())]
        for member, epoch in alteration.members:
            mine = self.brokers.epochs[ME]
            assert epoch == (mine if member == ME else self.naive.last(member).broker_epoch)
        self.sent.append(alteration)
        self.open, self.settled = True, False

    def answer(self) -> None:
        """The last sending is answered, or an old answer comes late."""
        if not self.sent:
            return
        answered = self.sent[-1] if self.rng.random() < 0.7 else self.rng.choice(self.sent)
        error = self.rng.choice(ANSWERS)
        self.machine.refused(answered, error, self.now)
        if answered is self.sent[-1] and self.open and not self.settled:
            if error in GIVES_UP:
                self.naive.pending, self.naive.retry_ms, self.open = None, self.now + RETRY_MS, False
            self.settled = error is errors.InvalidUpdateVersion

    def decide(self) -> None:
        """The controller agrees, or decides on its own."""
        state, change = self.machine.state, self.rng.choice(["agree", "agree", "drop", "min_isr"])
        more: dict[str, object] = {}
        if change == "agree":
            more["isr"] = self.naive.pending or state.isr
        elif change == "drop" and len(state.isr) > 1:
            more["isr"] = tuple(r for r in state.isr if r != self.rng.choice(state.isr[1:]) or r == ME)
        else:
            more["min_isr"] = self.rng.randint(1, 3)
        self.led.adopt(**more)  # type: ignore[arg-type]
        self.naive.adopt(self.machine.state, self.now)
        self.open = self.settled = False

    def elected_again(self) -> None:
        old = self.machine
        mine = self.disks[ME]
        self.led = Led(
            isr=old.state.isr,
            replicas=EVERYBODY,
            min_isr=old.state.min_isr,
            brokers=self.brokers,
            flush_group=self.group,
            leader_epoch=old.state.leader_epoch + 1,
            end=mine.end,
            durable=mine.durable,
            hwm=old.high_watermark,
            now_ms=self.now,
        )
        self.naive = NaiveLeader(
            self.machine.state, self.brokers, mine.end, mine.durable, self.naive.hwm, self.now
        )
        self.sent.clear()
        self.open = self.settled = False


STEPS = (
    Life.append,
    Life.append,
    Life.flush,
    Life.fetch,
    Life.fetch,
    Life.fetch,
    Life.follower_flush,
    Life.restart,
    Life.fence,
    Life.tick,
    Life.send,
    Life.answer,
    Life.decide,
    Life.elected_again,
)


def live(seed: int, steps: int = 150) -> None:
    """One history; the seed is all it depends on."""
    Life(seed).live(steps)
