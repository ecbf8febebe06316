"""Proof that a check can fail: a bug is planted beside the product, and the same check must find it."""

from collections.abc import Callable
from random import Random
from typing import TypeVar

from hypothesis import Phase, find, settings
from hypothesis.strategies import SearchStrategy

from tidelog.protocol.errors import TidelogError

T = TypeVar("T")
_SEARCH = settings(max_examples=2000, database=None, deadline=None, phases=[Phase.generate])


def assert_caught(check: Callable[[T], object], examples: SearchStrategy[T]) -> None:
    """Hypothesis meets an example at which the check fails (or it raises NoSuchExample)."""
    find(examples, lambda example: _fails(check, example), settings=_SEARCH, random=Random(26))


def _fails(check: Callable[[T], object], example: T) -> bool:
    try:
        check(example)
    except (AssertionError, TidelogError):
        return True
    return False
