"""Clusters for tests of programs that use tidelog, and the simulator that tidelog itself is tested with.

    async with tidelog.testing.Cluster(brokers=3) as cluster:
        client = cluster.client()

Nothing is imported before it is used: pytest loads the plugin of every package that is installed.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster
    from tidelog.testing.nodes import NodeFailed, Unsupported

__all__ = ["Cluster", "NodeFailed", "Unsupported"]


def __getattr__(name: str) -> Any:
    if name == "Cluster":
        from tidelog.testing.cluster import Cluster  # noqa: PLC0415

        return Cluster
    if name in {"NodeFailed", "Unsupported"}:
        from tidelog.testing import nodes  # noqa: PLC0415

        return getattr(nodes, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
