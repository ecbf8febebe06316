"""Logs on the real disk for benches: a keeper of one log, opened and removed again."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tidelog.protocol.records import encode
from tidelog.storage.config import LogConfig
from tidelog.storage.files import Directory
from tidelog.storage.io import open_directory
from tidelog.storage.keeping import Kept
from tidelog.storage.log import Log
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.recovery import Checkpointed, Opening
from tidelog.storage.works import take_here

NOW_MS = 1_700_000_000_000


class Keeper:
    """Remembers nothing: a bench says itself what the checkpoints say."""

    def __init__(self) -> None:
        self.open_segments = OpenSegments()

    def lower_recovery_point(self, log: Kept, offset: int) -> None:
        """No bench cuts what is durable."""
        raise AssertionError(f"{log} is cut to {offset}")

    def report_damage(self, what: str) -> None:
        """No bench damages anything."""
        raise AssertionError(what)

    def halt(self, what: str, error: OSError) -> NoReturn:
        """The disk failed: so does the bench."""
        raise RuntimeError(what) from error


def opened(directory: Directory, said: Checkpointed, config: LogConfig | None = None) -> Log:
    """The log in that directory."""
    opening = Opening(directory, config or LogConfig(), Keeper(), said)
    take_here(opening.steps(NOW_MS))
    return opening.log


@contextmanager
def new_log(path: Path, config: LogConfig | None = None) -> Iterator[Log]:
    """An empty log, removed at the end."""
    log = opened(open_directory(str(path), create=True), Checkpointed(), config)
    try:
        yield log
    finally:
        log.abandon()
        shutil.rmtree(path)


def client_batches(count: int, size: int) -> list[bytearray]:
    """Batches of about that many bytes as an idempotent producer sends them, one after the other."""
    records = max(size // 120, 1)
    value = bytes(max(size // records - (3 if records > 1 else 68), 1))
    batches, sequence = [], 0
    for _ in range(count):
        batches.append(
            encode([value] * records, now_ms=NOW_MS, producer_id=7, producer_epoch=0, base_sequence=sequence)
        )
        sequence = (sequence + records) % 2**31
    return batches


def record_batches(count: int, size: int = 100, *, producer: int = 8) -> list[bytearray]:
    """Batches of one record of that many bytes, from another producer."""
    value = bytes(size)
    return [
        encode([value], now_ms=NOW_MS, producer_id=producer, producer_epoch=0, base_sequence=number)
        for number in range(count)
    ]
