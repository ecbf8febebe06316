"""Offers are looked at once, and nothing is overlooked by that: against whoever looks at everything, every time."""

from itertools import permutations
from random import Random

import pytest

from tests.controller.book import OTHER, TOPIC
from tidelog.controller.facts import Place
from tidelog.controller.offers import LOOKS_PER_STEP, Offers, Topics
from tidelog.protocol.types import BrokerId, TopicId

BROKERS = [BrokerId(number) for number in range(4)]
THIRD = bytes(15) + b"\x03"


class Market:
    """Brokers that give one another places of some topics; some of these may not go to some brokers."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.barred: dict[Place, set[BrokerId]] = {}
        self.has: dict[BrokerId, dict[Place, bool]] = {broker: {} for broker in BROKERS}
        """And whether it leads there."""
        self.offers = Offers(self.may)
        self.topics = Topics(lambda b: sorted({place[0] for place in self.has[b]}), self.count)
        for topic in (TOPIC, OTHER, THIRD):
            for index in range(self.rng.randint(0, 8)):
                place, broker = (topic, index), self.rng.choice(BROKERS)
                self.has[broker][place] = self.rng.random() < 0.5
                self.bar(place)
                self.offer(broker, place)

    def may(self, place: Place, giver: BrokerId, taker: BrokerId) -> bool:
        return place in self.has[giver] and taker not in self.barred[place]

    def count(self, broker: BrokerId, topic: TopicId) -> int:
        return sum(place[0] == topic for place in self.has[broker])

    def bar(self, place: Place) -> None:
        self.barred[place] = {broker for broker in BROKERS if self.rng.random() < 0.5}

    def offer(self, broker: BrokerId, place: Place) -> None:
        self.offers.offer((broker,), place)
        self.offers.offer((broker, place[0], self.has[broker][place]), place)

    def give(self, place: Place, giver: BrokerId, taker: BrokerId) -> None:
        """Where it may go from there is another question."""
        self.has[taker][place] = self.has[giver].pop(place)
        self.bar(place)
        self.offer(taker, place)
        self.topics.changed(place[0], givers=(taker,), lacks=giver)

    def best(self, giver: BrokerId, taker: BrokerId) -> Place | None:
        """As the product finds it."""

        def find(topic: TopicId) -> Place | None:
            followed = self.offers.first((giver, topic, False), taker)
            return followed or self.offers.first((giver, topic, True), taker)

        return self.topics.first(giver, taker, find)

    def wanted(self, giver: BrokerId, taker: BrokerId) -> tuple[TopicId, bool] | None:
        """Of which topic, and whether it is led there, if one looks at everything."""
        found = [
            (self.count(taker, place[0]) - self.count(giver, place[0]), place[0], led)
            for place, led in self.has[giver].items()
            if self.may(place, giver, taker)
        ]
        return min(found)[1:] if found else None


@pytest.mark.parametrize("seed", range(40))
def test_what_is_found_is_what_whoever_looks_at_everything_finds(seed: int) -> None:
    market = Market(seed)
    for _ in range(60):
        for giver, taker in permutations(BROKERS, 2):
            wanted, best = market.wanted(giver, taker), market.best(giver, taker)
            assert (best and (best[0], market.has[giver][best])) == wanted
            first = market.offers.first((giver,), taker)
            assert (first is None) == (wanted is None)
            assert first is None or market.may(first, giver, taker)
        giver, taker = market.rng.sample(BROKERS, 2)
        place = market.best(giver, taker)
        if place is not None:
            market.give(place, giver, taker)


def test_what_was_looked_at_in_vain_is_not_looked_at_again() -> None:
    looked: list[Place] = []

    def may(place: Place, _giver: BrokerId, _taker: BrokerId) -> bool:
        looked.append(place)
        return False

    offers = Offers(may)
    for index in range(LOOKS_PER_STEP):
        offers.offer((BROKERS[0],), (TOPIC, index))
    assert not offers.tires()
    for _ in range(3):
        assert offers.first((BROKERS[0],), BROKERS[1]) is None
    assert len(looked) == LOOKS_PER_STEP
    assert [offers.tires(), offers.tires()] == [True, False]
    offers.offer((BROKERS[0],), (TOPIC, 7))
    assert offers.first((BROKERS[0],), BROKERS[1]) is None
    assert looked[LOOKS_PER_STEP:] == [(TOPIC, 7)]
