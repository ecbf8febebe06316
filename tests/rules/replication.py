"""The rules that brokers keep: what is committed, who is in sync, who may be believed (design 2 and 3)."""

from contextlib import AbstractContextManager
from typing import Any, cast

from tests.broker import (
    test_answers_count_once,
    test_fetch,
    test_fetcher,
    test_flushed,
    test_leadership,
    test_making,
    test_offsets,
    test_partition,
    test_produce,
    test_proposals,
    test_space,
    test_strays,
    test_tombstones,
)
from tests.broker.leaders import Led
from tests.broker.node import Node
from tests.broker.test_planted_bugs import fixture, led, with_times
from tests.replication import test_followership
from tests.rules.rule import Catcher, Instead, Planted, Rule, Together
from tests.simulation import planted, test_compaction, test_roles
from tidelog.broker import partition as partitions
from tidelog.broker.broker import Broker
from tidelog.broker.fetcher import Fetcher
from tidelog.broker.leadership import Leadership
from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests import flushed, offsets
from tidelog.broker.requests.context import Context
from tidelog.broker.requests.fetch import _Waiting as FetchWaiting
from tidelog.broker.strays import Strays
from tidelog.broker.wanted import Wanted
from tidelog.protocol.errors import FencedLeaderEpoch
from tidelog.replication.followership import Asked, Followership
from tidelog.testing.simulation.world import World


def a_follower() -> Node:
    return cast("Node", fixture(test_partition.node)())


def on_its_way() -> Led:
    return cast("Led", fixture(test_tombstones.led)())


def world() -> AbstractContextManager[Any]:
    return World(1).running()


L, F = test_leadership, test_followership

