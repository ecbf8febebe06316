"""What `flush.mode` promises, told from the outside: every end of a broker, and what it costs (D6, D7, D12; ADR 73).

A topic is `async` or `group` for good: so a log of a `group` topic was written in `group` from its first byte on, and
after the end of a machine nothing else has to be known of it.
"""

import pytest

from tests.simulation.cluster import with_config
from tests.simulation.directed import Town, deliver
from tests.simulation.invariants import Violation
from tests.simulation.planted import unclean_restarts_keep_their_standing
from tests.simulation.stage import Worst
from tidelog.controller.snapshots import SnapshotConfig
from tidelog.protocol.messages import (
    AlterConfigs,
    AlterConfigsReply,
    ConfigAlter,
    CreateTopics,
    CreateTopicsReply,
    DescribeCluster,
    DescribeClusterReply,
    NewTopic,
    PossibleLoss,
    ResourceAlter,
)
from tidelog.protocol.types import NO_BROKER
from tidelog.replication.sessions import Place
from tidelog.storage.crashes import CrashKind
from tidelog.testing.simulation.world import World


def start_all(town: Town) -> None:
    for number in town.cluster.hosts:
        town.cluster.start(number)
    town.cluster.until(lambda: all_serve(town), 30)


def all_serve(town: Town) -> bool:
    return all(serves(town, number) for number in town.cluster.hosts)


def serves(town: Town, number: int) -> bool:
    node = town.cluster.brokers.get(number)
    return node is not None and node.serving


def cut_all_power(town: Town) -> None:
    for host in town.cluster.hosts.values():
        host.power_cut()


# ── the loss of power ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_in_group_the_loss_of_all_power_at_any_moment_takes_nothing_that_was_acknowledged(seed: int) -> None:
    with World(100 + seed).running() as world:
        town = Town(world, flush_mode="group")
        for _ in range(3):
            for host in town.cluster.hosts.values():
                host.slow_disk((50, 100))  # what is acknowledged before its flush is lost for certain
            town.produce(20)
            town.cluster.pass_time(world.rng.uniform(0, 0.1))
            cut_all_power(town)
            for host in town.cluster.hosts.values():
                host.slow_disk((0.02, 5))
            start_all(town)
            town.converge(60)
            assert list(dict.fromkeys(town.read())) == town.sent


def test_a_disk_whose_flush_does_not_end_holds_up_nobody_for_longer_than_the_lag(world: World) -> None:
    """It fetches on, and appends what it gets: the others have all of it on their disks."""
    town = Town(world, flush_mode="group")
    town.produce(10)
    hangs = town.others()[0]
    town.cluster.hosts[hangs].slow_disk((3.6e6, 3.6e6))
    town.do(lambda client: deliver(client, town.place, [b"later"]), 30)
    state = town.cluster.image.partitions[town.place]
    assert len(state.isr) == 2
    assert hangs not in state.isr


def test_in_async_the_loss_of_all_power_leaves_no_leader_rather_than_one_that_lacks_something(
    world: World,
) -> None:
    town = Town(world)
    town.produce(20)
    cut_all_power(town)
    start_all(town)
    town.cluster.pass_time(10)
    for broker in town.cluster.brokers.values():
        state = broker.observer.image.partitions[town.place]
        assert (state.leader, broker.worst_end) == (NO_BROKER, CrashKind.HOST)


def test_in_async_what_was_lost_on_one_machine_the_others_have(world: World) -> None:
    town = Town(world)
    town.produce(50)
    for number in list(town.cluster.hosts):
        town.cluster.hosts[number].power_cut()
        town.cluster.until(lambda number=number: town.leader() not in {None, number}, 20)  # type: ignore[misc]
        town.produce(10)
        town.cluster.start(number)
        town.converge(60)
        assert list(dict.fromkeys(town.read())) == town.sent


def last_in_sync_loses_its_power(world: World) -> Town:
    """The followers die, the leader goes on alone; then its machine takes all that was not flushed, and is back first."""
    town = Town(world)
    leader = town.leader() or 0
    town.produce(20)
    for number in town.others():
        town.cluster.hosts[number].kill()
    town.cluster.until(lambda: town.cluster.image.partitions[town.place].isr == (leader,), 20)
    host = town.cluster.hosts[leader]
    host.disk._rng = Worst()
    host.power_cut()
    town.cluster.start(leader)
    town.cluster.until(lambda: serves(town, leader), 30)
    town.cluster.pass_time(2)
    return town


def test_who_lost_what_was_committed_leaves_the_lead_to_who_has_it(world: World) -> None:
    """D6: its log is empty; those who died beside it have everything, and one of them leads as soon as it is back."""
    town = last_in_sync_loses_its_power(world)
    assert town.leader() is None
    start_those_who_are_down(town)
    town.converge(60)
    assert town.read() == town.sent


