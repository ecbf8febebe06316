"""A broker as its process sees it: where it is, whether it serves, whom it does not hear, what has changed."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidelog.broker.broker import Broker
from tidelog.broker.config import BrokerConfig
from tidelog.broker.metrics import collect
from tidelog.cli.node.addresses import tried
from tidelog.cli.options import Address
from tidelog.controller.observer import Observer
from tidelog.protocol.metrics import Sample
from tidelog.storage.environment import Environment

logger = logging.getLogger(__name__)


class BrokerNode:
    """One broker."""

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        self.broker = Broker(config, environment)
        self._directory = environment.directory.path
        self._connected = False
        self._alive: bool | None = None
        """Whether it held its lease when it was last looked at; None: it has not yet."""
        self._stopping = False
        self._begun = self._ended = 0

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until stopped."""
        await self.broker.run(ready)

    def stop(self) -> None:
        """Leave the cluster, and stop."""
        self._stopping = True
        self.broker.stop()

    def about(self) -> Mapping[str, Any]:
        """Where it is and whose."""
        broker = self.broker
        return {
            "host": broker.host,
            "port": broker.port,
            "advertised": str(Address(*broker.advertised)),
            "cluster_id": broker.cluster_id,
            "data": self._directory,
        }

    def not_ready(self) -> str | None:
        """Why it does not serve."""
        return self.broker.not_ready()

    @property
    def _observer(self) -> Observer | None:
        """Once the logs are open."""
        return getattr(self.broker, "observer", None)

    def unheard(self) -> str | None:
        """Which controllers it cannot reach."""
        observer = self._observer
        if observer is not None and observer.connected:
            return None
        return tried(self.broker.config.controllers, observer.failures if observer is not None else {})

    def look(self) -> None:
        """Whether the way to the controller, the lease or leaderships have come or gone."""
        broker, observer = self.broker, self._observer
        connected = observer is not None and observer.connected
        if observer is not None and connected and not self._connected:
            logger.info("controller.found id=%d epoch=%d", observer.controller_id, observer.quorum_epoch)
        self._connected = connected
        alive = broker.not_ready() is None
        if self._alive and not alive and not self._stopping:
            logger.warning("broker.fenced id=%d reason=%s", broker.config.broker_id, broker.not_ready())
        elif alive and self._alive is False:
            logger.info("broker.unfenced id=%d", broker.config.broker_id)
        if broker.serving:
            self._alive = alive
        tally = broker.tally
        begun, ended = tally.leaderships_begun - self._begun, tally.leaderships_ended - self._ended
        if begun or ended:
            self._begun, self._ended = tally.leaderships_begun, tally.leaderships_ended
            logger.info("leaderships.changed begun=%d ended=%d leads=%d", begun, ended, self._leads())

    def _leads(self) -> int:
        partitions = self.broker.replicas.partitions.values()
        return sum(partition.leadership is not None for partition in partitions)

    def samples(self) -> Iterable[Sample]:
        """What it counts and measures, once its logs are open and its port is."""
        return collect(self.broker) if hasattr(self.broker, "listener") else ()
