"""Many new logs at once are made beside the loop, and adopted as they would have been (I-80)."""

import pytest

from tests.broker.node import PLACE, TOPIC_ID, Node
from tests.controller.book import partition
from tidelog.broker.replicas import AT_ONCE
from tidelog.protocol.errors import NotLeaderOrFollower
from tidelog.replication.sessions import Place
from tidelog.storage import making

MANY = AT_ONCE + 3
PLACES: list[Place] = [(TOPIC_ID, index) for index in range(MANY)]


class Maker(Node):
    """A broker whose worker thread works when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.woken = 0
        self.replicas._make_soon = self._wake

    def _wake(self) -> None:
        self.woken += 1

    def place(self, count: int = MANY) -> None:
        """One batch places so many partitions here, led here."""
        states = {place: partition((1, 2, 3), index=place[1], topic=TOPIC_ID) for place in PLACES[:count]}
        self.image.partitions.update(states)
        self.replicas.adopt({place: ("orders", state) for place, state in states.items()}, (), 0, 0)

    def make(self, most: int = 100) -> int:
        """What the thread does, and what its end leads to; how many were made."""
        begun = self.replicas.begin_making(most)
        making.run(self.data.directory, begun)
        for each in begun:
            self.replicas.made(each, self.now_ms, self.now_ms)
        return len(begun)


def test_a_few_logs_are_made_at_once() -> None:
    node = Maker()
    node.place(AT_ONCE)
    assert len(node.replicas.partitions) == AT_ONCE
    assert node.woken == 0


def test_many_are_made_beside_the_loop_and_served_one_by_one() -> None:
    node = Maker()
    node.place()
    assert not node.replicas.partitions
    assert node.woken == 1
    with pytest.raises(NotLeaderOrFollower, match="orders-0 is not served here yet: its log is being made"):
        node.replicas.at(*PLACE)  # not that its disk is bad: followers would come again a second later
    assert node.replicas.offline() == [], "it is a matter of moments: not worth telling the controller"
    assert node.make(2) == 2
    assert set(node.replicas.partitions) == set(PLACES[:2])
    assert node.make() == MANY - 2
    assert set(node.replicas.partitions) == set(PLACES)
    assert node.replicas.missing == {}
    assert all(each.leadership is not None for each in node.replicas.partitions.values())
    assert not node.produce(acks=1).error


def test_what_is_decided_meanwhile_holds() -> None:
    node = Maker()
    node.place()
    node.lead(place=PLACE, epoch=6)
    assert PLACE not in node.replicas.partitions, "its log is still being made"
    node.make()
    assert node.partition.leader_epoch == 6


def test_what_leaves_meanwhile_leaves_nothing() -> None:
    node = Maker()
    node.place()
    begun = node.replicas.begin_making(MANY)
    making.run(node.data.directory, begun)
    gone, *_ = PLACES
    node.replicas.adopt({}, [gone], 0, 0)
    for each in begun:
        node.replicas.made(each, 0, 0)
    assert set(node.replicas.partitions) == set(PLACES[1:])
    assert "orders-0" not in node.data.directory.names()


def test_the_second_of_one_name_waits_for_the_end_of_the_first() -> None:
    node = Maker()
    node.place()
    begun = node.replicas.begin_making(MANY)
    node.replicas.adopt({}, [PLACE], 0, 0)
    again: Place = (b"another-orders--", 0)
    node.adopt(place=again, leader=1, leader_epoch=0)
    assert again not in node.replicas.partitions
    making.run(node.data.directory, begun)
    for each in begun:
        node.replicas.made(each, 0, 0)
    node.replicas.probe(0, 0)
    assert again in node.replicas.partitions
    assert PLACE not in node.replicas.partitions


def test_a_full_disk_is_tried_again() -> None:
    node = Maker()
    node.place()
    node.disk.capacity = 0
    node.make()
    node.disk.capacity = 1 << 40
    for place in PLACES:
        if place not in node.replicas.partitions:
            assert not node.replicas.missing[place].soon
    node.replicas.probe(0, 0)
    assert set(node.replicas.partitions) == set(PLACES)
