"""A small cluster of real nodes inside the test's process: real sockets on free ports, real disks, one loop."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from tidelog.broker.broker import Broker
from tidelog.broker.config import BrokerConfig
from tidelog.client.io.client import Client, connect
from tidelog.controller.config import ControllerConfig
from tidelog.controller.controller import Controller
from tidelog.protocol.types import BrokerId
from tidelog.storage.environment import Environment
from tidelog.storage.io import open_directory, real_environment

HOST = "127.0.0.1"
DEADLINE_S = 20.0


async def until(condition: Callable[[], object], what: str, seconds: float = DEADLINE_S) -> None:
    """Let the loop work until the condition holds; a test that waits in vain says what for."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not condition():
        assert loop.time() < end, f"waited {seconds} s in vain: {what}"
        tick = loop.create_future()
        loop.call_later(0.002, tick.set_result, None)
        await tick


class Cluster:
    """One controller and some brokers. `async with`; `kill` a broker by its number."""

    def __init__(self, root: Path, brokers: int = 3, **config: Any) -> None:
        self.root = root
        self.count = brokers
        self.config = config
        self.controller: Controller
        self.brokers: dict[int, Broker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor()

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().set_default_executor(self._threads)
        config = ControllerConfig(node_id=BrokerId(1), voters=((1, HOST, 0),), host=HOST, port=0)
        self.controller = Controller(config, self._environment("controller"))
        await self._run("controller", self.controller)
        await asyncio.gather(*(self.start(number) for number in range(1, self.count + 1)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        # What a cancelled node has begun in a thread goes on: until its end the directory is not left alone.
        self._threads.shutdown()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())

    @property
    def bootstrap(self) -> str:
        """Every broker that was started, in order."""
        return ",".join(f"{HOST}:{self.brokers[number].port}" for number in sorted(self.brokers))

    def client(self, **options: Any) -> Client:
        """A client that is not started yet."""
        return connect(self.bootstrap, **options)

    async def start(self, number: int) -> None:
        """Start a broker, and wait until it serves and may lead. Not again: its directory stays this process's."""
        config = BrokerConfig(
            broker_id=BrokerId(number),
            controllers=((1, HOST, self.controller.port),),
            host=HOST,
            port=0,
            rack=f"rack-{number}",
            **self.config,
        )
        broker = Broker(config, self._environment(f"broker-{number}"))
        self.brokers[number] = broker
        await self._run(f"broker-{number}", broker)
        image = self.controller.working
        await until(
            lambda: number in image.brokers and not image.brokers[BrokerId(number)].fenced,
            f"broker {number} may lead: {image.brokers}",
        )

    async def kill(self, number: int) -> None:
        """End a broker at once: its sockets are closed, its peers hear of it."""
        task = self._tasks.pop(f"broker-{number}")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _run(self, name: str, node: Broker | Controller) -> None:
        ready = asyncio.Event()
        task = asyncio.get_running_loop().create_task(node.run(ready.set), name=name)
        self._tasks[name] = task
        await until(lambda: ready.is_set() or task.done(), f"{name} is ready")
        if task.done():
            await task

    def _environment(self, name: str) -> Environment:
        return real_environment(open_directory(str(self.root / name), create=True), _halt)


def _halt(reason: str) -> NoReturn:
    raise AssertionError(f"a node has ended itself: {reason}")


@asynccontextmanager
async def running(brokers: int = 3, **config: Any) -> AsyncIterator[Cluster]:
    """A cluster in a directory of its own, which goes with it."""
    with tempfile.TemporaryDirectory(prefix="tidelog-") as root:
        async with Cluster(Path(root), brokers, **config) as cluster:
            yield cluster
