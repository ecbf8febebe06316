"""Which process may act on what the metadata log says of its broker: D8, in clusters made for it."""

from collections.abc import Iterator

from tests.simulation.directed import Town
from tests.simulation.test_directed_cluster import second_process
from tidelog.controller.facts import METADATA
from tidelog.controller.observer import Observer
from tidelog.protocol.messages import DeleteTopics, DeleteTopicsReply
from tidelog.protocol.types import BrokerId, Epoch, Offset
from tidelog.testing.simulation.world import World


def reads_no_further_than(observer: Observer, offset: Offset) -> None:
    """What comes behind it in the metadata log is not known to be committed yet."""
    fetched = observer.fetched

    def capped(controller: BrokerId, epoch: Epoch, high_watermark: Offset) -> Iterator[None]:
        return fetched(controller, epoch, min(high_watermark, offset))

    observer.fetched = capped  # type: ignore[method-assign]


def test_who_restarts_takes_no_role_from_before_its_own_registration(world: World) -> None:
    """What it has read so far names it leader, while others lead, of what it may have lost."""
    town = Town(world)
    town.produce(20)
    town.cluster.pass_time(4)
    old = town.leader() or 0
    epoch, read = town.partition(old).leader_epoch, town.cluster.brokers[old].observer.caught_up_to
    town.cluster.hosts[old].kill()
    town.cluster.start(old)
    town.cluster.until(lambda: hasattr(town.cluster.brokers.get(old), "observer"), 5)
    broker = town.cluster.brokers[old]
    reads_no_further_than(broker.observer, read)
    town.cluster.pass_time(2)
    assert broker.observer.image.partitions[town.place].leader == old
    assert (broker._membership.epoch > 0, broker.serving) == (True, False)
    del broker.observer.fetched
    town.cluster.until(lambda: broker.serving, 5)
    leadership = town.partition(old).leadership
    assert leadership is None or leadership.state.leader_epoch > epoch


def test_who_finds_that_another_process_has_taken_its_id_ends(world: World) -> None:
    """What the metadata log says of that id from then on is meant for the other one."""
    town = Town(world)
    town.cluster.hosts[1].stop()
    twin, broker = second_process(town, 1)
    town.cluster.until(lambda: broker[0].serving, 10)
    town.cluster.hosts[1].resume()
    town.cluster.pass_time(2)
    assert (town.cluster.hosts[1].alive, twin.alive) == (False, True)


def test_who_was_away_while_its_replica_was_taken_from_it_keeps_the_log_aside(world: World) -> None:
    """I-37: under the same name it would be served again, or taken for caught up."""
    town = Town(world)
    town.produce(20)
    town.cluster.hosts[1].kill()
    town.cluster.until(lambda: town.leader() not in {None, 1}, 10)
    leader = town.leader() or 0
    reply, _ = town.do(lambda client: client.ask(town.address(leader), DeleteTopics(("orders",))))
    assert isinstance(reply, DeleteTopicsReply)
    assert not reply.error
    town.cluster.start(1)
    town.cluster.until(lambda: 1 in town.cluster.brokers and town.cluster.brokers[1].serving, 10)
    data = town.cluster.brokers[1].data
    assert (list(data.logs), len(data.report.stray)) == ([METADATA], 1)
