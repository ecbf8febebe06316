"""Opening a log after every kind of end (docs/STORAGE.md, 7 and 9; I-30 to I-36)."""

from collections.abc import Callable
from random import Random

import pytest

from tests.storage.logs import SMALL, Halted, Host, batch, contents, placed
from tidelog.protocol.batch import MAGIC, stamp, walk
from tidelog.protocol.errors import DamagedLog, UnsupportedFormat
from tidelog.storage.config import LogConfig
from tidelog.storage.recovery import SET_ASIDE, Checkpointed, Opening
from tidelog.storage.works import take_here
from tidelog.testing.simulation.faults import Crash, Killed, PowerCut, When

ONE_SEGMENT = LogConfig(index_interval_bytes=200)


def filled(count: int, config: LogConfig = SMALL, seed: int = 0) -> Host:
    """A log of `count` batches of two records, of a producer, in three epochs."""
    host = Host(seed, config)
    for number in range(count):
        made = batch(2, time=1000 + 10 * number, producer=9, sequence=2 * number)
        host.log.append(made, number * 3 // count, now_ms=0)
    return host


def state(host: Host) -> tuple[object, ...]:
    """All that readers, leaders and followers can learn of a log."""
    log = host.log
    times = [log.offset_for_time(time) for time in range(990, 1500, 7)]
    return contents(log), log.end_offset, log.epochs.entries, log.producers, times


def tail(host: Host) -> str:
    """The path of the file being written."""
    return f"{host.path}/{host.log.segments[-1].name}"


# ── ends that lose nothing ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("count", [0, 1, 3, 40])
def test_a_killed_process_loses_nothing(count: int, flushed: bool) -> None:
    host = filled(count)
    if flushed:
        host.flush()
    before = state(host)
    findings = host.kill_and_open()
    assert state(host) == before
    assert (findings.damage, findings.torn_bytes) == ([], 0)


@pytest.mark.parametrize("count", [0, 1, 3, 40])
def test_after_a_clean_stop_everything_is_there_and_nothing_is_scanned(count: int) -> None:
    host = filled(count)
    before = state(host)
    host.stop()
    findings = host.open(clean=True)
    assert state(host) == before
    assert (findings.verified_bytes, findings.damage, findings.problems) == (0, [], [])


def test_what_was_flushed_survives_the_loss_of_power() -> None:
    for seed in range(30):
        host = filled(20, seed=seed)
        host.flush()
        durable = contents(host.log)
        for number in range(10):
            host.log.append(batch(2, mark=b"later%d" % number), 2, now_ms=0)
        written = contents(host.log)
        findings = host.cut_power_and_open()
        assert contents(host.log).startswith(durable)
        assert written.startswith(contents(host.log))
        assert findings.damage == []


def test_only_what_was_not_durable_is_scanned() -> None:
    host = filled(40)
    host.flush()
    tail_bytes = len(batch(2)) * 3
    for _ in range(3):
        host.log.append(batch(2), 2, now_ms=0)
    assert host.kill_and_open().verified_bytes == tail_bytes


def killed(seed: int) -> Host:
    """A log that was killed: as it was, after a flush that failed, or with segments whose names were not flushed."""
    host = filled(10, ONE_SEGMENT if seed % 3 < 2 else SMALL, seed)
    if seed % 3 == 1:
        host.disk.fail_flush(suffix=".log")
        with pytest.raises(Halted):
            host.log.flush()
    elif seed % 3 == 2:
        host.flush()  # and with it the file of the epochs, which a recovery need not write again
        for _ in range(20):
            host.log.append(batch(2), 2, now_ms=0)
    host.kill_and_open()
    return host


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_what_recovery_keeps_it_has_written_and_flushed_again(first: int) -> None:
    """fsyncgate: after a failed flush the pages look right and are not on the disk.

    Nothing is appended after recovery, so no later flush covers for one that it left out: what it says to be
    durable is compared with what a loss of power leaves. One loss may spare everything, hence many.
    """
    for seed in range(first, first + 20):
        host = killed(seed)
        kept, said = contents(host.log), host.log.durable_offset
        assert said == host.log.end_offset == host.keeper.read_recovery_point() >= 20
        findings = host.cut_power_and_open()
        assert findings.damage == [], f"seed {seed}: offset {said} was said to be durable"
        assert contents(host.log) == kept, f"seed {seed}"


def test_pages_that_survive_a_loss_of_power_in_any_order_leave_a_beginning_of_what_was_written() -> None:
    """A batch of many pages may have lost any of them, and its head is whole."""
    torn = 0
    for seed in range(40):
        host = Host(seed, ONE_SEGMENT)
        host.disk.by_page = True
        host.log.append(batch(size=9000), 0, now_ms=0)
        host.flush()
        for _ in range(3):
            host.log.append(batch(size=9000), 0, now_ms=0)
        whole = contents(host.log)
        torn += host.cut_power_and_open().torn_bytes > 0
        assert host.log.end_offset >= 1
        assert whole.startswith(contents(host.log)), f"seed {seed}"
    assert torn > 20


# ── a torn tail ───────────────────────────────────────────────────────────────────────────────────


def test_a_tail_torn_at_every_byte_recovers_to_the_valid_prefix() -> None:
    whole = contents(filled(6, ONE_SEGMENT).log)
    two = 2 * len(batch(2, producer=9))
    for cut in range(len(whole) - two, len(whole)):
        host = filled(6, ONE_SEGMENT)
        host.directory.open(host.log.segments[0].name).truncate(cut)
        findings = host.kill_and_open()
        left = (cut // (two // 2)) * (two // 2)
        assert contents(host.log) == whole[:left], f"cut at {cut}"
        assert (findings.torn_bytes, findings.damage) == (cut - left, [])


def test_a_flipped_bit_in_the_tail_ends_the_log_before_its_batch() -> None:
    rng = Random(4)
    whole = contents(filled(6, ONE_SEGMENT).log)
    one = len(batch(2, producer=9))
    for position in range(len(whole)):
        host = filled(6, ONE_SEGMENT)
        host.disk.rot(tail(host), position, rng.randrange(8))
        host.kill_and_open()
        assert contents(host.log) == whole[: position // one * one], f"flipped in byte {position}"


def test_zeros_behind_the_tail_are_no_batches() -> None:
    host = filled(6, ONE_SEGMENT)
    before = state(host)
    end = host.directory.size_of(host.log.segments[0].name)
    host.directory.open(host.log.segments[0].name).write_at(end, bytes(5000))
    assert host.kill_and_open().torn_bytes == 5000
    assert state(host) == before


def test_segments_behind_a_torn_one_are_removed() -> None:
    host = filled(40)
    second = host.log.segments[1]
    host.disk.rot(f"{host.path}/{second.name}", 5, 0)
    host.kill_and_open()
    assert host.log.end_offset == second.base_offset
    assert [name for name in host.directory.names() if name.endswith(".log")] == [
        segment.name for segment in host.log.segments
    ]


def test_segments_behind_a_torn_one_do_not_come_back_behind_what_is_written_in_its_place() -> None:
    """Their first offset fits again then; a loss of power must find them gone."""
    for seed in range(40):
        host = Host(seed)
        host.log.append(batch(2), 0, now_ms=0)
        host.flush()  # the epochs are in their file: nothing else makes a flush of the names
        for _ in range(30):
            host.log.append(batch(2, mark=b"old"), 0, now_ms=0)
        first = host.log.segments[0]
        host.disk.rot(f"{host.path}/{first.name}", first.size - 1, 0)
        host.kill_and_open()
        assert host.log.end_offset == first.next_offset - 2
        host.log.append(batch(2, mark=b"new"), 0, now_ms=0)
        host.flush()
        written = contents(host.log)
        assert host.cut_power_and_open().damage == []
        assert contents(host.log) == written, f"seed {seed}"


def test_after_a_torn_tail_the_log_goes_on_as_if_it_had_never_been() -> None:
    host = filled(6, ONE_SEGMENT)
    host.directory.open(host.log.segments[0].name).truncate(len(contents(host.log)) - 1)
    host.kill_and_open()
    assert host.log.append(batch(2, producer=9, sequence=10), 3, now_ms=0)[:3] == (10, 12, False)


# ── damage below the recovery point ───────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_flipped_bit_below_the_recovery_point_is_reported_and_never_served() -> None:
    """At the opening or at the read, at every byte of the log: reported both times, served never (I-36)."""
    whole = contents(filled(12).log)
    rng = Random(8)
    at = 0
    for segment in filled(12).log.segments:
        for position in range(segment.size):
            host = filled(12)
            host.flush()
            host.disk.rot(f"{host.path}/{segment.name}", position, rng.randrange(8))
            findings = host.kill_and_open()
            if not findings.damage:
                with pytest.raises(DamagedLog):
                    contents(host.log)
            else:
                assert whole.startswith(contents(host.log))
                assert len(contents(host.log)) <= at + position
        at += segment.size


def test_damaged_bytes_are_set_aside_and_the_prefix_kept() -> None:
    host = filled(12, ONE_SEGMENT)
    whole = contents(host.log)
    host.flush()
    one = len(batch(2, producer=9))
    host.log.segments[0].forget_indexes()
    host.disk.rot(tail(host), 5 * one + 3, 1)
    findings = host.kill_and_open()
    assert len(findings.damage) == 2  # the batch, and that the log now ends below its recovery point
    assert contents(host.log) == whole[: 5 * one]
    name = host.log.segments[0].name + SET_ASIDE
    assert host.directory.size_of(name) == len(whole) - 5 * one
    assert host.kill_and_open().damage == []


@pytest.mark.parametrize("clean", [True, False])
def test_the_end_of_what_is_kept_does_not_rest_on_another_damaged_batch(clean: bool) -> None:
    """How far the last batch goes is not in its head: of several damaged ones none may be believed."""
    host = filled(12, ONE_SEGMENT)
    whole = contents(host.log)
    host.flush()
    host.log.segments[0].let_go()
    one = len(batch(2, producer=9))
    for place in (9, 10, 11):
        host.disk.rot(tail(host), place * one + 30, 4)  # the low byte of last_offset_delta
    host.disk.kill()
    assert host.open(clean=clean).damage
    assert (host.log.end_offset, contents(host.log)) == (18, whole[: 9 * one])
    assert host.directory.size_of(host.log.segments[0].name + SET_ASIDE) == 3 * one


def test_bytes_that_overlap_a_durable_segment_are_set_aside_and_reported() -> None:
    """Were the next segment's bytes not durable, these would be a cut that was not; so they are a riddle."""
    host = filled(40)
    host.flush()
    first = host.log.segments[0]
    extra = first.size
    host.directory.open(first.name).write_at(extra, placed(first.next_offset, 0))
    host.kill_and_open()
    assert "overlap" in host.keeper.damage[0]
    assert host.directory.size_of(first.name + SET_ASIDE) == len(placed(0, 0))


def test_what_does_not_fit_is_not_set_aside_in_part() -> None:
    """At every start another piece would fill the disk further."""
    host = filled(12, ONE_SEGMENT)
    host.flush()
    host.log.segments[0].forget_indexes()
    host.disk.rot(tail(host), 5 * len(batch(2, producer=9)) + 3, 1)
    host.disk.capacity = host.disk.capacity - host.directory.free_space() + 100
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            host.kill_and_open()
        assert not [name for name in host.directory.names() if SET_ASIDE in name]
    host.disk.capacity = 1 << 40
    assert host.kill_and_open().damage


def test_a_crash_while_damage_is_set_aside_leaves_no_half_of_it() -> None:
    for nth in range(1, 60):
        host = filled(12, ONE_SEGMENT, seed=nth)
        host.flush()
        one = len(batch(2, producer=9))
        host.disk.rot(tail(host), 11 * one + 40, 1)
        host.disk.kill()
        host.directory = host.disk.open_directory("/data").directory("orders-0")
        host.disk.crash_at(nth, crash=[Killed, PowerCut][nth % 2])
        try:
            host.open()
        except Crash:
            host.open()
        kept = [name for name in host.directory.names() if SET_ASIDE in name]
        assert [host.directory.size_of(name) for name in kept] == [one] * len(kept)
        assert kept
        assert host.log.end_offset == 22


def test_what_was_set_aside_is_there_after_a_loss_of_power() -> None:
    """The log is shorter by it, durably: no other copy is left to look into."""
    one = len(batch(2, producer=9))
    for seed in range(20):
        host = filled(12, ONE_SEGMENT, seed)
        host.flush()
        host.log.segments[0].forget_indexes()
        host.disk.rot(tail(host), 5 * one + 3, 1)
        damaged = host.directory.open(host.log.segments[0].name).read_at(5 * one, 7 * one)
        host.kill_and_open()
        host.cut_power_and_open()
        kept = host.directory.open(host.log.segments[0].name + SET_ASIDE)
        assert kept.read_at(0, 8 * one) == damaged, f"seed {seed}"


def test_a_lost_segment_is_reported_and_the_prefix_kept() -> None:
    host = filled(40)
    host.flush()
    whole, lost = contents(host.log), host.log.segments[2]
    host.directory.remove(lost.name)
    findings = host.kill_and_open()
    assert "a segment is missing" in findings.damage[0]
    assert host.log.end_offset == lost.base_offset
    assert whole.startswith(contents(host.log))
    assert any(name.endswith(SET_ASIDE) for name in host.directory.names())


def test_a_log_shorter_than_its_recovery_point_is_reported() -> None:
    host = filled(6, ONE_SEGMENT)
    host.flush()
    one = len(batch(2, producer=9))
    host.directory.open(host.log.segments[0].name).truncate(4 * one)
    assert "below its recovery point 12" in host.kill_and_open().damage[0]
    assert host.log.end_offset == 8


def test_a_log_that_lost_everything_begins_empty_at_its_start_and_says_so() -> None:
    host = filled(6)
    host.log.raise_log_start(4)
    host.flush()
    for name in host.directory.names():
        host.directory.remove(name)
    host.disk.kill()
    findings = host.open(log_start=4)
    assert findings.damage
    assert (host.log.log_start, host.log.end_offset) == (4, 4)


# ── caches: indexes, snapshots, checkpoints ───────────────────────────────────────────────────────


def _remove(host: Host, name: str) -> None:
    host.directory.remove(name)


def _empty(host: Host, name: str) -> None:
    host.directory.open(name).truncate(0)


def _cut(host: Host, name: str) -> None:
    host.directory.open(name).truncate(host.directory.size_of(name) // 2)


def _scribble(host: Host, name: str) -> None:
    host.directory.open(name).write_at(0, host.rng.randbytes(host.directory.size_of(name)))


def _rot(host: Host, name: str) -> None:
    host.disk.rot(
        f"{host.path}/{name}", host.rng.randrange(host.directory.size_of(name)), host.rng.randrange(8)
    )


def _bad_sector(host: Host, name: str) -> None:
    host.disk.fail_reads(f"{host.path}/{name}", 0, 1 << 16)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("harm", [_remove, _empty, _cut, _scribble, _rot, _bad_sector])
@pytest.mark.parametrize("ending", [".index", ".timeindex", ".snapshot", "-checkpoint"])
def test_harm_to_any_cache_changes_no_answer(
    ending: str, harm: Callable[[Host, str], None], clean: bool
) -> None:
    """I-35: indexes, snapshots and checkpoints may be missing, short, or wrong."""
    host = filled(40)
    before = state(host)
    host.stop()
    host.open(clean=True)
    host.log.abandon()
    harmed = [name for name in host.directory.names() if name.endswith(ending)]
    assert harmed
    for name in harmed:
        harm(host, name)
    host.disk.kill()
    findings = host.open(clean=clean)
    assert state(host) == before
    assert findings.damage == []
    if ending == "-checkpoint" or harm is _bad_sector:
        assert findings.problems


def test_a_segment_that_was_verified_has_its_indexes_again() -> None:
    host = filled(40)
    host.disk.kill()
    host.open()
    names = host.directory.names()
    for segment in host.log.segments[:-1]:
        assert segment.name.replace(".log", ".index") in names
        assert segment.name.replace(".log", ".timeindex") in names


def test_an_index_of_another_history_is_not_believed() -> None:
    """Truncated, grown again, and the names on the medium are the old ones: the log decides."""
    for seed in range(40):
        host = filled(30, seed=seed)
        host.flush()
        host.log.truncate_to(host.rng.randrange(60), now_ms=0)
        for _ in range(20):
            host.log.append(batch(1, size=host.rng.randrange(1, 90), time=2000), 7, now_ms=0)
        host.flush()
        before = state(host)
        host.cut_power_and_open()
        assert state(host) == before


# ── formats to come ───────────────────────────────────────────────────────────────────────────────


def test_a_batch_of_a_newer_format_stops_the_opening_and_is_not_cut_off() -> None:
    host = filled(3, ONE_SEGMENT)
    newer = batch(2)
    newer[16] = MAGIC + 1
    stamp(newer, 6, 3)
    name = host.log.segments[0].name
    size = host.directory.size_of(name)
    host.directory.open(name).write_at(size, newer)
    with pytest.raises(UnsupportedFormat, match=f"magic {MAGIC + 1}"):
        host.kill_and_open()
    assert host.directory.size_of(name) == size + len(newer)


# ── a crash between any two effects ───────────────────────────────────────────────────────────────


def _roll(host: Host) -> None:
    host.log.append(batch(2, size=300, producer=9, sequence=80), 3, now_ms=0)
    host.log.append(batch(2, size=300, producer=9, sequence=82), 3, now_ms=0)
    host.flush()


def _truncate(host: Host) -> None:
    host.log.truncate_to(41, now_ms=0)
    host.log.append(batch(2, mark=b"again"), 5, now_ms=0)
    host.flush()


def _truncate_all(host: Host) -> None:
    host.log.truncate_to(0, now_ms=0)


def _stop(host: Host) -> None:
    host.log.close()


def _recover(host: Host) -> None:
    host.log.append(batch(2, size=300), 3, now_ms=0)
    host.log.append(batch(2, size=300), 3, now_ms=0)
    host.directory.open(host.log.segments[-1].name).truncate(host.log.segments[-1].size - 1)
    host.log.abandon()
    opening = Opening(host.directory, host.config, host.keeper, Checkpointed(80))
    take_here(opening.steps(now_ms=0))


@pytest.mark.slow
@pytest.mark.parametrize("crash", [Killed, PowerCut])
@pytest.mark.parametrize("action", [_roll, _truncate, _truncate_all, _stop, _recover])
def test_a_crash_between_any_two_effects_leaves_a_log_that_opens(
    action: Callable[[Host], None], crash: type[Crash]
) -> None:
    """I-34: a crash during a roll, a flush, a truncation, a stop or a recovery."""
    nth, when = 1, 0
    moments: tuple[When, ...] = ("before", "within", "after")
    while True:
        host = filled(40, seed=nth)
        host.flush()
        durable = contents(host.log)
        host.disk.crash_at(nth, when=moments[when], crash=crash)
        try:
            action(host)
        except Crash:
            findings = host.open()
        else:
            break
        left = contents(host.log)
        assert findings.damage == [], f"crash {moments[when]} operation {nth}"
        assert left.startswith(durable) or action in (_truncate, _truncate_all)
        assert durable.startswith(left) or action in (_truncate, _roll, _recover)
        assert host.log.epochs.latest == (_last_epoch(left))
        host.log.append(batch(2), 9, now_ms=0)
        nth, when = (nth, when + 1) if when < 2 else (nth + 1, 0)
    assert nth > 3


def _last_epoch(data: bytes) -> int:
    return max((header.leader_epoch for _, header in walk(data)), default=-1)
