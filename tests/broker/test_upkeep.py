"""The life of a log on real brokers: old segments go everywhere, compacted ones keep what counts (issue: retention)."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack

from tests.broker.node import TOPIC_ID, Node, records
from tidelog.broker.requests.context import Clocks
from tidelog.broker.upkeep import Upkeep, UpkeepSettings
from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client
from tidelog.protocol.batch import build
from tidelog.protocol.errors import DiskFull, InvalidRecord
from tidelog.protocol.records import encode
from tidelog.protocol.types import TopicPartition
from tidelog.replication.followership import StartAt, Wait
from tidelog.storage.config import LogConfig
from tidelog.storage.segment import Segment
from tidelog.testing import Cluster

DEADLINE_S = 30.0
HOUR_MS = 3600 * 1000
YEAR_MS = 365 * 24 * HOUR_MS
SMALL = {"segment.bytes": 4096, "file.delete.delay.ms": 0}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    settings = {"log.retention.check.interval.ms": 100, "flush.ms": 100}
    async with Cluster(3, directory=tmp_path, settings=settings) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with cluster.client() as client:
        yield client


async def until(look: Callable[[], Awaitable[object]], what: str) -> None:
    """Until nothing is in its way any more; a test that waits in vain says what was seen last."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while (seen := await look()) is not None:
        assert loop.time() < deadline, f"waited {DEADLINE_S:g} s in vain until {what}: {seen!r}"
        await asyncio.sleep(0.05)


async def fill(client: Client, topic: str, count: int, keys: int = 0) -> None:
    async with client.producer() as producer:
        for number in range(count):
            key = b"k%d" % (number % keys) if keys else None
            _ = await producer.enqueue(topic, b"%05d" % number + b"." * 100, key=key)
            if number % 20 == 19:
                await producer.flush()


def segments(directory: Path, broker: int, topic: str) -> list[str]:
    return sorted(file.name for file in (directory / f"broker-{broker}" / f"{topic}-0").glob("*.log"))


def size(directory: Path, broker: int, topic: str) -> int:
    found = 0
    for file in (directory / f"broker-{broker}" / f"{topic}-0").glob("*.log"):
        with suppress(FileNotFoundError):  # it has left meanwhile
            found += file.stat().st_size
    return found


async def read(client: Client, topic: str) -> dict[bytes | None, list[int]]:
    """The numbers that each key stands with, from the beginning to the end."""
    found: dict[bytes | None, list[int]] = {}
    async with client.consumer(auto_offset_reset="earliest") as consumer:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        while await consumer.position(place) < end:
            for records in (await consumer.getmany(timeout=1.0)).values():
                for record in records:
                    found.setdefault(record.key, []).append(int((record.value or b"")[:5]))
    return found


