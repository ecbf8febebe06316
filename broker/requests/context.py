"""What every request is served with: the replicas, the clocks, and nothing else of the broker."""

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.broker.replicas import Replicas


@dataclass(frozen=True, slots=True)
class Clocks:
    """Three times in milliseconds, each for its purpose."""

    now_ms: Callable[[], int]
    """Monotonic: deadlines, lags."""
    wall_ms: Callable[[], int]
    """The time of day: when records were written."""
    boot_ms: Callable[[], int]
    """Monotonic also while the machine sleeps: leases."""


@dataclass(frozen=True, slots=True)
class Context:
    """The broker, as its requests see it."""

    replicas: Replicas
    clocks: Clocks
    save_log_starts: Callable[[Callable[[], None]], None]
    """Write the log starts durably, off the event loop, and tell when it is done."""
