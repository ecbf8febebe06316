"""What the fold over a log costs per batch, and checkpoints of 10,000 partitions.

CPU time for the machines, next to making a named tuple and putting it into a dict; wall time for the files,
next to writing the same bytes durably, and reading and splitting them, by hand.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings, cpu_us, interleave, wall_ms

from tidelog.protocol.batch import BatchHeader, read_header
from tidelog.protocol.records import encode
from tidelog.protocol.types import TopicPartition
from tidelog.storage.checkpoints import RECOVERY_POINTS, OffsetCheckpoint
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.io import open_directory
from tidelog.storage.producers import Producers

PRODUCERS = 100
ENTRIES = 10_000

# S9 asks for 80 k requests/s at RF=1, 12.5 us each: a tenth of it for what a batch is noted with.
_FOLD = Goal("figure", True, 400, "a tenth of S9's 12.5 us, twice")
_ASSIGN = Goal("figure", True, 4000, "a hundredth of S9's 12.5 us, twice")
_FILE = Goal("ratio", False, 5.0, "this bench: the disk decides, not we")


class _Noted(NamedTuple):
    """As small as a note of a batch can be."""

    sequence: int
    offset: int


def _headers(count: int) -> list[BatchHeader]:
    """Batches of a hundred idempotent producers in turn, as a leader has placed them."""
    made = []
    for number in range(count):
        sequence, producer = divmod(number, PRODUCERS)
        batch = encode([b"v"], now_ms=1, producer_id=producer, producer_epoch=0, base_sequence=sequence)
        made.append(read_header(batch)._replace(base_offset=number, leader_epoch=number // 1000))
    return made


def _fold(headers: list[BatchHeader]) -> None:
    producers = Producers()
    for header in headers:
        producers.check(header)
        producers.apply(header, 1)


def _assign(headers: list[BatchHeader]) -> None:
    epochs = LeaderEpochs()
    for header in headers:
        epochs.assign(header.leader_epoch, header.base_offset)


def _note(headers: list[BatchHeader]) -> None:
    noted = {}
    for header in headers:
        noted[header.producer_id] = _Noted(header.base_sequence, header.base_offset)


class _Checkpoints:
    """One checkpoint file of the product, and the same bytes by hand."""

    def __init__(self, path: Path, entries: int) -> None:
        self._path = path
        self._directory = open_directory(str(path))
        self._round = 0
        self._entries = [TopicPartition(f"topic-{n // 10}", n % 10) for n in range(entries)]
        self.write(self.next_state())
        self._content = (path / RECOVERY_POINTS).read_bytes()

    def next_state(self) -> dict[TopicPartition, int]:
        """What there is to write: the same state is not written twice."""
        self._round += 1
        return {entry: n + 10**9 + self._round for n, entry in enumerate(self._entries)}

    def write(self, state: dict[TopicPartition, int]) -> None:
        """Durably, as after every flush."""
        OffsetCheckpoint(self._directory, RECOVERY_POINTS, nullcontext()).write(state)

    def read(self) -> None:
        """As at a start."""
        offsets, problem = OffsetCheckpoint(
            self._directory, RECOVERY_POINTS, nullcontext()
        ).read_or_fallback()
        assert problem is None
        assert len(offsets) == len(self._entries)

    def write_by_hand(self) -> None:
        """Beside it, flushed, renamed, the name flushed."""
        temporary = self._path / "by-hand.tmp"
        with temporary.open("wb") as file:
            file.write(self._content)
            file.flush()
            os.fdatasync(file.fileno())
        temporary.rename(self._path / "by-hand")
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read_by_hand(self) -> None:
        """Nothing checked."""
        lines = (self._path / "by-hand").read_text("ascii").splitlines()[2:-1]
        offsets = {}
        for line in lines:
            topic, partition, offset = line.split(" ")
            offsets[topic, int(partition)] = int(offset)


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    directory = settings.directory / "machines"
    directory.mkdir()
    try:
        headers = _headers(settings.count(20_000, 200))
        count = len(headers)
        files = _Checkpoints(directory, settings.count(ENTRIES, 100))
        files.write_by_hand()
        probes: dict[str, Callable[[], float]] = {
            # Thousands of batches per second of CPU time.
            "fold": lambda: count * 1000 / cpu_us(lambda: _fold(headers), 1),
            "assign": lambda: count * 1000 / cpu_us(lambda: _assign(headers), 1),
            "note": lambda: count * 1000 / cpu_us(lambda: _note(headers), 1),
            "write": lambda: wall_ms(partial(files.write, files.next_state())),
            "write by hand": lambda: wall_ms(files.write_by_hand),
            "read": lambda: wall_ms(files.read),
            "read by hand": lambda: wall_ms(files.read_by_hand),
        }

        def take(number: int) -> Readings:
            return interleave(number, probes)

        yield take
    finally:
        shutil.rmtree(directory)


_TUPLE = "a named tuple in a dict"
ROWS = (
    Row("producers: check and apply", "k batches/s", "fold", "note", _TUPLE, _FOLD),
    Row("epochs: assign", "k batches/s", "assign", "note", _TUPLE, _ASSIGN),
    Row("checkpoint of 10,000, written", "ms", "write", "write by hand", "by hand", _FILE),
    Row("checkpoint of 10,000, read", "ms", "read", "read by hand", "by hand, unchecked", _FILE),
)
BENCH = Bench("machines", "the fold over a log, and checkpoints", ROWS, _begin)
