"""scripts/bench measures everything it says, leaves nothing behind, and knows when its evidence is history."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripts import bench as command
from scripts.benches import cleaner, evidence, front_page, report, spark, spark_kafka, table
from scripts.benches.all import BENCHES
from scripts.benches.measure import (
    Bench,
    Goal,
    Measured,
    Readings,
    Round,
    Row,
    Settings,
    Taken,
    interleave,
    run,
)

from tests.spark_home import without_archive

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "scripts/bench.py"
ROW = Row("a row", "us", "figure", "reference", "by hand", Goal("ratio", False, 2.0, "this test"))


def bench(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run it to its end."""
    command = [sys.executable, str(BENCH), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@contextmanager
def begin_counting(_settings: Settings) -> Iterator[Round]:
    """A bench whose figures are the numbers of its rounds."""

    def take(number: int) -> Readings:
        return {"figure": number, "reference": 2}

    yield take


COUNTING = Bench("counting", "counts", (ROW,), begin_counting)


# ── rounds, ratios and goals ──────────────────────────────────────────────────────────────────────────


def test_the_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    taken = Taken(ROW, figures=[10, 200, 33], references=[10, 100, 11])
    assert (taken.figure, taken.reference, taken.ratio) == (33, 11, 2)


@pytest.mark.parametrize(("at_least", "bound", "met"), [(True, 3, False), (True, 2, True), (False, 1, False)])
def test_a_goal_bounds_a_figure_or_a_ratio_from_one_side(at_least: bool, bound: float, met: bool) -> None:
    assert Goal("figure", at_least, bound, "").met(2, 100) is met
    assert Goal("ratio", at_least, bound, "").met(100, 2) is met


def test_the_order_within_a_round_turns_from_round_to_round() -> None:
    order: list[str] = []

    def probe(name: str) -> Callable[[], float]:
        def take() -> float:
            order.append(name)
            return 1.0

        return take

    probes = {name: probe(name) for name in "ab"}
    assert [list(interleave(number, probes)) for number in (0, 1)] == [["a", "b"], ["a", "b"]]
    assert order == ["a", "b", "b", "a"]


def test_the_round_that_warms_up_is_not_counted(tmp_path: Path) -> None:
    measured = run(COUNTING, Settings(tmp_path, rounds=3))
    assert measured.rows[0].figures == [0, 1, 2]


def test_a_missed_goal_stands_in_the_table() -> None:
    measured = Measured(COUNTING, [Taken(ROW, [50], [10])], [0.5], 1)
    assert "| a row | 50 us  | 10 (by hand)" in table.of(measured)
    assert "| NO   |" in table.of(measured)


def test_no_two_rows_of_a_bench_read_the_same() -> None:
    assert len({one.name for one in BENCHES}) == len(BENCHES)
    for one in BENCHES:
        rows = [
            row for row in one.rows if "(OPEN:" not in row.name
        ]  # what stands beside them is not installed
        assert len({(row.figure, row.reference, row.goal and row.goal.of) for row in rows}) == len(rows)


def test_kafkas_connector_is_a_reference_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(spark_kafka.JARS, raising=False)
    monkeypatch.setenv(spark_kafka.ADDRESS, "127.0.0.1:9092")
    absent = spark.beside_kafka("all columns", "count")
    assert "not at hand: TIDELOG_BENCH_KAFKA_JARS names them" in absent.name
    assert (absent.reference, spark_kafka.session()) == ("", {})
    monkeypatch.setenv(spark_kafka.JARS, "a.jar,b.jar")
    there = spark.beside_kafka("all columns", "count")
    assert (there.reference, spark_kafka.session()) == ("count kafka", {"spark.jars": "a.jar,b.jar"})


# ── evidence ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository in which a bench reaches one module of two."""
    for path, source in {
        "src/tidelog/__init__.py": "",
        "storage/__init__.py": "",
        "storage/log.py": "from tidelog.storage import index",
        "storage/index.py": "x = 1",
        "storage/other.py": "y = 1",
        "scripts/benches/counting.py": "def begin():\n    from tidelog.storage.log import Log",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source)
    return tmp_path


def test_a_benchs_code_is_what_it_reaches_by_imports(tree: Path) -> None:
    assert evidence.reached(["scripts.benches.counting"], tree) == {
        "scripts/benches/counting.py",
        "src/tidelog/__init__.py",
        "storage/__init__.py",
        "storage/index.py",
        "storage/log.py",
    }


@pytest.mark.parametrize(
    ("path", "counts"),
    [("storage/index.py", False), ("scripts/benches/counting.py", False), ("storage/other.py", True)],
)
def test_evidence_counts_while_the_code_that_it_ran_is_unchanged(tree: Path, path: str, counts: bool) -> None:
    modules = ["scripts.benches.counting"]
    kept = {"modules": modules, "code": evidence.code(modules, tree), "rows": []}
    file = tree / "evidence/bench.json"
    evidence.append(file, {"date": "today", "commit": "c0ffee", "benches": {"counting": kept}})
    assert [one.counts for one in evidence.standing(file, tree)] == [True]
    (tree / path).write_text("z = 2")
    assert evidence.standing(file, tree) == [evidence.Standing("today", "c0ffee", "counting", counts)]


def test_a_kept_run_has_its_rounds_and_names_no_machine(tmp_path: Path) -> None:
    measured = Measured(BENCHES[0], [Taken(ROW, [3, 1, 2], [1, 1, 1])], [0.25], 4)
    parts = {BENCHES[0].name: evidence.part(measured, evidence.codes(BENCHES, ROOT)[BENCHES[0].name], ROOT)}
    kept = evidence.entry(parts, Settings(tmp_path, rounds=3), "scripts/bench", 4.2, ROOT)
    row = kept["benches"][BENCHES[0].name]["rows"][0]
    assert (row["median"], row["spread"], row["rounds"], row["met"]) == (2, [1, 3], [3, 1, 2], True)
    told = json.dumps(kept)
    assert set(kept["machine"]) == {"cores", "system", "architecture", "python", "packages"}
    assert str(ROOT) not in told
    assert str(tmp_path) not in told


def test_code_that_changed_during_a_run_is_no_evidence(tmp_path: Path) -> None:
    measured = Measured(BENCHES[0], [Taken(ROW, [3], [1])], [], 4)
    parts = {BENCHES[0].name: evidence.part(measured, "other code", ROOT)}
    kept = evidence.entry(parts, Settings(tmp_path), "scripts/bench", 4.2, ROOT)
    evidence.append(tmp_path / "bench.json", kept)
    assert [one.counts for one in evidence.standing(tmp_path / "bench.json", ROOT)] == [False]


def test_the_evidence_that_is_kept_can_be_read() -> None:
    file = ROOT / "docs/evidence/bench.json"
    for one in evidence.standing(file, ROOT):
        assert one.bench in {each.name for each in BENCHES}


# ── a run that is taken up again ──────────────────────────────────────────────────────────────────────


def kept_benches(rounds: int, **more: Any) -> dict[str, Any]:
    """A run of one bench by today's code on this machine."""
    modules = evidence.modules_of(COUNTING)
    row = {"name": "a row", "rounds": [1.0] * rounds}
    bench = {"modules": modules, "code": evidence.code(modules, ROOT), "rows": [row]}
    head = {"date": "today", "commit": "c0ffee", "machine": evidence.machine()}
    return {**head, "benches": {"counting": bench}, **more}


@pytest.mark.parametrize(
    ("rounds", "again"), [(3, set()), (2, {"counting"})], ids=["enough rounds", "too few rounds"]
)
def test_what_was_measured_in_enough_rounds_is_not_measured_again(
    tmp_path: Path, rounds: int, again: set[str]
) -> None:
    file = tmp_path / "bench.json"
    evidence.append(file, kept_benches(rounds))
    done = evidence.measured_already([COUNTING], Settings(tmp_path, rounds=3), file, ROOT)
    assert {"counting"} - done == again


def test_what_another_machine_or_other_code_has_measured_is_measured_again(tmp_path: Path) -> None:
    file, settings = tmp_path / "bench.json", Settings(tmp_path, rounds=3)
    evidence.append(file, kept_benches(3, machine={**evidence.machine(), "cores": 96}))
    assert evidence.measured_already([COUNTING], settings, file, ROOT) == set()
    older = kept_benches(3)
    older["benches"]["counting"]["code"] = "other code"
    evidence.append(file, older)
    assert evidence.measured_already([COUNTING], settings, file, ROOT) == set()


def test_a_bench_that_takes_fewer_rounds_at_most_is_done_with_those(tmp_path: Path) -> None:
    once = Bench("counting", "counts", (ROW,), begin_counting, rounds_max=1)
    evidence.append(tmp_path / "bench.json", kept_benches(1))
    done = evidence.measured_already([once], Settings(tmp_path, rounds=7), tmp_path / "bench.json", ROOT)
    assert done == {"counting"}


def test_the_tables_of_the_page_are_those_of_the_last_kept_runs() -> None:
    """`scripts/bench --pages` writes them."""
    page = (ROOT / "docs/performance.md").read_text("utf-8")
    assert report.written(page, evidence.entries(ROOT / "docs/evidence/bench.json")) == page


def test_the_page_counts_goals_and_names_what_is_missed() -> None:
    missed = Taken(replace(ROW, name="... of it"), figures=[10, 10, 10], references=[2, 2, 2])
    met = Taken(ROW, figures=[3, 3, 3], references=[2, 2, 2])
    kept = evidence.part(Measured(BENCHES[0], [met, missed], [0.5], 7.0), "its code", ROOT)
    run = evidence.entry({BENCHES[0].name: kept}, Settings(ROOT), "by hand", 7.0, ROOT)
    told = report.tables([{**run, "benches": {}}, run])
    assert told.startswith("Of 2 goals 1 are met.\n\nThese are not:\n\n| bench | name ")
    assert re.search(r"\| codec +\| a row \.\.\. of it +\| 10 us +\| 2 \(by hand\) +\| 5 ", told)
    assert re.findall(r"^\| (a row|\.\.\. of it) .* (yes|NO) +\|$", told, re.MULTILINE) == [
        ("a row", "yes"),
        ("... of it", "NO"),
    ]
    assert "0.50 of the" in told


def test_a_run_that_is_cut_has_kept_what_was_complete_and_resume_does_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command in this process, with benches that count; the second one is cut the first time."""
    takes: list[str] = []

    def counting(name: str) -> Bench:
        @contextmanager
        def begin_named(_settings: Settings) -> Iterator[Round]:
            takes.append(name)
            if takes == ["one", "two"]:
                raise KeyboardInterrupt
            yield lambda number: {"figure": number, "reference": 2}

        return Bench(name, "counts", (ROW,), begin_named, rounds_max=1, part_of="all")

    file = tmp_path / "bench.json"
    monkeypatch.setattr(command, "BENCHES", tuple(map(counting, ("one", "two", "three"))))
    monkeypatch.setattr(command, "EVIDENCE", file)
    monkeypatch.setattr(command, "PICTURES", tmp_path / "growth")
    monkeypatch.setattr(command, "README", tmp_path / "README.md")
    monkeypatch.setattr(command, "REPORT", tmp_path / "performance.md")
    (tmp_path / "README.md").write_text(f"{front_page.BEGIN}{front_page.END}")
    (tmp_path / "performance.md").write_text(f"{report.BEGIN}{report.END}")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        command.main(["all", "--record", "--directory", str(tmp_path)])
    assert [list(run["benches"]) for run in evidence.entries(file)] == [["one"]]
    assert command.main(["all", "--resume", "--directory", str(tmp_path)]) == 0
    assert takes == ["one", "two", "two", "three"]
    assert [list(run["benches"]) for run in evidence.entries(file)] == [["one"], ["two", "three"]]
    assert command.main(["all", "--resume", "--directory", str(tmp_path)]) == 0
    assert takes == ["one", "two", "two", "three"]


def test_an_edit_during_a_later_bench_takes_nothing_from_one_that_is_complete(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counting(name: str) -> Bench:
        @contextmanager
        def begin_named(_settings: Settings) -> Iterator[Round]:
            if name == "two":
                (tree / "storage/index.py").write_text("edited")
            yield lambda number: {"figure": number, "reference": 2}

        return Bench(name, "counts", (ROW,), begin_named, also_runs=("scripts.benches.counting",))

    monkeypatch.setattr(command, "BENCHES", tuple(map(counting, ("one", "two"))))
    monkeypatch.setattr(command, "ROOT", tree)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    before = evidence.code(["scripts.benches.counting"], tree)
    told = tmp_path / "run.json"
    command.main(["--rounds", "1", "--json", str(told), "--directory", str(tmp_path)])
    codes = {name: one["code"] for name, one in json.loads(told.read_text())["benches"].items()}
    assert codes == {"one": before, "two": "changed during the run"}


# ── the command ───────────────────────────────────────────────────────────────────────────────────────


WITH_SPARK = [one.name for one in BENCHES if one.begin.__module__.startswith("scripts.benches.spark")]
WITHOUT = [one.name for one in BENCHES if one.name not in WITH_SPARK]


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(WITH_SPARK, id="spark"),
        pytest.param(WITHOUT[::2], id="some"),
        pytest.param(WITHOUT[1::2], id="others"),
    ],
)
def test_every_bench_runs_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    (tmp_path / "disk").mkdir()
    if names is WITH_SPARK:
        (tmp_path / "spark").mkdir()
        monkeypatch.setenv("SPARK_HOME", without_archive(tmp_path / "spark"))
    done = bench(*names, "--quick", "--json", tmp_path / "run.json", "--directory", tmp_path / "disk")
    noted = [line for line in done.stderr.splitlines() if not line.startswith("bench: ")]
    assert (done.returncode, noted) == (0, [])
    told = (tmp_path / "run.json").read_text()
    assert str(tmp_path) not in told
    taken: dict[str, Any] = json.loads(told)["benches"]
    assert taken.keys() == set(names)
    for one in BENCHES:
        if one.name in names:
            assert [row["name"] for row in taken[one.name]["rows"]] == [row.name for row in one.rows]
            assert f"\n{one.name}: " in done.stdout
    assert not os.listdir(tmp_path / "disk")


def test_the_benches_with_spark_are_those_of_its_worker() -> None:
    assert set(WITH_SPARK) == {"spark", "streams", "streams-memory"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_bench_that_is_interrupted_removes_what_it_made(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, str(BENCH), "rpc", "append", "--rounds", "1000", "--directory", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while not any(tmp_path.glob("*/append")):
            assert process.poll() is None
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert not os.listdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["--standing"], ["codec", "--quick"]], ids=" ".join)
def test_a_bench_that_nobody_reads_any_more_ends_in_silence(tmp_path: Path, arguments: list[str]) -> None:
    command = [sys.executable, str(BENCH), *arguments, "--directory", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    # argparse looks away from what becomes of a long help.
    assert process.returncode in {128 + signal.SIGPIPE, 0 if arguments == ["--help"] else None}
    assert not os.listdir(tmp_path)


@pytest.mark.slow
def test_a_server_of_a_bench_ends_with_its_stdin() -> None:
    command = [sys.executable, str(ROOT / "scripts/benches/servers.py"), "product"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("back", cleaner._BACK)
def test_a_process_that_only_counts_ends_with_its_context_or_without_its_parent(back: str) -> None:
    children: set[int] = set()
    with cleaner._counter(back, children) as said:
        assert said.readline() == b"\n"
        (pid,) = children
        os.kill(pid, 0)
    assert not children
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    orphan = [sys.executable, "-c", cleaner._COUNT.format(cleaner._BACK[back]), "0"]
    assert subprocess.run(orphan, capture_output=True, timeout=30, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such"], "there is no no-such"),
        (["--quick", "--record"], "no evidence"),
        (["--quick", "--resume"], "no evidence"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(arguments: list[str], said: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
