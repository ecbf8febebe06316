"""A broker: it opens its logs, joins the cluster, takes the roles that the metadata log gives it, and serves.

    claim the directory ─► open the logs ─► listen ─► register ─► replay up to the own registration
                                                                       │
      the process ends ◄─ something fatal ◄─ serve: heartbeats, fetchers, flushing, proposals
                                                                       │ stop
      the marker of a clean stop ◄─ close the logs ◄─ answer who waits ◄─ be relieved of all that is led

What it keeps true (D8, D9; DECISIONS 3):

* No role before its own registration was replayed, and none for another process that has taken its id.
* A stop leaves nothing to be scanned; whatever else ends the process is a kill.
* Every task belongs to one group: when one fails, the node fails, and nothing goes on half alive.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from tidelog.broker.config import BrokerConfig
from tidelog.broker.coordinator_node import GroupsNode
from tidelog.broker.disks import Disks, take_disks
from tidelog.broker.fetcher import Follow
from tidelog.broker.fetchers import Fetchers
from tidelog.broker.flusher import Flusher
from tidelog.broker.forgetting import Forgetting
from tidelog.broker.io import in_a_thread
from tidelog.broker.leadership import Surroundings
from tidelog.broker.log_maker import LogMaker
from tidelog.broker.log_settings import LogSettings, live, started_with
from tidelog.broker.membership import Membership
from tidelog.broker.partition import Partition
from tidelog.broker.proposer import Proposer
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests.cluster import describe_cluster
from tidelog.broker.requests.context import Build, Clocks, Context, Told
from tidelog.broker.requests.delete_records import delete_records
from tidelog.broker.requests.fetch import end_wait, fetch
from tidelog.broker.requests.flushed import flushed
from tidelog.broker.requests.log_dirs import log_dirs
from tidelog.broker.requests.log_info import log_info
from tidelog.broker.requests.metadata import metadata
from tidelog.broker.requests.offsets import epoch_ends, list_offsets
from tidelog.broker.requests.produce import produce
from tidelog.broker.requests.producer_ids import init_producer_id
from tidelog.broker.requests.topics import HANDED_ON, hand_on
from tidelog.broker.scrubbing import Scrubbing
from tidelog.broker.strays import Strays
from tidelog.broker.tally import Tally
from tidelog.broker.upkeep import Upkeep
from tidelog.controller.facts import METADATA, METADATA_TOPIC_ID
from tidelog.controller.image import Changes
from tidelog.controller.observer import Observer
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import RequestTimedOut, TidelogError, UnsupportedVersion
from tidelog.protocol.io import Incoming, Listener, listen
from tidelog.protocol.messages import (
    DeleteRecords,
    DescribeCluster,
    DescribeLogDirs,
    EndWait,
    EpochEnds,
    Fetch,
    Flushed,
    GetReplicaLogInfo,
    Hello,
    InitProducerId,
    ListenerEndpoint,
    ListOffsets,
    Metadata,
    Produce,
    Reply,
    Request,
    Welcome,
)
from tidelog.protocol.settings import BROKER, CLUSTER, MOVE_RATE, number
from tidelog.protocol.types import BrokerId, Epoch, TopicId
from tidelog.replication.breathing import breathing
from tidelog.replication.deadlines import Deadlines
from tidelog.replication.throttle import Throttle
from tidelog.storage.crashes import CrashKind
from tidelog.storage.data_directories import DataDirectories
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.environment import Environment

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NOTHING = Changes((), (), (), ())
_SNAPSHOT_S = 5.0
"""How often it is asked whether a snapshot of the metadata log is due."""


class Broker:
    """One broker's node. `run` it."""

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        self.config = config
        self.replicas: Replicas
        """Once it is registered."""
        self.observer: Observer
        self.data: DataDirectories
        self.listener: Listener
        self._flusher: Flusher
        self._membership: Membership
        self.host, self.port = config.host, config.port
        """Where it really listens."""
        self.advertised = config.host, config.port
        """Where others are told to find it."""
        self.listeners: tuple[ListenerEndpoint, ...] = ()
        """Its other listeners, as those who come in by them are told."""
        self.serving = False
        """Registered, and in its roles."""
        self._env = environment
        self.bounds = Bounds(config.limits)
        self.tally = Tally(config.broker_id)
        self._incarnation = environment.new_id()
        self._disks: Disks
        self._crash_kind = 0
        """How the processes before this one have ended at worst; once this one is registered, its marker begins anew."""
        self._upkeep: Upkeep
        self.scrubbing: Scrubbing
        """Once it serves."""
        self._log_settings: LogSettings
        self._flushing: asyncio.Task[None] | None = None
        """The task that flushes, once there are replicas."""
        self._keeping: asyncio.Task[None] | None = None
        """The one that removes and compacts, likewise."""
        self._proposer: Proposer
        self._deadlines: Deadlines
        self._throttle = Throttle(config.replication_throttled_rate_bytes_s)
        self.strays: Strays
        self._fetchers: Fetchers
        self._group: asyncio.TaskGroup
        self._context: Context
        self.groups: GroupsNode
        self._replayed = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._maker = LogMaker(hosted=self._hosted, adopted=self._made)
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """In the order in which they began: that of a set would be another one in every process."""
        self._handlers: dict[type[Request], Callable[[Context, Incoming], None]] = {
            Produce: produce,
            Fetch: fetch,
            Flushed: flushed,
            Metadata: metadata,
            DescribeCluster: describe_cluster,
            ListOffsets: list_offsets,
            EndWait: end_wait,
            EpochEnds: epoch_ends,
            DeleteRecords: delete_records,
            InitProducerId: init_producer_id,
            GetReplicaLogInfo: log_info,
            DescribeLogDirs: log_dirs,
            **dict.fromkeys(HANDED_ON, hand_on),
        }

    # ── starting ──────────────────────────────────────────────────────────────────────────────────

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`, or until cancelled: that is as if killed. Raises what it cannot go on with."""
        await self._open()
        async with asyncio.TaskGroup() as group:
            self._group = group
            listener = await listen(self.config.host, self.config.port, self._receive, self.bounds)
            self.listener, self.host, self.port = listener, listener.host, listener.port
            host, port = self.config.advertise or (listener.host, 0)
            self.advertised = host, port or listener.port
            logger.info(
                "broker.listening host=%s port=%d advertised=%s:%d", self.host, self.port, *self.advertised
            )
            try:
                await self._listen_elsewhere()
                self._spawn(self.observer.run())
                self._spawn(self._join(ready))
                await self._stop_asked.wait()
                if self.serving:
                    await self._leave()
            finally:
                listener.close()
            await self._end_tasks(listener)
        await self._close()

    async def _listen_elsewhere(self) -> None:
        for name, wanted_host, wanted_port, advertise in self.config.other_listeners:
            host, port = await self.listener.also(name, wanted_host, wanted_port)
            told_host, told_port = advertise or (host, 0)
            self.listeners += (ListenerEndpoint(name, told_host, told_port or port),)
            logger.info(
                "broker.listening host=%s port=%d advertised=%s:%d name=%s",
                host,
                port,
                told_host,
                told_port or port,
                name,
            )

    def stop(self) -> None:
        """Stop in order: leave the cluster, answer everybody, close the data directory so that nothing is scanned."""
        self._stop_asked.set()

    def not_ready(self) -> str | None:
        """Why it does not serve now, in words; None: it does."""
        if self._stop_asked.is_set():
            return "the broker is stopping"
        if not self.serving:
            refusal = self._membership.refusal if hasattr(self, "_membership") else ""
            return "the broker has not joined the cluster yet" + (f": {refusal}" if refusal else "")
        if not self.replicas.has_lease(self._clocks.boot_ms()):
            return "the broker holds no lease: the controller has fenced it, or does not answer"
        return None

    @property
    def epoch(self) -> Epoch:
        """This registration; -1 before it."""
        return self._membership.epoch

    @property
    def flusher(self) -> Flusher:
        """Once it serves."""
        return self._flusher

    @property
    def worst_end(self) -> CrashKind:
        """How the processes before this one have ended at worst, as this one told the controller."""
        return CrashKind(max(self._crash_kind, self._disks.worst))

    @property
    def cluster_id(self) -> str:
        """Whose it is, in hex; empty until that is known."""
        known = self.observer.image.cluster_id
        return known.hex() if known is not None else ""

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._group.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """As `_start`, where nobody waits for the end."""
        _ = self._start(work)

    async def _join(self, ready: Callable[[], None]) -> None:
        """Register, read up to that, take the roles, and be counted among the living."""
        self._crash_kind = int(self._disks.worst)
        cluster_id = await self._membership.register(*self.advertised, self.listeners)
        self._disks.registered(cluster_id, self._membership.epoch)
        logger.info(
            "broker.registered id=%d epoch=%d cluster=%s",
            self.config.broker_id,
            self._membership.epoch,
            cluster_id.hex(),
        )
        while self.observer.caught_up_to <= self._membership.epoch:
            self._replayed.clear()
            await self._replayed.wait()
        self.data.on_failure = self._on_directory_failed
        self._take_roles()
        for work in self._work():
            self._spawn(work)
        self._flushing = self._start(self._flusher.run())
        self._keeping = self._start(self._upkeep.run())
        await self._membership.alive.wait()
        ready()

    async def _open(self) -> None:
        env, config = self._env, self.config
        self._disks = take_disks(env, config, self._incarnation, self._halt)
        self.data = self._disks.data
        await breathing(self.data.open(env.clock.wall_ms()), in_a_thread)
        self._disks.log_problems()
        log = self.data.logs.get(METADATA) or self.data.first.create(
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
            bounds=self.bounds,
            on_lost=self._on_controller_lost,
            snapshots=config.snapshots,
            save_log_start=lambda: in_a_thread(self.data.first.write_log_starts().run),
        )
        self._membership = Membership(config, self.observer, self._disks, env.rng)

    def _on_directory_failed(self, data: DataDirectory, why: str) -> None:
        """The others go on; whose replicas can be led elsewhere is for the controller to know at once."""
        logger.critical(
            "directory.failed path=%s logs=%d reason=%r", data.directory.path, len(data.logs), why
        )
        self.replicas.directory_failed(data, why)
        self._adopted()
        self._membership.beat()

    def _halt(self, what: str, error: OSError) -> NoReturn:
        self._env.halt(f"{what}: {error}")

    # ── roles ─────────────────────────────────────────────────────────────────────────────────────

    def _take_roles(self) -> None:
        """The own registration was replayed: what the image says of this broker from now on is meant for it."""
        config, image, loop = self.config, self.observer.image, asyncio.get_running_loop()
        self._log_settings = LogSettings(config.log, image.configs)
        self.replicas = Replicas(
            self.data,
            self._around(),
            run_soon=self._run_delayed_soon,
            propose_soon=self._propose_soon,
            wake_at=self._wake_at,
            make_soon=self._maker.wake,
            config_of=self._log_settings.of,
        )
        self._deadlines = Deadlines(self.replicas.delayed)
        self._clocks = Clocks(
            lambda: int(loop.time() * 1000), self._env.clock.wall_ms, lambda: int(self._env.clock.boot_ms())
        )
        self._flusher = Flusher(
            self.replicas,
            self._clocks,
            config.flush,
            flushed=self._on_flushed,
            room_changed=self._membership.beat,
            hosted=self._hosted,
            adopted=self._made,
        )
        self._fetchers = Fetchers(self._follow(), self._start)
        self._upkeep = Upkeep(
            self.replicas,
            self._clocks,
            config.upkeep,
            save_log_starts=self._flusher.save_log_starts,
            elsewhere=self._env.compacts_elsewhere,
        )
        self.scrubbing = Scrubbing(
            self.replicas,
            self._clocks,
            config.scrub,
            self._env.rng,
            tell_controller=self._membership.beat,
            mended=self._adopted,
        )
        self._proposer = Proposer(
            self.replicas,
            self._clocks,
            call=lambda build: self.observer.call(build, config.broker_session_timeout_ms),
            rng=self._env.rng,
        )
        self._context = Context(
            self.replicas,
            image,
            self._clocks,
            self._flusher.appended,
            self._save_log_starts,
            self._ask_controller,
            controller_id=lambda: self.observer.controller_id,
            quorum_epoch=lambda: self.observer.quorum_epoch,
            crash_kind=lambda: int(self.worst_end),
            throttle=self._throttle,
            hwm_propagation_ms=config.hwm_propagation_ms,
            started_with=started_with(config),
        )
        self.groups = GroupsNode(self._context, config.groups, self._address_of, self.bounds, self._spawn)
        self._handlers.update(self.groups.handlers)
        self._set_strays_aside()
        self.serving = True
        self._adopt(Changes(tuple(image.partitions), tuple(image.brokers), (), tuple(image.configs)))

    def _around(self) -> Surroundings:
        """What leaders look at besides their logs."""
        image = self.observer.image
        return Surroundings(
            self.config.broker_id,
            self._membership.epoch,
            lambda broker: known.epoch if (known := image.brokers.get(broker)) is not None else None,
            image.live_epoch,
            self.config.replica_lag_time_max_ms,
        )

    def _run_delayed_soon(self) -> None:
        """Once for all that happens in this turn of the loop (DECISIONS 17)."""
        asyncio.get_running_loop().call_soon(self.replicas.delayed.run)

    def _wake_at(self, deadline_ms: int) -> None:
        self._deadlines.wake_at(deadline_ms)

    def _propose_soon(self) -> None:
        self._proposer.wake()

    def _set_strays_aside(self) -> None:
        for name, topic_id in list(self.data.topic_ids.items()):
            if name != METADATA and not self._is_here(topic_id, name.partition):
                self.data.stray(name)
        self.strays = Strays(
            lambda: [data.directory for data in self.data.serving],
            self._clocks,
            is_here=self._is_here,
            delay_ms=lambda: live(self.config, self.observer.image.configs).stray_delete_delay_ms,
        )

    def _is_here(self, topic_id: TopicId, index: int) -> bool:
        """Whether the cluster places that partition on this broker."""
        state = self.observer.image.partitions.get((topic_id, index))
        return state is not None and self.config.broker_id in state.replicas

    def _on_batch(self, changes: Changes) -> None:
        """A batch of the metadata log was committed and replayed."""
        self._replayed.set()
        if self.serving and any(changes):  # an idle controller says twice a second that nothing has changed
            self._adopt(changes)

    def _adopt(self, changes: Changes) -> None:
        image, replicas = self.observer.image, self.replicas
        own = image.brokers.get(self.config.broker_id)
        if own is None or own.epoch != self._membership.epoch:
            self._env.halt(f"broker {self.config.broker_id} was registered by another process: {own}")
        now_ms = self._clocks.now_ms()
        changed = {
            place: (image.topics[place[0]].name, state)
            for place in changes.partitions
            if (state := image.partitions.get(place)) is not None
        }
        gone = [place for place in changes.partitions if place not in image.partitions]
        for place, (_, state) in changed.items():
            known = replicas.partitions.get(place)
            self.tally.changed(known.state if known is not None else None, state)
        replicas.adopt(changed, gone, now_ms, self._clocks.wall_ms())
        if changes.configs:
            self._throttle.limit(self._move_rate())
            self._log_settings.changed()
            replicas.reconfigure()
            now = live(self.config, image.configs)
            self._flusher.reconfigure(now.flush)
            self._upkeep.reconfigure(now.upkeep)
            self.scrubbing.reconfigure(now.scrub)
        if changes.brokers:
            replicas.image_changed(now_ms)
        for place in changed:
            if (partition := replicas.partitions.get(place)) is not None:
                self._hosted(partition)
        self._adopted()
        self.scrubbing.adopted()
        self.groups.adopt(changes)

    def _adopted(self) -> None:
        """The partitions that are followed may be others."""
        self._fetchers.fetch_from(self.replicas.leaders())

    def _hosted(self, partition: Partition) -> None:
        if partition.leadership is not None:
            self._flusher.appended(partition)  # in group mode its own log counts only when it is flushed

    def _made(self) -> None:
        """Logs that the cluster had decided on before."""
        self._adopted()
        self.groups.adopt(_NOTHING)

    def _move_rate(self) -> int | None:
        """What may go to replicas that are being added: what the moves say, else what holds for this broker."""
        configs, me = self.observer.image.configs, str(self.config.broker_id)
        moves = number(configs, CLUSTER, "", MOVE_RATE)
        set_here = number(configs, BROKER, me, "leader.replication.throttled.rate")
        return moves or set_here or self.config.replication_throttled_rate_bytes_s

    def _follow(self) -> Follow:
        return Follow(
            self.replicas,
            self._clocks,
            self._address_of,
            self.bounds,
            self.config.fetch,
            self._env.rng,
            self._flusher.appended,
            self._flusher.save_log_starts_soon,
            self._membership.beat,
        )

    def _address_of(self, broker: BrokerId) -> tuple[str, int] | None:
        known = self.observer.image.brokers.get(broker)
        return (known.host, known.port) if known is not None else None

    # ── what goes on all the time ─────────────────────────────────────────────────────────────────

    def _work(self) -> list[Coroutine[Any, Any, None]]:
        return [
            self._membership.heartbeats(self.replicas, self._clocks),
            self._ticks(),
            self._flusher.keep_checkpoints(),
            self._flusher.keep_log_starts(),
            self._flusher.probe(),
            self._proposer.run(),
            self._take_snapshots(),
            self._maker.run(self.replicas, self._clocks),
            self.groups.run(),
            Forgetting(self.replicas, self._clocks).run(),
            self.scrubbing.run(),
            self.scrubbing.mend(),
            self.strays.run(),
        ]

    async def _take_snapshots(self) -> None:
        """Of the metadata log, once in a while."""
        while True:
            await asyncio.sleep(_SNAPSHOT_S)
            await self.observer.take_snapshot_if_due()

    def _on_controller_lost(self) -> None:
        self._membership.lost()

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
        self._fetchers.flushed(partitions)

    def _save_log_starts(self, done: Callable[[], None]) -> None:
        async def save() -> None:
            if await self._flusher.save_log_starts():
                done()

        self._spawn(save())

    def _ask_controller(self, build: Build, timeout_ms: int, told: Told) -> None:
        async def ask() -> None:
            try:
                answer: Reply | TidelogError = await self.observer.call(build, timeout_ms)
            except TidelogError as error:
                answer = error
            told(answer)

        self._spawn(ask())

    # ── stopping ──────────────────────────────────────────────────────────────────────────────────

    async def _leave(self) -> None:
        """Serve until others lead; then nobody is promised anything any more, and who waits is told."""
        await self._membership.leave(self.config.controlled_shutdown_max_ms)
        self.serving = False
        self._deadlines.stop()
        self.replicas.delayed.expire(1 << 62)

    async def _end_tasks(self, listener: Listener) -> None:
        """Say the last words, let the flush that is under way end, and nothing else."""
        await listener.wait_closed()
        if self._flushing is not None and self._keeping is not None:
            self._flusher.stop()
            self._upkeep.stop()
            await self._flushing
            await self._keeping
        for task in list(self._tasks):
            task.cancel()

    async def _close(self) -> None:
        """Every log and checkpoint, and then the marker that says so."""
        committed = self._flusher.committed() if self._flushing is not None else {}
        await in_a_thread(lambda: self.data.close(committed))
        self._disks.log_problems()
        self._disks.release()

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def _receive(self, incoming: Incoming) -> None:
        """One request, served at once or left to wait; whatever is raised here is its answer."""
        message = incoming.message
        if isinstance(message, Hello):
            cluster = self._disks.identity.cluster_id
            incoming.connection.context = message
            incoming.reply(Welcome(cluster.hex() if cluster else "", self.config.broker_id, "broker"))
            return
        handler = self._handlers.get(type(message))
        if handler is None:
            raise UnsupportedVersion(f"a broker does not serve {type(message).__name__}")
        if not self.serving:
            raise RequestTimedOut(f"broker {self.config.broker_id} is starting or stopping")
        self.tally.requests[type(message)] += 1
        try:
            handler(self._context, incoming)
        except TidelogError:
            self.tally.refused[type(message)] += 1
            raise


__all__ = ["Broker", "Environment", "Listener"]
