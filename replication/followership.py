"""A replica that follows one leader through one leader epoch: what to fetch, and what an answer means.

The machine sees the log as numbers (`LogView`) and answers with one step, which the node carries out before it
asks for the next fetch:

    answer                                   step
    records, or none                         Append, then the high watermark and the log start of the answer
    diverging                                Truncate: cut where the logs part, use nothing else of the answer
    out of range                             AskStart, then by its answer StartAt, Wait or GoOffline
    out of range, with a place to refetch    StartAt
    my epoch is old                          StopFetching, until the metadata brings a new leadership
    the leader's or my metadata is behind    Wait, growing, and tell after ten in a row
    the leader's disk or bytes are bad       Wait a second, and tell after ten in a row
    somebody else has my broker id           CheckRegistration
    what must not be                         GoOffline: leave the directory as it is, an operator decides

What it keeps true (docs/REPLICATION.md; I-5, I-6, I-10, I-13, I-21):

* An answer counts only for the fetch that it answers: same leader epoch, end and last epoch (KAFKA-13207).
* The high watermark never goes back but by a permitted truncation, is never above the end, and is never taken
  from an answer whose records were not appended (KAFKA-14704).
* What is below the high watermark is cut only if an unclean election came after it was written; else the
  replica goes offline: silent loss becomes a loud stop (D10).
* Each round of truncation lowers the end of the log or its last epoch: no endless loop (KAFKA-10706).
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from tidelog.protocol import errors
from tidelog.protocol.messages import PartitionFetched
from tidelog.protocol.types import NO_EPOCH, NO_OFFSET, BrokerId, Epoch, Offset
from tidelog.storage.epochs import EpochEnd, LeaderEpochs, divergence

BACKOFF_MS: Final = 100
BACKOFF_MAX_MS: Final = 1000
BAD_BYTES_MS: Final = 1000
TOLD_AFTER: Final = 10


class LogView(NamedTuple):
    """What the machine needs to know of the log at this moment."""

    log_start: Offset
    end_offset: Offset
    high_watermark: Offset
    epochs: LeaderEpochs


class Leading(NamedTuple):
    """Whom to follow, and whether it may have been elected without all that was committed."""

    leader: BrokerId
    leader_epoch: Epoch
    unclean_epoch: Epoch = NO_EPOCH
    """The leader epoch of the last unclean election."""


class Asked(NamedTuple):
    """A fetch as it was sent; its answer is judged against it."""

    leader_epoch: Epoch
    fetch_offset: Offset
    last_fetched_epoch: Epoch


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records, if there are any; then take over what is committed and where the log starts."""

    high_watermark: Offset
    """As the leader told it; -1: it does not know yet."""
    log_start: Offset
    purge_floor: Offset = NO_OFFSET
    """What is to be taken over: the leader's for who copies its log from the beginning, for what it lacks, the copy
    lacks; 0 for all others if there may be gaps."""
    gaps: bool = False
    """The leader's log has been compacted: offsets may be missing."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log to end at `offset`."""

    offset: Offset
    loses_committed: bool
    """After an unclean election: tell it as data loss, and the high watermark comes down to `offset`."""


@dataclass(frozen=True, slots=True)
class StartAt:
    """Nothing here is of use: empty the log and begin at `offset`, which is then the high watermark too."""

    offset: Offset
    loses_committed: bool = False
    """After an unclean election: tell it as data loss."""


@dataclass(frozen=True, slots=True)
class AskStart:
    """Ask the leader where its log starts and ends, then call `on_range`."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Nothing to do: fetch on."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do not fetch this partition for a while."""

    delay_ms: int
    tell: str | None = None
    """What has gone on for too long."""


@dataclass(frozen=True, slots=True)
class StopFetching:
    """Until the metadata names another leadership."""


@dataclass(frozen=True, slots=True)
class CheckRegistration:
    """If the newest registration of this broker id is not this process's, another process has taken it."""


@dataclass(frozen=True, slots=True)
class GoOffline:
    """Keep what is there and serve nothing of it."""

    why: str


Step: TypeAlias = (
    Append | Truncate | StartAt | AskStart | Continue | Wait | StopFetching | CheckRegistration | GoOffline
)

_BAD_BYTES: Final = frozenset(error.code for error in (errors.StorageError, errors.CorruptMessage))


