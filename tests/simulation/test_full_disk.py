"""Full disks in simulated clusters: who may write leads, everybody votes, and nothing is lost (DECISIONS 9, ADR 103; R7)."""

import pytest

from tests.simulation.cluster import QUICK, with_config
from tests.simulation.directed import Town, deliver, send
from tests.simulation.probe import Probe
from tests.simulation.storm_faults import PLENTY
from tidelog.broker.flusher import FlushSettings
from tidelog.controller.rebalance import INTERVAL_MS
from tidelog.protocol.errors import BY_CODE
from tidelog.protocol.messages import (
    BrokerDescribed,
    DeleteBefore,
    DeleteRecords,
    DeleteRecordsReply,
    DescribeCluster,
    DescribeClusterReply,
)
from tidelog.storage.crashes import CrashKind
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.world import World


def fill(host: Host, room: int = 0) -> None:
    """Nothing more fits on its disk than this."""
    host.disk.capacity = host.disk.medium.used + room


def free(host: Host) -> None:
    """There is room again."""
    host.disk.capacity = PLENTY


def low(town: Town, number: int) -> bool:
    """Whether the cluster knows that this broker is low on space."""
    known = town.cluster.image.brokers.get(number)  # type: ignore[call-overload]
    return known is not None and known.low_space


def test_leadership_moves_where_there_is_room_and_nobody_is_refused_for_long(world: World) -> None:
    town = Town(world)
    town.produce(20)
    full = town.leader() or 0
    fill(town.cluster.hosts[full], 1999)
    town.cluster.until(lambda: town.leader() not in {None, full}, 5)
    town.produce(10)
    state = town.partition(full).state
    assert state is not None
    assert full in state.isr, "it has every record, and says so"
    assert not town.cluster.image.brokers[full].fenced  # type: ignore[index]
    assert town.read() == town.sent


def test_a_full_broker_goes_on_following_in_topics_that_others_lead(world: World) -> None:
    """One topic's leader has no room: neither its own topic nor another one waits for it."""
    town = Town(world)
    clicks = town.make("clicks")
    town.produce(10)
    full = town.leader() or 0
    fill(town.cluster.hosts[full], 1999)
    town.cluster.until(lambda: low(town, full), 5)
    image, places = town.cluster.image, (town.place, clicks)
    town.cluster.until(lambda: full not in [image.partitions[place].leader for place in places], 5)
    for _ in range(5):
        town.do(lambda client: deliver(client, clicks, [b"click"] * 2, topic="clicks"))
    for place, end in ((town.place, 10), (clicks, 10)):
        assert full in town.cluster.image.partitions[place].isr
        log = town.cluster.brokers[full].replicas.partitions[place].log
        town.cluster.until(lambda log=log, end=end: log.end_offset == end, 5)  # type: ignore[misc]


def test_records_are_refused_below_the_mark_and_taken_above_it(world: World) -> None:
    town = Town(world)
    town.produce(10)
    led, others = town.leader() or 0, town.others()
    for number in others:
        fill(town.cluster.hosts[number], 1999)
    town.cluster.until(lambda: all(low(town, number) for number in others), 5)
    fill(town.cluster.hosts[led], 1999)
    town.cluster.until(lambda: low(town, led), 5)
    assert town.leader() == led, "nobody has room, so nobody moves"
    refusal = town.do(lambda client: try_to_send(client, town))
    assert refusal.startswith("DISK_FULL"), refusal
    assert "/data has" in refusal
    assert "bytes free, records are taken again from 3000 on: make room" in refusal
    assert town.read() == town.sent, "reads go on"
    for host in town.cluster.hosts.values():
        free(host)
    town.produce(10)
    town.cluster.until(lambda: not any(low(town, number) for number in (1, 2, 3)), 5)
    town.converge()
    assert town.read() == town.sent


async def try_to_send(client: Probe, town: Town) -> str:
    """The name of the error that a record is refused with, and its message."""
    leader = await client.leader("orders", town.place)
    answer = await send(client, leader, town.place, [b"one more"])
    return f"{BY_CODE[answer.error].name()} {answer.message}" if answer.error else "taken"


