"""A small storm of a group on real processes, each time the suite runs: `scripts/chaos --groups` has the large ones."""

import os
from pathlib import Path

import pytest

from tests.chaos.groups import Size, storm
from tests.telling import Tell

pytestmark = pytest.mark.slow


async def test_every_record_is_consumed_and_nothing_is_committed_before(tmp_path: Path, tell: Tell) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    found = await storm(Size(members=8, partitions=12, seconds=25), seed, tmp_path)
    assert found.peak == 8
    tell([str(found)])
