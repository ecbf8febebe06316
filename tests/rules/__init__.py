"""The protocol's rules, each with the mutation that undoes it and the test that then fails, and what they must cover."""

from typing import Final

from tests.rules import controller, damage, disk, replication
from tests.rules.rule import Rule

SUBJECTS_OF_RULES: Final[dict[str, dict[str, Rule]]] = {
    "Brokers": replication.RULES,
    "Controllers": controller.RULES,
    "Disks": disk.RULES,
    "Damage": damage.RULES,
}
RULES: Final = {name: rule for rules in SUBJECTS_OF_RULES.values() for name, rule in rules.items()}

SWITCHES: Final = (
    "hwm_gated_by_min_isr",
    "hwm_capped_by_end",
    "lossy_leaves_elr",
    "elr_kept",
    "roles_after_registration",
    "divergence_checked",
    "hwm_not_from_divergence",
    "min_isr_in_record",
    "maximal_isr",
    "partition_epoch_cas",
    "fenced_not_eligible",
    "leso_for_expansion",
    "stale_answers_dropped",
    "elr_cleared_after_election",
    "broker_epochs_in_alter",
    "followers_cleared_per_epoch",
    "cache_pure",
    "alter_seq",
    "epoch_checked_on_fetch",
    "isr_only_from_log",
)
"""The switches of the first model, as tests/model names them, the most often missed first."""

DECISIONS: Final = tuple(f"D{number}" for number in range(1, 13))
"""Those that differ from what one might copy; D13 to D15 are about what does not exist yet, and about no rule."""

DISKS: Final = (
    "acknowledged before the flush",
    "the end taken after the flush",
    "a failed flush tried again",
    "names not flushed",
    "the page cache trusted",
    "recovery not flushed",
    "a bit flipped above the recovery point",
    "any subset of pages",
    "a part of a write, and a full disk",
    "flock",
)
"""The planted bugs and the faults of the simulated disk (design 7.4)."""

LIFE: Final = ("a reserve", "low space")
"""What keeps a cluster going while disks fill up (DECISIONS 9)."""

MUST: Final = (*SWITCHES, *DECISIONS, *DISKS, *LIFE)
"""Each is covered by a row at least. A row may also cover a switch that the model got later."""
