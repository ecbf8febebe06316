"""A stream that begins again at a broker which is behind with its metadata: nothing is forgotten, nothing read once more."""

import asyncio

import pytest

from tests.client.simulated import Stage
from tests.simulation.cluster import BROKER_PORT
from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client, connect
from tidelog.protocol.errors import InvalidConfig
from tidelog.protocol.types import Offset, TopicId, TopicPartition
from tidelog.spark import stream
from tidelog.spark.columns import schema_of
from tidelog.spark.lookup import Found, means
from tidelog.spark.offsets import StreamOffset
from tidelog.spark.options import read_options
from tidelog.spark.portal import Address
from tidelog.spark.stream import TopicStream
from tidelog.testing.simulation.world import World

ORDERS, OTHER = b"\1" * 16, b"\2" * 16


def planner(**options: str) -> TopicStream:
    given = {"bootstrap.servers": "b:1", **options}
    return TopicStream(read_options(given, "stream"), schema_of(headers=False))


def orders(*offsets: Offset) -> dict[TopicPartition, Offset]:
    return {TopicPartition("orders", number): offset for number, offset in enumerate(offsets)}


@pytest.mark.slow
def test_a_stream_that_begins_again_at_a_broker_that_is_cut_off_reads_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with World(3).running() as world:
        stage = Stage(world, controllers=1)
        network, behind = world.network, stage.cluster.hosts[3]

        async def grow(client: Client) -> TopicId:
            await client.admin.create_topics(NewTopic("orders", assignment=[[1, 2], [2, 1]]))
            topic = await client.topic("orders")
            async with asyncio.timeout(20):
                while topic.id not in stage.cluster.brokers[3].observer.image.topics:  # noqa: ASYNC110 -- it tells nobody
                    await asyncio.sleep(0.1)
            for other in (*stage.cluster.hosts.values(), *stage.cluster.quorum.values()):
                if other is not behind:
                    network.partition(behind.name, other.name)
            await client.admin.add_partitions("orders", 4, assignment=[[1, 2], [2, 1]])
            async with client.producer() as producer:
                for number in range(4):
                    await producer.send_many("orders", [b"x"] * 5, partition=number)
            return topic.id

        async def restarted(at: StreamOffset) -> StreamOffset | None:
            async with connect(f"{behind.machine.address}:{BROKER_PORT}") as client:

                async def connected(_: Address) -> Client:
                    return client

                monkeypatch.setattr(stream, "connected", connected)
                return await planner(subscribe="orders")._next(at, fresh=False, bounded=False)

        at = StreamOffset(orders(0, 0, 5, 5), {"orders": stage.run(grow)})
        first = stage.do(lambda: restarted(at))
        assert first.offsets == orders(5, 5, 5, 5)
        assert first.start == {}


def found(monkeypatch: pytest.MonkeyPatch, what: Found) -> None:
    """What a broker shows that was asked; another one knows that `orders` is there."""

    async def find(*_: object) -> Found:
        return what

    async def connected(_: Address) -> None:
        return None

    async def ids_now(*_: object) -> dict[str, TopicId | None]:
        return {"orders": ORDERS}

    monkeypatch.setattr(stream, "find", find)
    monkeypatch.setattr(stream, "connected", connected)
    monkeypatch.setattr(stream, "ids_now", ids_now)


def test_a_topic_that_only_one_of_two_brokers_shows_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    other = TopicPartition("other", 0)

    found(monkeypatch, Found({"other": OTHER}, {other: 0}, {other: 5}))
    at = StreamOffset({**orders(7, 8), other: 0}, {"orders": ORDERS, "other": OTHER})
    end = asyncio.run(planner(subscribePattern="o.*")._next(at, fresh=False, bounded=False))
    assert end is not None
    assert end.offsets == {**orders(7, 8), other: 5}
    assert end.ids == at.ids


@pytest.mark.parametrize("options", [{"subscribe": "other"}, {"subscribe": "orders", "partitions": "2"}])
def test_a_checkpoint_of_which_nothing_is_asked_for_is_forgotten_only_on_demand(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = TopicPartition(options["subscribe"], 2)

    found(monkeypatch, Found({asked.topic: OTHER}, {asked: 1}, {asked: 5}))
    at = StreamOffset(orders(7, 8), {})
    with pytest.raises(InvalidConfig, match="the checkpoint is of orders, and nothing in it is asked for"):
        asyncio.run(planner(**options)._next(at, fresh=False, bounded=False))
    careless = planner(**options, failOnDataLoss="false")
    end = asyncio.run(careless._next(at, fresh=False, bounded=False))
    assert end is not None
    assert (end.offsets, end.start) == ({asked: 5}, {asked: 1})


@pytest.mark.parametrize("options", [{"subscribe": "other"}, {"subscribePattern": "oth.*"}])
def test_the_place_of_a_topic_that_is_asked_for_no_more_is_forgotten_only_on_demand(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = TopicPartition("other", 0)

    found(monkeypatch, Found({"other": OTHER}, {other: 0}, {other: 5}))
    at = StreamOffset({**orders(7), other: 5}, {"orders": ORDERS, "other": OTHER})
    with pytest.raises(InvalidConfig, match=r"orders-0: it is not asked for any more.* failOnDataLoss=false"):
        asyncio.run(planner(**options)._next(at, fresh=False, bounded=False))
    careless = planner(**options, failOnDataLoss="false")
    end = asyncio.run(careless._next(at, fresh=False, bounded=False))
    assert end is not None
    assert (end.offsets, end.ids) == ({other: 5}, {"other": OTHER})
    [warning] = [each.getMessage() for each in caplog.records if "spark.data_loss" in each.getMessage()]
    assert "partition=orders-0 what=dropped" in warning


def test_what_is_not_gone_keeps_its_place() -> None:
    at = StreamOffset(orders(1, 2, 3, 4), {"orders": ORDERS})
    found = Found({"orders": ORDERS}, orders(0), orders(7))
    gone = {TopicPartition("orders", 1), TopicPartition("orders", 3)}
    begins, ends = planner(subscribe="orders")._bounds(at, found, gone)
    assert begins == {TopicPartition("orders", 0): 1, TopicPartition("orders", 2): 3}
    assert ends == {TopicPartition("orders", 0): 7, TopicPartition("orders", 2): 3}


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"subscribe": "a,orders"}, [0, 1, 2]),
        ({"subscribe": "a"}, []),
        ({"subscribePattern": "ord.*"}, [0, 1, 2]),
        ({"subscribePattern": "ord"}, []),
        ({"assign": '{"orders": [0, 2]}'}, [0, 2]),
        ({"subscribe": "orders", "partitions": "1"}, [1]),
    ],
)
def test_options_mean_a_partition_whether_or_not_anybody_shows_it(
    options: dict[str, str], meant: list[int]
) -> None:
    said = planner(**options).options
    assert [name.partition for name in orders(0, 0, 0) if means(said, name)] == meant
