"""Why a node does not start, where that is hard to bring about with a real one: races, and full disks beside others."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from tidelog.cli.node.refusals import refusal
from tidelog.protocol.errors import DirectoryLocked, NotADataDirectory, TidelogError, WrongIdentity


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            NotADataDirectory("/data holds photo.jpg, but no meta.properties"),
            "/data holds photo.jpg, but no meta.properties: choose an empty directory or a tidelog one.",
        ),
        (
            NotADataDirectory(
                "/data/meta.properties cannot be read (no crc): restore it, or replace this node"
            ),
            "/data/meta.properties cannot be read (no crc): restore it, or replace this node",
        ),
        (
            WrongIdentity("/data belongs to broker 1, this is broker 7"),
            "/data belongs to broker 1, this is broker 7: check `--id`, `--data` and the addresses.",
        ),
        (
            DirectoryLocked("/data is locked by process 7, this is process 8"),
            "/data is locked by process 7, this is process 8: stop it, or choose another directory.",
        ),
        (NotADataDirectory(), NotADataDirectory.way_out()),
    ],
)
def test_a_directory_is_refused_by_one_fact_and_the_way_out_of_that(error: TidelogError, said: str) -> None:
    assert refusal(error, ["/data"]).message == said


async def test_a_port_that_is_taken_after_it_was_looked_at_is_not_blamed_on_the_directory() -> None:
    loop = asyncio.get_running_loop()
    first = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = first.sockets[0].getsockname()[1]
    with pytest.raises(OSError, match="in use") as taken:
        await loop.create_server(asyncio.Protocol, "127.0.0.1", port)
    first.close()
    assert refusal(taken.value, ["/data"]).message == (
        f"cannot listen on 127.0.0.1:{port}: another process does already: stop it, or choose another port (0 takes a "
        "free one)"
    )
    unnamed = refusal(OSError(errno.EADDRINUSE, "in use"), ["/data"]).message
    assert unnamed.startswith("cannot listen on one of its addresses (in use): another process does already")


def test_of_several_directories_the_full_one_is_named_also_if_another_begins_alike(tmp_path: Path) -> None:
    disks = [str(tmp_path / name) for name in ("disk", "disk1", "disk10")]
    for disk in disks:
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{disk}/orders-0/segment")
        assert f"the disk that holds {disk} is full" in refusal(error, disks).message
    assert f"the disk that holds {disks[0]} is full" in refusal(OSError(errno.ENOSPC, "full"), disks).message
