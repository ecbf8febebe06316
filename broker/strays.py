"""Logs that the cluster does not place on this broker: kept aside for a while, reported, and then removed.

    found ──► reported ──(stray.delete.delay.ms, of this process)──► still not placed here? ──► removed

What it keeps true (design 1.8, 4.9; ADR 107):

* Nothing is removed before this broker has replayed its own registration, and then only what the cluster's metadata
  says is not here: the topic is gone, or its partition has other replicas.
* Of which topic it is must be written in it. What nobody can place stays until an operator removes it.
* The delay is counted by a clock that does not jump, from when this process found it: a restart begins it anew.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from tidelog.broker.io import in_a_thread
from tidelog.broker.requests.context import Clocks
from tidelog.protocol.types import TopicId
from tidelog.storage.files import Directory
from tidelog.storage.strays import Stray, give_up, strays

logger = logging.getLogger(__name__)

LOOK_S: Final = 60.0
"""How often it is looked for them."""
KEEP: Final = -1
"""A delay that never ends."""


class Found(NamedTuple):
    """A stray, and where it is."""

    directory: Directory
    stray: Stray

    @property
    def path(self) -> str:
        """What an operator would look for."""
        return f"{self.directory.path}/{self.stray.name}"


class Strays:
    """The strays of one broker. `run` is a task of the node, once it has taken its roles."""

    def __init__(
        self,
        directories: Callable[[], Iterable[Directory]],
        clocks: Clocks,
        *,
        is_here: Callable[[TopicId, int], bool],
        delay_ms: Callable[[], int],
    ) -> None:
        self.count = self.bytes = 0
        """What was there at the last look."""
        self.removed = 0
        """How many have been, since the start."""
        self._directories = directories
        self._clocks = clocks
        self._is_here = is_here
        self._delay_ms = delay_ms
        self._since_ms: dict[str, int] = {}
        """When this process found each of them, by their paths."""

    def due(self, found: Iterable[Found], now_ms: int, delay_ms: int) -> list[Found]:
        """Those whose time has come; who is new is reported, who is gone forgotten."""
        there = {each.path: each for each in found}
        self._since_ms = {path: self._since_ms.get(path, now_ms) for path in there}
        self.count, self.bytes = len(there), sum(each.stray.size for each in there.values())
        return [
            each
            for path, each in there.items()
            if delay_ms != KEEP and now_ms - self._since_ms[path] >= delay_ms and self._may_go(each.stray)
        ]

    def _may_go(self, stray: Stray) -> bool:
        """Whether the cluster says that it is not here."""
        if stray.topic_id is None or stray.partition is None:
            return False
        return not self._is_here(stray.topic_id, stray.partition.partition)

    async def run(self) -> None:
        """Look once a minute."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Report what is new, and remove what may go, one after the other."""
        found = await in_a_thread(self._found)
        new = [each for each in found if each.path not in self._since_ms]
        delay_ms = self._delay_ms()
        for each in self.due(found, self._clocks.boot_ms(), delay_ms):
            await self._remove(each)
        for path, size, may_go in [(each.path, each.stray.size, self._may_go(each.stray)) for each in new]:
            until = f"removed_after_ms={delay_ms}" if may_go and delay_ms != KEEP else "kept_for=an_operator"
            logger.warning("stray.found directory=%s bytes=%d %s", path, size, until)

    def _found(self) -> list[Found]:
        found = []
        for directory in self._directories():
            try:
                found += [Found(directory, stray) for stray in strays(directory)]
            except OSError as error:  # nothing rests on it: the next look is in a minute
                logger.warning("stray.unread directory=%s reason=%s", directory.path, error)
        return found

    async def _remove(self, found: Found) -> None:
        try:
            await in_a_thread(partial(give_up, found.directory, found.stray))
        except OSError as error:
            logger.warning("stray.refused directory=%s reason=%s", found.path, error)
            return
        self.removed += 1
        logger.warning("stray.removed directory=%s bytes=%d", found.path, found.stray.size)
