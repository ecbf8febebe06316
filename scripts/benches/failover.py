"""How long writes stop when a leader is killed, and changes of metadata when the active controller is.

What `tidelog perf failover` does, on the same code: three brokers and three controllers as processes, default settings.
Beside it stands what nobody can be faster than: two refused connections, 50 ms apart, are the proof that a process is
gone (docs/adr: fast fencing).
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings

from tidelog.controller.peers import PROBE_PAUSE_S, PROBES
from tidelog.testing.cluster import Cluster
from tidelog.testing.failover import kill_controllers, kill_leaders, percentile


async def _kill(directory: Path, settings: Settings) -> Readings:
    leaders, controllers = settings.count(20, 1), settings.count(10, 1)
    async with Cluster(3, 3, processes=True, directory=directory) as cluster:
        brokers = [kill.ms for kill in await kill_leaders(cluster, leaders)]
        active = [kill.ms for kill in await kill_controllers(cluster, controllers)]
    return {
        "leader": percentile(brokers, 0.5),
        "leader 95": percentile(brokers, 0.95),
        "controller": percentile(active, 0.5),
        "controller 95": percentile(active, 0.95),
        "proof": PROBE_PAUSE_S * (PROBES - 1) * 1000,
    }


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    def take(number: int) -> Readings:
        return asyncio.run(_kill(settings.directory / f"failover-{number}", settings))

    yield take


_BESIDE = "the proof that it is gone"
BENCH = Bench(
    "failover",
    "SIGKILL of a leader under load, and of the active controller, until the next acknowledgement (wall time)",
    (
        Row(
            "leader killed: next write, median",
            "ms",
            "leader",
            "proof",
            _BESIDE,
            Goal("figure", False, 250, "GOALS C7"),
        ),
        Row(
            "... 95 of 100 kills", "ms", "leader 95", "proof", _BESIDE, Goal("figure", False, 500, "GOALS C7")
        ),
        Row("controller killed: next topic, median", "ms", "controller", "proof", _BESIDE),
        Row(
            "... 95 of 100 kills",
            "ms",
            "controller 95",
            "proof",
            _BESIDE,
            Goal("figure", False, 1000, "GOALS C8"),
        ),
    ),
    _begin,
    rounds_max=5,
    also_runs=("tidelog.testing.node", "tidelog.cli.main"),
)
