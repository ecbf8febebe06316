"""Proof that the simulated disk finds mistakes: a log that makes none, and six that make one each (07-simulation 7.4)."""

import random

import pytest

from tests.simulation.demo_log import DemoLog, ProcessMustDie
from tidelog.storage.files import Directory, File
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.faults import WHENS, Crash, Killed, PowerCut

LIVES = 25


class AcksBeforeFlush(DemoLog):
    def append(self, record: bytes) -> None:
        super().append(record)
        self.durable = len(self.records)


class TakesTheEndAfterTheFlush(DemoLog):
    def finish_commit(self, covered: int) -> None:
        super().finish_commit(max(covered, len(self.records)))


class RetriesAFailedFlush(DemoLog):
    def _flush(self) -> None:
        try:
            super()._flush()
        except OSError:
            super()._flush()


class FlushesNoDirectory(DemoLog):
    def _flush_names(self) -> None:
        pass


class TrustsThePageCacheAfterAFailedFlush(DemoLog):
    def _rewrite(self, file: File, content: bytes) -> None:
        pass


class ClaimsWhatItRecovered(DemoLog):
    def _commit_recovered(self) -> None:
        self.durable = len(self.records)


class Lives:
    """One log through many crashes, and what it claimed: the checker looks at claims, not only at acks."""

    def __init__(self, kind: type[DemoLog], seed: int) -> None:
        self.kind = kind
        self.rng = random.Random(seed)
        self.disk = SimulatedDisk(random.Random(seed), by_page=seed % 2 == 1)
        self.log: DemoLog | None = None
        self.written: list[bytes] = []
        self.claimed = 0
        self.crashes: set[type[BaseException]] = set()

    def live(self) -> None:
        """From the start of a process to its end."""
        if self.rng.random() < 0.5:
            crash = self.rng.choice((Killed, PowerCut))
            self.disk.crash_at(self.rng.randint(1, 40), when=self.rng.choice(WHENS), crash=crash)
        if self.rng.random() < 0.1:
            self.disk.fail_flush(self.rng.randint(1, 6))
        try:
            self.start(self.disk.open_directory())
            self.run()
        except (Crash, ProcessMustDie) as death:
            self.crashes.add(type(death))
        if self.log is not None:
            self.claimed = max(self.claimed, self.log.durable)
            self.log = None
        self.rng.choice((self.disk.kill, self.disk.power_cut))()

    def start(self, directory: Directory) -> None:
        log = self.kind(directory)
        assert log.records[: self.claimed] == self.written[: self.claimed]
        assert log.records == self.written[: len(log.records)]
        self.log = log
        self.written = list(log.records)

    def run(self) -> None:
        assert self.log is not None
        if self.rng.random() < 0.3:
            self.disk.fail_flush(self.rng.randint(1, 6))
        for _ in range(self.rng.randint(1, 10)):
            self.append(self.rng.randint(0, 3))
            covered = self.log.begin_commit()
            self.append(self.rng.randint(0, 3))
            self.log.finish_commit(covered)
        self.append(self.rng.randint(0, 3))

    def append(self, count: int) -> None:
        assert self.log is not None
        for _ in range(count):
            record = self.rng.randbytes(self.rng.randint(1, 3000))
            self.written.append(record)  # first: a crash within leaves it in doubt
            self.log.append(record)


def seeds_that_lose_records(kind: type[DemoLog], seeds: range) -> list[int]:
    losing = []
    for seed in seeds:
        lives = Lives(kind, seed)
        try:
            for _ in range(LIVES):
                lives.live()
        except AssertionError:
            losing.append(seed)
    return losing


def test_a_careful_log_loses_no_claimed_record() -> None:
    assert seeds_that_lose_records(DemoLog, range(60)) == []


def test_every_way_to_die_is_met() -> None:
    lives = Lives(DemoLog, 1)
    for _ in range(LIVES):
        lives.live()
    assert lives.crashes == {Killed, PowerCut, ProcessMustDie}
    assert lives.claimed > 50


@pytest.mark.parametrize(
    "planted",
    [
        AcksBeforeFlush,
        TakesTheEndAfterTheFlush,
        RetriesAFailedFlush,
        FlushesNoDirectory,
        TrustsThePageCacheAfterAFailedFlush,
        ClaimsWhatItRecovered,
    ],
)
def test_a_planted_bug_is_caught_within_a_few_seeds(planted: type[DemoLog]) -> None:
    assert len(seeds_that_lose_records(planted, range(5))) >= 2
