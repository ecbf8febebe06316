"""scripts/demo.py: what it shows is so, it can turn red, and it leaves nothing behind."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "scripts" / "demo.py"

Found = dict[tuple[int, int], bytes]


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(demo: ModuleType) -> Found:
    """Three records of partition 0, numbered from 100 on."""
    return {(0, offset): demo.value(0, 100 + offset) for offset in range(3)}


def test_the_verdict_is_green_when_everything_is_there(demo: ModuleType) -> None:
    acknowledged = [demo.Acknowledged(0, 0, 100, 2), demo.Acknowledged(0, 2, 102, 1)]
    assert demo.verdict(acknowledged, found(demo)) == (
        True,
        "KEPT  3 acknowledged records: each once, byte for byte",
    )


HARMS: list[tuple[Callable[[Found, ModuleType], object], str]] = [
    (lambda there, _: there.pop((0, 1)), "1 missing"),
    (lambda there, _: there.update({(0, 1): b"other"}), "1 changed"),
    (lambda there, demo: there.update({(0, 3): demo.value(0, 102)}), "1 there twice"),
    (lambda there, _: there.clear(), "3 missing"),
]


@pytest.mark.parametrize(("harm", "fault"), HARMS)
def test_the_verdict_is_red_when_anything_is_lost(
    demo: ModuleType, harm: Callable[[Found, ModuleType], object], fault: str
) -> None:
    there = found(demo)
    harm(there, demo)
    kept, line = demo.verdict([demo.Acknowledged(0, 0, 100, 3)], there)
    assert not kept
    assert line.startswith("LOST  of 3 acknowledged records: ")
    assert fault in line


def test_two_batches_at_one_place_are_red(demo: ModuleType) -> None:
    twice = [demo.Acknowledged(0, 0, 100, 1), demo.Acknowledged(0, 0, 100, 1)]
    assert "1 at one place" in demo.verdict(twice, found(demo)).line


@pytest.mark.slow
def test_the_demo_keeps_its_promises_and_leaves_nothing(tmp_path: Path) -> None:
    words = [sys.executable, str(DEMO)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran
    assert len(re.findall(r"^   KEPT  ", ran.stdout, re.MULTILINE)) == 2, ran.stdout
    assert "LOST" not in ran.stdout
    assert "\x1b" not in ran.stdout
    assert re.search(r"broker \d leads it in epoch 1, elected from those in sync", ran.stdout)
    assert re.search(r"orders-0/leader-epoch-checkpoint  epoch 0 from 0, epoch 1 from \d+", ran.stdout)
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("tidelog")]
    for pid in re.findall(r"process (\d+)", ran.stdout):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
