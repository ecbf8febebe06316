"""The real client on a host of a simulated world, beside a simulated cluster of real brokers and controllers, or alone."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from tests.simulation.cluster import BROKER_PORT, Cluster
from tidelog.client.io.client import Client, connect
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.world import World

P = ParamSpec("P")

T_S = 30.0


class Stage:
    """A cluster that is up, and a host for clients."""

    def __init__(self, world: World, *, brokers: int = 3, controllers: int = 3, **options: Any) -> None:
        self.world = world
        self.cluster = Cluster(world, brokers=brokers, controllers=controllers)
        self.host = Host("client", world)
        self.host.start()
        self.options = options
        self.cluster.until(self.all_alive, 20)

    @property
    def bootstrap(self) -> str:
        """Every broker, in order."""
        return ",".join(f"{host.machine.address}:{BROKER_PORT}" for host in self.cluster.hosts.values())

    def all_alive(self) -> bool:
        """Whether every broker is registered and not fenced, and every broker knows it."""
        nodes = [broker for broker in self.cluster.brokers.values() if broker.serving]
        return len(nodes) == len(self.cluster.hosts) and all(
            len(node.observer.image.brokers) == len(nodes)
            and not any(one.fenced for one in node.observer.image.brokers.values())
            for node in nodes
        )

    def client(self, **options: Any) -> Client:
        """A client that is not started yet."""
        return connect(self.bootstrap, **{**self.options, **options})

    def run(self, what: Callable[[Client], Awaitable[Any]], seconds: float = T_S, **options: Any) -> Any:
        """What that returns or raises, done with a client that is closed after it."""

        async def doing() -> Any:
            async with self.client(**options) as client:
                return await what(client)

        return self.do(doing, seconds)

    def do(self, what: Callable[[], Awaitable[Any]], seconds: float = T_S) -> Any:
        """What that returns or raises, done on the client's host."""
        done: list[Any] = []

        async def doing() -> None:
            try:
                done.append((await what(), None))
            except Exception as error:  # noqa: BLE001 -- raised below, where the test is
                done.append((None, error))

        self.host.spawn(doing())
        self.cluster.until(lambda: done, seconds)
        result, error = done[0]
        if error is not None:
            raise error
        return result


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that starts its own brokers, on one simulated host: nobody's time-out ends there because the machine is busy."""

    @wraps(test)
    def on_a_host(*args: P.args, **kwargs: P.kwargs) -> None:
        with World(1).running() as world:
            host = Host("all", world)
            host.start()
            world.result(host.create_task(test(*args, **kwargs)), T_S)

    return on_a_host
