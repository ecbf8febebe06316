"""Snapshots of the metadata log: with its tail, one is the image; without, it is whole or gone (design 4.13; I-34, I-47)."""

import errno
import shutil
from pathlib import Path
from random import Random
from typing import NoReturn

import pytest
from crc32c import crc32c

from tests.controller import golden_snapshot, snapshot_checks
from tests.controller.book import Book, partition
from tests.controller.snapshot_checks import (
    Member,
    content,
    fresh,
    in_epochs,
    opened,
    put,
    small_book,
    take,
    told,
)
from tidelog.controller import snapshot_file, snapshots
from tidelog.controller.facts import (
    NothingHappened,
    TopicCreated,
    encode_facts,
)
from tidelog.controller.image import Image
from tidelog.controller.snapshot_file import FACTS_AT_ONCE, SnapshotId, parse_name
from tidelog.controller.snapshots import SNAPSHOT_BYTES_MAX, SnapshotConfig, Snapshots, due
from tidelog.protocol.batch import stamp
from tidelog.protocol.errors import (
    CorruptSnapshot,
    DamagedLog,
    InvalidRequest,
    SnapshotNotFound,
    UnsupportedFormat,
)
from tidelog.protocol.types import NO_EPOCH
from tidelog.storage.epochs import EpochEnd, LeaderEpochs
from tidelog.storage.files import NoRoom, read_whole
from tidelog.storage.io import open_directory
from tidelog.testing.simulation.disk import SimulatedDisk

MIB = 1 << 20


def shelf(*wanted: tuple[int, int]) -> Snapshots:
    """Snapshots of these ends and epochs."""
    found: Snapshots = opened(snapshots, fresh())
    for end, epoch in wanted:
        image = Image()
        image.end_offset = end
        take(found, image, epoch)
    return found


# ── what a snapshot says ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(10))
def test_a_snapshot_and_the_tail_are_the_log_at_every_prefix_and_on_every_node(seed: int) -> None:
    snapshot_checks.check_every_prefix(snapshots, seed)


def test_a_snapshot_is_of_the_moment_in_which_it_began() -> None:
    snapshot_checks.check_an_image_may_go_on(snapshots)


def test_the_first_batch_behind_a_snapshot_tells_of_its_own_changes_only() -> None:
    book = small_book()
    found = opened(snapshots, fresh())
    image = found.load(take(found, book.image)).run()
    batch = encode_facts([NothingHappened()], 0)
    stamp(batch, image.end_offset, 1)
    assert image.replay(batch) == ((), (), (), ())


def test_an_image_without_facts_has_a_snapshot_too() -> None:
    found = shelf((5, 0))
    assert found.load(SnapshotId(5, 0)).run().to_bytes() == b"\x92\x05\x90"


def test_a_snapshot_is_written_in_batches_of_bounded_size() -> None:
    snapshot_checks.check_batches_are_bounded(snapshots)


def test_names_are_read_as_they_are_written() -> None:
    snapshot = SnapshotId(4711, 12)
    assert snapshot.name == "00000000000000004711-0000000012.checkpoint"
    assert parse_name(snapshot.name) == snapshot
    for other in (snapshot.name + ".part", snapshot.name[1:], "leader-epoch-checkpoint", "x" + snapshot.name):
        assert parse_name(other) is None


# ── files that are not whole ──────────────────────────────────────────────────────────────────────────


def test_torn_at_any_byte_or_one_bit_flipped_anywhere_it_gives_way_to_the_one_before() -> None:
    snapshot_checks.check_harm_is_noticed(snapshots)


def test_a_file_under_another_name_is_not_believed() -> None:
    snapshot_checks.check_a_name_is_believed_only_if_the_file_says_so(snapshots)


def test_a_crash_at_every_step_of_writing_leaves_whole_snapshots() -> None:
    snapshot_checks.check_a_crash_while_writing(snapshots)


def test_a_crash_at_every_step_of_installing_leaves_a_log_and_a_snapshot_that_fit() -> None:
    snapshot_checks.check_a_crash_while_installing(snapshots)


