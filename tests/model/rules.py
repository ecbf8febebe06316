"""One switch per rule of the protocol. All are on; the walks must notice every one that is switched off.

A rule that ends in "(ours)" is not in the specification as it was first written: the model asked for it, and
docs/adr/0070 and following tell the history that needs it.
"""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol, as switches."""

    # ------------------------------------------------------------------------------- commit and ISR
    hwm_gated_by_min_isr: bool = True
    """2.4, D5: the high watermark moves only while the committed ISR has `min_isr` members."""
    maximal_isr: bool = True
    """2.1: a pending change counts as the stricter of both sets."""
    leso_for_expansion: bool = True
    """2.8: who joins the ISR has reached the offset at which this leader began."""
    followers_cleared_per_epoch: bool = True
    """2.3: what a leader knew of its followers in an older epoch is forgotten."""
    fenced_not_eligible: bool = True
    """2.7, 4.7: a fenced or stopping broker joins no ISR."""
    broker_epochs_in_alter: bool = True
    """2.10: AlterPartition names the process of each member."""
    partition_epoch_cas: bool = True
    """4.7: AlterPartition changes only the version it has seen."""
    alter_seq: bool = True
    """D3: a request that was refused once stays refused when a copy of it arrives."""
    quorum_epoch_named: bool = True
    """DECISIONS 7: a request is heard only by the controller it was sent to."""
    isr_only_from_log: bool = True
    """D2: the answer to AlterPartition installs no ISR."""
    min_isr_in_record: bool = True
    """D4: leader and controller learn of `min_isr` in the order of the metadata log."""
    # ------------------------------------------------------------------------------- fetching
    epoch_checked_on_fetch: bool = True
    """2.6 #2, #3: leader and follower are in the same epoch."""
    divergence_checked: bool = True
    """2.6 #9: the follower's last epoch must end where the leader's does."""
    stale_answers_dropped: bool = True
    """3.2: an answer counts for the request, the epoch and the log end it was asked for."""
    fetches_in_order: bool = True
    """A leader hears no fetch that is older than the last one it heard from that process (ours)."""
    one_answer_per_request: bool = True
    """An answer counts once, and only that of the last request (ours; 3.2's three conditions can come true again)."""
    hwm_capped_by_end: bool = True
    """3.3: a follower's high watermark stays within its log."""
    hwm_not_from_divergence: bool = True
    """3.3: an answer that says "you diverge" moves no high watermark."""
    cache_pure: bool = True
    """D1: the epoch cache has an entry per epoch with records, and none for an election."""
    hwm_hidden_below_leso: bool = True
    """D11, 2.12: a leader names no high watermark before it has reached its own beginning."""
    # ------------------------------------------------------------------------------- elections
    elr_kept: bool = True
    """4.7: who leaves a too small ISR stays eligible, and the last one standing gets no privilege."""
    elr_cleared_after_election: bool = True
    """4.7, last line: an election from the ELR that satisfies `min_isr` empties the ELR."""
    lossy_leaves_elr: bool = True
    """4.5: a broker that lost unflushed data is no longer eligible."""
    roles_after_registration: bool = True
    """D8: a process acts only on metadata that is as new as its own registration."""
    unclean_marked: bool = True
    """4.8, D10: an unclean election leaves its epoch in the record."""
    unclean_leader_flushes: bool = True
    """In mode `group` an unclean leader flushes before it serves: it may show more than it has flushed (ours)."""
    stopping_leader_stays: bool = True
    """A leader that is shutting down stays while nobody can follow it, whatever else changes (ours; 4.7: "alive")."""
    host_crash_alone_is_recovered: bool = True
    """DECISIONS 5: the only replica leads again after a power cut, and never with a disk that was replaced (ours)."""
    # ------------------------------------------------------------------------------- reassignment
    epoch_grows_when_a_replica_leaves: bool = True
    """0.1, 4.1: removing a replica is a new leadership."""
    cancel_keeps_members: bool = True
    """4.11: a cancel that would leave too few complete replicas is refused."""
    replace_keeps_members: bool = True
    """4.11 says so of a cancel only: a new target must not drop complete replicas either (ours)."""
    guard_counts_eligible: bool = True
    """Complete replicas are ISR and ELR, not the ISR alone (ours)."""
    deletion_before_new_role: bool = True
    """4.11: a removed replica's directory is gone before the broker gets it again."""
    # ------------------------------------------------------------------------------- log start
    log_start_capped_by_hwm: bool = True
    """3.3: a follower's log begins at or below its own high watermark."""
    hwm_from_log_start: bool = True
    """A leader deletes below its high watermark, so its log start is a bound for ours that it never hides (ours)."""
    empty_log_begins_at_log_start: bool = True
    """Without a last epoch only a known member of ISR or ELR goes on where it ends; others begin at log start (ours)."""
    refetch_below_log_start: bool = True
    """Whoever must truncate below its log start copies from the leader's log start (ours; 3.5 says from there)."""
    deletion_waits_for_members: bool = True
    """DeleteRecords waits for ISR and ELR, and nobody joins with an older log start (ours; 2.15: "live replicas")."""
    log_start_durable: bool = True
    """A follower reports a log start that it would still have after a kill (ours)."""
    # ------------------------------------------------------------------------------- disk
    truncation_flushed: bool = True
    """A truncation is durable before the next append, in both flush modes (ours; 1.11 says group)."""
    checkpoints_lowered_first: bool = True
    """Checkpoints above the new end are rewritten before the log gets shorter (ours; 1.11 names one of three)."""
    flush_covers_what_was_there: bool = True
    """1.9: an fsync counts for the end noted before it began."""
    flush_forgets_truncated: bool = True
    """An fsync that a truncation overtook counts up to the truncation (ours)."""
    flushed_names_its_epoch: bool = True
    """`Flushed` carries the epoch of its last record and is checked like a fetch, 2.6 #9 (ours)."""
    mode_change_flushed: bool = True
    """A host crash is harmless only to a log flushed since the mode became `group` (ours)."""
    mode_change_is_an_epoch: bool = True
    """A new flush mode is a new leader epoch, so that leader and followers never count differently (ours)."""
    starts_counted: bool = True
    """Registrations of one directory are ordered by a start number (ours; DECISIONS 2 compares two names)."""
    # ------------------------------------------------------------------------------- leases
    lease_before_fencing: bool = True
    """2.14, 4.3: silence fences a broker only when its lease is over."""
    lease_needs_metadata: bool = True
    """A heartbeat renews a lease only for a broker that knows what was taken from it (ours; 4.4 is silent)."""
    lease_given_up: bool = True
    """DECISIONS 3: a broker gives up its lease before it closes its listener."""

    def off(self) -> list[str]:
        """The names of the rules that are switched off."""
        return [name for name in NAMES if not getattr(self, name)]


NAMES = tuple(field.name for field in fields(Rules))


def all_but(*names: str) -> Rules:
    """Every rule on, except these."""
    return Rules(**dict.fromkeys(names, False))
