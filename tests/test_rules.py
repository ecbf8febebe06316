"""Each rule of the protocol is undone, one at a time from outside, and the test of it then fails."""

import time

import pytest
from scripts.docs import RULES_PAGE, rules_page

from tests.model.rules import NAMES
from tests.rules import DECISIONS, DISKS, MUST, RULES, SWITCHES
from tests.storage.logs import Halted
from tidelog.protocol.errors import TidelogError

NOTICED = (AssertionError, pytest.fail.Exception, TidelogError, Halted)
"""Not AttributeError and its kind: then the mutation does not fit the product any more."""


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_is_undone_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, began = RULES[name], time.process_time()
    rule.catcher()
    with monkeypatch.context() as patch:
        rule.plant(patch)
        with pytest.raises(NOTICED):
            rule.catcher()
    assert time.process_time() - began < 5, "a rule and its mutation take five seconds at most"


def test_every_switch_decision_and_fault_has_a_row() -> None:
    covered = {one for rule in RULES.values() for one in rule.covers}
    assert sorted(set(MUST) - covered) == []
    assert sorted(covered - {*MUST, *NAMES}) == []


def test_what_must_be_covered_is_what_the_design_lists() -> None:
    assert len(SWITCHES) == len(set(SWITCHES)) == 20
    assert set(SWITCHES) <= set(NAMES), "the model has each of them"
    assert (DECISIONS[0], DECISIONS[-1], len(set(DISKS))) == ("D1", "D12", 10)


def test_each_row_says_a_sentence_and_cites_what_it_stands_on() -> None:
    assert [name for name, rule in RULES.items() if not (rule.says.endswith(".") and rule.cites)] == []


def test_no_two_rows_undo_the_same() -> None:
    told = [(rule.plant.words, *rule.plant.places, rule.catcher.name) for rule in RULES.values()]
    assert len(told) == len(set(told))


def test_the_page_of_rules_is_what_the_table_says() -> None:
    assert RULES_PAGE.read_text(encoding="utf-8") == rules_page(), "run scripts/docs"
