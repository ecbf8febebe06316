"""The frame of a measurement: a clock that begins after the warm-up, a line every few seconds, and an end.

What it keeps true: whatever ends it (all is done, Ctrl-C, an error of the cluster), what was measured until then is there,
with the time that it took; no line and no waiting for what is left is counted.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import click

from tidelog.cli.asking import UNHEALTHY, Failure, Unhealthy, failure
from tidelog.cli.perf.figures import Measured, Meter, Show
from tidelog.protocol.errors import TidelogError

INTERRUPTED: Final = 130
UNTIL_THEN: Final = "interrupted: this is what was measured until then"
NOTHING_YET: Final = "interrupted: nothing was measured yet"


class Run:
    """One measurement."""

    def __init__(self, measured: Measured, show: Show, every_s: float) -> None:
        self.measured = measured
        self.meter = Meter(time.perf_counter())
        self._show = show
        self._every_s = every_s
        self._code = 0
        self._silenced: BaseException | None = None
        """What the printing of a line has failed with: nobody reads them any more."""

    def begin(self) -> None:
        """The warm-up is over: what comes from now on counts."""
        self.measured.began_ms = time.time_ns() // 1_000_000
        self.meter = Meter(time.perf_counter())

    async def measure(self, work: Coroutine[Any, Any, None], look: Callable[[], None] = lambda: None) -> None:
        """Do that, and take the time; `look` brings the meter up to date."""
        self.begin()
        ticking, measuring = asyncio.create_task(self._tick(look), name="perf-lines"), asyncio.current_task()
        assert measuring is not None
        ticking.add_done_callback(lambda ticked: self._ticked(ticked, measuring))
        try:
            await work
        except asyncio.CancelledError:
            if self._silenced is not None:
                measuring.uncancel()
                raise self._silenced from None
            self.measured.interrupted = True
        except (TidelogError, Failure) as error:
            failed = failure(error) if isinstance(error, TidelogError) else error
            self.measured.why, self._code = failed.message, failed.exit_code
        finally:
            ticking.cancel()
            self.look(look)

    def look(self, look: Callable[[], None] = lambda: None) -> None:
        """Take over what the meter says now."""
        look()
        measured, meter = self.measured, self.meter
        measured.seconds = time.perf_counter() - meter.began_s
        measured.records, measured.size = meter.records, meter.size

    def end(self) -> int:
        """Show all of it; the exit code, or the error that ended it."""
        self._show.all(self.measured)
        if self.measured.interrupted:
            click.echo(UNTIL_THEN, err=True)
            return INTERRUPTED
        if self.measured.why:
            raise (Unhealthy if self._code == UNHEALTHY else Failure)(self.measured.why)
        return 0

    def _ticked(self, ticking: "asyncio.Task[None]", measuring: "asyncio.Task[Any]") -> None:
        if not ticking.cancelled() and (failed := ticking.exception()) is not None:
            self._silenced = failed
            measuring.cancel()

    async def _tick(self, look: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            self.look(look)
            now_s, meter = time.perf_counter(), self.meter
            self._show.interval(self.measured, meter.cut(now_s), now_s - meter.began_s)
