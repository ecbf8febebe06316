"""What every request is served with: the replicas, the cluster's image, the clocks, and no more of the broker."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.controller.image import Image
from tidelog.protocol.errors import NotLeaderOrFollower, TidelogError, UnknownTopicId
from tidelog.protocol.messages import Leader, Reply, Request
from tidelog.protocol.settings import Settings
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, BrokerId, Epoch, TopicId
from tidelog.replication.throttle import Throttle


@dataclass(frozen=True, slots=True)
class Clocks:
    """Three times in milliseconds, each for its purpose."""

    now_ms: Callable[[], int]
    """Monotonic: deadlines, lags."""
    wall_ms: Callable[[], int]
    """The time of day: when records were written."""
    boot_ms: Callable[[], int]
    """Monotonic also while the machine sleeps: leases."""


Build: TypeAlias = Callable[[Epoch], Request]
"""Makes a request for the controller of that quorum epoch."""
Told: TypeAlias = Callable[[Reply | TidelogError], None]
"""Takes the controller's answer, or why there is none."""


@dataclass(slots=True)
class ProducerIds:
    """What is left of the block that the controller has given."""

    first: int = 0
    count: int = 0
    asked: bool = False
    """Whether another block is on its way."""
    refusal: TidelogError | None = None
    """Why the last one did not come."""

    def take(self) -> int:
        """An id that was never taken."""
        assert self.count > 0, self
        taken = self.first
        self.first, self.count = taken + 1, self.count - 1
        return taken


@dataclass(frozen=True, slots=True)
class Context:
    """The broker, as its requests see it."""

    replicas: Replicas
    image: Image
    clocks: Clocks
    appended: Callable[[Partition, int], None]
    """Told of each batch and its size: it is to be flushed, at once or some time."""
    save_log_starts: Callable[[Callable[[], None]], None]
    """Write the log starts durably, off the event loop, and tell when it is done."""
    ask_controller: Callable[[Build, int, Told], None]
    """Ask the active controller, within so many milliseconds, and tell what it says."""
    producer_ids: ProducerIds = field(default_factory=ProducerIds)
    creating: set[str] = field(default_factory=set)
    """Topics that the controller has been asked for because somebody wanted to write to them."""
    controller_id: Callable[[], BrokerId] = lambda: NO_BROKER
    """The controller that is believed to lead."""
    quorum_epoch: Callable[[], Epoch] = lambda: NO_EPOCH
    """The newest epoch of the quorum that this broker has heard of."""
    crash_kind: Callable[[], int] = lambda: 0
    """The worst end of a process on this disk since the registration before, as a `CrashKind`."""
    throttle: Throttle = field(default_factory=Throttle)
    """What replicas that are being added may take."""
    hwm_propagation_ms: int = 100
    """How soon followers hear of a new high watermark while consumers read from them."""

    started_with: Settings = field(default_factory=dict)
    """What this broker was started with, where that is not the default."""

    def partition(self, topic_id: TopicId, index: int) -> Partition:
        """The replica here, for a client: without a lease another broker may lead it already (D9)."""
        if not self.replicas.has_lease(self.clocks.boot_ms()):
            raise NotLeaderOrFollower(
                "this broker has not heard from its controller for longer than its lease"
            )
        known = self.image.partitions.get((topic_id, index))
        if known is None:
            raise UnknownTopicId(f"no partition {index} of a topic {topic_id.hex()} is known here")
        if self.replicas.around.me not in known.replicas:
            raise NotLeaderOrFollower(
                f"brokers {list(known.replicas)} have this partition, {known.leader} leads it"
            )
        return self.replicas.at(topic_id, index)

    def leader(self, topic_id: TopicId, index: int) -> Leader | None:
        """Whom a client should ask, as far as is known here."""
        known = self.image.partitions.get((topic_id, index))
        return Leader(known.leader, known.leader_epoch) if known and known.leader != NO_BROKER else None
