"""What a consumer reads next, from whom, and what an answer means: a pure machine (design 5.4).

One `Reader` per partition:

    no offset ──(where it begins is asked)──► READY ──fetch──► buffered ──take──► the user's
    the leader's epoch has changed: the offset is checked against the leader's epochs before the next fetch
    out of range, or cut off: by `auto_offset_reset`, or an error that stays until somebody seeks

What it keeps true (I-70, I-72):

* A position moves by reading and by seeking only. An answer to a question that was asked before a seek is nothing.
* Nothing is skipped: what cannot be read is an error with the partition and the offset, again each time.
* No more is fetched than `prefetch_bytes` and one answer of each broker, and as much again of partitions that somebody
  waits for alone; what paused partitions have does not count. A broker has one fetch at a time.
* While a partition has to wait because nobody reads what it has, its broker is never asked to hold an answer back: it
  can be asked for more as soon as there is room.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple, TypeAlias

from tidelog.client.answers import AnswerSizes
from tidelog.client.cluster import Topic
from tidelog.client.fetch_sessions import FetchSession, Place
from tidelog.client.options import ConsumerConfig
from tidelog.client.reader import Reader
from tidelog.client.records import RecordBatch, batch_from
from tidelog.client.retry import Advice, advice
from tidelog.protocol.batch import read_header, walk
from tidelog.protocol.errors import (
    CorruptMessage,
    LogTruncated,
    OffsetOutOfRange,
    TidelogError,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedFormat,
    error_of,
)
from tidelog.protocol.messages import (
    EARLIEST,
    LATEST,
    EpochEndFound,
    Fetch,
    FetchReply,
    OffsetFound,
    PartitionFetch,
    PartitionFetched,
    split_attachment,
)
from tidelog.protocol.records import Columns, decode
from tidelog.protocol.types import (
    NO_BROKER,
    NO_EPOCH,
    NO_OFFSET,
    BrokerId,
    Buffer,
    Epoch,
    Offset,
    TopicPartition,
)

FOREVER: Final = float("inf")
NEARBY_MS: Final = 300_000
"""How long a replica nearby is read from before the leader is asked again."""
SHUNNED_MS: Final = 5000
_PACE_MS: Final = 20
"""How often the others of a broker are asked while one of its partitions waits for its reader."""

Decode: TypeAlias = Callable[[Buffer, int], Columns]
"""How the batch that begins at that byte becomes columns."""

_POLICIES: Final = {"earliest": EARLIEST, "latest": LATEST}


class Asked(NamedTuple):
    """A fetch that is under way: of whom, and each reader with the state that it had: version, offset, the leader's epoch."""

    broker: BrokerId
    request: Fetch
    readers: dict[Place, tuple[Reader, int, Offset, Epoch]]
    at_ms: float
    """When."""


class Question(NamedTuple):
    """What a leader has to be asked about one reader before it can be fetched."""

    reader: Reader
    version: int
    timestamp: int | None
    """For ListOffsets; None: the reader's epoch is to be checked."""


