"""Every error once: its code, whether trying again can help, and the way out.

Raised in a node, carried as `(code, message)`, raised again as the same class on the other side. A message
is a fact with its numbers; the class's docstring is the way out. Codes below 1000 are Kafka's, so that
operators can look them up; ours begin at 1000, and those from 1010 on never travel.
"""

from collections.abc import Mapping
from typing import ClassVar, Final, Self

NONE: Final = 0
"""The code that says: no error."""

BY_CODE: Final[dict[int, type["TidelogError"]]] = {}
"""Every error that there is, by its code."""


class TidelogError(Exception):
    """Whatever tidelog refuses or fails at, with its code and whether trying again can help."""

    code: ClassVar[int]
    retriable: ClassVar[bool]

    def __init_subclass__(cls, *, code: int, retriable: bool = False) -> None:
        assert code not in BY_CODE, f"{cls.__name__} and {BY_CODE[code].__name__} share {code}"
        cls.code, cls.retriable = code, retriable
        BY_CODE[code] = cls

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    @classmethod
    def name(cls) -> str:
        """The error's name as Kafka's users know it: `NOT_LEADER_OR_FOLLOWER`."""
        return "".join("_" + c if c.isupper() and i else c for i, c in enumerate(cls.__name__)).upper()

    @classmethod
    def way_out(cls) -> str:
        """What to do about it, in one sentence."""
        return " ".join((cls.__doc__ or "").split())

    def __str__(self) -> str:
        return self.message or self.way_out()

    def anew(self) -> Self:
        """The same, with all that it says, to be raised once more: one that is raised twice would grow by both tracebacks."""
        fresh = type(self)(self.message)
        fresh.__dict__.update(self.__dict__)
        fresh.__dict__.pop("__notes__", None)
        for note in getattr(self, "__notes__", ()):
            fresh.add_note(note)
        fresh.__cause__ = self.__cause__
        return fresh


class UnknownServerError(TidelogError, code=-1):
    """The broker met something that it has no name for; its log has the details."""


class OffsetOutOfRange(TidelogError, code=1):
    """The offset lies outside what the log holds: seek to the earliest or latest offset, or set
    auto_offset_reset.
    """

    def __init__(self, message: str = "", refetch_from: int = -1) -> None:
        super().__init__(message)
        self.refetch_from = refetch_from
        """Where a replica is to empty its log and begin again; -1: nothing says that it must."""


class CorruptMessage(TidelogError, code=2, retriable=True):
    """A batch does not match its checksum: it was damaged on the way or on a disk; send or fetch it again."""


class UnknownTopicOrPartition(TidelogError, code=3, retriable=True):
    """No such topic or partition here: create it, or check the name; a topic just created takes a moment."""


class LeaderNotAvailable(TidelogError, code=5, retriable=True):
    """The partition has no leader at this moment: try again; `tidelog topic describe` shows which replicas
    are missing.
    """


class NotLeaderOrFollower(TidelogError, code=6, retriable=True):
    """Another broker leads this partition: refresh the metadata and ask that one."""


class RequestTimedOut(TidelogError, code=7, retriable=True):
    """There was no answer in time. What was sent may have been done: a retry by an idempotent producer is safe."""


class ReplicaNotAvailable(TidelogError, code=9, retriable=True):
    """This replica cannot serve reads now: ask the leader."""


class MessageTooLarge(TidelogError, code=10):
    """The batch is larger than `max.message.bytes` allows: send smaller batches, or raise the limit."""


class OffsetMetadataTooLarge(TidelogError, code=12):
    """The metadata of a committed offset is too long: shorten it."""


class CoordinatorLoadInProgress(TidelogError, code=14, retriable=True):
    """The coordinator is still loading its state: try again shortly."""


class CoordinatorNotAvailable(TidelogError, code=15, retriable=True):
    """No coordinator can be named now: try again; the internal topic may lack replicas."""


class NotCoordinator(TidelogError, code=16, retriable=True):
    """Another broker coordinates this group or transaction: look it up again."""


class InvalidTopic(TidelogError, code=17):
    """The topic's name is not allowed: take another one."""


class NotEnoughReplicas(TidelogError, code=19, retriable=True):
    """Fewer replicas are in sync than `min.insync.replicas` asks for; nothing was written: bring brokers
    back.
    """


class NotEnoughReplicasAfterAppend(TidelogError, code=20, retriable=True):
    """The record was written, but fewer replicas than `min.insync.replicas` have it: it may yet be
    committed.
    """


class InvalidRequiredAcks(TidelogError, code=21):
    """`acks` is 0, 1 or "all", and an idempotent producer needs "all"."""


class UnknownMemberId(TidelogError, code=25):
    """The group does not know this member: join again."""


class InvalidTimestamp(TidelogError, code=32):
    """The timestamp lies outside what the topic accepts: correct the clock or the timestamp."""


class UnsupportedVersion(TidelogError, code=35):
    """The other side does not speak this version or request: upgrade the older of the two."""

    correlation: int = 0
    """The request's or reply's, when it was read from a head with an unknown message."""


