"""Disks that are really full: a small file system under each node, where one may be mounted (DECISIONS 9; R7).

Elsewhere the same story is told with nodes that are told that their disks are full.
"""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.testing.user import QUICK, User, until
from tidelog.protocol.errors import DiskFull
from tidelog.testing import Cluster

MIB = 1 << 20
SETTINGS = {
    **QUICK,
    "metadata.log.segment.bytes": MIB,
    "segment.bytes": MIB,
    "storage.min.free.bytes": 2 * MIB,
    "storage.reserve.bytes": MIB,
}
NODES = ("broker-1", "broker-2", "broker-3", "controller-1")
KINDS: dict[str, dict[str, Any]] = {
    "told that they are full": {},
    "inside": {},
    "processes": {"processes": True},
}


@contextmanager
def mounted(path: Path) -> Iterator[bool]:
    """A file system of 16 MiB there; False: that is not permitted, or not possible on this system."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tidelog-test", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
    except FileNotFoundError:
        done = False
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", "-l", str(path)], check=True, timeout=30)


class Disks:
    """The nodes' disks, and how they are filled by somebody else."""

    def __init__(self, cluster: Cluster, root: Path, *, real: bool) -> None:
        self.cluster = cluster
        self.root = root
        self.real = real

    async def fill(self, node: str) -> None:
        """Not a byte is left."""
        if not self.real:
            await self.cluster.fill_disk(_short(node))
            return
        with (self.root / node / "lost+found").open("ab", buffering=0) as ballast:
            for size in (MIB, 4096, 1):
                with suppress(OSError):
                    while ballast.write(bytes(size)) == size:
                        pass
        assert self._room(node) == 0

    def _room(self, node: str) -> int:
        status = os.statvfs(self.root / node)
        return status.f_bavail * status.f_frsize

    async def free(self, node: str) -> None:
        """There is room again."""
        if self.real:
            (self.root / node / "lost+found").unlink()
        else:
            await self.cluster.free_disk(_short(node))


def _short(node: str) -> str:
    return node[0] + node[-1]


@pytest.fixture(
    params=[pytest.param(kind, id=kind, marks=[pytest.mark.slow] * bool(KINDS[kind])) for kind in KINDS]
)
async def small(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[User, Disks]]:
    """Three brokers and a controller on disks that are soon full, and a topic `t` on all three."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(mounted(tmp_path / node)) for node in NODES if "told" not in request.param
        ]
        async with Cluster(3, 1, settings=SETTINGS, directory=tmp_path, **KINDS[request.param]) as cluster:
            user = User(cluster)
            await user.create("t")
            yield user, Disks(cluster, tmp_path, real=bool(made) and all(made))


@pytest.mark.slow
async def test_a_cluster_lives_through_full_disks_and_loses_nothing(small: tuple[User, Disks]) -> None:
    user, disks = small
    cluster = user.cluster
    first = await user.writes("t", b"before")

    # One disk is full: somebody else leads, and records are taken.
    await disks.fill(f"broker-{first}")

    async def moved() -> bool:
        return await cluster.leader_of("t") not in {None, first}

    await until(moved, "somebody with room to lead")
    await user.writes("t", b"elsewhere", despite=(DiskFull,))

    # All of them are, the controller's as well: records are refused, and read; leaders are elected.
    for node in NODES:
        if node != f"broker-{first}":
            await disks.fill(node)

    async def refused() -> bool:
        try:
            await user.writes("t", b"too much" + bytes(100_000))
        except DiskFull as full:
            return "make room" in str(full) or "No space" in str(full)
        return False

    await until(refused, "a refusal that says why")
    led = await until(lambda: cluster.leader_of("t"), "a leader")
    await cluster.kill(led)

    async def another() -> int | None:
        leader = await cluster.leader_of("t")
        return leader if leader not in {None, led} else None

    now = await until(another, "another leader")
    await until(lambda: reads(user, now, b"before"), "what all had to be read")
    await cluster.kill("c1")
    await cluster.restart("c1")
    await cluster.restart(led)

    # Room again.
    for node in NODES:
        await disks.free(node)
    last = await user.writes("t", b"after", despite=(DiskFull,))
    await user.isr_is("t", last, 1, 2, 3)
    assert await reads(user, last, b"before", b"elsewhere", b"after")
    for broker in (1, 2, 3):
        assert all(value in user.on_disk("t", broker) for value in (b"before", b"elsewhere", b"after"))


async def reads(user: User, broker: int, *values: bytes) -> bool:
    """Whether these can be read there."""
    found = await user.read("t", broker)
    return all(value in found for value in values)
