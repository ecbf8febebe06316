"""A stand-in for the quorum: one controller, with everything that brokers see of one.

The decisions are the product's (`controller/`): facts, image, election, alterations, liveness, topics. What stands in
is the node: a metadata log on one disk is committed when it is flushed there. It dies with its process and comes
back from its log in a new epoch, which is durable before anybody hears of it, as a quorum's would be.

Left to the quorum: voters, elections, snapshots, a committed image beside the working one for reads, leases of its
own. Left to `placement`: racks.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NoReturn, cast

from tidelog.broker.broker import Environment
from tidelog.controller.alterations import Alterations
from tidelog.controller.election import fence
from tidelog.controller.facts import (
    METADATA,
    METADATA_TOPIC_ID,
    ClusterInitialized,
    Fact,
    NothingHappened,
    ProducerIdsTaken,
    encode_facts,
)
from tidelog.controller.image import Image
from tidelog.controller.liveness import (
    LivenessConfig,
    Sessions,
    beat,
    caught_up,
    check_broker,
    register,
    start_in_force,
)
from tidelog.controller.topics import Replicas, TopicDefaults, create_topic, remove_topic
from tidelog.protocol.batch import walk
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import (
    ConnectionFailed,
    FencedLeaderEpoch,
    InvalidRegistration,
    InvalidReplicationFactor,
    NotController,
    TidelogError,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnsupportedVersion,
)
from tidelog.protocol.io import Incoming, ServerConnection, connect, listen
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import (
    AllocateProducerIds,
    AllocateProducerIdsReply,
    AlterPartition,
    AlterPartitionReply,
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    CreatedTopic,
    CreateTopics,
    CreateTopicsReply,
    DeleteTopics,
    DeleteTopicsReply,
    EpochEnd,
    Fetch,
    FetchReply,
    Hello,
    Leader,
    NewTopic,
    PartitionAltered,
    PartitionFetch,
    PartitionFetched,
    RegisterBroker,
    RegisterBrokerReply,
    RemovedTopic,
    Reply,
    Request,
    Welcome,
)
from tidelog.protocol.types import NO_OFFSET, BrokerId, Epoch, Offset, TopicId
from tidelog.replication.delayed import Delayed
from tidelog.replication.fetch import check_place
from tidelog.storage.config import LogConfig
from tidelog.storage.crashes import Life
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.files import Lock
from tidelog.storage.identity import claim
from tidelog.storage.log import Log
from tidelog.storage.names import parse_partition
from tidelog.storage.open_segments import OpenSegments
from tidelog.testing.simulation.host import Environment as HostEnvironment

PRODUCER_IDS: Final = 1000
PROBES: Final = 2
PROBE_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """How the stand-in behaves."""

    node_id: int = 1
    """Its id among controllers."""
    session_timeout_ms: int = 9000
    """How long a broker may be silent."""
    topics: TopicDefaults = field(default_factory=TopicDefaults)
    idle_ms: int = 500
    """How often it writes that nothing happened."""
    fast_fencing: bool = True
    """Fence a broker whose connection has ended and whose port refuses (DECISIONS 3)."""

    @property
    def liveness(self) -> LivenessConfig:
        """The quorum's time-out keeps its proportion to the session."""
        session_ms = self.session_timeout_ms
        return LivenessConfig(session_timeout_ms=session_ms, quorum_fetch_timeout_ms=session_ms * 2 // 9)


async def run_controller(
    config: ControllerConfig,
    host: HostEnvironment,
    port: int,
    rng: Random,
    *,
    hold: list["OneController"] | None = None,
    node: "type[OneController] | None" = None,
) -> None:
    """The main of a simulated host that is the controller; `hold` gets the node, to be looked at."""
    environment = Environment(
        host.directory,
        host.clock,
        host.boot_id,
        host.life,
        rng,
        lambda: rng.randbytes(16),
        nullcontext,
        host.halt,
    )
    controller = (node or OneController)(config, environment, host.address, port)
    if hold is not None:
        hold.append(controller)
    await controller.run()


class OneController:
    """The node. `run` it; `working` and `log` are there to be looked at."""

    def __init__(
        self, config: ControllerConfig, environment: Environment, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.config = config
        self.node_id = BrokerId(config.node_id)
        self.host = host
        self.port = port
        """Where it listens; 0 becomes a free one."""
        self.epoch: Epoch = 0
        """The quorum's epoch."""
        self.working = Image()
        """With what is appended and not yet committed: decisions are made on this."""
        self.log: Log
        self.fenced_fast: list[BrokerId] = []
        """For tests: who was fenced because its port refused."""
        self._env = environment
        self._bounds = Bounds(DEFAULT)
        self._alterations = Alterations()
        self._sessions: Sessions
        self._waiting: deque[tuple[Offset, Callable[[], None]]] = deque()
        self._delayed = Delayed()
        self._appended = asyncio.Event()
        self._connections: dict[BrokerId, ServerConnection] = {}
        self._group: asyncio.TaskGroup
        self._ended = False
        self._handlers: dict[type[Request], Callable[[Any, Incoming], Reply]] = {
            RegisterBroker: self._register,
            BrokerHeartbeat: self._beat,
            AlterPartition: self._alter,
            CreateTopics: self._create_topics,
            DeleteTopics: self._delete_topics,
            AllocateProducerIds: self._allocate,
        }

    # ── a life ────────────────────────────────────────────────────────────────────────────────────

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until cancelled."""
        lock = self._open()
        try:
            await self._serve_until_cancelled(ready)
        except asyncio.CancelledError:
            lock.release()  # what the death of a process does by itself
            raise

    async def _serve_until_cancelled(self, ready: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            listener = await listen(self.host, self.port, self._receive, self._bounds)
            self.port = listener.port
            try:
                for work in (self._flush(), self._watch(), self._idle()):
                    group.create_task(work)
                for broker, state in self.working.brokers.items():
                    if not state.fenced:
                        self._suspect(broker, state.epoch)
                ready()
                await asyncio.get_running_loop().create_future()
            finally:
                self._ended = True
                listener.close()

    def _open(self) -> Lock:
        env, now_ms = self._env, self._now_ms()
        claimed = claim(
            env.directory,
            role="controller",
            node_id=self.node_id,
            cluster_id=None,
            new_directory_id=env.new_id(),
            pid=env.pid,
        )
        life = Life.begin(
            env.directory,
            directory_id=claimed.identity.directory_id,
            incarnation_id=env.new_id(),
            boot_id=env.boot_id,
            has_partitions=any(parse_partition(name) for name in env.directory.names()),
        )
        data = DataDirectory(
            env.directory,
            life,
            LogConfig(),
            OpenSegments(),
            halt=self._halt,
            new_guard=env.new_guard,
        )
        for _ in data.open(env.clock.wall_ms()):
            pass
        self.log = data.logs.get(METADATA) or data.create(METADATA, METADATA_TOPIC_ID, env.clock.wall_ms())
        self._replay()
        self.epoch = max(self.log.epochs.latest, 0) + 1
        first: list[Fact] = [NothingHappened()]
        if self.working.cluster_id is None:
            first.insert(0, ClusterInitialized(env.new_id(), env.clock.wall_ms()))
        unfenced = [broker for broker, state in self.working.brokers.items() if not state.fenced]
        self._sessions = Sessions(self.config.liveness, unfenced, now_ms, self.log.end_offset)
        self._append(first)
        self._make_epoch_durable()
        return claimed.lock

    def _make_epoch_durable(self) -> None:
        """Before anything is said in it: else the next life would take it once more (I-11 of the quorum's log)."""
        self.log.flush()

    def _replay(self) -> None:
        while self.working.end_offset < self.log.end_offset:
            data = self.log.read(self.working.end_offset, 1 << 20).data
            for at, header in walk(data):
                self.working.replay(data[at : at + header.size])

    def _halt(self, what: str, error: OSError) -> NoReturn:
        self._env.halt(f"{what}: {error}")

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    # ── the log ───────────────────────────────────────────────────────────────────────────────────

    def _append(self, facts: Sequence[Fact]) -> Offset:
        """All of this holds from now on, and is committed when it is flushed. Where the first of them stands."""
        base = self.log.end_offset
        if facts:
            batch = encode_facts(facts, self._env.clock.wall_ms())
            self.log.append(batch, self.epoch, self._env.clock.wall_ms())
            self._sessions.appended(facts, base, self.working)
            self.working.replay(batch)
            self._appended.set()
            self._touched()
        return base

    async def _flush(self) -> None:
        """One flush for all that was appended during the last one."""
        loop = asyncio.get_running_loop()
        while True:
            flush = self.log.begin_flush()
            if flush is None:
                self._appended.clear()
                await self._appended.wait()
                continue
            await loop.run_in_executor(None, flush.run)
            self.log.end_flush(flush)
            while self._waiting and self._waiting[0][0] <= self.log.durable_offset:
                self._waiting.popleft()[1]()
            self._touched()

    def _when_committed(self, answer: Callable[[], None]) -> None:
        """Answer when all that the answer may be made of is committed: refusals too (KAFKA-14457)."""
        if self.log.durable_offset >= self.log.end_offset:
            answer()
        else:
            self._waiting.append((self.log.end_offset, answer))

    async def _idle(self) -> None:
        while True:
            end = self.log.end_offset
            await asyncio.sleep(self.config.idle_ms / 1000)
            if self.log.end_offset == end:
                self._append([NothingHappened()])

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def _receive(self, incoming: Incoming) -> None:
        message = incoming.message
        if isinstance(message, Hello):
            cluster = self.working.cluster_id or b""
            incoming.reply(Welcome(cluster.hex(), self.node_id, "controller"))
        elif isinstance(message, Fetch):
            self._fetch(message, incoming)
        elif type(message) in self._handlers:
            self._serve(message, incoming)
        else:
            raise UnsupportedVersion(f"a controller does not serve {type(message).__name__}")

    def _serve(self, message: Any, incoming: Incoming) -> None:
        try:
            if message.quorum_epoch != self.epoch:
                raise NotController(
                    f"the request addresses epoch {message.quorum_epoch}, this is {self.epoch}"
                )
            reply = self._handlers[type(message)](message, incoming)
        except TidelogError as error:
            reply = message.reply(error=error.code, message=str(error), quorum_epoch=self.epoch)
        self._when_committed(lambda: incoming.reply(reply))

    def _register(self, request: RegisterBroker, incoming: Incoming) -> Reply:
        now_ms = self._now_ms()
        live = self._sessions.is_live(request.broker_id, now_ms)
        try:
            facts, epoch = register(self.working, request, self.log.end_offset, session_is_live=live)
        except InvalidRegistration as error:
            return RegisterBrokerReply(
                error.code,
                str(error),
                quorum_epoch=self.epoch,
                start=start_in_force(self.working, request),
            )
        if facts:
            self._append(facts)
            self._sessions.began(request.broker_id, now_ms)
        self._heard_on(request.broker_id, incoming)
        cluster = self.working.cluster_id or b""
        return RegisterBrokerReply(broker_epoch=epoch, cluster_id=cluster.hex(), quorum_epoch=self.epoch)

    def _beat(self, request: BrokerHeartbeat, incoming: Incoming) -> Reply:
        now_ms = self._now_ms()
        check_broker(self.working, request.broker_id, request.broker_epoch)
        self._sessions.heard(request.broker_id, now_ms, request.metadata_offset)
        self._heard_on(request.broker_id, incoming)
        while (result := beat(self.working, self._sessions, request, now_ms)).goes_on:
            self._append(result.facts)
        self._append(result.facts)
        if result.begins_shutdown:
            self._sessions.relieved(request.broker_id, self.log.end_offset, now_ms)
        return BrokerHeartbeatReply(
            fenced=result.fenced,
            should_shutdown=result.should_shutdown,
            caught_up=caught_up(request),
            session_timeout_ms=self.config.liveness.session_timeout_ms,
            quorum_epoch=self.epoch,
            renews=self._sessions.renews(request),
        )

    def _alter(self, request: AlterPartition, _incoming: Incoming) -> Reply:
        decisions = self._alterations.decide(self.working, request)
        offset = self._append([decision.state.changed() for decision in decisions if decision.state])
        entries = []
        for asked, state, error in decisions:
            at = NO_OFFSET if error else offset if state else self.log.end_offset - 1
            offset += state is not None
            code, told = (error.code, str(error)) if error else (0, None)
            entries.append(PartitionAltered(asked.topic_id, asked.index, code, told, at))
        return AlterPartitionReply(partitions=tuple(entries), quorum_epoch=self.epoch)

    def _create_topics(self, request: CreateTopics, _incoming: Incoming) -> Reply:
        entries = tuple(
            self._create_topic(topic, validate_only=request.validate_only) for topic in request.topics
        )
        return CreateTopicsReply(entries, metadata_offset=self.log.end_offset, quorum_epoch=self.epoch)

    def _create_topic(self, topic: NewTopic, *, validate_only: bool) -> CreatedTopic:
        topic_id = self._env.new_id()
        try:
            facts = create_topic(self.working, topic, topic_id, self._place, self.config.topics)
        except TidelogError as error:
            return CreatedTopic(topic.name, error.code, str(error))
        if validate_only:
            return CreatedTopic(topic.name)
        self._append(facts)
        partitions = self.working.partitions_of(topic_id)
        return CreatedTopic(
            topic.name,
            topic_id=topic_id,
            partitions=len(partitions),
            replication_factor=len(partitions[0].replicas),
        )

    def _place(self, partitions: int, factor: int) -> list[Replicas]:
        """One broker after the other, those that live first. `placement` will know about racks."""
        known = [state for state in self.working.brokers.values() if not state.shutting_down]
        live = sorted(state.id for state in known if not state.fenced)
        fenced = sorted(state.id for state in known if state.fenced)
        if not live or factor > len(known):
            raise InvalidReplicationFactor(
                f"{factor} replicas, {len(live)} brokers live, {len(fenced)} are fenced"
            )
        placed: list[Replicas] = []
        for index in range(partitions):
            turn = index % len(live)
            placed.append((*live[turn:], *live[:turn], *fenced)[:factor])
        return placed

    def _delete_topics(self, request: DeleteTopics, _incoming: Incoming) -> Reply:
        asked: list[tuple[str, TopicId | None]] = [(name, None) for name in request.names]
        asked += [("", topic_id) for topic_id in request.ids]
        entries = tuple(self._delete_topic(name, topic_id) for name, topic_id in asked)
        return DeleteTopicsReply(entries, metadata_offset=self.log.end_offset, quorum_epoch=self.epoch)

    def _delete_topic(self, name: str, topic_id: TopicId | None) -> RemovedTopic:
        try:
            facts = remove_topic(self.working, name, topic_id)
        except TidelogError as error:
            return RemovedTopic(name, topic_id, error.code, str(error))
        topic_id = topic_id or self.working.topic_ids[name]
        name = self.working.topics[topic_id].name
        self._append(facts)
        return RemovedTopic(name, topic_id)

    def _allocate(self, request: AllocateProducerIds, _incoming: Incoming) -> Reply:
        check_broker(self.working, request.broker_id, request.broker_epoch)
        first = self.working.next_producer_id
        self._append([ProducerIdsTaken(request.broker_id, request.broker_epoch, first + PRODUCER_IDS)])
        return AllocateProducerIdsReply(first=first, count=PRODUCER_IDS, quorum_epoch=self.epoch)

    # ── who is alive ──────────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        """Fence who is silent, one per operation."""
        while True:
            await asyncio.sleep(self.config.liveness.session_timeout_ms / 20_000)
            overdue = self._sessions.overdue(self.working, self._now_ms())
            if overdue is not None:
                self._append(fence(self.working, overdue))

    def _heard_on(self, broker: BrokerId, incoming: Incoming) -> None:
        connection = incoming.connection
        if self._connections.get(broker) is not connection:
            self._connections[broker] = connection
            connection.on_closed(lambda: self._lost(broker, connection))

    def _lost(self, broker: BrokerId, connection: ServerConnection) -> None:
        if self._connections.get(broker) is connection:
            del self._connections[broker]
            known = self.working.brokers.get(broker)
            if known is not None and not known.fenced:
                self._suspect(broker, known.epoch)

    def _suspect(self, broker: BrokerId, epoch: Epoch) -> None:
        if self.config.fast_fencing and not self._ended:
            self._group.create_task(self._probe(broker, epoch))

    async def _probe(self, broker: BrokerId, epoch: Epoch) -> None:
        """DECISIONS 3: only a port that refuses, twice, proves that nobody is there."""
        for last in (False,) * (PROBES - 1) + (True,):
            known = self.working.brokers.get(broker)
            if known is None or known.epoch != epoch or known.fenced or broker in self._connections:
                return
            try:
                connection = await connect(known.host, known.port, bounds=self._bounds, timeout_ms=1000)
            except ConnectionFailed as error:
                if not isinstance(error.__cause__, ConnectionRefusedError):
                    return
            except TidelogError:
                return
            else:
                connection.close()
                return
            if not last:
                await asyncio.sleep(PROBE_PAUSE_S)
        known = self.working.brokers.get(broker)
        if (
            known is not None
            and known.epoch == epoch
            and not known.fenced
            and broker not in self._connections
        ):
            self.fenced_fast.append(broker)
            self._append(fence(self.working, broker))

    # ── the log for observers ─────────────────────────────────────────────────────────────────────

    def _fetch(self, request: Fetch, incoming: Incoming) -> None:
        if len(request.partitions) != 1 or request.partitions[0].topic_id != METADATA_TOPIC_ID:
            raise UnknownTopicId("a controller has the metadata log, and nothing else to fetch")
        asked = request.partitions[0]
        try:
            self._check_epoch(asked.current_leader_epoch)
            diverging = check_place(self.log, asked.fetch_offset, asked.last_fetched_epoch)
        except TidelogError as error:
            leader = Leader(self.node_id, self.epoch)
            entry = PartitionFetched(
                METADATA_TOPIC_ID,
                0,
                error.code,
                str(error),
                log_start=self.log.log_start,
                current_leader=leader,
            )
            incoming.reply(FetchReply((entry,)))
            return
        waiting = _MetadataFetch(self.log, asked, incoming, EpochEnd(*diverging) if diverging else None)
        deadline_ms = self._now_ms() + request.max_wait_ms
        if self._delayed.wait(waiting, (METADATA,), deadline_ms):
            loop = asyncio.get_running_loop()
            loop.call_at(deadline_ms / 1000 + 0.001, lambda: self._delayed.expire(self._now_ms()))

    def _check_epoch(self, believed: Epoch) -> None:
        """As `check_leader_epoch`, but a fetch of the metadata log always says: so its sender learns the epoch."""
        if believed < self.epoch:
            raise FencedLeaderEpoch(f"the quorum's epoch is {self.epoch}, the fetch names {believed}")
        if believed > self.epoch:
            raise UnknownLeaderEpoch(f"the fetch names epoch {believed}, this controller knows {self.epoch}")

    def _touched(self) -> None:
        if self._delayed.touched(METADATA):
            asyncio.get_running_loop().call_soon(self._delayed.run)


class _MetadataFetch:
    """A fetch of the metadata log that waits for something to tell: records, or more of them committed."""

    def __init__(
        self, log: Log, asked: PartitionFetch, incoming: Incoming, diverging: EpochEnd | None
    ) -> None:
        self.log = log
        self.asked = asked
        self.incoming = incoming
        self.diverging = diverging

    def try_complete(self) -> bool:
        told = cast("Offset | None", self.incoming.connection.context)
        news = self.log.end_offset > self.asked.fetch_offset or self.log.durable_offset > (told or 0)
        if not (news or self.diverging or self.incoming.closed):
            return False
        self.give_up()
        return True

    def give_up(self) -> None:
        log, asked = self.log, self.asked
        # All of it, committed or not: who follows may have to cut off what is not (4.12).
        empty = self.diverging is not None or log.end_offset <= asked.fetch_offset
        data = memoryview(b"") if empty else log.read(asked.fetch_offset, asked.max_bytes).data
        entry = PartitionFetched(
            METADATA_TOPIC_ID,
            0,
            records_size=len(data),
            high_watermark=NO_OFFSET if self.diverging else log.durable_offset,
            log_start=log.log_start,
            end_offset=log.end_offset,
            diverging=self.diverging,
        )
        self.incoming.connection.context = log.durable_offset
        self.incoming.reply(FetchReply((entry,)), data)
