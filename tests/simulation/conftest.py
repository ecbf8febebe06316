"""A disk and a world for the tests of the simulator: others may add their fixtures here."""

import random
from collections.abc import Iterator

import pytest

from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.world import World


@pytest.fixture
def simulated_disk() -> SimulatedDisk:
    """A disk that can be killed, cut off and filled up; `open_directory` gives the port."""
    return SimulatedDisk(random.Random(1))


@pytest.fixture
def world() -> Iterator[World]:
    """A world that is running; errors that nobody caught fail the test."""
    with World(1).running() as world:
        yield world


@pytest.fixture
def host(world: World) -> Host:
    """A host with a process that does what `create_task` gives it."""
    host = Host("b1", world)
    host.start()
    return host
