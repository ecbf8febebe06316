"""The rules that controllers keep: who may be elected, whose proposals count, what an end has cost (design 4)."""

from typing import Any

from tests.controller import (
    changes,
    test_alterations,
    test_disks,
    test_election,
    test_liveness,
    test_low_space,
)
from tests.rules.rule import Catcher, Instead, Rule
from tidelog.controller import alterations, election, liveness
from tidelog.controller.alterations import Alterations


def case(cases: Any, sentence: str) -> Any:
    """The row of a table of sentences."""
    (found,) = (one for one in cases if one.sentence == sentence)
    return found


def becomes(sentence: str) -> Catcher:
    """A change of a partition."""
    return Catcher(test_election.test_what_becomes_of_a_partition, row=(case(changes.CASES, sentence),))


def answered(sentence: str) -> Catcher:
    """A proposal and its answer."""
    return Catcher(
        test_alterations.test_a_proposal_and_its_answer, row=(case(test_alterations.CASES, sentence),)
    )


def cost(said: str) -> Catcher:
    """What an end has cost."""
    return Catcher(test_liveness.test_an_end_costs_each_partition_what_its_flush_mode_says, row=(said,))


def on_disks(case: str) -> Catcher:
    """What the end of one of several disks has cost."""
    return Catcher(test_disks.test_a_disk_costs_what_lay_on_it_and_nothing_else, row=(case,))


def last_one(rule: Any) -> Catcher:
    """A sentence about the last ones that are left."""
    return Catcher(test_election.test_of_the_last_ones, row=(rule,))


