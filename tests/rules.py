"""The protocol's rules, each with the mutation that undoes it and the sentence that then fails.

A mutation rewrites one clause of the product from outside; a clause that is no longer there fails the test.
"""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.broker import test_fetch, test_leadership, test_produce, test_proposals
from tests.broker.test_planted_bugs import led
from tests.controller import changes, test_alterations, test_election, test_liveness
from tests.replication import test_followership
from tests.storage import test_log, test_log_life, test_recovery
from tests.storage.logs import Host
from tidelog.broker import partition as partitions
from tidelog.broker.leadership import Leadership
from tidelog.broker.replicas import Replicas
from tidelog.controller import alterations, election, liveness
from tidelog.controller.alterations import Alterations
from tidelog.protocol.errors import FencedLeaderEpoch
from tidelog.replication.followership import Asked, Followership
from tidelog.storage import scan
from tidelog.storage.flushing import Flush
from tidelog.storage.log import Log
from tidelog.storage.segment import Segment

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Instead:
    """A function of the product with one clause of it otherwise."""

    owner: Any
    name: str
    right: str
    wrong: str

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        found = inspect.getattr_static(self.owner, self.name)
        function = (
            found.fget if isinstance(found, property) else inspect.unwrap(getattr(self.owner, self.name))
        )
        assert function is not None
        source = inspect.getsource(function)
        assert source.count(self.right) == 1, (
            f"{self.name} has {self.right!r} {source.count(self.right)} times"
        )
        made: dict[str, Any] = {}
        code = textwrap.dedent(source.replace(self.right, self.wrong))
        exec(compile(code, f"<{self.name}>", "exec"), function.__globals__, made)  # noqa: S102 -- our own source
        patch.setattr(self.owner, self.name, made[function.__name__])


class Rule(NamedTuple):
    """A rule, where it is cited, what undoes it and what notices."""

    says: str
    cites: str
    plant: Plant
    catcher: Callable[[], object]


def case(cases: Any, sentence: str) -> Any:
    """The row of a table of sentences."""
    (found,) = (one for one in cases if one.sentence == sentence)
    return found


def changed(sentence: str) -> Callable[[], object]:
    return partial(changes.check, election, case(changes.CASES, sentence))


def altered(sentence: str) -> Callable[[], object]:
    return partial(test_alterations.check, alterations, case(test_alterations.CASES, sentence))


def first_check(**ask: Any) -> None:
    test_fetch.test_a_follower_is_refused_at_once_by_the_first_check_that_fails(
        led(), dict(ask), FencedLeaderEpoch
    )


