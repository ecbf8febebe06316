"""Producer state: the table in storage/producers.py, and snapshots (docs/STORAGE.md, 6; I-9, I-55)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from struct import pack

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.planted import assert_caught
from tidelog.protocol.batch import CONTROL, TRANSACTIONAL, BatchHeader
from tidelog.protocol.errors import (
    CorruptSnapshot,
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    InvalidRequest,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TidelogError,
    UnknownProducerId,
    UnsupportedFormat,
)
from tidelog.storage import producer_snapshots as snapshots
from tidelog.storage.files import Directory
from tidelog.storage.io import open_directory
from tidelog.storage.producers import APPEND, DUPLICATE_REACH, Append, Duplicate, Producers
from tidelog.testing.simulation.disk import SimulatedDisk

TOP = 2**31 - 1
DAY = 24 * 3600 * 1000


def batch(
    first: int,
    count: int = 1,
    *,
    epoch: int = 0,
    pid: int = 7,
    offset: int = 0,
    attributes: int = 0,
    timestamp: int = 0,
) -> BatchHeader:
    return BatchHeader(
        offset, 100, 0, 3, 0, 0, attributes, count - 1, timestamp, timestamp, pid, epoch, first, count
    )


def holding(*headers: BatchHeader, now_ms: int = 0) -> Producers:
    producers = Producers()
    for header in headers:
        producers.apply(header, now_ms)
    return producers


FIVE = tuple(batch(10 * i, 10, epoch=2, offset=100 + 10 * i, timestamp=i) for i in range(6))
"""Six batches at epoch 2, so that five of them are remembered: sequences 10 to 59, offsets 110 to 159."""


# ── the table, row by row ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("header", "answer"),
    [
        (batch(60, 10, epoch=1), InvalidProducerEpoch),
        (batch(0, 10, epoch=1), InvalidProducerEpoch),
        (batch(10, 10, epoch=2), Duplicate(110, 119, 1)),
        (batch(50, 10, epoch=2), Duplicate(150, 159, 5)),
        (batch(0, 10, epoch=2), DuplicateSequenceNumber),
        (batch(9, 1, epoch=2), DuplicateSequenceNumber),
        (batch(60, 1, epoch=2), APPEND),
        (batch(60, 10, epoch=2, attributes=TRANSACTIONAL), APPEND),
        (batch(61, 1, epoch=2), OutOfOrderSequenceNumber),
        (batch(59, 1, epoch=2), OutOfOrderSequenceNumber),
        (batch(0, 10, epoch=3), APPEND),
        (batch(1, 10, epoch=3), OutOfOrderSequenceNumber),
        (batch(60, 10, epoch=3), OutOfOrderSequenceNumber),
        (batch(0, 10, pid=8), APPEND),
        (batch(1, 10, pid=8), UnknownProducerId),
    ],
)
def test_each_row_of_the_table(header: BatchHeader, answer: object) -> None:
    assert answer_of(holding(*FIVE), header) == answer


def test_even_the_next_in_order_is_a_repetition_where_the_numbers_have_come_round() -> None:
    quarter = 2**29
    all_numbers = holding(*(batch(n * quarter, quarter, offset=9 + n * quarter) for n in range(4)))
    assert answer_of(all_numbers, batch(0, quarter)) == Duplicate(9, 8 + quarter, 0)
    assert answer_of(all_numbers, batch(0, 1)) == APPEND
    for before, count in ((DUPLICATE_REACH - 1, 1), (5, DUPLICATE_REACH - 5)):
        producers = holding(batch(0, before, offset=3))
        assert answer_of(producers, batch(before, count)) == APPEND
        assert answer_of(producers, batch(before, count + 1)) is DuplicateSequenceNumber


@pytest.mark.parametrize(
    ("first", "count"), [(10, 9), (10, 11), (11, 9), (15, 10), (5, 10), (50, 20), (5, 60)]
)
def test_a_partial_overlap_is_out_of_order_and_never_a_duplicate(first: int, count: int) -> None:
    with pytest.raises(OutOfOrderSequenceNumber, match=f"sends sequence {first}, 60 is next"):
        holding(*FIVE).check(batch(first, count, epoch=2))


def test_a_batch_outside_the_open_transaction_is_refused() -> None:
    producers = holding(batch(0, 3, offset=40, attributes=TRANSACTIONAL))
    assert answer_of(producers, batch(3, attributes=TRANSACTIONAL)) == APPEND
    with pytest.raises(InvalidTxnState, match="open since offset 40"):
        producers.check(batch(3))
    assert answer_of(producers, batch(0, epoch=1)) is InvalidTxnState


def test_a_retry_within_an_open_transaction_is_a_duplicate_first() -> None:
    first = batch(0, 3, offset=40, attributes=TRANSACTIONAL)
    assert holding(first).check(first) == Duplicate(40, 42, 0)


def test_sequence_numbers_wrap_from_their_top_to_0() -> None:
    """KAFKA-7692: the sequence behind 2^31 - 1 was taken for a gap."""
    producers = holding(batch(TOP - 1, 2, offset=5))
    assert answer_of(producers, batch(0)) == APPEND
    producers = holding(batch(TOP - 1, 4, offset=5))
    assert answer_of(producers, batch(2)) == APPEND
    assert answer_of(producers, batch(TOP - 1, 4)) == Duplicate(5, 8, 0)
    assert answer_of(producers, batch(0)) is OutOfOrderSequenceNumber
    assert answer_of(producers, batch(TOP - 2)) is DuplicateSequenceNumber


@pytest.mark.parametrize(
    ("below", "answer"),
    [
        (1, DuplicateSequenceNumber),
        (DUPLICATE_REACH, DuplicateSequenceNumber),
        (DUPLICATE_REACH + 1, OutOfOrderSequenceNumber),
    ],
)
def test_an_old_duplicate_is_known_by_its_distance_below_the_oldest(below: int, answer: object) -> None:
    for oldest in (0, 5, 2**30, TOP):
        assert answer_of(holding(batch(oldest)), batch((oldest - below) % 2**31)) is answer


def test_a_batch_without_a_producer_is_always_appended_and_never_remembered() -> None:
    producers = holding(batch(-1, pid=-1, epoch=-1))
    assert producers.check(batch(-1, pid=-1, epoch=-1)) == APPEND
    assert len(producers) == 0


@pytest.mark.parametrize(
    "header",
    [
        batch(-1),
        batch(0, epoch=-1),
        batch(0, count=0),
        batch(60, epoch=2, attributes=CONTROL | TRANSACTIONAL),
    ],
)
def test_a_batch_that_no_producer_sends_is_refused_and_not_taken_for_an_old_one(header: BatchHeader) -> None:
    with pytest.raises(InvalidRequest):
        holding(*FIVE).check(header)


def test_a_marker_ends_the_transaction_raises_the_epoch_and_begins_sequences_anew() -> None:
    """A marker: "producer state epoch := marker epoch, open transaction closed, expect 0"."""
    producers = holding(batch(0, 3, attributes=TRANSACTIONAL), batch(-1, epoch=1, attributes=CONTROL))
    assert answer_of(producers, batch(3, attributes=TRANSACTIONAL)) is InvalidProducerEpoch
    assert answer_of(producers, batch(3, epoch=1)) is OutOfOrderSequenceNumber
    assert answer_of(producers, batch(0, epoch=1)) == APPEND


def test_an_open_transaction_outlives_a_new_epoch_until_its_marker() -> None:
    producers = holding(
        batch(0, offset=3, attributes=TRANSACTIONAL), batch(0, epoch=1, offset=9, attributes=TRANSACTIONAL)
    )
    entry = producers.entry(7)
    assert entry is not None
    assert entry.transaction_start == 3


def test_a_jump_in_the_log_forgets_what_came_before_it() -> None:
    """A leader that had forgotten the producer accepted it, or compaction has removed what lay between."""
    producers = holding(batch(0, 10), batch(50, 10, offset=50))
    assert answer_of(producers, batch(20, 10)) is DuplicateSequenceNumber
    assert answer_of(producers, batch(60)) == APPEND


def test_replicated_batches_are_never_refused() -> None:
    producers = holding(batch(5), batch(9, epoch=3), batch(2, epoch=1, offset=8))
    assert answer_of(producers, batch(2, epoch=1)) == Duplicate(8, 8, 0)


# ── expiry ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_producer_is_forgotten_a_day_after_its_last_append() -> None:
    producers = holding(batch(0), now_ms=5)
    assert producers.expire(DAY + 4, DAY) == []
    assert producers.expire(DAY + 5, DAY) == [7]
    assert answer_of(producers, batch(1)) is UnknownProducerId


def test_a_marker_is_an_append_too() -> None:
    """KAFKA-9144: markers did not count, and their producers were forgotten early."""
    producers = holding(batch(0, attributes=TRANSACTIONAL), now_ms=0)
    producers.apply(batch(-1, epoch=1, attributes=CONTROL), DAY)
    assert producers.expire(DAY + 1, DAY) == []


def test_an_old_timestamp_in_a_record_ages_nobody() -> None:
    """Timestamps are the producer's: a backfill of last year's records is an append of today."""
    producers = holding(batch(0, timestamp=1), now_ms=400 * DAY)
    assert producers.expire(400 * DAY + 1, DAY) == []


def test_a_clock_that_went_back_forgets_nobody() -> None:
    producers = Producers.load(holding(batch(0), now_ms=400 * DAY).snapshot())
    assert producers.expire(0, DAY) == []


def test_an_open_transaction_is_never_forgotten() -> None:
    producers = holding(batch(0, attributes=TRANSACTIONAL))
    assert producers.expire(400 * DAY, DAY) == []


# ── against a naive model (I-55) ──────────────────────────────────────────────────────────────────────

Answer = Append | Duplicate | type[TidelogError]


def answer_of(producers: Producers, header: BatchHeader) -> Answer:
    """What `check` says, errors as their classes; it changes nothing."""
    before = producers.snapshot()
    try:
        return producers.check(header)
    except TidelogError as error:
        return type(error)
    finally:
        assert producers.snapshot() == before


@dataclass
class NaiveProducer:
    """Sequence numbers that never wrap, and every batch by its two ends."""

    epoch: int
    batches: list[tuple[int, int, BatchHeader]] = field(default_factory=list)
    in_transaction: bool = False

    def answer(self, header: BatchHeader) -> Answer:
        first, last = header.base_sequence, header.last_sequence
        if header.producer_epoch < self.epoch:
            return InvalidProducerEpoch
        expected = 0
        if header.producer_epoch == self.epoch and self.batches:
            for one, other, stored in self.batches[-5:]:
                if (one % 2**31, other % 2**31) == (first, last):
                    return Duplicate(stored.base_offset, stored.last_offset, stored.max_timestamp)
            oldest = self.batches[-5:][0][0]
            if any(oldest - 2**30 <= last + turn * 2**31 < oldest for turn in (-1, 0, 1, 2)):
                return DuplicateSequenceNumber
            expected = (self.batches[-1][1] + 1) % 2**31
        if first != expected:
            return OutOfOrderSequenceNumber
        if self.in_transaction and not header.is_transactional:
            return InvalidTxnState
        return APPEND

    def apply(self, header: BatchHeader) -> None:
        if header.producer_epoch != self.epoch:
            self.epoch, self.batches = header.producer_epoch, []
        if header.is_control:
            self.batches, self.in_transaction = [], False
            return
        first = self.batches[-1][1] + 1 if self.batches else header.base_sequence
        self.batches.append((first, first + header.last_offset_delta, header))
        self.in_transaction |= header.is_transactional


@dataclass(frozen=True)
class Send:
    """What a producer sends: a batch again, or one whose sequence counts from the next one or from 0."""

    pid: int
    retry: int = 0
    epoch: int = 0
    shift: int = 0
    from_zero: bool = False
    count: int = 1
    attributes: int = 0


SENDS = st.builds(
    Send,
    pid=st.sampled_from([7, 7, 7, 8]),
    retry=st.sampled_from([0, 0, 0, 0, 1, 2, 5, 6, 7]),
    epoch=st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1]),
    shift=st.sampled_from([0, 0, 0, 0, 1, -1, -2, -3, -4, -5, -6, -7, -8, -12, -(2**30)]),
    from_zero=st.sampled_from([False, False, False, True]),
    count=st.integers(1, 3),
    attributes=st.sampled_from([0, 0, 0, TRANSACTIONAL, CONTROL]),
)
RUNS = st.integers(0, 7).map(lambda length: [Send(7)] * length)
HISTORIES = st.tuples(
    st.sampled_from([0, 0, TOP - 5]),
    st.builds(lambda run, sends: run + sends, RUNS, st.lists(SENDS, max_size=20)),
)
History = tuple[int, list[Send]]


def header_of(send: Send, model: NaiveProducer | None, place: int) -> BatchHeader:
    if model and 0 < send.retry <= len(model.batches):
        return model.batches[-send.retry][2]
    first = 0 if send.from_zero or model is None or not model.batches else model.batches[-1][1] + 1
    return batch(
        -1 if send.attributes & CONTROL else (first + send.shift) % 2**31,
        send.count,
        epoch=max(0, send.epoch + (model.epoch if model else 0)),
        pid=send.pid,
        offset=place * 10,
        attributes=send.attributes,
        timestamp=place,
    )


def check_against_the_model(history: History, kind: Callable[[], Producers] = Producers) -> list[BatchHeader]:
    """Every answer is the model's; what both append is the log that comes out."""
    start, sends = history
    producers, naive, log = kind(), dict[int, NaiveProducer](), list[BatchHeader]()
    if start:  # a follower that joins a producer near the wrap
        log = [batch(start)]
        producers.apply(log[0], 0)
        naive[7] = NaiveProducer(0, [(start, start, log[0])])
    for send in sends:
        model = naive.get(send.pid)
        header = header_of(send, model, len(log))
        control = header.is_control
        if not control:
            unknown = UnknownProducerId if header.base_sequence else APPEND
            expected = model.answer(header) if model else unknown
            assert answer_of(producers, header) == expected
            if expected != APPEND:
                continue
        elif model and header.producer_epoch <= model.epoch:
            continue  # coordinators end a transaction with a higher epoch
        naive.setdefault(send.pid, NaiveProducer(header.producer_epoch)).apply(header)
        producers.apply(header, 0)
        log.append(header)
    return log