@pytest.mark.parametrize("seed", range(40))
def test_through_lives_with_power_cuts_and_rot_the_image_is_that_of_the_log(seed: int) -> None:
    snapshot_checks.check_a_life(snapshots, seed)


def test_what_a_crash_left_half_written_is_removed() -> None:
    directory = fresh()
    for name in (SnapshotId(7, 1).name + ending for ending in (".part", ".fetched.part")):
        put(directory, name, b"half")
    put(directory, "00000000000000000000.log", b"")
    assert opened(snapshots, directory).ids == ()
    assert directory.names() == ["00000000000000000000.log"]


def test_one_that_the_disk_does_not_give_is_kept_for_another_time() -> None:
    disk = SimulatedDisk(Random(1))
    snapshot = take(opened(snapshots, disk.open_directory()), small_book().image)
    disk.fail_reads(f"/data/{snapshot.name}", 20)
    found = opened(snapshots, disk.open_directory())
    assert (found.ids, found.newest, len(found.problems)) == ((), None, 1)
    assert disk.open_directory().exists(snapshot.name)


@pytest.mark.parametrize("where", ["the head", "a fact", "a batch"])
def test_what_a_newer_tidelog_wrote_is_refused_by_name_and_stays(where: str) -> None:
    book = small_book()
    snapshot = SnapshotId(book.image.end_offset, 1)
    newer = bytearray(content(snapshots, book.image))
    if where == "the head":
        newer[:2] = b"\0\2"
        newer[14:18] = crc32c(bytes(newer[:14])).to_bytes(4, "big")
    elif where == "a batch":
        newer[18 + 16] += 1
        newer[18 + 17 : 18 + 21] = crc32c(bytes(newer[18 : 18 + 17])).to_bytes(4, "big")
    else:
        newer = bytearray(b"".join(_with_an_unknown_fact(book.image)))
    directory = fresh()
    put(directory, snapshot.name, bytes(newer))
    with pytest.raises(UnsupportedFormat, match=snapshot.name):
        opened(snapshots, directory).load(snapshot).run()
    assert read_whole(directory, snapshot.name) == newer


def _with_an_unknown_fact(image: Image) -> list[bytes]:
    head, batch, _ = (bytes(piece) for piece in snapshot_file.pieces(image, 1))
    columns = snapshot_checks.repacked(batch, lambda value: value.replace(b"\x05", b"\x63", 1))
    foot = len(image.facts()).to_bytes(8, "big")
    return [head, columns, foot, crc32c(head + columns + foot).to_bytes(4, "big")]


@pytest.mark.parametrize("steps", range(6))
def test_a_full_disk_refuses_a_snapshot_and_nothing_has_changed(steps: int) -> None:
    disk = SimulatedDisk(Random(1))
    directory = disk.open_directory()
    book = small_book()
    found = opened(snapshots, directory)
    before = take(found, book.image)
    book.say(NothingHappened())
    writing = found.begin(book.image, 1)
    disk.capacity = disk.medium.used + 20 * steps
    with pytest.raises(NoRoom):
        writing.run()
    assert directory.names() == [before.name]
    disk.capacity = MIB
    assert take(found, book.image) == found.newest != before


def test_a_disk_without_room_for_another_file_refuses_a_snapshot_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found, book = shelf(), small_book()
    receiving = found.receiving(SnapshotId(book.image.end_offset, 1))

    def without_room(_: object, name: str, *, create: bool = False) -> NoReturn:
        raise OSError(errno.ENOSPC, f"planted: {name} {create}")

    monkeypatch.setattr(type(found.directory), "open", without_room)
    with pytest.raises(NoRoom):
        found.begin(book.image, 1).run()
    with pytest.raises(NoRoom):
        receiving.take(0, 30, bytes(10))
    receiving.abandon()
    assert found.directory.names() == []


def test_a_flush_that_fails_is_no_refusal() -> None:
    disk = SimulatedDisk(Random(1))
    found = opened(snapshots, disk.open_directory())
    disk.fail_flush()
    with pytest.raises(OSError, match="error") as raised:
        take(found, small_book().image)
    assert raised.value.errno == errno.EIO
    assert found.newest is None


