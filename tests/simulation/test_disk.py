"""What a simulated disk may lose and what never: replication/07-simulation 7.4, docs/adr/0040."""

import random
from collections.abc import Callable, Iterator

import pytest

from tidelog.storage.files import Directory, read_whole, write_whole
from tidelog.testing.simulation.crashes import every_crash
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.faults import WHENS, Crash, Killed, PowerCut, When
from tidelog.testing.simulation.medium import PAGE, SECTOR

SEEDS = range(200)

FLUSHED = b"flushed." * 100
WRITES = [bytes([letter]) * 1500 for letter in b"abcdefgh"]


def disks(*, by_page: bool = False) -> Iterator[tuple[SimulatedDisk, Directory]]:
    for seed in SEEDS:
        disk = SimulatedDisk(random.Random(seed), by_page=by_page)
        yield disk, disk.open_directory()


def write_durably(directory: Directory, name: str, content: bytes) -> None:
    file = directory.open(name, create=True)
    file.write_at(0, content)
    file.flush()
    directory.flush()


def after_power_cut(*, by_page: bool = False) -> Iterator[bytes]:
    """What is left of a flushed file to which eight writes were appended and not flushed."""
    for disk, directory in disks(by_page=by_page):
        write_durably(directory, "log", FLUSHED)
        log = directory.open("log")
        for write in WRITES:
            log.write_at(log.size(), write)
        disk.power_cut()
        yield read_whole(disk.open_directory(), "log")


# ── a power cut and the bytes of a file ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("by_page", [False, True])
def test_what_was_flushed_is_never_lost(by_page: bool) -> None:
    assert all(content.startswith(FLUSHED) for content in after_power_cut(by_page=by_page))


def test_what_was_not_flushed_survives_as_a_prefix_and_zeros() -> None:
    everything = FLUSHED + b"".join(WRITES)
    for content in after_power_cut():
        kept = content.rstrip(b"\0")
        assert everything.startswith(kept)
        assert len(content) <= len(everything)


def test_a_power_cut_does_everything_it_may() -> None:
    whole = len(FLUSHED) + sum(map(len, WRITES))
    kinds = set()
    for content in after_power_cut():
        kept = len(content.rstrip(b"\0"))
        kinds.add("nothing kept" if kept == len(FLUSHED) else "all kept" if kept == whole else "some kept")
        kinds.add("zeros behind" if kept < len(content) else "no zeros")
        kinds.add("zeros for several writes" if len(content) - kept > 1500 else "zeros for one at most")
        kinds.add("whole writes" if (kept - len(FLUSHED)) % 1500 == 0 else "torn write")
        kinds.add("at a sector" if kept % SECTOR == 0 else "at a byte")
    assert len(kinds) == 11


def test_pages_survive_in_any_order_if_so_wanted() -> None:
    everything = FLUSHED + b"".join(WRITES)
    with_holes = 0
    for content in after_power_cut(by_page=True):
        pages = [content[at : at + PAGE] for at in range(0, len(content), PAGE)]
        for number, page in enumerate(pages):
            assert everything[number * PAGE :].startswith(page.rstrip(b"\0"))
        with_holes += any(not page.strip(b"\0") for page in pages[:-1])
    assert with_holes > 10


def test_a_flush_covers_what_was_written_before_it_and_nothing_else() -> None:
    lost = 0
    for disk, directory in disks():
        write_durably(directory, "log", b"before")
        directory.open("log").write_at(6, b"behind")
        disk.power_cut()
        content = read_whole(disk.open_directory(), "log")
        assert content.startswith(b"before")
        lost += content != b"beforebehind"
    assert 0 < lost < len(SEEDS)


def test_a_flush_of_one_file_is_none_of_another() -> None:
    contents = set()
    for disk, directory in disks():
        write_durably(directory, "one", b"")
        write_durably(directory, "other", b"")
        directory.open("one").write_at(0, b"x")
        directory.open("other").flush()
        disk.power_cut()
        contents.add(read_whole(disk.open_directory(), "one"))
    assert contents == {b"", b"\0", b"x"}


def test_an_overwrite_that_was_not_flushed_is_old_or_new_byte_by_byte() -> None:
    contents = set()
    for disk, directory in disks():
        write_durably(directory, "file", b"old")
        directory.open("file").write_at(0, b"new")
        disk.power_cut()
        contents.add(read_whole(disk.open_directory(), "file"))
    assert contents == {b"old", b"nld", b"ned", b"new"}


