"""Logs are read again in the background, and what is found damaged is mended: a task for each.

    run    round after round: every segment of every replica, slowly ─► damage is noted in the partition
    mend   damage, from here or from any reader ─► the controller hears of it ─► a newer leader epoch without this
           replica ─► cut at the damaged segment ─► fetched again

What it keeps true (ADR 105; docs/STORAGE.md, 10.11):

* The disk is read in worker threads, and checked in steps of less than two milliseconds: nobody waits for it.
* Damage is believed when a second look has found it as well: the log may have been cut and have grown meanwhile.
* When a replica may be cut is decided by `damage`; here it is only looked when that has come.
"""

import asyncio
import errno
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from tidelog.broker.damage import is_gone, may_be_cut
from tidelog.broker.io import in_a_thread
from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests.context import Clocks
from tidelog.protocol.errors import DamagedLog, DiskFull, StorageError
from tidelog.storage.cleaning import Pace
from tidelog.storage.scrubbing import Scrub, after, in_turn
from tidelog.storage.segment import Segment

logger = logging.getLogger(__name__)

_LOOKS: Final = 2
"""How often damage must be found to be believed."""
_AGAIN_S: Final = 1.0
"""How soon it is looked again whether a damaged replica can be mended: it may have been flushed, or without room."""
_BETWEEN_ROUNDS_S: Final = 1.0
_MAY_PASS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


@dataclass(frozen=True, slots=True)
class ScrubSettings:
    """How logs are looked at again (`log.scrubber.*`)."""

    enable: bool = True
    interval_ms: int = 86_400_000
    """From the beginning of one round to that of the next; a round that takes longer is followed by the next."""
    bytes_s: int = 4 << 20
    """Read in a second. Less leaves more to others and finds damage later: a terabyte takes three days."""


