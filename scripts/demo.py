"""What tidelog does, on a terminal, in under a minute: a cluster of real processes whose leader is killed in mid-stream.

Run by scripts/demo. Three controllers and three brokers are started as processes, records are written with acks=all
while the leader of a partition gets SIGKILL, everything is read back and compared record by record, the files that
replication lives by are shown, and Spark reads the topic. The verdict is red, and the exit code 1, if anything that was
acknowledged is missing, changed or there twice. It ends by itself and leaves no process and no file.
"""

import argparse
import asyncio
import json
import os
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import tidelog
from tidelog.cli.terminal import ended_with_its_reader
from tidelog.protocol.errors import TidelogError
from tidelog.testing import Cluster

TOPIC: Final = "orders"
PARTITIONS: Final = 3
BROKERS: Final = 3
CONTROLLERS: Final = 3
STREAM_S: Final = 1.0
"""How long records are written before the leader is killed, and after the next one leads."""
BATCH: Final = 50
TOWNS: Final = (b"Bergen", b"Lisbon", b"Naples", b"Riga")
COLUMNS: Final = 80
_VALUE: Final = struct.Struct(">IQ")


# ── what was written, and what is there ───────────────────────────────────────────────────────────────


class Acknowledged(NamedTuple):
    """Records that the cluster has promised to keep: consecutive numbers at consecutive offsets."""

    partition: int
    offset: int
    number: int
    records: int


class Verdict(NamedTuple):
    """Whether the promise was kept, in a line."""

    kept: bool
    line: str


def value(partition: int, number: int) -> bytes:
    """The record with that number."""
    return _VALUE.pack(partition, number) + TOWNS[number % len(TOWNS)]


def verdict(acknowledged: Sequence[Acknowledged], found: dict[tuple[int, int], bytes]) -> Verdict:
    """Compare what was acknowledged with what is there: each once, byte for byte."""
    wrong: Counter[str] = Counter()
    promised: set[tuple[int, int]] = set()
    for partition, offset, first, count in acknowledged:
        for step in range(count):
            place = partition, offset + step
            if place in promised:
                wrong["at one place"] += 1
            promised.add(place)
            there = found.get(place)
            if there is None:
                wrong["missing"] += 1
            elif there != value(partition, first + step):
                wrong["changed"] += 1
    repeated = len(found) - len(set(found.values()))
    if repeated:
        wrong["there twice"] += repeated
    if wrong:
        faults = ", ".join(f"{count:,} {what}" for what, count in wrong.items())
        return Verdict(kept=False, line=f"LOST  of {len(promised):,} acknowledged records: {faults}")
    return Verdict(kept=True, line=f"KEPT  {len(promised):,} acknowledged records: each once, byte for byte")


# ── the screen ────────────────────────────────────────────────────────────────────────────────────────


