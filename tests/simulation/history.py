"""What all who use a simulated cluster did and were told, and what may not be in it.

acknowledged   told that it is committed: it is there once, at that offset
unknown        sent, and never told, or told that it failed: it may be there, once
read           committed, and for ever what stands at that offset
deleted        told so: nobody reads it who begins after that
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog.protocol.errors import TidelogError
from tidelog.protocol.types import NO_OFFSET, Epoch, Offset
from tidelog.replication.sessions import Place

Address = tuple[str, int]


@dataclass(slots=True)
class Sent:
    """One record that a producer sent."""

    producer: str
    place: Place
    value: bytes
    offset: Offset = -1
    """Where it was acknowledged; -1 if it was not."""
    somewhere: bool = False
    """Acknowledged, and nobody was told where: it had been written before."""


@dataclass(slots=True)
class History:
    """What all clients did and were told, in the order in which it happened."""

    sent: list[Sent] = field(default_factory=list)
    read: dict[tuple[Place, Offset], bytes] = field(default_factory=dict)
    acknowledged: int = 0
    reads: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    contradictions: list[str] = field(default_factory=list)
    leads: Callable[[Place, Epoch], Address | None] = lambda _place, _epoch: None
    """Where the broker is that leads in that epoch, by who sees it all."""
    committed: Callable[[Place], Offset] = lambda _: 1 << 62
    """How far a partition is known to be committed, by who sees it all."""
    begins: Callable[[Place], Offset] = lambda _: 1 << 62
    """Up to where some replica has deleted, by who sees it all."""
    deleted: Callable[[Place, Offset], None] = lambda _place, _offset: None
    """Who sees it all is told of a deletion that was acknowledged."""
    now_s: Callable[[], float] = lambda: 0.0
    """The time, one for all clients."""
    lease_s: float = 0.0
    """How long a leader that was hidden from its controller may still serve what was deleted (DECISIONS 3)."""
    asked: dict[Place, Offset] = field(default_factory=dict)
    """The largest offset below which somebody wanted records deleted."""
    deletions: list[tuple[float, Place, Offset]] = field(default_factory=list)
    """Those that were acknowledged, and when."""
    deletions_told: int = 0
    """How many were acknowledged in all."""
    forgiven: int = 0
    """How often disks have lost their log starts."""
    distrusted: Callable[[], bool] = lambda: False
    """Whether a disk has, and its leader may not know that yet."""

    def failed(self, error: TidelogError) -> None:
        """Somebody was told so, and of what has led to it."""
        cause: BaseException | None = error
        while isinstance(cause, TidelogError):
            self.errors[cause.name()] += 1
            cause = cause.__cause__

    def was_acknowledged(self, record: Sent, offset: Offset) -> None:
        """A producer was told that this is committed; -1: it was not told where."""
        record.offset = offset
        record.somewhere = offset < 0
        self.acknowledged += 1

    def was_served(self, place: Place, epoch: Epoch, address: Address) -> None:
        """Somebody asked for what is so in that epoch, and was answered: by its leader (I-11)."""
        leader = self.leads(place, epoch)
        if epoch >= 0 and leader != address:
            self.contradictions.append(
                f"OneLeaderPerEpoch: {address} answered for epoch {epoch}, in which {leader} leads (I-11)"
            )

    def wants_deleted(self, place: Place, offset: Offset) -> int:
        """A client is about to ask for it; what it is to show when it was told that it is done."""
        self.asked[place] = max(self.asked.get(place, 0), 1 << 62 if offset == NO_OFFSET else offset)
        return -1 if self.distrusted() else self.forgiven

    def was_deleted(self, place: Place, offset: Offset, ticket: int) -> None:
        """A client was told so; what a disk may have lost since it asked counts for nothing."""
        self.deletions_told += 1
        if ticket == self.forgiven and not self.distrusted():
            self.deletions.append((self.now_s(), place, offset))
            self.deleted(place, offset)

    def forgive(self) -> None:
        """A disk has lost its log starts: what was deleted until now may come back."""
        self.forgiven += 1
        self.deletions.clear()

    def floor(self, place: Place) -> Offset:
        """Where a read that begins now begins at the earliest: deleted records stay deleted (I-76, ADR 79)."""
        before = self.now_s() - self.lease_s
        return max((to for at, where, to in self.deletions if where == place and at < before), default=0)

    def was_out_of_range(self, place: Place, offset: Offset) -> None:
        """A consumer was told so: only of what somebody wanted deleted (I-77)."""
        if offset >= self.asked.get(place, 0):
            self.contradictions.append(
                f"DeletedRecords: offset {offset} was out of range and never deleted (I-77)"
            )

    def saw(self, place: Place, offset: Offset, value: bytes) -> None:
        """A consumer was given this."""
        self.reads += 1
        if offset >= self.committed(place):
            self.contradictions.append(f"ReadRecords: offset {offset} was read and is not committed (I-75)")
        before = self.read.setdefault((place, offset), value)
        if before != value:
            self.contradictions.append(
                f"ReadRecords: offset {offset} was read as {before!r} and as {value!r} (I-68)"
            )

    def check(
        self, final: dict[Place, dict[Offset, bytes]], starts: dict[Place, Offset] | None = None
    ) -> list[str]:
        """What contradicts the records that are there at the end; below `starts` they may be deleted."""
        wrong = list(self.contradictions)
        starts = starts or {}
        for place, records in final.items():
            start = starts.get(place, 0)
            times = Counter(records.values())
            wrong += [
                f"NothingTwice: {value!r} is there {count} times (I-69)"
                for value, count in times.items()
                if count > 1
            ]
            last: dict[str, Offset] = {}
            where = {value: offset for offset, value in records.items()}
            for sent in self.sent:
                if sent.place != place:
                    continue
                gone = sent.offset < start and sent.offset not in records
                if sent.offset >= 0 and not gone and records.get(sent.offset) != sent.value:
                    wrong.append(
                        f"AcknowledgedRecords: acknowledged {sent.value!r} is not at {sent.offset} (I-1, I-74)"
                    )
                if sent.somewhere and not start and sent.value not in where:
                    wrong.append(f"AcknowledgedRecords: acknowledged {sent.value!r} is nowhere (I-1)")
                if sent.value in where:
                    if where[sent.value] < last.get(sent.producer, -1):
                        wrong.append(
                            f"OrderOfSending: {sent.value!r} stands before what {sent.producer} sent earlier (I-73)"
                        )
                    last[sent.producer] = where[sent.value]
        wrong += [
            f"ReadRecords: {value!r} was read at offset {offset} and is not there (I-70)"
            for (place, offset), value in self.read.items()
            if final.get(place, {}).get(offset) != value
            and (offset >= starts.get(place, 0) or offset in final.get(place, {}))
        ]
        return wrong
