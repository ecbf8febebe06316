"""What must hold of a partition at every moment, whoever has crashed: nouns, each naming what it protects.

An `Oracle` sees all replicas of all brokers, after every turn of a broker's loop. It knows what was committed
because it saw each leader move its high watermark, and compares everything else with that.

    CommittedRecords     I-1, I-2, I-5   never change, never differ between replicas, cover all that was acknowledged
    LeaderCompleteness   I-3             who leads the newest epoch holds every committed record
    OneLeaderPerEpoch    I-11, I-44      a leader epoch belongs to one life of one broker
    MonotonicWatermark   I-6, I-76       a replica's high watermark goes back only with an unclean election, or where
                                         a log that is in no ISR begins anew because it was emptied (ADR 71), or because it
                                         lacks what is committed and may lack a tombstone (C7), or where nobody counts on
                                         a replica that is cut for damage (ADR 105)
    DeletedRecords       I-76, ADR 79    a process's log start never goes back, and who leads the newest epoch begins
                                         behind everything that a client was told to be deleted
    OrderOfOffsets       I-38            log start <= high watermark <= end of the log, recovery <= durable <= end
    PureEpochs           I-12            the epoch cache is what the batches say
    MatchingLogs         I-10            same offset and epoch: same bytes

A `History` knows what clients did and were told (history.py, users.py, probe.py):

    AcknowledgedRecords  I-1, I-74       are there, once, where their producer was told
    NothingTwice         I-69            of what was sent, whatever was repeated
    OrderOfSending       I-73            what a producer has sent first stands first
    ReadRecords          I-68, I-70, I-75  are committed, and for ever what was read
    OrderOfReading       I-72, I-77      offsets follow one another but for what is deleted
    OneLeaderPerEpoch    I-11            who answers for an epoch leads in it
    DeletedRecords       I-76, I-77      stay deleted, and nothing else is gone

A `Witness` counts on the disks of controllers (controllers_witness.py):

    CommittedMetadata    I-46, I-49      is on a majority of disks, and everybody's image is the sum of it
    OneLeaderPerEpoch    I-44            of the quorum, which holds all that is committed
    KeptPromises         I-45            a vote holds as long as its epoch, whatever becomes of the process
    OneLease             4.3             two hold leases together only until the older one must have noticed
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tidelog.broker.leadership import Leadership
from tidelog.broker.partition import Partition
from tidelog.controller.image import PartitionState
from tidelog.protocol.batch import walk
from tidelog.protocol.errors import DamagedLog
from tidelog.protocol.records import decode
from tidelog.protocol.types import NO_EPOCH, Epoch, Offset
from tidelog.replication.sessions import Place
from tidelog.storage.log import Log
from tidelog.storage.scan import Scan


class Violation(AssertionError):
    """An invariant does not hold; the message is the transcript's last line."""


COLUMNS = ("partition", "epoch", "in sync", "log start", "committed", "end")
"""What an `Oracle` tells of a replica."""

Life = tuple[int, int]
"""A broker's id, and which of its lives."""


@dataclass(slots=True)
class Committed:
    """What leaders have committed of one partition, batch by batch."""

    start: Offset = 0
    end: Offset = 0
    batches: dict[Offset, bytes] = field(default_factory=dict)
    leaders: dict[Epoch, Life] = field(default_factory=dict)
    newest_epoch: Epoch = -1
    deleted: Offset = 0
    """A client was told that everything below is deleted."""
    unseen: list[tuple[Offset, Offset]] = field(default_factory=list)
    """Committed and deleted in one turn of a leader's loop, before anybody could look."""
    begins: Offset = 0
    """Up to where some replica has deleted, whatever became of it."""
    compacted: bool = False
    """Some replica has compacted it: others may have copied what that has left."""


@dataclass(slots=True)
class Seen:
    """What a replica said when it was looked at last."""

    high_watermark: Offset
    end: Offset
    leads: Epoch
    """In which epoch; NO_EPOCH: it does not."""
    leadership: Leadership | None
    state: PartitionState | None
    log_start: Offset
    begun_anew: int
    repairs: int
    log: Log
    """Moved away and back again, a partition has another one, and had nothing in it."""


