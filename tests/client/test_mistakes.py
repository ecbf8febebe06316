"""Mistakes that everybody makes once: each is answered at once, by a sentence that says what was expected."""

import inspect
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import tidelog
from tests.client.nodes import Cluster
from tidelog.client import admin
from tidelog.protocol.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    TidelogError,
    UnknownTopicOrPartition,
    Unsupported,
)


@pytest.fixture
async def client(broker: Cluster) -> AsyncIterator[tidelog.Client]:
    async with broker.client() as client:
        await client.admin.create_topics(tidelog.NewTopic("t", partitions=2, replication_factor=1))
        yield client


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: tidelog.connect(9092), InvalidConfig, "9092 is no HOST:PORT"),  # type: ignore[arg-type]
        (lambda: tidelog.connect(b"h:1"), InvalidConfig, "b'h:1' is no HOST:PORT"),  # type: ignore[arg-type]
        (lambda: tidelog.connect("broker..3:9092"), InvalidConfig, "'broker..3:9092' is no HOST:PORT"),
        (lambda: tidelog.connect(""), InvalidConfig, "at least one HOST:PORT"),
        (lambda: tidelog.connect("h:1", client_idd="x"), InvalidConfig, "the nearest is client_id"),
        (lambda: tidelog.connect("h:1", tls=True), Unsupported, "tls"),
        (lambda: tidelog.connect("h:1", auth=("u", "p")), Unsupported, "auth"),
    ],
)
def test_a_client_that_cannot_be_is_refused(
    call: Callable[[], object], error: type[TidelogError], words: str
) -> None:
    with pytest.raises(error, match=words):
        call()


SENT: list[tuple[Callable[[Any], Any], type[TidelogError], str]] = [
    (lambda p: p.send("t", "v"), InvalidRecord, "value is bytes or None, not str"),
    (lambda p: p.send("t", b"v", 5), InvalidRecord, "key is bytes or None, not int"),
    (lambda p: p.send(b"t", b"v"), InvalidRequest, "name is text, not b't'"),
    (lambda p: p.send(None, b"v"), InvalidRequest, "name is text, not None"),
    (lambda p: p.send("", b"v"), InvalidRequest, "name is text, not ''"),
    (lambda p: p.send("x" * 250, b"v"), InvalidRequest, "at most 249 characters, not 250: 'xxxx"),
    (lambda p: p.send("\udc80", b"v"), InvalidRequest, r"name is text, not '\\udc80'"),
    (lambda p: p.send("t", b"v", partition="0"), InvalidRecord, "a partition is a number, not '0'"),
    (lambda p: p.send("t", b"v", partition=True), InvalidRecord, "a partition is a number, not True"),
    (
        lambda p: p.send_many("t", [b"v"], partition=False),
        InvalidRecord,
        "a partition is a number, not False",
    ),
    (lambda p: p.flush(timeout="1"), InvalidRequest, "timeout='1': a number of seconds"),
    (lambda p: p.close(timeout="1"), InvalidRequest, "timeout='1': a number of seconds"),
    (lambda p: p.send("t", b"v", headers={"a": b"1"}), InvalidRecord, "a header is a pair"),
    (lambda p: p.send("t", b"v", headers=[("a", "1")]), InvalidRecord, "a header is a pair"),
    (lambda p: p.send("t", b"v", headers=[5]), InvalidRecord, "a header is a pair .*, not 5"),
    (lambda p: p.send("t", b"v", headers=5), InvalidRecord, "headers are a list of pairs, as .*, not 5"),
    (lambda p: p.send("t", b"v", timestamp_ms=1.5), InvalidRecord, "milliseconds since 1970, not 1.5"),
    (lambda p: p.send_many("t", b"abc"), InvalidRecord, "values are a list of bytes, not bytes"),
    (lambda p: p.send_many("t", None), InvalidRecord, "values are a list of bytes, not NoneType"),
    (lambda p: p.send_many("t", [b"a"], keys=[b"k", b"l"]), InvalidRecord, "2 keys for 1 values"),
]


async def test_a_record_that_cannot_be_is_refused_and_nothing_is_sent(client: tidelog.Client) -> None:
    async with client.producer() as producer:
        for call, error, words in SENT:
            with pytest.raises(error, match=words):
                await call(producer)
        assert producer.metrics()["producer_batches_outstanding"] == 0
        assert (await producer.send("t", b"v", partition=0)).offset == 0


async def test_headers_that_can_be_read_once_are_refused_and_fail_nobody_else(client: tidelog.Client) -> None:
    async with client.producer() as producer:
        other = await producer.enqueue("t", b"v", partition=0)
        with pytest.raises(InvalidRecord, match=r"headers are a list of pairs, as .*, not <generator"):
            await producer.send("t", b"v", partition=0, headers=(each for each in [("a", b"1")]))  # type: ignore[arg-type]
        assert (await other).offset == 0


PAIR = r"give TopicPartition\(topic, number\), or such a pair, as \('orders', 0\)"
READ: list[tuple[Callable[[Any], Any], str]] = [
    (lambda c: c.assign("t"), r"assign takes a list of partitions, as \[\('orders', 0\)\], not 't'"),
    (lambda c: c.assign(tidelog.TopicPartition("t", 0)), r"assign takes a list .* not TopicPartition"),
    (lambda c: c.assign(5), "assign takes a list .* not 5"),
    (lambda c: c.assign(None), "assign takes a list .* not None"),
    (
        lambda c: c.assign(["t"]),
        r"'t' is no partition: give TopicPartition\('t', 0\), or the pair \('t', 0\)",
    ),
    (lambda c: c.assign([5]), f"5 is no partition: {PAIR}"),
    (lambda c: c.assign([("t",)]), f"is no partition: {PAIR}"),
    (lambda c: c.assign([("t", 0, 1)]), f"is no partition: {PAIR}"),
    (lambda c: c.assign([(0, "t")]), f"is no partition: {PAIR}"),
    (lambda c: c.assign([("", 0)]), "a topic's name is text, not ''"),
    (lambda c: c.subscribe("x" * 250), "at most 249 characters, not 250: 'xxxx"),
    (lambda c: c.assign([("t", "0")]), "its number is a whole number, not '0'"),
    (lambda c: c.assign([("t", True)]), "its number is a whole number, not True"),
    (lambda c: c.assign([("t", -1)]), "their numbers begin at 0"),
    (lambda c: c.seek("t", 0), "'t' is no partition"),
    (lambda c: c.seek(0, 0), f"0 is no partition: {PAIR}"),
    (lambda c: c.seek(("t", 7), 0), "t-7 is not assigned to this consumer, which reads t-0"),
    (
        lambda c: c.seek(("t", 0), -1),
        "t-0: offset -1: offsets begin at 0; see seek_to_beginning and seek_to_end",
    ),
    (lambda c: c.seek(("t", 0), "5"), "t-0: an offset is a whole number, not '5'"),
    (lambda c: c.seek(("t", 0), 2**63), "t-0: offset 9223372036854775808"),
    (lambda c: c.seek(("t", 0), None), "an offset is a whole number, not None"),
    (lambda c: c.seek_to_beginning("t"), "'t' is no partition"),
    (lambda c: c.seek_to_end(("t", 7)), "t-7 is not assigned"),
    (lambda c: c.position("t"), "'t' is no partition"),
    (lambda c: c.position(("t", 7)), "t-7 is not assigned"),
    (lambda c: c.pause("t"), "'t' is no partition"),
    (lambda c: c.pause([("t", 0)]), f"is no partition: {PAIR}"),
    (lambda c: c.pause(("t", 7)), "t-7 is not assigned"),
    (lambda c: c.resume(0), "0 is no partition"),
    (lambda c: c.resume(("t", 7)), "t-7 is not assigned"),
    (lambda c: c.getmany("t"), "'t' is no partition"),
    (lambda c: c.getmany(max_records=0), "max_records=0: a whole number, at least one"),
    (lambda c: c.getmany(max_records="5"), "max_records='5': a whole number"),
    (lambda c: c.getmany(timeout="1"), "timeout='1': a number of seconds"),
    (lambda c: c.getmany(timeout=None), "timeout=None: a number of seconds"),
    (lambda c: c.getmany(timeout=True), "timeout=True: a number of seconds"),
    (lambda c: c.getmany(timeout=float("nan")), "timeout=nan: a number of seconds"),
    (lambda c: anext(c.batches(timeout="1")), "timeout='1': a number of seconds"),
    (lambda c: anext(c.batches(max_records=-1)), "max_records=-1: a whole number, at least one"),
    (lambda c: c.beginning_offsets("t"), "beginning_offsets takes a list of partitions"),
    (lambda c: c.beginning_offsets(["t"]), "'t' is no partition"),
    (lambda c: c.end_offsets(("t", 0)), r"end_offsets takes a list of partitions, .* not \('t', 0\)"),
    (lambda c: c.offsets_for_times([("t", 0)]), "offsets_for_times takes times by partition"),
    (lambda c: c.offsets_for_times({"t": 0}), "'t' is no partition"),
    (lambda c: c.offsets_for_times({("t", 0): "now"}), "t-0: a time is milliseconds since 1970, not 'now'"),
    (
        lambda c: c.commit("t"),
        r"commit takes a record, or offsets by partition, as \{\('orders', 0\): 7\}, not 't'",
    ),
    (lambda c: c.commit([("t", 0)]), "commit takes a record, or offsets by partition"),
    (lambda c: c.commit({"t": 0}), "'t' is no partition"),
    (lambda c: c.commit({("t", 0): -1}), "t-0: offset -1: offsets begin at 0"),
    (lambda c: c.commit({("t", 0): "5"}), "t-0: an offset is a whole number, not '5'"),
    (lambda c: c.commit({("t", 0): (5, b"x")}), "t-0: what is said with an offset is text, not b'x'"),
    (lambda c: c.committed("t"), "'t' is no partition"),
    (lambda c: c.committed(0), "0 is no partition"),
]


