"""Requests with nothing in them, one after the other and pipelined, next to a bare echo on the same loop.

Wall time, a process at each end of a loopback connection, messages of the echo as long as a request's frame.
The loop is uvloop where it can be imported, on both sides of both.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from statistics import quantiles

from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings, interleave
from scripts.benches.sockets import HOST, EchoClient, Pipeline, Server, server

from tidelog.protocol.framing import frame_start
from tidelog.protocol.io import Connection, connect
from tidelog.protocol.io.runner import fastest_loop
from tidelog.protocol.messages import InitProducerId, encode_head

ASK = InitProducerId()
SIZE = len(frame_start(encode_head(1000, ASK)))
WINDOW = 64
_TURN = 10

# Cores are awake here: the prototype took 16.8 us beside 11.8 of blocking sockets, 1.42, of which 70 %.
_SEQUENTIAL = Goal("ratio", False, 2.0, "PERFORMANCE 3, 70 %")
_PIPELINED = Goal("figure", True, 92, "PERFORMANCE 3: 131 k/s, 70 %")


class _Calling:
    """A connection to the product and one to the echo."""

    def __init__(self, product: Connection, echo: EchoClient, servers: tuple[Server, Server]) -> None:
        self._product = product
        self._echo = echo
        self._servers = servers

    async def sequential(self, count: int) -> Readings:
        """p50 and p99 of a call and of an echo, in microseconds; in turns, so that both find the cores awake or not."""
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "call": lambda: self._product.call(ASK),
            "echo": lambda: self._echo.run(SIZE, 1, 1),
        }
        taken: dict[str, list[float]] = {"call": [], "echo": []}
        for _ in range(count // _TURN):
            for name, call in calls.items():
                for _ in range(_TURN):
                    began = time.perf_counter_ns()
                    await call()
                    taken[name].append((time.perf_counter_ns() - began) / 1000)
        cuts = {name: quantiles(each, n=100) for name, each in taken.items()}
        return {f"{name} p{at}": cut[at - 1] for name, cut in cuts.items() for at in (50, 99)}

    async def pipelined(self, count: int) -> Readings:
        """Thousands of requests a second, and the server's CPU for one."""
        before = self._servers[0].cpu_us()
        seconds = await Pipeline(self._product, ASK, ()).run(count, WINDOW)
        return {
            "requests": count / seconds / 1000,
            "request cpu": (self._servers[0].cpu_us() - before) / count,
        }

    async def echoed(self, count: int) -> Readings:
        """The same of the echo."""
        before = self._servers[1].cpu_us()
        seconds = await self._echo.run(SIZE, count, WINDOW)
        return {"echoes": count / seconds / 1000, "echo cpu": (self._servers[1].cpu_us() - before) / count}


async def _connected(product: Server, echo: Server) -> _Calling:
    connection = await connect(HOST, product.port)
    _, client = await asyncio.get_running_loop().create_connection(EchoClient, HOST, echo.port)
    return _Calling(connection, client, (product, echo))


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    calls, requests = settings.count(2000, 20), settings.count(40_000, 200)
    with (
        asyncio.Runner(loop_factory=fastest_loop()) as runner,
        server("product", settings) as product,
        server("echo", settings) as echo,
    ):
        calling = runner.run(_connected(product, echo))

        def take(number: int) -> Readings:
            readings: Readings = {}

            def took(more: Readings) -> float:
                readings.update(more)
                return 0.0

            interleave(
                number,
                {
                    "calls": lambda: took(runner.run(calling.sequential(calls))),
                    "requests": lambda: took(runner.run(calling.pipelined(requests))),
                    "echoes": lambda: took(runner.run(calling.echoed(requests))),
                },
            )
            return readings

        yield take


ROWS = (
    Row("one call after the other, p50", "us", "call p50", "echo p50", "echo", _SEQUENTIAL),
    Row("one call after the other, p99", "us", "call p99", "echo p99", "echo"),
    Row(f"{WINDOW} calls in flight", "k requests/s", "requests", "echoes", "echo", _PIPELINED),
    Row("server's CPU for one of them", "us", "request cpu", "echo cpu", "echo"),
)
BENCH = Bench(
    "rpc",
    "no-op requests over loopback, two processes (wall time)",
    ROWS,
    _begin,
    also_runs=("scripts.benches.servers",),
)
