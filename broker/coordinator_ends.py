"""How far logs go whose offsets a group has committed: of those that are led here at once, of others by asking.

    led here             the log itself
    led by another       start and end by one ListOffsets per leader, however many groups and partitions there are;
                         where the time of the first unread record is wanted, a Fetch per leader behind that, again for
                         those of which the answer had no room

What it keeps true: whoever asked is told once, when the last leader has answered or has not in time; what nobody has
said is missing, and never guessed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tidelog.broker.groups.lag import Ends
from tidelog.broker.groups.records import Place
from tidelog.broker.requests.context import Context
from tidelog.protocol.batch import walk
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.messages import (
    EARLIEST,
    LATEST,
    NO_SESSION,
    Fetch,
    FetchReply,
    ListOffsets,
    ListOffsetsReply,
    OffsetQuery,
    PartitionFetch,
    Reply,
    Request,
    split_attachment,
)
from tidelog.protocol.records import decode
from tidelog.protocol.types import NO_BROKER, NO_OFFSET, NO_TIMESTAMP, BrokerId, Buffer, Offset

Heard: TypeAlias = Callable[[Reply | TidelogError, Buffer], None]
"""Takes another broker's answer with its attachment, or why there is none."""
AskBroker: TypeAlias = Callable[[BrokerId, Request, int, Heard], None]
"""Ask another broker, within so many milliseconds, and hand on what it says."""

QUERIES_MAX = 60_000
"""How many offsets are asked for in one request."""
BATCH_BYTES = 64 * 1024
"""How much of a partition is read to learn when its first unread record was written."""
FETCH_BYTES = 4 * 1024 * 1024


