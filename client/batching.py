"""Records on their way into batches: a pure machine, and the producer's hot path.

    append ──► a lane's open batch ──► its queue, oldest first ──► (`sending`) ──► finished or failed
               full, or taken by `sending`

What it keeps true:

* A record is put into the open batch of its partition, or refused before anything has changed.
* What is here and not ended never exceeds `buffer_memory` by more than one record that fits into nothing else;
  `append` answers None when there is no room, and who waited first is served first.
* Each record costs a few list appends: no object of its own but the small handle that the caller is given, no clock,
  no encoding. A batch has one end, told to all who wait for any of its records.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Generic, TypeVar, cast

from tidelog.client.partitioning import STEP_BYTES, TOGETHER, Hashes, a_round
from tidelog.client.sizes import RECORD_OVERHEAD, GivenHeaders, plain, size_of
from tidelog.protocol.batch import HEADER_SIZE
from tidelog.protocol.errors import InvalidRecord, MessageTooLarge, TidelogError, UnknownTopicOrPartition
from tidelog.protocol.records import decode, encode
from tidelog.protocol.types import (
    NO_BROKER,
    NO_EPOCH,
    NO_OFFSET,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BrokerId,
    Epoch,
    Offset,
    TopicId,
)

H = TypeVar("H")
"""What who appends a record is given: the batch and the record's place in it."""


class Batch:
    """Records of one partition that travel together, and what has become of them."""

    __slots__ = (
        "append_ms",
        "attempts",
        "base_offset",
        "cause",
        "clock_ms",
        "count",
        "data",
        "deadline_ms",
        "done",
        "error",
        "explicit",
        "generation",
        "headers",
        "keys",
        "lane",
        "listeners",
        "number",
        "opened_ms",
        "room",
        "sequence",
        "shipment",
        "size",
        "starts",
        "times",
        "told",
        "uncertain",
        "values",
    )

    def __init__(self, lane: "Lane", number: int, room: int, opened_ms: float, deadline_ms: float) -> None:
        self.lane = lane
        self.number = number
        """Batches of a lane are sent in the order of their numbers."""
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        """None: no record has one."""
        self.headers: dict[int, GivenHeaders] | None = None
        self.explicit: dict[int, int] | None = None
        """Times that records were given, by their places."""
        self.starts: list[int] = []
        self.times: list[int] = []
        """The wall clock: from `starts[i]` on records have `times[i]`."""
        self.clock_ms = -1
        self.room = room
        """How many bytes more it takes while it is open, before it has to be given more room."""
        self.size = room
        """How many bytes it counts for: while it is open, all the room that it was given."""
        self.count = 0
        """How many records, once it is closed."""
        self.opened_ms = opened_ms
        self.deadline_ms = deadline_ms
        self.data: bytearray | None = None
        """What is sent, byte for byte each time."""
        self.sequence = NO_SEQUENCE
        self.generation = -1
        """Which of the producer's identities numbered it."""
        self.shipment: object | None = None
        """The request that it is in, while that is unanswered."""
        self.attempts = 0
        self.uncertain = False
        """Whether an attempt may have written it although nobody said so."""
        self.cause: TidelogError | None = None
        """Why the last attempt failed."""
        self.done = False
        self.error: TidelogError | None = None
        self.base_offset: Offset = NO_OFFSET
        self.append_ms = NO_TIMESTAMP
        self.listeners: list[Callable[[], None]] | None = None
        self.told: set[int] | None = None
        """Places of failed records whose senders know it."""

    def __len__(self) -> int:
        return self.count or len(self.values)

    def __repr__(self) -> str:
        return f"<batch {self.number} of {self.lane}: {len(self)} records>"

    def mark(self, now_ms: int) -> None:
        """From the next record on it is that time."""
        self.clock_ms = now_ms
        self.starts.append(len(self.values))
        self.times.append(now_ms)

    def add_key(self, key: bytes | None, place: int) -> None:
        """The key of the record with that place, which is the last one."""
        if self.keys is None:
            self.keys = [None] * place
        self.keys.append(key)

    def add_more(self, place: int, timestamp_ms: int | None, headers: GivenHeaders | None) -> None:
        """What few records have."""
        if timestamp_ms is not None:
            self.explicit = self.explicit or {}
            self.explicit[place] = timestamp_ms
        if headers:
            self.headers = self.headers or {}
            self.headers[place] = headers

    def timestamp_ms(self, place: int) -> int:
        """A record's time."""
        if self.append_ms != NO_TIMESTAMP:
            return self.append_ms
        if self.explicit is not None and place in self.explicit:
            return self.explicit[place]
        return self.times[bisect_right(self.starts, place) - 1]

    def offset(self, place: int) -> Offset:
        """Where a record is; -1: nobody knows."""
        return self.base_offset + place if self.base_offset != NO_OFFSET else NO_OFFSET

    def encode(self, codec: int, producer_id: int, producer_epoch: int, sequence: int) -> bytearray:
        """The bytes, with these numbers; the columns are let go."""
        times: Sequence[int] | None = None
        if self.explicit is not None or len(self.times) > 1:
            times = self._all_times()
        values, keys = self.values, self.keys
        headers: Sequence[GivenHeaders] | None = None
        if self.headers is not None:
            headers = [self.headers.get(place, ()) for place in range(self.count)]
        if self.data is not None:  # numbered anew
            columns = decode(self.data)
            values, keys = columns.values, cast("list[bytes | None]", columns.keys)
            headers = columns.headers if columns.has_headers else None
        data = encode(
            values,
            keys,
            times,
            headers,
            codec=codec,
            now_ms=self.times[0],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
        )
        self.data, self.sequence = data, sequence
        self.values, self.keys, self.headers = [], None, None
        return data

    def _all_times(self) -> list[int]:
        times: list[int] = []
        for at, end in zip(self.times, [*self.starts[1:], self.count], strict=True):
            times += [at] * (end - len(times))
        for place, at in (self.explicit or {}).items():
            times[place] = at
        return times

    def listen(self, listener: Callable[[], None]) -> None:
        """Have it called when the batch has ended."""
        assert not self.done
        if self.listeners is None:
            self.listeners = []
        self.listeners.append(listener)

    def end(self, error: TidelogError | None) -> None:
        """It is written, or given up; whoever waits is told."""
        assert not self.done, f"{self} has ended already"
        self.done, self.error = True, error
        self.count = len(self)
        self.data, self.shipment = None, None
        self.values, self.keys, self.headers = [], None, None
        listeners, self.listeners = self.listeners, None
        for listener in listeners or ():
            listener()