L, F = test_leadership, test_followership
FAILED_FLUSH = test_recovery.test_what_recovery_keeps_it_has_written_and_flushed_again
RULES: dict[str, Rule] = {
    "hwm_gated_by_min_isr": Rule("The high watermark moves only while the ISR has min_isr members.", "C-model, D5", Instead(Leadership, "_advance", "len(state.isr) < state.min_isr", "False"), L.test_nothing_is_committed_while_the_isr_is_smaller_than_min_isr),
    "hwm_capped_by_end": Rule("A follower's high watermark stays within its log.", "C-model, 3.3", Instead(Followership, "new_high_watermark", "min(max(told.high_watermark, told.log_start), log.end_offset)", "told.high_watermark"), partial(F.test_the_high_watermark_only_grows_and_stays_within_the_log, 95, 80)),
    "lossy_leaves_elr": Rule("Who lost data leaves the ELR.", "C-model, 4.5", Instead(election, "_guaranteed", "tuple(r for r in complete if r != lost)", "tuple(complete)"), changed("who lost data leaves the elr")),
    "a_host_crash_is_lossy": Rule("The death of the machine costs an asynchronous log its standing.", "D6", Instead(liveness, "loss_of", "{CrashKind.CLEAN, CrashKind.PROCESS}", "{CrashKind.CLEAN, CrashKind.PROCESS, CrashKind.HOST}"), partial(test_liveness.what_the_last_end_cost, liveness, "the death of the machine")),
    "elr_kept": Rule("The last replica standing leaves the ISR for the ELR.", "C-model, 4.7, D5", Instead(election, "leave", "(r for r in p.isr if r != broker)", "(r for r in p.isr if r != broker or len(p.isr) == 1)"), test_election.test_who_is_being_fenced_is_not_elected_from_the_elr_that_it_enters),
    "divergence_checked": Rule("The follower's last epoch must end where the leader's does.", "C-model, 2.6", Instead(partitions, "check_place", "found.epoch < last_fetched_epoch or found.end < fetch_offset", "False"), lambda: test_fetch.test_logs_that_part_are_told_at_once_and_nothing_is_noted(led())),
    "hwm_not_from_divergence": Rule("An answer that says where logs part moves no high watermark.", "C-model, 3.3", Instead(Followership, "on_fetched", "self._on_diverging(parting, answer.log_start, log)", "Append(answer.high_watermark, answer.log_start)"), partial(F.test_the_log_is_cut_where_the_epochs_part_and_nothing_else_of_the_answer_counts, 6, 60, 60)),
    "min_isr_in_record": Rule("Another min_isr is another record of the partition.", "C-model, D4", Instead(election, "change", "min(min_isr or p.min_isr, max(1", "min(p.min_isr, max(1"), changed("less to be in sync empties the elr")),
    "maximal_isr": Rule("A proposed member counts until the controller has decided.", "C-model, 2.1", Instead(Leadership, "_advance", "or replica in pending", ""), L.test_a_proposed_member_counts_before_the_controller_has_agreed),
    "partition_epoch_cas": Rule("A proposal changes only the state that it names.", "C-model, 4.7", Instead(Alterations, "_check_epochs", "alter.partition_epoch < p.partition_epoch", "False"), altered("an old state")),
    "fenced_not_eligible": Rule("A fenced broker joins no ISR.", "C-model, 2.7", Instead(Leadership, "eligible", "self._around.live_epoch", "self._around.registered_epoch"), L.test_who_is_fenced_is_not_until_the_image_says_otherwise),
    "leso_for_expansion": Rule("Who joins has reached where this leader epoch began.", "C-model, 2.8", Instead(Leadership, "_maybe_expand", "max(self.high_watermark, self._start)", "self.high_watermark"), L.test_who_lacks_what_there_was_when_the_epoch_began_is_not),
    "stale_answers_dropped": Rule("An answer counts for the fetch that it answers.", "C-model, 3.2", Instead(Followership, "is_current", "asked == (self.leading.leader_epoch, log.end_offset, log.epochs.latest)", "asked.fetch_offset == log.end_offset"), partial(F.test_an_answer_to_another_fetch_says_nothing, Asked(6, 80, 6))),
    "elr_cleared_after_election": Rule("An election that fills the ISR empties the ELR.", "C-model, 4.7", Instead(election, "change", "len(isr) >= least", "len(tuple(target_isr)) >= least"), changed("the election of the elr may fill the isr")),
    "broker_epochs_in_alter": Rule("Who joins is the process that fetched.", "C-model, 2.10", Instead(alterations, "_eligible", "member.broker_epoch == image.live_epoch(member.broker_id)", "True"), altered("somebody registered anew")),
    "alter_seq_at_the_leader": Rule("Every sending has a number of its own.", "C-model, D3", Instead(Leadership, "alteration", "self._alter_seq += 1", "self._alter_seq = 1"), test_proposals.test_every_sending_has_a_number_of_its_own),
    "alter_seq": Rule("A number is decided once, also when it was refused.", "C-model, D3", Instead(Alterations, "_check_number", "alter.alter_seq <= highest", "False"), partial(test_alterations.a_refused_number_counts_as_seen, alterations)),
    "epoch_checked_on_fetch": Rule("Leader and follower are in the same epoch.", "C-model, 2.6", Instead(partitions, "check_leader_epoch", "believed < mine", "False"), partial(first_check, epoch=0, follower=9)),
    "isr_only_from_log": Rule("An answer to a proposal installs no ISR.", "C-model, D2", Instead(Leadership, "accepted", 'self._stage = "decided"', "self.pending = None"), test_proposals.test_after_success_the_proposal_is_pending_until_the_metadata_log_brings_it),
    "durable_there": Rule("In group mode only what is durable counts.", "D7", Instead(Leadership, "on_fetch", "min(durable_offset, fetch_offset) if self.state.flush_group else fetch_offset", "fetch_offset"), L.test_in_group_mode_only_what_is_durable_there_counts),
    "acknowledged_after_the_flush": Rule("In group mode the leader's own log counts when it is flushed.", "D7, 07.4", Instead(Leadership, "_advance", "self._durable if state.flush_group else self._end", "self._end"), L.test_in_group_mode_only_what_is_durable_here_counts),
    "lease": Rule("Without a lease nothing is written.", "D9", Instead(Replicas, "has_lease", "boot_ms < self.lease_until_ms", "True"), lambda: test_produce.test_without_a_lease_nothing_is_written(led())),
    "loss_is_loud": Rule("What is committed is cut only after an unclean election.", "D10", Instead(Followership, "_losing", "self.leading.unclean_epoch > log.epochs.latest", "True"), F.test_what_is_committed_is_not_cut_without_an_unclean_election),
    "hwm_hidden_below_leso": Rule("A leader tells no high watermark below its beginning.", "D11", Instead(Leadership, "known_high_watermark", "self.high_watermark >= self._start", "True"), L.test_a_new_leader_does_not_tell_a_high_watermark_that_may_be_stale),
    "failed_flush_ends_the_process": Rule("A failed flush ends the process.", "D12, 07.4", Instead(Flush, "run", "self.error = error", "pass"), lambda: test_log.test_a_failed_flush_ends_the_process(Host())),
    "page_cache_is_not_trusted": Rule("Recovery writes again what it keeps.", "D12, 07.4", test_log_life.recovery_that_trusts_the_page_cache, FAILED_FLUSH),
    "flush_covers_what_was_there": Rule("A flush covers what was written before it began.", "07.4, I-32", Instead(Log, "end_flush", "self.durable_offset = flush.upto", "self.durable_offset = self.end_offset"), lambda: test_log.test_a_flush_covers_what_was_there_when_it_began(Host())),
    "names_are_flushed": Rule("A new file's name is flushed with it.", "07.4, I-30", test_log_life.a_flush_that_forgets_the_names, test_log_life.a_segment_that_was_just_begun),
    "torn_tail": Rule("Recovery checks every byte of what was not durable.", "07.4", lambda patch: patch.setattr(scan, "check_body", lambda *_: None), test_recovery.test_a_flipped_bit_in_the_tail_ends_the_log_before_its_batch),
    "full_disk": Rule("A write that did not fit leaves no trace.", "07.4, I-33", Instead(Segment, "cut_back", "self.file().truncate(self.size)", "pass"), lambda: test_log.test_a_full_disk_refuses_the_batch_and_leaves_no_trace_of_it(Host())),
}  # fmt: skip