def gather_ends(
    context: Context,
    ask: AskBroker | None,
    committed: Mapping[Place, Offset],
    timeout_ms: int,
    done: Callable[[dict[Place, Ends]], None],
    *,
    with_times: bool,
) -> None:
    """Tell `done` how far these logs go; `with_times`: and when the record at the committed offset was written."""
    gathering = _Gathering(done, committed, context.clocks.now_ms, context.clocks.now_ms() + timeout_ms, ask)
    by_leader: dict[BrokerId, list[Place]] = {}
    for place, offset in committed.items():
        found = ends_of(context, place, offset if with_times else NO_OFFSET)
        known = context.image.partitions.get(place)
        if found is not None:
            gathering.ends[place] = found
        elif known is not None and known.leader not in {NO_BROKER, context.replicas.around.me}:
            by_leader.setdefault(known.leader, []).append(place)
    for leader, places in by_leader.items():
        for begin in range(0, len(places), QUERIES_MAX // 2):
            gathering.ask_ends(leader, places[begin : begin + QUERIES_MAX // 2], with_times=with_times)
    gathering.over()


@dataclass(slots=True)
class _Gathering:
    """What was heard so far."""

    done: Callable[[dict[Place, Ends]], None]
    committed: Mapping[Place, Offset]
    now_ms: Callable[[], int]
    deadline_ms: int
    ask: AskBroker | None
    ends: dict[Place, Ends] = field(default_factory=dict)
    awaited: int = 1
    """Answers, and the end of the asking itself."""

    def over(self) -> None:
        """One answer less."""
        self.awaited -= 1
        if not self.awaited:
            self.done(self.ends)

    def ask_ends(self, leader: BrokerId, places: Sequence[Place], *, with_times: bool) -> None:
        """Where these begin and end, and then, if it is wanted, how old what was not read is."""

        def heard(reply: Reply | TidelogError, _: Buffer) -> None:
            unread = self._heard_ends(reply)
            if with_times:
                self._ask_times(leader, unread)

        queries = [OffsetQuery(*place, which) for place in places for which in (EARLIEST, LATEST)]
        self._ask(leader, ListOffsets(tuple(queries)), heard)

    def _ask(self, leader: BrokerId, request: Request, heard: Heard) -> None:
        """Ask, unless there is nobody to do so, or it took too long already; what `heard` asks is awaited as well."""

        def once(reply: Reply | TidelogError, attachment: Buffer) -> None:
            heard(reply, attachment)
            self.over()

        left_ms = self.deadline_ms - self.now_ms()
        if self.ask is not None and left_ms > 0:
            self.awaited += 1
            self.ask(leader, request, left_ms, once)

    def _heard_ends(self, reply: Reply | TidelogError) -> dict[Place, Offset]:
        """A leader has said where logs begin and end, two entries for each: where the first unread record of each is."""
        unread: dict[Place, Offset] = {}
        if isinstance(reply, ListOffsetsReply):
            for start, end in zip(reply.partitions[::2], reply.partitions[1::2], strict=False):
                if not start.error and not end.error and end.offset != NO_OFFSET:
                    place = start.topic_id, start.index
                    self.ends[place] = Ends(start.offset, end.offset)
                    committed = self.committed.get(place, NO_OFFSET)
                    first = max(
                        committed, start.offset
                    )  # what was deleted before it was read is lost, and no lag
                    if committed != NO_OFFSET and first < end.offset:
                        unread[place] = first
        return unread

    def _ask_times(self, leader: BrokerId, unread: dict[Place, Offset]) -> None:
        """When the records there were written: an answer has room for some of them, so until none is left."""

        def heard(reply: Reply | TidelogError, attachment: Buffer) -> None:
            rest = self._heard_times(reply, attachment, unread)
            if len(rest) < len(unread):
                self._ask_times(leader, rest)

        if unread:
            self._ask(leader, _fetch(unread), heard)

    def _heard_times(
        self, reply: Reply | TidelogError, attachment: Buffer, unread: Mapping[Place, Offset]
    ) -> dict[Place, Offset]:
        """A leader has sent records: of which partitions it had no room for any."""
        rest = dict(unread)
        if isinstance(reply, FetchReply) and not reply.error:
            parts = split_attachment(attachment, reply.partitions)
            for entry, part in zip(reply.partitions, parts, strict=True):
                place = entry.topic_id, entry.index
                offset = unread.get(place)
                if offset is None or not (entry.error or len(part)):
                    continue
                del rest[place]
                if not entry.error:
                    first_ms = first_time(part, offset)
                    self.ends[place] = replace(self.ends[place], first_unread_ms=first_ms)
        return rest


def _fetch(offsets: Mapping[Place, Offset]) -> Fetch:
    entries = tuple(PartitionFetch(*place, offset, BATCH_BYTES) for place, offset in offsets.items())
    return Fetch(0, 0, FETCH_BYTES, entries, session_epoch=NO_SESSION)


def ends_of(context: Context, place: Place, offset: Offset = NO_OFFSET) -> Ends | None:
    """Of a log that this broker leads, with the time of the record there; None: another leads it, or it is not known."""
    try:
        partition = context.partition(*place)
        high_watermark = partition.led(-1).known_high_watermark
        if high_watermark == NO_OFFSET:
            return None
        ends = Ends(partition.log.log_start, high_watermark)
        at = max(offset, ends.log_start)
        if offset == NO_OFFSET or at >= high_watermark:
            return ends
        return replace(ends, first_unread_ms=first_time(partition.log.read(at, 1, high_watermark).data, at))
    except TidelogError:
        return None  # it is unknown here, and said to be


def first_time(data: Buffer, offset: Offset) -> int:
    """When the first record at or behind that offset was written, by what stands in these batches; -1: none is there."""
    for begin, header in walk(data):
        if header.next_offset > offset and not header.is_control:
            columns = decode(data, begin)
            times = zip(columns.offsets, columns.timestamps, strict=True)
            found = next((time for at, time in times if at >= offset), NO_TIMESTAMP)
            if found != NO_TIMESTAMP:
                return found
    return NO_TIMESTAMP
