"""A consumer that reads a topic again and again at full speed: `endless` in the loop that measures, or in its own process.

python -m scripts.benches.client_reader ADDRESS      until stdin ends; prints a line when it reads
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import tidelog
from tidelog.protocol.io import tune_malloc
from tidelog.protocol.io.runner import fastest_loop


async def endless(client: tidelog.Client, topic: str) -> None:
    """Read all, and again from the beginning."""
    while True:
        async with client.consumer(topic, auto_offset_reset="earliest") as consumer:
            async for _ in consumer.batches(timeout=0.05):
                pass


@asynccontextmanager
async def apart(address: str, topic: str, children: set[int]) -> AsyncIterator[None]:
    """The same in a process of its own, while the block runs."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scripts.benches.client_reader", address, topic, stdin=pipe, stdout=pipe
    )
    assert process.stdin is not None
    assert process.stdout is not None
    children.add(process.pid)
    try:
        await process.stdout.readline()
        yield
    finally:
        process.stdin.close()
        await process.wait()
        children.discard(process.pid)


async def _read(address: str, topic: str) -> None:
    async with tidelog.connect(address) as client:
        print("reading", flush=True)
        reading = asyncio.create_task(endless(client, topic))
        await asyncio.to_thread(sys.stdin.read)
        reading.cancel()
        await asyncio.wait([reading])


if __name__ == "__main__":
    tune_malloc()
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(_read(sys.argv[1], sys.argv[2]))