# ── fetching one ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(60))
def test_a_snapshot_is_fetched_in_pieces_through_interruptions_and_spoilt_answers(seed: int) -> None:
    snapshot_checks.check_fetching(snapshots, seed)


def test_a_piece_is_read_up_to_the_end_of_the_file() -> None:
    found = shelf((5, 0))
    snapshot = SnapshotId(5, 0)
    whole = read_whole(found.directory, snapshot.name)
    assert found.read_at(snapshot, 0, MIB) == (30, whole)
    assert found.read_at(snapshot, 28, MIB) == (30, whole[28:])
    assert found.read_at(snapshot, 1, 2) == (30, whole[1:3])


@pytest.mark.parametrize(("position", "max_bytes"), [(-1, 5), (30, 5), (0, 0)])
def test_bytes_that_are_not_in_it_cannot_be_read(position: int, max_bytes: int) -> None:
    with pytest.raises(InvalidRequest):
        shelf((5, 0)).read_at(SnapshotId(5, 0), position, max_bytes)


def test_one_that_is_gone_is_said_to_be_gone() -> None:
    with pytest.raises(SnapshotNotFound):
        shelf((5, 0)).read_at(SnapshotId(5, 1), 0, 1)


@pytest.mark.parametrize(
    ("position", "size", "length"),
    [
        (0, 30, 5),
        (11, 30, 5),
        (10, 31, 5),
        (10, 30, 21),
        (10, 30, 0),
        (10, SNAPSHOT_BYTES_MAX + 1, 5),
    ],
)
def test_a_piece_that_does_not_fit_is_refused_and_the_fetch_begins_anew(
    position: int, size: int, length: int
) -> None:
    found = shelf()
    receiving = found.receiving(SnapshotId(5, 0))
    receiving.take(0, 30, bytes(10))
    with pytest.raises(CorruptSnapshot):
        receiving.take(position, size, bytes(length))
    assert (receiving.position, receiving.size, found.directory.names()) == (0, 0, [])


def test_a_piece_without_room_is_asked_for_again() -> None:
    disk = SimulatedDisk(Random(1))
    data = content(snapshots, small_book().image)
    found = opened(snapshots, disk.open_directory())
    receiving = found.receiving(SnapshotId(small_book().image.end_offset, 1))
    receiving.take(0, len(data), data[:100])
    disk.capacity = 150
    with pytest.raises(NoRoom):
        receiving.take(100, len(data), data[100:])
    disk.capacity = MIB
    assert receiving.position == 100
    receiving.take(100, len(data), data[100:])
    receiving.run()
    assert found.directory.names() == [receiving.snapshot.name]


def test_what_was_fetched_is_of_the_snapshot_that_was_asked_for() -> None:
    data = content(snapshots, small_book().image)
    found = shelf()
    receiving = found.receiving(SnapshotId(99, 1))
    receiving.take(0, len(data), data)
    with pytest.raises(CorruptSnapshot):
        receiving.run()
    assert found.directory.names() == []


@pytest.mark.parametrize("wrong", [(-1, 0), (5, -1), (5, 10**10), (10**20, 0)])
def test_what_cannot_be_a_snapshot_is_not_asked_for(wrong: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequest):
        shelf().receiving(SnapshotId(*wrong))


def test_one_that_rots_while_it_is_kept_is_found_when_it_is_examined_again() -> None:
    found = shelf((5, 0), (9, 1))
    for each in found.ids:
        snapshot_checks.run(found.examine(each))
    assert found.newest == (9, 1)
    put(found.directory, SnapshotId(9, 1).name, b"rot")
    snapshot_checks.run(found.examine(SnapshotId(9, 1)))
    assert (found.ids, found.directory.names()) == (((5, 0),), [SnapshotId(5, 0).name])


