"""A node with one rule undone, as a process: what the judge of chaos runs must condemn.

python -m tests.chaos.planted_node PLANT --full-while FILE broker start --id 1 ...
"""

import sys

import pytest

from tests.simulation.planted import (
    Plant,
    acknowledged_before_replication,
    duplicates_are_appended,
    reads_above_the_high_watermark,
)
from tidelog.testing import node

PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (acknowledged_before_replication, reads_above_the_high_watermark, duplicates_are_appended)
}


if __name__ == "__main__":
    PLANTS[sys.argv.pop(1)](pytest.MonkeyPatch())
    node.main()
