"""How `tidelog produce` sends: lines while they come, within bounds, and an account of every one of them.

What it keeps true: a line is written, or named with its number and the cause; memory is bounded by the producer's
buffer and `_WINDOW` unacknowledged lines, whatever the input; a line that is itself at fault stops nobody else, any
other failure stops the reading. Ctrl-C stops the reading too: what was taken is still acknowledged, for `_LAST_S`.
"""

import asyncio
import os
import stat
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from tidelog.cli.asking import child_settings, known_topics, sentence
from tidelog.cli.consent import at_a_terminal
from tidelog.cli.names import require_partitions
from tidelog.cli.produce.lines import Failed, Failures, Line, Lines, TooLong
from tidelog.cli.terminal import many
from tidelog.client.options import ProducerConfig
from tidelog.protocol.errors import (
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    TidelogError,
)

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.io.producer import Delivery, Producer

_PIECE: Final = 1 << 18
_WINDOW: Final = 100_000
_LAST_S: Final = 5.0
_PROGRESS_S: Final = 0.5
_SILENT_S: Final = 3.0
"""After so long without an acknowledgement whoever waits is told that it is not the program that hangs."""
_AROUND: Final = 1000
"""More than what stands around a record in its batch."""
_LIMITS: Final = ("max.request.size", "max.message.bytes")
"""What a line may be too large for, and can be raised."""
_OWN_FAULT: Final = (InvalidRecord, InvalidTimestamp, MessageTooLarge)
"""Errors of one line, which say nothing of the next."""


class Wanted(NamedTuple):
    """What is to be written, and how."""

    topic: str
    file: str | None
    """None: stdin."""
    key: bytes | None
    separator: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    partition: int | None
    acks: str | None
    delivery_ms: float
    empty_is_null: bool


class Tally(NamedTuple):
    """What became of it."""

    records: int
    size: int
    """Bytes of keys and values."""
    lines: int
    failed: int
    seconds: float
    stopped: bool
    """The reading was stopped by a failure."""
    interrupted: bool


