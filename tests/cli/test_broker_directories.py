"""A broker with several data directories, as real processes: one disk is pulled out, and another one put in (ADR 106)."""

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tests.cli.node_processes import HOST, Process, get, nodes
from tests.cli.test_broker_start import ARGUMENTS, Start, at, broker_of, refused

pytestmark = pytest.mark.slow

TOPIC = "orders"
LISTEN = ("--listen", f"{HOST}:0")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with nodes(tmp_path) as started:
        yield started


@pytest.fixture
def controller(start: Start) -> Process:
    process = start("controller", "c1", "--id", "1", "--listen", f"{HOST}:0")
    process.ready()
    return process


def partitions_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if re.fullmatch(rf"{TOPIC}-\d+", path.name))


def metric(broker: Process, name: str) -> int:
    _, page = get(broker.ready()["http"], "/metrics")
    found = re.search(rf"^tidelog_broker_{name} (\d+)$", page, re.MULTILINE)
    assert found is not None, page
    return int(found[1])


def with_two_disks(start: Start, controller: Process, tmp_path: Path, name: str = "b1") -> Process:
    """The one that `Process` adds comes second."""
    quick = ("-X", "replica.high.watermark.checkpoint.interval.ms=100", "--http", f"{HOST}:0")
    return broker_of(start, controller, *quick, "--data", str(tmp_path / "disk-1"), name=name)


async def _make(address: str) -> None:
    async with tidelog.connect(address) as client:
        await client.admin.create_topics(
            tidelog.NewTopic(TOPIC, partitions=4, replication_factor=2, configs={"min.insync.replicas": "1"})
        )


async def _produce(address: str, values: list[bytes]) -> None:
    """As many to each partition."""
    async with tidelog.connect(address) as client, client.producer(delivery_timeout_ms=15_000) as producer:
        for partition in range(4):
            await producer.send_many(TOPIC, values=values, partition=partition)


async def _read(address: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with (
        tidelog.connect(address) as client,
        client.consumer(TOPIC, auto_offset_reset="earliest") as consumer,
        asyncio.timeout(20),
    ):
        async for record in consumer:
            found.append(record.value or b"")
            if len(found) == count:
                break
    return found


def test_a_disk_that_is_pulled_out_takes_only_what_lies_on_it_and_a_new_one_is_filled_again(
    start: Start, controller: Process, tmp_path: Path
) -> None:
    broker = with_two_disks(start, controller, tmp_path)
    broker.ready()
    other = start(
        "broker", "b2", "--id", "2", *LISTEN, "--controllers", at(controller), "--http", f"{HOST}:0"
    )
    address = other.ready()["advertised"]
    asyncio.run(_make(address))
    asyncio.run(_produce(address, [b"first"] * 5))
    first, second = tmp_path / "disk-1", broker.data
    lost = partitions_in(second)
    assert (len(lost), len(partitions_in(first))) == (2, 2)

    second.rename(tmp_path / "pulled out")
    broker.until(lambda: metric(broker, "directories_failed") == 1, "it notices")
    broker.until(lambda: metric(broker, "partitions_offline") == 2, "what lies there is offline")
    other.until(lambda: metric(other, "partitions_under_replicated") == 2, "others lead it")
    (failed,) = broker.events("directory.failed")
    assert (failed["path"], failed["logs"]) == (str(second), 2)
    asyncio.run(_produce(address, [b"second"] * 5))
    assert broker.stop() == 0

    code, line = refused(*ARGUMENTS, *LISTEN, "--data", str(first), "--data", str(second))
    assert code == 1
    assert f"{second} is not there, and the others have been in use" in line
    second.mkdir()
    broker = with_two_disks(start, controller, tmp_path)
    broker.ready()
    broker.until(
        lambda: (
            metric(broker, "partitions_under_replicated") + metric(other, "partitions_under_replicated") == 0
        ),
        "all are in sync again",
    )
    assert (partitions_in(second), metric(broker, "directories_failed")) == (lost, 0)
    assert other.stop() == 0
    found = asyncio.run(_read(broker.ready()["advertised"], 40))
    assert sorted(found) == [b"first"] * 20 + [b"second"] * 20
    assert broker.stop() == 0


def test_one_directory_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(tmp_path / "a")
    (tmp_path / "a").mkdir()
    arguments = (*ARGUMENTS, *LISTEN, "--data", str(tmp_path / "a"), "--data", str(tmp_path / "again"))
    assert refused(*arguments) == (
        1,
        f"error: {tmp_path / 'again'} and {tmp_path / 'a'} are one directory: name it once",
    )
    assert os.listdir(tmp_path / "a") == []


def test_a_directory_of_another_broker_refuses_all_and_leaves_nothing(
    start: Start, controller: Process, tmp_path: Path
) -> None:
    broker = broker_of(start, controller)
    broker.ready()
    assert broker.stop() == 0
    new = tmp_path / "new"
    new.mkdir()
    arguments = ("--id", "2", *LISTEN, "--controllers", at(controller))
    code, line = refused(*arguments, "--data", str(new), "--data", str(broker.data))
    assert code == 1
    assert f"{broker.data} belongs to broker 1, this is broker 2" in line
    assert list(new.iterdir()) == []


def test_directories_are_said_in_a_file_by_both_of_kafkas_names(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    for name in ("dir", "dirs"):
        file.write_text(f'[log]\n{name} = ["{tmp_path / "a"}", "{tmp_path / "a"}"]\n')
        code, line = refused(*ARGUMENTS, *LISTEN, "-c", str(file))
        assert code == 2
        assert "it must be a directory, or several different ones with commas between them" in line
    code, line = refused(*ARGUMENTS, *LISTEN, "-X", "log.dir=a", "--data", "b")
    assert code == 2
    assert "both say log.dir: say it once" in line
