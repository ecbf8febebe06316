"""A broker: it opens its logs, joins the cluster, takes the roles that the metadata log gives it, and serves.

    claim the directory ─► open the logs ─► listen ─► register ─► replay up to the own registration
                                                                       │
      stop ◄─ the process ends ◄─ something fatal ◄─ serve: heartbeats, fetchers, flushing, proposals

What it keeps true (D8, D9; DECISIONS 3):

* No role before its own registration was replayed, and none for another process that has taken its id.
* A lease counts from when the heartbeat that it answers was sent, and ends with the connection to the controller.
* Every task belongs to one group: when one fails, the node fails, and nothing goes on half alive.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, NoReturn, Protocol

from tidelog.broker.config import BrokerConfig
from tidelog.broker.deadlines import Deadlines
from tidelog.broker.fetcher import Fetcher, Follow
from tidelog.broker.flusher import Flusher
from tidelog.broker.leadership import Surroundings
from tidelog.broker.partition import Partition
from tidelog.broker.proposer import Proposer
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests.context import Clocks, Context
from tidelog.broker.requests.delete_records import delete_records
from tidelog.broker.requests.fetch import fetch
from tidelog.broker.requests.flushed import flushed
from tidelog.broker.requests.metadata import metadata
from tidelog.broker.requests.offsets import epoch_ends, list_offsets
from tidelog.broker.requests.produce import produce
from tidelog.controller.facts import METADATA, METADATA_TOPIC_ID
from tidelog.controller.image import Changes
from tidelog.controller.observer import Observer
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import (
    DuplicateBrokerRegistration,
    RequestTimedOut,
    StaleBrokerEpoch,
    TidelogError,
    UnsupportedVersion,
    error_of,
)
from tidelog.protocol.io import Incoming, Listener, listen
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    DeleteRecords,
    EpochEnds,
    Fetch,
    Flushed,
    Hello,
    ListOffsets,
    Metadata,
    PartitionFlushed,
    PartitionIndex,
    Produce,
    RegisterBroker,
    RegisterBrokerReply,
    Request,
    Welcome,
)
from tidelog.protocol.types import BrokerId, Epoch
from tidelog.replication.throttle import Throttle
from tidelog.storage.crashes import Life
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.files import Directory
from tidelog.storage.identity import Claim, adopt_cluster, claim
from tidelog.storage.names import parse_partition
from tidelog.storage.open_segments import OpenSegments

logger = logging.getLogger(__name__)

_SLICE_S = 0.002
"""How long opening logs may hold up the event loop at a time."""
_REGISTER_MS = 5000
_FENCED_AGAIN_MS = 100


class Clock(Protocol):
    """The clocks that are injected; monotonic time is the loop's."""

    def wall_ms(self) -> int:
        """The time of day."""
        ...

    def boot_ms(self) -> float:
        """Time that goes on while the machine sleeps."""
        ...


@dataclass(frozen=True, slots=True)
class Environment:
    """What a process gives its broker: the world, as far as it needs it."""

    directory: Directory
    clock: Clock
    boot_id: str
    pid: int
    rng: Random
    new_id: Callable[[], bytes]
    """16 random bytes."""
    new_guard: Callable[[], contextlib.AbstractContextManager[object]]
    """A lock for files that several threads write."""
    halt: Callable[[str], NoReturn]
    """End the process at once, leaving no marker of a clean stop."""


