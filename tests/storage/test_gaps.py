"""Offsets that compaction removed: copied, cut, and opened again as any others (docs/adr/0091)."""

from random import Random

import pytest

from tests.storage.compacted import Compacted
from tests.storage.logs import Host, contents, offsets, placed
from tidelog.protocol.batch import read_header, walk
from tidelog.protocol.errors import DamagedLog, InvalidAppend
from tidelog.storage.log import Log


@pytest.fixture
def leader() -> Log:
    life = Compacted(Random(11))
    life.fill(60)
    life.roll()
    life.compact()
    life.fill(5)
    return life.log


def copied(leader: Log, seed: int = 0, pieces: int = 300) -> Host:
    host = Host(seed)
    copy(leader, host.log, pieces)
    return host


def copy(leader: Log, log: Log, pieces: int = 300) -> None:
    while log.end_offset < leader.end_offset:
        log.append_as_follower(leader.read(log.end_offset, pieces).data, 1 << 20, 0, gaps=True)


def test_a_follower_copies_gaps_and_has_what_the_leader_has(leader: Log) -> None:
    for pieces in (1, 300, 100_000):
        host = copied(leader, pieces=pieces)
        assert contents(host.log) == contents(leader)
        assert host.log.epochs == leader.epochs
        assert host.log.end_offset == leader.end_offset


def test_gaps_are_refused_from_a_leader_that_has_not_compacted(leader: Log) -> None:
    host = Host()
    data = leader.read(0, 1 << 20).data
    with pytest.raises(InvalidAppend):
        host.log.append_as_follower(data, 1 << 20, 0)
    assert host.log.end_offset == 0


def test_a_copy_is_there_after_every_kind_of_end(leader: Log) -> None:
    for seed in range(20):
        host = copied(leader, seed)
        if seed % 2:
            host.flush()
        findings = host.kill_and_open()
        assert (contents(host.log), findings.damage) == (contents(leader), [])
        host.flush()
        findings = host.cut_power_and_open()
        assert (contents(host.log), findings.damage) == (contents(leader), [])
        host.stop()
        findings = host.open(clean=True)
        assert (contents(host.log), findings.damage) == (contents(leader), [])


def test_what_a_loss_of_power_leaves_is_a_beginning_and_the_copy_goes_on_from_there(leader: Log) -> None:
    for seed in range(40):
        host = copied(leader, seed)
        host.cut_power_and_open()
        assert contents(leader).startswith(contents(host.log))
        copy(leader, host.log)
        assert contents(host.log) == contents(leader)


def test_a_recovery_point_anywhere_between_batches_is_none_within_one(leader: Log) -> None:
    host = Host()
    while host.log.end_offset < leader.end_offset:
        host.log.append_as_follower(leader.read(host.log.end_offset, 1).data, 1 << 20, 0, gaps=True)
        host.flush()
        findings = host.kill_and_open()
        assert findings.damage == []


def test_a_cut_at_any_offset_leaves_what_is_below_it_also_within_a_gap(leader: Log) -> None:
    everything = contents(leader)
    for cut in range(leader.end_offset):
        host = copied(leader, cut)
        host.flush()
        host.log.truncate_to(cut, now_ms=0)
        kept = [header for _, header in walk(everything) if header.next_offset <= cut]
        assert host.log.end_offset == (kept[-1].next_offset if kept else 0)
        assert offsets(contents(host.log)) == [header.base_offset for header in kept]
        findings = host.kill_and_open() if cut % 2 else host.cut_power_and_open()
        assert findings.damage == []
        assert offsets(contents(host.log)) == [header.base_offset for header in kept]
        if cut % 7 == 0:
            copy(leader, host.log)
            assert contents(host.log) == everything


def test_a_gap_that_was_not_written_is_damage() -> None:
    """How far a batch goes stands in its body: one that claims less than it has leaves what looks like a gap."""
    host = Host()
    host.log.append_as_follower(placed(0, 0, 3) + placed(3, 0, 3) + placed(6, 0), 0, 0)
    host.flush()
    (segment,) = host.log.segments
    second = read_header(host.log.read(3, 1).data)
    host.disk.rot(f"{host.path}/{segment.name}", segment.position_of(3) + 30, 1)
    findings = host.kill_and_open()
    assert second.last_offset_delta == 2
    assert findings.damage
    assert host.log.end_offset == 3


def test_what_comes_back_of_a_write_that_did_not_fit_never_passes_for_what_is_behind_a_gap() -> None:
    """The group's second batch would stand just behind the one that was written instead of the first."""
    for seed in range(30):
        host = Host(seed)
        first = placed(0, 1, 2)
        same = next(one for one in (placed(0, 1, size=size) for size in range(200)) if len(one) == len(first))
        group = first + placed(2, 1, 2) + placed(4, 1, 2)
        host.disk.capacity = host.disk.capacity - host.directory.free_space() + len(group) - 1
        with pytest.raises(Exception, match="could not be written"):
            host.log.append_as_follower(group, 1, 0)
        host.disk.capacity = 1 << 40
        assert host.log.probe()
        host.log.append_as_follower(same, 1, 0)
        host.cut_power_and_open()
        assert offsets(contents(host.log)) in ([], [0])


def test_damage_in_a_compacted_log_is_told() -> None:
    life = Compacted(Random(12))
    life.fill(60)
    life.roll()
    life.compact()
    segment = life.log.segments[2]
    life.node.disk.rot(f"/data/orders-0/{segment.name}", 80, 2)
    with pytest.raises(DamagedLog):
        life.read()
