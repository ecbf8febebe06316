"""SIGTERM and SIGHUP end a verb in order, as Ctrl-C does: `timeout`, systemd, `docker stop` and a terminal that goes send them.

    the first                        what is under way is cancelled: the verb leaves its group, says what it has done,
                                     and exits with 143 or 129
    another, a second later or more  at once, as if killed, with that one's code

`timeout` sends its signal twice, to the process and to its group: what comes at once behind the first is the same one. Who
has asked that a signal be ignored, as `nohup` does, is obeyed.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import click

from tidelog.cli.options import ENDED_BY

_KEY: Final = "tidelog.stopped_by"
_AGAIN_S: Final = 1.0


@contextmanager
def stopped_in_order(ctx: click.Context) -> Iterator[None]:
    """Within the task that does a verb's work: the signals cancel it."""
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    first_s: float | None = None

    # No handler of the loop: who waits to write to a full pipe does not come back to the loop, and has to end at last.
    def heard(number: int, _frame: FrameType | None) -> None:
        nonlocal first_s
        now_s = time.monotonic()
        if first_s is None:
            first_s = now_s
            ctx.meta[_KEY] = number
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # it may sleep
        elif now_s - first_s >= _AGAIN_S:
            os._exit(ENDED_BY + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.getsignal(each) for each in numbers}
    mine = [each for each in numbers if before[each] == signal.SIG_DFL]
    for each in mine:
        signal.signal(each, heard)
    try:
        yield
    finally:
        for each in mine:
            signal.signal(each, before[each])


def stopped(ctx: click.Context) -> bool:
    """Whether one of these signals has ended the work."""
    return _KEY in ctx.meta


def interrupted(ctx: click.Context) -> int:
    """The exit code of a verb that was interrupted: which signal it was."""
    number: int = ctx.meta.get(_KEY, signal.SIGINT)
    return ENDED_BY + number