class Fetching:
    """All readers of one consumer."""

    def __init__(self, config: ConsumerConfig, rack: str, backoff_ms: Callable[[int], float]) -> None:
        self.readers: dict[TopicPartition, Reader] = {}
        self.astray: dict[str, None] = {}
        """Topics of which the metadata is not good enough."""
        self.notes: list[tuple[TopicPartition, str]] = []
        """What should be logged: positions that were changed by `auto_offset_reset`."""
        self.records = 0
        """How many were read."""
        self.unpack: Decode = decode
        """How batches become columns: in another way for who makes other columns of them."""
        self.begin_anew: Callable[[Reader], None] = lambda reader: reader.seek(NO_OFFSET, reader.question)
        """Its topic was made anew before anything was read: in another way for who asks a group where to begin."""
        self.awaited: Collection[TopicPartition] = ()
        """Of these alone something is waited for; none: of all that are not paused."""
        self._config = config
        self._rack = rack
        self._backoff_ms = backoff_ms
        self._sizes = AnswerSizes(config.fetch_max_bytes)
        self._sessions: dict[BrokerId, FetchSession] = {}
        self._in_flight: set[BrokerId] = set()
        self._asking: set[tuple[TopicPartition, int]] = set()
        self._rested_until_ms: dict[BrokerId, float] = {}
        self._shunned_until_ms = 0.0
        """Until when no replica nearby is asked for: one has failed, and the leader does not know it yet."""

    @property
    def buffered_bytes(self) -> int:
        """What was fetched and not read."""
        return sum(reader.buffered_bytes for reader in self.readers.values())

    @property
    def lag(self) -> int:
        """How many committed offsets lie ahead of what was read, as far as answers have told."""
        return sum(
            max(each.high_watermark - each.position, 0)
            for each in self.readers.values()
            if each.position != NO_OFFSET
        )

    # ── which partitions ──────────────────────────────────────────────────────────────────────────

    def assign(self, names: Iterable[TopicPartition], question: int | None = None) -> None:
        """Read these as well; `question`: where to begin, if not by `auto_offset_reset`."""
        for name in names:
            if name not in self.readers:
                reader = self.readers[name] = Reader(name, question)
                if question is None:
                    self.begin(reader)

    def unassign(self, names: Iterable[TopicPartition]) -> None:
        """Read these no more."""
        for name in names:
            reader = self.readers.pop(name)
            reader.version += 1

    def begin(self, reader: Reader) -> None:
        """It has no position: by `auto_offset_reset`."""
        question = _POLICIES.get(self._config.auto_offset_reset)
        reader.seek(NO_OFFSET, question)
        if question is None:
            reader.fail(
                OffsetOutOfRange(f"{reader.name} has no position, and auto.offset.reset is none: seek first")
            )

    def learn(self, topic: Topic) -> None:
        """Who leads the topic's partitions now."""
        self.astray.pop(topic.name, None)
        for known in topic.partitions:
            reader = self.readers.get(TopicPartition(topic.name, known.index))
            if reader is None:
                continue
            if reader.topic_id != topic.id:
                self._recreated(reader, topic)
            if reader.leader != known.leader:
                reader.retry_at_ms = 0.0
            if known.leader_epoch != reader.leader_epoch:
                reader.unchecked = reader.offset_epoch != NO_EPOCH
                reader.nearby = NO_BROKER
            reader.leader, reader.leader_epoch = known.leader, known.leader_epoch

    def _recreated(self, reader: Reader, topic: Topic) -> None:
        had, at = reader.topic_id, reader.position
        reader.topic_id = topic.id
        if not had:
            return
        reader.high_watermark = reader.log_start = reader.said = NO_OFFSET
        reader.leader_epoch = reader.ends_epoch = NO_EPOCH
        if at == reader.begins and reader.error is None:
            self.begin_anew(reader)
        elif at != NO_OFFSET:
            reader.seek(NO_OFFSET)
            reader.deleted = had
            reader.fail(
                UnknownTopicId(
                    f"{reader.name} was at offset {at} of a topic that was deleted, and made anew since: "
                    "seek to where to begin in the new one"
                )
            )

    def gone(self, name: str) -> None:
        """There is no such topic any more."""
        for reader in self.readers.values():
            if reader.name.topic == name and reader.error is None:
                reader.fail(UnknownTopicOrPartition(f"{reader.name}: the topic does not exist"))

    # ── what to ask ───────────────────────────────────────────────────────────────────────────────

    def questions(self, now_ms: float) -> dict[BrokerId, list[Question]]:
        """What leaders have to be asked now, by leader; it counts as asked."""
        found: dict[BrokerId, list[Question]] = {}
        for reader in self.readers.values():
            if reader.error is not None or (reader.question is None and not reader.unchecked):
                continue
            if reader.leader == NO_BROKER:
                self.astray[reader.name.topic] = None
            elif reader.retry_at_ms <= now_ms and (reader.name, reader.version) not in self._asking:
                self._asking.add((reader.name, reader.version))
                question = Question(reader, reader.version, reader.question)
                found.setdefault(reader.leader, []).append(question)
        return found

    def target(self, reader: Reader, now_ms: float) -> BrokerId:
        """Who is asked for its records."""
        if reader.nearby != NO_BROKER and now_ms < reader.nearby_until_ms:
            return reader.nearby
        return reader.leader

    def brokers(self, now_ms: float) -> set[BrokerId]:
        """Whom there is anything to fetch from."""
        return {self.target(reader, now_ms) for reader in self.readers.values()} - {NO_BROKER}

    def wake_ms(self, now_ms: float) -> float:
        """When something can be asked that cannot be asked now, unless something happens before."""
        later = [reader.retry_at_ms for reader in self.readers.values() if reader.retry_at_ms > now_ms]
        later += [at for at in self._rested_until_ms.values() if at > now_ms]
        later += [
            each.nearby_until_ms for each in self.readers.values() if self.target(each, now_ms) != each.leader
        ]
        return min(later, default=FOREVER)

    def ask(self, broker: BrokerId, now_ms: float) -> Asked | None:
        """The next fetch from that broker; None: there is nothing to ask now, or one is under way."""
        if broker in self._in_flight or self._rested_until_ms.get(broker, 0.0) > now_ms:
            return None
        config = self._config
        crowded = self._crowded()
        wanted: dict[Place, PartitionFetch] = {}
        readers: dict[Place, tuple[Reader, int, Offset, Epoch]] = {}
        held_back = False
        rack = self._rack if self._shunned_until_ms <= now_ms else ""
        for reader in self.readers.values():
            if self.target(reader, now_ms) != broker:
                if reader.leader == NO_BROKER:
                    self.astray[reader.name.topic] = None
                continue
            if not self._can_be_asked(reader, now_ms):
                continue
            if crowded(reader) or reader.buffered_bytes >= config.max_partition_fetch_bytes:
                reader.full = held_back = True
                continue
            place = reader.place
            nearby = broker != reader.leader
            if nearby:
                rack = self._rack
            wanted[place] = PartitionFetch(
                *place,
                reader.offset,
                config.max_partition_fetch_bytes,
                current_leader_epoch=reader.leader_epoch,
                last_fetched_epoch=NO_EPOCH if nearby else reader.offset_epoch,
            )
            readers[place] = reader, reader.version, reader.offset, reader.leader_epoch
        if not wanted:
            return None
        said = self._sessions.setdefault(broker, FetchSession()).say(wanted)
        self._in_flight.add(broker)
        request = Fetch(
            0 if held_back else config.fetch_max_wait_ms,
            config.fetch_min_bytes,
            self._sizes.of(broker),
            said.partitions,
            isolation=config.isolation,
            client_rack=rack,
            session_id=said.session_id,
            session_epoch=said.session_epoch,
            forget=said.forget,
        )
        return Asked(broker, request, readers, now_ms)

    def outdated(self, asked: Asked, now_ms: float) -> bool:
        """Whether a fetch that its broker holds back lacks something that could be asked for by now."""
        if not asked.request.max_wait_ms:
            return False
        crowded = self._crowded()
        return any(
            asked.readers.get(reader.place, ())[:3] != (reader, reader.version, reader.offset)
            for reader in self.readers.values()
            if self.target(reader, now_ms) == asked.broker
            and self._can_be_asked(reader, now_ms)
            and not crowded(reader)
            and reader.buffered_bytes < self._config.max_partition_fetch_bytes
        )

    def _crowded(self) -> Callable[[Reader], bool]:
        """Whether there is enough already for that one to wait.

        What nobody reads keeps no room from what somebody waits for: it would wait for ever.
        """
        readers = [reader for reader in self.readers.values() if not reader.paused]
        most, awaited = self._config.prefetch_bytes, self.awaited
        all_of_them = sum(reader.buffered_bytes for reader in readers) >= most
        those = sum(reader.buffered_bytes for reader in readers if reader.name in awaited) >= most
        return lambda reader: those if reader.name in awaited else all_of_them

    def _can_be_asked(self, reader: Reader, now_ms: float) -> bool:
        return not (
            reader.paused
            or reader.offset == NO_OFFSET
            or reader.question is not None
            or reader.unchecked
            or reader.error is not None
            or reader.retry_at_ms > now_ms
        )

    # ── answers to fetches ────────────────────────────────────────────────────────────────────────

    def answered(self, asked: Asked, reply: FetchReply, data: Buffer, now_ms: float) -> bool:
        """Take what has come; whether there is anything for the user."""
        self._in_flight.discard(asked.broker)
        session = self._sessions[asked.broker]
        if reply.error:
            session.begin_anew()
            self._postpone(asked, error_of(reply.error, reply.message or ""), now_ms)
            return False
        try:
            pieces = split_attachment(data, reply.partitions)
        except TidelogError as error:
            session.begin_anew()
            self._postpone(asked, error, now_ms)
            return False
        session.answered(reply.session_id)
        starving = not any(reader.has_records for reader in self.readers.values())
        self._sizes.answered(
            asked.broker, asked.request.max_bytes, len(data), now_ms - asked.at_ms, starving=starving
        )
        told = {(entry.topic_id, entry.index) for entry in reply.partitions}
        for place, (reader, *_) in asked.readers.items():
            if place not in told:
                reader.failures = 0
        for entry, piece in zip(reply.partitions, pieces, strict=True):
            found = asked.readers.get((entry.topic_id, entry.index))
            if found is not None:
                reader, version, offset, epoch = found
                if reader.version == version and reader.offset == offset:
                    if not entry.error:
                        reader.ends(entry.high_watermark, entry.log_start, epoch)
                    self._take_in(reader, entry, piece, asked.broker, now_ms)
        if asked.request.max_wait_ms == 0 and not any(map(len, pieces)):
            self._rested_until_ms[asked.broker] = now_ms + _PACE_MS
        else:
            self._rested_until_ms.pop(asked.broker, None)
        return any(reader.has_records or reader.error for reader, *_ in asked.readers.values())

    def lost(self, asked: Asked, error: TidelogError, now_ms: float) -> None:
        """There is no answer, or the request as a whole was refused."""
        self._in_flight.discard(asked.broker)
        self._sessions[asked.broker].begin_anew()
        self._postpone(asked, error, now_ms)

    def _postpone(self, asked: Asked, error: TidelogError, now_ms: float) -> None:
        for reader, version, *_ in asked.readers.values():
            if reader.version == version:
                self._refused(reader, error, asked.broker, now_ms)

    def _take_in(
        self, reader: Reader, entry: PartitionFetched, piece: memoryview, broker: BrokerId, now_ms: float
    ) -> None:
        """What one partition answers."""
        if entry.error:
            self._refused(reader, error_of(entry.error, entry.message or ""), broker, now_ms)
            return
        reader.failures = 0
        if entry.diverging is not None:
            self._cut_off(reader, entry.diverging.epoch, entry.diverging.end_offset)
            return
        if entry.preferred_read_replica != NO_BROKER:
            reader.nearby = entry.preferred_read_replica
            reader.nearby_until_ms = now_ms + NEARBY_MS
        if len(piece):
            self._buffer(reader, piece)

    def _buffer(self, reader: Reader, piece: memoryview) -> None:
        """Keep the batches; where the next fetch begins is known by their headers."""
        offset, epoch, end, torn = reader.offset, reader.offset_epoch, 0, False
        try:
            for at, header in walk(piece):
                if header.next_offset > offset:
                    offset, epoch = header.next_offset, header.leader_epoch
                end = at + header.size
        except (CorruptMessage, UnsupportedFormat):
            end, torn = len(piece), True  # who reads that far is told
        if end == 0:
            reader.fail(
                CorruptMessage(f"{reader.name}: the answer at offset {reader.offset} holds no whole batch")
            )
            return
        if offset == reader.offset and not torn:
            return  # nothing of it was asked for (KAFKA-2334)
        reader.buffered.append((piece[:end], 0))
        reader.buffered_bytes += end
        reader.offset, reader.offset_epoch = offset, epoch

    def _refused(self, reader: Reader, error: TidelogError, broker: BrokerId, now_ms: float) -> None:
        """A fetch, or a question, has failed for that reader."""
        nearby = broker == reader.nearby and broker != reader.leader
        if nearby:
            reader.nearby = NO_BROKER  # the leader knows better
            self._shunned_until_ms = now_ms + SHUNNED_MS
        if isinstance(error, OffsetOutOfRange):
            if not nearby:
                self._out_of_range(reader, error, now_ms)
            return
        if not error.retriable:
            reader.fail(type(error)(f"{reader.name} at offset {reader.offset}: {error}"))
            return
        reader.cause = error
        reader.failures += 1
        reader.retry_at_ms = now_ms + self._backoff_ms(reader.failures)
        if advice(error) is Advice.REFRESH:
            self.astray[reader.name.topic] = None

    def _out_of_range(self, reader: Reader, error: TidelogError, now_ms: float) -> None:
        """Deleted, or cut off? Where the log begins tells."""
        if reader.has_records:  # first what is here, then it is asked again
            reader.retry_at_ms = now_ms + _PACE_MS
            return
        reader.strayed = reader.offset
        if self._config.auto_offset_reset == "none":
            reader.fail(
                OffsetOutOfRange(f"{reader.name}: {error}; auto.offset.reset is none: seek to where to go on")
            )
            return
        reader.question = EARLIEST

    # ── answers to questions ──────────────────────────────────────────────────────────────────────

    def found(self, question: Question, answer: OffsetFound, now_ms: float) -> None:
        """A leader has said where an offset is."""
        reader = self._asked_about(question)
        if reader is None:
            return
        if answer.error:
            self._refused(reader, error_of(answer.error, answer.message or ""), reader.leader, now_ms)
            return
        if reader.strayed == NO_OFFSET:
            reader.seek(answer.offset)
        else:
            self._strayed(reader, question.timestamp, answer.offset, now_ms)

    def _strayed(self, reader: Reader, which: int | None, found: Offset, now_ms: float) -> None:
        """Where the log begins, or ends, for one that was out of range: of another leader it may be in range."""
        strayed = reader.strayed
        if which == EARLIEST:
            if strayed >= found:
                reader.question = LATEST
                return
            if self._config.auto_offset_reset == "latest":
                reader.question, reader.strayed = LATEST, NO_OFFSET
                self._note(reader, f"offset {strayed} is out of range, reading goes on at the end")
                return
        elif strayed <= found:
            # Who leads by now begins earlier, or reaches further, than who has refused it. The epoch of what was read
            # before it stays: whether the logs part is told by that.
            reader.question, reader.strayed = None, NO_OFFSET
            reader.retry_at_ms = now_ms + _PACE_MS
            return
        reader.seek(found)
        self._note(reader, f"offset {strayed} is out of range, reading goes on at {found}")

    def checked(self, question: Question, answer: EpochEndFound, now_ms: float) -> None:
        """A leader has said where the epoch of the last batch ends."""
        reader = self._asked_about(question)
        if reader is None:
            return
        if answer.error:
            self._refused(reader, error_of(answer.error, answer.message or ""), reader.leader, now_ms)
            return
        reader.unchecked = False
        if answer.epoch < reader.offset_epoch or answer.end_offset < reader.offset:
            self._cut_off(reader, answer.epoch, answer.end_offset)

    def not_answered(self, question: Question, error: TidelogError, now_ms: float) -> None:
        """Nobody has answered it."""
        reader = self._asked_about(question)
        if reader is not None:
            self._refused(reader, error, reader.leader, now_ms)

    def _asked_about(self, question: Question) -> Reader | None:
        reader = question.reader
        self._asking.discard((reader.name, question.version))
        return reader if reader.version == question.version else None

    def _cut_off(self, reader: Reader, epoch: Epoch, end: Offset) -> None:
        """The leader's log parts from what was fetched, at `end` (KIP-320)."""
        at = reader.position
        if end == NO_OFFSET:
            end = 0
        if end >= at:  # nobody has read what was cut off
            reader.seek(at)
            return
        if self._config.auto_offset_reset == "none":
            fact = (
                f"{reader.name}: records up to offset {at} were read, the log parts at {end} (epoch {epoch})"
            )
            reader.drop()
            reader.fail(LogTruncated(f"{fact}: seek there to read what is there now", end))
            return
        reader.seek(end)
        self._note(reader, f"the log was cut off at {end} after {at} was read, reading goes on there")

    def _note(self, reader: Reader, what: str) -> None:
        self.notes.append((reader.name, what))

    # ── what the user gets ────────────────────────────────────────────────────────────────────────

    def take(self, reader: Reader) -> RecordBatch | None:
        """The next records of that partition; the position is behind them. Raises what stops it there.

        `give_back` undoes it for those that were not read.
        """
        batch, reader.rest = reader.rest, None
        while batch is None and reader.buffered:
            piece, at = reader.buffered[0]
            batch = self._decoded(reader, piece, at)
        if batch is not None:
            reader.position = batch.next_offset
            self.records += len(batch)
        elif reader.error is not None:
            raise reader.error.anew()
        return batch

    def _decoded(self, reader: Reader, piece: Buffer, at: int) -> RecordBatch | None:
        try:
            header = read_header(piece, at)
            columns = None if header.is_control or not header.record_count else self.unpack(piece, at)
        except TidelogError as error:
            # Fetched again when it is read again: it may have been damaged on the way.
            position = reader.position
            reader.seek(position)
            raise type(error)(
                f"{reader.name} cannot be read at offset {position}: {error}; seek beyond it to skip it"
            ) from error
        reader.buffered_bytes -= header.size
        if at + header.size < len(piece):
            reader.buffered[0] = piece, at + header.size
        else:
            reader.buffered.popleft()
        reader.decoded = header.base_offset, header.next_offset, header.leader_epoch
        batch = None if columns is None else batch_from(*reader.name, columns, reader.position)
        if batch is None:
            reader.position = max(reader.position, header.next_offset)
        return batch

    def give_back(self, reader: Reader, rest: RecordBatch) -> None:
        """These were not read after all."""
        reader.rest = rest
        reader.position = rest.offset
        self.records -= len(rest)

    def made_room(self, reader: Reader) -> bool:
        """Whether it was held back and need not be any longer."""
        if not reader.full or reader.buffered_bytes * 2 > self._config.max_partition_fetch_bytes:
            return False
        reader.full = False
        self._rested_until_ms.clear()
        return True