# ── when, which, and where the log starts ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("new_bytes", "since_ms", "expected"),
    [
        (20 * MIB, 0, True),
        (20 * MIB - 1, 3_599_999, False),
        (1, 3_600_000, True),
        (0, 1e12, False),
    ],
)
def test_one_is_due_after_so_many_bytes_or_after_an_hour_with_anything_new(
    new_bytes: int, since_ms: float, expected: bool
) -> None:
    assert due(new_bytes, since_ms, SnapshotConfig()) is expected


def test_without_an_interval_time_does_not_matter() -> None:
    assert not due(1, 1e12, SnapshotConfig(metadata_log_max_snapshot_interval_ms=0))


def test_the_log_starts_at_the_second_newest_once_that_is_durable() -> None:
    found = shelf((5, 0), (9, 1), (12, 1))
    assert [found.log_start(0, durable) for durable in (8, 9, 12)] == [0, 9, 9]
    assert found.log_start(10, 12) == 10
    assert shelf((5, 0)).log_start(0, 9) == 0


def test_the_two_newest_are_kept_and_the_one_that_ends_where_the_log_starts() -> None:
    found = shelf((5, 0), (9, 1), (12, 1), (20, 1))
    assert found.remove_old(5) == [(9, 1)]
    assert found.remove_old(12) == [(5, 0)]
    assert found.ids == ((12, 1), (20, 1))
    assert found.remove_old(20) == [(12, 1)]
    assert found.directory.names() == [SnapshotId(20, 1).name]


def test_a_log_that_was_cut_short_of_the_snapshot_begins_anew_at_its_end() -> None:
    found = shelf((9, 2))
    assert found.where_to_begin(0, 8, LeaderEpochs([(2, 0)])) == 9
    assert found.where_to_begin(0, 9, LeaderEpochs([(2, 0)])) is None
    assert found.where_to_begin(9, 9, LeaderEpochs()) is None


def test_a_log_with_another_batch_in_place_of_the_snapshots_last_begins_anew() -> None:
    assert shelf((9, 2)).where_to_begin(0, 20, LeaderEpochs([(1, 0), (3, 9)])) == 9


@pytest.mark.parametrize("found", [shelf(), shelf((5, 0))], ids=["none", "too old"])
def test_a_log_that_begins_behind_every_snapshot_is_damaged(found: Snapshots) -> None:
    with pytest.raises(DamagedLog, match="begins at offset 9"):
        found.where_to_begin(9, 20, LeaderEpochs([(1, 9)]))


def test_without_snapshots_a_log_begins_at_0() -> None:
    assert shelf().where_to_begin(0, 20, LeaderEpochs([(1, 0)])) is None


# ── what a log knows of what is below its start ───────────────────────────────────────────────────────


def test_an_empty_log_has_the_last_epoch_of_its_snapshot() -> None:
    found = shelf((9, 2))
    view = found.epochs(LeaderEpochs(), 9)
    assert (found.floor(9), view.latest) == (EpochEnd(2, 9), 2)
    assert view.end_offset_for(2, 9) == (2, 9)
    assert view.end_offset_for(7, 9) == (2, 9)


def test_an_older_epoch_than_the_floors_ends_below_the_logs_start() -> None:
    view = shelf((9, 2)).epochs(LeaderEpochs([(4, 9)]), 9)
    assert view.end_offset_for(1, 20) == (1, 8)
    assert [view.end_offset_for(epoch, 20) for epoch in (2, 3, 4)] == [(2, 9), (2, 9), (4, 20)]


def test_an_epoch_that_goes_on_behind_the_floor_is_one_epoch() -> None:
    view = shelf((9, 2)).epochs(LeaderEpochs([(2, 9), (4, 11)]), 9)
    assert [tuple(entry) for entry in view.entries] == [(2, 8), (4, 11)]


def test_without_a_floor_the_log_knows_what_it_knows() -> None:
    epochs = LeaderEpochs([(2, 9)])
    assert shelf((12, 2)).epochs(epochs, 9) is epochs


