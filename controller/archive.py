"""The metadata log of a node together with its snapshots: opened, shortened, and begun anew where it must be (4.13).

    open ────────► image of the newest snapshot; the log goes on from there
    take_if_due ─► a snapshot of what is committed, then the log may begin later
    fetch ───────► another node's snapshot, where what this node lacks is not in any log any more

The rules are those of `snapshots`; this carries them out. What it keeps true: one snapshot is written at a time, and a
segment is deleted only when a durable snapshot and a durable log start say that nobody needs it (I-34).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from tidelog.controller.image import Image
from tidelog.controller.io import in_a_thread
from tidelog.controller.snapshot_file import SnapshotId
from tidelog.controller.snapshots import SnapshotConfig, Snapshots, due
from tidelog.protocol.errors import ConnectionFailed, CorruptSnapshot, DamagedLog, DiskFull, error_of
from tidelog.protocol.messages import EpochEnd, FetchSnapshot, FetchSnapshotReply, Reply
from tidelog.protocol.types import Buffer
from tidelog.replication.breathing import breathing
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.files import NoRoom, refusal
from tidelog.storage.log import Log

logger = logging.getLogger(__name__)

PIECE_BYTES: Final = 1 << 20
_POLL_S: Final = 0.005
_NO_ROOM_S: Final = 1.0
"""How long none is fetched after one for which there was no room; twice as long each time, up to the next line."""
_NO_ROOM_MAX_S: Final = 30.0


class Archive:
    """One node's. `save_log_start` makes the log's start durable; `flushes`: nobody else flushes the log."""

    def __init__(
        self,
        log: Log,
        config: SnapshotConfig,
        save_log_start: Callable[[], Awaitable[object]],
        *,
        flushes: bool = False,
    ) -> None:
        self.log = log
        self.snapshots = Snapshots(log.directory)
        self._config = config
        self._save_log_start = save_log_start
        self._flushes = flushes
        self._taken_s = 0.0
        self._busy = False
        self._start_unsaved = False
        """There was no room to say where the log begins since a snapshot was installed."""
        self._no_room_s = 0.0
        """How long none is fetched since the last one, for which there was no room; 0: there was."""
        self._fetches_from_s = 0.0

    @property
    def epochs(self) -> LeaderEpochs:
        """The log's, and what is known of what lies below its start: for votes and fetches."""
        return self.snapshots.epochs(self.log.epochs, self.log.log_start)

    async def open(self, *, may_forget: bool = False) -> Image:
        """The newest snapshot's image; empty if there is none. `may_forget`: whoever only reads may begin anew."""
        self._taken_s = asyncio.get_running_loop().time()
        await breathing(self.snapshots.open())
        for problem in self.snapshots.problems:
            logger.warning("metadata.snapshot %s", problem)
        try:
            begins = self.snapshots.where_to_begin(self.log.log_start, self.log.end_offset, self.log.epochs)
        except DamagedLog as damage:
            if not may_forget:
                raise
            logger.warning("metadata.forgotten %s", damage)
            begins = 0
        if begins is not None:
            self.log.truncate_fully_and_start_at(begins)
        return await self._load()

    async def take_if_due(self, committed: Image) -> bool:
        """Take one of the image of what is committed, if it is time. Whether it was."""
        if self._start_unsaved:
            await self.installed()
        newest, now_s = self.snapshots.newest, asyncio.get_running_loop().time()
        begins = max(newest.end if newest else 0, self.log.log_start)
        if self._busy or committed.end_offset <= begins:
            return False
        grown = self.log.bytes_between(begins, committed.end_offset)
        if not due(grown, (now_s - self._taken_s) * 1000, self._config):
            return False
        self._busy, self._taken_s = True, now_s
        try:
            writing = self.snapshots.begin(committed, self.epochs.epoch_of(committed.end_offset - 1))
            await in_a_thread(writing.run)
            self.snapshots.add(writing)
            await self._shorten()
        except NoRoom as full:
            logger.warning("metadata.snapshot no room: %s", full)
        finally:
            self._busy = False
        return True

    async def fetch(
        self, ask: Callable[[FetchSnapshot], Awaitable[tuple[Reply, Buffer]]], wanted: EpochEnd
    ) -> Image:
        """Get that snapshot from whoever leads, load it, and begin the log anew at its end.

        Its image is to take the place of what the log said before in the same turn; then call `installed`. DiskFull:
        there is no room for it, or was none a while ago: another time perhaps.
        """
        loop = asyncio.get_running_loop()
        receiving = self.snapshots.receiving(SnapshotId(wanted.end_offset, wanted.epoch))
        if loop.time() < self._fetches_from_s:
            raise DiskFull(f"there was no room for a snapshot: {receiving.snapshot.name} is not fetched yet")
        try:
            while not receiving.complete:
                reply, data = await ask(FetchSnapshot(wanted, receiving.position, PIECE_BYTES))
                if not isinstance(reply, FetchSnapshotReply):
                    raise ConnectionFailed(f"a snapshot was asked for, {type(reply).__name__} came")
                if reply.error:
                    raise error_of(reply.error, reply.message or "")
                receiving.take(reply.position, reply.size, data)
            await in_a_thread(receiving.run)
        except CorruptSnapshot as corrupt:
            logger.warning("metadata.snapshot %s", corrupt)
            raise ConnectionFailed(str(corrupt)) from corrupt
        except NoRoom as full:
            receiving.abandon()  # what has come of it would take the room that others need
            self._no_room_s = min(2 * self._no_room_s or _NO_ROOM_S, _NO_ROOM_MAX_S)
            self._fetches_from_s = loop.time() + self._no_room_s
            logger.warning("metadata.snapshot no room: %s", full)
            raise refusal(f"{receiving.snapshot.name} could not be fetched: {full.strerror}", full) from full
        self._no_room_s = 0.0
        self.snapshots.add(receiving)
        image = await self._load()
        while self.log.is_flushing:  # noqa: ASYNC110 -- rare, and no reason to tell every flusher of us
            await asyncio.sleep(_POLL_S)
        begins = self.snapshots.where_to_begin(self.log.log_start, self.log.end_offset, self.log.epochs)
        if begins is not None:
            self.log.truncate_fully_and_start_at(begins)
        return image

    async def installed(self) -> None:
        """The image that was fetched is in use: what came before it is not needed any more.

        Without room to say where the log begins, what came before it stays, and `take_if_due` comes here again.
        """
        self._start_unsaved = True
        try:
            await self._save_log_start()
        except NoRoom as full:
            logger.warning("metadata.snapshot no room: %s", full)
            return
        self._start_unsaved = False
        self.snapshots.remove_old(self.log.log_start)

    async def _load(self) -> Image:
        newest = self.snapshots.newest
        if newest is None:
            return Image()
        loading = self.snapshots.load(newest)
        await breathing(loading.steps())
        return loading.image

    async def _shorten(self) -> None:
        """The log may begin where the second newest snapshot ends, once it is durable up to there."""
        while self._flushes and (flush := self.log.begin_flush()) is not None:
            running = asyncio.ensure_future(in_a_thread(flush.run))
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.wait([running])  # a process that stops closes this log: not while it is flushed
                raise
            finally:
                self.log.end_flush(flush)
        start = self.snapshots.log_start(self.log.log_start, self.log.durable_offset)
        if start > self.log.log_start:
            self.log.raise_log_start(start)
            await self._save_log_start()
            while self.log.is_flushing:  # noqa: ASYNC110 -- as above
                await asyncio.sleep(_POLL_S)
            self.log.delete_old_segments()
        self.snapshots.remove_old(self.log.log_start)
