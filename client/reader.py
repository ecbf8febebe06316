"""One partition as a consumer reads it: where it is, what was fetched and not read, and what has to be asked first.

What it keeps true: a position moves by reading and by seeking only; a seek makes all nothing that was asked before it.
"""

from collections import deque

from tidelog.client.fetch_sessions import Place
from tidelog.client.records import RecordBatch
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, NO_OFFSET, Buffer, Epoch, Offset, TopicPartition


class Reader:
    """One partition, and how far it is."""

    __slots__ = (
        "begins",
        "buffered",
        "buffered_bytes",
        "cause",
        "decoded",
        "deleted",
        "ends_epoch",
        "error",
        "failures",
        "full",
        "high_watermark",
        "leader",
        "leader_epoch",
        "log_start",
        "name",
        "nearby",
        "nearby_until_ms",
        "offset",
        "offset_epoch",
        "paused",
        "position",
        "question",
        "rest",
        "retry_at_ms",
        "said",
        "strayed",
        "topic_id",
        "unchecked",
        "version",
    )

    def __init__(self, name: TopicPartition, question: int | None) -> None:
        self.name = name
        self.topic_id = b""
        self.deleted = b""
        """The topic that was read, where that one was made anew since and nobody has sought in the new one yet."""
        self.leader = NO_BROKER
        self.leader_epoch: Epoch = NO_EPOCH
        self.position: Offset = NO_OFFSET
        """The next offset that the user gets; -1: not known yet."""
        self.begins: Offset = NO_OFFSET
        """Where a group has said that it begins; -1: nobody has. As long as the position is there nothing was read."""
        self.said: Offset = NO_OFFSET
        """How far the application has said itself that it is, of this topic; -1: it has not, or has sought since."""
        self.offset: Offset = NO_OFFSET
        """The next offset to fetch."""
        self.offset_epoch: Epoch = NO_EPOCH
        """The epoch of the batch before it; -1: unknown."""
        self.question: int | None = question
        """Which offset has to be asked for before it can be read: EARLIEST or LATEST."""
        self.strayed: Offset = NO_OFFSET
        """The offset that was out of range, while it is asked on which side."""
        self.unchecked = False
        """Whether the offset has to be checked against the leader's epochs."""
        self.paused = False
        self.full = False
        """Whether it was left out of a fetch because nobody reads what it has."""
        self.error: TidelogError | None = None
        self.cause: TidelogError | None = None
        """Why the last attempt was in vain, and another one is made."""
        self.ends_epoch: Epoch = NO_EPOCH
        """The leadership in which the two below were told."""
        self.high_watermark: Offset = NO_OFFSET
        self.log_start: Offset = NO_OFFSET
        self.buffered: deque[tuple[Buffer, int]] = deque()
        """Answers, and from which byte on they are not read."""
        self.buffered_bytes = 0
        self.decoded: tuple[Offset, Offset, Epoch] = (NO_OFFSET, NO_OFFSET, NO_EPOCH)
        """Where the batch begins and ends that was read last, and its leader epoch."""
        self.rest: RecordBatch | None = None
        """What is left of a batch that was read in part."""
        self.nearby = NO_BROKER
        self.nearby_until_ms = 0.0
        self.retry_at_ms = 0.0
        self.failures = 0
        self.version = 0

    def __repr__(self) -> str:
        return f"<{self.name} at {self.position}>"

    @property
    def place(self) -> Place:
        """As brokers name it."""
        return self.topic_id, self.name.partition

    @property
    def has_records(self) -> bool:
        """Whether something is here that was not read."""
        return bool(self.buffered) or self.rest is not None

    def seek(self, offset: Offset, question: int | None = None) -> None:
        """Go on there, or where the answer to the question says; what is under way is nothing."""
        self.version += 1
        self.position = self.offset = offset
        self.begins = NO_OFFSET
        self.offset_epoch = NO_EPOCH
        self.question = question
        self.strayed = NO_OFFSET
        self.unchecked = False
        self.error = self.cause = None
        self.deleted = b""
        self.retry_at_ms, self.failures = 0.0, 0
        self.drop()

    def ends(self, high_watermark: Offset, log_start: Offset, epoch: Epoch) -> None:
        """Where the log ends and begins, as was told in that leadership: in one of them neither goes back (design 5.4), in the
        next one both may, for an election may have cut the log off.
        """
        if high_watermark == NO_OFFSET or epoch < self.ends_epoch:
            return
        if epoch > self.ends_epoch:
            self.ends_epoch, self.high_watermark, self.log_start = epoch, high_watermark, log_start
            return
        self.high_watermark = max(self.high_watermark, high_watermark)
        self.log_start = max(self.log_start, log_start)

    def epoch_before(self, offset: Offset) -> Epoch:
        """The leader epoch of the record before that offset; -1: it is not of the batch that was read last."""
        begin, end, epoch = self.decoded
        return epoch if begin < offset <= end else NO_EPOCH

    def drop(self) -> None:
        """Forget what was fetched and not read."""
        self.buffered.clear()
        self.buffered_bytes = 0
        self.rest = None

    def fail(self, error: TidelogError) -> None:
        """It cannot be read, until somebody seeks."""
        self.error = error
