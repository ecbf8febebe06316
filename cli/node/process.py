"""A node as a process: what must hold before it begins, the signals, being ready, and how it ends.

    refused before it was ready       exit 1, one line; nothing that this start has made is left behind
    SIGTERM, SIGINT                   a stop in order: exit 0
    a second one                      at once, as if killed: exit 143 or 130
    SIGHUP                            nothing if it was started without a terminal; else that has gone: as SIGTERM
    a failure that nobody can handle  at once: exit 70 (DECISIONS 12)

What it keeps true:

* A data directory is made only after everything else that can be refused was looked at, and removed if the node is
  refused nevertheless.
* Whoever waits for the node is told once, when it serves: a line on stdout, and the file of `--ready-file`.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, TypeAlias

import click

from tidelog.cli.node.logs import Moderation
from tidelog.cli.node.refusals import refusal
from tidelog.cli.node.territory import Territories
from tidelog.cli.node.vitals import Vitals
from tidelog.cli.options import Address
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.io import run
from tidelog.protocol.io.http import HttpServer, Page, serve_pages
from tidelog.protocol.metrics import CONTENT_TYPE, Sample, exposition
from tidelog.storage.environment import Environment
from tidelog.storage.identity import Role
from tidelog.storage.io import real_environment
from tidelog.storage.io.compacting import CompactingProcess

logger = logging.getLogger(__name__)

HALTED: Final = 70
_AT_ONCE: Final = 128
"""The exit code of a process that a signal ended, without the signal's number: the shell's habit."""
_LOOK_S: Final = 1.0
_UNHEARD_AFTER_S: Final = 2.0
_UNHEARD_AGAIN_S: Final = 60.0
_WHO_THEY_ARE: Final[Mapping[Role, str]] = {"broker": "--controllers", "controller": "--quorum"}


class Node(Protocol):
    """A broker or a controller, as its process sees it."""

    def run(self, ready: Callable[[], None]) -> "asyncio.Future[None] | Any":
        """Serve until stopped; `ready` is called once, when it serves."""
        ...

    def stop(self) -> None:
        """Stop in order."""
        ...

    def about(self) -> Mapping[str, Any]:
        """Where it is and whose, for the line that says that it is ready."""
        ...

    def not_ready(self) -> str | None:
        """Why it does not serve now, in words; None: it does."""
        ...

    def unheard(self) -> str | None:
        """Which controllers it does not hear and why, if it hears none that leads."""
        ...

    def look(self) -> None:
        """Once a second: say what has changed, in few lines."""
        ...

    def samples(self) -> Iterable[Sample]:
        """What it counts and measures, as far as it is there already."""
        ...


Make: TypeAlias = Callable[[Environment], Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a process is started as."""

    role: Role
    id: int
    listen: Address
    data: tuple[str, ...]
    """Its data directories; a controller has one."""
    http: Address | None = None
    ready_file: str | None = None
    json: bool = False
    """Whether stdout is told in JSON."""


def serve(launch: Launch, moderation: Moderation, make: Make) -> int:
    """Be that node until it ends; the exit code. What is refused is a ClickException of one line."""
    territories = Territories(launch.data)
    try:
        first, *others = territories.take()
        environment = replace(
            real_environment(first, _halt),
            compacts_elsewhere=CompactingProcess(),
            other_directories=tuple(others),
        )
        node = make(environment)
        return run(Process(launch, node, moderation, Vitals(launch.role, launch.id)).live())
    except click.ClickException:
        territories.give_back()
        raise
    except OSError as error:
        territories.give_back()
        raise refusal(error, launch.data) from error


def _halt(reason: str) -> NoReturn:
    logger.critical("process.halted exit=%d reason=%r", HALTED, reason)
    os._exit(HALTED)


