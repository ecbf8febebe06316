"""A leader among brokers that live, stop and come back: how tests make one and tell it what happens."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from tidelog.broker.leadership import Alteration, Leadership, Surroundings
from tidelog.controller.image import PartitionState
from tidelog.protocol.types import BrokerId, Epoch, Offset

LAG_MAX_MS = 10_000
EPOCH = 5


def ids(brokers: Iterable[int]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(broker) for broker in brokers)


class Brokers:
    """Who is registered and who is alive, as the leader's image has it; broker 2 begins with epoch 20."""

    def __init__(self, *brokers: int) -> None:
        self.epochs = {BrokerId(broker): 10 * broker for broker in brokers or (1, 2, 3)}
        self.fenced: set[int] = set()

    def live_epoch(self, broker: BrokerId) -> Epoch | None:
        return None if broker in self.fenced else self.epochs.get(broker)

    def registers(self, broker: int) -> None:
        """Its process begins anew; it is fenced until it has replayed the metadata log."""
        self.epochs[BrokerId(broker)] += 1
        self.fenced.add(broker)

    def around(self, me: int = 1) -> Surroundings:
        return Surroundings(
            me=BrokerId(me),
            my_epoch=self.epochs[BrokerId(me)],
            registered_epoch=self.epochs.get,
            live_epoch=self.live_epoch,
            lag_max_ms=LAG_MAX_MS,
        )


class Led:
    """A partition that broker 1 leads since `now_ms`, from `end` on."""

    def __init__(
        self,
        *,
        isr: Iterable[int] = (1, 2, 3),
        replicas: Iterable[int] = (1, 2, 3),
        end: Offset = 0,
        durable: Offset | None = None,
        hwm: Offset = 0,
        log_start: Offset = 0,
        brokers: Brokers | None = None,
        now_ms: int = 0,
        **state: Any,
    ) -> None:
        self.brokers = brokers or Brokers()
        self.now_ms = now_ms
        self.end = end
        about: dict[str, Any] = {"leader_epoch": EPOCH, "min_isr": 2, **state}
        self.leader = Leadership(
            self.brokers.around(),
            PartitionState(bytes(16), 0, ids(replicas), ids(isr), BrokerId(1), **about),
            log_start=log_start,
            end_offset=end,
            durable_offset=end if durable is None else durable,
            high_watermark=hwm,
            now_ms=now_ms,
        )

    @property
    def hwm(self) -> Offset:
        return self.leader.high_watermark

    @property
    def proposed(self) -> tuple[int, ...] | None:
        return self.leader.pending.isr if self.leader.pending else None

    def at(self, now_ms: int) -> "Led":
        self.now_ms = now_ms
        return self

    def fetch(
        self,
        follower: int,
        offset: Offset,
        *,
        durable: Offset = -1,
        broker_epoch: Epoch | None = None,
        log_start: Offset = 0,
    ) -> bool:
        who = BrokerId(follower)
        epoch = self.brokers.epochs[who] if broker_epoch is None else broker_epoch
        return self.leader.on_fetch(
            who,
            broker_epoch=epoch,
            fetch_offset=offset,
            durable_offset=durable,
            log_start=log_start,
            now_ms=self.now_ms,
        )

    def again(self, follower: int, offset: Offset, *, durable: Offset, log_start: Offset) -> bool:
        who = BrokerId(follower)
        return self.leader.heard_again(
            who,
            broker_epoch=self.brokers.epochs[who],
            fetch_offset=offset,
            durable_offset=durable,
            log_start=log_start,
            now_ms=self.now_ms,
        )

    def appended(self, end: Offset) -> bool:
        self.end = end
        return self.leader.appended(end, self.now_ms)

    def adopt(
        self, *, isr: Iterable[int] | None = None, replicas: Iterable[int] | None = None, **more: Any
    ) -> bool:
        """The controller decides, and nothing else changes but this."""
        old = self.leader.state
        state = replace(
            old,
            partition_epoch=old.partition_epoch + 1,
            isr=old.isr if isr is None else ids(isr),
            replicas=old.replicas if replicas is None else ids(replicas),
            **more,
        )
        return self.leader.adopt(state, self.now_ms)

    def image_changed(self) -> bool:
        return self.leader.image_changed(self.now_ms)

    def tick(self) -> bool:
        return self.leader.tick(self.now_ms)

    def send(self) -> Alteration:
        sent = self.leader.alteration()
        assert sent is not None
        return sent

    def refused(self, sent: Alteration, error: type[Exception]) -> None:
        self.leader.refused(sent, error, self.now_ms)
