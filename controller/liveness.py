"""Which brokers there are and which of them are alive: registration, heartbeats, fencing (design 4.3 to 4.6).

    unknown ──register──► fenced ──heartbeat, caught up──► unfenced ──silence, want_fence──► fenced
                             ▲                                │
                             └──── shut down: relieved ◄── want_shutdown: shutting down

What it keeps true (I-18, I-49, I-51, I-52):

* A broker's id means one process at a time: while that is alive, only who holds the lock of its disk takes over.
* Starts on one disk are counted, and registered in that order: an earlier one that comes late is refused (ADR 74).
* Whoever registers leaves every ISR, and, of partitions that its last end may have cost something, every ELR;
  only then its new registration counts. One asynchronous topic does not cost the others (DECISIONS 2 and 4), nor
  one disk what lies on another: what lies on none when one is missing has lost everything (ADR 106), and so has
  what is gone from a disk that is there (ADR 120).
* Nobody is fenced for silence earlier than a session and a tenth after it was heard last; a new controller waits
  for as long, and for one fetch time-out of the quorum, before it fences anybody: leases have run out by then.
* Nobody's lease is renewed before it has read the last record that took a leadership from it (ADR 75).
* A session refuses nothing and decides nothing by itself: what happens is a fact.

`Sessions` is what the active controller keeps in memory; the functions decide from an image and answer facts.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.controller.election import (
    STEP,
    Loss,
    begin_shutdown,
    fence,
    go_offline,
    hand_over,
    lead_again,
    leave,
    leaving,
    relieve,
    relieve_damaged,
    say_low_space,
    unfence,
)
from tidelog.controller.facts import BrokerChanged, BrokerRegistered, Fact, PartitionFact, Place, TopicRemoved
from tidelog.controller.image import BrokerState, Image, PartitionState
from tidelog.protocol.errors import (
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidConfig,
    InvalidRegistration,
    StaleBrokerEpoch,
)
from tidelog.protocol.hosts import is_host
from tidelog.protocol.messages import BrokerHeartbeat, DirectoryStanding, RegisterBroker
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, BrokerId, Epoch, Offset
from tidelog.storage.crashes import CrashKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessConfig:
    """How long a silent broker counts as alive."""

    session_timeout_ms: int = 9000
    """`broker.session.timeout.ms`. Less means faster failover of stopped and cut-off brokers, and more of it."""
    quorum_fetch_timeout_ms: int = 2000
    """`quorum.fetch.timeout.ms`: how long controllers may take to notice that their leader is gone."""
    shutdown_patience_ms: int = 30_000
    """How long a broker that stops in order waits for the others to have heard of it."""

    def __post_init__(self) -> None:
        if self.quorum_fetch_timeout_ms >= self.session_timeout_ms / 2:
            raise InvalidConfig(
                f"quorum.fetch.timeout.ms={self.quorum_fetch_timeout_ms}: it must be below half of "
                f"broker.session.timeout.ms={self.session_timeout_ms}"
            )

    @property
    def old_leases_ms(self) -> int:
        """How long a controller that was replaced may go on to answer heartbeats.

        It does while a majority has followed it within the fetch time-out, and what lay unread while it was paused
        may count as such once more: up to when it looks at its quorum.
        """
        return self.quorum_fetch_timeout_ms * 5 // 2

    @property
    def silence_max_ms(self) -> int:
        """A tenth longer than the lease that a heartbeat gives: for clocks that run differently."""
        return self.session_timeout_ms * 11 // 10


@dataclass(slots=True)
class _Session:
    heard_ms: int
    metadata_offset: Offset = 0
    relieved: tuple[int, Offset] | None = None
    """Since when it is shutting down, and which offset of the metadata log tells the others."""


class Sessions:
    """When each broker was heard last, by the monotonic clock of the active controller, and what it must have read."""

    __slots__ = ("_config", "_first_offset", "_not_before_ms", "_sessions", "_taken")

    def __init__(
        self, config: LivenessConfig, unfenced: Iterable[BrokerId], now_ms: int, first_offset: Offset
    ) -> None:
        """At the activation of a controller: everybody that is not fenced gets a whole session.

        `first_offset` is where the controller's own first record stands, for nobody has told it what its
        predecessors took: whoever has read that far has read of it.
        """
        self._config = config
        self._first_offset = first_offset
        self._taken: dict[BrokerId, Offset] = {}
        """Where the last record stands that took a leadership from that broker."""
        self._not_before_ms = now_ms + config.old_leases_ms + config.silence_max_ms
        self._sessions = {broker: _Session(now_ms) for broker in unfenced}

    def heard(self, broker: BrokerId, now_ms: int, metadata_offset: Offset = 0) -> None:
        """It has registered or sent a heartbeat: even one that is served too late counts (KAFKA-15019)."""
        session = self._sessions.setdefault(broker, _Session(now_ms))
        session.heard_ms = max(session.heard_ms, now_ms)
        session.metadata_offset = max(session.metadata_offset, metadata_offset)

    def began(self, broker: BrokerId, now_ms: int) -> None:
        """A new process of it has registered."""
        self._sessions[broker] = _Session(now_ms)

    def is_live(self, broker: BrokerId, now_ms: int) -> bool:
        """Whether it was heard within its session."""
        session = self._sessions.get(broker)
        return session is not None and now_ms - session.heard_ms < self._config.session_timeout_ms

    def overdue(self, image: Image, now_ms: int) -> BrokerId | None:
        """Who is to be fenced for silence: one at a time, the longest silent first."""
        if now_ms < self._not_before_ms:
            return None
        silent = [
            (session.heard_ms, broker)
            for broker, session in self._sessions.items()
            if now_ms - session.heard_ms >= self._config.silence_max_ms and _is_unfenced(image, broker)
        ]
        return min(silent)[1] if silent else None

    def deadline_ms(self, image: Image) -> int | None:
        """When `overdue` may have an answer next."""
        heard = [s.heard_ms for broker, s in self._sessions.items() if _is_unfenced(image, broker)]
        return max(min(heard) + self._config.silence_max_ms, self._not_before_ms) if heard else None

    def appended(self, facts: Sequence[Fact], base_offset: Offset, before: Image) -> None:
        """A batch has been appended from there on; `before` is the image without it."""
        leaders: dict[Place, BrokerId] = {}
        for offset, fact in enumerate(facts, base_offset):
            for place, leader in _leaders_after(fact, before):
                known = before.partitions.get(place)
                deposed = leaders.get(place, known.leader if known else NO_BROKER)
                leaders[place] = leader
                if deposed not in {NO_BROKER, leader}:
                    self._taken[deposed] = offset

    def renews(self, request: BrokerHeartbeat) -> bool:
        """Whether the answer renews the lease. Ask when all is appended that the heartbeat has led to."""
        return request.metadata_offset > self._taken.get(request.broker_id, self._first_offset)

    def relieved(self, broker: BrokerId, metadata_offset: Offset, now_ms: int) -> None:
        """It is shutting down, and whoever has read so far knows. Only the first time counts."""
        session = self._sessions.setdefault(broker, _Session(now_ms))
        session.relieved = session.relieved or (now_ms, metadata_offset)

    def may_stop(self, image: Image, broker: BrokerId, now_ms: int) -> bool:
        """Whether everybody who is alive knows that it leads no more than it must, or has had the time to."""
        session = self._sessions.get(broker)
        if session is None or session.relieved is None:
            return False
        since_ms, told = session.relieved
        others = [other for other in image.brokers if other != broker and _is_unfenced(image, other)]
        known = all(self._sessions[o].metadata_offset >= told for o in others if o in self._sessions)
        return known or now_ms - since_ms >= self._config.shutdown_patience_ms


def _leaders_after(fact: Fact, before: Image) -> list[tuple[Place, BrokerId]]:
    """The partitions that a fact is about, and who leads each of them from then on."""
    if isinstance(fact, PartitionFact):
        return [((fact.topic_id, fact.index), fact.leader)]
    if isinstance(fact, TopicRemoved):
        return [(state.place, NO_BROKER) for state in before.partitions_of(fact.topic_id)]
    return []


def _is_unfenced(image: Image, broker: BrokerId) -> bool:
    return broker in image.brokers and not image.brokers[broker].fenced


# ── registration ──────────────────────────────────────────────────────────────────────────────────────


class Registration(NamedTuple):
    """What becomes of a registration."""

    facts: list[Fact]
    """None when it is known already."""
    broker_epoch: Epoch
    """-1: this was a step of it, ask again when the facts are appended."""


def register(
    image: Image, request: RegisterBroker, end_offset: Offset, *, session_is_live: bool
) -> Registration:
    """A process says that it is this broker. Its facts must be the next in the log, from `end_offset` on."""
    known = image.brokers.get(request.broker_id)
    _check(image, request)
    in_force = start_in_force(image, request)
    if request.start < in_force:
        raise InvalidRegistration(
            f"start {request.start} of the directory of broker {request.broker_id} comes too late, "
            f"start {in_force} is registered: is it an older copy of that directory?"
        )
    if known is not None and known.incarnation_id == request.incarnation_id:
        return Registration([], known.epoch)  # the answer was lost (KAFKA-16952)
    same_disk = known is not None and known.directory_id == request.directory_id
    if known is not None and not known.fenced and session_is_live and not same_disk:
        raise DuplicateBrokerRegistration(
            f"broker {known.id} is alive at {known.host}:{known.port} under epoch {known.epoch}"
        )
    loss = loss_of(known, request, gone_of(image, request))
    places = leaving(image, request.broker_id, loss)
    facts = leave(image, request.broker_id, loss, places[:STEP])
    if len(places) > STEP:
        return Registration(facts, NO_EPOCH)
    epoch = end_offset + len(facts)
    registered = BrokerRegistered(
        request.broker_id,
        epoch,
        request.incarnation_id,
        request.directory_id,
        request.host,
        request.port,
        request.rack,
        request.start,
        request.listeners,
        tuple(disk.directory_id for disk in request.directories),
    )
    return Registration([*facts, registered], epoch)


def start_in_force(image: Image, request: RegisterBroker) -> int:
    """Which start of that disk is registered, 0 if none is: a refusal says it, for a disk that has lost its count."""
    known = image.brokers.get(request.broker_id)
    return known.start if known is not None and known.directory_id == request.directory_id else 0


def _check(image: Image, request: RegisterBroker) -> None:
    cluster_id = image.cluster_id.hex() if image.cluster_id else ""
    if request.cluster_id not in {"", cluster_id}:
        raise InconsistentClusterId(
            f"broker {request.broker_id} belongs to cluster {request.cluster_id}, this is {cluster_id}"
        )
    if request.broker_id < 0 or not is_host(request.host) or not request.port:
        raise InvalidRegistration(
            f"broker {request.broker_id} at {request.host}:{request.port} cannot be reached"
        )
    names = [listener.listener for listener in request.listeners]
    if (
        "" in names
        or len({*names}) < len(names)
        or not all(is_host(each.host) and each.port for each in request.listeners)
    ):
        raise InvalidRegistration(
            f"broker {request.broker_id} listens at {request.listeners}: each needs a name of its own, a host and a port"
        )


def gone_of(image: Image, request: RegisterBroker) -> set[Place]:
    """The replicas whose directories are gone from its disks (ADR 120); of topics that are gone, too, nobody asks."""
    told = [replica for disk in request.directories for replica in disk.gone]
    return {(image.topic_ids[each.topic], each.index) for each in told if each.topic in image.topic_ids}


def loss_of(
    known: BrokerState | None, request: RegisterBroker, gone: Collection[Place] = ()
) -> Callable[[PartitionState], Loss | None]:
    """What the broker's last end may have cost, partition by partition: as the disk has fared that it lies on."""
    alone = DirectoryStanding(request.directory_id, request.crash_kind, request.incarnation_ids)
    found = request.directories or (alone,)
    registered = {*(known.directories or (known.directory_id,))} if known is not None else set()
    missing = registered - {disk.directory_id for disk in found}
    on = {(entry.topic_id, entry.index): disk for disk in found for entry in disk.replicas}
    nowhere = Loss(request.broker_id, everything=True)
    lost = Loss(request.broker_id)

    def loss(p: PartitionState) -> Loss | None:
        disk = on.get(p.place)
        if known is None or (disk is None and missing) or p.place in gone:
            return nowhere
        disk = disk or found[0]
        if disk.directory_id not in registered or known.incarnation_id not in disk.incarnation_ids:
            return lost  # it has missed what went on without it (ADR 106)
        if disk.crash_kind in {CrashKind.CLEAN, CrashKind.PROCESS}:
            return None
        return None if disk.crash_kind == CrashKind.HOST and p.flush_group else lost

    return loss


