"""Every verb of `tidelog.testing.Cluster` does what it says, to nodes in this process and to real ones."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.testing.user import QUICK, User, until
from tidelog.protocol.errors import ConnectionFailed, DiskFull, RequestTimedOut
from tidelog.protocol.io import connect
from tidelog.protocol.messages import CreateTopics, NewTopic
from tidelog.testing import Cluster, NodeFailed

KINDS = [
    pytest.param({}, id="local"),
    pytest.param({"processes": True, "proxied": True}, id="processes", marks=pytest.mark.slow),
]

EARLY_S = 0.0005
"""What is held back is let go at most so much too soon."""


@pytest.fixture(params=KINDS)
async def user(request: pytest.FixtureRequest) -> AsyncIterator[User]:
    """Three brokers, one controller, and a topic `t` on all three."""
    async with Cluster(3, 1, settings=QUICK, **request.param) as cluster:
        user = User(cluster)
        await user.create("t")
        yield user


async def test_ready_means_that_a_new_topic_takes_a_write_of_all_replicas(user: User) -> None:
    leader = await user.cluster.leader_of("t")
    assert leader is not None
    await user.produce("t", b"v", leader)
    known = await user.partition("t", leader)
    assert known is not None
    assert sorted(known.replicas) == sorted(known.isr) == [1, 2, 3]


async def test_another_broker_leads_when_the_leader_is_killed_and_nothing_is_lost(user: User) -> None:
    cluster, led = user.cluster, await user.writes("t", b"before")
    await cluster.kill(led)
    assert cluster.nodes[f"b{led}"].state == "absent"
    with pytest.raises(ConnectionFailed) as refused:
        await user.produce("t", b"late", led)
    assert isinstance(refused.value.__cause__, ConnectionRefusedError)
    leads = await user.writes("t", b"after", seconds=1)
    assert leads != led
    assert b"before" in await user.read("t", leads)
    await cluster.restart(led)
    await user.isr_is("t", led, 1, 2, 3)


async def test_a_stop_hands_leadership_over_before_the_broker_goes(user: User) -> None:
    led = await user.writes("t")
    await user.cluster.stop(led)
    now = await user.cluster.leader_of("t")
    assert now is not None
    assert now != led
    await user.produce("t", b"v", now)
    await user.cluster.start(led)
    await user.isr_is("t", led, 1, 2, 3)


@pytest.mark.slow
async def test_a_paused_broker_is_fenced_by_its_silence_and_comes_back(user: User) -> None:
    cluster, led = user.cluster, await user.writes("t", b"before")
    await cluster.pause(led)
    assert not await user.answers(led)
    leads = await user.writes("t", b"after")
    assert leads != led
    assert cluster.nodes[f"b{led}"].state == "paused"
    await cluster.resume(led)
    await user.isr_is("t", leads, 1, 2, 3)
    assert await user.answers(led)


@pytest.mark.slow
async def test_a_follower_that_is_cut_off_leaves_the_isr_and_returns_when_it_is_healed(user: User) -> None:
    cluster, led = user.cluster, await user.writes("t")
    follower = led % 3 + 1
    await cluster.isolate(follower, *({1, 2, 3} - {follower}))
    await user.produce("t", b"only who lacks a record can be behind", led, acks=1)
    await user.isr_is("t", led, *({1, 2, 3} - {follower}))
    assert await user.answers(follower), "only brokers were cut off from it"
    await user.produce("t", b"v", led)
    await cluster.heal()
    await user.isr_is("t", led, 1, 2, 3)


@pytest.mark.slow
async def test_a_broker_cut_off_from_all_is_neither_heard_nor_answers(user: User) -> None:
    cluster, led = user.cluster, await user.writes("t")
    await cluster.isolate(led)
    assert not await user.answers(led)
    assert await user.writes("t") != led
    await cluster.heal(led)
    await user.isr_is("t", led, 1, 2, 3)


async def test_one_way_loses_what_a_node_sends_and_brings_what_it_is_sent(user: User) -> None:
    cluster, led = user.cluster, await user.writes("t")
    host, port = cluster.nodes[f"b{led}"].spec.address
    connection = await connect(host, port)
    await cluster.isolate(led, "clients", one_way=True)
    with pytest.raises(RequestTimedOut):
        await user.produce("t", b"unheard", led, connection=connection, timeout_ms=300)
    assert b"unheard" in user.on_disk("t", led)
    connection.abort()
    await cluster.heal(led, "clients")
    assert await user.answers(led)


@pytest.mark.slow
async def test_a_reset_breaks_connections_and_allows_no_new_ones(user: User) -> None:
    cluster, led = user.cluster, await user.writes("t")
    follower = led % 3 + 1
    await cluster.isolate(follower, led, how="reset")
    await user.produce("t", b"only who lacks a record can be behind", led, acks=1)
    await user.isr_is("t", led, *({1, 2, 3} - {follower}))
    await cluster.heal()
    await user.isr_is("t", led, 1, 2, 3)


@pytest.mark.slow
async def test_a_delay_makes_every_answer_later_by_both_ways(user: User) -> None:
    cluster, loop = user.cluster, asyncio.get_running_loop()
    await cluster.delay(1, "clients", seconds=0.15)
    began = loop.time()
    assert await user.answers(1, timeout_ms=2000)
    assert loop.time() - began >= 4 * (0.15 - EARLY_S), "hello and its answer, a request and its answer"
    await cluster.heal()
    began = loop.time()
    assert await user.answers(1)
    assert loop.time() - began < 0.3 * 2, "less than with the delay, even where the machine is busy"


@pytest.mark.slow
async def test_a_full_disk_refuses_records_and_goes_on_to_be_read(user: User) -> None:
    cluster, led = user.cluster, await user.writes("t", b"kept")
    for broker in (1, 2, 3):
        await cluster.fill_disk(broker)

    with pytest.raises(DiskFull):
        await user.writes("t", b"x" * 100_000)
    assert b"kept" in await user.read("t", led)
    for broker in (1, 2, 3):
        await cluster.free_disk(broker)
    await user.writes("t", b"room", despite=(DiskFull,))


async def test_a_controller_is_killed_and_comes_back_and_brokers_find_it(user: User) -> None:
    await user.cluster.kill("c1")
    await user.cluster.restart(controller=1)
    await user.writes("t")

    async def made() -> bool:
        reply = await user.ask(1, _topic("made-after"), timeout_ms=5000)
        return not reply.topics[0].error

    await until(made, "a topic")


def _topic(name: str) -> CreateTopics:
    return CreateTopics((NewTopic(name, 1),))


async def test_what_cannot_be_is_said(user: User) -> None:
    cluster = user.cluster
    with pytest.raises(ValueError, match="there is no node b9"):
        await cluster.kill(9)
    with pytest.raises(ValueError, match="name one node"):
        await cluster.kill()
    with pytest.raises(ValueError, match="'1' is no node: say 1"):
        await cluster.kill("1")
    leader = cluster.leader_of("orders")
    with pytest.raises(TypeError, match="await what is awaitable"):
        await cluster.kill(leader)  # type: ignore[arg-type]
    await leader
    await cluster.pause(3)
    with pytest.raises(NodeFailed, match="broker-3 is paused"):
        await cluster.stop(3)
    with pytest.raises(NodeFailed, match="broker-2 is running"):
        await cluster.start(2)
    await cluster.kill(3)
    with pytest.raises(NodeFailed, match="broker-3 does not run"):
        await cluster.pause(3)
