"""What a controller has promised survives it, and everybody who follows sees one history (I-44, I-50, I-67)."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from tests.controller.nodes import Member
from tests.simulation.metadata_storm import MetadataStorm, an_epoch_that_was_lost, metadata_storm
from tests.simulation.one_controller import OneController
from tidelog.controller.image import Changes
from tidelog.protocol.types import BrokerId, Epoch, Offset
from tidelog.testing.simulation.seeds import run_seed
from tidelog.testing.simulation.world import World

SEEDS = range(12)


@pytest.mark.slow
def test_a_storm_takes_nothing_that_was_promised() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = run_seed(metadata_storm, seed)
        assert outcome.failure is None, outcome.failure
        counts.update(outcome.counts)
    faults = ("kill_controller", "cut_power", "cut_off", "kill_member", "heal")
    assert all(counts[fault] for fault in faults), counts
    assert min(counts["promised"], counts["blocks"], counts["controllers"]) > 3 * len(SEEDS), counts


@pytest.mark.parametrize("seed", range(5))
def test_what_was_lost_with_an_epoch_is_cut_off_by_whoever_read_it(seed: int) -> None:
    outcome = run_seed(an_epoch_that_was_lost, seed)
    assert outcome.failure is None, outcome.failure


def test_one_seed_is_one_history() -> None:
    assert run_seed(metadata_storm, 3) == run_seed(metadata_storm, 3)


# ── bugs planted beside the node ──────────────────────────────────────────────────────────────────────


class AnswersBeforeTheFlush(OneController):
    def _when_committed(self, answer: Callable[[], None]) -> None:
        answer()


class TellsItsEndAsCommitted(OneController):
    """The high watermark that observers hear is above what is flushed."""

    def _touched(self) -> None:
        self.log.durable_offset = self.log.end_offset
        super()._touched()


class TakesItsEpochTwice(OneController):
    """Its epoch is heard of before it is durable."""

    def _make_epoch_durable(self) -> None:
        pass


class BelievesWhatItHasRead(Member):
    """The image takes what is not committed."""

    def begin(self) -> None:
        super().begin()
        observer = self.observer
        fetched = observer.fetched

        def believe(controller: BrokerId, epoch: Epoch, _: Offset) -> None:
            fetched(controller, epoch, observer.log.end_offset)

        observer.fetched = believe  # type: ignore[method-assign, assignment]


class TellsTwice(Member):
    """A batch that was replayed is told again after a restart of the connection."""

    def _on_batch(self, changes: Changes) -> None:
        self.observer.image.end_offset += self.observer.image.end_offset % 7 == 0
        super()._on_batch(changes)


def storm_of(
    node: type[OneController] = OneController, member: type[Member] = Member
) -> Callable[[World], None]:
    return lambda world: MetadataStorm(world, node=node, member=member).run()


BUGS = {
    "answers before the flush": storm_of(node=AnswersBeforeTheFlush),
    "tells its end as committed": storm_of(node=TellsItsEndAsCommitted),
    "takes its epoch twice": partial(an_epoch_that_was_lost, node=TakesItsEpochTwice),
    "believes what it has read": storm_of(member=BelievesWhatItHasRead),
    "tells twice": storm_of(member=TellsTwice),
}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_found(scenario: Callable[[World], None]) -> None:
    assert any(run_seed(scenario, seed).failure for seed in range(40))
