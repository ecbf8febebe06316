"""Nodes that run inside this process, each on a loop of its own within the test's (`inner_loop`).

What it keeps true:

* What runs is the product's own code, on real sockets and a real disk.
* A fatal error ends the node, and nothing else (DECISIONS 12).
"""

import asyncio
import logging
import os
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from tidelog.broker import config as broker_config
from tidelog.broker.broker import Broker
from tidelog.broker.config import BrokerConfig
from tidelog.controller import config as controller_config
from tidelog.controller.config import ControllerConfig
from tidelog.controller.controller import Controller
from tidelog.controller.image import Image
from tidelog.protocol.settings import configured
from tidelog.protocol.types import BrokerId
from tidelog.storage.io import real_environment
from tidelog.testing.disk import Disk
from tidelog.testing.inner_lines import Halted, Net
from tidelog.testing.inner_loop import InnerLoop
from tidelog.testing.nodes import DEATH_S, STOP_S, NodeFailed, NodeSpec, State
from tidelog.testing.ports import HOST

_LINES = 2000
"""How much of a node's log is kept."""


class LocalNode:
    """One node inside this process."""

    def __init__(self, spec: NodeSpec, net: Net, threads: ThreadPoolExecutor) -> None:
        self.spec = spec
        self.disk = Disk(str(spec.directory))
        self.node: Broker | Controller | None = None
        """The node of the last life, to be looked at."""
        self.lines: deque[str] = deque(maxlen=_LINES)
        self._net = net
        self._threads = threads
        self._loop: InnerLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None]
        self._ended: asyncio.Future[None]
        self._error: BaseException | None = None

    @property
    def state(self) -> State:
        """Whether it runs."""
        if self._loop is None or self._loop.dead or self._ended.done():
            return "absent"
        return "paused" if self._loop.paused else "running"

    # ── a life ────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Begin."""
        assert self.state == "absent", f"{self.spec.title} is {self.state}"
        await self._bury()
        outer = asyncio.get_running_loop()
        self._ready, self._ended = outer.create_future(), outer.create_future()
        self._error = None
        self._loop = InnerLoop(  # type: ignore[abstract]  # nodes use no more of a loop
            self.spec.name, self._net, self._threads
        )
        self._task = asyncio.Task(self._live(), loop=self._loop, name=self.spec.title)
        self._task.add_done_callback(self._on_end)

    async def _live(self) -> None:
        environment = real_environment(self.disk.mount(), self._halt)
        node = self.node = self._made(environment)
        await node.run(lambda: None if self._ready.done() else self._ready.set_result(None))

    def _made(self, environment: Any) -> Broker | Controller:
        spec = self.spec
        if spec.is_broker:
            broker = BrokerConfig(
                broker_id=BrokerId(spec.number),
                controllers=spec.controllers,
                host=HOST,
                port=spec.port,
                rack=spec.rack,
            )
            return Broker(configured(broker, broker_config.FIELDS, spec.settings), environment)
        controller = ControllerConfig(
            node_id=BrokerId(spec.number), voters=spec.controllers, host=HOST, port=spec.port
        )
        return Controller(controller_config.told(controller, spec.settings), environment)

    def _halt(self, reason: str) -> NoReturn:
        self.lines.append(f"halted: {reason}")
        loop = self._loop
        assert loop is not None
        if _get_running_loop() is loop:
            self._die()
        else:  # in a worker thread
            loop.outer.call_soon_threadsafe(self._die)
        raise Halted(reason)

    def _die(self) -> None:
        if self._loop is not None and self._task is not None and not self._loop.dead:
            self._loop.cut_off()
            self.disk.kill()
            self._task.cancel()

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self._loop is not None and not self._loop.dead:
            self._error = error
            self.lines.append(f"ended: {_told(error)}")
            self._loop.cut_off()
            self.disk.kill()
        if not self._ended.done():
            self._ended.set_result(None)

    async def _bury(self) -> None:
        if self._loop is not None:
            _, late = await asyncio.wait([self._ended], timeout=DEATH_S)
            if late:
                raise NodeFailed(f"{self.spec.title} was killed {DEATH_S:g} s ago and is not gone")
            self._loop.close()
            self._loop = self._task = None

    async def ready(self, timeout: float) -> None:  # noqa: ASYNC109 -- as Node says
        """Until it serves."""
        await asyncio.wait([self._ready, self._ended], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done() and not self._ended.done():
            return
        last = "\n".join(list(self.lines)[-20:])
        if self._ended.done():
            raise NodeFailed(f"{self.spec.title} has ended:\n{last}") from self._error
        raise NodeFailed(f"{self.spec.title} does not serve after {timeout:g} s; its last log lines:\n{last}")

    async def stop(self) -> None:
        """Stop in order."""
        assert self._loop is not None
        assert self.node is not None
        self._loop.call_soon(self.node.stop)
        _, late = await asyncio.wait([self._ended], timeout=STOP_S)
        if late:
            raise NodeFailed(f"{self.spec.title} was told to stop {STOP_S:g} s ago and runs; kill it")
        await self._bury()

    async def kill(self) -> None:
        """End at once."""
        self._die()
        await self._bury()

    async def pause(self) -> None:
        """Freeze."""
        assert self._loop is not None
        self._loop.pause()

    async def resume(self) -> None:
        """Go on."""
        assert self._loop is not None
        self._loop.go_on()

    @property
    def image(self) -> Image | None:
        """What this broker knows of the cluster; None: it does not serve."""
        node = self.node
        serves = self.state == "running" and isinstance(node, Broker) and node.serving
        return node.observer.image if serves and isinstance(node, Broker) else None

    # ── disk and log ──────────────────────────────────────────────────────────────────────────────

    async def fill_disk(self) -> None:
        """No room any more."""
        self.disk.full = True

    async def free_disk(self) -> None:
        """Room again."""
        self.disk.full = False

    def logs(self) -> str:
        """What it has logged, as far as this process logs at all."""
        return "".join(f"{line}\n" for line in self.lines)


def _told(error: BaseException) -> str:
    """An error, or those that a group of tasks has ended with."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_told(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"


class LogSplitter(logging.Handler):
    """Gives each line of the product's log to the node that was running."""

    def __init__(self, nodes: Mapping[str, LocalNode]) -> None:
        super().__init__()
        self._nodes = nodes
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        loop = _get_running_loop()
        if isinstance(loop, InnerLoop) and loop.name in self._nodes:
            self._nodes[loop.name].lines.append(self.format(record))


def threads_for(nodes: int) -> ThreadPoolExecutor:
    """The worker threads of a cluster: a flush of one node must not wait for those of all others."""
    return ThreadPoolExecutor(max_workers=max(4, 2 * nodes), thread_name_prefix=f"tidelog-{os.getpid()}")
