"""Force logs to the disk, and write the checkpoints that say so; all of it off the event loop.

    flush.mode=group   as soon as there is something new: one flush for all that came while the last one ran
    every log          each `flush.ms`, and after so many bytes, so that a restart has little to check

What it keeps true (docs/STORAGE.md; D7, D12, I-31, I-32):

* One flush of a log at a time, and what it covers is what was there when it began.
* A flush or checkpoint that failed ends the process (`halt`): nothing is retried.
"""

import asyncio
import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tidelog.broker.io import in_a_thread
from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests.context import Clocks
from tidelog.protocol.types import Offset, TopicPartition
from tidelog.storage.checkpoints import PendingWrite

_AT_ONCE = 4
"""Logs that are flushed at the same time."""


@dataclass(frozen=True, slots=True)
class FlushSettings:
    """When logs are flushed and checkpoints written."""

    flush_ms: int = 30_000
    """Every log at least this often."""
    flush_bytes: int = 64 << 20
    """And all logs when so many bytes were appended to any of them."""
    high_watermark_checkpoint_ms: int = 5_000
    log_start_checkpoint_ms: int = 60_000


class Flusher:
    """The flushing of one data directory. `run` and `keep_checkpoints` are tasks of the node."""

    def __init__(
        self,
        replicas: Replicas,
        clocks: Clocks,
        settings: FlushSettings,
        *,
        flushed: Callable[[list[Partition]], None],
    ) -> None:
        self._replicas = replicas
        self._clocks = clocks
        self._settings = settings
        self._flushed = flushed
        self._due: dict[Partition, None] = {}
        self._new_bytes = 0
        self._woken = asyncio.Event()

    def appended(self, partition: Partition, size: int = 0) -> None:
        """Something was appended; in `group` mode it counts only when it is flushed."""
        self._new_bytes += size
        if partition.state is not None and partition.state.flush_group:
            self._due[partition] = None
            self._woken.set()
        elif self._new_bytes >= self._settings.flush_bytes:
            self._woken.set()

    async def run(self) -> None:
        """Flush what is due, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._settings.flush_ms / 1000):
                    await self._woken.wait()
            except TimeoutError:
                self._new_bytes = self._settings.flush_bytes
            self._woken.clear()
            if self._new_bytes >= self._settings.flush_bytes:
                self._new_bytes = 0
                self._due.clear()
                await self._flush(self._replicas.partitions.values())
                await self.write(self._replicas.data.write_recovery_points())
            else:
                due, self._due = self._due, {}
                await self._flush(due)

    async def keep_checkpoints(self) -> None:
        """Write down, from time to time, what is committed and where logs start."""
        settings = self._settings
        rounds = 0
        while True:
            await asyncio.sleep(settings.high_watermark_checkpoint_ms / 1000)
            rounds += 1
            await self.write(self._replicas.data.write_high_watermarks(self.committed()))
            if rounds * settings.high_watermark_checkpoint_ms >= settings.log_start_checkpoint_ms:
                rounds = 0
                await self.write(self._replicas.data.write_log_starts())

    def committed(self) -> dict[TopicPartition, Offset]:
        """How far each replica knows that its partition is committed, led, followed or leaderless (KAFKA-1647)."""
        return {partition.name: partition.high_watermark for partition in self._replicas.partitions.values()}

    async def write(self, pending: PendingWrite) -> None:
        """Write a checkpoint. On a full disk the old one stays, and says less than could be said."""
        try:
            await in_a_thread(pending.run)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self._replicas.data.halt("write a checkpoint", error)

    async def _flush(self, partitions: Iterable[Partition]) -> None:
        """Flush these logs, some at a time, and tell who waits for it."""
        jobs = [
            (partition, flush)
            for partition in partitions
            if not partition.log.is_flushing and (flush := partition.log.begin_flush()) is not None
        ]
        for first in range(0, len(jobs), _AT_ONCE):
            some = jobs[first : first + _AT_ONCE]
            async with asyncio.TaskGroup() as group:
                for _, flush in some:
                    group.create_task(in_a_thread(flush.run))
            for partition, flush in some:
                partition.log.end_flush(flush)
                if partition.flushed(self._clocks.now_ms()) and partition.state is not None:
                    self._replicas.touched((partition.state.topic_id, partition.state.index))
                self._replicas.look_at(partition)
            self._flushed([partition for partition, _ in some])
