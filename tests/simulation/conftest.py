"""A disk for the tests of the simulator: others may add their fixtures here."""

import random

import pytest

from tidelog.testing.simulation.disk import SimulatedDisk


@pytest.fixture
def simulated_disk() -> SimulatedDisk:
    """A disk that can be killed, cut off and filled up; `open_directory` gives the port."""
    return SimulatedDisk(random.Random(1))
