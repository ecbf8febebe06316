"""A consumer's membership of a group: what `membership` decides, carried out beside the reading.

    heartbeats      a task of its own sends them, whatever the application does
    news            another one gives partitions to the reader, takes them away, and tells the application
    commits         a third one, once in a while, if the application leaves that to us

What it keeps true (I-57 to I-59):

* A partition is given to the reader when it is known what is committed of it; one that appeared after the group began
  is read from its start.
* Nothing is committed by itself that the application has in hand: what it was given is done with when it asks for
  more, when it has committed it, or when it has left the consumer's block without an error.
* What is to be given up is given up when the application has nothing of it in hand, and at last when three quarters of
  the rebalance time-out are over: what it has in hand then is read again by the next one. Nobody is put out for that.
* Whoever is put out of the group reads nothing more of what it had, from that moment on.
* Closing commits, and leaves the group at once.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tidelog.client.admin import Refusals
from tidelog.client.io.coordinator import pieces
from tidelog.client.io.fetcher import Fetcher
from tidelog.client.io.group_offsets import CLOSE_COMMIT_S, Commit, GroupOffsets, to_commit
from tidelog.client.membership import (
    REJOINS,
    Assigned,
    Failed,
    Lose,
    Member,
    Membership,
    News,
    Place,
    Revoke,
    Standing,
)
from tidelog.client.options import ConsumerConfig
from tidelog.client.reader import Reader
from tidelog.client.retry import Advice, advice
from tidelog.protocol.errors import (
    ClientClosed,
    CoordinatorNotAvailable,
    FencedInstanceId,
    FencedMemberEpoch,
    RequestTimedOut,
    StaleMemberEpoch,
    TidelogError,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from tidelog.protocol.messages import (
    EARLIEST,
    CommittedPartition,
    GroupHeartbeat,
    GroupHeartbeatReply,
    OffsetCommit,
    OffsetCommitReply,
)
from tidelog.protocol.types import NO_OFFSET, NO_TIMESTAMP, Offset, TopicPartition

if TYPE_CHECKING:
    from tidelog.client.io.session import Session

logger = logging.getLogger(__name__)

WAIT_MS: Final = 1800
"""How long an answer may wait for news: less than what makes the client ask others whether the broker is alive."""
ANSWER_MS: Final = 5000
"""How long it may take besides."""
CLOSE_S: Final = 10.0
"""How long the farewell may take; after that the session's end is the farewell."""
CLOSE_APART_S: Final = 1.0
FETCH_S: Final = 5.0
PATIENCE: Final = 0.75
"""The part of the rebalance time-out for which it is waited for the application."""
PATIENCE_AT_LAST: Final = 0.1
"""The part that a listener has at least, when the application has taken all of that. The rest is for the last commit."""
OUT: Final = frozenset({Standing.LOSING, Standing.LEFT, Standing.FAILED})
"""Whoever stands so has nothing."""
MEMBER: Final = frozenset({Standing.STABLE, Standing.REVOKING})


@dataclass(frozen=True, slots=True)
class Hands:
    """What the consumer does for its membership."""

    begin: Callable[[Collection[TopicPartition]], None]
    """These may be read."""
    withdraw: Callable[[Collection[TopicPartition]], None]
    """Nothing more of these is to be read."""
    drop: Callable[[Collection[TopicPartition]], None]
    """They are not this consumer's any more."""
    processed: Callable[[TopicPartition], Offset]
    """How far the application is done with one; -1: unknown."""
    done: Callable[[TopicPartition], Offset]
    """The same, also by what it has committed itself of what it has in hand."""
    position: Callable[[TopicPartition], Offset]
    """How much of it was given to the application; -1: unknown."""
    time_before: Callable[[TopicPartition, Offset], int]
    """When the last record before an offset was written; -1: unknown."""


Listener: TypeAlias = Callable[..., object]
"""A function, or a coroutine function, that is told of partitions in a list."""