def test_a_truncation_that_was_not_flushed_may_not_have_been() -> None:
    contents = set()
    for disk, directory in disks():
        write_durably(directory, "file", b"abcdef")
        directory.open("file").truncate(2)
        disk.power_cut()
        contents.add(read_whole(disk.open_directory(), "file"))
    assert contents == {b"abcdef", b"ab"}


@pytest.mark.parametrize("by_page", [False, True])
def test_a_write_behind_a_lost_truncation_is_lost_as_well(by_page: bool) -> None:
    contents = set()
    for disk, directory in disks(by_page=by_page):
        write_durably(directory, "file", b"abcdef")
        file = directory.open("file")
        file.truncate(2)
        file.write_at(2, b"XY")
        disk.power_cut()
        contents.add(read_whole(disk.open_directory(), "file"))
    assert {b"abcdef", b"ab", b"abXY"} <= contents <= {b"abcdef", b"ab", b"abX", b"abXY", b"ab\0\0", b"abX\0"}


def test_what_survived_one_power_cut_survives_the_next() -> None:
    for disk, directory in disks():
        write_durably(directory, "log", FLUSHED)
        directory.open("log").write_at(len(FLUSHED), WRITES[0])
        disk.power_cut()
        first = read_whole(disk.open_directory(), "log")
        disk.power_cut()
        assert read_whole(disk.open_directory(), "log") == first


# ── a power cut and the names of a directory ───────────────────────────────────────────────────────


def left_of(*acts: Callable[[Directory], object]) -> set[tuple[str, ...]]:
    """All that the names of the directory may be when the power goes after the last of the acts."""
    found = set()
    for disk, directory in disks():
        for act in acts:
            act(directory)
        disk.power_cut()
        found.add(tuple(disk.open_directory().names()))
    return found


def create(directory: Directory, *names: str) -> None:
    for name in names:
        directory.open(name, create=True).flush()


def test_a_flushed_file_is_lost_if_its_name_was_not_flushed() -> None:
    assert left_of(lambda d: create(d, "a")) == {(), ("a",)}


def test_a_flushed_name_is_never_lost() -> None:
    assert left_of(lambda d: create(d, "a"), lambda d: d.flush()) == {("a",)}


def test_names_survive_as_a_prefix_of_their_changes() -> None:
    assert left_of(lambda d: create(d, "a", "b", "c")) == {(), ("a",), ("a", "b"), ("a", "b", "c")}


def test_a_removed_name_may_come_back_until_the_directory_is_flushed() -> None:
    removed = left_of(lambda d: create(d, "a"), lambda d: d.flush(), lambda d: d.remove("a"))
    assert removed == {(), ("a",)}
    assert left_of(
        lambda d: create(d, "a"), lambda d: d.flush(), lambda d: d.remove("a"), lambda d: d.flush()
    ) == {()}


def test_a_file_that_comes_back_has_its_bytes() -> None:
    for disk, directory in disks():
        write_durably(directory, "a", FLUSHED)
        directory.remove("a")
        disk.power_cut()
        again = disk.open_directory()
        assert not again.exists("a") or read_whole(again, "a") == FLUSHED


def test_a_rename_is_lost_or_kept_and_never_half() -> None:
    assert left_of(lambda d: create(d, "a"), lambda d: d.flush(), lambda d: d.rename("a", "b")) == {
        ("a",),
        ("b",),
    }


def test_a_rename_over_a_file_leaves_one_of_the_two() -> None:
    contents = set()
    for disk, directory in disks():
        write_durably(directory, "file", b"old")
        write_durably(directory, "file.tmp", b"new")
        directory.rename("file.tmp", "file")
        disk.power_cut()
        contents.add(read_whole(disk.open_directory(), "file"))
    assert contents == {b"old", b"new"}


def test_a_new_directory_is_a_name_of_the_one_above() -> None:
    def act(directory: Directory) -> None:
        below = directory.directory("below", create=True)
        create(below, "a")
        below.flush()

    assert left_of(act) == {(), ("below",)}
    assert left_of(act, lambda d: d.flush()) == {("below",)}


def test_removing_a_directory_may_leave_any_part_of_it() -> None:
    found = set()
    for disk, directory in disks():
        create(directory.directory("below", create=True), "a", "b")
        directory.flush()
        directory.directory("below").flush()
        directory.remove_directory("below")
        disk.power_cut()
        again = disk.open_directory()
        found.add(tuple(again.directory("below").names()) if again.exists("below") else None)
    assert found == {("a", "b"), ("a",), ("b",), (), None}


