"""A broker as the controller sees it: it registers, says that it lives, and leaves in order.

    register ─► heartbeats: fenced ─► the lease, renewed by each answer ─► leave: relieved of everything ─► gone

What it keeps true (design 2.14, 4.3 to 4.6; D9, DECISIONS 3):

* A lease counts from when the heartbeat that it answers was sent, and ends with the connection to the controller.
  An answer that does not renew it lets it run out: this broker has yet to read what was taken from it (ADR 75).
* A process registers until it is taken, and is then this registration for the rest of its life.
* Whoever leaves goes on serving until the controller has given everything that it leads to others.
"""

import asyncio
import contextlib
import logging
from random import Random

from tidelog.broker.config import BrokerConfig
from tidelog.broker.disks import Disks
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests.context import Clocks
from tidelog.controller.observer import Observer
from tidelog.protocol.errors import (
    DuplicateBrokerRegistration,
    NoController,
    RequestTimedOut,
    StaleBrokerEpoch,
    TidelogError,
    error_of,
)
from tidelog.protocol.messages import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    DamagedReplica,
    ListenerEndpoint,
    PartitionIndex,
    RegisterBroker,
    RegisterBrokerReply,
)
from tidelog.protocol.types import Epoch

logger = logging.getLogger(__name__)

_REGISTER_MS = 5000
_SOON_MS = 100
"""Between heartbeats of who is fenced, or about to leave."""


class Membership:
    """One process's standing in the cluster. `heartbeats` is a task of the node, once it has taken its roles."""

    def __init__(
        self,
        config: BrokerConfig,
        observer: Observer,
        disks: Disks,
        rng: Random,
    ) -> None:
        self.epoch: Epoch = -1
        """This registration."""
        self._config = config
        self._observer = observer
        self._disks = disks
        self._rng = rng
        self._replicas: Replicas | None = None
        self._beat = asyncio.Event()
        self._leaving = False
        self._relieved = asyncio.Event()
        self.alive = asyncio.Event()
        """Set once the controller has counted this process among the living."""
        self.refusal = ""
        """Why the controller did not register this process when it was last asked."""

    # ── coming ────────────────────────────────────────────────────────────────────────────────────

    async def register(self, host: str, port: int, listeners: tuple[ListenerEndpoint, ...] = ()) -> bytes:
        """Be known to the controller as this process at these addresses, however long it takes. Answers which cluster."""
        while True:
            try:
                reply = await self._observer.call(
                    lambda epoch: self._registration(epoch, host, port, listeners), _REGISTER_MS
                )
            except (NoController, RequestTimedOut) as error:
                logger.info("broker.not_registered reason=%s", error)
                continue
            assert isinstance(reply, RegisterBrokerReply), reply
            if not reply.error:
                self.epoch, self.refusal = reply.broker_epoch, ""
                return bytes.fromhex(reply.cluster_id)
            refusal = error_of(reply.error, reply.message or "")
            if reply.start and self._disks.life.count_on(reply.start):
                logger.warning("broker.counts_on start=%d reason=%s", self._disks.life.start, refusal)
                continue
            if not (refusal.retriable or isinstance(refusal, DuplicateBrokerRegistration)):
                raise refusal
            self.refusal = str(refusal)
            logger.warning("broker.not_registered reason=%s", refusal)
            await asyncio.sleep(self._rng.uniform(0.5, 1.0))

    def _registration(
        self, quorum_epoch: Epoch, host: str, port: int, listeners: tuple[ListenerEndpoint, ...]
    ) -> RegisterBroker:
        identity, life = self._disks.identity, self._disks.life
        return RegisterBroker(
            self._config.broker_id,
            quorum_epoch,
            life.incarnation_ids[-1],
            identity.directory_id,
            host,
            port,
            self._config.rack,
            identity.cluster_id.hex() if identity.cluster_id is not None else "",
            int(life.worst),
            life.broker_epoch,
            life.incarnation_ids,
            life.start,
            listeners,
            self._disks.standings(),
        )

    # ── staying ───────────────────────────────────────────────────────────────────────────────────

    async def heartbeats(self, replicas: Replicas, clocks: Clocks) -> None:
        """Tell the controller that this broker lives, and what it has read; the answer is the lease."""
        self._replicas = replicas
        interval_ms = self._config.broker_heartbeat_interval_ms
        while not self._relieved.is_set():
            self._beat.clear()
            sent_ms = clocks.boot_ms()
            pause_ms = interval_ms
            try:
                reply = await self._observer.call(self._heartbeat, interval_ms * 2)
            except TidelogError as error:
                logger.info("heartbeat.failed reason=%s", error)
                pause_ms = _SOON_MS
            else:
                assert isinstance(reply, BrokerHeartbeatReply), reply
                if not self._take(reply, sent_ms, replicas):
                    pause_ms = _SOON_MS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1000):
                    await self._beat.wait()

    def _heartbeat(self, quorum_epoch: Epoch) -> BrokerHeartbeat:
        assert self._replicas is not None
        return BrokerHeartbeat(
            self._config.broker_id,
            self.epoch,
            quorum_epoch,
            self._observer.caught_up_to,
            want_shutdown=self._leaving,
            offline=tuple(PartitionIndex(*place) for place in self._replicas.offline()),
            low_space=self._replicas.low_space,
            unwritable=tuple(PartitionIndex(*place) for place in self._replicas.unwritable()),
            damaged=tuple(DamagedReplica(*place, epoch) for place, epoch in self._replicas.damaged().items()),
        )

    def _take(self, reply: BrokerHeartbeatReply, sent_ms: int, replicas: Replicas) -> bool:
        """The answer to a heartbeat sent then; whether the next one has the usual time."""
        if reply.error:
            logger.warning("heartbeat.refused %s", error_of(reply.error, reply.message or ""))
            if reply.error == StaleBrokerEpoch.code:
                replicas.lease_until_ms = -1
            return True
        if reply.fenced:
            replicas.lease_until_ms = -1
        elif self._observer.connected and reply.renews:
            replicas.lease_until_ms = sent_ms + reply.session_timeout_ms
            self.alive.set()
        if reply.should_shutdown and self._leaving:
            self._relieved.set()
        return reply.renews and not (reply.fenced or self._leaving)

    def beat(self) -> None:
        """Ask the controller now."""
        self._beat.set()

    def lost(self) -> None:
        """The connection to the controller has ended, and with it the lease, until a heartbeat on a new one."""
        if self._replicas is not None:
            self._replicas.lease_until_ms = -1
            self._beat.set()

    # ── leaving ───────────────────────────────────────────────────────────────────────────────────

    async def leave(self, patience_ms: int) -> bool:
        """Ask to be relieved of everything, and wait until it is so; whether it was in time."""
        self._leaving = True
        self._beat.set()
        try:
            async with asyncio.timeout(patience_ms / 1000):
                await self._relieved.wait()
        except TimeoutError:
            logger.warning("broker.not_relieved after_ms=%d", patience_ms)
            return False
        return True