class Oracle:
    """Looks at replicas and remembers what was committed."""

    def __init__(self, *, unclean: bool = False) -> None:
        self.committed: dict[Place, Committed] = {}
        self._seen: dict[tuple[Life, Place], Seen] = {}
        self._unclean = unclean
        self.looks = 0
        self.counts: Counter[str] = Counter()
        """What happened, to show that the storm was one."""
        self._isrs: dict[Place, tuple[int, int]] = {}
        self._given_up: set[Place] = set()
        self.told: Callable[..., None] = lambda *_: None
        """Told of whose turn what has become of a replica, in `COLUMNS`; not of records that come and are committed."""

    def look(self, life: Life, place: Place, partition: Partition) -> None:
        """One replica, after its broker's loop has turned."""
        if place in self._given_up:
            return
        log, high_watermark, state = partition.log, partition.high_watermark, partition.state
        leadership = partition.leadership
        seen = self._seen.get((life, place))
        if seen is not None and seen.log is not log:
            seen = None
        if (
            seen is not None
            and seen.high_watermark == high_watermark
            and seen.end == log.end_offset
            and seen.leadership is leadership
            and seen.state is state
            and seen.log_start == log.log_start
            and seen.begun_anew == partition.begun_anew
            and seen.repairs == partition.repairs
        ):
            return
        leads = partition.leader_epoch if leadership is not None else NO_EPOCH
        now = Seen(
            high_watermark,
            log.end_offset,
            leads,
            leadership,
            state,
            log.log_start,
            partition.begun_anew,
            partition.repairs,
            log,
        )
        self.looks += 1
        self._order_of_offsets(life, partition)
        known = self.committed.setdefault(place, Committed())
        known.begins = max(known.begins, log.log_start)
        known.compacted = known.compacted or log.purge_floor >= 0
        if leads != NO_EPOCH and (seen is None or seen.leads != leads):
            self._becomes_leader(life, partition, known)
        if seen is not None and now.begun_anew > seen.begun_anew and _had_nothing(life, partition, seen):
            self.counts["emptied logs that began anew"] += 1
            seen = replace(seen, high_watermark=log.log_start, log_start=log.log_start)
        if (
            seen is not None
            and now.begun_anew > seen.begun_anew
            and _may_lack_a_tombstone(life, partition, known, seen)
        ):
            self.counts["logs that began anew for a tombstone"] += 1
            seen = replace(seen, high_watermark=min(seen.high_watermark, log.end_offset))
        if seen is not None and _was_cut_for_damage(life, partition, seen):
            seen = replace(seen, high_watermark=min(seen.high_watermark, log.end_offset))
        if seen is not None and high_watermark < seen.high_watermark and not self._unclean:
            raise Violation(
                f"MonotonicWatermark: {life} {partition} went back from {seen.high_watermark} to {high_watermark}"
            )
        before = max(seen.high_watermark, log.log_start) if seen is not None else log.log_start
        if high_watermark > before:
            # In one turn of its loop it may have moved its high watermark and lost its leadership.
            led = leads != NO_EPOCH or (seen is not None and seen.leads != NO_EPOCH)
            self._watermark_moved(life, partition, known, before, led=led)
        if seen is not None and log.end_offset < seen.end:
            self.counts["truncations"] += 1
        if state is not None:
            self._count_isr(place, state.partition_epoch, len(state.isr))
        self._deleted_stays_deleted(life, partition, known, seen)
        self._seen[life, place] = now
        self._tell(life, partition, seen, now)

    def _tell(self, life: Life, partition: Partition, seen: Seen | None, now: Seen) -> None:
        state, shorter = now.state, seen is not None and now.end < seen.end
        grown = seen is not None and seen.state is state and seen.leads == now.leads
        if grown and not shorter and seen is not None and seen.log_start == now.log_start:
            return
        what = "is cut" if shorter else "leads" if now.leads != NO_EPOCH else "follows"
        epoch, isr = (state.leader_epoch, state.isr) if state is not None else (NO_EPOCH, ())
        offsets = now.log_start, now.high_watermark, now.end
        self.told(life, what, str(partition.name), epoch, ",".join(map(str, sorted(isr))), *offsets)

    def _count_isr(self, place: Place, partition_epoch: int, size: int) -> None:
        newest, before = self._isrs.get(place, (-1, 0))
        if partition_epoch > newest:
            if newest >= 0 and size != before:
                self.counts["ISR shrinks" if size < before else "ISR expansions"] += 1
            self._isrs[place] = partition_epoch, size

    def give_up(self, place: Place) -> None:
        """Somebody is about to lead who lacks committed records: nothing of it can be relied upon any more."""
        self._given_up.add(place)

    def leader(self, place: Place, epoch: Epoch) -> Life | None:
        """Who was seen to lead in that epoch."""
        known = self.committed.get(place)
        return known.leaders.get(epoch) if known is not None else None

    def end(self, place: Place) -> Offset:
        """How far the partition is committed; nobody knows where it was given up."""
        if place in self._given_up:
            return 1 << 62
        known = self.committed.get(place)
        return known.end if known is not None else 0

    def begins(self, place: Place) -> Offset:
        """Up to where some replica has deleted: from there on no offset is out of range."""
        known = self.committed.get(place)
        return known.begins if known is not None else 0

    def deletion_acknowledged(self, place: Place, offset: Offset) -> None:
        """A client was told that everything below is deleted."""
        known = self.committed.setdefault(place, Committed())
        known.deleted = max(known.deleted, offset)

    def forgive_deletions(self) -> None:
        """A disk has lost its log starts: what it deleted may come back, until it is deleted once more (1.5)."""
        for known in self.committed.values():
            known.deleted = 0

    def acknowledged(self, place: Place, offset: Offset, value: bytes) -> None:
        """A producer was told that its record is committed."""
        known = self.committed.get(place, Committed())
        if offset < known.start:
            return
        batch = _covering(known, offset)
        if batch is None or value not in batch:
            raise Violation(
                f"CommittedRecords: acknowledged offset {offset} is not committed, end {known.end}"
            )

    def compare(self, life: Life, place: Place, partition: Partition) -> None:
        """All that a replica holds below its high watermark, byte for byte, and its epochs."""
        if place in self._given_up:
            return
        known = self.committed.get(place, Committed())
        self._same_bytes(life, partition, known, partition.log.log_start, partition.high_watermark)
        pure_epochs(life, partition.log)

    # ── the invariants ─────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def _order_of_offsets(life: Life, partition: Partition) -> None:
        log = partition.log
        ordered = log.log_start <= partition.high_watermark <= log.end_offset
        if not ordered or not log.recovery_point <= log.durable_offset <= log.end_offset:
            raise Violation(
                f"OrderOfOffsets: {life} {partition} recovery {log.recovery_point} {log.durable_offset}"
            )

    def _becomes_leader(self, life: Life, partition: Partition, known: Committed) -> None:
        epoch = partition.leader_epoch
        self.counts["elections"] += epoch not in known.leaders
        other = known.leaders.setdefault(epoch, life)
        if other != life:
            raise Violation(
                f"OneLeaderPerEpoch: {life} and {other} both led {partition.name} in epoch {epoch}"
            )
        if epoch >= known.newest_epoch:
            known.newest_epoch = epoch
            if partition.log.end_offset < known.end and not self._unclean:
                raise Violation(
                    f"LeaderCompleteness: {life} {partition} leads epoch {epoch}, {known.end} was committed"
                )
            self._same_bytes(life, partition, known, partition.log.log_start, known.end)

    def _deleted_stays_deleted(
        self, life: Life, partition: Partition, known: Committed, seen: Seen | None
    ) -> None:
        start = partition.log.log_start
        if seen is not None and start < seen.log_start and not self._unclean:
            raise Violation(f"DeletedRecords: {life} {partition} began at {seen.log_start} before")
        leads_now = partition.leadership is not None and partition.leader_epoch >= known.newest_epoch
        if leads_now and start < known.deleted and not self._unclean:
            raise Violation(f"DeletedRecords: {life} {partition} leads, {known.deleted} was deleted")

    def _watermark_moved(
        self, life: Life, partition: Partition, known: Committed, before: Offset, *, led: bool
    ) -> None:
        reached = partition.high_watermark
        self._same_bytes(life, partition, known, before, min(reached, known.end))
        if reached <= known.end:
            return
        if not led:
            raise Violation(
                f"CommittedRecords: {life} {partition} calls committed what no leader did, {known.end}"
            )
        if not known.batches:
            known.start = known.end = max(known.end, partition.log.log_start)
        start = max(known.end, partition.log.log_start)
        if start > known.end:
            known.unseen.append((known.end, start))
        for offset, batch in _batches(partition.log, start, reached):
            known.batches[offset] = batch
        known.end = reached

    def _same_bytes(
        self, life: Life, partition: Partition, known: Committed, start: Offset, end: Offset
    ) -> None:
        if start >= end:
            return
        for offset, batch in _batches(partition.log, start, end):
            if offset >= known.start and known.batches.get(offset) != batch and offset < known.end:
                if offset not in known.batches and any(a <= offset < b for a, b in known.unseen):
                    continue
                if known.compacted and _is_left_of(batch, known.batches.get(offset)):
                    continue
                raise Violation(
                    f"CommittedRecords: {life} {partition} differs at offset {offset} from what was committed"
                )


