"""How long writes stop when a process is killed: taken on a cluster of real processes, kill by kill.

    writers ──► every partition, one record after the other      kill ─► the first acknowledgement of a record that
                                                                         was sent after it, to a partition it led

What is counted begins before the signal is sent and ends when a client has the acknowledgement in its hands: noticing,
fencing, electing, telling the brokers, and the client's own finding of the new leader are all in it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import ceil
from random import Random
from typing import Final

from tidelog.client import connect
from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client
from tidelog.client.io.producer import Producer
from tidelog.protocol.errors import RequestTimedOut, TidelogError
from tidelog.testing.cluster import Cluster

TOPIC: Final = "failover"
PARTITIONS: Final = 6
PATIENCE_S: Final = 60.0
_VALUE: Final = b"." * 100
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Failover:
    """One kill."""

    node: str
    """`broker 2`, `controller 1`."""
    ms: float
    """Until the service was there again."""


def percentile(times: Sequence[float], share: float) -> float:
    """The smallest of them that so many are not above."""
    ordered = sorted(times)
    return ordered[max(ceil(share * len(ordered)) - 1, 0)]


async def kill_leaders(
    cluster: Cluster,
    kills: int,
    *,
    topic: str = TOPIC,
    said: Callable[[Failover], None] = lambda _: None,
) -> list[Failover]:
    """Kill a leader of that topic, which is made, under load, so many times; before each the cluster is whole."""
    rng, stop = Random(), asyncio.Event()
    found: list[Failover] = []
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster.client(client_id="failover"))
        await client.admin.create_topics(NewTopic(topic, PARTITIONS, 3))
        producer = await stack.enter_async_context(client.producer())
        async with asyncio.TaskGroup() as load:
            for partition in range(PARTITIONS):
                load.create_task(_write(producer, topic, partition, stop))
            for _ in range(kills):
                await _whole(client, topic)
                partition = rng.randrange(PARTITIONS)
                (described,) = await client.admin.describe_topics(topic)
                victim = described.partitions[partition].leader
                began = time.perf_counter()
                await cluster.kill(victim)
                await producer.send(topic, _VALUE, partition=partition)
                found.append(Failover(f"broker {victim}", (time.perf_counter() - began) * 1000))
                said(found[-1])
                await cluster.restart(victim)
            stop.set()
    return found


async def kill_controllers(
    cluster: Cluster, kills: int, *, said: Callable[[Failover], None] = lambda _: None
) -> list[Failover]:
    """Kill the active controller, so many times: how long until the next change of metadata is done."""
    found: list[Failover] = []
    async with connect(cluster.bootstrap, client_id="failover") as client:
        for number in range(kills):
            active = await _active_controller(client)
            began = time.perf_counter()
            await cluster.kill(controller=active)
            await client.admin.create_topics(NewTopic(f"{TOPIC}-{number}-{active}", 1, 1), wait=False)
            found.append(Failover(f"controller {active}", (time.perf_counter() - began) * 1000))
            said(found[-1])
            await cluster.restart(controller=active)
            await _quorum_whole(client, len(cluster.nodes))
    return found


async def _write(producer: Producer, topic: str, partition: int, stop: asyncio.Event) -> None:
    """One record after the other: the load that is there when the leader dies."""
    while not stop.is_set():
        await producer.send(topic, _VALUE, partition=partition)
        await asyncio.sleep(0.001)


async def _whole(client: Client, name: str) -> None:
    """Until every replica is in sync: what comes next is measured from there."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            (topic,) = await client.admin.describe_topics(name)
        except TidelogError:
            if time.monotonic() > deadline:
                raise
        else:
            if all(len(each.isr) == len(each.replicas) for each in topic.partitions):
                return
            if time.monotonic() > deadline:
                raise RequestTimedOut(
                    f"not every replica is in sync after {PATIENCE_S:g} s: {topic.partitions}"
                )
        await asyncio.sleep(_POLL_S)


async def _active_controller(client: Client) -> int:
    """The one that decides: between two of them the quorum names none."""
    deadline = time.monotonic() + PATIENCE_S
    while (active := (await client.admin.describe_quorum()).leader_id) < 0:
        if time.monotonic() > deadline:
            raise RequestTimedOut(f"no controller is active after {PATIENCE_S:g} s")
        await asyncio.sleep(_POLL_S)
    return active


async def _quorum_whole(client: Client, nodes: int) -> None:
    """Until the controller that came back has caught up."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        quorum = await client.admin.describe_quorum()
        if all(voter.end_offset >= quorum.high_watermark for voter in quorum.voters):
            return
        if time.monotonic() > deadline:
            raise RequestTimedOut(f"a controller of {nodes} nodes has not caught up: {quorum.voters}")
        await asyncio.sleep(_POLL_S)
