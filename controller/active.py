"""The active controller's decisions: one request after the other, on the image with all that was appended (design 4.2).

    serve(request) ──► steps ──► reply       each step appends at most one batch; between two, others are served

What it keeps true:

* Nothing happens between looking at the image and appending what follows from it.
* A request that addresses another epoch of the quorum changes nothing (DECISIONS 7).
* What needs many batches is decided anew for each of them: others may have been served meanwhile.

It lives as long as one leadership of the quorum, and what it remembers (who was heard when, which proposals were
seen) is forgotten with it. Whoever carries it sends a reply when `MetadataLog.when_committed` says so.
"""

import logging
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from tidelog.controller import turns
from tidelog.controller.alterations import Alterations
from tidelog.controller.batches import Answer
from tidelog.controller.configs import (
    alter_configs,
    describe_configs,
    reaches_partitions,
    topic_defaults,
    unfinished,
)
from tidelog.controller.departures import unregister_broker
from tidelog.controller.election import STEP, fence, lead_again, leave, leaving
from tidelog.controller.facts import Fact, NothingHappened, PartitionCreated, Place, ProducerIdsTaken
from tidelog.controller.image import Image
from tidelog.controller.leaders import elect_leaders
from tidelog.controller.liveness import (
    LivenessConfig,
    Sessions,
    beat,
    caught_up,
    check_broker,
    register,
    start_in_force,
)
from tidelog.controller.metadata_log import MetadataLog
from tidelog.controller.partitions import create_partitions
from tidelog.controller.placement import place_new
from tidelog.controller.plans import plan_moves
from tidelog.controller.reassignment import alter_reassignments, list_reassignments, throttle_ends
from tidelog.controller.rebalance import imbalance, overdue, rebalance
from tidelog.controller.recovery import Recovery, Todo, possible_losses
from tidelog.controller.topics import Replicas, TopicDefaults, create_topic, remove_topic
from tidelog.protocol.errors import DamagedLog, NotController, RequestTimedOut, TidelogError
from tidelog.protocol.messages import (
    AllocateProducerIds,
    AllocateProducerIdsReply,
    AlterConfigs,
    AlterPartition,
    AlterPartitionReply,
    AlterReassignments,
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    CreatedTopic,
    CreatePartitions,
    CreateTopics,
    CreateTopicsReply,
    DeleteTopics,
    DeleteTopicsReply,
    DescribeConfigs,
    ElectLeaders,
    ElectLeadersReply,
    ListReassignments,
    NewTopic,
    PartitionAltered,
    PlanMoves,
    RegisterBroker,
    RegisterBrokerReply,
    RemovedTopic,
    Reply,
    Request,
    UnregisterBroker,
)
from tidelog.protocol.settings import CLUSTER, flag, number
from tidelog.protocol.types import NO_EPOCH, NO_OFFSET, BrokerId, Epoch, Offset, TopicId

logger = logging.getLogger(__name__)

T = TypeVar("T")

Steps: TypeAlias = turns.Steps[Reply]
"""Goes on with what a request asks for; its value is the reply. Others may be served wherever it yields."""

PRODUCER_IDS: Final = 1000
"""Producer ids that a broker is given at a time."""


@dataclass(frozen=True, slots=True)
class _Decided(Generic[T]):
    """What is to be appended, and what is told of it."""

    batches: list[list[Fact]]
    value: T


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveConfig:
    """What the active controller goes by."""

    liveness: LivenessConfig = field(default_factory=LivenessConfig)
    topics: TopicDefaults = field(default_factory=TopicDefaults)


