"""What a node of a test cluster is, whether it runs inside this process or in its own.

absent ──start──► running ──stop, kill──► absent      running ──pause──► paused ──resume──► running
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from tidelog.testing.ports import HOST

State: TypeAlias = Literal["absent", "running", "paused"]

START_S = 30.0
"""How long a node may take until it serves."""
STOP_S = 60.0
"""How long a node that stops in order may take: half of it for others to take over what it leads."""
DEATH_S = 10.0
"""How long a node that was killed may take to be gone."""


class NodeFailed(Exception):
    """A node did not do what was asked of it; its last log lines say why."""


class Unsupported(Exception):
    """This kind of cluster cannot do that truthfully; the message says which can."""


FACTORS: Final[Mapping[str, str]] = {
    "b": "offsets.topic.replication.factor",
    "c": "default.replication.factor",
}
"""The settings of brokers and of controllers that say how many replicas a topic has that does not say."""
_MOST_REPLICAS: Final = 3


def replication_factors(brokers: int) -> dict[str, dict[str, str]]:
    """What nodes are told, so that topics have as many replicas as there may be (DECISIONS 19)."""
    return {kind: {key: str(min(_MOST_REPLICAS, brokers))} for kind, key in FACTORS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One node of a cluster."""

    name: str
    """`b1` or `c1`."""
    directory: Path
    """Its data directory."""
    port: int
    """Where it listens."""
    advertised: int
    """Where others find it: the same, unless a proxy stands before it."""
    controllers: tuple[tuple[int, str, int], ...]
    """The quorum: id, host and port of each."""
    rack: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What it is told, by Kafka's names."""

    @property
    def number(self) -> int:
        """Its id among the nodes of its role."""
        return int(self.name[1:])

    @property
    def is_broker(self) -> bool:
        """Whether it is a broker."""
        return self.name[0] == "b"

    @property
    def title(self) -> str:
        """`broker-1`: as directories and clients' names have it."""
        return f"{'broker' if self.is_broker else 'controller'}-{self.number}"

    @property
    def address(self) -> tuple[str, int]:
        """Where others find it."""
        return HOST, self.advertised


class Node(Protocol):
    """A node that can be started and hurt."""

    spec: NodeSpec

    @property
    def state(self) -> State:
        """Whether it runs."""
        ...

    async def start(self) -> None:
        """Begin; does not wait until it serves."""
        ...

    async def ready(self, timeout: float) -> None:  # noqa: ASYNC109 -- a bound of the whole, told to the user
        """Until it serves. Raises NodeFailed, with its last log lines, when it ends before or takes longer."""
        ...

    async def stop(self) -> None:
        """Stop in order."""
        ...

    async def kill(self) -> None:
        """End at once, as by SIGKILL."""
        ...

    async def pause(self) -> None:
        """Freeze, as by SIGSTOP."""
        ...

    async def resume(self) -> None:
        """Go on, as by SIGCONT."""
        ...

    async def fill_disk(self) -> None:
        """Let its disk have no room any more."""
        ...

    async def free_disk(self) -> None:
        """Let its disk have room again."""
        ...

    def logs(self) -> str:
        """What it has logged, in all its lives."""
        ...
