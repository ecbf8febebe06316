"""The lecture on replication, played: what the transcripts say is what brokers do, and each needs its rule."""

from pathlib import Path

import pytest

from tests.simulation import planted, planted_in_stories, stage
from tests.simulation.lecture import lecture
from tests.simulation.planted import Plant
from tests.simulation.transcript import PAGE, commands, regenerate, transcripts

RULES: dict[str, Plant] = {
    "01-produce": planted.acknowledged_before_replication,
    "02-new-leader": planted_in_stories.high_watermarks_told_too_early,
    "03-reconciliation": planted.no_divergence_check,
    "04-old-leader": planted_in_stories.leases_that_never_end,
    "05-slow-follower": planted.high_watermark_without_enough_replicas,
    "06-restarted-follower": planted.truncation_to_the_high_watermark,
    "07-loss-of-power": planted.no_divergence_check,
    "08-last-replica": planted.unclean_restarts_keep_their_standing,
    "09-unclean-election": planted_in_stories.elections_of_whoever_is_alive,
    "10-maximal-isr": planted_in_stories.high_watermark_of_the_decided_alone,
}
"""What each transcript is about, as the bug that takes it away."""

every_transcript = pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.stem)


def test_every_transcript_is_about_a_rule() -> None:
    assert [path.stem for path in transcripts()] == list(RULES)


@pytest.mark.slow
@every_transcript
def test_a_transcript_tells_what_happens_now(path: Path) -> None:
    """If what happens is right and the transcript is old: `make transcripts`."""
    assert regenerate(path.read_text()) == path.read_text()


@pytest.mark.slow
@every_transcript
def test_a_transcript_does_not_depend_on_chance(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every change to the product that draws one number more would change what is told."""
    monkeypatch.setattr(stage, "SEED", 7)
    assert regenerate(path.read_text()) == path.read_text()


# A story that breaks off leaves tasks behind that were about to start: they are dropped with it.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@every_transcript
def test_without_its_rule_a_transcript_tells_something_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RULES[path.stem](monkeypatch)
    assert regenerate(path.read_text(), lenient=True) != path.read_text()


@every_transcript
def test_a_transcript_shows_itself_what_its_rule_is_for(path: Path) -> None:
    name = RULES[path.stem].__name__.replace("_", " ")
    told = [line for line in commands(path.read_text()) if line.startswith("the same story with ")]
    assert any(name in line for line in told)
    assert "everything is as before" not in path.read_text()
    assert "the story ends here" not in path.read_text()


def test_the_lecture_is_the_transcripts() -> None:
    assert PAGE.read_text() == lecture(path.read_text() for path in transcripts())


def test_a_story_whose_condition_never_comes_true_says_so_when_it_may() -> None:
    text = "> cluster of 2 brokers\n> wait until isr is 1\n"
    assert regenerate(text, lenient=True).splitlines()[-1] == "  this does not happen"


def test_what_is_no_command_is_refused() -> None:
    with pytest.raises(AssertionError, match="no command: sing"):
        regenerate("> cluster of 2 brokers\n> sing\n")