async def send(ctx: click.Context, client: "Client", wanted: Wanted) -> Tally:
    """Write the lines; what fails is told on stderr as it happens."""
    [topic] = await known_topics(client, wanted.topic)
    if wanted.partition is not None:
        require_partitions(topic, [wanted.partition], ctx)
    ours: dict[str, Any] = {"delivery.timeout.ms": max(int(wanted.delivery_ms), 1)}
    if wanted.acks is not None:
        ours["acks"] = wanted.acks
    settings = child_settings(ctx, ProducerConfig, ours)
    if wanted.file is None and sys.stdin is None:
        raise click.UsageError("there is no stdin: name a FILE", ctx)
    fd = sys.stdin.fileno() if wanted.file is None else os.open(wanted.file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        async with client.producer(config=settings) as producer:
            return await _Sending(producer, wanted, fd).run()
    finally:
        if wanted.file is not None:
            os.close(fd)


class _Sending:
    """One run of the command."""

    def __init__(self, producer: "Producer", wanted: Wanted, fd: int) -> None:
        self._producer = producer
        self._wanted = wanted
        self._fd = fd
        self._lines = Lines(producer.config.max_request_size)
        self._failures = Failures()
        self._unsure: deque[tuple[int, int, Delivery]] = deque()
        """Lines that were accepted and are not known to be written: number, size, delivery."""
        self._records = self._size = 0
        self._stopped = False
        self._progress = _Progress(asks=wanted.file is None)

    async def run(self) -> Tally:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        interrupted = False
        silence = asyncio.create_task(self._keep_telling())
        try:
            await self._read()
            await self._settle(0)
        except asyncio.CancelledError:
            interrupted = True
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_S):
                    await self._settle(0)
            self._settle_rest("interrupted before it was acknowledged; it may be written")
        finally:
            silence.cancel()
        seconds = loop.time() - began_s
        self._progress.end()
        self._tell(self._failures.end())
        return Tally(
            self._records,
            self._size,
            self._lines.count,
            self._failures.count,
            seconds,
            self._stopped,
            interrupted,
        )

    async def _read(self) -> None:
        async for piece in pieces(self._fd):
            for line in self._lines.feed(piece):
                await self._send(line)
                if self._stopped:
                    return
            self._collect()
            self._progress.show(self._records)
        for line in self._lines.end():
            await self._send(line)

    async def _send(self, line: Line | TooLong) -> None:
        wanted = self._wanted
        if isinstance(line, TooLong):
            limit = self._producer.config.max_request_size
            fact = f"it has {line.size:,} bytes, and max.request.size is {limit:,}"
            self._failed(line.number, f"{fact}; {self._room_for(line.size)}")
            return
        key, value = wanted.key, line.data
        if wanted.separator is not None:
            first, found, rest = line.data.partition(wanted.separator)
            key, value = (first, rest) if found else (None, line.data)
        size = len(value) + len(key or b"")
        try:
            delivery = await self._producer.enqueue(
                wanted.topic,
                None if wanted.empty_is_null and not value else value,
                key,
                partition=wanted.partition,
                headers=wanted.headers or None,
            )
        except TidelogError as error:
            self._refused(line.number, size, error)
            return
        self._unsure.append((line.number, size, delivery))
        if len(self._unsure) >= _WINDOW:
            await self._settle(_WINDOW // 2)

    def _collect(self) -> None:
        """Take note of those at the front that are known by now."""
        unsure = self._unsure
        while unsure and unsure[0][2].done:
            self._take(*unsure.popleft())

    async def _settle(self, left: int) -> None:
        """Wait until at most so many are not known."""
        while len(self._unsure) > left:
            with suppress(TidelogError):  # what it is, is told below
                await self._unsure[0][2]
            self._collect()
            self._progress.show(self._records)

    async def _keep_telling(self) -> None:
        """Failures that no neighbour has followed, and that it is the cluster that does not answer."""
        told = known = -1
        while True:
            await asyncio.sleep(_SILENT_S)
            self._collect()
            self._tell(self._failures.end())
            if self._unsure and self._records == known != told:
                told = known
                self._progress.end()
                click.echo(
                    f"nothing was acknowledged for {_SILENT_S:g} s; {many(len(self._unsure), 'line waits', 'lines wait')}, for "
                    f"{self._wanted.delivery_ms / 1000:g} s at most: `tidelog cluster health` says what is wrong",
                    err=True,
                )
            known = self._records

    def _settle_rest(self, cause: str) -> None:
        self._collect()
        for number, _, delivery in self._unsure:
            if not delivery.done:
                self._failed(number, cause)
        self._unsure.clear()

    def _take(self, number: int, size: int, delivery: "Delivery") -> None:
        try:
            delivery.result()
        except TidelogError as error:
            self._refused(number, size, error)
        else:
            self._records += 1
            self._size += size

    def _refused(self, number: int, size: int, error: TidelogError) -> None:
        if not isinstance(error, _OWN_FAULT):
            self._stopped = True
        cause = sentence(error)
        if isinstance(error, MessageTooLarge) and any(limit in error.message for limit in _LIMITS):
            cause = f"{' '.join(error.message.split())}; {self._room_for(size)}"
        self._failed(number, cause)

    def _room_for(self, size: int) -> str:
        """The way out for a line of that size: it has to be let out here, and to be taken by the topic."""
        headers = sum(len(name) + len(value) + _AROUND for name, value in self._wanted.headers)
        most = size + headers + len(self._wanted.key or b"") + _AROUND
        return (
            f"-X max.request.size={most} lets it out, and `tidelog topic alter {self._wanted.topic} -c "
            f"max.message.bytes={most}` lets it in"
        )

    def _failed(self, number: int, cause: str) -> None:
        self._tell(self._failures.add(number, cause))

    def _tell(self, failed: Failed | None) -> None:
        if failed is not None:
            self._progress.end()
            click.echo(f"not written: {failed}", err=True)


class _Progress:
    """A line at a terminal that says how far it is; not where somebody types the lines.

    To take it away is no colour: it is done for NO_COLOR as well.
    """

    def __init__(self, *, asks: bool) -> None:
        typed = asks and at_a_terminal()
        self._wanted = sys.stderr.isatty() and not typed
        self._loop = asyncio.get_running_loop()
        self._began_s = self._shown_s = self._loop.time()
        self._shown = False
        if typed:
            click.echo("a record per line; Ctrl-D ends", err=True)

    def show(self, records: int) -> None:
        """So many are written."""
        now_s = self._loop.time()
        if not self._wanted or now_s - self._shown_s < _PROGRESS_S:
            return
        self._shown_s, self._shown = now_s, True
        rate = records / (now_s - self._began_s)
        click.echo(f"\r{many(records, 'record')}, {rate:,.0f}/s\x1b[K", err=True, nl=False, color=True)

    def end(self) -> None:
        """Something else is said now."""
        if self._shown:
            self._shown = False
            click.echo("\r\x1b[K", err=True, nl=False, color=True)


async def pieces(fd: int) -> AsyncIterator[bytes]:
    """What can be read, as it comes; whoever is cancelled while waiting is not held up by who writes."""
    waits = not stat.S_ISREG(os.fstat(fd).st_mode)
    while True:
        if waits:
            waits = await _readable(fd)
        else:
            await asyncio.sleep(0)  # a file is always ready: let others run
        piece = os.read(fd, _PIECE)
        if not piece:
            return
        yield piece


async def _readable(fd: int) -> bool:
    """Until there is something; False where nobody can tell (`/dev/null`), and reading does not wait."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def there_is() -> None:
        if not ready.done():
            ready.set_result(None)

    try:
        loop.add_reader(fd, there_is)
    except OSError:
        return False
    try:
        await ready
    finally:
        loop.remove_reader(fd)
    return True
