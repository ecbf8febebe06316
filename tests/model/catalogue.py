"""How each rule that is switched off gets caught: a seed that random walks found, or a history written by hand.

A rule with a partner is redundant while the partner holds: the seed, or the history, switches both off.
"""

from dataclasses import dataclass

from tests.model.directed import HISTORIES, History
from tests.model.rules import NAMES

LENGTH = 800
"""Draws per walk, here and in every count that docs mention."""


@dataclass(frozen=True, slots=True)
class Seed:
    """The first seed whose walk misses these rules."""

    off: tuple[str, ...]
    number: int
    invariant: str


SEEDS: tuple[Seed, ...] = (
    Seed(("hwm_gated_by_min_isr",), 2, "I-14"),
    Seed(("maximal_isr",), 19, "I-4"),
    Seed(("leso_for_expansion",), 69, "I-4"),
    Seed(("followers_cleared_per_epoch",), 163, "I-4"),
    Seed(("fenced_not_eligible",), 4, "I-18"),
    Seed(("partition_epoch_cas",), 216, "I-14"),
    Seed(("alter_seq",), 2487, "I-4"),
    Seed(("isr_only_from_log",), 245, "I-14"),
    Seed(("min_isr_in_record",), 58, "I-14"),
    Seed(("epoch_checked_on_fetch",), 2788, "I-3"),
    Seed(("divergence_checked",), 1, "I-29"),
    Seed(("stale_answers_dropped",), 1024, "I-6"),
    Seed(("one_answer_per_request",), 1413, "I-6"),
    Seed(("hwm_capped_by_end",), 7, "I-5"),
    Seed(("hwm_not_from_divergence",), 67, "I-5"),
    Seed(("cache_pure",), 1521, "I-29"),
    Seed(("hwm_hidden_below_leso",), 18, "I-76"),
    Seed(("elr_kept",), 0, "I-53"),
    Seed(("elr_cleared_after_election",), 1093, "I-43"),
    Seed(("lossy_leaves_elr",), 5, "I-3"),
    Seed(("roles_after_registration",), 51, "I-6"),
    Seed(("unclean_marked",), 271, "I-6"),
    Seed(("unclean_leader_flushes",), 11458, "I-3"),
    Seed(("stopping_leader_stays",), 1674, "I-79"),
    Seed(("host_crash_alone_is_recovered",), 7, "automatic recovery"),
    Seed(("epoch_grows_when_a_replica_leaves",), 2078, "I-3"),
    Seed(("cancel_keeps_members",), 1095, "I-53"),
    Seed(("replace_keeps_members",), 161, "I-53"),
    Seed(("guard_counts_eligible",), 509, "I-53"),
    Seed(("deletion_before_new_role",), 287, "I-4"),
    Seed(("hwm_from_log_start",), 12, "I-29"),
    Seed(("empty_log_begins_at_log_start",), 6498, "I-4"),
    Seed(("log_start_durable",), 23, "I-76"),
    Seed(("checkpoints_lowered_first",), 568, "kill is harmless"),
    Seed(("flush_covers_what_was_there",), 40, "I-4"),
    Seed(("flushed_names_its_epoch",), 4802, "I-4"),
    Seed(("mode_change_flushed",), 107, "I-3"),
    Seed(("mode_change_is_an_epoch",), 2160, "I-3"),
    Seed(("starts_counted",), 409, "I-24"),
    Seed(("lease_before_fencing",), 52, "I-79"),
    Seed(("lease_needs_metadata",), 6, "I-79"),
    Seed(("lease_given_up",), 6, "I-79"),
    Seed(("log_start_capped_by_hwm", "hwm_from_log_start"), 23, "I-38"),
)

WRITTEN = {history.off[0] for history in HISTORIES}


def how(name: str) -> str:
    """What catches this rule if random walks do not."""
    partners = next((seed.off[1:] for seed in SEEDS if seed.off[0] == name), ())
    if partners:
        return f"redundant with {', '.join(partners)}"
    return "a written history" if name in WRITTEN else "nothing"


def story(name: str) -> History | None:
    """The written history that is about this rule first of all."""
    return next((history for history in HISTORIES if history.off[0] == name), None)


def uncaught() -> list[str]:
    """Rules that nothing here would miss."""
    return sorted(set(NAMES) - WRITTEN - {seed.off[0] for seed in SEEDS})
