"""Clusters in situations that are made on purpose: each a sentence, each over in a few virtual seconds."""

from functools import partial

import pytest

from tests.simulation.cluster import QUICK, with_config
from tests.simulation.directed import Town, fetch, send
from tests.simulation.probe import Probe
from tidelog.broker.broker import Broker
from tidelog.controller.election import fence
from tidelog.controller.liveness import Sessions
from tidelog.protocol.errors import BY_CODE, NotLeaderOrFollower, TidelogError
from tidelog.protocol.messages import (
    DeleteBefore,
    DeleteRecords,
    DeleteRecordsReply,
    InitProducerId,
    InitProducerIdReply,
)
from tidelog.protocol.types import BrokerId
from tidelog.storage.config import LogConfig
from tidelog.storage.crashes import RUNNING, CrashKind
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.world import World


@pytest.mark.parametrize("mode", ["async", "group"])
def test_what_is_produced_is_read_on_every_replica(world: World, mode: str) -> None:
    town = Town(world, flush_mode=mode)
    town.produce(100)
    assert town.read() == town.sent
    town.converge()
    assert {partition.log.end_offset for partition in town.cluster.replicas().values()} == {100}


def test_with_flush_mode_group_what_is_acknowledged_is_on_a_disk(world: World) -> None:
    town = Town(world, flush_mode="group")
    town.produce(30)
    for number in town.cluster.hosts:
        assert town.partition(number).log.durable_offset == 30
        town.cluster.hosts[number].power_cut()
    for number in town.cluster.hosts:
        town.cluster.start(number)
    town.converge()
    assert town.read() == town.sent


def test_a_follower_far_behind_comes_back_fetch_by_fetch(world: World) -> None:
    town = Town(world)
    behind = town.others()[0]
    town.cluster.hosts[behind].kill()
    town.produce(300, size=200)
    assert town.partition(town.leader() or 0).log.size > 4 * QUICK["fetch"].partition_max_bytes
    town.cluster.start(behind)
    town.converge()
    assert town.partition(behind).log.end_offset == 300


def test_a_follower_that_was_away_while_records_were_deleted_begins_behind_them(world: World) -> None:
    town = Town(world)
    town.produce(50)
    town.converge()
    away = town.others()[0]
    town.cluster.hosts[away].kill()
    town.produce(100)
    delete = DeleteRecords((DeleteBefore(*town.place, 120),), 5000)
    leader = town.leader() or 0
    reply, _ = town.do(lambda client: client.ask(town.address(leader), delete))
    assert isinstance(reply, DeleteRecordsReply)
    assert (reply.partitions[0].error, reply.partitions[0].low_watermark) == (0, 120)
    town.cluster.start(away)
    town.converge()
    assert town.partition(away).log.log_start == 120


def test_a_deletion_survives_the_loss_of_its_leader(world: World) -> None:
    town = Town(world)
    town.produce(50)
    leader = town.leader() or 0
    delete = DeleteRecords((DeleteBefore(*town.place, 20),), 5000)
    town.do(lambda client: client.ask(town.address(leader), delete))
    town.cluster.hosts[leader].kill()
    town.cluster.until(lambda: town.leader() not in {None, leader}, 10)
    assert town.partition(town.leader() or 0).log.log_start == 20


def test_sessions_may_be_lost_at_any_moment(world: World) -> None:
    town = Town(world)
    for _ in range(20):
        town.produce(10)
        broker = town.cluster.brokers[world.rng.choice([1, 2, 3])]
        broker.replicas.sessions.drop_all()
        town.cluster.pass_time(world.rng.uniform(0, 0.1))
    town.converge()
    assert town.read() == town.sent


