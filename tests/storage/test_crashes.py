"""How the last life ended, and what it may have cost (docs/STORAGE.md, 8)."""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.planted import assert_caught
from tidelog.storage.crashes import (
    CLEAN_SHUTDOWN,
    LIVES_KEPT,
    RUNNING,
    CrashKind,
    Found,
    Life,
    Marker,
    Place,
    classify,
)
from tidelog.storage.files import Directory, NoRoom, read_whole, write_whole
from tidelog.storage.io import open_directory
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.faults import WHENS, Crash, Killed, PowerCut, When

NEW, CLEAN, PROCESS, HOST, DAMAGED = CrashKind
DISK, OTHER_DISK = b"\xd1" * 16, b"\xd2" * 16
HERE = Place(DISK, "boot-1", 1)
OURS = Marker(HERE, (b"\x0a" * 16,), 9, CLEAN, 7)


def placed(**where: object) -> Marker:
    return replace(OURS, place=replace(HERE, **where))  # type: ignore[arg-type]  # fields of Place


# ── the decision table ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("running", "clean", "kind"),
    [
        (None, OURS, CLEAN),
        (OURS, OURS, CLEAN),
        ("unreadable", OURS, CLEAN),
        (None, placed(boot_id="boot-0", whereabouts=2), CLEAN),  # all was flushed: copied or rebooted since
        (OURS, None, PROCESS),
        (OURS, "unreadable", PROCESS),
        (OURS, placed(directory_id=OTHER_DISK), PROCESS),
        (placed(boot_id="boot-0"), None, HOST),
        (placed(whereabouts=2), None, HOST),
        (placed(directory_id=OTHER_DISK), None, HOST),
        ("unreadable", None, HOST),
        (None, "unreadable", HOST),
        (None, placed(directory_id=OTHER_DISK), HOST),
    ],
)
def test_each_row_of_the_decision_table(running: Found, clean: Found, kind: CrashKind) -> None:
    for has_partitions in (False, True):
        assert classify(running, clean, HERE, has_partitions=has_partitions) == kind


@pytest.mark.parametrize(("has_partitions", "kind"), [(False, NEW), (True, HOST)])
def test_a_directory_without_markers_is_new_only_if_it_has_no_partitions(
    has_partitions: bool, kind: CrashKind
) -> None:
    assert classify(None, None, HERE, has_partitions=has_partitions) == kind


def test_where_no_boot_id_can_be_known_every_crash_is_the_hosts() -> None:
    nowhere = replace(HERE, boot_id="")
    assert classify(placed(boot_id=""), None, nowhere, has_partitions=True) == HOST


# ── the life of a node, step by step ──────────────────────────────────────────────────────────────────


def begin(directory: Directory, n: int, *, boot: int = 1, partitions: bool = True) -> Life:
    return Life.begin(
        directory,
        directory_id=DISK,
        incarnation_id=bytes([n]) * 16,
        boot_id=f"boot-{boot}",
        has_partitions=partitions,
    )


def test_a_first_life_is_new_and_known_to_no_controller(tmp_path: Path) -> None:
    life = begin(open_directory(str(tmp_path)), 1, partitions=False)
    assert (life.last_end, life.worst, life.broker_epoch, life.problems) == (NEW, NEW, -1, ())
    assert (tmp_path / RUNNING).exists()