async def test_a_partition_or_an_offset_that_cannot_be_is_refused_in_words(client: tidelog.Client) -> None:
    """Each method of a consumer, with what people hand in by mistake; nothing has changed after it."""
    async with client.consumer(group="g") as consumer:
        consumer.assign([("t", 0)])
        for call, words in READ:
            with pytest.raises(InvalidRequest, match=words):  # noqa: PT012 -- some are awaited
                result = call(consumer)
                if inspect.isawaitable(result):
                    await result
        assert consumer.assignment() == {tidelog.TopicPartition("t", 0)}
        assert consumer.paused() == set()


async def test_a_partition_that_is_not_there_is_told_with_how_many_there_are(client: tidelog.Client) -> None:
    async with client.consumer() as consumer:
        for ask in (consumer.beginning_offsets, consumer.end_offsets):
            with pytest.raises(UnknownTopicOrPartition, match="there is no partition t-7: t has 2"):
                await ask([("t", 7)])
        with pytest.raises(UnknownTopicOrPartition, match="there is no partition t-7: t has 2"):
            await consumer.offsets_for_times({tidelog.TopicPartition("t", 7): 0})
        consumer.assign([("t", 7)])
        with pytest.raises(UnknownTopicOrPartition, match="t-7: the topic has 2 partitions"):
            await anext(consumer)