# ── the death of a process ─────────────────────────────────────────────────────────────────────────


def test_a_killed_process_leaves_all_it_wrote(simulated_disk: SimulatedDisk) -> None:
    directory = simulated_disk.open_directory()
    directory.open("a", create=True).write_at(0, b"never flushed")
    directory.rename("a", "b")
    simulated_disk.kill()
    assert read_whole(simulated_disk.open_directory(), "b") == b"never flushed"


def test_what_a_killed_process_wrote_may_still_fall_to_a_power_cut() -> None:
    contents = set()
    for disk, directory in disks():
        write_durably(directory, "a", b"")
        directory.open("a").write_at(0, b"x")
        disk.kill()
        disk.power_cut()
        contents.add(read_whole(disk.open_directory(), "a"))
    assert contents == {b"", b"\0", b"x"}


@pytest.mark.parametrize("end", [SimulatedDisk.kill, SimulatedDisk.power_cut])
def test_handles_do_not_outlive_the_process(
    simulated_disk: SimulatedDisk, end: Callable[[SimulatedDisk], None]
) -> None:
    directory = simulated_disk.open_directory()
    file = directory.open("a", create=True)
    end(simulated_disk)
    simulated_disk.open_directory()
    for use in (
        file.size,
        file.flush,
        directory.names,
        directory.flush,
        lambda: directory.open("a", create=True),
    ):
        with pytest.raises(OSError, match="Bad file descriptor"):
            use()
    file.close()


@pytest.mark.parametrize("end", [SimulatedDisk.kill, SimulatedDisk.power_cut])
def test_locks_do_not_outlive_the_process(
    simulated_disk: SimulatedDisk, end: Callable[[SimulatedDisk], None]
) -> None:
    lock = simulated_disk.open_directory().lock(".lock", b"1")
    end(simulated_disk)
    simulated_disk.open_directory().lock(".lock", b"2")
    lock.release()
    with pytest.raises(BlockingIOError):
        simulated_disk.open_directory().lock(".lock", b"3")


def test_a_crash_gives_the_space_of_removed_files_back(simulated_disk: SimulatedDisk) -> None:
    directory = simulated_disk.open_directory()
    free = directory.free_space()
    directory.open("a", create=True).write_at(0, bytes(1000))
    directory.remove("a")
    assert directory.free_space() == free - 1000
    simulated_disk.kill()
    assert simulated_disk.open_directory().free_space() == free


# ── crashes by number ──────────────────────────────────────────────────────────────────────────────


def two_writes(directory: Directory, _state: object = None) -> None:
    file = directory.open("a", create=True)
    file.write_at(0, b"12345")
    file.write_at(5, b"67890")


def visible_after(nth: int, when: When) -> bytes | None:
    disk = SimulatedDisk(random.Random(3))
    disk.crash_at(nth, when=when, crash=Killed)
    with pytest.raises(Killed, match=f"{when} operation {nth}"):
        two_writes(disk.open_directory())
    directory = disk.open_directory()
    return read_whole(directory, "a") if directory.exists("a") else None


def test_a_crash_strikes_before_or_after_any_operation() -> None:
    assert [visible_after(nth, "before") for nth in (1, 2, 3)] == [None, b"", b"12345"]
    assert [visible_after(nth, "after") for nth in (1, 2, 3)] == [b"", b"12345", b"1234567890"]


def test_a_crash_within_a_write_leaves_a_part_of_it() -> None:
    torn = visible_after(3, "within")
    assert torn is not None
    assert b"1234567890".startswith(torn)
    assert 5 <= len(torn) < 10


def test_the_dead_stay_dead_until_the_disk_is_opened_again(simulated_disk: SimulatedDisk) -> None:
    directory = simulated_disk.open_directory()
    file = directory.open("a", create=True)
    simulated_disk.crash_at(1)
    for use in (lambda: file.write_at(0, b"x"), file.size, file.flush, directory.names, directory.flush):
        with pytest.raises(PowerCut):
            use()
    simulated_disk.open_directory()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.size()


def test_no_handler_of_exceptions_survives_a_crash() -> None:
    assert not issubclass(Crash, Exception)


def test_only_what_changes_something_is_numbered(simulated_disk: SimulatedDisk) -> None:
    directory = simulated_disk.open_directory()
    write_whole(directory, "a", b"x")
    before = simulated_disk.operations
    assert directory.names()
    assert directory.exists("a")
    assert read_whole(directory, "a")
    assert simulated_disk.operations == before == 6