@given(HISTORIES)
def test_every_answer_is_the_naive_models(history: History) -> None:
    check_against_the_model(history)


class RemembersSix(Producers):
    def apply(self, header: BatchHeader, now_ms: int) -> None:
        entry = self.entry(header.producer_id)
        oldest = entry.batches[:1] if entry else []
        super().apply(header, now_ms)
        if entry and len(entry.batches) == 5:
            entry.batches[:0] = oldest


class RemembersOne(Producers):
    def apply(self, header: BatchHeader, now_ms: int) -> None:
        super().apply(header, now_ms)
        if (entry := self.entry(header.producer_id)) is not None:
            del entry.batches[:-1]


class KeepsTheOldEpochsBatches(Producers):
    def apply(self, header: BatchHeader, now_ms: int) -> None:
        entry = self.entry(header.producer_id)
        old = entry.batches[-4:] if entry and entry.epoch != header.producer_epoch else []
        super().apply(header, now_ms)
        if entry and entry.batches:
            entry.batches[:0] = old


class TakesAnOverlapForADuplicate(Producers):
    def check(self, header: BatchHeader) -> Append | Duplicate:
        entry = self.entry(header.producer_id)
        for stored in entry.batches if entry and entry.epoch == header.producer_epoch else ():
            if stored.first_sequence <= header.base_sequence <= stored.last_sequence:
                return Duplicate(stored.first_offset, stored.last_offset, stored.timestamp)
        return super().check(header)