@pytest.mark.slow
async def test_what_is_too_much_leaves_the_leader_and_then_the_followers(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    await client.admin.create_topics(NewTopic("t", 1, 3, {**SMALL, "retention.bytes": 10_000}))
    await fill(client, "t", 400)

    async def trimmed() -> object:
        left = [segments(tmp_path, broker, "t") for broker in (1, 2, 3)]
        return left if max(map(len, left)) > 5 else None

    await until(trimmed, "every replica has freed its old segments")
    found = await read(client, "t")
    assert found[None][-1] == 399
    assert found[None] == list(range(found[None][0], 400)), "only the beginning is gone"
    for broker in (1, 2, 3):
        await cluster.restart(broker, clean=False)
    assert (await read(client, "t"))[None][-1] == 399


async def test_a_setting_that_is_changed_holds_at_once(client: Client, tmp_path: Path) -> None:
    await client.admin.create_topics(NewTopic("t", 1, 3, SMALL))
    await fill(client, "t", 200)
    before = segments(tmp_path, 1, "t")
    assert before[0] == "00000000000000000000.log"
    await client.admin.alter_configs("topic", "t", {"retention.ms": 1})

    async def gone() -> object:
        left = [segments(tmp_path, broker, "t") for broker in (1, 2, 3)]
        return left if any(before[0] in each for each in left) else None

    await until(gone, "what is older than a millisecond has left")


@pytest.mark.slow
async def test_what_nobody_writes_to_any_more_is_freed_to_its_last_byte_on_every_replica(
    client: Client, tmp_path: Path
) -> None:
    """Trimmed, or too old: also the newest segment, which has room for another gigabyte."""
    quick = {"file.delete.delay.ms": 0}
    await client.admin.create_topics(NewTopic("trimmed", 1, 3, quick), NewTopic("old", 1, 3, quick))
    for topic in ("trimmed", "old"):
        await fill(client, topic, 40)
    trimmed = TopicPartition("trimmed", 0)
    assert await client.admin.delete_records({trimmed: -1}) == {trimmed: 40}
    await client.admin.alter_configs("topic", "old", {"retention.ms": 1})

    async def freed() -> object:
        left = {
            topic: [size(tmp_path, broker, topic) for broker in (1, 2, 3)] for topic in ("trimmed", "old")
        }
        return left if any(map(sum, left.values())) else None

    await until(freed, "every replica has freed all that is deleted")
    async with client.producer() as producer:
        assert (await producer.send("trimmed", b"v")).offset == 40


@pytest.mark.slow
async def test_the_last_value_of_every_key_stays_on_every_replica(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    compacted: dict[str, str | int] = {
        **SMALL,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0,
        "segment.ms": 1000,
    }
    await client.admin.create_topics(NewTopic("t", 1, 3, compacted))
    await fill(client, "t", 600, keys=7)
    newest = {b"k%d" % key: max(range(key, 600, 7)) for key in range(7)}

    async def small() -> object:
        sizes = [size(tmp_path, broker, "t") for broker in (1, 2, 3)]
        return sizes if max(sizes) > 20_000 else None

    await until(small, "every replica has compacted its log")
    for broker in (1, 2, 3):
        found = await read(client, "t")
        assert {key: numbers[-1] for key, numbers in found.items()} == newest
        assert sum(map(len, found.values())) < 300, "most of the others are gone"
        await cluster.restart(broker, clean=False)
    await fill(client, "t", 7, keys=7)
    assert {numbers[-1] for numbers in (await read(client, "t")).values()} == set(range(7))


async def test_a_record_of_a_compacted_topic_has_a_key(client: Client) -> None:
    await client.admin.create_topics(NewTopic("t", 1, 3, {"cleanup.policy": "compact"}))
    async with client.producer() as producer:
        with pytest.raises(InvalidRecord, match="t-0 is compacted: every record needs a key"):
            await producer.send("t", b"v")
        assert (await producer.send("t", b"v", key=b"k")).offset == 0


def many(count: int) -> tuple[Node, Upkeep]:
    """A broker with so many compacted logs, each of them dirty, and little memory for keys."""
    config = LogConfig(
        segment_bytes=1024,
        index_interval_bytes=256,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0.01,
    )
    node = Node(config=config)
    for index in range(count):
        place = TOPIC_ID, index
        node.lead(place=place)
        for number in range(60):
            keys = [b"%d" % number, b"same"]
            node.produce(bytes(encode([b"x" * 50] * 2, keys, now_ms=0)), acks=1, place=place)
        for follower in (2, 3):
            node.fetched(follower, 120, place=place)
        node.replicas.partitions[place].log.flush()
    node.data.write_recovery_points().run()

    async def saved() -> bool:
        return True

    settings = UpkeepSettings(compaction_memory_bytes=600)
    return node, Upkeep(node.replicas, node.context.clocks, settings, save_log_starts=saved)


async def test_a_log_whose_keys_do_not_fit_is_compacted_to_its_end_in_one_look() -> None:
    node, upkeep = many(1)
    await upkeep._compact()
    log = node.partition.log
    assert log.first_dirty == log.segments[-1].base_offset
    assert upkeep.compactions > 2, "it took several passes"


async def test_a_batch_that_nobody_can_read_and_that_was_taken_before_ends_no_compaction() -> None:
    node = Node(config=LogConfig(segment_bytes=1024))
    node.lead(isr=(1,), min_isr=1)
    payload = msgpack.encode([None, [b"a", b"b"], [7, None], None, None])
    node.produce(
        bytes(build(payload, last_offset_delta=1, record_count=2, base_timestamp=0, max_timestamp=0))
    )
    log = node.partition.log
    log.reconfigure(LogConfig(segment_bytes=1024, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0))
    for _ in range(40):
        node.produce(bytes(encode([b"v" * 50], [b"a"], now_ms=0)))
    log.flush()
    node.data.write_recovery_points().run()
    before = log.size

    async def saved() -> bool:
        return True

    upkeep = Upkeep(node.replicas, node.context.clocks, UpkeepSettings(), save_log_starts=saved)
    await upkeep._compact()
    assert upkeep.compactions == 1
    assert log.first_dirty == log.segments[-1].base_offset
    assert log.size < before / 2


async def test_a_log_is_not_emptied_while_a_thread_is_about_to_change_its_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All threads are busy: the work has been handed over, and is begun much later."""
    node, upkeep = many(1)
    node.follow(2)
    partition, steps = node.partition, list[object]()

    async def late(work: Callable[[], object]) -> object:
        steps.append(partition.carry_out(StartAt(0), b"", 0))
        return work()

    monkeypatch.setattr("tidelog.broker.upkeep.in_a_thread", late)
    await upkeep._compact()
    assert upkeep.compactions
    assert set(map(type, steps)) == {Wait}, "that is for later"
    assert isinstance(partition.carry_out(StartAt(0), b"", 0), StartAt)
    assert partition.log.directory.size_of("00000000000000000000.log") == 0, "it begins anew"


async def test_others_have_their_turns_while_it_is_looked_which_of_many_logs_is_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.broker.upkeep._LOOK_AT_ONCE", 2)
    node, upkeep = many(6)
    for partition in node.replicas.partitions.values():
        partition.log.first_dirty = partition.log.end_offset
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await upkeep._compact()
    task.cancel()
    assert (turns, upkeep.compactions) == (3, 0)


def alone(ahead_ms: int = 0, **config: Any) -> tuple[Node, Upkeep]:
    """A broker that leads a log nobody else has. Its wall clock goes forward by so much before logs are looked at."""
    node = Node(config=LogConfig(segment_bytes=4096, segment_ms=HOUR_MS, file_delete_delay_ms=0, **config))
    node.lead(isr=(1,), min_isr=1)

    async def saved() -> bool:
        node.partition.saved_log_start = node.partition.log.log_start
        return True

    clocks = Clocks(lambda: node.now_ms, lambda: node.now_ms + ahead_ms, lambda: node.now_ms)
    return node, Upkeep(node.replicas, clocks, UpkeepSettings(), save_log_starts=saved)


async def test_a_disk_that_is_full_is_freed_by_retention_although_no_segment_can_be_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, upkeep = alone(retention_ms=HOUR_MS)
    node.fill(300)
    node.partition.log.flush()
    node.disk.capacity = node.disk.medium.used + 10
    assert node.produce().error == DiskFull.code
    monkeypatch.setattr(Segment, "create", no_room)
    node.now_ms += 10 * HOUR_MS
    before = len(node.partition.log.segments)
    await upkeep._retain()
    await upkeep._remove()
    assert (before > 3, len(node.partition.log.segments)) == (True, 1)
    monkeypatch.undo()
    node.replicas.probe(node.now_ms, node.now_ms)
    assert node.produce(acks=1).error == 0


def no_room(_: Segment) -> None:
    raise OSError(ENOSPC, "No space left on device")


async def test_damage_that_is_met_while_a_segment_is_closed_is_noted_and_ends_nothing() -> None:
    node, upkeep = alone()
    node.fill(7)
    log = node.partition.log
    log.flush()
    segment = log.segments[-1]
    segment.close()  # as `OpenSegments` does: its indexes are learnt from the file again
    node.disk.rot(f"{log.directory.path}/{segment.name}", segment.size // 7 * 6 + 3)
    node.now_ms += 2 * HOUR_MS
    await upkeep._retain()
    assert node.partition.damage is not None
    assert node.partition.damage.base_offset == segment.base_offset


async def test_a_wall_clock_that_is_put_right_takes_nothing_that_came_while_it_was_behind() -> None:
    node, upkeep = alone(ahead_ms=YEAR_MS, retention_ms=HOUR_MS)
    for number in range(51):
        node.produce(records(1, now_ms=YEAR_MS + node.now_ms + number))
    await upkeep._retain()
    assert node.partition.log.log_start == 0
    node.now_ms += 2 * HOUR_MS
    await upkeep._retain()
    assert node.partition.log.log_start == 51


@pytest.mark.slow
async def test_a_broker_process_has_its_logs_compacted_by_another_one_that_ends_with_the_work(
    tmp_path: Path,
) -> None:
    settings = {"log.retention.check.interval.ms": 100, "flush.ms": 100}
    async with Cluster(1, directory=tmp_path, settings=settings, processes=True) as cluster:
        compacted: dict[str, str | int] = {**SMALL, "cleanup.policy": "compact"}
        async with cluster.client() as client:
            await client.admin.create_topics(NewTopic("t", 1, 1, compacted))
            await fill(client, "t", 600, keys=7)

            async def small() -> object:
                return found if (found := size(tmp_path, 1, "t")) > 20_000 else None

            await until(small, "the broker has compacted its log")
            newest = {b"k%d" % key: max(range(key, 600, 7)) for key in range(7)}
            found = await read(client, "t")
        assert {key: numbers[-1] for key, numbers in found.items()} == newest
        logged = cluster.nodes["b1"].logs()
        assert "compaction.began log=" in logged

        async def gone() -> object:
            pids = {
                int(pid) for pid in re.findall(r"compaction\.began .*pid=(\d+)", cluster.nodes["b1"].logs())
            }
            return [pid for pid in pids if lives(pid)] or None

        await until(gone, "the process that compacted has ended")


def lives(pid: int) -> bool:
    """Whether there is such a process; one that has ended, and that its parent has not looked after yet, is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
