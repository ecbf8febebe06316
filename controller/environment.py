"""What a process gives its controller: files, clocks, chance and ids, as far as a controller needs the world."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random
from typing import NoReturn, Protocol

from tidelog.storage.files import Directory


class Clock(Protocol):
    """The clocks that are injected; time-outs are the event loop's."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    def boot_ms(self) -> float:
        """Milliseconds since the machine started, also while it is suspended: for leases."""
        ...


@dataclass(frozen=True, slots=True)
class Environment:
    """What a process gives its controller: the world, as far as it needs it."""

    directory: Directory
    clock: Clock
    boot_id: str
    pid: int
    rng: Random
    new_id: Callable[[], bytes]
    """16 random bytes."""
    new_guard: Callable[[], AbstractContextManager[object]]
    """A lock for files that several threads write."""
    halt: Callable[[str], NoReturn]
    """End the process at once, leaving no marker of a clean stop."""