class NeverWraps(Producers):
    def check(self, header: BatchHeader) -> Append | Duplicate:
        entry = self.entry(header.producer_id)
        if entry and entry.batches and header.base_sequence < entry.batches[-1].first_sequence - 2**30:
            raise OutOfOrderSequenceNumber
        return super().check(header)


class NeverClosesTransactions(Producers):
    def apply(self, header: BatchHeader, now_ms: int) -> None:
        entry = self.entry(header.producer_id)
        start = entry.transaction_start if entry else -1
        super().apply(header, now_ms)
        if entry and header.is_control:
            entry.transaction_start = start


BUGS = [
    RemembersSix,
    RemembersOne,
    KeepsTheOldEpochsBatches,
    TakesAnOverlapForADuplicate,
    NeverWraps,
    NeverClosesTransactions,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_producer_state_with_other_answers_is_caught(bug: type[Producers]) -> None:
    assert_caught(lambda history: check_against_the_model(history, bug), HISTORIES)


# ── snapshots: replayed, never guessed (I-9) ──────────────────────────────────────────────────────────


def check_snapshots(history: History, kind: type[Producers] = Producers) -> None:
    """A snapshot at every prefix, and the rest replayed, equal the whole replayed from zero."""
    log = check_against_the_model(history)
    truth = [holding(*log[:n]) for n in range(len(log) + 1)]
    producers = kind()
    for n in range(len(log) + 1):
        restarted = Producers.load(producers.snapshot())
        for m in range(n, len(log) + 1):
            assert restarted == truth[m]
            if m < len(log):
                restarted.apply(log[m], 0)
        if n < len(log):
            producers.apply(log[n], 0)


@given(HISTORIES)
def test_a_snapshot_and_a_replay_equal_a_replay_from_zero_at_every_prefix(history: History) -> None:
    check_snapshots(history)


class SavesTheLastBatchOnly(Producers):
    """Kafka's way: a retry of the fourth-last batch gets another answer after a restart."""

    def snapshot(self) -> bytes:
        for entry in self._entries.values():
            entry.batches[:-1] = []
        return super().snapshot()


class SavesNoTransaction(Producers):
    def snapshot(self) -> bytes:
        for entry in self._entries.values():
            entry.transaction_start = -1
        return super().snapshot()


@pytest.mark.parametrize("bug", [SavesTheLastBatchOnly, SavesNoTransaction])
def test_a_snapshot_that_leaves_something_out_is_caught(bug: type[Producers]) -> None:
    assert_caught(partial(check_snapshots, kind=bug), HISTORIES)


def test_everything_that_is_known_is_in_the_snapshot() -> None:
    producers = holding(*FIVE, batch(0, pid=9, offset=70, attributes=TRANSACTIONAL), now_ms=1234)
    entry = producers.entry(9)
    assert entry is not None
    entry.coordinator_epoch = 5
    assert Producers.load(producers.snapshot()) == producers


def test_any_changed_bit_and_any_cut_of_a_snapshot_is_noticed() -> None:
    whole = holding(*FIVE, batch(0, pid=9)).snapshot()
    damaged = [whole[:n] for n in range(len(whole))] + [whole + b"\0"]
    for at in range(len(whole)):
        damaged += [whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for bit in range(8)]
    for content in damaged:
        with pytest.raises(CorruptSnapshot):
            Producers.load(content)


def test_a_snapshot_of_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFormat, match="version 1, this tidelog reads 0"):
        Producers.load(sealed(1, b"whatever comes"))


