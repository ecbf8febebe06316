"""A broker's data directories as its process has them: claimed and alive, and told to the controller one by one (ADR 106)."""

import logging
from contextlib import suppress
from dataclasses import replace

from tidelog.broker.config import BrokerConfig
from tidelog.controller.facts import METADATA
from tidelog.protocol.errors import StorageError
from tidelog.protocol.messages import DirectoryStanding, GoneReplica, PartitionIndex
from tidelog.protocol.types import Epoch
from tidelog.storage.crashes import CrashKind, Life
from tidelog.storage.data_directories import DataDirectories, take_all
from tidelog.storage.data_directory import Halt
from tidelog.storage.environment import Environment, Taken, take_directory
from tidelog.storage.identity import Identity, adopt_cluster
from tidelog.storage.open_segments import OpenSegments

logger = logging.getLogger(__name__)


class Disks:
    """All that a process has claimed, the directory with the metadata log first."""

    def __init__(self, taken: tuple[Taken, ...]) -> None:
        self._taken = taken
        self.data = DataDirectories([one.data for one in taken])
        self._told: set[str] = set()

    @property
    def identity(self) -> Identity:
        """Whose they are, by the first one; the cluster is known if any of them knows it."""
        identities = [one.claim.identity for one in self._taken]
        clusters = (identity.cluster_id for identity in identities if identity.cluster_id is not None)
        return replace(identities[0], cluster_id=next(clusters, None))

    @property
    def life(self) -> Life:
        """The first one's: by it the starts of the broker are counted."""
        return self._taken[0].life

    @property
    def worst(self) -> CrashKind:
        """How an earlier process has ended at worst, for any of them."""
        return max(one.life.worst for one in self._taken)

    def standings(self) -> tuple[DirectoryStanding, ...]:
        """What a registration says of each."""
        return tuple(
            DirectoryStanding(
                one.life.directory_id,
                int(one.life.worst),
                one.life.incarnation_ids,
                tuple(PartitionIndex(*place) for place in one.data.lie_here()),
                tuple(GoneReplica(*partition) for partition in one.data.gone),
            )
            for one in self._taken
        )

    def registered(self, cluster_id: bytes, broker_epoch: Epoch) -> None:
        """The controller has accepted this process, and knows what is on them."""
        for one in self._taken:
            try:
                adopt_cluster(one.data.directory, one.claim.identity, cluster_id)
                one.life.registered(broker_epoch)
                one.data.registered()
            except OSError as error:
                with suppress(StorageError):  # told by `on_failure`
                    one.data.halt("note the registration", error)

    def log_problems(self) -> None:
        """Tell the operator what is wrong, and cannot be seen elsewhere: each once, when all was opened, or closed."""
        report = self.data.report
        offline = [str(error) for error in report.offline.values()]
        for problem in dict.fromkeys(offline + report.problems):
            if problem not in self._told:
                logger.warning("storage.problem %s", problem)
                self._told.add(problem)

    def release(self) -> None:
        """Let others have them."""
        for one in self._taken:
            one.claim.lock.release()


def take_disks(env: Environment, config: BrokerConfig, incarnation_id: bytes, halt: Halt) -> Disks:
    """Claim them all, and begin a life in each."""
    segments = OpenSegments(config.open_segments)

    def take(one: Environment) -> Taken:
        return take_directory(
            one, "broker", config.broker_id, incarnation_id, config.log, segments, halt, config.reserve_bytes
        )

    return Disks(take_all(env, METADATA, take))
