"""How a process of ours runs its loop: uvloop where it is, and memory that is kept instead of given back.

The program is the same under asyncio's own loop, on Windows and in the simulator.
"""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3

_MIB: Final = 1024 * 1024

_GC_THRESHOLDS: Final = (10_000, 20, 50)
"""Objects before the youngest are looked at, and how often that happens before older ones are. By default a node
that learns of 10,000 partitions looks at all that it has time and again: each look holds its loop up for 10 to 20 ms,
and finds nothing, since what it keeps has no cycles."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the program until it ends, as `asyncio.run` does, on the fastest loop there is."""
    tune_malloc()
    gc.set_threshold(*_GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(main)


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes a loop: uvloop's, or asyncio's where uvloop cannot be imported."""
    try:
        import uvloop  # noqa: PLC0415 -- not there on every system
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def tune_malloc() -> bool:
    """Tell glibc to keep large blocks; False where there is no glibc.

    By default each freed buffer of 128 KB and more goes back to the kernel and is faulted in again, page by
    page, when the next one is made: that was 3/4 of the cost of a fetch of 1 MB.
    """
    import ctypes  # noqa: PLC0415 -- a command line has no use for it

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, 64 * _MIB), (_M_TRIM_THRESHOLD, 512 * _MIB), (_M_TOP_PAD, 16 * _MIB))
    taken = [mallopt(name, value) for name, value in settings]
    return taken == [1, 1, 1]
