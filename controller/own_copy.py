"""What a controller that follows makes of what it fetches: a `following.Copy` that votes.

Its fetches say what it has on stable storage, so that a majority of them commits; and every answer tells the quorum
that the leader is alive.
"""

import asyncio
from collections.abc import Callable, Iterator

from tidelog.controller.archive import Archive
from tidelog.controller.image import Image
from tidelog.controller.metadata_log import MetadataLog
from tidelog.controller.quorum import Quorum
from tidelog.protocol.types import NO_OFFSET, BrokerId, Epoch, Offset
from tidelog.replication.followership import LogView
from tidelog.storage.log import Log


class OwnCopy:
    """A voter's. `told` is called when the quorum has heard something, `grown` when something was appended."""

    def __init__(
        self,
        metadata: MetadataLog,
        quorum: Quorum,
        *,
        now_ms: Callable[[], int],
        told: Callable[[], None],
        grown: Callable[[], None],
        lost: Callable[[BrokerId], None],
    ) -> None:
        self.durable = asyncio.Event()
        """Set whenever a flush has ended."""
        self._metadata = metadata
        self._quorum = quorum
        self._now_ms = now_ms
        self._told = told
        self._grown = grown
        self._lost = lost

    @property
    def log(self) -> Log:
        """The metadata log."""
        return self._metadata.log

    @property
    def archive(self) -> Archive:
        """With its snapshots."""
        return self._metadata.archive

    @property
    def quorum_epoch(self) -> Epoch:
        """The newest epoch that was heard of."""
        return self._quorum.epoch

    @property
    def controller_id(self) -> BrokerId:
        """Who leads in it."""
        return self._quorum.leader_id

    def view(self) -> LogView:
        """The log, and what is known to be committed of it."""
        log = self.log
        return LogView(log.log_start, log.end_offset, self._quorum.high_watermark, self.archive.epochs)

    def heard_of(self, controller: BrokerId, epoch: Epoch, *, from_itself: bool = False) -> bool:
        """Somebody says that this controller leads in that epoch."""
        before = self._quorum.epoch, self._quorum.leader_id
        self._quorum.heard_of(controller, epoch, self._now_ms(), from_itself=from_itself)
        self._told()
        return (self._quorum.epoch, self._quorum.leader_id) != before

    def heard(self, epoch: Epoch) -> None:
        """The leader of that epoch is alive."""
        self._quorum.fetched(epoch, NO_OFFSET, self.log.end_offset, self._now_ms())

    def denied(self, controller: BrokerId) -> None:
        """A leader that has begun anew leads no more: no need to wait for it."""
        if controller == self._quorum.leader_id and not self._quorum.leads:
            self._quorum.leader_is_gone(self._now_ms())
            self._told()

    async def before_fetch(self) -> None:
        """What a voter's fetch says that it has is on stable storage."""
        while self.log.durable_offset < self.log.end_offset:
            self.durable.clear()
            # Whoever appended it may have been called off before it said so: then nobody flushes it.
            self._grown()
            await self.durable.wait()

    def fetched(self, controller: BrokerId, epoch: Epoch, high_watermark: Offset) -> Iterator[None]:
        """What the leader had is appended, and so much is committed."""
        yield from self._metadata.grow()
        self._quorum.heard_of(controller, epoch, self._now_ms(), from_itself=True)
        self._quorum.fetched(epoch, high_watermark, self.log.end_offset, self._now_ms())
        self._grown()
        self._told()

    def cut(self) -> None:
        """The log was truncated."""
        self._metadata.cut()
        self._grown()

    def installed(self, image: Image) -> None:
        """A snapshot was: all of it is committed."""
        self._metadata.installed(image)
        self._quorum.high_watermark = max(self._quorum.high_watermark, image.end_offset)
        self._grown()
        self._told()

    def lost(self, controller: BrokerId) -> None:
        """The connection to the leader has ended."""
        self._lost(controller)

    def refused(self, controller: BrokerId) -> None:
        """Nobody listens there; if that is the leader, it is gone as well as if a connection had ended."""
        self._lost(controller)