@dataclass
class Process:
    """One life of a node in this process."""

    launch: Launch
    node: Node
    moderation: Moderation
    vitals: Vitals
    ready: bool = False
    stopping_since: float | None = None
    http: HttpServer | None = None
    began: float = field(default_factory=time.monotonic)

    async def live(self) -> int:
        """Serve until a signal or a failure; the exit code."""
        launch = self.launch
        logger.info(
            "%s.starting id=%d pid=%d data=%s", launch.role, launch.id, os.getpid(), ",".join(launch.data)
        )
        self._forget_ready_file()
        self._take_signals()
        self.vitals.start(type(asyncio.get_running_loop()).__module__.partition(".")[0])
        looking = asyncio.create_task(self._look())
        looking.add_done_callback(_tell_failure)
        try:
            await self._serve_pages()
            await self.node.run(self._on_ready)
        except Exception as error:  # noqa: BLE001 -- whatever it is, this is where a node ends
            self._failed(error)
        finally:
            looking.cancel()
            if self.http is not None:
                self.http.close()
            self._forget_ready_file()
        took_s = time.monotonic() - (self.stopping_since or time.monotonic())
        logger.info("%s.stopped id=%d took_ms=%d", launch.role, launch.id, took_s * 1000)
        return 0

    def _failed(self, error: BaseException) -> NoReturn:
        """Refused at the start: one line, by whoever called. Later: the last line of the log, and `HALTED`."""
        causes = list(_leaves(error))
        if all(isinstance(cause, TidelogError | OSError) for cause in causes):
            if not self.ready:
                raise refusal(causes[0], self.launch.data) from error
            logger.critical("%s.failed exit=%d reason=%r", self.launch.role, HALTED, str(causes[0]))
        else:
            logger.critical("%s.failed exit=%d", self.launch.role, HALTED, exc_info=error)
        self._forget_ready_file()
        os._exit(HALTED)  # a disk that hangs would keep a worker thread, and that the end of the interpreter

    # ── being ready ───────────────────────────────────────────────────────────────────────────────

    def _on_ready(self) -> None:
        self.ready = True
        launch, took_ms = self.launch, (time.monotonic() - self.began) * 1000
        http = str(Address(self.http.host, self.http.port)) if self.http is not None else None
        about = {
            "type": "ready",
            "role": launch.role,
            "id": launch.id,
            **self.node.about(),
            "http": http,
            "pid": os.getpid(),
        }
        logger.info("%s.ready id=%d took_ms=%d", launch.role, launch.id, took_ms)
        if launch.ready_file is not None:
            _write_whole(Path(launch.ready_file), json.dumps(about) + "\n")
        watched = f", http://{http}/metrics" if http is not None else ""
        say(
            json.dumps(about)
            if launch.json
            else f"{launch.role} {launch.id} is ready at {about['advertised']}{watched}"
        )

    def _forget_ready_file(self) -> None:
        if self.launch.ready_file is not None:
            Path(self.launch.ready_file).unlink(missing_ok=True)

    # ── for those who watch ───────────────────────────────────────────────────────────────────────

    async def _serve_pages(self) -> None:
        if self.launch.http is None:
            return
        pages = {"/metrics": self._metrics, "/healthz": self._health, "/readyz": self._readiness}
        self.http = await serve_pages(*self.launch.http, pages)
        logger.info("http.listening host=%s port=%d", self.http.host, self.http.port)

    def _metrics(self) -> Page:
        ready = self.node.not_ready() is None
        samples = (*self.vitals.collect(ready=ready), *self.node.samples())
        return Page(200, exposition(samples), CONTENT_TYPE)

    def _health(self) -> Page:
        """That this is answered at all says that the process is there and its loop turns."""
        return Page(200, "ok\n")

    def _readiness(self) -> Page:
        why = self.node.not_ready()
        unheard = self.node.unheard() if why is not None else None
        if why is None:
            return Page(200, "ready\n")
        return Page(503, f"{why}{f' ({unheard})' if unheard else ''}\n")

    # ── signals ───────────────────────────────────────────────────────────────────────────────────

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop, number)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            return  # nohup has said so
        # Looked at now: a terminal that has gone cannot be found any more.
        attached = _has_terminal()
        loop.add_signal_handler(signal.SIGHUP, self._hung_up if attached else _not_meant)

    def _asked_to_stop(self, number: signal.Signals) -> None:
        launch = self.launch
        if self.stopping_since is not None:
            logger.warning("%s.killed id=%d signal=%s", launch.role, launch.id, number.name)
            self._forget_ready_file()
            os._exit(_AT_ONCE + number)
        self.stopping_since = time.monotonic()
        logger.info("%s.stopping id=%d signal=%s", launch.role, launch.id, number.name)
        self.node.stop()

    def _hung_up(self) -> None:
        if self.stopping_since is None:
            self._asked_to_stop(signal.SIGHUP)

    # ── from time to time ─────────────────────────────────────────────────────────────────────────

    async def _look(self) -> None:
        """Say what an operator should know and no event tells: a cluster that is not there, lines left out."""
        loop = asyncio.get_running_loop()
        option = _WHO_THEY_ARE[self.launch.role]
        unheard_since: float | None = loop.time()
        say_at, looks = loop.time() + _UNHEARD_AFTER_S, 0
        while True:
            await asyncio.sleep(_LOOK_S)
            now, looks = loop.time(), looks + 1
            unheard = self.node.unheard() if self.stopping_since is None else None
            if unheard is None:
                unheard_since, say_at = None, 0.0
            elif unheard_since is None:
                unheard_since, say_at = now, now + _UNHEARD_AFTER_S - _LOOK_S
            elif now >= say_at:
                logger.warning(
                    "controllers.unheard for_s=%d tried=%s note=%s",
                    now - unheard_since,
                    unheard,
                    f"this goes on trying: start those controllers, or start this again with other {option}",
                )
                say_at = now + _UNHEARD_AGAIN_S
            self.node.look()
            self.vitals.look()
            if looks % 30 == 0:
                for event, left_out in self.moderation.summary():
                    logger.info("log.left_out of=%s lines=%d", event, left_out)


def _tell_failure(looking: "asyncio.Task[None]") -> None:
    """Whoever looks must not disturb the node; but that nobody looks any more is told."""
    if not looking.cancelled() and (error := looking.exception()) is not None:
        logger.error("process.looks_no_more", exc_info=error)


def say(line: str) -> None:
    """A line to stdout, if anybody reads it."""
    try:
        click.echo(line)
        sys.stdout.flush()
    except OSError as error:
        logger.info("stdout.closed reason=%r", str(error))


def _write_whole(path: Path, text: str) -> None:
    """So that a reader finds all of it or nothing."""
    written = path.with_name(f".{path.name}.{os.getpid()}")
    written.write_text(text, encoding="utf-8")
    written.replace(path)


def _not_meant() -> None:
    """A terminal has gone that this process never had."""


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
