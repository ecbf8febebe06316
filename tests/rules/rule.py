"""A row of the table of rules: a sentence, the mutation that undoes it in the product, and the test that then fails.

A mutation rewrites one clause of the product from outside; where the clause is no longer there, the row fails.
"""

import inspect
import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, Protocol

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Plant(Protocol):
    """What undoes a rule."""

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        """Undo it."""

    @property
    def places(self) -> list[str]:
        """The functions of the product where the rule lives."""
        ...

    @property
    def words(self) -> str:
        """What becomes of them."""
        ...


def function_of(owner: Any, name: str) -> FunctionType:
    """The function that has that name there, without what wraps it."""
    found = inspect.getattr_static(owner, name)
    function = found.fget if isinstance(found, property) else inspect.unwrap(getattr(owner, name))
    function = getattr(function, "__func__", function)
    assert isinstance(function, FunctionType), function
    return function


def place_of(function: FunctionType) -> str:
    """Where it stands in the product."""
    module = function.__module__.removeprefix("tidelog.").replace(".", "/")
    return f"{module}.py `{function.__qualname__}`"


@dataclass(frozen=True)
class Instead:
    """A function of the product with a clause of it, or several, otherwise."""

    owner: Any
    name: str
    right: str
    wrong: str
    more: tuple[tuple[str, str], ...] = ()

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        function = function_of(self.owner, self.name)
        source = inspect.getsource(function)
        for right, wrong in self.swaps:
            assert source.count(right) == 1, f"{self.name} has {right!r} {source.count(right)} times"
            source = source.replace(right, wrong)
        made: dict[str, Any] = {}
        code = compile(textwrap.dedent(source), f"<{self.name}>", "exec")
        exec(code, function.__globals__, made)  # noqa: S102 -- our own source
        patch.setattr(self.owner, self.name, made[function.__name__])

    @property
    def swaps(self) -> list[tuple[str, str]]:
        return [(self.right, self.wrong), *self.more]

    @property
    def places(self) -> list[str]:
        return [place_of(function_of(self.owner, self.name))]

    @property
    def words(self) -> str:
        return "; ".join(
            f"`{right}` becomes `{wrong}`" if wrong not in {"", "pass"} else f"without `{right}`"
            for right, wrong in self.swaps
        )


@dataclass(frozen=True)
class Together:
    """Several mutations: each alone is made up for by the others."""

    plants: tuple[Plant, ...]

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        for plant in self.plants:
            plant(patch)

    @property
    def places(self) -> list[str]:
        return [place for plant in self.plants for place in plant.places]

    @property
    def words(self) -> str:
        return "; and ".join(plant.words for plant in self.plants)


@dataclass(frozen=True)
class Planted:
    """A bug that other tests plant as well: its docstring says what it is. It undoes what stands in `where`."""

    bug: Callable[[pytest.MonkeyPatch], None]
    where: tuple[Any, str]

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        self.bug(patch)

    @property
    def places(self) -> list[str]:
        return [place_of(function_of(*self.where))]

    @property
    def words(self) -> str:
        name, said = self.bug.__name__, inspect.getdoc(self.bug) or ""
        return f"{name.replace('_', ' ')}: {said.splitlines()[0]}"


@dataclass(frozen=True)
class Catcher:
    """A test, what makes its fixtures, and the row of its table."""

    test: Callable[..., Any]
    fixtures: tuple[Callable[[], Any], ...] = ()
    row: tuple[Any, ...] = ()

    def __call__(self) -> None:
        with ExitStack() as stack:
            made = [one() for one in self.fixtures]
            ready = [
                stack.enter_context(one) if isinstance(one, AbstractContextManager) else one for one in made
            ]
            self.test(*ready, *deepcopy(self.row))

    @property
    def name(self) -> str:
        """What pytest calls it, and which row of its table it is where that has a sentence."""
        path = Path(inspect.getsourcefile(self.test) or "").resolve().relative_to(ROOT)
        about = [said for one in self.row if (said := _said(one))]
        return f"`{path}::{self.test.__name__}`" + "".join(f" ({one})" for one in about)


def _said(row: Any) -> str:
    """A row of a table in words; nothing where it is numbers."""
    if isinstance(row, FunctionType):
        return row.__name__.replace("_", " ")
    said = getattr(row, "sentence", row)
    return said if isinstance(said, str) else ""


class Rule(NamedTuple):
    """A rule, where it is cited, what undoes it, what notices, and which of `tests.rules.MUST` it covers."""

    says: str
    cites: str
    plant: Plant
    catcher: Catcher
    covers: tuple[str, ...] = ()
