"""Producers that have fallen silent are forgotten, on leaders and followers alike (`producer.id.expiration.ms`).

What it keeps true (design 1.7; KAFKA-7190, KAFKA-9144):

* Nobody is forgotten sooner than the setting says, and who is silent is, a minute later at the most: what is
  remembered does not grow with every producer that ever was.
* A jump of the wall clock, forward or back, makes nobody older than it is.
"""

import asyncio
import logging
from typing import Final

from tidelog.broker.replicas import Replicas
from tidelog.broker.requests.context import Clocks

logger = logging.getLogger(__name__)

LOOK_S: Final = 60.0
"""How often it is looked for them."""


class Forgetting:
    """Looks after what the logs of this broker remember of producers. `run` is a task of the node."""

    def __init__(self, replicas: Replicas, clocks: Clocks) -> None:
        self._replicas = replicas
        self._clocks = clocks
        self._began_ms = clocks.wall_ms() - clocks.boot_ms()

    def now_ms(self) -> int:
        """The time by which producers age: that of day, or what has passed since the start if that is less."""
        return min(self._clocks.wall_ms(), self._began_ms + self._clocks.boot_ms())

    async def run(self) -> None:
        """Look once a minute, a log at a time."""
        while True:
            await asyncio.sleep(LOOK_S)
            for partition in list(self._replicas.partitions.values()):
                if partition.offline is None:
                    log = partition.log
                    gone = log.producers.expire(self.now_ms(), log.config.producer_id_expiration_ms)
                    if gone:
                        logger.debug("producers.forgotten partition=%s count=%d", partition.name, len(gone))
                await asyncio.sleep(0)
