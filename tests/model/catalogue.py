"""How each rule that is switched off gets caught: a seed that random walks found, or a history written by hand.

A rule with a partner is redundant while the partner holds: the seed, or the history, switches both off.
"""

from dataclasses import dataclass

from tests.model.directed import HISTORIES
from tests.model.rules import NAMES

LENGTH = 800
"""Draws per walk, here and in every count that docs mention."""


@dataclass(frozen=True, slots=True)
class Seed:
    """The first seed whose walk misses these rules."""

    off: tuple[str, ...]
    number: int


SEEDS: tuple[Seed, ...] = ()

WRITTEN = {history.off[0] for history in HISTORIES}


def how(name: str) -> str:
    """What catches this rule if random walks do not."""
    partners = next((seed.off[1:] for seed in SEEDS if seed.off[0] == name), ())
    if partners:
        return f"redundant with {', '.join(partners)}"
    return "a written history" if name in WRITTEN else "nothing"


def uncaught() -> list[str]:
    """Rules that nothing here would miss."""
    return sorted(set(NAMES) - WRITTEN - {seed.off[0] for seed in SEEDS})
