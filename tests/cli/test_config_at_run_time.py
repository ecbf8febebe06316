"""`tidelog config` while everything runs: what is set holds at once and without a restart, what is unset holds no more."""

import json
from collections.abc import Callable
from time import time
from typing import Any

import pytest

from tests.cli.conftest import Ran, Tidelog
from tests.cli.serving import Serving, until
from tests.test_settings_obeyed import another
from tidelog.client import Client
from tidelog.client.records import RecordBatch
from tidelog.protocol.batch import read_header
from tidelog.protocol.compression import GZIP, NONE, ZSTD
from tidelog.protocol.settings import BROKER, CLUSTER, SETTINGS, TOPIC, Setting
from tidelog.protocol.types import TopicPartition

Config = Callable[..., Ran]
TEXT: list[bytes | None] = [b"a value that repeats itself, itself, itself %d" % at for at in range(40)]
DYNAMIC = [setting for setting in SETTINGS.values() if setting.dynamic]
PINNED = {"flush.mode"}
"""Decided when a topic is made (ADR 73); what it holds is refused on a topic and tested in tests/controller."""


@pytest.fixture
def config(one_broker: Serving, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch) -> Config:
    """`tidelog config` at the cluster."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", one_broker.bootstrap)
    return lambda *words: tidelog("config", *words)


@pytest.fixture(scope="module")
def topic(one_broker: Serving) -> str:
    """A topic whose settings are changed one after the other."""
    return one_broker.topic()


def where(level: str, topic: str) -> list[str]:
    return {TOPIC: [TOPIC, topic], BROKER: [BROKER, "1"], CLUSTER: [CLUSTER]}[level]


def stands(config: Config, *words: str) -> tuple[str, str]:
    """The value of a setting, and where it stands."""
    [one] = [json.loads(line) for line in config("get", *words, "-o", "json").lines]
    return one["value"], one["source"]


@pytest.mark.parametrize("setting", DYNAMIC, ids=lambda setting: setting.key)
def test_every_setting_is_set_and_unset_again_wherever_it_may_stand(
    config: Config, topic: str, setting: Setting
) -> None:
    for level in setting.levels:
        if setting.key in PINNED and level == TOPIC:
            continue
        place, value = where(level, topic), another(setting)
        before = stands(config, *place, setting.key)
        ran = config("set", *place, f"{setting.key}={value}")
        assert (ran.code, ran.lines[0].endswith(f": {setting.key}={value}")) == (0, True)
        assert stands(config, *place, setting.key) == (value, level)
        assert config("unset", *place, setting.key).code == 0
        assert stands(config, *place, setting.key) == before
        assert before[1] in {"default", "controller"}, "nothing was set before"


@pytest.mark.parametrize("setting", DYNAMIC, ids=lambda setting: setting.key)
def test_a_wrong_value_gets_one_line_that_says_what_would_be_right(
    config: Config, topic: str, setting: Setting
) -> None:
    for level in setting.levels:
        ran = config("set", *where(level, topic), f"{setting.key}=nonsense?")
        assert (ran.code, ran.out) == (1, "")
        assert ran.err == f"error: {setting.key}=nonsense?: it must be {setting.kind.accepted}\n"


@pytest.mark.parametrize("key", [s.key for s in SETTINGS.values() if not s.dynamic])
def test_what_is_read_at_the_start_says_so_in_one_line(config: Config, topic: str, key: str) -> None:
    for level in SETTINGS[key].levels:
        ran = config("set", *where(level, topic), f"{key}=1")
        assert (ran.code, ran.out) == (1, "")
        assert ran.err == f"error: {key}: it cannot be set here; {SETTINGS[key].instead}\n"


# ── what the records look like then ───────────────────────────────────────────────────────────────────


def batches(cluster: Serving, topic: str) -> list[RecordBatch]:
    """All that the topic holds, as a consumer gets it."""

    async def read(client: Client) -> list[RecordBatch]:
        place, found = TopicPartition(topic, 0), []
        async with client.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([place])
            end = (await consumer.end_offsets([place]))[place]
            async for batch in consumer.batches():
                found.append(batch)
                if batch.offsets[-1] + 1 == end:
                    return found
        raise AssertionError(f"{topic} ends before {end}")

    return cluster.with_client(read)


def stored(cluster: Serving, topic: str) -> list[int]:
    """The codec of every batch, as it lies on the broker's disk."""
    directory: Any = cluster.cluster.nodes["b1"].spec.directory
    content = (directory / f"{topic}-0" / "00000000000000000000.log").read_bytes()
    found = []
    while content:
        header = read_header(content)
        found.append(header.codec)
        content = content[header.size :]
    return found


def test_a_codec_holds_from_the_next_batch_on_and_the_consumer_does_not_notice(
    config: Config, one_broker: Serving
) -> None:
    name = one_broker.topic()
    codecs = []
    for value, codec in [(None, GZIP), ("zstd", ZSTD), ("uncompressed", NONE), (None, GZIP)]:
        words = ("unset", "topic", name, "compression.type") if value is None else ("set", "topic", name)
        ran = config(*words, *([] if value is None else [f"compression.type={value}"]))
        assert ran.code == 0, ran.err
        codecs.append(codec)
        written(one_broker, name, codecs)
    assert [value for batch in batches(one_broker, name) for value in batch.values] == TEXT * len(
        stored(one_broker, name)
    )


def written(cluster: Serving, topic: str, codecs: list[int]) -> None:
    """Write until the broker has heard of the setting: the last batch is as it should be."""

    def write() -> bool:
        async def send(client: Client) -> None:
            async with client.producer(compression="gzip") as producer:
                await producer.send_many(topic, TEXT)

        cluster.with_client(send)
        return stored(cluster, topic)[-1] == codecs[-1]

    until(write, f"a batch with codec {codecs[-1]}")


def test_the_leaders_time_is_what_producer_and_consumer_see(config: Config, one_broker: Serving) -> None:
    name, old = one_broker.topic(), 1_600_000_000_000
    assert config("set", "topic", name, "message.timestamp.type=LogAppendTime").code == 0
    began = int(time() * 1000)

    async def send(client: Client) -> int:
        async with client.producer() as producer:
            return (await producer.send(name, b"x", timestamp_ms=old)).timestamp_ms

    told = until(
        lambda: (at := one_broker.with_client(send)) != old and at, "an answer with the leader's time"
    )
    assert began - 1000 <= told <= time() * 1000 + 1000
    last = batches(one_broker, name)[-1]
    assert last.log_append_time
    assert last.timestamps_ms == [told]
    assert config("unset", "topic", name, "message.timestamp.type").code == 0
    until(lambda: one_broker.with_client(send) == old, "the producer's time again")
    assert batches(one_broker, name)[-1].timestamps_ms == [old]


def test_a_flush_interval_holds_at_once(config: Config, one_broker: Serving) -> None:
    name = one_broker.topic()
    one_broker.write(name, b"x")
    assert durable(one_broker, name) == 0, "by default it is flushed every 30 s"
    assert config("set", "broker", "1", "flush.ms=50").code == 0
    until(lambda: durable(one_broker, name) == 1, "it is flushed now")
    assert config("unset", "broker", "1", "flush.ms").code == 0


def durable(cluster: Serving, topic: str) -> int:
    """How far the recovery-point checkpoint of the broker says that the log is on the disk."""
    directory: Any = cluster.cluster.nodes["b1"].spec.directory
    lines = (directory / "recovery-point-offset-checkpoint").read_text().splitlines()
    return next((int(line.split()[2]) for line in lines if line.split()[0] == topic), 0)
