"""scripts/simulate shows a seed with what happened in columns, keeps what it ran, and loses none of it."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from scripts import simulate
from scripts.benches.evidence import keep

from tests.simulation.planted import acknowledged_before_replication
from tests.simulation.rotting import storm_that_may_rot
from tests.simulation.storms import Weather
from tidelog.testing.simulation.seeds import run_seed

SHORT = Weather(seconds=4, controllers=1)


def rows(said: str) -> Iterator[list[str]]:
    """The lines that say when something happened."""
    lines = said.splitlines()
    assert lines[0].split()[:4] == ["time", "who", "what", "partition"], lines[0]
    for line in lines[1:]:
        words = line.split()
        if "." in words[0]:
            yield words


def test_a_seed_is_shown_with_its_transitions_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.show(SHORT, 3) == 0
    said = capsys.readouterr().out
    led = {(words[3], words[4]) for words in rows(said) if words[2:3] == ["leads"]}
    elections = next(line for line in said.splitlines() if line.endswith("  elections"))
    assert len(led) == int(elections.split()[0]) > 0
    times = [float(words[0]) for words in rows(said)]
    assert times == sorted(times)
    assert said.count("all is mended") == 1


def test_a_seed_is_the_same_storm_as_in_the_tests(capsys: pytest.CaptureFixture[str]) -> None:
    """What fails there can be looked at here."""
    for seed in (4, 5):
        simulate.show(SHORT, seed)
        outcome = run_seed(partial(storm_that_may_rot, weather=SHORT), seed)
        assert capsys.readouterr().out.endswith(f"digest {outcome.digest}\n")


def test_so_many_of_the_last_lines_are_shown_as_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    simulate.show(SHORT, 3, last=5)
    assert len(list(rows(capsys.readouterr().out))) == 5


# A run that fails leaves tasks behind that were about to start: they are dropped with it.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_seed_that_fails_ends_with_what_was_violated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged_before_replication(monkeypatch)
    assert any(simulate.show(SHORT, seed) for seed in range(30))
    said = capsys.readouterr().out
    assert "Violation: " in said.splitlines()[-1]


def test_who_is_interrupted_while_it_keeps_a_run_has_kept_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "simulation.json"
    keep(kept, "[1]")

    def interrupted(self: Path, text: str, **_options: str) -> int:
        with self.open("w") as file:
            file.write(text[:1])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        keep(kept, "[1, 2]")
    assert json.loads(kept.read_text()) == [1]
