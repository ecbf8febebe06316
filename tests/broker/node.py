"""A broker without a network: its replicas on a simulated disk, and requests through the real handlers.

node = Node()                       broker 1 of 1, 2, 3; broker n is registered under epoch 10 n
node.lead()                         partition `PLACE` is led here
asked = node.ask(message, bytes)    what the transport would hand over; `asked.answer` once there is one
node.turn(), node.wait(ms)          what waits is tried, time passes
"""

from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from typing import Any, NoReturn, cast

from tests.storage.logs import Halted
from tidelog.broker.leadership import Surroundings
from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests.cluster import describe_cluster
from tidelog.broker.requests.context import Clocks, Context, Told
from tidelog.broker.requests.delete_records import delete_records
from tidelog.broker.requests.fetch import end_wait, fetch
from tidelog.broker.requests.flushed import flushed
from tidelog.broker.requests.log_dirs import log_dirs
from tidelog.broker.requests.log_info import log_info
from tidelog.broker.requests.metadata import metadata
from tidelog.broker.requests.offsets import epoch_ends, list_offsets
from tidelog.broker.requests.produce import produce
from tidelog.broker.requests.producer_ids import init_producer_id
from tidelog.broker.requests.topics import HANDED_ON, hand_on
from tidelog.controller.image import BrokerState, Image, PartitionState, TopicState
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    ACKS_ALL,
    DeleteRecords,
    DescribeCluster,
    DescribeLogDirs,
    EndWait,
    EpochEnds,
    Fetch,
    Flushed,
    GetReplicaLogInfo,
    InitProducerId,
    ListOffsets,
    Metadata,
    PartitionFetch,
    PartitionProduce,
    Produce,
    Reply,
    Request,
)
from tidelog.protocol.records import encode
from tidelog.protocol.types import BrokerId, Epoch, Offset
from tidelog.replication.sessions import Place
from tidelog.storage.config import LogConfig
from tidelog.storage.crashes import Life
from tidelog.storage.data_directories import DataDirectories
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.identity import claim
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.works import take_here
from tidelog.testing.simulation.disk import SimulatedDisk

TOPIC_ID = b"orders---orders-"
PLACE: Place = (TOPIC_ID, 0)
HANDLERS: dict[type[Request], Callable[[Context, Incoming], None]] = {
    Produce: produce,
    Fetch: fetch,
    Flushed: flushed,
    Metadata: metadata,
    DescribeCluster: describe_cluster,
    ListOffsets: list_offsets,
    EndWait: end_wait,
    EpochEnds: epoch_ends,
    DeleteRecords: delete_records,
    InitProducerId: init_producer_id,
    GetReplicaLogInfo: log_info,
    DescribeLogDirs: log_dirs,
    **dict.fromkeys(HANDED_ON, hand_on),
}


class Caller:
    """A connection, as handlers see it."""

    context: Any = None
    came_in_by = ""


class Asked:
    """What arrives, as handlers see it; the first answer is kept, a second one fails."""

    def __init__(self, message: Request, attachment: bytes = b"", *, one_way: bool = False) -> None:
        self.message = message
        self.attachment = memoryview(bytearray(attachment))
        self.one_way = one_way
        self.closed = False
        self.connection = Caller()
        self.answer: Any = None
        self.data = b""
        self.refused: str | None = None

    def reply(self, message: Reply, *attachments: Any) -> None:
        assert self.answer is None, "answered twice"
        self.answer = message
        self.data = b"".join(bytes(piece) for piece in attachments)

    def refuse(self, error: TidelogError) -> None:
        assert self.refused is None, "refused twice"
        self.refused = str(error)

    @property
    def waits(self) -> bool:
        """Whether it has not been answered."""
        return self.answer is None

    @property
    def entry(self) -> Any:
        """The answer's only partition."""
        assert self.answer is not None, "it still waits"
        (entry,) = self.answer.partitions
        return entry

    @property
    def error(self) -> int:
        """The error of the answer's only partition."""
        return cast("int", self.entry.error)


