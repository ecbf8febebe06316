"""Which process may act on what the metadata log says of its broker: D8, in clusters made for it."""

from tests.simulation.directed import Town
from tests.simulation.test_directed_cluster import second_process
from tidelog.testing.simulation.world import World


def test_who_restarts_takes_no_role_from_before_its_own_registration(world: World) -> None:
    """D8: its copy of the metadata log may name it leader of what others lead, or of what it has lost."""
    town = Town(world)
    town.produce(20)
    town.cluster.pass_time(4)
    old = town.leader() or 0
    epoch = town.partition(old).leader_epoch
    town.cluster.hosts[old].kill()
    town.cluster.start(old)
    town.cluster.until(lambda: old in town.cluster.brokers and town.cluster.brokers[old].serving, 20)
    leadership = town.partition(old).leadership
    assert leadership is None or leadership.state.leader_epoch > epoch


def test_who_finds_that_another_process_has_taken_its_id_ends(world: World) -> None:
    """D8: what the metadata log says of that id from then on is meant for the other one."""
    town = Town(world)
    town.cluster.hosts[1].stop()
    twin, broker = second_process(town, 1)
    town.cluster.until(lambda: broker[0].serving, 10)
    town.cluster.hosts[1].resume()
    town.cluster.pass_time(2)
    assert (town.cluster.hosts[1].alive, twin.alive) == (False, True)
