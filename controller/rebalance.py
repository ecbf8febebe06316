"""Preferred leaders lead again: who lacks how many of its partitions, and the facts that return them (design 4.9).

    imbalance ──► overdue: whose share passes the percentage ──► rebalance, a batch at a time, until nothing is left

The first replica of a partition is its preferred leader: placement gives every broker as many as any other. When a
broker stops, others lead in its place, and go on when it is back: until this module is asked, every 300 s.

What it keeps true (DECISIONS 27; KAFKA-10149):

* Only leaders change, and only to the first replica, if that is alive, in sync and has room: no ISR, no replica, and
  nothing for who is dead or behind. A reassignment that runs goes on.
* A broker is left alone while its share of partitions that others lead is at most
  `leader.imbalance.per.broker.percentage`; once it passes, it gets back all that it can have.
* In a batch are the first of them by topic and number, so the same image gives the same facts; where nothing can be
  returned there are none.

Functions, and nothing else: they are given an image and answer facts.
"""

from collections.abc import Collection, Iterable
from heapq import nsmallest
from typing import Final, NamedTuple

from tidelog.controller.election import alive_for, change_in
from tidelog.controller.facts import Fact
from tidelog.controller.image import Image, PartitionState
from tidelog.protocol.types import BrokerId

INTERVAL_MS: Final = 300_000
"""How often to look: `leader.imbalance.check.interval.seconds` of Kafka."""
PERCENTAGE: Final = 10
"""`leader.imbalance.per.broker.percentage`: less means more elections, each of which clients notice."""
PARTITIONS_MAX: Final = 1000
"""Elections in one batch: far from what a batch may hold, and brokers follow without a pause that is felt."""


class Imbalance(NamedTuple):
    """How much of what a broker should lead it does not lead."""

    broker: BrokerId
    preferred: int
    """Partitions whose first replica it is."""
    elsewhere: int
    """Of these, what somebody else leads, or nobody."""
    returnable: int
    """Of these, what it could lead at once: it is alive and in sync."""

    @property
    def percentage(self) -> float:
        """The share that it does not lead."""
        return 100 * self.elsewhere / self.preferred if self.preferred else 0.0


def imbalance(image: Image) -> list[Imbalance]:
    """For every broker that is registered or the first of a partition, by id."""
    preferred = dict.fromkeys(image.brokers, 0)
    elsewhere, returnable = dict(preferred), dict(preferred)
    for p in image.partitions.values():
        first = p.replicas[0]
        preferred[first] = preferred.get(first, 0) + 1
        if p.leader != first:
            elsewhere[first] = elsewhere.get(first, 0) + 1
            returnable[first] = returnable.get(first, 0) + _returnable(image, p)
    return [
        Imbalance(broker, preferred[broker], elsewhere.get(broker, 0), returnable.get(broker, 0))
        for broker in sorted(preferred)
    ]


def overdue(found: Iterable[Imbalance], percentage: float = PERCENTAGE) -> frozenset[BrokerId]:
    """Who lacks more than that, and could have some of it back."""
    return frozenset(each.broker for each in found if each.returnable and each.percentage > percentage)


def rebalance(image: Image, brokers: Collection[BrokerId], most: int = PARTITIONS_MAX) -> list[Fact]:
    """The next batch of elections that return to these brokers what they should lead; ask again until it is empty."""
    returned: list[Fact] = []
    waiting = (
        p.place
        for p in image.partitions.values()
        if p.leader != p.replicas[0] and p.replicas[0] in brokers and _returnable(image, p)
    )
    for place in nsmallest(most, waiting):
        p = image.partitions[place]
        then = change_in(image, p, p.isr, alive_for(image, place), preferred=True)
        assert then.leader == p.replicas[0], f"{then} follows {p}"
        returned.append(then.changed())
    return returned


def _returnable(image: Image, p: PartitionState) -> bool:
    first = p.replicas[0]
    # Who is on its way out would not stay the leader if the election ends the reassignment.
    if not image.has_room(first):
        return False
    return p.leader != first and first in p.isr and first not in p.removing and image.can_lead(first, p.place)
