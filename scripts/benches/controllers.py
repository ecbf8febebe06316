"""Ten thousand partitions through real controllers: made, led anew when a broker dies, and loaded from a snapshot.

Each controller is a process with its own disk directory and its own port (`quorum_nodes`); one more process has
three brokers that register, send heartbeats and follow the metadata log. What is measured is what controllers spend:
CPU time of their processes, worker threads included, and how long their loops were held up.

    create      from the first CreateTopics until all three brokers have every partition, and every controller
    death       a broker's port refuses and its connections end, until nobody's image has it lead anything
    snapshot    every controller takes one of what is committed
    start       all controllers are killed and started, until brokers are served: imports, load, election

Every size is divided into ten topics, all asked for at once, with three replicas of each partition.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings

from tidelog.controller.facts import Fact, PartitionCreated
from tidelog.protocol.types import BrokerId
from tidelog.testing.ports import HOST, HeldPort

ROOT = Path(__file__).resolve().parents[2]
QUORUMS = (1, 3, 5)
SIZES = (100, 1000, 10_000)
TOPICS = 10
PHASES = ("create", "death", "snapshot", "start")


class Node:
    """A process of the bench."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        self._command = [sys.executable, "-m", "scripts.benches.quorum_nodes", kind, json.dumps(options)]
        self.start()

    def start(self) -> None:
        """A new process: nothing of an earlier one is left but what it wrote."""
        self.cpu = 0.0
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C is for the bench, which ends its processes
        )

    def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        self._process.kill()
        self._process.communicate()

    def tell(self, command: str, **about: Any) -> None:
        """Ask, and take the answer later."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **about}) + "\n")
        self._process.stdin.flush()

    def heard(self) -> dict[str, Any]:
        """The next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process of this bench has ended; why, it says above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: str, **about: Any) -> dict[str, Any]:
        """The answer."""
        self.tell(command, **about)
        return self.heard()


