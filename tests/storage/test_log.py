"""The log: what it takes, what it gives, and what it keeps true in between (docs/STORAGE.md, 10)."""

import errno

import pytest

from tests.storage.logs import SMALL, Halted, Host, batch, contents, first_header, offsets, placed
from tidelog.protocol.errors import (
    CorruptMessage,
    DamagedLog,
    DiskFull,
    DuplicateSequenceNumber,
    InvalidAppend,
    InvalidRecord,
    MessageTooLarge,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
    StorageError,
)
from tidelog.protocol.records import decode
from tidelog.storage.config import LogConfig
from tidelog.storage.log import Appended


@pytest.fixture
def host() -> Host:
    return Host()


def filled(count: int, **kwargs: int) -> Host:
    """A log of `count` batches of two records."""
    host = Host(**kwargs)  # type: ignore[arg-type]
    for number in range(count):
        host.log.append(batch(2, time=1000 + 10 * number), 0, now_ms=0)
    return host


# ── appending as leader ───────────────────────────────────────────────────────────────────────────


def test_a_batch_gets_the_next_offset_and_the_leaders_epoch(host: Host) -> None:
    assert host.log.append(batch(3), 5, now_ms=0) == Appended(0, 3, False)
    assert host.log.append(batch(2), 5, now_ms=0) == Appended(3, 5, False)
    header = first_header(host.log.read(3, 1000).data)
    assert (header.base_offset, header.leader_epoch) == (3, 5)


def test_writable_bytes_are_stamped_where_they_are(host: Host) -> None:
    host.log.append(batch(3), 0, now_ms=0)
    received = memoryview(batch(1))
    host.log.append(received, 7, now_ms=0)
    assert first_header(received).base_offset == 3


def test_bytes_that_cannot_be_written_are_copied(host: Host) -> None:
    host.log.append(batch(3), 0, now_ms=0)
    received = bytes(batch(1))
    host.log.append(received, 7, now_ms=0)
    assert first_header(received).base_offset == 0
    assert first_header(host.log.read(3, 1).data).base_offset == 3


def test_an_epoch_below_the_logs_latest_is_refused(host: Host) -> None:
    host.log.append(batch(), 5, now_ms=0)
    with pytest.raises(InvalidAppend, match="epoch 4 follows epoch 5"):
        host.log.append(batch(), 4, now_ms=0)


def test_a_damaged_batch_is_refused_and_changes_nothing(host: Host) -> None:
    damaged = batch()
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessage):
        host.log.append(damaged, 0, now_ms=0)
    assert host.log.end_offset == 0
    assert contents(host.log) == b""


def test_a_batch_above_the_limit_is_refused_by_its_size() -> None:
    host = Host(config=LogConfig(max_message_bytes=200))
    with pytest.raises(MessageTooLarge, match="200 is the most"):
        host.log.append(batch(size=200), 0, now_ms=0)


def test_two_batches_at_once_are_refused(host: Host) -> None:
    with pytest.raises(InvalidRecord, match="one batch is appended at a time"):
        host.log.append(batch() + batch(), 0, now_ms=0)


def test_a_retried_batch_gets_the_place_of_the_first(host: Host) -> None:
    host.log.append(batch(2, producer=7, sequence=0), 0, now_ms=0)
    host.log.append(batch(1, producer=7, sequence=2), 0, now_ms=0)
    assert host.log.append(batch(2, producer=7, sequence=0), 0, now_ms=0) == Appended(0, 2, True)
    assert host.log.end_offset == 3


def test_a_skipped_sequence_is_refused(host: Host) -> None:
    host.log.append(batch(2, producer=7, sequence=0), 0, now_ms=0)
    with pytest.raises(OutOfOrderSequenceNumber):
        host.log.append(batch(1, producer=7, sequence=5), 0, now_ms=0)
    assert host.log.end_offset == 2


# ── appending as follower ─────────────────────────────────────────────────────────────────────────


def test_a_followers_log_has_the_leaders_bytes(host: Host) -> None:
    leaders = filled(12).log
    host.log.append_as_follower(leaders.read(0, 500).data, 0, now_ms=0)
    host.log.append_as_follower(leaders.read(host.log.end_offset, 10_000).data, 0, now_ms=0)
    assert contents(host.log) == contents(leaders)[: len(contents(host.log))]