def test_a_snapshot_that_is_no_producer_state_is_corrupt_though_its_checksum_is_right() -> None:
    for content in (b"", b"\xc1", msgspec.msgpack.encode({"entries": []}), msgspec.msgpack.encode([[1, 2]])):
        with pytest.raises(CorruptSnapshot, match="malformed"):
            Producers.load(sealed(0, content))


def sealed(version: int, payload: bytes) -> bytes:
    return pack(">HI", version, crc32c(payload, crc32c(pack(">H", version)))) + payload


# ── the files ─────────────────────────────────────────────────────────────────────────────────────────


def saved(path: Path, *offsets: int) -> Directory:
    directory = open_directory(str(path))
    for offset in offsets:
        snapshots.save(directory, holding(batch(offset, offset=offset)), offset)
    return directory


def test_a_snapshot_is_named_by_the_offset_behind_its_last_batch(tmp_path: Path) -> None:
    assert saved(tmp_path, 12345).names() == ["00000000000000012345.snapshot"]


@pytest.mark.parametrize(
    ("offset", "log_start", "found"),
    [(30, 0, 30), (29, 0, 20), (99, 0, 30), (20, 20, 20), (20, 21, 21), (9, 0, 0), (9, 5, 5)],
)
def test_the_newest_snapshot_between_log_start_and_the_offset_is_loaded(
    tmp_path: Path, offset: int, log_start: int, found: int
) -> None:
    loaded = snapshots.load_at(saved(tmp_path, 10, 20, 30), offset, log_start)
    assert (loaded.offset, loaded.problems) == (found, ())
    assert loaded.producers == (holding(batch(found, offset=found)) if found in (10, 20, 30) else Producers())