class Screen:
    """Steps with numbers, and lines below them; colour only where somebody looks."""

    def __init__(self) -> None:
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._step = 0

    def step(self, title: str) -> None:
        """Begin the next part."""
        self._step += 1
        print(f"\n{self._painted(f'{self._step}  {title}', '1')}", flush=True)

    def say(self, line: str = "") -> None:
        """A line of it."""
        print(f"   {line}".rstrip(), flush=True)

    def judge(self, judged: Verdict) -> None:
        """Green or red."""
        print(f"   {self._painted(judged.line, '32' if judged.kept else '1;31')}", flush=True)

    def _painted(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


# ── the story ─────────────────────────────────────────────────────────────────────────────────────────


class Stream:
    """A producer that writes on and on, and remembers what it was promised."""

    def __init__(self, producer: Any) -> None:
        self.acknowledged: list[Acknowledged] = []
        self._producer = producer
        self._next = [0] * PARTITIONS
        self._stop = asyncio.Event()

    @property
    def count(self) -> int:
        """Records that were acknowledged."""
        return sum(each.records for each in self.acknowledged)

    async def run(self, seconds: float) -> None:
        """Write to every partition for a while."""
        self._stop.clear()
        async with asyncio.TaskGroup() as group:
            for partition in range(PARTITIONS):
                group.create_task(self._write(partition))
            await asyncio.sleep(seconds)
            self._stop.set()

    async def _write(self, partition: int) -> None:
        while not self._stop.is_set():
            await self.write(partition)
            await asyncio.sleep(0.001)

    async def write(self, partition: int) -> None:
        """Some more records, until they are acknowledged."""
        first = self._next[partition]
        self._next[partition] += BATCH
        values = [value(partition, first + step) for step in range(BATCH)]
        landed = await self._producer.send_many(TOPIC, values, partition=partition)
        for run in landed.runs:
            self.acknowledged.append(Acknowledged(partition, run.offset, first + run.first, run.count))


async def story(screen: Screen, directory: Path, *, spark: bool) -> bool:
    """All of it; whether every promise was kept."""
    screen.step("Start a cluster")
    async with Cluster(BROKERS, CONTROLLERS, processes=True, directory=directory) as cluster:
        for name, node in cluster.nodes.items():
            kind = "broker" if name[0] == "b" else "controller"
            process = node.process  # type: ignore[attr-defined]
            screen.say(f"{kind} {name[1:]}  127.0.0.1:{node.spec.port}  process {process.pid}")
        screen.say(f"ready after {cluster.ready_s:.1f} s")
        async with cluster.client() as client:
            kept, victim = await _lose_a_leader(screen, cluster, client)
            await cluster.stop(victim)
            _show_files(screen, directory, victim)
            await cluster.start(victim)
            if spark:
                kept = await _ask_spark(screen, cluster, client) and kept
    return kept


async def _lose_a_leader(screen: Screen, cluster: Cluster, client: Any) -> tuple[bool, int]:
    """Whether nothing else was lost, and which broker it was."""
    screen.step(f"Write to {TOPIC}: {PARTITIONS} partitions, 3 replicas each, acks=all")
    await client.admin.create_topics(tidelog.NewTopic(TOPIC, PARTITIONS, BROKERS))
    async with client.producer() as producer:
        stream = Stream(producer)
        await stream.run(STREAM_S)
        screen.say(f"{stream.count:,} records acknowledged")

        screen.step("Kill the leader of partition 0 in mid-stream (SIGKILL)")
        before = await _partition(client)
        writing = asyncio.create_task(stream.run(STREAM_S * 2))
        await asyncio.sleep(STREAM_S / 2)
        began = time.perf_counter()
        await cluster.kill(before.leader)
        await stream.write(0)
        took_ms = (time.perf_counter() - began) * 1000
        await writing
        after = await _partition(client)
        screen.say(
            f"broker {before.leader} led partition 0 in epoch {before.leader_epoch}, in sync {', '.join(map(str, before.isr))}"
        )
        screen.say(
            f"broker {after.leader} leads it in epoch {after.leader_epoch}, elected from those in sync"
        )
        screen.say(f"next write acknowledged {took_ms:.0f} ms after the kill")
        await cluster.restart(before.leader)
        await _whole(client)
        screen.say(
            f"broker {before.leader} is back and in sync; {stream.count:,} records acknowledged in all"
        )

    screen.step("Read everything back")
    found = await _read_all(client)
    judged = verdict(stream.acknowledged, found)
    screen.judge(judged)
    return judged.kept, before.leader


async def _partition(client: Any) -> Any:
    (topic,) = await client.admin.describe_topics(TOPIC)
    return topic.partitions[0]


async def _whole(client: Any) -> None:
    """Until every replica is in sync again."""
    try:
        async with asyncio.timeout(30):
            while True:
                (topic,) = await client.admin.describe_topics(TOPIC)
                if all(len(each.isr) == len(each.replicas) for each in topic.partitions):
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise TimeoutError(f"not every replica of {TOPIC} is in sync again after 30 s") from None


async def _read_all(client: Any) -> dict[tuple[int, int], bytes]:
    """Every record by its place."""
    found: dict[tuple[int, int], bytes] = {}
    async with client.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
        ends = await consumer.end_offsets(sorted(consumer.assignment()))
        left = {place for place, end in ends.items() if end}
        while left:
            async for batch in consumer.batches(timeout=10):
                places = ((batch.partition, offset) for offset in batch.offsets)
                found.update(zip(places, (data or b"" for data in batch.values), strict=True))
                left = {place for place in left if await consumer.position(place) < ends[place]}
                if not left:
                    break
            else:
                break  # nothing came for ten seconds: what is missing, the verdict tells
    return found


def _show_files(screen: Screen, directory: Path, broker: int) -> None:
    screen.step(f"Stop broker {broker} in order, and look at its disk")
    home = directory / f"broker-{broker}"
    watermarks = (home / "replication-offset-checkpoint").read_text(encoding="utf-8").splitlines()
    marks = [line.split() for line in watermarks if line.startswith(TOPIC)]
    upto = ", ".join(f"{partition} up to {offset}" for _, partition, offset in marks)
    screen.say(f"replication-offset-checkpoint  {upto}")
    epochs = (home / f"{TOPIC}-0" / "leader-epoch-checkpoint").read_text(encoding="utf-8").splitlines()
    pairs = [line.split() for line in epochs if len(line.split()) == 2 and line[0].isdigit()]
    began = ", ".join(f"epoch {epoch} from {offset}" for epoch, offset in pairs)
    screen.say(f"{TOPIC}-0/leader-epoch-checkpoint  {began}")
    for segment in sorted((home / f"{TOPIC}-0").glob("*.log")):
        screen.say(f"{TOPIC}-0/{segment.name}  {segment.stat().st_size:,} bytes")


# ── Spark ─────────────────────────────────────────────────────────────────────────────────────────────


async def _ask_spark(screen: Screen, cluster: Cluster, client: Any) -> bool:
    screen.step("Read it into a Spark DataFrame")
    began = time.perf_counter()
    ends = await client.admin.list_offsets(TOPIC)
    committed = sum(end.offset for end in ends.values())
    # A process of its own: Spark writes to whatever terminal it finds. And a session of its own: a JVM does not hear Ctrl-C,
    # and one whose Python does while it starts may wait for ever, with our end of its output.
    words = [sys.executable, __file__, "--ask-spark", cluster.bootstrap]
    asked = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        out, err = await asked.communicate()
    finally:
        # Nobody else ends it, nor a JVM that it has left.
        with suppress(ProcessLookupError):
            os.killpg(asked.pid, signal.SIGKILL)
        await asked.wait()
    if asked.returncode:
        screen.say(err.decode(errors="backslashreplace")[-2000:])
        screen.judge(Verdict(kept=False, line="LOST  Spark did not answer"))
        return False
    told: dict[str, int] = json.loads(out.splitlines()[-1])
    screen.say(f'rows = read_topic(spark, "{TOPIC}", "{cluster.bootstrap.split(",")[0]}")')
    screen.say('town = expr("substring(value, 13)").cast("string").alias("town")')
    screen.say("rows.groupBy(town).count()")
    for town, count in sorted(told.items()):
        screen.say(f"    {town:8} {count:>9,}")
    total = sum(told.values())
    same = bool(total == committed)
    line = f"{total:,} rows, {committed:,} records are committed, {time.perf_counter() - began:.0f} s"
    screen.judge(Verdict(kept=same, line=f"{'KEPT' if same else 'LOST'}  {line}"))
    return same


def ask_spark(bootstrap: str) -> None:
    """In the process of its own: the aggregation, as a line of JSON."""
    from pyspark.sql.functions import expr  # noqa: PLC0415 -- only here

    from tidelog.spark import local_session, read_topic  # noqa: PLC0415 -- only here

    spark = local_session(2, "demo", settings={"spark.ui.showConsoleProgress": "false"}, quick=True)
    spark.sparkContext.setLogLevel("ERROR")
    town = expr("substring(value, 13)").cast("string").alias("town")
    rows = read_topic(spark, TOPIC, bootstrap).groupBy(town).count().collect()
    print(json.dumps({row["town"]: row["count"] for row in rows}), flush=True)
    spark.stop()


@contextmanager
def _room() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tidelog-demo-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


class Stop:
    """What a signal asks for: that the story ends, and with that number.

    An exception would be lost where it is raised in a destructor or a callback of the interpreter: nobody hears those.
    """

    def __init__(self) -> None:
        self.code = 0
        """The exit code; 0: nobody has asked."""
        self._end: Callable[[], object] = lambda: None

    def on(self, number: int, _frame: object) -> None:
        """A handler of signals. The first one counts: what it ends is given the time to end its processes."""
        if not self.code:
            self.code = 128 + number
            self._end()

    async def unless(self, works: Coroutine[Any, Any, bool]) -> bool:
        """Do that, unless it is asked for before the end."""
        loop, task = asyncio.get_running_loop(), asyncio.create_task(works)
        self._end = lambda: loop.call_soon_threadsafe(task.cancel)  # wakes a loop that waits
        if self.code:
            task.cancel()
        try:
            return await task
        finally:
            self._end = lambda: None


def _first(error: BaseException) -> BaseException:
    """What went wrong where several things at once have failed."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def main() -> int:
    """Tell the story; 0 if every promise was kept."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description="See a cluster lose its leader, and nothing else."
    )
    parser.add_argument("--no-spark", action="store_true", help="leave out the DataFrame")
    parser.add_argument("--ask-spark", metavar="BOOTSTRAP", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.ask_spark:
        ask_spark(asked.ask_spark)
        return 0
    # A stop is a stop, and what was made is removed.
    stop = Stop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop.on)
    screen, began = Screen(), time.perf_counter()
    kept, failed = False, 0
    try:
        with _room() as directory:
            kept = asyncio.run(stop.unless(story(screen, directory, spark=not asked.no_spark)))
    except* asyncio.CancelledError:
        if not stop.code:
            raise
    except* KeyboardInterrupt:
        print("\ninterrupted: everything was stopped", file=sys.stderr)
        failed = 130
    except* (TidelogError, TimeoutError) as errors:
        print(f"scripts/demo: {_first(errors)}", file=sys.stderr)
        failed = 1
    if failed or stop.code:
        return stop.code or failed
    screen.say()
    screen.say(f"{time.perf_counter() - began:.0f} s in all; nothing is left running. Try it yourself:")
    screen.say("  . .venv/bin/activate && tidelog up")
    return 0 if kept else 1


if __name__ == "__main__":
    with ended_with_its_reader():
        sys.exit(main())
