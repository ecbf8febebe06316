"""What carries a member of a group is undone, one rule at a time and from outside, and somebody notices."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.client import test_groups
from tests.client.test_groups import client, cluster
from tests.client.test_groups_in_simulation import (
    SEEDS,
    test_members_of_a_group_whose_brokers_die_share_without_loss,
)
from tidelog.client.hand import Hand
from tidelog.client.io.client import Client
from tidelog.client.io.groups import GroupMember
from tidelog.client.membership import Place
from tidelog.protocol.messages import CommittedPartition

__all__ = ["client", "cluster"]
LIFE = (
    test_members_of_a_group_whose_brokers_die_share_without_loss  # it is a test of its own in its own module
)
del test_members_of_a_group_whose_brokers_die_share_without_loss
LOOK = GroupMember._look


async def _knows_nothing(_: GroupMember, places: Iterable[Place]) -> dict[Place, CommittedPartition]:
    return {place: CommittedPartition(*place) for place in places}


def _gives_on(self: GroupMember) -> None:
    hands = self._hands
    self._hands = replace(hands, withdraw=lambda _names: None)
    LOOK(self)
    self._hands = hands


BUGS: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "what is in hand is committed": ((Hand, "processed", Hand.placed), (Hand, "done", Hand.placed)),
    "what is in hand is given up": ((GroupMember, "_in_hand", lambda *_: False),),
    "it begins before it knows what is committed": ((GroupMember, "_starts", _knows_nothing),),
    "what is given up is kept": ((GroupMember, "_forget", lambda *_: None),),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_lives_among_brokers_that_die_find_the_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for planted in BUGS[bug]:
        monkeypatch.setattr(*planted)
    for seed in SEEDS:
        try:
            LIFE(seed)
        except AssertionError:
            return
    pytest.fail(f"{len(SEEDS)} lives did not find: {bug}")


@pytest.mark.slow
async def test_a_sentence_finds_that_what_is_lost_is_given_out_all_the_same(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroupMember, "_look", _gives_on)
    with pytest.raises(AssertionError):
        await test_groups.test_nothing_is_given_out_of_what_is_lost_while_the_listener_takes_its_time(client)