def _had_nothing(life: Life, partition: Partition, seen: Seen) -> bool:
    """Whether all had been deleted from a log that is in no ISR: "beginning anew lowers its high watermark" (ADR 71)."""
    state = partition.state
    return seen.log_start == seen.end and state is not None and life[0] not in state.isr


def _may_lack_a_tombstone(life: Life, partition: Partition, known: Committed, seen: Seen) -> bool:
    """Whether it lacks committed records, among which may be tombstones that nobody has any more, and is in no ISR."""
    state = partition.state
    return known.compacted and seen.end < known.end and state is not None and life[0] not in state.isr


def _was_cut_for_damage(life: Life, partition: Partition, seen: Seen) -> bool:
    """Whether it has given up what it could not vouch for, and nobody counted on it (ADR 105)."""
    state = partition.state
    if state is None or life[0] in {*state.isr, *state.elr, state.leader}:
        return False
    return partition.damage is not None or partition.repairs > seen.repairs


def _batches(log: Log, start: Offset, end: Offset) -> list[tuple[Offset, bytes]]:
    found: list[tuple[Offset, bytes]] = []
    offset = start
    while offset < end:
        piece = log.read(offset, 1 << 20, end)
        if not len(piece.data):
            break
        found += [
            (header.base_offset, bytes(piece.data[at : at + header.size])) for at, header in walk(piece.data)
        ]
        offset = piece.next_offset
    return found


