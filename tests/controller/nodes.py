"""A controller and those who follow it, on whatever event loop runs: what the tests of both loops are made of."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from typing import Any, NoReturn

from tests.controller.book import named
from tests.storage.logs import Host
from tidelog.controller.active import ActiveConfig
from tidelog.controller.config import ControllerConfig
from tidelog.controller.controller import Controller
from tidelog.controller.following import Address, FollowingConfig
from tidelog.controller.image import Changes
from tidelog.controller.liveness import LivenessConfig
from tidelog.controller.observer import Observer
from tidelog.controller.topics import TopicDefaults
from tidelog.protocol.messages import (
    AlterPartition,
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    ConfigEntry,
    CreateTopics,
    CreateTopicsReply,
    IsrMember,
    NewTopic,
    PartitionAlter,
    RegisterBroker,
    RegisterBrokerReply,
    ReplicaPlaces,
)
from tidelog.protocol.types import BrokerId, Epoch, Offset
from tidelog.storage.config import LogConfig
from tidelog.storage.environment import Environment
from tidelog.storage.files import Directory

PATIENCE = FollowingConfig(
    fetch_max_wait_ms=100, fetch_timeout_ms=600, connect_timeout_ms=300, retry_ms=10, retry_max_ms=100
)


class Clock:
    """Clocks that go with the loop."""

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.boot_ms())

    def boot_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000


def environment(directory: Directory, rng: Random) -> Environment:
    def halt(reason: str) -> NoReturn:
        raise AssertionError(reason)

    return Environment(directory, Clock(), "one boot", 1, rng, lambda: rng.randbytes(16), nullcontext, halt)


def sessions_of(session_timeout_ms: int) -> ActiveConfig:
    """The quorum's time-out keeps its proportion to the session."""
    return ActiveConfig(
        liveness=LivenessConfig(
            session_timeout_ms=session_timeout_ms, quorum_fetch_timeout_ms=session_timeout_ms * 2 // 9
        ),
        topics=TopicDefaults(replication_factor=1),
    )


PATIENT = ControllerConfig(
    node_id=BrokerId(1),
    voters=((1, "127.0.0.1", 0),),
    port=0,
    idle_ms=100,
    fast_fencing=False,
    active=sessions_of(60_000),
)
"""A quorum of one that fences nobody while a test lasts."""


def controller(
    directory: Directory, port: int = 0, config: ControllerConfig = PATIENT, seed: int = 1
) -> Controller:
    """The only controller of a cluster, whose data lies there."""
    here = replace(config, voters=((1, "127.0.0.1", port),), port=port)
    return Controller(here, environment(directory, Random(seed)))


class Ledger:
    """What was ever seen to be committed: everybody must see the same (I-44)."""

    def __init__(self) -> None:
        self.images: dict[Offset, bytes] = {}

    def saw(self, offset: Offset, image: bytes) -> None:
        assert self.images.setdefault(offset, image) == image, f"two histories end at offset {offset}"


class Member:
    """A broker as the controller knows it: it follows the log, registers, sends heartbeats, and holds nothing."""

    def __init__(
        self, number: int, controllers: dict[int, Address], ledger: Ledger | None = None, *, port: int = 9
    ) -> None:
        self.number = BrokerId(number)
        self.port = port
        self.address = "127.0.0.1"
        """Where it says that it listens, at that port."""
        self.controllers = {BrokerId(key): address for key, address in controllers.items()}
        self.ledger = ledger or Ledger()
        self.host = Host(number, LogConfig(segment_bytes=4096))
        self.known_committed = 0
        """As a checkpoint says it."""
        self.life = 0
        self.epoch: Epoch = -1
        self.changes: list[Changes] = []
        self.lost = 0
        self.observer: Observer
        self.begin()

    def begin(self) -> None:
        """A new process."""
        self.life += 1
        self.changes = []
        self.observer = Observer(
            self.controllers,
            self.host.log,
            min(self.known_committed, self.host.log.end_offset),
            self._on_batch,
            wall_ms=lambda: 1_700_000_000_000,
            rng=Random(self.number),
            broker_id=self.number,
            config=PATIENCE,
            on_lost=self._on_lost,
        )

    def _on_batch(self, changes: Changes) -> None:
        image = self.observer.image
        image.check()
        assert image.end_offset <= self.observer.high_watermark
        self.ledger.saw(image.end_offset, image.to_bytes())
        self.known_committed = image.end_offset
        self.changes.append(changes)

    def _on_lost(self) -> None:
        self.lost += 1

    # ── what it asks for ──────────────────────────────────────────────────────────────────────────

    async def ask(self, build: Callable[[Epoch], Any], timeout_ms: float = 5000) -> Any:
        return await self.observer.call(build, timeout_ms)

    async def register(self, **more: Any) -> RegisterBrokerReply:
        fields: dict[str, Any] = {
            "broker_id": self.number,
            "incarnation_id": named(f"life {self.life} of {self.number}"),
            "directory_id": named(f"disk {self.number}"),
            "host": self.address,
            "port": self.port,
            "crash_kind": 2,
            "prev_broker_epoch": self.epoch,
        }
        reply: RegisterBrokerReply = await self.ask(
            lambda epoch: RegisterBroker(quorum_epoch=epoch, **fields | more)
        )
        if not reply.error:
            self.epoch = reply.broker_epoch
        return reply

    async def beat(self, **more: Any) -> BrokerHeartbeatReply:
        return await self.beat_at(self.observer.caught_up_to, **more)

    async def beat_at(self, metadata_offset: Offset, **more: Any) -> BrokerHeartbeatReply:
        """As one that has read so far."""
        reply: BrokerHeartbeatReply = await self.ask(
            lambda epoch: BrokerHeartbeat(self.number, self.epoch, epoch, metadata_offset, **more)
        )
        return reply

    async def join(self) -> None:
        """Be registered and unfenced."""
        await self.register()
        fenced = True
        while fenced:
            fenced = (await self.beat()).fenced

    async def create(
        self, name: str, partitions: int = 1, factor: int = 0, **configs: str
    ) -> CreateTopicsReply:
        settings = tuple(ConfigEntry(key.replace("_", "."), value) for key, value in configs.items())
        return await self.make(NewTopic(name, partitions, factor, configs=settings))

    async def place(self, name: str, *replicas: int) -> bytes:
        """A topic with one partition there, the first of them leads; its id."""
        here = ReplicaPlaces(tuple(BrokerId(replica) for replica in replicas))
        (topic,) = (await self.make(NewTopic(name, assignment=(here,)))).topics
        assert topic.topic_id is not None, topic
        return topic.topic_id

    async def make(self, topic: NewTopic) -> CreateTopicsReply:
        reply: CreateTopicsReply = await self.ask(lambda epoch: CreateTopics((topic,), quorum_epoch=epoch))
        return reply

    async def propose(self, topic_id: bytes, isr: tuple[int, ...], seq: int = 1) -> Any:
        """The entry that answers a proposal made from what this member knows."""
        image = self.observer.image
        p = image.partitions[topic_id, 0]
        members = tuple(IsrMember(BrokerId(b), image.brokers[BrokerId(b)].epoch) for b in isr)
        alter = PartitionAlter(topic_id, 0, p.leader_epoch, p.partition_epoch, seq, members)
        reply = await self.ask(lambda epoch: AlterPartition(self.number, self.epoch, epoch, (alter,)))
        return reply.partitions[0] if reply.partitions else reply
