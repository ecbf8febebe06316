"""Logs on simulated disks: how tests make them, fill them, and open them again."""

from contextlib import suppress
from random import Random
from typing import NoReturn

from tidelog.protocol.batch import BatchHeader, read_header, stamp, walk
from tidelog.protocol.records import encode
from tidelog.storage.config import LogConfig
from tidelog.storage.files import Directory, NoRoom, read_whole, write_whole
from tidelog.storage.keeping import Kept
from tidelog.storage.log import Log
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.recovery import Checkpointed, Findings, Opening
from tidelog.storage.works import take_here
from tidelog.testing.simulation.disk import SimulatedDisk

SMALL = LogConfig(segment_bytes=1024, index_interval_bytes=200)
"""Segments of a few batches, an index entry for every second one: rare branches become common."""


class Halted(BaseException):
    """The process would have ended here."""


class Keeper:
    """Keeps one log: its recovery point goes to a file of eight bytes, and nothing else is remembered."""

    def __init__(self, directory: Directory, max_open: int = 64) -> None:
        self.open_segments = OpenSegments(max_open)
        self.directory = directory
        self.halted: list[str] = []
        self.damage: list[str] = []
        self.start_lowered = False
        """Whether the last cut took all of the log, and that is on record."""

    def lower_recovery_point(self, log: Kept, offset: int) -> None:
        assert log.directory.path.endswith("orders-0")
        self.write_recovery_point(min(offset, self.read_recovery_point()))
        self.start_lowered = offset < log.log_start

    def write_recovery_point(self, offset: int) -> None:
        write_whole(self.directory, "recovery-point", offset.to_bytes(8, "big"))

    def read_recovery_point(self) -> int:
        if not self.directory.exists("recovery-point"):
            return 0
        return int.from_bytes(read_whole(self.directory, "recovery-point"), "big")

    def report_damage(self, what: str) -> None:
        self.damage.append(what)

    def halt(self, what: str, error: OSError) -> NoReturn:
        self.halted.append(what)
        raise Halted(f"{what}: {error}")


class Host:
    """One disk with one log on it, opened again after every kind of end."""

    def __init__(self, seed: int = 0, config: LogConfig = SMALL, *, max_open: int = 64) -> None:
        self.rng = Random(seed)
        self.disk = SimulatedDisk(self.rng)
        self.config = config
        self.max_open = max_open
        self.open()

    @property
    def path(self) -> str:
        return "/data/orders-0"

    def open(self, *, clean: bool = False, log_start: int | None = None) -> Findings:
        """Open the log as a process that starts does."""
        root = self.disk.open_directory("/data")
        self.keeper = Keeper(root, self.max_open)
        self.directory = root.directory("orders-0", create=True)
        root.flush()
        said = Checkpointed(self.keeper.read_recovery_point(), log_start, clean)
        opening = Opening(self.directory, self.config, self.keeper, said)
        take_here(opening.steps(now_ms=0))
        self.log = opening.log
        with suppress(NoRoom):
            self.keeper.write_recovery_point(self.log.durable_offset)
        return opening.findings

    def flush(self) -> None:
        """Make the log durable, and say so in the checkpoint."""
        self.log.flush()
        self.keeper.write_recovery_point(self.log.durable_offset)
        self.log.recovery_point = self.log.durable_offset

    def stop(self) -> None:
        """A clean stop."""
        self.log.close()
        self.keeper.write_recovery_point(self.log.end_offset)
        self.disk.kill()

    def kill_and_open(self) -> Findings:
        """SIGKILL: everything that was written is still there."""
        self.disk.kill()
        return self.open()

    def cut_power_and_open(self) -> Findings:
        """Everything that was flushed is still there, and some of the rest."""
        self.disk.power_cut()
        return self.open()


def batch(
    count: int = 1,
    *,
    size: int = 40,
    time: int = 1000,
    producer: int = -1,
    producer_epoch: int = 0,
    sequence: int = 0,
    mark: bytes = b"",
) -> bytearray:
    """A batch as a client sends it."""
    values = [mark + bytes([65 + i % 26]) * size for i in range(count)]
    idempotent = producer >= 0
    return encode(
        values,
        timestamps=[time + i for i in range(count)],
        producer_id=producer,
        producer_epoch=producer_epoch if idempotent else -1,
        base_sequence=sequence if idempotent else -1,
    )


def placed(offset: int, epoch: int, count: int = 1, *, size: int = 40, mark: bytes = b"") -> bytearray:
    """A batch as a leader sends it to its followers."""
    made = batch(count, size=size, mark=mark)
    stamp(made, offset, epoch)
    return made


def contents(log: Log) -> bytes:
    """All bytes of the log, read the way readers read."""
    found, offset = [], log.log_start
    while offset < log.end_offset:
        piece = log.read(offset, 300)
        assert piece.next_offset > offset, f"{log} gives nothing at {offset}"
        found.append(bytes(piece.data))
        offset = piece.next_offset
    return b"".join(found)


def offsets(data: bytes | memoryview) -> list[int]:
    """The base offset of each batch."""
    return [header.base_offset for _, header in walk(data)]


def first_header(data: bytes | memoryview) -> BatchHeader:
    """The header of the first batch."""
    return read_header(data)