class Cluster:
    """A quorum and its brokers, for one life."""

    def __init__(self, stack: ExitStack, path: Path, quorum: int) -> None:
        held = [stack.enter_context(closing(HeldPort())) for _ in range(quorum)]
        voters = [(number, HOST, port.number) for number, port in enumerate(held, 1)]
        self.controllers: list[Node] = []
        for number, _, _ in voters:
            options = {"node_id": number, "voters": voters, "directory": str(path / f"controller-{number}")}
            self.controllers.append(Node("controller", options))
            stack.callback(self.controllers[-1].kill)
        self.brokers = Node("brokers", {"voters": voters, "directory": str(path)})
        stack.callback(self.brokers.kill)
        self.readings: Readings = {}

    def life(self, partitions: int) -> Readings:
        """All that is measured of so many partitions, by phase."""
        self.brokers.ask("join")
        self._phase("create", self.brokers, topics=TOPICS, partitions=partitions // TOPICS)
        died = self._phase("die", self.brokers, called="death")
        assert died["led"] > 0, died
        self._snapshots()
        self._start()
        return self.readings

    def _phase(self, command: str, node: Node, called: str = "", **about: Any) -> dict[str, Any]:
        self._begin()
        answer = node.ask(command, **about)
        self._end(called or command, answer["wall"], answer["committed"])
        return answer

    def _snapshots(self) -> None:
        self._begin()
        began = time.perf_counter()
        for each in self.controllers:
            each.tell("snapshot")
        fenced = [broker for each in self.controllers for broker in each.heard()["fenced"]]
        assert fenced == [3], f"the death was to be noticed by the port that refuses: {fenced}"
        self._end("snapshot", time.perf_counter() - began, 0)

    def _start(self) -> None:
        for each in self.controllers:
            each.kill()
        began = time.perf_counter()
        for each in self.controllers:
            each.start()
        committed = self.brokers.ask("served")["committed"]
        self._end("start", time.perf_counter() - began, committed)

    def _begin(self) -> None:
        for each in (*self.controllers, self.brokers):
            each.cpu = each.ask("report")["cpu"]

    def _end(self, phase: str, wall: float, committed: int) -> None:
        """Everybody has it; what it took."""
        for each in self.controllers:
            each.tell("until", committed=committed)
        told = [each.heard() for each in self.controllers]
        spent = [answer["cpu"] - each.cpu for each, answer in zip(self.controllers, told, strict=True)]
        leads = [answer["active"] for answer in told]
        assert sum(leads) == 1, f"one controller leads: {told}"
        self.readings |= {
            f"{phase} cpu": spent[leads.index(True)],
            f"{phase} sum": sum(spent),
            f"{phase} wall": wall,
            f"{phase} stall": max(answer["stall"] for answer in told),
            f"{phase} busy": max(0.1, *(answer["busy"] for answer in told)),
        }


def _by_hand(path: Path, partitions: int) -> float:
    """CPU seconds to encode the facts of so many partitions, write and flush them, read and decode them."""
    each = partitions // TOPICS
    brokers = (BrokerId(1), BrokerId(2), BrokerId(3))
    ids = [os.urandom(16) for _ in range(TOPICS)]
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(list[PartitionCreated]).decode
    began = time.process_time()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for topic_id in ids:
            facts: list[Fact] = [
                PartitionCreated(
                    topic_id, index, brokers, brokers, brokers[0], 0, 0, 2, (), (), (), (), -1, False, False
                )
                for index in range(each)
            ]
            data = encode(facts)
            position = os.lseek(fd, 0, os.SEEK_END)
            os.pwrite(fd, data, position)
            os.fdatasync(fd)
            assert len(decode(os.pread(fd, len(data), position))) == each
        return time.process_time() - began
    finally:
        os.close(fd)
        path.unlink()


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    directory = settings.directory / "controllers"
    directory.mkdir()

    def life(quorum: int, partitions: int) -> Readings:
        path = directory / "cluster"
        path.mkdir()
        try:
            with ExitStack() as stack:
                return Cluster(stack, path, quorum).life(partitions)
        finally:
            shutil.rmtree(path)

    def take(_number: int) -> Readings:
        readings: Readings = {}
        for quorum in QUORUMS:
            if settings.quick and quorum > 3:
                readings |= {
                    name.replace("3 ", "5 ", 1): value for name, value in readings.items() if name[0] == "3"
                }
                continue
            lived = life(quorum, 20) if settings.quick else {}
            for size in SIZES:
                lived = lived if settings.quick else life(quorum, size)
                readings |= {f"{quorum} {size} {name}": value for name, value in lived.items()}
        readings["by hand"] = _by_hand(directory / "by-hand", settings.count(SIZES[-1], TOPICS))
        return readings

    try:
        yield take
    finally:
        shutil.rmtree(directory)


_CPU = Goal("figure", False, 2.0, "this bench")
_STALL = Goal("figure", False, 50, "this bench")
_NAMES = {
    "create": "created",
    "death": "led anew when a broker dies",
    "snapshot": "in a snapshot, written",
    "start": "loaded when all are killed and start",
}


def _rows() -> Iterator[Row]:
    small, large = SIZES[0], SIZES[-1]
    for quorum in QUORUMS:
        for phase in PHASES:
            of = f"{quorum}: {large:,} {_NAMES[phase]}"
            now, once = f"{quorum} {large} {phase}", f"{quorum} {small} {phase}"
            yield Row(f"{of}, CPU of the leader", "s", f"{now} cpu", f"{once} cpu", f"{small}", _CPU)
            yield Row("... of 1,000", "s", f"{quorum} 1000 {phase} cpu", f"{once} cpu", f"{small}")
            if quorum > 1:
                yield Row("... of all controllers", "s", f"{now} sum", f"{once} sum", f"{small}", _CPU)
            yield Row("... wall time", "s", f"{now} wall", f"{once} wall", f"{small}")
            yield Row("... longest stall", "ms", f"{now} stall", f"{now} busy", "its loop's own CPU", _STALL)
    yield Row("1: 10,000 created, CPU", "s", f"1 {large} create cpu", "by hand", "encoded, flushed, decoded")


ROWS = tuple(_rows())
BENCH = Bench(
    "controllers",
    "10,000 partitions through quorums of 1, 3 and 5 real controllers (CPU time)",
    ROWS,
    _begin,
    rounds_max=5,
    also_runs=("scripts.benches.quorum_nodes",),
)
