"""The places where a run could depend on anything but its seed, closed for as long as it lasts.

| source | during a run |
|---|---|
| `time.time`, `.monotonic`, `.perf_counter` and the like | the clocks of the host whose code is running |
| `time.sleep`, threads, real sockets | raise: they would leave the simulation |
| `random`, `os.urandom`, `uuid.uuid4`, `secrets`, `random.Random()` | from the world's generator |
| `os._exit` | ends the host |
| the tasks of a TaskGroup | in the order in which they were made, not in that of their addresses |
| the garbage collector | off: cycles are collected when the run is over |
| log records | in the world's trace, with virtual time; in the digest by their formats |
| other threads, as of a client that nobody closed | have the real clocks, chance and sockets, and are not in the trace |

What it keeps true: all is as it was when the run is over, however it ends. What it cannot reach (`datetime.now`,
names imported before, the order of a set, another thread that draws from the `random` module itself) shows when the
digests of two runs are compared.
"""

import asyncio
import gc
import logging
import os
import random
import socket
import sys
import threading
import time
import uuid
from asyncio import _get_running_loop as get_running_loop
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NoReturn
from zlib import crc32

from tidelog.testing.simulation.timeline import Halted, Timeline

EPOCH_MS: Final = 1_700_000_000_000
"""When worlds begin, by the wall clock."""


class RealWorldReached(RuntimeError):
    """Code that is being simulated reached for something that is not: use the loop and the injected ports."""


@contextmanager
def deterministic(timeline: Timeline) -> Iterator[None]:
    """Close all of them until the block ends. One world runs at a time."""
    with ExitStack() as undo:
        undo.enter_context(garbage_kept())
        undo.enter_context(_logs_traced(timeline))
        undo.callback(random.setstate, random.getstate())
        undo.callback(lambda hooks: sys.set_asyncgen_hooks(*hooks), sys.get_asyncgen_hooks())
        random.seed(timeline.rng.getrandbits(64))
        sys.set_asyncgen_hooks(firstiter=None, finalizer=_close_generator)
        for owner, name, replacement in [*_clocks(timeline), *_chance(timeline), *_exits(timeline)]:
            original = getattr(owner, name)
            undo.callback(setattr, owner, name, original)
            setattr(owner, name, _in_this_thread(replacement, original))
        yield


def _in_this_thread(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A world has one thread: whatever runs beside it neither draws from its chance nor lives in its time."""
    world = threading.get_ident()

    def chosen(*args: Any, **options: Any) -> Any:
        return (replacement if threading.get_ident() == world else original)(*args, **options)

    return chosen


def _clocks(timeline: Timeline) -> list[tuple[Any, str, Any]]:
    def wall() -> float:
        process = timeline.current
        return (EPOCH_MS / 1000 + timeline.now) if process is None else process.wall_ms() / 1000

    def monotonic() -> float:
        process = timeline.current
        return timeline.now if process is None else process.monotonic()

    def in_ns(clock: Callable[[], float]) -> Callable[[], int]:
        return lambda: round(clock() * 1_000_000_000)

    return [
        (time, "time", wall),
        (time, "time_ns", in_ns(wall)),
        *((time, name, monotonic) for name in ("monotonic", "perf_counter", "process_time", "thread_time")),
        *((time, name, in_ns(monotonic)) for name in ("monotonic_ns", "perf_counter_ns", "process_time_ns")),
        (time, "sleep", _unreal("time.sleep blocks the loop")),
    ]


def _chance(timeline: Timeline) -> list[tuple[Any, str, Any]]:
    rng = timeline.rng
    seed = random.Random.seed

    def seed_from_world(self: random.Random, a: Any = None, version: int = 2) -> None:
        seed(self, rng.getrandbits(64) if a is None else a, version)

    return [
        (os, "urandom", rng.randbytes),
        (random, "_urandom", rng.randbytes),
        (random.Random, "seed", seed_from_world),
        (uuid, "uuid1", _unreal("uuid1 is made of the real clock and address")),
    ]


def _exits(timeline: Timeline) -> list[tuple[Any, str, Any]]:
    make_group = asyncio.TaskGroup.__init__

    def make_ordered_group(self: asyncio.TaskGroup) -> None:
        make_group(self)
        vars(self)["_tasks"] = _OrderedSet()

    def exit_process(code: int) -> NoReturn:
        if timeline.current is None:
            raise RealWorldReached("os._exit outside of any host")
        timeline.current.exit(code)
        raise Halted(f"os._exit({code})")

    return [
        (os, "_exit", exit_process),
        (threading.Thread, "start", _unreal("a thread runs in real time")),
        (socket.socket, "__init__", _unreal("a real socket")),
        (asyncio.TaskGroup, "__init__", make_ordered_group),
    ]


def _unreal(what: str) -> Callable[..., NoReturn]:
    def refuse(*_args: object, **_options: object) -> NoReturn:
        raise RealWorldReached(what)

    return refuse


class _OrderedSet(dict[Any, None]):
    """As much of a set as a TaskGroup needs, in the order of adding."""

    def add(self, item: object) -> None:
        self[item] = None

    def discard(self, item: object) -> None:
        self.pop(item, None)


def _close_generator(generator: AsyncGenerator[Any, Any]) -> None:
    # As asyncio's own hook, on whichever host let go of it.
    loop = get_running_loop()
    if loop is not None:
        loop.call_soon(loop.create_task, generator.aclose())


_kept: list[None] = []
"""Of the block that has begun: to ask the collector counts all that it has frozen."""


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Collect nothing unasked until the block ends; within another such block, this one changes nothing."""
    if _kept:
        yield
        return
    _kept.append(None)
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    # What was there before is not looked at again: a collection then costs what the run has left. Where somebody else
    # has frozen what lives on (tests/conftest.py) it stays so, and what the run before has left is collected as well.
    gc.disable()
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        _kept.clear()
        if not frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()


class _TraceHandler(logging.Handler):
    """Writes log records into the trace of the world that runs."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self._timeline = timeline
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if threading.get_ident() != self._thread:
            return
        timeline = self._timeline
        host = timeline.current.name if timeline.current else ""
        timeline.trace.remark(timeline.now, host, record.levelname.lower(), record.getMessage())
        # The text may hold an address; its format does not.
        timeline.trace.numbers.extend((timeline.now, record.levelno, crc32(str(record.msg).encode())))


@contextmanager
def _logs_traced(timeline: Timeline) -> Iterator[None]:
    handler = _TraceHandler(timeline)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
