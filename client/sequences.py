"""Who the producer is to the brokers, how its batches are numbered, and what an answer to one means (design 5.3).

    NAMELESS ──ask──► ASKED ──given──► NAMED ──broken──► BROKEN ──ask, when nothing is unresolved──► ASKED

    answer                                         what becomes of the batch
    written, or DUPLICATE_SEQUENCE_NUMBER          done
    an error that time or another broker mends     sent again, byte for byte
    OUT_OF_ORDER_SEQUENCE_NUMBER,                  an earlier batch is unresolved: sent again behind it
        UNKNOWN_PRODUCER_ID                        else the numbering is broken: numbered anew, after a new epoch
    INVALID_PRODUCER_EPOCH                         the same, with a new producer id
    any other                                      failed; its number is missing now: the numbering is broken

What it keeps true (I-69, I-73):

* A batch that an attempt may have written is never sent under another number: it is sent under its own until a
  broker says what became of it, or it has failed. Only what was certainly refused each time is numbered anew.
* There is a new epoch only when no batch is unresolved: neither unanswered nor possibly written. Until then only such
  batches are sent. What is certainly not written waits for it, or was refused for good; whatever stands behind that is in
  no doubt either: a broker leaves no gap.
* Numbers of a lane follow one another, and begin at 0 with each identity.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final

from tidelog.client.batching import Batch, Lane
from tidelog.protocol.errors import (
    NONE,
    ConnectionFailed,
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    StorageError,
    TidelogError,
    UnknownProducerId,
    UnknownServerError,
)
from tidelog.protocol.messages import InitProducerId
from tidelog.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, SEQUENCES

PERHAPS_WRITTEN: Final = frozenset(
    {
        RequestTimedOut,
        NotEnoughReplicasAfterAppend,
        NotLeaderOrFollower,
        ConnectionFailed,
        StorageError,
        UnknownServerError,
    }
)
"""What may be said of a batch that is in a log nevertheless: it was appended, and then something went wrong."""

_NEVER_WRITTEN: Final = frozenset({MessageTooLarge, InvalidRecord, InvalidTimestamp})
"""What is said of a batch for good before anything of it is written."""

_MISSING: Final = frozenset({OutOfOrderSequenceNumber, UnknownProducerId})
"""A batch before this one is not in the log, says the broker."""


class Naming(Enum):
    """How far the producer is with its identity."""

    NAMELESS = "nameless"
    ASKED = "asked"
    NAMED = "named"
    BROKEN = "broken"


class Outcome(Enum):
    """What becomes of a batch that was answered."""

    DONE = "done"
    AGAIN = "again"
    FAILED = "failed"


class Sequences:
    """See the module. A producer without idempotence has no identity, and is NAMED from the beginning."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.naming = Naming.NAMELESS if enabled else Naming.NAMED
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.generation = 0
        """Counts identities."""
        self._anew = False
        """Whether the next identity has another id."""
        self._missing: dict[Lane, Batch] = {}
        """Of this identity: the first batch of each lane that has failed and is certainly not written."""

    # ── the identity ──────────────────────────────────────────────────────────────────────────────

    def ask(self, *, unresolved: bool) -> InitProducerId | None:
        """What to ask a broker now, if anything; `unresolved`: whether any batch is unanswered or perhaps written."""
        if self.naming is Naming.BROKEN and unresolved:
            return None
        if self.naming not in {Naming.NAMELESS, Naming.BROKEN}:
            return None
        self.naming = Naming.ASKED
        if self._anew:
            return InitProducerId()
        return InitProducerId(self.producer_id, self.producer_epoch)

    def given(self, producer_id: int, producer_epoch: int) -> None:
        """A broker has answered: numbers begin at 0."""
        assert self.naming is Naming.ASKED
        self.naming = Naming.NAMED
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.generation += 1
        self._anew = False
        self._missing.clear()

    def not_given(self) -> None:
        """Nobody has answered: it has to be asked again."""
        assert self.naming is Naming.ASKED
        self.naming = Naming.NAMELESS if self.producer_id == NO_PRODUCER_ID else Naming.BROKEN

    def break_off(self, *, anew: bool = False) -> None:
        """A number is missing for ever: a new epoch is needed before any new batch, or a new id."""
        if self.enabled:
            assert self.naming in {Naming.NAMED, Naming.BROKEN}
            self.naming = Naming.BROKEN
            self._anew = self._anew or anew

    # ── numbers ───────────────────────────────────────────────────────────────────────────────────

    def may_send(self, batch: Batch) -> bool:
        """Whether the batch can be sent now as far as its number goes."""
        if self.naming is Naming.NAMED:
            return True
        return self.naming is Naming.BROKEN and batch.uncertain

    def clear(self, lanes: Iterable[Lane]) -> None:
        """Once the numbering is broken: what is behind a batch that is certainly not written is not written either.

        That one has failed or is not sent under its number again, so brokers refuse those behind it, also what arrives late
        of them.
        """
        if self.naming is not Naming.BROKEN:
            return
        for lane in lanes:
            missing = self._missing.get(lane)
            for batch in lane.queue:
                if batch.generation != self.generation:
                    break
                if missing is None:
                    missing = None if batch.uncertain else batch
                elif batch.number > missing.number and batch.sequence > missing.sequence:
                    batch.uncertain = False  # not where numbers went round: who has forgotten it takes a 0

    def number(self, batch: Batch, codec: int) -> None:
        """The bytes to send: those that were sent before, or the batch with the lane's next number."""
        if batch.data is not None and (batch.generation == self.generation or not self.enabled):
            assert batch.sequence != NO_SEQUENCE or not self.enabled, f"{batch} has lost its number"
            return
        assert not batch.uncertain, f"{batch} may be written under {batch.sequence}: it keeps its number"
        if not self.enabled:
            batch.encode(codec, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
            return
        lane = batch.lane
        if lane.generation != self.generation:
            lane.generation, lane.next_sequence = self.generation, 0
        batch.encode(codec, self.producer_id, self.producer_epoch, lane.next_sequence)
        batch.generation = self.generation
        lane.next_sequence = (lane.next_sequence + batch.count) % SEQUENCES

    # ── answers ───────────────────────────────────────────────────────────────────────────────────

    def judge(self, batch: Batch, error: TidelogError | None) -> Outcome:
        """What becomes of a batch, now that an attempt has ended like that."""
        if error is None or error.code in {NONE, DuplicateSequenceNumber.code}:
            return Outcome.DONE
        batch.cause = error
        if self.enabled:
            if type(error) in _MISSING and _waits_for_another(batch.lane, batch):
                return Outcome.AGAIN
            if type(error) in _MISSING or type(error) is InvalidProducerEpoch:
                self.break_off(anew=type(error) is InvalidProducerEpoch)
                if batch.uncertain:
                    return Outcome.FAILED
                return Outcome.AGAIN
        if error.retriable:
            batch.uncertain = batch.uncertain or type(error) in PERHAPS_WRITTEN
            return Outcome.AGAIN
        batch.uncertain = batch.uncertain or type(error) not in _NEVER_WRITTEN
        return Outcome.FAILED

    def failed(self, batch: Batch) -> None:
        """The batch is given up: if it had a number, that is missing now."""
        numbered = batch.sequence != NO_SEQUENCE and batch.generation == self.generation
        if numbered and self.naming is not Naming.ASKED:
            self.break_off()
            if batch.shipment is None and not batch.uncertain:
                self._missing.setdefault(batch.lane, batch)


def _waits_for_another(lane: Lane, batch: Batch) -> bool:
    """Whether a batch with a lower number has not ended yet."""
    return any(
        other.number < batch.number and other.sequence != NO_SEQUENCE
        for other in (*lane.in_flight, *lane.queue)
    )
