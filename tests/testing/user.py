"""What a test does with a cluster: topics, records, and what brokers know, in the protocol's own messages."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tidelog.protocol.errors import DiskFull, TidelogError, error_of
from tidelog.protocol.io import Connection, connect
from tidelog.protocol.messages import (
    CreateTopics,
    Fetch,
    Hello,
    Metadata,
    NewTopic,
    PartitionFetch,
    PartitionMetadata,
    PartitionProduce,
    Produce,
    Request,
)
from tidelog.protocol.records import encode
from tidelog.testing import Cluster

HOST = "127.0.0.1"
DEADLINE_S = 10.0

QUICK = {
    "broker.heartbeat.interval.ms": 200,
    "broker.session.timeout.ms": 1000,
    "quorum.fetch.timeout.ms": 400,
    "quorum.election.timeout.ms": 200,
    "replica.fetch.wait.max.ms": 100,
    "replica.lag.time.max.ms": 1200,
    "replica.socket.timeout.ms": 500,
}
"""Time-outs that are a tenth of the usual ones: a test waits for them."""


async def until(holds: Callable[[], Awaitable[Any]], what: str = "", seconds: float = DEADLINE_S) -> Any:
    """Until that answers something true, which is returned."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not (answer := await holds()):
        assert loop.time() < deadline, f"not after {seconds} s: {what}; the last answer was {answer!r}"
        await asyncio.sleep(0.005)
    return answer


class User:
    """Whoever uses the cluster, by the addresses that it advertises."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topic_ids: dict[str, bytes] = {}

    async def ask(
        self,
        broker: int,
        message: Request,
        data: bytes = b"",
        *,
        timeout_ms: float = 2000,
        connection: Connection | None = None,
    ) -> Any:
        """One request, on a connection of its own if there is none; TidelogError where it was not answered."""
        own = connection is None
        if connection is None:
            host, port = self.cluster.nodes[f"b{broker}"].spec.address
            connection = await connect(host, port, Hello(client_id="a user"), timeout_ms=timeout_ms)
        try:
            reply, attachment = await connection.call(
                message, *([data] if data else []), timeout_ms=timeout_ms
            )
        finally:
            if own:
                connection.abort()
        return (reply, bytes(attachment)) if isinstance(message, Fetch) else reply

    async def create(self, name: str, broker: int = 1, factor: int = 0) -> None:
        """A topic with one partition."""
        reply = await self.ask(broker, CreateTopics((NewTopic(name, 1, factor),)))
        (topic,) = reply.topics
        assert not topic.error, topic
        self.topic_ids[name] = topic.topic_id
        await until(lambda: self.cluster.leader_of(name), "a leader")

    async def partition(self, name: str, asked: int) -> PartitionMetadata | None:
        """The topic's only partition as that broker knows it."""
        try:
            reply = await self.ask(asked, Metadata(names=(name,)))
        except TidelogError:
            return None
        (topic,) = reply.topics
        return topic.partitions[0] if topic.partitions else None

    async def isr_is(self, name: str, asked: int, *brokers: int) -> None:
        """Until that broker knows of this ISR."""

        async def holds() -> bool:
            known = await self.partition(name, asked)
            return known is not None and set(known.isr) == set(brokers)

        await until(holds, f"an ISR of {brokers} as broker {asked} knows it")

    async def produce(
        self,
        name: str,
        value: bytes,
        broker: int,
        *,
        acks: int = -1,
        timeout_ms: float = 2000,
        connection: Connection | None = None,
    ) -> None:
        """One record; raises what it is refused with."""
        batch = bytes(encode([value]))
        message = Produce(acks, int(timeout_ms), (PartitionProduce(self.topic_ids[name], 0, len(batch)),))
        reply = await self.ask(broker, message, batch, timeout_ms=timeout_ms, connection=connection)
        (done,) = reply.partitions
        if done.error:
            raise error_of(done.error, done.message or "")

    async def writes(
        self,
        name: str,
        value: bytes = b"v",
        *,
        seconds: float = DEADLINE_S,
        despite: tuple[type[TidelogError], ...] = (),
    ) -> int:
        """Until whoever leads has taken a record with acks=all; who that was."""

        async def wrote() -> int | None:
            leader = await self.cluster.leader_of(name)
            if leader is None:
                return None
            try:
                await self.produce(name, value, leader, timeout_ms=500)
            except TidelogError as error:
                if isinstance(error, DiskFull) and DiskFull not in despite:
                    raise
                return None
            return leader

        return int(await until(wrote, f"a write to {name}", seconds))

    async def read(self, name: str, broker: int, offset: int = 0) -> bytes:
        """What can be read from there on."""
        entry = PartitionFetch(self.topic_ids[name], 0, offset, 1 << 20)
        reply, data = await self.ask(broker, Fetch(0, 0, 1 << 20, (entry,)))
        (found,) = reply.partitions
        if found.error:
            raise error_of(found.error, found.message or "")
        return bytes(data)

    def on_disk(self, name: str, broker: int) -> bytes:
        """What that broker has written of the topic's only partition."""
        directory = self.cluster.nodes[f"b{broker}"].spec.directory / f"{name}-0"
        return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))

    async def answers(self, broker: int, timeout_ms: float = 300) -> bool:
        """Whether that broker answers in time."""
        try:
            await self.ask(broker, Metadata(), timeout_ms=timeout_ms)
        except TidelogError:
            return False
        return True