def _is_left_of(batch: bytes, whole: bytes | None) -> bool:
    """Whether compaction has left these records of those, as they were."""
    if whole is None:
        return False
    left, all_of_it = decode(batch), decode(whole)
    were = dict(zip(all_of_it.offsets, zip(all_of_it.keys, all_of_it.values, strict=True), strict=True))
    are = zip(left.offsets, zip(left.keys, left.values, strict=True), strict=True)
    return all(were.get(offset) == record for offset, record in are)


def _covering(known: Committed, offset: Offset) -> bytes | None:
    base = max((at for at in known.batches if at <= offset), default=None)
    return known.batches[base] if base is not None and offset < known.end else None


def pure_epochs(life: Life, log: Log) -> None:
    """As far as the batches are what was written: a head does not say how far its batch reaches, its body's checksum does."""
    naive: list[tuple[Epoch, Offset]] = []
    for segment in log.segments:
        scan = Scan(segment, 0, segment.size, bodies=True)
        for _, header, _ in scan:
            if header.next_offset > log.log_start and (not naive or header.leader_epoch > naive[-1][0]):
                naive.append((header.leader_epoch, max(header.base_offset, log.log_start)))
        if scan.problem is not None:
            raise DamagedLog(f"{log} at byte {scan.position} of {segment.name}: {scan.problem}")
    if [tuple(entry) for entry in log.epochs.entries] != naive:
        raise Violation(f"PureEpochs: {life} {log} has {log.epochs}, its batches say {naive}")
