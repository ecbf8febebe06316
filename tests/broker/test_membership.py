"""A broker and what the controller answers it: registrations that are counted, leases that need metadata (ADR 74, 75)."""

from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest

from tests.broker.node import Node
from tidelog.broker.config import BrokerConfig
from tidelog.broker.disks import Disks
from tidelog.broker.membership import Membership
from tidelog.controller.observer import Observer
from tidelog.protocol.errors import InvalidRegistration
from tidelog.protocol.messages import (
    BrokerHeartbeatReply,
    DirectoryStanding,
    ListenerEndpoint,
    RegisterBroker,
    RegisterBrokerReply,
    Reply,
    Request,
)
from tidelog.protocol.types import BrokerId
from tidelog.storage.crashes import Life
from tidelog.storage.identity import Identity
from tidelog.testing.simulation.disk import SimulatedDisk

CLUSTER = b"c" * 16
REGISTERED = RegisterBrokerReply(broker_epoch=50, cluster_id=CLUSTER.hex())
TOO_LATE = RegisterBrokerReply(InvalidRegistration.code, "start 1 comes too late", start=40)


class Controller:
    """Stands where the observer is, and answers what it was told to, one after the other."""

    def __init__(self, *answers: Reply) -> None:
        self.answers = list(answers)
        self.asked: list[RegisterBroker] = []
        self.connected = True

    async def call(self, build: Callable[[int], Request], _timeout_ms: float) -> Reply:
        asked = build(7)
        assert isinstance(asked, RegisterBroker)
        self.asked.append(asked)
        return self.answers.pop(0)


def life_of(disk: SimulatedDisk, number: int) -> Life:
    return Life.begin(
        disk.open_directory(),
        directory_id=b"d" * 16,
        incarnation_id=bytes([number]) * 16,
        boot_id="boot",
        has_partitions=True,
    )


class OneDisk:
    """A broker's only one."""

    def __init__(self, life: Life, identity: Identity) -> None:
        self.life = life
        self.identity = identity

    def standings(self) -> tuple[DirectoryStanding, ...]:
        return (DirectoryStanding(self.life.directory_id, int(self.life.worst), self.life.incarnation_ids),)


def member(controller: Controller, life: Life) -> Membership:
    config = BrokerConfig(broker_id=BrokerId(1), controllers=((1, "127.0.0.1", 1),))
    disk = OneDisk(life, Identity("broker", 1, b"d" * 16, CLUSTER))
    return Membership(config, cast("Observer", controller), cast("Disks", disk), Random(1))


# ── registration ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_registration_says_which_start_it_is_and_who_was_there_since_the_last() -> None:
    disk = SimulatedDisk(Random(0))
    life_of(disk, 1).registered(50)
    life_of(disk, 2)
    controller = Controller(REGISTERED)
    await member(controller, life_of(disk, 3)).register("127.0.0.1", 9092)
    asked = controller.asked[0]
    assert (asked.start, asked.incarnation_id) == (3, b"\x03" * 16)
    assert asked.incarnation_ids == (b"\x01" * 16, b"\x02" * 16, b"\x03" * 16)
    assert [disk.incarnation_ids for disk in asked.directories] == [asked.incarnation_ids]


async def test_a_registration_says_where_the_other_listeners_are() -> None:
    controller, outside = Controller(REGISTERED), ListenerEndpoint("outside", "h", 2)
    await member(controller, life_of(SimulatedDisk(Random(0)), 1)).register("127.0.0.1", 9092, (outside,))
    (asked,) = controller.asked
    assert (asked.host, asked.port, asked.listeners) == ("127.0.0.1", 9092, (outside,))


async def test_who_has_lost_count_goes_on_above_what_is_registered() -> None:
    controller, disk = Controller(TOO_LATE, REGISTERED), SimulatedDisk(Random(0))
    assert await member(controller, life_of(disk, 1)).register("127.0.0.1", 9092) == CLUSTER
    assert [asked.start for asked in controller.asked] == [1, 41]
    assert life_of(disk, 2).start == 42


async def test_an_older_copy_of_a_directory_ends_instead_of_taking_over() -> None:
    disk = SimulatedDisk(Random(0))
    life_of(disk, 1).registered(50)
    controller = Controller(TOO_LATE, REGISTERED)
    with pytest.raises(InvalidRegistration, match="comes too late"):
        await member(controller, life_of(disk, 2)).register("127.0.0.1", 9092)
    assert len(controller.asked) == 1


# ── leases ────────────────────────────────────────────────────────────────────────────────────────────


def lease_after(*answers: tuple[int, dict[str, Any]]) -> tuple[int, bool]:
    """Heartbeats sent then, answered so: until when the lease is, and whether the next one has time."""
    membership = member(Controller(), life_of(SimulatedDisk(Random(0)), 1))
    replicas = Node().replicas
    replicas.lease_until_ms = -1
    usual = True
    for sent_ms, answer in answers:
        reply = BrokerHeartbeatReply(session_timeout_ms=9000, **answer)
        usual = membership._take(reply, sent_ms, replicas)
    return replicas.lease_until_ms, usual


def test_an_answer_renews_the_lease_from_when_it_was_asked_for() -> None:
    assert lease_after((100, {"fenced": False}), (2100, {"fenced": False})) == (11_100, True)


def test_an_answer_that_does_not_renew_leaves_what_there_is_and_is_asked_for_again_soon() -> None:
    behind = {"fenced": False, "renews": False}
    assert lease_after((100, {"fenced": False}), (2100, behind), (2200, behind)) == (9100, False)
    assert lease_after((100, behind)) == (-1, False)


def test_who_is_fenced_has_no_lease() -> None:
    assert lease_after((100, {"fenced": False}), (2100, {"fenced": True})) == (-1, False)
