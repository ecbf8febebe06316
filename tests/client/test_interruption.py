"""Ctrl-C while brokers are silent: the program ends soon, and says how many records were not acknowledged."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
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
JOINED = 'consumer("t", group="g", auto_offset_reset="earliest")'
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
        JOINED,
        "await it.getone()",
        "await it.getone()",
        "KeyboardInterrupt",
    ),
    "a read in a group": (BLOCKING, JOINED, "it.getone()", "it.getone()", "KeyboardInterrupt"),
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(1, 1, directory=tmp_path) as cluster:
        async with cluster.client() as client, client.producer() as producer:
            await client.admin.create_topics(NewTopic("t", 1, 1))
            await producer.send("t", b"first", partition=0)
        yield cluster


@pytest.mark.parametrize("case", CASES)
async def test_ctrl_c_ends_it_soon_and_names_what_was_not_acknowledged(cluster: Cluster, case: str) -> None:
    body, opened, first, waits, told = CASES[case]
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WATCH
        + body.format(bootstrap=cluster.bootstrap, opened=opened, first=first, watch=WATCHED, waits=waits),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert program.stdout is not None
            assert await program.stdout.readline() == b"ready\n"
            await cluster.pause(1)
            assert program.stdin is not None
            program.stdin.write(b"\n")
            assert await program.stdout.readline() == b"waits\n"
        loop = asyncio.get_running_loop()
        began = loop.time()
        program.send_signal(signal.SIGINT)
        async with asyncio.timeout(DEADLINE_S):
            _, err = await program.communicate()
        took_s = loop.time() - began
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
        await cluster.resume(1)
    assert program.returncode == -signal.SIGINT, err.decode()
    assert "KeyboardInterrupt" in err.decode()
    assert told in err.decode(), err.decode()
    assert took_s < (CLOSE_TIMEOUT_S + INTERRUPTED_S) / 2, "it has not waited as `close` does otherwise"