def test_a_consumer_reads_from_the_replica_in_its_rack(world: World) -> None:
    town = Town(world, racks={1: "r1", 2: "r2", 3: "r3"})
    town.produce(20)
    leader, near = town.leader() or 0, town.others()[0]
    rack, epoch = f"r{near}", town.partition(near).leader_epoch
    asked, given = town.do(lambda client: fetch(client, town.address(leader), town.place, 0, rack=rack))
    assert (asked.preferred_read_replica, given) == (near, [])
    town.cluster.until(lambda: town.partition(near).high_watermark == 20, 1)
    read = partial(fetch, address=town.address(near), place=town.place, offset=0, rack=rack, epoch=epoch)
    _, given = town.do(read)
    assert given == town.sent


def test_whoever_reads_nearby_sees_soon_what_is_committed(world: World) -> None:
    config = with_config(fetch=QUICK["fetch"].__class__(max_wait_ms=500, timeout_ms=1000))
    town = Town(world, config=config, racks={1: "r1", 2: "r2", 3: "r3"})
    leader, near = town.leader() or 0, town.others()[0]

    def sent_to() -> int:
        """Whom the leader sends a consumer to that stands there: itself, until the other one has fetched."""
        asked = town.do(lambda client: fetch(client, town.address(leader), town.place, 0, rack=f"r{near}"))
        return asked[0].preferred_read_replica

    assert any(sent_to() == near for _ in range(1000))
    town.produce(10)
    town.cluster.until(lambda: town.partition(near).high_watermark == 10, 0.25)


def test_a_rolling_restart_in_order_scans_nothing_and_fails_nobody(world: World) -> None:
    town = Town(world)
    for number in town.cluster.hosts:
        town.produce(20)
        town.cluster.stop(number)
        assert town.cluster.hosts[number].exit_code == 0
        town.produce(20)
        town.cluster.start(number)
        town.converge()
        data = town.cluster.brokers[number].data
        assert data.first.life.last_end is CrashKind.CLEAN
        assert [found.verified_bytes for found in data.report.found.values()] == [0, 0]
    assert town.read() == town.sent


def test_a_stop_in_order_moves_the_leadership_before_anybody_notices(world: World) -> None:
    town = Town(world)
    leader = town.leader() or 0
    began = world.now
    town.cluster.stop(leader)
    town.cluster.until(lambda: town.leader() not in {None, leader}, 1)
    assert world.now - began < QUICK["broker_session_timeout_ms"] / 1000, "nobody had to fall silent first"


def test_a_stop_without_a_controller_ends_all_the_same(world: World) -> None:
    town = Town(world, config=with_config(controlled_shutdown_max_ms=500))
    town.cluster.controller.kill()
    town.cluster.stop(1, 3)
    town.cluster.start_controller()
    town.cluster.start(1)
    town.converge()
    assert town.cluster.brokers[1].data.first.life.last_end is CrashKind.CLEAN


def test_a_leader_that_was_paused_commits_nothing_and_shows_nothing(world: World) -> None:
    town = Town(world)
    town.produce(20)
    old = town.leader() or 0
    town.cluster.hosts[old].stop()
    town.cluster.until(lambda: town.leader() not in {None, old}, 10)
    town.produce(20)
    town.cluster.hosts[old].resume()
    answer = town.do(lambda client: send(client, town.address(old), town.place, [b"zombie"]))
    assert answer.error == NotLeaderOrFollower.code
    seen, _ = town.do(lambda client: fetch(client, town.address(old), town.place, 0))
    assert seen.error == NotLeaderOrFollower.code
    town.converge()
    assert town.read() == town.sent


def old_leader_whose_replay_hangs(world: World) -> tuple[Town, int]:
    """Its leadership goes to another, by mistake; its heartbeats pass, and it reads no more of the metadata."""
    town = Town(world)
    town.produce(20)
    old = town.leader() or 0
    town.cluster.brokers[old].observer._replay = lambda: iter(())  # type: ignore[method-assign]
    node = town.cluster.controllers[-1]

    async def depose() -> None:
        assert node.active is not None
        node.active.append(fence(node.working, BrokerId(old)))

    world.result(town.cluster.controller.create_task(depose()), world.now + 1)
    town.cluster.until(lambda: not node.working.brokers[BrokerId(old)].fenced, 2)
    town.cluster.until(lambda: town.leader() not in {None, old}, 2)
    return town, old


def serves(town: Town, number: int) -> bool:
    return town.do(lambda client: fetch(client, town.address(number), town.place, 0))[0].error == 0


def test_a_deposed_leader_whose_replay_hangs_answers_no_longer_than_a_session(world: World) -> None:
    town, old = old_leader_whose_replay_hangs(world)
    town.cluster.pass_time(QUICK["broker_session_timeout_ms"] / 1000)
    assert not serves(town, old)
    assert not town.cluster.controllers[-1].working.brokers[BrokerId(old)].fenced


def test_leases_without_metadata_let_it_answer_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sessions, "renews", lambda *_: True)
    town, old = old_leader_whose_replay_hangs(world)
    town.cluster.pass_time(10)
    assert serves(town, old)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_broker_whose_marker_rots_has_lost_its_count_and_comes_back(world: World, number: int) -> None:
    town = Town(world)
    for _ in range(4):
        town.cluster.hosts[number].kill()
        town.cluster.start(number)
        town.converge()
    town.cluster.hosts[number].kill()
    town.cluster.hosts[number].disk.rot(f"/data/{RUNNING}", 20, 1)
    town.cluster.start(number)
    town.converge()
    assert town.cluster.brokers[number].data.first.life.start == 6
    assert town.cluster.controllers[-1].working.brokers[BrokerId(number)].start == 6


def test_of_two_processes_with_one_id_one_serves(world: World) -> None:
    town = Town(world)
    twin, broker = second_process(town, 1)

    def serving() -> tuple[bool, bool]:
        return town.cluster.brokers[1].serving, broker[0].serving

    town.cluster.pass_time(3)
    assert serving() == (True, False)
    town.cluster.hosts[1].kill()
    town.cluster.until(lambda: broker[0].serving, 10)
    town.cluster.start(1)
    town.cluster.pass_time(3)
    assert serving() == (False, True)
    assert twin.alive


def second_process(town: Town, number: int) -> tuple[Host, list[Broker]]:
    """Another machine with another disk, and a broker on it that says it is this one."""
    started: list[Broker] = []
    twin = Host("twin", town.world)
    twin.start(partial(town.cluster.run_broker, number, started.append))
    town.cluster.until(lambda: started, 1)
    return twin, started


def test_a_full_disk_is_lived_through(world: World) -> None:
    town = Town(world, config=with_config(log=LogConfig(segment_bytes=4096, index_interval_bytes=256)))
    full = town.cluster.hosts[town.leader() or 0]
    full.disk.capacity = full.disk.medium.used + 2000
    tried = town.do(lambda client: some(client, town, 40))
    assert "DISK_FULL" in tried
    town.cluster.pass_time(4)
    assert full.alive
    full.disk.capacity = 1 << 40
    town.cluster.pass_time(1.5)
    town.produce(50)
    town.converge()


async def some(client: Probe, town: Town, count: int) -> set[str]:
    """Try so many batches at whoever leads; which errors there were."""
    errors: set[str] = set()
    for _ in range(count):
        try:
            leader = await client.leader("orders", town.place)
            answer = await send(client, leader, town.place, [b"x" * 200])
            errors |= {BY_CODE[answer.error].name()} if answer.error else set()
        except TidelogError as error:
            errors.add(error.name())
    return errors


def test_producer_ids_are_given_once_whichever_broker_is_asked(world: World) -> None:
    town = Town(world)
    given: list[int] = []
    for number in (1, 2, 3, 1, 2):
        reply, _ = town.do(lambda client, number=number: client.ask(town.address(number), InitProducerId()))  # type: ignore[misc]
        assert isinstance(reply, InitProducerIdReply)
        given.append(reply.producer_id)
    assert len(set(given)) == 5
