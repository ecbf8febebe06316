"""Ctrl-C while brokers are silent: the program ends soon, and says how many records were not acknowledged."""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidelog.client.admin import NewTopic
from tidelog.client.io.session import CLOSE_TIMEOUT_S, INTERRUPTED_S
from tidelog.testing import Cluster

DEADLINE_S = 30
SOURCE = Path(__file__).resolve().parents[2] / "src"

AWAITED = """
import asyncio, sys, tidelog
async def main():
    async with tidelog.connect({bootstrap!r}) as client, client.{opened} as it:
        {first}
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        {watch}
        {waits}
asyncio.run(main())
"""
BLOCKING = """
import sys, tidelog.sync
with tidelog.sync.connect({bootstrap!r}) as client, client.{opened} as it:
    {first}
    print("ready", flush=True)
    sys.stdin.readline()
    {watch}
    {waits}
"""
UNCLOSED = """
import sys, tidelog.sync
client = tidelog.sync.connect({bootstrap!r})
it = client.{opened}
{first}
print("ready", flush=True)
sys.stdin.readline()
{watch}
{waits}
"""
WATCH = """
import threading, time
def say_that_it_waits(it):
    while it.metrics().get("producer_batches_outstanding", 1) < 1:
        time.sleep(0.01)
    print("waits", flush=True)
"""
WATCHED = "threading.Thread(target=say_that_it_waits, args=(it,), daemon=True).start()"
"""A record that is not acknowledged is under way, or nothing but reading is done."""
SEND, SENT = 'it.send("t", b"v", partition=0)', "1 records were not acknowledged"
FLUSH = '[it.enqueue("t", b"v", partition=0) for _ in range(10)]; it.flush()'
FLUSHED = "10 records were not acknowledged"
JOINED = 'consumer("t", group="{}", auto_offset_reset="earliest")'
"""Each has its own group, or one would get nothing."""
CASES = {
    "an awaited send": (AWAITED, "producer()", f"await {SEND}", f"await {SEND}", SENT),
    "an awaited flush": (
        AWAITED,
        "producer()",
        f"await {SEND}",
        '[await it.enqueue("t", b"v", partition=0) for _ in range(10)]; await it.flush()',
        FLUSHED,
    ),
    "a send": (BLOCKING, "producer()", SEND, SEND, SENT),
    "a flush": (BLOCKING, "producer()", SEND, FLUSH, FLUSHED),
    "a flush of a client that nobody closes": (UNCLOSED, "producer()", SEND, FLUSH, FLUSHED),
    "an awaited read in a group": (
        AWAITED,
        JOINED.format("awaited"),
        "await it.getone()",
        "await it.getone()",
        "KeyboardInterrupt",
    ),
    "a read in a group": (BLOCKING, JOINED.format("read"), "it.getone()", "it.getone()", "KeyboardInterrupt"),
}


@dataclass(frozen=True)
class Outcome:
    """How a program ended that was interrupted."""

    code: int | None
    said: str
    took_s: float


class Program:
    """One of the cases, as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout

    async def until_served(self) -> None:
        """It has been answered once."""
        assert await self.stdout.readline() == b"ready\n"

    async def begin_to_wait(self) -> None:
        """Nobody answers any more: let it go on, until it waits."""
        self.stdin.write(b"\n")
        assert await self.stdout.readline() == b"waits\n"

    async def interrupt(self) -> Outcome:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.process.send_signal(signal.SIGINT)
        _, said = await self.process.communicate()
        return Outcome(self.process.returncode, said.decode(), loop.time() - began)


async def start(case: str, bootstrap: str) -> Program:
    """The case, as a process that has just begun."""
    body, opened, first, waits, _ = CASES[case]
    return Program(
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            WATCH + body.format(bootstrap=bootstrap, opened=opened, first=first, watch=WATCHED, waits=waits),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
    )


async def interrupted_together(directory: Path) -> dict[str, Outcome]:
    """Every case beside the others: what each does is to wait."""
    programs: dict[str, Program] = {}
    async with Cluster(1, 1, directory=directory) as cluster:
        async with cluster.client() as client, client.producer() as producer:
            await client.admin.create_topics(NewTopic("t", 1, 1))
            await producer.send("t", b"first", partition=0)
        try:
            async with asyncio.timeout(DEADLINE_S):
                for case in CASES:
                    programs[case] = await start(case, cluster.bootstrap)
                await asyncio.gather(*(program.until_served() for program in programs.values()))
                await cluster.pause(1)
                await asyncio.gather(*(program.begin_to_wait() for program in programs.values()))
            async with asyncio.timeout(DEADLINE_S):
                ended = await asyncio.gather(*(program.interrupt() for program in programs.values()))
        finally:
            for program in programs.values():
                if program.process.returncode is None:
                    program.process.kill()
                    await program.process.wait()
            await cluster.resume(1)
    return dict(zip(programs, ended, strict=True))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """How each of them ended."""
    return asyncio.run(interrupted_together(tmp_path_factory.mktemp("cluster")))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_ctrl_c_ends_it_soon_and_names_what_was_not_acknowledged(
    outcomes: dict[str, Outcome], case: str
) -> None:
    *_, told = CASES[case]
    ended = outcomes[case]
    assert ended.code == -signal.SIGINT, ended.said
    assert "KeyboardInterrupt" in ended.said
    assert told in ended.said, ended.said
    assert ended.took_s < (CLOSE_TIMEOUT_S + INTERRUPTED_S) / 2, "it has not waited as `close` does otherwise"