def test_many_batches_are_spread_over_segments(host: Host) -> None:
    leader = filled(40, config=LogConfig(segment_bytes=1 << 20)).log  # type: ignore[arg-type]
    host.log.append_as_follower(leader.read(0, 1 << 20).data, 0, now_ms=0)
    assert contents(host.log) == contents(leader)
    assert len(host.log.segments) > 5
    assert all(segment.size <= SMALL.segment_bytes for segment in host.log.segments)


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param(placed(4, 2), id="a gap"),
        pytest.param(placed(2, 2), id="an offset twice"),
        pytest.param(placed(3, 1), id="an older epoch"),
        pytest.param(placed(3, 9), id="an epoch above the leader's"),
        pytest.param(placed(3, 2) + placed(9, 2), id="a gap behind a good batch"),
    ],
)
def test_batches_that_do_not_continue_the_log_are_refused_together(host: Host, batches: bytearray) -> None:
    host.log.append_as_follower(placed(0, 2, 3), 2, now_ms=0)
    before = contents(host.log)
    with pytest.raises(InvalidAppend):
        host.log.append_as_follower(batches, 5, now_ms=0)
    assert contents(host.log) == before


def test_a_cut_batch_from_a_leader_is_refused_with_all_that_came_with_it(host: Host) -> None:
    with pytest.raises(CorruptMessage):
        host.log.append_as_follower((placed(0, 0) + placed(1, 0))[:-1], 0, now_ms=0)
    assert host.log.end_offset == 0


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def test_a_read_begins_with_the_batch_that_has_the_offset() -> None:
    log = filled(10).log
    for offset in range(20):
        assert offsets(log.read(offset, 1).data) == [offset // 2 * 2]


def test_a_read_gives_one_batch_at_least_and_the_limit_at_most() -> None:
    log = filled(5).log
    size = len(log.read(0, 1).data)
    assert offsets(log.read(0, 2 * size).data) == [0, 2]
    assert offsets(log.read(0, 3 * size - 1).data) == [0, 2]


def test_nothing_at_or_above_the_limit_of_visibility_is_read() -> None:
    log = filled(5).log
    assert offsets(log.read(0, 10_000, below=5).data) == [0, 2]
    assert offsets(log.read(0, 10_000, below=4).data) == [0, 2]
    assert offsets(log.read(4, 10_000, below=5).data) == []


def test_at_the_end_there_is_nothing_and_that_is_no_error() -> None:
    log = filled(5).log
    piece = log.read(10, 1000)
    assert (bytes(piece.data), piece.next_offset) == (b"", 10)


@pytest.mark.parametrize("offset", [-1, 3, 11])
def test_an_offset_outside_the_log_is_refused(offset: int) -> None:
    log = filled(5).log
    log.raise_log_start(4)
    with pytest.raises(OffsetOutOfRange, match=f"does not hold offset {offset}"):
        log.read(offset, 1000)


def test_every_offset_is_found_in_every_segment_when_files_take_turns() -> None:
    host = filled(60, max_open=2)
    assert len(host.log.segments) > 5
    for offset in (*range(120), *range(119, -1, -7)):
        assert offsets(host.log.read(offset, 1).data) == [offset // 2 * 2]
    assert len(host.keeper.open_segments) <= 2


def test_a_flipped_bit_is_reported_by_the_read_and_never_served() -> None:
    host = filled(5)
    size = len(batch(2))
    host.disk.rot(f"{host.path}/{host.log.segments[0].name}", 2 * size + 70, 3)
    assert offsets(host.log.read(0, 10_000).data) == [0, 2], "what stands before it is served"
    with pytest.raises(DamagedLog, match="at byte") as told:
        host.log.read(4, 10_000)
    assert told.value.base_offset == 0


def test_a_disk_that_cannot_be_read_is_a_storage_error() -> None:
    host = filled(5)
    host.disk.fail_reads(f"{host.path}/{host.log.segments[0].name}", 0, 1000)
    with pytest.raises(StorageError, match="could not be read"):
        host.log.read(0, 10_000)


# ── reading by time ───────────────────────────────────────────────────────────────────────────────


def test_the_first_record_of_a_time_is_found_wherever_it_is() -> None:
    log = filled(40).log
    for number in range(40):
        assert log.offset_for_time(1000 + 10 * number) == (2 * number, 1000 + 10 * number)
        assert log.offset_for_time(1001 + 10 * number) == (2 * number + 1, 1001 + 10 * number)
    assert log.offset_for_time(0) == (0, 1000)
    assert log.offset_for_time(5000) is None


def test_times_out_of_order_do_not_hide_the_first_record_of_a_time(host: Host) -> None:
    for time in (1000, 5000, 2000, 3000, 6000):
        host.log.append(batch(time=time), 0, now_ms=0)
    assert host.log.offset_for_time(2500) == (1, 5000)
    assert host.log.offset_for_time(5500) == (4, 6000)


def test_a_time_below_the_log_start_is_answered_from_there() -> None:
    log = filled(40).log
    log.raise_log_start(31)
    assert log.offset_for_time(0) == (31, 1151)


# ── rolling ───────────────────────────────────────────────────────────────────────────────────────


def test_a_segment_that_would_grow_past_its_size_is_closed() -> None:
    log = filled(40).log
    assert all(0 < segment.size <= SMALL.segment_bytes for segment in log.segments)
    bases = [segment.base_offset for segment in log.segments]
    assert bases[1:] == [segment.next_offset for segment in log.segments[:-1]]


def test_a_segment_whose_records_span_too_much_time_is_closed() -> None:
    host = Host(config=LogConfig(segment_ms=100))
    for time in (1000, 1100, 1101, 900):
        host.log.append(batch(time=time), 0, now_ms=0)
    assert [segment.base_offset for segment in host.log.segments] == [0, 2]


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(host: Host) -> None:
    host.log.append(batch(), 0, now_ms=0)
    host.log.append(batch(size=3000), 0, now_ms=0)
    host.log.append(batch(), 0, now_ms=0)
    assert [segment.base_offset for segment in host.log.segments] == [0, 1, 2]


# ── flushing ──────────────────────────────────────────────────────────────────────────────────────


def test_a_flush_covers_what_was_there_when_it_began(host: Host) -> None:
    host.log.append(batch(), 0, now_ms=0)
    flush = host.log.begin_flush()
    assert flush is not None
    host.log.append(batch(), 0, now_ms=0)
    flush.run()
    host.log.end_flush(flush)
    assert host.log.durable_offset == 1


def test_what_was_written_during_a_flush_and_closed_by_a_roll_is_in_the_next_flush() -> None:
    """An fsync covers only what was written before it began (I-32), of the segment that it found last too."""
    for seed in range(20):
        host = Host(seed)
        host.log.append(batch(2), 0, now_ms=0)
        flush = host.log.begin_flush()
        assert flush is not None
        flush.run()
        host.log.append(batch(2), 0, now_ms=0)
        host.log.append(batch(size=2000), 0, now_ms=0)  # into a segment of its own
        host.log.end_flush(flush)
        host.flush()
        host.cut_power_and_open()
        assert (host.log.end_offset, host.keeper.damage) == (5, [])


def test_nothing_is_cut_while_a_flush_is_under_way(host: Host) -> None:
    """What the flush reports would be of other bytes than those that then stand there."""
    host.log.append(batch(), 0, now_ms=0)
    flush = host.log.begin_flush()
    assert flush is not None
    assert host.log.is_flushing
    with pytest.raises(AssertionError, match="being flushed"):
        host.log.truncate_to(0, now_ms=0)
    with pytest.raises(AssertionError, match="being flushed"):
        host.log.truncate_fully_and_start_at(7)


def test_a_failed_flush_ends_the_process(host: Host) -> None:
    host.log.append(batch(), 0, now_ms=0)
    host.disk.fail_flush()
    with pytest.raises(Halted, match="flush"):
        host.log.flush()
    assert host.log.durable_offset == 0


def test_the_epochs_are_in_their_file_before_the_batches_count_as_durable(host: Host) -> None:
    host.log.append(batch(), 3, now_ms=0)
    assert not host.directory.exists("leader-epoch-checkpoint")
    host.flush()
    host.disk.power_cut()
    host.open()
    assert [tuple(entry) for entry in host.log.epochs.entries] == [(3, 0)]
    assert host.directory.exists("leader-epoch-checkpoint")


def test_a_flush_with_nothing_new_does_nothing(host: Host) -> None:
    host.log.append(batch(), 0, now_ms=0)
    host.flush()
    assert host.log.begin_flush() is None


# ── truncating ────────────────────────────────────────────────────────────────────────────────────


def test_truncation_cuts_whole_batches_wherever_it_falls() -> None:
    for cut in range(80, -1, -1):
        log = filled(40).log
        before = contents(log)
        log.truncate_to(cut, now_ms=0)
        assert log.end_offset == cut // 2 * 2
        assert before.startswith(contents(log))


def test_after_a_truncation_the_log_goes_on_from_there() -> None:
    host = filled(40)
    host.log.truncate_to(33, now_ms=0)
    host.log.append(batch(5, time=9000), 1, now_ms=0)
    assert host.log.read(32, 10_000).next_offset == 37
    assert host.log.offset_for_time(2000) == (32, 9000)
    assert [tuple(entry) for entry in host.log.epochs.entries] == [(0, 0), (1, 32)]


def test_a_truncated_batch_is_no_duplicate_when_it_comes_again(host: Host) -> None:
    """Else it would be acknowledged and be nowhere (I-9)."""
    host.log.append(batch(2, producer=7, sequence=0), 0, now_ms=0)
    host.log.append(batch(2, producer=7, sequence=2), 0, now_ms=0)
    host.log.truncate_to(2, now_ms=0)
    assert host.log.append(batch(2, producer=7, sequence=2), 1, now_ms=0) == Appended(2, 4, False)


def test_producers_survive_rolls_and_truncations_across_segments(host: Host) -> None:
    for sequence in range(0, 80, 2):
        host.log.append(batch(2, producer=7, sequence=sequence), 0, now_ms=0)
    host.flush()
    host.log.truncate_to(41, now_ms=0)
    assert host.log.append(batch(2, producer=7, sequence=38), 0, now_ms=0).duplicate
    with pytest.raises(DuplicateSequenceNumber):
        host.log.append(batch(2, producer=7, sequence=2), 0, now_ms=0)
    assert host.log.append(batch(2, producer=7, sequence=40), 0, now_ms=0) == Appended(40, 42, False)


def test_the_recovery_point_is_lowered_durably_before_anything_is_cut(host: Host) -> None:
    for _ in range(10):
        host.log.append(batch(), 0, now_ms=0)
    host.flush()
    trace = host.disk.record()
    host.log.truncate_to(4, now_ms=0)
    steps = [(operation.what, operation.path) for operation in trace]
    lowered = max(place for place, (_, path) in enumerate(steps) if "recovery-point" in path)
    cut = min(
        place for place, (what, path) in enumerate(steps) if what == "truncate" and path.endswith(".log")
    )
    assert lowered < cut


def test_a_log_that_starts_again_elsewhere_is_empty_there() -> None:
    host = filled(40)
    host.log.truncate_fully_and_start_at(500)
    assert (host.log.log_start, host.log.end_offset, host.log.durable_offset) == (500, 500, 500)
    assert host.log.epochs.entries == ()
    assert host.log.append(batch(2), 4, now_ms=0) == Appended(500, 502, False)


def test_raising_the_log_start_forgets_epochs_that_ended_before_it(host: Host) -> None:
    for epoch in (0, 1, 2):
        host.log.append(batch(5), epoch, now_ms=0)
    host.log.raise_log_start(7)
    assert [tuple(entry) for entry in host.log.epochs.entries] == [(1, 7), (2, 10)]


# ── a disk that is full or fails ──────────────────────────────────────────────────────────────────


def test_a_full_disk_refuses_the_batch_and_leaves_no_trace_of_it(host: Host) -> None:
    host.log.append(batch(producer=7, sequence=0), 0, now_ms=0)
    before = contents(host.log)
    host.disk.capacity = host.disk.capacity - host.directory.free_space() + 50
    with pytest.raises(DiskFull):
        host.log.append(batch(producer=7, sequence=1), 1, now_ms=0)
    assert (contents(host.log), host.log.end_offset) == (before, 1)
    assert host.directory.size_of(host.log.segments[0].name) == len(before)
    assert host.log.epochs.latest == 0


def test_a_full_disk_refuses_until_there_is_room_and_loses_nothing(host: Host) -> None:
    host.log.append(batch(producer=7, sequence=0), 0, now_ms=0)
    host.disk.capacity = host.disk.capacity - host.directory.free_space() + 50
    with pytest.raises(DiskFull):
        host.log.append(batch(producer=7, sequence=1), 0, now_ms=0)
    assert not host.log.probe()
    host.disk.capacity = 1 << 30
    with pytest.raises(DiskFull):
        host.log.append(batch(producer=7, sequence=1), 0, now_ms=0)
    assert host.log.probe()
    assert host.log.append(batch(producer=7, sequence=1), 0, now_ms=0) == Appended(1, 2, False)


def test_a_full_disk_at_a_roll_refuses_the_batch_and_nothing_else() -> None:
    host = filled(6)
    before, segments = contents(host.log), len(host.log.segments)
    host.disk.capacity = host.disk.capacity - host.directory.free_space()
    for _ in range(3):
        with pytest.raises(DiskFull):
            host.log.append(batch(8), 0, now_ms=0)
    host.disk.capacity = 1 << 30
    assert host.log.probe()
    host.log.append(batch(8), 0, now_ms=0)
    assert contents(host.log).startswith(before)
    assert len(host.log.segments) == segments + 1


def test_when_a_failed_append_cannot_be_cut_back_the_process_ends(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.log.append(batch(), 0, now_ms=0)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    segment = type(host.log.segments[0])
    monkeypatch.setattr(segment, "write", broken)
    monkeypatch.setattr(segment, "cut_back", broken)
    with pytest.raises(Halted, match="cut back"):
        host.log.append(batch(), 0, now_ms=0)


def test_an_offset_is_never_used_twice_after_a_failure_behind_the_write(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KAFKA-7866: the bytes are in the file, so the end has moved, and the log goes offline."""

    def broken(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(type(host.log.epochs), "assign", broken)
    with pytest.raises(StorageError, match="offline"):
        host.log.append(batch(), 0, now_ms=0)
    monkeypatch.undo()
    assert host.log.end_offset == 1
    with pytest.raises(StorageError, match="offline"):
        host.log.append(batch(), 0, now_ms=0)
    assert not host.log.probe()


def test_records_come_out_as_they_went_in(host: Host) -> None:
    host.log.append(batch(3, mark=b"x"), 0, now_ms=0)
    assert decode(host.log.read(0, 1000).data).values == [b"x" + bytes([65 + i]) * 40 for i in range(3)]


# ── what readers do not begin at any more ─────────────────────────────────────────────────────────────


def test_segments_that_lie_wholly_below_the_start_can_be_deleted() -> None:
    host = filled(30)
    log, before = host.log, len(host.log.segments)
    start = log.segments[2].base_offset + 1
    kept = contents(log)[log.segments[0].size + log.segments[1].size :]
    log.raise_log_start(start)
    assert log.delete_old_segments() == 2
    assert (len(log.segments), log.segments[0].base_offset) == (before - 2, start - 1)
    assert contents(log) == kept
    assert log.delete_old_segments() == 0


def test_a_log_without_its_old_segments_is_the_same_after_a_restart() -> None:
    host = filled(30)
    host.log.raise_log_start(host.log.segments[2].base_offset)
    host.log.flush()
    host.log.delete_old_segments()
    log, end, held = host.log, host.log.end_offset, contents(host.log)
    host.log.append(batch(), 1, now_ms=0)
    host.log.flush()
    host.kill_and_open()
    assert (host.log.log_start, host.log.end_offset) == (log.log_start, end + 1)
    assert contents(host.log).startswith(held)


def test_the_newest_segment_is_never_deleted() -> None:
    host = filled(30)
    host.log.raise_log_start(host.log.end_offset)
    host.log.delete_old_segments()
    assert [segment.next_offset for segment in host.log.segments] == [host.log.end_offset]