class Followership:
    """Following one leader in one leader epoch."""

    __slots__ = ("_asked_at", "_bad", "_cut_before", "_failures", "leading")

    def __init__(self, leading: Leading) -> None:
        self.leading = leading
        self._failures = 0
        self._bad = 0
        self._asked_at: Offset = NO_OFFSET
        self._cut_before: tuple[Offset, Epoch] | None = None
        """The end and the last epoch before the last truncation: the next one must find less."""

    def __repr__(self) -> str:
        return f"<follows {self.leading.leader} in epoch {self.leading.leader_epoch}>"

    def adopt(self, leading: Leading) -> None:
        """Something else than the leadership has changed: go on as before (KAFKA-13790)."""
        assert leading[:2] == self.leading[:2], (leading, self.leading)
        self.leading = leading

    def ask(self, log: LogView) -> Asked:
        """The fetch to send now: from the end of the log, with the epoch of its last batch (KAFKA-15510)."""
        if log.end_offset > self._asked_at != NO_OFFSET:
            # What came was appended: only now it is known to have been good.
            self._failures = self._bad = 0
            self._cut_before = None
        self._asked_at = log.end_offset
        return Asked(self.leading.leader_epoch, log.end_offset, log.epochs.latest)

    def is_current(self, asked: Asked, log: LogView) -> bool:
        """Whether an answer to that fetch still says something about this log.

        By the last epoch as well: cut and grown again, a log may end where it ended before and be another one.
        """
        return asked == (self.leading.leader_epoch, log.end_offset, log.epochs.latest)

    def on_fetched(self, asked: Asked, answer: PartitionFetched, log: LogView) -> Step:
        """What an answer means. Only for an answer that `is_current`."""
        assert self.is_current(asked, log), (asked, self, log)
        if answer.error:
            return self._on_error(answer)
        if answer.diverging is not None:
            parting = EpochEnd(answer.diverging.epoch, answer.diverging.end_offset)
            return self._on_diverging(parting, answer.log_start, log)
        if not answer.records_size:
            self._failures = self._bad = 0
        floor = answer.purge_floor
        if asked.fetch_offset > answer.log_start:
            # Every tombstone below its floor was seen here. What is copied has gaps all the same: 0 says so to
            # whoever copies from here one day.
            floor = min(floor, 0)
        return Append(answer.high_watermark, answer.log_start, floor, answer.purge_floor != NO_OFFSET)

    def on_failure(self, what: str = "") -> Wait:
        """The leader could not be asked, or its batches did not continue the log: wait, longer each time."""
        self._failures += 1
        told = what and self._failures % TOLD_AFTER == 0
        return Wait(
            min(BACKOFF_MS << min(self._failures - 1, 10), BACKOFF_MAX_MS),
            f"{self._failures} times in a row: {what}" if told else None,
        )

    def on_range(self, leader_epoch: Epoch, start: Offset, end: Offset, log: LogView) -> Step:
        """Where the leader's log starts and ends, after it said that my place is out of range (3.6)."""
        if leader_epoch != self.leading.leader_epoch:
            return Continue()  # never guess: the answer is about another leadership
        if start > end:
            return self.on_bad_bytes(f"the leader's log starts at {start} and ends at {end}")
        if log.end_offset < start:
            return StartAt(start)  # deleted by retention or on request: D10 does not apply
        if log.epochs.latest == NO_EPOCH:
            # Not below the start, so it was above the end, wherever that is by now. What is deleted here was
            # committed, and this leader lacks it: fetching on once it has grown would hide that.
            return self._losing(
                StartAt(start, loses_committed=True), log, f"the leader's log ended before {log.end_offset}"
            )
        if log.end_offset > end:
            return GoOffline(
                f"my log ends at {log.end_offset}, the leader's at {end}, and they have the same epochs"
            )
        return self.on_failure()

    def not_cut(self) -> None:
        """The cut that was called for could not be made yet: to be told so once more is no lack of progress."""
        self._cut_before = None

    def new_high_watermark(self, told: Append, log: LogView) -> Offset:
        """What is committed, after the records of the answer were appended (3.3).

        What the leader has deleted was committed, also when it does not know yet what else is (ADR 0079).
        """
        return max(log.high_watermark, min(max(told.high_watermark, told.log_start), log.end_offset))

    def new_log_start(self, told: Offset, log: LogView) -> Offset:
        """Where the log starts: as the leader says, but never above what is committed by now."""
        return max(log.log_start, min(told, log.high_watermark))

    def _on_error(self, answer: PartitionFetched) -> Step:
        code = answer.error
        if code == errors.OffsetOutOfRange.code:
            return StartAt(answer.refetch_from) if answer.refetch_from != NO_OFFSET else AskStart()
        if code == errors.FencedLeaderEpoch.code:
            return StopFetching()
        if code == errors.StaleBrokerEpoch.code:
            return CheckRegistration()
        if code in _BAD_BYTES:
            return self.on_bad_bytes(_said(answer))
        # The leader's or my metadata is behind, its log is being made, or only time can help.
        return self.on_failure(_said(answer))

    def on_bad_bytes(self, what: str) -> Wait:
        """The leader's disk or the batches themselves are bad."""
        self._bad += 1
        told = self._bad % TOLD_AFTER == 0
        return Wait(BAD_BYTES_MS, f"{self._bad} times in a row: {what}" if told else None)

    def _on_diverging(self, leader: EpochEnd, leader_start: Offset, log: LogView) -> Step:
        if leader.epoch < 0 or leader.end < 0 or leader_start < 0:
            return self.on_bad_bytes(f"the logs are said to part at {leader}")
        self._failures = self._bad = 0
        place = log.end_offset, log.epochs.latest
        if self._cut_before is not None and place >= self._cut_before:
            return GoOffline(
                f"truncation makes no progress: {place} after {self._cut_before}, leader {leader}"
            )
        cut = divergence(log.epochs, log.end_offset, leader)
        if cut >= log.end_offset:
            return GoOffline(f"the leader says that {leader} diverges, my log to {place} does not")
        self._cut_before = place
        if cut >= log.high_watermark:
            return Truncate(cut, loses_committed=False)
        step: Step = Truncate(cut, loses_committed=True)
        if cut < log.log_start:
            # Beginning at the cut would keep a hole below it: what I have deleted was of another history (ADR 0071).
            step = StartAt(leader_start, loses_committed=True)
        return self._losing(step, log, f"the leader's log parts from mine at {cut}")

    def _losing(self, step: Step, log: LogView, why: str) -> Step:
        """D10: to lose what is committed takes an unclean election after it was written, and nothing else excuses it."""
        if self.leading.unclean_epoch > log.epochs.latest:
            return step
        return GoOffline(
            f"{why}, below {log.high_watermark} which is committed, "
            f"and no unclean election came after epoch {log.epochs.latest}"
        )


def _said(answer: PartitionFetched) -> str:
    """Why the leader refused, in its own words where it has some."""
    known = errors.BY_CODE.get(answer.error)
    return answer.message or (known.name() if known is not None else f"error {answer.error}")