def test_a_rotten_snapshot_is_reported_and_removed_and_an_older_one_is_used(tmp_path: Path) -> None:
    directory = saved(tmp_path, 10, 20, 30)
    (tmp_path / snapshots.snapshot_name(30)).write_bytes(b"")
    loaded = snapshots.load_at(directory, 40, 0)
    assert loaded.offset == 20
    assert [f"{tmp_path}/{snapshots.snapshot_name(30)}: 0 bytes" in str(p) for p in loaded.problems] == [True]
    assert snapshots.snapshot_offsets(directory) == [10, 20]


def test_a_directory_of_rotten_snapshots_begins_with_nothing_at_the_log_start(tmp_path: Path) -> None:
    directory = saved(tmp_path, 10, 20)
    for name in directory.names():
        (tmp_path / name).write_bytes(b"\0" * 50)
    loaded = snapshots.load_at(directory, 40, 5)
    assert (len(loaded.producers), loaded.offset, len(loaded.problems)) == (0, 5, 2)


def test_a_snapshot_from_a_newer_tidelog_stops_the_start_and_stays(tmp_path: Path) -> None:
    directory = saved(tmp_path, 10, 20)
    (tmp_path / snapshots.snapshot_name(20)).write_bytes(sealed(1, b""))
    with pytest.raises(UnsupportedFormat, match=r"00020\.snapshot: .*version 1"):
        snapshots.load_at(directory, 40, 0)
    assert snapshots.snapshot_offsets(directory) == [10, 20]


