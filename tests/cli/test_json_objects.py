"""docs/JSON.md is the truth about the objects of the nouns over a cluster: every type and every key stands there."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Tidelog
from tests.cli.serving import Serving
from tidelog.cli.consume.ranges import NoRange, parse
from tidelog.cli.options import LAYOUTS

MANUAL = Path(__file__).resolve().parent.parent.parent / "docs" / "JSON.md"
_ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)


def documented(heading: str) -> dict[str, set[str]]:
    """Of each type that stands below the heading that names the verb, its keys."""
    sections = MANUAL.read_text().split("\n### of ")
    [section] = [each for each in sections[1:] if f"`{heading}`" in each.partition("\n")[0]]
    found = {kind: set(re.findall(r"`(\w+)`", keys)) for kind, keys in _ROW.findall(section)}
    if "as of `topic describe`" in section:
        found["partition"] = documented("topic describe")["partition"]
    return found


@pytest.mark.parametrize(
    ("heading", "lines"),
    [
        ("topic create", ["topic create {new}"]),
        ("topic list", ["topic list"]),
        ("topic describe", ["topic describe {name}"]),
        ("topic add-partitions", ["topic add-partitions {name} -p 9"]),
        ("topic delete", ["topic delete {name} --yes"]),
        ("topic alter", ["topic alter {name} -c retention.ms=1000"]),
        ("topic offsets", ["topic offsets {name}", "topic offsets {name} --at earliest"]),
        ("topic trim", ["topic trim {name} -p 0 --before 1 --yes"]),
        ("topic partition-of", ["topic partition-of {name} k"]),
        ("produce", ["produce {name} {file}"]),
        ("consume", ["consume {name} -o start --exit"]),
        (
            "config",
            ["config list topic {name}", "config set topic {name} retention.ms=1", "config list cluster"],
        ),
        (
            "partition",
            [
                "partition list",
                "partition move {name} -p 0:1 --yes",
                "partition moves",
                "partition elect preferred {name}",
            ],
        ),
        ("broker list", ["broker list"]),
        ("broker describe", ["broker describe 1"]),
        ("cluster info", ["cluster info"]),
        ("cluster health", ["cluster health"]),
    ],
)
def test_every_type_and_key_is_documented(
    one_broker: Serving,
    tidelog: Tidelog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    heading: str,
    lines: list[str],
) -> None:
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", one_broker.bootstrap)
    name = one_broker.topic(retention_ms="100000000000")
    one_broker.write(name, b"\xff", key=b"\xff", headers=[("h", b"\xff")])
    (tmp_path / "file").write_bytes(b"line\n")
    known = documented(heading)
    for line in lines:
        words = line.format(name=name, new=f"{name}-new", file=tmp_path / "file").split()
        ran = tidelog("-o", "json", *words)
        assert ran.code == 0, ran.err
        for each in map(json.loads, ran.lines):
            assert each.keys() - {"type"} <= known[each["type"]], line


def test_no_layout_is_a_range() -> None:
    for word in LAYOUTS:
        with pytest.raises(NoRange):
            parse(word, 0)
