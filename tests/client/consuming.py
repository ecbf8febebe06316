"""A consumer without a network: its machine, a clock by hand, and brokers that answer what the test wants.

desk = Desk()                        topic `orders` with two partitions, led by broker 1 in epoch 3
asked = desk.ask()                   what goes to broker 1 now
desk.answer(asked, batch(0, 5))      it answers for partition 0
desk.read()                          the offsets that the user gets
"""

from typing import Any

from tidelog.client.cluster import Partition, Topic
from tidelog.client.fetching import Asked, Decode, Fetching, Question
from tidelog.client.options import ConsumerConfig
from tidelog.client.reader import Reader
from tidelog.protocol.batch import CONTROL, stamp
from tidelog.protocol.messages import EpochEndFound, FetchReply, OffsetFound, PartitionFetched
from tidelog.protocol.records import decode, encode
from tidelog.protocol.types import BrokerId, Epoch, Offset, TopicPartition

ID = b"orders---orders-"
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
ONE, TWO = BrokerId(1), BrokerId(2)


def batch(offset: Offset, count: int, epoch: Epoch = 3, *, size: int = 1, control: bool = False) -> bytes:
    """Records as they are in a log, each with its offset as value."""
    values = [b"%d" % (offset + at) + b"." * size for at in range(count)]
    data = encode(values, now_ms=1000, attributes=CONTROL if control else 0)
    stamp(data, offset, epoch)
    return bytes(data)


def topic(leaders: tuple[int, ...], epoch: Epoch = 3, topic_id: bytes = ID) -> Topic:
    """What the metadata says."""
    partitions = [
        Partition(
            index=index,
            leader=BrokerId(leader),
            leader_epoch=epoch,
            replicas=(),
            isr=(),
            offline=(),
            elr=(),
            shown_at=0,
        )
        for index, leader in enumerate(leaders)
    ]
    return Topic("orders", topic_id, tuple(partitions), internal=False, shown_at=0)


class Desk:
    """See the module."""

    def __init__(
        self,
        *,
        leaders: tuple[int, ...] = (1, 1),
        start: Offset | None = 0,
        rack: str = "",
        unpack: Decode = decode,
        **options: Any,
    ) -> None:
        self.now_ms = 1000.0
        self.config = ConsumerConfig(**{"auto_offset_reset": "earliest", **options})
        self.fetching = Fetching(self.config, rack, lambda failures: 10.0 * failures)
        self.fetching.unpack = unpack
        self.fetching.assign(TopicPartition("orders", index) for index in range(len(leaders)))
        self.lead(*leaders)
        if start is not None:
            for reader in self.fetching.readers.values():
                reader.seek(start)

    @property
    def first(self) -> Reader:
        """The reader of partition 0."""
        return self.fetching.readers[FIRST]

    @property
    def second(self) -> Reader:
        """The reader of partition 1."""
        return self.fetching.readers[SECOND]

    def lead(self, *leaders: int, epoch: Epoch = 3, topic_id: bytes = ID) -> None:
        """These brokers lead the partitions."""
        self.fetching.learn(topic(leaders, epoch, topic_id))

    def ask(self, broker: int = 1, after_ms: float = 0) -> Asked | None:
        """What goes to that broker, so much later."""
        self.now_ms += after_ms
        return self.fetching.ask(BrokerId(broker), self.now_ms)

    def asked(self, broker: int = 1, after_ms: float = 0) -> Asked:
        """The same, and there is something."""
        asked = self.ask(broker, after_ms)
        assert asked is not None, f"nothing is asked of {broker}"
        return asked

    def answer(
        self, asked: Asked, data: bytes = b"", index: int = 0, *, session: int = 0, **more: Any
    ) -> None:
        """The broker answers for one partition."""
        place = next((place for place in asked.readers if place[1] == index), (ID, index))
        entry = PartitionFetched(
            *place, records_size=len(data), **{"high_watermark": 100, "log_start": 0, **more}
        )
        self.fetching.answered(asked, FetchReply((entry,), session_id=session), data, self.now_ms)

    def question(self) -> Question:
        """The only question that is to be asked."""
        [[question]] = self.fetching.questions(self.now_ms).values()
        return question

    def found(self, question: Question, offset: Offset = -1, **more: Any) -> None:
        """A leader says which offset that is."""
        answer = OffsetFound(*question.reader.place, offset=offset, **more)
        self.fetching.found(question, answer, self.now_ms)

    def checked(self, question: Question, epoch: Epoch, end: Offset) -> None:
        """A leader says where the epoch ends."""
        answer = EpochEndFound(*question.reader.place, epoch=epoch, end_offset=end)
        self.fetching.checked(question, answer, self.now_ms)

    def read(self, reader: Reader | None = None) -> list[Offset]:
        """The offsets of all records that are here."""
        offsets: list[Offset] = []
        while (found := self.fetching.take(reader or self.first)) is not None:
            offsets += found.offsets
        return offsets


def offsets_asked(asked: Asked) -> dict[int, Offset]:
    """From which offset each partition is asked."""
    return {place[1]: offset for place, (_, _, offset, _) in asked.readers.items()}
