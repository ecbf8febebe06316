"""The model walks without a violation, and misses every rule that is taken away (docs/adr/0070 and following)."""

import ast
from pathlib import Path

import pytest

from tests.model.catalogue import LENGTH, SEEDS, Seed, uncaught
from tests.model.directed import HISTORIES, History
from tests.model.rules import Rules, all_but
from tests.model.walk import replay, shrink, transcript, walk

EVERY_RULE = Rules()


def test_no_walk_violates_anything_while_every_rule_is_on() -> None:
    assert [walk(EVERY_RULE, seed, LENGTH).violation for seed in range(200)] == [None] * 200


def test_every_rule_has_a_seed_or_a_history_that_misses_it() -> None:
    assert uncaught() == []


@pytest.mark.parametrize("planted", SEEDS, ids=lambda seed: "+".join(seed.off))
def test_a_walk_misses_the_rule_that_is_switched_off(planted: Seed) -> None:
    violation = walk(all_but(*planted.off), planted.number, LENGTH).violation
    assert violation is not None
    assert violation.invariant == planted.invariant
    assert walk(EVERY_RULE, planted.number, LENGTH).violation is None


@pytest.mark.parametrize(
    "partner", [seed for seed in SEEDS if len(seed.off) > 1], ids=lambda seed: seed.off[0]
)
def test_a_redundant_rule_is_covered_by_its_partner_alone(partner: Seed) -> None:
    assert walk(all_but(partner.off[0]), partner.number, LENGTH).violation is None


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: "+".join(history.off))
def test_a_written_history_breaks_what_its_rule_protects(history: History) -> None:
    violation = replay(history.rules, history.settings, history.choices)
    assert violation is not None
    assert violation.invariant == history.invariant


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: "+".join(history.off))
def test_a_written_history_is_harmless_while_every_rule_is_on(history: History) -> None:
    assert replay(EVERY_RULE, history.settings, history.choices) is None


def test_a_seed_is_one_history() -> None:
    once, again = walk(EVERY_RULE, 7, LENGTH), walk(EVERY_RULE, 7, LENGTH)
    assert (once.choices, once.counts) == (again.choices, again.counts)


def test_a_failing_walk_is_shrunk_and_told_in_columns() -> None:
    rules = all_but("hwm_capped_by_end")
    found = next(o for o in (walk(rules, seed, LENGTH) for seed in range(50)) if o.violation)
    assert found.violation is not None
    few = shrink(rules, found.settings, found.choices, found.violation.invariant)
    story = transcript(rules, found.settings, few).splitlines()
    assert len(few) < len(found.choices) / 2
    assert story[1] == "off: hwm_capped_by_end"
    assert story[2].split()[:2] == ["step", "record"]
    assert story[-1].startswith(found.violation.invariant)


def test_the_model_shares_no_code_with_the_product() -> None:
    imported = {
        name.split(".")[0]
        for path in Path(__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _names(node)
    }
    assert imported <= {
        "ast",
        "collections",
        "dataclasses",
        "itertools",
        "pathlib",
        "pytest",
        "random",
        "tests",
        "typing",
    }


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []
