"""What the README says: its examples run as they stand, and what it names, counts and denies is so."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from scripts.benches import evidence, front_page
from scripts.benches.all import BENCHES

from tests.test_pages import parsed
from tidelog.client import connect
from tidelog.protocol.errors import Unsupported
from tidelog.testing import Cluster

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_there_is_a_python_example_and_a_spark_example() -> None:
    assert ["tidelog.connect" in EXAMPLES[0], "read_topic" in EXAMPLES[1], len(EXAMPLES)] == [True, True, 2]


@pytest.mark.slow
async def test_they_run_one_after_the_other(tmp_path: Path) -> None:
    # As they stand; only the JVM is told not to optimise for a run that is over in seconds.
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    async with Cluster(3, processes=True, directory=tmp_path) as cluster:
        shown = []
        for example in EXAMPLES:
            program = tmp_path / "example.py"
            program.write_text(example.replace("127.0.0.1:9092", cluster.bootstrap), encoding="utf-8")
            ran = subprocess.run(  # noqa: ASYNC221 -- nothing else is to be done meanwhile
                [sys.executable, str(program)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr
            shown.append(ran.stdout)
    assert "partition=" in shown[0]
    assert "4 herrings" in shown[0]
    assert re.search(r"\|\s*\d\|\s+1\|", shown[1]), shown[1]


def test_its_figures_are_those_of_the_last_kept_runs() -> None:
    """`scripts/bench --pages` writes them."""
    runs = evidence.entries(ROOT / "docs/evidence/bench.json")
    assert front_page.written(README, runs) == README
    assert len(re.findall(r"`scripts/bench [a-z-]+` \|$", README, re.MULTILINE)) == len(front_page.FIGURES)


def test_every_figure_is_a_row_that_its_bench_takes() -> None:
    rows = {(one.name, row.name) for one in BENCHES for row in one.rows}
    assert {(bench, name) for _, bench, name in front_page.FIGURES} <= rows


def test_every_command_it_names_is_one_that_there_is() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert {*re.findall(r"`make ([a-z]+)`", README)} <= {*targets}
    names = {one.name for one in BENCHES} | {one.part_of for one in BENCHES}
    assert {*re.findall(r"`scripts/bench ([a-z-]+)`", README)} <= names
    shell = "\n".join(re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
    for path in re.findall(r"(?:^|`)(scripts/[a-z]+)", shell + README, re.MULTILINE):
        assert (ROOT / path).exists(), path
    typed = re.findall(r"^(tidelog .*?)\s*(?:#|$)|`(tidelog [a-z][^`]*)`", shell + README, re.MULTILINE)
    said = sorted({first or second for first, second in typed})
    assert len(said) > 4
    for line in said:
        parsed(line)


def test_what_it_counts_is_as_many() -> None:
    assert "ten stories" in README
    assert len(list((ROOT / "tests/simulation/transcripts").glob("*.txt"))) == 10


@pytest.mark.parametrize(
    ("said", "gone"),
    [
        ("transactions", lambda: connect("127.0.0.1:1").producer(transactional_id="t")),
        ("TLS", lambda: connect("127.0.0.1:1", tls=True)),
        ("authentication", lambda: connect("127.0.0.1:1", auth=("user", "password"))),
    ],
)
def test_what_it_says_is_not_there_says_so_itself(said: str, gone: Callable[[], object]) -> None:
    missing = README.split("**Not there**")[1].split("\n\n")[0]
    assert said in missing
    with pytest.raises(Unsupported):
        gone()


def test_what_it_points_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    for path in re.findall(r"`(tests/[a-z_/.]+)`", README):
        assert (ROOT / path).exists(), path
