"""What operators do to a cluster of three controllers, through any broker, and what becomes of it on every broker."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.simulation.cluster import BROKER_PORT, Cluster
from tests.simulation.directed import TOPIC, deliver, read_all, send
from tests.simulation.history import History
from tests.simulation.probe import Probe
from tidelog.controller.image import PartitionState
from tidelog.controller.placement import drain
from tidelog.protocol.errors import (
    ElectionNotNeeded,
    InvalidPartitions,
    InvalidRequest,
    NoReassignmentInProgress,
    NotController,
    NotEnoughReplicas,
    RequestTimedOut,
    TidelogError,
)
from tidelog.protocol.messages import (
    AlterConfigs,
    AlterReassignments,
    ConfigAlter,
    ConfigEntry,
    CreatePartitions,
    CreateTopics,
    DescribeConfigs,
    DescribeQuorum,
    ElectLeaders,
    ListReassignments,
    NewPartitions,
    NewTopic,
    PartitionIndex,
    PartitionMove,
    ReplicaPlaces,
    Request,
    ResourceAlter,
    ResourceQuery,
    UnregisterBroker,
)
from tidelog.protocol.types import BrokerId
from tidelog.replication.sessions import Place
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.world import World

UNKNOWN = (RequestTimedOut, NotController)
"""Whether it was done is not known."""


class Office:
    """A cluster, and somebody who gives orders to it."""

    def __init__(
        self, world: World, *, brokers: int = 3, controllers: int = 3, config: dict[str, Any] | None = None
    ) -> None:
        self.world = world
        self.cluster = Cluster(world, brokers=brokers, controllers=controllers, config=config)
        self.host = Host("client", world)
        self.host.start()
        self.addresses = {
            number: (host.machine.address, BROKER_PORT) for number, host in self.cluster.hosts.items()
        }
        history = History(committed=self.cluster.oracle.end)
        self.client = Probe("client", list(self.addresses.values()), Random(1), history)
        self.sent: dict[Place, list[bytes]] = {}
        self.cluster.until(self.all_alive, 20)

    def all_alive(self) -> bool:
        if self.cluster.active is None:
            return False
        brokers = self.cluster.image.brokers
        return len(brokers) == len(self.cluster.hosts) and not any(one.fenced for one in brokers.values())

    # ── what it orders ────────────────────────────────────────────────────────────────────────────

    def do(self, what: Callable[[Probe], Any], seconds: float = 20) -> Any:
        done: list[Any] = []

        async def doing() -> None:
            try:
                done.append(await what(self.client))
            except TidelogError as error:
                done.append(error)

        self.host.spawn(doing())
        self.cluster.until(lambda: done, seconds)
        if isinstance(done[0], Exception):
            raise done[0]
        return done[0]

    def ask(self, request: Request, broker: int | None = None) -> Any:
        """Ask a living broker once."""
        address = self.addresses[broker or self.cluster.alive()[0]]

        async def asking(client: Probe) -> Any:
            return (await client.ask(address, request))[0]

        return self.do(asking)

    def create(self, *replicas: tuple[int, ...], **configs: str) -> list[Place]:
        """Topic `orders`, with these replicas; its partitions, once they have converged."""
        places = tuple(ReplicaPlaces(tuple(map(BrokerId, each))) for each in replicas)
        settings = tuple(ConfigEntry(key.replace("_", "."), value) for key, value in configs.items())
        [topic] = self.ask(CreateTopics((NewTopic(TOPIC, assignment=places, configs=settings),))).topics
        assert not topic.error, topic
        self.cluster.until(self.cluster.converged, 20)
        return [(topic.topic_id, index) for index in range(len(replicas))]

    def move(self, place: Place, target: tuple[int, ...] | None, **more: Any) -> Any:
        """Order a move or, with None, that it is cancelled; its entry of the answer."""
        to = None if target is None else tuple(map(BrokerId, target))
        return self.ask(AlterReassignments((PartitionMove(*place, to),), **more)).partitions[0]

    def produce(self, place: Place, count: int, size: int = 100) -> None:
        """So many records in batches of ten, each committed before the next."""
        sent = self.sent.setdefault(place, [])
        for _ in range(0, count, 10):
            values = [b"%06d|" % (len(sent) + at) + b"x" * size for at in range(10)]
            sent += values
            self.do(lambda client, values=values: deliver(client, place, values))  # type: ignore[misc]

    # ── what became of it ─────────────────────────────────────────────────────────────────────────

    def state(self, place: Place) -> PartitionState:
        return self.cluster.image.partitions[place]

    def settled(self, place: Place, *replicas: int) -> Callable[[], bool]:
        """Whether it is kept by these and nobody else, all in sync and the same."""

        def is_so() -> bool:
            state = self.state(place)
            moved = (state.replicas, state.adding, state.removing) == (replicas, (), ())
            return moved and set(state.isr) == set(replicas) and self.cluster.converged()

        return is_so

    def keeps(self, place: Place) -> set[int]:
        """The living brokers on whose disks something of it is left."""
        name = f"{TOPIC}-{place[1]}"
        return {
            number
            for number in self.cluster.alive()
            if any(
                each.startswith(name) for each in self.cluster.brokers[number].data.first.directory.names()
            )
        }

    def reads_all(self, *places: Place) -> None:
        """What was acknowledged is there, once and in order."""
        self.cluster.compare()
        for place in places:
            self.do(lambda client: client.learn(TOPIC))
            assert self.do(lambda client, place=place: read_all(client, place)) == self.sent[place]  # type: ignore[misc]


# ── partitions, settings ──────────────────────────────────────────────────────────────────────────────


def test_partitions_are_added_and_served_and_not_added_twice(world: World) -> None:
    office = Office(world)
    [place] = office.create((1, 2, 3))
    [entry] = office.ask(CreatePartitions((NewPartitions(TOPIC, 3),)), broker=2).topics
    assert (entry.error, entry.partitions) == (0, 3)
    office.cluster.until(lambda: len(office.cluster.replicas()) == 9 and office.cluster.converged(), 20)
    places = [(place[0], index) for index in range(3)]
    office.do(lambda client: client.learn(TOPIC))
    for each in places:
        office.produce(each, 20)
    office.cluster.until(office.cluster.converged, 20)
    office.reads_all(*places)
    [again] = office.ask(CreatePartitions((NewPartitions(TOPIC, 3),)), broker=3).topics
    assert again.error == InvalidPartitions.code
    assert len(office.cluster.image.partitions) == 3


def test_settings_are_obeyed_on_every_broker_and_described(world: World) -> None:
    office = Office(world)
    [place] = office.create((1, 2, 3))
    change = ResourceAlter("topic", TOPIC, (ConfigAlter("min.insync.replicas", "3"),))
    [entry] = office.ask(AlterConfigs((change,)), broker=3).resources
    assert not entry.error
    office.cluster.until(
        lambda: all(
            partition.state is not None and partition.state.min_isr == 3
            for partition in office.cluster.replicas().values()
        ),
        5,
    )
    query = ResourceQuery("topic", TOPIC, ("min.insync.replicas",))
    [described] = office.ask(DescribeConfigs((query,)), broker=2).resources
    assert [(one.value, one.source) for one in described.configs] == [("3", "topic")]
    office.cluster.hosts[2].kill()
    office.cluster.until(lambda: len(office.state(place).isr) == 2, 10)
    address = office.do(lambda client: client.leader(TOPIC, place))
    refused = office.do(lambda client: send(client, address, place, [b"too few"]))
    assert refused.error == NotEnoughReplicas.code
    [back] = office.ask(
        AlterConfigs((ResourceAlter("topic", TOPIC, (ConfigAlter("min.insync.replicas"),)),))
    ).resources
    assert not back.error
    office.cluster.until(lambda: office.state(place).min_isr == 2, 5)


# ── leaders ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_preferred_leader_leads_again_when_it_is_told_to(world: World) -> None:
    office = Office(world)
    [place] = office.create((1, 2, 3))
    office.produce(place, 20)
    office.cluster.stop(1)
    office.cluster.start(1)
    office.cluster.until(office.settled(place, 1, 2, 3), 20)
    assert office.state(place).leader != 1
    [entry] = office.ask(ElectLeaders((PartitionIndex(*place),)), broker=3).partitions
    assert (entry.error, entry.leader, entry.unclean) == (0, 1, False)
    office.cluster.until(office.settled(place, 1, 2, 3), 20)
    office.produce(place, 20)
    office.reads_all(place)
    [again] = office.ask(ElectLeaders((PartitionIndex(*place),))).partitions
    assert again.error == ElectionNotNeeded.code


def order(office: Office, **settings: str) -> None:
    """Set these for the whole cluster."""
    configs = tuple(ConfigAlter(key.replace("_", "."), value) for key, value in settings.items())
    [entry] = office.ask(AlterConfigs((ResourceAlter("cluster", "", configs),))).resources
    assert not entry.error, entry


def led_by_others(office: Office) -> list[Place]:
    """Four partitions that broker 1 should lead: it has been away, others lead them, and it is back in sync."""
    places = office.create(*[(1, 2, 3)] * 4)
    office.cluster.stop(1)
    office.cluster.start(1)
    office.cluster.until(lambda: all(office.settled(place, 1, 2, 3)() for place in places), 20)
    assert all(office.state(place).leader != 1 for place in places)
    return places


def test_preferred_leaders_get_their_partitions_back_as_soon_as_it_is_looked_for(world: World) -> None:
    office = Office(world)
    order(office, leader_imbalance_check_interval_seconds="1000000")
    places = led_by_others(office)
    office.cluster.pass_time(10)
    assert all(office.state(place).leader != 1 for place in places)
    order(office, leader_imbalance_check_interval_seconds="1")
    office.cluster.until(lambda: all(office.state(place).leader == 1 for place in places), 5)
    office.cluster.until(office.cluster.converged, 20)
    office.do(lambda client: client.learn(TOPIC))
    for place in places:
        office.produce(place, 10)
    office.reads_all(*places)


def test_nobody_gets_partitions_back_where_that_is_switched_off(world: World) -> None:
    office = Office(world)
    order(office, leader_imbalance_check_interval_seconds="1", auto_leader_rebalance_enable="false")
    places = led_by_others(office)
    office.cluster.pass_time(10)
    assert all(office.state(place).leader != 1 for place in places)
    order(office, auto_leader_rebalance_enable="true")
    office.cluster.until(lambda: all(office.state(place).leader == 1 for place in places), 5)


def test_nobody_gets_partitions_back_who_lacks_no_more_than_it_may(world: World) -> None:
    office = Office(world)
    order(office, leader_imbalance_check_interval_seconds="1", leader_imbalance_per_broker_percentage="100")
    places = led_by_others(office)
    more = (ReplicaPlaces((BrokerId(1), BrokerId(2), BrokerId(3))),) * 4
    [entry] = office.ask(CreatePartitions((NewPartitions(TOPIC, 8, more),))).topics
    assert not entry.error, entry
    order(office, leader_imbalance_per_broker_percentage="50")  # four of eight
    office.cluster.pass_time(10)
    assert all(office.state(place).leader != 1 for place in places)
    order(office, leader_imbalance_per_broker_percentage="49")
    office.cluster.until(lambda: all(office.state(place).leader == 1 for place in places), 5)


def lose_all_but_one_that_is_behind(office: Office, place: Place) -> None:
    """Broker 3 falls out of sync and misses records; then the others are gone for good."""
    office.produce(place, 20)
    office.cluster.hosts[3].kill()
    office.cluster.until(lambda: set(office.state(place).isr) == {1, 2}, 10)
    office.produce(place, 20)
    for number in (1, 2):
        office.cluster.hosts[number].kill()
    office.cluster.until(lambda: office.state(place).leader == -1, 20)
    office.cluster.start(3)
    office.cluster.until(lambda: not office.cluster.image.brokers[BrokerId(3)].fenced, 20)


def test_an_operator_may_have_somebody_lead_who_lacks_records(world: World) -> None:
    office = Office(world)
    [place] = office.create((1, 2, 3))
    lose_all_but_one_that_is_behind(office, place)
    office.cluster.pass_time(5)
    assert office.state(place).leader == -1, "nobody leads who has not everything, unless somebody says so"
    office.cluster.oracle.give_up(place)
    [entry] = office.ask(ElectLeaders((PartitionIndex(*place),), unclean=True), broker=3).partitions
    assert (entry.error, entry.leader, entry.unclean) == (0, 3, True)
    for number in (1, 2):
        office.cluster.start(number)
    office.cluster.until(office.settled(place, 1, 2, 3), 20)
    assert not office.state(place).recovering
    assert office.do(lambda client: read_all(client, place)) == office.sent[place][:20]


def test_whoever_has_most_leads_for_an_operator_whatever_unclean_recovery_says(world: World) -> None:
    """Broker 2 stands first and has fewer records than broker 3: nobody but themselves knows."""
    office = Office(world, brokers=4)
    [place] = office.create((1, 2, 3, 4))
    for number in (2, 3):
        office.produce(place, 20)
        office.cluster.hosts[number].kill()
        office.cluster.until(lambda gone=number: gone not in office.state(place).isr, 10)  # type: ignore[misc]
    office.produce(place, 20)
    for number in (1, 4):
        office.cluster.hosts[number].kill()
    office.cluster.until(lambda: office.state(place).leader == -1, 20)
    for number in (2, 3):
        office.cluster.start(number)
    office.cluster.until(
        lambda: not any(office.cluster.image.brokers[BrokerId(b)].fenced for b in (2, 3)), 20
    )
    office.cluster.oracle.give_up(place)
    look = ElectLeaders((PartitionIndex(*place),), unclean=True, validate_only=True)
    [planned] = office.ask(look, broker=3).partitions
    assert (planned.leader, office.state(place).leader) == (3, -1)
    [entry] = office.ask(ElectLeaders((PartitionIndex(*place),), unclean=True), broker=3).partitions
    assert (entry.error, entry.leader, entry.unclean) == (0, 3, True)
    for number in (1, 4):
        office.cluster.start(number)
    office.cluster.until(office.settled(place, 1, 2, 3, 4), 20)
    assert office.do(lambda client: read_all(client, place)) == office.sent[place][:40]


@pytest.mark.parametrize("key", ["unclean.leader.election.enable", "unclean.recovery"])
def test_where_it_is_allowed_nobody_has_to_say_so(world: World, key: str) -> None:
    office = Office(world)
    [place] = office.create((1, 2, 3))
    lose_all_but_one_that_is_behind(office, place)
    office.cluster.oracle.give_up(place)
    value = "true" if key.endswith("enable") else "aggressive"
    change = ResourceAlter("topic", TOPIC, (ConfigAlter(key, value),))
    assert not office.ask(AlterConfigs((change,)), broker=3).resources[0].error
    office.cluster.until(lambda: office.state(place).leader == 3, 20)
    for number in (1, 2):
        office.cluster.start(number)
    office.cluster.until(office.settled(place, 1, 2, 3), 20)
    assert not office.state(place).recovering
    assert office.do(lambda client: read_all(client, place)) == office.sent[place][:20]


# ── moves ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_move_copies_everything_and_leaves_nothing_behind(world: World) -> None:
    office = Office(world, brokers=4)
    [place] = office.create((1, 2, 3))
    office.produce(place, 200)
    entry = office.move(place, (4, 2, 3))
    assert (entry.error, entry.adding, entry.removing) == (0, (4,), (1,))
    office.produce(place, 50)
    office.cluster.until(office.settled(place, 4, 2, 3), 20)
    office.cluster.until(lambda: office.keeps(place) == {2, 3, 4}, 5)
    office.produce(place, 20)
    office.cluster.until(office.settled(place, 4, 2, 3), 20)
    office.reads_all(place)
    assert not office.move(place, (4, 2, 3)).error, "ordered again there is nothing to do"
    assert not office.ask(ListReassignments()).partitions


def test_everything_may_move_at_once_to_others(world: World) -> None:
    office = Office(world, brokers=6)
    [place] = office.create((1, 2, 3))
    office.produce(place, 100)
    assert not office.move(place, (4, 5, 6)).error
    office.cluster.until(office.settled(place, 4, 5, 6), 30)
    office.cluster.until(lambda: office.keeps(place) == {4, 5, 6}, 5)
    office.produce(place, 20)
    office.reads_all(place)


def test_there_and_back_again_begins_with_an_empty_log(world: World) -> None:
    office = Office(world, brokers=4)
    [place] = office.create((1, 2, 3))
    for target in ((4, 2, 3), (1, 2, 3), (2, 1, 4), (1, 2, 3)):
        office.produce(place, 50)
        assert not office.move(place, target).error
        office.cluster.until(office.settled(place, *target), 20)
    office.cluster.until(lambda: office.keeps(place) == {1, 2, 3}, 5)
    office.reads_all(place)


def test_a_move_to_a_dead_broker_waits_is_listed_and_can_be_cancelled(world: World) -> None:
    office = Office(world, brokers=4)
    [place] = office.create((1, 2, 3))
    office.produce(place, 50)
    office.cluster.hosts[4].kill()
    office.cluster.until(lambda: office.cluster.image.brokers[BrokerId(4)].fenced, 10)
    assert not office.move(place, (1, 2, 4)).error
    office.produce(place, 50)
    [moving] = office.ask(ListReassignments()).partitions
    assert (moving.adding, moving.removing, moving.waiting_for) == ((4,), (3,), (4,))
    assert not office.move(place, None).error
    office.cluster.until(office.settled(place, 1, 2, 3), 10)
    assert office.move(place, None).error == NoReassignmentInProgress.code
    office.cluster.start(4)
    office.cluster.until(office.all_alive, 20)
    assert 4 not in office.keeps(place)
    office.reads_all(place)


def test_a_dead_broker_is_replaced(world: World) -> None:
    office = Office(world, brokers=4)
    [place] = office.create((1, 2, 3))
    office.produce(place, 50)
    office.cluster.hosts[1].kill()
    office.cluster.until(lambda: office.cluster.image.brokers[BrokerId(1)].fenced, 10)
    assert not office.move(place, (4, 2, 3)).error
    office.cluster.until(office.settled(place, 4, 2, 3), 20)
    office.produce(place, 50)
    office.cluster.start(1)
    office.cluster.until(office.all_alive, 20)
    office.cluster.until(office.settled(place, 4, 2, 3), 20)
    assert place not in office.cluster.brokers[1].replicas.partitions
    office.reads_all(place)


def test_a_throttle_slows_the_copy_down_and_ends_with_the_moves(world: World) -> None:
    office = Office(world, brokers=4)
    [place] = office.create((1, 2, 3))
    office.produce(place, 100, size=1000)
    begun = world.now
    assert not office.move(place, (1, 2, 4), throttle_bytes_s=10_000).error
    assert office.ask(ListReassignments()).throttle_bytes_s == 10_000
    office.cluster.until(office.settled(place, 1, 2, 4), 60)
    assert 100_000 / 10_000 - 2 < world.now - begun < 30
    assert office.ask(ListReassignments()).throttle_bytes_s == 0
    begun = world.now
    assert not office.move(place, (1, 2, 3)).error
    office.cluster.until(office.settled(place, 1, 2, 3), 60)
    assert world.now - begun < 5


def test_a_cancelled_move_leaves_nothing_on_who_had_begun_to_copy(world: World) -> None:
    office = Office(world, brokers=4)
    [place] = office.create((1, 2, 3))
    office.produce(place, 100, size=1000)
    assert not office.move(place, (1, 2, 4), throttle_bytes_s=5_000).error
    office.cluster.until(lambda: 4 in office.keeps(place), 5)
    office.cluster.pass_time(2)
    assert not office.move(place, None).error
    office.cluster.until(office.settled(place, 1, 2, 3), 10)
    office.cluster.until(lambda: office.keeps(place) == {1, 2, 3}, 5)
    office.reads_all(place)


def test_a_broker_is_drained_stopped_and_unregistered(world: World) -> None:
    office = Office(world, brokers=4)
    places = office.create((1, 2, 3), (2, 3, 4), (3, 4, 1), (4, 1, 2))
    for place in places:
        office.produce(place, 30)
    [held] = [office.ask(UnregisterBroker(BrokerId(2)), broker=1)]
    assert held.error == InvalidRequest.code
    plan = drain(office.cluster.image, BrokerId(2))
    moves = tuple(PartitionMove(*place, target) for place, target in plan.items())
    assert not any(entry.error for entry in office.ask(AlterReassignments(moves)).partitions)
    office.cluster.until(
        lambda: not office.cluster.image.indexes.in_replicas.get(BrokerId(2)) and office.cluster.converged(),
        30,
    )
    office.cluster.stop(2)
    assert not office.ask(UnregisterBroker(BrokerId(2)), broker=1).error
    office.cluster.until(lambda: BrokerId(2) not in office.cluster.image.brokers, 5)
    office.cluster.until(office.cluster.converged, 20)
    office.reads_all(*places)


# ── while controllers fail over ───────────────────────────────────────────────────────────────────────


def orders(place: Place) -> dict[str, tuple[Request, Callable[[Office], bool]]]:
    """Each with what is so when it has happened."""
    alter = ResourceAlter("topic", TOPIC, (ConfigAlter("min.insync.replicas", "1"),))

    def partitions(office: Office) -> bool:
        return len(office.cluster.image.partitions) == 2

    def setting(office: Office) -> bool:
        return office.state(place).min_isr == 1

    def moved(office: Office) -> bool:
        state = office.state(place)
        return {*state.replicas} - {*state.removing} == {1, 2, 4}

    def unregistered(office: Office) -> bool:
        return BrokerId(5) not in office.cluster.image.brokers

    return {
        "partitions": (CreatePartitions((NewPartitions(TOPIC, 2),), timeout_ms=2000), partitions),
        "settings": (AlterConfigs((alter,), timeout_ms=2000), setting),
        "move": (
            AlterReassignments(
                (PartitionMove(*place, (BrokerId(1), BrokerId(2), BrokerId(4))),), timeout_ms=2000
            ),
            moved,
        ),
        "unregister": (UnregisterBroker(BrokerId(5), timeout_ms=2000), unregistered),
    }


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.003, 0.01])
@pytest.mark.parametrize("order", ["partitions", "settings", "move", "unregister"])
def test_what_is_ordered_while_the_controller_dies_happens_once_or_not_and_may_be_repeated(
    world: World, order: str, after_s: float
) -> None:
    office = Office(world, brokers=5)
    [place] = office.create((1, 2, 3))
    office.produce(place, 20)
    office.cluster.stop(5)
    request, happened = orders(place)[order]
    active = office.cluster.active
    assert active is not None
    world.timeline.at(world.now + after_s, office.cluster.quorum[active[0]].kill)
    try:
        answered = not _error(office.ask(request))
    except UNKNOWN:
        answered = False
    if answered:
        assert happened(office)
    office.cluster.until(lambda: office.cluster.active not in (None, active), 20)
    for _ in range(3):
        try:
            office.ask(request)
            break
        except UNKNOWN:
            continue
    assert happened(office)
    office.cluster.start_controller(active[0])
    office.cluster.until(office.cluster.converged, 30)
    office.reads_all(place)


def _error(reply: Any) -> int:
    entries = [
        entry for field in ("topics", "resources", "partitions") for entry in getattr(reply, field, ())
    ]
    return reply.error or next((entry.error for entry in entries if entry.error), 0)


# ── the quorum ────────────────────────────────────────────────────────────────────────────────────────


def test_the_quorum_is_described_through_any_broker_and_sees_who_is_cut_off(world: World) -> None:
    office = Office(world)
    active = office.cluster.active
    assert active is not None
    answer = office.ask(DescribeQuorum(timeout_ms=2000), broker=2)
    assert (answer.leader_id, answer.quorum_epoch) == (active[0], active[1].epoch)
    assert [voter.id for voter in answer.voters] == [1, 2, 3]
    assert [observer.id for observer in answer.observers] == [1, 2, 3]
    office.cluster.pass_time(5)
    answer = office.ask(DescribeQuorum(timeout_ms=2000), broker=2)
    assert all(member.behind_ms < 1500 for member in (*answer.voters, *answer.observers))
    dead = next(number for number in office.cluster.quorum if number != active[0])
    office.cluster.quorum[dead].kill()
    office.cluster.pass_time(5)
    answer = office.ask(DescribeQuorum(timeout_ms=2000), broker=1)
    by_id = {voter.id: voter for voter in answer.voters}
    assert by_id[dead].silent_ms >= 4000
    assert by_id[dead].behind_ms >= 4000
    assert all(voter.behind_ms < 1500 for number, voter in by_id.items() if number != dead)