class Lane:
    """One partition's way: the batch that is being filled, those that wait, those under way."""

    __slots__ = (
        "failures",
        "generation",
        "in_flight",
        "index",
        "leader",
        "leader_epoch",
        "next_sequence",
        "open",
        "queue",
        "retry_at_ms",
        "topic",
    )

    def __init__(self, topic: "TopicLanes", index: int) -> None:
        self.topic = topic
        self.index = index
        self.leader = NO_BROKER
        self.leader_epoch: Epoch = NO_EPOCH
        self.open: Batch | None = None
        self.queue: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.next_sequence = 0
        self.generation = -1
        self.failures = 0
        self.retry_at_ms = 0.0

    def __repr__(self) -> str:
        return f"{self.topic.name}-{self.index}"

    def put_back(self, batch: Batch) -> None:
        """It is to be sent again, in its turn."""
        at = 0
        for waiting in self.queue:
            if waiting.number > batch.number:
                break
            at += 1
        self.queue.insert(at, batch)


class TopicLanes:
    """A topic's partitions, as far as they are known."""

    __slots__ = ("_next", "_together", "batch_size", "check_here", "lanes", "name", "sticky", "topic_id")

    def __init__(self, name: str, topic_id: TopicId, together: int, check_here: Callable[[], None]) -> None:
        self._together = together
        self.check_here = check_here
        """Raises where nobody may wait for what becomes of a batch: `append` asks once while the clock stands still."""
        self.batch_size = 0
        """How large its batches may become."""
        self.name = name
        self.topic_id = topic_id
        self.lanes: list[Lane] = []
        self.sticky: Lane
        """Where records without keys go now."""
        self._next: list[int] = []
        """Where they go after that, the last one first."""

    def move_on(self, rng: Random, *, anew: bool = False) -> None:
        """Records without keys go to another partition; `anew`: leaders or partitions are others than before."""
        if anew or not self._next:
            self._next = a_round([lane.leader for lane in self.lanes], rng, self._together)
        index = self._next.pop()
        if not anew and self._next and self.lanes[index] is self.sticky:
            # It was the last of one round and would be the first of the next.
            self._next.insert(0, index)
            index = self._next.pop()
        self.sticky = self.lanes[index]

    def lane(self, index: int) -> Lane:
        """One partition; raises when there is none of that number."""
        if index is True or index is False or not hasattr(index, "__index__"):
            raise InvalidRecord(f"a partition is a number, not {index!r}")
        if not 0 <= index < len(self.lanes):
            raise UnknownTopicOrPartition(
                f"{self.name} has {len(self.lanes)} partitions, there is no partition {index}"
            )
        return self.lanes[index]