class Node:
    """Broker 1's replicas, and the cluster as it sees it."""

    def __init__(self, *, config: LogConfig | None = None) -> None:
        self.now_ms = 1000
        self.disk = SimulatedDisk(Random(1))
        self.image = Image()
        for number in (1, 2, 3):
            self.register(number)
        self.data = self._open(config or LogConfig())
        self.due: list[Callable[[], None]] = []
        self.flushing: list[tuple[Partition, int]] = []
        self.deadlines: list[int] = []
        self.saves: list[Callable[[], None]] = []
        self.started_with: dict[tuple[str, str, str], str | None] = {}
        self.asked: list[tuple[Request, int, Told]] = []
        """What was asked of the controller of quorum epoch 7, and who is to be told."""
        self.proposals = 0
        image = self.image
        around = Surroundings(
            BrokerId(1),
            10,
            lambda broker: image.brokers[broker].epoch if broker in image.brokers else None,
            image.live_epoch,
            10_000,
        )
        self.replicas = Replicas(
            DataDirectories([self.data]),
            around,
            run_soon=lambda: self.due.append(self.replicas.delayed.run),
            propose_soon=self._propose_soon,
            wake_at=self.deadlines.append,
        )
        self.replicas.lease_until_ms = 1 << 60
        clocks = Clocks(lambda: self.now_ms, lambda: self.now_ms, lambda: self.now_ms)
        self.context = self._context(clocks)

    @property
    def partition(self) -> Partition:
        """The one that most tests are about."""
        return self.replicas.partitions[PLACE]

    def _context(self, clocks: Clocks) -> Context:
        return Context(
            self.replicas,
            self.image,
            clocks,
            lambda partition, size: self.flushing.append((partition, size)),
            self.saves.append,
            lambda build, timeout_ms, told: self.asked.append((build(7), timeout_ms, told)),
            controller_id=lambda: BrokerId(101),
            quorum_epoch=lambda: 7,
            crash_kind=lambda: 2,
            started_with=self.started_with,
        )

    def _propose_soon(self) -> None:
        self.proposals += 1

    def _open(self, config: LogConfig) -> DataDirectory:
        root = self.disk.open_directory("/data")
        claimed = claim(
            root, role="broker", node_id=1, cluster_id=b"c" * 16, new_directory_id=b"d" * 16, pid=1
        )
        life = Life.begin(
            root,
            directory_id=claimed.identity.directory_id,
            incarnation_id=b"i" * 16,
            boot_id="boot",
            has_partitions=False,
        )
        data = DataDirectory(root, life, config, OpenSegments(), halt=_halt, new_guard=nullcontext)
        take_here(data.open(0))
        return data

    # ── the cluster ───────────────────────────────────────────────────────────────────────────────

    def register(self, number: int, *, fenced: bool = False, rack: str = "") -> None:
        broker = BrokerId(number)
        self.image.brokers[broker] = BrokerState(
            broker, 10 * number, b"i" * 16, b"d" * 16, f"b{number}", 9092, rack, fenced
        )

    def adopt(self, **state: Any) -> Partition:
        """The cluster decides; whatever is not said is as it was, or led by broker 1 with all in sync."""
        known = self.image.partitions.get(state.get("place", PLACE))
        place: Place = state.pop("place", PLACE)
        fields = {
            "replicas": (1, 2, 3),
            "isr": (1, 2, 3),
            "leader": 1,
            "min_isr": 2,
            **({name: getattr(known, name) for name in known.__struct_fields__} if known else {}),
            **state,
        }
        fields |= {"topic_id": place[0], "index": place[1]}
        fields["partition_epoch"] = known.partition_epoch + 1 if known else 0
        decided = PartitionState(**fields)
        self.image.partitions[place] = decided
        count = sum(1 for topic_id, _ in self.image.partitions if topic_id == place[0])
        self.image.topics[place[0]] = TopicState(place[0], "orders", count)
        self.image.topic_ids["orders"] = place[0]
        self.replicas.adopt({place: ("orders", decided)}, (), self.now_ms, self.now_ms)
        return cast("Partition", self.replicas.partitions.get(place))

    def lead(self, **state: Any) -> Partition:
        """Broker 1 leads, in a new leader epoch."""
        return self.adopt(leader=1, leader_epoch=state.pop("epoch", self._next_epoch(state)), **state)

    def follow(self, leader: int = 2, **state: Any) -> Partition:
        """Another broker leads, or nobody (-1), in a new leader epoch."""
        return self.adopt(leader=leader, leader_epoch=state.pop("epoch", self._next_epoch(state)), **state)

    def _next_epoch(self, state: dict[str, Any]) -> Epoch:
        known = self.image.partitions.get(state.get("place", PLACE))
        return known.leader_epoch + 1 if known else 0

    def remove(self, place: Place = PLACE) -> None:
        """The topic is deleted."""
        del self.image.partitions[place]
        self.replicas.adopt({}, [place], self.now_ms, self.now_ms)

    # ── requests and time ─────────────────────────────────────────────────────────────────────────

    def ask(
        self,
        message: Request,
        attachment: bytes = b"",
        *,
        one_way: bool = False,
        behind: Asked | None = None,
        came_in_by: str = "",
    ) -> Asked:
        """`behind`: on the connection of something that was asked before."""
        asked = Asked(message, attachment, one_way=one_way)
        asked.connection.came_in_by = came_in_by
        if behind is not None:
            asked.connection = behind.connection
        HANDLERS[type(message)](self.context, cast("Incoming", asked))
        return asked

    def turn(self) -> None:
        """The rest of this turn of the loop, and the next."""
        while self.due:
            due, self.due = self.due, []
            for run in due:
                run()

    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms
        self.replicas.delayed.expire(self.now_ms)
        self.turn()

    def produce(
        self, batch: bytes | None = None, acks: int = ACKS_ALL, *, place: Place = PLACE, **fields: Any
    ) -> Asked:
        content = bytes(batch if batch is not None else records(1))
        entry = PartitionProduce(place[0], place[1], len(content), fields.pop("epoch", -1))
        message = Produce(acks, fields.pop("timeout_ms", 1000), (entry,))
        return self.ask(message, content, one_way=acks == 0)

    def fill(self, count: int = 1, *, place: Place = PLACE) -> None:
        """Append so many batches of one record, and let all followers have them."""
        for _ in range(count):
            self.produce(acks=1, place=place)
        end = self.replicas.partitions[place].log.end_offset
        for follower in (2, 3):
            self.fetched(follower, end, place=place)

    def fetched(self, follower: int, offset: Offset, *, place: Place = PLACE, **fields: Any) -> Asked:
        """A follower fetches from there and does not wait."""
        return self.follower_fetch(follower, offset, place=place, wait_ms=0, **fields)

    def follower_fetch(
        self, follower: int, offset: Offset, *, place: Place = PLACE, wait_ms: int = 500, **fields: Any
    ) -> Asked:
        partition = self.replicas.partitions[place]
        last = partition.log.epochs.epoch_of(offset - 1) if offset else -1
        entry = PartitionFetch(
            *place,
            offset,
            fields.pop("partition_bytes", 1 << 20),
            current_leader_epoch=fields.pop("epoch", partition.leader_epoch),
            last_fetched_epoch=fields.pop("last_epoch", last),
            durable_offset=fields.pop("durable", 0),
            log_start=fields.pop("log_start", 0),
        )
        return self.ask(
            Fetch(
                wait_ms,
                fields.pop("min_bytes", 1),
                fields.pop("max_bytes", 1 << 20),
                (entry,),
                broker_id=BrokerId(follower),
                broker_epoch=fields.pop("broker_epoch", 10 * follower),
                **fields,
            )
        )

    def consume(self, offset: Offset, *, place: Place = PLACE, wait_ms: int = 500, **fields: Any) -> Asked:
        entry = PartitionFetch(
            *place,
            offset,
            fields.pop("partition_bytes", 1 << 20),
            current_leader_epoch=fields.pop("epoch", -1),
            last_fetched_epoch=fields.pop("last_epoch", -1),
        )
        behind = fields.pop("behind", None)
        message = Fetch(
            wait_ms, fields.pop("min_bytes", 1), fields.pop("max_bytes", 1 << 20), (entry,), **fields
        )
        return self.ask(message, behind=behind)


def records(count: int = 1, size: int = 10, **fields: Any) -> bytes:
    """A batch."""
    return bytes(encode([b"x" * size] * count, now_ms=fields.pop("now_ms", 0), **fields))


def _halt(what: str, error: OSError) -> NoReturn:
    raise Halted(f"{what}: {error}")
