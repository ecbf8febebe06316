"""The stage on which transcripts are played: a simulated cluster that does what the lines of a transcript say.

Links are slow and even (50 ms between brokers, 1 ms to everybody else), so that what follows from what can be seen:
a step between brokers takes longer than any look at it, and no step depends on what chance brings.
"""

import re
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.cluster import BROKER_PORT, CONTROLLER_PORT, Cluster, with_config
from tests.simulation.pictures import Watch
from tidelog.broker.fetcher import FetchSettings
from tidelog.broker.flusher import FlushSettings
from tidelog.controller.election import elect_anyway
from tidelog.protocol.batch import walk
from tidelog.protocol.errors import TidelogError, error_of
from tidelog.protocol.io import connect
from tidelog.protocol.messages import (
    ACKS_ALL,
    LATEST,
    ConfigEntry,
    CreateTopics,
    CreateTopicsReply,
    Fetch,
    FetchReply,
    ListOffsets,
    ListOffsetsReply,
    NewTopic,
    OffsetQuery,
    PartitionFetch,
    PartitionProduce,
    Produce,
    ProduceReply,
    ReplicaPlaces,
    Reply,
    Request,
)
from tidelog.protocol.records import decode, encode
from tidelog.protocol.types import NO_BROKER, NO_OFFSET, BrokerId, Buffer
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.links import Conditions
from tidelog.testing.simulation.world import NotReached, World

BETWEEN_BROKERS_MS = (50.0, 50.0)
EVEN = Conditions(
    latency_ms=(1.0, 1.0),
    loopback_ms=(0.01, 0.01),
    cut_probability=0.0,
    give_up_s=(3600.0, 3600.0),
    retransmit_ms=(0.0, 0.0),
)
SEED = 1
PATIENCE_S = 20
WAIT_S = 12
"""How long `wait until` waits: twice as long as anything takes that happens at all."""
ANSWER_MS = 8_000
"""How long a producer waits for its answer."""


class Worst(Random):
    """What survives a loss of power when chance spares nothing."""

    def random(self) -> float:
        """The least."""
        return 0.0

    def randint(self, a: int, b: int) -> int:
        """The least, too."""
        return min(a, b)


class Watched(Cluster):
    """A cluster that is looked at by a `Watch` too; after `elect unclean`, or with a bug, not by the oracle."""

    watch: Watch | None = None
    strict = True

    def look(self) -> None:
        if self.strict:
            super().look()
        if self.watch is not None:
            self.watch.look()


