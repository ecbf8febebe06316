"""The network of a cluster of real processes: none of our business, or through a proxy in front of each node.

The proxies are one process of their own: what the test computes does not slow the cluster down, and what they carry
does not slow down the test.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from tidelog.testing.links import Links
from tidelog.testing.nodes import NodeFailed, NodeSpec
from tidelog.testing.processes import child_environment

_ANSWER_S = 10.0


class NoProxies:
    """Nodes speak to each other without anybody between them."""

    def __init__(self) -> None:
        self.links = Links()

    async def open(self, spec: NodeSpec) -> None:
        """It listens where it is found."""

    async def close(self, spec: NodeSpec) -> None:
        """Its port refuses by itself."""

    async def changed(self) -> None:
        """Nothing can be changed here."""

    async def end(self) -> None:
        """Nothing is open."""


class Proxies:
    """The process of the proxies (`proxying`). Made by `begin`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.links = Links()
        self._process = process
        self._one_at_a_time = asyncio.Lock()

    @classmethod
    async def begin(cls, specs: Sequence[NodeSpec]) -> "Proxies":
        """A proxy for each of them, all closed."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tidelog.testing.proxying",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,
        )
        proxies = cls(process)
        try:
            await proxies._ask(proxies=[[spec.name, spec.advertised, spec.port] for spec in specs])
        except BaseException:
            await proxies.end()
            raise
        return proxies

    async def open(self, spec: NodeSpec) -> None:
        """The node runs: its port accepts."""
        await self._ask(open=spec.name)

    async def close(self, spec: NodeSpec) -> None:
        """The node is gone: its port refuses."""
        await self._ask(close=spec.name)

    async def changed(self) -> None:
        """Until the links hold."""
        await self._ask(links=self.links.to_values())

    async def end(self) -> None:
        """All connections are closed with the process."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _ask(self, **command: Any) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    stdin.write(json.dumps(command).encode() + b"\n")
                    await stdin.drain()
                    line = await stdout.readline()
            except (TimeoutError, OSError) as error:
                raise NodeFailed(f"the proxies do not answer {command}: {error!r}") from error
        if not line:
            raise NodeFailed(f"the process of the proxies has ended; {command} was not done")
        answer = json.loads(line)
        if "error" in answer:
            raise NodeFailed(f"the proxies could not do {command}: {answer['error']}")