RULES: dict[str, Rule] = {
    # ── elections
    "elr_kept": Rule("The last replica standing leaves the ISR for the ELR.", "4.7, D5, KIP-966", Instead(election, "leave", "(r for r in p.isr if r != broker)", "(r for r in p.isr if r != broker or len(p.isr) == 1)"), Catcher(test_election.test_who_is_being_fenced_is_not_elected_from_the_elr_that_it_enters), ("elr_kept", "D5")),
    "elr_cleared_after_election": Rule("An election that fills the ISR empties the ELR.", "4.7, I-23", Instead(election, "change", "len(isr) >= least", "len(tuple(target_isr)) >= least"), becomes("the election of the elr may fill the isr"), ("elr_cleared_after_election",)),
    "min_isr_in_record": Rule("Another min_isr is another record of the partition.", "D4, 4.7, I-23", Instead(election, "change", "min(min_isr or p.min_isr, max(1", "min(p.min_isr, max(1"), becomes("less to be in sync empties the elr"), ("min_isr_in_record", "D4")),
    "unclean_marked": Rule("An unclean election leaves its epoch in the record.", "D10, 4.8, I-6", Instead(election, "elect_unclean", "unclean_epoch=epoch", "unclean_epoch=p.unclean_epoch"), Catcher(test_election.test_an_operator_may_let_anybody_lead_and_everybody_knows_from_which_epoch_on), ("unclean_marked", "D10")),
    "epoch_grows_when_a_replica_leaves": Rule("To lose a replica is a new leadership.", "4.1, I-27", Instead(election, "_numbered", "or not set(p.replicas) <= set(then.replicas)", ""), becomes("it is complete when all who are to stay are in sync"), ("epoch_grows_when_a_replica_leaves",)),
    "mode_change_is_an_epoch": Rule("Another flush mode is another leadership.", "D7, ADR 0073", Instead(election, "_numbered", "or then.flush_group != p.flush_group", ""), last_one(test_election.another_flush_mode_is_another_leader_epoch), ("mode_change_is_an_epoch", "D7")),
    "stopping_leader_stays": Rule("The last one in sync leads on while it shuts down.", "4.6, ADR 0077", Instead(election, "_leader_of", "p.leader if p.leader in isr else NO_BROKER", "NO_BROKER"), last_one(test_election.the_last_one_in_sync_leads_on_while_it_shuts_down_whatever_changes), ("stopping_leader_stays",)),
    "host_crash_alone_is_recovered": Rule("The only replica does not lead with a disk that was replaced.", "4.8, ADR 0077", Instead(election, "_leaves", "broker in p.elr or (loss.everything and broker in p.last_known_elr)", "broker in p.elr"), last_one(test_election.the_only_replica_waits_for_an_operator_when_its_disk_is_replaced_after_a_crash), ("host_crash_alone_is_recovered",)),
    # ── low space
    "room_hands_over": Rule("Whoever has no room for records lets one in sync lead that has.", "DECISIONS 9, ADR 0103", Instead(liveness, "beat", "if request.unwritable and (moved", "if not request.unwritable and (moved"), Catcher(test_low_space.test_of_heartbeats, row=(test_low_space.who_has_no_room_hands_over_and_stays_in_sync,)), ("low space",)),
    "room_is_preferred": Rule("An election prefers who has room.", "ADR 0103", Instead(election, "change_in", "(r == p.leader or image.has_room(r))", "True"), Catcher(test_low_space.test_an_election_prefers_who_has_room), ("low space",)),
    "room_is_no_condition": Rule("Want of room leaves no partition without a leader.", "DECISIONS 9, ADR 0103", Instead(election, "change_in", "if alive(best.leader):", "if True:"), Catcher(test_low_space.test_an_election_takes_one_without_room_before_it_leaves_a_partition_without_a_leader), ("low space",)),
    "room_is_no_record": Rule("Room makes nobody leader who may lack records.", "I-3, ADR 0103", Instead(election, "_leader_of", "if r in isr and alive(r)", "if alive(r)"), Catcher(test_low_space.test_room_makes_nobody_leader_who_is_not_in_sync), ("low space",)),
    # ── what an end has cost
    "lossy_leaves_elr": Rule("Who lost data leaves the ELR.", "4.5, D6, I-4", Instead(election, "_guaranteed", "tuple(r for r in complete if r != lost)", "tuple(complete)"), becomes("who lost data leaves the elr"), ("lossy_leaves_elr", "D6")),
    "a_host_crash_is_lossy": Rule("The death of the machine costs an asynchronous log its standing.", "4.5, D6, I-25", Instead(liveness, "loss_of", "{CrashKind.CLEAN, CrashKind.PROCESS}", "{CrashKind.CLEAN, CrashKind.PROCESS, CrashKind.HOST}"), cost("the death of the machine"), ("lossy_leaves_elr", "D6")),
    "a_kill_is_not_lossy": Rule("The death of the process costs nothing.", "4.5, D6, I-24", Instead(liveness, "loss_of", "{CrashKind.CLEAN, CrashKind.PROCESS}", "{CrashKind.CLEAN}"), cost("a kill"), ("D6",)),
    "a_flushed_log_is_not_lossy": Rule("The death of the machine costs a log in group mode nothing.", "4.5, D6, I-25", Instead(liveness, "loss_of", "None if disk.crash_kind == CrashKind.HOST and p.flush_group else lost", "lost"), cost("the death of the machine"), ("D6",)),
    "missing_disk_is_missed": Rule("What lay on a disk that is missing has lost everything.", "4.5, ADR 0106, I-4", Instead(liveness, "loss_of", "(disk is None and missing)", "False"), on_disks("one is missing"), ("lossy_leaves_elr", "D6")),
    "gone_is_missed": Rule("A replica whose directory is gone from its disk has lost everything.", "4.5, ADR 0120, I-4", Instead(liveness, "loss_of", " or p.place in gone", ""), on_disks("all, and one directory is gone"), ("lossy_leaves_elr", "D6")),
    "disks_end_alone": Rule("One disk's end costs nothing that lies on another.", "4.5, ADR 0106, I-24", Instead(liveness, "loss_of", "if disk.crash_kind in {", "if request.crash_kind in {"), on_disks("the first one is damaged"), ("D6",)),
    "late_disk_is_lossy": Rule("A disk that has missed a registration has lost its standing.", "4.5, ADR 0106, I-4", Instead(liveness, "loss_of", " or known.incarnation_id not in disk.incarnation_ids", ""), on_disks("one has missed a registration"), ("lossy_leaves_elr", "D6")),
    # ── proposals
    "partition_epoch_cas": Rule("A proposal changes only the state that it names.", "4.7, I-16", Instead(Alterations, "_check_epochs", "alter.partition_epoch < p.partition_epoch", "False"), answered("an old state"), ("partition_epoch_cas",)),
    "fenced_not_eligible": Rule("A fenced broker joins no ISR, whatever its leader believes.", "4.7, I-18, KIP-841", Instead(alterations, "_eligible", "not image.can_lead(member.broker_id, p.place)", "False", (("member.broker_epoch == image.live_epoch(member.broker_id)", "member.broker_epoch == image.brokers[member.broker_id].epoch"),)), answered("somebody fenced"), ("fenced_not_eligible",)),
    "broker_epochs_in_alter": Rule("Who joins is the process that fetched.", "2.10, 4.7, KIP-903", Instead(alterations, "_eligible", "member.broker_epoch == image.live_epoch(member.broker_id)", "True"), answered("somebody registered anew"), ("broker_epochs_in_alter",)),
    "alter_seq": Rule("A number is decided once, also when it was refused.", "D3, I-15", Instead(Alterations, "_check_number", "alter.alter_seq <= highest", "False"), Catcher(test_alterations.test_what_one_proposal_does_not_show, row=(test_alterations.a_refused_number_counts_as_seen,)), ("alter_seq", "D3")),
    "alter_seq_of_a_copy": Rule("A copy of the last number is a copy.", "D3, I-15", Instead(Alterations, "_check_number", "alter.alter_seq <= highest", "alter.alter_seq < highest"), Catcher(test_alterations.test_what_one_proposal_does_not_show, row=(test_alterations.a_number_is_decided_once,)), ("alter_seq", "D3")),
}  # fmt: skip
