"""A metadata log in memory: facts go in as batches do, and the image is what they add up to."""

from collections.abc import Iterable

from tidelog.controller.facts import (
    BrokerChanged,
    BrokerRegistered,
    ClusterInitialized,
    Fact,
    TopicCreated,
    encode_facts,
)
from tidelog.controller.image import Changes, Image, PartitionState
from tidelog.protocol.batch import stamp
from tidelog.protocol.types import NO_BROKER, BrokerId

TOPIC = b"topic-of-16-byte"
OTHER = b"other-of-16-byte"
CLUSTER = b"cluster-16-bytes"
NOW = 1_700_000_000_000


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


def named(text: str) -> bytes:
    """16 bytes that can be told apart."""
    return text.encode().ljust(16, b".")


def partition(
    isr: tuple[int, ...],
    elr: tuple[int, ...] = (),
    *,
    replicas: tuple[int, ...] = (1, 2, 3),
    leader: int | None = None,
    min_isr: int = 2,
    last_known: tuple[int, ...] = (),
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
    index: int = 0,
    topic: bytes = TOPIC,
    flush_group: bool = False,
    recovering: bool = False,
) -> PartitionState:
    """A partition in epochs 5 and 9; the first in sync leads unless it is said otherwise."""
    first = isr[0] if isr else NO_BROKER
    return PartitionState(
        topic,
        index,
        ids(*replicas),
        ids(*isr),
        BrokerId(first if leader is None else leader),
        5,
        9,
        min_isr,
        ids(*elr),
        ids(*last_known),
        ids(*adding),
        ids(*removing),
        recovering=recovering,
        flush_group=flush_group,
    )


class Book:
    """An image, and how to add to it."""

    def __init__(
        self, *partitions: PartitionState, live: Iterable[int] = (1, 2, 3), fenced: Iterable[int] = ()
    ) -> None:
        self.image = Image()
        self.batches: list[bytes] = []
        """The log, one batch behind the other."""
        self.say(ClusterInitialized(CLUSTER, NOW))
        for number in sorted({*live, *fenced}):
            self.register(number)
            if number in set(live):
                self.say(self.unfenced(number))
        if partitions:
            self.say(TopicCreated(TOPIC, "orders"), *(state.created() for state in partitions))

    def say(self, *facts: Fact) -> Changes:
        """One batch."""
        batch = encode_facts(facts, NOW)
        stamp(batch, self.image.end_offset, 1)
        self.batches.append(bytes(batch))
        changes = self.image.replay(batch)
        self.image.check()
        return changes

    def register(self, number: int, *, process: str = "", disk: str = "", rack: str = "") -> Changes:
        return self.say(
            BrokerRegistered(
                BrokerId(number),
                self.image.end_offset,
                named(process or f"process {number}"),
                named(disk or f"disk {number}"),
                "127.0.0.1",
                9000 + number,
                rack,
            )
        )

    def unfenced(self, number: int, *, shutting_down: bool = False) -> BrokerChanged:
        return BrokerChanged(BrokerId(number), self.epoch(number), False, shutting_down)

    def epoch(self, number: int) -> int:
        return self.image.brokers[BrokerId(number)].epoch

    def state(self, index: int = 0) -> PartitionState:
        return self.image.partitions[TOPIC, index]

    def carry_out(self, facts: list[Fact]) -> None:
        """What was decided is committed."""
        if facts:
            self.say(*facts)
