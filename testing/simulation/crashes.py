"""Every crash that an action can suffer: the action, cut off at each of its operations on a disk.

What it keeps true: each aftermath comes from a fresh disk and its own seed, and says where it was cut, so that one
line of a failing test is enough to see it again.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from tidelog.storage.files import Directory
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.faults import WHENS, Crash, Killed, PowerCut, When

State = TypeVar("State")

CRASHES: tuple[type[Crash], ...] = (Killed, PowerCut)


class Aftermath(NamedTuple, Generic[State]):
    """A disk after a crash, ready to be opened again."""

    where: str
    disk: SimulatedDisk
    state: State
    """What `prepare` returned: what was claimed before the end, if `act` noted it there."""
    returned: bool
    """Whether `act` had come to its end, so that all it promises must hold."""


def every_crash(
    prepare: Callable[[Directory], State],
    act: Callable[[Directory, State], object],
    *,
    seeds: Iterable[int] = range(4),
    crashes: Iterable[type[Crash]] = CRASHES,
) -> Iterator[Aftermath[State]]:
    """Prepare, then act and crash: before, within and after each operation, and once when all is done.

    Odd seeds lose power page by page, even seeds write by write.
    """
    for seed in seeds:
        for crash in crashes:
            for when in WHENS:
                yield from _crash_everywhere(prepare, act, seed, when, crash)


def _crash_everywhere(
    prepare: Callable[[Directory], State],
    act: Callable[[Directory, State], object],
    seed: int,
    when: When,
    crash: type[Crash],
) -> Iterator[Aftermath[State]]:
    for nth in count(1):
        disk = SimulatedDisk(random.Random(seed), by_page=seed % 2 == 1)
        directory = disk.open_directory()
        state = prepare(directory)
        disk.crash_at(nth, when=when, crash=crash)
        where = f"seed {seed}: {crash.__name__} {when} operation {nth}"
        try:
            act(directory, state)
        except crash:
            yield Aftermath(where, disk, state, returned=False)
        else:
            (disk.kill if crash is Killed else disk.power_cut)()
            yield Aftermath(
                f"seed {seed}: {crash.__name__} behind the last operation", disk, state, returned=True
            )
            return