@pytest.mark.parametrize(
    ("fetch_offset", "last_epoch", "loads"),
    [
        (0, NO_EPOCH, True),  # KAFKA-15078: an empty follower
        (8, 2, True),  # below the log's start
        (9, 2, False),
        (9, 1, True),  # its last batch is not ours
        (9, 3, True),
        (11, 3, False),  # our epochs tell where it diverged, if it did
        (11, 1, True),  # below our start, and they cannot tell
    ],
)
def test_a_follower_loads_a_snapshot_where_the_log_cannot_tell_it_what_follows(
    fetch_offset: int, last_epoch: int, loads: bool
) -> None:
    found = shelf((9, 2), (12, 3))
    assert found.snapshot_for(fetch_offset, last_epoch, 9) == (found.newest if loads else None)


def test_a_log_from_0_tells_everybody_but_an_empty_follower() -> None:
    found = shelf((12, 3))
    assert [found.snapshot_for(offset, epoch, 0) for offset, epoch in ((0, NO_EPOCH), (5, 1))] == [
        (12, 3),
        None,
    ]
    assert shelf().snapshot_for(0, NO_EPOCH, 0) is None


def test_when_the_floor_has_rotted_nobody_at_the_logs_start_is_believed() -> None:
    found = shelf((12, 3))
    assert [found.snapshot_for(offset, 2, 9) for offset in (9, 10)] == [(12, 3), None]


def test_a_follower_that_loads_a_snapshot_goes_on_as_if_it_had_everything() -> None:
    log = told(5)
    batches = in_epochs(log.batches, lambda number: 1 + number // 9)
    leader, follower = Member(snapshots, fresh()), Member(snapshots, fresh())
    for upto in (15, 25):
        leader.append(batches[leader.log.end_offset and 15 : upto])
        leader.replay(leader.log.end_offset)
        leader.take()
    snapshot = leader.snapshots.newest
    assert leader.snapshots.snapshot_for(0, follower.epochs.latest, leader.log.log_start) == snapshot
    follower.install(snapshot, leader.snapshots.read_at(snapshot, 0, MIB).data)
    end, last_epoch = follower.log.end_offset, follower.epochs.latest
    assert (end, last_epoch) == (leader.log.end_offset, leader.epochs.latest) == snapshot
    assert leader.snapshots.snapshot_for(end, last_epoch, leader.log.log_start) is None
    follower.append(batches[25:])
    follower.replay(follower.log.end_offset)
    assert follower.image.to_bytes() == log.images[-1]


# ── what was written once ─────────────────────────────────────────────────────────────────────────────


def test_the_committed_snapshot_loads_with_all_that_was_in_it(tmp_path: Path) -> None:
    shutil.copytree(golden_snapshot.GOLDEN, tmp_path / "log")
    found: Snapshots = opened(snapshots, open_directory(str(tmp_path / "log")))
    assert found.newest is not None
    assert (found.newest.name, found.problems) == (golden_snapshot.NAME, [])
    image = found.load(found.newest).run()
    image.check()
    assert image.to_bytes() == golden_snapshot.image().to_bytes()


def test_what_is_written_today_loads_as_the_same_image() -> None:
    directory = fresh()
    put(directory, golden_snapshot.NAME, golden_snapshot.make())
    found: Snapshots = opened(snapshots, directory)
    assert found.load(found.ids[0]).run().to_bytes() == golden_snapshot.image().to_bytes()


# ── a large one ───────────────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_of_ten_thousand_partitions_comes_in_small_pieces() -> None:
    """Each step works on a bounded number of facts: how long one takes is measured by hand."""
    image = Book().image
    for topic in range(100):
        name = topic.to_bytes(16, "big")
        image.apply(TopicCreated(name, f"topic-{topic}"))
        for index in range(100):
            image.apply(partition((1, 2, 3), index=index, topic=name).created())
    found: Snapshots = opened(snapshots, fresh())
    writing = found.begin(image, 1)
    assert sum(1 for _ in writing.steps()) > 10_000 / FACTS_AT_ONCE
    found.add(writing)
    loading = found.load(writing.snapshot)
    assert sum(1 for _ in loading.steps()) > 10_000 / FACTS_AT_ONCE
    assert loading.image.to_bytes() == image.to_bytes()
