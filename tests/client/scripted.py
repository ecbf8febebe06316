"""Brokers that answer what a test tells them, on real sockets: for what real ones do too seldom."""

from collections.abc import Callable
from types import TracebackType
from typing import Self, cast

from tests.client.nodes import HOST
from tests.protocol.io.peers import Node
from tidelog.client.io.client import Client, connect
from tidelog.protocol.errors import UnknownTopicOrPartition
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    BrokerEndpoint,
    Metadata,
    MetadataReply,
    PartitionMetadata,
    Request,
    TopicMetadata,
    Welcome,
)
from tidelog.protocol.types import BrokerId

ORDERS = b"o" * 16


class Scripted:
    """Some brokers of one cluster; each answers Metadata unless it is `mute`, and all else by `handler`."""

    def __init__(self, count: int = 1) -> None:
        self.nodes = {
            BrokerId(n): Node(welcome=Welcome("c", BrokerId(n), "broker")) for n in range(1, count + 1)
        }
        self.offset = 10
        self.topics = {"orders": TopicMetadata(0, None, "orders", ORDERS, (partition(0), partition(1)))}
        self.mute: set[BrokerId] = set()
        self.alive: list[BrokerId] = list(self.nodes)
        """Those that Metadata shows."""
        self.asked: list[tuple[BrokerId, Request]] = []
        """Every request but Hello, in the order in which they came."""
        self.unanswered: list[Incoming] = []
        self.on_metadata: Callable[[BrokerId, Incoming], None] = lambda _broker, incoming: incoming.reply(
            self.metadata(cast("Metadata", incoming.message))
        )
        self.handler: Callable[[BrokerId, Incoming], None] = lambda _broker, incoming: self.unanswered.append(
            incoming
        )

    async def __aenter__(self) -> Self:
        for number, node in self.nodes.items():
            node.handler = lambda incoming, number=number: self._handle(number, incoming)  # type: ignore[misc]
            await node.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            await node.__aexit__(kind, error, trace)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes.values())

    def client(self, **options: object) -> Client:
        """A client that is not started yet."""
        return connect(self.bootstrap, **options)  # type: ignore[arg-type]

    def count(self, kind: type[Request]) -> int:
        """How many requests of that kind have come."""
        return sum(isinstance(request, kind) for _, request in self.asked)

    def _handle(self, number: BrokerId, incoming: Incoming) -> None:
        self.asked.append((number, incoming.message))
        if number in self.mute:
            self.unanswered.append(incoming)
        elif isinstance(incoming.message, Metadata):
            self.on_metadata(number, incoming)
        else:
            self.handler(number, incoming)

    def metadata(self, request: Metadata) -> MetadataReply:
        """What all of them answer."""
        return MetadataReply(
            cluster_id="c",
            metadata_offset=self.offset,
            brokers=tuple(BrokerEndpoint(n, HOST, self.nodes[n].port) for n in self.alive),
            topics=tuple(
                self.topics.get(name)
                or TopicMetadata(UnknownTopicOrPartition.code, f"there is no topic {name!r}", name)
                for name in (self.topics if request.all_topics else request.names)
            ),
        )


def partition(index: int, leader: int = 1, epoch: int = 0) -> PartitionMetadata:
    return PartitionMetadata(
        index,
        leader=BrokerId(leader),
        leader_epoch=epoch,
        replicas=(BrokerId(leader),),
        isr=(BrokerId(leader),),
    )
