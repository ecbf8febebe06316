"""Requests with nothing in them, one after the other and pipelined, next to a bare echo on the same loop.

Wall time, a process at each end of a loopback connection, messages of the echo as long as a request's frame.
The loop is uvloop where it can be imported, on both sides of both.

Where its two ends run decides what a call takes that is alone: on two cores each end is asleep when it is asked, and to
wake a core takes longer than to answer. Linux puts both ends of the echo on one core and those of the product on two. So
they are placed alike as well, on one core and on two, where processes can be placed (Linux, two cores); the goal holds
where the kernel puts them, too.
"""

import asyncio
import os
import sys
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
ONE_CORE, TWO_CORES, ANYWHERE = "on one core", "on two cores", "where the kernel puts it"

# The prototype took 16.8 us beside 11.8 of blocking sockets, 1.42, of which 70 %.
_SEQUENTIAL = Goal("ratio", False, 2.0, "PERFORMANCE 3, 70 %")
_PIPELINED = Goal("figure", True, 92, "PERFORMANCE 3: 131 k/s, 70 %")


class _Calling:
    """A connection to the product and one to the echo."""

    def __init__(self, product: Connection, echo: EchoClient, servers: tuple[Server, Server]) -> None:
        self._product = product
        self._echo = echo
        self._servers = servers

    async def placed(self, count: int) -> Readings:
        """One call after the other, in each place."""
        readings, places = Readings(), _places()
        try:
            for place, (mine, theirs) in places.items():
                self._put(mine, theirs)
                readings |= {
                    f"{name} {place}": value for name, value in (await self._sequential(count)).items()
                }
        finally:
            self._put(*places[ANYWHERE])
        return readings

    def _put(self, mine: list[int], theirs: list[int]) -> None:
        if sys.platform == "linux":
            os.sched_setaffinity(0, mine)
            for one in self._servers:
                os.sched_setaffinity(one.pid, theirs)

    async def _sequential(self, count: int) -> Readings:
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


def _places() -> dict[str, tuple[list[int], list[int]]]:
    """The cores of this end and of the other one, by what that is called; without cores nobody can be placed."""
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    placed = {ONE_CORE: (cores[:1], cores[:1]), TWO_CORES: (cores[:1], cores[-1:])} if len(cores) > 1 else {}
    return {**placed, ANYWHERE: (cores, cores)}


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
                    "calls": lambda: took(runner.run(calling.placed(calls))),
                    "requests": lambda: took(runner.run(calling.pipelined(requests))),
                    "echoes": lambda: took(runner.run(calling.echoed(requests))),
                },
            )
            return readings

        yield take


ROWS = (
    *(
        Row(
            f"one call after the other, {place}, p{at}",
            "us",
            f"call p{at} {place}",
            f"echo p{at} {place}",
            "echo",
            _SEQUENTIAL if at == 50 and place != TWO_CORES else None,
        )
        for place in _places()
        for at in (50, 99)
    ),
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
