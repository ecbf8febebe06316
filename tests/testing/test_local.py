"""Nodes inside this process: they die, freeze and lose each other without it, on whichever loop runs."""

import asyncio
import contextlib
import gc
import logging
import socket
from pathlib import Path

import pytest
import uvloop

from tests.testing.user import QUICK, User, until
from tidelog.protocol.io import connect
from tidelog.testing import Cluster, NodeFailed
from tidelog.testing.local import LocalNode
from tidelog.testing.ports import HOST


def local(cluster: Cluster, name: str) -> LocalNode:
    node = cluster.nodes[name]
    assert isinstance(node, LocalNode)
    return node


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_runs_on_the_loop_of_asyncio_and_on_that_of_uvloop(factory: type) -> None:
    async def live() -> None:
        async with Cluster(3, 3, settings=QUICK) as cluster:
            user = User(cluster)
            await user.create("t")
            led = await user.writes("t", b"x" * 300_000)
            await cluster.pause(led)
            await cluster.resume(led)
            await cluster.kill(led)
            await user.writes("t", b"after")
            await cluster.restart(led)
            await user.isr_is("t", led, 1, 2, 3)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(live())


@pytest.mark.parametrize(("brokers", "controllers"), [(1, 1), (3, 1), (3, 3)])
async def test_a_cluster_that_is_ready_takes_writes_at_once(brokers: int, controllers: int) -> None:
    """How soon it is ready, `scripts/bench processes` tells."""
    async with Cluster(brokers, controllers) as cluster:
        assert cluster.ready_s > 0
        user = User(cluster)
        await user.create("t", factor=brokers)
        await user.writes("t")


async def test_leaving_the_block_leaves_no_task_and_no_connection() -> None:
    before = asyncio.all_tasks()
    async with Cluster(3) as cluster:
        user = User(cluster)
        await user.create("t")
        await user.writes("t")
        nodes = [local(cluster, name) for name in cluster.nodes]
    assert asyncio.all_tasks() == before
    assert all(node.state == "absent" for node in nodes)


@pytest.mark.parametrize("turns", range(4))
async def test_who_is_accepted_when_a_node_is_killed_is_hung_up_on(turns: int) -> None:
    async with Cluster(1) as cluster:
        with socket.create_connection((HOST, cluster.nodes["b1"].spec.port)) as caller:
            for _ in range(turns):  # in one of them it is accepted
                await asyncio.sleep(0)
            await cluster.kill(1)
            caller.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                assert caller.recv(1) == b""
    gc.collect()  # a socket that was forgotten says so, which fails the test


async def test_a_killed_node_leaves_no_mark_of_a_clean_stop_and_a_stopped_one_does(tmp_path: Path) -> None:
    async with Cluster(1, directory=tmp_path) as cluster:
        user = User(cluster)
        await user.create("t")
        await cluster.kill(1)
        assert not (tmp_path / "broker-1" / ".clean_shutdown").exists()
        await cluster.start(1)
        await cluster.stop(1)
        assert (tmp_path / "broker-1" / ".clean_shutdown").exists()
        await cluster.start(1)
        await user.writes("t")


async def test_a_directory_that_is_kept_is_the_same_cluster_the_next_time(tmp_path: Path) -> None:
    async with Cluster(3, 3, directory=tmp_path) as cluster:
        user = User(cluster)
        await user.create("t")
        await user.writes("t", b"kept")
        topic_ids = user.topic_ids
    async with Cluster(3, 3, directory=tmp_path) as cluster:
        user = User(cluster)
        user.topic_ids = topic_ids
        leader = await user.writes("t", b"new")
        assert b"kept" in await user.read("t", leader)


async def test_timers_of_a_paused_node_stand_still_and_come_due_when_it_goes_on() -> None:
    async with Cluster(1) as cluster:
        loop = local(cluster, "b1")._loop
        assert loop is not None
        rung: list[str] = []
        loop.call_later(0.01, rung.append, "due")
        await cluster.pause(1)
        await asyncio.sleep(0.05)
        assert rung == []
        await cluster.resume(1)

        async def came() -> bool:
            return rung == ["due"]

        await until(came, "the timer")


@pytest.mark.parametrize("verb", ["pause", "isolate"])
async def test_a_connection_that_ended_meanwhile_is_known_to_have_ended_afterwards(verb: str) -> None:
    async with Cluster(1) as cluster:
        user = User(cluster)
        await user.create("t")
        loop = local(cluster, "b1")._loop
        assert loop is not None
        connection = await connect(*cluster.nodes["b1"].spec.address)
        before = len(loop.lines)
        await (cluster.pause(1) if verb == "pause" else cluster.isolate(1, "clients"))
        connection.abort()
        await asyncio.sleep(0.05)
        assert len(loop.lines) == before
        await (cluster.resume(1) if verb == "pause" else cluster.heal())

        async def told() -> bool:
            return len(loop.lines) == before - 1

        await until(told, "the end of the connection")


async def test_a_fatal_error_ends_the_node_and_not_the_test() -> None:
    async with Cluster(1) as cluster:
        node = local(cluster, "b1")
        broker = node.node
        assert broker is not None
        assert node._loop is not None
        node._loop.call_soon(lambda: broker._env.halt("a disk has failed"))

        async def absent() -> bool:
            return node.state == "absent"

        await until(absent, "its end")
        assert "halted: a disk has failed" in cluster.logs(1)
        await cluster.start(1)
        await User(cluster).create("t")


async def test_a_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "broker-1" / "strange").write_text("somebody else's")
    with pytest.raises(NodeFailed, match=r"(?s)broker-1 has ended.*NotADataDirectory"):
        async with Cluster(1, directory=tmp_path):
            pass


async def test_each_node_has_its_own_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tidelog")
    async with Cluster(2) as cluster:
        assert "controller.active id=1" in cluster.logs("c1")
        assert "controller.active" not in cluster.logs(1)
