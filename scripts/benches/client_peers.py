"""Kafka's Python clients at the same work, each in a process of its own: confluent-kafka and aiokafka.

    client_peers.py mock             librdkafka's mock cluster, until stdin ends; prints its address
    client_peers.py measure ADDRESS COUNT
                                     prints readings as JSON: thousands of records a second, CPU microseconds per record

They come with the bench extra; `TIDELOG_BENCH_PEERS` names another interpreter that has them. The mock cluster keeps what
comes in memory, some 5 MB of a partition, and acknowledges at once: no disk, no replicas.
"""

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOPIC = "bench"
VALUE = b"x" * 100


def interpreter() -> str | None:
    """Who has both of them; None: nobody."""
    other = os.environ.get("TIDELOG_BENCH_PEERS")
    if other:
        return other
    both = ("confluent_kafka", "aiokafka")
    return sys.executable if all(importlib.util.find_spec(name) for name in both) else None


@contextmanager
def mock(python: str) -> Iterator[str]:
    """A mock cluster in a process of its own: its address."""
    command = [python, str(Path(__file__)), "mock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            if not address:
                raise RuntimeError("librdkafka's mock cluster has not begun; why, it says above")
            yield address
        finally:
            process.stdin.close()


def measure(python: str, address: str, count: int) -> dict[str, float]:
    """One round of all of them."""
    command = [python, str(Path(__file__)), "measure", address, str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return {str(name): float(value) for name, value in json.loads(done.stdout).items()}


# ── in their own processes ────────────────────────────────────────────────────────────────────────────


def _hold() -> None:
    from confluent_kafka import Producer  # noqa: PLC0415

    holder = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none", "log_level": 0})
    brokers = holder.list_topics(timeout=10).brokers.values()
    print(",".join(f"{broker.host}:{broker.port}" for broker in brokers), flush=True)
    sys.stdin.read()


def _timed(name: str, work: Callable[[], int]) -> dict[str, float]:
    cpu, began = time.process_time(), time.perf_counter()
    count = work()
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {name: count / wall / 1000, f"{name} cpu": cpu / count * 1e6}


def _confluent(address: str, count: int) -> dict[str, float]:
    from confluent_kafka import Producer  # noqa: PLC0415

    quiet = {"bootstrap.servers": address, "log_level": 0}
    producer = Producer({**quiet, "linger.ms": 5, "acks": "all", "queue.buffering.max.messages": 10_000_000})
    producer.list_topics(TOPIC, timeout=10)
    acknowledged = 0

    def told(error: object, _message: object) -> None:
        nonlocal acknowledged
        assert error is None, error
        acknowledged += 1

    def produce() -> int:
        for at in range(count):
            producer.produce(TOPIC, VALUE, on_delivery=told)
            if not at % 1000:
                producer.poll(0)
        producer.flush()
        assert acknowledged == count
        return count

    def produce_batch() -> int:
        messages = [{"value": VALUE} for _ in range(10_000)]
        for _ in range(count // len(messages)):
            producer.produce_batch(TOPIC, messages)
        producer.flush()
        return count // len(messages) * len(messages)

    readings = _timed("produce", produce) | _timed("produce_batch", produce_batch)
    partitions = list(producer.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions)
    return readings | _confluent_reads(quiet, partitions)


def _confluent_reads(quiet: dict[str, Any], partitions: list[int]) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415

    readings: dict[str, float] = {}
    for name in ("consume", "poll"):
        consumer = Consumer({**quiet, "group.id": name, "auto.offset.reset": "earliest"})
        ranges = [consumer.get_watermark_offsets(TopicPartition(TOPIC, at), timeout=10) for at in partitions]
        consumer.assign(
            [TopicPartition(TOPIC, at, low) for at, (low, _) in zip(partitions, ranges, strict=True)]
        )
        left = sum(high - low for low, high in ranges) - len(consumer.consume(1, 10))

        def consume(consumer: Any = consumer, left: int = left) -> int:
            count = 0
            while count < left:
                count += sum(
                    len(one.value()) == len(VALUE) for one in consumer.consume(min(10_000, left - count), 1.0)
                )
            return count

        def poll(consumer: Any = consumer, left: int = left) -> int:
            count = 0
            while count < left:
                one = consumer.poll(1.0)
                count += one is not None and len(one.value()) == len(VALUE)
            return count

        readings |= _timed(name, consume if name == "consume" else poll)
        consumer.close()
    return readings


async def _aiokafka(address: str, count: int) -> dict[str, float]:
    import aiokafka  # noqa: PLC0415

    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, linger_ms=5, acks="all")
    await producer.start()
    partitions = await producer.partitions_for(TOPIC)
    cpu, began = time.process_time(), time.perf_counter()
    for _ in range(count):
        await producer.send(TOPIC, VALUE)
    await producer.flush()
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    await producer.stop()
    readings = {"aio send": count / wall / 1000, "aio send cpu": cpu / count * 1e6}

    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address)
    await consumer.start()
    where = [aiokafka.TopicPartition(TOPIC, at) for at in partitions]
    consumer.assign(where)
    begin, end = await consumer.beginning_offsets(where), await consumer.end_offsets(where)
    for one in where:
        consumer.seek(one, begin[one])
    left = sum(end[one] - begin[one] for one in where) - 1
    await consumer.getone()
    cpu, began, got = time.process_time(), time.perf_counter(), 0
    async for record in consumer:
        got += len(record.value) == len(VALUE)
        if got == left:
            break
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    await consumer.stop()
    return readings | {"aio for": got / wall / 1000, "aio for cpu": cpu / got * 1e6}


def _main(arguments: list[str]) -> None:
    if arguments[0] == "mock":
        _hold()
        return
    address, count = arguments[1], int(arguments[2])
    readings = _confluent(address, count)
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        run = asyncio.run
    else:
        run = uvloop.run
    print(json.dumps(readings | run(_aiokafka(address, count // 5))))


if __name__ == "__main__":
    _main(sys.argv[1:])
