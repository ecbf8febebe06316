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
from scripts.first_contact import typed

from tests.test_pages import parsed
from tidelog.client import connect
from tidelog.protocol.errors import Unsupported
from tidelog.testing import Cluster

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_there_is_a_python_example_and_a_spark_example() -> None:
    assert ["tidelog.connect" in EXAMPLES[0], "read_topic" in EXAMPLES[1], len(EXAMPLES)] == [True, True, 2]


def test_whoever_types_all_of_it_begins_with_the_demo_and_has_a_cluster_for_the_examples() -> None:
    """`scripts/first-contact` does, in a fresh clone; what it did is in docs/evidence."""
    order = [one.what for one in typed(README)]
    assert order[:2] == ["scripts/demo", "scripts/test"]
    up, down = order.index("tidelog up --detach"), order.index("tidelog down")
    assert order[up + 1 : down] == ["Python example 1", "Python example 2", "tidelog perf failover"]
    named = {
        command
        for row in re.findall(r"^\|.*\|$", README, re.MULTILINE)
        for command in re.findall(r"`(make [a-z]+|scripts/[^`]+)`", row)
    }
    assert named
    assert named <= set(order)


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


NOT_THERE = README.split("**Not there**")[1].split("\n\n")[0]


@pytest.mark.parametrize("said", ["protocol", "console", "quotas", "tiered storage"])
def test_what_nobody_can_ask_for_is_said_not_to_be_there(said: str) -> None:
    assert said in NOT_THERE.replace("\n", " ")


@pytest.mark.parametrize(
    ("said", "gone"),
    [
        ("transactions", lambda: connect("127.0.0.1:1").producer(transactional_id="t")),
        ("TLS", lambda: connect("127.0.0.1:1", tls=True)),
        ("authentication", lambda: connect("127.0.0.1:1", auth=("user", "password"))),
    ],
)
def test_what_it_says_is_not_there_says_so_itself(said: str, gone: Callable[[], object]) -> None:
    assert said in NOT_THERE
    with pytest.raises(Unsupported):
        gone()


def rows(section: str) -> list[list[str]]:
    """Its tables, without their heads."""
    lines = README.split(f"\n## {section}\n")[1].split("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in cells if row[0] != "what happens" and not row[0].startswith("---")]


@pytest.mark.parametrize("row", rows("What survives"), ids=lambda row: f"{row[0]}, {row[1]}".replace("`", ""))
def test_every_guarantee_says_what_survives_and_ends_in_commands_that_there_are(row: list[str]) -> None:
    *said, shown = row
    assert len(said) == 3
    assert all(said)
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    commands = re.findall(r"`([^`]+)`", shown)
    assert commands
    for first, *arguments in map(str.split, commands):
        if first == "make":
            assert set(arguments) <= set(targets)
        else:
            assert (ROOT / first).exists()
            assert all((ROOT / path).is_file() for path in arguments), arguments
    for story in re.findall(r"story (\d+)", shown):
        assert list((ROOT / "tests/simulation/transcripts").glob(f"{int(story):02}-*.txt"))


def test_what_it_points_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    for path in re.findall(r"`(tests/[a-z_/.]+)`", README):
        assert (ROOT / path).exists(), path
