"""Clusters for placement: brokers in racks, and images in which replicas stand where a test puts them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.controller.book import OTHER, TOPIC, Book, named, partition
from tidelog.controller.facts import BrokerChanged, Place, TopicCreated
from tidelog.controller.image import BrokerState, Image
from tidelog.controller.topics import Replicas
from tidelog.protocol.types import BrokerId

TOPICS = (TOPIC, OTHER)


def broker(number: int, rack: str = "", *, fenced: bool = False, shutting_down: bool = False) -> BrokerState:
    return BrokerState(
        BrokerId(number), number, named("p"), named("d"), "host", 9092, rack, fenced, shutting_down
    )


def racks_of(sizes: Iterable[int]) -> dict[int, str]:
    """Brokers from 1 on, in racks of these sizes."""
    racks = [f"rack {name}" for name, size in enumerate(sizes) for _ in range(size)]
    return dict(enumerate(racks, 1))


def living(sizes: Iterable[int]) -> list[BrokerState]:
    return [broker(number, rack) for number, rack in racks_of(sizes).items()]


def cluster(
    racks: Mapping[int, str],
    *topics: Sequence[Sequence[int]],
    fenced: Iterable[int] = (),
    shutting_down: Iterable[int] = (),
    offline: Mapping[int, Sequence[Place]] | None = None,
    **how: Any,
) -> Book:
    """A cluster whose first topic has partitions with these replicas, and whose second one has those."""
    book = Book(live=())
    for number, rack in racks.items():
        book.register(number, rack=rack)
        if number not in fenced:
            book.say(book.unfenced(number))
    for topic, name, placed in zip(TOPICS, ("orders", "bills"), topics, strict=False):
        states = [
            partition(
                tuple(r for r in replicas if r not in {*fenced, *how.get("adding", ())}),
                replicas=tuple(replicas),
                min_isr=1,
                index=index,
                topic=topic,
                **how,
            )
            for index, replicas in enumerate(placed)
        ]
        book.say(TopicCreated(topic, name), *(state.created() for state in states))
    for number in shutting_down:
        book.say(book.unfenced(number, shutting_down=True))
    for number, places in (offline or {}).items():
        book.say(BrokerChanged(BrokerId(number), book.epoch(number), False, False, tuple(places)))
    return book


def layout(image: Image) -> dict[Place, Replicas]:
    """Who holds what."""
    return {place: image.partitions[place].replicas for place in sorted(image.partitions)}


def numbers(plan: Mapping[Place, Replicas]) -> dict[int, tuple[int, ...]]:
    """A plan for one topic, by partition."""
    return {index: tuple(replicas) for (_, index), replicas in sorted(plan.items())}


def counts(of: Iterable[int], brokers: Iterable[int]) -> list[int]:
    """How often each of the brokers occurs."""
    found = list(of)
    return [found.count(number) for number in brokers]


def differ_by(found: Sequence[int]) -> int:
    return max(found) - min(found)


def is_spread(replicas: Iterable[int], racks: Mapping[int, str], usable: Iterable[int]) -> bool:
    """Whether no rack has two more of them than another one that has room."""
    mine = set(replicas)
    crowd = {rack: sum(racks[r] == rack for r in mine) for rack in racks.values()}
    room = {racks[b] for b in usable if b not in mine}
    return all(crowd[full] - crowd[other] < 2 for full in crowd for other in room)
