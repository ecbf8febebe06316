"""scripts/chaos: a chunk that fails is told and kept with its seed, and the next one begins."""

import json
from pathlib import Path
from typing import Any, Self

import pytest
from scripts import chaos

from tests.chaos.ledger import LOST, Ledger
from tests.chaos.run import Report, Run, Stalled


class Nowhere:
    """A cluster that is not there."""

    nodes: dict[str, Any]

    def __init__(self, *_: object, **__: object) -> None:
        self.nodes = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is left."""


class Standing:
    """A run that stands still with its first seed, and loses a record with it; the others go well."""

    def __init__(self, _: object, seed: int) -> None:
        self.seed = seed
        self.report = Report()
        self.ledger = Ledger()

    async def storm(self, seconds: float, records: int, said: object) -> None:
        self.report.acknowledged = self.seed
        if self.seed == 7:
            raise ExceptionGroup("load", [Stalled("every replica is in sync, in vain")])

    async def judge(self) -> None:
        if self.seed == 7:
            self.ledger.verdict.condemn(LOST, "record 1")


def ran(monkeypatch: pytest.MonkeyPatch, kept: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    monkeypatch.setattr(chaos, "EVIDENCE", kept)
    monkeypatch.setattr(chaos, "Cluster", Nowhere)
    monkeypatch.setattr(chaos, "code", lambda *_: "as it is")
    monkeypatch.setattr("sys.argv", ["scripts/chaos", *arguments])
    code = chaos.main()
    [run] = json.loads(kept.read_text())
    return code, run


def test_a_chunk_that_stalls_is_judged_and_kept_and_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chaos, "Run", Standing)
    code, run = ran(monkeypatch, tmp_path / "chaos.json", "--minutes", "10", "--seed", "7")
    assert code == 1
    assert run["seeds"] == [7, 8]
    assert run["failures"] == [{"seed": 7, "failed": ["Stalled: every replica is in sync, in vain"], LOST: 1}]
    assert run["counts"]["acknowledged"] == 15
    told = capsys.readouterr().out
    assert "7 acknowledged" in told
    assert "Stalled: every replica is in sync, in vain" in told
    assert "lost: record 1" in told


def test_a_cluster_that_does_not_start_is_a_failure_of_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Nowhere, "__aenter__", None)
    code, run = ran(monkeypatch, tmp_path / "chaos.json", "--minutes", "1", "--seed", "7")
    assert code == 1
    assert [failure["seed"] for failure in run["failures"]] == [7]


async def test_a_storm_that_fails_has_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stalls(self: Run, *_: object) -> None:
        self.ledger.stream(0).next_value(40)
        self.forecast.came["kill_leader"] += 1
        raise Stalled("in vain")

    monkeypatch.setattr(Run, "_storm", stalls)
    run: Any = Run(Nowhere(), 1)  # type: ignore[arg-type]
    with pytest.raises(Stalled):
        await run.storm(1, 1)
    assert (run.report.faults["kill_leader"], run.report.unknown) == (1, 1)