class TopicAlreadyExists(TidelogError, code=36):
    """A topic of that name exists: choose another name, or use it (`--if-not-exists`)."""


class InvalidPartitions(TidelogError, code=37):
    """The number of partitions is not possible: it is at least 1 and can only grow."""


class InvalidReplicationFactor(TidelogError, code=38):
    """So many replicas are not possible: start brokers or ask for fewer, each needs a live one of its own."""


class InvalidReplicaAssignment(TidelogError, code=39):
    """The assignment names a broker twice, an unknown broker, or none: correct it."""


class InvalidConfig(TidelogError, code=40):
    """A configuration value is not allowed: the message says which and what would be."""


class NotController(TidelogError, code=41, retriable=True):
    """Another controller is active: ask that one."""


class InvalidRequest(TidelogError, code=42):
    """The request contradicts itself or the protocol: the message says where."""


class PolicyViolation(TidelogError, code=44):
    """The topic's policy forbids this: change the policy or the request."""


class OutOfOrderSequenceNumber(TidelogError, code=45):
    """A sequence number was skipped: an earlier batch of this producer is missing."""


class DuplicateSequenceNumber(TidelogError, code=46):
    """This batch was written long ago: it is there once, its offset is no longer known."""


class InvalidProducerEpoch(TidelogError, code=47):
    """A newer instance of this producer exists: this one must stop or begin anew."""


class InvalidTxnState(TidelogError, code=48):
    """The transaction is not in a state that allows this: begin, commit or abort first."""


class InvalidProducerIdMapping(TidelogError, code=49):
    """The producer id does not belong to this transactional id: initialise the producer again."""


class InvalidTransactionTimeout(TidelogError, code=50):
    """The transaction timeout is above `transaction.max.timeout.ms`: choose a shorter one."""


class ConcurrentTransactions(TidelogError, code=51, retriable=True):
    """The previous transaction of this producer is still being ended: try again."""


class TransactionCoordinatorFenced(TidelogError, code=52):
    """A newer coordinator has taken over: this one's markers are refused."""


class OperationNotAttempted(TidelogError, code=55, retriable=True):
    """Nothing was tried because another part of the request failed: try again."""


class StorageError(TidelogError, code=56, retriable=True):
    """The broker's disk refused: its log says which file; another replica may lead meanwhile."""


class UnknownProducerId(TidelogError, code=59):
    """The broker has forgotten this producer: begin again with a new epoch."""


class NonEmptyGroup(TidelogError, code=68):
    """The group still has members: stop them first."""


class GroupIdNotFound(TidelogError, code=69):
    """No such group: check the name with `tidelog group list`."""


class FetchSessionIdNotFound(TidelogError, code=70, retriable=True):
    """The broker has forgotten this fetch session: begin a new one."""


class InvalidFetchSessionEpoch(TidelogError, code=71, retriable=True):
    """A fetch of this session was lost or repeated: begin a new one."""


class FencedLeaderEpoch(TidelogError, code=74, retriable=True):
    """The request's leader epoch is older than the broker's: refresh the metadata."""


class UnknownLeaderEpoch(TidelogError, code=75, retriable=True):
    """The request's leader epoch is newer than the broker's: wait until the broker has caught up."""


class StaleBrokerEpoch(TidelogError, code=77):
    """A newer registration of this broker id exists: this process must register again or stop."""


class OffsetNotAvailable(TidelogError, code=78, retriable=True):
    """The leader has just been elected and does not know the high watermark yet: try again."""


class PreferredLeaderNotAvailable(TidelogError, code=80):
    """The preferred leader is not alive or not in sync: bring it back first."""


class GroupMaxSizeReached(TidelogError, code=81):
    """The group is full: raise `group.max.size` or stop a member."""


class FencedInstanceId(TidelogError, code=82):
    """Another member uses this group instance id: instance ids are one per member."""


class EligibleLeadersNotAvailable(TidelogError, code=83):
    """No replica that holds all committed records is alive: bring one back."""


class ElectionNotNeeded(TidelogError, code=84):
    """The partition has the leader that was asked for."""


class NoReassignmentInProgress(TidelogError, code=85):
    """Nothing is being moved that could be cancelled."""


class InvalidRecord(TidelogError, code=87):
    """A record is not allowed in this topic: a compacted topic needs keys."""


class UnstableOffsetCommit(TidelogError, code=88, retriable=True):
    """The offset belongs to a transaction that is not decided yet: try again."""


class Throttled(TidelogError, code=89, retriable=True):
    """The node is at one of its limits (connections, bytes in flight): slow down and try again."""


class ProducerFenced(TidelogError, code=90):
    """A newer producer with the same transactional id has taken over: this one must stop."""


class InvalidUpdateVersion(TidelogError, code=95):
    """The partition has changed since: wait for the metadata and decide again."""


class SnapshotNotFound(TidelogError, code=98, retriable=True):
    """That metadata snapshot is gone: ask for the newest."""


class UnknownTopicId(TidelogError, code=100, retriable=True):
    """No topic has this id: it was deleted or re-created, or the broker has not heard of it yet."""


