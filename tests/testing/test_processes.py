"""Real processes of a test: nothing outlives it, and whoever dies before it serves is shown with its log."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.testing.user import User, until
from tidelog.cli.local.identity import Incarnation, began
from tidelog.protocol.errors import InvalidConfig
from tidelog.testing import Cluster, NodeFailed, Unsupported

pytestmark = pytest.mark.slow

ENDLESS = """
    import asyncio, json
    from tidelog.testing import Cluster

    async def main():
        async with Cluster(1, processes=True, proxied=True) as cluster:
            await cluster.pause(1)
            print(json.dumps([node.process.pid for node in cluster.nodes.values()]), flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())
"""


async def test_nothing_outlives_a_test_that_is_killed_not_even_a_paused_node(tmp_path: Path) -> None:
    test = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", textwrap.dedent(ENDLESS)),
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # what is killed cannot tidy up
    )
    assert test.stdout is not None
    pids = [int(pid) for pid in (await test.stdout.readline()).decode().strip("[]\n").split(",")]
    nodes = [Incarnation(pid, began(pid) or "") for pid in pids]
    assert all(node.alive for node in nodes)
    test.send_signal(signal.SIGKILL)
    await test.wait()

    async def gone() -> bool:
        return not any(node.alive for node in nodes)

    await until(gone, f"{nodes} to be gone")


async def test_nothing_is_left_of_a_cluster_when_its_block_ends(tmp_path: Path) -> None:
    async with Cluster(1, processes=True, directory=tmp_path) as cluster:
        pids = [node.process.pid for node in cluster.nodes.values()]  # type: ignore[attr-defined]  # of processes
        assert all(began(pid) for pid in pids)
        await cluster.pause(1)
    assert not any(began(pid) for pid in pids)
    assert (tmp_path / "broker-1" / "meta.properties").exists(), "a directory that was named is kept"


async def test_a_node_that_cannot_start_is_shown_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "broker-1" / "strange").write_text("somebody else's")
    with pytest.raises(NodeFailed, match=r"(?s)broker-1 has ended with exit code 1.*but no meta.properties"):
        async with Cluster(1, processes=True, directory=tmp_path):
            pass


async def test_a_node_that_dies_by_itself_is_absent_and_can_be_started(tmp_path: Path) -> None:
    async with Cluster(1, processes=True, directory=tmp_path) as cluster:
        node = cluster.nodes["b1"]
        os.kill(node.process.pid, signal.SIGKILL)  # type: ignore[attr-defined]  # of processes

        async def absent() -> bool:
            return node.state == "absent"

        await until(absent, "its end to be noticed")
        await cluster.start(1)
        await User(cluster).create("t")
        assert cluster.logs(1).count("broker.ready") == 2


async def test_without_proxies_the_network_cannot_be_cut_and_it_says_what_can() -> None:
    async with Cluster(1, processes=True) as cluster:
        with pytest.raises(Unsupported, match="proxied=True"):
            await cluster.isolate(1)
        await cluster.kill(1)
        await cluster.restart(1)


async def test_settings_reach_whoever_obeys_them_and_others_are_refused() -> None:
    async with Cluster(1, processes=True, settings={"num.partitions": 4, "flush_ms": 500}) as cluster:
        assert "-X" in _command(cluster, "b1")
        assert "flush.ms=500" in _command(cluster, "b1")
        assert "num.partitions=4" in _command(cluster, "c1")
        assert "default.replication.factor=1" in _command(cluster, "c1")
    with pytest.raises(InvalidConfig, match=r"the nearest is flush\.ms"):
        Cluster(settings={"flush.mss": 1})
    with pytest.raises(InvalidConfig, match="it must be a whole number"):
        Cluster(settings={"flush.ms": "soon"})
    with pytest.raises(InvalidConfig, match="no process reads it when it starts"):
        Cluster(settings={"cleanup.policy": "compact"})


def _command(cluster: Cluster, name: str) -> list[str]:
    node = cluster.nodes[name]
    return list(node.process._command)  # type: ignore[attr-defined]  # of processes
