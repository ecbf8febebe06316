"""What there is instead of a topic that there is not: most such names are mistyped.

What it keeps true: to say so costs no more than one question in half a minute, and a bounded time; when nobody answers,
the error is the one that it was.
"""

import asyncio
from typing import Final, Protocol

from tidelog.protocol.errors import TidelogError, UnknownTopicOrPartition
from tidelog.protocol.messages import Metadata, MetadataReply, Reply, Request
from tidelog.protocol.types import Buffer

ABSENT_MS: Final = 500
"""How long a topic may be unknown to brokers before it is said that there is none: it may just have been created."""
_ASK_MS: Final = 1000
_KEPT_S: Final = 30.0
_ALIKE: Final = 0.5


class Brokers(Protocol):
    """Whom to ask: a `Session`."""

    async def call_any(self, request: Request, *, timeout_ms: float | None = None) -> tuple[Reply, Buffer]:
        """Any broker's reply, whoever answers within the time."""
        ...


class Absence:
    """See the module."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._names: list[str] = []
        self._asked_s: float | None = None

    async def told(self, name: str, error: TidelogError) -> TidelogError:
        """The error, with the nearest name that there is if the topic is what is missing."""
        if not isinstance(error, UnknownTopicOrPartition):
            return error
        near = await self._nearest(name)
        return type(error)(f"{error.message}; the nearest is {near}") if near else error

    async def _nearest(self, name: str) -> str | None:
        from difflib import get_close_matches  # noqa: PLC0415 -- whoever makes no mistake must not pay for it

        near = get_close_matches(name, await self._topics(), n=1, cutoff=_ALIKE)
        return near[0] if near else None

    async def _topics(self) -> list[str]:
        now_s = asyncio.get_running_loop().time()
        if self._asked_s is not None and now_s < self._asked_s + _KEPT_S:
            return self._names
        self._asked_s = now_s
        try:
            async with asyncio.timeout(_ASK_MS / 1000):
                reply, _ = await self._brokers.call_any(Metadata(all_topics=True), timeout_ms=_ASK_MS)
        except (TidelogError, TimeoutError):
            return self._names
        if isinstance(reply, MetadataReply):
            self._names = [each.name for each in reply.topics if not each.internal and not each.error]
        return self._names