class Active:
    """One leadership of the quorum. Time is in milliseconds of a monotonic clock."""

    def __init__(
        self,
        metadata: MetadataLog,
        epoch: Epoch,
        begins: Offset,
        config: ActiveConfig,
        *,
        now_ms: int,
        wall_ms: Callable[[], int],
        new_id: Callable[[], bytes],
        appended: Callable[[], None] = lambda: None,
    ) -> None:
        self.epoch = epoch
        self.config = config
        unfenced = [broker for broker, state in metadata.working.brokers.items() if not state.fenced]
        self.sessions = Sessions(config.liveness, unfenced, now_ms, begins)
        self._metadata = metadata
        self.recovery = Recovery()
        self._alterations = Alterations()
        self._beats: dict[BrokerId, BrokerHeartbeat] = {}
        """The latest heartbeat of each broker."""
        self._offline: dict[BrokerId, Collection[Place]] = {}
        """The replicas that it cannot serve, by that heartbeat."""
        self._being_fenced: list[tuple[BrokerId, Epoch]] = []
        """Registrations from which everything is being taken, step by step: as often as somebody does it."""
        self._wall_ms = wall_ms
        self._new_id = new_id
        self._appended = appended
        self._handlers: dict[type[Request], Callable[[Any, int], Reply | Steps]] = {
            RegisterBroker: self._register,
            BrokerHeartbeat: self._beat,
            AlterPartition: self._alter,
            CreateTopics: self._create_topics,
            DeleteTopics: self._delete_topics,
            AllocateProducerIds: self._allocate,
            CreatePartitions: self._operation(partial(create_partitions, place=self._place_more)),
            AlterConfigs: self._alter_configs,
            ElectLeaders: self._operation(self._elect_leaders),
            AlterReassignments: self._operation(alter_reassignments),
            UnregisterBroker: self._operation(unregister_broker),
            DescribeConfigs: lambda request, _: describe_configs(self.image, request, config.topics.by_key()),
            ListReassignments: lambda request, _: list_reassignments(self.image, request),
            PlanMoves: self._plan,
        }

    @property
    def image(self) -> Image:
        """The cluster with all that was appended: decisions are made on it."""
        return self._metadata.working

    @property
    def serves(self) -> frozenset[type[Request]]:
        """What it answers."""
        return frozenset(self._handlers)

    def serve(self, request: Any, now_ms: int) -> Steps:
        """What becomes of a request."""
        try:
            if request.quorum_epoch != self.epoch:
                raise NotController(
                    f"the request addresses epoch {request.quorum_epoch} of the quorum, this is {self.epoch}"
                )
            result = self._handlers[type(request)](request, now_ms)
            if isinstance(result, Generator):
                result = yield from result
        except DamagedLog:  # nothing is decided here any more: that is for whoever carries this out
            raise
        except TidelogError as error:
            return self._refusal(request, error)
        return msgspec.structs.replace(result, quorum_epoch=self.epoch)

    def _refusal(self, request: Any, error: TidelogError) -> Reply:
        about: dict[str, Any] = {"error": error.code, "message": str(error), "quorum_epoch": self.epoch}
        if isinstance(request, RegisterBroker):
            about["start"] = start_in_force(self.image, request)
        reply: Reply = request.reply(**about)
        return reply

    def append(self, facts: Sequence[Fact]) -> Offset:
        """All of this is so from now on. Where the first of it stands."""
        return self._append(facts, lambda: self._metadata.append(facts, self.epoch, self._wall_ms()))

    def _append(self, facts: Sequence[Fact], write: Callable[[], object]) -> Offset:
        before = self.image
        base = self._metadata.log.end_offset
        if facts:
            for lost in possible_losses(before, facts):
                topic = before.topics[lost.topic_id].name
                said = topic, lost.index, lost.leader, lost.leader_epoch
                logger.error("partition.possible_loss partition=%s-%d leader=%d epoch=%d", *said)
            self.sessions.appended(facts, base, before)
            write()
            self._appended()
            self.append(throttle_ends(self.image))
        return base

    # ── brokers ───────────────────────────────────────────────────────────────────────────────────

    def _register(self, request: RegisterBroker, now_ms: int) -> Steps:
        begun = NO_EPOCH
        while True:
            known = self.image.brokers.get(request.broker_id)
            replaced = known.epoch if known else NO_EPOCH
            # From whom the first step has taken, the next one takes the rest, also if it is heard again: to be refused
            # then would leave it without what it has on its disk.
            live = replaced != begun and self.sessions.is_live(request.broker_id, now_ms)
            end = self._metadata.log.end_offset
            facts, epoch = register(self.image, request, end, session_is_live=live)
            self.append(facts)
            if epoch != NO_EPOCH:
                break
            begun = replaced
            with self._taking_from(request.broker_id, replaced):
                yield
        if facts:
            self.sessions.began(request.broker_id, now_ms)
        cluster = self.image.cluster_id or b""
        return RegisterBrokerReply(broker_epoch=epoch, cluster_id=cluster.hex(), quorum_epoch=self.epoch)

    def _beat(self, request: BrokerHeartbeat, now_ms: int) -> Steps:
        check_broker(self.image, request.broker_id, request.broker_epoch)
        self.sessions.heard(request.broker_id, now_ms, request.metadata_offset)
        self._beats[request.broker_id] = request
        self._offline[request.broker_id] = {(entry.topic_id, entry.index) for entry in request.offline}
        self._check_is_not_being_fenced(request)
        while (result := beat(self.image, self.sessions, request, now_ms)).goes_on:
            self.append(result.facts)
            taking = self._taking_from(request.broker_id, request.broker_epoch)
            with taking if request.want_fence else nullcontext():
                yield
            if self._beats[request.broker_id] is not request:
                # Two that say different things would take back what the other has done, for ever.
                raise RequestTimedOut(f"broker {request.broker_id} has sent a newer heartbeat meanwhile")
            self._check_is_not_being_fenced(request)
        self.append(result.facts)
        if result.begins_shutdown:
            self.sessions.relieved(request.broker_id, self._metadata.log.end_offset, now_ms)
        return BrokerHeartbeatReply(
            fenced=result.fenced,
            should_shutdown=result.should_shutdown,
            caught_up=caught_up(request),
            session_timeout_ms=self.config.liveness.session_timeout_ms,
            quorum_epoch=self.epoch,
            renews=self.sessions.renews(request),
        )

    def _check_is_not_being_fenced(self, request: BrokerHeartbeat) -> None:
        """A heartbeat gives back what waits for its broker: it would undo the steps of a fencing, for ever.

        The fencing ends first. The next heartbeat finds the broker fenced, and lets it come back.
        """
        if (request.broker_id, request.broker_epoch) in self._being_fenced:
            raise RequestTimedOut(
                f"broker {request.broker_id} is being fenced or registered anew, it can come back after that"
            )

    @contextmanager
    def _taking_from(self, broker: BrokerId, epoch: Epoch) -> Iterator[None]:
        """Nothing is given back to that registration meanwhile. Several may overlap, and end one by one."""
        self._being_fenced.append((broker, epoch))
        try:
            yield
        finally:
            self._being_fenced.remove((broker, epoch))

    def _is_being_fenced(self, broker: BrokerId) -> bool:
        known = self.image.brokers.get(broker)
        return known is not None and (broker, known.epoch) in self._being_fenced

    def _is_going(self, broker: BrokerId, place: Place) -> bool:
        """Its leader would put it back after each step, and the steps would never end."""
        return self._is_being_fenced(broker) or place in self._offline.get(broker, ())

    def fence(self, broker: BrokerId, epoch: Epoch) -> Generator[None, None, None]:
        """It is not alive any more: take everything from that registration."""
        with self._taking_from(broker, epoch):
            yield from self._fence(broker, epoch)

    def _fence(self, broker: BrokerId, epoch: Epoch) -> Generator[None, None, None]:
        def goes_on() -> bool:
            known = self.image.brokers.get(broker)
            return known is not None and known.epoch == epoch and not known.fenced

        # To look what there is to be taken costs as much as a step: that is done once for all of them.
        while goes_on() and len(places := leaving(self.image, broker)) > STEP:
            for first in range(0, len(places), STEP):
                yield
                if goes_on():
                    self.append(leave(self.image, broker, places=places[first : first + STEP]))
            yield
        if goes_on():
            self.append(fence(self.image, broker))

    def overdue(self, now_ms: int) -> Generator[None, None, None] | None:
        """Fence who has been silent for too long, if anybody has."""
        broker = self.sessions.overdue(self.image, now_ms)
        return None if broker is None else self.fence(broker, self.image.brokers[broker].epoch)

    def begin(self) -> Generator[None, None, None]:
        """What an earlier leadership may have left undone."""
        yield from self._finish()
        for broker in sorted(self.image.brokers):
            while self._may_lead(broker) and (facts := lead_again(self.image, broker)):
                self.append(facts)
                yield

    def _may_lead(self, broker: BrokerId) -> bool:
        return self.image.live_epoch(broker) is not None and not self._is_being_fenced(broker)

    def _finish(self) -> Generator[None, None, None]:
        """What a change of `min.insync.replicas` has left undone; who is created meanwhile obeys it already."""
        places = list(self.image.partitions)
        for first in range(0, len(places), STEP):
            for facts in unfinished(self.image, places[first : first + STEP]):
                self.append(facts)
            yield

    def idle(self) -> None:
        """Nothing has happened for a while: say so, that one can see who is behind."""
        self.append([NothingHappened()])

    def rebalance(self) -> Generator[None, None, None]:
        """Let preferred leaders lead again where too many others do, if the cluster is told to."""
        settings = self.image.configs
        if not flag(settings, CLUSTER, "", "auto.leader.rebalance.enable"):
            return
        percentage = number(settings, CLUSTER, "", "leader.imbalance.per.broker.percentage")
        assert percentage is not None
        # Once for all steps: who has got most of its partitions back shall have the rest as well.
        behind = overdue(imbalance(self.image), percentage)
        while facts := rebalance(self.image, behind, STEP):
            self.append(facts)
            yield

    def recover(self, now_ms: int) -> Todo:
        """Elect whom unclean recovery has found; whom to ask, and when to look again."""
        todo = self.recovery.look(self.image, now_ms)
        for facts in todo.elect:
            self.append(facts)
        return todo

    # ── partitions ────────────────────────────────────────────────────────────────────────────────

    def _alter(self, request: AlterPartition, _now_ms: int) -> Steps:
        entries = self._alter_some(request, 0)
        for first in range(STEP, len(request.partitions), STEP):
            yield
            entries += self._alter_some(request, first)
        return AlterPartitionReply(partitions=tuple(entries), quorum_epoch=self.epoch)

    def _alter_some(self, request: AlterPartition, first: int) -> list[PartitionAltered]:
        decisions = self._alterations.decide(self.image, request, first, self._is_going)
        offset = self.append([decision.state.changed() for decision in decisions if decision.state])
        entries = []
        for asked, state, error in decisions:
            at = NO_OFFSET if error else offset if state else self._metadata.log.end_offset - 1
            offset += state is not None
            code, told = (error.code, str(error)) if error else (0, None)
            entries.append(PartitionAltered(asked.topic_id, asked.index, code, told, at))
        return entries

    # ── topics ────────────────────────────────────────────────────────────────────────────────────

    def _create_topics(self, request: CreateTopics, _now_ms: int) -> Steps:
        entries = []
        if sum(topic.partitions or len(topic.assignment) for topic in request.topics) > STEP:
            yield  # many such requests may have come at once
        for topic in request.topics:
            created = yield from self._create_topic(topic, validate_only=request.validate_only)
            entries.append(created)
            yield
        end = self._metadata.log.end_offset
        return CreateTopicsReply(tuple(entries), metadata_offset=end, quorum_epoch=self.epoch)

    def _create_topic(self, topic: NewTopic, *, validate_only: bool) -> turns.Steps[CreatedTopic]:
        topic_id = self._new_id()

        def place(partitions: int, factor: int) -> list[Replicas]:
            return place_new(self.image.brokers.values(), partitions, factor, Random(topic_id))

        def decide() -> _Decided[CreatedTopic]:
            defaults = topic_defaults(self.image, self.config.topics)
            try:
                facts = create_topic(self.image, topic, topic_id, place, defaults)
            except TidelogError as error:
                return _Decided([], CreatedTopic(topic.name, error.code, str(error)))
            made = [fact for fact in facts if isinstance(fact, PartitionCreated)]
            told = CreatedTopic(
                topic.name,
                topic_id=None if validate_only else topic_id,
                partitions=len(made),
                replication_factor=len(made[0].replicas),
            )
            return _Decided([] if validate_only else [facts], told)

        created = yield from self._decided(decide)
        return created

    def _delete_topics(self, request: DeleteTopics, _now_ms: int) -> Steps:
        asked: list[tuple[str, TopicId | None]] = [(name, None) for name in request.names]
        asked += [("", topic_id) for topic_id in request.ids]
        entries = []
        for name, topic_id in asked:
            entries.append(self._delete_topic(name, topic_id))
            yield
        end = self._metadata.log.end_offset
        return DeleteTopicsReply(tuple(entries), metadata_offset=end, quorum_epoch=self.epoch)

    def _delete_topic(self, name: str, topic_id: TopicId | None) -> RemovedTopic:
        try:
            facts = remove_topic(self.image, name, topic_id)
        except TidelogError as error:
            return RemovedTopic(name, topic_id, error.code, str(error))
        topic_id = topic_id or self.image.topic_ids[name]
        name = self.image.topics[topic_id].name
        self.append(facts)
        return RemovedTopic(name, topic_id)

    def _allocate(self, request: AllocateProducerIds, _now_ms: int) -> Reply:
        check_broker(self.image, request.broker_id, request.broker_epoch)
        first = self.image.next_producer_id
        self.append([ProducerIdsTaken(request.broker_id, request.broker_epoch, first + PRODUCER_IDS)])
        return AllocateProducerIdsReply(first=first, count=PRODUCER_IDS, quorum_epoch=self.epoch)

    def _decided(self, decide: Callable[[], _Decided[T]]) -> turns.Steps[T]:
        """Decide, and append all batches at once: they were decided on one image, which is that of the moment.

        A large decision takes a turn of its own, and to try what follows from it several. If anything was appended
        meanwhile, it is made anew.
        """
        looked_at = self._metadata.log.end_offset
        decision = decide()
        if sum(map(len, decision.batches)) > STEP:
            yield turns.HOLDS
            if len(decision.batches) == 1 and self._metadata.log.end_offset == looked_at:
                (facts,) = decision.batches
                trying = self._metadata.appending(facts, self.epoch, self._wall_ms())
                write = yield from turns.holding(trying)
                if self._metadata.log.end_offset == looked_at:
                    self._append(facts, write)
                    return decision.value
            if self._metadata.log.end_offset != looked_at:
                decision = decide()
        for facts in decision.batches:
            self.append(facts)
        return decision.value

    # ── operators ─────────────────────────────────────────────────────────────────────────────────

    def _operation(self, decide: Callable[[Image, Any], Answer[Any]]) -> Callable[[Any, int], Steps]:
        """What an operator asks for."""

        def carry_out(request: Any, _now_ms: int) -> Steps:
            def decided() -> _Decided[Reply]:
                answer = decide(self.image, request)
                return _Decided(answer.batches, answer.reply)

            answer = yield from self._decided(decided)
            reply: Reply = msgspec.structs.replace(answer, metadata_offset=self._metadata.log.end_offset)
            return reply

        return carry_out

    def _alter_configs(self, request: AlterConfigs, now_ms: int) -> Steps:
        reply = yield from self._operation(alter_configs)(request, now_ms)
        if reaches_partitions(request):
            yield
            yield from self._finish()
        return msgspec.structs.replace(reply, metadata_offset=self._metadata.log.end_offset)

    def _plan(self, request: PlanMoves, _now_ms: int) -> Steps:
        yield  # many such requests may have come at once
        reply = yield from plan_moves(self.image.copy(), request)
        return reply

    def _place_more(self, topic_id: TopicId, first: int, partitions: int, factor: int) -> list[Replicas]:
        return place_new(self.image.brokers.values(), partitions, factor, Random(topic_id), first)

    def _elect_leaders(self, image: Image, request: ElectLeaders) -> Answer[ElectLeadersReply]:
        best = {place: self.recovery.best_first(image, place) for place in image.indexes.leaderless}
        return elect_leaders(image, request, best)
