"""Many worlds: the same scenario under one seed after the other, in as many processes as there are cores.

What it keeps true: an outcome depends on the scenario, the seed and Python's minor version, and on nothing that ran
before or beside it; a failing seed says all that is needed to see it again.
"""

import gc
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from tidelog.testing.simulation.determinism import garbage_kept
from tidelog.testing.simulation.world import World

Scenario: TypeAlias = Callable[[World], object]
"""Makes hosts in a world that is running, lets time pass, and raises if something is wrong. A function of a module, so
that other processes find it by its name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a seed ended."""

    seed: int
    digest: str
    virtual_s: float
    steps: int
    counts: Mapping[str, int]
    """What the scenario counted: a zero where something should have happened is a mistake in the scenario."""
    failure: str | None
    """What went wrong, with the last events."""
    cpu_s: float = field(default=0.0, compare=False)
    """What it has cost, which is no part of what it is."""


def run_seed(scenario: Scenario, seed: int) -> Outcome:
    """Run the scenario in the world of that seed, and let go of that world."""
    began = time.process_time()
    with garbage_kept():
        outcome = _run(scenario, seed)
        gc.collect()
        gc.collect()  # what a finaliser has touched outlives the first: some MB of each seed
    return replace(outcome, cpu_s=time.process_time() - began)


def _run(scenario: Scenario, seed: int) -> Outcome:
    world = World(seed)
    failure = None
    try:
        with world.running():
            scenario(world)
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is how this seed ended
        failure = _describe(world, error)
    return Outcome(seed, world.digest(), world.now, world.steps, dict(world.counts), failure)


def workers(processes: int = 2) -> ProcessPoolExecutor:
    """Processes for `run_seeds`, for whoever calls it more than once: each takes a second to start."""
    # A fresh process per worker: what a fork would inherit is no part of a seed.
    return ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))


def run_seeds(
    scenario: Scenario, seeds: Iterable[int], *, processes: int = 2, pool: Executor | None = None
) -> Iterator[Outcome]:
    """The outcomes of these seeds, in their order, as they come in; in a pool of `workers`, or in one of its own."""
    if pool is not None:
        yield from pool.map(partial(run_seed, scenario), seeds)
        return
    with workers(processes) as own:
        yield from own.map(partial(run_seed, scenario), seeds)


def _describe(world: World, error: Exception) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return "\n".join(
        [
            f"seed {world.seed}, Python {version}, digest {world.digest()}, at {world.now:.6f} s",
            *traceback.format_exception(error),
            "the last events:",
            str(world.trace),
        ]
    )