def test_the_trace_says_what_was_done(simulated_disk: SimulatedDisk) -> None:
    trace = simulated_disk.record()
    write_whole(simulated_disk.open_directory(), "a", b"xyz")
    assert [str(operation).strip() for operation in trace] == [
        "1 create /data/a.tmp",
        "2 truncate /data/a.tmp 0",
        "3 write /data/a.tmp 0 3",
        "4 flush /data/a.tmp",
        "5 rename /data/a.tmp a",
        "6 flush directory /data",
    ]


def test_every_crash_is_enumerated_once() -> None:
    aftermaths = list(every_crash(lambda _: None, two_writes, seeds=[5]))
    assert len({aftermath.where for aftermath in aftermaths}) == 2 * (3 * 3 + 1)
    assert len(aftermaths) == 2 * 3 * (3 + 1)
    assert [aftermath.returned for aftermath in aftermaths].count(True) == 2 * len(WHENS)


def test_one_seed_is_one_disk() -> None:
    def history(seed: int) -> list[object]:
        disk = SimulatedDisk(random.Random(seed), by_page=seed % 2 == 0)
        trace = disk.record()
        for _ in range(5):
            directory = disk.open_directory()
            for name in ("a", "b", "c"):
                write_whole(directory, name, bytes(9000))
            directory.open("a").write_at(4000, WRITES[0], WRITES[1])
            create(directory.directory("below", create=True), "x", "y", "z")
            directory.remove_directory("below")
            disk.power_cut()
        directory = disk.open_directory()
        return [*trace, *(read_whole(directory, name) for name in directory.names() if name != "below")]

    assert all(history(seed) == history(seed) for seed in range(10))
    assert history(1) != history(3)


# ── flushes that fail ──────────────────────────────────────────────────────────────────────────────


def test_a_flush_fails_once(simulated_disk: SimulatedDisk) -> None:
    file = simulated_disk.open_directory().open("a", create=True)
    simulated_disk.fail_flush(2)
    file.flush()
    with pytest.raises(OSError, match="Input/output error"):
        file.flush()
    file.flush()


def test_a_failure_may_be_meant_for_one_file(simulated_disk: SimulatedDisk) -> None:
    directory = simulated_disk.open_directory()
    simulated_disk.fail_flush(suffix=".log")
    create(directory, "a.index")
    directory.flush()
    with pytest.raises(OSError, match="Input/output error"):
        create(directory, "a.log")


def test_a_flush_that_succeeds_after_a_failed_one_proves_nothing() -> None:
    for disk, directory in disks():
        write_durably(directory, "a", b"flushed")
        file = directory.open("a")
        file.write_at(7, b" lost")
        disk.fail_flush()
        with pytest.raises(OSError, match="Input/output error"):
            file.flush()
        file.flush()
        assert file.read_at(0, 99) == b"flushed lost"  # the page cache lies
        disk.power_cut()
        assert read_whole(disk.open_directory(), "a") == b"flushed"


def test_what_is_written_again_after_a_failed_flush_is_flushed() -> None:
    for disk, directory in disks():
        write_durably(directory, "a", b"flushed")
        directory.open("a").write_at(7, b" saved")
        disk.fail_flush()
        with pytest.raises(OSError, match="Input/output error"):
            directory.open("a").flush()
        disk.kill()
        again = disk.open_directory()
        write_durably(again, "a", read_whole(again, "a"))
        disk.power_cut()
        assert read_whole(disk.open_directory(), "a") == b"flushed saved"


def test_a_failed_flush_may_have_written_some_pages() -> None:
    kept = set()
    for disk, directory in disks():
        write_durably(directory, "a", bytes(3 * PAGE))
        file = directory.open("a")
        file.write_at(0, b"x" * (3 * PAGE))
        disk.fail_flush()
        with pytest.raises(OSError, match="Input/output error"):
            file.flush()
        stored = disk.stored("/data/a")
        kept.add(tuple(stored[page * PAGE] == ord("x") for page in range(3)))
    assert len(kept) == 7
    assert (True, True, True) not in kept


def after_failed_flush_of_names(disk: SimulatedDisk, directory: Directory) -> None:
    create(directory, "a")
    disk.fail_flush()
    with pytest.raises(OSError, match="Input/output error"):
        directory.flush()


def test_a_flush_of_names_proves_nothing_after_a_failed_one() -> None:
    found = set()
    for disk, directory in disks():
        after_failed_flush_of_names(disk, directory)
        directory.flush()
        disk.power_cut()
        found.add(tuple(disk.open_directory().names()))
    assert found == {(), ("a",)}


