"""What every request is served with: the replicas, the cluster's image, the clocks, and no more of the broker."""

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.controller.image import Image


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
    image: Image
    clocks: Clocks
    appended: Callable[[Partition, int], None]
    """Told of each batch and its size: it is to be flushed, at once or some time."""
    save_log_starts: Callable[[Callable[[], None]], None]
    """Write the log starts durably, off the event loop, and tell when it is done."""
