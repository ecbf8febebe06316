"""A controller's node: it votes, follows or leads, and while it leads the cluster is decided here (design 4.2, 4.12).

    quorum     who leads, how far the log is committed        metadata   the log and its two images
    active     one leadership: what brokers and operators ask for             readers    who follows the log

What it keeps true:

* What the quorum has promised is durable before anything else is done with it (`_carry`), I-45.
* A leadership begins to serve when its own first record is committed, and ends, for everybody who waits, in the
  same turn in which the quorum's does.
* A reply leaves when all that it may rest upon is committed (I-50). Heartbeats are answered only while a majority is
  heard (4.3): a controller that was replaced without knowing it extends no lease.
* An error of the log, of the fold, or of a file ends `run`: whoever runs a controller stops its process then.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, Final, NoReturn

from tidelog.controller.active import Active
from tidelog.controller.archive import Archive
from tidelog.controller.ballot import Ballot, log_to_vote_with
from tidelog.controller.chores import Chores
from tidelog.controller.config import ControllerConfig
from tidelog.controller.contacts import Contacts
from tidelog.controller.description import describe_quorum, who_leads
from tidelog.controller.facts import (
    METADATA,
    ClusterInitialized,
    Fact,
    LeaderElected,
    Voter,
    VotersNamed,
)
from tidelog.controller.following import Address, Following, Reader
from tidelog.controller.image import Image
from tidelog.controller.io import in_a_thread
from tidelog.controller.metadata_log import MetadataLog
from tidelog.controller.own_copy import OwnCopy
from tidelog.controller.peers import Peers, is_gone
from tidelog.controller.quorum import Lead, Quorum, Send, Step
from tidelog.controller.readers import Readers
from tidelog.controller.turns import Steps, Turns, failing
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import (
    DamagedLog,
    DiskFull,
    InconsistentClusterId,
    NotController,
    TidelogError,
    UnsupportedVersion,
)
from tidelog.protocol.io import Incoming, listen
from tidelog.protocol.messages import (
    BeginEpoch,
    BrokerHeartbeat,
    DescribeQuorum,
    ElectLeaders,
    EndEpoch,
    Fetch,
    FetchSnapshot,
    Hello,
    RegisterBroker,
    Reply,
    Vote,
    VoteReply,
    Welcome,
)
from tidelog.protocol.types import NO_BROKER, BrokerId, Epoch
from tidelog.replication.breathing import breathing
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.environment import Environment, take_directory
from tidelog.storage.files import NoRoom
from tidelog.storage.identity import Claim, adopt_cluster
from tidelog.storage.log import Log
from tidelog.storage.open_segments import OpenSegments

logger = logging.getLogger(__name__)

_FULL_S: Final = 1.0
"""How soon a full disk is tried again."""


class Controller:
    """One controller's node. `run` it."""

    def __init__(self, config: ControllerConfig, environment: Environment) -> None:
        self.config = config
        self.node_id = config.node_id
        self.host, self.port = config.host, config.port
        """Where it really listens."""
        self.settled = asyncio.Event()
        """Set once it has led, or followed somebody who leads."""
        self.elections_won = 0
        self.quorum: Quorum
        self.metadata: MetadataLog
        self.active: Active | None = None
        """While it leads, and its own first record is committed."""
        self.fenced_fast: dict[BrokerId, int] = {}
        """How often each was fenced because its port refused, in the life of this process."""
        self._env = environment
        self.bounds = Bounds(config.limits)
        self._addresses: dict[BrokerId, Address] = {
            BrokerId(n): (host, port) for n, host, port in config.voters
        }
        self._claim: Claim
        self._data: DataDirectory
        self._archive: Archive
        self._ballot: Ballot
        self._readers: Readers
        self._peers: Peers
        self._copy: OwnCopy
        self._following: Following | None = None
        self._follows: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """In the order in which they began: that of a set would be another one in every process."""
        self._contacts: Contacts
        self._chores: Chores
        self._at_work: list[asyncio.Task[None]] = []
        """What this leadership does by itself."""
        self._early: list[Incoming] = []
        """Requests to a leader whose own first record is not committed yet."""
        self._turns = Turns()
        self._appended = asyncio.Event()
        self._quorum_moved = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._closing = False

    @property
    def epoch(self) -> Epoch:
        """The quorum's, as far as this node knows."""
        return self.quorum.epoch

    @property
    def log(self) -> Log:
        """The metadata log on this node's disk."""
        return self.metadata.log

    @property
    def working(self) -> Image:
        """The cluster with all that this node's log says."""
        return self.metadata.working

    @property
    def address(self) -> Address:
        """Where the quorum finds it."""
        return self._addresses[self.node_id]

    @property
    def cluster_id(self) -> str:
        """Whose it is, in hex; empty until that is known."""
        return self.quorum.cluster_id

    @property
    def failures(self) -> Mapping[BrokerId, str]:
        """Why each of the others could not be followed that was tried since one could."""
        return self._following.failures if self._following is not None else {}

    @property
    def follows(self) -> bool:
        """Whether it hears somebody who leads."""
        return self._following is not None and self._following.connection is not None

    # ── a life ────────────────────────────────────────────────────────────────────────────────────

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`, or until cancelled: that is as if killed. Raises what it cannot go on with."""
        await self._open()
        async with asyncio.TaskGroup() as group:
            self._group = group
            listener = await listen(self.config.host, self.config.port, self._receive, self.bounds)
            self.host, self.port = listener.host, listener.port
            host, port = self._addresses[self.node_id]
            self._addresses[self.node_id] = host, port or listener.port
            logger.info("controller.listening host=%s port=%d", self.host, self.port)
            self._begin()
            try:
                flushes = self._start(self._flush())
                self._spawn(self._elections())
                self._spawn(self._checkpoints())
                ready()
                await self._stop_asked.wait()
                await self._resign()
            finally:
                listener.close()
            await listener.wait_closed()
            self._closing = True
            self._appended.set()
            await flushes
            for task in list(self._tasks):
                task.cancel()
        await self._close()

    def stop(self) -> None:
        """Stop in order: let another one lead, and close the log so that nothing is scanned."""
        self._stop_asked.set()

    async def _open(self) -> None:
        env, config, halt, reserve = self._env, self.config, self._halt, self.config.reserve_bytes
        self._claim, _, self._data = take_directory(
            env, "controller", config.node_id, env.new_id(), config.log, OpenSegments(), halt, reserve
        )
        self.reserve = self._data.reserve
        with self._data.starting():
            await breathing(self._data.open(env.clock.wall_ms()), in_a_thread)
            for problem in self._data.report.problems:
                logger.warning("storage.problem %s", problem)
            log = log_to_vote_with(self._data, env.clock.wall_ms())
            self._archive = Archive(log, config.snapshots, self._save_log_start)
            committed = await self._archive.open()
            self._ballot = Ballot.read(self._data.directory, self._archive.epochs.latest)
            high_watermark = max(self._data.high_watermark(METADATA), committed.end_offset)
            self.metadata = MetadataLog(self._archive, committed, high_watermark)

    def _begin(self) -> None:
        identity, metadata = self._claim.identity, self.metadata
        self.quorum = Quorum(
            self.node_id,
            identity.directory_id,
            self._addresses,
            self._ballot.state,
            config=self.config.quorum,
            rng=self._env.rng,
            now_ms=self._now_ms(),
            directories=metadata.directories(),
            cluster_id=identity.cluster_id.hex() if identity.cluster_id else "",
        )
        self.quorum.high_watermark = metadata.committed_end
        self._copy = OwnCopy(
            metadata,
            self.quorum,
            now_ms=self._now_ms,
            told=self._told,
            grown=self._grown,
            lost=self._lost,
        )
        self._readers = Readers(metadata, self.quorum)
        hello = Hello(client_id=f"controller-{self.node_id}", cluster_id=self.quorum.cluster_id)
        others = {voter: address for voter, address in self._addresses.items() if voter != self.node_id}
        self._peers = Peers(others, hello, self.bounds)
        if others:
            self._following = Following(
                self._copy,
                others,
                Reader(hello=hello, node_id=self.node_id, directory_id=identity.directory_id),
                wall_ms=self._env.clock.wall_ms,
                rng=self._env.rng,
                bounds=self.bounds,
                config=self.config.following,
            )
        self._follow()

    async def _close(self) -> None:
        """The log, how far it is committed, and then the marker that says so."""
        committed = {METADATA: min(self.quorum.high_watermark, self.metadata.log.durable_offset)}
        await in_a_thread(lambda: self._data.close(committed))
        self._claim.lock.release()

    def _halt(self, what: str, error: OSError) -> NoReturn:
        self._env.halt(f"{what}: {error}")

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._group.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """As `_start`, where nobody ends it. When this node is ending, nothing begins."""
        try:
            _ = self._start(work)
        except RuntimeError:  # the group says so, whether it was a failure, a cancellation or a stop
            work.close()

    def _now_ms(self) -> int:
        """By the clock that goes on while the machine is suspended: leases must not outlive that."""
        return int(self._env.clock.boot_ms())

    # ── the quorum ────────────────────────────────────────────────────────────────────────────────

    async def _elections(self) -> None:
        """Tell the quorum what time it is, whenever that matters."""
        while True:
            self._carry(self.quorum.tick(self._now_ms(), self.metadata.end))
            due_ms = self.quorum.deadline_ms()
            # Half a millisecond later the time in whole milliseconds has surely come.
            wait_s = None if due_ms is None else max(due_ms - self._now_ms() + 1.5, 0) / 1000
            self._quorum_moved.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._quorum_moved.wait()

    def _carry(self, steps: list[Step]) -> None:
        """What the quorum has promised is made durable, and then the rest is done."""
        try:
            self._ballot.write(self.quorum.state)
        except OSError as error:
            self._halt("quorum-state", error)
        if not self.quorum.leads:
            self._lead_no_more()
        for step in steps:
            if isinstance(step, Lead):
                self._try_to_lead(step)
            else:
                self._spawn(self._send(step))
        self._quorum_moved.set()

    async def _send(self, step: Send) -> None:
        asked = step.request
        reply = await self._peers.heard(step.to, asked, self.config.quorum.fetch_timeout_ms)
        now_ms, end = self._now_ms(), self.metadata.end
        if isinstance(asked, Vote) and isinstance(reply, VoteReply):
            self._carry(self.quorum.on_vote_reply(asked, reply, now_ms, end))
        elif isinstance(asked, Vote):
            self._carry(self.quorum.on_vote_unheard(asked, now_ms, end))

    def _try_to_lead(self, step: Lead) -> None:
        try:
            self._lead(step)
        except DiskFull as full:
            logger.warning("quorum.leads_not id=%d %s", self.node_id, full)
            self._give_up()

    def _give_up(self) -> None:
        self._carry(self.quorum.resign(self._now_ms()))

    def _lead(self, step: Lead) -> None:
        """The election is won: the first record says so, and what the cluster is if it is the first of all."""
        self.elections_won += 1
        logger.info("quorum.leads id=%d epoch=%d", self.node_id, step.epoch)
        if self._follows is not None:
            self._follows.cancel()
            self._follows = None
        wall_ms = self._env.clock.wall_ms()
        facts: list[Fact] = [LeaderElected(self.node_id, step.epoch, step.granted_by)]
        if step.founding is not None:
            facts.append(ClusterInitialized(self._env.new_id(), wall_ms))
            voters = (Voter(voter, disk, *self._addresses[voter]) for voter, disk in step.founding)
            facts.append(VotersNamed(tuple(voters)))
        self.quorum.began(self.metadata.append(facts, step.epoch, wall_ms))
        self._grown()

    def _lead_no_more(self) -> None:
        """Whoever waits is told; then this node follows."""
        if self.active is not None:
            logger.info("quorum.deposed id=%d epoch=%d", self.node_id, self.active.epoch)
        self.active = None
        if self._at_work:
            self._chores.end()
        for work in self._at_work:
            work.cancel()
        self._at_work = []
        self.metadata.give_up()
        self._readers.give_up()
        self._serve_early()
        self._follow()

    def _follow(self) -> None:
        if self._following is not None and self._follows is None and not self.quorum.leads:
            self._follows = self._start(self._following.run())

    async def _resign(self) -> None:
        """Ask the most complete of the others to lead, and wait until they have heard."""
        self.active = None
        steps = self.quorum.resign(self._now_ms())
        self._carry([])
        await asyncio.gather(*(self._send(step) for step in steps if isinstance(step, Send)))

    # ── the log ───────────────────────────────────────────────────────────────────────────────────

    def _grown(self) -> None:
        """Something was appended here."""
        voted = self.quorum.is_voter
        self.quorum.directories = self.metadata.directories()
        if voted and not self.quorum.is_voter:
            logger.warning(
                "quorum.votes_not id=%d: another disk is named for it; it only follows", self.node_id
            )
        self._appended.set()
        if self._at_work:
            self._chores.appended()
        self._touched()

    def _touched(self) -> None:
        if self._readers.delayed.touched(METADATA):
            asyncio.get_running_loop().call_soon(self._readers.delayed.run)

    async def _flush(self) -> None:
        """One flush for all that was appended during the last one. One that has begun is never left alone."""
        while True:
            flush = None if self._closing else self.metadata.log.begin_flush()
            if flush is None:
                if self._closing:
                    return
                self._appended.clear()
                await self._appended.wait()
                continue
            await in_a_thread(flush.run)
            try:
                self.metadata.log.end_flush(flush)
            except DiskFull as full:
                logger.warning("quorum.flush_refused id=%d %s", self.node_id, full)
                await asyncio.sleep(_FULL_S)
                continue
            self._copy.durable.set()
            if self.quorum.flushed(self.metadata.log.durable_offset):
                self._committed()

    def _committed(self) -> None:
        """More is committed."""
        if self.metadata.commit(self.quorum.high_watermark):
            self._spawn(breathing(self.metadata.fold()))
        cluster_id = None if self.quorum.cluster_id else self.metadata.committed.cluster_id
        if cluster_id is not None:
            self.quorum.cluster_id = cluster_id.hex()
            adopt_cluster(self._data.directory, self._claim.identity, cluster_id)
            self._data.life.joined()
        if self.quorum.is_settled and self.active is None and not self._stop_asked.is_set():
            self._activate()
        self._touched()

    def _activate(self) -> None:
        """All that earlier leaders have committed is known here: open for requests."""
        self.active = Active(
            self.metadata,
            self.quorum.epoch,
            self.metadata.log.epochs.entries[-1].start,
            self.config.active,
            now_ms=self._now_ms(),
            wall_ms=self._env.clock.wall_ms,
            new_id=self._env.new_id,
            appended=self._grown,
        )
        self.settled.set()
        logger.info("controller.active id=%d epoch=%d", self.node_id, self.quorum.epoch)
        active = self.active
        self._contacts = Contacts(
            active,
            lambda: active is self.active and self.config.fences_fast(active.image.configs),
            spawn=self._spawn,
            drive=lambda steps: self._drive(active, steps),
            fenced=self.fenced_fast,
            bounds=self.bounds,
        )
        self._chores = Chores(
            active,
            idle_ms=self.config.idle_ms,
            give_up=self._give_up,
            hello=self._peers.hello,
            now_ms=self._now_ms,
            spawn=self._spawn,
            drive=lambda steps: self._drive(active, steps),
            bounds=self.bounds,
        )
        self._contacts.suspect_all()
        self._at_work = [self._start(work) for work in self._chores.begin()]
        self._serve_early()

    def _serve_early(self) -> None:
        """Serve those that came before it could, or refuse them if it will not."""
        early, self._early = self._early, []
        for incoming in early:
            try:
                self._serve(incoming.message, incoming, self._now_ms())
            except TidelogError as error:
                incoming.refuse(error)

    async def _checkpoints(self) -> None:
        """How far the log is committed, as far as it is durable, and snapshots: where the next start begins."""
        while True:
            await asyncio.sleep(self.config.checkpoint_ms / 1000)
            committed = min(self.quorum.high_watermark, self.metadata.log.durable_offset)
            with contextlib.suppress(NoRoom):  # what was said before is older, and as true
                await in_a_thread(self._data.write_high_watermarks({METADATA: committed}).run)
            await breathing(self.metadata.fold())
            await self._archive.take_if_due(self.metadata.committed)

    async def _save_log_start(self) -> None:
        await in_a_thread(self._data.write_log_starts().run)

    # ── following ─────────────────────────────────────────────────────────────────────────────────

    def _told(self) -> None:
        """The quorum has heard something while it followed."""
        if self.quorum.leader_id != NO_BROKER:
            self.settled.set()
        self._carry([])
        if self.quorum.high_watermark > self.metadata.committed_end:
            self._committed()

    def _lost(self, controller: BrokerId) -> None:
        """If nobody is there any more, there is no need to wait."""
        if self.quorum.leader_id == controller and not self.quorum.leads and not self._stop_asked.is_set():
            self._spawn(self._probe_leader(controller, self.quorum.epoch))

    async def _probe_leader(self, controller: BrokerId, epoch: Epoch) -> None:
        def is_wanted() -> bool:
            return (self.quorum.leader_id, self.quorum.epoch) == (controller, epoch)

        if await is_gone(self._addresses[controller], is_wanted, self.bounds):
            self.quorum.leader_is_gone(self._now_ms())
            self._carry([])

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def _receive(self, incoming: Incoming) -> None:
        """One request, served at once or left to wait; whatever is raised here is its answer."""
        message, now_ms = incoming.message, self._now_ms()
        loop_ms = int(asyncio.get_running_loop().time() * 1000)
        if isinstance(message, Hello):
            self._welcome(message, incoming)
        elif isinstance(message, Fetch):
            if self._readers.fetch(message, incoming, now_ms, loop_ms):
                self._committed()
        elif isinstance(message, FetchSnapshot):
            self._readers.fetch_snapshot(message, incoming, now_ms)
        elif isinstance(message, DescribeQuorum):
            observers = self._readers.observers(now_ms)
            told = describe_quorum(message, self.quorum, self.metadata, observers, self._addresses, now_ms)
            incoming.reply(told)
        elif isinstance(message, Vote):
            vote = self.quorum.on_vote(message, now_ms, self.metadata.end)
            self._carry([])
            incoming.reply(vote)
        elif isinstance(message, BeginEpoch):
            begun = self.quorum.on_begin(message, now_ms)
            self._carry([])
            if self._following is not None:
                self._following.look_again()
            incoming.reply(begun)
        elif isinstance(message, EndEpoch):
            ended = self.quorum.on_end(message, now_ms)
            self._carry([])
            incoming.reply(ended)
        else:
            self._serve(message, incoming, now_ms)

    def _welcome(self, hello: Hello, incoming: Incoming) -> None:
        mine = self.quorum.cluster_id
        if hello.cluster_id and mine and hello.cluster_id != mine:
            raise InconsistentClusterId(f"this is a controller of cluster {mine}, not {hello.cluster_id}")
        incoming.reply(Welcome(mine, self.node_id, "controller"))

    def _serve(self, message: Any, incoming: Incoming, now_ms: int) -> None:
        active = self.active
        if active is None and self.quorum.leads and not self._stop_asked.is_set():
            self._early.append(incoming)
            return
        if active is None:
            raise NotController(f"controller {self.node_id} is not active, {who_leads(self.quorum)}")
        if type(message) not in active.serves:
            raise UnsupportedVersion(f"a controller does not serve {type(message).__name__}")
        if isinstance(message, BrokerHeartbeat) and not self.quorum.holds_lease(now_ms):
            raise NotController(f"controller {self.node_id} does not hear a majority of the quorum")
        steps = active.serve(message, now_ms)
        if not isinstance(message, ElectLeaders):
            try:
                next(steps)
            except StopIteration as done:
                self._answer(active, message, done.value, incoming)
                return
            except DamagedLog as damage:
                self._give_up()
                self._spawn(failing(damage))
                raise self._deposed() from damage
        self._spawn(self._serve_on(active, message, steps, incoming))

    async def _serve_on(self, active: Active, message: Any, steps: Steps[Reply], incoming: Incoming) -> None:
        """What takes several steps, or is to be found out first: others are served meanwhile."""
        await (self._chores.find(message) if isinstance(message, ElectLeaders) else asyncio.sleep(0))
        reply = await self._turns.carry_out(steps, lambda: active is self.active)
        if reply is None:
            incoming.refuse(self._deposed())
        else:
            self._answer(active, message, reply, incoming)

    def _answer(self, active: Active, message: Any, reply: Reply, incoming: Incoming) -> None:
        if isinstance(message, RegisterBroker | BrokerHeartbeat) and not getattr(reply, "error", 0):
            self._contacts.heard_on(message.broker_id, incoming)

        def answer(committed: bool) -> None:
            if committed and active is self.active:
                incoming.reply(reply)
            else:
                incoming.refuse(self._deposed())

        self.metadata.when_committed(answer)

    def _deposed(self) -> NotController:
        return NotController(f"controller {self.node_id} leads no more: whether it was done is not known")

    async def _drive(self, active: Active, steps: Generator[None, None, None]) -> None:
        """What nobody waits for, step by step, as long as this leadership lasts. A full disk ends it before."""
        with contextlib.suppress(DiskFull):
            await self._turns.carry_out(steps, lambda: active is self.active)