class Accumulator(Generic[H]):
    """All lanes of one producer, and the memory that they share."""

    def __init__(  # noqa: PLR0913 -- each by its name
        self,
        *,
        batch_size: int,
        buffer_memory: int,
        record_size_max: int,
        delivery_timeout_ms: float,
        rng: Random,
        handle: Callable[[Batch, int], H],
        now_ms: Callable[[], float],
        wall_ms: Callable[[], int],
        wake: Callable[[], None],
        clock_read: Callable[[], None],
        check_here: Callable[[], None] = lambda: None,
    ) -> None:
        self.topics: dict[str, TopicLanes] = {}
        self.active: dict[Lane, None] = {}
        """Lanes with anything to send."""
        self.outstanding: dict[Batch, None] = {}
        """Batches that have not ended, oldest first."""
        self.buffer_memory = buffer_memory
        self.room = buffer_memory
        """How many bytes more may come."""
        self.held = False
        """See `hold`."""
        self._taking = self.topics
        self._filled = 0
        """How many steps of batches have become full since others could run."""
        self.waiting = 0
        self.stale = True
        """Whether time has passed since the wall clock was read."""
        self._batch_size = min(batch_size, buffer_memory)
        self._record_size_max = min(record_size_max, buffer_memory)
        self._delivery_timeout_ms = delivery_timeout_ms
        self._rng = rng
        self._handle = handle
        self._now_ms = now_ms
        self._read_wall_ms = wall_ms
        self._wall_ms = -2
        self._wake = wake
        self._clock_read = clock_read
        self._check_here = check_here
        self._hashes = Hashes()
        self._number = 0

    # ── what is known of the cluster ──────────────────────────────────────────────────────────────

    def learn(
        self,
        name: str,
        topic_id: TopicId,
        leading: Sequence[tuple[BrokerId, Epoch]],
        batch_bytes_max: int = 0,
    ) -> list[Lane]:
        """Who leads the topic's partitions now, and what they take; the lanes whose leader is another one than before."""
        topic = self.topics.get(name)
        if topic is None:
            steps = max(self._batch_size // STEP_BYTES, 1)
            topic = TopicLanes(name, topic_id, max(TOGETHER // steps, 1), self._check_here)
        topic.topic_id = topic_id
        topic.batch_size = self._batch_size
        if batch_bytes_max:
            sure = batch_bytes_max - batch_bytes_max // 64 - HEADER_SIZE
            topic.batch_size = max(min(self._batch_size, sure), 1)
        moved = []
        for index, (leader, epoch) in enumerate(leading):
            if index == len(topic.lanes):
                topic.lanes.append(Lane(topic, index))
            lane = topic.lanes[index]
            if lane.leader != leader:
                moved.append(lane)
            lane.leader, lane.leader_epoch = leader, epoch
        gone = topic.lanes[len(leading) :]  # the topic was made anew, with fewer
        for lane in gone:
            lane.leader = NO_BROKER
        del topic.lanes[len(leading) :]
        if topic.lanes and (moved or gone or name not in self.topics):
            self.topics[name] = topic
            topic.move_on(self._rng, anew=True)
        return moved

    def partition_for(self, name: str, key: bytes | None) -> int:
        """Where a record with that key goes; without a key, where the next one would go."""
        topic = self.topics[name]
        return topic.sticky.index if key is None else self._hashes[key] % len(topic.lanes)

    # ── the hot path ──────────────────────────────────────────────────────────────────────────────

    def append(  # noqa: C901, PLR0912 -- the hot path: a call costs more than ten branches
        self,
        name: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: GivenHeaders | None = None,
        *,
        first: bool = False,
    ) -> H | None:
        """Put a record into its batch; None: not now, for the topic is not known or there is no room.

        `first`: this record is the next in the queue of those that wait.
        """
        topic = self._taking.get(name)
        if topic is None:
            topic = self.topics.get(name) if first else None
            if topic is None:
                return None
        if type(value) is bytes:
            size = len(value) + RECORD_OVERHEAD
        else:
            value, size = plain(value, "value")
        if key is None and partition is None:
            lane = topic.sticky
        else:
            if key is not None:
                if type(key) is not bytes:
                    key = plain(key, "key")[0] or b""
                size += len(key)
            if partition is not None:
                lane = topic.lane(partition)
            else:
                lane = topic.lanes[self._hashes[key or b""] % len(topic.lanes)]
        if timestamp_ms is not None or headers:
            size += size_of(timestamp_ms, headers or ())
        batch = lane.open
        if batch is None or batch.room < size or batch.clock_ms != self._wall_ms:
            batch = self._ready(lane, size, sticky=key is None and partition is None)
            if batch is None:
                return None
        batch.room -= size
        values = batch.values
        place = len(values)
        values.append(value)
        if key is not None or batch.keys is not None:
            batch.add_key(key, place)
        if timestamp_ms is not None or headers:
            batch.add_more(place, timestamp_ms, headers)
        return self._handle(batch, place)

    def extend(
        self, lane: Lane, values: list[bytes | None], keys: list[bytes | None] | None, size: int
    ) -> tuple[Batch, int] | None:
        """Put checked records of that size, which fit into one batch, behind one another; None: there is no room."""
        batch = self._ready(lane, size)
        if batch is None:
            return None
        batch.room -= size
        place = len(batch.values)
        batch.values += values
        if keys is not None or batch.keys is not None:
            batch.keys = [None] * place if batch.keys is None else batch.keys
            batch.keys += [None] * len(values) if keys is None else keys
        return batch, place

    def hold(self, *, back: bool) -> None:
        """Whether `append` refuses all but who is next in the queue: others wait already, or it is time to breathe."""
        self.held = back
        self._taking = {} if back else self.topics
        self._filled = 0

    def filled(self, lane: Lane) -> None:
        """Nothing more fits into the lane's open batch; after a few of them it is time to let others run."""
        self.close(lane)
        self._steps(1)

    def _steps(self, count: int) -> None:
        self._filled += count
        if self._filled >= TOGETHER and not self.held:
            self.hold(back=True)

    def room_in(self, lane: Lane) -> int:
        """How many bytes go into the lane's open batch, or into the one that would be opened."""
        batch, most = lane.open, lane.topic.batch_size
        if batch is None:
            return most
        return batch.room + max(min(most - batch.size, self.room), 0)

    def check_size(self, size: int, name: str) -> None:
        """Refuse a record that can never be sent."""
        if size > self._record_size_max:
            raise MessageTooLarge(
                f"a record of {size} bytes for {name}: at most {self._record_size_max} are taken "
                "(max.request.size, buffer.memory)"
            )

    def spread(self, topic: TopicLanes, keys: Iterable[bytes | None]) -> list[int | None]:
        """Each key's partition; None where there is no key."""
        count, hashes = len(topic.lanes), self._hashes
        return [None if key is None else hashes[key] % count for key in keys]

    def close(self, lane: Lane) -> None:
        """Nothing is added to the lane's open batch any more."""
        batch = lane.open
        assert batch is not None
        lane.open = None
        batch.count = len(batch.values)
        batch.size -= batch.room
        self.room += batch.room
        lane.queue.append(batch)
        topic = lane.topic
        if topic.sticky is lane:
            topic.move_on(self._rng)

    def ended(self, batch: Batch) -> None:
        """The batch is here no more: its room is free."""
        lane = batch.lane
        if lane.open is batch:
            lane.open = None
        self.room += batch.size
        del self.outstanding[batch]

    # ── how ───────────────────────────────────────────────────────────────────────────────────────

    def _ready(self, lane: Lane, size: int, *, sticky: bool = False) -> Batch | None:
        """The open batch that has room for so much, marked with the time; None: there is no room for another batch.

        `sticky`: any partition will do, so when this one's batch is full the next one's is filled.
        """
        if self.stale:
            self._check_here()
        batch = lane.open
        if batch is not None and batch.room < size and not self._grows(batch, size):
            self.check_size(size, lane.topic.name)
            self.filled(lane)
            if sticky:
                lane = lane.topic.sticky
            batch = lane.open
        if batch is None or batch.room < size:
            batch = self._open(lane, size)
            if batch is None:
                return None
        if self.stale:
            self._wall_ms = self._read_wall_ms()
            self.stale = False
            self._clock_read()
        if batch.clock_ms != self._wall_ms:
            batch.mark(self._wall_ms)
        return batch

    def _open(self, lane: Lane, size: int) -> Batch | None:
        """A new batch; it is given room step by step, and what is left of that is given back when it is closed."""
        self.check_size(size, lane.topic.name)
        room = max(min(lane.topic.batch_size, STEP_BYTES), size)
        if room > self.room:
            self._squeeze()
            if room > self.room:
                return None
        if lane.open is not None:
            self.close(lane)
        self.room -= room
        self._steps((room - 1) // STEP_BYTES)
        now_ms = self._now_ms()
        self._number += 1
        batch = Batch(lane, self._number, room, now_ms, now_ms + self._delivery_timeout_ms)
        lane.open = batch
        self.active[lane] = None
        self.outstanding[batch] = None
        self._wake()
        return batch

    def _grows(self, batch: Batch, size: int) -> bool:
        """Whether an open batch may take so much more; it is given the room."""
        lacking = size - batch.room
        left = min(batch.lane.topic.batch_size - batch.size, self.room)
        if lacking > left:
            return False
        more = min(max(lacking, STEP_BYTES), left)
        self.room -= more
        batch.room += more
        batch.size += more
        self._steps(-(-more // STEP_BYTES))
        return True

    def _squeeze(self) -> None:
        """Close all batches, for what they have taken and do not need."""
        for lane in self.active:
            if lane.open is not None:
                self.close(lane)

    def time_passes(self) -> None:
        """The clock has to be read again."""
        self.stale = True
        self._wall_ms = -2  # no batch is marked with it
