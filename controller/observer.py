"""A node that follows the metadata log: it keeps a copy, adds it up to an image, and speaks to the controller.

`following` has the way to whoever leads; here is what becomes of it, and requests to the active controller
(design 4.14, 4.15).

What it keeps true (I-43, I-49):

* The image holds committed batches only, each once, in their order; `on_batch` is called in the same moment as
  the image changes, once per batch, when all of its facts hold.
* A request goes to the controller that was last heard to lead in the highest epoch, and names that epoch; every
  repetition is built anew, so that it can carry another number of its own (D3).
* Whatever this node cannot go on with ends `run`; whoever runs an observer stops its node then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from random import Random
from typing import TypeAlias

from tidelog.controller.archive import Archive
from tidelog.controller.following import READ_BYTES, Address, Following, FollowingConfig, Reader
from tidelog.controller.image import Changes, Image
from tidelog.controller.snapshots import SnapshotConfig
from tidelog.protocol.batch import walk
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import ConnectionFailed, NoController, NotController, RequestTimedOut
from tidelog.protocol.io import Connection
from tidelog.protocol.messages import Hello, Reply, Request
from tidelog.protocol.types import NO_BROKER, BrokerId, Epoch, Offset
from tidelog.replication.breathing import breathing
from tidelog.replication.followership import LogView
from tidelog.storage.log import Log

Build: TypeAlias = Callable[[Epoch], Request]
"""Makes a request for the controller of that quorum epoch; called anew for every time it is sent."""


class Observer:
    """One node's view of the cluster, and its way to the active controller. See the module."""

    def __init__(  # noqa: PLR0913 -- what it observes, and of the world around it what it needs, each by its name
        self,
        controllers: Mapping[BrokerId, Address],
        log: Log,
        high_watermark: Offset,
        on_batch: Callable[[Changes], None],
        *,
        wall_ms: Callable[[], int],
        rng: Random,
        broker_id: BrokerId = NO_BROKER,
        hello: Hello | None = None,
        bounds: Bounds | None = None,
        config: FollowingConfig | None = None,
        on_lost: Callable[[], None] | None = None,
        snapshots: SnapshotConfig | None = None,
        save_log_start: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        assert log.log_start <= high_watermark <= log.end_offset, (log, high_watermark)
        self.image = Image()
        """The cluster as far as it is known here. One object for ever; `on_batch` tells when it has changed."""
        self.log = log
        self.high_watermark = high_watermark
        """What is committed of the log. It is not flushed: checkpoint no more of it than is durable."""
        self.quorum_epoch: Epoch = max(log.epochs.latest, 0)
        """The highest that was heard of."""
        self.controller_id = NO_BROKER
        """Who leads the quorum in that epoch, an id among controllers; -1: not known."""
        self.archive = Archive(log, snapshots or SnapshotConfig(), save_log_start or _nothing, flushes=True)
        """The log with its snapshots. `save_log_start` makes durable where it begins."""
        self._on_batch = on_batch
        self._on_lost = on_lost or (lambda: None)
        self._following = Following(
            self,
            controllers,
            Reader(hello=hello or Hello(), node_id=broker_id),
            wall_ms=wall_ms,
            rng=rng,
            bounds=bounds,
            config=config,
        )

    def __repr__(self) -> str:
        return f"<observes controller {self.controller_id} in epoch {self.quorum_epoch}: {self.image!r}>"

    @property
    def caught_up_to(self) -> Offset:
        """Everything below this offset of the metadata log is in the image, and `on_batch` was told of it."""
        return self.image.end_offset

    @property
    def connected(self) -> bool:
        """Whether the active controller is known and connected. When it ends, `on_lost` is called."""
        connection = self._following.connection
        return connection is not None and not connection.closed

    @property
    def failures(self) -> Mapping[BrokerId, str]:
        """Why each controller could not be followed that was tried since the last one that could."""
        return self._following.failures

    # ── speaking to the active controller ─────────────────────────────────────────────────────────

    async def call(self, build: Build, timeout_ms: float) -> Reply:
        """The active controller's reply, whoever that becomes within the time.

        Raises what it refused with; NoController, if there was nobody to ask; or RequestTimedOut: then it is not known
        whether anything was done. The reply's own `error` is the caller's to look at, except NOT_CONTROLLER.
        """
        loop, config = asyncio.get_running_loop(), self._following.config
        deadline = loop.time() + timeout_ms / 1000
        pause_ms, sent = config.retry_ms, False
        while True:
            connection = await self._active_until(deadline, sent=sent)
            sent = True
            left_ms = max(deadline - loop.time(), 0) * 1000
            try:
                reply, _ = await connection.call(build(self.quorum_epoch), timeout_ms=left_ms)
                if getattr(reply, "error", 0) != NotController.code:
                    return reply
            except (ConnectionFailed, NotController):
                pass
            if connection is self._following.connection:
                connection.close()  # it does not take what the active controller takes: this ends its fetch
            await asyncio.sleep(min(pause_ms / 1000, max(deadline - loop.time(), 0)))
            pause_ms = min(pause_ms * 2, config.retry_max_ms)

    async def _active_until(self, deadline: float, *, sent: bool) -> Connection:
        following = self._following
        try:
            async with asyncio.timeout_at(deadline):
                while following.connection is None or following.connection.closed:
                    following.found.clear()
                    await following.found.wait()
        except TimeoutError as error:
            raise (RequestTimedOut if sent else NoController)(following.nobody_leads()) from error
        return following.connection

    async def take_snapshot_if_due(self) -> None:
        """Once in a while: a start reads it instead of all that has ever happened."""
        await self.archive.take_if_due(self.image)

    # ── following the log ─────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Follow for ever. Raises what this node cannot go on with."""
        image = await self.archive.open(may_forget=True)
        # Where the log was begun anew, what was committed of it is not here any more: the controller sends it again.
        self.high_watermark = min(self.high_watermark, self.log.end_offset)
        if image.end_offset:
            self.installed(image)
        await breathing(self._replay())
        self.quorum_epoch = max(self.archive.epochs.latest, self.quorum_epoch)
        await self._following.run()

    def view(self) -> LogView:
        """The copy, and what is known to be committed of it."""
        return LogView(self.log.log_start, self.log.end_offset, self.high_watermark, self.archive.epochs)

    def heard_of(self, controller: BrokerId, epoch: Epoch, *, from_itself: bool = False) -> bool:
        """Take over who leads, if that is news. Of two leaders of one epoch the first is believed."""
        known = self.controller_id != NO_BROKER
        if epoch < self.quorum_epoch or (epoch == self.quorum_epoch and (known or controller == NO_BROKER)):
            return False
        self.quorum_epoch, self.controller_id = epoch, controller
        return True

    def heard(self, epoch: Epoch) -> None:
        """An observer takes nobody's place."""

    def denied(self, controller: BrokerId) -> None:
        """It has begun anew: somebody else will lead, in another epoch."""
        if controller == self.controller_id:
            self.controller_id = NO_BROKER

    async def before_fetch(self) -> None:
        """Nothing is waited for: nobody counts on what an observer has."""

    def fetched(self, controller: BrokerId, epoch: Epoch, high_watermark: Offset) -> Iterator[None]:
        """What the leader had is appended, and so much is committed: into the image with it, batch by batch."""
        self.quorum_epoch, self.controller_id = epoch, controller
        self.high_watermark = high_watermark
        return self._replay()

    def cut(self) -> None:
        """Nothing that was cut is in the image."""

    def installed(self, image: Image) -> None:
        """What a snapshot says is so from now on: told as if one batch had brought it."""
        self.high_watermark = max(self.high_watermark, image.end_offset)
        self._on_batch(self.image.become(image))

    def refused(self, _: BrokerId) -> None:
        """Another one will lead."""

    def lost(self, _: BrokerId) -> None:
        """The connection to the leader has ended."""
        self._on_lost()

    def _replay(self) -> Iterator[None]:
        """Take what is committed into the image; given up or begun anew, it goes on where it was."""
        while self.caught_up_to < min(self.high_watermark, self.log.end_offset):
            data = self.log.read(self.caught_up_to, READ_BYTES, self.high_watermark).data
            for at, header in walk(data):
                self._on_batch(self.image.replay(data[at : at + header.size]))
                yield


async def _nothing() -> None:
    """Nobody keeps the log's start."""