# ── heartbeats ────────────────────────────────────────────────────────────────────────────────────────


class Beat(NamedTuple):
    """What a heartbeat leads to."""

    facts: list[Fact]
    fenced: bool
    """As it is when the facts are committed."""
    should_shutdown: bool = False
    begins_shutdown: bool = False
    """Call `Sessions.relieved` with the end of the log once the facts are appended."""
    goes_on: bool = False
    """This was a step of it: decide once more when the facts are appended."""


STAY: Final[list[Fact]] = []


def beat(image: Image, sessions: Sessions, request: BrokerHeartbeat, now_ms: int) -> Beat:
    """A broker is alive, and says what it wants; `Sessions.heard` was called before."""
    broker = request.broker_id
    known = check_broker(image, broker, request.broker_epoch)
    if said := say_low_space(image, broker, low_space=request.low_space):
        return Beat(said, fenced=known.fenced, goes_on=True)
    told = {(entry.topic_id, entry.index) for entry in request.offline}
    # Who has not read its own registration does not know yet what it should have: it takes nothing back.
    offline = go_offline(image, broker, told if caught_up(request) else told | known.offline)
    offline = offline or relieve_damaged(
        image, broker, {(entry.topic_id, entry.index): entry.leader_epoch for entry in request.damaged}
    )
    if known.fenced:
        return _beat_of_a_fenced(image, request, offline)
    if offline:
        return Beat(offline, fenced=False, goes_on=True)
    if request.want_fence:
        return _fence(image, broker)
    if request.want_shutdown:
        return _shut_down(image, sessions, known, now_ms)
    unwritable = ((entry.topic_id, entry.index) for entry in request.unwritable)
    if request.unwritable and (moved := hand_over(image, broker, unwritable)):
        return Beat(moved, fenced=False, goes_on=True)
    if not known.shutting_down and (again := lead_again(image, broker)):
        return Beat(again, fenced=False, goes_on=True)
    # Another controller has begun the shutdown: this one has to remember since when.
    return Beat(STAY, fenced=False, begins_shutdown=known.shutting_down)