class Stage:
    """One story's cluster and clients. Each method is a command; what it returns is shown beneath it."""

    def __init__(
        self, world: World, brokers: int, settings: dict[str, str], *, lenient: bool, strict: bool
    ) -> None:
        lag_ms = seconds(settings.pop("replica.lag.time.max", "20s")) * 1000
        config = with_config(
            replica_lag_time_max_ms=int(lag_ms),
            fetch=FetchSettings(max_wait_ms=500, timeout_ms=60_000),
            flush=FlushSettings(10_000_000, 64 << 20, 700, 10_000_000),
        )
        self.world = world
        self.cluster = Watched(world, brokers=brokers, config=config)
        for one in self.cluster.hosts:
            for other in self.cluster.hosts:
                if one < other:
                    world.network.slow(f"b{one}", f"b{other}", BETWEEN_BROKERS_MS)
        self.client = Host("client", world)
        self.client.start()
        self._create_topic(brokers, settings)
        (place,) = self.cluster.controllers[-1].working.partitions
        self.cluster.watch = self.watch = Watch(self.cluster, place)
        self.cluster.strict = strict
        self._waiting: list[str] = []
        self._lenient = lenient

    def _create_topic(self, brokers: int, settings: dict[str, str]) -> None:
        configs = tuple(ConfigEntry(key, value) for key, value in settings.items())
        replicas = ReplicaPlaces(tuple(BrokerId(number) for number in range(1, brokers + 1)))
        topic = NewTopic("orders", assignment=(replicas,), configs=configs)
        self.cluster.until(lambda: self.cluster.active and self._unfenced() == brokers, 10)
        epoch = self.cluster.controllers[-1].epoch
        reply = self._ask(
            self.cluster.controller, CONTROLLER_PORT, CreateTopics((topic,), quorum_epoch=epoch)
        )
        assert isinstance(reply[0], CreateTopicsReply), reply
        assert not reply[0].error, reply
        self.cluster.until(self.cluster.converged, 10)

    def _unfenced(self) -> int:
        return sum(not known.fenced for known in self.cluster.controllers[-1].working.brokers.values())

    def _ask(self, host: Host, port: int, request: Request, *attachments: Buffer) -> tuple[Reply, Buffer]:
        """Ask as a client; this command ends with the answer."""
        task = self.client.create_task(ask(host.machine.address, port, request, *attachments))
        self.cluster.until(task.done, PATIENCE_S)
        return task.result()

    # ── clients ───────────────────────────────────────────────────────────────────────────────────

    def produce(self, value: str, options: str) -> list[str]:
        """Send a record and wait for the answer."""
        self.send(value, options)
        self.cluster.until(lambda: value not in self._waiting, PATIENCE_S)
        return []

    def send(self, value: str, options: str) -> list[str]:
        """Send a record; wait only until the leader has it, or has answered."""
        acks = ACKS_ALL if "acks=1" not in options else 1
        named = re.search(r"to (\d)", options)
        number = int(named[1]) if named else int(self.watch.state.leader)
        if number == NO_BROKER:
            self.watch.tell(f"producer of {value}", "finds no leader to send it to")
            return []
        partition = self.watch.partition(number)
        before = partition.log.end_offset if partition is not None else -1
        # A record of 1970 would close its segment: what a follower copies next would depend on when it was looked at.
        batch = bytes(encode([value.encode()], now_ms=self.client.clock.wall_ms()))
        topic_id, index = self.watch.place
        request = Produce(acks, ANSWER_MS, (PartitionProduce(topic_id, index, len(batch)),))
        task = self.client.create_task(self._produce(self.cluster.hosts[number], request, batch, value))

        def written() -> bool:
            now = self.watch.partition(number)
            return now is not None and now.log.end_offset > before

        self.cluster.until(lambda: task.done() or written(), PATIENCE_S)
        return []

    async def _produce(self, host: Host, request: Produce, batch: bytes, value: str) -> None:
        self._waiting.append(value)
        try:
            reply, _ = await ask(host.machine.address, BROKER_PORT, request, batch)
            assert isinstance(reply, ProduceReply), reply
            answer = reply.partitions[0]
            if answer.error:
                told = f"is told {error_of(answer.error, '').name()}"
            else:
                told = f"is told: written at offset {answer.base_offset}"
        except TidelogError:
            told = "gets no answer: the connection is gone"
        self._waiting.remove(value)
        self.watch.tell(f"producer of {value}", told)

    def consume(self, options: str) -> list[str]:
        """Read everything that a consumer gets, from the leader or the broker that is named."""
        host = self._reader(options)
        if host is None:
            return ["the consumer finds no leader to read from"]
        topic_id, index = self.watch.place
        values: list[str] = []
        while True:
            request = Fetch(0, 1, 1 << 20, (PartitionFetch(topic_id, index, len(values), 1 << 20),))
            reply, data = self._ask(host, BROKER_PORT, request)
            assert isinstance(reply, FetchReply), reply
            entry = reply.partitions[0]
            if entry.error:
                return [f"the consumer is told {error_of(entry.error, '').name()}"]
            if not len(data):
                break
            for at, header in walk(data):
                values += [(value or b"").decode() for value in decode(data[at : at + header.size]).values]
        known = "not known yet" if entry.high_watermark == NO_OFFSET else str(entry.high_watermark)
        return [f"the consumer reads: {' '.join(values) or 'nothing'}   (high watermark: {known})"]

    def latest(self, options: str) -> list[str]:
        """Ask for the latest offset, as a consumer does that wants only what is new."""
        host = self._reader(options)
        if host is None:
            return ["there is no leader to ask"]
        reply, _ = self._ask(host, BROKER_PORT, ListOffsets((OffsetQuery(*self.watch.place, LATEST),)))
        assert isinstance(reply, ListOffsetsReply), reply
        found = reply.partitions[0]
        return [error_of(found.error, "").name() if found.error else f"offset {found.offset}"]

    def _reader(self, options: str) -> Host | None:
        named = re.search(r"from (\d)", options)
        return self.cluster.hosts.get(int(named[1]) if named else int(self.watch.state.leader))

    # ── faults ────────────────────────────────────────────────────────────────────────────────────

    def kill(self, number: str) -> list[str]:
        """SIGKILL."""
        self.cluster.hosts[int(number)].kill()
        return []

    def power_cut(self, number: str) -> list[str]:
        """What was not flushed is gone: all of it, where chance would spare some."""
        host = self.cluster.hosts[int(number)]
        chance, host.disk._rng = host.disk._rng, Worst()
        host.power_cut()
        host.disk._rng = chance
        return []

    def restart(self, number: str) -> list[str]:
        """Start the process again, and wait until it has its role."""
        self.cluster.start(int(number))
        self.cluster.until(lambda: self.watch.partition(int(number)) is not None, PATIENCE_S)
        return []

    def stop(self, number: str) -> list[str]:
        """SIGSTOP."""
        self.cluster.hosts[int(number)].stop()
        return []

    def go_on(self, number: str) -> list[str]:
        """SIGCONT."""
        self.cluster.hosts[int(number)].resume()
        return []

    def hold(self, source: str, target: str) -> list[str]:
        """From now on nothing gets from one to the other; it waits on the way."""
        self.world.network.partition(host_name(source), host_name(target), both=False)
        return []

    def release(self, source: str, target: str) -> list[str]:
        """What waits on the way arrives."""
        self.world.network.heal(host_name(source), host_name(target))
        return []

    def slow(self, source: str, target: str, time: str) -> list[str]:
        """Whatever passes between the two takes so long."""
        latency_ms = seconds(time) * 1000
        self.world.network.slow(host_name(source), host_name(target), (latency_ms, latency_ms))
        return []

    def isolate(self, number: str) -> list[str]:
        """Cut a broker off from the other brokers and the controller; clients still reach it."""
        for other in (*self.cluster.hosts.values(), self.cluster.controller):
            if other.name != f"b{number}":
                self.world.network.partition(f"b{number}", other.name)
        return []

    def heal(self) -> list[str]:
        """Everybody reaches everybody."""
        self.world.network.heal()
        return []

    def flush(self, number: str) -> list[str]:
        """Force a broker's log to its disk, and its checkpoints with it."""
        broker, host = self.cluster.brokers[int(number)], self.cluster.hosts[int(number)]
        flusher = broker._flusher

        async def flush() -> None:
            await flusher._flush(list(broker.replicas.partitions.values()))
            await flusher.write(broker.data.write_recovery_points())
            await flusher.write(broker.data.write_high_watermarks(flusher.committed()))

        self.cluster.until(host.create_task(flush()).done, PATIENCE_S)
        return []

    def elect_unclean(self) -> list[str]:
        """An operator wants a leader, whatever is lost by it."""
        node = self.cluster.controllers[-1]
        self.cluster.strict = False

        async def elect() -> None:
            assert node.active is not None
            node.active.append(elect_anyway(node.working, self.watch.place))

        self.cluster.until(self.cluster.controller.create_task(elect()).done, PATIENCE_S)
        return []

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    def pass_time(self, time: str) -> list[str]:
        """Let so much time pass."""
        self.cluster.pass_time(seconds(time))
        return []

    def wait(self, condition: str) -> list[str]:
        """Let time pass until something is so."""
        try:
            self.cluster.until(self._condition(condition), WAIT_S)
        except NotReached:
            if self._lenient:
                return ["this does not happen"]
            raise
        return []

    def show(self) -> list[str]:
        """The table."""
        return self.watch.table()

    def _condition(self, text: str) -> Callable[[], object]:
        watch = self.watch
        named = [int(number) for number in re.findall(r"\b\d\b", text)]
        if text == "nobody leads":
            return lambda: watch.state.leader == NO_BROKER and watch.everybody_knows()
        if text == "all agree":
            return self.cluster.converged
        if text == "everything is answered":
            return lambda: not self._waiting
        if text.startswith("the high watermark of "):
            *brokers, wanted = named
            return lambda: all((p := watch.partition(n)) and p.high_watermark == wanted for n in brokers)
        if match := re.fullmatch(r"(.+) ha(?:s|ve) ([a-z ]+|nothing)", text):
            values = [] if match[2] == "nothing" else match[2].split()
            brokers = [int(number) for number in re.findall(r"\d", match[1])]
            return lambda: all(self._values(number) == values for number in brokers)
        return self._condition_of_isr(text, named)

    def _condition_of_isr(self, text: str, named: list[int]) -> Callable[[], object]:
        watch = self.watch
        if text.startswith("isr is "):
            return lambda: sorted(watch.state.isr) == named
        number, *rest = named
        if text.endswith(" leads"):
            return lambda: watch.state.leader == number and watch.everybody_knows()
        if " knows isr " in text:
            return lambda: (led := watch.leadership(number)) and sorted(led.state.isr) == rest
        if " asks for " in text:
            return lambda: (
                (led := watch.leadership(number)) and led.pending and sorted(led.pending.isr) == rest
            )
        assert text.endswith((" is fenced", " is alive")), f"nobody knows how to wait until {text}"
        return lambda: watch.image.brokers[number].fenced == text.endswith("fenced")  # type: ignore[index]

    def _values(self, number: int) -> list[str]:
        alive = self.watch.partition(number) is not None
        return [record.rstrip("0123456789") for record in self.watch.replicas[number].records if alive]


async def ask(address: str, port: int, request: Request, *attachments: Buffer) -> tuple[Reply, Buffer]:
    """One question on a connection of its own."""
    connection = await connect(address, port)
    try:
        return await connection.call(request, *attachments, timeout_ms=2 * ANSWER_MS)
    finally:
        connection.close()


def seconds(text: str) -> float:
    """`2s`, `200ms`."""
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text.removesuffix("s"))


def host_name(who: str) -> str:
    """A host of the cluster, by what transcripts call it."""
    return "c1" if who == "controller" else f"b{who}"


def open_stage(brokers: str, settings: str, *, world: World, lenient: bool, strict: bool) -> Stage:
    """`cluster of 3 brokers, min.insync.replicas=2`."""
    given: dict[str, Any] = dict(entry.strip().split("=") for entry in settings.split(",") if entry.strip())
    return Stage(world, int(brokers), given, lenient=lenient, strict=strict)


def new_world() -> World:
    """A world in which the same story is always the same."""
    return World(SEED, conditions=EVEN)
