"""Bugs on purpose: a module of the product with one line of it otherwise, which the checks must notice."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tidelog.protocol.errors import TidelogError


class Bug(NamedTuple):
    """What stands in the module, and what a tired developer might have written."""

    name: str
    right: str
    wrong: str

    def __str__(self) -> str:
        return self.name


def planted(module: ModuleType, bug: Bug) -> Any:
    """A copy of the module that has the bug; the module itself stays as it is."""
    source = inspect.getsource(module)
    assert source.count(bug.right) == 1, f"{bug.name}: the line is there {source.count(bug.right)} times"
    copy = ModuleType(module.__name__)
    copy.__dict__["__file__"] = module.__file__
    exec(compile(source.replace(bug.right, bug.wrong), f"<{bug.name}>", "exec"), copy.__dict__)  # noqa: S102 -- our own source
    return copy


def fails(check: Callable[[], object]) -> bool:
    """Whether the check notices something."""
    try:
        check()
    except (AssertionError, TidelogError, pytest.fail.Exception):
        return True
    return False