class Scrubbing:
    """The scrubbing and mending of one broker. `run` and `mend` are tasks of the node."""

    def __init__(
        self,
        replicas: Replicas,
        clocks: Clocks,
        settings: ScrubSettings,
        rng: Random,
        *,
        tell_controller: Callable[[], None],
        mended: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.scrubbed_bytes = 0
        self.rounds = 0
        """How many have come to their end."""
        self.found = 0
        """How often damage was found, by readers too."""
        self.repairs = 0
        """How often a replica was cut for it."""
        self._replicas = replicas
        self._clocks = clocks
        self._rng = rng
        self._tell_controller = tell_controller
        self._mended = mended
        self._spent = 0
        """What all looks have cost: the pace is kept by it."""
        self._waiting = False
        """Something is damaged, and not mended yet."""
        self._to_mend = asyncio.Event()
        self._changed = asyncio.Event()
        replicas.damage_found = self._found

    def reconfigure(self, settings: ScrubSettings) -> None:
        """Go on with other settings; a round that is due by them begins now."""
        if settings != self.settings:
            self.settings = settings
            self._changed.set()

    def adopted(self) -> None:
        """The cluster has decided something: a damaged replica may be mended now."""
        if self._waiting:
            self._to_mend.set()

    # ── looking ───────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Round after round, until cancelled."""
        loop = asyncio.get_running_loop()
        began: float | None = None
        while True:
            if self.settings.enable:
                began = loop.time()
                await self._round()
            while True:
                due: float | None = None
                if self.settings.enable:
                    due = loop.time() + _BETWEEN_ROUNDS_S
                    if began is not None:
                        due = max(due, began + self.settings.interval_ms / 1000)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await self._changed.wait()
                if not self._changed.is_set():
                    break
                self._changed.clear()

    async def _round(self) -> None:
        began, before = asyncio.get_running_loop().time(), self.scrubbed_bytes
        pace = Pace(self.settings.bytes_s)
        for place, partition in in_turn(list(self._replicas.partitions.items()), self._rng):
            base = -1
            while self.settings.enable and self._replicas.partitions.get(place) is partition:
                segment = after(partition.log, base)
                if segment is None or not self._is_to_be_looked_at(partition):
                    break
                base = segment.base_offset
                await self._look_at(partition, segment, pace)
        self.rounds += 1
        logger.info(
            "scrub.round bytes=%d seconds=%d damaged=%d",
            self.scrubbed_bytes - before,
            asyncio.get_running_loop().time() - began,
            sum(each.damage is not None for each in self._replicas.partitions.values()),
        )

    def _is_to_be_looked_at(self, partition: Partition) -> bool:
        me = self._replicas.around.me
        return partition.offline is None and not may_be_cut(partition.damage, partition.state, me)

    async def _look_at(self, partition: Partition, segment: Segment, pace: Pace) -> None:
        """Look, and once more where something was found."""
        for look in range(_LOOKS):
            try:
                scrub = await self._look(partition, segment, pace)
            except OSError as error:
                if _is_there(partition, segment):
                    self._could_not_read(partition, segment, error)
                return
            if scrub is None or scrub.problem is None:
                return
            if look == _LOOKS - 1:
                partition.found_damage(scrub.damage(f"{partition.log.directory.path}/{segment.name}"))

    async def _look(self, partition: Partition, segment: Segment, pace: Pace) -> Scrub | None:
        """All of a segment, or as far as it is whole; None: it is no longer what it was when the look began."""
        if segment.stage:
            return None  # compaction is just putting it in its place, in a thread: its name changes
        loop, scrub, before = asyncio.get_running_loop(), Scrub(segment), self._spent
        file = partition.log.directory.open(segment.name)  # of its own: nobody closes it meanwhile
        try:
            while (wanted := scrub.wanted) is not None:
                piece = await in_a_thread(partial(file.read_at, *wanted))
                for _ in scrub.check(piece):
                    await asyncio.sleep(0)
                if not _is_there(partition, segment) or segment.size < scrub.size:
                    return None
                self.scrubbed_bytes += len(piece)
                pace.bytes_per_second = self.settings.bytes_s
                self._spent = before + scrub.cost
                await asyncio.sleep(pace.pause_s(self._spent, loop.time()))
        finally:
            file.close()
        return scrub

    def _could_not_read(self, partition: Partition, segment: Segment, error: OSError) -> None:
        """As when a reader comes upon it (1.9)."""
        if error.errno in _MAY_PASS:
            logger.warning("scrub.refused partition=%s reason=%s", partition.name, error.strerror)
            return
        partition.go_offline(f"{segment!r} could not be read: {error.strerror}")
        logger.error("partition.offline partition=%s why=%r", partition.name, partition.offline)
        self._tell_controller()

    # ── mending ───────────────────────────────────────────────────────────────────────────────────

    def _found(self, partition: Partition) -> None:
        assert partition.damage is not None, partition
        self.found += 1
        logger.error(
            "log.damaged partition=%s leads=%s offset=%d to=%d why=%r",
            partition.name,
            partition.leadership is not None,
            partition.damage.base_offset,
            partition.damage.end_offset,
            partition.damage.why,
        )
        self._tell_controller()
        self._to_mend.set()

    async def mend(self) -> None:
        """Whatever is damaged, as soon as it may be, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S if self._waiting else None):
                    await self._to_mend.wait()
            self._to_mend.clear()
            damaged = [each for each in self._replicas.partitions.values() if each.damage is not None]
            for partition in damaged:
                self._mend(partition)
                await asyncio.sleep(0)
            self._waiting = any(each.damage is not None for each in damaged)

    def _mend(self, partition: Partition) -> None:
        """The next step, if there is one."""
        damage, me = partition.damage, self._replicas.around.me
        if damage is None or partition.offline is not None:
            return
        if is_gone(damage, partition.log):
            logger.info("log.damage_deleted partition=%s start=%d", partition.name, partition.log.log_start)
            partition.damage = None
            self._is_mended(partition)
        elif may_be_cut(damage, partition.state, me) and not partition.log.is_in_use:
            self._cut(partition)

    def _cut(self, partition: Partition) -> None:
        end = partition.log.end_offset
        try:
            done = partition.cut_damaged(self._clocks.wall_ms())
        except DamagedLog as older:
            partition.found_damage(older)
        except DiskFull as full:
            logger.warning("log.not_mended partition=%s reason=%s", partition.name, full)
        except StorageError as error:
            partition.go_offline(str(error))
            logger.error("partition.offline partition=%s why=%r", partition.name, partition.offline)  # noqa: TRY400
            self._tell_controller()
        else:
            self.repairs += done
            logger.warning(
                "log.mended partition=%s from=%d to=%d", partition.name, end, partition.log.end_offset
            )
            if done:
                self._is_mended(partition)
            else:
                self._to_mend.set()

    def _is_mended(self, partition: Partition) -> None:
        if partition.state is not None:
            self._replicas.asks_anew(partition.state.place)
        self._mended()


def _is_there(partition: Partition, segment: Segment) -> bool:
    return partition.offline is None and segment in partition.log.segments