@pytest.mark.parametrize(
    ("topics", "words"),
    [
        ((5,), "a topic's name is text, not 5"),
        ((b"t",), "a topic's name is text, not b't'"),
        ((None,), "a topic's name is text, not None"),
        (("",), "a topic's name is text, not ''"),
        ((["t", "u"],), r"topics are given one by one: \('t', 'u'\), not in a list"),
    ],
)
async def test_topics_that_cannot_be_are_refused(
    client: tidelog.Client, topics: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        client.consumer(*topics)
    async with client.consumer() as consumer:
        with pytest.raises(InvalidRequest, match=words):
            consumer.subscribe(*topics)


GIVEN: Any = admin
"""Not checked by mypy: it would find all of these."""
NEW, P = GIVEN.NewTopic, ("t", 0)
NUMBER = "a whole number from 0 to 2147483647"
TEXT = "is text, not"
ORDERED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda a: a.create_topics(NEW(b"n")), "name is text, not b'n'"),
    (lambda a: a.create_topics(NEW("n", "3")), f"partitions='3': {NUMBER}"),
    (lambda a: a.create_topics(NEW("n", True)), f"partitions=True: {NUMBER}"),
    (lambda a: a.create_topics(NEW("n", 2**31)), f"partitions=2147483648: {NUMBER}"),
    (lambda a: a.create_topics(NEW("n", -1)), f"partitions=-1: {NUMBER}"),
    (lambda a: a.create_topics(NEW("n", 1, 1.0)), f"replication_factor=1.0: {NUMBER}"),
    (lambda a: a.create_topics(NEW("n", 1, 1, ["a"])), r"configs takes a mapping, .* not \['a'\]"),
    (lambda a: a.create_topics(NEW("n", 1, 1, {1: "a"})), f"a setting's name {TEXT} 1"),
    (lambda a: a.create_topics(NEW("n", 1, 1, {"a": b"1"})), "b'1': a setting is a text, a number"),
    (lambda a: a.create_topics(NEW("n", assignment=[1, 2])), "each of assignment takes a list, as .*, not 1"),
    (lambda a: a.create_topics(NEW("n", assignment=[["1"]])), f"broker='1': {NUMBER}"),
    (lambda a: a.create_topics("n", validate_only=1), "validate_only=1: True or False"),
    (lambda a: a.create_topics("n", timeout="1"), "timeout='1': a number of seconds"),
    (lambda a: a.delete_topics(b"t"), "name is text, not b't'"),
    (lambda a: a.delete_topics(["t"]), "topics are given one by one"),
    (lambda a: a.describe_topics(b"t"), "name is text, not b't'"),
    (lambda a: a.describe_topics("x" * 250), "at most 249 characters, not 250"),
    (lambda a: a.add_partitions("t", "3"), f"count='3': {NUMBER}"),
    (lambda a: a.add_partitions("t", 2**31), f"count=2147483648: {NUMBER}"),
    (lambda a: a.add_partitions(b"t", 3), "name is text, not b't'"),
    (lambda a: a.add_partitions(["t"], 3), r"name is text, not \['t'\]"),
    (lambda a: a.add_partitions("t", 3, assignment="1"), "assignment takes a list, as .*, not '1'"),
    (lambda a: a.add_partitions("t", 3, validate_only="no"), "validate_only='no': True or False"),
    (lambda a: a.describe_configs(b"topic", "t"), f"kind {TEXT} b'topic'"),
    (lambda a: a.describe_configs("topic", b"t"), f"name {TEXT} b't'"),
    (lambda a: a.describe_configs("broker", True), f"name {TEXT} True"),
    (
        lambda a: a.describe_configs("topic", "t", keys="retention.ms"),
        "keys takes a list, as .* 'retention.ms'",
    ),
    (lambda a: a.describe_configs("topic", "t", keys=[5]), f"each of keys {TEXT} 5"),
    (lambda a: a.describe_configs("topic", "x" * 1025), "at most 1024 characters, not 1025"),
    (lambda a: a.alter_configs("topic", "t", ["retention.ms"]), "configs takes a mapping"),
    (lambda a: a.alter_configs("topic", "t", {5: 1}), f"a setting's name {TEXT} 5"),
    (lambda a: a.alter_configs("topic", "t", {"retention.ms": [1]}), r"\[1\]: a setting is a text, a number"),
    (lambda a: a.describe_log_dirs("1"), f"broker='1': {NUMBER}"),
    (lambda a: a.describe_log_dirs(topics="t"), "topics takes a list, as .* not 't'"),
    (lambda a: a.describe_log_dirs(topics=[5]), "name is text, not 5"),
    (lambda a: a.list_offsets(b"t"), "list_offsets takes a list of partitions"),
    (lambda a: a.list_offsets(["t"]), "'t' is no partition"),
    (lambda a: a.list_offsets("t", 2**63), "9223372036854775808: it must be one of earliest"),
    (lambda a: a.list_offsets("t", True), "True: it must be one of earliest"),
    (lambda a: a.list_offsets("t", ["latest"]), "it must be one of earliest"),
    (lambda a: a.list_offsets({P: None}), "None: it must be one of earliest"),
    (lambda a: a.list_offsets("t", isolation=2), "isolation=2: a whole number from 0 to 1"),
    (lambda a: a.delete_records([P]), "delete_records takes a mapping"),
    (lambda a: a.delete_records({P: "5"}), "offset='5': a whole number from -1"),
    (lambda a: a.delete_records({P: 2**63}), "offset=9223372036854775808: a whole number from -1"),
    (lambda a: a.elect_leaders("t"), "this call takes a list of partitions"),
    (lambda a: a.elect_leaders([("t", "0")]), "its number is a whole number, not '0'"),
    (lambda a: a.elect_leaders(unclean=1), "unclean=1: True or False"),
    (lambda a: a.reassign([P]), "reassign takes a mapping"),
    (lambda a: a.reassign({P: 1}), "a target takes a list, as .* not 1"),
    (lambda a: a.reassign({P: ["1"]}), f"broker='1': {NUMBER}"),
    (lambda a: a.reassign({P: [1]}, throttle_bytes_s="1"), "throttle_bytes_s='1': a whole number"),
    (lambda a: a.list_reassignments(P), "this call takes a list of partitions"),
    (lambda a: a.drain_broker("1"), f"broker='1': {NUMBER}"),
    (lambda a: a.drain_broker(-1), f"broker=-1: {NUMBER}"),
    (lambda a: a.undrain_broker(2**31), f"broker=2147483648: {NUMBER}"),
    (lambda a: a.undrain_broker(1, throttle_bytes_s=-1), "throttle_bytes_s=-1: a whole number"),
    (lambda a: a.unregister_broker(True), f"broker=True: {NUMBER}"),
    (lambda a: a.unregister_broker(9, force="yes"), "force='yes': True or False"),
    (lambda a: a.list_groups(states="stable"), "states takes a list, as .* 'stable'"),
    (lambda a: a.list_groups(topic=b"t"), "name is text, not b't'"),
    (lambda a: a.list_groups(with_lag=1), "with_lag=1: True or False"),
    (lambda a: a.describe_groups(b"g"), f"each of groups {TEXT} b'g'"),
    (lambda a: a.describe_groups("g", with_lag=None), "with_lag=None: True or False"),
    (lambda a: a.delete_groups(5), f"each of groups {TEXT} 5"),
    (lambda a: a.delete_group_offsets(b"g", [P]), f"a group's name {TEXT} b'g'"),
    (lambda a: a.delete_group_offsets("g", "t"), "delete_group_offsets takes a list of partitions"),
    (lambda a: a.committed_offsets(5), f"a group's name {TEXT} 5"),
    (lambda a: a.reset_group_offsets(b"g", "latest"), f"a group's name {TEXT} b'g'"),
    (lambda a: a.reset_group_offsets("g", "now"), "'now': it must be earliest, latest, an Offset"),
    (lambda a: a.reset_group_offsets("g", 5), "5: it must be earliest, latest, an Offset"),
    (lambda a: a.reset_group_offsets("g", GIVEN.Offset("5")), "Offset='5': a whole number"),
    (lambda a: a.reset_group_offsets("g", GIVEN.Time(2**63)), "Time=9223372036854775808: a whole number"),
    (lambda a: a.reset_group_offsets("g", GIVEN.Duration("1h")), "Duration='1h': a number of seconds"),
    (
        lambda a: a.reset_group_offsets("g", "latest", partitions="t"),
        "partitions takes a list, as .* not 't'",
    ),
    (lambda a: a.reset_group_offsets("g", "latest", partitions=[5]), "5 is no partition"),
    (
        lambda a: a.reset_group_offsets("g", GIVEN.Duration(-(10**400))),
        "Duration=-1000.*: a number of seconds",
    ),
    (lambda a: a.reset_group_offsets("g", GIVEN.Duration(float("inf"))), "seconds=inf.: it must be earliest"),
    (lambda a: a.reset_group_offsets("g", "latest", dry_run=0), "dry_run=0: True or False"),
]


