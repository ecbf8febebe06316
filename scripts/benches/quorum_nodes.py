"""The processes of the bench `controllers`: one controller, or the brokers that follow it, each on its own loop.

    python -m scripts.benches.quorum_nodes controller '{"node_id": 1, "voters": [[1, "127.0.0.1", 4711]], ...}'
    python -m scripts.benches.quorum_nodes brokers '{"voters": [...], "directory": ..., "partitions": ...}'

A line of JSON on stdin is a command, a line on stdout its answer; the process ends with its stdin, so that nothing
outlives the bench. A stall is seen by the loop itself: how late a timer was, and how long the loop's own thread
computed in one go, which is what is left of it on a machine with nobody else.
"""

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from tidelog.controller.config import ControllerConfig
from tidelog.controller.controller import Controller
from tidelog.controller.facts import METADATA, METADATA_TOPIC_ID
from tidelog.controller.image import Changes
from tidelog.controller.observer import Build, Observer
from tidelog.controller.snapshots import SnapshotConfig
from tidelog.protocol.errors import InvalidRequest, TidelogError
from tidelog.protocol.io import Incoming, StallMeter, listen, run
from tidelog.protocol.messages import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    CreateTopics,
    CreateTopicsReply,
    Hello,
    NewTopic,
    RegisterBroker,
    RegisterBrokerReply,
    Reply,
    Welcome,
)
from tidelog.protocol.types import NO_EPOCH, BrokerId, Epoch
from tidelog.replication.breathing import breathing
from tidelog.storage.config import LogConfig
from tidelog.storage.crashes import Life
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.io import MachineClock, open_directory, real_environment
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.works import take_here

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
EVERY_MS = 5
"""How often a loop looks whether it was held up: it is not idle, so finer than the product does."""
PATIENCE_MS = 60_000
BEAT_S = 1.0
POLL_S = 0.005


class Busy:
    """How long the loop's thread computed between two turns: a stall without what others had of the machine."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._before = time.thread_time()

    def start(self) -> None:
        """Begin to measure the running loop."""
        now = time.thread_time()
        self.longest_ms = max(self.longest_ms, (now - self._before) * 1000 - EVERY_MS)
        self._before = now
        asyncio.get_running_loop().call_later(EVERY_MS / 1000, self.start)

    def reset(self) -> float:
        """The longest so far, and begin anew."""
        longest, self.longest_ms = self.longest_ms, 0.0
        return max(longest, 0.0)


class Meters:
    """What a process says of itself."""

    def __init__(self) -> None:
        self._stall = StallMeter(EVERY_MS)
        self._busy = Busy()

    def start(self) -> None:
        """Before anything is done."""
        self._stall.start()
        self._busy.start()

    def read(self) -> dict[str, Any]:
        """CPU seconds since the process began, and the stalls since they were last read."""
        return {"cpu": time.process_time(), "stall": self._stall.reset(), "busy": self._busy.reset()}


async def _holds(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 -- the product tells nobody, and a few looks cost nothing
        await asyncio.sleep(POLL_S)


def _halt(what: str, error: object = None) -> NoReturn:
    print(f"halted: {what} {error or ''}", file=sys.stderr)
    os._exit(70)


# ── a controller ──────────────────────────────────────────────────────────────────────────────────────


class ControllerNode:
    """One controller, as a process of the product would run it."""

    def __init__(self, options: dict[str, Any]) -> None:
        number = options["node_id"]
        voters = tuple((int(voter), str(host), int(port)) for voter, host, port in options["voters"])
        port = next(port for voter, _, port in voters if voter == number)
        environment = real_environment(open_directory(options["directory"], create=True), _halt)
        config = ControllerConfig(node_id=BrokerId(number), voters=voters, host=HOST, port=port)
        self.node = Controller(config, environment)
        self._ready = asyncio.Event()

    async def begin(self) -> None:
        """Serve until cancelled."""
        await self.node.run(self._ready.set)

    def about(self) -> dict[str, Any]:
        """What is known here."""
        node = self.node
        if not self._ready.is_set():
            return {"active": False, "committed": 0}
        return {"active": node.active is not None, "committed": node.metadata.committed_end}

    async def until(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Until so much is committed here."""
        await self._ready.wait()
        await _holds(lambda: self.node.metadata.committed_end >= asked["committed"])
        return {}

    async def snapshot(self, _asked: dict[str, Any]) -> dict[str, Any]:
        """Take one as the node itself does when so much is new: the bench says that one byte is."""
        archive = self.node._archive  # noqa: SLF001 -- nothing of the product asks for one at a time of its own
        usual = archive._config  # noqa: SLF001 -- as above
        archive._config = SnapshotConfig(metadata_log_max_record_bytes_between_snapshots=1)  # noqa: SLF001
        try:
            await breathing(self.node.metadata.fold())
            assert await archive.take_if_due(self.node.metadata.committed)
        finally:
            archive._config = usual  # noqa: SLF001
        return {"fenced": list(self.node.fenced_fast)}


