"""Settings that are changed while brokers run: whoever obeys them does so at once, and goes back when they are unset."""

from collections.abc import Callable

import pytest

from tests.simulation.cluster import with_config
from tests.simulation.directed import Town, deliver, send
from tests.simulation.probe import Probe
from tidelog.broker.broker import Broker
from tidelog.broker.flusher import FlushSettings
from tidelog.broker.scrubbing import ScrubSettings
from tidelog.broker.upkeep import UpkeepSettings
from tidelog.protocol.errors import DiskFull
from tidelog.protocol.messages import AlterConfigs, AlterConfigsReply, ConfigAlter, ResourceAlter
from tidelog.testing.simulation.world import World


@pytest.fixture
def town(world: World) -> Town:
    return Town(
        world,
        config=with_config(
            flush=FlushSettings(300, 64 << 10, 300, 300, min_free_bytes=2000),
            upkeep=UpkeepSettings(check_interval_ms=300),
            scrub=ScrubSettings(interval_ms=500),
        ),
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0",
        segment_bytes="1024",
        file_delete_delay_ms="0",
    )


def alter(town: Town, name: str, value: str | None) -> None:
    """Set it for every broker, or unset it; and until all have heard of it."""
    changes = AlterConfigs((ResourceAlter("cluster", "", (ConfigAlter(name, value),)),))

    async def ask(client: Probe) -> AlterConfigsReply:
        reply, _ = await client.ask(town.address(1), changes)
        assert isinstance(reply, AlterConfigsReply), reply
        return reply

    reply = town.do(ask)
    assert not reply.resources[0].error, reply
    end = reply.metadata_offset
    town.cluster.until(lambda: all(b.observer.image.end_offset >= end for b in brokers(town)), 5)


def brokers(town: Town) -> list[Broker]:
    return list(town.cluster.brokers.values())


def put(town: Town) -> None:
    """Enough for some segments."""
    for _ in range(10):
        town.do(lambda client: deliver(client, town.place, [b"v" * 200], [b"k"]))


def grows(town: Town, count: Callable[[Broker], int]) -> bool:
    """Whether that grows on every broker in the next three seconds."""
    before = [count(broker) for broker in brokers(town)]
    put(town)
    town.cluster.pass_time(3)
    return all(count(broker) > was for broker, was in zip(brokers(town), before, strict=True))


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("log.cleaner.enable", lambda broker: broker._upkeep.compactions),
        ("log.scrubber.enable", lambda broker: broker.scrubbing.rounds),
    ],
)
def test_what_goes_on_in_the_background_stops_and_goes_on(
    town: Town, name: str, count: Callable[[Broker], int]
) -> None:
    assert grows(town, count)
    alter(town, name, "false")
    town.cluster.pass_time(1)
    before = [count(broker) for broker in brokers(town)]
    put(town)
    town.cluster.pass_time(3)
    assert [count(broker) for broker in brokers(town)] == before
    alter(town, name, None)
    assert grows(town, count)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("log.cleaner.io.max.bytes.per.second", lambda broker: broker._upkeep.compactions),
        ("log.scrubber.io.max.bytes.per.second", lambda broker: broker.scrubbing.rounds),
    ],
)
def test_what_goes_on_in_the_background_takes_another_pace(
    town: Town, name: str, count: Callable[[Broker], int]
) -> None:
    assert grows(town, count)
    alter(town, name, "1")
    put(town)
    town.cluster.pass_time(3)
    before = [count(broker) for broker in brokers(town)]
    put(town)
    town.cluster.pass_time(3)
    assert [count(broker) for broker in brokers(town)] == before


def test_records_are_refused_below_a_mark_that_was_raised_until_it_is_lowered(town: Town) -> None:
    put(town)
    alter(town, "storage.min.free.bytes", str(1 << 62))
    town.cluster.until(lambda: all(broker.replicas.low_space for broker in brokers(town)), 5)

    async def one_more(client: Probe) -> int:
        return (await send(client, town.address(town.leader() or 0), town.place, [b"v"], keys=[b"k"])).error

    assert town.do(one_more) == DiskFull.code
    alter(town, "storage.min.free.bytes", None)
    town.cluster.until(lambda: not any(broker.replicas.low_space for broker in brokers(town)), 5)
    put(town)
