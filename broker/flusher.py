"""Force logs to the disk, and write the checkpoints that say so; all of it off the event loop.

    flush.mode=group   as soon as there is something new: one flush for all that came while the last one ran
    every log          each `flush.ms`; and what is new after so many bytes or batches, so that a restart has little to check

What it keeps true (docs/STORAGE.md; D7, D12, I-31, I-32):

* One flush of a log at a time, and what it covers is what was there when it began.
* A flush or checkpoint that failed ends the process, or what is in that directory where there are others (`halt`):
  nothing is retried. On a full disk nothing has failed: what was durable stays so, and it is tried again when there
  is room.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tidelog.broker.io import in_a_thread
from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests.context import Clocks
from tidelog.broker.space import LOOK_BYTES, look_at
from tidelog.protocol.errors import DiskFull, StorageError
from tidelog.protocol.types import Offset, TopicPartition
from tidelog.storage.data_directories import Write
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.files import FULL
from tidelog.storage.flushing import Flush
from tidelog.storage.room import MIN_FREE_BYTES

logger = logging.getLogger(__name__)

_AT_ONCE = 4
"""Logs that are flushed at the same time."""
_PROBE_S = 1.0
BATCHES_MAX = 1 << 16
"""So many new batches are flushed however small they are: a restart looks at each, which takes longer than its bytes."""


@dataclass(frozen=True, slots=True)
class FlushSettings:
    """When logs are flushed and checkpoints written."""

    flush_ms: int = 30_000
    """Every log at least this often."""
    flush_bytes: int = 64 << 20
    """And what is new when so many bytes were appended to any of them."""
    high_watermark_checkpoint_ms: int = 5_000
    log_start_checkpoint_ms: int = 60_000
    min_free_bytes: int = MIN_FREE_BYTES
    """With less free space, records are refused: the rest is for what is more urgent."""


class Flusher:
    """The flushing of all data directories. `run`, `probe` and `keep_checkpoints` are tasks of the node."""

    def __init__(
        self,
        replicas: Replicas,
        clocks: Clocks,
        settings: FlushSettings,
        *,
        flushed: Callable[[list[Partition]], None],
        room_changed: Callable[[], None] = lambda: None,
        hosted: Callable[[Partition], None] = lambda _: None,
        adopted: Callable[[], None] = lambda: None,
    ) -> None:
        self._replicas = replicas
        self._clocks = clocks
        self._settings = settings
        self._flushed = flushed
        self._room_changed = room_changed
        self._hosted = hosted
        self._adopted = adopted
        self._due: dict[Partition, None] = {}
        self._refused: dict[Partition, None] = {}
        """What could not be flushed for want of room."""
        self.flushes = 0
        """How many flushes have ended."""
        self.flush_s = self.flush_longest_s = 0.0
        """How long they took together, some at the same time, and the longest."""
        self._new: dict[Partition, None] = {}
        """What was appended to since all that was new was flushed; and how much of it there is."""
        self._new_bytes = self._new_batches = 0
        self._stopping = False
        self._woken = asyncio.Event()
        self._log_starts_due = asyncio.Event()

    def appended(self, partition: Partition, size: int = 0, batches: int = 1) -> None:
        """Something was appended; in `group` mode it counts only when it is flushed."""
        self._new[partition] = None
        self._new_bytes += size
        self._new_batches += batches
        partition.room.since_look += size
        if partition.room.since_look >= LOOK_BYTES:
            self._look_for_room()
        if partition.state is not None and partition.state.flush_group:
            self._due[partition] = None
            self._woken.set()
        elif self._much_is_new:
            self._woken.set()

    @property
    def _much_is_new(self) -> bool:
        return self._new_bytes >= self._settings.flush_bytes or self._new_batches >= BATCHES_MAX

    def reconfigure(self, settings: FlushSettings) -> None:
        """Go on with other settings."""
        self._settings = settings
        self._woken.set()

    def stop(self) -> None:
        """Begin no more flushes; `run` ends with the last one. What is left is flushed when the logs are closed."""
        self._stopping = True
        self._woken.set()

    async def run(self) -> None:
        """Flush what is due, until told to stop: a flush that has begun is never left alone."""
        loop = asyncio.get_running_loop()
        flushed_s = loop.time()
        while not self._stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(flushed_s + self._settings.flush_ms / 1000):
                    await self._woken.wait()
            self._woken.clear()
            due, self._due = self._due, {}
            await self._flush(due)  # those first for which somebody waits
            late = loop.time() >= flushed_s + self._settings.flush_ms / 1000
            if late or self._much_is_new:
                new, self._new = self._new, {}
                self._new_bytes = self._new_batches = 0
                await self._flush(self._replicas.partitions.values() if late else new)
                await self.write(self._replicas.data.write_recovery_points())
                flushed_s = loop.time()

    async def probe(self) -> None:
        """Look once a second whether a full disk has room again; then what could not be flushed is tried anew."""
        self._look_for_room()
        while True:
            await asyncio.sleep(_PROBE_S)
            for data in self._replicas.data.serving:
                await self._take_back(data)
            hosted = self._replicas.probe(self._clocks.now_ms(), self._clocks.wall_ms())
            for partition in hosted:
                self._hosted(partition)
            if hosted:  # perhaps nobody follows their leaders yet
                self._adopted()
            self._look_for_room()
            if self._refused:
                self._due |= self._refused
                self._refused = {}
                self._woken.set()

    async def _take_back(self, data: DataDirectory) -> None:
        """What was given of the reserve, if it is out."""
        if data.reserve is not None and data.reserve.is_out:
            try:
                await in_a_thread(data.reserve.take_back)
            except OSError as error:
                with contextlib.suppress(StorageError):
                    data.halt("take back the reserve", error)

    def _look_for_room(self) -> None:
        """Wherever there is a disk that answers."""
        for data in self._replicas.data.serving:
            try:
                changed = look_at(data, self._settings.min_free_bytes)
            except OSError as error:
                with contextlib.suppress(StorageError):
                    data.halt("look for room", error)
            else:
                if changed:
                    self._room_changed()

    async def keep_checkpoints(self) -> None:
        """Write down, from time to time, what is committed and where logs start."""
        since_ms = 0
        while True:
            interval_ms = self._settings.high_watermark_checkpoint_ms
            await asyncio.sleep(interval_ms / 1000)
            since_ms += interval_ms
            await self.write(self._replicas.data.write_high_watermarks(self.committed()))
            if since_ms >= self._settings.log_start_checkpoint_ms:
                since_ms = 0
                await self.save_log_starts()

    def save_log_starts_soon(self) -> None:
        """A follower's log starts higher than is durable: its leader is not told before it is (ADR 0079)."""
        self._log_starts_due.set()

    async def keep_log_starts(self) -> None:
        """Write down where logs start as soon as somebody waits for it; once for all that came meanwhile."""
        while True:
            await self._log_starts_due.wait()
            self._log_starts_due.clear()
            if not await self.save_log_starts():
                await asyncio.sleep(_PROBE_S)
                self._log_starts_due.set()

    async def save_log_starts(self) -> bool:
        """Write down where logs start; whether it is durable now."""
        starts = [(p, p.log.log_start, p.begun_anew) for p in self._replicas.partitions.values()]
        writes = self._replicas.data.write_log_starts()
        written = await self.write(writes)
        for partition, start, begun_anew in starts:
            if any(partition.name in data.logs for data in written):
                before = partition.saved_log_start
                partition.log_start_saved(start, begun_anew)
                if partition.saved_log_start != before and partition.state is not None:
                    self._replicas.log_start_saved(partition.state.place)
        return len(written) == len(writes)

    def committed(self) -> dict[TopicPartition, Offset]:
        """How far each replica knows that its partition is committed, led, followed or leaderless (KAFKA-1647)."""
        return {partition.name: partition.high_watermark for partition in self._replicas.partitions.values()}

    async def write(self, writes: Sequence[Write]) -> list[DataDirectory]:
        """Write checkpoints; in which directories they are written. On a full disk the old one stays, and says less."""
        written = []
        for data, pending in writes:
            try:
                await in_a_thread(pending.run)
            except OSError as error:
                if error.errno not in FULL:
                    with contextlib.suppress(StorageError):  # the other directories are written nevertheless
                        data.halt("write a checkpoint", error)
            else:
                written.append(data)
        return written

    async def _flush(self, partitions: Iterable[Partition]) -> None:
        """Flush these logs, some at a time, and tell who waits for it."""
        left, loop = iter(list(partitions)), asyncio.get_running_loop()
        while not self._stopping and (jobs := self._begin_some(left)):
            began = loop.time()
            async with asyncio.TaskGroup() as group:
                for _, flush in jobs:
                    group.create_task(in_a_thread(flush.run))
            self._count(len(jobs), loop.time() - began)
            self._flushed([partition for partition, flush in jobs if self._end(partition, flush)])

    def _count(self, flushes: int, took_s: float) -> None:
        if flushes:
            self.flushes += flushes
            self.flush_s += took_s
            self.flush_longest_s = max(self.flush_longest_s, took_s)

    def _begin_some(self, left: Iterator[Partition]) -> list[tuple[Partition, Flush]]:
        """The next few that have something new."""
        begun = ((partition, self._begin(partition)) for partition in left)
        return list(islice(((partition, flush) for partition, flush in begun if flush is not None), _AT_ONCE))

    def _begin(self, partition: Partition) -> Flush | None:
        if partition.offline is not None or partition.log.is_flushing:
            return None
        try:
            return partition.log.begin_flush()
        except StorageError as error:
            self._go_offline(partition, str(error))
            return None

    def _end(self, partition: Partition, flush: Flush) -> bool:
        """Take the result; whether more is durable than before."""
        try:
            partition.log.end_flush(flush)
        except DiskFull as error:
            logger.warning("flush.refused partition=%s reason=%s", partition.name, error)
            self._refused[partition] = None
            return False
        except StorageError as error:
            self._go_offline(partition, str(error))
            return False
        finally:
            self._replicas.flush_ended(partition)
        if flush.segments[-1] is not flush.newest:  # very many segments: only the oldest were taken
            self._due[partition] = None
            self._woken.set()
        if partition.flushed(self._clocks.now_ms()) and partition.state is not None:
            self._replicas.touched(partition.state.place)
        self._replicas.look_at(partition)
        return partition.offline is None

    def _go_offline(self, partition: Partition, why: str) -> None:
        logger.error("partition.offline partition=%s why=%r", partition.name, why)
        partition.go_offline(why)
