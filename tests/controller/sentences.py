"""Sentences that must notice bugs on purpose: a test module is run again with a bug in what it tests."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from tests.controller.planted import Bug, planted


def noticed(names: dict[str, Any], module: ModuleType, bug: Bug, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a fast test without fixtures fails, among these names of a test module, when the module has the bug."""
    copy = planted(module, bug)
    for name, value in list(names.items()):
        if getattr(module, name, None) is value and hasattr(copy, name) and not inspect.ismodule(value):
            monkeypatch.setitem(names, name, getattr(copy, name))
    tests = [value for name, value in names.items() if name.startswith("test_")]
    return any(_fails(sentence) for test in tests for sentence in _sentences(test))


def _sentences(test: Callable[..., object]) -> Iterator[Callable[[], object]]:
    """The test, once with each of its parameters."""
    parameters = list(inspect.signature(test).parameters)
    marks = getattr(test, "pytestmark", [])
    if any(mark.name == "slow" for mark in marks) or inspect.iscoroutinefunction(test):
        return
    if not parameters:
        yield test
    for mark in marks:
        if mark.name == "parametrize" and _names(mark) == parameters:
            for values in mark.args[1]:
                yield partial(test, *(values if len(parameters) > 1 else (values,)))


def _names(mark: pytest.Mark) -> list[str]:
    names = mark.args[0]
    return [names] if isinstance(names, str) else list(names)


def _fails(sentence: Callable[[], object]) -> bool:
    try:
        sentence()
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 -- a crash is noticed as well
        return True
    return False