class Broker:
    """One broker's node. `run` it."""

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        self.config = config
        self.replicas: Replicas
        """Once it is registered."""
        self.observer: Observer
        self.data: DataDirectory
        self.port = config.port
        """Where it really listens."""
        self.serving = False
        """Registered, and in its roles."""
        self._env = environment
        self._bounds = Bounds(DEFAULT)
        self._incarnation = environment.new_id()
        self._epoch: Epoch = -1
        self._claim: Claim
        self._life: Life
        self._flusher: Flusher
        self._proposer: Proposer
        self._deadlines: Deadlines
        self._fetchers: dict[BrokerId, tuple[Fetcher, asyncio.Task[None]]] = {}
        self._group: asyncio.TaskGroup
        self._context: Context
        self._replayed = asyncio.Event()
        self._beat = asyncio.Event()
        self._handlers: dict[type[Request], Callable[[Context, Incoming], None]] = {
            Produce: produce,
            Fetch: fetch,
            Flushed: flushed,
            Metadata: metadata,
            ListOffsets: list_offsets,
            EpochEnds: epoch_ends,
            DeleteRecords: delete_records,
        }

    # ── starting ──────────────────────────────────────────────────────────────────────────────────

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until cancelled. Raises what it cannot go on with."""
        await self._open()
        async with asyncio.TaskGroup() as group:
            self._group = group
            listener = await listen(self.config.host, self.config.port, self._receive, self._bounds)
            self.port = listener.port
            try:
                group.create_task(self.observer.run())
                await self._register()
                while self.observer.caught_up_to <= self._epoch:
                    self._replayed.clear()
                    await self._replayed.wait()
                self._take_roles()
                for work in self._work():
                    group.create_task(work)
                ready()
                await asyncio.get_running_loop().create_future()
            finally:
                listener.close()

    async def _open(self) -> None:
        env, config = self._env, self.config
        self._claim = claim(
            env.directory,
            role="broker",
            node_id=config.broker_id,
            cluster_id=None,
            new_directory_id=env.new_id(),
            pid=env.pid,
        )
        self._life = Life.begin(
            env.directory,
            directory_id=self._claim.identity.directory_id,
            incarnation_id=self._incarnation,
            boot_id=env.boot_id,
            has_partitions=any(parse_partition(name) for name in env.directory.names()),
        )
        self.data = DataDirectory(
            env.directory,
            self._life,
            config.log,
            OpenSegments(config.open_segments),
            halt=self._halt,
            new_guard=env.new_guard,
        )
        await _breathing(self.data.open(env.clock.wall_ms()))
        log = self.data.logs.get(METADATA) or self.data.create(
            METADATA, METADATA_TOPIC_ID, env.clock.wall_ms()
        )
        self.observer = Observer(
            {BrokerId(number): (host, port) for number, host, port in config.controllers},
            log,
            self.data.high_watermark(METADATA),
            self._on_batch,
            wall_ms=env.clock.wall_ms,
            rng=env.rng,
            broker_id=config.broker_id,
            hello=Hello(client_id=f"broker-{config.broker_id}"),
            bounds=self._bounds,
            on_lost=self._on_controller_lost,
        )

    def _halt(self, what: str, error: OSError) -> NoReturn:
        logger.critical("storage.failed %s error=%r", what, error)
        self._env.halt(f"{what}: {error}")

    async def _register(self) -> None:
        """Be known to the controller as this process, however long it takes."""
        while True:
            try:
                reply = await self.observer.call(self._registration, _REGISTER_MS)
            except RequestTimedOut as error:
                logger.info("broker.not_registered reason=%s", error)
                continue
            assert isinstance(reply, RegisterBrokerReply), reply
            if not reply.error:
                break
            refusal = error_of(reply.error, reply.message or "")
            if not (refusal.retriable or isinstance(refusal, DuplicateBrokerRegistration)):
                raise refusal
            logger.info("broker.not_registered reason=%s", refusal)
            await asyncio.sleep(self._env.rng.uniform(0.5, 1.0))
        self._epoch = reply.broker_epoch
        adopt_cluster(self._env.directory, self._claim.identity, bytes.fromhex(reply.cluster_id))
        self._life.registered(self._epoch)

    def _registration(self, quorum_epoch: Epoch) -> RegisterBroker:
        identity, life = self._claim.identity, self._life
        return RegisterBroker(
            self.config.broker_id,
            quorum_epoch,
            self._incarnation,
            identity.directory_id,
            self.config.host,
            self.port,
            self.config.rack,
            identity.cluster_id.hex() if identity.cluster_id is not None else "",
            int(life.worst),
            life.broker_epoch,
            life.incarnation_ids,
        )

    # ── roles ─────────────────────────────────────────────────────────────────────────────────────

    def _take_roles(self) -> None:
        """The own registration was replayed: what the image says of this broker from now on is meant for it."""
        config, image, loop = self.config, self.observer.image, asyncio.get_running_loop()
        around = Surroundings(
            config.broker_id,
            self._epoch,
            lambda broker: known.epoch if (known := image.brokers.get(broker)) is not None else None,
            image.live_epoch,
            config.replica_lag_time_max_ms,
        )
        self.replicas = Replicas(
            self.data,
            around,
            run_soon=self._run_delayed_soon,
            propose_soon=self._propose_soon,
            wake_at=self._wake_at,
        )
        self._deadlines = Deadlines(self.replicas.delayed)
        self._clocks = Clocks(
            lambda: int(loop.time() * 1000), self._env.clock.wall_ms, lambda: int(self._env.clock.boot_ms())
        )
        self._flusher = Flusher(self.replicas, self._clocks, config.flush, flushed=self._on_flushed)
        self._proposer = Proposer(
            self.replicas,
            self._clocks,
            call=lambda build: self.observer.call(build, config.broker_session_timeout_ms),
            rng=self._env.rng,
        )
        rate = config.replication_throttled_rate_bytes_s
        self._context = Context(
            self.replicas,
            image,
            self._clocks,
            self._flusher.appended,
            self._save_log_starts,
            throttle=Throttle(rate) if rate is not None else None,
            hwm_propagation_ms=config.hwm_propagation_ms,
        )
        self._set_strays_aside()
        self.serving = True
        self._adopt(Changes(tuple(image.partitions), tuple(image.brokers), (), ()))

    def _run_delayed_soon(self) -> None:
        """Once for all that happens in this turn of the loop (DECISIONS 17)."""
        asyncio.get_running_loop().call_soon(self.replicas.delayed.run)

    def _wake_at(self, deadline_ms: int) -> None:
        self._deadlines.wake_at(deadline_ms)

    def _propose_soon(self) -> None:
        self._proposer.wake()

    def _set_strays_aside(self) -> None:
        image = self.observer.image
        for name, topic_id in list(self.data.topic_ids.items()):
            state = image.partitions.get((topic_id, name.partition))
            placed_here = state is not None and self.config.broker_id in state.replicas
            if name != METADATA and not placed_here:
                self.data.stray(name)

    def _on_batch(self, changes: Changes) -> None:
        """A batch of the metadata log was committed and replayed."""
        self._replayed.set()
        if self.serving:
            self._adopt(changes)

    def _adopt(self, changes: Changes) -> None:
        image, replicas = self.observer.image, self.replicas
        own = image.brokers.get(self.config.broker_id)
        if own is None or own.epoch != self._epoch:
            self._env.halt(f"broker {self.config.broker_id} was registered by another process: {own}")
        now_ms = self._clocks.now_ms()
        changed = {
            place: (image.topics[place[0]].name, state)
            for place in changes.partitions
            if (state := image.partitions.get(place)) is not None
        }
        gone = [place for place in changes.partitions if place not in image.partitions]
        replicas.adopt(changed, gone, now_ms, self._clocks.wall_ms())
        if changes.brokers:
            replicas.image_changed(now_ms)
        for place in changed:
            partition = replicas.partitions.get(place)
            if partition is not None and partition.leadership is not None:
                self._flusher.appended(partition)  # in group mode its own log counts only when it is flushed
        self._fetch_from(replicas.leaders())

    def _fetch_from(self, leaders: set[BrokerId]) -> None:
        for leader in [leader for leader in self._fetchers if leader not in leaders]:
            self._fetchers.pop(leader)[1].cancel()
        for leader in sorted(leaders):
            if leader not in self._fetchers:
                fetcher = Fetcher(leader, self._follow())
                self._fetchers[leader] = fetcher, self._group.create_task(fetcher.run())
            self._fetchers[leader][0].wake()

    def _follow(self) -> Follow:
        return Follow(
            self.replicas,
            self._clocks,
            self._address_of,
            self._bounds,
            self.config.fetch,
            self._env.rng,
            self._flusher.appended,
            self._beat.set,
        )

    def _address_of(self, broker: BrokerId) -> tuple[str, int] | None:
        known = self.observer.image.brokers.get(broker)
        return (known.host, known.port) if known is not None else None

    # ── what goes on all the time ─────────────────────────────────────────────────────────────────

    def _work(self) -> list[Coroutine[Any, Any, None]]:
        return [
            self._heartbeats(),
            self._ticks(),
            self._flusher.run(),
            self._flusher.keep_checkpoints(),
            self._flusher.probe(),
            self._proposer.run(),
        ]

    async def _heartbeats(self) -> None:
        """Tell the controller that this broker lives, and what it has read; the answer is the lease."""
        config = self.config
        while True:
            self._beat.clear()
            sent_ms = self._clocks.boot_ms()
            pause_ms = config.broker_heartbeat_interval_ms
            try:
                reply = await self.observer.call(self._heartbeat, config.broker_heartbeat_interval_ms * 2)
            except TidelogError as error:
                logger.info("heartbeat.failed reason=%s", error)
                pause_ms = _FENCED_AGAIN_MS
            else:
                assert isinstance(reply, BrokerHeartbeatReply), reply
                if reply.error:
                    logger.warning("heartbeat.refused %s", error_of(reply.error, reply.message or ""))
                    if reply.error == StaleBrokerEpoch.code:
                        self.replicas.lease_until_ms = -1
                elif reply.fenced:
                    self.replicas.lease_until_ms = -1
                    pause_ms = _FENCED_AGAIN_MS
                elif self.observer.connected:
                    self.replicas.lease_until_ms = sent_ms + reply.session_timeout_ms
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1000):
                    await self._beat.wait()

    def _heartbeat(self, quorum_epoch: Epoch) -> BrokerHeartbeat:
        offline = tuple(PartitionIndex(*place) for place in self.replicas.offline())
        return BrokerHeartbeat(
            self.config.broker_id, self._epoch, quorum_epoch, self.observer.caught_up_to, offline=offline
        )

    def _on_controller_lost(self) -> None:
        """The lease ends with the connection, until a heartbeat on a new one is answered (DECISIONS 3)."""
        if self.serving:
            self.replicas.lease_until_ms = -1
            self._beat.set()

    async def _ticks(self) -> None:
        """Leaders look who has fallen behind."""
        interval_s = self.config.replica_lag_time_max_ms / 2000
        loop = asyncio.get_running_loop()
        due = loop.time() + interval_s
        while True:
            await asyncio.sleep(max(due - loop.time(), 0))
            late_s = loop.time() - due
            due = loop.time() + interval_s
            # After a pause everybody looks silent: first what they said meanwhile must be read (2.9).
            if late_s < interval_s / 2 and self.replicas.has_lease(self._clocks.boot_ms()):
                self.replicas.tick(self._clocks.now_ms())

    def _on_flushed(self, partitions: list[Partition]) -> None:
        """Logs are durable further than before: tell the leaders that wait for it (DECISIONS 25)."""
        by_leader: dict[BrokerId, list[PartitionFlushed]] = {}
        for partition in partitions:
            following, state = partition.followership, partition.state
            if following is not None and state is not None and state.flush_group:
                told = PartitionFlushed(
                    state.topic_id, state.index, following.leading.leader_epoch, partition.log.durable_offset
                )
                by_leader.setdefault(following.leading.leader, []).append(told)
        for leader, told_all in by_leader.items():
            known = self._fetchers.get(leader)
            if known is not None:
                known[0].tell(Flushed(self.config.broker_id, self._epoch, tuple(told_all)))

    def _save_log_starts(self, done: Callable[[], None]) -> None:
        async def save() -> None:
            if await self._flusher.write(self.data.write_log_starts()):
                done()

        self._group.create_task(save())

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def _receive(self, incoming: Incoming) -> None:
        """One request, served at once or left to wait; whatever is raised here is its answer."""
        message = incoming.message
        if isinstance(message, Hello):
            cluster = self._claim.identity.cluster_id
            incoming.reply(Welcome(cluster.hex() if cluster else "", self.config.broker_id, "broker"))
            return
        handler = self._handlers.get(type(message))
        if handler is None:
            raise UnsupportedVersion(f"a broker does not serve {type(message).__name__}")
        if not self.serving:
            raise RequestTimedOut(f"broker {self.config.broker_id} is starting")
        handler(self._context, incoming)


async def _breathing(steps: Any) -> None:
    """Run steps, and let the event loop breathe in between."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in steps:
        if loop.time() - began > _SLICE_S:
            await asyncio.sleep(0)
            began = loop.time()


__all__ = ["Broker", "Environment", "Listener"]
