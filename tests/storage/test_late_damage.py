"""Damage that an opening meets when the segments were taken: an index has spared a head a look (ADR 12; I-34, I-36)."""

from collections.abc import Callable
from itertools import count

import pytest

from tests.storage.logs import Host, batch, contents
from tests.storage.test_data_directory import ORDERS, Node
from tests.storage.test_recovery import filled, state
from tidelog.protocol.errors import DamagedLog
from tidelog.storage import producer_snapshots
from tidelog.storage.crashes import CrashKind
from tidelog.storage.log import Log
from tidelog.storage.producer_replay import ProducerReplay
from tidelog.storage.recovery import SET_ASIDE
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.faults import Crash, Killed, PowerCut


def spared(log: Log, segment: int) -> int:
    """The base offset of a batch of that segment, not its first, that lies before the last entry of its index."""
    chosen = log.segments[segment]
    last = chosen.base_offset + chosen.indexes()[0].keys[-1]
    return next(each.base_offset for at, each in chosen.headers_from(0) if at and each.last_offset < last)


def rot_head(disk: SimulatedDisk, log: Log, segment: int) -> int:
    """Let the head of such a batch rot; where it begins."""
    base, chosen = spared(log, segment), log.segments[segment]
    disk.rot(f"{log.directory.path}/{chosen.name}", chosen.position_of(base) + 3, 2)
    return base


def cut_at(base: int, log_start: int = 0) -> Host:
    """The same log if it had never been longer."""
    host = filled(40)
    host.log.raise_log_start(log_start)
    host.log.truncate_to(base, now_ms=0)
    return host


def at_its_start(log: Log) -> int:
    """What readers get begins with the damaged batch."""
    log.raise_log_start(spared(log, 1))
    return 1


def by_the_producers(log: Log) -> int:
    """No snapshot spares the replay."""
    producer_snapshots.remove_above(log.directory, -1)
    return 2


def by_the_epochs(log: Log) -> int:
    """The file with them is lost."""
    log.directory.remove("leader-epoch-checkpoint")
    return 3


READERS = [at_its_start, by_the_producers, by_the_epochs]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("met", READERS)
def test_damage_that_is_met_late_is_set_aside_like_all_other(met: Callable[[Log], int], clean: bool) -> None:
    host = filled(40)
    host.stop()
    host.open(clean=True)
    base = rot_head(host.disk, host.log, met(host.log))
    log_start = host.log.log_start
    host.disk.kill()
    findings = host.open(clean=clean, log_start=log_start)
    assert findings.damage == host.keeper.damage != []
    assert state(host) == state(cut_at(base, log_start))
    aside = [name for name in host.directory.names() if SET_ASIDE in name]
    assert len(aside) == sum(segment.next_offset > base for segment in filled(40).log.segments)
    host.disk.kill()
    assert host.open(clean=clean, log_start=log_start).damage == []
    assert host.log.append(batch(2), 9, now_ms=0).base_offset == base


def test_of_several_damaged_segments_the_first_ends_the_log() -> None:
    host = filled(40)
    host.flush()
    by_the_producers(host.log)
    bases = [rot_head(host.disk, host.log, segment) for segment in (4, 3, 1)]
    assert len(host.kill_and_open().damage) >= 1
    assert state(host) == state(cut_at(min(bases)))


def test_damage_below_the_logs_start_that_is_met_late_leaves_an_empty_log_there() -> None:
    host = filled(40)
    host.flush()
    by_the_epochs(host.log)
    log_start = host.log.segments[0].next_offset
    assert rot_head(host.disk, host.log, 0) < log_start
    host.disk.kill()
    findings = host.open(log_start=log_start)
    assert f"below its start {log_start}" in findings.damage[1]
    assert (host.log.log_start, host.log.end_offset, host.log.epochs.entries) == (log_start, log_start, ())


@pytest.mark.parametrize("crash", [Killed, PowerCut])
def test_a_crash_while_it_is_set_aside_hides_nothing_of_it(crash: type[Crash]) -> None:
    """The log is cut there by whichever start comes to its end, and the controller hears of it (D6)."""
    for nth in count(1):
        node = Node(nth)
        node.fill()
        node.stop_and_start()
        log = node.data.logs[ORDERS]
        whole = contents(log)
        by_the_producers(log)
        base = rot_head(node.disk, log, 1)
        node.disk.kill()
        node.disk.crash_at(nth, crash=crash)
        try:
            node.start()
        except Crash:
            node.start()
            crashed = True
        else:
            crashed = False
        data = node.data
        assert (data.life.worst, data.report.offline) == (CrashKind.DAMAGED, {}), f"operation {nth}"
        assert data.logs[ORDERS].end_offset == base
        assert whole.startswith(contents(data.logs[ORDERS]))
        assert data.damage_of(ORDERS)
        if not crashed:
            break
    assert nth > 30


def test_damage_that_a_second_look_does_not_find_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    host = filled(40)
    host.flush()
    whole = contents(host.log)
    base = host.log.segments[1].base_offset

    def misread(*_: object) -> None:
        raise DamagedLog("so it seems", base)

    with monkeypatch.context() as once:
        once.setattr(ProducerReplay, "steps", misread)
        with pytest.raises(DamagedLog, match="so it seems"):
            host.kill_and_open()
    assert host.keeper.damage == []
    assert host.kill_and_open().damage == []
    assert contents(host.log) == whole
