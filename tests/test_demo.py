"""scripts/demo.py: what it shows is so, it can turn red, and it leaves nothing behind."""

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "scripts" / "demo.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_verdict_is_green_when_everything_is_there(demo: ModuleType) -> None:
    acknowledged = [demo.Acknowledged(0, 100, 2), demo.Acknowledged(2, 102, 1)]
    found = {offset: demo.value(100 + offset) for offset in range(3)}
    assert demo.verdict(acknowledged, found) == (
        True,
        "KEPT  3 of 3 acknowledged records: each once, byte for byte",
    )


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (lambda found, _: found.pop(1), "1 missing"),
        (lambda found, _: found.update({1: b"other"}), "1 changed"),
        (lambda found, value: found.update({1: value(102)}), "1 changed"),
        (lambda found, value: found.update({3: value(102)}), "1 not asked for"),
        (lambda found, _: found.clear(), "3 missing"),
    ],
)
def test_the_verdict_is_red_when_anything_is_lost(demo: ModuleType, harm: object, fault: str) -> None:
    found = {offset: demo.value(100 + offset) for offset in range(3)}
    assert callable(harm)
    harm(found, demo.value)
    kept, line = demo.verdict([demo.Acknowledged(0, 100, 3)], found)
    assert not kept
    assert line.startswith("LOST  of 3 acknowledged records: ")
    assert fault in line


def test_two_batches_at_one_place_are_red(demo: ModuleType) -> None:
    twice = [demo.Acknowledged(0, 100, 1), demo.Acknowledged(0, 100, 1)]
    assert "1 at one place" in demo.verdict(twice, {0: demo.value(100)}).line


def test_a_damaged_read_that_is_served_is_red(demo: ModuleType) -> None:
    """The demo asks a server that has nothing against serving it."""

    async def everything(_connection: object, offset: int) -> dict[int, bytes]:
        return {offset: b"damaged"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "read_all", everything)
        kept, line = asyncio.run(demo.read_there(demo.Screen(), None, 7))
    assert not kept
    assert line == "LOST  1 records were served from damaged bytes"


@pytest.mark.slow
def test_the_demo_keeps_its_promises_and_leaves_nothing(tmp_path: Path) -> None:
    words = [sys.executable, str(DEMO)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(re.findall(r"^   KEPT  ", ran.stdout, re.MULTILINE)) == 2
    assert "LOST" not in ran.stdout
    assert "\x1b" not in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []
    for pid in re.findall(r"process (\d+)", ran.stdout):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
