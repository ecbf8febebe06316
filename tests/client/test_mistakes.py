"""Mistakes that everybody makes once: each is answered at once, by a sentence that says what was expected."""

import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import tidelog
from tests.client.nodes import Cluster
from tidelog.protocol.errors import InvalidConfig, InvalidRecord, InvalidRequest, TidelogError, Unsupported


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
    (lambda p: p.send("t", b"v", partition="0"), InvalidRecord, "a partition is a number, not '0'"),
    (lambda p: p.send("t", b"v", headers={"a": b"1"}), InvalidRecord, "a header is a pair"),
    (lambda p: p.send("t", b"v", headers=[("a", "1")]), InvalidRecord, "a header is a pair"),
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
