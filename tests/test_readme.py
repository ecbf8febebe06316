"""The README's examples run as they stand, against a cluster of real processes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.testing import Cluster

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_there_is_a_python_example_and_a_spark_example() -> None:
    assert ["tidelog.connect" in EXAMPLES[0], "read_topic" in EXAMPLES[1], len(EXAMPLES)] == [True, True, 2]


@pytest.mark.slow
async def test_they_run_one_after_the_other(tmp_path: Path) -> None:
    async with Cluster(3, processes=True, directory=tmp_path) as cluster:
        shown = []
        for example in EXAMPLES:
            program = tmp_path / "example.py"
            program.write_text(example.replace("127.0.0.1:9092", cluster.bootstrap), encoding="utf-8")
            ran = subprocess.run(  # noqa: ASYNC221 -- nothing else is to be done meanwhile
                [sys.executable, str(program)], capture_output=True, text=True, timeout=240, check=False
            )
            assert ran.returncode == 0, ran.stderr
            shown.append(ran.stdout)
    assert "partition=" in shown[0]
    assert "4 herrings" in shown[0]
    assert re.search(r"\|\s*\d\|\s+1\|", shown[1]), shown[1]


def test_what_it_points_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    for path in re.findall(r"`(tests/[a-z_/.]+)`", README):
        assert (ROOT / path).exists(), path
