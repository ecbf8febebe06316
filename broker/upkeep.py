"""What happens to logs over time: old segments go, compacted ones take the place of others, what has left is removed.

    look ─► leaders raise log starts ─► durable ─► segments below leave ─► (file.delete.delay.ms) ─► their files are removed
    look ─► the log that needs it most is compacted, step by step, and then the next: for hours, beside all else
    a log is not placed here any more ─► its directory has another name ─► durable ─► it is removed, beside all else

What it keeps true (docs/STORAGE.md, 10.8 and 10.9; ADR 79):

* Where a log starts is its leader's to decide; a follower hears of it, and frees the same bytes. Each closes its own
  segments when they are old: what is written to no more is closed by nobody else.
* Nothing leaves before the log's start is durable, and nothing at or above the high watermark.
* Nobody waits for it: logs are compacted in another process where there is one (ADR 104), and all else is done in
  steps of a few milliseconds. What waits for the disk is done in a worker thread, and a log is never cut, closed or
  removed meanwhile (`Log.is_in_use`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tidelog.broker.io import in_a_thread
from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests.context import Clocks
from tidelog.broker.space import has_room_for
from tidelog.protocol.errors import DamagedLog, DiskFull, StorageError
from tidelog.protocol.types import Offset
from tidelog.storage.cleaning import (
    LOOP_MEMORY_BYTES,
    PROCESS_MEMORY_BYTES,
    Dirt,
    Pace,
    Plan,
    dirt,
    largest_group,
    next_to_compact,
)
from tidelog.storage.compaction import Compactor
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.files import Directory
from tidelog.storage.log import Log
from tidelog.storage.log_compaction import Compaction, Compacts, CompactsElsewhere
from tidelog.storage.retention import Leftovers, look, remove, retain, seal

logger = logging.getLogger(__name__)

_REMOVE_S = 1.0
"""How often it is looked for files whose delay is over, while there are any."""
_LOOK_AT_ONCE = 50
"""Logs of which it is looked how dirty they are in one go: some microseconds each."""
_AT_ONCE = 16
"""Directories that are removed in one go of a worker thread: a stop waits for it."""


@dataclass(frozen=True, slots=True)
class UpkeepSettings:
    """How often logs are looked at, and how much compaction may take of the disk."""

    check_interval_ms: int = 300_000
    compaction_bytes_s: int = 64 << 20
    """Read and written in a second. Less leaves more to others and keeps logs longer."""
    compaction_memory_bytes: int = PROCESS_MEMORY_BYTES
    """For the keys of the log that is compacted, in the other process; what does not fit is done in several passes."""
    compaction_enable: bool = True


class Upkeep:
    """The upkeep of all logs. `run` is a task of the node; `stop` it before logs are closed."""

    def __init__(
        self,
        replicas: Replicas,
        clocks: Clocks,
        settings: UpkeepSettings,
        *,
        save_log_starts: Callable[[], Awaitable[bool]],
        elsewhere: CompactsElsewhere | None = None,
    ) -> None:
        self._woken = asyncio.Event()
        self.leftovers = Leftovers(self._woken.set)
        self.removed_segments = 0
        """How many have left their logs because they were old enough."""
        self.compactions = 0
        """How many have come to their end."""
        self._replicas = replicas
        self._clocks = clocks
        self._settings = settings
        self._save_log_starts = save_log_starts
        self._elsewhere = elsewhere
        self._stopping = False
        self._asked = False
        """Settings have changed: look at once."""
        self._compact_soon = asyncio.Event()
        self._left = asyncio.Event()
        replicas.data.on_left = self._left.set

    def reconfigure(self, settings: UpkeepSettings) -> None:
        """Settings have changed, of brokers or of topics: look soon."""
        self._settings = settings
        self._asked = True
        self._woken.set()
        self._compact_soon.set()

    def stop(self) -> None:
        """Begin nothing more; `run` ends when nothing is under way."""
        self._stopping = True
        self._woken.set()
        self._compact_soon.set()
        self._left.set()

    async def run(self) -> None:
        """Look after the logs until told to stop."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_after())
            group.create_task(self._keep_compact())
            group.create_task(self._clear())

    async def _look_after(self) -> None:
        loop = asyncio.get_running_loop()
        look_at = loop.time() + self._settings.check_interval_ms / 1000
        while not self._stopping:
            due_s = min(look_at, loop.time() + _REMOVE_S) if self.leftovers else look_at
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._woken.wait()
            self._woken.clear()
            if self._asked or loop.time() >= look_at:
                self._asked = False
                look_at = loop.time() + self._settings.check_interval_ms / 1000
                await self._retain()
            await self._remove()

    async def _keep_compact(self) -> None:
        """A task of its own: on a disk that fills, what is old has to go while a large log is compacted."""
        while not self._stopping:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.check_interval_ms / 1000):
                    await self._compact_soon.wait()
            self._compact_soon.clear()
            await self._compact()
            if self._elsewhere is not None:
                await in_a_thread(self._elsewhere.close)

    # ── retention ─────────────────────────────────────────────────────────────────────────────────

    async def _retain(self) -> None:
        raised = False
        for partition in list(self._replicas.partitions.values()):
            if self._stopping:
                return
            if partition.offline is not None:
                continue
            log, now_ms = partition.log, self._clocks.wall_ms()
            look(log, self._clocks.boot_ms())
            if partition.leadership is not None:
                raised |= retain(log, partition.high_watermark, now_ms)
            try:
                seal(log, now_ms)
            except (DiskFull, StorageError) as refused:
                logger.warning("retention.refused partition=%s reason=%s", partition.name, refused)
            except DamagedLog as damage:
                _found_damage("retention", partition, damage)
            await asyncio.sleep(0)
        if raised and not await self._save_log_starts():
            return
        for partition in list(self._replicas.partitions.values()):
            self._retire(partition)
            await asyncio.sleep(0)

    def _retire(self, partition: Partition) -> None:
        """What lies below the log's start leaves it, if that is durable; what is in use leaves it the next time.

        What is being compacted counts as that: to retire a segment would end the compaction, at every look.
        """
        log = partition.log
        busy = log.is_in_use or log.compaction is not None
        if partition.offline is None and not busy and log.log_start <= partition.saved_log_start:
            try:
                left = self.leftovers.take(log, self._clocks.wall_ms())
            except StorageError as refused:
                logger.warning("retention.refused partition=%s reason=%s", partition.name, refused)
                return
            self.removed_segments += left
            if left:
                logger.info(
                    "segments.removed partition=%s count=%d start=%d", partition.name, left, log.log_start
                )

    async def _remove(self) -> None:
        try:
            while due := self.leftovers.due(self._clocks.wall_ms()):
                await in_a_thread(partial(remove, due))
        except OSError as error:  # the next start removes them
            logger.warning("segments.not_removed reason=%s", error)

    # ── logs that have left ───────────────────────────────────────────────────────────────────────────

    async def _clear(self) -> None:
        """Remove what is left of logs, as soon as there is some; what a stop leaves is removed by the next start."""
        while True:
            await self._left.wait()
            if self._stopping:
                return
            taken = self._replicas.data.take_left(_AT_ONCE)
            if taken is None:
                self._left.clear()
            else:
                await self._destroy(*taken)

    async def _destroy(self, data: DataDirectory, names: list[str]) -> None:
        removals = data.write_removals()
        try:
            await in_a_thread(partial(data.make_removals_durable, removals))
        except OSError as error:
            with suppress(StorageError):
                data.halt("make removals durable", error)
            return
        try:
            await in_a_thread(partial(data.destroy, *names))
        except OSError as error:  # the next start removes them
            logger.warning("logs.not_removed path=%s reason=%s", data.directory.path, error)

    # ── compaction ────────────────────────────────────────────────────────────────────────────────

    async def _compact(self) -> None:
        """Every log that is worth it, the one that needs it most first."""
        tried: set[Partition] = set()
        while self._settings.compaction_enable and not self._stopping:
            partition = await self._dirtiest(tried)
            if partition is None:
                return
            if not await self._compact_one(partition):
                tried.add(partition)

    async def _dirtiest(self, tried: set[Partition]) -> Partition | None:
        """The partition whose turn it is; some thousand are looked at with turns for others in between."""
        dirty: dict[Log, tuple[Partition, Dirt]] = {}
        for number, partition in enumerate(list(self._replicas.partitions.values()), 1):
            if partition.log.config.compacts and partition not in tried:
                waits = dirt(partition.log, partition.high_watermark, self._clocks.wall_ms())
                dirty[partition.log] = partition, waits
            if number % _LOOK_AT_ONCE == 0:
                await asyncio.sleep(0)
        there = {partition.log for partition in self._replicas.partitions.values() if _is_well(partition)}
        chosen = next_to_compact([(log, waits) for log, (_, waits) in dirty.items() if log in there])
        return dirty[chosen][0] if chosen is not None else None

    async def _compact_one(self, partition: Partition) -> bool:
        """Compact its log, as far as memory allows. Whether it came further, and is to go on from there."""
        log, loop, settings = partition.log, asyncio.get_running_loop(), self._settings
        data, memory, begin = self._replicas.data.of(partition.name), *self._where()
        needed = largest_group(log, partition.high_watermark, self._clocks.wall_ms())
        if not _fits(partition, data, needed):
            return False
        compaction = Compaction(log, data, self.leftovers, begin)
        pace, asks = Pace(settings.compaction_bytes_s), 0
        try:
            for step in compaction.steps(
                partition.high_watermark, self._clocks.wall_ms(), memory, self._purge_below(partition)
            ):
                if step is None:
                    pause_s = pace.pause_s(compaction.moved_bytes, loop.time())
                    await asyncio.sleep(max(pause_s, compaction.pause_s))
                    fits, asks = _fits(partition, data, asks), 0
                else:
                    await in_a_thread(compaction.handed_over(step))
                    self._replicas.flush_ended(partition)  # it may have left meanwhile
                    # The group that is written now is put in its place, and what it replaces is still there for a
                    # while: whether the next one fits is asked anew.
                    fits, asks = True, needed
                if (self._stopping or not fits) and log.compaction is compaction:
                    compaction.abort()
        except (DiskFull, StorageError) as error:
            logger.warning("compaction.refused partition=%s reason=%s", partition.name, error)
            return False
        except DamagedLog as damage:
            _found_damage("compaction", partition, damage)
            return False
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
        return compaction.is_partial

    def _purge_below(self, partition: Partition) -> Offset | None:
        """Who copies from here keeps tombstones here; a follower has nobody who copies from it."""
        leadership = partition.leadership
        return leadership.purge_below(self._clocks.now_ms()) if leadership is not None else None

    def _where(self) -> tuple[int, Callable[[Directory, Plan], Compacts]]:
        """The memory for keys, and who does the work: another process, or steps of this loop with small tables."""
        elsewhere, settings = self._elsewhere, self._settings
        if elsewhere is None:
            return min(settings.compaction_memory_bytes, LOOP_MEMORY_BYTES), Compactor
        bytes_s = settings.compaction_bytes_s
        return settings.compaction_memory_bytes, lambda log, plan: elsewhere.begin(log, plan, bytes_s)


def _is_well(partition: Partition) -> bool:
    """Whether its log may be compacted: damage would end that again and again, and is cut off as soon as may be."""
    return partition.offline is None and partition.damage is None


def _found_damage(who: str, partition: Partition, damage: DamagedLog) -> None:
    """Say so, and have the partition mend it; where it is not said which segment it is, the scrubber finds it."""
    logger.error("%s.damage partition=%s reason=%s", who, partition.name, damage)
    if damage.base_offset >= 0:
        partition.found_damage(damage)


def _fits(partition: Partition, data: DataDirectory, size: int) -> bool:
    """Whether so much may be written beside its log."""
    fits = has_room_for(data, size)
    if not fits:
        logger.warning("compaction.refused partition=%s reason='no room for %d bytes'", partition.name, size)
    return fits
