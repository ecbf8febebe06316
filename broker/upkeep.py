"""What happens to logs over time: old segments go, compacted ones take the place of others, files that left are removed.

    look ─► leaders raise log starts ─► durable ─► segments below leave ─► (file.delete.delay.ms) ─► their files are removed
         ─► the log that needs it most is compacted, step by step, and then the next

What it keeps true (docs/STORAGE.md, 10.8 and 10.9; ADR 79):

* Where a log starts is its leader's to decide; a follower hears of it, and frees the same bytes.
* Nothing leaves before the log's start is durable, and nothing at or above the high watermark.
* Everything is done in steps of a few milliseconds; what waits for the disk is done in a worker thread, and a log is
  never cut, closed or removed meanwhile (`Log.is_in_use`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from tidelog.broker.io import in_a_thread
from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests.context import Clocks
from tidelog.protocol.errors import DiskFull, StorageError
from tidelog.storage.cleaning import LOOP_MEMORY_BYTES, Pace, dirt, next_to_compact
from tidelog.storage.log_compaction import Compaction
from tidelog.storage.retention import Leftovers, retain

logger = logging.getLogger(__name__)

_REMOVE_S = 1.0
"""How often it is looked for files whose delay is over, while there are any."""


@dataclass(frozen=True, slots=True)
class UpkeepSettings:
    """How often logs are looked at, and how much compaction may take of the disk."""

    check_interval_ms: int = 300_000
    compaction_bytes_s: int = 64 << 20
    """Read and written in a second. Less leaves more to others and keeps logs longer."""


class Upkeep:
    """The upkeep of one data directory. `run` is a task of the node; `stop` it before logs are closed."""

    def __init__(
        self,
        replicas: Replicas,
        clocks: Clocks,
        settings: UpkeepSettings,
        *,
        save_log_starts: Callable[[], Awaitable[bool]],
    ) -> None:
        self.leftovers = Leftovers()
        self.removed_segments = 0
        """How many have left their logs because they were old enough."""
        self.compactions = 0
        """How many have come to their end."""
        self._replicas = replicas
        self._clocks = clocks
        self._settings = settings
        self._save_log_starts = save_log_starts
        self._stopping = False
        self._woken = asyncio.Event()

    def reconfigure(self, settings: UpkeepSettings) -> None:
        """Settings have changed, of brokers or of topics: look soon."""
        self._settings = settings
        self._woken.set()

    def stop(self) -> None:
        """Begin nothing more; `run` ends when nothing is under way."""
        self._stopping = True
        self._woken.set()

    async def run(self) -> None:
        """Look after the logs until told to stop."""
        loop = asyncio.get_running_loop()
        look_at = loop.time() + self._settings.check_interval_ms / 1000
        while not self._stopping:
            due_s = min(look_at, loop.time() + _REMOVE_S) if self.leftovers else look_at
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._woken.wait()
            if self._woken.is_set() or loop.time() >= look_at:
                self._woken.clear()
                look_at = loop.time() + self._settings.check_interval_ms / 1000
                await self._retain()
                await self._compact()
            await self._remove()

    # ── retention ─────────────────────────────────────────────────────────────────────────────────

    async def _retain(self) -> None:
        raised = False
        for partition in list(self._replicas.partitions.values()):
            if self._stopping:
                return
            if partition.offline is not None or partition.leadership is None:
                continue
            try:
                raised |= retain(partition.log, partition.high_watermark, self._clocks.wall_ms())
            except DiskFull as full:
                logger.warning("retention.refused partition=%s reason=%s", partition.name, full)
            await asyncio.sleep(0)
        if raised and not await self._save_log_starts():
            return
        for partition in list(self._replicas.partitions.values()):
            self._retire(partition)
            await asyncio.sleep(0)

    def _retire(self, partition: Partition) -> None:
        """What lies below the log's start leaves it, if that is durable; what is in use leaves it the next time."""
        log = partition.log
        if partition.offline is None and not log.is_in_use and log.log_start <= partition.saved_log_start:
            left = self.leftovers.take(log, self._clocks.wall_ms())
            self.removed_segments += left
            if left:
                logger.info(
                    "segments.removed partition=%s count=%d start=%d", partition.name, left, log.log_start
                )

    async def _remove(self) -> None:
        while self.leftovers.remove(self._clocks.wall_ms()):  # noqa: ASYNC110 -- others have their turn
            await asyncio.sleep(0)

    # ── compaction ────────────────────────────────────────────────────────────────────────────────

    async def _compact(self) -> None:
        """Every log that is worth it, the one that needs it most first."""
        tried: set[Partition] = set()
        while not self._stopping:
            now_ms = self._clocks.wall_ms()
            candidates = [
                partition
                for partition in self._replicas.partitions.values()
                if partition.log.config.compacts and partition.offline is None and partition not in tried
            ]
            dirty = [(p.log, dirt(p.log, p.high_watermark, now_ms)) for p in candidates]
            chosen = next_to_compact(dirty)
            if chosen is None:
                return
            partition = next(each for each in candidates if each.log is chosen)
            tried.add(partition)
            await self._compact_one(partition)

    async def _compact_one(self, partition: Partition) -> None:
        log, loop = partition.log, asyncio.get_running_loop()
        compaction = Compaction(log, self._replicas.data, self.leftovers)
        pace = Pace(self._settings.compaction_bytes_s)
        try:
            for step in compaction.steps(partition.high_watermark, self._clocks.wall_ms(), LOOP_MEMORY_BYTES):
                if step is None:
                    await asyncio.sleep(pace.pause_s(compaction.moved_bytes, loop.time()))
                else:
                    await in_a_thread(step)
                    self._replicas.flush_ended(partition)  # it may have left meanwhile
                if self._stopping and log.compaction is compaction:
                    compaction.abort()
        except (DiskFull, StorageError) as error:
            logger.warning("compaction.refused partition=%s reason=%s", partition.name, error)
            return
        outcome = compaction.outcome
        if outcome is not None:
            self.compactions += 1
            logger.info(
                "compaction.done partition=%s read=%d written=%d dropped=%d",
                partition.name,
                outcome.read_bytes,
                outcome.written_bytes,
                outcome.dropped_records,
            )