def test_a_clean_stop_leaves_one_marker_with_the_epoch_that_was_registered(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    life = begin(directory, 1)
    life.registered(12)
    life.stop_cleanly()
    assert directory.names() == [CLEAN_SHUTDOWN]
    second = begin(directory, 2)
    assert (second.last_end, second.worst, second.broker_epoch) == (CLEAN, CLEAN, 12)
    assert directory.names() == [RUNNING]


def test_a_life_that_was_withdrawn_leaves_what_it_found(tmp_path: Path) -> None:
    """Any number of starts may be refused: the controller knows the one before them all."""
    directory = open_directory(str(tmp_path))
    life = begin(directory, 1)
    life.registered(5)
    life.stop_cleanly()
    found = (tmp_path / CLEAN_SHUTDOWN).read_bytes()
    for n in range(2, 30):
        begin(directory, n).withdraw()
        assert directory.names() == [CLEAN_SHUTDOWN]
        assert (tmp_path / CLEAN_SHUTDOWN).read_bytes() == found


def test_a_life_that_was_withdrawn_hides_nothing(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    begin(directory, 1).withdraw()
    assert (directory.names(), begin(directory, 2).last_end) == ([RUNNING], PROCESS)
    begin(directory, 3).stop_cleanly()
    life = begin(directory, 4)
    assert life.believe(HOST)
    life.withdraw()
    assert begin(directory, 5).worst == HOST


def test_damage_for_which_there_was_no_room_is_not_taken_for_written_down() -> None:
    disk = SimulatedDisk(Random(1))
    life = begin(disk.open_directory("/data"), 1)
    disk.capacity = disk.medium.used
    for _ in range(2):
        with pytest.raises(NoRoom):
            life.worsen(DAMAGED)


def test_the_worst_end_is_reported_until_a_registration_is_on_record(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    begin(directory, 1).registered(5)
    ends = [begin(directory, 2), begin(directory, 3, boot=2), begin(directory, 4, boot=2)]
    assert [(life.last_end, life.worst) for life in ends] == [
        (PROCESS, PROCESS),
        (HOST, HOST),
        (PROCESS, HOST),
    ]
    ends[-1].registered(8)
    assert begin(directory, 5, boot=2).worst == PROCESS


def test_a_clean_stop_before_any_registration_forgets_nothing(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    begin(directory, 1).registered(5)
    begin(directory, 2, boot=2).stop_cleanly()
    third = begin(directory, 3, boot=2)
    assert (third.last_end, third.worst, third.broker_epoch) == (CLEAN, HOST, 5)


def test_damage_is_remembered_though_recovery_has_repaired_it(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    begin(directory, 1).worsen(DAMAGED)
    second = begin(directory, 2)
    assert (second.last_end, second.worst) == (PROCESS, DAMAGED)
    second.worsen(HOST)
    assert second.worst == DAMAGED


def test_a_registration_that_was_not_written_down_is_known_by_its_incarnation(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    begin(directory, 1).registered(5)
    for n in (2, 3, 4):  # any of these may have been registered
        begin(directory, n)
    assert begin(directory, 5).incarnation_ids == tuple(bytes([n]) * 16 for n in (1, 2, 3, 4, 5))


def test_a_registration_answered_once_more_wipes_no_slate(tmp_path: Path) -> None:
    life = begin(open_directory(str(tmp_path)), 1)
    life.registered(5)
    life.worsen(DAMAGED)
    life.registered(5)
    assert life.worst == DAMAGED


def test_sixteen_starts_without_an_answer_are_remembered_and_a_seventeenth_is_lossy(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    begin(directory, 99).registered(5)
    names = [begin(directory, n).incarnation_ids for n in range(1, 40)]
    known = [n for n, each in enumerate(names, 1) if bytes([99]) * 16 in each]
    assert known == list(range(1, 17))
    assert max(map(len, names)) == LIVES_KEPT + 1, "and its own"


def test_every_start_is_counted(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    starts = []
    for n in range(1, 6):
        life = begin(directory, n)
        starts.append(life.start)
        if n == 2:
            life.registered(5)
        if n == 3:
            life.stop_cleanly()
    assert starts == [1, 2, 3, 4, 5]


def test_a_count_that_was_lost_goes_on_where_the_controller_says(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    (tmp_path / RUNNING).write_bytes(b"rotten")
    life = begin(directory, 1)
    assert (life.start, life.count_on(40), life.start) == (1, True, 41)
    assert begin(directory, 2).start == 42, "it is durable when it is said"


def test_a_count_that_was_not_lost_goes_its_own_way(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    life = begin(directory, 1)
    assert (life.count_on(0), life.start) == (False, 1)
    life.registered(5)
    copy = begin(directory, 2)
    assert (copy.count_on(40), copy.start) == (False, 2)


def test_on_a_full_disk_a_start_is_counted_in_memory() -> None:
    disk = SimulatedDisk(Random(0))
    begin(disk.open_directory(), 1).registered(5)
    disk.capacity = 0
    lives = [begin(disk.open_directory(), n) for n in (2, 3)]
    assert [(life.start, len(life.incarnation_ids)) for life in lives] == [(2, 2), (2, 2)]


@pytest.mark.parametrize("name", [RUNNING, CLEAN_SHUTDOWN])
def test_a_marker_that_rotted_is_reported_and_costs_the_registration(tmp_path: Path, name: str) -> None:
    directory = open_directory(str(tmp_path))
    begin(directory, 1).registered(5)
    if name == CLEAN_SHUTDOWN:
        begin(directory, 2).stop_cleanly()
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes().replace(b"5", b"7"))
    life = begin(directory, 3)
    assert (life.last_end, life.worst, life.broker_epoch) == (HOST, HOST, -1)
    assert life.problems == (f"{tmp_path}/{name} is not what was written",)


def test_a_marker_that_the_disk_cannot_read_is_reported_too() -> None:
    disk = SimulatedDisk(Random(0))
    begin(disk.open_directory(), 1)
    disk.fail_reads(f"/data/{RUNNING}")
    life = begin(disk.open_directory(), 2)
    assert life.last_end == HOST
    assert RUNNING in life.problems[0]


# ── crashes at every step ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Plan:
    """How far a life goes, and how it ends: at its n-th change of the disk, or after its last."""

    crash: type[Crash]
    nth: int
    when: When = "before"
    damaged: bool = False
    registers: bool = True
    stops: bool = False
    refused: bool = False
    """The start is, before any log is open."""


@dataclass
class Truth:
    """What has happened since a registration (of that epoch, -1 is the beginning)."""

    lost: bool = False
    """A machine lost its power while a log was open."""
    power_cuts: int = 0
    damaged: bool = False
    maybe_damaged: bool = False


@dataclass
class World:
    disk: SimulatedDisk
    boot: int = 0
    lives: int = 0
    registered: tuple[int, bytes] | None = None
    """What the controller has: number and name of a start."""
    truths: dict[int, Truth] = field(default_factory=lambda: {-1: Truth()})
    log_open: bool = False
    stopped: bool = False

    def check(self, life: Life) -> None:
        """What the life believes of its predecessors is true, and errs to the safe side only."""
        truth = self.truths[life.broker_epoch]
        assert life.worst >= HOST or not truth.lost, "a loss of power was taken for a kill"
        assert life.worst <= PROCESS or truth.power_cuts or truth.maybe_damaged, "a kill was taken for a loss"
        assert life.worst == DAMAGED or not truth.damaged, "damage was forgotten"
        assert life.worst != DAMAGED or truth.maybe_damaged
        assert life.last_end not in (NEW, CLEAN) or not self.log_open, "logs are trusted that may be torn"
        assert life.last_end == CLEAN or not self.stopped, "a clean stop was not believed"
        assert life.problems == ()
        if self.registered is not None:
            start, name = self.registered
            assert name in life.incarnation_ids[:-1], "lossy for nothing"
            assert life.start > start, "refused as too late"

    def live(self, plan: Plan, kind: type[Life]) -> None:
        """One life, however it ends."""
        directory = self.disk.open_directory()
        self.lives += 1
        self.disk.crash_at(plan.nth, when=plan.when, crash=plan.crash)
        try:
            self._live(plan, kind, directory)
        except plan.crash:
            pass
        else:
            self.disk.kill() if plan.crash is Killed else self.disk.power_cut()
        # The removal of that marker is the step from which on a log may be open.
        self.stopped &= self.disk.open_directory().exists(CLEAN_SHUTDOWN)
        if plan.crash is PowerCut:
            self.boot += 1
            for truth in self.truths.values():
                truth.power_cuts += not self.stopped
                truth.lost |= self.log_open

    def _live(self, plan: Plan, kind: type[Life], directory: Directory) -> None:
        incarnation = self.lives.to_bytes(16, "big")
        life = kind.begin(
            directory,
            directory_id=DISK,
            incarnation_id=incarnation,
            boot_id=f"boot-{self.boot}",
            has_partitions=directory.exists("orders-0"),
        )
        self.check(life)
        if plan.refused:
            self._finds(life, damage=plan.damaged)
            life.withdraw()
            return
        self.stopped, self.log_open = False, True
        log = directory.directory("orders-0", create=True).open("0.log", create=True)
        log.write_at(0, b"recovery writes")
        self._finds(life, damage=plan.damaged)
        if plan.registers:
            self.registered = (life.start, incarnation)
            self.truths[100 + self.lives] = Truth()
            life.registered(100 + self.lives)
        log.write_at(0, b"appended")
        if plan.stops:
            log.flush()
            self.log_open = False
            life.stop_cleanly()
            self.stopped = True

    def _finds(self, life: Life, *, damage: bool) -> None:
        if damage:
            for truth in self.truths.values():
                truth.maybe_damaged = True
            life.worsen(DAMAGED)
            for truth in self.truths.values():
                truth.damaged = True


PLANS = st.builds(
    Plan,
    st.sampled_from([Killed, PowerCut]),
    st.integers(1, 40),
    st.sampled_from(WHENS),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
HISTORIES = st.tuples(st.integers(0, 2**32), st.lists(PLANS, min_size=1, max_size=6))
LIFE = 34
"""More operations than a life has."""
AT_LAST = Plan(Killed, 999)


def check_history(history: tuple[int, list[Plan]], kind: type[Life] = Life) -> None:
    """Lives one after the other on one disk; each checks what it finds, and one more at the end."""
    seed, plans = history
    world = World(SimulatedDisk(Random(seed)))
    for plan in [*plans, AT_LAST]:
        world.live(plan, kind)


@pytest.mark.slow
@settings(max_examples=500)
@given(HISTORIES)
def test_no_row_of_crashes_makes_a_loss_of_power_a_kill_or_a_kill_a_loss(
    history: tuple[int, list[Plan]],
) -> None:
    check_history(history)


BEFORE = [
    [],
    [Plan(Killed, 999)],
    [Plan(Killed, 999, stops=True)],
    [Plan(PowerCut, 999)],
    [Plan(Killed, 999), Plan(PowerCut, 999, registers=False, stops=True)],
]


@pytest.mark.parametrize("crash", [Killed, PowerCut])
@pytest.mark.parametrize(
    "before", BEFORE, ids=["first", "killed", "stopped", "power cut", "never registered"]
)
def test_a_crash_at_every_operation_of_a_life_is_believed_to_be_what_it_was(
    before: list[Plan], crash: type[Crash]
) -> None:
    for nth in range(1, LIFE):
        for when in WHENS:
            for damaged in (False, True):
                check_history((nth, [*before, Plan(crash, nth, when, damaged=damaged, stops=True)]))


@pytest.mark.parametrize("crash", [Killed, PowerCut])
def test_a_second_crash_during_the_start_after_the_first_changes_nothing(crash: type[Crash]) -> None:
    """Over every pair of operations of a life and of the start that follows."""
    for first in range(1, LIFE):
        for second in range(1, 12):
            for other in (Killed, PowerCut):
                plans = [Plan(other, first, stops=True), Plan(crash, second), Plan(Killed, 3)]
                check_history((first * second, [Plan(Killed, 999, stops=True), *plans]))


def test_a_whole_life_is_crashed_at_every_one_of_its_operations() -> None:
    disk = SimulatedDisk(Random(0))
    World(disk).live(Plan(Killed, 999, damaged=True, stops=True), Life)
    assert disk.operations < LIFE


class RemovesTheCleanMarkerFirst(Life):
    """As it was once: for a moment there was neither marker."""

    def _write(self, name: str, marker: Marker) -> None:
        if name != RUNNING or not self._directory.exists(CLEAN_SHUTDOWN):
            super()._write(name, marker)
            return
        clean = read_whole(self._directory, CLEAN_SHUTDOWN)
        self._directory.remove(CLEAN_SHUTDOWN)
        self._directory.flush()
        super()._write(name, marker)
        write_whole(self._directory, CLEAN_SHUTDOWN, clean)  # for `begin` to remove


class RemovesTheRunningMarkerFirst(Life):
    def stop_cleanly(self) -> None:
        self._directory.remove(RUNNING)
        self._directory.flush()
        super()._write(CLEAN_SHUTDOWN, self._marker)


class RemembersTheLastEndOnly(Life):
    def _write(self, name: str, marker: Marker) -> None:
        super()._write(name, replace(marker, worst=self.last_end))


class RemembersTheLastLifeOnly(Life):
    def _write(self, name: str, marker: Marker) -> None:
        super()._write(name, replace(marker, incarnation_ids=marker.incarnation_ids[-1:]))


class CountsNames(Life):
    """Numbers are given by how many names there are."""

    def _write(self, name: str, marker: Marker) -> None:
        super()._write(name, replace(marker, start=len(marker.incarnation_ids)))


class CountsRegistrationsOnly(Life):
    """A start that was not answered, and may be registered all the same, gives its number to the next."""

    def _write(self, name: str, marker: Marker) -> None:
        answered = marker.worst is CLEAN and len(marker.incarnation_ids) == 1
        super()._write(name, marker if answered else replace(marker, start=marker.start - 1))
        self._marker = marker


class CallsAnUnregisteredStopClean(Life):
    """A clean marker of less: an epoch, and nothing of what happened since."""

    def stop_cleanly(self) -> None:
        self._marker = replace(self._marker, worst=CLEAN)
        super().stop_cleanly()


class RemembersDamageInMemory(Life):
    def worsen(self, kind: CrashKind) -> None:
        self._marker = replace(self._marker, worst=max(kind, self.worst))


class LooksAtNoBootId(Life):
    def _write(self, name: str, marker: Marker) -> None:
        boot = int(marker.place.boot_id.removeprefix("boot-"))
        super()._write(name, replace(marker, place=replace(marker.place, boot_id=f"boot-{boot + 1}")))


class NeverFlushesNames(Life):
    def __init__(self, directory: Directory, *more: Any) -> None:
        super().__init__(Unflushed(directory), *more)  # type: ignore[arg-type]  # a stand-in


class Unflushed:
    """A directory whose names are not forced to the disk."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def __getattr__(self, name: str) -> object:
        return getattr(self._directory, name)

    def flush(self) -> None:
        pass


class LeavesTheRemovalUnflushed(Life):
    """The clean marker comes back with the next loss of power, and torn logs are trusted."""

    @classmethod
    def begin(cls, directory: Directory, **names: Any) -> Life:
        return super().begin(RemovesUnflushed(directory), **names)  # type: ignore[arg-type]  # a stand-in


class RemovesUnflushed(Unflushed):
    """A directory whose names are forced to the disk, unless one was just removed."""

    removed = False

    def remove(self, name: str) -> None:
        self._directory.remove(name)
        self.removed = True

    def flush(self) -> None:
        if not self.removed:
            self._directory.flush()
        self.removed = False


class ForgetsWhatARefusedStartHasFound(Life):
    def withdraw(self) -> None:
        if self._stopped is not None:
            self._end(self._stopped)


class CallsARefusedStartAStop(Life):
    def withdraw(self) -> None:
        self._end(self._marker)


BUGS = [
    ForgetsWhatARefusedStartHasFound,
    CallsARefusedStartAStop,
    LeavesTheRemovalUnflushed,
    RemovesTheCleanMarkerFirst,
    RemovesTheRunningMarkerFirst,
    RemembersTheLastEndOnly,
    RemembersTheLastLifeOnly,
    CountsNames,
    CountsRegistrationsOnly,
    CallsAnUnregisteredStopClean,
    RemembersDamageInMemory,
    LooksAtNoBootId,
    NeverFlushesNames,
]


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_life_with_another_order_or_a_shorter_memory_is_caught(bug: type[Life]) -> None:
    assert_caught(partial(check_history, kind=bug), HISTORIES)
