"""The rules that brokers keep: what is committed, who is in sync, who may be believed (design 2 and 3)."""

from contextlib import AbstractContextManager
from typing import Any, cast

from tests.broker import (
    test_fetch,
    test_flushed,
    test_leadership,
    test_offsets,
    test_partition,
    test_produce,
    test_proposals,
)
from tests.broker.node import Node
from tests.broker.test_planted_bugs import fixture, led, with_times
from tests.replication import test_followership
from tests.rules.rule import Catcher, Instead, Planted, Rule, Together
from tests.simulation import planted, test_directed_cluster, test_roles
from tidelog.broker import partition as partitions
from tidelog.broker.broker import Broker
from tidelog.broker.fetcher import Fetcher
from tidelog.broker.leadership import Leadership
from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests import flushed, offsets
from tidelog.broker.requests.context import Context
from tidelog.broker.requests.fetch import _Waiting as FetchWaiting
from tidelog.protocol.errors import FencedLeaderEpoch
from tidelog.replication.followership import Asked, Followership
from tidelog.testing.simulation.world import World


def a_follower() -> Node:
    return cast("Node", fixture(test_partition.node)())


def world() -> AbstractContextManager[Any]:
    return World(1).running()


L, F = test_leadership, test_followership

RULES: dict[str, Rule] = {
    # ── what is committed
    "hwm_gated_by_min_isr": Rule("The high watermark moves only while the ISR has min_isr members.", "2.4, D5, I-25", Instead(Leadership, "_advance", "len(state.isr) < state.min_isr", "False"), Catcher(L.test_nothing_is_committed_while_the_isr_is_smaller_than_min_isr), ("hwm_gated_by_min_isr", "D5")),
    "hwm_capped_by_end": Rule("A follower's high watermark stays within its log.", "3.3, I-38", Instead(Followership, "new_high_watermark", "min(max(told.high_watermark, told.log_start), log.end_offset)", "max(told.high_watermark, told.log_start)"), Catcher(F.test_the_high_watermark_only_grows_and_stays_within_the_log, row=(95, 80)), ("hwm_capped_by_end",)),
    "hwm_only_grows": Rule("A follower's high watermark never goes back.", "D11, 3.3, I-76", Instead(Followership, "new_high_watermark", "max(log.high_watermark, min(", "(min("), Catcher(F.test_the_high_watermark_only_grows_and_stays_within_the_log, row=(20, 30)), ("D11",)),
    "hwm_hidden_below_leso": Rule("A leader tells no high watermark below its beginning.", "D11, 2.12, KIP-207", Instead(Leadership, "known_high_watermark", "self.high_watermark >= self._start", "True"), Catcher(L.test_a_new_leader_does_not_tell_a_high_watermark_that_may_be_stale), ("D11",)),
    "hwm_not_from_divergence": Rule("An answer that says where logs part moves no high watermark.", "3.3, I-6", Instead(Followership, "on_fetched", "self._on_diverging(parting, answer.log_start, log)", "Append(answer.high_watermark, answer.log_start)"), Catcher(F.test_the_log_is_cut_where_the_epochs_part_and_nothing_else_of_the_answer_counts, row=(6, 60, 60)), ("hwm_not_from_divergence",)),
    "maximal_isr": Rule("A proposed member counts until the controller has decided.", "2.1, I-14, KIP-497", Instead(Leadership, "_advance", "or replica in pending", ""), Catcher(L.test_a_proposed_member_counts_before_the_controller_has_agreed), ("maximal_isr",)),
    "min_isr_from_the_record": Rule("A leader takes min_isr from the record, in its order.", "D4, I-23", Instead(Leadership, "adopt", "self.state = state", "from dataclasses import replace; self.state = replace(state, min_isr=self.state.min_isr)"), Catcher(L.test_lowering_min_isr_commits_what_waited_for_it), ("D4",)),
    "durable_there": Rule("In group mode only what is durable at a follower counts.", "D7, I-25", Instead(Leadership, "on_fetch", "min(durable_offset, fetch_offset) if self.state.flush_group else fetch_offset", "fetch_offset"), Catcher(L.test_in_group_mode_only_what_is_durable_there_counts), ("D7",)),
    "acknowledged_after_the_flush": Rule("In group mode the leader's own log counts when it is flushed.", "D7, 7.4, I-25", Instead(Leadership, "_advance", "self._durable if state.flush_group else self._end", "self._end"), Catcher(L.test_in_group_mode_only_what_is_durable_here_counts), ("D7", "acknowledged before the flush")),
    "flushed_names_its_epoch": Rule("A flush counts for the very records that were flushed.", "D7, ADR 0073", Instead(flushed, "is_prefix", "found.epoch == last_epoch and end <= found.end", "True"), Catcher(test_flushed.test_a_flush_of_records_that_were_cut_off_since_counts_nothing, (fixture(test_flushed.node),), (1,)), ("D7",)),
    "durable_is_told": Rule("A follower tells what it has on stable storage, not what it has.", "D7, I-25", Instead(Fetcher, "_entry", "durable_offset=log.durable_offset", "durable_offset=log.end_offset"), Catcher(test_directed_cluster.test_with_flush_mode_group_what_is_acknowledged_is_on_a_disk, (world,), ()), ("D7",)),
    # ── who is in sync
    "isr_only_from_log": Rule("An answer to a proposal installs no ISR.", "D2, 2.10, KAFKA-12686", Instead(Leadership, "accepted", 'self._stage = "decided"', "from dataclasses import replace; self.state, self.pending = replace(self.state, isr=self.pending.isr), None"), Catcher(test_proposals.test_after_success_the_proposal_is_pending_until_the_metadata_log_brings_it), ("isr_only_from_log", "D2")),
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
    # ── fetching
    "epoch_checked_on_fetch": Rule("Leader and follower are in the same leader epoch.", "2.6, KIP-320", Instead(partitions, "check_leader_epoch", "believed == mine", "True"), Catcher(test_fetch.test_a_fetch_of_an_earlier_leadership_lets_nobody_join_or_commit), ("epoch_checked_on_fetch",)),
    "old_epochs_are_named": Rule("Who believes in an older leadership is told that it is fenced.", "2.6, KAFKA-14078", Instead(partitions, "check_leader_epoch", "believed < mine", "False"), Catcher(test_fetch.test_a_follower_is_refused_at_once_by_the_first_check_that_fails, (led,), ({"epoch": 0, "follower": 9}, FencedLeaderEpoch)), ("epoch_checked_on_fetch",)),
    "replicas_say_their_epoch": Rule("A replica that names no epoch is in none.", "2.6, KIP-320", Instead(partitions, "check_leader_epoch", "and not must_say", ""), Catcher(test_fetch.test_a_follower_is_refused_at_once_by_the_first_check_that_fails, (led,), ({"epoch": -1}, FencedLeaderEpoch)), ("epoch_checked_on_fetch",)),
    "divergence_checked": Rule("The follower's last epoch must end where the leader's does.", "2.6, I-10, KIP-101", Instead(partitions, "check_place", "found.epoch < last_fetched_epoch or found.end < fetch_offset", "False"), Catcher(test_fetch.test_other_records_up_to_the_same_end_commit_nothing, (led,)), ("divergence_checked",)),
    "cache_pure": Rule("Becoming leader adds no entry to the leader epochs.", "D1, I-12", Instead(Partition, "_lead", "self.followership = None", "self.followership = None; self.log.epochs.assign(state.leader_epoch, self.log.end_offset)"), Catcher(test_partition.test_a_leadership_without_records_leaves_no_trace_in_the_epochs, (a_follower,)), ("cache_pure", "D1")),
    "stale_answers_dropped": Rule("An answer counts for the fetch that it answers.", "3.2, KAFKA-13207", Instead(Followership, "is_current", "asked == (self.leading.leader_epoch, log.end_offset, log.epochs.latest)", "asked.fetch_offset == log.end_offset"), Catcher(F.test_an_answer_to_another_fetch_says_nothing, row=(Asked(6, 80, 6),)), ("stale_answers_dropped",)),
    "loss_is_loud": Rule("What is committed is cut only after an unclean election.", "D10, 3.5, I-6", Instead(Followership, "_losing", "self.leading.unclean_epoch > log.epochs.latest", "True"), Catcher(F.test_what_is_committed_is_not_cut_without_an_unclean_election), ("D10",)),
    # ── leases
    "lease": Rule("A lease ends.", "D9, 2.14, I-79", Instead(Replicas, "has_lease", "boot_ms < self.lease_until_ms", "True"), Catcher(test_produce.test_without_a_lease_nothing_is_written, (led,)), ("D9",)),
    "lease_to_write": Rule("Without a lease nothing is written.", "D9, 2.5, I-26", Instead(Context, "partition", "not self.replicas.has_lease(self.clocks.boot_ms())", "False"), Catcher(test_produce.test_without_a_lease_nothing_is_written, (led,)), ("D9",)),
    "lease_to_read": Rule("Without a lease no consumer is given anything, also one that has waited.", "D9, 2.11, I-79", Instead(FetchWaiting, "_partition", "if self.request.broker_id != NO_BROKER:", "if True:"), Catcher(test_fetch.test_a_lease_that_has_ended_is_noticed_when_the_answer_is_made, (led,)), ("D9",)),
    "lease_to_list": Rule("Without a lease no client is told an offset.", "D9, 5.5, I-79", Instead(offsets, "_find", "context.replicas.at(*where) if request.replica else context.partition(*where)", "context.replicas.at(*where)"), Catcher(test_offsets.test_a_client_needs_a_leader_with_a_lease_and_hears_who_leads, (with_times,)), ("D9",)),
}  # fmt: skip