async def test_an_order_that_cannot_be_is_refused_in_words_and_ends_nobodys_connection(
    client: tidelog.Client,
) -> None:
    before = {name: client.metrics()[name] for name in ("requests", "connections_made")}
    for call, words in ORDERED:
        with pytest.raises((InvalidRequest, InvalidConfig), match=words):
            await call(client.admin)
    assert {name: client.metrics()[name] for name in before} == before, "nothing was sent"
    for name in ("list_topics", "describe_cluster", "list_reassignments", "list_groups"):
        with pytest.raises(InvalidRequest, match="timeout='1': a number of seconds"):
            await getattr(client.admin, name)(timeout="1")
    for long_s in (1e9, 10**300, float("inf")):
        assert await client.admin.list_topics(timeout=long_s), "no message can ask for so much time"


async def test_a_topic_that_cannot_be_is_refused(client: tidelog.Client) -> None:
    for wrong in (5, [tidelog.NewTopic("z")], None):
        with pytest.raises(InvalidRequest, match=r"takes NewTopic\(...\) or names"):
            await client.admin.create_topics(wrong)  # type: ignore[arg-type]


async def test_who_looks_at_a_delivery_too_early_is_told_what_to_do(client: tidelog.Client) -> None:
    async with client.producer() as producer:
        await producer.send("t", b"v")
        delivery = await producer.enqueue("t", b"v", partition=0)
        assert not delivery.done
        with pytest.raises(InvalidRequest, match="await the delivery"):
            delivery.result()
        assert (await delivery).partition == 0
        assert repr(delivery) == "<delivery to t-0, acknowledged>"


async def test_a_forgotten_await_is_warned_of(client: tidelog.Client) -> None:
    producer = client.producer()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        producer.send("t", b"v")  # type: ignore[unused-coroutine]
    assert "was never awaited" in str(caught[0].message)


async def test_what_users_hold_says_what_it_is(client: tidelog.Client) -> None:
    assert repr(client).startswith("<client tidelog of 127.0.0.1:")
    assert "open" in repr(client)
    assert "producer of <client" in repr(client.producer())
    assert "admin of <client" in repr(client.admin)
