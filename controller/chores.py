"""What an active controller does by itself, besides answering.

It fences who is silent, lets preferred leaders lead again, finds for unclean recovery who has most, and says now and
then that nothing has happened.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

from tidelog.controller.active import Active
from tidelog.controller.facts import Place
from tidelog.controller.leaders import in_question
from tidelog.controller.recovery import AGGRESSIVE_MS, ASK_AGAIN_MS, Todo, leader_epochs
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import DiskFull, TidelogError
from tidelog.protocol.io import connect
from tidelog.protocol.messages import (
    ElectLeaders,
    GetReplicaLogInfo,
    GetReplicaLogInfoReply,
    Hello,
    PartitionIndex,
)
from tidelog.protocol.settings import CLUSTER, number
from tidelog.protocol.types import BrokerId

logger = logging.getLogger(__name__)

ASK_TIMEOUT_MS: Final = 2000
PLACES_AT_ONCE: Final = 10_000
"""Partitions that a broker is asked about in one request: its answer fits into a frame, also where it says why not."""


class Chores:
    """Of one leadership; `drive` carries out steps as long as it lasts, `give_up` ends it: another one may have room."""

    def __init__(
        self,
        active: Active,
        *,
        idle_ms: int,
        now_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        drive: Callable[[Generator[None, None, None]], Coroutine[Any, Any, None]],
        give_up: Callable[[], None],
        hello: Hello,
        bounds: Bounds,
    ) -> None:
        self._active = active
        self._hello = hello
        self._idle_ms = idle_ms
        self._now_ms = now_ms
        self._spawn = spawn
        self._drive = drive
        self._give_up = give_up
        self._bounds = bounds
        self._appended = asyncio.Event()
        self._over = False
        self._looked = asyncio.Event()
        """Set, and reset at once, when it was looked who has said what it has."""
        self._interval = asyncio.Event()
        """Set when it may have become another one how often preferred leaders are looked for."""

    def begin(self) -> list[Coroutine[Any, Any, None]]:
        """What goes on until the leadership ends."""
        return [
            self._drive(self._active.begin()),
            self._watch(),
            self._idle(),
            self._rebalance(),
            self._recover(),
        ]

    def end(self) -> None:
        """The leadership is over: nobody waits for what it would have found out."""
        self._over = True
        self._looked.set()

    def appended(self) -> None:
        """Something has been decided: perhaps somebody leads now, or nobody does any more."""
        self._appended.set()
        self._interval.set()

    async def _watch(self) -> None:
        """Fence who is silent, one per turn: looked for when somebody may be, since whoever is heard has more time."""
        liveness = self._active.config.liveness
        interval_ms = liveness.session_timeout_ms / 20
        while True:
            now_ms = self._now_ms()
            silent_ms = self._active.sessions.deadline_ms(self._active.image)
            if silent_ms is None:
                silent_ms = now_ms + liveness.silence_max_ms
            due_ms = max(silent_ms, now_ms + interval_ms)
            # Half a millisecond later the time in whole milliseconds has surely come.
            await asyncio.sleep((due_ms - now_ms + 0.5) / 1000)
            now_ms = self._now_ms()
            # After a pause everybody looks silent: first what they said meanwhile must be read.
            steps = self._active.overdue(now_ms) if now_ms <= due_ms + interval_ms else None
            if steps is not None:
                await self._drive(steps)

    async def _idle(self) -> None:
        while True:
            end = self._active.image.end_offset
            await asyncio.sleep(self._idle_ms / 1000)
            if self._active.image.end_offset == end:
                try:
                    self._active.idle()
                except DiskFull as full:
                    logger.warning("quorum.full %s", full)
                    self._give_up()

    async def _rebalance(self) -> None:
        looked_ms = self._now_ms()
        while True:
            settings = self._active.image.configs
            interval_s = number(settings, CLUSTER, "", "leader.imbalance.check.interval.seconds")
            due_ms = looked_ms + 1000 * float(interval_s or 300)
            if (wait_ms := due_ms - self._now_ms()) > 0:
                # What is appended may be that the interval is another one.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout((wait_ms + 0.5) / 1000):
                        await self._interval.wait()
                self._interval.clear()
            else:
                await self._drive(self._active.rebalance())
                looked_ms = self._now_ms()

    async def _recover(self) -> None:
        while True:
            now_ms = self._now_ms()
            try:
                todo = self._active.recover(now_ms)
            except DiskFull:
                todo = Todo({}, [], now_ms + ASK_AGAIN_MS)
            for broker, places in todo.ask.items():
                self._spawn(self._ask(broker, places))
            self._looked.set()
            self._looked.clear()
            wait_s = None if todo.next_ms is None else max(todo.next_ms - now_ms, 1) / 1000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._appended.wait()
            self._appended.clear()
            await asyncio.sleep(0)  # once for all that is appended in one turn

    async def find(self, request: ElectLeaders) -> None:
        """Before an operator has anybody lead: who is alive says what it has, or is silent for too long."""
        if not request.unclean or request.quorum_epoch != self._active.epoch:
            return  # nobody needs to know, or it will be refused
        recovery = self._active.recovery
        places = in_question(self._active.image, request)
        patience_ms = min(AGGRESSIVE_MS, request.timeout_ms // 2)
        recovery.wish(places, self._now_ms() + patience_ms)
        self._appended.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_ms / 1000):
                while not self._over and not recovery.is_known(self._active.image, places):
                    await self._looked.wait()

    async def _ask(self, broker: BrokerId, places: list[Place]) -> None:
        known = self._active.image.brokers.get(broker)
        if known is None:
            return
        try:
            connection = await connect(
                known.host, known.port, self._hello, bounds=self._bounds, timeout_ms=ASK_TIMEOUT_MS
            )
            try:
                for first in range(0, len(places), PLACES_AT_ONCE):
                    asked = tuple(PartitionIndex(*place) for place in places[first : first + PLACES_AT_ONCE])
                    request = GetReplicaLogInfo(self._active.epoch, asked)
                    epochs = leader_epochs(self._active.image, places[first : first + PLACES_AT_ONCE])
                    reply, _ = await connection.call(request, timeout_ms=ASK_TIMEOUT_MS)
                    if isinstance(reply, GetReplicaLogInfoReply) and not reply.error:
                        self._active.recovery.answered(broker, reply, epochs)
                        self._appended.set()
            finally:
                connection.close()
        except TidelogError as error:
            logger.info("recovery.unheard broker=%d error=%r", broker, str(error))
