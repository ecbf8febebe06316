"""A cluster with one topic and one client that does what a test says, step by step: for what storms meet by chance.

town = Town(world)              three brokers; topic `orders`, made through a broker
town.do(lambda client: ...)     the client's coroutine, to its end; everything is looked at meanwhile
"""

from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

from tests.simulation.cluster import BROKER_PORT, Cluster
from tests.simulation.history import History
from tests.simulation.probe import Probe
from tidelog.broker.partition import Partition
from tidelog.protocol.batch import walk
from tidelog.protocol.errors import TidelogError, error_of
from tidelog.protocol.messages import (
    ACKS_ALL,
    ConfigEntry,
    CreateTopics,
    CreateTopicsReply,
    Fetch,
    FetchReply,
    NewTopic,
    PartitionFetch,
    PartitionFetched,
    PartitionProduce,
    PartitionProduced,
    Produce,
    ProduceReply,
)
from tidelog.protocol.records import decode, encode
from tidelog.replication.sessions import Place
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.world import World

T = TypeVar("T")
TOPIC = "orders"
Address = tuple[str, int]


class Town:
    """A cluster, a topic with one partition, and a client."""

    def __init__(
        self,
        world: World,
        *,
        config: dict[str, Any] | None = None,
        racks: dict[int, str] | None = None,
        disks: int = 1,
        **topic: str,
    ) -> None:
        self.world = world
        self.cluster = Cluster(world, config=config, racks=racks, disks=disks)
        self.host = Host("client", world)
        self.host.start()
        brokers = [self.address(number) for number in self.cluster.hosts]
        self.client = Probe("client", brokers, Random(1), History(committed=self.cluster.oracle.end))
        self.sent: list[bytes] = []
        self.place = self.make(TOPIC, **topic)

    def address(self, number: int) -> Address:
        return self.cluster.hosts[number].machine.address, BROKER_PORT

    def do(self, what: Callable[[Probe], Coroutine[Any, Any, T]], seconds: float = 20) -> T:
        """Let the client do this, to its end."""
        done: list[T] = []

        async def doing() -> None:
            done.append(await what(self.client))

        self.host.spawn(doing())
        self.cluster.until(lambda: done, seconds)
        return done[0]

    def make(self, name: str, **settings: str) -> Place:
        """A topic with one partition, when all replicas of it are in sync."""
        configs = tuple(ConfigEntry(key.replace("_", "."), value) for key, value in settings.items())
        place = self.do(lambda client: _create(client, name, configs), 20)
        self.cluster.until(self.cluster.converged, 20)
        return place

    # ── producing and reading ─────────────────────────────────────────────────────────────────────

    def produce(self, count: int, size: int = 100) -> None:
        """So many records in batches of ten, each committed before the next."""
        for _ in range(0, count, 10):
            values = [b"%06d|" % (len(self.sent) + at) + b"x" * size for at in range(10)]
            self.sent += values
            self.do(lambda client, values=values: deliver(client, self.place, values))  # type: ignore[misc]

    def read(self) -> list[bytes]:
        """Everything that a consumer sees at the leader, from the beginning."""
        return self.do(lambda client: read_all(client, self.place))

    # ── looking ───────────────────────────────────────────────────────────────────────────────────

    def partition(self, number: int) -> Partition:
        """The replica on that broker."""
        return self.cluster.brokers[number].replicas.partitions[self.place]

    def leader(self) -> int | None:
        """Who leads, of those that say so the one in the newest epoch."""
        leading = [
            (partition.leader_epoch, number)
            for (number, _), partition in self.cluster.replicas().items()
            if partition.leadership is not None
        ]
        return max(leading)[1] if leading else None

    def others(self) -> list[int]:
        """Who follows."""
        return [number for number in self.cluster.hosts if number != self.leader()]

    def converge(self, seconds: float = 20) -> None:
        """Until all replicas are in sync and the same."""
        self.cluster.until(self.cluster.converged, seconds)
        self.cluster.compare()


async def _create(client: Probe, name: str, configs: tuple[ConfigEntry, ...]) -> Place:
    """Make the topic through any broker, which hands it on."""
    while name not in client.places:
        try:
            topic = NewTopic(name, 1, 3, configs=configs)
            address = client.rng.choice(client.brokers)
            reply, _ = await client.ask(address, CreateTopics((topic,), timeout_ms=2000))
            assert isinstance(reply, CreateTopicsReply), reply
        except TidelogError:
            pass
        await client.trouble(name)
    return client.places[name][0]


async def send(
    client: Probe,
    address: Address,
    place: Place,
    values: Sequence[bytes | None],
    acks: int = ACKS_ALL,
    keys: Sequence[bytes] | None = None,
) -> PartitionProduced:
    """One batch to one broker, and what it says."""
    batch = bytes(encode(values, keys, now_ms=0))
    entry = PartitionProduce(*place, len(batch))
    reply, _ = await client.ask(address, Produce(acks, 1000, (entry,)), batch)
    assert isinstance(reply, ProduceReply), reply
    return reply.partitions[0]


async def deliver(
    client: Probe,
    place: Place,
    values: Sequence[bytes | None],
    keys: Sequence[bytes] | None = None,
    *,
    topic: str = TOPIC,
) -> int:
    """One batch to whoever leads, again while that may help; its first offset. Only retriable errors pass."""
    while True:
        address = await client.leader(topic, place)
        try:
            answer = await send(client, address, place, values, keys=keys)
            if not answer.error:
                return answer.base_offset
            error = error_of(answer.error, answer.message or "")
        except TidelogError as failed:
            error = failed
        assert error.retriable, error
        client.history.failed(error)
        await client.trouble(topic, place)


async def fetch(
    client: Probe, address: Address, place: Place, offset: int, *, rack: str = "", epoch: int = -1
) -> tuple[PartitionFetched, list[bytes]]:
    """One fetch from one broker: what it says, and the records."""
    asked = PartitionFetch(*place, offset, 4096, current_leader_epoch=epoch)
    reply, data = await client.ask(address, Fetch(0, 1, 4096, (asked,), client_rack=rack))
    assert isinstance(reply, FetchReply), reply
    values: list[bytes] = []
    for at, header in walk(data):
        columns = decode(data[at : at + header.size])
        values += [
            value
            for found, value in zip(columns.offsets, columns.values, strict=True)
            if found >= offset and value is not None
        ]
    return reply.partitions[0], values


async def read_all(client: Probe, place: Place) -> list[bytes]:
    """From the beginning up to the high watermark, from whoever leads."""
    found: list[bytes] = []
    while True:
        try:
            entry, values = await fetch(client, await client.leader(TOPIC, place), place, len(found))
        except TidelogError:
            await client.trouble(TOPIC, place)
            continue
        if entry.error:
            await client.trouble(TOPIC, place)
            continue
        found += values
        if len(found) >= entry.high_watermark >= 0:
            return found