# ── brokers ───────────────────────────────────────────────────────────────────────────────────────────


class Follower:
    """A broker as controllers know it: it registers, sends heartbeats and follows the log; it holds nothing."""

    def __init__(self, number: int, voters: list[list[Any]], path: Path, moved: asyncio.Event) -> None:
        self.number = BrokerId(number)
        self.epoch: Epoch = NO_EPOCH
        root = open_directory(str(path), create=True)
        self._disk, self._process = os.urandom(16), os.urandom(16)
        life = Life.begin(
            root,
            directory_id=self._disk,
            incarnation_id=self._process,
            boot_id="bench",
            has_partitions=False,
        )
        self._data = DataDirectory(
            root, life, LogConfig(), OpenSegments(), halt=_halt, new_guard=threading.Lock
        )
        take_here(self._data.open(0))
        self.observer = Observer(
            {BrokerId(voter): (host, port) for voter, host, port in voters},
            self._data.create(METADATA, METADATA_TOPIC_ID, 0),
            0,
            self._on_batch,
            wall_ms=MachineClock().wall_ms,
            rng=Random(number),
            broker_id=self.number,
        )
        self.batches = 0
        self._moved = moved
        self._tasks: list[asyncio.Task[None]] = []

    def _on_batch(self, _changes: Changes) -> None:
        self.batches += 1
        self._moved.set()

    async def begin(self) -> None:
        """Be registered and alive."""
        self._listener = await listen(HOST, 0, _serve)
        self._tasks.append(asyncio.create_task(self.observer.run()))
        reply = await self._ask(
            lambda epoch: RegisterBroker(
                self.number, epoch, self._process, self._disk, HOST, self._listener.port
            )
        )
        assert isinstance(reply, RegisterBrokerReply), reply
        assert not reply.error, reply
        self.epoch = reply.broker_epoch
        while await self.beat():  # noqa: ASYNC110 -- as brokers do until they have caught up
            await asyncio.sleep(POLL_S)
        self._tasks.append(asyncio.create_task(self._beats()))

    async def beat(self) -> bool:
        """One heartbeat; whether this broker is fenced."""
        reply = await self._ask(
            lambda epoch: BrokerHeartbeat(self.number, self.epoch, epoch, self.observer.caught_up_to)
        )
        assert isinstance(reply, BrokerHeartbeatReply), reply
        assert not reply.error, reply
        return reply.fenced

    async def _beats(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self.beat()
            except TidelogError as error:
                logger.info("no heartbeat: %s", error)

    async def create(self, name: str, partitions: int) -> None:
        """A topic with three replicas of each partition."""
        topic = NewTopic(name, partitions, 3)
        reply = await self._ask(lambda epoch: CreateTopics((topic,), quorum_epoch=epoch))
        assert isinstance(reply, CreateTopicsReply), reply
        assert not any(each.error for each in reply.topics), reply

    async def _ask(self, build: Build) -> Reply:
        return await self.observer.call(build, PATIENCE_MS)

    def die(self) -> None:
        """Its port refuses, and then its connections end, as when a process is killed."""
        self._listener.close()
        for task in self._tasks:
            task.cancel()


def _serve(request: Incoming) -> None:
    """A broker that answers so much that it is not thought dead."""
    if not isinstance(request.message, Hello):
        raise InvalidRequest("this broker only follows")
    request.reply(Welcome())


class BrokersNode:
    """All brokers of the bench, in one process."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._moved = asyncio.Event()
        directory = Path(options["directory"])
        self._all = [
            Follower(number, options["voters"], directory / f"broker-{number}", self._moved)
            for number in (1, 2, 3)
        ]

    async def begin(self) -> None:
        """Nothing happens by itself."""

    def about(self) -> dict[str, Any]:
        """What all of them know."""
        return {"committed": min(each.observer.caught_up_to for each in self._all)}

    async def join(self, _asked: dict[str, Any]) -> dict[str, Any]:
        """All register, and each knows that all are alive."""
        await asyncio.gather(*(each.begin() for each in self._all))
        await self._until(lambda each: sum(not b.fenced for b in each.observer.image.brokers.values()) == 3)
        return {}

    async def create(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Topics, all asked for at once, until everybody has all of their partitions."""
        began = time.perf_counter()
        topics, each = asked["topics"], asked["partitions"]
        await asyncio.gather(*(self._all[0].create(f"topic-{n}", each) for n in range(topics)))
        await self._until(lambda member: len(member.observer.image.partitions) == topics * each)
        return {"wall": time.perf_counter() - began}

    async def die(self, _asked: dict[str, Any]) -> dict[str, Any]:
        """The last one dies; until everybody else knows who leads instead of it wherever it led."""
        dead = self._all.pop()
        led = _led_by(dead.number, self._all[0])
        began = time.perf_counter()
        dead.die()
        await self._until(lambda member: member.observer.image.brokers[dead.number].fenced)
        wall = time.perf_counter() - began
        assert not any(_led_by(dead.number, member) for member in self._all)
        assert all(not member.observer.image.indexes.leaderless for member in self._all)
        return {"wall": wall, "led": led}

    async def served(self, _asked: dict[str, Any]) -> dict[str, Any]:
        """A heartbeat of everybody is answered."""
        await asyncio.gather(*(each.beat() for each in self._all))
        return {}

    async def _until(self, holds: Callable[[Follower], bool]) -> None:
        while not all(holds(each) for each in self._all):
            self._moved.clear()
            await self._moved.wait()


def _led_by(number: BrokerId, member: Follower) -> int:
    return sum(state.leader == number for state in member.observer.image.partitions.values())


# ── a process ─────────────────────────────────────────────────────────────────────────────────────────


def _ended(begun: "asyncio.Task[None]") -> None:
    if not begun.cancelled() and (error := begun.exception()) is not None:
        _halt("the node has ended", repr(error))


async def _live(kind: str, options: dict[str, Any]) -> NoReturn:
    """Answer command after command until stdin ends or the node does."""
    meters = Meters()
    meters.start()
    node = ControllerNode(options) if kind == "controller" else BrokersNode(options)
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop, rest = asyncio.get_running_loop(), b""

    def hear() -> None:
        nonlocal rest
        data = os.read(0, 1 << 16)
        *whole, rest = (rest + data).split(b"\n")
        if not data:
            os._exit(0)  # as when a process is killed
        for line in whole:
            lines.put_nowait(line.decode())

    loop.add_reader(0, hear)
    begun = asyncio.create_task(node.begin())
    begun.add_done_callback(_ended)
    while True:
        asked = json.loads(await lines.get())
        name = asked.pop("do")
        answer = {} if name == "report" else await getattr(node, name)(asked)
        print(json.dumps(answer | meters.read() | node.about()), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    run(_live(sys.argv[1], json.loads(sys.argv[2])))