def _shut_down(image: Image, sessions: Sessions, known: BrokerState, now_ms: int) -> Beat:
    facts = relieve(image, known.id) if known.shutting_down else begin_shutdown(image, known.id)
    if facts:
        return Beat(facts, fenced=False, goes_on=True)
    if sessions.may_stop(image, known.id, now_ms):
        return _fence(image, known.id, should_shutdown=True)
    return Beat(STAY, fenced=False, begins_shutdown=True)


def _fence(image: Image, broker: BrokerId, *, should_shutdown: bool = False) -> Beat:
    facts = fence(image, broker)
    done = isinstance(facts[-1], BrokerChanged)
    return Beat(facts, fenced=True, should_shutdown=should_shutdown, goes_on=not done)


def _beat_of_a_fenced(image: Image, request: BrokerHeartbeat, offline: list[Fact]) -> Beat:
    if request.want_shutdown:
        return Beat(STAY, fenced=True, should_shutdown=True)
    if offline:
        return Beat(offline, fenced=True)  # unfenced by the next one, when it is known what it cannot serve
    if request.want_fence or not caught_up(request):
        return Beat(STAY, fenced=True)
    return Beat(unfence(image, request.broker_id), fenced=False, goes_on=True)


def caught_up(request: BrokerHeartbeat) -> bool:
    """Whether it has read its own registration: the offset is an end, the epoch is where that record stands."""
    return request.metadata_offset > request.broker_epoch


def check_broker(image: Image, broker: BrokerId, epoch: Epoch) -> BrokerState:
    """The registration that a request is made under, if it is the newest."""
    known = image.brokers.get(broker)
    if known is None:
        raise BrokerIdNotRegistered(f"broker {broker} is not registered")
    if known.epoch != epoch:
        raise StaleBrokerEpoch(f"broker {broker} asked under epoch {epoch}, {known.epoch} is registered")
    return known
