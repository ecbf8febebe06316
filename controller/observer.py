"""A node that follows the metadata log: it keeps a copy, adds it up to an image, and speaks to the controller.

    run ──► whom to ask ──► connect ──► fetch ──► append, truncate ──► replay what is committed ──► on_batch
               ▲                          │
               └── silence, another leader, the connection ended

The rules are `replication.followership`'s, as for any partition; this carries them out (design 4.14, 4.15).

What it keeps true (I-43, I-44, I-49):

* The image holds committed batches only, each once, in their order; `on_batch` is called in the same moment as
  the image changes, once per batch, when all of its facts hold.
* The copy is cut only above what was known to be committed; anything else is InconsistentMetadata and ends `run`,
  as every fact does that is not known here. Whoever runs an observer stops its node when `run` raises.
* A request goes to the controller that was last heard to lead in the highest epoch, and names that epoch; every
  repetition is built anew, so that it can carry another number of its own (D3).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

from tidelog.controller.facts import METADATA, METADATA_TOPIC_ID
from tidelog.controller.image import Changes, Image
from tidelog.protocol.batch import walk
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import (
    ConnectionFailed,
    CorruptMessage,
    DiskFull,
    FencedLeaderEpoch,
    InconsistentMetadata,
    InvalidAppend,
    NotController,
    NotLeaderOrFollower,
    RequestTimedOut,
    TidelogError,
    UnknownLeaderEpoch,
)
from tidelog.protocol.io import Connection, connect
from tidelog.protocol.messages import (
    Fetch,
    FetchReply,
    Hello,
    PartitionFetch,
    PartitionFetched,
    Reply,
    Request,
    split_attachment,
)
from tidelog.protocol.types import NO_BROKER, BrokerId, Buffer, Epoch, Offset
from tidelog.replication.followership import (
    Append,
    Asked,
    Followership,
    GoOffline,
    Leading,
    LogView,
    Step,
    Truncate,
    Wait,
)
from tidelog.storage.log import Log

logger = logging.getLogger(__name__)

Address: TypeAlias = tuple[str, int]
"""Host and port."""

Build: TypeAlias = Callable[[Epoch], Request]
"""Makes a request for the controller of that quorum epoch; called anew for every time it is sent."""

READ_BYTES: Final = 1 << 20
_NOT_HERE: Final = frozenset(
    error.code for error in (FencedLeaderEpoch, NotLeaderOrFollower, UnknownLeaderEpoch)
)
"""Whoever answers this does not lead, or not in the epoch that we know; it may say who does."""
FLUSH_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverConfig:
    """How patiently the metadata log is followed."""

    fetch_max_wait_ms: int = 500
    """How long the controller may wait for something new. The controller writes as often while it is idle."""
    fetch_timeout_ms: int = 2000
    """How long a fetch may take before another controller is asked (`quorum.fetch.timeout.ms`)."""
    connect_timeout_ms: int = 1000
    """How long a connection may take: less than a fetch, since there are other controllers to try."""
    retry_ms: int = 50
    """The pause after every controller was tried in vain; doubles up to `retry_max_ms`."""
    retry_max_ms: int = 1000
    """The longest such pause."""


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
        config: ObserverConfig | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        assert controllers, "there is a controller to ask"
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
        self._controllers = dict(controllers)
        self._on_batch = on_batch
        self._on_lost = on_lost or (lambda: None)
        self._wall_ms = wall_ms
        self._rng = rng
        self._broker_id = broker_id
        self._hello = hello or Hello()
        self._bounds = bounds
        self._config = config or ObserverConfig()
        self._connection: Connection | None = None
        self._found = asyncio.Event()
        self._asked_last = -1

    def __repr__(self) -> str:
        return f"<observes controller {self.controller_id} in epoch {self.quorum_epoch}: {self.image!r}>"

    @property
    def caught_up_to(self) -> Offset:
        """Everything below this offset of the metadata log is in the image, and `on_batch` was told of it."""
        return self.image.end_offset

    @property
    def connected(self) -> bool:
        """Whether the active controller is known and connected. When it ends, `on_lost` is called."""
        return self._connection is not None and not self._connection.closed

    # ── speaking to the active controller ─────────────────────────────────────────────────────────

    async def call(self, build: Build, timeout_ms: float) -> Reply:
        """The active controller's reply, whoever that becomes within the time.

        Raises what it refused with, or RequestTimedOut: then it is not known whether anything was done. The
        reply's own `error` is the caller's to look at, except NOT_CONTROLLER.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        pause_ms = self._config.retry_ms
        while True:
            connection = await self._active_until(deadline, timeout_ms)
            left_ms = max(deadline - loop.time(), 0) * 1000
            try:
                reply, _ = await connection.call(build(self.quorum_epoch), timeout_ms=left_ms)
                if getattr(reply, "error", 0) != NotController.code:
                    return reply
            except (ConnectionFailed, NotController):
                pass
            self._suspect(connection)
            await asyncio.sleep(min(pause_ms / 1000, max(deadline - loop.time(), 0)))
            pause_ms = min(pause_ms * 2, self._config.retry_max_ms)

    async def _active_until(self, deadline: float, timeout_ms: float) -> Connection:
        try:
            async with asyncio.timeout_at(deadline):
                while self._connection is None or self._connection.closed:
                    self._found.clear()
                    await self._found.wait()
        except TimeoutError as error:
            raise RequestTimedOut(f"no controller was found in {timeout_ms:.0f} ms") from error
        return self._connection

    def _suspect(self, connection: Connection) -> None:
        """It does not take what the active controller takes: ask around."""
        if connection is self._connection:
            connection.close()  # ends the fetch that is under way

    # ── following the log ─────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Follow for ever. Raises what this node cannot go on with."""
        self._replay()
        pause_ms, in_vain = self._config.retry_ms, 0
        while True:
            controller = self._whom_to_ask()
            if await self._try(controller):
                pause_ms, in_vain = self._config.retry_ms, 0
                continue
            in_vain += 1
            if in_vain % len(self._controllers) == 0:
                await asyncio.sleep(self._rng.uniform(0.5, 1) * pause_ms / 1000)
                pause_ms = min(pause_ms * 2, self._config.retry_max_ms)

    def _whom_to_ask(self) -> BrokerId:
        """Who is said to lead, unless it was asked in vain just now; else the next in turn."""
        turn = list(self._controllers)
        if self.controller_id in self._controllers and self._asked_last != self.controller_id:
            chosen = self.controller_id
        else:
            behind = (
                turn.index(BrokerId(self._asked_last)) + 1 if self._asked_last in self._controllers else 0
            )
            chosen = turn[behind % len(turn)]
        self._asked_last = chosen
        return chosen

    async def _try(self, controller: BrokerId) -> bool:
        """Follow that controller as long as it leads; whether it did."""
        host, port = self._controllers[controller]
        try:
            connection = await connect(
                host, port, self._hello, bounds=self._bounds, timeout_ms=self._config.connect_timeout_ms
            )
        except TidelogError as error:
            logger.info("controller.unreachable id=%d error=%r", controller, str(error))
            return False
        try:
            return await self._follow(controller, connection)
        finally:
            connection.close()
            if self._connection is connection:
                self._connection = None
                self._on_lost()

    async def _follow(self, controller: BrokerId, connection: Connection) -> bool:
        """Until it is silent or does not lead any more; whether it led at all."""
        followership = Followership(Leading(controller, self.quorum_epoch))
        while True:
            asked = followership.ask(self._view())
            try:
                entry, data = await self._fetch(connection, asked)
            except TidelogError as error:
                logger.info("controller.lost id=%d error=%r", controller, str(error))
                return self._connection is connection
            if entry.error in _NOT_HERE:
                if not self._learn(entry) or self.controller_id != controller:
                    return self._connection is connection
                followership = Followership(Leading(controller, self.quorum_epoch))
            elif not entry.error:
                self.controller_id = controller
            if entry.error in _NOT_HERE or not entry.error:
                self._connection = connection
                self._found.set()
            if followership.is_current(asked, self._view()):
                step = followership.on_fetched(asked, entry, self._view())
                await self._carry_out(followership, step, data)

    async def _fetch(self, connection: Connection, asked: Asked) -> tuple[PartitionFetched, memoryview]:
        """Ask for what follows; from a controller that is new to us, an answer at once."""
        config = self._config
        wait_ms = config.fetch_max_wait_ms if connection is self._connection else 0
        place = PartitionFetch(
            METADATA_TOPIC_ID,
            METADATA.partition,
            asked.fetch_offset,
            READ_BYTES,
            current_leader_epoch=asked.leader_epoch,
            last_fetched_epoch=asked.last_fetched_epoch,
            durable_offset=self.log.durable_offset,
            log_start=self.log.log_start,
        )
        reply, attachment = await connection.call(
            Fetch(wait_ms, 1, READ_BYTES, (place,), broker_id=self._broker_id),
            timeout_ms=config.fetch_timeout_ms,
        )
        if not isinstance(reply, FetchReply) or reply.error or len(reply.partitions) != 1:
            raise ConnectionFailed(f"a fetch of the metadata log was answered with {reply}")
        (data,) = split_attachment(attachment, reply.partitions)
        return reply.partitions[0], data

    def _learn(self, entry: PartitionFetched) -> bool:
        """Who leads in which epoch, as a node that does not, or not in the epoch we know, believes: if it is news."""
        hint = entry.current_leader
        if hint is None or (hint.leader_epoch, hint.id) <= (self.quorum_epoch, self.controller_id):
            return False
        if hint.leader_epoch == self.quorum_epoch and self.controller_id != NO_BROKER:
            return False  # two leaders of one epoch: believe the one that was heard of first, it will say otherwise
        self.quorum_epoch, self.controller_id = hint.leader_epoch, hint.id
        return True

    def _view(self) -> LogView:
        return LogView(self.log.log_start, self.log.end_offset, self.high_watermark, self.log.epochs)

    async def _carry_out(self, followership: Followership, step: Step, data: Buffer) -> None:
        if isinstance(step, Append):
            step = self._append(followership, step, data)
            self._replay()
        elif isinstance(step, Truncate):
            assert not step.loses_committed, step
            while self.log.is_flushing:  # noqa: ASYNC110 -- rare, and no reason to tell every flusher of us
                await asyncio.sleep(FLUSH_POLL_S)
            self.log.truncate_to(step.offset, self._wall_ms())
        elif isinstance(step, GoOffline):
            raise InconsistentMetadata(f"{self.log}: {step.why}")
        elif not isinstance(step, Wait):
            # Snapshots of the metadata log are fetched here, once there are any (4.13).
            raise InconsistentMetadata(f"{self.log} ends before the controller's log begins: {step}")
        if isinstance(step, Wait):
            if step.tell:
                logger.warning("metadata.bad %s", step.tell)
            await asyncio.sleep(step.delay_ms / 1000)

    def _append(self, followership: Followership, step: Append, data: Buffer) -> Step:
        if len(data):
            try:
                self.log.append_as_follower(data, followership.leading.leader_epoch, self._wall_ms())
            except (CorruptMessage, DiskFull, InvalidAppend) as error:
                self.log.probe()
                return followership.on_bad_bytes(str(error))
        self.high_watermark = followership.new_high_watermark(step, self._view())
        return step

    def _replay(self) -> None:
        """Take what is committed into the image, batch by batch."""
        while self.caught_up_to < self.high_watermark:
            data = self.log.read(self.caught_up_to, READ_BYTES, self.high_watermark).data
            for at, header in walk(data):
                self._on_batch(self.image.replay(data[at : at + header.size]))
