"""Each rule of the protocol is undone, one at a time from outside, and the sentence about it then fails."""

import time

import pytest

from tests.rules import RULES
from tests.storage.logs import Halted
from tidelog.protocol.errors import TidelogError

NOTICED = (AssertionError, pytest.fail.Exception, TidelogError, Halted)
"""Not AttributeError and its kind: then the mutation does not fit the product any more."""


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_is_undone_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, began = RULES[name], time.process_time()
    rule.catcher()
    rule.plant(monkeypatch)
    with pytest.raises(NOTICED):
        rule.catcher()
    assert time.process_time() - began < 5, "a rule and its mutation take five seconds at most"