def test_a_loss_of_power_that_costs_nothing_is_caught(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    unclean_restarts_keep_their_standing(monkeypatch)
    with pytest.raises(Violation, match="LeaderCompleteness"):
        last_in_sync_loses_its_power(world)


def start_those_who_are_down(town: Town) -> None:
    for number, host in town.cluster.hosts.items():
        if not host.alive:
            town.cluster.start(number)
    town.cluster.until(lambda: all_serve(town), 30)


def test_a_single_replica_comes_back_with_what_it_has_and_that_it_may_lack_some_is_told(world: World) -> None:
    """DECISIONS 5: nobody else has more; but nobody is to believe that all is there."""
    town = Town(world)
    single = NewTopic("single", 1, 1)
    reply, _ = town.do(lambda client: client.ask(town.address(1), CreateTopics((single,))))
    assert isinstance(reply, CreateTopicsReply)
    place = reply.topics[0].topic_id or b"", 0
    town.cluster.until(lambda: keepers(town, place), 10)
    assert told(town) == ()
    [owner] = keepers(town, place)
    town.cluster.hosts[owner].power_cut()
    town.cluster.pass_time(5)
    town.cluster.start(owner)
    town.cluster.until(lambda: serves(town, owner) and told(town), 30)
    [lost] = told(town)
    assert (lost.topic, lost.index, lost.leader) == ("single", 0, owner)


def keepers(town: Town, place: Place) -> list[int]:
    return [number for number, kept in town.cluster.replicas() if kept == place]


def told(town: Town) -> tuple[PossibleLoss, ...]:
    """What `cluster health` is told."""
    reply, _ = town.do(lambda client: client.ask(town.address(next(iter(alive(town)))), DescribeCluster()))
    assert isinstance(reply, DescribeClusterReply)
    assert reply.unclean == len(reply.possible_losses)
    return reply.possible_losses


def alive(town: Town) -> list[int]:
    return [number for number, host in town.cluster.hosts.items() if host.alive and serves(town, number)]


# ── every end is known for what it was ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["async", "group"])
@pytest.mark.parametrize(
    ("end", "kind"), [("kill", CrashKind.PROCESS), ("power_cut", CrashKind.HOST), ("halt", CrashKind.PROCESS)]
)
def test_a_broker_that_comes_back_says_how_it_ended(
    world: World, mode: str, end: str, kind: CrashKind
) -> None:
    town = Town(world, flush_mode=mode)
    town.produce(20)
    number = town.others()[0]
    host = town.cluster.hosts[number]
    if end == "halt":
        host.disk.fail_flush(suffix=".log")
        town.produce(20)
        town.cluster.until(lambda: not host.alive, 60)
    else:
        getattr(host, end)()
    town.cluster.until(lambda: not host.alive, 10)
    town.cluster.start(number)
    town.cluster.until(lambda: serves(town, number), 30)
    assert town.cluster.brokers[number].worst_end is kind
    town.converge(60)
    assert list(dict.fromkeys(town.read())) == town.sent


@pytest.mark.parametrize("mode", ["async", "group"])
def test_a_flush_that_fails_ends_the_leaders_process_and_loses_nothing(world: World, mode: str) -> None:
    """The pages look right afterwards and are not on the disk: only a recovery that writes them again is believed."""
    town = Town(world, flush_mode=mode)
    town.produce(30)
    leader = town.leader() or 0
    host = town.cluster.hosts[leader]
    host.disk.fail_flush(suffix=".log")
    town.produce(20)
    town.cluster.until(lambda: not host.alive, 60)
    town.cluster.until(lambda: town.leader() not in {None, leader}, 20)
    town.produce(20)
    town.cluster.start(leader)
    town.converge(60)
    if mode == "group":
        cut_all_power(town)
        start_all(town)
        town.converge(60)
    assert list(dict.fromkeys(town.read())) == town.sent


# ── a topic keeps its mode ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("mode", "other"), [("async", "group"), ("group", "async")])
def test_the_mode_of_a_topic_is_decided_when_it_is_made(world: World, mode: str, other: str) -> None:
    town = Town(world, flush_mode=mode)
    town.produce(10)
    asked = ResourceAlter("topic", "orders", (ConfigAlter("flush.mode", other),))
    reply, _ = town.do(lambda client: client.ask(town.address(1), AlterConfigs((asked,))))
    assert isinstance(reply, AlterConfigsReply)
    told = reply.resources[0].message or ""
    assert f"orders was made with flush.mode={mode}, and only that is accepted" in told
    assert "\n" not in told
    for broker in town.cluster.brokers.values():
        assert broker.observer.image.partitions[town.place].flush_group is (mode == "group")


# ── a stop in order ───────────────────────────────────────────────────────────────────────────────────


def test_who_is_stopped_while_it_shortens_its_metadata_log_ends_in_order(world: World) -> None:
    often = SnapshotConfig(metadata_log_max_record_bytes_between_snapshots=512)
    town = Town(world, config=with_config(snapshots=often))
    host, broker = town.cluster.hosts[1], town.cluster.brokers[1]
    host.slow_disk((1500, 2000))
    town.cluster.until(lambda: broker.observer.log.is_flushing, 60)
    town.cluster.stop(1, 60)
    assert host.exit_code == 0
    town.cluster.start(1)
    town.cluster.until(lambda: serves(town, 1), 60)
    assert town.cluster.brokers[1].worst_end is CrashKind.CLEAN
