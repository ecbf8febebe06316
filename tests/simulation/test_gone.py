"""A partition's directory that is gone as a whole, and one that was never made: who may lead then (ADR 120)."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.simulation.directed import TOPIC, Town
from tests.simulation.test_disks import TwoDisks
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.messages import CreateTopics, DeleteTopics, DeleteTopicsReply, NewTopic
from tidelog.replication.sessions import Place
from tidelog.storage.checkpoints import RECOVERY_POINTS
from tidelog.storage.identity import PARTITION_METADATA
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.world import Unexpected, World

DIRECTORY = f"{TOPIC}-0"


def last_in_sync(town: Town) -> int:
    """Who is left when the others are killed; what there is of its log has come into the checkpoints."""
    keeper = town.leader_of(town.place) if isinstance(town, TwoDisks) else town.leader()
    assert keeper
    for number in town.cluster.hosts:
        if number != keeper:
            town.cluster.hosts[number].kill()
    town.cluster.until(lambda: town.cluster.image.partitions[town.place].isr == (keeper,), 20)
    town.cluster.pass_time(6)
    return keeper


def on_one(town: Town, number: int) -> tuple[SimulatedDisk, str]:
    return town.cluster.hosts[number].disk, "/data"


def on_the_second(town: Town, number: int) -> tuple[SimulatedDisk, str]:
    return town.cluster.hosts[number].more_disks[0], "/more-1"


@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped"])
@pytest.mark.parametrize(("new_town", "where"), [(Town, on_one), (TwoDisks, on_the_second)])
@pytest.mark.parametrize("what", ["everything", "whose it is"])
def test_who_has_lost_the_directory_of_a_partition_is_not_elected_for_it(
    world: World,
    new_town: type[Town],
    where: Callable[[Town, int], tuple[SimulatedDisk, str]],
    stopped: bool,
    what: str,
) -> None:
    """It was the last one in sync. When the others are back, it copies what they have."""
    town = new_town(world)
    other = town.make("others")
    town.produce(20)
    keeper = last_in_sync(town)
    if stopped:
        town.cluster.stop(keeper)
    town.cluster.hosts[keeper].kill()
    disk, path = where(town, keeper)
    if what == "everything":
        disk.open_directory(path).remove_directory(DIRECTORY)
    else:
        disk.open_directory(path).directory(DIRECTORY).remove(PARTITION_METADATA)
    town.cluster.start(keeper)
    town.cluster.until(lambda: town.cluster.image.partitions[other].leader == keeper, 30)
    town.cluster.pass_time(5)
    assert not any(data.gone for data in town.cluster.brokers[keeper].data.all), "it has been told"
    for _ in range(2):  # once it has a new, empty one, as well
        state = town.cluster.image.partitions[town.place]
        assert keeper not in {state.leader, *state.isr, *state.elr}
        town.cluster.hosts[keeper].kill()
        town.cluster.start(keeper)
        town.cluster.pass_time(15)
    assert any(name == DIRECTORY for name in disk.open_directory(path).names()), "it has made it anew"
    for number in town.cluster.hosts:
        if number != keeper:
            town.cluster.start(number)
    town.converge()
    assert town.read() == town.sent


def test_what_a_start_finds_wrong_with_a_cache_is_said_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is lost by it: only the log tells that the disk begins to rot."""
    town = Town(world)
    town.produce(20)
    town.cluster.stop(1)
    controller, host = town.cluster.controller, town.cluster.hosts[1]
    controller.kill()
    host.disk.fail_reads(f"/data/{DIRECTORY}/{0:020}.index", 0, 1 << 20)
    controller.disk.rot(f"/data/{RECOVERY_POINTS}", 0)
    town.cluster.start_controller()
    town.cluster.start(1)
    town.cluster.until(lambda: 1 in town.cluster.brokers and town.cluster.brokers[1].serving, 20)
    town.cluster.stop(1)
    said = [record.message for record in caplog.records if record.message.startswith("storage.problem ")]
    of_cache, of_checkpoint = sorted(said)  # each by its own node, whichever is first
    assert of_cache == f"storage.problem /data/{DIRECTORY}/{0:020}.index: Input/output error"
    assert RECOVERY_POINTS in of_checkpoint


def remove_topic(town: Town) -> None:
    """Until the last of it has just gone from every disk: the checkpoints that speak of it are not due."""
    town.cluster.pass_time(4)
    leader = town.leader() or 0
    reply, _ = town.do(lambda client: client.ask(town.address(leader), DeleteTopics((TOPIC,))))
    assert isinstance(reply, DeleteTopicsReply)
    disks = [host.disk for host in town.cluster.hosts.values()]
    town.cluster.until(lambda: not any(names_like(disk) for disk in disks), 10)


def names_like(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.open_directory().names() if name.startswith(DIRECTORY)]


def comes_back_alone(town: Town, place: Place) -> int:
    """All have been killed: one of those who are known to have everything leads."""
    partitions = town.cluster.image.partitions
    town.cluster.until(lambda: not partitions[place].isr and partitions[place].elr, 20)
    back = partitions[place].elr[0]
    town.cluster.start(back)
    town.cluster.until(lambda: partitions[place].leader == back, 20)
    return back


async def make_again(town: Town) -> None:
    with suppress(TidelogError):  # the broker that is asked dies
        await town.client.ask(town.address(1), CreateTopics((NewTopic(TOPIC, 1, 3),), timeout_ms=2000))


def test_who_was_killed_before_it_made_the_directory_keeps_its_standing(world: World) -> None:
    """Of a topic that was made again: what checkpoints said of the old one is not said of the new one."""
    town = Town(world)
    town.produce(20)
    remove_topic(town)
    town.host.spawn(make_again(town))
    town.cluster.until(lambda: TOPIC in town.cluster.image.topic_ids, 10)
    for host in town.cluster.hosts.values():
        host.kill()
        assert not names_like(host.disk)
    assert town.cluster.image.topic_ids[TOPIC] != town.place[0]
    comes_back_alone(town, (town.cluster.image.topic_ids[TOPIC], 0))


def test_who_was_killed_while_a_topic_was_removed_keeps_its_standing(world: World) -> None:
    town = Town(world)
    other = town.make("others")
    town.produce(20)
    remove_topic(town)
    for host in town.cluster.hosts.values():
        host.kill()
    back = comes_back_alone(town, other)
    assert not town.cluster.brokers[back].data.report.problems


@pytest.mark.parametrize("file", [PARTITION_METADATA, f"{0:020}.log"])
def test_a_broker_to_which_its_disk_does_not_give_the_metadata_log_says_so_and_ends(
    world: World, file: str
) -> None:
    town = Town(world)
    host = town.cluster.hosts[1]
    host.kill()
    host.disk.fail_reads(f"/data/__metadata-0/{file}", 0, 1 << 20)
    town.cluster.start(1)
    with pytest.raises(Unexpected, match="StorageError: __metadata-0 could not be opened"):
        town.cluster.pass_time(5)