class GroupMember:
    """See the module."""

    def __init__(self, client: "Session", config: ConsumerConfig, fetcher: Fetcher, hands: Hands) -> None:
        assert config.group is not None
        self.config = config
        self.group = config.group
        self.places: dict[TopicPartition, Place] = {}
        """What is assigned, by name."""
        self.listeners: dict[str, Listener | None] = {
            name: getattr(config, name) for name in ("on_assigned", "on_revoked", "on_lost")
        }
        member_id = f"{client.config.client_id or 'consumer'}-{client.rng.getrandbits(96):024x}"
        self.membership = Membership(
            Member(
                group_id=config.group,
                member_id=member_id,
                instance_id=config.instance_id,
                assignor=config.assignor,
                rack=client.config.rack,
                rebalance_timeout_ms=config.rebalance_timeout_ms,
                session_timeout_ms=config.session_timeout_ms,
                max_wait_ms=WAIT_MS,
            ),
            client.rng,
        )
        self.automatic = config.enable_auto_commit is not False
        """Whether progress is committed by itself."""
        self.joined = False
        """Whether it ever was a member."""
        self._client = client
        self._fetcher = fetcher
        self._hands = hands
        self._offsets = GroupOffsets(client, config.group)
        self._at = self._offsets.at
        self._committed: dict[Place, Offset] = {}
        """What was committed last, as far as is known here."""
        self._changed = asyncio.Event()
        self._told = asyncio.Event()
        self._asked = asyncio.Event()
        """The application is done with something."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._serving: asyncio.Task[None] | None = None
        self._error: TidelogError | None = None
        """Why the last heartbeat was in vain."""
        self._began_ms = 0
        self._closing = False

    # ── what the application wants ────────────────────────────────────────────────────────────────

    def subscribe(self, topics: Collection[str], listeners: Mapping[str, Listener | None]) -> None:
        """Consume these topics from now on, and tell these listeners, if there are new ones."""
        self.listeners.update({name: each for name, each in listeners.items() if each is not None})
        begins = self.membership.standing is Standing.APART
        self.membership.subscribe(topics, _now_ms())
        if begins:
            self._began_ms = _now_ms()
            _ = self._spawn(self._keep_heartbeating())
            self._serving = self._spawn(self._keep_serving())
            _ = self._spawn(self._keep_committing())
        _ = self._spawn(self._look_for(list(topics)))
        self._look()

    async def _look_for(self, topics: Collection[str]) -> None:
        """Tell of those that there are not. They are waited for, but most such names are mistyped."""
        for name in topics:
            try:
                await self._client.topic(name)
            except UnknownTopicOrPartition as error:
                logger.warning("group.topic_missing group=%s reason=%s: it is waited for", self.group, error)
            except ClientClosed:
                return
            except TidelogError as error:
                logger.info("group.topic_not_looked_at group=%s topic=%s reason=%s", self.group, name, error)

    def learn(self, name: str) -> None:
        """More is known of the topic: who leads it. What becomes of one that is gone, the coordinator says."""
        topic = self._client.cluster.topics.get(name)
        mine = () if topic is None else (TopicPartition(name, each.index) for each in topic.partitions)
        ids = {self.places[each][0] for each in mine if each in self.places}
        if topic is not None and ids == {topic.id}:
            self._fetcher.fetching.learn(topic)
            self._fetcher.stir()
            self._fetcher.arrived.set()

    def asked(self) -> None:
        """The application has asked for more: it is done with what it had."""
        self._asked.set()

    @property
    def begun(self) -> bool:
        """Whether it has ever wanted to be a member."""
        return self.membership.standing is not Standing.APART

    @property
    def joining(self) -> bool:
        """Whether it wants to be a member, and never was one."""
        return not self.joined and self.begun

    @property
    def state(self) -> str:
        """How the member stands to its group."""
        return self.membership.standing.value

    async def close(self, timeout: float) -> None:
        """Commit, give everything up, and leave the group; who was never heard of leaves nothing behind to wait for."""
        self._closing = True
        self._hands.withdraw(list(self.places))
        self.membership.close(_now_ms())
        self._look()
        self._asked.set()
        try:
            async with asyncio.timeout(min(timeout, CLOSE_S if self.joined else CLOSE_APART_S)):
                if self._serving is not None:
                    await asyncio.wait([self._serving])
        except TimeoutError:
            logger.warning(
                "group.left_without_answer group=%s reason=%s: its session has to end",
                self.group,
                self._error or "the coordinator has not answered",
            )
        finally:
            for task in self._tasks:
                task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # ── heartbeats ────────────────────────────────────────────────────────────────────────────────

    async def _keep_heartbeating(self) -> None:
        membership = self.membership
        while membership.standing not in {Standing.LEFT, Standing.FAILED}:
            self._changed.clear()
            request = membership.poll(_now_ms(), self._at.broker)
            if request is not None:
                _ = self._spawn(self._heartbeat(request))
            due_ms = membership.deadline_ms
            if not self.joined and self._fetcher.fatal is None:
                late_ms = self._began_ms + self.config.default_api_timeout_ms
                if _now_ms() >= late_ms:
                    self._not_joined()
                due_ms = late_ms if due_ms is None else min(due_ms, late_ms)
            try:
                async with asyncio.timeout_at(None if due_ms is None else due_ms / 1000):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _not_joined(self) -> None:
        """It was never heard of that this is a member: whoever waits for records is to know why."""
        why = self._error or CoordinatorNotAvailable("its coordinator has not answered")
        fact = f"group {self.group!r} could not be joined in {self.config.default_api_timeout_ms} ms"
        self._fetcher.fail(type(why)(f"{fact}: {why}"))

    async def _heartbeat(self, request: GroupHeartbeat) -> None:
        membership = self.membership
        timeout_ms = request.max_wait_ms + min(ANSWER_MS, self.config.request_timeout_ms)
        try:
            reply = await self._at.ask(request, GroupHeartbeatReply, timeout_ms)
        except TidelogError as error:
            self._error = error
            failed = error
            if not error.retriable and advice(error) is not Advice.FATAL:
                failed = CoordinatorNotAvailable(str(error))
            logger.info("group.heartbeat_failed group=%s reason=%s", self.group, error)
            membership.unanswered(request.sequence, failed, _now_ms())
            if membership.standing is Standing.FAILED:
                self._fetcher.fail(error)  # whoever reads is told before any listener
        else:
            membership.answered(request.sequence, reply, _now_ms())
        self._look()

    def _look(self) -> None:
        """The machine has heard something."""
        standing = self.membership.standing
        if standing in OUT:
            self._hands.withdraw(list(self.places))
        self.joined = self.joined or standing in MEMBER
        for event in (self._changed, self._told, self._fetcher.arrived):
            event.set()
        if standing in OUT:
            self._asked.set()

    # ── news ──────────────────────────────────────────────────────────────────────────────────────

    async def _keep_serving(self) -> None:
        """Carry out what the machine tells, one thing after the other."""
        while True:
            self._told.clear()
            while (news := self.membership.take()) is not None:
                await self._guarded(self._carry_out(news))  # who has failed gives up and leaves all the same
                if isinstance(news, Revoke | Lose):
                    self.membership.released(news, _now_ms())
                    self._look()
            if self.membership.standing in {Standing.LEFT, Standing.FAILED}:
                return
            await self._told.wait()

    async def _carry_out(self, news: News) -> None:
        match news:
            case Assigned():
                await self._take_up(news)
            case Revoke():
                await self._give_up(news)
            case Lose():
                names = self._names(news.places)
                logger.warning(
                    "group.lost group=%s partitions=%s reason=%s", self.group, len(names), news.why
                )
                self._forget(names)
                await self._tell("on_lost", names)
            case Failed():
                self._fetcher.fail(news.error)

    async def _take_up(self, news: Assigned) -> None:
        """Find out where to begin, tell the application, and begin."""
        places = await self._known(news)
        starts = await self._starts(places.values())
        names = [name for name, place in places.items() if place in starts and self._has(place)]
        fetching = self._fetcher.fetching
        for name in names:
            place = places[name]
            start = starts[place]
            fetching.assign([name], EARLIEST if start.from_beginning else None)
            if start.offset != NO_OFFSET:
                reader = fetching.readers[name]
                reader.seek(start.offset)
                reader.offset_epoch = start.leader_epoch
                self._committed[place] = start.offset
            self.places[name] = place
        for topic, topic_id in {name.topic: places[name][0] for name in names}.items():
            known = self._client.cluster.topics.get(topic)
            if known is not None and known.id == topic_id:
                fetching.learn(known)
        self._fetcher.stir()
        await self._tell("on_assigned", names)
        self._hands.begin([name for name in names if name in self.places and self._has(places[name])])

    async def _known(self, news: Assigned) -> dict[TopicPartition, Place]:
        """The partitions by name, once the client knows those topics as the coordinator does."""
        found: dict[TopicPartition, Place] = {}
        backoff = self._client.backoff()
        for topic_id in sorted({topic_id for topic_id, _ in news.places}):
            mine = sorted(place for place in news.places if place[0] == topic_id)
            while any(self._has(place) for place in mine):
                name = news.names.get(topic_id) or self._client.cluster.names.get(topic_id, "")
                topic = self._client.cluster.topics.get(name)
                if topic is not None and topic.id == topic_id and mine[-1][1] < len(topic.partitions):
                    found.update({TopicPartition(name, place[1]): place for place in mine})
                    break
                if backoff.attempts:
                    await self._client.pause(backoff)
                backoff.attempts += 1
                await self._fetcher.refresh([name] if name else ())
        return found

    async def _starts(self, places: Iterable[Place]) -> dict[Place, CommittedPartition]:
        """What is committed of these: asked until it is known, or they are taken away."""
        starts: dict[Place, CommittedPartition] = {}
        backoff = self._client.backoff()
        while wanted := sorted(place for place in places if self._has(place) and place not in starts):
            try:
                found = await self._offsets.fetch(wanted, _now_ms() + FETCH_S * 1000)
            except TidelogError as error:
                if advice(error) is Advice.FATAL:
                    raise
                logger.info("group.offsets_not_known group=%s reason=%s", self.group, error)
                await self._client.pause(backoff)
            else:
                starts.update(found)
        return starts

    async def _give_up(self, news: Revoke) -> None:
        """Let the application finish, tell it, commit how far it is, and forget them."""
        names = self._names(news.places)
        self._hands.withdraw(names)
        whole_s, began_s = self.config.rebalance_timeout_ms / 1000, _now_s()
        if await self._until_done(names):
            left_s = whole_s * PATIENCE - (_now_s() - began_s)
            await self._tell("on_revoked", names, max(left_s, whole_s * PATIENCE_AT_LAST))
            await self._commit_processed(names)
            self._forget(names)  # else it is told with all the rest that they are lost

    async def _until_done(self, names: Collection[TopicPartition]) -> bool:
        """Until the application has nothing of these in hand, or enough time is over; False: they are lost."""
        try:
            async with asyncio.timeout(self.config.rebalance_timeout_ms / 1000 * PATIENCE):
                while not self._closing and self.membership.standing not in OUT:
                    self._asked.clear()
                    if not any(self._in_hand(name) for name in names):
                        break
                    await self._asked.wait()
        except TimeoutError:
            held = [str(name) for name in names if self._in_hand(name)]
            logger.warning(
                "group.taken_from_hand group=%s partitions=%s reason=not done after %d ms: they are read again",
                self.group,
                ",".join(held),
                self.config.rebalance_timeout_ms * PATIENCE,
            )
        return self.membership.standing not in OUT

    def _in_hand(self, name: TopicPartition) -> bool:
        position = self._hands.position(name)
        done = max(self._hands.processed(name), self._committed.get(self.places[name], NO_OFFSET))
        return done < position

    def _names(self, places: Collection[Place]) -> list[TopicPartition]:
        return sorted(name for name, place in self.places.items() if place in places)

    def _forget(self, names: Iterable[TopicPartition]) -> None:
        gone = list(names)
        self._hands.drop(gone)
        for name in gone:
            self._committed.pop(self.places.pop(name), None)

    def _has(self, place: Place) -> bool:
        """Whether the member has this, and nothing speaks against it."""
        # What is to be given up again may be gone: then nobody would ever find it.
        mine = place in self.membership.owned and place in self.membership.told
        return mine and self.membership.standing not in OUT and not self._closing

    async def _tell(self, which: str, names: list[TopicPartition], allowed_s: float | None = None) -> None:
        """Tell the application. What it raises ends the consumer."""
        listener = self.listeners[which]
        if listener is None or not names:
            return
        if allowed_s is None:
            allowed_s = self.config.rebalance_timeout_ms / 1000 * PATIENCE
        try:
            async with asyncio.timeout(allowed_s):
                result = listener(names)
                if inspect.isawaitable(result):
                    await result
        except TimeoutError:
            self._fetcher.fail(RequestTimedOut(f"{which} has not returned in {allowed_s * 1000:.0f} ms"))
        except Exception as error:
            logger.exception("group.listener_failed listener=%s", which)
            fact = f"{which} has failed: {type(error).__name__}: {error}"
            self._fetcher.fail(UnknownServerError(fact))

    # ── offsets ───────────────────────────────────────────────────────────────────────────────────

    async def _keep_committing(self) -> None:
        while self.automatic:
            await asyncio.sleep(self.config.auto_commit_interval_ms / 1000)
            if self.membership.standing in MEMBER:
                await self._commit_processed(list(self.places))

    async def _commit_processed(self, names: Iterable[TopicPartition]) -> None:
        """Commit how far the application is, if it leaves that to us. A failure is no reason to stop: what was not
        committed is read again.
        """
        if not self.automatic:
            return
        moved: dict[TopicPartition, Commit] = {}
        for name in names:
            place = self.places.get(name)
            offset = self._hands.processed(name)
            if self._hands.done(name) > offset:
                continue  # it commits that itself: to say less would take it back
            if place is not None and offset not in {NO_OFFSET, self._committed.get(place)}:
                moved[name] = Commit(offset)
        if not moved:
            return
        try:
            await self.commit(moved, _now_ms() + CLOSE_COMMIT_S * 1000)
        except TidelogError as error:
            logger.warning(
                "group.not_committed group=%s partitions=%d reason=%s", self.group, len(moved), error
            )

    async def commit(self, offsets: Mapping[TopicPartition, Commit], deadline_ms: float) -> None:
        """Commit these. Raises FencedMemberEpoch when something of it is not this member's any more."""
        if not offsets:
            return
        _, sequence = self.membership.next_commit()
        read_by = {name: self._fetcher.fetching.readers.get(name) for name in offsets}
        for some in pieces(list(offsets.items()), lambda each: each[1].metadata):
            await self._commit(dict(some), read_by, sequence, deadline_ms)

    async def _commit(
        self,
        offsets: Mapping[TopicPartition, Commit],
        read_by: Mapping[TopicPartition, Reader | None],
        sequence: int,
        deadline_ms: float,
    ) -> None:
        membership = self.membership
        backoff = self._client.backoff(max(deadline_ms - _now_ms(), 1.0))
        while True:
            places = self._mine(offsets, read_by)
            epoch = membership.epoch
            left_ms = max(deadline_ms - _now_ms(), 1.0)
            request = OffsetCommit(
                self.group,
                to_commit(places),
                membership.member.member_id,
                epoch,
                membership.member.instance_id,
                sequence,
                int(min(left_ms, ANSWER_MS)),
            )
            try:
                reply = await self._at.ask(request, OffsetCommitReply, min(left_ms, ANSWER_MS))
            except TidelogError as error:
                if not self._worth_another_try(error, epoch) or not await self._client.pause(backoff):
                    raise
            else:
                self._check(offsets, reply, places)
                return

    def _mine(
        self, offsets: Mapping[TopicPartition, Commit], read_by: Mapping[TopicPartition, Reader | None]
    ) -> dict[Place, Commit]:
        found = {}
        for name, each in offsets.items():
            place, reader = self.places.get(name), self._fetcher.fetching.readers.get(name)
            gone = place not in self.membership.owned or self.membership.standing in OUT
            # Another reader: it went away and came back, and whoever had it meanwhile has committed more, perhaps.
            if place is None or gone or reader is None or reader is not read_by[name]:
                raise FencedMemberEpoch(
                    f"{name} is not this member's (any more): whoever has it goes on where it was committed"
                )
            time_ms = each.timestamp_ms
            if time_ms == NO_TIMESTAMP:
                time_ms = self._hands.time_before(name, each.offset)
            epoch = reader.epoch_before(each.offset)
            found[place] = replace(each, leader_epoch=epoch, timestamp_ms=time_ms)
        return found

    def _worth_another_try(self, error: TidelogError, epoch: int) -> bool:
        if isinstance(error, (StaleMemberEpoch, FencedInstanceId, *REJOINS)):
            again = self.membership.commit_refused(error, epoch, _now_ms())
            self._look()
            return again
        return advice(error) is not Advice.FATAL

    def _check(
        self,
        offsets: Mapping[TopicPartition, Commit],
        reply: OffsetCommitReply,
        places: Mapping[Place, Commit],
    ) -> None:
        refusals = Refusals()
        names = {self.places.get(name): name for name in offsets}  # None: taken away meanwhile
        for entry in reply.partitions:
            place = entry.topic_id, entry.index
            name = names.get(place)
            if not refusals.look(str(name or place), entry.error, entry.message) and name is not None:
                self._committed[place] = places[place].offset
        self._asked.set()
        refusals.raise_any(len(places))

    async def committed(
        self, names: Iterable[TopicPartition], deadline_ms: float
    ) -> dict[TopicPartition, CommittedPartition]:
        """What the group has committed of these."""
        return await self._offsets.committed(names, self.places, deadline_ms)

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────────

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._client.spawn(self._guarded(work))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(lambda _: work.close())  # a task that is cancelled at once never begins it
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """What fails fails the consumer: who reads is told."""
        try:
            await work
        except TidelogError as error:
            self._fetcher.fail(error)
        except Exception as error:
            logger.exception("group.failed")
            self._fetcher.fail(
                UnknownServerError(f"the consumer has failed: {type(error).__name__}: {error}")
            )


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _now_ms() -> int:
    return int(_now_s() * 1000)
