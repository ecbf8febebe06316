"""DeleteRecords: where logs are to begin, answered when everybody begins there (design 2.15, I-76).

"Everybody" is who may lead without an unclean election: ISR, ELR, and who is about to join. Who joins later has
deleted as much by then. So what a client was told to be deleted does not come back with another leader (ADR 0079).
"""

from dataclasses import dataclass
from typing import Final, cast

from tidelog.broker.partition import Partition
from tidelog.broker.requests.context import Context
from tidelog.protocol.errors import (
    InvalidRequest,
    NotLeaderOrFollower,
    PolicyViolation,
    RequestTimedOut,
    TidelogError,
)
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import DeleteBefore, Deleted, DeleteRecords, DeleteRecordsReply
from tidelog.protocol.types import NO_EPOCH, Epoch, Offset, TopicId

CLEANUP_POLICY: Final = "cleanup.policy"


def delete_records(context: Context, incoming: Incoming) -> None:
    """Raise log starts; answered when all of them are on disk, and every replica has followed."""
    request = cast("DeleteRecords", incoming.message)
    keys = [(entry.topic_id, entry.index) for entry in request.partitions]
    if len(set(keys)) != len(keys):
        raise InvalidRequest("a partition is named twice")
    waiting = _Waiting(context, incoming, [None] * len(keys), {})
    for at, entry in enumerate(request.partitions):
        try:
            waiting.owed[at] = _begin(context, entry)
        except TidelogError as error:
            waiting.answers[at] = waiting.refused(entry, error)
        else:
            context.replicas.touched((entry.topic_id, entry.index))  # followers are to hear of it

    def saved() -> None:
        waiting.saved = True
        for key in keys:
            context.replicas.touched(key)

    if waiting.owed:
        context.save_log_starts(saved)
    context.replicas.wait(waiting, keys, context.clocks.now_ms() + request.timeout_ms)


def _begin(context: Context, entry: DeleteBefore) -> "_Owed":
    partition = context.partition(entry.topic_id, entry.index)
    partition.led(NO_EPOCH)
    _check_policy(context, entry.topic_id)
    partition.delete_before(entry.offset)
    return _Owed(entry, partition, partition.leader_epoch, partition.log.log_start)


def _check_policy(context: Context, topic_id: TopicId) -> None:
    """Of a topic that is only ever compacted nothing is deleted: it would look as if its keys had never been."""
    configs, name = context.image.configs, context.image.topics[topic_id].name
    policy = configs.get(("topic", name, CLEANUP_POLICY)) or configs.get(("cluster", "", CLEANUP_POLICY))
    if policy is not None and "delete" not in policy.split(","):
        raise PolicyViolation(f"{name} has {CLEANUP_POLICY}={policy}: its records are not deleted")


@dataclass(frozen=True, slots=True)
class _Owed:
    """A log start that was raised, and is not yet everybody's."""

    entry: DeleteBefore
    partition: Partition
    leader_epoch: Epoch
    wanted: Offset


@dataclass(slots=True)
class _Waiting:
    """The answer to one request, partition by partition."""

    context: Context
    incoming: Incoming
    answers: list[Deleted | None]
    owed: dict[int, _Owed]
    saved: bool = False
    """Whether the log starts are in their checkpoint: a restart must not bring back what was deleted."""

    def try_complete(self) -> bool:
        for at, owed in list(self.owed.items()):
            partition = owed.partition
            if partition.leader_epoch != owed.leader_epoch or partition.leadership is None:
                self._settle(at, self.refused(owed.entry, NotLeaderOrFollower(f"{partition}: another leads")))
            elif self.saved and (low := partition.low_watermark) >= owed.wanted:
                entry = owed.entry
                self._settle(at, Deleted(entry.topic_id, entry.index, low_watermark=low))
        if self.owed:
            return False
        self._answer()
        return True

    def give_up(self) -> None:
        for at, owed in list(self.owed.items()):
            why = "a replica has not followed" if self.saved else "it is not on disk"
            fact = f"{owed.partition} begins at {owed.wanted}, {why}"
            self._settle(at, self.refused(owed.entry, RequestTimedOut(fact)))
        self._answer()

    def fail(self, error: TidelogError) -> None:
        self.incoming.refuse(error)

    def refused(self, entry: DeleteBefore, error: TidelogError) -> Deleted:
        """The answer that nothing was deleted, or that nobody knows; with whom to ask instead."""
        where = entry.topic_id, entry.index
        hint = self.context.leader(*where)
        return Deleted(*where, error=error.code, message=str(error), current_leader=hint)

    def _settle(self, at: int, answer: Deleted) -> None:
        self.answers[at] = answer
        del self.owed[at]

    def _answer(self) -> None:
        self.incoming.reply(
            DeleteRecordsReply(tuple(answer for answer in self.answers if answer is not None))
        )
