"""The rules of the disk: what is durable, what may be trusted after an end, and whose directory it is (design 1, 7.4)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.broker import test_partition
from tests.broker.test_planted_bugs import a_follower
from tests.rules.replication import world
from tests.rules.rule import Catcher, Instead, Planted, Rule
from tests.simulation import test_full_disk
from tests.storage import (
    test_crashes,
    test_data_directories,
    test_data_directory,
    test_first_segment,
    test_identity,
    test_log,
    test_log_life,
    test_recovery,
    test_reserve,
)
from tests.storage.logs import Host
from tests.storage.test_reserve import Place
from tidelog.broker.partition import Partition
from tidelog.storage import crashes, reserve
from tidelog.storage.crashes import Life
from tidelog.storage.data_directories import DataDirectories
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.flushing import Flush
from tidelog.storage.io import disk
from tidelog.storage.log import Log
from tidelog.storage.recovery import Opening
from tidelog.storage.reserve import Reserve
from tidelog.storage.scan import Scan
from tidelog.storage.segment import Segment
from tidelog.testing.simulation.faults import Killed


@contextmanager
def directory() -> Iterator[Path]:
    """An empty directory of the real disk."""
    with TemporaryDirectory() as path:
        yield Path(path)


TWO_DISKS = (test_data_directories.two_disks,)
WRITTEN_AGAIN = Catcher(test_recovery.test_what_recovery_keeps_it_has_written_and_flushed_again, row=(0,))
A_ROLL = Catcher(test_log_life.test_a_segment_that_was_just_begun_is_there_after_its_flush)
ENDS = Catcher(test_crashes.test_the_worst_end_is_reported_until_a_registration_is_on_record, (directory,))
CHECKED = Instead(Scan, "__iter__", "check_body(piece, header, index)", "pass")

RULES: dict[str, Rule] = {
    # ── flushing
    "flush_covers_what_was_there": Rule("A flush covers what was written before it began.", "1.9, 7.4, I-32", Instead(Log, "end_flush", "self.durable_offset = flush.upto", "self.durable_offset = self.end_offset"), Catcher(test_log.test_a_flush_covers_what_was_there_when_it_began, (Host,)), ("the end taken after the flush",)),
    "failed_flush_ends_the_process": Rule("A failed flush ends the process.", "D12, 7.4, I-31", Instead(Flush, "run", "self.error = error", "pass"), Catcher(test_log.test_a_failed_flush_ends_the_process, (Host,)), ("D12",)),
    "failed_flush_is_not_tried_again": Rule("A failed flush is not tried again: the second one would succeed and prove nothing.", "D12, 7.4, I-31", Instead(Flush, "run", "self.error = error", "self.run()"), Catcher(test_log.test_a_failed_flush_ends_the_process, (Host,)), ("D12", "a failed flush tried again")),
    "names_are_flushed": Rule("A new file's name is flushed with it.", "7.4, I-30, KAFKA-3968", Planted(test_log_life.a_flush_that_forgets_the_names, (Flush, "run")), A_ROLL, ("names not flushed",)),
    "full_disk": Rule("A write that did not fit leaves no trace.", "7.4, I-33", Instead(Segment, "cut_back", "self.file().truncate(self.size)", "pass"), Catcher(test_log.test_a_full_disk_refuses_the_batch_and_leaves_no_trace_of_it, (Host,)), ("a part of a write, and a full disk",)),
    # ── several disks
    "a_failed_disk_is_closed": Rule("Nothing is written to a disk that has failed, and nothing of it served.", "1.9, ADR 0106, I-31", Instead(DataDirectories, "_fail", "data.give_up(StorageError(f\"{what}: {error.strerror or error}: the directory has failed\"))", "data.failure = StorageError(what)"), Catcher(test_data_directories.test_nothing_is_written_to_a_directory_that_has_failed, TWO_DISKS), ("D12",)),
    "a_failed_disk_is_lossy": Rule("What a failed flush may have cost is taken for lost by the next life.", "1.8, ADR 0106, I-4", Instead(DataDirectories, "_believe", "if data.life.directory_id in failed and data.life.believe(CrashKind.HOST)", "if data.life.directory_id in failed"), Catcher(test_data_directories.test_what_a_failed_flush_may_have_cost_is_taken_for_lost_by_the_next_life, TWO_DISKS), ("D12",)),
    "failures_are_kept": Rule("That a disk has failed is remembered until it is there again.", "1.8, ADR 0106, I-4", Instead(DataDirectories, "_believe", "failed - said", "frozenset()"), Catcher(test_data_directories.test_a_failure_is_remembered_until_the_disk_is_back, TWO_DISKS), ("D12",)),
    "the_later_copy_counts": Rule("Of two copies the one counts whose disk was there when the broker registered last.", "1.13, ADR 0106, I-37", Instead(DataDirectories, "_choose", "if standing(one) > standing(other)", "if standing(one) < standing(other)"), Catcher(test_data_directories.test_the_copy_counts_whose_directory_was_there_when_the_broker_registered_last, TWO_DISKS), ("D12",)),
    # ── a full disk
    "reserve_is_given_in_parts": Rule("The reserve is given in parts.", "ADR 0103", Instead(Reserve, "give", "self._whole // _PARTS", "self._whole"), Catcher(test_reserve.test_it_is_given_in_parts_and_all_of_it_at_last, (Place,)), ("a reserve",)),
    "reserve_is_not_for_records": Rule("What the reserve gives goes to no record of a partition.", "DECISIONS 9, ADR 0103", Instead(reserve._Other, "write_at", "self._reserve.is_out and", "False and"), Catcher(test_reserve.test_while_some_of_it_is_out_no_records_are_written_where_there_is_room, (Place,)), ("a reserve",)),
    "reserve_comes_back": Rule("What the reserve has given comes back when there is room.", "ADR 0103", Instead(Reserve, "take_back", "free >= more + wanted // _LITTLE", "free >= 3 * more"), Catcher(test_reserve.test_it_comes_back_when_there_is_room_for_it_and_a_little_more, (Place,)), ("a reserve",)),
    "standing_kept_on_a_full_disk": Rule("A broker that starts on a full disk keeps its standing.", "DECISIONS 9, ADR 0103, I-33", Instead(Reserve, "give", "if not self.held:", "if True:"), Catcher(test_full_disk.test_a_broker_that_starts_on_a_full_disk_keeps_its_standing, (world,)), ("a reserve",)),
    "votes_on_a_full_disk": Rule("A controller with a full disk votes and leads.", "DECISIONS 9, ADR 0103, I-45", Instead(Reserve, "give", "if not self.held:", "if True:"), Catcher(test_full_disk.test_elections_of_controllers_go_on_with_full_disks, (world,)), ("a reserve",)),
    # ── recovery
    "page_cache_is_not_trusted": Rule("Recovery writes again what it keeps.", "D12, 7.4, I-31", Planted(test_log_life.recovery_that_trusts_the_page_cache, (Opening, "_verify")), WRITTEN_AGAIN, ("D12", "the page cache trusted")),
    "recovery_flushes": Rule("Recovery flushes what it keeps before it says that it is durable.", "D12, 7.4, I-30", Instead(Opening, "_flush", "file.flush()", "pass"), WRITTEN_AGAIN, ("D12", "recovery not flushed")),
    "recovery_flushes_names": Rule("Recovery flushes the names of what it keeps, too.", "7.4, I-30, KAFKA-3968", Instead(Opening, "_flush", "self._directory.flush()", "pass"), WRITTEN_AGAIN, ("recovery not flushed", "names not flushed")),
    "torn_away_for_good": Rule("What recovery has cut off does not come back.", "1.11, 7.4, I-30", Instead(Opening, "_cut", "take_here(self._flush(segment))", "pass"), Catcher(test_recovery.test_segments_behind_a_torn_one_do_not_come_back_behind_what_is_written_in_its_place), ("recovery not flushed",)),
    "first_segment_missed": Rule("A log whose first segment is gone is damaged, whatever the end before.", "1.11, I-36", Instead(Opening, "_log_start", "said < self._said.recovery_point", "False"), Catcher(test_first_segment.test_a_first_segment_that_is_gone_is_missed, row=("killed", 0))),
    "log_starts_before_recovery_points": Rule("Where a log starts is durable before a recovery point above it is.", "1.11, I-36", Instead(DataDirectory, "_prepare_points", "self.write_log_starts()", "None"), Catcher(test_first_segment.test_what_was_deleted_is_not_missed_wherever_a_crash_comes_between, row=(Killed,))),
    "torn_tail": Rule("Recovery checks every byte of what was not durable.", "7.4, I-36", CHECKED, Catcher(test_recovery.test_a_flipped_bit_in_the_tail_ends_the_log_before_its_batch), ("a bit flipped above the recovery point",)),
    "torn_pages": Rule("What recovery keeps is a beginning of what was written, whichever pages survived.", "7.4, I-30", CHECKED, Catcher(test_recovery.test_pages_that_survive_a_loss_of_power_in_any_order_leave_a_beginning_of_what_was_written), ("any subset of pages",)),
    "set_aside_for_good": Rule("Damaged bytes are durable where they are set aside before the log is without them.", "7.4, I-36", Instead(Opening, "_copy", "kept.flush()", "pass"), Catcher(test_recovery.test_what_was_set_aside_is_there_after_a_loss_of_power), ("recovery not flushed",)),
    # ── cutting
    "truncation_flushed": Rule("A cut is durable before anything is written behind it.", "1.11, ADR 0072", Planted(test_log_life.truncation_that_a_loss_of_power_can_undo, (Segment, "cut")), Catcher(test_log_life.test_a_cut_that_a_loss_of_power_undoes_never_meets_what_was_written_behind_it), ("truncation_flushed",)),
    "checkpoints_lowered_first": Rule("What was cut off on purpose is not missed: the checkpoints say so first.", "1.11, ADR 0072", Instead(DataDirectory, "lower_recovery_point", "offset < self._high_watermarks.get(partition, 0)", "False"), Catcher(test_data_directory.test_what_was_cut_off_on_purpose_is_not_missed, row=(Killed,)), ("checkpoints_lowered_first",)),
    "flush_forgets_truncated": Rule("Nothing is cut while it is being flushed: the flush would speak of other bytes.", "1.9, ADR 0073", Instead(Partition, "carry_out", "self.log.is_in_use and", "False and"), Catcher(test_partition.test_nothing_is_cut_while_it_is_flushed, (a_follower,)), ("flush_forgets_truncated",)),
    # ── whose it is, and how the last life ended
    "one_process": Rule("One process at a time has the directory.", "7.4, I-52", Instead(disk._Directory, "lock", "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass"), Catcher(test_identity.test_a_second_process_is_refused_and_told_who_holds_the_directory, (directory,)), ("flock",)),
    "boot_id": Rule("A loss of power is never taken for a kill.", "D6, I-25", Instead(crashes, "classify", "running.place == here", "running.place.directory_id == here.directory_id"), ENDS, ("D6",)),
    "marker": Rule("A start is on record before any log is opened, so a kill is never taken for a loss of power.", "D6, I-24", Instead(Life, "begin", "written = life._write_if_it_fits(marker)", "written = True"), ENDS, ("D6",)),
    "worst_end": Rule("The worst end since the last registration is what counts.", "D6, I-25", Instead(Life, "begin", "max(last.worst, last_end)", "last_end"), ENDS, ("D6",)),
}  # fmt: skip