RULES: dict[str, Rule] = {
    # ── what is committed
    "hwm_gated_by_min_isr": Rule("The high watermark moves only while the ISR has min_isr members.", "2.4, D5, I-25", Instead(Leadership, "_advance", "len(state.isr) < state.min_isr", "False"), Catcher(L.test_nothing_is_committed_while_the_isr_is_smaller_than_min_isr), ("hwm_gated_by_min_isr", "D5")),
    "hwm_capped_by_end": Rule("A follower's high watermark stays within its log.", "3.3, I-38", Instead(Followership, "new_high_watermark", "min(max(told.high_watermark, told.log_start), log.end_offset)", "max(told.high_watermark, told.log_start)"), Catcher(F.test_the_high_watermark_only_grows_and_stays_within_the_log, row=(95, 80)), ("hwm_capped_by_end",)),
    "hwm_only_grows": Rule("A follower's high watermark never goes back.", "D11, 3.3, I-76", Instead(Followership, "new_high_watermark", "max(log.high_watermark, min(", "(min("), Catcher(F.test_the_high_watermark_only_grows_and_stays_within_the_log, row=(20, 30)), ("D11",)),
    "hwm_hidden_below_leso": Rule("A leader tells no high watermark below its beginning.", "D11, 2.12, KIP-207", Instead(Leadership, "known_high_watermark", "self.high_watermark >= self._start", "True"), Catcher(L.test_a_new_leader_does_not_tell_a_high_watermark_that_may_be_stale), ("D11",)),
    "hwm_hidden_from_consumers": Rule("No consumer is told a high watermark that may be stale.", "D11, 2.12, KIP-207", Instead(Partition, "read_for_consumer", "leading.known_high_watermark if leading is not None else self.high_watermark", "self.high_watermark"), Catcher(test_fetch.test_a_new_leader_tells_no_consumer_a_high_watermark_before_it_knows_it, (led,)), ("D11",)),
    "hwm_kept_offline": Rule("A replica that goes offline still knows what is committed.", "D11, 1.9", Instead(Partition, "go_offline", "self._follower_hwm = self.high_watermark", "pass"), Catcher(test_partition.test_what_goes_offline_still_knows_what_is_committed, (a_follower,)), ("D11",)),
    "hwm_after_truncation": Rule("What parts from the leader's log is cut before anything of it counts as committed.", "3.3, I-5, I-6", Instead(Fetcher, "_one", "step = one.followership.on_fetched(", "one.partition._follower_hwm = max(one.partition._follower_hwm, min(entry.high_watermark, one.partition.log.end_offset)); step = one.followership.on_fetched("), Catcher(test_fetcher.test_what_is_committed_there_says_nothing_of_records_that_part_from_it), ("hwm_not_from_divergence",)),
    "hwm_not_from_divergence": Rule("An answer that says where logs part moves no high watermark.", "3.3, I-6", Instead(Followership, "on_fetched", "self._on_diverging(parting, answer.log_start, log)", "Append(answer.high_watermark, answer.log_start)"), Catcher(F.test_the_log_is_cut_where_the_epochs_part_and_nothing_else_of_the_answer_counts, row=(6, 60, 60)), ("hwm_not_from_divergence",)),
    "maximal_isr": Rule("A proposed member counts until the controller has decided.", "2.1, I-14, KIP-497", Instead(Leadership, "_advance", "or replica in pending", ""), Catcher(L.test_a_proposed_member_counts_before_the_controller_has_agreed), ("maximal_isr",)),
    "min_isr_from_the_record": Rule("A leader takes min_isr from the record, in its order.", "D4, I-23", Instead(Leadership, "adopt", "self.state = state", "from msgspec.structs import replace; self.state = replace(state, min_isr=self.state.min_isr)"), Catcher(L.test_lowering_min_isr_commits_what_waited_for_it), ("D4",)),
    "durable_there": Rule("In group mode only what is durable at a follower counts.", "D7, I-25", Instead(Leadership, "on_fetch", "min(durable_offset, fetch_offset) if self.state.flush_group else fetch_offset", "fetch_offset"), Catcher(L.test_in_group_mode_only_what_is_durable_there_counts), ("D7",)),
    "acknowledged_after_the_flush": Rule("In group mode the leader's own log counts when it is flushed.", "D7, 7.4, I-25", Instead(Leadership, "_advance", "self._durable if state.flush_group else self._end", "self._end"), Catcher(L.test_in_group_mode_only_what_is_durable_here_counts), ("D7", "acknowledged before the flush")),
    "flushed_names_its_epoch": Rule("A flush counts for the very records that were flushed.", "D7, ADR 0073", Instead(flushed, "is_prefix", "found.epoch == last_epoch and end <= found.end", "True"), Catcher(test_flushed.test_a_flush_of_records_that_were_cut_off_since_counts_nothing, (fixture(test_flushed.node),), (1,)), ("D7",)),
    "durable_is_told": Rule("A follower tells what it has on stable storage, not what it has.", "D7, I-25", Instead(Wanted, "_entry", "durable_offset=log.durable_offset", "durable_offset=log.end_offset"), Catcher(test_fetcher.test_what_is_told_to_be_durable_is_on_the_disk), ("D7",)),
    "refused_below_the_mark": Rule("Below the low-space mark no new record is taken.", "DECISIONS 9, ADR 0103", Instead(Partition, "produce", "self._check_room(batch)", "pass"), Catcher(test_space.test_below_the_mark_records_are_refused_with_the_way_out, (led,)), ("low space",)),
    "times_within_the_window": Rule("A record of a far away time is refused where its topic wants that, before anything is written.", "2.5, ADR 0107", Instead(Partition, "produce", "if not self.log.config.takes_any_time:", "if False:"), Catcher(test_produce.test_a_bad_time_is_told_before_too_few_replicas), ()),
    "repetitions_outside_the_window": Rule("A repetition is answered, however old it has become.", "2.5, I-22", Instead(Partition, "_check_times", "if not self._is_repetition(batch, header):", "if True:"), Catcher(test_produce.test_a_repetition_is_known_also_when_it_has_become_too_old), ()),
    "retries_below_the_mark": Rule("A retry of what is in the log is answered, whatever room there is.", "ADR 0103, I-22", Instead(Partition, "_check_room", "and not self._is_repetition(batch)", ""), Catcher(test_space.test_a_retry_of_what_is_there_is_answered_and_what_it_may_not_be_is_said, (led,)), ("low space",)),
    # ── what compaction has removed
    "who_lacks_tombstones_begins_anew": Rule("Who ends below the purge floor begins anew: it may lack a tombstone that is gone.", "2.6, C7, I-41", Instead(Partition, "_check_purged", "if at >= log.purge_floor:", "if True:"), Catcher(test_compaction.test_who_was_away_while_a_tombstone_went_begins_anew_and_keeps_nothing_that_was_deleted, (world,))),
    "purge_floor_goes_with_the_copy": Rule("Who copies a log takes over what was purged of it before it copies.", "C7, ADR 0091, I-41", Instead(Fetcher, "_takes_floor", "if floor <= partition.log.purge_floor:", "if True:"), Catcher(test_compaction.test_who_has_begun_anew_leads_with_the_floor_that_it_was_told, (world,))),
    "tombstones_wait": Rule("No tombstone goes before a follower that is on its way has come to it: its copy would never end.", "C7, ADR 0119", Instead(Leadership, "purge_below", "*places", ""), Catcher(test_tombstones.test_tombstones_stay_that_a_follower_on_its_way_has_not_come_to, (on_its_way,))),
    "gaps_are_told_on": Rule("Who has copied a log with gaps tells it to whoever copies from it.", "C7, ADR 0091, I-41", Instead(Followership, "on_fetched", "floor = min(floor, 0)", "floor = NO_OFFSET"), Catcher(test_compaction.test_who_has_copied_what_a_compaction_left_can_be_copied_from, (world,))),
    # ── who is in sync
    "whose_disk_hangs_leaves": Rule("Who fetches on while a flush of it does not end leaves the ISR, and holds up nobody.", "D7, 2.7, I-17", Instead(Leadership, "caught_up", "return flushes and ", "return "), Catcher(L.test_who_fetches_on_while_a_flush_does_not_end_is_proposed_to_leave_and_holds_up_nobody)),
    "isr_only_from_log": Rule("An answer to a proposal installs no ISR.", "D2, 2.10, KAFKA-12686", Instead(Leadership, "accepted", 'self._stage = "decided"', "from msgspec.structs import replace; self.state, self.pending = replace(self.state, isr=self.pending.isr), None"), Catcher(test_proposals.test_after_success_the_proposal_is_pending_until_the_metadata_log_brings_it), ("isr_only_from_log", "D2")),
    "pending_until_the_log_says": Rule("A proposal that was accepted counts until the metadata log brings it.", "D2, 2.1, I-16", Instead(Leadership, "accepted", 'self._stage = "decided"', "self.pending = None"), Catcher(test_proposals.test_after_success_the_proposal_is_pending_until_the_metadata_log_brings_it), ("D2",)),
    "fenced_does_not_join": Rule("A leader proposes nobody who is fenced.", "2.7, 2.8, I-18", Instead(Leadership, "eligible", "self._around.live_epoch", "self._around.registered_epoch"), Catcher(L.test_who_is_fenced_is_not_until_the_image_says_otherwise), ("fenced_not_eligible",)),
    "leso_for_expansion": Rule("Who joins has reached where this leader epoch began.", "2.8, I-4, KAFKA-7128", Instead(Leadership, "_maybe_expand", "max(self.high_watermark, self._start)", "self.high_watermark"), Catcher(L.test_who_lacks_what_there_was_when_the_epoch_began_is_not), ("leso_for_expansion",)),
    "followers_cleared_per_epoch": Rule("What followers had in another leader epoch is forgotten, also when the same broker is elected again.", "2.3, I-27", Planted(planted.followers_remembered_from_the_last_epoch, (Leadership, "__init__")), Catcher(test_partition.test_the_same_broker_elected_again_knows_of_nobody, (a_follower,)), ("followers_cleared_per_epoch",)),
    "an_election_is_a_new_leadership": Rule("A new leader epoch is a new leadership.", "2.3, I-27", Instead(Partition, "adopt", "if same and self.leadership is not None:", "if self.leadership is not None:", (("self.leadership.adopt(state, now_ms)", "self.leadership.state = state"),)), Catcher(test_partition.test_the_same_broker_elected_again_knows_of_nobody, (a_follower,)), ("followers_cleared_per_epoch",)),
    "alter_seq_at_the_leader": Rule("Every sending of a proposal has a number of its own.", "D3, I-15", Instead(Leadership, "alteration", "self._alter_seq += 1", "self._alter_seq = 1"), Catcher(test_proposals.test_every_sending_has_a_number_of_its_own), ("D3",)),
    # ── which process is heard
    "proposals_name_who_fetched": Rule("A proposal names the process of each member that fetched.", "2.10, KIP-903", Instead(Leadership, "_epoch_of", "self.followers[member].broker_epoch", "self._around.registered_epoch(member)"), Catcher(test_proposals.test_a_proposal_names_the_registration_that_each_member_fetched_under), ("broker_epochs_in_alter",)),
    "only_who_fetched_joins": Rule("Nobody is proposed for what another process of it has fetched.", "2.7, KIP-903", Instead(Leadership, "eligible", "live == self.followers[follower].broker_epoch", "True"), Catcher(L.test_who_fetched_as_another_process_than_the_registered_one_is_not, row=(29,)), ("broker_epochs_in_alter",)),
    "old_processes_are_refused": Rule("A fetch of a process that was replaced is refused.", "2.6, I-51, KIP-903", Instead(Leadership, "check_replica", "broker_epoch < newest", "False"), Catcher(L.test_a_fetch_under_an_older_registration_than_mine_is_refused, row=(True,)), ("broker_epochs_in_alter",)),
    "roles_after_registration": Rule("No role is taken before the own registration was replayed.", "D8, I-11, KAFKA-10527", Together((Instead(Broker, "_join", "self.observer.caught_up_to <= self._membership.epoch", "False"), Instead(Broker, "_adopt", "own is None or own.epoch != self._membership.epoch", "False"))), Catcher(test_roles.test_who_restarts_takes_no_role_from_before_its_own_registration, (world,)), ("roles_after_registration", "D8")),
    "one_process_per_id": Rule("A process that finds its id taken by another ends.", "D8, I-52", Instead(Broker, "_adopt", "own is None or own.epoch != self._membership.epoch", "False"), Catcher(test_roles.test_who_finds_that_another_process_has_taken_its_id_ends, (world,)), ("D8",)),
    "strays_aside": Rule("A log that the cluster has taken away is kept aside, and never served.", "4.11, I-37, KAFKA-1647", Instead(Broker, "_set_strays_aside", "self.data.stray(name)", "pass"), Catcher(test_roles.test_who_was_away_while_its_replica_was_taken_from_it_keeps_the_log_aside, (world,)), ("deletion_before_new_role",)),
    "strays_placed_here_stay": Rule("Nothing is removed from a disk that the cluster places there, whatever it was taken for.", "1.8, 4.9, ADR 107", Instead(Strays, "_may_go", "not self._is_here(stray.topic_id, stray.partition.partition)", "True"), Catcher(test_strays.test_what_the_cluster_places_here_stays, (test_strays.Yard,))),
    "strays_have_a_delay": Rule("What the cluster has taken away is removed after a delay, which begins with each process.", "1.8, ADR 107", Instead(Strays, "due", "now_ms - self._since_ms[path] >= delay_ms", "True"), Catcher(test_strays.test_a_stray_goes_when_its_delay_is_over, (test_strays.Yard,))),
    "strays_are_known": Rule("What nobody can place is not removed.", "1.8, ADR 107", Instead(Strays, "_may_go", "return False", "return True"), Catcher(test_strays.test_what_nobody_can_place_stays_for_an_operator, (test_strays.Yard,), ({"topic_id": None},))),
    # ── fetching
    "epoch_checked_on_fetch": Rule("Leader and follower are in the same leader epoch.", "2.6, KIP-320", Instead(partitions, "check_leader_epoch", "believed == mine", "True"), Catcher(test_fetch.test_a_fetch_of_an_earlier_leadership_lets_nobody_join_or_commit), ("epoch_checked_on_fetch",)),
    "old_epochs_are_named": Rule("Who believes in an older leadership is told that it is fenced.", "2.6, KAFKA-14078", Instead(partitions, "check_leader_epoch", "believed < mine", "False"), Catcher(test_fetch.test_a_follower_is_refused_at_once_by_the_first_check_that_fails, (led,), ({"epoch": 0, "follower": 9}, FencedLeaderEpoch)), ("epoch_checked_on_fetch",)),
    "replicas_say_their_epoch": Rule("Of a replica that names no epoch nothing is noted.", "2.6, I-19, KIP-320", Instead(Partition, "fetch_as_follower", "to_replica=True", "to_replica=False"), Catcher(test_fetch.test_a_fetch_of_an_earlier_leadership_lets_nobody_join_or_commit), ("epoch_checked_on_fetch",)),
    "divergence_checked": Rule("The follower's last epoch must end where the leader's does.", "2.6, I-10, KIP-101", Instead(partitions, "check_place", "found.epoch < last_fetched_epoch or found.end < fetch_offset", "False"), Catcher(test_fetch.test_other_records_up_to_the_same_end_commit_nothing, (led,)), ("divergence_checked",)),
    "cache_pure": Rule("Becoming leader adds no entry to the leader epochs.", "D1, I-12", Instead(Partition, "_lead", "self.followership = None", "self.followership = None; self.log.epochs.assign(state.leader_epoch, self.log.end_offset)"), Catcher(test_partition.test_a_leadership_without_records_leaves_no_trace_in_the_epochs, (a_follower,)), ("cache_pure", "D1")),
    "stale_answers_dropped": Rule("An answer counts for the fetch that it answers.", "3.2, KAFKA-13207", Instead(Followership, "is_current", "asked == (self.leading.leader_epoch, log.end_offset, log.epochs.latest)", "asked.fetch_offset == log.end_offset"), Catcher(F.test_an_answer_to_another_fetch_says_nothing, row=(Asked(6, 80, 6),)), ("stale_answers_dropped",)),
    "loss_is_loud": Rule("What is committed is cut only after an unclean election.", "D10, 3.5, I-6", Instead(Followership, "_losing", "self.leading.unclean_epoch > log.epochs.latest", "True"), Catcher(F.test_what_is_committed_is_not_cut_without_an_unclean_election), ("D10",)),
    "fetches_in_order": Rule("No fetch is heard that is older than the last one of its process.", "2.7, ADR 0071", Instead(Replicas, "hears", "process == broker_epoch and 0 < fetch_seq <= latest", "False"), Catcher(test_fetch.test_a_fetch_that_was_held_back_is_not_heard), ("fetches_in_order",)),
    "not_yet_is_no_bad_disk": Rule("Who asks for a log that is being made is told to come again, and not of a bad disk.", "3.2", Instead(Replicas, "at", "missing.soon", "False"), Catcher(test_making.test_many_are_made_beside_the_loop_and_served_one_by_one)),
    "refused_is_asked_in_time": Rule("What was refused is asked for again when its delay is over, whatever else is asked for meanwhile.", "3.2", Instead(Fetcher, "_wait_ms", "min(settings.max_wait_ms, max(back_ms - self._follow.clocks.now_ms(), 0))", "settings.max_wait_ms"), Catcher(test_fetcher.test_what_was_refused_is_asked_for_again_as_soon_as_its_delay_is_over)),
    "one_answer_per_request": Rule("Who asks again gives up the connection on which the last answer may come.", "3.2, ADR 0078", Instead(Fetcher, "_recover", "self._connection.abort()", "pass"), Catcher(test_answers_count_once.test_a_call_that_is_given_up_takes_its_connection_with_it_before_anything_is_asked_again), ("one_answer_per_request",)),
    "unclean_leader_flushes": Rule("In group mode an unclean leader flushes before it serves.", "D7, ADR 0073", Instead(Partition, "_lead", "self.log.end_offset if unclean and state.flush_group else 0", "0"), Catcher(test_flushed.test_a_leader_of_an_unclean_election_flushes_before_it_serves, (fixture(test_flushed.node),)), ("unclean_leader_flushes",)),
    # ── where logs begin
    "hwm_from_log_start": Rule("What the leader has deleted was committed.", "3.3, ADR 0079", Instead(Followership, "new_high_watermark", "max(told.high_watermark, told.log_start)", "told.high_watermark"), Catcher(F.test_what_the_leader_has_deleted_was_committed_also_while_it_names_none, row=(45, 45)), ("hwm_from_log_start",)),
    "log_start_capped_by_hwm": Rule("A follower's log begins at or below its high watermark.", "3.3, I-38", Instead(Followership, "new_log_start", "min(told, log.high_watermark)", "told"), Catcher(F.test_the_log_start_only_grows_and_stays_below_what_is_committed, row=(60, 30)), ("log_start_capped_by_hwm",)),
    "empty_log_begins_at_log_start": Rule("An empty log of which nothing is known begins where the leader's log starts.", "2.6, ADR 0071", Instead(Leadership, "check_beginning", "not heard and", "False and"), Catcher(L.test_an_empty_log_that_is_not_known_begins_anew), ("empty_log_begins_at_log_start",)),
    "what_is_deleted_is_not_compared": Rule("Who ends where the leader's log starts, in an epoch that is deleted there, begins anew.", "2.6, ADR 0116", Instead(partitions, "cannot_compare", "fetch_offset == log.log_start and not log.epochs.reaches_back_to(last_fetched_epoch)", "False"), Catcher(test_partition.test_who_ends_where_the_log_starts_in_an_epoch_that_is_deleted_begins_anew, (a_follower,), row=(2,))),
    "refetch_below_log_start": Rule("Who would have to cut below its log start begins anew where the leader's log starts.", "3.5, ADR 0071", Instead(Followership, "_on_diverging", "cut < log.log_start", "False"), Catcher(F.test_a_cut_below_the_log_start_begins_anew_where_the_leader_starts_and_is_told_as_loss), ("refetch_below_log_start",)),
    "deletion_waits_for_members": Rule("A deletion waits for everybody who may lead.", "2.15, ADR 0079", Instead(Partition, "low_watermark", "leadership.maximal_isr | set(leadership.state.elr)", "leadership.maximal_isr"), Catcher(test_partition.test_the_low_watermark_waits_for_the_dead_only_where_they_may_lead, (a_follower,)), ("deletion_waits_for_members",)),
    "deleted_before_joining": Rule("Who joins has deleted what the leader has.", "2.8, ADR 0079", Instead(Leadership, "_maybe_expand", "known.log_start >= self._log_start", "True"), Catcher(L.test_who_has_not_deleted_what_the_leader_has_does_not_join), ("deletion_waits_for_members",)),
    "log_start_durable": Rule("A follower tells a log start that a kill would not take back.", "2.15, ADR 0079", Instead(Wanted, "_entry", "log_start=sent.partition.saved_log_start", "log_start=log.log_start"), Catcher(test_fetcher.test_a_log_start_is_told_when_a_kill_would_not_take_it_back), ("log_start_durable",)),
    # ── leases
    "lease": Rule("A lease ends.", "D9, 2.14, I-79", Instead(Replicas, "has_lease", "boot_ms < self.lease_until_ms", "True"), Catcher(test_produce.test_without_a_lease_nothing_is_written, (led,)), ("D9",)),
    "lease_to_write": Rule("Without a lease nothing is written.", "D9, 2.5, I-26", Instead(Context, "partition", "not self.replicas.has_lease(self.clocks.boot_ms())", "False"), Catcher(test_produce.test_without_a_lease_nothing_is_written, (led,)), ("D9",)),
    "lease_to_read": Rule("Without a lease no consumer is given anything, also one that has waited.", "D9, 2.11, I-79", Instead(FetchWaiting, "_partition", "if self.request.broker_id != NO_BROKER:", "if True:"), Catcher(test_fetch.test_a_lease_that_has_ended_is_noticed_when_the_answer_is_made, (led,)), ("D9",)),
    "lease_to_list": Rule("Without a lease no client is told an offset.", "D9, 5.5, I-79", Instead(offsets, "_find", "context.replicas.at(*where) if request.replica else context.partition(*where)", "context.replicas.at(*where)"), Catcher(test_offsets.test_a_client_needs_a_leader_with_a_lease_and_hears_who_leads, (with_times,)), ("D9",)),
}  # fmt: skip