def test_snapshots_above_the_log_end_are_removed(tmp_path: Path) -> None:
    directory = saved(tmp_path, 10, 20, 30)
    assert snapshots.remove_above(directory, 20) == [30]
    assert snapshots.snapshot_offsets(directory) == [10, 20]


def test_one_snapshot_per_segment_and_the_newest_are_kept(tmp_path: Path) -> None:
    directory = saved(tmp_path, 10, 15, 20, 25, 30)
    assert snapshots.remove_unneeded(directory, [0, 10, 20]) == [15, 25]
    assert snapshots.snapshot_offsets(directory) == [10, 20, 30]


Remove = Callable[[Directory], object]


def check_that_none_comes_back(seed: int, remove: Remove = lambda d: snapshots.remove_above(d, 20)) -> None:
    disk = SimulatedDisk(Random(seed))
    directory = disk.open_directory()
    for offset in (10, 20, 30):
        snapshots.save(directory, Producers(), offset)
    remove(directory)
    disk.power_cut()
    assert snapshots.snapshot_offsets(disk.open_directory()) == [10, 20]


@given(st.integers(0, 2**32))
def test_a_snapshot_of_batches_that_the_log_has_lost_never_comes_back(seed: int) -> None:
    """The log may have grown past it again with other batches: a retry of a lost one would be dropped (I-9)."""
    check_that_none_comes_back(seed)


def test_a_removal_whose_names_are_not_flushed_is_caught() -> None:
    def unflushed(directory: Directory) -> None:
        directory.remove(snapshots.snapshot_name(30))

    assert_caught(partial(check_that_none_comes_back, remove=unflushed), st.integers(0, 2**32))


def test_other_names_are_nobodys_snapshots(tmp_path: Path) -> None:
    for name in ("7.snapshot", "0000000000000000000x.snapshot", "00000000000000000007.log", ".snapshot"):
        (tmp_path / name).touch()
    assert snapshots.snapshot_offsets(open_directory(str(tmp_path))) == []