class DuplicateBrokerRegistration(TidelogError, code=101):
    """A live broker uses this id: give each broker its own id."""


class BrokerIdNotRegistered(TidelogError, code=102):
    """The controller does not know this broker: it must register first."""


class InconsistentTopicId(TidelogError, code=103, retriable=True):
    """The topic has another id here: it was re-created; refresh the metadata."""


class InconsistentClusterId(TidelogError, code=104):
    """The other side belongs to another cluster: check the addresses and the data directory."""


class TransactionalIdNotFound(TidelogError, code=105):
    """No such transactional id."""


class IneligibleReplica(TidelogError, code=107):
    """A replica that was proposed for the ISR is fenced, stopping or re-registered."""


class NewLeaderElected(TidelogError, code=108):
    """The change was made and brought another leader."""


class FencedMemberEpoch(TidelogError, code=110):
    """The group has moved on without this member: join again."""


class UnreleasedInstanceId(TidelogError, code=111):
    """The previous holder of this group instance id is still a member: wait or stop it."""


class UnsupportedAssignor(TidelogError, code=112):
    """The broker has no such assignor: choose one that it names."""


class StaleMemberEpoch(TidelogError, code=113, retriable=True):
    """The member's epoch is old: heartbeat, then try again."""


class InvalidRegistration(TidelogError, code=119):
    """The broker's registration contradicts itself: the message says where."""


class InvalidVoterKey(TidelogError, code=125):
    """The request was meant for another voter or another disk of it."""


class DiskFull(TidelogError, code=1000, retriable=True):
    """The broker's disk is full: free space or lower retention limits; service returns by itself."""


class MalformedFrame(TidelogError, code=1001):
    """The bytes do not follow tidelog's protocol: something else is speaking to this port."""

    correlation: int = 0
    """The request's or reply's, when that much of a head could be read."""


class ConnectionFailed(TidelogError, code=1002, retriable=True):
    """The connection could not be made or broke: check the address and that the process runs there."""


class NoController(TidelogError, code=1003, retriable=True):
    """No controller leads that a broker could find: see that a majority of the controllers runs; `tidelog cluster quorum
    -b HOST:PORT` asks one of them what it knows.
    """


class CorruptCheckpoint(TidelogError, code=1010):
    """A checkpoint file cannot be read and its fallback was taken."""


class CorruptSnapshot(TidelogError, code=1011):
    """A snapshot file cannot be read and an older one or the log is used instead."""


class DamagedLog(TidelogError, code=1012):
    """Bytes below the recovery point are not what was written: restore this replica from another one."""

    def __init__(self, message: str = "", base_offset: int = -1) -> None:
        super().__init__(message)
        self.base_offset = base_offset
        """Of the segment that they are in; -1: it is not said."""


class InvalidAppend(TidelogError, code=1013):
    """The batches do not continue this log: offsets and epochs must not go back."""


class InconsistentMetadata(TidelogError, code=1014):
    """The metadata log contradicts itself or what was read of it before: this node stops and changes nothing;
    keep its directory and report it.
    """


class DirectoryLocked(TidelogError, code=1020):
    """Another process uses this data directory: stop it, or choose another directory."""


class WrongIdentity(TidelogError, code=1021):
    """The data directory belongs to another node or cluster: check `--id`, `--data` and the addresses."""


class UnsupportedFormat(TidelogError, code=1022):
    """The file was written by a newer tidelog: upgrade, nothing was changed."""


class NotADataDirectory(TidelogError, code=1023):
    """The directory holds files but no `meta.properties`: choose an empty directory or a tidelog one."""


class Unsupported(TidelogError, code=1030):
    """This tidelog does not have that yet: leave the option out."""


class ClientClosed(TidelogError, code=1031):
    """The client, the producer or the consumer was closed: make a new one."""


class SeveralErrors(TidelogError, code=1032):
    """Some of what was asked for was refused: the message names each, `errors` holds them by name."""

    def __init__(self, message: str = "", errors: Mapping[str, TidelogError] | None = None) -> None:
        super().__init__(message)
        self.errors: dict[str, TidelogError] = dict(errors or {})


class DeliveryError(TidelogError, code=1033):
    """Records were not acknowledged: send them again if a second copy does no harm where the message says that they may
    be written.
    """

    def __init__(self, message: str = "", undelivered: int = 0) -> None:
        super().__init__(message)
        self.undelivered = undelivered
        """How many records."""


class LogTruncated(TidelogError, code=1034):
    """Records that were read are gone from the log, an unclean election has cut them off: seek to where it parts, or set
    auto_offset_reset.
    """

    def __init__(self, message: str = "", offset: int = -1) -> None:
        super().__init__(message)
        self.offset = offset
        """Up to where what was read is still there; -1: nobody can say."""


def error_of(code: int, message: str) -> TidelogError:
    """The error that a peer reported, as the class that it is; a code from the future keeps its number."""
    error = BY_CODE.get(code)
    if error is None:
        return UnknownServerError(f"error {code} (newer than this tidelog): {message}")
    return error(message)
