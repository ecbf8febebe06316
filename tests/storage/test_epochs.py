"""The leader-epoch cache (docs/STORAGE.md, 5; I-12) and where two logs part (docs/REPLICATION.md)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.planted import assert_caught
from tidelog.protocol.errors import InvalidAppend
from tidelog.protocol.types import NO_EPOCH
from tidelog.storage.epochs import EpochEnd, LeaderEpochs, divergence

THREE = LeaderEpochs([(0, 0), (3, 812), (4, 1100)])


def three() -> LeaderEpochs:
    return LeaderEpochs(THREE.entries)


# ── one sentence after the other ──────────────────────────────────────────────────────────────────────────────


def test_the_first_batch_of_an_epoch_begins_an_entry_and_no_other_does() -> None:
    epochs = LeaderEpochs()
    assert [epochs.assign(e, o) for e, o in [(1, 0), (1, 5), (2, 9), (2, 10)]] == [True, False, True, False]
    assert epochs.entries == ((1, 0), (2, 9))


def test_epoch_0_is_an_epoch_like_any_other() -> None:
    """KAFKA-10432: the first epoch of a new topic was skipped."""
    epochs = LeaderEpochs()
    assert epochs.assign(0, 0)
    assert epochs.entries == ((0, 0),)
    assert epochs.latest == 0


@pytest.mark.parametrize(("epoch", "offset"), [(3, 2000), (5, 1100), (5, 7), (-1, 2000)])
def test_epochs_and_offsets_never_decrease(epoch: int, offset: int) -> None:
    epochs = three()
    with pytest.raises(InvalidAppend, match=f"epoch {epoch} from offset {offset} on does not follow epoch 4"):
        epochs.assign(epoch, offset)
    assert epochs == THREE


def test_a_batch_that_no_leader_stamped_is_refused_by_an_empty_log_too() -> None:
    with pytest.raises(InvalidAppend, match="epoch -1"):
        LeaderEpochs().assign(NO_EPOCH, 0)


@pytest.mark.parametrize(("end", "left"), [(1101, 3), (1100, 2), (813, 2), (812, 1), (1, 1), (0, 0)])
def test_truncation_forgets_what_begins_at_the_new_end_or_behind_it(end: int, left: int) -> None:
    epochs = three()
    epochs.truncate_from_end(end)
    assert epochs.entries == THREE.entries[:left]


def test_the_log_that_was_truncated_takes_a_lower_epoch_again() -> None:
    epochs = three()
    epochs.truncate_from_end(812)
    assert epochs.latest == 0
    assert epochs.assign(2, 812)


@pytest.mark.parametrize(
    ("start", "entries"),
    [
        (0, ((0, 0), (3, 812), (4, 1100))),
        (811, ((0, 811), (3, 812), (4, 1100))),
        (812, ((3, 812), (4, 1100))),
        (813, ((3, 813), (4, 1100))),
        (1999, ((4, 1999),)),
        (2000, ()),
    ],
)
def test_the_entry_across_the_log_start_begins_there(start: int, entries: object) -> None:
    epochs = three()
    epochs.truncate_from_start(start, 2000)
    assert epochs.entries == entries


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(0, (0, 812)), (1, (0, 812)), (2, (0, 812)), (3, (3, 1100)), (4, (4, 2000)), (9, (4, 2000))],
)
def test_an_epoch_ends_where_the_next_one_begins_or_the_log_ends(asked: int, answer: object) -> None:
    assert THREE.end_offset_for(asked, 2000) == answer


def test_an_epoch_below_all_ends_where_the_first_record_begins() -> None:
    assert LeaderEpochs([(3, 812), (4, 1100)]).end_offset_for(2, 2000) == (2, 812)


def test_a_log_reaches_back_to_the_oldest_epoch_that_it_has_records_of() -> None:
    assert [LeaderEpochs([(3, 812), (4, 1100)]).reaches_back_to(epoch) for epoch in (2, 3, 9)] == [
        False,
        True,
        True,
    ]
    assert not LeaderEpochs().reaches_back_to(9)


def test_an_empty_log_ends_every_epoch_at_its_start() -> None:
    assert LeaderEpochs().end_offset_for(7, 2000) == (7, 2000)


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (811, 0), (812, 3), (1099, 3), (1100, 4), (1999, 4)])
def test_every_record_has_the_epoch_that_wrote_it(offset: int, epoch: int) -> None:
    assert THREE.epoch_of(offset) == epoch


def test_nothing_below_the_first_entry_has_an_epoch() -> None:
    assert LeaderEpochs([(3, 812)]).epoch_of(811) == NO_EPOCH


def test_changes_are_counted_so_that_the_file_is_written_only_after_one() -> None:
    epochs = three()
    before = epochs.changes
    epochs.assign(4, 1500)
    epochs.truncate_from_end(1101)
    epochs.truncate_from_start(0, 1101)
    assert epochs.changes == before
    epochs.truncate_from_end(1100)
    assert epochs.changes == before + 1


# ── a pure function of the log (I-12) ─────────────────────────────────────────────────────────────


@dataclass
class NaiveLog:
    """The epoch of every record, one by one."""

    start: int = 0
    records: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple((e, self.start + self.records.index(e)) for e in sorted(set(self.records)))

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        known = [e for e in self.records if e <= epoch]
        if not known:
            return epoch, self.start
        return known[-1], self.start + len(known)


Cache = Callable[[], LeaderEpochs]
Election = Callable[[LeaderEpochs, int, int], object]
Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["elect", "append", "append", "cut_end", "cut_start"]), st.integers(1, 4)),
    max_size=25,
)


def nothing(_epochs: LeaderEpochs, _epoch: int, _log_end: int) -> None:
    """What becoming leader does to the cache."""


def check_against_the_log(
    steps: list[Step], cache: Cache = LeaderEpochs, elected: Election = nothing
) -> None:
    log, epochs, epoch = NaiveLog(), cache(), 0
    for step, n in steps:
        if step == "elect":
            epoch += n
            elected(epochs, epoch, log.end)
        elif step == "append":
            epochs.assign(epoch, log.end)
            log.records += [epoch] * n
        elif step == "cut_end":
            log.records = log.records[:-n]
            epochs.truncate_from_end(log.end)
        else:
            log.start, log.records = min(log.start + n, log.end), log.records[n:]
            epochs.truncate_from_start(log.start, log.end)
        assert epochs.entries == log.entries()
        assert [epochs.epoch_of(log.start + i) for i in range(len(log.records))] == log.records
        answers = [epochs.end_offset_for(e, log.end) for e in range(epoch + 2)]
        assert answers == [log.end_offset_for(e) for e in range(epoch + 2)]
        assert epochs.latest == (log.records[-1] if log.records else NO_EPOCH)


@given(STEPS)
def test_the_cache_is_a_function_of_the_log(steps: list[Step]) -> None:
    check_against_the_log(steps)


def test_an_entry_at_election_is_caught() -> None:
    """D1's other variant, and Kafka's way: KAFKA-7415, KAFKA-10706."""

    def assign(epochs: LeaderEpochs, epoch: int, log_end: int) -> None:
        epochs.assign(epoch, log_end)

    assert_caught(partial(check_against_the_log, elected=assign), STEPS)


class SkipsEpochZero(LeaderEpochs):
    def assign(self, epoch: int, offset: int) -> bool:
        return epoch != 0 and super().assign(epoch, offset)


class KeepsTheEntryAtTheNewEnd(LeaderEpochs):
    def truncate_from_end(self, log_end: int) -> None:
        super().truncate_from_end(log_end + 1)


class StartsOneTooEarly(LeaderEpochs):
    def truncate_from_start(self, log_start: int, log_end: int) -> None:
        super().truncate_from_start(log_start - 1, log_end)


class KeepsTheLastEntryOfAnEmptyLog(LeaderEpochs):
    def truncate_from_start(self, log_start: int, log_end: int) -> None:
        super().truncate_from_start(log_start, log_end + 1)


class EndsBelowTheEpochItWasAskedFor(LeaderEpochs):
    def end_offset_for(self, epoch: int, log_end: int) -> EpochEnd:
        return super().end_offset_for(epoch - 1, log_end)


class EpochOfThePreviousRecord(LeaderEpochs):
    def epoch_of(self, offset: int) -> int:
        return super().epoch_of(offset - 1)


BUGS = [
    SkipsEpochZero,
    KeepsTheEntryAtTheNewEnd,
    StartsOneTooEarly,
    KeepsTheLastEntryOfAnEmptyLog,
    EndsBelowTheEpochItWasAskedFor,
    EpochOfThePreviousRecord,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_cache_that_is_no_function_of_the_log_is_caught(bug: Cache) -> None:
    assert_caught(partial(check_against_the_log, cache=bug), STEPS)


# ── where two logs part ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("leader", "cut"),
    [
        ((4, 2500), 2000),  # the leader has more of my last epoch
        ((4, 1500), 1500),  # the leader has less of it
        ((3, 900), 900),  # it knows an older epoch only, and less of it
        ((3, 1300), 1100),  # more of it, but mine ends here
        ((2, 700), 812),  # an epoch that I have nothing of: all above the one below it goes, then ask again
        ((0, 500), 500),
    ],
)
def test_a_follower_truncates_where_the_epochs_part(leader: tuple[int, int], cut: int) -> None:
    assert divergence(THREE, 2000, EpochEnd(*leader)) == cut


def test_a_follower_whose_epochs_the_leader_has_none_of_drops_everything() -> None:
    assert divergence(LeaderEpochs([(3, 812), (4, 1100)]), 2000, EpochEnd(2, 900)) == 812


Reign = tuple[int, int, list[tuple[int, int]]]
REIGNS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 3),
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=2),
    ),
    max_size=10,
)


def replicas_after(reigns: list[Reign]) -> list[list[int]]:
    """Three logs after a row of leaderships without any quorum: each leader appends, some followers copy."""
    logs: list[list[int]] = [[], [], []]
    for epoch, (leader, appended, copies) in enumerate(reigns):
        logs[leader] += [epoch] * appended
        for follower, length in copies:
            if length >= common(logs[follower], logs[leader]):
                logs[follower] = logs[leader][:length]
    return logs


def common(one: list[int], other: list[int]) -> int:
    """(offset, epoch) pairs name a record (log matching, I-10), so equal pairs are a common prefix."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def cache_of(log: list[int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for offset, epoch in enumerate(log):
        epochs.assign(epoch, offset)
    return epochs


