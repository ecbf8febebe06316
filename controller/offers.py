"""What brokers could give to one another while replicas are evened out, and of which topic rather (design 4.9).

A place is looked at once for a giver and a taker, and again when it has been offered anew: whoever offers does so
whenever anything about that place has changed. So a plan costs as much as there is to look at, and not as much
again for everything that moves.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, TypeAlias

from tidelog.controller.facts import Place
from tidelog.protocol.types import BrokerId, TopicId

Shelf: TypeAlias = tuple[BrokerId] | tuple[BrokerId, TopicId, bool]
"""All that a broker has, or what it has of a topic and leads, or does not."""

LOOKS_PER_STEP: Final = 1000
"""How much is looked at before others have a turn: a few milliseconds."""


class Offers:
    """What stands on shelves, and how far each of the others has looked."""

    def __init__(self, may: Callable[[Place, BrokerId, BrokerId], bool]) -> None:
        self.looks = 0
        """What all this has cost so far."""
        self._may = may
        self._rested = 0
        self._shelves: dict[Shelf, list[Place]] = {}
        self._at: dict[tuple[Shelf, BrokerId], int] = {}

    def offer(self, shelf: Shelf, place: Place) -> None:
        """That broker has it: it is new there, or may go to others now than before."""
        self._shelves.setdefault(shelf, []).append(place)

    def first(self, shelf: Shelf, taker: BrokerId) -> Place | None:
        """Something on that shelf that the taker may have instead."""
        giver, places, key = shelf[0], self._shelves.get(shelf, []), (shelf, taker)
        begin = at = self._at.get(key, 0)
        while at < len(places) and not self._may(places[at], giver, taker):
            at += 1
        self._at[key] = at
        self.looks += at - begin + 1
        return places[at] if at < len(places) else None

    def tires(self, more: int = 0) -> bool:
        """Whether others should have a turn now; `more` was looked at elsewhere."""
        self.looks += more
        if self.looks - self._rested < LOOKS_PER_STEP:
            return False
        self._rested = self.looks
        return True


class Topics:
    """For each giver and taker the topics, that first of which the one has the most more than the other.

    Whoever uses it calls `changed` when a difference has grown, or something of a topic has been offered.
    """

    def __init__(
        self, topics: Callable[[BrokerId], list[TopicId]], count: Callable[[BrokerId, TopicId], int]
    ):
        self._topics = topics
        self._count = count
        self._queues: dict[BrokerId, dict[BrokerId, list[tuple[int, TopicId]]]] = {}
        self._queued: dict[tuple[BrokerId, BrokerId, TopicId], int] = {}
        """What a topic is queued by; other entries of it do not count any more."""

    def first(
        self, giver: BrokerId, taker: BrokerId, find: Callable[[TopicId], Place | None]
    ) -> Place | None:
        """What `find` finds in the first of them that has anything."""
        queue = self._queue(giver, taker)
        while queue:
            less, topic = queue[0]
            if self._queued.get((giver, taker, topic)) != less:
                heappop(queue)
            elif (now := self._less(giver, taker, topic)) != less:
                self._queued[giver, taker, topic] = now
                heapreplace(queue, (now, topic))
            elif (place := find(topic)) is not None:
                return place
            else:
                heappop(queue)
                del self._queued[giver, taker, topic]
        return None

    def changed(self, topic: TopicId, givers: tuple[BrokerId, ...], lacks: BrokerId) -> None:
        """These may have more to give of it than before, to anybody; and everybody to the one that has given."""
        for giver in givers:
            for taker in self._queues.get(giver, ()):
                self._push(giver, taker, topic)
        for giver, takers in self._queues.items():
            if lacks in takers:
                self._push(giver, lacks, topic)

    def _push(self, giver: BrokerId, taker: BrokerId, topic: TopicId) -> None:
        less, key = self._less(giver, taker, topic), (giver, taker, topic)
        if key not in self._queued or less < self._queued[key]:
            self._queued[key] = less
            heappush(self._queues[giver][taker], (less, topic))

    def _queue(self, giver: BrokerId, taker: BrokerId) -> list[tuple[int, TopicId]]:
        takers = self._queues.setdefault(giver, {})
        if taker not in takers:
            queue = [(self._less(giver, taker, topic), topic) for topic in self._topics(giver)]
            heapify(queue)
            takers[taker] = queue
            self._queued |= {(giver, taker, topic): less for less, topic in queue}
        return takers[taker]

    def _less(self, giver: BrokerId, taker: BrokerId, topic: TopicId) -> int:
        return self._count(taker, topic) - self._count(giver, topic)
