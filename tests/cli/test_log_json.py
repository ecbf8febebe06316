"""docs/CLI.md is the truth about the JSON: every type and every key that is printed stands there."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Tidelog
from tests.cli.real_directory import RealNode, flip

MANUAL = Path(__file__).resolve().parent.parent.parent / "docs" / "CLI.md"
_ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)


def documented(verb: str) -> dict[str, set[str]]:
    """Of each type that a verb prints, its keys."""
    section = MANUAL.read_text().split(f"### of `log {verb}`")[1].split("\n#")[0]
    found = {kind: set(re.findall(r"`(\w+)`", keys)) for kind, keys in _ROW.findall(section)}
    assert found
    return found


@pytest.fixture
def harmed(tmp_path: Path) -> Path:
    """A data directory that makes every verb print every type of object."""
    RealNode(tmp_path).fill(24).stop()
    RealNode(tmp_path).kill()
    segments = sorted((tmp_path / "orders-0").glob("*.log"))
    shutil.copy(segments[1], f"{segments[1]}.corrupt")
    flip(segments[0], 100)
    segments[2].write_bytes(segments[2].read_bytes()[:-1])
    return tmp_path


@pytest.mark.parametrize("verb", ["dump", "segments", "checkpoints"])
def test_every_type_and_key_is_documented(harmed: Path, tidelog: Tidelog, verb: str) -> None:
    files = [path for path in harmed.rglob("*") if path.is_file()]
    words = ["dump", "--data", "--verify", *files] if verb == "dump" else [verb, harmed]
    printed: dict[str, set[str]] = {}
    for each in map(json.loads, tidelog("-o", "json", "log", *words).lines):
        printed.setdefault(each.pop("type"), set()).update(each.keys() - {"file", "directory"})
    known = documented(verb) | {"fault": documented("dump")["fault"]}
    for kind, keys in printed.items():
        assert keys <= known[kind], kind
    missing = documented(verb).keys() - printed.keys() - {"note", "fault"}
    assert not missing, f"documented and not printed: {missing}"
