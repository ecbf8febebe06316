"""Problems as people want them: what one cause does to many partitions is one entry. Pure.

What it keeps true: only what is the same word for word, but for the partition, becomes one; nothing is left out of it
but names.
"""

from collections.abc import Iterable
from typing import Final

from tidelog.cli.cluster.problems import Kind, Problem

NAMED: Final = 3
"""So many partitions of one entry are named."""


def folded(problems: Iterable[Problem]) -> list[Problem]:
    """The same, with partitions of which the same is to be said in one; where the first of them stood."""
    alike: dict[tuple[Kind, str, str], list[Problem]] = {}
    for number, one in enumerate(problems):
        its = one.topic is not None and one.what.startswith(f"{_name(one)} has ")
        key = (one.what.removeprefix(_name(one)), _way_out(one)) if its else (str(number), "")
        alike.setdefault((one.kind, *key), []).append(one)
    return [_one(several) for several in alike.values()]


def _one(several: list[Problem]) -> Problem:
    first = several[0]
    if len(several) == 1:
        return first
    names = [_name(one) for one in several[:NAMED]]
    if len(several) > NAMED:
        names.append(f"{len(several) - NAMED} more")
    who = f"{', '.join(names[:-1])} and {names[-1]}"
    return Problem(first.kind, f"each of {who}{first.what.removeprefix(_name(first))}", _way_out(first))


def _name(one: Problem) -> str:
    return f"{one.topic}-{one.partition}"


def _way_out(one: Problem) -> str:
    """Without the partition, which stands in commands."""
    return one.way_out.replace(f" {one.topic}:{one.partition}`", " TOPIC:PARTITION`")
