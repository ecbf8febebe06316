"""The fixtures of `plugin`, as pytest-asyncio runs them in its strict and in its auto mode."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.testing.cluster import Cluster


@pytest_asyncio.fixture
async def tidelog_cluster(request: pytest.FixtureRequest) -> "AsyncIterator[Cluster]":
    """A cluster for this test: three brokers and a controller, or what the marker `tidelog` says."""
    from tidelog.testing.cluster import Cluster  # noqa: PLC0415 -- only tests that use it pay for it

    marker = request.node.get_closest_marker("tidelog")
    try:
        cluster = Cluster(*marker.args, **marker.kwargs) if marker is not None else Cluster()
    except TypeError as error:
        raise pytest.UsageError(f"pytest.mark.tidelog: {error}") from error
    async with cluster:
        yield cluster


@pytest_asyncio.fixture
async def tidelog_client(tidelog_cluster: "Cluster") -> "AsyncIterator[Client]":
    """A client of `tidelog_cluster`."""
    async with tidelog_cluster.client() as client:
        yield client