def check_convergence(
    reigns: list[Reign], rule: Callable[[LeaderEpochs, int, EpochEnd], int] = divergence
) -> None:
    mine, leader, _ = replicas_after(reigns)
    shared, epochs = common(mine, leader), cache_of(mine)
    for _ in range(len(set(mine[shared:]))):
        answer = cache_of(leader).end_offset_for(epochs.latest, len(leader))
        cut = rule(epochs, len(mine), answer)
        assert shared <= cut <= len(mine)
        mine = mine[:cut]
        epochs.truncate_from_end(cut)
        if cut == shared:
            break
    assert mine == leader[:shared]


@given(REIGNS)
def test_a_follower_becomes_a_prefix_of_its_leader_in_a_round_per_epoch_and_loses_nothing_shared(
    reigns: list[Reign],
) -> None:
    check_convergence(reigns)


@given(REIGNS)
def test_a_log_that_is_a_prefix_of_its_leaders_is_not_truncated(reigns: list[Reign]) -> None:
    logs = replicas_after(reigns)
    mine, leader = logs[0][: common(logs[0], logs[1])], logs[1]
    answer = cache_of(leader).end_offset_for(cache_of(mine).latest, len(leader))
    assert not mine or divergence(cache_of(mine), len(mine), answer) == len(mine)


def without_the_leaders_epoch(_mine: LeaderEpochs, log_end: int, leader: EpochEnd) -> int:
    """Before KIP-279: the answer's offset alone was believed."""
    return min(leader.end, log_end)


def own_end_only(mine: LeaderEpochs, log_end: int, leader: EpochEnd) -> int:
    return mine.end_offset_for(leader.epoch, log_end).end


def leaders_end_of_the_epoch_behind(mine: LeaderEpochs, log_end: int, leader: EpochEnd) -> int:
    return divergence(mine, log_end, EpochEnd(leader.epoch - 1, leader.end))


@pytest.mark.parametrize("rule", [without_the_leaders_epoch, own_end_only, leaders_end_of_the_epoch_behind])
def test_a_truncation_rule_that_stops_early_or_cuts_too_deep_is_caught(
    rule: Callable[[LeaderEpochs, int, EpochEnd], int],
) -> None:
    assert_caught(partial(check_convergence, rule=rule), REIGNS)
