"""A controller as its process sees it: where it is, whether it serves, whom it does not hear, what has changed."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidelog.cli.node.addresses import tried
from tidelog.cli.options import Address
from tidelog.controller.config import ControllerConfig
from tidelog.controller.controller import Controller
from tidelog.controller.metrics import collect
from tidelog.protocol.metrics import Sample
from tidelog.protocol.types import NO_BROKER, BrokerId
from tidelog.storage.environment import Environment

logger = logging.getLogger(__name__)


class ControllerNode:
    """One controller."""

    def __init__(self, config: ControllerConfig, environment: Environment) -> None:
        self.controller = Controller(config, environment)
        self._directory, self._clock = environment.directory.path, environment.clock
        self._others = [voter for voter in config.voters if voter[0] != config.node_id]
        self._stopping = False
        self._alive: set[BrokerId] | None = None
        """The brokers that were alive when it was last looked; None: it did not decide that."""

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until stopped. Ready is who leads, or follows somebody who does."""
        waiting = asyncio.create_task(self._settled(ready))
        try:
            await self.controller.run()
        finally:
            waiting.cancel()

    async def _settled(self, ready: Callable[[], None]) -> None:
        await self.controller.settled.wait()
        ready()

    def stop(self) -> None:
        """Let another one lead, and stop."""
        self._stopping = True
        self.controller.stop()

    def about(self) -> Mapping[str, Any]:
        """Where it is and whose."""
        node = self.controller
        return {
            "host": node.host,
            "port": node.port,
            "advertised": str(Address(*node.address)),
            "cluster_id": node.cluster_id,
            "data": self._directory,
        }

    def not_ready(self) -> str | None:
        """Why it neither leads nor follows."""
        node = self.controller
        if self._stopping:
            return "the controller is stopping"
        if not node.settled.is_set() and not hasattr(node, "quorum"):
            return "the controller is opening its log"
        quorum = node.quorum
        if node.active is not None or (node.follows and quorum.leader_id != NO_BROKER):
            return None
        if quorum.leads:
            return f"its election in epoch {quorum.epoch} is not committed yet"
        if quorum.leader_id == NO_BROKER:
            return f"no controller leads in epoch {quorum.epoch} of the quorum"
        return f"controller {quorum.leader_id} leads the quorum, and does not answer"

    def unheard(self) -> str | None:
        """Which of the others it cannot reach, while nobody leads."""
        node = self.controller
        if self.not_ready() is None or not self._others:
            return None
        return tried(self._others, node.failures)

    def look(self) -> None:
        """Which brokers have come or gone, while it decides that."""
        node = self.controller
        if node.active is None:
            self._alive = None
            return
        brokers = node.working.brokers.values()
        alive = {broker.id for broker in brokers if not (broker.fenced or broker.shutting_down)}
        for event, changed in (
            ("brokers.alive", alive - (self._alive or set())),
            ("brokers.gone", (self._alive or set()) - alive),
        ):
            if changed:
                logger.info("%s ids=%s alive=%d", event, ",".join(map(str, sorted(changed))), len(alive))
        self._alive = alive

    def samples(self) -> Iterable[Sample]:
        """What it counts and measures, once its log is open."""
        node = self.controller
        return collect(node, self._clock.boot_ms()) if hasattr(node, "quorum") else ()