def test_records_are_deleted_while_nothing_more_fits_and_that_makes_room(world: World) -> None:
    upkeep = QUICK["upkeep"]
    town = Town(
        world,
        config=with_config(upkeep=type(upkeep)(check_interval_ms=500)),
        file_delete_delay_ms="0",
    )
    town.produce(200)
    for host in town.cluster.hosts.values():
        fill(host)
    town.cluster.until(lambda: all(low(town, number) for number in (1, 2, 3)), 5)

    async def delete(client: Probe) -> bool:
        request = DeleteRecords((DeleteBefore(*town.place, 180),), timeout_ms=5000)
        while True:
            reply, _ = await client.ask(await client.leader("orders", town.place), request)
            assert isinstance(reply, DeleteRecordsReply)
            if not reply.partitions[0].error:
                return True
            await client.trouble("orders")

    assert town.do(delete)
    town.cluster.until(lambda: not any(low(town, number) for number in (1, 2, 3)), 20)
    town.produce(10)
    log = town.partition(town.leader() or 0).log
    assert (log.log_start, log.end_offset) == (180, 210)


@pytest.mark.slow
def test_the_preferred_leader_leads_again_when_it_has_room(world: World) -> None:
    town = Town(world)
    first = town.partition(1).state.replicas[0]  # type: ignore[union-attr]
    town.cluster.until(lambda: town.leader() == first, 10)
    fill(town.cluster.hosts[first], 1000)
    town.cluster.until(lambda: town.leader() not in {None, first}, 5)
    free(town.cluster.hosts[first])
    town.cluster.until(lambda: town.leader() == first, 2 * INTERVAL_MS / 1000)
    town.converge()


def test_a_broker_that_starts_on_a_full_disk_keeps_its_standing(world: World) -> None:
    town = Town(world)
    town.produce(20)
    number = town.leader() or 0
    host = town.cluster.hosts[number]
    for _ in range(3):
        host.kill()
        fill(host)
        town.cluster.start(number)
        town.cluster.until(
            lambda: number in town.cluster.brokers and town.cluster.brokers[number].serving, 20
        )
        assert town.cluster.brokers[number].worst_end == CrashKind.PROCESS
    town.cluster.until(lambda: number in town.cluster.image.partitions[town.place].isr, 20)
    free(host)
    town.converge()


def test_elections_of_controllers_go_on_with_full_disks(world: World) -> None:
    town = Town(world, config=QUICK)
    elect_on_full_disks(town)


def elect_on_full_disks(town: Town) -> None:
    """Every controller's disk is full, and the active one is killed, several times over."""
    for host in town.cluster.quorum.values():
        fill(host)
    for _ in range(3):
        active = town.cluster.active
        assert active is not None
        number, _ = active
        town.cluster.quorum[number].kill()
        town.cluster.start_controller(number)
        town.cluster.until(lambda: town.cluster.active is not None, 20)
    assert all(host.alive for host in town.cluster.quorum.values())
    town.produce(10)


def test_who_asks_is_told_which_broker_is_low_on_space(world: World) -> None:
    town = Town(world)
    fill(town.cluster.hosts[2])
    town.cluster.until(lambda: low(town, 2), 5)

    async def ask(client: Probe) -> tuple[BrokerDescribed, ...]:
        reply, _ = await client.ask(town.address(1), DescribeCluster())
        assert isinstance(reply, DescribeClusterReply)
        return reply.brokers

    town.cluster.until(lambda: [b.low_space for b in town.do(ask)] == [False, True, False], 5)


@pytest.mark.parametrize("room", [0, 100, 5000])
def test_a_follower_on_a_full_disk_falls_out_of_sync_and_comes_back(world: World, room: int) -> None:
    town = Town(world, config=with_config(flush=FlushSettings(3000, 64 << 10, 700, 3000, min_free_bytes=0)))
    behind = town.others()[0]
    fill(town.cluster.hosts[behind], room)
    town.produce(200)
    town.cluster.until(lambda: behind not in town.cluster.image.partitions[town.place].isr, 10)
    assert town.cluster.hosts[behind].alive
    free(town.cluster.hosts[behind])
    town.converge()
    assert once(town.read()) == town.sent


def once(values: list[bytes]) -> list[bytes]:
    """Without what was sent again because its answer did not come."""
    return list(dict.fromkeys(values))
