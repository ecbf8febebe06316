"""What goes wrong in the middle of something: the log stays what it was, or says that it is not served."""

import errno

import pytest

from tests.storage.logs import SMALL, Host, Keeper, batch, contents, offsets, placed
from tidelog.protocol.batch import build, read_header, stamp
from tidelog.protocol.errors import CorruptMessage, DamagedLog, DiskFull, InvalidRecord, StorageError
from tidelog.storage import index, producer_snapshots
from tidelog.storage.config import LogConfig
from tidelog.storage.flushing import SEGMENTS_AT_ONCE
from tidelog.storage.producer_snapshots import snapshot_name, snapshot_offsets
from tidelog.storage.recovery import Checkpointed, Opening

ONE_SEGMENT = LogConfig(index_interval_bytes=200)


def filled(count: int, config: LogConfig = ONE_SEGMENT, **kwargs: int) -> Host:
    """A log of `count` batches of two records."""
    host = Host(config=config, **kwargs)
    for number in range(count):
        host.log.append(batch(2, time=1000 + 10 * number), number * 3 // count, now_ms=0)
    return host


def path(host: Host, segment: int = -1) -> str:
    return f"{host.path}/{host.log.segments[segment].name}"


def readable(host: Host, segment: int = -1) -> None:
    host.disk.medium.file_at(path(host, segment)).unreadable.clear()


# ── indexes that must be brought back from a disk that does not answer ────────────────────────────


def test_a_read_that_fails_moves_no_end() -> None:
    """The indexes were let go, and what leads to them cannot be read: no offset may be used twice (I-39)."""
    host = filled(12)
    whole = contents(host.log)
    host.log.segments[0].let_go()
    host.disk.fail_reads(path(host), 0, 65)
    with pytest.raises(StorageError):
        host.log.read(7, 1000)
    assert host.log.end_offset == 24
    readable(host)
    assert contents(host.log) == whole


@pytest.mark.parametrize("ending", [".index", ".timeindex"])
def test_an_index_file_that_cannot_be_read_costs_a_walk_and_is_written_anew(ending: str) -> None:
    host = filled(12)
    whole = contents(host.log)
    segment = host.log.segments[0]
    segment.let_go()
    name = segment.name.replace(".log", ending)
    host.disk.fail_reads(f"{host.path}/{name}", 0, 1 << 16)
    assert contents(host.log) == whole
    assert host.log.offset_for_time(1050) == (10, 1050)
    host.disk.medium.file_at(f"{host.path}/{name}").unreadable.clear()
    written = host.directory.open(name).read_at(0, 1 << 16)
    host.directory.open(name).truncate(0)
    segment.let_go()
    assert host.directory.open(name).read_at(0, 1 << 16) == written


@pytest.mark.parametrize("ending", [".index", ".snapshot"])
def test_a_cache_that_there_is_no_descriptor_for_is_not_taken_for_a_bad_one(
    ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = filled(12)
    host.stop()
    before = host.disk.open_directory("/data/orders-0").names()

    def fails(*_: object) -> bytes:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(index if ending == ".index" else producer_snapshots, "read_whole", fails)
    with pytest.raises(OSError, match="too many"):
        host.open(clean=True)
    assert host.disk.open_directory("/data/orders-0").names() == before


def test_an_append_while_the_indexes_cannot_be_read_overwrites_nothing() -> None:
    host = filled(12)
    whole = contents(host.log)
    host.log.segments[0].let_go()
    host.disk.fail_reads(path(host), 0, 65)
    with pytest.raises(StorageError, match="could not be read"):
        host.log.append(batch(size=400), 2, now_ms=0)
    assert host.log.end_offset == 24
    readable(host)
    host.log.append(batch(size=400), 2, now_ms=0)
    assert contents(host.log).startswith(whole)


def test_rot_that_is_met_when_indexes_are_rebuilt_moves_no_end() -> None:
    host = filled(12)
    host.log.segments[0].forget_indexes()
    host.disk.rot(path(host), 3 * len(batch(2)) + 5)
    with pytest.raises(DamagedLog):
        host.log.read(23, 1000)
    assert host.log.end_offset == 24
    assert offsets(host.log.read(0, 1).data) == [0]


def test_bringing_indexes_back_during_an_append_changes_nothing_else() -> None:
    host = filled(1, ONE_SEGMENT)
    segment = host.log.segments[0]
    segment.let_go()
    made = placed(2, 7, size=400)
    segment.write(made)
    segment.enter(segment.size, read_header(made))
    assert (segment.first_timestamp, segment.last_epoch) == (1001, 7)
    segment.check_last()
    assert segment.next_offset == 3


# ── a flush that cannot begin, or must not be disturbed ───────────────────────────────────────────


def test_a_flush_that_cannot_open_a_file_is_refused_and_may_begin_again() -> None:
    """Nothing was forced and nothing has failed to be: the process goes on."""
    host = filled(40, SMALL, max_open=2)
    missing = path(host, 0)
    host.log.segments[0].let_go()
    host.directory.rename(host.log.segments[0].name, "elsewhere")
    with pytest.raises(StorageError, match="could not be opened"):
        host.log.begin_flush()
    assert not host.log.is_flushing
    assert [segment.pins for segment in host.log.segments] == [0] * len(host.log.segments)
    host.directory.rename("elsewhere", missing.rpartition("/")[2])
    host.log.flush()
    assert host.log.durable_offset == 80


def test_a_flush_of_very_many_segments_takes_them_in_turns() -> None:
    """A client whose clock jumps may begin a segment with each batch: all at once, their files would not open."""
    host = filled(600, LogConfig(segment_bytes=1024, segment_ms=1), max_open=4)
    assert len(host.log.segments) == 600
    flush = host.log.begin_flush()
    assert flush is not None
    assert len(host.keeper.open_segments) <= SEGMENTS_AT_ONCE + 4
    flush.run()
    host.log.end_flush(flush)
    assert host.log.durable_offset == 2 * SEGMENTS_AT_ONCE
    host.flush()
    host.cut_power_and_open()
    assert host.log.end_offset == 1200


def test_a_log_is_not_let_go_while_it_is_flushed() -> None:
    """The flush would fail on a closed file, and end the process; or write into a later log of that name."""
    host = filled(3)
    flush = host.log.begin_flush()
    assert flush is not None
    with pytest.raises(AssertionError, match="being flushed"):
        host.log.abandon()
    flush.run()
    host.log.end_flush(flush)
    host.log.abandon()


# ── truncations that cannot be done, or cut further than they are told ────────────────────────────


def test_a_truncation_that_meets_damage_cuts_nothing() -> None:
    """Half of it would leave producers that remember batches which are gone (I-9)."""
    for place in range(12):
        host = filled(12, SMALL)
        host.flush()
        one, first = len(batch(2)), host.log.segments[0].next_offset // 2
        host.directory.remove(snapshot_name(host.log.segments[1].base_offset))
        if place < first:
            host.disk.rot(path(host, 0), place * one + 2)
        else:
            host.disk.rot(path(host, 1), (place - first) * one + 2)
        before = host.log.end_offset, host.log.segments, host.log.durable_offset
        try:
            host.log.truncate_to(15, now_ms=0)
        except DamagedLog:
            assert (host.log.end_offset, host.log.segments, host.log.durable_offset) == before
        else:
            assert (host.log.end_offset, place >= 8) == (14, True)


def test_a_truncation_that_cannot_read_is_refused_and_cuts_nothing() -> None:
    host = filled(12)
    host.log.segments[0].let_go()
    host.disk.fail_reads(path(host), 0, 65)
    with pytest.raises(StorageError, match="could not be read"):
        host.log.truncate_to(6, now_ms=0)
    assert (host.log.end_offset, host.keeper.halted) == (24, [])


def test_a_truncation_to_within_the_first_batch_leaves_an_empty_log_at_its_start() -> None:
    """The log starts within a batch that must go: what is left of it would end below its start (I-38)."""
    host = filled(12)
    host.log.raise_log_start(9)
    host.log.truncate_to(9, now_ms=0)
    assert (host.log.log_start, host.log.end_offset) == (9, 9)
    assert host.log.append(batch(2), 5, now_ms=0).base_offset == 9


# ── a full disk, and files beside the log that no longer fit ──────────────────────────────────────


def fill_up(host: Host, left: int = 0) -> None:
    host.disk.capacity = host.disk.capacity - host.directory.free_space() + left


def empty(host: Host) -> None:
    host.disk.capacity = 1 << 40


def test_a_flush_whose_epochs_do_not_fit_is_refused_and_moves_nothing() -> None:
    """A full disk ends no process; what was promised before stays promised."""
    host = filled(5)
    fill_up(host)
    with pytest.raises(DiskFull):
        host.log.flush()
    assert host.log.durable_offset == 0
    empty(host)
    host.log.flush()
    assert host.log.durable_offset == 10
    host.cut_power_and_open()
    assert host.log.end_offset == 10


def test_a_flush_whose_snapshots_do_not_fit_is_a_flush_all_the_same() -> None:
    """They only save time; they are written with the next flush."""
    host = filled(5, SMALL)
    host.log.flush()
    for sequence in range(5):
        host.log.append(batch(2, producer=7, sequence=2 * sequence), 2, now_ms=0)
    host.log.raise_log_start(1)
    host.log._epochs_saved = host.log.epochs.changes
    fill_up(host)
    host.log.flush()
    assert host.log.durable_offset == 20
    assert snapshot_offsets(host.directory) == []
    empty(host)
    host.log.flush()
    assert snapshot_offsets(host.directory) == [12]


def test_a_truncation_whose_recovery_point_does_not_fit_is_refused_and_cuts_nothing() -> None:
    host = filled(12)
    host.flush()
    before = contents(host.log)
    fill_up(host)
    with pytest.raises(DiskFull):
        host.log.truncate_to(6, now_ms=0)
    with pytest.raises(DiskFull):
        host.log.truncate_fully_and_start_at(100)
    assert (contents(host.log), host.log.recovery_point, host.keeper.halted) == (before, 24, [])
    empty(host)
    host.log.truncate_to(6, now_ms=0)
    assert host.log.end_offset == 6


def test_a_log_opens_on_a_full_disk_and_gives_all_that_it_has() -> None:
    for end in (Host.kill_and_open, Host.cut_power_and_open):
        host = filled(12, SMALL)
        host.flush()
        before = contents(host.log)
        host.log.append(batch(), 9, now_ms=0)
        fill_up(host)
        findings = end(host)
        assert contents(host.log).startswith(before)
        assert (findings.damage, host.keeper.halted) == ([], [])
        empty(host)
        host.flush()
        assert host.log.durable_offset == host.log.end_offset
        assert host.kill_and_open().problems == []


def test_a_stop_on_a_full_disk_loses_no_more_than_a_snapshot() -> None:
    host = filled(5)
    host.log.flush()
    fill_up(host)
    host.log.close()
    empty(host)
    host.disk.kill()
    assert host.open(clean=True).damage == []
    assert host.log.end_offset == 10


# ── batches that no client of ours makes ──────────────────────────────────────────────────────────


def test_a_batch_without_records_is_refused() -> None:
    """It would stand in the log without moving its end, and the next batch would have its offset."""
    host = filled(1)
    nothing = build(b"", last_offset_delta=-1, record_count=0, base_timestamp=0, max_timestamp=0)
    with pytest.raises((InvalidRecord, CorruptMessage)):
        host.log.append(nothing, 2, now_ms=0)
    stamp(nothing, 2, 2)
    with pytest.raises(CorruptMessage):
        host.log.append_as_follower(nothing, 2, now_ms=0)
    assert host.log.end_offset == 2


def thin(offset: int) -> bytearray:
    """What compaction may leave of very many records."""
    made = build(b"", last_offset_delta=2**31 - 1, record_count=0, base_timestamp=0, max_timestamp=0)
    stamp(made, offset, 0)
    return made


def test_offsets_that_an_index_cannot_hold_begin_a_segment() -> None:
    host = Host(config=LogConfig(index_interval_bytes=0))
    host.log.append_as_follower(b"".join(thin(number << 31) for number in range(4)), 0, now_ms=0)
    assert [segment.base_offset >> 31 for segment in host.log.segments] == [0, 1, 2, 3]
    host.kill_and_open()
    assert host.log.end_offset == 4 << 31


def test_offsets_that_do_not_fit_a_segment_end_the_log_before_them() -> None:
    host = Host(config=LogConfig(index_interval_bytes=0))
    host.log.append_as_follower(thin(0), 0, now_ms=0)
    host.log.segments[0].write(thin(1 << 31))
    assert host.kill_and_open().torn_bytes == len(thin(0))
    assert host.log.end_offset == 1 << 31


# ── a file that is not what it was ────────────────────────────────────────────────────────────────


def test_bytes_that_are_gone_are_damage_and_not_the_end() -> None:
    """A reader that got nothing would ask again for ever."""
    host = filled(12)
    one = len(batch(2))
    for cut in (5 * one + 70, 5 * one + 10, 5 * one):
        host.log.read(8, 1)  # where 10 begins is known now, without a look
        host.log.segments[0].file().truncate(cut)
        with pytest.raises(DamagedLog):
            host.log.read(10, 1000)
        assert offsets(host.log.read(0, 2 * one).data) == [0, 2]


def test_a_time_that_cannot_be_looked_up_is_a_storage_error() -> None:
    host = filled(5)
    host.disk.fail_reads(path(host), 0, 1000)
    with pytest.raises(StorageError, match="could not be read"):
        host.log.offset_for_time(1000)


def test_a_roll_that_fails_leaves_no_file_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller batch goes into the old segment, and the empty one would cut it off at the next start."""
    host = filled(6, SMALL)
    before = host.directory.names()

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(type(host.log.segments[0].file()), "truncate", broken)
    with pytest.raises(StorageError, match="could not begin"):
        host.log.append(batch(8), 2, now_ms=0)
    monkeypatch.undo()
    assert [name for name in host.directory.names() if name.endswith(".log")] == before[:1]
    host.log.append(batch(size=1), 2, now_ms=0)
    host.flush()
    assert host.kill_and_open().damage == []
    assert host.log.end_offset == 13


# ── taking turns ──────────────────────────────────────────────────────────────────────────────────


def test_a_walk_goes_on_when_its_segment_was_let_go_meanwhile() -> None:
    """Between two steps of an opening, another log may need the file."""
    host = Host(config=ONE_SEGMENT)
    for _ in range(5):
        host.log.append(batch(size=5000), 0, now_ms=0)
    segment, found = host.log.segments[0], []
    for _, header in segment.headers_from(0):
        found.append(header.base_offset)
        segment.let_go()
    assert found == [0, 1, 2, 3, 4]


def test_an_opening_goes_on_when_its_segments_are_let_go_meanwhile() -> None:
    host = filled(900)
    whole = contents(host.log)
    host.disk.kill()
    root = host.disk.open_directory("/data")
    keeper = Keeper(root)
    opening = Opening(root.directory("orders-0"), ONE_SEGMENT, keeper, Checkpointed(900))
    for step in opening.steps(now_ms=0):
        for segment in opening._segments:
            segment.let_go()
        if step is not None:
            step()
    assert contents(opening.log) == whole
    assert keeper.damage == []


# ── two histories, and a loss of power between them ───────────────────────────────────────────────


def test_what_a_full_disk_undid_never_meets_what_was_written_behind_it() -> None:
    """A write of several batches that failed had whole ones in it; cut back, they may come again."""
    first = placed(0, 1, 4, size=20)
    for seed in range(40):
        host = Host(seed)
        fill_up(host, len(first))
        with pytest.raises(DiskFull):
            host.log.append_as_follower(first + placed(4, 1), 1, now_ms=0)
        empty(host)
        assert host.log.probe()
        host.log.append(batch(4, size=1), 8, now_ms=0)
        host.log.append(batch(4, size=300), 8, now_ms=0)
        assert [segment.base_offset for segment in host.log.segments] == [0, 4]
        host.cut_power_and_open()
        epochs = [tuple(entry) for entry in host.log.epochs.entries]
        assert epochs in ([], [(1, 0)], [(8, 0)]), f"seed {seed}"
