"""Random lives of a quorum keep what they have promised, and get on when they can (I-44 to I-48)."""

from collections import Counter

import pytest

from tests.controller.quorum_life import live

EVENTS = (
    "elections",
    "foundings",
    "commits",
    "truncations",
    "tails lost",
    "crashes between steps",
    "disks replaced",
    "restarts",
    "messages lost",
    "resignations",
    "EndEpoch",
    "told again",
    "pre-vote granted",
    "pre-vote refused",
    "vote granted",
    "vote refused",
    "refused with an error",
    "leases held",
    "leases lost",
    "cut off for ever",
)
"""What has to have happened in so many lives, or they prove nothing of it."""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 600, 50))
def test_a_quorum_keeps_its_promises(first: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(first, first + 50):
        happened.update(live(seed))
    missing = [event for event in EVENTS if not happened[event]]
    assert missing == []


def test_a_life_is_all_in_its_seed() -> None:
    assert live(7) == live(7) != live(8)