def test_the_next_process_can_flush_the_names_that_the_last_one_could_not() -> None:
    for disk, directory in disks():
        after_failed_flush_of_names(disk, directory)
        disk.kill()
        disk.open_directory().flush()
        disk.power_cut()
        assert list(disk.open_directory().names()) == ["a"]


# ── space, rot, bad sectors ────────────────────────────────────────────────────────────────────────


def test_a_full_disk_takes_a_part_of_a_write(simulated_disk: SimulatedDisk) -> None:
    directory = simulated_disk.open_directory()
    simulated_disk.capacity = 10
    file = directory.open("a", create=True)
    file.write_at(0, b"123456")
    with pytest.raises(OSError, match="No space left"):
        file.write_at(6, b"789", b"0abc")
    assert file.read_at(0, 99) == b"1234567890"
    assert directory.free_space() == 0


def test_a_full_disk_takes_what_needs_no_space(simulated_disk: SimulatedDisk) -> None:
    directory = simulated_disk.open_directory()
    file = directory.open("a", create=True)
    file.write_at(0, b"123456")
    simulated_disk.capacity = 3
    file.write_at(1, b"xyz")
    directory.rename("a", "b")
    assert file.read_at(0, 99) == b"1xyz56"
    assert directory.free_space() == 0


def test_what_is_cut_or_removed_gives_its_space_back(simulated_disk: SimulatedDisk) -> None:
    directory = simulated_disk.open_directory()
    simulated_disk.capacity = 100
    for name in ("a", "b", "c"):
        write_whole(directory, name, bytes(30))
    assert directory.free_space() == 10
    directory.remove("a")
    assert directory.free_space() == 40
    directory.rename("b", "c")
    assert directory.free_space() == 70
    directory.open("c").truncate(5)
    assert directory.free_space() == 95


def test_an_open_file_keeps_its_space_after_its_removal(simulated_disk: SimulatedDisk) -> None:
    directory = simulated_disk.open_directory()
    simulated_disk.capacity = 100
    file = directory.open("a", create=True)
    file.write_at(0, bytes(30))
    directory.remove("a")
    assert directory.free_space() == 70
    file.close()
    assert directory.free_space() == 100


def test_a_rotten_bit_stays_through_everything() -> None:
    for disk, directory in disks():
        write_durably(directory, "a", b"abc")
        disk.rot("/data/a", 1, bit=3)
        assert read_whole(directory, "a") == b"ajc"
        disk.power_cut()
        assert read_whole(disk.open_directory(), "a") == b"ajc"


def test_bytes_may_rot_before_they_are_flushed(simulated_disk: SimulatedDisk) -> None:
    directory = simulated_disk.open_directory()
    file = directory.open("a", create=True)
    file.write_at(0, b"abc")
    simulated_disk.rot("/data/a", 1, bit=3)
    file.flush()
    assert simulated_disk.open_directory().open("a").read_at(0, 3) == b"ajc"
    directory.flush()
    assert simulated_disk.stored("/data/a") == b"ajc"


def test_a_bad_sector_fails_the_reads_that_touch_it(simulated_disk: SimulatedDisk) -> None:
    directory = simulated_disk.open_directory()
    write_whole(directory, "a", b"0123456789")
    simulated_disk.fail_reads("/data/a", 4, 2)
    file = directory.open("a")
    assert (file.read_at(0, 4), file.read_at(6, 4)) == (b"0123", b"6789")
    for position, length in [(0, 5), (4, 1), (5, 3), (0, 10)]:
        with pytest.raises(OSError, match="Input/output error"):
            file.read_at(position, length)


def test_a_directory_may_be_a_copy(simulated_disk: SimulatedDisk) -> None:
    directory = simulated_disk.open_directory()
    write_whole(directory, "file", b"content")
    before = directory.whereabouts("file")
    simulated_disk.whereabouts += 1
    assert directory.whereabouts("file") == before + 1


def test_what_surely_survives_can_be_looked_at(simulated_disk: SimulatedDisk) -> None:
    directory = simulated_disk.open_directory()
    file = directory.open("a", create=True)
    file.write_at(0, b"abc")
    file.flush()
    with pytest.raises(FileNotFoundError):
        simulated_disk.stored("/data/a")
    directory.flush()
    file.write_at(3, b"def")
    assert simulated_disk.stored("/data/a") == b"abc"
